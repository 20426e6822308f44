"""Broadcasting, reduced to what affects the time.

Neighbouring axes that are broadcast alike are merged. The result has shape (rows, middle, inner),
and one word says which of these axes the second operand has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import Layer, number
from resperf.layers._operator import Operator, split_rows
from resperf.layers.columns import is_in

SECONDS = ("none", "same", "scalar", "inner", "middle", "outer", "sides", "both")
"""Axes of the second operand. ``same``: all; ``scalar``: none; ``inner``: the last; ``middle``: one
value per channel; ``outer``: one per row; ``sides``: all but the middle. ``both``: the first
operand has the rows, the second the last axis. ``none``: there is no second operand."""
CONTIGUOUS = ("none", "same", "scalar")
"""Operands with which the kernel runs once over all values, not once per row."""
_WITH_MIDDLE = ("middle", "sides")
"""Operands for which the middle axis cannot be merged with another."""


class BroadcastLayer(Layer):
    """Kinds whose result has three axes, of which another tensor may lack some."""

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    middle: int = number("length of the middle axis", default=1)
    inner: int = number("length of the last axis")
    second: str
    """Which axes the other tensor has; each kind declares its own choices."""

    def _check(self) -> None:
        has_middle = self.middle != 1 and self.second not in _WITH_MIDDLE
        if has_middle or (self.outer != 1 and self.second in CONTIGUOUS):
            raise LayerError(f"{self.kind}: second={self.second} has redundant axes: merge them")

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, middle, inner)."""
        return (self.batch * self.outer, self.middle, self.inner)

    @property
    def second_shape(self) -> tuple[int, ...]:
        """Shape of the second tensor; empty for a scalar or for none."""
        rows, middle, inner = self.output_shape
        shapes: Mapping[str, tuple[int, ...]] = {
            "same": (rows, middle, inner), "inner": (inner,), "both": (inner,),
            "middle": (middle, 1), "outer": (rows, 1, 1), "sides": (rows, 1, inner),
        }  # fmt: skip
        return shapes.get(self.second, ())

    @property
    def _second_values(self) -> int:
        """Values of the second tensor."""
        rows, middle, inner = self.output_shape
        counts = {
            ("same",): rows * middle * inner, ("scalar",): 1, ("inner", "both"): inner,
            ("middle",): middle, ("outer",): rows, ("sides",): rows * inner,
        }  # fmt: skip
        return sum(is_in(self.second, words) * count for words, count in counts.items())


class OperandLayer(BroadcastLayer):
    """Functions of one operand, or of two."""

    function: str

    UNARY: ClassVar[tuple[str, ...]]
    """Functions of one operand; all others have a second."""
    LOG2 = ("values", "rows", "inner", "moved_bytes", "second_bytes")
    ENCODED = ("function", "second")
    FLOPS_PER_VALUE = 1

    def _check(self) -> None:
        if (self.second == "none") != (self.function in self.UNARY):
            raise LayerError(
                f"{self.kind}: {self.function} does not take second={self.second}; functions of "
                "one operand, and only these, have second=none"
            )
        super()._check()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, middle, inner)."""
        return (self.batch * self.outer, 1, 1) if self.second == "both" else self.output_shape

    @property
    def input_bytes(self) -> int:
        """Bytes of both operands."""
        rows, values = self.batch * self.outer, self.value_count
        first = values - is_in(self.second, ("both",)) * (values - rows)
        return (first + self._second_values) * self.element_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Values and rows; ``loops`` counts inner loops along the last axis."""
        rows, repeated = self.batch * self.outer * self.middle, 1 - is_in(self.second, CONTIGUOUS)
        return {
            "values": self.value_count, "rows": rows, "repeated": repeated,
            "second_bytes": self._second_values * self.element_bytes, "loops": repeated * rows,
        }  # fmt: skip

    @classmethod
    def _fields_of(cls, operator: Operator, second: int | None) -> dict[str, Any]:
        """Return the axes of an operator whose second operand is this input; None if it has none.

        Axes beyond three are merged into the rows.
        """
        result = operator.result()
        if second is not None:
            shapes = in_order(result, operator.shape(0), operator.shape(second))
            return broadcast_axes(result, *shapes)
        batch = result[0] if result else 1
        return rows_of(batch, batch, inner=math.prod(result) // max(batch, 1), second="none")


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


def joined_axes(second: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the axes of a draw that need not be separate for such an operand."""
    draw = dict(fields)
    if second not in _WITH_MIDDLE:
        draw |= {"middle": 1, "inner": draw["inner"] * draw["middle"]}
    if second in CONTIGUOUS:
        draw |= {"outer": 1, "inner": draw["inner"] * draw["outer"]}
    return draw
