"""Predictions and their JSON form, which measured networks share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resperf.bundle import Calibration
from resperf.errors import require
from resperf.lowering import LoweredNode
from resperf.quantities import EXECUTION, WHOLE_CALL, quantity
from resperf.records import Record
from resperf.settings import Mode
from resperf.units import US_PER_MS, format_ms, json_values

if TYPE_CHECKING:
    from pandas import DataFrame

WHOLE_NETWORK = "whole_network"
"""Value of `Prediction.rule` if the network was predicted as a whole."""
USUAL_DISPATCH_US = (5.0, 20.0)
"""What hosts need to start one kernel of eager PyTorch (docs/predicting.md)."""
DISPATCH_GIVEN, DISPATCH_OF_LAYERS = "given", "layers"
"""Values of `Prediction.host_dispatch_source`."""


def known_sum(times_ms: Sequence[float]) -> float:
    """Add up the known times; NaN if there are only unknown ones."""
    known = [time_ms for time_ms in times_ms if not math.isnan(time_ms)]
    return float(sum(known)) if known or not times_ms else math.nan


@dataclass(frozen=True)
class PhaseTimes(Record):
    """Times of the three phases, in milliseconds (ResPerfNet, section 4).

    NaN if nothing of a phase is known.

    Attributes
    ----------
    preprocess_ms : float
        From the host's arrays to values on the device, including re-layout of the inputs.
    execution_ms : float
        All layers, reshapes and the call.
    postprocess_ms : float
        From values on the device to the host's arrays.
    """

    preprocess_ms: float
    execution_ms: float
    postprocess_ms: float

    @property
    def total_ms(self) -> float:
        """Sum of the three phases (equation 3) as far as they are known; NaN if none is."""
        times_ms = (self.preprocess_ms, self.execution_ms, self.postprocess_ms)
        return known_sum(times_ms)


@dataclass(frozen=True)
class LayerPrediction(Record):
    """A lowered layer of a network and its predicted time.

    Attributes
    ----------
    name : str
        Name in the lowered graph.
    kind : str
        Layer kind, such as ``"conv"``.
    execution_ms : float
        Time of the layer itself.
    in_range : bool
        Whether the layer is inside the trained range.
    reason : str
        What is out of range, such as ``"height=900 above 512"``; empty in range.
    key : str
        The layer's canonical key.
    macs, moved_bytes : int
        Multiply-accumulates, and bytes read and written.
    sources : tuple of str
        Names of the ONNX nodes that became this layer.
    phase : str
        Phase that the time counts in: ``execution``, or ``preprocess`` and ``postprocess`` for a
        re-layout of a network's input or output. ``whole_call`` for a single layer, from a bundle
        that has only such times.
    estimated : bool
        Whether the time is an estimate from other measurements or from the device's limits,
        without a trained predictor.
    inferred : bool
        Whether the predictor learnt from other devices only.
    given : bool
        Whether the user stated the time, of a custom operator.
    from_limits : bool
        Whether the time is estimated from the device's limits alone, since no predictor is of its
        kind; no part of documents and tables.
    lower_bound_ms : float
        Least possible time on the device (`resperf.devices.lower_bound_ms`); NaN if the device's
        peak is not known.
    low_ms, high_ms : float
        90% interval of the measured time; NaN if not known.
    """

    name: str
    kind: str
    execution_ms: float
    in_range: bool
    reason: str = ""
    key: str = ""
    macs: int = 0
    sources: tuple[str, ...] = ()
    phase: str = "execution"
    estimated: bool = False
    lower_bound_ms: float = math.nan
    low_ms: float = math.nan
    high_ms: float = math.nan
    moved_bytes: int = 0
    inferred: bool = False
    given: bool = False
    from_limits: bool = False

    @property
    def below_bound(self) -> bool | None:
        """Whether the time is below the device's lower bound; None if the bound is not known."""
        if math.isnan(self.lower_bound_ms) or math.isnan(self.execution_ms):
            return None
        return self.execution_ms < self.lower_bound_ms

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        found = {**super().to_json(), "below_bound": self.below_bound}
        del found["from_limits"]
        if self.phase == quantity(WHOLE_CALL).stem:
            found |= {"execution_ms": None, WHOLE_CALL: found["execution_ms"]}
        return found


