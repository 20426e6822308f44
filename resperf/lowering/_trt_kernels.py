"""Asks TensorRT for RTX which kernels it makes of a network. It needs no GPU for that."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from resperf import disk_cache
from resperf.errors import MissingExtraError, UnsupportedError, require
from resperf.lowering._base import SINGLE
from resperf.lowering._proto import Skeleton, numpy_type, skeleton
from resperf.network import MALFORMED, Network, Node, Tensor, structure_digest
from resperf.network.graph import renamed
from resperf.network.protos import data_type_of
from resperf.settings import HALF_TYPES

BINDINGS, EXTRA = "tensorrt_rtx_bindings", "tensorrt-rtx"
TRIED = ("1.7.1.116",)
"""Versions whose list of layers is known to be read rightly."""
NO_KERNELS = frozenset({"signal", "wait", "cjmp", "jmp"})
"""Types of layers that order streams and loops, and compute nothing."""
_FOLDER = "tensorrt"
_VALUES = 1024
"""How many values of a weight are written; the others are zeros that take no space on disk."""
_ALIGNED = 64
_LARGEST_HALF = 65504.0
_IN_FLOAT32: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2), "Upsample": (1,)}
"""Operators -> inputs that are float32 in networks of any type."""
_DTYPES: Mapping[str, str] = {
    "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Int8": "int8", "Int32": "int32",
    "Int64": "int64", "Bool": "bool", "UInt8": "uint8", "FP8": "float8_e4m3fn", "Int4": "int4",
}  # fmt: skip
_TENSOR = re.compile(
    r" \{ Name: (.+?), Dimensions: \[([-\d,]*)\], Strides: \[([-\d,]*)\], StrideOrder: "
    r"\[[-\d,]*\], Datatype: (\w+), Format: ([^{}]*)\}(?:,|$)"
)
_LAYER = re.compile(
    r"Name: (.+?), LayerType: (\w+), Inputs: \[(.*)\], Constants: \[(.*)\], Outputs: \[(.*)\], "
    r"TacticName: (\S*), StreamId: (\d+), (?:\w+: \S*, )*Metadata: ((?:\x1f?\[[^\[\]]*\]\w*)*)"
)
_SOURCE = re.compile(r"\[ONNX Layer: n(\d+)\]")


@dataclass(frozen=True)
class KernelTensor:
    """What a kernel reads or writes.

    Attributes
    ----------
    name : str
        TensorRT's own name.
    dtype : str
        As in `resperf.network.Tensor`.
    shape, strides : tuple of int
        Strides count elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """One kernel of an engine.

    Attributes
    ----------
    name, layer_type, tactic : str
        As TensorRT prints them: ``"__myl_CorrMulAddRelu_myl0_1"``, ``"runtime_fusion"``.
    stream : int
        Kernels of several streams overlap.
    nodes : tuple of int
        Indices of the network's nodes that it holds.
    inputs, constants, outputs : tuple of KernelTensor
    """

    name: str
    layer_type: str
    tactic: str
    stream: int
    nodes: tuple[int, ...]
    inputs: tuple[KernelTensor, ...]
    constants: tuple[KernelTensor, ...]
    outputs: tuple[KernelTensor, ...]


def installed() -> str:
    """Return the version of the TensorRT that is asked; empty if there is none."""
    try:
        return str(_bindings().__version__)
    except MissingExtraError:
        return ""


def _bindings() -> ModuleType:
    return require(BINDINGS, EXTRA)


def kernels_of(network: Network, precision: str, capability: str) -> list[Kernel]:
    """Return the kernels that TensorRT makes of a network, in their order, through the disk cache.

    Parameters
    ----------
    network : Network
        Read at the batch size that is asked about.
    precision : str
        As in `resperf.settings.Setting`: a float32 network is converted before.
    capability : str
        Of the card, such as ``"8.6"``; see `asked_as`.

    Raises
    ------
    MissingExtraError
        If TensorRT for RTX is not installed.
    UnsupportedError
        If it refuses the network.
    """
    target = asked_as(capability, precision)
    version, code = installed(), disk_cache.code_state("lowering", "network")
    name = disk_cache.name_of(code, version, structure_digest(network), precision, target)
    try:
        return [_from_row(row) for row in disk_cache.load(_FOLDER, name)]
    except MALFORMED:
        kernels = _ask(network, precision, target)
    disk_cache.store(_FOLDER, name, [astuple(kernel) for kernel in kernels])
    return kernels


