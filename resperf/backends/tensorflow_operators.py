"""ONNX operators as TensorFlow operations: one small function per operator, and their table.

Each function reads the inputs of its node from a `Builder` and returns the first output, or a tuple
of all. What TensorFlow has no single operation for is written in several, as Keras does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from resperf.backends import tensorflow_functions as functions
from resperf.backends._attributes import attribute
from resperf.backends.tensorflow_builder import Builder, refusal
from resperf.backends.tensorflow_sequences import attention, multi_head_attention, recurrent
from resperf.backends.tensorflow_windows import conv, conv_transpose, pool
from resperf.errors import UnsupportedError
from resperf.layers import FUNCTION_OF
from resperf.layers.cast import ELEMENT_TYPES
from resperf.lowering._read import has_input, tensor_of
from resperf.lowering.tensorflow import (
    FILE_AXES,
    STORED_AXES,
    reduced_axes,
    stored_perm,
    view_transposes,
)
from resperf.network import Node

Build = Callable[[Builder, Node], Any]


def build(builder: Builder, node: Node) -> Any:
    """Build one node and return its first output, or a tuple of all outputs.

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


def _numbers(builder: Builder, node: Node, name: str, position: int) -> list[int] | None:
    """Return integers that old operator sets write as an attribute, new ones as an input."""
    if name in node.attributes:
        value = node.attributes[name]
        return [int(v) for v in (value if isinstance(value, tuple | list) else (value,))]
    if not has_input(node, position):
        return None
    return [int(v) for v in builder.constant(node, position).reshape(-1)]


def _dropout(builder: Builder, node: Node) -> Any:
    given = builder.constant(node, 1).item() if has_input(node, 1) else 0.5
    return tf.nn.dropout(builder.value(node, 0), float(attribute(node, "ratio", given)))


def _matrix_product(builder: Builder, node: Node) -> Any:
    """Build a product with a held matrix and bias, or of computed matrices."""
    if node.name not in builder.products:
        return _product(builder, node)
    x, bias = builder.value(node, 0), builder.bias(node)
    rows = x if len(x.shape) == 2 else tf.reshape(x, (-1, x.shape[-1]))
    y = tf.raw_ops.MatMul(a=rows, b=builder.value(node, 1))
    if bias is not None:
        y = tf.raw_ops.BiasAdd(value=y, bias=bias)
    return y if len(x.shape) == 2 else tf.reshape(y, builder.output_shape(node))


def _product(builder: Builder, node: Node) -> Any:
    """Build a product of computed matrices, with alpha, beta and the third input of a Gemm."""
    attributes = node.attributes

    def operand(position: int, side: str) -> Any:
        value = builder.value(node, position)
        if not attributes.get(f"transBatch{side}"):
            return value
        last = len(value.shape) - 1
        return tf.transpose(value, [*range(1, last), 0, last])

    y = tf.matmul(
        operand(0, "A"),
        operand(1, "B"),
        transpose_a=bool(attributes.get("transA", 0)),
        transpose_b=bool(attributes.get("transB", 0)),
    )
    if (alpha := float(attributes.get("alpha", 1.0))) != 1.0:
        y = y * tf.cast(alpha, y.dtype)
    bias = builder.optional(node, 2)
    if bias is None:
        return y
    beta = float(attributes.get("beta", 1.0))
    return y + (bias if beta == 1.0 else bias * tf.cast(beta, y.dtype))


def _activation(builder: Builder, node: Node) -> Any:
    return functions.ACTIVATION_FUNCTIONS[FUNCTION_OF[node.op]](builder.value(node, 0))


def _gelu(builder: Builder, node: Node) -> Any:
    approximate = attribute(node, "approximate", "none") == "tanh" or node.op == "FastGelu"
    x = builder.value(node, 0)
    if has_input(node, 1):
        x = x + builder.value(node, 1)
    return functions.ACTIVATION_FUNCTIONS["gelu_tanh" if approximate else "gelu"](x)


