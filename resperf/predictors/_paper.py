"""The paper's features, and the base classes of methods on them and of ResPerfNet and PerfNet."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from resperf.errors import LayerError, TrainingError
from resperf.features import Array, Columns
from resperf.features.transforms import BoxCox, ZScore, transform_from_json
from resperf.layers import ACTIVATIONS
from resperf.predictors import _fitting
from resperf.predictors._base import LayerPredictor, Task, stored
from resperf.predictors._onnx import OnnxNetwork
from resperf.predictors.metrics import mape
from resperf.settings import OPTIMIZER, OPTIMIZERS

Inputs = npt.NDArray[np.float32]
"""Transformed features (rows, features) in float32, as ONNX Runtime reads them."""

Learnt = tuple[Callable[[Inputs], Array], bytes]
"""A function from rows to outputs (rows, 1), and the ONNX file of it."""

_STARTS = 10
"""Seeds that are tried: an output with ReLU and no bias may be dead from the start."""
_STARTS_PER_SCALE = 3
"""Starts that die before times are scaled by ten times more: the loss is relative, so that targets
far below 1, those of layers of microseconds, pull every output to 0, which is never left again."""


def _padded(columns: Columns) -> Array:
    """Return Table 3's padding: 0 VALID, 1 SAME; any padding counts as SAME."""
    pads = ("pad_top", "pad_left", "pad_bottom", "pad_right")
    return np.asarray(np.any([columns[pad] > 0 for pad in pads], axis=0), dtype=float)


def _number(field: str, choices: Sequence[str]) -> Callable[[Columns], Array]:
    """Return the number of a choice in Table 3: of activations, 0 is none, 1 ReLU, and so on."""
    return lambda columns: np.sum(
        [index * (columns[field] == name) for index, name in enumerate(choices)],
        axis=0,
        dtype=float,
    )


def _field(*names: str) -> Callable[[Columns], Array]:
    """Return the product of fields."""
    return lambda columns: np.prod([columns[name] for name in names], axis=0, dtype=float)


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
    "reorder": {"batch size": _field("batch"), **_MATRIX, "channel in": _field("channels_in")},
}
"""Table 3: kind -> feature -> its function of the fields."""
PAPER_KINDS = frozenset(_FEATURES)

_BOX_COX = {"conv": ("matrix size", "kernel size"), "pool": ("matrix size",)}
"""Appendix D: features with a Box-Cox transform, in inference."""


class PaperMethod(LayerPredictor):
    """A method on the features of the paper's Table 3, z-scored.

    Attributes
    ----------
    features_ : tuple of str
    transforms_ : tuple of BoxCox or ZScore
        What is done to the features, one after the other.
    """

    kinds = PAPER_KINDS
    rows_at_once: ClassVar[int] = 8192
    """Rows in one run of the ONNX file."""

    @abstractmethod
    def _fit_rows(self, rows: Inputs, task: Task) -> Learnt:
        """Learn the quantity from transformed features (rows, features)."""

    @abstractmethod
    def _times(self, answers: Array) -> Array:
        """Return the times that outputs (rows, 1) stand for, shape (rows,)."""

    def _learn(self, task: Task) -> None:
        """Fit the transforms, then the method on what they give."""
        columns = task.examples.columns
        self.notes_ = unseen_notes(self.kind, columns)
        self.features_, matrix = paper_features(self.kind, columns)
        self.transforms_ = self._first_transforms(matrix, columns)
        self.transforms_ += (ZScore.fit(self._transformed(matrix), self.features_),)
        self._run, self._content = self._fit_rows(self._rows(columns), task)

    def _first_transforms(self, matrix: Array, columns: Columns) -> tuple[BoxCox | ZScore, ...]:
        """Fit what comes before the z-score."""
        return ()

    def _transformed(self, matrix: Array) -> Array:
        result = matrix.copy()
        for transform in self.transforms_:
            places = [self.features_.index(name) for name in transform.columns]
            result[:, places] = transform.apply(result[:, places])
        return result

    def _rows(self, columns: Columns) -> Inputs:
        return self._transformed(paper_features(self.kind, columns)[1]).astype(np.float32)

    def values(self, columns: Columns) -> Array:
        """Return the learnt quantity of each layer."""
        return self._times(self._run(self._rows(columns)))

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write what was learnt; return the names of the features and their transforms."""
        name = f"{stem}.onnx"
        (folder / name).write_bytes(self._content)
        return {
            "network": name,
            "features": list(self.features_),
            "transforms": [transform.to_json() for transform in self.transforms_],
        }

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the names of the features, their transforms, and what was learnt."""
        self.features_ = tuple(stored(values, "features", list))
        self.transforms_ = tuple(map(transform_from_json, stored(values, "transforms")))
        self._run = OnnxNetwork(folder / stored(values, "network"), self.rows_at_once)


