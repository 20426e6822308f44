"""Asks TensorRT for RTX which kernels it makes of a network. It needs no GPU for that."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from resperf import disk_cache
from resperf.errors import Message, UnsupportedError, require
from resperf.lowering._read import about_node
from resperf.lowering._trt_model import write_model
from resperf.network import MALFORMED, Network, Tensor, structure_digest

BINDINGS, EXTRA = "tensorrt_rtx_bindings", "tensorrt-rtx"
TRIED = ("1.7.1.116",)
"""Versions whose list of layers is known to be read rightly."""
NO_KERNELS = frozenset({"signal", "wait", "cjmp", "jmp"})
"""Types of layers that order streams and loops, and compute nothing."""
_FOLDER, _AMPERE = "tensorrt", 80
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
_COMPUTED = re.compile(r"_+(?:myl_)?(?!mye)(\w+)_myl\d+_\d+")
_BEFORE_REASON = re.compile(
    r"^.*?(?:Error Code \d+: [\w ]+ \(|Assertion failed: .*?: |creator && \")"
)
_EMPTY_REASON = re.compile(r"Invalid Node - |false$|\[checkMacros|\s*$")
QUANTISE = (
    "; quantise to QInt8 with ActivationSymmetric, WeightSymmetric and QuantizeBias=False "
    "(onnxruntime.quantization)"
)
_SOURCE = re.compile(r"\[ONNX Layer: n(\d+)\]")


@dataclass(frozen=True)
class KernelTensor(Tensor):
    """What a kernel reads or writes, by TensorRT's own name.

    Attributes
    ----------
    strides : tuple of int
        In elements.
    """

    strides: tuple[int, ...] = ()


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

    @property
    def op(self) -> str:
        """What it computes: ``"CorrMulAddRelu"``, or its type where its name is a node's."""
        match = _COMPUTED.fullmatch(self.name)
        return match[1] if match else self.layer_type


@dataclass(frozen=True)
class Engine:
    """What TensorRT answered.

    Attributes
    ----------
    version : str
        Of the TensorRT that was asked.
    capability : str
        Compute capability that it was asked for.
    kernels : tuple of Kernel
        In their order.
    """

    version: str
    capability: str
    kernels: tuple[Kernel, ...]


def is_installed() -> bool:
    """Whether TensorRT can be asked here."""
    return find_spec(BINDINGS) is not None


def engine_of(network: Network, precision: str, capability: str) -> Engine:
    """Return the kernels that TensorRT makes of a network, through the disk cache.

    Parameters
    ----------
    network : Network
        Read at the batch size that is asked about.
    precision : str
        As in `resperf.settings.Setting`: a float32 network is converted before.
    capability : str
        Of the card, such as ``"8.6"``; the nearest that TensorRT builds for is asked.

    Raises
    ------
    MissingExtraError
        If TensorRT for RTX is not installed.
    UnsupportedError
        If it refuses the network.
    """
    code = disk_cache.code_state("lowering", "network")
    # Loading it to look up its version would take longer than all that is left to do.
    spec = find_spec(BINDINGS)
    state = Path(spec.origin).stat().st_mtime_ns if spec is not None and spec.origin else 0
    name = disk_cache.name_of(code, state, structure_digest(network), precision, capability)
    with suppress(*MALFORMED):
        version, target, listed = disk_cache.load(_FOLDER, name)
        return Engine(version, target, tuple(_read(listed)))
    target = _nearest(capability, precision)
    listed = _ask(network, precision, target)
    engine = Engine(_bindings().__version__, target, tuple(_read(listed)))
    disk_cache.store(_FOLDER, name, (engine.version, target, listed))
    return engine


def _bindings() -> ModuleType:
    return require(BINDINGS, EXTRA)


def _nearest(capability: str, precision: str) -> str:
    """Return the nearest compute capability that TensorRT builds for.

    That is the highest up to the card's own, else the lowest. For Turing it builds float16 alone,
    where it also runs convolutions that a file quantises.
    """
    trt = _bindings()
    members = (name.removeprefix("SM") for name in trt.ComputeCapability.__members__)
    numbers = sorted(int(name) for name in members if name.isdigit())
    if precision != "fp16":
        numbers = [number for number in numbers if number >= _AMPERE]
    digits = capability.replace(".", "")
    own = int(digits) if digits.isdigit() else _AMPERE
    nearest = max((number for number in numbers if number <= own), default=numbers[0])
    return f"{nearest // 10}.{nearest % 10}"


def _ask(network: Network, precision: str, target: str) -> str:
    """Build the engine of a network for a compute capability and return TensorRT's list."""
    trt, messages = _bindings(), list[tuple[Any, str]]()

    class Log(trt.ILogger):  # type: ignore[misc, name-defined]
        def log(self, severity: Any, message: str) -> None:
            messages.append((severity, message))

    log = Log()
    builder = trt.Builder(log)
    definition = builder.create_network(0)
    parser = trt.OnnxParser(definition, log)
    with tempfile.TemporaryDirectory(prefix="resperf-") as folder:
        if not parser.parse_from_file(str(write_model(network, precision, Path(folder)))):
            error = parser.get_error(0)
            raise UnsupportedError(_refusal(network, error.node_name(), error.desc()))
        config = builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        config.num_compute_capabilities = 1
        capability = trt.ComputeCapability.__members__[f"SM{target.replace('.', '')}"]
        config.set_compute_capability(capability, 0)
        if builder.build_serialized_network(definition, config) is None:
            errors = (text for severity, text in messages if severity <= log.Severity.ERROR)
            raise UnsupportedError(_refusal(network, "", next(errors, "")))
    return next((text for _, text in messages if text.startswith("Layers:")), "")


def _refusal(network: Network, name: str, text: str) -> Message:
    """Say in one line which node TensorRT refuses, why, and what to change where that is known."""
    node = network.nodes[int(name[1:])] if re.fullmatch(r"n\d+", name) else None
    lines = [line for line in text.splitlines() if not _EMPTY_REASON.match(line)]
    reason = lines[0][:300] if lines else "it does not say why"
    reason = _BEFORE_REASON.sub("", reason).removeprefix(f"{name}: ").partition(". ")[0].rstrip('"')
    if node is None:
        return Message(f"TensorRT refuses the network: {reason}")
    if "quantize" in node.op.lower():
        reason += QUANTISE
    return about_node(node, Message(reason)).about("TensorRT refuses ")


def _read(listed: str) -> Iterator[Kernel]:
    """Read TensorRT's list of layers, of which each is a line.

    Raises
    ------
    UnsupportedError
        If a line has another form than expected.
    """
    lines = listed.partition("\n\nI/O Tensors:")[0].split("\n")[1:]
    if not lines:
        raise UnsupportedError("this TensorRT lists no layers")
    for line in lines:
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
        tensors.append(KernelTensor(name, shape, _DTYPES.get(dtype, dtype.lower()), strides=steps))
    if end != len(written):
        raise UnsupportedError(
            f"this TensorRT lists tensors in another form: {written[end:][:80]!r}"
        )
    return tuple(tensors)
