"""Asks TensorRT for RTX which kernels it makes of a network. It needs no GPU for that."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from resperf import disk_cache
from resperf.errors import Message, UnsupportedError
from resperf.lowering._read import about_node
from resperf.lowering._trt_model import write_model
from resperf.network import MALFORMED, Network, Tensor, structure_digest

BINDINGS = "tensorrt_rtx_bindings"
NOT_INSTALLED = (
    "TensorRT's kernels come from TensorRT for RTX, which needs Linux on x86-64 but no GPU: "
    "pip install 'resperf[tensorrt-rtx]'"
)
TRIED = ("1.7.1.116",)
"""Versions whose list of layers is known to be read rightly."""
NO_KERNELS = frozenset({"signal", "wait", "cjmp", "jmp"})
"""Types of layers that order streams and loops, and compute nothing."""
_FOLDER = "tensorrt"
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
    r"TacticName: (\S*), StreamId: (\d+), (?:(?:Jump\w+: .*?|\w+: \S*), )*"
    r"Metadata: ((?:\x1f?\[[^\[\]]*\]\w*)*)"
)
_COMPUTED = re.compile(r"_+(?:myl_)?(?!mye)(\w+)_myl\d+_\d+")
_BEFORE_REASON = re.compile(
    r"^.*?(?:Error Code \d+: [\w ]+ \(|Assertion failed: .*?: |creator && \")"
)
_EMPTY_REASON = re.compile(r"Invalid Node - |false$|\[checkMacros|\s*$")
QUANTISE = (
    "; quantise to QInt8 in QDQ format with ActivationSymmetric, WeightSymmetric and "
    "QuantizeBias=False (onnxruntime.quantization)"
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
    kernels : tuple of Kernel
        In their order.
    """

    version: str
    kernels: tuple[Kernel, ...]


def engine_of(network: Network, precision: str) -> Engine:
    """Return the kernels that TensorRT makes of a network, through the disk cache.

    Parameters
    ----------
    network : Network
        Read at the batch size that is asked about.
    precision : str
        As in `resperf.settings.Setting`: a float32 network is converted before.

    Raises
    ------
    UnsupportedError
        If it refuses the network, or is not installed.
    """
    spec = find_spec(BINDINGS)
    if spec is None:
        raise UnsupportedError(NOT_INSTALLED)
    code = disk_cache.code_state("lowering", "network")
    # Loading it to look up its version would take longer than all that is left to do.
    state = Path(spec.origin).stat().st_mtime_ns if spec.origin else 0
    name = disk_cache.name_of(code, state, structure_digest(network), precision)
    with suppress(*MALFORMED):
        return _engine(disk_cache.load(_FOLDER, name))
    answer = _ask(network, precision)
    engine = _engine(answer)
    disk_cache.store(_FOLDER, name, answer)
    return engine


def _engine(answer: Mapping[str, str]) -> Engine:
    return Engine(answer["version"], tuple(_read(answer["layers"])))


def _ask(network: Network, precision: str) -> dict[str, str]:
    """Build the engine of a network in another process and return what TensorRT says."""
    with tempfile.TemporaryDirectory(prefix="resperf-") as folder:
        model, result = write_model(network, precision, Path(folder)), Path(folder) / "answer.json"
        script = Path(__file__).with_name("_trt_build.py")
        done = subprocess.run(
            [sys.executable, script, model, result], check=False,
            capture_output=True, text=True, errors="replace",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        if done.returncode:
            said = done.stderr.split("\n")[-2:][0][:200]
            raise UnsupportedError(
                f"TensorRT broke down on this network (status {done.returncode}) {said}".rstrip()
            )
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if "refused" in answer:
        raise UnsupportedError(_refusal(network, *answer["refused"]))
    return answer


def _refusal(network: Network, name: str, text: str) -> Message:
    """Say in one line which node TensorRT refuses, why, and what to change where that is known."""
    nodes = {f"n{number}": node for number, node in enumerate(network.nodes)}
    # Where the parser names only its function of an operator, it is at the first that it refuses.
    nodes |= {f"import{node.op}": node for node in reversed(network.nodes)}
    node = nodes.get(name)
    lines = [line for line in text.splitlines() if not _EMPTY_REASON.match(line)]
    reason = lines[0][:300] if lines else "it does not say why"
    reason = _BEFORE_REASON.sub("", reason).removeprefix(f"{name}: ").partition(". ")[0].rstrip('"')
    if node is None:
        return Message(f"TensorRT refuses the network: {reason}")
    if re.search("^Q|[Qq]uantize|Integer", node.op):
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