@dataclass(frozen=True)
class Skipped(Record):
    """Something that the total does not contain.

    Attributes
    ----------
    name, op : str
        The operator's name and type.
    reason : str
        Why it has no time; a `Message`, if other operators may have the same reason.
    macs, moved_bytes : float
        Its multiply-accumulates, and the bytes that it reads and writes, from the graph; 0 for
        entries that are not operators, NaN if not known.
    """

    name: str
    op: str
    reason: str
    macs: float = math.nan
    moved_bytes: float = math.nan


@dataclass(frozen=True)
class Covered:
    """How much of a network's work has a time.

    Attributes
    ----------
    macs, moved_bytes : float
        Shares of the network's multiply-accumulates, and of the bytes that its operators read and
        write; upper bounds if `unsized` is not 0. NaN if there are none.
    unsized : int
        Number of skipped operators whose multiply-accumulates or bytes are not known.
    """

    macs: float
    moved_bytes: float
    unsized: int


@dataclass(frozen=True)
class QuantityPrediction(Record):
    """A quantity of a network other than the three phases.

    Attributes
    ----------
    name : str
        A name of `resperf.quantities.QUANTITIES`.
    value, low, high : float
        In its unit; NaN if not known.
    method : str
        Method of its predictor.
    mode : Mode
        Of the runs that it is of; not always that of the prediction's phases.
    """

    name: str
    value: float
    low: float
    high: float
    method: str
    mode: Mode

    @property
    def unit(self) -> str:
        """Unit of the value and its bounds."""
        return quantity(self.name).unit

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {**super().to_json(), "unit": self.unit}
        del values["name"]
        return values


