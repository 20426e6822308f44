"""Stands in for trtexec: takes its options, reads ONNX, writes files of its form.

Its times are closed forms. A copy takes `copy_ms`, and as long again as `RELAYOUT_MS` where its
main operator is a convolution, whose formats it changes; a run takes `RUN_MS` besides. The profile
is a fifth longer. Copies between host and device take a millisecond per 10 MB.

Words of its environment: STANDIN_VERSION (8503, 100500, 110100), STANDIN_FAIL (part of a model's
name that cannot be built), STANDIN_MERGE (part of a model's name of which the first two copies
become one layer), STANDIN_LOST (a file: if it exists, there is no GPU).
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import tomllib
from pathlib import Path

RUN_MS, RELAYOUT_MS = 0.003, 0.002
COPY_MS_PER_BYTE = 1e-7


def copy_ms(values: int) -> float:
    """Time of one copy of a layer that reads and writes so many values."""
    return 0.005 + 1e-6 * values


def main(words: list[str]) -> int:
    version = os.environ.get("STANDIN_VERSION", "100500")
    tables = tomllib.loads(Path(__file__).with_name("flags.toml").read_text())
    known = tables[version]["names"].split()
    sys.stdout.write(
        f"&&&& RUNNING TensorRT.trtexec [TensorRT v{version}] # trtexec {' '.join(words)}" + "\n"
    )
    if "--help" in words:
        for name in known:
            sys.stdout.write(f"  --{name}=<spec>              Help on it" + "\n")
        return 0
    given = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    unknown = [word for word in words if not word.startswith("--")] + sorted(
        set(given) - set(known)
    )
    if unknown:
        return failed(version, f"Unknown option: --{unknown[0]}")
    if Path(os.environ.get("STANDIN_LOST", "none")).exists():
        return failed(version, "Cuda failure: no CUDA-capable device is detected")
    sys.stdout.write("[11/23/2026-20:00:00] [I] === Device Information ===" + "\n")
    sys.stdout.write("[11/23/2026-20:00:00] [I] Selected Device: NVIDIA A100 80GB PCIe" + "\n")
    return run(version, given)


def failed(version: str, message: str) -> int:
    sys.stderr.write(f"[11/23/2026-20:00:00] [E] {message}" + "\n")
    sys.stderr.write(f"&&&& FAILED TensorRT.trtexec [TensorRT v{version}]" + "\n")
    return 1


def run(version: str, given: dict[str, str]) -> int:
    onnx = onnx_messages()
    path = Path(given["onnx"])
    if given["profilingVerbosity"] != "detailed" or "saveEngine" in given:
        return failed(version, "the test wants detailed layers, and no engine on the disk")
    if os.environ.get("STANDIN_FAIL", "none") in path.name:
        return failed(version, "Error Code 10: Could not find any implementation for node copy0.X1")
    model = onnx.ModelProto.FromString(path.read_bytes())
    half = any(v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for v in model.graph.input)
    if half and not {"stronglyTyped", "fp16"} & set(given):
        return failed(version, "float16 without a flag for it")
    try:
        large = [external(path.parent, v) for v in model.graph.initializer if v.external_data]
    except (OSError, ValueError) as error:
        return failed(version, f"failed to parse the weights: {error}")
    if len(set(large)) != len(large):
        return failed(version, "two copies have equal weights")
    if "noBuilderCache" not in given:
        Path(given["timingCacheFile"]).touch()
    copies = grouped(model.graph)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
              for v in (*model.graph.input, *model.graph.output)}  # fmt: skip
    layers, profile = [], []
    total_ms = RUN_MS
    for number, nodes in copies.items():
        mine = [name for name in shapes if name.startswith(f"copy{number}.")]
        time_ms = copy_ms(sum(math.prod(shapes[name]) for name in mine))
        relayout_ms = RELAYOUT_MS if any(node.op_type == "Conv" for node in nodes) else 0.0
        total_ms += time_ms + relayout_ms
        inputs = [v.name for v in model.graph.input if v.name in mine]
        outputs = [v.name for v in model.graph.output if v.name in mine]
        names = [node.name for node in nodes]
        name = " + ".join(names)
        if relayout_ms:
            added = f"Reformatting CopyNode for Input Tensor 0 to {name}"
            changed = f"Reformatted Input Tensor 0 to {name}"
            layers.append(layer(added, "Reformat", inputs[:1], [changed], shapes))
            profile.append((added, relayout_ms))
            inputs = [changed, *inputs[1:]]
        if os.environ.get("STANDIN_MERGE", "none") in path.name and number == 1:
            layers[-1]["Name"] = name = f"{layers[-1]['Name']} || {name}"
            layers[-1]["Outputs"] += tensors(outputs, shapes)
            profile[-1] = (name, profile[-1][1] + time_ms)
            continue
        made = layer(name, "CaskConvolution", inputs, outputs, shapes)
        if int(version) > 10_0000:
            made["StreamId"] = 0
            made["Metadata"] = "\x1e".join(f"[ONNX Layer: {each}]" for each in names)
        layers.append(made)
        profile.append((name, time_ms))
    write(given["exportLayerInfo"], {"Layers": layers, "Bindings": list(shapes)})
    write(given["exportProfile"], [{"count": 10}, *(
        {"name": name, "timeMs": 12 * ms, "averageMs": 1.2 * ms, "medianMs": 1.2 * ms,
         "percentage": 1.0} for name, ms in profile
    )])  # fmt: skip
    copying = (
        "includeDataTransfers" in given
        if "includeDataTransfers" in known_of(version)
        else ("noDataTransfers" not in given)
    )
    h2d_ms, d2h_ms = (
        COPY_MS_PER_BYTE * 4 * sum(math.prod(shapes[v.name]) for v in values) * copying
        for values in (model.graph.input, model.graph.output)
    )
    write(given["exportTimes"], trace(version, given, h2d_ms, total_ms, d2h_ms))
    sys.stdout.write(f"&&&& PASSED TensorRT.trtexec [TensorRT v{version}]" + "\n")
    return 0


def onnx_messages():
    """Import onnx's messages alone: all of onnx takes ten times as long."""
    place = Path(importlib.util.find_spec("onnx").submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location("onnx_ml_pb2", place / "onnx_ml_pb2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def external(folder, weight):
    """Return the bytes of a weight in another file."""
    entries = {each.key: each.value for each in weight.external_data}
    start, size = int(entries["offset"]), int(entries["length"])
    with (folder / entries["location"]).open("rb") as file:
        file.seek(start)
        found = file.read(size)
    if len(found) != size:
        raise ValueError(f"{entries['location']} is too short")
    return found


def known_of(version: str) -> set[str]:
    tables = tomllib.loads(Path(__file__).with_name("flags.toml").read_text())
    return set(tables[version]["names"].split())


def grouped(graph):
    """Return the nodes of each copy, by its number."""
    found = {}
    for node in graph.node:
        found.setdefault(int(node.name.partition(".")[0].removeprefix("copy")), []).append(node)
    return found


def layer(name, kind, inputs, outputs, shapes):
    return {
        "Name": name, "LayerType": kind, "Inputs": tensors(inputs, shapes),
        "Outputs": tensors(outputs, shapes), "ParameterType": "Convolution",
        "TacticValue": "0x0000000000000000",
    }  # fmt: skip


def tensors(names, shapes):
    return [
        {"Name": name, "Location": "Device", "Dimensions": shapes.get(name, [1]),
         "Format/Datatype": "Row major linear FP32"} for name in names
    ]  # fmt: skip


def trace(version, given, h2d_ms, compute_ms, d2h_ms):
    """Return runs; TensorRT 8 also writes those of the warm-up, which are slower here."""
    warmup_ms, entries = float(given["warmUp"]), []
    warm = range(12) if int(version) < 10_0000 else ()
    starts = [(each, 3.0) for each in warm]
    starts += [(warmup_ms + each, 1.0) for each in range(int(given["iterations"]))]
    for start, slower in starts:
        h2d, compute, d2h = (slower * each for each in (h2d_ms, compute_ms, d2h_ms))
        entries.append({
            "startEnqMs": start, "endEnqMs": start, "startH2dMs": start, "endH2dMs": start + h2d,
            "startComputeMs": start, "endComputeMs": start + compute, "startD2hMs": start,
            "endD2hMs": start + d2h, "h2dMs": h2d, "computeMs": compute, "d2hMs": d2h,
            "latencyMs": h2d + compute + d2h,
        })  # fmt: skip
    return entries


def write(path, values):
    Path(path).write_text(json.dumps(values))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
