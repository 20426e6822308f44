"""`roofline`: terms relative to the device's peaks, for several devices and those never measured.

A roofline (Williams et al. 2009) bounds a time by work over peak. Here a time is a sum of such
ideal times (`resperf.predictors.terms.card`), each times a coefficient of at least zero. What is
known of a device decides where its coefficients are from: with many rows, its own; with few, those
of all devices together times one factor, shrunk towards 1; without any, those of all devices.

So do intervals: those of a session are from its own validation rows, those of another session from
how far off the largest one of each device is on the others, and those of a device without rows from
how far off each known device is when it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt

from resperf.devices import FP32, canonical_device, device_class
from resperf.features import Array, Columns, quantities, take
from resperf.layers import kind_of
from resperf.layers.columns import is_among
from resperf.predictors._base import Estimate, Examples, Predicted, Task, stored
from resperf.predictors._card_costs import (
    Costs,
    Part,
    Places,
    Session,
    factors_of,
    left_out,
    near,
    pooled,
)
from resperf.predictors.boosted import Boosted, CorrectionTarget, Described, informative
from resperf.predictors.intervals import Intervals, bounds_of, intervals_of_kinds
from resperf.predictors.metrics import mape
from resperf.predictors.terms.card import card_terms, is_aligned, product_of
from resperf.predictors.terms.work import choices_of
from resperf.settings import CONTAINS, HOST_DISPATCH, MEASURED_BY, PEAKS_OF, SESSION
from resperf.units import US_PER_MS

if TYPE_CHECKING:
    from resperf.network import Network
    from resperf.platform import Platform
    from resperf.settings import Setting

_Key = TypeVar("_Key")

_FEWEST_FOR_TREES = 200
"""Rows of a session below which it gets no trees: they would fit its noise."""
_SMALLEST_RATIO = 1e-6
"""A smaller share of a term counts as this one, since trees read its logarithm."""
_LEAST_ALIKE = 0.7
"""Share of the shortest measured kernel below which a product is unlike what was measured."""
_ALIGNMENTS = (4, 8, 32)
"""Divisors of sizes that are inputs of the trees: kernels load several values at once."""
_UNLIKE_FUNCTIONS = frozenset({"norm"})
"""Kinds whose functions are unlike kernels: a batch normalisation reduces nothing."""
_WORK = ("flops", "moved_bytes")
_WINDOW = ("kernel_height", "kernel_width", "stride_height", "stride_width", "groups")
"""Quantities that bound what was learnt: of all kinds, and of those with windows."""


def _number_of(dtype: str, setting: Setting | None) -> str:
    if dtype in PEAKS_OF and dtype != "float32":
        return PEAKS_OF[dtype][0]
    return "tf32" if setting is not None and setting.precision == "tf32" else FP32


def _of_row(given: Sequence[Any], row: int) -> Any:
    """Return what belongs to a row, of one per row, one for all rows, or none."""
    return None if not given else given[row if len(given) > 1 else 0]


def _session_name(setting: Setting | None) -> str:
    """Return the published session; rows measured here are of one session."""
    options = {} if setting is None else setting.options
    return ", ".join(options[name] for name in (MEASURED_BY, SESSION) if name in options)


def _sessions(
    columns: Columns, settings: Sequence[Setting], platforms: Sequence[Platform]
) -> dict[Session, Places]:
    """Return the rows of each session, in a stable order."""
    rows = len(next(iter(columns.values())))
    dtypes = np.asarray(columns["dtype"]).astype(str) if "dtype" in columns else ["float32"] * rows

    sessions: dict[tuple[Any, ...], Session] = {}
    places: dict[Session, list[int]] = {}
    for row in range(rows):
        setting, platform = _of_row(settings, row), _of_row(platforms, row)
        key = (id(setting), id(platform), dtypes[row])
        if key not in sessions:
            device = "" if platform is None else canonical_device(platform.device)
            sessions[key] = Session(
                device, _session_name(setting), _number_of(str(dtypes[row]), setting)
            )
        places.setdefault(sessions[key], []).append(row)
    return {session: np.array(indices) for session, indices in places.items()}


class Roofline(Boosted):
    """Predicts a sum of terms relative to the device; where it was measured, times trees.

    Rows of several devices and sessions may be mixed; `Examples.platforms` and `settings` say
    which. A device that no row is of is predicted by its facts and the pooled coefficients alone:
    what trees learn does harm there.

    Attributes
    ----------
    priors_ : mapping of (str, str) to Costs
        (class of devices, type of values) -> pooled coefficients.
    sessions_ : mapping of Session to Costs
    factors_ : mapping of str to float
        Choice of the kind's factored field -> factor of all terms but the launch.
    features_ : tuple of str
        Inputs of the trees.
    intervals_ : mapping of Session to Intervals
        From validation rows; sessions with too few have none.
    between_ : mapping of (str, str) to Intervals
        As `priors_`, of sessions for which another one of their device stands in.
    left_out_ : mapping of (str, str) to Intervals
        As `priors_`, of devices without rows; sorts with one or two devices have none.
    """

    method = "roofline"
    many_settings = True
    unseen_devices = True
    fallbacks: ClassVar[Mapping[str, str]] = {"amp": "fp16"}

    def _learn(self, task: Task) -> None:
        """Fit pooled coefficients, then those of each session, then trees on what is left."""
        examples = task.examples
        sessions, validated = (
            _sessions(rows.columns, rows.settings, rows.platforms)
            for rows in (examples, task.validation)
        )
        parts = [
            self._part(session, examples, places, task.seed) for session, places in sessions.items()
        ]
        self.factors_ = factors_of(self.kind, parts)
        parts = [replace(part, scales=self._scales(part.columns)) for part in parts]
        self.priors_ = {
            sort: pooled([part for part in parts if part.session.sort == sort])
            for sort in dict.fromkeys(part.session.sort for part in parts)
        }
        self.sessions_ = {
            part.session: near(part, prior if part.dispatched else prior.of_kernels())
            for part in parts for prior in [self.priors_[part.session.sort]]
        }  # fmt: skip
        self.left_out_ = {sort: intervals for sort in self.priors_ if (intervals := left_out(
            [part for part in parts if part.session.sort == sort]
        ))}  # fmt: skip
        self._learn_trees(task, sessions, validated)
        self.intervals_, self.between_ = self._calibrated(task.validation, validated)

    def _calibrated(
        self, validation: Examples, sessions: Mapping[Session, Places]
    ) -> tuple[dict[Session, Intervals], dict[tuple[str, str], Intervals]]:
        """Return intervals of each session, and of those that others replace."""
        judged: dict[Session, tuple[Array, Array]] = {}
        names: dict[Session, list[int]] = {}
        ratios: dict[tuple[str, str], dict[str, list[Array]]] = {}
        for session, places in sessions.items():
            layers = Described.of(self.kind, take(validation.columns, places))
            measured_ms = validation.values[places]
            if session in self.sessions_:
                judged[session] = measured_ms, self._values_of(session, layers)
                names[session] = [hash(row.tobytes()) for row in layers.features]
            alike = self._alike(session)
            largest = max(alike, key=lambda other: alike[other].rows, default=session)
            if largest != session:
                of_device = ratios.setdefault(session.sort, {}).setdefault(session.device, [])
                of_device.append(np.log(measured_ms / self._values_of(largest, layers)))
        between = {
            sort: intervals for sort, devices in ratios.items()
            if (intervals := Intervals.of_groups(
                [np.concatenate(arrays) for arrays in devices.values()]
            ))
        }  # fmt: skip
        return intervals_of_kinds(judged, names), between

    def _part(self, session: Session, examples: Examples, places: Places, seed: int) -> Part:
        """Compute the terms of a session's rows."""
        columns = take(examples.columns, places)
        layer_quantities = quantities(self.kind, columns)
        setting = _of_row(examples.settings, places[0])
        options = {} if setting is None else setting.options
        return Part(
            session, columns, card_terms(self.kind, layer_quantities, session.card()),
            np.ones(len(places)), examples.values[places], seed,
            "dispatch" in options.get(CONTAINS, ""),
            int(is_aligned(self.kind, layer_quantities).sum()),
            float(options.get(HOST_DISPATCH, 0.0)) / US_PER_MS,
        )  # fmt: skip

    def _scales(self, columns: Columns) -> Array:
        """Return the factor of each layer's function, (rows,)."""
        choices = choices_of(self.kind, columns)
        if choices is None:
            return np.ones(len(next(iter(columns.values()))))
        return np.array([self.factors_.get(str(choice), 1.0) for choice in choices])

    def _learn_trees(
        self, task: Task, sessions: Mapping[Session, Places], validated: Mapping[Session, Places]
    ) -> None:
        """Learn ln(time / sum of terms) of the sessions with enough rows."""
        used = [session for session, places in sessions.items() if len(places) >= _FEWEST_FOR_TREES]
        used = used or [max(sessions, key=lambda session: len(sessions[session]))]
        examples, validation = task.examples, task.validation
        for session in used:
            layers = Described.of(self.kind, take(examples.columns, sessions[session]))
            costs = replace(self.sessions_[session], trees=True, fixed=_shared(layers))
            self.sessions_[session] = costs
        rows, estimates_ms, places = self._tree_rows(examples, sessions, used)
        chosen = informative(rows)
        self.features_ = tuple(self._names[index] for index in chosen)
        judged, judged_ms, judged_places = self._tree_rows(validation, validated, used)
        measured_ms = validation.values[judged_places]
        if not len(judged):
            judged, judged_ms, measured_ms = rows[:1], estimates_ms[:1], examples.values[places[:1]]

        def error(corrections: Array) -> float:
            return mape(measured_ms, judged_ms * np.exp(corrections))

        targets = np.log(examples.values[places] / estimates_ms)
        target = CorrectionTarget(rows[:, chosen], targets, judged[:, chosen], error)
        self._learn_correction(target, task)

    def _growth(self, rows: int) -> dict[str, int]:
        """Grow on one thread: fits of several devices share few cores."""
        return {**super()._growth(rows), "num_threads": 1}

    def _tree_rows(
        self, examples: Examples, sessions: Mapping[Session, Places], used: Sequence[Session]
    ) -> tuple[Array, Array, Places]:
        """Return inputs (rows, inputs) and sums of terms in ms of some sessions' rows; which."""
        rows, estimates_ms, places = [], [], []
        for session in used:
            if session in sessions:
                columns = take(examples.columns, sessions[session])
                inputs, sums_ms = self._inputs_of(session, Described.of(self.kind, columns))
                rows.append(np.stack(list(inputs.values()), axis=1))
                estimates_ms.append(sums_ms)
                places.append(sessions[session])
                self._names = tuple(inputs)
        if not rows:
            return np.zeros((0, len(self._names))), np.zeros(0), np.zeros(0, dtype=np.intp)
        return np.concatenate(rows), np.concatenate(estimates_ms), np.concatenate(places)

    def _inputs_of(self, session: Session, layers: Described) -> tuple[dict[str, Array], Array]:
        """Return all inputs of the trees by name, and the sums of terms in ms, each (rows,)."""
        terms = card_terms(self.kind, layers.quantities, session.card())
        estimates_ms = self.sessions_[session].total_ms(terms, self._scales(layers.columns))
        inputs = dict(zip(layers.names, layers.features.T, strict=True))
        inputs["ln terms"] = np.log(estimates_ms)
        for name, term in terms.items():
            inputs[f"ln {name}"] = np.log(np.maximum(term / estimates_ms, _SMALLEST_RATIO))
        product = product_of(self.kind, layers.quantities)
        if product is not None:
            for name in (key for key in terms if key.startswith("waves of")):
                inputs[f"share filled of {name}"] = terms["flops"] / terms[name]
            for name, size in (("m", product.m), ("n", product.n), ("k", product.k)):
                inputs[f"log2 size {name}"] = np.log2(size)
                for multiple in _ALIGNMENTS:
                    inputs[f"{name} by {multiple}"] = np.asarray(size % multiple == 0, dtype=float)
        for other, costs in self.sessions_.items():
            if costs.trees:
                flag = f"is {other.device}, {other.name}, {other.number}"
                inputs[flag] = np.full(len(estimates_ms), float(other == session))
        return inputs, estimates_ms

    def _inputs(self, layers: Described, session: Session | None = None) -> tuple[Array, Array]:
        """Return the trees' inputs, by default in the session with the most rows."""
        largest = max(self.sessions_, key=lambda candidate: self.sessions_[candidate].rows)
        inputs, estimates_ms = self._inputs_of(session or largest, layers)
        return np.stack([inputs[name] for name in self.features_], axis=1), estimates_ms

    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict layers on a device, in the session that the setting names.

        Another session of the device replaces one that is not known: of layers with aligned
        sizes the one with most such rows, of others the one with most others. NaN for
        normalisations of a function that no row had: their kernels are unlike.
        """
        columns = self._as_taught(cast(Columns, subjects))
        values, low, high = np.empty((3, len(next(iter(columns.values())))))
        for asked, places, session, layers in self._by_session(columns, setting, platform):
            values[places] = self._values_of(session, layers)
            low[places], high[places] = self._bounds_of(asked, session, layers, values[places])
        if self.kind in _UNLIKE_FUNCTIONS:
            unknown = ~is_among(np.asarray(choices_of(self.kind, columns)), tuple(self.factors_))
            for times_ms in (values, low, high):
                times_ms[unknown] = np.nan
        return {self.quantity_: Estimate(values, low, high)}

    def ranged(self, columns: Columns) -> Columns:
        """Return names of functions and the like, sizes of products, work, and windows.

        Terms do not depend on how sizes are spread over fields, and hardly on a bias.
        """
        specs = kind_of(self.kind).specs
        ranged = {
            name: column
            for name, column in columns.items()
            if name not in specs or specs[name].choices
        }
        q = quantities(self.kind, columns)
        product = product_of(self.kind, q)
        ranged |= {} if product is None else vars(product)
        return ranged | {name: q[name] for name in (*_WORK, *_WINDOW) if name in q}

    def has_rows_of(
        self, platform: Platform, setting: Setting | None = None, dtype: str = ""
    ) -> bool:
        """Say whether rows of the platform's device, of this type of values, taught it."""
        device, number = canonical_device(platform.device), _number_of(dtype, setting)
        return any(
            session.device == device and (not dtype or session.number == number)
            for session in self.sessions_
        )

    def gpu_busy_fraction(self, columns: Columns, setting: Setting, platform: Platform) -> Array:
        """Return the share of each predicted time that is not launch and dispatch, (rows,).

        All of it, where the times that were learnt from are of kernels alone.
        """
        columns = self._as_taught(columns)
        shares = np.empty(len(next(iter(columns.values()))))
        for _, places, session, layers in self._by_session(columns, setting, platform):
            terms = card_terms(self.kind, layers.quantities, session.card())
            shares[places] = self._costs_of(session).gpu_busy_fraction(
                terms, self._scales(layers.columns)
            )
        return shares

    def dispatch_ms(self, setting: Setting, platform: Platform) -> float:
        """Return the dispatch of the device's session, else the pooled one of its class.

        It is the host's, so that rows with any type of values show it. It is of eager runs: what is
        compiled or replayed as a graph is started otherwise.
        """
        if setting.is_compiled or setting.cuda_graph:
            return math.nan
        device = canonical_device(platform.device)
        own = Session(device, _session_name(setting), "")
        sessions = [
            (session.name == own.name, costs.rows, costs.host_ms or costs.dispatch_ms)
            for session, costs in self.sessions_.items()
            if session.device == device and (costs.dispatched or costs.host_ms)
        ]
        pooled = [
            (True, costs.rows, costs.dispatch_ms)
            for (of, _), costs in self.priors_.items()
            if of == device_class(device) and costs.dispatched
        ]
        return max(sessions or pooled, default=(False, 0, math.nan))[-1] or math.nan

    def _as_taught(self, columns: Columns) -> Columns:
        """Return layers with bfloat16 as float16, of the same units, if no rows are of it."""
        if "dtype" not in columns or any(number == "bf16" for _, number in self.priors_):
            return columns
        dtypes = columns["dtype"]
        return {**columns, "dtype": np.where(is_among(dtypes, ["bfloat16"]), "float16", dtypes)}

    def _by_session(
        self, columns: Columns, setting: Setting, platform: Platform
    ) -> Iterator[tuple[Session, Places, Session, Described]]:
        """Yield layers for which one session answers: that asked for, which, that one, the layers.

        It is the one asked for if the device has no rows.
        """
        for asked, places in _sessions(columns, (setting,), (platform,)).items():
            layers = Described.of(self.kind, take(columns, places))
            alike = self._alike(asked)
            if asked in alike or not alike:
                yield asked, places, asked, layers
                continue
            aligned = is_aligned(self.kind, layers.quantities)
            for are_aligned in np.unique(aligned):
                own = places[aligned == are_aligned]
                best = max(alike, key=lambda other: alike[other].rows_like(aligned=are_aligned))
                yield asked, own, best, Described.of(self.kind, take(columns, own))

    def _alike(self, session: Session) -> dict[Session, Costs]:
        """Return the sessions of a device with one type of values."""
        return {
            other: costs for other, costs in self.sessions_.items()
            if (other.device, other.number) == (session.device, session.number)
        }  # fmt: skip

    def _costs_of(self, session: Session) -> Costs:
        """Return a session's costs, else those of its sort; of another type, those of kernels."""
        if session in self.sessions_:
            return self.sessions_[session]
        sort = self._prior_sort(session)
        costs = self.priors_[sort]
        return costs if sort[1] == session.number else costs.of_kernels()

    def _values_of(self, session: Session, layers: Described) -> Array:
        costs = self._costs_of(session)
        if costs.trees:
            rows, times_ms = self._inputs(layers, session)
            corrections = self._run(rows)[:, 0] * _has(layers, costs.fixed)
            return np.asarray(times_ms * np.exp(corrections))
        terms = card_terms(self.kind, layers.quantities, session.card())
        return costs.total_ms(terms, self._scales(layers.columns))

    def _bounds_of(
        self, asked: Session, session: Session, layers: Described, values: Array
    ) -> tuple[Array, Array]:
        """Return bounds for the session, another one of its device, or a device without rows.

        Those of another class of devices or type of values are taken as out of range, as are
        products below the shortest that taught.
        """
        sort = self._prior_sort(asked)
        own, other = self.intervals_.get(session), self.left_out_.get(sort)
        sources = [own or other]
        if session != asked:
            # Sessions may agree better on the layers of both than one is predicted by itself.
            sources.append(self.between_.get(sort, other))
        alike = np.full(len(values), sort == asked.sort)
        if product_of(self.kind, layers.quantities) is not None:
            costs = self._costs_of(session)
            alike &= costs.dispatched | (values >= _LEAST_ALIKE * costs.dispatch_ms)
        low, high = zip(*(bounds_of(i, values, alike) for i in sources), strict=True)
        return np.min(low, axis=0), np.max(high, axis=0)

    def _prior_sort(self, session: Session) -> tuple[str, str]:
        """Return the most alike sort: same type and class, else the most rows."""
        device_class, number = session.sort
        return max(
            self.priors_,
            key=lambda sort: (sort[1] == number, sort[0] == device_class, self.priors_[sort].rows),
        )

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write the trees; return coefficients of each session and sort."""
        return {
            **self._store_correction(folder, stem),
            "factors": self.factors_,
            "priors": [
                {"class": sort[0], "number": sort[1], **costs.to_json(),
                 **_stored_intervals("intervals", self.left_out_.get(sort)),
                 **_stored_intervals("between_sessions", self.between_.get(sort))}
                for sort, costs in self.priors_.items()
            ],
            "sessions": [
                {"device": session.device, "session": session.name, "number": session.number,
                 **costs.to_json(), **_stored_intervals("intervals", self.intervals_.get(session))}
                for session, costs in self.sessions_.items()
            ],
        }  # fmt: skip

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Read coefficients, factors, and the trees."""
        self.factors_ = dict(stored(values, "factors"))
        sorts = {(entry["class"], entry["number"]): entry for entry in stored(values, "priors")}
        self.priors_ = {sort: Costs.from_json(entry) for sort, entry in sorts.items()}
        self.left_out_ = _read_intervals("intervals", sorts)
        self.between_ = _read_intervals("between_sessions", sorts)
        sessions = {
            Session(entry["device"], entry["session"], entry["number"]): entry
            for entry in stored(values, "sessions")
        }
        self.sessions_ = {session: Costs.from_json(entry) for session, entry in sessions.items()}
        self.intervals_ = _read_intervals("intervals", sessions)
        self._load_correction(values, folder)


def _shared(layers: Described) -> dict[str, float]:
    """Return the features that all layers share, with their values."""
    same = np.ptp(layers.features, axis=0) == 0
    return {
        name: float(values[0])
        for name, values, is_same in zip(layers.names, layers.features.T, same, strict=True)
        if is_same
    }


def _has(layers: Described, fixed: Mapping[str, float]) -> npt.NDArray[np.bool_]:
    """Say which layers have these features, (rows,): of others trees have learnt nothing."""
    features = dict(zip(layers.names, layers.features.T, strict=True))
    same = [np.isclose(features[name], value) for name, value in fixed.items() if name in features]
    alike: npt.NDArray[np.bool_] = np.all(
        np.stack([np.ones(len(layers.features), dtype=bool), *same]), axis=0
    )
    return alike


def _stored_intervals(name: str, intervals: Intervals | None) -> dict[str, Any]:
    return {} if intervals is None else {name: intervals.to_json()}


def _read_intervals(name: str, entries: Mapping[_Key, Mapping[str, Any]]) -> dict[_Key, Intervals]:
    """Read the intervals of those entries that have some of this name."""
    return {
        key: Intervals.from_json(entry[name]) for key, entry in entries.items() if name in entry
    }  # fmt: skip
