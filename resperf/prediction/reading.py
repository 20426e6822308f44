"""Networks as users give them: a file, its content or a model, at one or several batch sizes."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from resperf.errors import ResperfError, ShapeError
from resperf.network import (
    NETWORKS_CACHED,
    Network,
    block_of,
    read_given_network,
    read_network_once,
)
from resperf.network.assumed import Assumed, checked
from resperf.network.files import network_file

if TYPE_CHECKING:
    from onnx import ModelProto

Given = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A network: a file's path, or a file's content. An `onnx.ModelProto` is one too."""
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
) -> list[Network]:
    """Read a network, or a block of it, once per batch size; None means the network's own.

    Networks are cached until the file changes.

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
        read_at = partial(_read_file, network_file(Path(network)))
    else:
        content = bytes(network) if isinstance(network, bytearray | memoryview) else network
        read_at = partial(read_given_network, content)
    networks = [read_at(batch=size, shapes=integer_shapes, assume=assume) for size in batches]
    return networks if block is None else [block_of(whole, block) for whole in networks]


def _read_file(
    path: Path,
    *,
    batch: int | None,
    shapes: Mapping[str, tuple[int, ...]],
    assume: Assumed | None,
) -> Network:
    try:
        state = path.stat()
    except OSError:
        # Reading it raises the error.
        return read_network_once(path, batch=batch, shapes=shapes, assume=assume)
    seen = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
    assumed = tuple(sorted(checked(assume).items()))
    return _read(path, seen, batch, tuple(sorted(shapes.items())), assumed)


@lru_cache(maxsize=NETWORKS_CACHED)
def _read(
    path: Path,
    _seen: tuple[int, ...],
    batch: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    assumed: tuple[tuple[str, int], ...],
) -> Network:
    return read_network_once(path, batch=batch, shapes=dict(shapes), assume=dict(assumed))
