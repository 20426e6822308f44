"""What a training of layers or networks has learnt so far, and what its bundle says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from resperf._version import __version__
from resperf.dataset import DatasetInfo
from resperf.errors import TrainingError
from resperf.features import Array, take
from resperf.measurement import layer_kind
from resperf.platform import Platform
from resperf.predictors import Examples, LayerPredictor, Predictor, predictor_class
from resperf.predictors.intervals import intervals_of_kinds
from resperf.predictors.metrics import errors
from resperf.quantities import QUANTITIES
from resperf.settings import Setting
from resperf.splits import SPLIT_SEED, pack_keys
from resperf.training.progress import TrainingProgress

_EXPORT_TOLERANCE = 1e-4
_COMPARED_ROWS = 1000

Judged = tuple[str, str, Array, Array]
"""Kind (or ``"network"``), quantity, and its measured and predicted values, each (rows,)."""


class CannotLearnError(TrainingError):
    """A method cannot learn one quantity of one kind."""


@dataclass
class Learning:
    """A training, and what it has learnt so far.

    Attributes
    ----------
    info : DatasetInfo
    folder : Path
        Of the bundle.
    method : str
    seed : int
    settings : mapping
        Of the method's predictors.
    progress : callable or None
    own_times_only : bool
        Whether no method learns copies to and from the device.
    predictors : mapping of str to mapping of str to Predictor
        Kind (or ``"network"``) -> quantity -> what is loaded from the bundle.
    stored : mapping of str to mapping of str to mapping
        The same, as the bundle's manifest has it.
    notes : list of str
    rows : mapping
        Number of rows of each part of the split, by kind.
    seen : list of str
        Keys of the rows that were used.
    judged : mapping of str to list of Judged
        ``validation`` and ``test``.
    where, how : sequence
        Platforms and settings of the bundle.
    """

    info: DatasetInfo
    folder: Path
    method: str
    seed: int
    settings: Mapping[str, Any]
    progress: TrainingProgress | None
    own_times_only: bool = False
    predictors: dict[str, dict[str, Any]] = field(default_factory=dict)
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rows: dict[str, Any] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    judged: dict[str, list[Judged]] = field(default_factory=dict)
    where: Sequence[Platform] = ()
    how: Sequence[Setting] = ()

    def learn(
        self, kind: str, train: Examples, validation: Examples, method: str | None = None
    ) -> None:
        """Fit and export a predictor, and keep it as it will be loaded.

        Parameters
        ----------
        kind : str
            As written, or ``"network"``.
        train, validation : Examples
            Without validation rows, the training rows are used.
        method : str, optional
            Another one than the training's, with its own settings.

        Raises
        ------
        CannotLearnError
            If the method cannot learn from these rows.
        LayerError
            If the method does not support the kind.
        TrainingError
            If what is loaded predicts something else.
        """
        name, settings = (self.method, self.settings) if method is None else (method, {})
        predictor = predictor_class(name)(layer_kind(kind), **settings)
        report = partial(self.progress, kind, train.quantity) if self.progress is not None else None
        try:
            predictor.fit(
                train,
                validation=validation if len(validation) else train,
                seed=self.seed,
                progress=report,
            )
        except TrainingError as error:
            raise CannotLearnError(str(error)) from error
        self.notes += [note for note in predictor.notes_ if note not in self.notes]
        values = predictor.export(self.folder, f"{kind}-{QUANTITIES[train.quantity].stem}")
        loaded = type(predictor).load(values, self.folder)
        places = np.linspace(0, len(train) - 1, min(len(train), _COMPARED_ROWS)).astype(int)
        some = train.select(places)
        trained, now = values_of(predictor, some), values_of(loaded, some)
        off = np.max(np.abs(now - trained) / np.maximum(np.abs(trained), 1e-3))
        if not off <= _EXPORT_TOLERANCE:
            raise TrainingError(
                f"{kind} {train.quantity}: the stored predictor differs from the "
                f"trained one by {off:.1e}; this is a defect of the method {name}"
            )
        self.predictors.setdefault(kind, {})[train.quantity] = loaded
        self.stored.setdefault(kind, {})[train.quantity] = {"method": name, **values}

    def part(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a bundle's manifest, with what only layers or only networks have."""
        return {
            "device": self.info.platform.device,
            "framework": self.info.setting.framework,
            "costs": dict(self.info.machine_costs),
            # Layers say of how many copies of them ran together; of networks it is assumed.
            "copies": {},
            "method": self.method,
            "predictors": self.stored,
            "errors": {split: _errors_of(judged) for split, judged in self.judged.items()},
            "intervals": _intervals_of(self.judged["validation"]),
            "training": {
                "resperf": __version__,
                "seed": self.seed,
                "split_seed": SPLIT_SEED,
                "trees": None,
                **self.settings,
                "rows": self.rows,
                "notes": self.notes,
                "seen": pack_keys(self.seen),
            },
            **entries,
        }


def values_of(predictor: Predictor, examples: Examples) -> Array:
    """Predict each example under its own setting on its own platform, shape (rows,)."""
    name = examples.quantity
    if isinstance(predictor, LayerPredictor):
        if not predictor.many_settings:
            return predictor.values(examples.columns)
        values = np.empty(len(examples))
        for setting, platform, places in examples.by_setting():
            some = take(examples.columns, places)
            values[places] = predictor.predict(some, setting, platform)[name].values
        return values
    return np.array(
        [
            predictor.predict([network], setting.without_batch(), platform)[name].values[0]
            for network, setting, platform in zip(
                examples.networks, examples.settings, examples.platforms, strict=True
            )
        ],
        dtype=float,
    )


def _errors_of(judged: Iterable[Judged]) -> dict[str, dict[str, Any]]:
    """Return errors as JSON values: kind -> quantity -> errors."""
    result: dict[str, dict[str, Any]] = {}
    for kind, quantity, measured, predicted in judged:
        result.setdefault(kind, {})[quantity] = errors(measured, predicted).to_json()
    return result


def _intervals_of(judged: Iterable[Judged]) -> dict[str, dict[str, Any]]:
    """Calibrate intervals as JSON values: kind -> quantity -> intervals."""
    quantities: dict[str, dict[str, tuple[Array, Array]]] = {}
    for kind, quantity, measured, predicted in judged:
        quantities.setdefault(quantity, {})[kind] = measured, predicted
    result: dict[str, dict[str, Any]] = {}
    for quantity, kinds in quantities.items():
        for kind, intervals in intervals_of_kinds(kinds).items():
            result.setdefault(kind, {})[quantity] = intervals.to_json()
    return result
