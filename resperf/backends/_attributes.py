"""What the functions of PyTorch and TensorFlow read from an operator: attributes and constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resperf.errors import UnsupportedError
from resperf.layers import Operator
from resperf.network import Node

Function = Callable[..., Any]
Make = Callable[[Operator], Function]


def constant(operator: Operator, position: int, otherwise: Any = None) -> Any:
    """Return the value of a constant input as a number or a list.

    Raises
    ------
    UnsupportedError
        If the network computes it.
    """
    if not operator.has_input(position):
        return otherwise
    value = operator.operand(position).value
    if value is None:
        raise UnsupportedError(f"{operator.op}: input {position} is computed by the network")
    return value.item() if value.ndim == 0 or value.size == 1 else value.tolist()


def attribute(operator: Operator | Node, name: str, otherwise: Any) -> Any:
    """Return an attribute; texts are str."""
    value = operator.attributes.get(name, otherwise)
    return value.decode() if isinstance(value, bytes) else value
