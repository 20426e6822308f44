"""Coefficients of terms relative to the device: of a session, of all sessions of a sort, of none.

Fitted for `resperf.predictors.roofline`, which says which of them answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from resperf.devices.estimate import LAUNCH_MS
from resperf.features import Array, Columns
from resperf.predictors.baseline import ROBUST
from resperf.predictors.intervals import Intervals
from resperf.predictors.linear import fit_coefficients
from resperf.predictors.terms.card import LAUNCH, Card
from resperf.predictors.terms.work import choices_of
from resperf.records import Record

Places = npt.NDArray[np.intp]

_MOST_FITTED = 3000
"""Rows of one session to which coefficients are fitted; all sessions count the same when pooled."""
_FACTOR_ROWS, _OWN_ROWS = 3.0, 30.0
"""Rows as which the pooled coefficients count against a device's factor, and its coefficients."""
_ROUNDS = 3
"""Fits of a session: which rows only show the dispatch is told by the fit before."""
_FEWEST_HIDDEN, _LEAST_HIDDEN = 5, 0.01
"""Rows, and share of the rows of the session with most of them, that must show a session's dispatch
for it to count in that of unknown hosts."""
_SHORTEST_MS = 1e-6
"""No time is predicted below it, since trees read its logarithm."""
_AT_DISPATCH = 1.25
"""Rows up to this many times the shortest may be times of dispatch alone."""
_BEYOND_LAUNCH = 4.0
"""Kernels of more than this many times the shortest are more work than launch."""
_ALIKE = 2.0
"""Work of the shortest kernels may be so many times as much: float16 products of 13 to 17 MB of
weights take 1.5 to 1.9 times their work beside the launch."""
_HIDDEN = 0.9
"""They are if their work takes a smaller share of the time than this."""


@dataclass(frozen=True)
class Session:
    """What is alike for some rows but their layers: device, sitting, and type of values.

    Attributes
    ----------
    device : str
        Its canonical name; empty if it is not known.
    name : str
        The source's session: its host and driver have a launch and a speed of their own.
    number : str
        Type of values, a name of `resperf.devices.facts.Peaks`.
    """

    device: str
    name: str
    number: str

    def card(self) -> Card:
        """Return the device's facts for this type of values."""
        return Card.of(self.device, self.number)

    @property
    def sort(self) -> tuple[str, str]:
        """What shares a pooled prior: class of devices, and type of values."""
        return self.card().device_class, self.number


@dataclass(frozen=True)
class Costs(Record):
    """Coefficients of a sum of terms.

    Attributes
    ----------
    terms : mapping of str to float
        Term -> how many times longer than ideal; of `LAUNCH`, ms.
    dispatch_ms : float
        What the host needs to start a layer: no time is shorter. It hides the work of small layers.
    host_ms : float
        What it needs for each kernel of a network, as networks at batch 1 showed; 0 if none did.
    rows : int
        From which they were learnt.
    trees : bool
        Whether the trees correct them.
    dispatched : bool
        Whether the times of these rows contain the host's dispatch; else they are of kernels alone.
    aligned : int
        How many of the rows have aligned sizes (`resperf.predictors.terms.card.is_aligned`).
    fixed : mapping of str to float
        Features of the layer that all of these rows share; only where trees correct them.
    """

    terms: Mapping[str, float]
    dispatch_ms: float
    rows: int
    trees: bool = False
    dispatched: bool = False
    aligned: int = 0
    fixed: Mapping[str, float] = field(default_factory=dict)
    host_ms: float = 0.0

    def total_ms(self, terms: Mapping[str, Array], scales: Array) -> Array:
        """Return the times of layers, each the longer of dispatch and work, shape (rows,).

        Times of kernels alone have no dispatch: of products, which read weights, the shortest one
        bounds layers of about as much work, not those of much less.
        """
        work_ms, shortest_ms = self.work_ms(terms, scales), max(self.dispatch_ms, _SHORTEST_MS)
        if self.dispatched or "best waves" not in terms:
            return np.maximum(work_ms, shortest_ms)
        alike_ms = work_ms + (_ALIKE - 1) * self.variable_ms(terms, scales)
        return np.maximum(work_ms, np.minimum(shortest_ms, np.maximum(alike_ms, LAUNCH_MS)))

    def of_kernels(self) -> Costs:
        """Return the costs without what the host adds to them."""
        if not self.dispatched:
            return self
        terms = {name: factor for name, factor in self.terms.items() if name != LAUNCH}
        return replace(self, terms=terms, dispatch_ms=LAUNCH_MS, dispatched=False)

    def work_ms(self, terms: Mapping[str, Array], scales: Array) -> Array:
        """Return the sum of terms; all but the launch are multiplied by `scales`, (rows,)."""
        return np.asarray(self.terms.get(LAUNCH, 0.0) + self.variable_ms(terms, scales))

    def variable_ms(self, terms: Mapping[str, Array], scales: Array) -> Array:
        """Return the sum of all terms but the launch, times `scales`, (rows,)."""
        variable = sum(
            (factor * terms[name] for name, factor in self.terms.items() if name != LAUNCH),
            start=np.zeros_like(scales),
        )
        return np.asarray(variable * scales)

    def rows_like(self, *, aligned: bool) -> tuple[int, int]:
        """Return how many of the rows have aligned sizes or not, and how many there are."""
        return self.aligned if aligned else self.rows - self.aligned, self.rows

    def gpu_busy_fraction(self, terms: Mapping[str, Array], scales: Array) -> Array:
        """Return the share of each layer's time in which the device works, (rows,).

        A time between two events of an idle device begins with the dispatch of the host. It grows
        with the layer's work from the launch on; what a kernel takes next to others is the rest.
        """
        total_ms = self.total_ms(terms, scales)
        if not self.dispatched:
            return np.ones_like(total_ms)
        return np.minimum(np.maximum(self.variable_ms(terms, scales), LAUNCH_MS) / total_ms, 1.0)


