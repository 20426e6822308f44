"""Training of networks in Keras, which is only imported here, when a fit begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from resperf.errors import TrainingError, require, silent_stderr
from resperf.features import Array
from resperf.predictors._architecture import Architecture, Weights, as_stored
from resperf.predictors._base import Progress

Rows = npt.NDArray[np.floating[Any]]
"""Scaled features (rows, features); networks take them as float32."""

KERAS_BACKEND = "tensorflow"
_ROWS_AT_ONCE = 8192
"""Rows in one run of a network, which bounds its memory."""
_DEAD_EPOCHS = 10
"""After so many epochs of zeros only, an output with ReLU does not recover."""


@dataclass(frozen=True)
class Schedule:
    """How a network is trained.

    Attributes
    ----------
    epochs, batch : int
        Passes over the rows, and rows per step.
    rate : float
        Learning rate: peak of ``cosine``, start of ``halving``.
    shape : {"cosine", "halving"}
        A tenth of warm-up, then a cosine down to zero; or halved five times, at equal distances.
    loss : {"absolute", "maple"}
        L1, or equation 7 of ResPerfNet.
    weight_decay : float
        Decoupled from the gradient (AdamW); 0 for none.
    penalty : float
        Factor of the squared weights of fully connected layers in the loss.
    average_share : float
        Share of all steps over which weights are averaged (at most 1,000 steps); 0 for the last
        weights.
    epsilon : float
        Adam's epsilon.
    patience : float
        Share of the epochs without improvement after which training stops.
    """

    epochs: int
    batch: int
    rate: float
    shape: Literal["cosine", "halving"]
    loss: Literal["absolute", "maple"]
    weight_decay: float = 0.0
    penalty: float = 0.0
    average_share: float = 0.0
    epsilon: float = 1e-7
    patience: float = 0.4

    def steps(self, rows: int) -> int:
        """Count the steps of an epoch; an incomplete last batch is dropped."""
        return max(1, rows // self.batch)

    def batches(self, order: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Split an order of rows into batches, shape (steps, batch)."""
        steps = self.steps(len(order))
        batch = min(self.batch, len(order))
        return order[: steps * batch].reshape(steps, batch)


@dataclass(frozen=True)
class Fitted:
    """A trained network: its best weights, and their epoch."""

    weights: Weights
    run: Callable[[Rows], Array]
    best_epoch: int


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
        tensorflow = require("tensorflow", "train")
        tensorflow.constant(0.0)
        # It would warn of repeated compilations for several predictors in a row.
        tensorflow.get_logger().setLevel("ERROR")
        module = require("keras", "train")
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


def _model(architecture: Architecture, penalty: float) -> Any:
    """Build the network; its output has shape (rows, members)."""
    k = keras()
    rows = k.Input((architecture.features,), name="x")
    x = _trunk(rows, architecture) if architecture.stages else rows
    width, members = x.shape[-1], architecture.members
    equation = "bi,mio->bmo"
    for place, next_width in enumerate(architecture.dense):
        # All members at once: one batched product is several times faster than many small ones.
        x = k.layers.EinsumDense(
            equation, (members, next_width), bias_axes="mo", activation="relu",
            kernel_initializer=_glorot(width, next_width),
            kernel_regularizer=k.regularizers.L2(penalty) if penalty else None,
            name=f"dense_{place}",
        )(x)  # fmt: skip
        width, equation = next_width, "bmi,mio->bmo"
    if architecture.dropout:
        x = k.layers.Dropout(architecture.dropout, name="dropout")(x)
    if architecture.positive:
        settings = {"activation": "relu", "kernel_initializer": _glorot(width, 1)}
    else:
        # Zero weights give the baseline itself, from which training starts.
        settings = {"bias_axes": "mo", "kernel_initializer": "zeros"}
    x = k.layers.EinsumDense(equation, (members, 1), name="output", **settings)(x)
    return k.Model(rows, k.layers.Reshape((members,), name="y")(x))


def _trunk(rows: Any, architecture: Architecture) -> Any:
    """Add the convolutions and residual blocks over the sequence of features."""
    layers = keras().layers

    def conv(x: Any, filters: int, kernel: int, name: str) -> Any:
        return layers.Conv1D(filters, kernel, padding="same", activation="relu", name=name)(x)

    x = layers.Reshape((architecture.features, 1), name="as_sequence")(rows)
    for place, stage in enumerate(architecture.stages):
        x = conv(x, stage.filters, stage.kernel, f"head_{place}")
        for block in range(stage.blocks):
            name = f"block_{place}_{block}"
            inner = conv(x, stage.filters, 1, f"{name}_0")
            inner = conv(inner, stage.filters, 1, f"{name}_1")
            x = layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_sum")([inner, x]))
    return layers.Flatten(name="flat")(x)


def _glorot(width: int, next_width: int) -> Any:
    """Return Glorot's uniform initializer of one member; Keras would count members as inputs."""
    limit = float(np.sqrt(6 / (width + next_width)))
    return keras().initializers.RandomUniform(-limit, limit)


