"""Predictions and their JSON form, which measured networks share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resperf.bundle import Calibration
from resperf.grouping import grouped
from resperf.lowering import LoweredNode
from resperf.quantities import LATENCY, STEP, WHOLE_CALL, quantity
from resperf.records import Record, csv_of_rows
from resperf.settings import COMPILED_WORDS, Mode
from resperf.units import MS_PER_S, US_PER_MS, format_ms, format_rate, json_values

WHOLE_NETWORK = "whole_network"
"""Value of `Total.rule` if the network was predicted as a whole."""
THREE_PHASE = "three_phase"
"""Value of `Total.rule` for all bundles but those of methods that were published with a rule."""
EXECUTING, OUTER_PHASES = "execution", ("preprocess", "postprocess")
"""Stem of the phase in which layers run, and of those around it."""
USUAL_DISPATCH_US = (5.0, 20.0)
"""What hosts need to start one kernel of eager PyTorch (docs/predicting.md)."""
DISPATCH_GIVEN, DISPATCH_OF_LAYERS = "given", "layers"
"""Values of `Overheads.host_dispatch_source`."""


def known_sum(times_ms: Sequence[float]) -> float:
    """Add up the known times; NaN if there are only unknown ones."""
    valid_ms = [time_ms for time_ms in times_ms if not math.isnan(time_ms)]
    return float(sum(valid_ms)) if valid_ms or not times_ms else math.nan


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
        return known_sum((self.preprocess_ms, self.execution_ms, self.postprocess_ms))


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
        values = {**super().to_json(), "below_bound": self.below_bound}
        del values["from_limits"]
        if self.phase == quantity(WHOLE_CALL).stem:
            values |= {"execution_ms": None, WHOLE_CALL: values["execution_ms"]}
        return values


COMPOSED = "operators of runs"
"""`Parts.inferred_from` of training steps that are added up from these."""
TRANSFER = "transfer"
"""`Skipped.op` of a copy between host and device."""


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
class KindTime(Record):
    """Time of all layers of a kind, or of what a network costs beside its layers.

    Attributes
    ----------
    kind : str
        Kind of layers, class of operators, phase, or cost.
    ms : float
    layers : int
        How many; 0 for phases and costs, and where a network was predicted as a whole.
    macs : int
    out_of_range : int
        How many of the layers are outside the trained range.
    """

    kind: str
    ms: float
    layers: int = 0
    macs: int = 0
    out_of_range: int = 0


def times_by_kind(
    total_ms: float,
    phases: PhaseTimes,
    layers: Sequence[LayerPrediction],
    others_ms: Mapping[str, float],
) -> list[KindTime]:
    """Return what a total consists of, the slowest kind first.

    Parameters
    ----------
    total_ms : float
    phases : PhaseTimes
    layers : sequence of LayerPrediction
        Those of preprocess and postprocess are part of these phases.
    others_ms : mapping of str to float
        Other parts of the execution. What neither explains is the ``remainder``, without layers
        the ``execution``.
    """
    groups = grouped((layer.kind, layer) for layer in layers if layer.phase == EXECUTING)
    rows = [
        KindTime(
            kind, known_sum([layer.execution_ms for layer in own]), len(own),
            sum(layer.macs for layer in own), sum(not layer.in_range for layer in own),
        )
        for kind, own in groups.items()
    ]  # fmt: skip
    outer_ms = {phase: getattr(phases, f"{phase}_ms") for phase in OUTER_PHASES}
    rows += [KindTime(name, ms) for name, ms in {**others_ms, **outer_ms}.items() if abs(ms) > 0]
    rest_ms = total_ms - math.fsum(row.ms for row in rows)
    if abs(rest_ms) > 1e-9 * total_ms:
        rows.append(KindTime("remainder" if groups else EXECUTING, rest_ms))
    return sorted(rows, key=lambda row: -row.ms)


@dataclass(frozen=True)
class Subject:
    """What was predicted: a network, and what runs it.

    Attributes
    ----------
    network, device, framework : str
    batch : int or None
        First dimension of the network's inputs, if all inputs have the same.
    machine : str
        Machine that is predicted, and the one that measured the layers if that is another.
    bundle : str
        Folder of the bundle.
    method : str
        That the bundle was trained by.
    framework_version : str
        That the layers were measured with; empty if not known.
    precision, compiled : str
        As in `resperf.settings.Setting`.
    """

    network: str
    device: str
    framework: str
    batch: int | None
    machine: str = ""
    bundle: str = ""
    method: str = ""
    framework_version: str = ""
    precision: str = ""
    compiled: str = ""

    @property
    def title(self) -> str:
        """Names of the network and of what runs it: ``"lenet5, batch 1, on cpu with torch"``."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        compiled = COMPILED_WORDS.get(self.compiled, self.compiled)
        how = "".join(f", {word}" for word in (self.precision, compiled) if word)
        return f"{self.network}{batch}, on {self.device} with {self.framework}{how}"