@dataclass(frozen=True)
class Part:
    """The rows of one session: layers, terms (rows,), factors of functions, and times.

    `dispatched`, `aligned` and `host_ms` as of `Costs`.
    """

    session: Session
    columns: Columns
    terms: Mapping[str, Array]
    scales: Array
    values: Array
    seed: int
    dispatched: bool
    aligned: int
    host_ms: float = 0.0

    @property
    def relative(self) -> Array:
        """Terms, the launch first, over the measured times, (rows, terms)."""
        scaled = [
            term if name == LAUNCH else term * self.scales for name, term in self.terms.items()
        ]
        return np.asarray(np.stack(scaled, axis=1) / self.values[:, None])

    @property
    def shortest_ms(self) -> float:
        """Return the shortest time but for one in a hundred."""
        return float(np.sort(self.values)[len(self.values) // 100])

    def dispatches_ms(self, costs: Costs) -> Array:
        """Return the times that nearly all rows exceed and that work alone does not explain."""
        hidden = costs.work_ms(self.terms, self.scales) < _HIDDEN * self.values
        return self.values[hidden & (self.values <= _AT_DISPATCH * self.shortest_ms)]

    def some(self) -> Places:
        """Return at most `_MOST_FITTED` rows."""
        return np.random.default_rng(self.seed).permutation(len(self.values))[:_MOST_FITTED]


def factors_of(kind: str, parts: Sequence[Part]) -> dict[str, float]:
    """Return for each function how its rows' variable time differs from that of all."""
    logs: dict[str, list[Array]] = {}
    for part in parts:
        choices = choices_of(kind, part.columns)
        if choices is None:
            return {}
        costs = near(part, None)
        launch = costs.terms.get(LAUNCH, 0.0)
        variable = costs.work_ms(part.terms, part.scales) - launch
        own = part.values - launch
        usable = (part.values > _AT_DISPATCH * costs.dispatch_ms) & (own > 0) & (variable > 0)
        log_ratios = np.log(own[usable] / variable[usable])
        for choice in np.unique(choices[usable]):
            logs.setdefault(str(choice), []).append(log_ratios[choices[usable] == choice])
    return {
        choice: float(np.exp(np.median(rows) * len(rows) / (len(rows) + _FACTOR_ROWS)))
        for choice, arrays in logs.items()
        for rows in [np.concatenate(arrays)]
    }


def pooled(parts: Sequence[Part]) -> Costs:
    """Fit one set of coefficients to all sessions, each of which has a dispatch of its own.

    Beside times with a dispatch, those of kernels alone say nothing of the launch.
    """
    names = tuple(parts[0].terms)
    matrices, weights = [], []
    of_device = Counter(part.session.device for part in parts)
    dispatched = [part for part in parts if part.dispatched]
    for part in parts:
        some, relative = part.some(), part.relative
        is_mixed = bool(dispatched) and not part.dispatched
        if is_mixed:
            relative[:, names.index(LAUNCH)] = 0.0
        least = _BEYOND_LAUNCH if is_mixed else _AT_DISPATCH
        some = some[part.values[some] > least * part.shortest_ms]
        matrices.append(relative[some])
        total = max(len(some), 1) * of_device[part.session.device]
        weights.append(np.full(len(some), 1 / total))
    fitted = _fit_near(np.vstack(matrices), np.zeros(len(names)), 0.0, np.concatenate(weights))
    coefficients = _positive(dict(zip(names, fitted.tolist(), strict=True)))
    rows = sum(len(part.values) for part in parts)
    work = Costs(coefficients, 0.0, rows, dispatched=bool(dispatched))
    shown = [part.dispatches_ms(work) for part in dispatched or parts]
    fewest = max(_FEWEST_HIDDEN, _LEAST_HIDDEN * max(map(len, shown)))
    medians_ms = [float(np.median(times_ms)) for times_ms in shown if len(times_ms) >= fewest]
    return replace(work, dispatch_ms=float(np.median(medians_ms)) if medians_ms else 0.0)


def left_out(parts: Sequence[Part]) -> Intervals | None:
    """Return the interval of a device without rows: each device is predicted from the others."""
    ratios: dict[str, list[Array]] = {}
    for device in dict.fromkeys(part.session.device for part in parts):
        others = [part for part in parts if part.session.device != device]
        if not others:
            return None
        costs = pooled(others)
        ratios[device] = [
            np.log(part.values / own.total_ms(part.terms, part.scales))
            for part in parts if part.session.device == device
            for own in [costs if part.dispatched else costs.of_kernels()]
        ]  # fmt: skip
    return Intervals.of_groups([np.concatenate(arrays) for arrays in ratios.values()])


def near(part: Part, prior: Costs | None) -> Costs:
    """Fit a session's coefficients, near the pooled ones times one factor where rows are few.

    Rows that only show the dispatch say nothing of coefficients, unless these predict more.
    """
    names = tuple(part.terms)
    some = part.some()
    relative, values = part.relative[some], part.values[some]
    prior_terms = {} if prior is None else prior.terms
    pooled = np.array([prior_terms.get(name, 0.0) for name in names])
    shows = long = values > _AT_DISPATCH * part.shortest_ms
    if prior is not None:
        shows = long | (relative @ pooled > _HIDDEN)
    fitted = pooled
    for _ in range(_ROUNDS):
        centre, strength = pooled, 0.0
        if prior is not None:
            one = (relative[shows] @ pooled)[:, None]
            factor = _fit_near(one, np.ones(1), _FACTOR_ROWS)
            centre, strength = factor * pooled, _OWN_ROWS
        fitted = _fit_near(relative[shows], centre, strength)
        shows = long | (relative @ fitted > _HIDDEN)
    coefficients = _positive(dict(zip(names, fitted.tolist(), strict=True)))
    costs = Costs(
        coefficients, 0.0 if prior is None else prior.dispatch_ms, len(part.values),
        dispatched=part.dispatched, aligned=part.aligned, host_ms=part.host_ms,
    )  # fmt: skip
    shown = part.dispatches_ms(costs)
    if not len(shown):
        return replace(costs, dispatch_ms=min(costs.dispatch_ms, part.shortest_ms))
    own, usual = float(np.median(shown)), costs.dispatch_ms or float(np.median(shown))
    share = len(shown) / (len(shown) + 1)
    return replace(costs, dispatch_ms=own**share * usual ** (1 - share))


def _positive(coefficients: Mapping[str, float]) -> dict[str, float]:
    return {name: coefficient for name, coefficient in coefficients.items() if coefficient > 0}


def _fit_near(
    relative: Array, centre: Array, strength: float, weights: Array | None = None
) -> Array:
    """Fit coefficients c >= 0 to ``relative @ c = 1``, as robustly as a baseline, near a centre.

    The centre counts as `strength` rows in each of which one term differs by its mean share.
    """
    if not len(relative):
        return centre
    shares = np.maximum(relative.mean(axis=0), 1e-12)
    return fit_coefficients(
        relative, np.ones(len(relative)), robust=ROBUST, weights=weights,
        strengths=np.sqrt(strength) * shares, centre=centre, scales=shares,
    )  # fmt: skip
