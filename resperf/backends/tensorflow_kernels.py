"""Any lowered layer as TensorFlow operations: those of a network with its ONNX operator alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from resperf.backends._values import (
    Array,
    in_order,
    inputs_of_kernel,
    kernel_values,
    made_up,
    onnx_kernel,
    weights_of_kernel,
)
from resperf.backends.tensorflow_activations import ACTIVATION_FUNCTIONS
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_operators import build
from resperf.errors import UnsupportedError
from resperf.layers import Activation, Conv, Kernel, Layer, Pool
from resperf.lowering.tensorflow import LAYOUT, NO_OPERATOR
from resperf.network import Network, Node, Tensor

_OPSETS = {"": 17, "com.microsoft": 1}


@dataclass(frozen=True)
class Operator:
    """A layer as TensorFlow operations, ready to be added to a graph.

    Attributes
    ----------
    input_shape : tuple of int
        NHWC for images.
    weight_shapes : tuple of tuple of int
        In TensorFlow's order: filter or matrix, then bias.
    apply : callable
        ``apply(x, weights, extras)`` adds the operations and returns the output.
    dtype : str
        Type of the input.
    weight_dtypes : tuple of str
        One for each of the weights.
    extras : callable
        Makes host arrays of all further inputs that a network would compute, such as a residual.
    positive : bool
        Whether inputs must be above zero, as for logarithms.
    """

    input_shape: tuple[int, ...]
    weight_shapes: tuple[tuple[int, ...], ...]
    apply: Callable[[Any, Sequence[Any], Sequence[Any]], Any]
    dtype: str = "float32"
    weight_dtypes: tuple[str, ...] = ()
    extras: Callable[[], list[Array]] = list
    positive: bool = False


def operator_of(layer: Layer) -> Operator:
    """Return the TensorFlow operations of a lowered layer.

    Parameters
    ----------
    layer : Layer
        Of any kind.

    Raises
    ------
    UnsupportedError
        If TensorFlow cannot run such a layer.
    """
    if isinstance(layer, Conv | Pool) and layer.layout != LAYOUT:
        raise UnsupportedError(
            f"{layer.kind}: TensorFlow stores images as {LAYOUT} here, not {layer.layout}; "
            "lower the layer first"
        )
    if isinstance(layer, Activation):
        function = ACTIVATION_FUNCTIONS[layer.activation]
        return Operator(layer.input_shape, (), lambda x, *_: function(x), dtype=layer.dtype)
    if layer.kind in NO_OPERATOR:
        raise UnsupportedError(f"TensorFlow has no {layer.kind} layer: {NO_OPERATOR[layer.kind]}")
    plain = layer.replace(layout="nchw") if "layout" in layer.fields() else layer
    kernel = onnx_kernel(plain, "TensorFlow")
    kernel = kernel.in_floats(str(layer.fields().get("dtype", kernel.dtype)))
    if not isinstance(layer, Conv):
        return _of_kernel(kernel)
    # ONNX adds a residual to a bias only; TensorFlow to anything.
    weights = kernel.weight_shapes[: 1 + layer.bias]
    convolution = replace(kernel, weight_shapes=weights, extra_shapes=())
    return _of_kernel(convolution, residual=layer.residual)


def _of_kernel(kernel: Kernel, *, residual: bool = False) -> Operator:
    """Return a kernel's operations: its operator, a residual, and the activation fused into it."""
    network = _alone(kernel)
    builder = Builder(network, None)
    held = [(tuple(spec.shape), spec.dtype.name) for spec in builder.held]
    activation = ACTIVATION_FUNCTIONS[kernel.activation]
    inputs = {
        name: (builder.stored_shape(name), dtype)
        for name, (_, dtype) in inputs_of_kernel(kernel).items()
    }

    def apply(x: Any, weights: Sequence[Any], extras: Sequence[Any]) -> Any:
        if residual:
            y = builder.outputs(build, x, weights=weights)[0]
            return activation(tf.raw_ops.AddV2(x=y, y=extras[0]))
        return activation(builder.outputs(build, x, *extras, weights=weights)[0])

    def extras() -> list[Array]:
        if residual:
            return [made_up(builder.stored_shape("y"), kernel.dtype)]
        _, *values = kernel_values(kernel, inputs).values()
        return values

    return Operator(
        input_shape=builder.stored_shape("x"),
        weight_shapes=tuple(shape for shape, _ in held),
        apply=apply,
        dtype=kernel.input_dtypes[0],
        weight_dtypes=tuple(dtype for _, dtype in held),
        extras=extras,
        positive=kernel.positive,
    )


def _alone(kernel: Kernel) -> Network:
    """Return a network of a kernel alone; its weights are constants, its extras are inputs."""
    inputs = inputs_of_kernel(kernel)
    weights = {f"w{index}": typed for index, typed in enumerate(weights_of_kernel(kernel))}
    tensors = {
        name: Tensor(name, shape, dtype, is_weight=name in weights)
        for name, (shape, dtype) in (inputs | weights).items()
    }
    first, *extras = inputs
    read = in_order(kernel, [first, *weights, *extras], "")
    for index, values in enumerate(kernel.constants):
        read.append("" if values is None else f"constant{index}")
        if values is not None:
            array = np.array(values, np.int64)
            tensors[read[-1]] = Tensor(read[-1], array.shape, "int64", array, is_weight=True)
    y = Tensor("y", kernel.output_shape, kernel.output_dtype or kernel.dtype)
    written = ("y", *(f"more{i}" for i in range(kernel.more_outputs)))
    node = Node("layer", kernel.op, kernel.domain, tuple(read), written, kernel.attributes)
    return Network(
        "layer", (node,), {**tensors, "y": y}, tuple(inputs), ("y",), _OPSETS, batch=None
    )