def _swish(builder: Builder, node: Node) -> Any:
    """Return x sigmoid(alpha x)."""
    x = builder.value(node, 0)
    alpha = float(node.attributes.get("alpha", 1.702 if node.op == "QuickGelu" else 1.0))
    return tf.nn.silu(x) if alpha == 1 else x * tf.sigmoid(x * tf.cast(alpha, x.dtype))


def _with_constants(function: Callable[..., Any], **usual: float) -> Build:
    """Build an activation with the node's constants, or the default ones."""

    def make(builder: Builder, node: Node) -> Any:
        own = {name: float(node.attributes.get(name, value)) for name, value in usual.items()}
        return function(builder.value(node, 0), **own)

    return make


def _clip(builder: Builder, node: Node) -> Any:
    limits = []
    for position, label, default in ((1, "min", -math.inf), (2, "max", math.inf)):
        if has_input(node, position):
            limits.append(float(builder.constant(node, position).reshape(-1)[0]))
        else:
            limits.append(float(node.attributes.get(label, default)))
    x = builder.value(node, 0)
    if limits == [0, 6]:
        return tf.nn.relu6(x)
    return tf.clip_by_value(x, *(tf.cast(limit, x.dtype) for limit in limits))


def _binary(function: Callable[[Any, Any], Any]) -> Build:
    def make(builder: Builder, node: Node) -> Any:
        values = [builder.value(node, position) for position in range(len(node.inputs))]
        result = values[0]
        for position, value in enumerate(values[1:], 1):
            result = function(result, _beside_image(builder, node, position, value))
        return result

    return make


def _beside_image(builder: Builder, node: Node, position: int, value: Any) -> Any:
    """Give a computed tensor of a lower rank the axes of the image that it is combined with."""
    rank = len(value.shape)
    if not builder.reads_images(node) or rank in (0, 4):
        return value
    shape = (1,) * (4 - rank) + builder.input_shape(node, position)
    return tf.transpose(tf.reshape(value, shape), STORED_AXES)


def _mod(builder: Builder, node: Node) -> Any:
    function = tf.raw_ops.TruncateMod if node.attributes.get("fmod", 0) else tf.raw_ops.FloorMod
    return function(x=builder.value(node, 0), y=builder.value(node, 1))


def _divided(x: Any, y: Any) -> Any:
    """Divide; integers are rounded towards zero."""
    return tf.raw_ops.TruncateDiv(x=x, y=y) if x.dtype.is_integer else x / y


def _prelu(x: Any, slope: Any) -> Any:
    """Return x where it is positive, slope x elsewhere; written as Keras does."""
    return tf.nn.relu(x) - slope * tf.nn.relu(-x)


def _where(builder: Builder, node: Node) -> Any:
    parts = [builder.value(node, position) for position in range(3)]
    return tf.where(*(_beside_image(builder, node, i, part) for i, part in enumerate(parts)))


def _cast(builder: Builder, node: Node) -> Any:
    names = {number: name for name, number in ELEMENT_TYPES.items()}
    wanted = builder.network.tensors.get(node.outputs[0])
    return tf.cast(
        builder.value(node, 0), names[node.attributes["to"]] if wanted is None else wanted.dtype
    )


def _concat(builder: Builder, node: Node) -> Any:
    values = [builder.value(node, position) for position in range(len(node.inputs))]
    return tf.concat(values, builder.axis(node, int(node.attributes["axis"])))


def _softmax(builder: Builder, node: Node) -> Any:
    function = tf.nn.log_softmax if node.op == "LogSoftmax" else tf.nn.softmax
    old = builder.network.opsets.get("", 1) < 13
    rank, shape = builder.rank(node, 0), builder.input_shape(node, 0)
    axis = int(node.attributes.get("axis", 1 if old else -1)) % rank
    if old and math.prod(shape[axis + 1 :]) != 1:
        if builder.reads_images(node):
            raise refusal(node, f"a softmax over axes {axis} to {rank - 1} at once")
        rows = tf.reshape(builder.value(node, 0), (math.prod(shape[:axis]), -1))
        return tf.reshape(function(rows), shape)
    return function(builder.value(node, 0), axis=builder.axis(node, axis))


