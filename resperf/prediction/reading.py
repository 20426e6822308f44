"""Networks as users give them: a file, its content or a model, at one or several batch sizes."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
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
from resperf.network.assumed import Assumed, Stated, Values, options_of, stated
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
    values: Values | None = None,
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
        path = network_file(Path(network))
        state: tuple[int, ...] = ()
        # Reading raises the error, if there is one.
        with suppress(OSError):
            seen = path.stat()
            state = (seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size)
        at = tuple(sorted(integer_shapes.items())), stated(assume, values)
        networks = [_read_file(path, state, size, *at) for size in batches]
    else:
        content = bytes(network) if isinstance(network, bytearray | memoryview) else network
        networks = [
            read_given_network(
                content, batch=size, shapes=integer_shapes, assume=assume, values=values
            )
            for size in batches
        ]
    return networks if block is None else [block_of(whole, block) for whole in networks]


@lru_cache(maxsize=NETWORKS_CACHED)
def _read_file(
    path: Path,
    _state: tuple[int, ...],
    batch: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    about_data: Stated,
) -> Network:
    return read_network_once(path, batch=batch, shapes=dict(shapes), **options_of(about_data))