def _from_row(row: Sequence[Any]) -> Kernel:
    name, layer_type, tactic, stream, nodes, *tensors = row
    inputs, constants, outputs = (
        tuple(KernelTensor(own, dtype, tuple(shape), tuple(strides))
              for own, dtype, shape, strides in part)
        for part in tensors
    )  # fmt: skip
    return Kernel(name, layer_type, tactic, stream, tuple(nodes), inputs, constants, outputs)


def asked_as(capability: str, precision: str) -> str:
    """Return the compute capability that TensorRT is asked for: the nearest that it builds for.

    That is the highest up to the card's own, else the lowest. It builds no float32 for Turing.
    """
    trt = _bindings()
    members = (name.removeprefix("SM") for name in trt.ComputeCapability.__members__)
    numbers = sorted(int(name) for name in members if name.isdigit())
    if precision not in (*HALF_TYPES, "int8"):
        numbers = [number for number in numbers if number >= 80]
    major, _, minor = (capability or "8.0").partition(".")
    own = 10 * int(major) + int(minor or 0)
    nearest = max((number for number in numbers if number <= own), default=numbers[0])
    return f"{nearest // 10}.{nearest % 10}"


def _ask(network: Network, precision: str, target: str) -> list[Kernel]:
    model = skeleton(_in_type(network, HALF_TYPES.get(precision, "")), keep_weights=True)
    messages: list[tuple[Any, str]] = []
    with tempfile.TemporaryDirectory(prefix="resperf-") as folder:
        path = Path(folder) / "model.onnx"
        _write(_numbered(network, model), path)
        _build(network, path, target, messages)
    listed = next((text for _, text in messages if text.startswith("Layers:")), "")
    kernels = list(_read(listed))
    if not kernels:
        raise UnsupportedError("TensorRT printed no list of layers")
    return kernels


def _numbered(network: Network, model: Skeleton) -> Skeleton:
    """Name nodes and tensors by numbers, which TensorRT's list cannot mistake."""
    graph = model.model.graph
    order = {node.name: number for number, node in enumerate(network.nodes)}
    parts = (*graph.initializer, *graph.input, *graph.output)
    used = [part.name for part in parts]
    used += [name for node in graph.node for name in node.output if name]
    names = {name: f"t{number}" for number, name in enumerate(dict.fromkeys(used))}
    for part in parts:
        part.name = names[part.name]
    nodes = [renamed(node, names) for node in graph.node]
    for node in nodes:
        node.name = f"n{order[node.name]}" if node.name in order else "converted"
    del graph.node[:]
    graph.node.extend(nodes)
    return Skeleton(model.model, {names[name]: value for name, value in model.weights.items()})


def _build(network: Network, model: Path, target: str, messages: list[tuple[Any, str]]) -> None:
    """Build the engine of a file for a compute capability; `messages` gets TensorRT's log."""
    trt = _bindings()

    class Log(trt.ILogger):  # type: ignore[misc, name-defined]
        def log(self, severity: Any, message: str) -> None:
            messages.append((severity, message))

    log = Log()
    builder = trt.Builder(log)
    definition = builder.create_network(0)
    parser = trt.OnnxParser(definition, log)
    if not parser.parse_from_file(str(model)):
        error = parser.get_error(0)
        raise UnsupportedError(
            f"TensorRT refuses {_refused(network, error.node_name(), error.desc())}"
        )
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    capability = trt.ComputeCapability.__members__[f"SM{target.replace('.', '')}"]
    config.set_compute_capability(capability, 0)
    if builder.build_serialized_network(definition, config) is None:
        errors = (text for severity, text in messages if severity <= trt.ILogger.Severity.ERROR)
        raise UnsupportedError(f"TensorRT builds no engine: {next(errors, 'it gives no reason')}")


def _refused(network: Network, name: str, reason: str) -> str:
    """Say which node is refused, and why."""
    node = network.nodes[int(name[1:])] if re.fullmatch(r"n\d+", name) else None
    subject = f"{node.op} {node.name!r}" if node else "the network"
    return f"{subject}: {reason}"


