"""ONNX operators as TensorFlow operations: one small function per operator, and their table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from resperf.backends.tensorflow_builder import STORED_AXES, Builder
from resperf.backends.tensorflow_layers import (
    ACTIVATION_FUNCTIONS,
    hard_sigmoid,
    leaky_relu,
    nhwc,
    operator_of,
    thresholded_relu,
)
from resperf.errors import UnsupportedError
from resperf.layers import FUNCTION_OF
from resperf.lowering.tensorflow import reduced_axes
from resperf.network import Node

_FILE_AXES = (0, 3, 1, 2)


def build(builder: Builder, node: Node) -> Any:
    """Build one node and return its first output.

    Raises
    ------
    UnsupportedError
        If the operator, or this form of it, is not known.
    """
    try:
        make = _OPERATORS[node.op]
    except KeyError as error:
        raise UnsupportedError(
            f"operator {node.op} ({node.name!r}) cannot be built in TensorFlow; known operators: "
            f"{', '.join(sorted(_OPERATORS))}"
        ) from error
    return make(builder, node)


def _refusal(node: Node, why: str) -> UnsupportedError:
    return UnsupportedError(f"{node.op} {node.name!r}: {why} cannot be built in TensorFlow")


def _axis(rank: int, axis: int) -> int:
    """Return the position in TensorFlow of an axis in the file."""
    return STORED_AXES.index(axis % 4) if rank == 4 else axis % rank


def _layer(builder: Builder, node: Node) -> Any:
    """Build a convolution, pooling or matrix product: the operations of its layer."""
    layer, weights = builder.layer_of(node)
    operator = operator_of(layer)
    x = builder.value(node, 0)
    rank = builder.rank(node, 0)
    if len(operator.input_shape) == 2 and rank != 2:
        if rank == 4:
            raise _refusal(node, "a product over the columns of an image")
        y = operator.apply(tf.reshape(x, operator.input_shape), weights, None)
        return tf.reshape(y, builder.output_shape(node))
    return operator.apply(x, weights, None)


def _matmul(builder: Builder, node: Node) -> Any:
    if builder.has_layer(node):
        return _layer(builder, node)
    if 4 in (builder.rank(node, 0), builder.rank(node, 1)):
        raise _refusal(node, "a product of two images")
    return tf.matmul(builder.value(node, 0), builder.value(node, 1))


def _activation(builder: Builder, node: Node) -> Any:
    return ACTIVATION_FUNCTIONS[FUNCTION_OF[node.op]](builder.value(node, 0))


def _with_constants(function: Callable[..., Any], **usual: float) -> Callable[[Builder, Node], Any]:
    """Build an activation with the node's constants, or the default ones."""

    def build(builder: Builder, node: Node) -> Any:
        own = {name: float(node.attributes.get(name, value)) for name, value in usual.items()}
        return function(builder.value(node, 0), **own)

    return build


def _clip(builder: Builder, node: Node) -> Any:
    limits = []
    for position, label, default in ((1, "min", -math.inf), (2, "max", math.inf)):
        if position < len(node.inputs) and node.inputs[position]:
            limits.append(float(builder.constant(node, position).reshape(-1)[0]))
        else:
            limits.append(float(node.attributes.get(label, default)))
    x = builder.value(node, 0)
    return tf.nn.relu6(x) if limits == [0, 6] else tf.clip_by_value(x, *limits)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Builder, Node], Any]:
    def make(builder: Builder, node: Node) -> Any:
        values = [builder.value(node, position) for position in range(len(node.inputs))]
        ranks = {len(value.shape) for value in values} - {0}
        if len(ranks) > 1 and 4 in ranks:
            raise _refusal(node, "an image together with a computed tensor of another rank")
        result = values[0]
        for value in values[1:]:
            result = function(result, value)
        return result

    return make


def _concat(builder: Builder, node: Node) -> Any:
    values = [builder.value(node, position) for position in range(len(node.inputs))]
    return tf.concat(values, _axis(builder.rank(node, 0), int(node.attributes["axis"])))


def _softmax(builder: Builder, node: Node) -> Any:
    old = builder.network.opsets.get("", 1) < 13
    rank, shape = builder.rank(node, 0), builder.input_shape(node, 0)
    axis = int(node.attributes.get("axis", 1 if old else -1)) % rank
    if old and math.prod(shape[axis + 1 :]) != 1:
        raise _refusal(node, f"a softmax over axes {axis} to {rank - 1} at once")
    return tf.nn.softmax(builder.value(node, 0), axis=_axis(rank, axis))


