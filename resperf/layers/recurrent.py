"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name, number
from resperf.layers._operator import FLOATS, Kernel, Operator, dtype_of
from resperf.layers.columns import is_in

_GATES: Mapping[str, int] = {"lstm": 4, "gru": 3, "rnn": 1}
"""Cell -> products of its input in a step; a plain cell has one and no gate."""
_OPS: Mapping[str, str] = {cell: cell.upper() for cell in _GATES}
_CELL_OF: Mapping[str, str] = {op: cell for cell, op in _OPS.items()}


class Recurrent(Layer):
    """An LSTM, a GRU or a plain recurrent layer over (steps, batch, features)."""

    batch: int = number("sequences in one run")
    steps: int = number("steps of a sequence")
    features: int = number("features of a step")
    hidden: int = number("values of the state")
    directions: int = number("2 if bidirectional, else 1", default=1)
    cell: str = name("type of cell", tuple(_GATES), default="lstm")
    dtype: str = name("type of one value", FLOATS, default="float32")

    INPUT = ("steps", "batch", "features")
    OUTPUT = ("steps", "directions", "batch", "hidden")
    PLAIN = ("threaded", "directions", "hidden_rest")
    LOG2 = (
        "batch", "steps", "features", "hidden", "flops", "step_flops", "step_weight_bytes",
        "weight_bytes", "moved_bytes",
    )  # fmt: skip
    ENCODED = ("cell",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "batch": log_uniform(1, 512),
        "steps": log_uniform(2, 256),
        "features": log_uniform(8, 1024, 1, 8, 16),
        "hidden": log_uniform(8, 1024, 8, 16),
        "directions": choices([1, 2], [3, 2]),
        "cell": choices(tuple(_GATES), [4, 3, 1]),
    }
    SCALED = ("steps", "features", "hidden")
    OPERATORS = frozenset(_CELL_OF)

    def _check(self) -> None:
        if self.directions > 2:
            raise LayerError(f"recurrent: directions={self.directions} must be 1 or 2")

    @property
    def _gated(self) -> int:
        gates = sum(n * is_in(self.cell, (cell,)) for cell, n in _GATES.items())
        return self.directions * gates * self.hidden

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations of inputs and states."""
        return self.steps * self.batch * self._gated * (self.features + self.hidden)

    @property
    def weight_bytes(self) -> int:
        """Bytes of both matrices and both biases of each gate."""
        return self._gated * (self.features + self.hidden + 2) * self.element_bytes

    @property
    def step_work(self) -> tuple[int, int]:
        """Each step is a product, which reads its weights again, and the gates, which read it."""
        weights = (self.steps - 1) * self._gated * self.hidden
        values = weights + 4 * self.steps * self.batch * self._gated
        return 2 * self.steps, values * self.element_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Work per step, as steps run one after the other."""
        inputs, states = (
            2 * self.steps * self.batch * self._gated * width
            for width in (self.features, self.hidden)
        )
        step_weights = self._gated * self.hidden * self.element_bytes
        return {
            "hidden_rest": self.hidden % 16, "step_weight_bytes": step_weights,
            "all_step_weight_bytes": step_weights * self.steps, "step_flops": states / self.steps,
            "input_flops": inputs, "state_flops": states,
            "all_steps": self.steps * self.directions,
            "gates": self.steps * self.batch * self._gated,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read an ``LSTM``, ``GRU`` or ``RNN``; sequences are as long as the longest may be."""
        if operator.attributes.get("layout"):
            raise LayerError(f"{operator.op} with the batch first has no layer")
        lengths = operator.operand(4).value if operator.has_input(4) else None
        shape, weight = operator.shape(), operator.operand(1).shape
        if len(shape) != 3 or len(weight) != 3:
            raise LayerError(f"{operator.op} of shape {shape} has no layer")
        cell = _CELL_OF[operator.op]
        return cls(
            batch=shape[1], steps=shape[0] if lengths is None else int(lengths.max()),
            features=shape[2], hidden=weight[1] // _GATES[cell],
            directions=weight[0], cell=cell, dtype=dtype_of(operator),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return the operator as PyTorch exports it."""
        gates = _GATES[self.cell] * self.hidden
        attributes: dict[str, Any] = {
            "hidden_size": self.hidden,
            "direction": "bidirectional" if self.directions == 2 else "forward",
        }
        if self.cell == "gru":
            attributes["linear_before_reset"] = 1
        shapes = ((gates, self.features), (gates, self.hidden), (2 * gates,))
        weights = tuple((self.directions, *shape) for shape in shapes)
        return self._node(_OPS[self.cell], attributes, weight_shapes=weights)
