"""Element-wise activations that are not fused into another layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import ACTIVATIONS, FlatLayer, Layer, choices, log_uniform, name
from resperf.layers._operator import CONTRIB, FLOATS, Kernel, Operand, Operator

_OPS: Mapping[str, tuple[str, str, Mapping[str, float]]] = {
    "relu": ("Relu", "", {}),
    "tanh": ("Tanh", "", {}),
    "sigmoid": ("Sigmoid", "", {}),
    # Chained copies must not end in denormal numbers.
    "leaky_relu": ("LeakyRelu", "", {"alpha": 0.99}),
    "clip": ("Clip", "", {}),
    "hard_sigmoid": ("HardSigmoid", "", {"alpha": 0.2, "beta": 0.5}),
    "elu": ("Elu", "", {}),
    "softplus": ("Softplus", "", {}),
    "gelu": ("Gelu", CONTRIB, {}),
    "gelu_tanh": ("FastGelu", CONTRIB, {}),
    "silu": ("QuickGelu", CONTRIB, {"alpha": 1.0}),
    "hard_swish": ("HardSwish", "", {}),
    "selu": ("Selu", "", {}),
    "softsign": ("Softsign", "", {}),
    # The random values it is measured with are small.
    "thresholded_relu": ("ThresholdedRelu", "", {"alpha": 0.01}),
    "celu": ("Celu", "", {}),
}
"""Function -> its operator, domain and attributes."""
OPERATOR_OF: Mapping[str, str] = {function: op for function, (op, *_) in _OPS.items()}
"""Function -> ONNX operator."""
FUNCTION_OF: Mapping[str, str] = {
    **{op: function for function, op in OPERATOR_OF.items()},
    "BiasGelu": "gelu", "Silu": "silu", "Swish": "silu",
}  # fmt: skip
"""ONNX operator (or ``activation`` attribute of a fused operator) -> function."""
_BOUNDS = ("Relu", "Clip")


class Activation(FlatLayer):
    """An element-wise function. The shape of the tensor does not change its time."""

    activation: str = name(
        "function that is computed",
        tuple(function for function in ACTIVATIONS if function != "none"),
    )
    dtype: str = name("type of one value", FLOATS, default="float32")

    PLAIN = ("threaded", "vector_rest")
    LOG2 = ("batch", "values", "flops")
    ENCODED = ("activation",)
    INDEPENDENT_FIELDS = True
    RANGES: ClassVar[Mapping[str, Any]] = {
        "values": log_uniform(64, 1 << 20),
        "activation": choices(
            [function for function in _OPS if function != "hard_swish"], [1] * 15
        ),
    }
    REDRAWN = ("activation",)
    OPERATORS = frozenset(FUNCTION_OF)

    @classmethod
    def read(cls, operator: Operator) -> Layer:
        """Read an activation; a Relu or Clip of integers becomes a Min or Max with a scalar."""
        operand = operator.operand(0)
        if operator.op in _BOUNDS and operand.dtype not in FLOATS:
            from resperf.layers.elementwise import Elementwise

            # A Relu or a lower bound is a Max; an upper bound alone is a Min.
            lower = operator.op == "Relu" or operator.has_input(1)
            operands = (operand, Operand((), operand.dtype))
            bounded = Operator("Max" if lower else "Min", {}, operands, operator.outputs[:1])
            return Elementwise.read(bounded)
        batch, *rest = operator.shape() or (1,)
        function = function_of(operator.op, operator.attributes)
        return cls(batch=batch, values=math.prod(rest), activation=function, dtype=operand.dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the operator."""
        op, domain, attributes = _OPS[self.activation]
        bounds: tuple[tuple[int, ...], ...] = ((), ()) if op == "Clip" else ()
        return self._node(op, attributes, domain=domain, weight_shapes=bounds, in_place=True)


def function_of(op: str, attributes: Mapping[str, Any]) -> str:
    """Name the function of an operator of `FUNCTION_OF`."""
    by_tanh = op == "Gelu" and attributes.get("approximate") == "tanh"
    return "gelu_tanh" if by_tanh else FUNCTION_OF[op]


def fused_activation(operator: Operator) -> str:
    """Name the activation of a fused operator, ``"none"`` if it has none.

    Raises
    ------
    LayerError
        If no layer has such an activation.
    """
    op = str(operator.attributes.get("activation", ""))
    if op and op not in FUNCTION_OF:
        raise LayerError(f"activation {op!r} has no layer")
    return FUNCTION_OF[op] if op else "none"