def _view(builder: Builder, node: Node) -> Any:
    """Change the shape; flattening an image gives its values in NHWC order."""
    x, shape = builder.value(node, 0), builder.input_shape(node, 0)
    wanted = builder.output_shape(node)
    if len(shape) == 4 and len(wanted) == 2 and wanted[0] == shape[0]:
        return tf.reshape(x, wanted)
    # A single pixel has the same memory layout in both orders.
    if len(shape) == 4 and shape[2] * shape[3] > 1:
        x = tf.transpose(x, _FILE_AXES)
    if len(wanted) != 4 or wanted[2] * wanted[3] == 1:
        return tf.reshape(x, nhwc(wanted))
    return tf.transpose(tf.reshape(x, wanted), STORED_AXES)


def _transpose(builder: Builder, node: Node) -> Any:
    x, rank = builder.value(node, 0), builder.rank(node, 0)
    order = [int(axis) for axis in node.attributes.get("perm", range(rank)[::-1])]
    if rank == 4:
        order = [_FILE_AXES[order[STORED_AXES[axis]]] for axis in range(4)]
    return x if order == list(range(rank)) else tf.transpose(x, order)


def _norm(builder: Builder, node: Node) -> Any:
    x = builder.value(node, 0)
    if builder.is_folded(node):
        return x
    if builder.rank(node, 0) == 3:
        raise _refusal(node, "a normalisation of a tensor of rank 3")
    scale, shift = builder.scale_and_shift(node)
    return x * tf.constant(scale) + tf.constant(shift)


def _mean(builder: Builder, node: Node) -> Any:
    rank = builder.rank(node, 0)
    named = reduced_axes(builder.network, node)
    axes = [axis % rank for axis in (range(rank) if named is None else named)]
    keep_dims = bool(node.attributes.get("keepdims", 1))
    if rank == 4 and not keep_dims and 1 not in axes and not {2, 3} <= set(axes):
        raise _refusal(node, f"a mean over axes {axes} without keeping them")
    return tf.reduce_mean(builder.value(node, 0), [_axis(rank, axis) for axis in axes], keep_dims)


def _lrn(builder: Builder, node: Node) -> Any:
    size = int(node.attributes["size"])
    if size % 2 == 0 or builder.rank(node, 0) != 4:
        raise _refusal(node, f"size={size} over a tensor of rank {builder.rank(node, 0)}")
    return tf.nn.local_response_normalization(
        builder.value(node, 0),
        depth_radius=size // 2,
        bias=float(node.attributes.get("bias", 1.0)),
        alpha=float(node.attributes.get("alpha", 1e-4)) / size,
        beta=float(node.attributes.get("beta", 0.75)),
    )


def _usual(**usual: float) -> Callable[[Builder, Node], Any]:
    """Build an activation that TensorFlow only has with default constants."""

    def build(builder: Builder, node: Node) -> Any:
        for name, value in usual.items():
            if not np.isclose(node.attributes.get(name, value), value):
                raise _refusal(node, f"{name}={node.attributes[name]}")
        return _activation(builder, node)

    return build


_OPERATORS: Mapping[str, Callable[[Builder, Node], Any]] = {
    **dict.fromkeys(
        (
            "Conv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "Gemm",
        ),
        _layer,
    ),
    "MatMul": _matmul,
    **dict.fromkeys(
        ("Relu", "Tanh", "Sigmoid", "Softplus", "Gelu", "HardSwish", "Softsign"), _activation
    ),
    "LeakyRelu": _with_constants(leaky_relu, alpha=0.01),
    "HardSigmoid": _with_constants(hard_sigmoid, alpha=0.2, beta=0.5),
    "Elu": _usual(alpha=1.0),
    "Celu": _usual(alpha=1.0),
    "Selu": _usual(alpha=1.67326324, gamma=1.05070102),
    "ThresholdedRelu": _with_constants(thresholded_relu, alpha=1.0),
    "Clip": _clip,
    "Add": _binary(tf.add),
    "Sum": _binary(tf.add),
    "Sub": _binary(tf.subtract),
    "Mul": _binary(tf.multiply),
    "Div": _binary(tf.divide),
    "Concat": _concat,
    "Softmax": _softmax,
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _view),
    "Transpose": _transpose,
    "BatchNormalization": _norm,
    "ReduceMean": _mean,
    "LRN": _lrn,
}  # fmt: skip
