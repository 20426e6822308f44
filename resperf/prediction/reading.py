"""Networks as users give them: a file, its content or a model, at one or several batch sizes."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from resperf.errors import NetworkError, ResperfError, ShapeError
from resperf.network import (
    NETWORKS_CACHED,
    Network,
    block_of,
    read_given_network,
    read_network_once,
)
from resperf.network.assumed import Assumed, Stated, Values, stated
from resperf.network.exported import Source, source
from resperf.network.files import network_file

if TYPE_CHECKING:
    from keras import Model
    from onnx import ModelProto
    from torch.nn import Module

Given: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Module | Model"
"""A network: a file's path or content, or an object of PyTorch or Keras; or `onnx.ModelProto`."""
Integers = Sequence[int] | npt.NDArray[np.integer[Any]]
Batch = int | np.integer[Any] | None
Batches = Batch | Integers
Shapes = Mapping[str, Integers] | None


def integer(value: Any, what: str, refused: type[ResperfError] = ShapeError) -> int:
    """Return an integer of Python or NumPy as Python's; raise `refused` if it is none."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise refused(f"{what} {value!r} is not an integer; give one such as 1") from error


def is_several(batch: Any) -> bool:
    """Whether batch sizes are given as a sequence or an array."""
    return isinstance(batch, Iterable) and getattr(batch, "ndim", 1) > 0


def read(
    network: Given | ModelProto,
    batch: Batches,
    shapes: Shapes = None,
    assume: Assumed | None = None,
    block: str | None = None,
    values: Values | None = None,
    inputs: Any = None,
) -> list[Network]:
    """Read a network, or a block of it, once per batch size; None means the network's own.

    Networks in ONNX files are cached until the file changes. `inputs` are a module's.

    Raises
    ------
    NetworkError
        If it cannot be read as a network, or has no such block.
    ShapeError
        If a dimension is not known or does not fit.
    """
    given = [*batch] if isinstance(batch, Iterable) and is_several(batch) else [batch]
    batches = [None if size is None else integer(size, "batch") for size in given]
    integer_shapes = {
        name: tuple(integer(dim, f"a dimension of {name!r},") for dim in shape)
        for name, shape in (shapes or {}).items()
    }
    if isinstance(network, str | os.PathLike):
        network = network_file(Path(network))
    sizes = [
        stated(batch=size, shapes=integer_shapes, assume=assume, values=values) for size in batches
    ]
    if (exported := source(network, inputs, integer_shapes)) is not None:
        networks = [_read_source(exported, size) for size in sizes]
    elif inputs is not None:
        raise NetworkError("inputs= is for a PyTorch module; give shapes= for a network in ONNX")
    elif isinstance(network, Path):
        state: tuple[int, ...] = ()
        # Reading raises the error, if there is one.
        with suppress(OSError):
            seen = network.stat()
            state = (seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size)
        networks = [_read_file(network, state, size) for size in sizes]
    else:
        content = bytes(network) if isinstance(network, bytearray | memoryview) else network
        networks = [read_given_network(content, **size.sizes()) for size in sizes]
    return networks if block is None else [block_of(whole, block) for whole in networks]


def _read_source(exported: Source, given: Stated) -> Network:
    """Read a network of another framework by the first of its exports that can be read."""
    failed = NetworkError(f"{exported.name} cannot be exported")
    for export in exported.exports:
        try:
            sizes = given.sizes() | {"shapes": exported.shapes}
            network = read_given_network(export(given.batch), Path(exported.name), **sizes)
        except NetworkError as error:
            failed = error
        else:
            return replace(network, name=exported.name)
    raise failed


@lru_cache(maxsize=NETWORKS_CACHED)
def _read_file(path: Path, _state: tuple[int, ...], given: Stated) -> Network:
    return read_network_once(path, **given.sizes())
