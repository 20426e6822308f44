"""Training of networks in Keras: the only place where Keras is used, loaded when a fit begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from resperf.errors import TrainingError, require
from resperf.features import Array
from resperf.predictors._architecture import Architecture, Weights
from resperf.predictors._base import Progress

_ROWS_AT_ONCE = 8192


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
        Weights are averaged over about this share of all steps (at most 1,000 steps); 0 for the
        last weights alone.
    epsilon : float
        Of Adam.
    patience : float
        Share of the epochs without a better one after which training stops early.
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
    patience: float = 0.5


@dataclass(frozen=True)
class Fitted:
    """A trained network: its best weights, and how it came to them."""

    weights: Weights
    run: Callable[[Array], Array]
    best_epoch: int
    best_error: float


def keras() -> Any:
    """Import Keras on TensorFlow, quietly.

    Raises
    ------
    MissingExtraError
        If Keras or TensorFlow is not installed.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    require("tensorflow", "train")
    return require("keras", "train")


def maple_loss(measured: Any, predicted: Any) -> Any:
    """Equation 7 of ResPerfNet on tensors, without its L2 term; see `metrics.maple`."""
    ops = keras().ops
    logs = ops.log1p(measured)
    return ops.mean(ops.abs(ops.log1p(predicted) - logs) / logs, axis=-1)


def _member(x: Any, architecture: Architecture, member: int, penalty: float) -> Any:
    k = keras()
    layers, decay = k.layers, k.regularizers.L2(penalty) if penalty else None

    def conv(x: Any, filters: int, kernel: int, name: str) -> Any:
        return layers.Conv1D(filters, kernel, padding="same", activation="relu", name=name)(x)

    if architecture.stages:
        x = layers.Reshape((architecture.features, 1), name=f"{member}_as_sequence")(x)
        for place, stage in enumerate(architecture.stages):
            x = conv(x, stage.filters, stage.kernel, f"{member}_head_{place}")
            for block in range(stage.blocks):
                name = f"{member}_block_{place}.{block}"
                inner = conv(x, stage.filters, 1, f"{name}.0")
                inner = conv(inner, stage.filters, 1, f"{name}.1")
                x = layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_sum")([inner, x]))
        x = layers.Flatten(name=f"{member}_flat")(x)
    for place, width in enumerate(architecture.dense):
        name = f"{member}_dense_{place}"
        x = layers.Dense(width, activation="relu", kernel_regularizer=decay, name=name)(x)
    if architecture.dropout:
        x = layers.Dropout(architecture.dropout, name=f"{member}_dropout")(x)
    if architecture.positive:
        return layers.Dense(1, activation="relu", use_bias=False, name=f"{member}_output")(x)
    # A start at zero is the baseline itself: training can only improve on it.
    return layers.Dense(1, kernel_initializer="zeros", name=f"{member}_output")(x)


def _model(architecture: Architecture, penalty: float) -> Any:
    k = keras()
    x = k.Input((architecture.features,), name="x")
    outputs = [_member(x, architecture, m, penalty) for m in range(architecture.members)]
    y = k.layers.Concatenate(name="y")(outputs) if len(outputs) > 1 else outputs[0]
    return k.Model(x, y)


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
    averaged = min(1000.0, max(1.0, schedule.average_share * steps))
    return k.optimizers.Adam(
        rate,
        epsilon=schedule.epsilon,
        weight_decay=schedule.weight_decay or None,
        use_ema=schedule.average_share > 0,
        ema_momentum=1 - 1 / averaged,
    )


def _weights(model: Any) -> dict[str, npt.NDArray[np.float32]]:
    """Copy all weights; names are those that `_architecture` writes into ONNX."""
    copies = {}
    for layer in model.layers:
        for variable in layer.weights:
            member, _, name = layer.name.partition("_")
            copies[f"{member}/{name}/{variable.name}"] = np.array(variable.numpy(), np.float32)
    return copies


def _run(model: Any, rows: Array) -> Array:
    """Return answers (rows, members); called directly, for `predict` compiles for each shape."""
    parts = [
        model(rows[at : at + _ROWS_AT_ONCE].astype(np.float32), training=False).numpy()
        for at in range(0, len(rows), _ROWS_AT_ONCE)
    ]
    return np.concatenate(parts).astype(np.float64)


def _best_keeper(score: Callable[[], float], schedule: Schedule, progress: Progress | None) -> Any:
    """Make a callback that keeps the weights of the best epoch and stops when none gets better."""

    class KeepBest(keras().callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.best_error, self.best_epoch = np.inf, 0
            self.weights: list[Any] = []

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            error = score()
            if error < self.best_error:
                self.best_error, self.best_epoch = error, epoch + 1
                self.weights = self.model.get_weights()
            if progress is not None:
                progress(epoch + 1, schedule.epochs, error)
            if epoch + 1 - self.best_epoch > schedule.patience * schedule.epochs:
                self.model.stop_training = True

    return KeepBest()


def fit_network(
    architecture: Architecture,
    schedule: Schedule,
    rows: Array,
    targets: Array,
    *,
    validation_rows: Array,
    validation_error: Callable[[Array], float],
    seed: int,
    weights: Array | None = None,
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
        Judges the answers for `validation_rows`, shape (validation rows, members): a fraction.
    seed : int
    weights : array (rows,), optional
    progress : callable, optional

    Raises
    ------
    MissingExtraError
        If Keras or TensorFlow is not installed.
    TrainingError
        If no epoch gives finite numbers.
    """
    k = keras()
    k.utils.set_random_seed(seed)
    require("tensorflow", "train").config.experimental.enable_op_determinism()
    k.backend.clear_session()
    model = _model(architecture, schedule.penalty)
    batch = min(schedule.batch, len(rows))
    steps = schedule.epochs * -(-len(rows) // batch)
    model.compile(
        optimizer=_optimizer(schedule, steps),
        loss={"absolute": "mean_absolute_error", "maple": maple_loss}[schedule.loss],
        jit_compile=False,
        steps_per_execution=max(1, min(16, len(rows) // batch)),
    )
    keeper = _best_keeper(
        lambda: validation_error(_run(model, validation_rows)), schedule, progress
    )
    averaging = [k.callbacks.SwapEMAWeights(swap_on_epoch=True)] if schedule.average_share else []
    model.fit(
        rows.astype(np.float32),
        np.repeat(targets.astype(np.float32)[:, None], architecture.members, axis=1),
        sample_weight=weights,
        batch_size=batch,
        epochs=schedule.epochs,
        verbose=0,
        callbacks=[*averaging, keeper],
    )
    if not keeper.weights:
        raise TrainingError("training gave no finite prediction; check the times of the dataset")
    model.set_weights(keeper.weights)
    return Fitted(
        weights=_weights(model),
        run=partial(_run, model),
        best_epoch=keeper.best_epoch,
        best_error=float(keeper.best_error),
    )