def _optimizer(schedule: Schedule, steps: int) -> Any:
    k = keras()
    if schedule.shape == "cosine":
        warmup = max(1, steps // 10)
        rate = k.optimizers.schedules.CosineDecay(
            0.0, max(1, steps - warmup), warmup_target=schedule.rate, warmup_steps=warmup
        )
    else:
        rate = k.optimizers.schedules.ExponentialDecay(
            schedule.rate, max(1, steps // 5), 0.5, staircase=True
        )
    return k.optimizers.Adam(
        rate, epsilon=schedule.epsilon, weight_decay=schedule.weight_decay or None
    )


def _weights(model: Any) -> dict[str, npt.NDArray[np.float32]]:
    """Copy all weights, split by member, under the names that `_architecture` writes into ONNX."""
    copies: dict[str, npt.NDArray[np.float32]] = {}
    for layer in model.layers:
        for variable in layer.weights:
            values = np.array(variable.numpy(), np.float32)
            name = f"{layer.name}/{variable.name}"
            if isinstance(layer, keras().layers.EinsumDense):
                copies |= {f"{member}/{name}": part for member, part in enumerate(values)}
            else:
                copies[name] = values
    return copies


def _run(model: Any, rows: Rows) -> Array:
    """Return outputs (rows, members); not by `predict`, which compiles for each shape."""
    parts = [
        model(rows[at : at + _ROWS_AT_ONCE].astype(np.float32), training=False).numpy()
        for at in range(0, len(rows), _ROWS_AT_ONCE)
    ]
    return np.concatenate(parts).astype(np.float64)


def _epoch_function(
    model: Any, averaged: Any, optimizer: Any, schedule: Schedule, data: tuple[Any, Any]
) -> Callable[[Any], None]:
    """Return a compiled pass over batches of row indices, shape (steps, batch).

    There is one call per epoch, not per step, since for such small networks Python would take most
    of the time. Each step also updates `averaged`, a second network with averaged weights, if it is
    not `model` itself.
    """
    tf = require("tensorflow", "train")
    x, y = data
    losses_of = {"absolute": keras().losses.mean_absolute_error, "maple": maple_loss}
    # AutoGraph is only for the loop over batches; the loss consists of tensor operations already.
    loss_of = tf.autograph.experimental.do_not_convert(losses_of[schedule.loss])
    steps = schedule.average_share * schedule.epochs * schedule.steps(len(x))
    momentum = 1 - 1 / min(1000.0, max(1.0, steps))
    pairs = [] if averaged is model else list(zip(averaged.weights, model.weights, strict=True))

    @tf.function(jit_compile=False, autograph=True)  # type: ignore[untyped-decorator]
    def run(order: Any) -> None:
        for rows in order:
            with tf.GradientTape() as tape:
                answers = model(tf.gather(x, rows), training=True)
                losses = loss_of(tf.gather(y, rows), answers)
                loss = tf.reduce_mean(losses) + sum(model.losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            for mean, value in pairs:
                mean.assign(momentum * mean + (1 - momentum) * value)

    return cast(Callable[[Any], None], run)


def fit_network(
    architecture: Architecture,
    schedule: Schedule,
    rows: Rows,
    targets: Array,
    *,
    validation_rows: Rows,
    validation_error: Callable[[Array], float],
    seed: int,
    progress: Progress | None = None,
) -> Fitted:
    """Train a network and return its best epoch.

    Parameters
    ----------
    architecture : Architecture
    schedule : Schedule
    rows : array (rows, features)
    targets : array (rows,)
    validation_rows : array (validation rows, features)
    validation_error : callable
        Error of the outputs for `validation_rows`, shape (validation rows, members): a fraction.
    seed : int
    progress : callable, optional

    Raises
    ------
    MissingExtraError
        If Keras or TensorFlow is not installed.
    TrainingError
        If no epoch gives finite numbers.
    """
    k, tf = keras(), require("tensorflow", "train")
    k.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()
    k.backend.clear_session()
    averaged = model = _model(architecture, schedule.penalty)
    if schedule.average_share:
        averaged = _model(architecture, schedule.penalty)
        averaged.set_weights(model.get_weights())
    optimizer = _optimizer(schedule, schedule.epochs * schedule.steps(len(rows)))
    optimizer.build(model.trainable_variables)
    data = tf.constant(rows, tf.float32), tf.constant(targets[:, None], tf.float32)
    run_epoch = _epoch_function(model, averaged, optimizer, schedule, data)
    judge = tf.function(lambda x: averaged(x, training=False), jit_compile=False)
    judged = tf.constant(validation_rows, tf.float32)
    random = np.random.default_rng(seed)
    best_error, best_epoch, best_weights, dead_epochs = np.inf, 0, [], 0
    for epoch in range(1, schedule.epochs + 1):
        run_epoch(tf.constant(schedule.batches(random.permutation(len(rows)))))
        answers = judge(judged).numpy().astype(np.float64)
        error = validation_error(answers)
        if error < best_error:
            best_error, best_epoch, best_weights = error, epoch, averaged.get_weights()
        if progress is not None:
            progress(epoch, schedule.epochs, error)
        dead_epochs = 0 if answers.any() else dead_epochs + 1
        if epoch - best_epoch > schedule.patience * schedule.epochs or dead_epochs == _DEAD_EPOCHS:
            break
    if not best_weights:
        raise TrainingError("training gave no finite prediction; check the times of the dataset")
    averaged.set_weights([as_stored(values) for values in best_weights])
    return Fitted(_weights(averaged), partial(_run, averaged), best_epoch)
