"""Einsum equations that are a batched matrix product, or a transposition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from string import ascii_letters
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name
from resperf.layers._operator import FLOATS, Kernel, Operator, dtype_of, split_rows
from resperf.layers.columns import is_in
from resperf.layers.matmul import ProductLayer
from resperf.layers.transpose import Transpose

_FIRST, _SECOND, _RESULT = (
    tuple("".join(order) for order in permutations(letters)) for letters in ("bmk", "bkn", "bmn")
)
_SPREAD = [6.0, 1, 2, 1, 1, 1]
"""How often campaigns draw each order: mostly the first, in which products are usually written."""


class Einsum(ProductLayer):
    """Batched matrix products with operand and result axes in any order.

    Axes: b products, m rows, n columns, k summed over. An order lists axes outermost first. ONNX
    Runtime transposes tensors whose order its matrix product cannot take.
    """

    first: str = name("order of the first operand's axes", _FIRST, default="bmk")
    second: str = name("order of the second operand's axes", _SECOND, default="bkn")
    result: str = name("order of the result's axes", _RESULT, default="bmn")
    dtype: str = name("type of one value", FLOATS, default="float32")

    PLAIN = ("first_plain", "first_turned", "second_plain", "second_turned", "result_plain")
    RANGES: ClassVar[Mapping[str, Any]] = {
        "outer": log_uniform(1, 64),
        "rows": log_uniform(1, 512),
        "depth": log_uniform(4, 512, 1, 8, 16),
        "columns": log_uniform(4, 512, 1, 8, 16),
        "first": choices(_FIRST, _SPREAD),
        "second": choices(_SECOND, _SPREAD),
        "result": choices(_RESULT, _SPREAD),
    }
    OPERATORS = frozenset({"Einsum"})

    def _shape(self, order: str) -> tuple[int, ...]:
        lengths = {"b": self.batch * self.outer, "m": self.rows, "k": self.depth, "n": self.columns}
        return tuple(lengths[letter] for letter in order)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the first operand."""
        return self._shape(self.first)

    @property
    def second_shape(self) -> tuple[int, ...]:
        """Shape of the second operand."""
        return self._shape(self.second)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return self._shape(self.result)

    def own_quantities(self) -> dict[str, Any]:
        """Which operands are in a product's order (plain) or transposed."""
        quantities = super().own_quantities()
        for tensor, order in (("first", "bmk"), ("second", "bkn"), ("result", "bmn")):
            plain = is_in(getattr(self, tensor), (order,))
            quantities |= {f"{tensor}_plain": plain, f"{tensor}_other": 1 - plain}
        turned = {"first_turned": self.first == "bkm", "second_turned": self.second == "bnk"}
        return quantities | turned

    @classmethod
    def read(cls, operator: Operator) -> Layer:
        """Read an equation of two operands, or of one whose axes change their order."""
        equation = str(operator.attributes["equation"]).replace(" ", "")
        perm = _order_of_one(equation)
        if perm is not None and len(perm) == len(operator.shape()):
            return Transpose.read(replace(operator, attributes={"perm": perm}))
        if equation.partition("->")[0].count(",") != 1 or len(operator.inputs) != 2:
            raise LayerError(f"the equation {equation!r} has no layer")
        ranks = [len(operator.operand(position).shape) for position in range(2)]
        first, second, result = _spelt_out(equation, ranks)
        lengths: dict[str, int] = {}
        for order, position in ((first, 0), (second, 1)):
            shape = operator.operand(position).shape
            if len(order) != len(shape) or len(set(order)) != len(order):
                raise LayerError(f"{equation!r} does not fit shape {shape}")
            for letter, length in zip(order, shape, strict=True):
                lengths[letter] = max(length, lengths.get(letter, 1))
        orders = _orders(equation, first, second, result, lengths)
        groups = {
            group: math.prod(lengths[letter] for letter in letters)
            for group, letters in _groups(first, second, result).items()
        }
        batch, outer = split_rows(groups["b"], (*operator.result(), 1)[0])
        return cls(
            batch=batch, outer=outer, rows=groups["m"], depth=groups["k"], columns=groups["n"],
            first=orders[0], second=orders[1], result=orders[2], dtype=dtype_of(operator),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return an ``Einsum`` of three axes per tensor."""
        equation = f"{self.first},{self.second}->{self.result}"
        return self._node("Einsum", {"equation": equation}, extra_shapes=(self.second_shape,))


def _order_of_one(equation: str) -> tuple[int, ...] | None:
    """Return the input axis of each output axis if one operand is transposed, else None."""
    before, arrow, after = equation.partition("->")
    is_order = arrow and before.isalpha() and len(set(before)) == len(before)
    if not is_order or sorted(before) != sorted(after):
        return None
    return tuple(before.index(letter) for letter in after)


def _spelt_out(equation: str, ranks: Sequence[int]) -> tuple[str, str, str]:
    """Return the letters of both operands and of the result, with any ellipsis expanded.

    Raises
    ------
    LayerError
        If the equation does not match operands of these ranks.
    """
    inputs, arrow, result = equation.partition("->")
    operands = inputs.split(",")
    free = [letter for letter in ascii_letters if letter not in equation]
    counts = [
        rank - len(operand.replace("...", ""))
        for operand, rank in zip(operands, ranks, strict=True)
    ]
    dotted = [count for operand, count in zip(operands, counts, strict=True) if "..." in operand]
    if min(counts) < 0 or max(dotted, default=0) > len(free):
        raise LayerError(f"{equation!r} does not fit operands of {ranks} axes")
    dots = free[: max(dotted, default=0)]
    first, second = (
        # Axes of an ellipsis are aligned at the end.
        operand.replace("...", "".join(dots[len(dots) - count :]))
        for operand, count in zip(operands, counts, strict=True)
    )
    if not arrow:
        letters = inputs.replace(",", "").replace("...", "")
        result = "..." + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    result = result.replace("...", "".join(dots))
    if "." in first + second + result:
        raise LayerError(f"the equation {equation!r} has no layer")
    return first, second, result


def _groups(first: str, second: str, result: str) -> dict[str, str]:
    """Return the letters of each group: b, m, k, n."""
    return {
        "b": "".join(letter for letter in first if letter in second and letter in result),
        "m": "".join(letter for letter in first if letter not in second and letter in result),
        "k": "".join(letter for letter in first if letter in second and letter not in result),
        "n": "".join(letter for letter in second if letter not in first and letter in result),
    }


def _orders(
    equation: str, first: str, second: str, result: str, lengths: Mapping[str, int]
) -> tuple[str, str, str]:
    """Return the order of the groups in each tensor, ignoring axes of length one.

    Raises
    ------
    LayerError
        If the axes of a group differ in order, or one operand alone is summed.
    """
    groups = _groups(first, second, result)
    group_of = {letter: group for group, letters in groups.items() for letter in letters}
    if set(first + second + result) != set(group_of):
        raise LayerError(f"the equation {equation!r} sums or repeats an axis of one operand")
    orders = []
    for order, wanted in ((first, "bmk"), (second, "bkn"), (result, "bmn")):
        long = [letter for letter in order if lengths[letter] > 1]
        # A group that is split is transposed anyway, like one at the place of its first axis.
        runs = list(dict.fromkeys(group_of[letter] for letter in long))
        inside = [[letter for letter in long if group_of[letter] == g] for g in runs]
        if inside != [[letter for letter in groups[g] if lengths[letter] > 1] for g in runs]:
            raise LayerError(f"the axes of {equation!r} are in different orders")
        # Groups of length one may be anywhere.
        orders.append("".join([g for g in wanted if g not in runs] + runs))
    return orders[0], orders[1], orders[2]