def _view(builder: Builder, node: Node) -> Any:
    """Change the shape; flattening an image gives its values in NHWC order."""
    x = builder.stored(node)
    first, last = view_transposes(builder.network, builder.storage, node)
    if first:
        x = tf.transpose(x, FILE_AXES)
    if last:
        return tf.transpose(tf.reshape(x, builder.output_shape(node)), STORED_AXES)
    return tf.reshape(x, builder.stored_shape(node.outputs[0]))


def _transpose(builder: Builder, node: Node) -> Any:
    x = builder.stored(node)
    order = stored_perm(builder.network, builder.storage, node)
    return x if order == tuple(range(len(order))) else tf.transpose(x, order)


def _resize(builder: Builder, node: Node) -> Any:
    """Resize an image with TensorFlow's nearest operation; edges differ where ONNX's modes do."""
    if builder.rank(node, 0) != 4:
        raise refusal(node, "resizing what is no image")
    size = builder.output_shape(node)[2:]
    mode = str(attribute(node, "mode", "nearest"))
    places = str(node.attributes.get("coordinate_transformation_mode", "half_pixel"))
    kernel = {
        "nearest": tf.raw_ops.ResizeNearestNeighbor,
        "linear": tf.raw_ops.ResizeBilinear,
        "cubic": tf.raw_ops.ResizeBicubic,
    }[mode]
    edges = {
        "align_corners": places == "align_corners",
        "half_pixel_centers": "half_pixel" in places and node.op == "Resize",
    }
    if mode == "nearest":
        edges["half_pixel_centers"] = False
    x = builder.value(node, 0)
    # The last two return float32 whatever they read.
    return tf.cast(kernel(images=x, size=size, **edges), x.dtype)


def _depth_to_space(builder: Builder, node: Node) -> Any:
    side = int(node.attributes["blocksize"])
    if attribute(node, "mode", "DCR") == "CRD":
        return _pixel_shuffle(builder, node, side)
    function = {"DepthToSpace": tf.nn.depth_to_space, "SpaceToDepth": tf.nn.space_to_depth}[node.op]
    return function(builder.value(node, 0), side)


def _pixel_shuffle(builder: Builder, node: Node, side: int) -> Any:
    """Build the order of channels that TensorFlow has no operation for: reshaped and transposed."""
    batch, channels, rows, columns = builder.input_shape(node, 0)
    kept, x = channels // side**2, builder.value(node, 0)
    x = tf.transpose(tf.reshape(x, (batch, rows, columns, kept, side, side)), (0, 1, 4, 2, 5, 3))
    return tf.reshape(x, builder.stored_shape(node.outputs[0]))


def _reduce(function: Callable[..., Any]) -> Build:
    def make(builder: Builder, node: Node) -> Any:
        rank = builder.rank(node, 0)
        named = reduced_axes(builder.network, node)
        if named is None and node.attributes.get("noop_with_empty_axes", 0):
            return builder.value(node, 0)
        axes = [axis % rank for axis in (range(rank) if named is None else named)]
        keep_dims = bool(node.attributes.get("keepdims", 1))
        x = builder.value(node, 0)
        if (
            builder.reads_images(node)
            and not keep_dims
            and 1 not in axes
            and not {2, 3} <= set(axes)
        ):
            # What is left of the axes would be in another order than in the file.
            x = tf.transpose(x, FILE_AXES)
            return function(x, axes, keepdims=keep_dims)
        return function(x, [builder.axis(node, axis) for axis in axes], keepdims=keep_dims)

    return make


def _arg(function: Callable[..., Any]) -> Build:
    def make(builder: Builder, node: Node) -> Any:
        axis = int(node.attributes.get("axis", 0)) % builder.rank(node, 0)
        indices = function(builder.value(node, 0), axis=axis, output_type=tf.int64)
        return tf.expand_dims(indices, axis) if node.attributes.get("keepdims", 1) else indices

    return make


