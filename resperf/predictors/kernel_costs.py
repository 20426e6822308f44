"""Costs of TensorRT's kernels, learnt from the latencies of whole networks on many cards at once.

A network is the kernels that TensorRT makes of it (`resperf.lowering`). Kernels of one class have
three terms, each the ms that the card's data sheet gives: starting them (cycles over the clock),
moving bytes, and computing (full waves of tiles, in the type of the precision; or the bytes, where
these take longer). Attention in half precision is one kernel, as releases of TensorRT make of it.
What a term costs is shared by all cards: one coefficient per class, drawn to
that of all classes. A card has a factor for each term, drawn to one. Sources measure differently:
each has a factor on each card, which is learnt, and left out where a network is predicted.

A card without latencies has no factors of its own. Its interval is from leaving one card out after
the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from resperf.devices import FP32, UNIFIED, DeviceFacts, canonical_device, known_facts
from resperf.devices.estimate import LAUNCH_MS
from resperf.devices.facts import ideal_ms
from resperf.features import Array, Columns, columns_of, quantities
from resperf.grouping import grouped
from resperf.layers import Layer
from resperf.layers.attention import Attention
from resperf.layers.dense import Dense
from resperf.layers.matmul import MatMul
from resperf.layers.recurrent import Recurrent
from resperf.layers.softmax import Softmax
from resperf.lowering import LoweredNetwork, lower, tensor_bytes
from resperf.network import Network
from resperf.platform import Platform
from resperf.predictors._base import Account, Estimate, Examples, Predicted, Predictor, Task, stored
from resperf.predictors.intervals import Intervals, bounds_of
from resperf.predictors.linear import Robust, fit_coefficients, left_out
from resperf.predictors.operator_classes import Cost, Terms
from resperf.predictors.terms.card import Card, card_terms
from resperf.quantities import Level
from resperf.settings import CONTAINS, HALF_TYPES, PLAIN_PRECISIONS, SESSION, Setting
from resperf.splits import FOLDS, Mask, folds_of

Kept: TypeAlias = "dict[tuple[int, str], LoweredNetwork]"
"""Lowered networks, by identity and precision."""
KERNELS, BYTES, CALL = "kernels", "bytes", "call"
_CALL_MS = 0.05
"""Unit of what each run takes besides: the host's call, and waiting for the device."""
_COPIES = {
    "copies": "copy of the input to the GPU inside",
    "copies if any": "Paddle Inference",
}
"""Term -> words of what a published time contains, for copies of inputs. Light networks of
PaddleClas take 0.13 to 0.19 ms more for each image, 602 kB, that a batch has more: three to five
times what a bus takes at its peak."""
_UNIFIED_BUS = 15.75e9
"""Bytes per second of a copy within unified memory, by the host: those of PCIe 3.0 x16."""
_STAGE, _STAGE_MS = "inference stage", 0.5
"""Words of what a published time contains where a loop in Python timed its own stage, and the unit
of what that adds: 0.4 to 2 ms."""
_USUAL_MHZ = 1500.0
"""Clock at which the next kernel starts after `LAUNCH_MS`: starting takes cycles."""
_SLOW_HOST_STARTS, _FASTER_HOSTS = 3.0, 8.0
"""Jetsons before this compute capability take so many times as long to start a kernel: their host
cores are slow. The factors of three such cards are 2.1 to 3.8."""
_DEPTHWISE = "depthwise"
"""Convolutions that tensor cores do not compute: their work is FLOPs of the other cores."""
_GROUPED_FP32 = "grouped convolution in float32"
"""All latencies of grouped convolutions are in float32, of one source: other types do not learn
from them, and cost what other products do."""
_PRODUCTS = ("conv", "dense", "matmul")
_WITHIN = ("softmax", "matmul", "transpose", "move")
"""Kinds that attention in one kernel takes in."""
_CLASSES = {
    **dict.fromkeys(("elementwise", "activation", "select"), "pointwise"),
    **dict.fromkeys(("cast", "move", "transpose", "reorder", "depth_to_space"), "copies"),
    **dict.fromkeys(("pool", "reduce"), "pooling"),
    **dict.fromkeys(("norm", "softmax"), "rows"),
    # In half precision few products of two computed tensors are left outside attention.
    "matmul": "dense",
    **dict.fromkeys(("dense", "attention", "resize"), ""),
}  # fmt: skip
"""Kind -> its class; those that are empty are their own. All others are of `_REST`."""
_REST = "other"
LOWERED_AS = {"int8": "fp16", "tf32": "fp32"}
"""Precision -> what TensorRT computes in where it may not use it."""
_BETWEEN = 3
"""Kernels between a product of attention and its softmax, at most: copies and transposes."""
_OVERLAP = 3
"""Power of computing and of moving bytes whose sum is taken: the longer hides most of the other."""
_HALF_SUMS = 7.5
"""Compute capability from which sums in float16, as TensorRT takes them, run at half of int8's
peak, also where sums in float32 (the data sheet's figure) are slower: GeForce cards."""
_EXPECTED = {KERNELS: 0.5}
_ROBUST = Robust(rounds=3, least_error=0.04)
_TO_SHEET, _TO_POOL, _OF_CARD, _OF_SOURCE = 0.1, 24.0, 0.25, 2.0
"""Strengths by which coefficients of pools are drawn to the data sheet, those of classes to pools
and factors of cards to one; and networks as which a source's factor of one counts."""
_ROUNDS = 4


