"""Any lowered layer as TensorFlow operations: those of a network with its ONNX operator alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from resperf.backends import tensorflow_layers
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_layers import Array, Operator
from resperf.backends.tensorflow_operators import build
from resperf.errors import LayerError, UnsupportedError
from resperf.layers import Kernel, Layer, spread_indices
from resperf.lowering.tensorflow import LAYOUT, NO_OPERATOR
from resperf.network import Network, Node, Tensor

_OPSETS = {"": 17, "com.microsoft": 1}
_SIXTEEN = np.float32(1 / 16)


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

    def apply(x: Any, weights: Sequence[Any], extras: Any) -> Any:
        return builder.outputs(build, x, *(extras or ()), weights=weights)[0]

    types = kernel.input_dtypes[1 + len(kernel.weight_shapes) :]

    def extras() -> list[Array]:
        made = [
            made_up(builder.stored_shape(name), dtype, positive=kernel.positive)
            for name, dtype in zip(network.inputs[1:], types, strict=True)
        ]
        if kernel.index_bound:
            made[0] = _indices(made[0], kernel.index_bound)
        return made

    return Operator(
        input_shape=builder.stored_shape("x"),
        weight_shapes=tuple(shape for shape, _ in held),
        residual_shape=None,
        apply=apply,
        dtype=kernel.dtype if not kernel.dtypes else kernel.dtypes[0],
        weight_dtypes=tuple(dtype for _, dtype in held),
        extras=extras,
        positive=kernel.positive,
    )


def _alone(kernel: Kernel) -> Network:
    """Return a network of a kernel alone; its weights are constants, its extras are inputs."""
    types, count = kernel.input_dtypes, len(kernel.weight_shapes)
    shapes = (kernel.input_shape, *kernel.weight_shapes, *kernel.extra_shapes)
    names = ["x", *(f"w{i}" for i in range(count))]
    names += [f"extra{i}" for i in range(len(kernel.extra_shapes))]
    tensors = {
        name: Tensor(name, shape, dtype, is_weight=name.startswith("w"))
        for name, shape, dtype in zip(names, shapes, types, strict=True)
    }
    read = ["" if place < 0 else names[place] for place in kernel.order or range(len(names))]
    for place, values in enumerate(kernel.constants):
        read.append("" if values is None else f"constant{place}")
        if values is not None:
            array = np.array(values, np.int64)
            tensors[read[-1]] = Tensor(read[-1], array.shape, "int64", array, is_weight=True)
    y = Tensor("y", kernel.output_shape, kernel.output_dtype or kernel.dtype)
    written = ("y", *(f"more{i}" for i in range(kernel.more_outputs)))
    node = Node("layer", kernel.op, kernel.domain, tuple(read), written, kernel.attributes)
    inputs = tuple(name for name in names if not name.startswith("w"))
    return Network("layer", (node,), {**tensors, "y": y}, inputs, ("y",), _OPSETS, batch=None)


def made_up(shape: Sequence[int], dtype: str, *, positive: bool = False) -> Array:
    """Make an array of any type: floats between -0.5 and 0.5, integers from 1 to 8, booleans.

    Parameters
    ----------
    shape : sequence of int
    dtype : str
    positive : bool
        Floats are between 0.5 and 1 instead.
    """
    kind: np.dtype[Any] = np.dtype(dtype)
    steps: Array = np.arange(math.prod(shape), dtype=np.int64) * 7 % 16
    if kind == np.bool_:
        even: Array = steps % 2 == 0
        return even.reshape(shape)
    if kind.kind in "iu":
        return (steps % 8 + 1).astype(kind).reshape(shape)
    values: Array = (steps - 8).astype(np.float32) * _SIXTEEN
    values = np.abs(values) + np.float32(0.5) if positive else values
    return values.astype(kind).reshape(shape)


def _indices(array: Array, bound: int) -> Array:
    indices: Array = spread_indices(array.size, bound).reshape(array.shape).astype(array.dtype)
    return indices
