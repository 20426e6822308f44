#!/usr/bin/env python
"""Break network files in many ways and check how `resperf predict` reacts.

    python tools/fuzz_networks.py --count 1000
    python tools/fuzz_networks.py --count 1000 --seed 1000       # other files
    python tools/fuzz_networks.py --seed 417 --keep broken       # one file again, stored

A broken file may be predicted or refused with one line. What may not happen: any other exception,
more than ten seconds, more than a gigabyte, or a look at files outside the network's folder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHIPPED = Path(__file__).parents[1] / "models" / "networks"
LIMIT_S = 10.0
LIMIT_BYTES = 1 << 30
OUTSIDE = "outside.bin"
"""What no network may read: it lies beside its folder."""

OPERATORS = ("Nonsense", *sorted({schema.name for schema in onnx.defs.get_all_schemas()}))
"""What an operator may be turned into."""

Change = Callable[[onnx.ModelProto, random.Random], None]
Write = Callable[[int, Path], tuple[str, Path]]
"""Writes a broken file of a seed into a folder; returns what was done and the file."""
Outcome = Callable[[Path], str]
"""Names what comes of a file; begins with ``wrong`` if it must not."""
RAW = ("bytes", "cut", "noise")
"""Ways to break any file."""


def broken_file(seed: int, folder: Path) -> tuple[str, Path]:
    """Write a broken network into a folder; return what was done and the file."""
    source = random.Random(seed)
    original = source.choice(sorted(SHIPPED.glob("*.onnx")))
    target = folder / "network.onnx"
    names = [*CHANGES, *RAW]
    done = names[seed % len(names)]
    if done in CHANGES:
        model = onnx.load(original, load_external_data=False)
        for _ in range(source.choice([1, 1, 2, 5])):
            CHANGES[done](model, source)
        content = model.SerializeToString()
    else:
        content = broken_bytes(original.read_bytes(), done, source)
    target.write_bytes(content)
    return f"{done} in {original.stem}", target


def broken_bytes(content: bytes, how: str, source: random.Random) -> bytes:
    """Break a file in one of the ways of `RAW`."""
    data = bytearray(content)
    if how == "bytes":
        for _ in range(source.choice([1, 4, 30])):
            data[source.randrange(len(data))] = source.randrange(256)
    elif how == "cut":
        del data[source.randrange(len(data)) :]
    else:
        start = source.randrange(len(data))
        data[start : start + 200] = source.randbytes(200)
    return bytes(data)


def _node(model: onnx.ModelProto, source: random.Random) -> onnx.NodeProto:
    return source.choice(model.graph.node)


def _without_a_node(model: onnx.ModelProto, source: random.Random) -> None:
    del model.graph.node[source.randrange(len(model.graph.node))]


def _a_node_twice(model: onnx.ModelProto, source: random.Random) -> None:
    model.graph.node.append(_node(model, source))


def _in_another_order(model: onnx.ModelProto, source: random.Random) -> None:
    nodes = list(model.graph.node)
    source.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _a_cycle(model: onnx.ModelProto, source: random.Random) -> None:
    early, late = sorted(source.sample(range(len(model.graph.node)), 2))
    if model.graph.node[early].input:
        model.graph.node[early].input[0] = model.graph.node[late].output[0]


def _other_inputs(model: onnx.ModelProto, source: random.Random) -> None:
    names = [name for node in model.graph.node for name in node.input] + ["", "nowhere"]
    node = _node(model, source)
    if node.input:
        node.input[source.randrange(len(node.input))] = source.choice(names)


def _fewer_or_more_inputs(model: onnx.ModelProto, source: random.Random) -> None:
    node = _node(model, source)
    if node.input and source.random() < 0.5:
        del node.input[source.randrange(len(node.input)) :]
    else:
        node.input.extend(["nowhere", ""][: source.randrange(1, 3)])


def _another_operator(model: onnx.ModelProto, source: random.Random) -> None:
    _node(model, source).op_type = source.choice(OPERATORS)


def _another_domain(model: onnx.ModelProto, source: random.Random) -> None:
    domains = ["com.microsoft", "com.microsoft.nchwc", "ai.onnx.ml", "com.acme", "ai.onnx"]
    _node(model, source).domain = source.choice([*domains, "\u00fc" * 300])


def _absurd_dimensions(model: onnx.ModelProto, source: random.Random) -> None:
    info = source.choice([*model.graph.input, *model.graph.initializer])
    numbers = [0, -1, -7, 1, 3, 1 << 20, 1 << 40, (1 << 63) - 1]
    if isinstance(info, TensorProto):
        index = source.randrange(len(info.dims) + 1)
        info.dims.insert(index, source.choice(numbers))
        if source.random() < 0.7 and len(info.dims) > 1:
            del info.dims[(index + 1) % len(info.dims)]
        return
    shape = info.type.tensor_type.shape
    if not shape.dim or source.random() < 0.2:
        shape.dim.add().dim_value = source.choice(numbers)
    else:
        source.choice(shape.dim).dim_value = source.choice(numbers)


def _another_type(model: onnx.ModelProto, source: random.Random) -> None:
    info = source.choice([*model.graph.input, *model.graph.initializer])
    number = source.choice([0, 2, 7, 8, 9, 10, 11, 14, 16, 17, 22, 99])
    if isinstance(info, TensorProto):
        info.data_type = number
    else:
        info.type.tensor_type.elem_type = number


def _attributes(model: onnx.ModelProto, source: random.Random) -> None:
    node = _node(model, source)
    if not node.attribute:
        return
    attribute = source.choice(node.attribute)
    name = attribute.name
    lists: list[list[int]] = [[], [0, 0], [-1, -1, -1, -1], [1 << 40] * 4, [3]]
    value = source.choice([0, -1, 1 << 62, *lists, "NOTHING", 0.5, [1] * 900])
    attribute.CopyFrom(helper.make_attribute(name, value, attr_type=7 if value == [] else None))


def _no_attributes(model: onnx.ModelProto, source: random.Random) -> None:
    del _node(model, source).attribute[:]


def _enormous_weight(model: onnx.ModelProto, source: random.Random) -> None:
    name = "w"
    if model.graph.initializer:
        name = model.graph.initializer.pop(source.randrange(len(model.graph.initializer))).name
    sides = source.choice([(1 << 20, 1 << 19), (1 << 31, 1 << 31), (1 << 12,) * 3, (1 << 36,)])
    proto = TensorProto(name=name, data_type=1, dims=sides)
    if source.random() < 0.5:
        proto.raw_data = b"\0" * 64
    model.graph.initializer.append(proto)


def _weights_outside(model: onnx.ModelProto, source: random.Random) -> None:
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        del tensor.external_data[:]
        where = source.choice(
            [f"../{OUTSIDE}", f"./.././{OUTSIDE}", f"sub/../../{OUTSIDE}", "/etc/passwd"]
        )
        tensor.external_data.add(key="location", value=where)
        tensor.external_data.add(key="offset", value=str(source.choice([0, -1, 1 << 50])))


def _control_flow(model: onnx.ModelProto, source: random.Random) -> None:
    depth = source.choice([1, 3, 15, 28])
    op = source.choice(["If", "Loop", "Scan"])
    output = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["inner"])], "g", [], [output])
    for level in range(depth):
        graph = helper.make_graph([_branching(op, level, graph, "inner")], "g", [], [output])
    for level in range(depth + 1):
        # Known conditions let a branch take the place of its node, unknown ones do not.
        if source.random() < 0.7:
            value = source.choice([0, 3, 1 << 40] if op == "Loop" else [False, True])
            model.graph.initializer.append(numpy_helper.from_array(np.array(value), f"c{level}"))
        else:
            kind = TensorProto.BOOL if op == "If" else TensorProto.INT64
            info = helper.make_tensor_value_info(f"c{level}", kind, [] if op != "Scan" else [3])
            model.graph.input.append(info)
    result = _node(model, source).output[0]
    model.graph.node.append(_branching(op, depth, graph, "flow"))
    model.graph.node.append(helper.make_node("Add", ["flow", result], ["sum"], "sum"))
    model.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, None))


def _branching(op: str, level: int, graph: onnx.GraphProto, result: str) -> onnx.NodeProto:
    names = [f"c{level}"]
    if op == "If":
        # A second copy of the branch at every level would double the file each time.
        node = helper.make_node("Identity", ["x"], ["inner"])
        other = helper.make_graph([node], "other", [], list(graph.output))
        more = {"then_branch": graph, "else_branch": other}
    else:
        names.append("")
        more = {"body": graph, **({"num_scan_inputs": 1} if op == "Scan" else {})}
    return helper.make_node(op, names, [result], f"{op}{level}", **more)


def _functions(model: onnx.ModelProto, source: random.Random) -> None:
    """Functions that call themselves, each other, or two of the next."""
    sort = source.choice(["itself", "doubling", "unknown"])
    names = [f"f{level}" for level in range(40)]
    for name, after in zip(names, [*names[1:], "Relu"], strict=True):
        callee = name if sort == "itself" else after
        domain = "" if callee == "Relu" else "own"
        nodes = [
            helper.make_node(callee, ["x"], ["y0"], domain=domain),
            helper.make_node(callee, ["y0"], ["y"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        model.functions.append(helper.make_function("own", name, ["x"], ["y"], nodes, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    called = "f99" if sort == "unknown" else "f0"
    given = _node(model, source).output[0]
    model.graph.node.append(helper.make_node(called, [given], ["of"], domain="own"))
    model.graph.output.append(helper.make_tensor_value_info("of", TensorProto.FLOAT, None))


def _operator_sets(model: onnx.ModelProto, source: random.Random) -> None:
    sort = source.randrange(4)
    if sort == 0 or not model.opset_import:
        del model.opset_import[:]
    elif sort == 1:
        model.opset_import[0].version = source.choice([0, -3, 1, 6, 999, 1 << 40])
    elif sort == 2:
        model.opset_import.append(model.opset_import[0])
    else:
        model.ir_version = source.choice([0, 1, 99, 1 << 40])


def _no_outputs(model: onnx.ModelProto, source: random.Random) -> None:
    kept = source.randrange(2)
    del model.graph.output[kept:]
    if source.random() < 0.3:
        del model.graph.input[:]


def _names(model: onnx.ModelProto, source: random.Random) -> None:
    node = _node(model, source)
    node.name = source.choice(["", "\x1b[31mred", "a" * 100_000, "\u202e", "line\nbreak"])
    node.output[0] = source.choice(["", node.name, model.graph.node[0].output[0]])


CHANGES: Mapping[str, Change] = {
    change.__name__.strip("_").replace("_", " "): change
    for change in (
        _without_a_node, _a_node_twice, _in_another_order, _a_cycle, _other_inputs,
        _fewer_or_more_inputs, _another_operator, _another_domain, _absurd_dimensions,
        _another_type, _attributes, _no_attributes, _enormous_weight, _weights_outside,
        _control_flow, _functions, _operator_sets, _no_outputs, _names,
    )
}  # fmt: skip


def outcome(path: Path) -> str:
    """Predict a network for a 1080 Ti and lower it with ONNX Runtime; name the outcome."""
    import resperf
    from resperf.backends import backend
    from resperf.errors import ResperfError
    from resperf.lowering import lower
    from resperf.network import read_network

    def predicted() -> str:
        prediction = resperf.predict(path, batch=1, device="1080ti")
        return "predicted in part" if prediction.skipped else "predicted"

    def lowered() -> str:
        device = backend("onnxruntime")
        lower(read_network(path), device.setting(), device.platform())
        return "lowered"

    words = []
    for read in (predicted, lowered):
        try:
            words.append(read())
        except ResperfError as error:
            text = str(error)
            if "\n" in text or not text or "\x1b" in text:
                return f"wrong: {type(error).__name__} is no clean line: {text!r}"
            words.append("refused")
    return ", ".join(words)


_OPENED: list[str] = []
"""What Python opened in this process since the last file."""


def _watch_process() -> None:
    """Watch what Python opens in this process, and limit its memory."""
    resource.setrlimit(resource.RLIMIT_AS, (16 * LIMIT_BYTES, 16 * LIMIT_BYTES))

    def watch(event: str, arguments: Any) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            name = os.fspath(arguments[0])
            _OPENED.append(name if isinstance(name, str) else name.decode(errors="replace"))

    sys.addaudithook(watch)


def _watched(outcome: Outcome, path: Path) -> str:
    """Name what comes of a file, or what may not happen."""
    _OPENED.clear()
    before = _peak_bytes()
    try:
        answer = outcome(path)
    except BaseException as error:
        answer = f"wrong: {type(error).__name__}: {str(error)[:200]}"
    if any(name.endswith((OUTSIDE, "passwd")) for name in _OPENED):
        answer = "wrong: a file outside the folder was opened"
    if _peak_bytes() - before > LIMIT_BYTES:
        answer = f"wrong: {(_peak_bytes() - before) / 1e9:.1f} GB more memory"
    return answer


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _new_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_watch_process)


def fuzz(
    seeds: Sequence[int], write: Write, outcome: Outcome, keep: Path | None = None
) -> Counter[str]:
    """Break and read files; return how often each thing happened, with what was wrong."""
    counts = Counter[str]()
    pool = _new_pool()
    for seed in seeds:
        with TemporaryDirectory(prefix="resperf-fuzz-") as root:
            folder = Path(root) / "broken"
            folder.mkdir()
            (Path(root) / OUTSIDE).write_bytes(b"\0" * 4096)
            done, path = write(seed, folder)
            started = time.monotonic()
            try:
                answer = pool.submit(_watched, outcome, path).result(LIMIT_S + 20)
            except (TimeoutError, BrokenProcessPool) as error:
                is_late = isinstance(error, TimeoutError)
                answer = f"wrong: {'no answer' if is_late else 'the process ended'}"
                for process in multiprocessing.active_children():
                    process.kill()
                pool = _new_pool()
            seconds = time.monotonic() - started
            if seconds > LIMIT_S and seed != seeds[0] and not answer.startswith("wrong"):
                answer = f"wrong: {seconds:.0f} s"
            if answer.startswith("wrong"):
                answer = f"{answer} (seed {seed}: {done})"
                print(answer, flush=True)
            if keep is not None:
                shutil.copytree(folder, keep / str(seed), dirs_exist_ok=True)
            counts[answer] += 1
    return counts


def main(title: str, write: Write, outcome: Outcome) -> int:
    """Break as many files as the command line says."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--count", type=int, help="1000, or 1 with --seed")
    parser.add_argument("--seed", type=int, help="of the first file")
    parser.add_argument("--keep", type=Path, help="folder to store the broken files in")
    arguments = parser.parse_args()
    first = arguments.seed or 0
    count = arguments.count or (1000 if arguments.seed is None else 1)
    seeds = range(first, first + count)
    counts = fuzz(seeds, write, outcome, arguments.keep)
    for answer, count in counts.most_common():
        print(f"{count:5} x {answer}")
    wrong = sum(count for answer, count in counts.items() if answer.startswith("wrong"))
    print(f"{wrong} of {len(seeds)} files went wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], broken_file, outcome))
