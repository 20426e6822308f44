"""The papers' networks: trained in Keras, which is only imported when a fit begins, and as ONNX.

The ONNX graph is written here, node by node, instead of converted. The same weights then always
give the same bytes, and no converter has to be installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from resperf.errors import TrainingError, require, silent_stderr
from resperf.features import Array
from resperf.predictors._base import Progress
from resperf.predictors._onnx import OnnxGraph

Rows = npt.NDArray[np.floating[Any]]
"""Scaled features (rows, features); networks take them as float32."""

KERAS_BACKEND = "tensorflow"
_ROWS_AT_ONCE = 8192
"""Rows in one run of a network, which bounds its memory."""
_DEAD_EPOCHS = 10
"""After so many epochs of zeros only, an output with ReLU does not recover."""
EPOCHS = 200
_BATCH = 128
"""Rows per step; an incomplete last batch is dropped."""
_RATE = 0.1
"""Learning rate at the start; it is halved after each fifth of the epochs."""
_EPSILON = 0.1
"""Adam's epsilon."""
_PENALTY = 1e-6
"""Factor of the squared weights of fully connected layers in the loss."""
_DROPOUT = 0.2
"""Share dropped before the output while training."""


Weights = Mapping[str, npt.NDArray[np.float32]]
"""Name such as ``"dense_1/kernel"`` -> values in Keras' order of axes, as half precision has
them."""


@dataclass(frozen=True)
class Stage:
    """A head convolution along the features, then residual blocks of two convolutions each."""

    filters: int
    kernel: int
    blocks: int


@dataclass(frozen=True)
class Architecture:
    """A network with one output per row: ReLU and no bias, as in the papers.

    Attributes
    ----------
    features : int
        Length of a row.
    stages : tuple of Stage
        Convolutions over the features as a sequence; none for a plain perceptron.
    dense : tuple of int
        Widths of the fully connected layers, ReLU after each.
    """

    features: int
    stages: tuple[Stage, ...]
    dense: tuple[int, ...]


@dataclass(frozen=True)
class Fitted:
    """A trained network: its best weights, and their epoch.

    It is `dead` if training ended as all outputs had become 0 and stayed so.
    """

    weights: Weights
    run: Callable[[Rows], Array]
    best_epoch: int
    dead: bool


@cache
def keras() -> Any:
    """Import Keras on TensorFlow, quietly.

    Raises
    ------
    MissingExtraError
        If Keras or TensorFlow is not installed.
    """
    os.environ.setdefault("KERAS_BACKEND", KERAS_BACKEND)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with silent_stderr():
        # The first operation starts TensorFlow's runtime, which logs to stderr again.
        tensorflow = require("tensorflow", "keras")
        tensorflow.constant(0.0)
        # It would warn of repeated compilations for several predictors in a row.
        tensorflow.get_logger().setLevel("ERROR")
        module = require("keras", "keras")
    if module.backend.backend() != KERAS_BACKEND:
        raise TrainingError(
            f"Keras runs on {module.backend.backend()}; unset KERAS_BACKEND to train on "
            f"{KERAS_BACKEND}"
        )
    return module


def maple_loss(measured: Any, predicted: Any) -> Any:
    """Mean absolute percentage logarithmic error (ResPerfNet equation 7 without its L2 term).

    |ln(1 + y) - ln(1 + t)| / ln(1 + t), t measured and y predicted; one per row.
    """
    ops = keras().ops
    logs = ops.log1p(measured)
    return ops.mean(ops.abs(ops.log1p(predicted) - logs) / logs, axis=-1)


def _model(architecture: Architecture) -> Any:
    """Build the network; its output has shape (rows, 1)."""
    k = keras()
    rows = k.Input((architecture.features,), name="x")
    x = _trunk(rows, architecture) if architecture.stages else rows
    for index, width in enumerate(architecture.dense):
        x = k.layers.Dense(
            width, activation="relu", kernel_regularizer=k.regularizers.L2(_PENALTY),
            name=f"dense_{index}",
        )(x)  # fmt: skip
    x = k.layers.Dropout(_DROPOUT, name="dropout")(x)
    return k.Model(rows, k.layers.Dense(1, "relu", use_bias=False, name="output")(x))


