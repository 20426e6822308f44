"""A lowered layer as PyTorch runs it: its operator, and tensors for any number of copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from resperf.backends._attributes import Function
from resperf.backends._torch_functions import STATISTICS, TYPES, function_of, prepared
from resperf.backends._values import in_order, onnx_kernel
from resperf.errors import UnsupportedError
from resperf.layers import Kernel, Layer, Operand, Operator, spread_indices
from resperf.layers._operator import CONTRIB

_BLOCK = 1 << 18
_GATED = frozenset({"LSTM", "GRU", "RNN"})
"""Operators whose weights are held in another number."""
_SMALL = 0.05
"""Scale of made-up values: neither denormal nor growing over products."""


@dataclass(frozen=True)
class TorchLayer:
    """A layer's operator in PyTorch.

    Attributes
    ----------
    kernel : Kernel
        Shapes and types of its tensors.
    operator : Operator
        The same with its inputs in order.
    function : callable
        Takes the first input and `others`; returns the result, or several.
    order : tuple of int
        Position of each input in (first input, weights, extras), -1 for an absent one, and beyond
        these for constants.
    channels_last : bool
        Whether images lie in memory with channels last.
    """

    kernel: Kernel
    operator: Operator
    function: Function
    order: tuple[int, ...]
    channels_last: bool

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Types of first input, weights and extras."""
        return tuple(TYPES[dtype] for dtype in self.kernel.input_dtypes)

    def format_of(self, tensor: Any) -> torch.memory_format:
        """Return the memory format of a tensor of this layer."""
        last = self.channels_last and tensor.ndim == 4
        return torch.channels_last if last else torch.contiguous_format

    def first_input(self, device: torch.device) -> Any:
        """Make up the first input."""
        return self._input_values(0, self.kernel.input_shape, device)

    def others(self, device: torch.device, extras: Sequence[Any] = ()) -> list[Any]:
        """Return the inputs after the first of one copy, with new weights.

        Parameters
        ----------
        device : torch.device
        extras : sequence of Tensor
            What all copies share (`extras`).
        """
        weights = [
            self._input_values(1 + index, shape, device)
            for index, shape in enumerate(self.kernel.weight_shapes)
        ]
        given = [None, *weights, *extras]
        rest = [
            given[position] if 0 <= position < len(given) else None for position in self.order[1:]
        ]
        while rest and rest[-1] is None:
            rest.pop()
        return prepared(self.operator, rest) if rest else rest

    def extras(self, device: torch.device) -> list[Any]:
        """Make up the further computed inputs, which all copies share."""
        count = 1 + len(self.kernel.weight_shapes)
        extras = [
            self._input_values(count + index, shape, device)
            for index, shape in enumerate(self.kernel.extra_shapes)
        ]
        if self.kernel.index_bound:
            shape = self.kernel.extra_shapes[0]
            indices = spread_indices(math.prod(shape), self.kernel.index_bound).reshape(shape)
            extras[0] = torch.from_numpy(indices).to(device)
        return extras

    def trained(self, others: Sequence[Any]) -> list[Any]:
        """Return the weights among the inputs after the first that an optimizer updates."""
        return [value for index, value in enumerate(others) if self._is_trained(index, value)]

    def with_trained(self, others: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
        """Return the inputs after the first with weights changed that an optimizer updates."""
        return [
            change(value) if self._is_trained(index, value) else value
            for index, value in enumerate(others)
        ]

    def _is_trained(self, index: int, value: Any) -> bool:
        weights = range(1, 1 + len(self.kernel.weight_shapes))
        if value is None or not value.is_floating_point() or not weights:
            return False
        fixed = STATISTICS.get(self.operator.op, ())
        own = self.operator.op in _GATED or self.order[1 + index] in weights
        return own and 1 + index not in fixed

    def _input_values(self, position: int, shape: Sequence[int], device: torch.device) -> Any:
        values = made_up(shape, self.dtypes[position], device)
        if self.kernel.positive and values.is_floating_point():
            values = values.abs() + 0.5
        if position in STATISTICS.get(self.operator.op, ()):
            values = values.abs() + 0.5
        return values.contiguous(memory_format=self.format_of(values))


def made_up(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Any:
    """Make a tensor: small floats, integers from 1 to 8, alternating booleans."""
    count = math.prod(shape)
    block = torch.randn(min(max(count, 1), _BLOCK), device=device)
    if dtype == torch.bool:
        values = block > 0
    elif dtype.is_floating_point:
        values = (block * _SMALL).to(dtype)
    else:
        values = (block.abs() * 4 % 8 + 1).to(dtype)
    repeats = -(-count // len(values)) if count else 0
    return values.repeat(repeats)[:count].reshape(tuple(shape))


def layer_of_torch(layer: Layer, *, training: bool = False) -> TorchLayer:
    """Return how PyTorch runs a lowered layer.

    Raises
    ------
    UnsupportedError
        If it has no such operator, or runs the layer as several or as a view.
    """
    layout = str(layer.fields().get("layout", "nchw"))
    if layout not in ("nchw", "nhwc"):
        raise UnsupportedError(f"{layer.kind}: PyTorch has no layout {layout}, only nchw and nhwc")
    kernel = onnx_kernel(layer, "PyTorch")
    if kernel.activation != "none" or (kernel.op == "Conv" and kernel.extra_shapes):
        raise UnsupportedError(
            f"{layer.kind}: PyTorch adds residuals and runs activations as operators of their own; "
            "lower the layer first"
        )
    if adapt := _ADAPTED.get(layer.kind):
        kernel = adapt(layer, kernel)
    kernel = kernel.in_floats(str(layer.fields().get("dtype", "float32")))
    operator, order = _as_operator(kernel)
    after = _AFTER.get(layer.kind)
    function = function_of(operator, training=training)
    if after is not None:
        function = after(layer, function)
    return TorchLayer(kernel, operator, function, order, layout == "nhwc")


def _as_operator(kernel: Kernel) -> tuple[Operator, tuple[int, ...]]:
    """Return the node that a graph would have, and where its inputs come from."""
    shapes = (kernel.input_shape, *kernel.weight_shapes, *kernel.extra_shapes)
    fixed = len(kernel.weight_shapes)
    given: list[Operand | None] = [
        Operand(shape, dtype, is_fixed=0 < position <= fixed)
        for position, (shape, dtype) in enumerate(zip(shapes, kernel.input_dtypes, strict=True))
    ]
    constants = [
        None if ints is None else Operand((len(ints),), "int64", np.array(ints), is_fixed=True)
        for ints in kernel.constants
    ]
    inputs = (*in_order(kernel, given, None), *constants)
    order = kernel.order or tuple(range(len(given)))
    beyond = tuple(range(len(given), len(given) + len(constants)))
    operator = Operator(
        kernel.op, kernel.attributes, inputs, (kernel.output_shape,) * (1 + kernel.more_outputs)
    )
    return operator, (*order, *beyond)


def _activation(_layer: Layer, kernel: Kernel) -> Kernel:
    """Use the functions of PyTorch's own modules: Hardsigmoid of slope 1/6, ReLU6."""
    if kernel.op == "HardSigmoid":
        return replace(kernel, attributes={"alpha": 1 / 6, "beta": 0.5})
    if kernel.op == "Clip":
        return replace(kernel, weight_shapes=(), constants=((0,), (6,)))
    return kernel


def _attention(_layer: Layer, kernel: Kernel) -> Kernel:
    packed = kernel.op == "Attention" and kernel.domain == CONTRIB
    return replace(kernel, op="PackedAttention") if packed else kernel


def _move(layer: Layer, kernel: Kernel) -> Kernel:
    function = str(layer.fields()["function"])
    if function in ("slice", "split"):
        raise UnsupportedError(f"move: a {function} is a view in PyTorch, and runs no kernel")
    if function == "gather":
        rows = kernel.constants[0]
        assert rows is not None
        return replace(
            kernel, constants=(), extra_shapes=((len(rows),),), dtypes=(kernel.dtype, "int64"),
            index_bound=kernel.input_shape[1],
        )  # fmt: skip
    return replace(kernel, op="Identity", constants=()) if function == "copy" else kernel


def _recurrent(_layer: Layer, kernel: Kernel) -> Kernel:
    """Let the gate of a GRU act behind the product, as PyTorch's does."""
    if kernel.op != "GRU":
        return kernel
    return replace(kernel, attributes={**kernel.attributes, "linear_before_reset": 1})


def _copied_move(layer: Layer, function: Function) -> Function:
    if str(layer.fields()["function"]) == "copy":
        return lambda x: x.clone()
    if str(layer.fields()["function"]) == "expand":
        return lambda x, *others: function(x, *others).contiguous()
    return function


_ADAPTED: Mapping[str, Callable[[Layer, Kernel], Kernel]] = {
    "activation": _activation,
    "attention": _attention,
    "move": _move,
    "recurrent": _recurrent,
}
"""Kinds whose ONNX operator differs in a constant from what PyTorch's modules run."""
_AFTER: Mapping[str, Callable[[Layer, Function], Function]] = {
    "move": _copied_move,
    "transpose": lambda _layer, function: lambda x: function(x).contiguous(),
}
"""Kinds that are copies of what is a view in a network."""