def kernel_terms(lowered: LoweredNetwork, precision: str, facts: DeviceFacts) -> Terms:
    """Return the terms of a network's kernels on a card, in ms by its data sheet.

    Terms of computing are named after the precision that decides their peak.
    """
    layers_run = with_attention([node.layer for node in lowered.nodes if node.layer is not None])
    images = max((tensor.shape[0] for tensor in lowered.inputs if tensor.shape), default=1)
    by_kind = grouped(
        ((layer.kind, _computed_in(layer, precision, images)), layer) for layer in layers_run
    )
    terms: dict[Cost, float] = defaultdict(float)
    for (kind, number), layers in by_kind.items():
        for cost, time_ms in _terms_of_kind(kind, layers, precision, number, facts).items():
            terms[cost] += time_ms
    return {Cost(CALL, CALL): _CALL_MS, **terms}


def with_attention(layers: Sequence[Layer]) -> list[Layer]:
    """Return layers with attention in half precision as one.

    TensorRT for RTX, which is asked, writes the scores to memory for some sizes and cards; releases
    of TensorRT keep them on the chip.
    """
    joined: list[Layer | None] = [*layers]
    for index, softmax in enumerate(layers):
        if not isinstance(softmax, Softmax) or softmax.dtype not in HALF_TYPES.values():
            continue
        before, after = range(max(index - _BETWEEN, 0), index)[::-1], range(index + 1, len(layers))
        for first, second in product(before, after[:_BETWEEN]):
            scores, result = layers[first], layers[second]
            if not (isinstance(scores, MatMul) and isinstance(result, MatMul)):
                continue
            rows = scores.batch * scores.outer * scores.rows
            if softmax.batch * softmax.outer * softmax.values == rows * scores.columns:
                joined[first] = Attention(
                    batch=scores.batch, heads=scores.outer, queries=scores.rows,
                    keys=scores.columns, head_size=scores.depth, features=0, dtype=softmax.dtype,
                    value_size=max(result.macs // (rows * scores.columns), 1),
                )  # fmt: skip
                for inner in range(first + 1, second + 1):
                    joined[inner] = None if layers[inner].kind in _WITHIN else layers[inner]
                break
    return [own for own in joined if own is not None]


def _computed_in(layer: Layer, precision: str, images: int) -> str:
    """Return the type that a kernel computes in.

    In int8 that is products alone, and of these not the classifiers of images, whose calibration
    TensorRT leaves out: VGG and AlexNet take as long in int8.
    """
    is_classifier = isinstance(layer, Dense) and layer.batch <= images
    quantised = layer.kind in _PRODUCTS and not is_classifier
    return precision if quantised or precision != "int8" else LOWERED_AS[precision]


def _terms_of_kind(
    kind: str, layers: Sequence[Layer], precision: str, number: str, facts: DeviceFacts
) -> Terms:
    columns = columns_of(layers)
    q = quantities(kind, columns)
    device = _card(facts, number)
    card = card_terms(kind, q, device)
    plain_ms = q["flops"] / device.flops_per_ms / (1 if number in (FP32, "tf32") else 2)
    # Products in int8 read and write half of what they do in float16.
    moved = card["bytes"] / (2 if number == "int8" else 1)
    start_ms = LAUNCH_MS * _USUAL_MHZ / facts.boost_mhz
    if facts.bus == UNIFIED and float(facts.compute_capability or 99) < _FASTER_HOSTS:
        start_ms *= _SLOW_HOST_STARTS
    terms = {}
    for of, own in _classes(kind, columns, q, precision).items():
        terms[Cost(of, KERNELS)] = start_ms * float(own.sum())
        terms[Cost(of, BYTES)] = float(moved[own].sum())
        if kind in _PRODUCTS:
            work = plain_ms if of == _DEPTHWISE else card["best waves"]
            longer = (work**_OVERLAP + moved**_OVERLAP) ** (1 / _OVERLAP)
            terms[Cost(of, precision)] = float(longer[own].sum())
    return terms


def _card(facts: DeviceFacts, number: str) -> Card:
    peaks = facts.peaks_flops_per_s
    number = next(name for name in (number, "fp16", "fp32") if name in peaks)
    card = Card.of(facts.device, number)
    if number == "fp16" and float(facts.compute_capability or 0) >= _HALF_SUMS:
        peak = max(card.matrix_flops_per_ms, peaks.get("int8", 0.0) / 2e3)
        return replace(card, matrix_flops_per_ms=peak)
    return card


def _classes(
    kind: str, columns: Columns, q: Mapping[str, Array], precision: str
) -> dict[str, Mask]:
    """Return the classes of layers of a kind, with a mask of the layers of each."""
    count = len(q["moved_bytes"])
    if kind == "conv":
        groups, channels = q["groups"], q["channels_in"]
        choices = {
            _DEPTHWISE: (groups > 1) & (groups >= channels),
            _GROUPED_FP32 if precision == FP32 else "grouped convolution": groups > 1,
            "convolution of images": channels <= 4,
            "convolution 1x1": q["kernel_height"] * q["kernel_width"] == 1,
        }
        names = np.select(list(choices.values()), list(choices), "convolution")
    elif kind == "norm":
        names = np.where(columns["function"] == "batch", "pointwise", _CLASSES[kind])
    else:
        names = np.full(count, _CLASSES.get(kind, _REST) or kind)
    return {str(name): names == name for name in np.unique(names)}


def _pool_of(cost: Cost) -> Cost:
    """Return the wider class that a class is drawn to: kernels of products, and all others."""
    if cost.of == CALL:
        return cost
    if cost.term not in (KERNELS, BYTES):
        return Cost("products", cost.term)
    if cost.of == _GROUPED_FP32:  # moves bytes four times as slowly as other products
        return cost
    is_product = cost.of in (_DEPTHWISE, "dense") or "convolution" in cost.of
    return Cost("products" if is_product else "others", cost.term)


@dataclass(frozen=True)
class Rows:
    """Latencies of networks: terms and times, with card, source, network and family of each."""

    terms: Sequence[Terms]
    times_ms: Array
    devices: npt.NDArray[np.str_]
    sources: npt.NDArray[np.str_]
    networks: npt.NDArray[np.str_]
    families: npt.NDArray[np.str_]

    def some(self, chosen: Mask | npt.NDArray[np.intp]) -> Rows:
        """Return some rows, by a mask or by places."""
        places = np.arange(len(self.terms))[chosen]
        return Rows(
            [self.terms[row] for row in places],
            *(values[places] for values in list(vars(self).values())[1:]),
        )

    @property
    def keys(self) -> npt.NDArray[np.str_]:
        """Source and card of each row."""
        return np.char.add(np.char.add(self.sources, " on "), self.devices)

    @property
    def weights(self) -> Array:
        """A network on a card weighs about the same, however many sizes of it there are."""
        names = list(zip(self.networks, self.devices, strict=True))
        counts = Counter(names)
        return np.array([counts[name] ** -0.8 for name in names], dtype=float)


class _Groups(NamedTuple):
    """Rows by device or source: names, the group of each row, and its rows and networks."""

    names: npt.NDArray[np.str_]
    of_row: npt.NDArray[np.intp]
    places: Sequence[npt.NDArray[np.intp]]
    networks: Array

    @classmethod
    def of(cls, rows: Rows, keys: npt.NDArray[np.str_]) -> _Groups:
        names, index = np.unique(keys, return_inverse=True)
        places = [np.flatnonzero(index == number) for number in range(len(names))]
        networks = [float(len(set(rows.networks[own]))) for own in places]
        return cls(names, index, places, np.array(networks))


@dataclass(frozen=True)
class SharedCosts:
    """Coefficients of classes, and factors of cards by term.

    Attributes
    ----------
    coefficients : mapping of Cost to float
        Times what the data sheet says; of pools as well, for classes that no network had.
    factors : mapping of str to mapping of str to float
        Device -> term -> factor; one where it is missing: no row had that precision.
    sources : mapping of str to float
        Source and device -> factor; their mean on a device is one.
    """

    coefficients: Mapping[Cost, float]
    factors: Mapping[str, Mapping[str, float]]
    sources: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, rounded to five digits."""
        return {
            "coefficients": [[*cost, round(own, 5)] for cost, own in self.coefficients.items()],
            "factors": {
                device: {term: round(own, 5) for term, own in factors.items()}
                for device, factors in self.factors.items()
            },
            "sources": {key: round(own, 5) for key, own in self.sources.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SharedCosts:
        """Read what `to_json` returned."""
        coefficients = {Cost(of, term): own for of, term, own in stored(values, "coefficients")}
        return cls(coefficients, stored(values, "factors"), stored(values, "sources"))

    @classmethod
    def fit(cls, rows: Rows) -> SharedCosts:
        """Fit to latencies: coefficients, factors of cards and of sources in turns."""
        costs = sorted({cost for terms in rows.terms for cost in terms})
        pools = sorted({_pool_of(cost) for cost in costs})
        names = sorted({cost.term for cost in costs})
        member = np.array([[float(_pool_of(cost) == pool) for pool in pools] for cost in costs])
        of_term = np.array([[float(cost.term == name) for name in names] for cost in costs])
        matrix = np.array([[terms.get(cost, 0.0) for cost in costs] for terms in rows.terms])
        relative, weights = matrix / rows.times_ms[:, None], rows.weights
        expected = np.array([_EXPECTED.get(pool.term, 1.0) for pool in pools])
        pooled = _near(relative @ member, weights, expected, _TO_SHEET * len(relative) ** 0.5)
        devices, sources = _Groups.of(rows, rows.devices), _Groups.of(rows, rows.keys)
        card_of = devices.of_row[[places[0] for places in sources.places]]
        factors, of_source = np.ones((len(devices.names), len(names))), np.zeros(len(sources.names))
        for _ in range(_ROUNDS):
            by_card = (factors @ of_term.T)[devices.of_row]
            measured = relative * np.exp(of_source)[sources.of_row, None]
            coefficients = _near(measured * by_card, weights, member @ pooled, _TO_POOL)
            parts = measured * coefficients @ of_term
            for number, own in enumerate(devices.places):
                strength = _OF_CARD * (10 * len(own) / devices.networks[number]) ** 0.5
                factors[number] = _near(
                    parts[own], weights[own], np.ones(len(names)), strength, 0.02
                )
            by_card = (factors @ of_term.T)[devices.of_row]
            ratios = -np.log(np.maximum(relative * by_card @ coefficients, 1e-9))
            medians = [_weighted_median(ratios[own], weights[own]) for own in sources.places]
            of_source = medians * sources.networks / (sources.networks + _OF_SOURCE)
            totals, networks = (
                np.bincount(card_of, weights=own)
                for own in (of_source * sources.networks, sources.networks)
            )
            of_source -= (totals / networks)[card_of]
        used = np.array([matrix[own].any(axis=0) @ of_term > 0 for own in devices.places])
        return cls(
            {**dict(zip(pools, pooled.tolist(), strict=True)),
             **dict(zip(costs, coefficients.tolist(), strict=True))},
            {str(device): {name: float(factors[number, column])
                           for column, name in enumerate(names) if used[number, column]}
             for number, device in enumerate(devices.names)},
            dict(zip(sources.names.tolist(), np.exp(of_source).tolist(), strict=True)),
        )  # fmt: skip

    def parts_ms(self, terms: Terms, device: str) -> dict[Cost, float]:
        """Return the predicted time of each term of a network on a device."""
        factors = self.factors.get(device, {})
        return {
            cost: time_ms * factors.get(cost.term, 1.0) * self._coefficient(cost)
            for cost, time_ms in terms.items()
        }

    def _coefficient(self, cost: Cost) -> float:
        otherwise = self.coefficients.get(_pool_of(cost), _EXPECTED.get(cost.term, 1.0))
        return self.coefficients.get(cost, otherwise)

    def predict(self, rows: Rows) -> Array:
        """Return the predicted times of networks, as their sources measure where these taught."""
        return np.array(
            [
                sum(self.parts_ms(terms, device).values()) * self.sources.get(key, 1.0)
                for terms, device, key in zip(rows.terms, rows.devices, rows.keys, strict=True)
            ]
        )


def _near(
    relative: Array, weights: Array, centre: Array, strength: float, least: float = 1e-6
) -> Array:
    """Fit coefficients of at least zero to ``relative @ coefficients = 1``, near a centre."""
    # The mean is of rows that have the term: one of few rows is drawn as strongly as the others.
    of_rows = np.maximum(np.count_nonzero(relative, axis=0), 1)
    lengths = np.sqrt((relative**2).sum(axis=0) / of_rows) + least
    return fit_coefficients(
        relative, np.ones(len(relative)), robust=_ROBUST, weights=weights,
        strengths=strength * lengths, centre=centre,
    )  # fmt: skip


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(sums, sums[-1] / 2)])


class KernelCosts(Predictor):
    """Predicts a network's time in TensorRT from what classes of kernels cost in other networks.

    Attributes
    ----------
    costs_ : SharedCosts
    known_, unknown_ : Intervals or None
        Of new families on cards with latencies, and on cards without.
    """

    method = "kernel-costs"
    level = Level.NETWORK
    quantities = frozenset({"execution_ms", "latency_ms"})
    unseen_devices = True

    def _learn(self, task: Task) -> None:
        # No epochs are chosen: the rows for that teach as well.
        rows = rows_of((task.examples, task.validation))
        self.costs_ = SharedCosts.fit(rows)
        families = rows.families.tolist()
        if len(set(families)) < FOLDS:  # too few to leave out
            families = [str(number) for number in range(len(families))]
        self.known_ = Intervals.fit(
            rows.times_ms, predicted_without(rows, folds_of(families)), families
        )
        devices, self.unknown_ = np.unique(rows.devices), None
        if len(devices) > 1:
            ratios = np.log(rows.times_ms / predicted_without(rows, rows.devices.tolist()))
            self.unknown_ = Intervals.of_groups([ratios[rows.devices == name] for name in devices])

    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict whole networks, as a source that measures like the mean of those known."""
        networks = cast("Sequence[Network]", subjects)
        terms = [network_terms(network, setting, platform) for network in networks]
        device = canonical_device(platform.device)
        values = np.array([sum(self.costs_.parts_ms(own, device).values()) for own in terms])
        intervals = self.known_ if self.has_rows_of(platform, setting) else self.unknown_
        bounds = bounds_of(intervals, values, np.ones(len(values), dtype=bool))
        return {self.quantity_: Estimate(values, *bounds)}

    def has_rows_of(
        self, platform: Platform, setting: Setting | None = None, dtype: str = ""
    ) -> bool:
        """Say whether latencies on the platform's device, in this precision, taught it."""
        factors = self.costs_.factors.get(canonical_device(platform.device), {})
        return bool(factors) and (setting is None or _precision_of(setting) in factors)

    def account(self, network: Network, setting: Setting, platform: Platform) -> Account:
        """Say whose latencies it was inferred from; single kernels are not told apart."""
        devices = "this device" if self.has_rows_of(platform, setting) else "other devices"
        left_out = tuple(
            node.reason or "a recurrence runs step after step, and is counted as one kernel"
            for node in _lowered(network, setting, platform).nodes
            if node.role == "unknown" or isinstance(node.layer, Recurrent)
        )
        return Account(f"latencies of whole networks on {devices}", {}, {}, left_out=left_out)

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        intervals = {"known": self.known_, "unknown": self.unknown_}
        return {
            "fit": self.costs_.to_json(),
            "intervals": {k: v.to_json() for k, v in intervals.items() if v is not None},
        }

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        self.costs_ = SharedCosts.from_json(stored(values, "fit"))
        intervals = stored(values, "intervals")
        self.known_, self.unknown_ = (
            Intervals.from_json(intervals[name]) if name in intervals else None
            for name in ("known", "unknown")
        )


def _lowered(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    precision = LOWERED_AS.get(setting.precision, setting.precision)
    return lower(network, replace(setting.without_session(), precision=precision), platform)


def _precision_of(setting: Setting) -> str:
    return "fp32" if setting.precision in PLAIN_PRECISIONS else setting.precision


def network_terms(
    network: Network, setting: Setting, platform: Platform, kept: Kept | None = None
) -> Terms:
    """Return the terms of a network under a setting on a platform.

    Parameters
    ----------
    kept : dict, optional
        Where lowered networks are kept: cards do not differ in them.

    Raises
    ------
    UnsupportedError
        If the device has no data sheet, or the network cannot be lowered.
    """
    facts, precision = known_facts(platform.device), _precision_of(setting)
    kept, key = {} if kept is None else kept, (id(network), LOWERED_AS.get(precision, precision))
    if key not in kept:
        kept[key] = _lowered(network, setting, platform)
    terms, contains = kernel_terms(kept[key], precision, facts), setting.options.get(CONTAINS, "")
    bus = _UNIFIED_BUS if facts.bus == UNIFIED else facts.bus_bytes_per_s
    copied_ms = ideal_ms(sum(map(tensor_bytes, kept[key].inputs)), bus)
    copies = {Cost(CALL, own): copied_ms for own in _COPIES if _COPIES[own] in contains}
    return {**terms, **copies, **({Cost(CALL, _STAGE): _STAGE_MS} if _STAGE in contains else {})}


def rows_of(parts: Sequence[Examples], kept: Kept | None = None) -> Rows:
    """Return measured networks as their terms; rows that share a network are lowered once."""
    networks = [network for part in parts for network in part.networks]
    settings, platforms = zip(*(row for part in parts for row in part.per_row()), strict=True)
    names = [network.name for network in networks]
    kept = {} if kept is None else kept
    return Rows(
        [network_terms(*row, kept) for row in zip(networks, settings, platforms, strict=True)],
        np.concatenate([part.values for part in parts]),
        np.array([canonical_device(platform.device) for platform in platforms]),
        np.array([setting.options.get(SESSION, "") for setting in settings]),
        # Sizes of a network follow an @ in its name.
        np.array([name.partition("@")[0] for name in names]),
        np.array([family for part in parts for family in part.groups] or names),
    )


def predicted_without(rows: Rows, groups: Sequence[str]) -> Array:
    """Return the predicted time of each row by a fit without the rows of its group."""

    def predicted(rest: Mask, own: Mask) -> Array:
        return SharedCosts.fit(rows.some(rest)).predict(rows.some(own))

    return left_out(groups, predicted)