def _trunk(rows: Any, architecture: Architecture) -> Any:
    """Add the convolutions and residual blocks over the sequence of features."""
    layers = keras().layers

    def conv(x: Any, filters: int, kernel: int, name: str) -> Any:
        return layers.Conv1D(filters, kernel, padding="same", activation="relu", name=name)(x)

    x = layers.Reshape((architecture.features, 1), name="as_sequence")(rows)
    for index, stage in enumerate(architecture.stages):
        x = conv(x, stage.filters, stage.kernel, f"head_{index}")
        for block in range(stage.blocks):
            name = f"block_{index}_{block}"
            inner = conv(x, stage.filters, 1, f"{name}_0")
            inner = conv(inner, stage.filters, 1, f"{name}_1")
            x = layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_sum")([inner, x]))
    return layers.Flatten(name="flat")(x)


def _optimizer(steps: int) -> Any:
    k = keras()
    rate = k.optimizers.schedules.ExponentialDecay(_RATE, max(1, steps // 5), 0.5, staircase=True)
    return k.optimizers.Adam(rate, epsilon=_EPSILON)


def _batches(order: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Split an order of rows into batches, shape (steps, batch)."""
    steps, batch = max(1, len(order) // _BATCH), min(_BATCH, len(order))
    return order[: steps * batch].reshape(steps, batch)


def _weights(model: Any) -> dict[str, npt.NDArray[np.float32]]:
    """Copy all weights under the names that `_architecture` writes into ONNX."""
    return {
        f"{layer.name}/{variable.name}": np.array(variable.numpy(), np.float32)
        for layer in model.layers
        for variable in layer.weights
    }


def _run(model: Any, rows: Rows) -> Array:
    """Return outputs (rows, 1); not by `predict`, which compiles for each shape."""
    parts = [
        model(rows[at : at + _ROWS_AT_ONCE].astype(np.float32), training=False).numpy()
        for at in range(0, len(rows), _ROWS_AT_ONCE)
    ]
    return np.concatenate(parts).astype(np.float64)


def _epoch_function(model: Any, optimizer: Any, data: tuple[Any, Any]) -> Callable[[Any], None]:
    """Return a compiled pass over batches of row indices, shape (steps, batch).

    There is one call per epoch, not per step, since for such small networks Python would take most
    of the time.
    """
    tf = require("tensorflow", "keras")
    x, y = data
    # AutoGraph is only for the loop over batches; the loss consists of tensor operations already.
    loss_of = tf.autograph.experimental.do_not_convert(maple_loss)

    @tf.function(jit_compile=False, autograph=True)  # type: ignore[untyped-decorator]
    def run(order: Any) -> None:
        for rows in order:
            with tf.GradientTape() as tape:
                answers = model(tf.gather(x, rows), training=True)
                losses = loss_of(tf.gather(y, rows), answers)
                loss = tf.reduce_mean(losses) + sum(model.losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return cast(Callable[[Any], None], run)


def fit_network(
    architecture: Architecture,
    rows: Rows,
    targets: Array,
    *,
    epochs: int,
    validation_rows: Rows,
    validation_error: Callable[[Array], float],
    seed: int,
    progress: Progress | None = None,
) -> Fitted:
    """Train a network by Adam on the MAPLE loss, and return its best epoch.

    Parameters
    ----------
    architecture : Architecture
    rows : array (rows, features)
    targets : array (rows,)
    epochs : int
        Passes over the rows.
    validation_rows : array (validation rows, features)
    validation_error : callable
        Error of the outputs for `validation_rows`, shape (validation rows, 1): a fraction.
    seed : int
    progress : callable, optional

    Raises
    ------
    MissingExtraError
        If Keras or TensorFlow is not installed.
    TrainingError
        If no epoch gives finite numbers.
    """
    k, tf = keras(), require("tensorflow", "keras")
    k.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()
    k.backend.clear_session()
    model = _model(architecture)
    random = np.random.default_rng(seed)
    optimizer = _optimizer(epochs * max(1, len(rows) // _BATCH))
    optimizer.build(model.trainable_variables)
    data = tf.constant(rows, tf.float32), tf.constant(targets[:, None], tf.float32)
    run_epoch = _epoch_function(model, optimizer, data)
    judge = tf.function(lambda x: model(x, training=False), jit_compile=False)
    judged = tf.constant(validation_rows, tf.float32)
    best_error, best_epoch, best_weights, dead_epochs = np.inf, 0, [], 0
    for epoch in range(1, epochs + 1):
        run_epoch(tf.constant(_batches(random.permutation(len(rows)))))
        answers = judge(judged).numpy().astype(np.float64)
        error = validation_error(answers)
        if error < best_error:
            best_error, best_epoch, best_weights = error, epoch, model.get_weights()
        if progress is not None:
            progress(epoch, epochs, error)
        dead_epochs = 0 if answers.any() else dead_epochs + 1
        if dead_epochs == _DEAD_EPOCHS:
            break
    if not best_weights:
        raise TrainingError("training gave no finite prediction; check the times of the dataset")
    # As files hold them: half as large as in float32.
    model.set_weights([values.astype(np.float16).astype(np.float32) for values in best_weights])
    return Fitted(_weights(model), partial(_run, model), best_epoch, dead_epochs == _DEAD_EPOCHS)


class _Graph(OnnxGraph):
    """The ONNX graph of a network, with its weights."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.weights = weights

    def conv(self, x: str, name: str) -> str:
        """Add a SAME convolution; Keras' kernel is (length, in, out), ONNX's (out, in, length)."""
        kernel = self.weights[f"{name}/kernel"].transpose(2, 1, 0)
        before = (kernel.shape[2] - 1) // 2
        pads = [before, kernel.shape[2] - 1 - before]
        inputs = [
            x,
            self.half(f"{name}/kernel", kernel),
            self.half(f"{name}/bias", self.weights[f"{name}/bias"]),
        ]
        return self.node("Conv", inputs, name, pads=pads)

    def dense(self, x: str, name: str) -> str:
        inputs = [x, self.half(f"{name}/kernel", self.weights[f"{name}/kernel"])]
        if f"{name}/bias" in self.weights:
            inputs.append(self.half(f"{name}/bias", self.weights[f"{name}/bias"]))
        return self.node("Gemm", inputs, name)

    def relu(self, x: str, name: str = "") -> str:
        return self.node("Relu", [x], name or f"{x}/relu")


def _write_trunk(graph: _Graph, architecture: Architecture) -> str:
    """Write the convolutions; returns the name of their flattened output."""
    shape = graph.constant("sequence", np.array([-1, 1, architecture.features]))
    x = graph.node("Reshape", ["x", shape], "as_sequence")
    for index, stage in enumerate(architecture.stages):
        x = graph.relu(graph.conv(x, f"head_{index}"))
        for block in range(stage.blocks):
            name = f"block_{index}_{block}"
            inner = graph.relu(graph.conv(x, f"{name}_0"))
            inner = graph.relu(graph.conv(inner, f"{name}_1"))
            x = graph.relu(graph.node("Add", [inner, x], f"{name}_sum"))
    # Keras flattens (sequence, filters), ONNX holds (filters, sequence).
    x = graph.node("Transpose", [x], "keras_order", perm=[0, 2, 1])
    width = architecture.features * architecture.stages[-1].filters
    return graph.node("Reshape", [x, graph.constant("flat", np.array([-1, width]))], "as_row")


def onnx_bytes(architecture: Architecture, weights: Weights) -> bytes:
    """Return an ONNX file with input ``x`` (rows, features) and output ``y`` (rows, 1).

    Parameters
    ----------
    architecture : Architecture
    weights : mapping of str to array
        As `fit_network` returns them.
    """
    graph = _Graph(weights)
    x = _write_trunk(graph, architecture) if architecture.stages else "x"
    for index in range(len(architecture.dense)):
        x = graph.relu(graph.dense(x, f"dense_{index}"))
    graph.relu(graph.dense(x, "output"), "y")
    return graph.file(architecture.features)
