"""Operators whose output has as many rows as the data make it, and what a user assumes of them."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resperf.errors import ShapeError, listed, printable
from resperf.network._base import MALFORMED, Tensor, TensorType
from resperf.network.contrib import Inputs, Shape, dtype_of, shape_of

if TYPE_CHECKING:
    from onnx import NodeProto

Assumed = Mapping[str, int]
"""What is counted (a word of `COUNTED`) -> how many a run finds."""


def checked(given: Assumed | None) -> dict[str, int]:
    """Return assumptions with known words and positive whole numbers.

    Raises
    ------
    ShapeError
        If there are others.
    """
    counts = {}
    for word, count in (given or {}).items():
        if word not in COUNTED:
            raise ShapeError(f"no assumption {word!r}; known are: {', '.join(COUNTED)}")
        try:
            counts[word] = operator.index(count)
        except TypeError:
            counts[word] = 0
        if counts[word] < 1:
            raise ShapeError(f"{word}={count!r} must be a whole number of at least 1")
    return counts


class Assumptions:
    """Gives such operators an output shape, and remembers which ones.

    Parameters
    ----------
    given : mapping of str to int, optional
        What is counted -> how many a run finds.
    """

    def __init__(self, given: Assumed | None) -> None:
        self._given = checked(given)
        self._used: Counter[tuple[str, str, int]] = Counter()
        self._lacking: dict[str, list[str]] = {}

    def outputs(self, node: NodeProto, inputs: Mapping[str, Tensor]) -> dict[str, TensorType]:
        """Return types and shapes of the outputs of a node, if an assumption decides them."""
        word = next((w for w, ops in COUNTED.items() if node.op_type in ops), "")
        if not word or node.domain:
            return {}
        if word not in self._given:
            name = printable(node.name or node.output[0])
            self._lacking.setdefault(word, []).append(f"{node.op_type} {name!r}")
            return {}
        tensors = [inputs.get(name) for name in node.input]
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        try:
            count, shapes = COUNTED[word][node.op_type](tensors, attributes, self._given[word])
        except MALFORMED:
            return {}
        self._used[node.op_type, word, count] += 1
        return {name: output for name, output in zip(node.output, shapes, strict=False) if name}

    def statements(self) -> tuple[str, ...]:
        """Say what was assumed: ``"NonMaxSuppression returns 100 boxes (--assume boxes=100)"``."""
        return tuple(
            (f"{times} x {op} return {count} {word} each" if times > 1
             else f"{op} returns {count} {word}")
            + ("" if count == self._given[word] else " at most")
            + f" (--assume {word}={self._given[word]})"
            for (op, word, count), times in self._used.items()
        )  # fmt: skip

    def missing(self, path: Path) -> list[str]:
        """Say what depends on the data and has no assumption.

        Raises
        ------
        ShapeError
            If nothing is missing, and no operator of the network needs an assumption.
        """
        used = {word for _, word, _ in self._used}
        unused = [word for word in self._given if word not in used]
        if unused and not self._lacking:
            raise ShapeError(
                f"{path}: no operator's output depends on how many {unused[0]} there are; "
                f"leave out --assume {unused[0]}"
            )
        return [
            f"how many {word} these return depends on the data, so that nothing behind them is "
            f"predicted: {listed(names)}; assume a number: --assume {word}=100"
            for word, names in self._lacking.items()
        ]


_Counted = tuple[int, list[TensorType]]
"""How many are found, and the outputs' types and shapes."""


def _boxes(inputs: Inputs, _attributes: Mapping[str, Any], count: int) -> _Counted:
    """(boxes, 3): image, class and box; no more than the operator keeps of all classes."""
    (batch, boxes, _), (_, classes, _) = shape_of(inputs), shape_of(inputs, 1)
    most = inputs[2] if len(inputs) > 2 else None
    limit = boxes if most is None or most.value is None else min(boxes, int(most.value.item()))
    selected = max(0, min(count, batch * classes * limit))
    return selected, [("int64", (selected, 3))]


def _non_zero(inputs: Inputs, _: Mapping[str, Any], count: int) -> _Counted:
    shape = shape_of(inputs)
    values = min(count, math.prod(shape))
    return values, [("int64", (len(shape), values))]


def _selected(inputs: Inputs, attributes: Mapping[str, Any], count: int) -> tuple[int, int, Shape]:
    """How many of which axis's values are selected, the length of that axis, and the new shape."""
    shape = shape_of(inputs)
    axis: int | None = attributes.get("axis")
    if axis is None:
        length = math.prod(shape)
        return min(count, length), length, (min(count, length),)
    selected = min(count, shape[axis])
    axis = axis % len(shape)
    return selected, shape[axis], (*shape[:axis], selected, *shape[axis + 1 :])


def _compress(inputs: Inputs, attributes: Mapping[str, Any], count: int) -> _Counted:
    selected, _, shape = _selected(inputs, attributes, count)
    return selected, [(dtype_of(inputs), shape)]


def _unique(inputs: Inputs, attributes: Mapping[str, Any], count: int) -> _Counted:
    unique, length, shape = _selected(inputs, attributes, count)
    indices: list[TensorType] = [("int64", (n,)) for n in (unique, length, unique)]
    return unique, [(dtype_of(inputs), shape), *indices]


COUNTED: Mapping[str, Mapping[str, Callable[[Inputs, Mapping[str, Any], int], _Counted]]] = {
    "boxes": {"NonMaxSuppression": _boxes},
    "values": {"NonZero": _non_zero, "Compress": _compress, "Unique": _unique},
}
"""What is counted -> operator -> how many it returns and its outputs, if so many are assumed."""
