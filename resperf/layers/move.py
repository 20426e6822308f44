"""Copies: slice, split, pad, gather, expand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import MOVED_DTYPES, Layer, choices, log_uniform, name, number
from resperf.layers._operator import (
    DTYPES,
    Kernel,
    Operator,
    dtype_of,
    rows_and_rest,
    split_at_axis,
    spread_indices,
)
from resperf.layers.columns import either, is_in, smaller

FUNCTIONS = ("slice", "split", "pad", "gather", "expand", "copy")
_FUNCTION_OF: Mapping[str, str] = {
    "Slice": "slice", "Split": "split", "Pad": "pad", "Gather": "gather", "Expand": "expand",
    "Tile": "expand",
}  # fmt: skip
MAX_INDICES = 1 << 20
"""More are not measured: the indices of a gather are a constant of its kernel."""


class Move(Layer):
    """Copies along one axis: (batch x outer, length, inner) to (batch x outer, length_out, inner).

    ``slice`` takes every `step`-th value from the start, ``split`` cuts the axis into `parts`,
    ``pad`` appends zeros, ``gather`` takes rows by index, ``expand`` repeats an axis of length one,
    ``copy`` is any of these with an unchanged shape. If several axes change, the axis is the last
    of them.
    """

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    length: int = number("length of the input's axis")
    length_out: int = number("length of the output's axis, all parts together")
    inner: int = number("product of the axes after this one", default=1)
    function: str = name("operation", FUNCTIONS, default="slice")
    parts: int = number("outputs of a split", default=1)
    step: int = number("step of a slice", default=1)
    dtype: str = name("type of one value", DTYPES, default="float32")

    PLAIN = ("threaded", "vector_rest", "parts", "strided")
    LOG2 = ("rows", "length", "length_out", "inner", "run_bytes", "runs", "out_bytes")
    ENCODED = ("function",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 4096),
        "length": log_uniform(2, 1024),
        "length_out": log_uniform(1, 1024),
        "inner": log_uniform(1, 4096),
        "function": choices(FUNCTIONS, [6, 3, 3, 3, 2, 0.5]),
        "parts": choices([2, 3, 4], [4, 2, 1]),
        "step": choices([1, 2], [5, 1]),
        "dtype": MOVED_DTYPES,
    }
    SCALED = ("outer", "inner")
    OPERATORS = frozenset(_FUNCTION_OF)

    def _check(self) -> None:
        reasons = {
            "a slice must be shorter than its input": self.function == "slice"
            and (
                (self.length_out - 1) * self.step >= self.length or self.length_out == self.length
            ),
            "a split or copy must have equal lengths": self.function in ("split", "copy")
            and self.length != self.length_out,
            "a split, and nothing else, must have two or more parts": (self.function == "split")
            != (self.parts > 1),
            "a padded axis must be longer than its input": self.function == "pad"
            and self.length_out <= self.length,
            "an expanded axis must have length 1, and more in the output": self.function == "expand"
            and (self.length != 1 or self.length_out == 1),
            "only a slice may have a step": self.step > 1 and self.function != "slice",
            "each part must hold a value": self.parts > self.length_out,
        }
        for reason, wrong in reasons.items():
            if wrong:
                raise LayerError(f"move: {reason}: {self.key}")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random, /) -> dict[str, Any]:
        """Make the lengths of a draw consistent with its function."""
        draw = dict(fields)
        function = draw["function"]
        if function in ("gather", "slice"):
            # Words of a vocabulary or anchors of a detector: few rows of a long table.
            draw["length"] *= source.choice((1, 1, 8, 64) if function == "gather" else (1, 1, 8))
        short, long = sorted((draw["length"], draw["length_out"]))
        long += long == short
        if function == "slice":
            step = draw["step"] if long > draw["step"] else 1
            draw |= {"step": step, "length": long, "length_out": min(short, (long - 1) // step + 1)}
        else:
            draw["step"] = 1
        if function == "split":
            parts = max(draw["parts"], 2)
            length = -(-max(long, parts) // parts) * parts
            draw |= {"parts": parts, "length": length, "length_out": length}
        else:
            draw["parts"] = 1
        if function == "pad":
            draw |= {"length": short, "length_out": long}
        if function == "copy":
            draw |= {"outer": 1, "length": 1, "length_out": 1, "inner": draw["inner"] * long}
        if function == "expand":
            draw |= {"length": 1, "length_out": long}
        return draw

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, length, inner)."""
        return (self.batch * self.outer, self.length, self.inner)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch x outer, length_out, inner)."""
        return (self.batch * self.outer, self.length_out, self.inner)

    @property
    def input_bytes(self) -> int:
        """Bytes that are read: values that are not copied cost nothing."""
        taken = either(
            self.function == "gather", self.length_out, smaller(self.length, self.length_out)
        )
        return self.batch * self.outer * taken * self.inner * self.element_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Rows, and number and size of the contiguous runs that are copied."""
        strided = self.step > 1
        one_by_one = strided | (is_in(self.function, ("gather", "expand")) == 1)
        rows = self.batch * self.outer
        runs = rows * either(one_by_one, self.length_out, self.parts)
        return {
            "rows": rows, "strided": strided, "runs": runs,
            "run_bytes": self.value_count / runs * self.element_bytes,
        }  # fmt: skip

    @classmethod
    def copied(cls, operator: Operator) -> Self:
        """Read an operator that copies its input."""
        batch, inner = rows_and_rest(operator.result())
        return cls(
            batch=batch, length=1, length_out=1, inner=inner, function="copy",
            dtype=dtype_of(operator, DTYPES),
        )  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a slice, split, pad, gather or expand."""
        function, dtype = _FUNCTION_OF[operator.op], dtype_of(operator, DTYPES)
        shape, result = _shapes(operator)
        if operator.op == "Slice" and (backwards := _backwards(operator)) is not None:
            return cls(**backwards, function="gather", dtype=dtype)
        if function != "gather" and shape == result:
            return cls.copied(operator)
        fields = _READERS[function](operator)
        if function == "pad" and fields["length_out"] < fields["length"]:
            function = "slice"  # Negative padding crops.
        return cls(**fields, function=function, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the operator along the middle axis."""
        result, dtype = self.output_shape, self.dtype
        if self.function in ("slice", "copy"):
            end = min((self.length_out - 1) * self.step + 1, self.length)
            given = ((0,), (end,), (1,), (self.step,))
            return self._node("Slice", constants=given, dtype=dtype)
        if self.function == "split":
            length, more = divmod(self.length, self.parts)
            lengths = tuple(length + (part < more) for part in range(self.parts))
            return self._node(
                "Split", {"axis": 1}, output_shape=(result[0], lengths[0], self.inner),
                constants=(lengths,), more_outputs=self.parts - 1, dtype=dtype,
            )  # fmt: skip
        if self.function == "pad":
            pads = (0, 0, 0, 0, self.length_out - self.length, 0)
            return self._node("Pad", constants=(pads,), dtype=dtype)
        if self.function == "expand":
            return self._node("Expand", constants=(result,), dtype=dtype)
        if self.length_out > MAX_INDICES:
            raise LayerError(
                f"move: {self.length_out} indices are more than can be measured ({MAX_INDICES})"
            )
        rows = tuple(spread_indices(self.length_out, self.length).tolist())
        return self._node("Gather", {"axis": 1}, constants=(rows,), dtype=dtype)


