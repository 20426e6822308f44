"""How layers or networks take longer on a machine, or in a user's runs, than a bundle measured.

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
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from statistics import median
from typing import Any, Self

import numpy as np

from resperf.copies import COLD_WEIGHTS_BYTES, FOOTPRINTS_MB, weights_cost
from resperf.features import Array
from resperf.layers import BLOCKED_LAYOUTS, Conv, Layer, Move, Reorder
from resperf.platform import Platform
from resperf.records import Record
from resperf.settings import Setting, same_settings

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
# Eight were tried: convolutions, blocked ones, functions, int8, copies and memory as one each. With
# the six runs that cpu-onnxruntime holds of an EPYC with AVX2, the mean error of networks measured
# there (docs/tables/held-out-cpu.md) goes from 4.9 to 9.2% (22 in float32), 6.2 to 14.7% (7 in
# float16) and 10.4 to 7.5% (8 in int8; but for one common factor 6.4 to 7.4%), that of calibration
# layers left out of the fit from 17 to 22%. With AVX-512, 60 in float32 move by 1.3 points.
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
            raise ValueError("the speeds of a calibration are damaged")

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
        shares = np.zeros((len(layers), len(GROUPS)))
        if not len(layers):
            return shares
        near, far, rows, rest = (
            np.array(column) for column in zip(*map(_parts, layers), strict=True)
        )
        given_ms = np.asarray(times_ms, dtype=float)
        left_ms = whole_ms = np.where(given_ms > 0, given_ms, self.shortest_ms)
        for group, least_ms in (
            (NODE, np.asarray(self.shortest_ms)),
            (MEMORY, far / self.memory_bytes_per_ms),
            (CACHES, near / self.cached_bytes_per_ms),
            (UNFOLDING, rows * self.row_ms),
        ):
            part_ms = np.minimum(least_ms, left_ms)
            shares[:, GROUPS.index(group)] = part_ms / whole_ms
            left_ms = left_ms - part_ms
        shares[np.arange(len(layers)), rest] += left_ms / whole_ms
        for group in (COPIES, SINGLE_VALUES, REORDERS):
            copies = rest == GROUPS.index(group)
            shares[copies, GROUPS.index(group)] += shares[copies, GROUPS.index(CACHES)]
            shares[copies, GROUPS.index(CACHES)] = 0.0
        return shares


@lru_cache(maxsize=1 << 16)
def _parts(layer: Layer) -> tuple[float, float, int, int]:
    """Return bytes in the caches and in memory, unfolded rows, and the index of the rest's group.

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


OVERHEAD_PER_LAYER, OVERHEAD_PER_MB = "overhead_ms_per_layer", "overhead_ms_per_mb"
_FAR_MB, _FEWEST_FAR = 64, 2
"""Footprint that no cache holds, and the fewest such whose costs are compared."""
_COSTS: Mapping[str, str] = {
    "call_ms": NODE,
    "reshape_ms": NODE,
    OVERHEAD_PER_LAYER: NODE,
    OVERHEAD_PER_MB: CACHES,
    **{weights_cost(mb): MEMORY for mb in FOOTPRINTS_MB},
}
"""Cost beside layers -> group whose factor it takes."""


class Source(StrEnum):
    """What was timed for a calibration."""

    LAYERS = "layers"
    NETWORKS = "networks"
    RUNS = "runs"


def group_of(layer: Layer) -> str:
    """Name the layers that share a factor in networks: ``"conv"``, or ``"norm local_response"``."""
    field_name = layer.PLACED_BY
    return f"{layer.kind} {layer.fields()[field_name]}" if field_name else layer.kind


@dataclass(frozen=True)
class LayerTimes(Record):
    """What one run over the calibration layers measured, for later ones to be joined with.

    Attributes
    ----------
    at : str
        When, ISO 8601, UTC.
    times_ms : mapping of str to float
        Key of a lowered layer -> execution.
    costs : mapping of str to float
        What a network pays beside its layers; empty if there was no time.
    steady : bool
        Whether the machine was not seen to change its speed meanwhile, nor to be busy.
    drift : float
        As of `Calibration`, within the run.
    busy : float
        Share of the measurements while other programs used the cores.
    """

    at: str
    times_ms: Mapping[str, float]
    costs: Mapping[str, float] = field(default_factory=dict)
    steady: bool = True
    drift: float = 0.0
    busy: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 < ms < math.inf for ms in self.times_ms.values()):
            raise ValueError("the times of the calibration layers are damaged")


