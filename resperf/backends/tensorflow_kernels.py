"""Any lowered layer as TensorFlow operations: those of a network with its ONNX operator alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resperf.backends import tensorflow_layers
from resperf.backends._values import (
    Array,
    in_order,
    inputs_of_kernel,
    kernel_values,
    weights_of_kernel,
)
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_layers import Operator
from resperf.backends.tensorflow_operators import build
from resperf.errors import LayerError, UnsupportedError
from resperf.layers import Kernel, Layer
from resperf.lowering.tensorflow import LAYOUT, NO_OPERATOR
from resperf.network import Network, Node, Tensor

_OPSETS = {"": 17, "com.microsoft": 1}


def operator_of(layer: Layer, layout: str = LAYOUT) -> Operator:
    """Return the TensorFlow operations of a lowered layer.

    Parameters
    ----------
    layer : Layer
        Of any kind.
    layout : {"nhwc", "nchw"}
        Of images.

    Raises
    ------
    UnsupportedError
        If TensorFlow cannot run such a layer.
    """
    if layer.kind in tensorflow_layers.OPERATORS:
        return tensorflow_layers.operator_of(layer, layout)
    if layer.kind in NO_OPERATOR:
        raise UnsupportedError(f"TensorFlow has no {layer.kind} layer: {NO_OPERATOR[layer.kind]}")
    plain = layer.replace(layout="nchw") if "layout" in layer.fields() else layer
    try:
        kernel = plain.kernel()
        kernel = kernel.in_floats(str(layer.fields().get("dtype", kernel.dtype)))
    except LayerError as error:
        raise UnsupportedError(f"TensorFlow runs no {layer.kind} like this: {error}") from error
    return _of_kernel(kernel, layout)


def _of_kernel(kernel: Kernel, layout: str) -> Operator:
    network = _alone(kernel)
    builder = Builder(network, {}, layout)
    held = [(tuple(each.shape), each.dtype.name) for each in builder.held]
    builder.held.clear()

    def apply(x: Any, weights: Sequence[Any], extras: Sequence[Any]) -> Any:
        return builder.outputs(build, x, *extras, weights=weights)[0]

    inputs = {
        name: (builder.stored_shape(name), dtype)
        for name, (_, dtype) in inputs_of_kernel(kernel).items()
    }

    def extras() -> list[Array]:
        _, *made = kernel_values(kernel, inputs).values()
        return made

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
    weights = {f"w{place}": typed for place, typed in enumerate(weights_of_kernel(kernel))}
    tensors = {
        name: Tensor(name, shape, dtype, is_weight=name in weights)
        for name, (shape, dtype) in (inputs | weights).items()
    }
    first, *extras = inputs
    read = in_order(kernel, [first, *weights, *extras], "")
    for place, values in enumerate(kernel.constants):
        read.append("" if values is None else f"constant{place}")
        if values is not None:
            array = np.array(values, np.int64)
            tensors[read[-1]] = Tensor(read[-1], array.shape, "int64", array, is_weight=True)
    y = Tensor("y", kernel.output_shape, kernel.output_dtype or kernel.dtype)
    written = ("y", *(f"more{i}" for i in range(kernel.more_outputs)))
    node = Node("layer", kernel.op, kernel.domain, tuple(read), written, kernel.attributes)
    return Network(
        "layer", (node,), {**tensors, "y": y}, tuple(inputs), ("y",), _OPSETS, batch=None
    )
