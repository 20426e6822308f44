"""Made-up values: of a kernel's inputs and weights, and of a network's inputs."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from resperf.errors import LayerError, UnsupportedError
from resperf.layers import Kernel, Layer, spread_indices

Array = npt.NDArray[Any]
Typed = tuple[tuple[int, ...], str]
"""Shape and type of a tensor."""

_T = TypeVar("_T")
_BLOCK = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32) * np.float32(0.05)
_HUGE_BYTES = 1 << 22
"""From here on numpy asks for huge pages."""
# All pages at once: one fault for each would take longer than filling them.
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)


def onnx_kernel(layer: Layer, framework: str) -> Kernel:
    """Return the ONNX operator of a layer, or refuse it in the name of a framework.

    Raises
    ------
    UnsupportedError
        If no operator of ONNX does it.
    """
    try:
        return layer.as_onnx_node()
    except LayerError as error:
        raise UnsupportedError(f"{framework} runs no {layer.kind} like this: {error}") from error


def weights_of_kernel(kernel: Kernel) -> list[Typed]:
    """Return the constant inputs after the first input."""
    return list(zip(kernel.weight_shapes, kernel.input_dtypes[1:], strict=False))


def inputs_of_kernel(kernel: Kernel) -> dict[str, Typed]:
    """Return what a network would compute for a kernel: ``x`` and ``extra0``, ``extra1``, ..."""
    types = kernel.input_dtypes[1 + len(kernel.weight_shapes) :]
    extras = enumerate(zip(kernel.extra_shapes, types, strict=True))
    return {
        "x": (kernel.input_shape, kernel.input_dtypes[0]),
        **{f"extra{index}": extra for index, extra in extras},
    }


def in_order(kernel: Kernel, given: Sequence[_T], absent: _T) -> list[_T]:
    """Arrange first input, weights and extras as the kernel's operator reads them."""
    return [absent if i < 0 else given[i] for i in kernel.order or range(len(given))]


def kernel_values(kernel: Kernel, inputs: Mapping[str, Typed]) -> dict[str, Array]:
    """Make up what a network would compute for a kernel.

    Parameters
    ----------
    kernel : Kernel
    inputs : mapping of str to (shape, dtype)
        As of `inputs_of_kernel`, in the shapes and types that the framework stores.
    """
    values = {
        name: made_up(shape, dtype, positive=kernel.positive)
        for name, (shape, dtype) in inputs.items()
    }
    if kernel.index_bound:
        shape, dtype = inputs["extra0"]
        indices = spread_indices(math.prod(shape), kernel.index_bound)
        values["extra0"] = indices.reshape(shape).astype(dtype, copy=False)
    return values


def filled(shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Make an array in memory of its own, without denormal numbers, as fast as memory allows.

    Large ones lie in such pages as ONNX Runtime's own. numpy would ask for huge pages, which the
    kernel does not always have.
    """
    count = math.prod(shape)
    if not count:
        return np.zeros(shape, np.float32)
    if count * _BLOCK.itemsize < _HUGE_BYTES:
        return np.resize(_BLOCK, tuple(shape))
    try:
        pages = mmap.mmap(-1, _BLOCK.itemsize * count, flags=_PRIVATE)
    except OSError as error:
        raise MemoryError(f"no memory for an array of shape {tuple(shape)}: {error}") from error
    values = np.frombuffer(pages, _BLOCK.dtype)
    for start in range(0, count, len(_BLOCK)):
        part = values[start : start + len(_BLOCK)]
        part[:] = _BLOCK[: len(part)]
    return values.reshape(shape)


def made_up(
    shape: Sequence[int], dtype: str, *, zero_points: bool = False, positive: bool = False
) -> Array:
    """Make an array of any type: floats as `filled`, integers from 1 to 8, alternating booleans.

    Parameters
    ----------
    shape : sequence of int
    dtype : str
    zero_points : bool
        A single integer is a zero point, of which 0 is the most common.
    positive : bool
        Whether floats are above 0.5.

    Raises
    ------
    UnsupportedError
        If numpy has no such type.
    """
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise UnsupportedError(f"values of type {dtype} cannot be made up on this host") from error
    if kind == np.bool_:
        return np.resize(_BLOCK > 0, tuple(shape))
    if kind.kind in "iu" and zero_points and not shape:
        # Where there is none, kernels are fastest, and few weights have one.
        return np.zeros(shape, kind)
    if kind.kind in "iu":
        return np.resize((np.abs(_BLOCK) * 100 % 8 + 1).astype(kind), tuple(shape))
    values = filled(shape)
    if positive:
        np.abs(values, out=values)
        values += np.float32(0.5)
    return values.astype(kind, copy=False)


def network_input(name: str, shape: Sequence[int], dtype: str, written: str = "") -> Array:
    """Make values of a network's input: small floats; ones, which are valid tokens and masks.

    Parameters
    ----------
    name : str
    shape : sequence of int
    dtype : str
    written : str
        How messages write the type; by default as it is given.

    Raises
    ------
    UnsupportedError
        If numpy has no such type.
    """
    if dtype.startswith("float"):
        return made_up(shape, dtype)
    try:
        return np.ones(shape, np.dtype(dtype))
    except TypeError as error:
        raise UnsupportedError(
            f"input {name!r} holds {written or dtype}, which cannot be made up"
        ) from error