def counting(runs: Sequence[LayerTimes]) -> tuple[LayerTimes, ...]:
    """Return the runs that count: the steady ones, or all if none was."""
    return tuple(run for run in runs if run.steady) or tuple(runs)


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
    far_costs = {name: ratio * there[name] for name in far}
    most = min(far_costs.values())
    return {name: min(here[name], most) for name in names if name in here} | far_costs


@dataclass(frozen=True)
class Calibration(Record):
    """What `resperf calibrate` taught of a machine, or of a user's runs of networks.

    A bundle has a list of them, which apply in its order. Those of layers scale layers in
    isolation, those of networks and of runs what layers take inside networks.

    Attributes
    ----------
    source : Source
    setting : Setting
        Under which was measured; of runs, without batch and shapes.
    platform : Platform
        Where; of runs, only the device.
    factors : mapping of str to float
        Group -> time here over time as the bundle has it before. Groups are those of `GROUPS` for
        layers, else of `group_of`, or of a predictor that answers `quantity` for networks as a
        whole. One that is absent has its kind's factor, else `others`.
    others : float
        Factor of all other groups.
    costs : mapping of str to float
        Costs beside layers. Of layers, as measured; of networks and runs, the overhead between
        layers that takes the place of that of short chains.
    log_width : float
        Nine of ten runs of networks, or single layers, that were left out of the fit take their
        predicted time within a factor of exp(log_width), all batch sizes of a network weighing as
        one; infinite if too few were measured.
    evidence : mapping
        ``networks``: what it was fitted to, networks or calibration layers, and its errors on those
        left out; ``dataset``: name and checksum of a user's runs.
    speeds : Speeds or None
        By which layers' times are divided among `GROUPS`; None where no layers told, and all have
        the factor `others`, or where their times are those of the bundle's own machine.
    factor_ci : mapping of str to float
        Group -> logarithm of the half width of its factor's 90% interval.
    layer_ci : mapping of str to float
        Group -> logarithm of the half width of the 90% interval of a single layer around its
        factor; `log_width` where it is absent.
    predicted_reference : bool
        Whether the bundle's own predictions replaced times of the layers on its machine.
    remarks : tuple of str
        How the platform was disturbed meanwhile; empty if it was seen to be steady.
    drift : float
        How far the slowest turn over the layers, or the slowest run, was from the fastest:
        difference of the medians of the logarithms of their times.
    times : tuple of LayerTimes
        The runs over the layers, the latest last, of which those `counting` were joined.
    host_ci : float
        Logarithm of the half width of the 90% interval of how fast a machine like the platform is
        over the platform; 0 for the platform itself.
    quantity : str
        What a user's times of networks are.
    """

    source: Source
    setting: Setting
    platform: Platform
    factors: Mapping[str, float] = field(default_factory=dict)
    others: float = 1.0
    costs: Mapping[str, float] = field(default_factory=dict)
    log_width: float = math.inf
    evidence: Mapping[str, Any] = field(default_factory=dict)
    speeds: Speeds | None = None
    factor_ci: Mapping[str, float] = field(default_factory=dict)
    layer_ci: Mapping[str, float] = field(default_factory=dict)
    predicted_reference: bool = False
    remarks: tuple[str, ...] = ()
    drift: float = 0.0
    times: tuple[LayerTimes, ...] = ()
    host_ci: float = 0.0
    quantity: str = ""

    def __post_init__(self) -> None:
        factors = (*self.factors.values(), self.others)
        widths = (*self.factor_ci.values(), *self.layer_ci.values(), self.drift, self.host_ci)
        # Of layers they are as measured, speeds of the machine among them.
        costs = () if self.source is Source.LAYERS else self.costs.values()
        if not (
            all(0 < factor < math.inf for factor in factors)
            and all(0 <= value < math.inf for value in (*costs, *widths))
            and self.log_width >= 0
        ):
            raise ValueError(f"the calibration by {self.source} is damaged")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; an unknown width is infinite."""
        width = values["log_width"]
        return super().from_json({**values, "log_width": math.inf if width is None else width})

    @property
    def count(self) -> int:
        """How many networks, or calibration layers, it was fitted to."""
        return len({entry["network"] for entry in self.evidence.get("networks", ())})

    @property
    def at(self) -> str:
        """When layers were measured last, ISO 8601, UTC."""
        return self.times[-1].at

    @property
    def is_reference(self) -> bool:
        """Whether it only holds what the calibration layers take on the bundle's own machine."""
        return self.speeds is None and bool(self.times)

    @property
    def scales_layers(self) -> bool:
        """Whether its factors are of layers in isolation."""
        return self.source is Source.LAYERS and not self.is_reference

    @property
    def from_bundle(self) -> bool:
        """Whether it is of a machine that is only like the one that is predicted."""
        return self.host_ci > 0

    def is_of_runs(self, device: str, setting: Setting) -> bool:
        """Say whether it is of a user's runs on such a device under such a setting."""
        return (self.source, self.platform.device) == (Source.RUNS, device) and (
            same_settings(self.setting) == same_settings(setting)
        )

    def factor(self, group: str) -> float:
        """Return a group's time over its time as the bundle has it before."""
        return self.factors.get(group, self.factors.get(group.partition(" ")[0], self.others))

    @property
    def _factors(self) -> Array:
        return np.array([self.factor(group) for group in GROUPS])

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
        if self.speeds is None:
            return np.full(len(layers), self.others), np.zeros(len(layers))
        parts = self.speeds.shares(layers, times_ms) * self._factors
        factors: Array = parts.sum(axis=1)
        shares = parts / factors[:, np.newaxis]
        layer_ci = np.array([self.layer_ci.get(group, self.log_width) for group in GROUPS])
        # Those without `layer_ci` may have an infinite width: a share of nothing adds nothing.
        layer_ci = np.where(shares > 0, layer_ci, 0.0)
        return factors, np.hypot(np.linalg.norm(shares * layer_ci, axis=1), self.host_ci)

    def sum_ci(self, layers: Sequence[Layer], times_ms: Sequence[float] | Array) -> float:
        """Return the logarithm of the half width that `factor_ci` leaves of a sum of layers.

        Factors of different groups are taken to err independently: most calibration layers tell of
        one group. How fast another machine is (`host_ci`) is common to all, and so is half of the
        `drift`: the times are those between the fastest and the slowest turn.

        Parameters
        ----------
        layers : sequence of Layer
        times_ms : sequence of float (layers,)
            On the platform; NaN counts as nothing.

        Returns
        -------
        float
            Infinite where no layers told.
        """
        if self.speeds is None:
            return math.inf
        known_ms = np.nan_to_num(np.asarray(times_ms, dtype=float))
        common = math.hypot(self.host_ci, self.drift / 2)
        if not known_ms.sum() > 0:
            return math.hypot(common, max(self.factor_ci.values()))
        shares = self.speeds.shares(layers, known_ms / self.others)
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
        if self.speeds is None:
            return dict(self.costs)
        groups = {name: _COSTS.get(name) for name in costs}
        scaled = {name: costs[name] * self.factor(group) for name, group in groups.items() if group}
        measured = {
            name: ms
            for name, ms in self.costs.items()
            if name in _COSTS and name != OVERHEAD_PER_MB
        }
        costs_here = {**scaled, **measured, **_weights_costs(measured, costs)}
        if OVERHEAD_PER_MB in costs and not is_alike:
            costs_here[OVERHEAD_PER_MB] = costs[OVERHEAD_PER_MB]
        return costs_here

    def summary(self) -> dict[str, Any]:
        """Return what predictions say of layers' calibration, as plain JSON values."""
        counted = counting(self.times)
        return {
            "at": self.at,
            "machine": self.platform.machine,
            "factors": {group: self.factor(group) for group in self.factor_ci},
            "factor_ci": dict(self.factor_ci),
            "layer_ci": dict(self.layer_ci),
            "drift": self.drift,
            "log_width": None if math.isinf(self.log_width) else self.log_width,
            "layers": self.count,
            "runs": [run.at for run in counted],
            "unsteady_runs": [run.at for run in self.times if run not in counted],
            "predicted_reference": self.predicted_reference,
            "from_bundle": self.from_bundle,
            "remarks": list(self.remarks),
        }