@dataclass(frozen=True)
class Parts:
    """What a network runs, and how long each part takes.

    Attributes
    ----------
    layers : tuple of LayerPrediction
        In the order they run; empty if the network was predicted as a whole.
    times_ms : mapping of str to sequence of float
        Stem of a phase -> times of its layers, those without one included as NaN; of a network that
        was predicted as a whole, its execution.
    skipped : tuple of Skipped
        Operators without a time.
    nodes : tuple of LoweredNode
    lowering : str
        What turned operators into layers: ``"onnxruntime 1.31.1"`` or ``"rules"``.
    copies : str
        Whether the bundle says how many copies of a layer were measured together (``"stored"``).
    quantities : tuple of QuantityPrediction
        Other predicted quantities of the network, such as ``peak_memory_bytes``.
    groups, classes : tuple of Part
        The execution of a network that was predicted as a whole, attributed to groups and to single
        classes of operators; empty if they are not told apart.
    inferred_from : str
        What the execution was inferred from as a whole, such as ``"whole networks on this
        device"``; empty if layers were predicted.
    extrapolated : str
        Why the network as a whole is outside what was measured; empty if it is inside.
    warnings : tuple of str
        Why these times may be off.
    """

    layers: tuple[LayerPrediction, ...] = ()
    times_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    nodes: tuple[LoweredNode, ...] = ()
    lowering: str = ""
    copies: str = "assumed"
    quantities: tuple[QuantityPrediction, ...] = ()
    groups: tuple[Part, ...] = ()
    classes: tuple[Part, ...] = ()
    inferred_from: str = ""
    extrapolated: str = ""
    warnings: tuple[str, ...] = ()

    def quantity(self, name: str) -> QuantityPrediction | None:
        """Return a quantity that was predicted for the network as a whole; None if it was not."""
        return next((prediction for prediction in self.quantities if prediction.name == name), None)


@dataclass(frozen=True)
class Overheads:
    """What a network costs beside its layers.

    Attributes
    ----------
    call_ms : float
        Cost of the call, contained in ``phases.execution_ms``; NaN if not known.
    reshapes_ms : float
        Cost of operators that only change a shape, likewise.
    overhead_ms : float
        Overhead between layers, likewise.
    outer_ms : mapping of str to sequence of float
        Phase of `OUTER_PHASES` -> times of its copies, NaN if not known.
    skipped : tuple of Skipped
        Copies and costs that the bundle does not have.
    missing_costs : tuple of Skipped
        Costs other than operators, such as ``overhead_ms_per_layer``, that the total does not
        contain because the bundle does not have them.
    out_of_range : tuple of (str, str)
        Inputs and outputs larger than all measured copies, and why.
    estimated_phases : tuple of str
        Stems of phases whose copies are estimated, not learnt.
    reshapes_estimated : bool
    host_dispatch_us : float
        Time that the host needs to start one kernel; NaN if not known.
    host_dispatch_source : str
        Where that is from: ``"given"`` by the user, or ``"layers"``.
    kernels : int
        How many the host starts; 0 unless `host_dispatch_us` is known.
    """

    call_ms: float = 0.0
    reshapes_ms: float = 0.0
    overhead_ms: float = 0.0
    outer_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    missing_costs: tuple[Skipped, ...] = ()
    out_of_range: tuple[tuple[str, str], ...] = ()
    estimated_phases: tuple[str, ...] = ()
    reshapes_estimated: bool = False
    host_dispatch_us: float = math.nan
    host_dispatch_source: str = ""
    kernels: int = 0

    @property
    def host_ms(self) -> float:
        """Time that the host needs to start all kernels; NaN if its dispatch is not known."""
        return self.host_dispatch_us * self.kernels / US_PER_MS

    @property
    def host_range_ms(self) -> tuple[float, float]:
        """Least and longest time that the host needs; the time itself if the user stated it.

        Learnt from other hosts, it may be half or twice as long, or any of `USUAL_DISPATCH_US`.
        """
        host_ms = self.host_ms
        if self.host_dispatch_source != DISPATCH_OF_LAYERS:
            return host_ms, host_ms
        fast_ms, slow_ms = (
            dispatch_us * self.kernels / US_PER_MS for dispatch_us in USUAL_DISPATCH_US
        )
        return min(host_ms / 2, fast_ms), max(2 * host_ms, slow_ms)