def _pad(builder: Builder, node: Node) -> Any:
    pads = _numbers(builder, node, "pads", 1)
    rank = builder.rank(node, 0)
    mode = str(attribute(node, "mode", "constant"))
    words = {"constant": "CONSTANT", "reflect": "REFLECT"}
    if pads is None or mode not in words or len(pads) != 2 * rank:
        raise refusal(node, f"mode={mode} with pads {pads}")
    margins = np.zeros((rank, 2), int)
    for axis in range(rank):
        margins[builder.axis(node, axis)] = pads[axis], pads[axis + rank]
    value = builder.constant(node, 2).item() if has_input(node, 2) else 0
    x = builder.value(node, 0)
    if (margins < 0).any():
        ends = [size + min(after, 0) for size, (_, after) in zip(x.shape, margins, strict=True)]
        starts = [max(-before, 0) for before, _ in margins]
        x = x[tuple(slice(a, b) for a, b in zip(starts, ends, strict=True))]
        margins = np.maximum(margins, 0)
    return tf.pad(x, margins, words[mode], constant_values=tf.cast(value, x.dtype))


def _slice(builder: Builder, node: Node) -> Any:
    starts = _numbers(builder, node, "starts", 1)
    ends = _numbers(builder, node, "ends", 2)
    if starts is None or ends is None:
        raise refusal(node, "a slice without start or end")
    axes = _numbers(builder, node, "axes", 3) or list(range(len(starts)))
    steps = _numbers(builder, node, "steps", 4) or [1] * len(starts)
    rank, shape = builder.rank(node, 0), builder.input_shape(node, 0)
    parts = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first, last, step = slice(start, end, step).indices(shape[axis % rank])
        stop = None if last < 0 else last
        parts[builder.axis(node, axis)] = slice(first, stop, step)
    return builder.value(node, 0)[tuple(parts)]


