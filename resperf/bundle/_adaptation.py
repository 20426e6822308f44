"""How a bundle's times are scaled to this machine: a factor for each group of what costs time.

A layer's time is divided into groups by the speeds of the machine that it was measured on: a part
that every node takes, reading and writing in memory, and in the caches. The rest is what the layer
computes: multiply-adds of convolutions or of matrix products, those of integers, whose sums are
requantised or not, activations, sums over rows (softmax, normalisations), or other functions of
values (pooling). Convolutions with groups have kernels of their own in blocks; the speed of
depthwise ones depends on how large their window is. Convolutions that are not in blocks are
products of matrices, for which rows of the image are copied, one for each place of the window
(im2col): that is a part of its own, and thin products and those in groups are groups of their own.
Of layers that only copy values, such as transposes, all but node and memory is one group, and of
re-layouts to and from blocks another.
Each part takes its group's factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from resperf.bundle._correction import Correction
from resperf.copies import COLD_WEIGHTS_BYTES, FOOTPRINTS_MB, weights_cost
from resperf.features import Array
from resperf.layers import BLOCKED_LAYOUTS, Conv, Layer, Move, Reorder
from resperf.platform import Platform
from resperf.records import Record
from resperf.settings import Setting

CONVOLUTIONS, PRODUCTS = "convolutions", "products"
THIN, PLAIN_GROUPED, UNFOLDING = "thin_convolutions", "plain_grouped", "unfolding"
BLOCKED, BLOCKED_GROUPED = "blocked_convolutions", "blocked_grouped"
DEPTHWISE, WIDE_DEPTHWISE = "depthwise", "wide_depthwise"
ACTIVATIONS, ROWS, FUNCTIONS = "activations", "rows", "functions"
INT8, INT8_DEPTHWISE = "int8", "int8_depthwise"
INT8_SUMS, INT8_CONV_SUMS = "int8_sums", "int8_conv_sums"
COPIES, SINGLE_VALUES, REORDERS = "copies", "single_values", "reorders"
MEMORY, CACHES, NODE = "memory", "caches", "node"
GROUPS = (
    CONVOLUTIONS, THIN, PLAIN_GROUPED, UNFOLDING, BLOCKED, BLOCKED_GROUPED, DEPTHWISE,
    WIDE_DEPTHWISE, PRODUCTS, ACTIVATIONS, ROWS, FUNCTIONS, INT8, INT8_SUMS, INT8_CONV_SUMS,
    INT8_DEPTHWISE, COPIES, SINGLE_VALUES, REORDERS, MEMORY, CACHES, NODE,
)  # fmt: skip
_OF_KINDS: Mapping[str, str] = {
    "activation": ACTIVATIONS, "softmax": ROWS, "norm": ROWS, "reduce": ROWS,
}  # fmt: skip
"""Kind of layer -> group of what it computes, if that is no sum of products."""
_SUMS = frozenset({"integer", "dynamic"})
"""Functions of int8 layers that do not requantise their sums: a processor with instructions for
matrices of integers gains most by these."""
_NARROW = 9
"""Largest number of values in the window of a depthwise convolution that is not wide."""
_THIN = 48
"""Most values that a sum of a thin convolution adds: products of matrices then write more than they
compute."""
CACHED_BYTES = 16e6
"""What a layer reads and writes beyond these comes from memory (as in the baseline's terms)."""

OVERHEAD_PER_MB = "overhead_ms_per_mb"
_FAR_MB, _FEWEST_FAR = 64, 2
"""Footprint that no cache holds, and the fewest such whose costs are compared."""
_COSTS: Mapping[str, str] = {
    "call_ms": NODE,
    "reshape_ms": NODE,
    "overhead_ms_per_layer": NODE,
    OVERHEAD_PER_MB: CACHES,
    **{weights_cost(mb): MEMORY for mb in FOOTPRINTS_MB},
}
"""Cost beside layers -> group whose factor it takes."""


@dataclass(frozen=True)
class Speeds(Record):
    """Speeds of the machine that measured a bundle's layers, by which their time is divided.

    Attributes
    ----------
    shortest_ms : float
        Time of the shortest layer.
    cached_bytes_per_ms, memory_bytes_per_ms : float
        Fastest that layers read and write in the caches, and in memory.
    row_ms : float
        Shortest time in which convolutions with groups copy a row of an image for one place of
        their window; 0 if none told.
    """

    shortest_ms: float
    cached_bytes_per_ms: float
    memory_bytes_per_ms: float
    row_ms: float = 0.0

    def __post_init__(self) -> None:
        speeds = (self.shortest_ms, self.cached_bytes_per_ms, self.memory_bytes_per_ms)
        if not all(0 < value < math.inf for value in speeds) or not 0 <= self.row_ms < math.inf:
            raise ValueError("the speeds of an adaptation are damaged")

    @classmethod
    def of(cls, layers: Sequence[Layer], times_ms: Sequence[float]) -> Speeds:
        """Read the speeds off layers, some of them tiny, some that copy.

        Parameters
        ----------
        layers : sequence of Layer
        times_ms : sequence of float (layers,)
            On the bundle's machine.
        """
        moved = [(*_moved_bytes(layer), ms) for layer, ms in zip(layers, times_ms, strict=True)]
        cached = max((near / ms for near, far, ms in moved if not far), default=math.nan)
        memory = max((far / ms for _, far, ms in moved if far), default=cached)
        rows_ms = [
            ms / rows
            for layer, ms in zip(layers, times_ms, strict=True)
            if _rest_of(layer) == PLAIN_GROUPED and (rows := _unfolded_rows(layer))
        ]
        cached = memory if math.isnan(cached) else cached
        return cls(min(times_ms), cached, memory, min(rows_ms, default=0.0))

    def shares(self, layers: Sequence[Layer], times_ms: Sequence[float] | Array) -> Array:
        """Divide layers' times among `GROUPS`.

        Parameters
        ----------
        layers : sequence of Layer
        times_ms : sequence of float (layers,)
            On the bundle's machine.

        Returns
        -------
        array of float64 (layers, groups)
            Each row adds up to 1.
        """
        found = np.zeros((len(layers), len(GROUPS)))
        if not len(layers):
            return found
        near, far, rows, rest = (np.array(each) for each in zip(*map(_parts, layers), strict=True))
        given_ms = np.asarray(times_ms, dtype=float)
        left_ms = whole_ms = np.where(given_ms > 0, given_ms, self.shortest_ms)
        for group, least_ms in (
            (NODE, np.asarray(self.shortest_ms)),
            (MEMORY, far / self.memory_bytes_per_ms),
            (CACHES, near / self.cached_bytes_per_ms),
            (UNFOLDING, rows * self.row_ms),
        ):
            part_ms = np.minimum(least_ms, left_ms)
            found[:, GROUPS.index(group)] = part_ms / whole_ms
            left_ms = left_ms - part_ms
        found[np.arange(len(layers)), rest] += left_ms / whole_ms
        for group in (COPIES, SINGLE_VALUES, REORDERS):
            copies = rest == GROUPS.index(group)
            found[copies, GROUPS.index(group)] += found[copies, GROUPS.index(CACHES)]
            found[copies, GROUPS.index(CACHES)] = 0.0
        return found


@lru_cache(maxsize=1 << 16)
def _parts(layer: Layer) -> tuple[float, float, int, int]:
    """Return bytes in the caches and in memory, unfolded rows, and the place of the rest's group.

    Networks and searches repeat the same layers.
    """
    return (*_moved_bytes(layer), _unfolded_rows(layer), GROUPS.index(_rest_of(layer)))


def _unfolded_rows(layer: Layer) -> int:
    """Return how many rows a convolution copies to make a product of matrices of it (im2col)."""
    if not isinstance(layer, Conv) or layer.layout in BLOCKED_LAYOUTS:
        return 0
    rows = layer.output_shape[2]
    if rows == layer.output_shape[3] == 1 or (rows == layer.height and layer.taps == 1):
        return 0
    return layer.batch * layer.channels_in * layer.taps * rows


def _rest_of(layer: Layer) -> str:
    """Return the group of the time that moving bytes in their order does not explain."""
    if layer.kind == Reorder.kind:
        return REORDERS
    if (
        isinstance(layer, Move)
        and layer.inner == 1
        and (layer.function == "expand" or layer.step > 1)
    ):
        return SINGLE_VALUES
    if not layer.flops:
        return COPIES  # They wait for values that lie apart.
    if isinstance(layer, Conv):
        return _rest_of_conv(layer)
    if layer.macs and layer.kind.startswith("quantized"):
        if getattr(layer, "function", "") in _SUMS:
            return INT8_CONV_SUMS if "conv" in layer.kind else INT8_SUMS
        return INT8_DEPTHWISE if layer.own_quantities().get("depthwise") else INT8
    if 0 < 2 * layer.macs <= layer.flops:
        return CONVOLUTIONS if "conv" in layer.kind else PRODUCTS
    return _OF_KINDS.get(layer.kind, FUNCTIONS)


def _rest_of_conv(layer: Conv) -> str:
    """Return the group of a convolution by the kernel that runs it."""
    window = layer.taps
    moves_by_one = layer.stride_height == layer.stride_width == 1
    depthwise = window > 1 and 1 < layer.groups == layer.channels_in
    if layer.layout in BLOCKED_LAYOUTS:
        if depthwise:
            return WIDE_DEPTHWISE if window > _NARROW and moves_by_one else DEPTHWISE
        return BLOCKED if layer.groups == 1 or window == 1 else BLOCKED_GROUPED
    if layer.groups > 1:
        return PLAIN_GROUPED
    return THIN if layer.channels_in * window <= _THIN else CONVOLUTIONS


def _moved_bytes(layer: Layer) -> tuple[float, float]:
    """Return the bytes that a layer measured alone moves in the caches, and those in memory.

    Copies of a layer with large weights read them from memory.
    """
    weights = layer.weight_bytes if layer.weight_bytes > COLD_WEIGHTS_BYTES else 0
    others = layer.moved_bytes - weights
    cached = min(others, CACHED_BYTES)
    return cached, weights + others - cached


@dataclass(frozen=True)
class ProbeTimes(Record):
    """What one run of `resperf calibrate` measured, for later ones to be joined with.

    Attributes
    ----------
    at : str
        When, ISO 8601, UTC.
    times_ms : mapping of str to float
        Key of a lowered probe -> execution.
    costs : mapping of str to float
        What a network pays beside its layers; empty if there was no time.
    steady : bool
        Whether the machine was not seen to change its speed meanwhile, nor to be busy.
    drift : float
        As of `Adaptation`, within the run.
    """

    at: str
    times_ms: Mapping[str, float]
    costs: Mapping[str, float] = field(default_factory=dict)
    steady: bool = True
    drift: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 < ms < math.inf for ms in self.times_ms.values()):
            raise ValueError("the times of the calibration layers are damaged")