class PaperPredictor(PaperMethod):
    """A network on the paper's features: Box-Cox, z-score, times 10, MAPLE, Adam.

    Where the text is not specific, the authors' code is followed: sizes in elements, L2 of 1e-5 on
    fully connected layers times 0.1, Adam's epsilon of 0.1, rate 0.1 halved every fifth of 200
    epochs, batches of 128.

    Attributes
    ----------
    best_epoch_ : int
    target_scale_ : float
        The network learns times in ms times this.
    """

    all_phases = True

    @abstractmethod
    def architecture(self, features: int) -> _fitting.Architecture:
        """Return the method's network for rows of this length."""

    def _first_transforms(self, matrix: Array, columns: Columns) -> tuple[BoxCox | ZScore, ...]:
        """Fit Box-Cox for the features of appendix D that vary.

        A feature that never varies has no lambda; it becomes 0 in the z-score anyway.
        """
        varying = tuple(
            name
            for name in (() if OPTIMIZER in columns else _BOX_COX.get(self.kind, ()))
            if np.ptp(matrix[:, self.features_.index(name)]) > 0
        )
        places = [self.features_.index(name) for name in varying]
        return (BoxCox.fit(matrix[:, places], varying) if varying else BoxCox((), ()),)

    def _fit_rows(self, rows: Inputs, task: Task) -> Learnt:
        """Train the network as the paper's algorithm 1 says."""
        validation = task.validation
        architecture = self.architecture(len(self.features_))
        for start in range(_STARTS):
            self.target_scale_ = 10.0 ** (1 + start // _STARTS_PER_SCALE)
            fitted = _fitting.fit_network(
                architecture,
                rows,
                self.target_scale_ * task.examples.values,
                epochs=self.epochs or _fitting.EPOCHS,
                validation_rows=self._rows(validation.columns),
                validation_error=lambda y: mape(validation.values, self._times(y)),
                seed=task.seed + 1000 * start,
                progress=task.progress,
            )
            if not fitted.dead and np.any(fitted.run(rows[:256]) > 0):
                self.best_epoch_ = fitted.best_epoch
                return fitted.run, _fitting.onnx_bytes(architecture, fitted.weights)
        raise TrainingError(
            f"{self.kind}: {self.method} predicted 0 ms after {_STARTS} starts; "
            "try another --seed or --method boosted"
        )

    def _times(self, answers: Array) -> Array:
        return np.asarray(answers[:, 0] / self.target_scale_)

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the network; return the steps before and after."""
        own = {"best_epoch": self.best_epoch_, "target_scale": self.target_scale_}
        return {**super()._export(folder, stem), **own}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read the steps before and after, and the network."""
        super()._load(values, folder)
        self.best_epoch_ = stored(values, "best_epoch")
        self.target_scale_ = stored(values, "target_scale")


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
    counts = {
        word: int(np.sum(is_unseen(columns)))
        for word, (field, is_unseen) in _UNSEEN.items()
        if field in columns
    }
    named = ", ".join(f"{count} with {word}" for word, count in counts.items() if count)
    if not named:
        return ()
    return (
        f"{kind}: the paper's features ignore groups, dilations and a different stride of the "
        f"width, so that of {rows} training rows these are learnt as if they had none: {named}; "
        "methods with other features (boosted, roofline) distinguish them",
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
