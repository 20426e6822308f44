"""The contract of a predictor: fit, predict, export, load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from resperf.errors import BundleError, TrainingError
from resperf.features import Array, Columns

Progress = Callable[[int, int, float], None]
"""Called after each epoch: (epochs done, epochs in all, validation MAPE as a fraction)."""

Rows = tuple[Columns, Array]
"""Columns of layers, and the times of these layers in ms."""


@dataclass(frozen=True)
class Lesson:
    """What `Predictor.fit` was given, checked: its parameters say what each is."""

    columns: Columns
    times_ms: Array
    validation: Rows
    seed: int
    weights: Array | None
    progress: Progress | None


class Predictor(ABC):
    """Predicts the time of layers of one kind.

    The constructor stores settings, `fit` returns self, learned values end in ``_``. What `load`
    returns predicts with numpy and onnxruntime alone.

    Parameters
    ----------
    kind : str
        Layer kind.
    epochs : int, optional
        Passes over the training rows; the method's own choice unless given. Methods that are
        not trained in passes ignore it.
    """

    method: ClassVar[str]
    """Name on the command line and in a bundle."""
    notes_: tuple[str, ...] = ()
    """What the user should know about what was learnt; set by `fit`."""

    def __init__(self, kind: str, *, epochs: int | None = None) -> None:
        if epochs is not None and epochs < 1:
            raise TrainingError(f"epochs={epochs} must be at least 1")
        self.kind = kind
        self.epochs = epochs

    def fit(
        self,
        columns: Columns,
        times_ms: Array,
        *,
        validation: Rows,
        seed: int,
        weights: Array | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from layers and their times.

        Parameters
        ----------
        columns : mapping of str to array (rows,)
            As `resperf.features.columns_of` returns them.
        times_ms : array (rows,)
            Above zero.
        validation : (columns, times)
            Rows that choose the best epoch, never learnt from.
        seed : int
            Decides everything random.
        weights : array (rows,), optional
            How much each row counts.
        progress : callable, optional
            Told after each epoch.

        Raises
        ------
        TrainingError
            If nothing can be learnt from the rows.
        MissingExtraError
            If a library that the method trains with is not installed.
        """
        check_rows(self.kind, columns, times_ms)
        check_rows(self.kind, *validation, at_least=1)
        self._learn(Lesson(columns, times_ms, validation, seed, weights, progress))
        return self

    @abstractmethod
    def _learn(self, lesson: Lesson) -> None:
        """Set everything that `predict` and `export` need; the rows have been checked."""

    @abstractmethod
    def predict(self, columns: Columns) -> Array:
        """Return the time of each layer in ms, shape (rows,)."""

    @abstractmethod
    def export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write ``STEM.onnx`` where the method has a network; return the rest as plain JSON values.

        The values name the file, if any, under ``"network"``.
        """

    @classmethod
    @abstractmethod
    def load(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """Make a predictor from what `export` returned and wrote; it cannot be fitted again.

        Raises
        ------
        BundleError
            If values are missing or do not fit.
        """


def check_rows(kind: str, columns: Columns, times_ms: Array, *, at_least: int = 8) -> None:
    """Refuse rows that nothing can be learnt from.

    Raises
    ------
    TrainingError
        If rows are too few, or a time is not finite and above zero.
    """
    if len(times_ms) < at_least:
        raise TrainingError(
            f"{kind}: {len(times_ms)} rows to learn from, at least {at_least} are needed; "
            "measure more layers with: resperf bench"
        )
    lengths = {len(column) for column in columns.values()} | {len(times_ms)}
    if len(lengths) != 1:
        raise TrainingError(f"{kind}: columns and times have different lengths {sorted(lengths)}")
    bad = np.flatnonzero(~(np.isfinite(times_ms) & (times_ms > 0)))
    if len(bad):
        raise TrainingError(
            f"{kind}: the time of row {bad[0]} is {times_ms[bad[0]]} ms; it must be above 0"
        )


def stored(values: Mapping[str, Any], name: str) -> Any:
    """Return a stored value, or say that the bundle lacks it.

    Raises
    ------
    BundleError
        If there is no such value.
    """
    if name not in values:
        raise BundleError(f"the bundle lacks {name!r} of a predictor; train it again")
    return values[name]