@dataclass(frozen=True)
class Total:
    """A network's time, added up.

    Attributes
    ----------
    phases : PhaseTimes
    total_ms : float
        Sum of the three phases as far as they are known. If only the latency of the network as a
        whole was predicted, that.
    rule : str
        Rule by which layers and phases add up (`resperf.prediction.rules`).
    waiting_ms : float
        How much longer the host needs for starting kernels than the device for running them,
        contained in ``phases.execution_ms``.
    """

    phases: PhaseTimes
    total_ms: float
    rule: str = THREE_PHASE
    waiting_ms: float = 0.0


@dataclass(frozen=True)
class Interval:
    """90% interval of a total; NaN if a layer that counts has none.

    It does not include skipped operators.

    Attributes
    ----------
    low_ms, high_ms : float
    log_width : float
        Logarithm of the ratio within which nine of ten totals of whole networks are; infinite if
        none were measured.
    common_width : float
        Logarithm of the ratio of the error that all layers share; infinite if that is not known.
    """

    low_ms: float = math.nan
    high_ms: float = math.nan
    log_width: float = math.inf
    common_width: float = math.inf


@dataclass(frozen=True)
class Remarks:
    """What is to be said of a prediction.

    Attributes
    ----------
    warnings : tuple of str
        Why the numbers may be off.
    notes : tuple of str
        Which of several bundles answers, or that none is of this device.
    assumed : tuple of str
        What the user stated and the prediction takes as it is: how much operators find whose
        output depends on the data, and times of custom operators.
    calibrated_by : Calibration or None
        How the times were scaled from the bundle's machine to this one (`resperf calibrate`).
    advice : str
        What it costs that they were not, and what to do; empty if nothing can be done.
    calibrated_with : int
        Number of networks whose runs, given by the user, correct the total and give its interval.
    too_large : str
        What does not fit into the device's memory; empty if it may fit, or if that is not known.
    """

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    calibrated_by: Calibration | None = None
    advice: str = ""
    calibrated_with: int = 0
    too_large: str = ""


