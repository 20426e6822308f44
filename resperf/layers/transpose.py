"""Transposition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, permutations
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import MOVED_DTYPES, Layer, choices, log_uniform, name, number
from resperf.layers._operator import DTYPES, Kernel, Operator, dtype_of
from resperf.layers.columns import Array

MAX_AXES = 5


_FAST = ("21", "132", "213", "1324")
"""Orders with a fast kernel in ONNX Runtime: one axis moves, all others stay."""
_SLOW = "s"
ORDERS = (
    *(
        "".join(map(str, order))
        for count in range(1, MAX_AXES + 1)
        for order in permutations(range(1, count + 1))
        if all(b != a + 1 for a, b in pairwise(order))
    ),
    *(f"{order}{_SLOW}" for order in _FAST),
)
"""All permutations of up to five axes in which no two neighbours stay neighbours, and slow ones."""
_WEIGHTS: Mapping[str, int] = {
    "1": 1, "21": 8, "132": 4, "213": 8, "321": 2, "1324": 4, "2143": 1, "1432": 1, "2413": 1,
    "3241": 1, "13254": 1, "14253": 1, "24351": 1, "21s": 4, "132s": 1, "213s": 4, "1324s": 1,
}  # fmt: skip
"""How often campaigns draw each order."""
_DIMS = tuple(f"dim{axis}" for axis in range(1, MAX_AXES + 1))


class Transpose(Layer):
    """A transposition of (batch, dim1, ...) in which the batch stays first.

    Axes that stay neighbours are merged. ``order`` gives the input axis of each output axis, such
    as ``21`` for a matrix. In ``1`` only axes of length one move: frameworks still copy the values.
    Axes that the order does not name have length 1. ``21s`` is like ``21``, but axes of length one
    move as well, so that ONNX Runtime does not use its fast kernel.
    """

    batch: int = number("first dimension, which stays first")
    dim1: int = number("length of the first axis after the batch")
    dim2: int = number("length of the second axis", default=1)
    dim3: int = number("length of the third axis", default=1)
    dim4: int = number("length of the fourth axis", default=1)
    dim5: int = number("length of the fifth axis", default=1)
    order: str = name("input axis of each output axis", ORDERS, default="21")
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN = (
        "threaded", "vector_rest", "axes", "keeps_last", "keeps_first", "matrix", "slow",
        "read_twos", "write_twos",
    )  # fmt: skip
    LOG2 = (
        "values", "rows", "run_bytes", "last_in", "last_out", "read_stride", "write_stride",
        "moved_bytes",
    )  # fmt: skip
    RANGES: ClassVar[Mapping[str, Any]] = {
        "dim1": log_uniform(2, 4096),
        "dim2": log_uniform(2, 1024),
        "dim3": log_uniform(2, 256),
        "dim4": log_uniform(2, 64),
        "dim5": log_uniform(2, 16),
        "order": choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values())),
        "dtype": MOVED_DTYPES,
    }
    SCALED = _DIMS
    OPERATORS = frozenset({"Transpose"})

    def _check(self) -> None:
        beyond = [dim for dim in _DIMS[len(self._named) :] if getattr(self, dim) != 1]
        if beyond:
            raise LayerError(f"transpose: order={self.order} does not name {', '.join(beyond)}")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Set axes to 1 that the drawn order does not name."""
        named = str(fields["order"]).removesuffix(_SLOW)
        return {**fields, **dict.fromkeys(_DIMS[len(named) :], 1)}

    @property
    def _named(self) -> str:
        return self.order.removesuffix(_SLOW)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, dim1, ...): the axes that the order names."""
        return (self.batch, *(getattr(self, dim) for dim in _DIMS[: len(self._named)]))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, the axes in their new order)."""
        shape = self.input_shape
        return (self.batch, *(shape[int(axis)] for axis in self._named))

    @property
    def value_count(self) -> int:
        """Values that move; axes that the order does not name have length one."""
        values: int = self.batch * math.prod(getattr(self, dim) for dim in _DIMS)
        return values

    @property
    def input_bytes(self) -> int:
        """Bytes of all values."""
        return self.value_count * self.element_bytes

    @property
    def output_bytes(self) -> int:
        """The same as of the input."""
        return self.input_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Strides, and the length of contiguous runs."""
        import numpy as np

        size, values = self.element_bytes, self.value_count
        lengths = np.stack([getattr(self, dim) for dim in _DIMS], axis=1)
        orders = np.asarray(self.order)
        axes, last_out, stride, written, slow = (np.ones(len(orders)) for _ in range(5))
        last_in, keeps_last, keeps_first = (np.ones(len(orders)) for _ in range(3))
        for order in set(orders.tolist()):
            rows, named = orders == order, order.removesuffix(_SLOW)
            slow[rows] = float(order.endswith(_SLOW))
            axes[rows] = len(named)
            last_in[rows] = lengths[rows, len(named) - 1]
            last_out[rows] = lengths[rows, int(named[-1]) - 1]
            # Input stride of values that are neighbours in the output.
            stride[rows] = lengths[rows, int(named[-1]) : len(named)].prod(axis=1)
            # Output stride of values that are neighbours in the input.
            later = named[named.index(str(len(named))) + 1 :]
            written[rows] = np.prod([lengths[rows, int(axis) - 1] for axis in later], axis=0)
            keeps_last[rows] = float(named[-1] == str(len(named)))
            keeps_first[rows] = float(named[0] == "1")
        run = np.where(keeps_last == 1, last_in, 1.0)
        return {
            "values": values, "rows": values / np.maximum(last_in, 1), "axes": axes,
            "run_bytes": run * size, "runs": values / run, "last_in": last_in,
            "last_out": last_out, "read_stride": stride, "write_stride": written,
            # Strides that are multiples of a large power of two cause cache conflicts.
            "read_twos": _twos(stride * size), "write_twos": _twos(written * size),
            "keeps_last": keeps_last, "keeps_first": keeps_first,
            "matrix": axes == 2, "slow": slow,
            "scattered_bytes": (1 - keeps_last) * values * size,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a ``Transpose``: axes of length one are dropped, neighbours merged."""
        dtype, shape = dtype_of(operator, DTYPES), operator.shape()
        order = operator.attributes.get("perm") or tuple(reversed(range(len(shape))))
        axes = [int(axis) for axis in order]
        batch, lengths, named = _joined(shape, axes)
        if named in _FAST and not _moves_one_axis(axes):
            named += _SLOW
        if len(lengths) > MAX_AXES:
            raise LayerError(f"a transposition of more than {MAX_AXES} axes has no layer")
        dims = dict(zip(_DIMS, lengths, strict=False))
        return cls(batch=batch, **dims, order=named, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return a ``Transpose`` of the batch and the named axes."""
        perm, shape = [0, *(int(axis) for axis in self._named)], list(self.input_shape)
        if self.order.endswith(_SLOW):
            # Insert an axis of length one between the two axes that swap.
            first = next(position for position, axis in enumerate(perm) if position != axis)
            shape.insert(first + 1, 1)
            swapped = [first + 2, first + 1, first]
            perm = [*range(first), *swapped, *range(first + 3, len(shape))]
        result = tuple(shape[axis] for axis in perm)
        return Kernel("Transpose", "", {"perm": perm}, tuple(shape), result, dtype=self.dtype)


def _twos(lengths: Array) -> Array:
    """Return how often 2 divides each number of bytes, 12 times (a page) at most."""
    import numpy as np

    integers = lengths.astype(np.int64)
    times: Array = np.minimum(np.log2((integers & -integers).astype(float)), 12.0)
    return times


def _moves_one_axis(order: Sequence[int]) -> bool:
    """Whether one axis moves and all others stay in order, merging neighbours.

    Like ONNX Runtime, this does not drop axes of length one.
    """
    runs: list[list[int]] = []
    for axis in order:
        if runs and axis == runs[-1][-1] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    first = [run[0] for run in runs]
    return any(
        sorted(first[:i] + first[i + 1 :]) == first[:i] + first[i + 1 :] for i in range(len(first))
    )


def _joined(shape: Sequence[int], order: Sequence[int]) -> tuple[int, list[int], str]:
    """Return the batch, the lengths of the merged axes, and their order."""
    batch = 1
    # Axes of length one do not matter.
    moved = [axis for axis in order if shape[axis] != 1]
    if moved and moved[0] == 0:
        batch, moved = shape[0], moved[1:]
    groups: list[list[int]] = []
    for axis in moved:
        # Axes of length one between two others do not separate them.
        last = groups[-1][-1] if groups else None
        if last is not None and last < axis and math.prod(shape[last + 1 : axis]) == 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    positions = sorted(group[0] for group in groups)
    lengths = [0] * len(groups)
    for group in groups:
        lengths[positions.index(group[0])] = math.prod(shape[axis] for axis in group)
    named = "".join(str(positions.index(group[0]) + 1) for group in groups)
    return batch, lengths or [1], named or "1"
