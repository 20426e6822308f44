"""Base class of ResPerfNet and PerfNet: the paper's features, transforms, loss and training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from resperf.errors import LayerError, TrainingError
from resperf.features import Array, Columns
from resperf.features.transforms import BoxCox, TargetScale, ZScore, transform_from_json
from resperf.layers import ACTIVATIONS
from resperf.predictors import _fitting
from resperf.predictors._architecture import Architecture, Weights, onnx_bytes
from resperf.predictors._base import LayerPredictor, Task, stored
from resperf.predictors._onnx import OnnxNetwork
from resperf.predictors.metrics import mape
from resperf.settings import OPTIMIZER, OPTIMIZERS

_STARTS = 10


def _padded(columns: Columns) -> Array:
    """Return Table 3's padding: 0 VALID, 1 SAME; any padding counts as SAME."""
    pads = ("pad_top", "pad_left", "pad_bottom", "pad_right")
    return np.asarray(np.any([columns[pad] > 0 for pad in pads], axis=0), dtype=float)


def _number(field: str, choices: Sequence[str]) -> Callable[[Columns], Array]:
    """Return the number of a choice in Table 3: of activations, 0 is none, 1 ReLU, and so on."""

    def number(columns: Columns) -> Array:
        values = np.asarray(columns[field])
        numbered = [place * (values == name) for place, name in enumerate(choices)]
        return np.asarray(np.sum(numbered, axis=0), dtype=float)

    return number


def _field(*names: str) -> Callable[[Columns], Array]:
    """Return the product of fields."""

    def product(columns: Columns) -> Array:
        return np.asarray(np.prod([columns[name] for name in names], axis=0), dtype=float)

    return product


_activation = _number("activation", ACTIVATIONS)
# In our own order, from 1: the paper has no training steps.
_optimizer = _number("optimizer", ("", *OPTIMIZERS))
_MATRIX = {"matrix size": _field("height", "width")}
_FEATURES: Mapping[str, Mapping[str, Callable[[Columns], Array]]] = {
    "conv": {
        "batch size": _field("batch"),
        **_MATRIX,
        "kernel size": _field("kernel_height", "kernel_width"),
        "channel in": _field("channels_in"),
        "channel out": _field("channels_out"),
        "strides": _field("stride_height"),
        "padding": _padded,
        "activate function": _activation,
        "bias": _field("bias"),
    },
    "pool": {
        "batch size": _field("batch"),
        **_MATRIX,
        "pooling size": _field("kernel_height", "kernel_width"),
        "channel in": _field("channels_in"),
        "strides": _field("stride_height"),
        "padding": _padded,
    },
    "dense": {
        "batch size": _field("batch"),
        "dimension input": _field("features_in"),
        "dimension output": _field("features_out"),
        "activate function": _activation,
        "bias": _field("bias"),
    },
    # Not in the paper, but needed between its layers.
    "activation": {
        "batch size": _field("batch"),
        "values": _field("values"),
        "activate function": _activation,
    },
    "reorder": {
        "batch size": _field("batch"),
        **_MATRIX,
        "channel in": _field("channels_in"),
    },
}
"""Table 3: kind -> feature -> its function of the fields."""
PAPER_KINDS = frozenset(_FEATURES)

_BOX_COX = {"conv": ("matrix size", "kernel size"), "pool": ("matrix size",)}
"""Appendix D: features with a Box-Cox transform, in inference."""