@dataclass(frozen=True)
class Prediction:
    """How long one run of a network takes on a device.

    Attributes
    ----------
    subject : Subject
    parts : Parts
    overheads : Overheads
    total : Total
    interval : Interval
    remarks : Remarks
    """

    subject: Subject
    parts: Parts
    overheads: Overheads
    total: Total
    interval: Interval
    remarks: Remarks

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        """One line: what was predicted, its time with the 90% interval, and the throughput."""
        asked, line = self.asked, self.subject.title
        if asked.name == STEP:
            line += ", training step"
        line += f": {format_ms(asked.value)} ms" if asked.value >= 0 else ": total unknown"
        if not math.isnan(asked.low):
            part = " of what is predicted" if self.skipped else ""
            line += f" (90% interval{part} {format_ms(asked.low)} to {format_ms(asked.high)})"
        if self.complete and not math.isnan(self.samples_per_s):
            line += f", {format_rate(self.samples_per_s)} samples/s"
        return line if self.complete else f"{line}, incomplete"

    @property
    def time_ms(self) -> float:
        """`total_ms`, or the time of a training step if only that was predicted."""
        return self.asked.value

    @property
    def samples_per_s(self) -> float:
        """Throughput: entries of batches per second; NaN if time or batch is not known."""
        return (self.subject.batch or math.nan) / self.time_ms * MS_PER_S

    @property
    def device_ms(self) -> float:
        """The total without waiting for the host."""
        return self.total.total_ms - self.total.waiting_ms

    @property
    def sorting_ms(self) -> float:
        """Time by which devices are compared: without the host, where only others' are known."""
        host_is_known = self.overheads.host_dispatch_source != DISPATCH_OF_LAYERS
        return self.time_ms if host_is_known else self.device_ms

    def by_kind(self) -> list[KindTime]:
        """Return the time of each kind of layers and of all other costs, the slowest first.

        Of a network that was predicted as a whole, the kinds are classes of operators.
        """
        others_ms = {name: getattr(self.overheads, key) for key, name in COSTS.items()}
        others_ms |= {part.name: part.ms for part in self.parts.classes}
        others_ms[WAITING] = self.total.waiting_ms
        return times_by_kind(self.time_ms, self.phases, self.layers, others_ms)

    def to_csv(self, *, kinds: bool = False) -> str:
        """Return the layers as CSV, with `kinds` the rows of `by_kind`."""
        return csv_of_rows(self.to_rows(kinds=kinds))

    def to_rows(self, *, kinds: bool = False) -> list[dict[str, Any]]:
        """Return what `to_csv` writes; of a network without layers always kinds."""
        parts = self.by_kind() if kinds or not self.layers else self.layers
        names = ("network", "device", "framework", "precision", "batch")
        about = {name: getattr(self.subject, name) for name in names}
        return [{**about, **part.to_json()} for part in parts]

    @property
    def total_ms(self) -> float:
        """Milliseconds of one run (`Total.total_ms`)."""
        return self.total.total_ms

    @property
    def low_ms(self) -> float:
        """Lower end of the 90% interval of the total."""
        return self.interval.low_ms

    @property
    def high_ms(self) -> float:
        """Upper end of the 90% interval of the total; does not include `skipped` operators."""
        return self.interval.high_ms

    @property
    def phases(self) -> PhaseTimes:
        """Times of the three phases."""
        return self.total.phases

    @property
    def layers(self) -> tuple[LayerPrediction, ...]:
        """Layers in the order they run."""
        return self.parts.layers

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Operators and copies that the total does not contain."""
        return (*self.parts.skipped, *self.overheads.skipped)

    @property
    def complete(self) -> bool:
        """Whether the total contains all operators and costs."""
        return not self.skipped and not self.overheads.missing_costs

    @property
    def origins(self) -> dict[str, Any]:
        """Where the total's time comes from: ``measured`` and others, shares, and ``..._ms``.

        ``measured`` times were learnt from measurements of this device, ``inferred`` ones from
        those of other devices or of whole networks, ``estimated`` ones from data sheets and other
        measurements;
        ``host`` is time in which the device waits for the host; ``given`` are the user's times of
        custom operators.
        """
        copied = self.overheads.estimated_phases
        learnt_phases = [layer for layer in self.layers if layer.phase not in copied]
        inferred_ms = sum(layer.execution_ms for layer in learnt_phases if layer.inferred)
        if self.parts.inferred_from:
            inferred_ms = self.phases.execution_ms - self.total.waiting_ms
        estimated_ms = [
            *(getattr(self.phases, f"{phase}_ms") for phase in copied),
            *(layer.execution_ms for layer in learnt_phases if layer.estimated),
            self.overheads.reshapes_ms if self.overheads.reshapes_estimated else 0.0,
        ]
        parts_ms = {
            "measured": 0.0,
            "inferred": inferred_ms,
            "estimated": known_sum(estimated_ms),
            "host": self.total.waiting_ms,
            "given": math.fsum(layer.execution_ms for layer in self.layers if layer.given),
        }
        rest_ms = self.total_ms - sum(parts_ms.values())
        # Rounding may leave less than nothing.
        parts_ms["measured"] = 0.0 if rest_ms < 0 else rest_ms
        return self._with_shares(parts_ms)

    @property
    def rests_on(self) -> str:
        """What most of the device's time rests on."""
        if self.parts.inferred_from == COMPOSED:
            return COMPOSED
        words = {
            "measured": "measured layers", "inferred": "other devices",
            "estimated": "data sheet", "given": "your times",
        }  # fmt: skip
        if self.parts.inferred_from.endswith("this device"):
            words["inferred"] = "measured networks"
        return words[max(words, key=self.origins.__getitem__)]

    @property
    def coverage(self) -> dict[str, Any]:
        """How much of the total comes from layers inside the trained range, and what is missing.

        ``in_range_ms`` and ``out_of_range_ms`` are times of layers. ``other_ms`` is that of copies,
        the call, overhead between layers and reshapes. ``in_range``,
        ``out_of_range`` and ``other`` are their shares of the total. ``unknown`` is the number of
        operators and copies that it does not contain. ``macs`` and ``moved_bytes`` are the shares
        that it contains of the network's multiply-accumulates, and of the bytes that its operators
        read and write, NaN if there are none; they are upper bounds if ``unsized`` is not 0, the
        number of skipped operators whose multiply-accumulates or bytes are not known.
        """
        inside_ms = sum(x.execution_ms for x in self.layers if x.in_range and not x.given)
        outside_ms = sum(layer.execution_ms for layer in self.layers if not layer.in_range)
        if self.parts.inferred_from and self.parts.extrapolated:
            outside_ms = self.phases.execution_ms - self.total.waiting_ms
        elif self.parts.inferred_from:
            inside_ms = self.phases.execution_ms - self.total.waiting_ms
        parts_ms = {
            "in_range": inside_ms,
            "out_of_range": outside_ms,
            "other": self.total_ms - inside_ms - outside_ms,
        }
        coverage = {**self._with_shares(parts_ms), "unknown": len(self.skipped)}
        for name in ("macs", "moved_bytes"):
            inside = sum(getattr(layer, name) for layer in self.layers)
            left_out = [getattr(operator, name) for operator in self.skipped]
            whole = inside + sum(work for work in left_out if not math.isnan(work))
            coverage[name] = inside / whole if whole else math.nan
        unsized = sum(math.isnan(operator.macs + operator.moved_bytes) for operator in self.skipped)
        return {**coverage, "unsized": unsized}

    def _with_shares(self, parts_ms: Mapping[str, float]) -> dict[str, float]:
        """Return times of parts of the total, and their shares of it."""
        total_ms = self.total_ms
        return {f"{name}_ms": part_ms for name, part_ms in parts_ms.items()} | {
            name: part_ms / total_ms if total_ms else 0.0 for name, part_ms in parts_ms.items()
        }

    @property
    def asked(self) -> QuantityPrediction:
        """The time of a run, or of a training step where steps were asked for."""
        step = self.parts.quantity(STEP)
        if step is not None and math.isnan(self.total_ms):
            return step
        ends_ms = (self.total_ms, self.low_ms, self.high_ms)
        return QuantityPrediction(LATENCY, *ends_ms, self.subject.method, Mode.INFERENCE)

    @property
    def lower_bound_ms(self) -> float:
        """Sum of the layers' lower bounds on the device; NaN if one is not known."""
        return sum(layer.lower_bound_ms for layer in self.layers) if self.layers else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; measured networks have the keys `SHARED` as well."""
        origins = self.origins
        values: dict[str, Any] = {
            "origins": origins, "estimated_ms": origins["estimated_ms"], "complete": self.complete,
            "lower_bound_ms": self.lower_bound_ms, "coverage": self.coverage,
            "device_ms": self.device_ms, "host_ms": self.overheads.host_ms,
            "samples_per_s": self.samples_per_s, "rests_on": self.rests_on,
            "kinds": self.by_kind(), "summary": str(self),
        }  # fmt: skip
        for part in vars(self).values():
            values |= vars(part)
        values |= {
            "skipped": self.skipped,
            "quantities": {prediction.name: prediction for prediction in self.parts.quantities},
            "missing_costs": [
                {"name": cost.name, "reason": cost.reason} for cost in self.overheads.missing_costs
            ],
            "calibrated_by": self.remarks.calibrated_by and self.remarks.calibrated_by.summary(),
        }
        return {name: json_values(values[name]) for name in (*SHARED, *_OWN)}


COSTS = {
    "call_ms": "per-run overhead",
    "reshapes_ms": "reshapes",
    "overhead_ms": "overhead between layers",
}
"""Attribute of `Overheads` -> its name in texts."""
WAITING = "waiting for the host"
SHARED = ("network", "device", "framework", "batch", "total_ms", "phases", "layers", "skipped")
"""Keys of a document of a predicted or a measured network."""
_OWN = (
    "complete", "machine", "bundle", "method", "call_ms", "reshapes_ms", "overhead_ms", "warnings",
    "lowering", "framework_version", "rule", "estimated_phases", "reshapes_estimated", "copies",
    "estimated_ms",
    "lower_bound_ms", "low_ms", "high_ms", "coverage", "origins", "precision", "compiled",
    "host_dispatch_us", "host_dispatch_source", "kernels", "waiting_ms", "calibrated_with", "notes",
    "groups", "classes", "inferred_from", "extrapolated", "assumed", "quantities", "missing_costs",
    "calibrated_by", "advice", "too_large", "device_ms", "host_ms", "samples_per_s", "rests_on",
    "kinds", "summary",
)  # fmt: skip
