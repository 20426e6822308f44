"""Training of a network on graphs in Keras, which is only imported when a fit begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resperf.errors import TrainingError, require
from resperf.features import Array
from resperf.predictors._base import Progress
from resperf.predictors._fitting import keras
from resperf.predictors._graph_network import BATCH, Architecture, Batch, Weights, in_batches


@dataclass(frozen=True)
class Learning:
    """Graphs to learn from, and those that choose the best epoch.

    Attributes
    ----------
    graphs, validation : sequence of Batch
        One graph each.
    targets : array (graphs,)
    error : callable
        Answers for the validation graphs, (validation graphs,) -> error, a fraction.
    rate : float
        Learning rate of Adam.
    seed : int
    progress : callable, optional
    """

    graphs: Sequence[Batch]
    targets: Array
    validation: Sequence[Batch]
    error: Callable[[Array], float]
    rate: float
    seed: int
    progress: Progress | None


@dataclass(frozen=True)
class Fitted:
    """Weights of the best epoch, and its validation error."""

    weights: Weights
    error: float
    epoch: int


class Trainer:
    """A network in training: `step`, of targets and a batch, reduces the mean squared error.

    Raises
    ------
    MissingExtraError
        If Keras or TensorFlow is not installed.
    """

    def __init__(self, architecture: Architecture, rate: float, seed: int) -> None:
        k, tf = keras(), require("tensorflow", "keras")
        self.variables = {name: k.Variable(x) for name, x in architecture.weights(seed).items()}
        used = list(self.variables.values())
        optimizer = k.optimizers.Adam(rate)
        optimizer.build(used)
        number, index = tf.float32, tf.TensorSpec((None,), tf.int64)
        nodes = tf.TensorSpec((None, architecture.nodes), number)
        edges = tf.TensorSpec((None, architecture.edges), number)
        column = tf.TensorSpec((None, 1), number)
        batch = Batch(nodes, edges, index, index, index, column)

        def answers(*parts: Any) -> Any:
            return architecture.answers(k.ops, self.variables, Batch(*parts))

        def step(targets: Any, *parts: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(answers(*parts) - targets))
            optimizer.apply_gradients(zip(tape.gradient(loss, used), used, strict=True))

        # Shapes are open: one compilation serves all batches.
        self._answers = tf.function(answers, input_signature=batch, autograph=False)
        self.step = tf.function(step, input_signature=(column, *batch), autograph=False)

    def run(self, batches: Sequence[Batch]) -> Array:
        """Return the answers for graphs, (graphs,)."""
        parts = [self._answers(*batch).numpy()[:, 0] for batch in batches]
        return np.concatenate(parts).astype(np.float64)

    def weights(self) -> Weights:
        """Copy the weights."""
        return {name: np.array(variable.numpy()) for name, variable in self.variables.items()}


def fit_graphs(architecture: Architecture, learning: Learning, epochs: int) -> Fitted:
    """Train a network, and return its best epoch.

    Parameters
    ----------
    architecture : Architecture
    learning : Learning
    epochs : int
        Passes over the graphs.

    Raises
    ------
    MissingExtraError
        If Keras or TensorFlow is not installed.
    TrainingError
        If no epoch gives finite numbers.
    """
    trainer = Trainer(architecture, learning.rate, learning.seed)
    random = np.random.default_rng(learning.seed)
    targets, validation = (
        learning.targets[:, None].astype(np.float32),
        in_batches(learning.validation),
    )
    best: Fitted | None = None
    for epoch in range(1, epochs + 1):
        order = random.permutation(len(targets))
        for rows in np.array_split(order, range(BATCH, len(order), BATCH)):
            trainer.step(targets[rows], *Batch.joined([learning.graphs[row] for row in rows]))
        error = learning.error(trainer.run(validation))
        if np.isfinite(error) and (best is None or error < best.error):
            best = Fitted(trainer.weights(), error, epoch)
        if learning.progress is not None:
            learning.progress(epoch, epochs, error)
    if best is None:
        raise TrainingError("training gave no finite prediction; check the values of the dataset")
    return best