def _write(model: Skeleton, path: Path) -> None:
    """Write a model, its weights as a file that has values at the beginning of each alone."""
    proto, offset = model.model, 0
    with path.with_name("weights.bin").open("wb") as file:
        for weight in proto.graph.initializer:
            if (value := model.weights.get(weight.name)) is None:
                continue
            file.seek(offset)
            file.write(value.ravel()[:_VALUES].tobytes())
            del weight.external_data[:]
            facts = {"location": "weights.bin", "offset": offset, "length": value.nbytes}
            for key, fact in facts.items():
                weight.external_data.add(key=key, value=str(fact))
            offset += math.ceil(value.nbytes / _ALIGNED) * _ALIGNED
        file.truncate(offset)
    path.write_bytes(proto.SerializeToString())


def _read(listed: str) -> Iterator[Kernel]:
    """Read TensorRT's list of layers, of which each is a line.

    Raises
    ------
    UnsupportedError
        If a line has another form than expected.
    """
    for line in listed.partition("\n\nI/O Tensors:")[0].split("\n")[1:]:
        if not (match := _LAYER.fullmatch(line)):
            raise UnsupportedError(f"this TensorRT lists layers in another form: {line[:80]!r}")
        name, kind, *tensors, tactic, stream, sources = match.groups()
        if kind in NO_KERNELS:
            continue
        nodes = sorted({int(number) for number in _SOURCE.findall(sources)})
        inputs, constants, outputs = map(_tensors, tensors)
        yield Kernel(name, kind, tactic, int(stream), tuple(nodes), inputs, constants, outputs)


def _tensors(written: str) -> tuple[KernelTensor, ...]:
    tensors, end = [], 0
    for match in _TENSOR.finditer(written):
        name, dims, strides, dtype, _ = match.groups()
        if match.start() != end:
            break
        end = match.end()
        shape, steps = (tuple(map(int, filter(None, text.split(",")))) for text in (dims, strides))
        tensors.append(KernelTensor(name, _DTYPES.get(dtype, dtype.lower()), shape, steps))
    if end != len(written):
        raise UnsupportedError(
            f"this TensorRT lists tensors in another form: {written[end:][:80]!r}"
        )
    return tuple(tensors)


def _in_type(network: Network, dtype: str) -> Network:
    """Convert a float32 network, whose inputs and outputs stay; an empty type changes nothing."""
    if not dtype:
        return network
    kept = {
        node.inputs[position]
        for node in network.nodes
        for position in _IN_FLOAT32.get(node.op, ())
        if position < len(node.inputs) and not node.domain
    }
    tensors, weights = (
        {
            name: _as_type(tensor, dtype) if name not in kept else tensor
            for name, tensor in own.items()
        }
        for own in (network.tensors, network.weight_tensors)
    )
    inner: dict[str, str] = {}
    before, behind = list[Node](), list[Node]()
    for name in dict.fromkeys((*network.inputs, *network.outputs)):
        own = network.tensors.get(name)
        if own is None or own.dtype != SINGLE or name in kept:
            continue
        inner[name] = converted = f"{name} in {dtype}"
        tensors |= {name: own, converted: replace(tensors[name], name=converted)}
        given, made, nodes = (
            (name, converted, before) if name in network.inputs else (converted, name, behind)
        )
        to = data_type_of(tensors[made].dtype)
        nodes.append(Node(f"{name} cast", "Cast", "", (given,), (made,), {"to": to}))
    nodes = [
        replace(
            _cast_to(node, tensors),
            inputs=tuple(inner.get(name, name) for name in node.inputs),
            outputs=tuple(inner.get(name, name) for name in node.outputs),
        )
        for node in network.nodes
    ]
    return replace(
        network, nodes=(*before, *nodes, *behind), tensors=tensors, weight_tensors=weights
    )


def _as_type(tensor: Tensor, dtype: str) -> Tensor:
    if tensor.dtype != SINGLE:
        return tensor
    converted = replace(tensor, dtype=dtype)
    if tensor.value is None:
        return converted
    value = np.clip(tensor.value, -_LARGEST_HALF, _LARGEST_HALF)
    return replace(converted, value=value.astype(numpy_type(converted)))


def _cast_to(node: Node, tensors: Mapping[str, Tensor]) -> Node:
    """Return a Cast as one to the type that its result now has; any other node as it is."""
    if node.op != "Cast" or node.domain or node.outputs[0] not in tensors:
        return node
    to = data_type_of(tensors[node.outputs[0]].dtype)
    return replace(node, attributes={**node.attributes, "to": to})
