"""Numbers that describe the training step of a layer: those of its forward pass, and the rest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from resperf.features import conv, dense
from resperf.features.columns import Array, Columns

KEPT_NUMBERS: Mapping[str, int] = {
    "sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 2, "adam": 2, "adadelta": 2,
}  # fmt: skip
"""Optimizer -> numbers that it keeps per weight and reads and writes in every step."""


def conv_quantities(columns: Columns) -> dict[str, Array]:
    """Return physical quantities of training steps of convolutions, each of shape (rows,).

    To those of the forward pass come ``flops_data`` and ``flops_weights``, the work of the
    gradients of the input and of the weights in whole tiles of matrix kernels, and
    ``kept_numbers`` per weight. The gradient of the weights is a product of k rows and n columns
    over all m output pixels.
    """
    q = conv.quantities(columns)
    inputs = q["channels_in"] / q["groups"]
    weights_flops = 2 * _whole(q["k"], 128) * _whole(q["n"], 32) * q["m"] * q["groups"]
    return {
        **q,
        "flops_data": q["flops"] * _whole(inputs, 32) / inputs,
        "flops_weights": weights_flops,
        "kept_numbers": _kept_numbers(columns),
    }


def dense_quantities(columns: Columns) -> dict[str, Array]:
    """Return physical quantities of training steps of matrix products, each of shape (rows,).

    The names are those of `conv_quantities`.
    """
    q = dense.quantities(columns)
    batch, k, n = q["batch"], q["features_in"], q["features_out"]
    return {
        **q,
        "flops_data": 2 * _whole(batch, 32) * n * _whole(k, 128),
        "flops_weights": 2 * _whole(k, 128) * _whole(n, 32) * batch,
        "kept_numbers": _kept_numbers(columns),
    }


def _whole(length: Array, tile: int) -> Array:
    """Round up to whole tiles."""
    return np.asarray(np.ceil(length / tile) * tile)


def _kept_numbers(columns: Columns) -> Array:
    optimizers = np.asarray(columns["optimizer"])
    kept = np.zeros(len(optimizers))
    for name, count in KEPT_NUMBERS.items():
        kept[optimizers == name] = count
    return kept


PLAIN = ("kept_numbers",)
"""Features taken as they are, beside those of the forward pass."""

LOG2 = ("flops_data", "flops_weights")
"""Features taken as log2, beside those of the forward pass."""
