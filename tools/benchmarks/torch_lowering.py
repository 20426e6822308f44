"""Compare what the rules for PyTorch lower networks to with the operators that PyTorch runs.

    python tools/benchmarks/export.py operators.jsonl.gz build/gpu_networks
    python tools/benchmarks/torch_lowering.py operators.jsonl.gz build/gpu_networks/*.onnx

The lists hold the operators of each architecture under CUDA autocast at batch 2, traced with fake
tensors: a multiset without edges. Operators agree if their name, the shapes and types of their
inputs and those of their output are the same; of a weight's cast, the order of axes does not
count, of a copy, axes of length 1. ``weights only`` says how many compute with weights alone.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from export import BATCH, operator_lists

from resperf.errors import ResperfError
from resperf.lowering._torch_autocast import autocast
from resperf.lowering._torch_eager import TorchKernel, eager_kernels
from resperf.network import read_network
from resperf.network.canonical import canonical
from resperf.report.tables import table

_TYPES = {"f2": "float16", "f4": "float32", "f8": "float64", "i8": "int64", "i4": "int32",
          "b1": "bool", "bf2": "bfloat16", "u1": "uint8"}  # fmt: skip
_SAME = {"copy_": "copy", "rsub": "sub", "_adaptive_avg_pool2d": "avg_pool2d",
         "upsample_nearest2d": "upsample", "upsample_bilinear2d": "upsample",
         "upsample_bicubic2d": "upsample", "_upsample_bicubic2d_aa": "upsample"}  # fmt: skip
_FREE = frozenset({"as_strided_"})
"""Operators that only change strides."""
_INPUTS_LISTED = {"native_batch_norm": 1, "native_layer_norm": 1, "native_group_norm": 1,
                  "convolution": 2}  # fmt: skip
"""How many inputs count: further ones are weights, which the lists hold in part."""

Key = tuple[Any, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lists", type=Path)
    parser.add_argument("networks", type=Path, nargs="+")
    arguments = parser.parse_args()
    lists = operator_lists(arguments.lists)
    rows, reasons = [], Counter[str]()
    agreed = expected_total = predicted_total = 0
    for path in arguments.networks:
        if path.stem not in lists:
            continue
        expected, folded = _expected(lists[path.stem]["ops"])
        try:
            predicted = _predicted(path)
        except ResperfError as error:
            rows.append([path.stem, "", "", "", "", str(error)])
            continue
        same = (expected & predicted).total()
        for word, differing in (("missing", expected - predicted), ("extra", predicted - expected)):
            for (op, read, written), count in differing.items():
                reasons[f"{word} {op} {read} -> {written}"] += count
        larger = max(expected.total(), predicted.total())
        rows.append([path.stem, str(expected.total()), str(predicted.total()), str(folded),
                     f"{same / larger:.1%}", ""])  # fmt: skip
        agreed, expected_total = agreed + same, expected_total + expected.total()
        predicted_total += predicted.total()
    headings = ("network", "PyTorch", "rules", "weights only", "agree", "error")
    print(table(headings, sorted(rows, key=lambda row: row[4]), text=("network", "error")))
    for reason, count in reasons.most_common(40):
        print(f"{count:6} {reason}")
    shares = [float(row[4].rstrip("%")) for row in rows if row[4]]
    if shares:
        good, total = sum(share >= 95 for share in shares), max(expected_total, predicted_total)
        print(f"\n{agreed / total:.1%} of {total} operators agree", end="; ")
        print(f"{good} of {len(shares)} networks reach 95%")


def _expected(ops: Iterable[list[Any]]) -> tuple[Counter[Key], int]:
    """Return a traced list as keys, and how many operators compute with weights alone."""
    found, folded = Counter[Key](), 0
    for name, inputs, outputs, _, count in ops:
        op = name.removeprefix("aten.")
        if op in _FREE:
            continue
        folded += count * (op != "_to_copy" and all(fixed for *_, fixed in inputs))
        op = _SAME.get(op, op.rstrip("_") if op.endswith("_") else op)
        given = [(tuple(shape), _TYPES.get(kind, kind), bool(fixed))
                 for shape, kind, fixed in inputs]  # fmt: skip
        result = (tuple(outputs[0][0]), _TYPES.get(outputs[0][1], outputs[0][1]))
        found[_key(op, given, result)] += count
    return found, folded


def _predicted(path: Path) -> Counter[Key]:
    network = read_network(path, batch=BATCH).with_weight_nodes()
    network = autocast(canonical(network).network)
    return Counter(_key_of(kernel) for kernel in eager_kernels(network))


def _key_of(kernel: TorchKernel) -> Key:
    given = [
        (each.shape, each.dtype, each.is_fixed) for each in kernel.operator.inputs
        if each is not None and not (each.is_fixed and not each.shape)
    ]  # fmt: skip
    outputs = kernel.operator.outputs
    shape = outputs[0] if outputs else None
    if kernel.op == "clone":
        given = [(shape or (), kernel.operator.operand(0).dtype, given[0][2])]
    return _key(kernel.op, given, (shape, kernel.output_dtype))


def _key(op: str, given: list[tuple[tuple[int, ...], str, bool]], result: Key) -> Key:
    if op == "_to_copy" and given and given[0][2]:
        shape, kind, _ = given[0]
        return op, ((tuple(sorted(shape)), kind),), (tuple(sorted(result[0])), result[1])
    given = given[: _INPUTS_LISTED.get(op)]
    if op == "clone":
        bare = tuple(length for length in given[0][0] if length != 1)
        return op, ((bare, given[0][1]),), (bare, result[1])
    inputs = tuple(sorted((shape, kind) for shape, kind, _ in given if kind != "int64"))
    return op, inputs, result


if __name__ == "__main__":
    main()
