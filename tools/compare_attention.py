#!/usr/bin/env python
"""Run ONNX Runtime's attention kernels beside the operators that they are predicted as.

    python tools/compare_attention.py

Both are whole graphs on one thread, in turns; the time is the shortest of 60 runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from resperf.layers._operator import CONTRIB
from resperf.lowering._ort_attention import attention_parts
from resperf.network import Node, Tensor
from resperf.network.contrib import contrib_outputs
from resperf.network.shapes import infer_node
from resperf.report.tables import table
from resperf.units import MS_PER_S

OPSETS = {"": 24, CONTRIB: 1}
HEADS, SIZE = 8, 64
Case = tuple[str, str, tuple[str, ...], dict[str, Any], dict[str, tuple[int, ...]]]


def cases() -> dict[str, Case]:
    """Name -> domain, operator, inputs, attributes, shapes."""
    found: dict[str, Case] = {}
    for new, past in ((1, 512), (128, 0), (64, 64), (1, 2048)):
        label, rows = f"{new} new, {past} cached", new + past

        def heads(tokens: int, of: int = HEADS) -> tuple[int, ...]:
            return (1, of, tokens, SIZE)

        if not past:
            shapes = {name: heads(new) for name in "qkv"}
            found[f"Attention, {label}"] = ("", "Attention", (*"qkv",), {"is_causal": 1}, shapes)
            continue
        shapes = {**{name: heads(new) for name in "qkv"}, "mask": (new, rows)}
        shapes |= {name: heads(past) for name in ("pk", "pv")}
        found[f"Attention, {label}"] = ("", "Attention", (*shapes,), {}, shapes)
        packed = dict.fromkeys("qkv", (1, new, HEADS * SIZE))
        shapes = {**packed, "mask": (1, 1, new, rows)}
        shapes |= {name: heads(past) for name in ("pk", "pv")}
        names = ("q", "k", "v", "", "", "mask", "pk", "pv")
        words: dict[str, Any] = {"num_heads": HEADS}
        found[f"MultiHeadAttention, {label}"] = (
            CONTRIB, "MultiHeadAttention", names, words, shapes
        )  # fmt: skip
        shapes = {"q": packed["q"], **dict.fromkeys("kv", (1, new, 2 * SIZE))}
        shapes |= {name: heads(past, 2) for name in ("pk", "pv")} | {"last": (1,), "total": (1,)}
        words = {"num_heads": HEADS, "kv_num_heads": 2}
        found[f"GroupQueryAttention, {label}"] = (
            CONTRIB, "GroupQueryAttention", (*shapes,), words, shapes
        )  # fmt: skip
    for tokens in (1, 128, 2048):
        shapes = {"x": (1, HEADS, tokens, SIZE), "places": (1, tokens)}
        shapes |= dict.fromkeys(("cos", "sin"), (4096, SIZE // 2))
        names = ("x", "cos", "sin", "places")
        found[f"RotaryEmbedding, {tokens} tokens"] = ("", "RotaryEmbedding", names, {}, shapes)
    for length in (512, 4096):
        shapes = {"past": (1, HEADS, length, SIZE), "new": (1, HEADS, 1, SIZE), "places": (1,)}
        found[f"TensorScatter, {length} cached"] = (
            "", "TensorScatter", (*shapes,), {"axis": 2}, shapes
        )  # fmt: skip
    return found


def graphs(case: Case) -> list[Callable[[], None]]:
    """Return calls of the operator and of its parts."""
    domain, op, names, words, shapes = case
    values = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    rows = sum(shapes[name][2] for name in ("pk",) if name in shapes) + shapes[names[0]][1]
    for name, kind, value in (
        ("last", np.int32, rows - 1), ("total", np.int32, rows), ("places", np.int64, 0)
    ):  # fmt: skip
        if name in values:
            values[name] = np.full(shapes[name], value, kind)
    outputs = ("y", "ok", "ov") if "pk" in shapes else ("y",)
    tensors = {
        name: Tensor(name, each.shape, each.dtype.name, each if name == "total" else None)
        for name, each in values.items()
    }
    proto = helper.make_node(op, names, outputs, domain=domain, **words)
    known = [tensors.get(name) for name in names]
    made = contrib_outputs(op, known, words) if domain else None
    found = dict(zip(outputs, made, strict=True)) if made else infer_node(proto, tensors, OPSETS)
    tensors |= {name: Tensor(name, shape, dtype) for name, (dtype, shape) in found.items()}
    parts, between = attention_parts(Node("n", op, domain, names, outputs, words), tensors)
    protos = [
        helper.make_node(each.op, each.inputs, each.outputs, domain=each.domain, **each.attributes)
        for each in parts
    ]
    tensors |= between
    return [_call([proto], tensors, values, outputs), _call(protos, tensors, values, outputs)]


def _call(
    nodes: list[Any],
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
    outputs: tuple[str, ...],
) -> Callable[[], None]:
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
    feeds = {
        name: values[name] if name in values else np.full(tensors[name].shape, 0.1, np.float32)
        for name in read
    }
    fixed = ("total", "cos", "sin")
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
         for name, each in feeds.items() if name not in fixed],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(feeds.pop(name), name) for name in fixed if name in feeds],
    )  # fmt: skip
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(),
        options, providers=["CPUExecutionProvider"],
    )  # fmt: skip
    return lambda: session.run(None, feeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    runs = parser.parse_args().runs
    onnxruntime.set_default_logger_severity(4)  # TensorScatter warns of each copy.
    rows, ratios = [], []
    for name, case in cases().items():
        calls = graphs(case)
        times_ms: list[list[float]] = [[], []]
        for _ in range(runs):
            for call, taken_ms in zip(calls, times_ms, strict=True):
                start = time.perf_counter()
                call()
                taken_ms.append((time.perf_counter() - start) * MS_PER_S)
        kernel_ms, parts_ms = map(min, times_ms)
        ratios.append(parts_ms / kernel_ms)
        rows.append([name, f"{kernel_ms:.3f}", f"{parts_ms:.3f}", f"{ratios[-1]:.2f}"])
    print(table(("operator", "its kernel, ms", "its parts, ms", "ratio"), rows, text=("operator",)))
    print(f"\nmedian ratio {np.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
