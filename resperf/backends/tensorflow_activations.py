"""Activations as TensorFlow operations, as its graph optimiser fuses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tensorflow as tf


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
