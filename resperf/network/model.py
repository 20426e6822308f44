"""ONNX file to ModelProto without weights' bytes; recognises files of other formats."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from resperf.errors import NetworkError
from resperf.network.graph import subgraphs
from resperf.network.protos import with_shapes
from resperf.network.wire import Buffer, Stripped, strip

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

LONG_DOMAIN = "ai.onnx"
"""What some exporters write for ONNX's default domain, whose name is empty."""
_MAX_INLINED_NODES = 200_000
_MAX_CALL_DEPTH = 100
_LARGEST_VERSION = 1 << 20


def stripped_model(path: Path) -> ModelProto:
    """Read a model's structure; tensors above a kilobyte are read without their bytes.

    The file is mapped, not loaded: a 500 MB file takes milliseconds. External data is not opened.

    Raises
    ------
    NetworkError
        If the file is missing, damaged or not ONNX.
    """
    return parse(path, stripped_file(path))


def stripped_file(path: Path) -> Stripped:
    """Map a file and strip it of its weights' bytes.

    Raises
    ------
    NetworkError
        As `stripped_model`.
    """
    with open_buffer(path) as buffer:
        return strip_file(path, buffer)


def strip_file(path: Path, buffer: Buffer, *, keep_attributes: bool = False) -> Stripped:
    """Strip a mapped file of its weights' bytes; errors name the file."""
    try:
        stripped = strip(buffer, keep_attributes=keep_attributes)
    except NetworkError as error:
        raise _unreadable(path, str(error)) from error
    stripped.model = with_shapes(path, stripped.model)
    return stripped


def parse(path: Path, stripped: Stripped) -> ModelProto:
    """Parse a stripped model, check its required fields, and inline its functions."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(stripped.model)
    except (DecodeError, RecursionError) as error:
        raise _unreadable(path, "its parts do not fit together") from error
    if not model.HasField("graph"):
        raise _unreadable(path, "it holds no graph")
    if not model.ir_version or not model.opset_import:
        raise _unreadable(path, "it names no operator set")
    if any(not 0 < opset.version <= _LARGEST_VERSION for opset in model.opset_import):
        raise _unreadable(path, "it names an operator set that cannot exist")
    if not model.graph.node and not model.graph.output:
        raise NetworkError(f"{path} holds an empty network: nothing to predict")
    _name_default_domain(model)
    return _inlined(path, model) if model.functions else model


def _name_default_domain(model: ModelProto) -> None:
    """Use the empty name of ONNX's default domain everywhere: shape inference knows no other."""
    graphs = [model.graph, *model.functions]
    holders = [model, *model.functions]
    named = (opset.domain for holder in holders for opset in holder.opset_import)
    inside = (node.domain for graph in graphs for node in graph.node)
    if LONG_DOMAIN not in {*named, *inside, *(function.domain for function in model.functions)}:
        return
    for holder in holders:
        versions = {opset.domain: opset.version for opset in holder.opset_import}
        own = max((versions.pop(name, 0) for name in ("", LONG_DOMAIN)), default=0)
        del holder.opset_import[:]
        for domain, version in ({"": own} | versions if own else versions).items():
            holder.opset_import.add(domain=domain, version=version)
    for function in model.functions:
        function.domain = "" if function.domain == LONG_DOMAIN else function.domain
    while graphs:
        for node in graphs.pop().node:
            if node.domain == LONG_DOMAIN:
                node.domain = ""
            graphs += subgraphs(node)


@contextmanager
def open_buffer(path: Path) -> Iterator[mmap.mmap]:
    """Map a file for reading.

    Raises
    ------
    NetworkError
        If it is missing, empty, not a file, not readable, or another framework's.
    """
    try:
        if not path.exists():
            raise NetworkError(f"no file {path}; give the path of an ONNX file")
        if path.is_dir():
            raise NetworkError(_directory_advice(path))
        if not path.is_file():
            raise NetworkError(f"{path} is not a regular file; give the path of an ONNX file")
        with path.open("rb") as file:
            head = file.read(64)
            if not head:
                raise NetworkError(f"{path} is empty; export or download it again")
            if advice := _foreign_advice(path, head):
                raise NetworkError(advice)
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise NetworkError(f"{path} cannot be read: {error.strerror or error}") from error
    with buffer:
        yield buffer


def _unreadable(path: Path, why: str) -> NetworkError:
    return NetworkError(
        f"{path} is not an ONNX file, or is damaged or incomplete ({why}); "
        "export or download it again"
    )


def _directory_advice(path: Path) -> str:
    if (path / "saved_model.pb").exists():
        return (
            f"{path} is a TensorFlow SavedModel; convert it with: "
            f"python -m tf2onnx.convert --saved-model {path} --output {path.name or 'net'}.onnx"
        )
    if (path / "config.json").exists():
        return f"{path} is a folder of transformers; give {path / 'config.json'}"
    return f"{path} is a folder; give the path of an ONNX file"


def _foreign_advice(path: Path, head: bytes) -> str:
    """Say how to convert another framework's file; empty if it does not look like one."""
    target = path.with_suffix(".onnx").name
    is_zip, is_hdf5 = head.startswith(b"PK\x03\x04"), head.startswith(b"\x89HDF\r\n\x1a\n")
    if is_hdf5 or (is_zip and path.suffix == ".keras"):
        return (
            f'{path} is a Keras file; convert it with: python -c "import keras; '
            f"keras.saving.load_model('{path}').export('{target}', format='onnx')\""
        )
    if is_zip or head.startswith(b"\x80"):
        return (
            f"{path} is a PyTorch file; where its class can be imported, pass the module to "
            f"resperf.predict, or convert it: torch.onnx.export(module, input, '{target}')"
        )
    if head[4:8] == b"TFL3":
        return (
            f"{path} is a TensorFlow Lite file; convert it with: "
            f"python -m tf2onnx.convert --tflite {path} --output {target}"
        )
    if head.startswith(b"version https://git-lfs"):
        return f"{path} is only a Git LFS pointer; fetch the file itself with: git lfs pull"
    return ""


def _inlined(path: Path, model: ModelProto) -> ModelProto:
    """Replace calls of the model's own functions by their nodes."""
    from onnx import inliner

    bodies = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[NodeProto], depth: int) -> int:
        if depth > _MAX_CALL_DEPTH:
            raise NetworkError(f"{path} is damaged: its functions call each other in a cycle")
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in bodies and key not in sizes:
                sizes[key] = size(bodies[key], depth + 1)
            total += sizes.get(key, 1)
            total += sum(size(graph.node, depth + 1) for graph in subgraphs(node))
        return total

    total = size(model.graph.node, 0)
    if total > _MAX_INLINED_NODES:
        raise NetworkError(
            f"{path} has {total} nodes once its functions are inlined; "
            f"the limit is {_MAX_INLINED_NODES}"
        )
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # the C++ side raises its own bare types
        raise NetworkError(f"{path} has functions that cannot be inlined: {error}") from error
