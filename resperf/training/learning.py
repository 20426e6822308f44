"""What a training of layers or networks has learnt so far, and what its bundle says of it.

Its rows may be of one platform, or of several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from resperf._version import __version__
from resperf.dataset import DatasetInfo, KindTable, checksum
from resperf.errors import TrainingError
from resperf.features import Array, take
from resperf.heartbeat import Steps
from resperf.measurement import layer_kind
from resperf.platform import Platform
from resperf.predictors import Examples, LayerPredictor, Predictor, methods_of, predictor_class
from resperf.predictors.intervals import intervals_of_kinds
from resperf.predictors.metrics import errors
from resperf.quantities import QUANTITIES, Level
from resperf.settings import OPTIMIZER, PLAIN_PRECISIONS, Setting
from resperf.splits import SPLIT_SEED, pack_keys
from resperf.training.rows import LayerRows

TrainingProgress = Callable[[str, str, int, int, float], None]
"""Called with (kind, phase, epochs done, total epochs, validation MAPE as a fraction)."""
_EXPORT_TOLERANCE = 1e-4
_COMPARED_ROWS = 1000

Judged = tuple[str, str, Array, Array]
"""Kind (or ``"network"``), quantity, and its measured and predicted values, each (rows,)."""


@contextmanager
def progress_bar() -> Iterator[TrainingProgress]:
    """Yield a callback that shows how far a training is, on stderr."""
    with closing(Steps("epochs", doing="training")) as steps:
        yield lambda kind, phase, done, epochs, error: steps.show(
            done, epochs, f"{kind} {phase}", f"validation {error:.1%}"
        )


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
            # Not what tells machines apart, such as clocks: these are no costs in ms.
            "costs": {name: ms for name, ms in self.info.machine_costs.items() if "_ms" in name},
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
    predicted = [
        predictor.predict([network], setting.without_batch(), platform)[name].values[0]
        for network, (setting, platform) in zip(examples.networks, examples.per_row(), strict=True)
    ]
    return np.array(predicted, dtype=float)


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


def described_dataset(info: DatasetInfo, dataset: Path) -> dict[str, Any]:
    """Describe a dataset for a bundle's provenance."""
    return {
        "name": dataset.name,
        "checksum": checksum(dataset),
        "campaign": info.campaign.get("name", ""),
        "seed": info.seed,
        "created": info.created,
        "versions": dict(info.versions),
        "phases": list(info.quantities),
        "merged": [dict(merged) for merged in info.merged],
        "source": {
            name: info.source[name]
            for name in ("format", "description", "citation", "files", "call_ms")
            if name in info.source
        },
    }


_Value = TypeVar("_Value", Setting, Platform)


def of_main_platform(
    tables: Mapping[str, KindTable],
) -> tuple[dict[str, KindTable], Platform | None, dict[str, int]]:
    """Return only the rows of the platform that most measured rows are of.

    Returns
    -------
    tables : dict of str to KindTable
    platform : Platform or None
        None if it is not known.
    others : dict of str to int
        Device -> number of rows that are left out.
    """
    count: Counter[Platform] = Counter()
    for table in tables.values():
        for index, rows in Counter(table.machine[table.ok].tolist()).items():
            count.update({table.platforms[index]: rows} if table.platforms else {})
    if not count:
        return dict(tables), None, {}
    (main, _), *rest = count.most_common()
    others: Counter[str] = Counter()
    for platform, rows in rest:
        others[platform.device] += rows
    chosen = {
        name: table.select(np.array([other == main for other in table.platforms])[table.machine])
        for name, table in tables.items()
    }
    return {k: table for k, table in chosen.items() if len(table)}, main, dict(others)


def on_platforms(
    learning: Learning, tables: Mapping[str, KindTable], device: str | None
) -> dict[str, KindTable]:
    """Return the rows that the method learns from: of all platforms, or of that of most rows."""
    of_most, main, others = of_main_platform(tables)
    if main is None:
        return dict(tables)
    if device is not None and others:
        raise TrainingError(
            f"the rows are of {', '.join((main.device, *others))}, which one name cannot stand "
            "for; leave out device"
        )
    named = main if device is None else replace(main, device=device)
    learning.info = replace(learning.info, platform=named)
    if not others:
        return {
            kind: replace(
                table, platforms=tuple(named if one == main else one for one in table.platforms)
            )
            for kind, table in of_most.items()
        }
    if predictor_class(learning.method).many_settings:
        return dict(tables)
    several = [name for name in methods_of(Level.LAYER) if predictor_class(name).many_settings]
    there = ", ".join(f"{rows} of {other}" for other, rows in others.items())
    learning.notes.append(
        f"{learning.method} learns one device, {main.device}: rows of others are left out, {there} "
        f"({', '.join(several)} learns several)"
    )
    return of_most


def set_places(learning: Learning, train: Mapping[str, LayerRows]) -> None:
    """Set how and where the training rows were measured.

    The most frequent come first, but settings of plain precision before others: the first one
    answers where none is asked for.
    """
    settings = _by_rows((rows.settings, len(rows)) for rows in train.values())
    platforms = _by_rows((rows.platforms, len(rows)) for rows in train.values())
    if predictor_class(learning.method).many_settings:
        settings.sort(key=lambda setting: setting.precision not in PLAIN_PRECISIONS)
    else:
        learning.notes += [
            f"{kind}: measured otherwise than most layers ({'; '.join(differences)})"
            for kind, rows in train.items()
            if (differences := rows.settings[0].differences(settings[0]))
        ]
        settings = settings[:1]
    info = learning.info = replace(learning.info, platform=platforms[0])
    optimizers = {str(name) for r in train.values() for name in set(r.columns.get(OPTIMIZER, ()))}
    learning.how = [*settings, *(settings[0].with_optimizer(name) for name in sorted(optimizers))]
    learning.where = platforms
    if len(platforms) == 1:
        learning.where = [info.platform.with_machine_checks(info.machine_costs)]


def _by_rows(parts: Iterable[tuple[Sequence[_Value], int]]) -> list[_Value]:
    """Return settings or platforms, one for all rows of a part or one per row, by their rows."""
    count: Counter[_Value] = Counter()
    for values, rows in parts:
        # Comparing identities is faster than comparing values.
        by_id = {id(value): value for value in values}
        for identity, times in Counter(map(id, values)).items():
            count[by_id[identity]] += rows if len(values) == 1 else times
    return [value for value, _ in count.most_common()]
