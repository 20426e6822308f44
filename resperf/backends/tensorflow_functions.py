"""Activations as TensorFlow's graph optimiser fuses them, and normalisations.

TensorFlow has one operation for the normalisation of images in training only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tensorflow as tf

from resperf.backends.tensorflow_builder import Builder, refusal
from resperf.network import Node


def batch_norm(builder: Builder, node: Node) -> Any:
    """Build a BatchNormalization: nothing where a convolution contains it."""
    if node.name in builder.folded:
        return builder.value(node, 0)
    if builder.training:
        return _trained_batch_norm(builder, node)
    scale, shift = builder.scale_and_shift(node)
    rank = builder.rank(node, 0)
    if rank > 2 and not builder.reads_images(node):
        scale, shift = (array.reshape(-1, *(1,) * (rank - 2)) for array in (scale, shift))
    return builder.value(node, 0) * tf.constant(scale) + tf.constant(shift)


def _trained_batch_norm(builder: Builder, node: Node) -> Any:
    """Normalise by the batch's statistics, and move the running ones towards them."""
    x, rank = builder.value(node, 0), builder.rank(node, 0)
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    share = 1.0 - float(node.attributes.get("momentum", 0.9))
    scale, shift = (builder.value(node, position) for position in (1, 2))
    running = builder.statistics[node.name]
    if rank == 4 and builder.reads_images(node):
        # One operation, which computes statistics in float32.
        y, *moved = tf.compat.v1.nn.fused_batch_norm(
            x,
            *(tf.cast(tensor, tf.float32) for tensor in (scale, shift, *running)),
            epsilon=epsilon,
            exponential_avg_factor=share,
        )
    else:
        channels = [1] * rank
        channels[builder.axis(node, 1)] = -1
        axes = [axis for axis, size in enumerate(channels) if size == 1]
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        scale, shift = (tf.reshape(tensor, channels) for tensor in (scale, shift))
        y = tf.nn.batch_normalization(x, mean, variance, shift, scale, epsilon)
        moved = [
            (1.0 - share) * old + share * tf.reshape(new, (-1,))
            for old, new in zip(running, (mean, variance), strict=True)
        ]
    for variable, value in zip(running, moved, strict=True):
        variable.assign(tf.cast(value, variable.dtype))
    return y


def _normalised(x: Any, axes: list[int], epsilon: float) -> Any:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + tf.cast(epsilon, x.dtype))


def _rms(x: Any, axes: list[int], epsilon: float) -> Any:
    square = tf.reduce_mean(tf.square(x), axes, keepdims=True)
    return x * tf.math.rsqrt(square + tf.cast(epsilon, x.dtype))


def layer_norm(builder: Builder, node: Node) -> Any:
    """Build a LayerNormalization or RMSNormalization; ONNX Runtime's may add two tensors first."""
    by_mean_square = "RMS" in node.op or "Simplified" in node.op
    adds = node.op.startswith("Skip")
    x, rank = builder.value(node, 0), builder.rank(node, 0)
    if adds:
        bias = builder.optional(node, 3 if by_mean_square else 4)
        x = x + builder.value(node, 1)
        x = x if bias is None else x + bias
    axes = list(range(int(node.attributes.get("axis", -1)) % rank, rank))
    normalised = _rms if by_mean_square else _normalised
    y = normalised(x, axes, float(node.attributes.get("epsilon", 1e-5)))
    y = y * builder.value(node, 1 + adds)
    shift = None if by_mean_square else builder.optional(node, 2 + adds)
    return y if shift is None else y + shift


def instance_norm(builder: Builder, node: Node) -> Any:
    """Build an InstanceNormalization of lines, images or volumes."""
    rank = builder.rank(node, 0)
    axes = [builder.axis(node, axis) for axis in range(2, rank)]
    y = _normalised(builder.value(node, 0), axes, float(node.attributes.get("epsilon", 1e-5)))
    channels = [1] * rank
    channels[builder.axis(node, 1)] = -1
    scale, shift = (tf.reshape(builder.value(node, position), channels) for position in (1, 2))
    return y * scale + shift


def lrn(builder: Builder, node: Node) -> Any:
    """Build a local response normalisation of images."""
    size = int(node.attributes["size"])
    if size % 2 == 0 or builder.rank(node, 0) != 4:
        raise refusal(node, f"size={size} over a tensor of rank {builder.rank(node, 0)}")
    return tf.nn.local_response_normalization(
        builder.value(node, 0),
        depth_radius=size // 2,
        bias=float(node.attributes.get("bias", 1.0)),
        alpha=float(node.attributes.get("alpha", 1e-4)) / size,
        beta=float(node.attributes.get("beta", 0.75)),
    )


def leaky_relu(x: Any, alpha: float = 0.01) -> Any:
    """Return x where it is positive, alpha x elsewhere."""
    return tf.raw_ops.LeakyRelu(features=x, alpha=alpha)


def hard_sigmoid(x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    """Return alpha x + beta, clipped to [0, 1]."""
    return tf.clip_by_value(x * alpha + beta, 0.0, 1.0)


def thresholded_relu(x: Any, alpha: float = 1.0) -> Any:
    """Return x where it is above alpha, 0 elsewhere."""
    return tf.where(x > alpha, x, tf.zeros_like(x))


def hard_swish(x: Any) -> Any:
    """Return x times its hard sigmoid of slope 1/6."""
    return x * hard_sigmoid(x, 1 / 6)


ACTIVATION_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": lambda x: tf.raw_ops.Relu(features=x),
    "tanh": lambda x: tf.raw_ops.Tanh(x=x),
    "sigmoid": lambda x: tf.raw_ops.Sigmoid(x=x),
    "leaky_relu": leaky_relu,
    "clip": lambda x: tf.raw_ops.Relu6(features=x),
    "hard_sigmoid": hard_sigmoid,
    "elu": lambda x: tf.raw_ops.Elu(features=x),
    "softplus": lambda x: tf.raw_ops.Softplus(features=x),
    "gelu": tf.nn.gelu,
    "gelu_tanh": partial(tf.nn.gelu, approximate=True),
    "silu": tf.nn.silu,
    "hard_swish": hard_swish,
    "selu": lambda x: tf.raw_ops.Selu(features=x),
    "softsign": lambda x: tf.raw_ops.Softsign(features=x),
    "thresholded_relu": thresholded_relu,
    "celu": lambda x: tf.raw_ops.Elu(features=x),
}
"""Activation of a layer -> its TensorFlow operations, with the usual constants."""
