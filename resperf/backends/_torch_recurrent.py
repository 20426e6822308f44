"""Recurrent layers in PyTorch, with the gates of an ONNX file in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from resperf.backends._attributes import Function, attribute
from resperf.errors import UnsupportedError
from resperf.layers import Operator

GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Cell -> index in ONNX of each of PyTorch's gates."""


def recurrent(operator: Operator) -> Function:
    word = str(attribute(operator, "direction", "forward"))
    directions = operator.operand(1).shape[0]
    if word == "reverse" or operator.has_input(4) or operator.has_input(7):
        raise UnsupportedError(f"{operator.op} backwards, with lengths or peepholes has no module")
    if operator.op == "GRU" and not attribute(operator, "linear_before_reset", 0):
        raise UnsupportedError("GRU of PyTorch resets behind the product (linear_before_reset=1)")
    if attribute(operator, "layout", 0) or operator.attributes.get("clip"):
        raise UnsupportedError(f"{operator.op} with another layout, or clipped, has no module")
    hidden = operator.operand(2).shape[-1]
    steps, batch = operator.operand(0).shape[:2]
    cell = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}[operator.op]
    has_bias = operator.has_input(3)
    two_states = operator.op == "LSTM"

    def run(x: Any, *given: Any) -> Any:
        initial, weights = given[:2], given[2:]
        states = [
            x.new_zeros((directions, batch, hidden)) if state is None else state
            for state in initial[: 1 + two_states]
        ]
        first = states if two_states else states[0]
        y, *last = cell(x, first, weights, has_bias, 1, 0.0, False, directions == 2, False)
        return (y.view(steps, batch, directions, hidden).permute(0, 2, 1, 3), *last)

    return run


def prepare_recurrent(operator: Operator, weights: Sequence[Any]) -> list[Any]:
    """Return both initial states, then matrices and biases of each direction in PyTorch's order."""
    given = [*weights, *[None] * 6]
    inputs, states, biases = given[:3]
    if not all(weight is None or isinstance(weight, torch.Tensor) for weight in given[:3]):
        raise UnsupportedError(f"{operator.op} with computed weights has no module")
    order = GATES[operator.op]

    def ordered(tensor: Any) -> Any:
        gates = tensor.chunk(len(order))
        return torch.cat([gates[index] for index in order]).contiguous()

    flat = []
    for direction in range(inputs.shape[0]):
        flat += [ordered(inputs[direction]), ordered(states[direction])]
        if biases is not None:
            flat += [ordered(bias) for bias in biases[direction].chunk(2)]
    return [given[4], given[5], *flat]