def _split(builder: Builder, node: Node) -> Any:
    axis = int(node.attributes.get("axis", 0))
    sizes = _numbers(builder, node, "split", 1)
    if sizes is None:
        length = builder.input_shape(node, 0)[axis]
        part = -(-length // len(node.outputs))
        sizes = [min(part, length - start) for start in range(0, length, part)]
    return tuple(tf.split(builder.value(node, 0), sizes, builder.axis(node, axis)))


def _gather(builder: Builder, node: Node) -> Any:
    axis = int(node.attributes.get("axis", 0)) % builder.rank(node, 0)
    return tf.gather(builder.value(node, 0), _indices(builder, node, axis), axis=axis)


def _indices(builder: Builder, node: Node, axis: int) -> Any:
    """Return a node's second input: indices, of which negative constants count from the end."""
    tensor = tensor_of(builder.network, node, 1)
    if tensor.value is not None:
        return tf.constant(np.asarray(tensor.value) % builder.input_shape(node, 0)[axis])
    return builder.value(node, 1)


def _gather_elements(builder: Builder, node: Node) -> Any:
    """Return the element of each place at an axis: TensorFlow gathers along flattened rows."""
    axis = int(node.attributes.get("axis", 0)) % builder.rank(node, 0)
    x, indices = builder.value(node, 0), _indices(builder, node, axis)
    return tf.gather_nd(x, _full_indices(indices, axis))


def _full_indices(indices: Any, axis: int) -> Any:
    """Return the full position of what indices along one axis refer to."""
    grid = [
        tf.cast(coordinate, indices.dtype)
        for coordinate in tf.meshgrid(*(tf.range(size) for size in indices.shape), indexing="ij")
    ]
    grid[axis] = indices
    return tf.stack(grid, axis=-1)


def _gather_nd(builder: Builder, node: Node) -> Any:
    batch_dims = int(node.attributes.get("batch_dims", 0))
    return tf.gather_nd(builder.value(node, 0), builder.value(node, 1), batch_dims=batch_dims)


_SCATTERS: Mapping[str, Callable[..., Any]] = {
    "none": tf.tensor_scatter_nd_update,
    "add": tf.tensor_scatter_nd_add,
    "max": tf.tensor_scatter_nd_max,
    "min": tf.tensor_scatter_nd_min,
}


def _scatter(builder: Builder, node: Node) -> Any:
    how = str(attribute(node, "reduction", "none"))
    if how not in _SCATTERS:
        raise refusal(node, f"reduction={how}")
    x, indices = builder.value(node, 0), builder.value(node, 1)
    if node.op != "ScatterND":
        axis = int(node.attributes.get("axis", 0)) % builder.rank(node, 0)
        indices = _full_indices(indices, axis)
    return _SCATTERS[how](x, indices, builder.value(node, 2))


def _einsum(builder: Builder, node: Node) -> Any:
    equation = str(attribute(node, "equation", ""))
    values = [builder.value(node, position) for position in range(len(node.inputs))]
    return tf.einsum(equation.replace(" ", ""), *values)


def _top_k(builder: Builder, node: Node) -> Any:
    """Build TopK, which TensorFlow has along the last axis and for the largest values."""
    rank = builder.rank(node, 0)
    axis = int(node.attributes.get("axis", -1)) % rank
    kept = _numbers(builder, node, "k", 1)
    if kept is None or not node.attributes.get("largest", 1):
        raise refusal(node, "the smallest values")
    x, last = builder.value(node, 0), axis == rank - 1
    order = [*(i for i in range(rank) if i != axis), axis]
    back = [order.index(i) for i in range(rank)]
    values, indices = tf.math.top_k(x if last else tf.transpose(x, order), kept[0])
    if not last:
        values, indices = tf.transpose(values, back), tf.transpose(indices, back)
    return values, tf.cast(indices, tf.int64)


def _cumulate(builder: Builder, node: Node) -> Any:
    (axis,) = _numbers(builder, node, "axis", 1) or [0]
    return tf.cumsum(
        builder.value(node, 0),
        axis,
        exclusive=bool(node.attributes.get("exclusive", 0)),
        reverse=bool(node.attributes.get("reverse", 0)),
    )


def _scale_and_zero(builder: Builder, node: Node) -> tuple[Any, Any]:
    """Return the constants of a quantisation, along its axis."""
    arrays = [builder.constant(node, 1).astype(np.float32)]
    zero = builder.constant(node, 2) if has_input(node, 2) else np.zeros_like(arrays[0], np.uint8)
    arrays.append(zero.astype(np.float32))
    if arrays[0].size > 1:
        shape = [1] * builder.rank(node, 0)
        shape[builder.axis(node, int(node.attributes.get("axis", 1)))] = -1
        arrays = [array.reshape(shape) for array in arrays]
    return tf.constant(arrays[0]), tf.constant(arrays[1])


def _quantize(builder: Builder, node: Node) -> Any:
    """Build QuantizeLinear in parts: divided, rounded, shifted, limited and cast."""
    scale, zero = _scale_and_zero(builder, node)
    kind = builder.constant(node, 2).dtype if has_input(node, 2) else np.dtype(np.uint8)
    limits = np.iinfo(kind)
    x = tf.round(tf.cast(builder.value(node, 0), tf.float32) / scale) + zero
    return tf.cast(tf.clip_by_value(x, limits.min, limits.max), kind)


def _dequantize(builder: Builder, node: Node) -> Any:
    scale, zero = _scale_and_zero(builder, node)
    return (tf.cast(builder.value(node, 0), tf.float32) - zero) * scale


def _dynamic_quantize(builder: Builder, node: Node) -> Any:
    """Build DynamicQuantizeLinear: scale and zero point from the smallest and largest value."""
    x = builder.value(node, 0)
    low = tf.minimum(tf.reduce_min(x), 0.0)
    scale = (tf.maximum(tf.reduce_max(x), 0.0) - low) / 255.0
    zero = tf.round(tf.clip_by_value(-low / scale, 0.0, 255.0))
    y = tf.clip_by_value(tf.round(x / scale) + zero, 0.0, 255.0)
    return tf.cast(y, tf.uint8), scale, tf.cast(zero, tf.uint8)


def _usual(**usual: float) -> Build:
    """Build an activation that TensorFlow only has with default constants."""

    def make(builder: Builder, node: Node) -> Any:
        for name, value in usual.items():
            if not np.isclose(node.attributes.get(name, value), value):
                raise refusal(node, f"{name}={node.attributes[name]}")
        return _activation(builder, node)

    return make


_OPERATORS: Mapping[str, Build] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    **dict.fromkeys(
        ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), pool
    ),
    **dict.fromkeys(("Gemm", "MatMul"), _matrix_product),
    "FusedMatMul": _product,
    **dict.fromkeys(("Relu", "Tanh", "Sigmoid", "Softplus", "HardSwish", "Softsign"), _activation),
    **dict.fromkeys(("Gelu", "FastGelu", "BiasGelu"), _gelu),
    **dict.fromkeys(("Silu", "Swish", "QuickGelu"), _swish),
    "LeakyRelu": _with_constants(functions.leaky_relu, alpha=0.01),
    "HardSigmoid": _with_constants(functions.hard_sigmoid, alpha=0.2, beta=0.5),
    "Elu": _usual(alpha=1.0),
    "Celu": _usual(alpha=1.0),
    "Selu": _usual(alpha=1.67326324, gamma=1.05070102),
    "ThresholdedRelu": _with_constants(functions.thresholded_relu, alpha=1.0),
    "Clip": _clip,
    **{
        op: _with_constants(function)
        for op, function in {
            "Abs": tf.abs, "Ceil": tf.math.ceil, "Cos": tf.cos, "Erf": tf.math.erf, "Exp": tf.exp,
            "Floor": tf.floor, "IsNaN": tf.math.is_nan, "Log": tf.math.log, "Neg": tf.negative,
            "Not": tf.logical_not, "Reciprocal": tf.math.reciprocal, "Round": tf.round,
            "Sign": tf.sign, "Sin": tf.sin, "Sqrt": tf.sqrt,
        }.items()
    },
    **{
        op: _binary(function)
        for op, function in {
            "Add": tf.add, "Sum": tf.add, "Sub": tf.subtract, "Mul": tf.multiply,
            "Div": _divided, "Max": tf.maximum, "Min": tf.minimum,
            "Pow": lambda x, y: tf.pow(x, tf.cast(y, x.dtype)),
            "And": tf.logical_and, "Or": tf.logical_or, "Xor": tf.math.logical_xor,
            "Equal": tf.equal, "Greater": tf.greater, "GreaterOrEqual": tf.greater_equal,
            "Less": tf.less, "LessOrEqual": tf.less_equal, "PRelu": _prelu,
        }.items()
    },
    "Mod": _mod,
    "Dropout": _dropout,
    "Where": _where,
    "Cast": _cast,
    "Concat": _concat,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _view),
    "Transpose": _transpose,
    "BatchNormalization": functions.batch_norm,
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
         "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), functions.layer_norm
    ),
    "InstanceNormalization": functions.instance_norm,
    "LRN": functions.lrn,
    **{
        f"Reduce{name}": _reduce(function)
        for name, function in {
            "Mean": tf.reduce_mean, "Sum": tf.reduce_sum, "Max": tf.reduce_max,
            "Min": tf.reduce_min, "Prod": tf.reduce_prod, "LogSumExp": tf.reduce_logsumexp,
            "SumSquare": lambda x, *along, **keep: tf.reduce_sum(tf.square(x), *along, **keep),
            "L1": lambda x, *along, **keep: tf.reduce_sum(tf.abs(x), *along, **keep),
            "L2": lambda x, *along, **keep: tf.sqrt(tf.reduce_sum(tf.square(x), *along, **keep)),
            "LogSum": lambda x, *along, **keep: tf.math.log(tf.reduce_sum(x, *along, **keep)),
        }.items()
    },
    "ArgMax": _arg(tf.argmax),
    "ArgMin": _arg(tf.argmin),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _depth_to_space),
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    **dict.fromkeys(("ScatterND", "ScatterElements"), _scatter),
    "Tile": lambda builder, node: tf.tile(builder.value(node, 0), builder.constant(node, 1)),
    "Expand": lambda builder, node: tf.broadcast_to(
        builder.value(node, 0), builder.output_shape(node)
    ),
    "Einsum": _einsum,
    "TopK": _top_k,
    "CumSum": _cumulate,
    "Attention": attention,
    "MultiHeadAttention": multi_head_attention,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
}  # fmt: skip