class PaperPredictor(LayerPredictor):
    """A network on the paper's features: Box-Cox, z-score, times 10, MAPLE, Adam.

    Where the text is not specific, the authors' code is followed: sizes in elements, L2 of 1e-5 on
    fully connected layers times 0.1, Adam's epsilon of 0.1, rate 0.1 halved every fifth of 200
    epochs, batches of 128.

    Attributes
    ----------
    box_cox_ : BoxCox
        For the features of appendix D that vary.
    z_score_ : ZScore
        For all features.
    target_scale_ : TargetScale
    best_epoch_ : int
    """

    kinds = PAPER_KINDS

    @abstractmethod
    def architecture(self, features: int) -> Architecture:
        """Return the method's network for rows of this length."""

    def _learn(self, task: Task) -> None:
        """Fit the transforms, then train the network as the paper's algorithm 1 says."""
        columns = task.examples.columns
        self.notes_ = unseen_notes(self.kind, columns)
        names, matrix = paper_features(self.kind, columns)
        self._names = names
        varying = [
            names.index(name)
            for name in (() if OPTIMIZER in columns else _BOX_COX.get(self.kind, ()))
            if np.ptp(matrix[:, names.index(name)]) > 0
        ]
        chosen = tuple(names[place] for place in varying)
        # A feature that never varies has no lambda; it becomes 0 in the z-score anyway.
        self.box_cox_ = (
            BoxCox.fit(matrix[:, varying], chosen) if chosen else BoxCox(columns=(), lambdas=())
        )
        self.z_score_ = ZScore.fit(self._box_coxed(matrix), names)
        self.target_scale_ = TargetScale(10.0)
        self.architecture_ = self.architecture(len(names))
        fitted = self._train(task)
        self.best_epoch_ = fitted.best_epoch
        self._weights: Weights = fitted.weights
        self._run: Callable[[Array], Array] = fitted.run

    def _train(self, task: Task) -> _fitting.Fitted:
        examples, validation = task.examples, task.validation
        rows = self._rows(examples.columns)
        schedule = _fitting.Schedule(
            epochs=self.epochs or 200,
            batch=128,
            rate=0.1,
            shape="halving",
            loss="maple",
            penalty=1e-6,
            epsilon=0.1,
            patience=1.0,
        )
        for start in range(_STARTS):
            fitted = _fitting.fit_network(
                self.architecture_,
                schedule,
                rows,
                self.target_scale_.apply(examples.values),
                validation_rows=self._rows(validation.columns),
                validation_error=lambda y: mape(validation.values, self._times(y)),
                seed=task.seed + 1000 * start,
                weights=examples.weights,
                progress=task.progress,
            )
            # An output with ReLU and no bias may be dead from the start: it always predicts 0.
            if np.any(fitted.run(rows[:256]) > 0):
                return fitted
        raise TrainingError(
            f"{self.kind}: {self.method} predicted 0 ms after {_STARTS} starts; "
            "try another --seed or --method residual"
        )

    def _box_coxed(self, matrix: Array) -> Array:
        indices = [self._names.index(name) for name in self.box_cox_.columns]
        result = matrix.copy()
        if indices:
            result[:, indices] = self.box_cox_.apply(matrix[:, indices])
        return result

    def _rows(self, columns: Columns) -> Array:
        return self.z_score_.apply(self._box_coxed(paper_features(self.kind, columns)[1]))

    def _times(self, answers: Array) -> Array:
        return self.target_scale_.invert(answers[:, 0])

    def values(self, columns: Columns) -> Array:
        """Return the learnt quantity of each layer."""
        return self._times(self._run(self._rows(columns)))

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the network; return the steps before and after."""
        name = f"{stem}.onnx"
        (folder / name).write_bytes(onnx_bytes(self.architecture_, self._weights))
        return {
            "network": name,
            "features": list(self._names),
            "transforms": [self.box_cox_.to_json(), self.z_score_.to_json()],
            "target": self.target_scale_.to_json(),
            "best_epoch": self.best_epoch_,
        }

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the steps before and after, and the network."""
        self._names = tuple(stored(values, "features"))
        self.box_cox_, self.z_score_ = map(transform_from_json, stored(values, "transforms"))
        self.target_scale_ = transform_from_json(stored(values, "target"))
        self.best_epoch_ = stored(values, "best_epoch")
        self._run = OnnxNetwork(folder / stored(values, "network"))


def paper_features(kind: str, columns: Columns) -> tuple[tuple[str, ...], Array]:
    """Return the features of the paper's Table 3 and a matrix of shape (rows, features).

    Matrix, kernel and pooling size are in elements (height x width). Table 3 has one stride (here
    that of the height) and neither groups nor dilations: layers that differ only in the stride of
    the width, groups or dilations have equal features (`unseen_notes`).

    Raises
    ------
    LayerError
        If the paper's methods do not support the kind.
    """
    if kind not in _FEATURES:
        raise LayerError(f"the paper's methods know {', '.join(_FEATURES)}, not {kind!r}")
    of_steps = {OPTIMIZER: _optimizer} if OPTIMIZER in columns else {}
    named = {name: make(columns) for name, make in {**_FEATURES[kind], **of_steps}.items()}
    return tuple(named), np.column_stack(list(named.values()))


def unseen_notes(kind: str, columns: Columns) -> tuple[str, ...]:
    """Count the rows with properties that the paper's features ignore; empty if there are none.

    Parameters
    ----------
    kind : str
    columns : mapping of str to array (rows,)
    """
    rows = len(next(iter(columns.values())))
    found = {
        word: int(np.sum(is_unseen(columns)))
        for word, (field, is_unseen) in _UNSEEN.items()
        if field in columns
    }
    named = ", ".join(f"{count} with {word}" for word, count in found.items() if count)
    if not named:
        return ()
    return (
        f"{kind}: the paper's features ignore groups, dilations and a different stride of the "
        f"width, so that of {rows} training rows these are learnt as if they had none: {named}; "
        "methods with other features (ensemble, boosted, residual) distinguish them",
    )


_UNSEEN: Mapping[str, tuple[str, Callable[[Columns], Any]]] = {
    "groups": ("groups", lambda columns: columns["groups"] > 1),
    "dilations": (
        "dilation_height",
        lambda columns: (columns["dilation_height"] > 1) | (columns["dilation_width"] > 1),
    ),
    "unequal strides": (
        "stride_height",
        lambda columns: columns["stride_height"] != columns["stride_width"],
    ),
}
"""Properties that Table 3 ignores: a field of the kinds that have it, and the rows affected."""
