"""How many candidate networks `resperf.predict_many` predicts in a second.

    python tools/benchmark_many.py --networks 150

The candidates are made here: about 60 nodes each, of mobile and residual blocks of random widths,
kernels and depths, with their weights, held in memory. No two are alike. The process is warm: the
bundle answered for other candidates before. Prints the rate over candidates never seen before, over
the same ones again, and that of one call of `resperf.predict` for each.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

NODES = 60
WARM = 30


def candidate(seed: int) -> ModelProto:
    """Make a network of mobile and residual blocks."""
    draw = random.Random(seed)
    nodes: list[Any] = []
    weights: list[Any] = []

    def add(op: str, inputs: list[str], **attributes: Any) -> str:
        made = f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [made], made, **attributes))
        return made

    def weight(*shape: int) -> str:
        name = f"weight_{len(weights)}"
        weights.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
        return name

    def conv(read: str, into: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        taps = weight(out, into // groups, kernel, kernel)
        pads = [kernel // 2] * 4
        return add(
            "Conv", [read, taps, weight(out)], kernel_shape=[kernel, kernel],
            strides=[stride, stride], pads=pads, group=groups,
        )  # fmt: skip

    channels = 8 * draw.randint(2, 6)
    last = add("Relu", [conv("image", 3, channels, 3, 2)])
    while len(nodes) < NODES - 4:
        stride = 2 if len(nodes) in range(15, 22) or len(nodes) in range(35, 42) else 1
        out = channels if stride == 1 else channels + 8 * draw.randint(1, 8)
        kernel, wide = draw.choice((3, 5, 7)), channels * draw.randint(2, 6)
        if draw.random() < 0.6:
            inner = add("Clip", [conv(last, channels, wide, 1), "least", "most"])
            inner = conv(inner, wide, wide, kernel, stride, wide)
            made = conv(add("Clip", [inner, "least", "most"]), wide, out, 1)
        else:
            inner = add("Relu", [conv(last, channels, out, 3, stride)])
            made = conv(inner, out, out, 3)
        last = made if stride == 2 else add("Add", [made, last])
        last, channels = add("Relu", [last]), out
    pooled = add("Flatten", [add("GlobalAveragePool", [last])])
    classes = 10 * draw.randint(1, 100)
    scores = add("Gemm", [pooled, weight(channels, classes), weight(classes)])
    weights.append(numpy_helper.from_array(np.array(0, np.float32), "least"))
    weights.append(numpy_helper.from_array(np.array(6, np.float32), "most"))
    shape = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        f"candidate_{seed}",
        [shape("image", TensorProto.FLOAT, [1, 3, 96, 96])],
        [shape(scores, TensorProto.FLOAT, [1, classes])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rates(count: int, device: str) -> dict[str, float]:
    """Return networks per second of each way to predict the candidates."""
    from resperf import predict, predict_many

    def rate(ask: Callable[[list[ModelProto]], object], models: list[ModelProto]) -> float:
        start = time.perf_counter()
        ask(models)
        return len(models) / (time.perf_counter() - start)

    def together(models: list[ModelProto]) -> object:
        return predict_many(models, device=device)

    def one_by_one(models: list[ModelProto]) -> object:
        return [predict(each, device=device) for each in models]

    models = [candidate(seed) for seed in range(count)]
    warm = [candidate(count + seed) for seed in range(WARM)]
    together(warm)
    return {
        "predict_many, never seen": rate(together, models),
        "predict_many, seen before": rate(together, models),
        "predict each, seen before": rate(one_by_one, models),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=150, help="candidates (at most 220)")
    parser.add_argument("--device", default="cpu", help="device or bundle")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for way, rate in rates(words.networks, words.device).items():
            print(f"{way}: {rate:.0f} networks a second")


if __name__ == "__main__":
    main()