@dataclass(frozen=True)
class Part(Record):
    """A time attributed to some of a network's operators, which nobody measured by themselves.

    Attributes
    ----------
    name : str
        A group of operators, or a class of them.
    ms : float
    low, high : float
        Band of equally good fits to the times of whole networks, in ms.
    """

    name: str
    ms: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """How long one run of a network takes on a device.

    Attributes
    ----------
    network, device, framework : str
    batch : int or None
        First dimension of the network's inputs, if all inputs have the same.
    phases : PhaseTimes
    layers : tuple of LayerPrediction
        In the order they run.
    skipped : tuple of Skipped
        Operators and copies that the total does not contain.
    call_ms : float
        Cost of the call, contained in ``phases.execution_ms``; NaN if not known.
    reshapes_ms : float
        Cost of operators that only change a shape, likewise.
    overhead_ms : float
        Overhead between layers, likewise.
    warnings : tuple of str
        Why the numbers may be off.
    lowering : str
        What turned operators into layers: ``"onnxruntime 1.31.1"`` or ``"rules"``.
    framework_version : str
        That the layers were measured with; empty if not known.
    rule : str
        The published rule by which the phases were added up: a name of
        `resperf.prediction.rules.RULES`.
    estimated_phases : tuple of str
        Those of preprocess and postprocess that are estimated instead of learnt.
    reshapes_estimated : bool
        Whether the cost of operators that only change a shape is estimated.
    copies : str
        ``"stored"`` if the bundle says how many copies of a layer were measured together, which
        decides in which level of cache their weights were; else ``"assumed"``.
    nodes : tuple of LoweredNode
        What the framework runs, and which of the network's nodes became it.
    log_width : float
        Nine of ten runs of networks inside the trained range take their predicted total within a
        factor of exp(log_width); infinite if no whole networks were measured.
    common_width : float
        Logarithm of the factor by which nine of ten totals are off because of what all layers
        share, the machine's state or its speed; their own errors come on top. Infinite if all
        layers are taken to err together.
    machine : str
        Text naming the machine of the measured times; empty if not known.
    bundle, method : str
        Folder and method of the predictors.
    precision, compiled : str
        Of the setting that was predicted; empty if the bundle does not say.
    host_dispatch_us : float
        What the host was taken to need for starting one kernel; NaN if it is not known.
    host_dispatch_source : str
        ``"given"`` by the user, or learnt from ``"layers"`` whose times contain it; empty if not
        known.
    kernels : int
        Number of kernels that the host starts, if `host_dispatch_us` is known.
    waiting_ms : float
        How much longer the host needs for that than the device for running them, contained in
        ``phases.execution_ms``.
    calibrated_with : int
        Number of networks whose runs, given by the user, correct the total and give its interval.
    notes : tuple of str
        Which of several bundles answers, or that none is of this device.
    quantities : tuple of QuantityPrediction
        Other predicted quantities of the network, such as ``peak_memory_bytes``.
    missing_costs : tuple of Skipped
        Costs other than operators, such as ``overhead_ms_per_layer``, that the total does not
        contain because the bundle does not have them.
    groups, classes : tuple of Part
        The execution of a network that was predicted as a whole, attributed to groups and to single
        classes of operators; empty if they are not told apart.
    inferred_from : str
        What the execution was inferred from as a whole, such as ``"whole networks on this
        device"``; empty if layers were predicted.
    extrapolated : str
        Why the network as a whole is outside what was measured; empty if it is inside.
    calibrated_by : Calibration or None
        How the times were scaled from the bundle's machine to this one (`resperf calibrate`).
    advice : str
        What it costs that they were not, and what to do; empty if nothing can be done.
    assumed : tuple of str
        What the user stated and the prediction takes as it is: how much operators find whose
        output depends on the data, and times of custom operators.
    """

    network: str
    device: str
    framework: str
    batch: int | None
    phases: PhaseTimes
    layers: tuple[LayerPrediction, ...]
    skipped: tuple[Skipped, ...] = ()
    call_ms: float = 0.0
    reshapes_ms: float = 0.0
    overhead_ms: float = 0.0
    warnings: tuple[str, ...] = ()
    lowering: str = ""
    framework_version: str = ""
    rule: str = "three_phase"
    estimated_phases: tuple[str, ...] = ()
    reshapes_estimated: bool = False
    copies: str = "assumed"
    nodes: tuple[LoweredNode, ...] = ()
    log_width: float = math.inf
    common_width: float = math.inf
    machine: str = ""
    bundle: str = ""
    method: str = ""
    missing_costs: tuple[Skipped, ...] = ()
    precision: str = ""
    compiled: str = ""
    host_dispatch_us: float = math.nan
    host_dispatch_source: str = ""
    kernels: int = 0
    waiting_ms: float = 0.0
    calibrated_with: int = 0
    notes: tuple[str, ...] = ()
    quantities: tuple[QuantityPrediction, ...] = ()
    groups: tuple[Part, ...] = ()
    classes: tuple[Part, ...] = ()
    inferred_from: str = ""
    extrapolated: str = ""
    calibrated_by: Calibration | None = None
    advice: str = ""
    assumed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line: what was predicted, the total in ms, and its 90% interval if it is known."""
        if math.isnan(self.total_ms):
            found = "total unknown"
        else:
            found = f"{format_ms(self.total_ms)} ms"
            if not math.isnan(self.low_ms):
                found += f" (90% interval {format_ms(self.low_ms)} to {format_ms(self.high_ms)})"
        left_out = "" if self.complete else ", incomplete"
        return f"{self.title}: {found}{left_out}"

    @property
    def title(self) -> str:
        """Names of the network and of what runs it: ``"lenet5, batch 1, on cpu with torch"``."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        how = "".join(f", {word}" for word in (self.precision, self.compiled) if word)
        return f"{self.network}{batch}, on {self.device} with {self.framework}{how}"

    def to_dataframe(self) -> DataFrame:
        """Return the layers as a table, in the order they run.

        Returns
        -------
        pandas.DataFrame (layers, columns)
            The attributes of `LayerPrediction`, times in ms. No rows if the network was predicted
            as a whole (`groups`).

        Raises
        ------
        MissingExtraError
            If pandas is not installed.
        """
        pandas = require("pandas", "pandas")
        names = [each.name for each in dataclasses.fields(LayerPrediction)]
        names.remove("from_limits")
        rows = [[getattr(layer, name) for name in names] for layer in self.layers]
        table: DataFrame = pandas.DataFrame(rows, columns=names)
        return table

    @property
    def total_ms(self) -> float:
        """Sum of the three phases as far as they are known, in milliseconds.

        If only the latency of the network as a whole was predicted, that.
        """
        if self.rule != WHOLE_NETWORK or not math.isnan(self.phases.execution_ms):
            return self.phases.total_ms
        latency = self.predicted_quantity("latency_ms")
        return math.nan if latency is None else latency.value

    def predicted_quantity(self, name: str) -> QuantityPrediction | None:
        """Return a quantity that was predicted for the network as a whole; None if it was not."""
        return next((each for each in self.quantities if each.name == name), None)

    @property
    def host_ms(self) -> float:
        """Time that the host needs to start all kernels; NaN if its dispatch is not known."""
        return self.host_dispatch_us * self.kernels / US_PER_MS

    @property
    def complete(self) -> bool:
        """Whether the total contains all operators and costs."""
        return not self.skipped and not self.missing_costs

    @property
    def covered(self) -> Covered:
        """Return how much of the network's work the total contains."""

        def share(name: str) -> float:
            inside = sum(getattr(layer, name) for layer in self.layers)
            left_out = [getattr(each, name) for each in self.skipped]
            whole = inside + sum(each for each in left_out if not math.isnan(each))
            return inside / whole if whole else math.nan

        unsized = sum(math.isnan(each.macs + each.moved_bytes) for each in self.skipped)
        return Covered(share("macs"), share("moved_bytes"), unsized)

    @property
    def estimated_ms(self) -> float:
        """How much of the total is estimated from physical costs, not by trained predictors."""
        parts_ms = [
            *(getattr(self.phases, f"{phase}_ms") for phase in self.estimated_phases),
            *(
                layer.execution_ms
                for layer in self.layers
                if layer.estimated and layer.phase not in self.estimated_phases
            ),
            self.reshapes_ms if self.reshapes_estimated else 0.0,
        ]
        return known_sum(parts_ms)

    @property
    def given_ms(self) -> float:
        """How much of the total the user stated, as times of custom operators."""
        return math.fsum(layer.execution_ms for layer in self.layers if layer.given)

    @property
    def _inferred_ms(self) -> float:
        if self.inferred_from:
            return self.phases.execution_ms - self.waiting_ms
        return sum(
            layer.execution_ms
            for layer in self.layers
            if layer.inferred and layer.phase not in self.estimated_phases
        )

    @property
    def origins(self) -> dict[str, Any]:
        """Where the total's time comes from: ``measured`` and others, shares, and ``..._ms``.

        ``measured`` times were learnt from measurements of this device, ``inferred`` ones from
        those of other devices or of whole networks, ``estimated`` ones from data sheets and other
        measurements;
        ``host`` is time in which the device waits for the host; ``given`` are the user's times of
        custom operators.
        """
        parts_ms = {
            "measured": 0.0,
            "inferred": self._inferred_ms,
            "estimated": self.estimated_ms,
            "host": self.waiting_ms,
            "given": self.given_ms,
        }
        rest_ms = self.total_ms - sum(parts_ms.values())
        # Rounding may leave less than nothing.
        parts_ms["measured"] = 0.0 if rest_ms < 0 else rest_ms
        return {
            **{f"{name}_ms": part_ms for name, part_ms in parts_ms.items()},
            **{
                name: part_ms / self.total_ms if self.total_ms else 0.0
                for name, part_ms in parts_ms.items()
            },
        }

    @property
    def lower_bound_ms(self) -> float:
        """Sum of the layers' lower bounds on the device; NaN if one is not known."""
        return sum(layer.lower_bound_ms for layer in self.layers) if self.layers else math.nan

    @property
    def low_ms(self) -> float:
        """Lower end of the 90% interval of the total."""
        return self._bound_ms(-1)

    @property
    def high_ms(self) -> float:
        """Upper end of the 90% interval of the total; does not include `skipped` operators."""
        return self._bound_ms(1)

    def _bound_ms(self, sign: int) -> float:
        """Return the lower (-1) or upper (1) bound; NaN if a layer that counts has none.

        If whole networks were measured, their errors give the width; layers outside the trained
        range add their own intervals. Otherwise different layers err independently around an error
        that all share (`common_width`), or, where that is not known, all together; other costs are
        taken to be equally uncertain. The host's dispatch is taken as it is if the user gave it.
        Learnt from other hosts, it may be half or twice as long, or any of `USUAL_DISPATCH_US`.
        """
        # Times that the user stated are taken as they are.
        device_ms = self.total_ms - self.waiting_ms - self.given_ms
        bound_ms = self._device_bound_ms(sign, device_ms) + self.given_ms
        if math.isnan(self.host_ms) or math.isnan(bound_ms):
            return bound_ms
        host_ms = self.host_ms
        if self.host_dispatch_source == DISPATCH_OF_LAYERS:
            fast_ms, slow_ms = (each * self.kernels / US_PER_MS for each in USUAL_DISPATCH_US)
            host_ms = min(host_ms / 2, fast_ms) if sign < 0 else max(2 * host_ms, slow_ms)
        return max(bound_ms, self.total_ms - self.phases.execution_ms + host_ms)

    def _device_bound_ms(self, sign: int, total_ms: float) -> float:
        """Return the bound of a total in which the device never waits."""
        if self.rule == WHOLE_NETWORK:
            known = self.predicted_quantity(EXECUTION)
            if known is None or math.isnan(total_ms):
                return math.nan
            return total_ms / known.value * (known.low if sign < 0 else known.high)
        layers = [layer for layer in self.layers if not layer.given]
        layers_ms = sum(layer.execution_ms for layer in layers)
        if not layers_ms:
            return math.nan
        bounds_ms = [layer.low_ms if sign < 0 else layer.high_ms for layer in layers]
        if math.isinf(self.log_width):
            if math.isinf(self.common_width):
                return total_ms * sum(bounds_ms) / layers_ms
            off_ms: dict[str, float] = {}
            for layer, bound_ms in zip(layers, bounds_ms, strict=True):
                # Estimates of one kind rest on one guess.
                key = layer.kind if layer.estimated else layer.key
                off_ms[key] = off_ms.get(key, 0.0) + bound_ms - layer.execution_ms
            own = 1 + sign * math.hypot(*off_ms.values()) / layers_ms
            if own <= 0:
                return 0.0
            return total_ms * math.exp(sign * math.hypot(math.log(own), self.common_width))
        ratio = math.exp(sign * self.log_width)
        wider_ms = [
            sign * (bound_ms - layer.execution_ms * ratio)
            for layer, bound_ms in zip(layers, bounds_ms, strict=True)
            # Runs of networks with estimated layers have told how far off such layers are.
            if not layer.in_range and not (self.calibrated_with and layer.estimated)
        ]
        # `not each <= 0` includes NaN.
        return total_ms * ratio + sign * sum(each for each in wider_ms if not each <= 0)

    @property
    def coverage(self) -> dict[str, Any]:
        """How much of the total comes from layers inside the trained range, and what is missing.

        ``in_range_ms`` and ``out_of_range_ms`` are times of layers. ``other_ms`` is that of copies,
        the call, overhead between layers and reshapes. ``in_range``,
        ``out_of_range`` and ``other`` are their shares of the total. ``unknown`` is the number of
        operators and copies that it does not contain. ``macs``, ``moved_bytes`` and ``unsized`` are
        `covered`.
        """
        inside_ms = sum(x.execution_ms for x in self.layers if x.in_range and not x.given)
        outside_ms = sum(layer.execution_ms for layer in self.layers if not layer.in_range)
        if self.inferred_from and self.extrapolated:
            outside_ms = self._inferred_ms
        elif self.inferred_from:
            inside_ms = self._inferred_ms
        parts_ms = {
            "in_range": inside_ms,
            "out_of_range": outside_ms,
            "other": self.total_ms - inside_ms - outside_ms,
        }
        return {
            **{f"{name}_ms": part_ms for name, part_ms in parts_ms.items()},
            **{
                name: part_ms / self.total_ms if self.total_ms else 0.0
                for name, part_ms in parts_ms.items()
            },
            "unknown": len(self.skipped),
            **dataclasses.asdict(self.covered),
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; measured networks have the keys `SHARED` as well."""
        return {
            **values_of(self, *SHARED, *_OWN),
            "quantities": {each.name: each.to_json() for each in self.quantities},
            "missing_costs": [
                {"name": each.name, "reason": each.reason} for each in self.missing_costs
            ],
            "calibrated_by": None if self.calibrated_by is None else self.calibrated_by.summary(),
            "advice": self.advice,
        }


SHARED = ("network", "device", "framework", "batch", "total_ms", "phases", "layers", "skipped")
"""Keys of a document of a predicted or a measured network."""
_OWN = (
    "complete", "machine", "bundle", "method", "call_ms", "reshapes_ms", "overhead_ms", "warnings",
    "lowering", "framework_version", "rule", "estimated_phases", "reshapes_estimated", "copies",
    "estimated_ms",
    "lower_bound_ms", "low_ms", "high_ms", "coverage", "origins", "precision", "compiled",
    "host_dispatch_us", "host_dispatch_source", "kernels", "waiting_ms", "calibrated_with", "notes",
    "groups", "classes", "inferred_from", "extrapolated", "assumed",
)  # fmt: skip


def values_of(result: object, *names: str) -> dict[str, Any]:
    """Return attributes as plain JSON values, in the given order."""
    return {name: json_values(getattr(result, name)) for name in names}
