"""Compare predictions of one network that goes in by different ways; prints a table.

pip install '.[torch,keras,transformers]'
python tools/benchmarks/ways.py --device cpu
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from export import with_unlike_weights

import resperf
from resperf.report.markdown import markdown_table
from resperf.report.tables import ms_cell, percent_cell

IMAGE, TOKENS = {"pixel_values": (1, 3, 224, 224)}, {"input_ids": (1, 128)}
OF_TRANSFORMERS = {
    "resnet": IMAGE, "regnet": IMAGE, "mobilenet_v2": IMAGE, "convnext": IMAGE, "vit": IMAGE,
    "bert": TOKENS, "gpt2": TOKENS,
}  # fmt: skip
OF_KERAS = ("ResNet50", "MobileNetV2", "EfficientNetB0")


def torch_ways(kind: str, folder: Path) -> Iterator[Any]:
    """Give name, network and options: a configuration, a module, and what PyTorch writes of it."""
    import torch
    import transformers

    shapes = OF_TRANSFORMERS[kind]
    config = folder / "config.json"
    values = transformers.CONFIG_MAPPING[kind](use_cache=False)
    config.write_text(json.dumps(values.to_dict()))
    yield "config.json", config, {"shapes": shapes}
    # PyTorch's fused attention is exported with a mask or without, as the exporter wants it.
    module = transformers.AutoModel.from_config(values, attn_implementation="eager").eval()
    with_unlike_weights(module)  # exporters drop the zeros of an untrained network
    yield "module", module, {"shapes": shapes}
    example = torch.ones(
        next(iter(shapes.values())), dtype=torch.int64 if "input_ids" in shapes else None
    )
    yield "module with a tensor", module, {"inputs": example}
    named = dict.fromkeys(shapes, example)
    torch.export.save(torch.export.export(module, (), named), folder / "net.pt2")
    yield ".pt2", folder / "net.pt2", {}
    for way, dynamo in {"ONNX, TorchScript": False, "ONNX, torch.export": True}.items():
        if shapes is TOKENS and not dynamo:
            continue  # it gives arguments by position that transformers takes by name
        path = folder / f"{way}.onnx"
        torch.onnx.export(module, (), path, kwargs=named, dynamo=dynamo, verbose=False)
        yield way, path, {}


def keras_ways(name: str, folder: Path) -> Iterator[Any]:
    import keras

    model = getattr(keras.applications, name)(weights=None)
    yield "Keras model", model, {}
    model.save(folder / "net.keras")
    yield ".keras", folder / "net.keras", {}
    model.export(folder / "net.onnx", format="onnx", verbose=False)
    yield "ONNX, Keras", folder / "net.onnx", {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    rows = []
    for name in (*OF_TRANSFORMERS, *OF_KERAS):
        with TemporaryDirectory() as folder:
            ways = torch_ways if name in OF_TRANSFORMERS else keras_ways
            totals = {
                way: resperf.predict(network, device=given.device, batch=1, **options).total_ms
                for way, network, options in ways(name, Path(folder))
            }
        text = ", ".join(f"{way} {ms_cell(total)}" for way, total in totals.items())
        rows.append([name, text, percent_cell(max(totals.values()) / min(totals.values()) - 1)])
    print(markdown_table(("network", "way: total in ms", "largest difference"), rows))


if __name__ == "__main__":
    main()
