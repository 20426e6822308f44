"""Broadcasting, reduced to what affects the time.

Neighbouring axes that are broadcast alike are merged. The result has shape (rows, middle, inner),
and one word says which of these axes the second operand has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from resperf.layers._base import Layer
from resperf.layers._operator import split_rows
from resperf.layers.columns import is_in

SECONDS = ("none", "same", "scalar", "inner", "middle", "outer", "sides", "both")
"""Axes of the second operand. ``same``: all; ``scalar``: none; ``inner``: the last; ``middle``: one
value per channel; ``outer``: one per row; ``sides``: all but the middle. ``both``: the first
operand has the rows, the second the last axis. ``none``: there is no second operand."""
CONTIGUOUS = ("none", "same", "scalar")
"""Operands with which the kernel runs once over all values, not once per row."""


class BroadcastLayer(Layer):
    """Base class of kinds with one or two operands."""

    batch: int
    outer: int
    middle: int
    inner: int
    second: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, middle, inner)."""
        return (self.batch * self.outer, 1, 1) if self.second == "both" else self.output_shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, middle, inner)."""
        return (self.batch * self.outer, self.middle, self.inner)

    @property
    def second_shape(self) -> tuple[int, ...]:
        """Shape of the second operand; empty for a scalar or for none."""
        return second_shape(self.second, self.batch * self.outer, self.middle, self.inner)

    @property
    def input_bytes(self) -> int:
        """Bytes of both operands."""
        rows, both = self.batch * self.outer, is_in(self.second, ("both",))
        values = rows * self.middle * self.inner
        return (values - both * (values - rows) + self._second_values) * self.element_bytes

    @property
    def _second_values(self) -> int:
        """Values of the second operand."""
        return second_values(self.second, self.batch * self.outer, self.middle, self.inner)


def broadcast_axes(
    result: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> dict[str, Any]:
    """Return the fields batch, outer, middle, inner and second of a broadcast.

    Parameters
    ----------
    result, first, second : tuple of int
        Shapes of the result, of the larger operand (which has all axes, or all that the other one
        lacks), and of the other operand.
    """
    batch = result[0] if result else 1
    first, second = (_aligned(shape, result) for shape in (first, second))
    axes = [
        (length, a == length, b == length)
        for length, a, b in zip(result, first, second, strict=True)
        if length != 1
    ]
    groups = [
        (whole, math.prod(length for length, *_ in members))
        for whole, members in ((w, list(m)) for w, m in groupby(axes, key=lambda x: x[1:]))
    ]
    return _axes(groups, batch)


def _aligned(shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(result) - len(shape)) + shape


def in_order(
    result: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two operands' shapes, the larger first.

    Where both are broadcast, the operand without the last axis comes first.
    """
    first, second = sorted((one, other), key=math.prod, reverse=True)
    if math.prod(first) < math.prod(result) and (
        _last_axis(_aligned(first, result)) > _last_axis(_aligned(second, result))
    ):
        first, second = second, first
    return first, second


def _last_axis(shape: tuple[int, ...]) -> int:
    """Return the innermost axis along which a tensor has more than one value; -1 for a scalar."""
    return max((axis for axis, length in enumerate(shape) if length > 1), default=-1)


def _axes(groups: list[tuple[tuple[bool, bool], int]], batch: int) -> dict[str, Any]:
    """Name which of the merged axes the second operand has.

    `groups` holds ((first has it, second has it), length), outermost axis first.
    """
    total = math.prod(length for _, length in groups)
    has = tuple(second for (_, second), _ in groups)
    if any(not first for (first, _), _ in groups):
        rows = math.prod(length for (first, _), length in groups if first)
        return rows_of(rows, batch, inner=total // max(rows, 1), second="both")
    if not groups or all(has) or not any(has):
        second = "same" if all(has) else "scalar"
        return rows_of(batch, batch, inner=total // max(batch, 1), second=second)
    if len(groups) > 3:
        joined = math.prod(length for _, length in groups[:-2])
        groups = [(groups[-3][0], joined), *groups[-2:]]
        has = tuple(second for (_, second), _ in groups)
    lengths = [length for _, length in groups]
    if has in ((False, True), (True, False)):
        second = "inner" if has[1] else "outer"
        return rows_of(lengths[0], batch, inner=lengths[1], second=second)
    second = "middle" if has[1] else "sides"
    return rows_of(lengths[0], batch, middle=lengths[1], inner=lengths[2], second=second)


def rows_of(rows: int, batch: int, **fields: Any) -> dict[str, Any]:
    """Return fields with the rows split into `batch` and `outer`."""
    batch, outer = split_rows(rows, batch)
    return {"batch": batch, "outer": outer, **fields}


def has_redundant_axes(second: str, fields: Mapping[str, Any]) -> bool:
    """Whether axes are separate that could be merged for such an operand."""
    bare = {"none": 0, "same": 0, "scalar": 0, "inner": 1, "outer": 1, "both": 1}
    if second not in bare:
        return False
    return bool(fields["middle"] != 1 or (not bare[second] and fields["outer"] != 1))


def joined_axes(second: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the axes of a draw that need not be separate for such an operand."""
    made = dict(fields)
    if second not in ("middle", "sides"):
        made |= {"middle": 1, "inner": made["inner"] * made["middle"]}
    if second in ("none", "same", "scalar"):
        made |= {"outer": 1, "inner": made["inner"] * made["outer"]}
    return made


def second_shape(second: str, rows: int, middle: int, inner: int) -> tuple[int, ...]:
    """Return the shape of the second operand; empty for a scalar or for none."""
    shapes: Mapping[str, tuple[int, ...]] = {
        "same": (rows, middle, inner), "inner": (inner,), "both": (inner,), "middle": (middle, 1),
        "outer": (rows, 1, 1), "sides": (rows, 1, inner),
    }  # fmt: skip
    return shapes.get(second, ())


def second_values(second: str, rows: int, middle: int, inner: int) -> int:
    """Count the values of the second operand; an array for many layers."""
    return (
        is_in(second, ("same",)) * rows * middle * inner + is_in(second, ("scalar",))
        + is_in(second, ("inner", "both")) * inner + is_in(second, ("middle",)) * middle
        + is_in(second, ("outer",)) * rows + is_in(second, ("sides",)) * rows * inner
    )  # fmt: skip