def counting(runs: Sequence[ProbeTimes]) -> tuple[ProbeTimes, ...]:
    """Return the runs that count: the steady ones, or all if none was."""
    return tuple(each for each in runs if each.steady) or tuple(runs)


def _weights_costs(here: Mapping[str, float], there: Mapping[str, float]) -> dict[str, float]:
    """Return the costs of reading weights, as measured here and on a bundle's machine, smoothed.

    Single ones are off by times their own. At footprints that caches do not hold, the median of
    their ratios counts; at smaller ones no cost is higher.
    """
    names = {weights_cost(mb): mb for mb in FOOTPRINTS_MB}
    far = [
        name
        for name, mb in names.items()
        if mb >= _FAR_MB and min(here.get(name, 0.0), there.get(name, 0.0)) > 0
    ]
    if len(far) < _FEWEST_FAR:
        return {}
    ratio = median(here[name] / there[name] for name in far)
    found = {name: ratio * there[name] for name in far}
    most = min(found.values())
    return {name: min(here[name], most) for name in names if name in here} | found


@dataclass(frozen=True)
class Adaptation(Record):
    """What probe layers taught of a bundle's times on another machine (`resperf calibrate`).

    Attributes
    ----------
    bundle : str
        Mark of the bundle's part (`bundle_id`).
    at : str
        When the probes were measured, ISO 8601, UTC.
    setting : Setting
        Under which they were measured.
    platform : Platform
        Where.
    speeds : Speeds
        Of the bundle's machine.
    correction : Correction
        Group of `GROUPS` -> time on the platform over time on the bundle's machine. `log_width` is
        the bound for nine of ten single probes, each left out of the fit.
    factor_ci : mapping of str to float
        Group -> logarithm of the half width of its factor's 90% interval.
    layer_ci : mapping of str to float
        Group -> logarithm of the half width of the 90% interval of a single layer around its
        factor; `log_width` of the correction where it is absent.
    probes : int
        How many were compared.
    predicted_reference : bool
        Whether the bundle's own predictions stood in for times of the probes on its machine.
    remarks : tuple of str
        How the platform was disturbed meanwhile; empty if it was seen to be steady.
    costs : mapping of str to float
        Costs beside layers as measured on the platform; empty if none were.
    from_bundle : bool
        Whether the bundle holds it, to answer for machines like the platform.
    host_ci : float
        Logarithm of the half width of the 90% interval of how fast such a machine is over the
        platform; 0 for the platform itself.
    drift : float
        How far the slowest turn over the probes, or the slowest run, was from the fastest:
        difference of the medians of the logarithms of their times.
    runs : tuple of ProbeTimes
        The runs of the command here, the latest last, of which those `counting` were joined; empty
        if they were not kept.
    """

    bundle: str
    at: str
    setting: Setting
    platform: Platform
    speeds: Speeds
    correction: Correction
    factor_ci: Mapping[str, float]
    probes: int
    predicted_reference: bool
    remarks: tuple[str, ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict)
    from_bundle: bool = False
    host_ci: float = 0.0
    layer_ci: Mapping[str, float] = field(default_factory=dict)
    drift: float = 0.0
    runs: tuple[ProbeTimes, ...] = ()

    def __post_init__(self) -> None:
        known = (*self.factor_ci.values(), *self.layer_ci.values(), *self._factors, self.drift)
        if not all(0 <= value < math.inf for value in known):
            raise ValueError("the adaptation is damaged")

    @property
    def _factors(self) -> Array:
        return np.array([self.correction.factor(group) for group in GROUPS])

    @property
    def _spreads(self) -> Array:
        usual = self.correction.log_width
        return np.array([self.layer_ci.get(group, usual) for group in GROUPS])

    def scaled(
        self, layers: Sequence[Layer], times_ms: Sequence[float] | Array
    ) -> tuple[Array, Array]:
        """Say how layers' times on the platform follow from those on the bundle's machine.

        Parameters
        ----------
        layers : sequence of Layer
        times_ms : sequence of float (layers,)
            On the bundle's machine.

        Returns
        -------
        factors : array of float64 (layers,)
            Time on the platform over that on the bundle's machine.
        widths : array of float64 (layers,)
            Logarithm of the half width of the 90% interval of a single layer around that.
        """
        parts = self.speeds.shares(layers, times_ms) * self._factors
        factors: Array = parts.sum(axis=1)
        shares = parts / factors[:, np.newaxis]
        # Those without `layer_ci` may have an infinite width: a share of nothing adds nothing.
        layer_ci = np.where(shares > 0, self._spreads, 0.0)
        widths = np.hypot(np.linalg.norm(shares * layer_ci, axis=1), self.host_ci)
        return factors, widths

    def doubt(self, layers: Sequence[Layer], times_ms: Sequence[float] | Array) -> float:
        """Return the logarithm of the half width that `factor_ci` leaves of a sum of layers.

        Factors of different groups are taken to err independently: most probes tell of one group.
        How fast another machine is (`between`) is common to all, and so is half of the `drift`: the
        times are those between the fastest and the slowest turn.

        Parameters
        ----------
        layers : sequence of Layer
        times_ms : sequence of float (layers,)
            On the platform; NaN counts as nothing.
        """
        known_ms = np.nan_to_num(np.asarray(times_ms, dtype=float))
        common = math.hypot(self.host_ci, self.drift / 2)
        if not known_ms.sum() > 0:
            return math.hypot(common, max(self.factor_ci.values()))
        shares = self.speeds.shares(layers, known_ms / self.correction.others)
        weights = known_ms @ shares / known_ms.sum()
        return math.hypot(
            common,
            *(
                weight * self.factor_ci.get(group, 0.0)
                for weight, group in zip(weights, GROUPS, strict=True)
            ),
        )

    def of_costs(self, costs: Mapping[str, float], *, is_alike: bool) -> dict[str, float]:
        """Return the costs beside layers on the platform: as measured, else a bundle's, scaled.

        What a monitor read says nothing of networks. Passing values from layer to layer costs what
        it cost the bundle's machine on hardware that is not `is_alike` that: what chains of layers
        pay for it in one minute is as often nothing as ten times as much
        (docs/calibrating.md).
        """
        groups = {name: _COSTS.get(name) for name in costs}
        scaled = {
            name: costs[name] * self.correction.factor(group)
            for name, group in groups.items()
            if group
        }
        measured = {
            name: ms
            for name, ms in self.costs.items()
            if name in _COSTS and name != OVERHEAD_PER_MB
        }
        found = {**scaled, **measured, **_weights_costs(measured, costs)}
        if OVERHEAD_PER_MB in costs and not is_alike:
            found[OVERHEAD_PER_MB] = costs[OVERHEAD_PER_MB]
        return found

    def summary(self) -> dict[str, Any]:
        """Return what predictions say of it, as plain JSON values."""
        return {
            "at": self.at,
            "machine": self.platform.machine,
            "factors": {group: self.correction.factor(group) for group in self.factor_ci},
            "factor_ci": dict(self.factor_ci),
            "layer_ci": dict(self.layer_ci),
            "drift": self.drift,
            "log_width": None if math.isinf(width := self.correction.log_width) else width,
            "probes": self.probes,
            "runs": [each.at for each in counting(self.runs)],
            "unsteady_runs": [each.at for each in self.runs if each not in counting(self.runs)],
            "predicted_reference": self.predicted_reference,
            "from_bundle": self.from_bundle,
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True)
class TransferredCalibration(Record):
    """How a bundle was transferred from the machine where its layers were measured.

    Attributes
    ----------
    origin : Platform
        Where the layers were measured.
    factor : float
        Layer time on the bundle's machine over layer time on `origin`, fitted to whole networks,
        where no probes were measured.
    adaptation : Adaptation or None
        What probes taught, where they were measured.
    """

    origin: Platform
    factor: float = 1.0
    adaptation: Adaptation | None = None

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError("the factor of another machine is damaged")