def _shapes(operator: Operator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of input and result; the input has at least as many axes."""
    shape, result = operator.shape(), operator.result()
    return (1,) * (len(result) - len(shape)) + shape, result


def _along(shape: Sequence[int], axis: int, **others: int) -> dict[str, int]:
    """Return the fields of a copy along an axis, whose length stays unless `others` say else."""
    batch, outer, length, inner = split_at_axis(shape, axis)
    fields = {"batch": batch, "outer": outer, "length": length, "length_out": length}
    return fields | {"inner": inner} | others


def _changed(operator: Operator) -> dict[str, int]:
    """Return the fields of an operator along the last axis that it changes."""
    shape, result = _shapes(operator)
    axis = _last_changed(shape, result)
    return _along(result, axis, length=shape[axis])


def _last_changed(shape: tuple[int, ...], result: tuple[int, ...]) -> int:
    changed = [axis for axis, (a, b) in enumerate(zip(shape, result, strict=True)) if a != b]
    return changed[-1]


def _slice(operator: Operator) -> dict[str, int]:
    axis = _last_changed(operator.shape(), operator.result())
    return _changed(operator) | {"step": abs(_steps(operator).get(axis, 1))}


def _steps(operator: Operator) -> dict[int, int]:
    """Return the step of a slice along each axis that it names."""
    steps = operator.numbers("steps", 4) or ()
    axes = operator.numbers("axes", 3) or tuple(range(len(steps)))
    rank = len(operator.shape())
    return {axis % rank: step for axis, step in zip(axes, steps, strict=False)}


def _backwards(operator: Operator) -> dict[str, int] | None:
    """Return the fields of a slice with a negative step; None for other slices."""
    shape = operator.shape()
    try:
        steps = _steps(operator)
    except LayerError:
        return None
    axes = [axis for axis, step in steps.items() if step < 0 and shape[axis] > 1]
    return _along(operator.result(), max(axes), length=shape[max(axes)]) if axes else None


def _split(operator: Operator) -> dict[str, int]:
    return _along(operator.shape(), operator.axis(0), parts=len(operator.outputs))


def _gather(operator: Operator) -> dict[str, int]:
    count = math.prod(operator.operand(1).shape)
    return _along(operator.shape(), operator.axis(0), length_out=count)


def _expand(operator: Operator) -> dict[str, int]:
    shape, result = _shapes(operator)
    last = _last_changed(shape, result)
    # Neighbouring axes of length one are expanded as one.
    first = last
    while first and shape[first - 1] == shape[last] == 1:
        first -= 1
    times = math.prod(result[first : last + 1]) // shape[last]
    # A tile of several values is repeated as one run.
    return _along((*result[:first], 1, *shape[last:]), first, length_out=times)


_READERS: Mapping[str, Callable[[Operator], dict[str, int]]] = {
    "slice": _slice, "split": _split, "pad": _changed, "gather": _gather, "expand": _expand,
}  # fmt: skip
