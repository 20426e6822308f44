"""A network run for real: its phases, percentiles and layers, in the format of a prediction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from resperf.backends import Backend, Shapes
from resperf.backends.monitors import Monitor, load_monitor
from resperf.bundle import Bundle
from resperf.campaign import measure_layer
from resperf.campaign.measure import ROUNDS, GuardedRuns, time_network
from resperf.campaign.runner import only_campaign_on
from resperf.devices import target_of
from resperf.errors import MeasurementError, ShapeError, UnsupportedError
from resperf.layers import Layer
from resperf.lowering import LoweredNetwork, lower, too_large
from resperf.measurement import TOLERANCE, Measurement, NetworkRef, Status
from resperf.network import Network, graph_digest, read_network, weightless
from resperf.network.reader import RECURRENT
from resperf.prediction.result import (
    COSTS,
    SHARED,
    LayerPrediction,
    PhaseTimes,
    Skipped,
    Subject,
    times_by_kind,
)
from resperf.quantities import PHASES, layer_quantity
from resperf.timing import KNOWN_READINGS, SamplingProtocol
from resperf.units import format_ms, json_values

PERCENTILES: Mapping[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
FEW_RUNS = 20
"""Below this, the outer percentiles are nothing but the slowest run."""
LAYER_ATTEMPTS = 3
"""A layer is measured at most so often, until the machine had its usual speed meanwhile."""

Progress = Callable[[int, int, str], None]
"""Told (done, all, name) while the layers are measured."""


@dataclass(frozen=True)
class MeasuredNetwork:
    """How long runs of a network took: `resperf.prediction.Prediction`, measured.

    Attributes
    ----------
    subject : Subject
        Without what a prediction says of its bundle.
    phases : PhaseTimes
        Medians; see `resperf.campaign.measure.GuardedRuns`. A re-layout of the network's input or
        output, which a framework runs within its per-run overhead, is counted in preprocess or
        postprocess as measured alone, where layers are measured.
    percentiles_ms : mapping of str to float
        Of whole runs, phase after phase: ``p50``, ``p95``, ``p99``. For networks of a few
        microseconds they lie above the total, as the phases disturb each other.
    timed : GuardedRuns
        All runs, and the rounds that they are of.
    layers : tuple of LayerPrediction
        Lowered layers, each measured alone; empty where that was not asked for.
    skipped : tuple of Skipped
        Operators that were not measured alone. The total contains them.
    call_ms, reshapes_ms : float
        Calibrated costs of the call and of reshapes; the execution phase
        contains them. NaN where layers were not measured.
    quantities : mapping of str to float
        Medians of what was measured beside the phases: the parts of a training step, or
        ``peak_memory_bytes``.
    warnings : tuple of str
    lowering : str
    row : Measurement or None
        The runs as a row of a dataset: samples of the phases as they were timed, re-layouts at
        the network's edges in its execution.
    """

    subject: Subject
    phases: PhaseTimes
    percentiles_ms: Mapping[str, float]
    timed: GuardedRuns
    layers: tuple[LayerPrediction, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    call_ms: float = math.nan
    reshapes_ms: float = math.nan
    quantities: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    lowering: str = ""
    row: Measurement | None = None

    @property
    def total_ms(self) -> float:
        """Sum of the three phases' medians, in milliseconds."""
        return self.phases.total_ms

    @property
    def layers_ms(self) -> float:
        """Sum of the layers of the execution phase, each measured alone; NaN without layers.

        Of training steps, those of the layers.
        """
        if not self.layers:
            return math.nan
        return sum(layer.execution_ms for layer in self.layers if layer.phase == "execution")

    @property
    def remainder_ms(self) -> float:
        """Execution that neither layers measured alone nor calibrated costs explain."""
        return self.phases.execution_ms - self.layers_ms - self.call_ms - self.reshapes_ms

    def __str__(self) -> str:
        """One line: what was measured, and its total where it is one of a run."""
        time = "" if math.isnan(self.total_ms) else f"{format_ms(self.total_ms)} ms, "
        return f"{self.subject.title}: {time}measured"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values with the keys of a prediction, and those of measuring."""
        names = (
            *SHARED, "percentiles_ms", "runs", "call_ms", "reshapes_ms", "remainder_ms",
            "quantities", "warnings", "lowering", "reference_ratio", "rounds", "steady_rounds",
            "kinds", "summary",
        )  # fmt: skip
        values = {**vars(self.subject), **vars(self.timed), **vars(self)}
        values |= {"total_ms": self.total_ms, "remainder_ms": self.remainder_ms}
        values["runs"] = len(self.timed.totals_ms)
        others_ms = {COSTS[name]: values[name] for name in ("call_ms", "reshapes_ms")}
        values["summary"] = str(self)
        values["kinds"] = times_by_kind(self.total_ms, self.phases, self.layers, others_ms)
        return {name: json_values(values[name]) for name in names}


@contextmanager
def reference_monitor(
    backend: Backend, *, bundle: Bundle | None = None, monitor: Monitor | None = None
) -> Iterator[Monitor]:
    """Watch the device with its reference layer inside the ``with`` block.

    Parameters
    ----------
    backend : Backend
    bundle : Bundle, optional
        What is judged, if anything is. Where it was measured on this machine with these settings,
        usual times of the monitor are those of its campaign, and a state that lasts as long as the
        ``with`` block shows.
    monitor : Monitor, optional
        One that has not started yet; by default that of the backend's class of devices.

    Raises
    ------
    MeasurementError
        If the framework cannot run the reference layer.
    CampaignError
        If something else measures on a device that only one may use.
    """
    monitor = monitor or load_monitor(target_of(backend.platform().device, backend.name))
    usual: dict[str, tuple[float, int]] = {}
    if bundle is not None and not (
        backend.platform().hardware_differences(bundle.platform)
        + backend.setting().differences(bundle.setting)
    ):
        usual = {name: (cost_ms, KNOWN_READINGS) for name, cost_ms in bundle.costs.items()}
    with monitor.start(backend, usual=usual, networks=True), only_campaign_on(monitor):
        if monitor.unwatched:
            raise MeasurementError(
                f"{backend.name} cannot run the reference layer on this machine: "
                f"{monitor.unwatched}"
            )
        yield monitor


def measure_network(
    path: Path,
    backend: Backend,
    *,
    monitor: Monitor,
    batch: int | None = None,
    shapes: Shapes | None = None,
    values: Mapping[str, Sequence[float]] | None = None,
    seconds: float = 6.0,
    layers: bool = True,
    protocol: SamplingProtocol | None = None,
    progress: Progress | None = None,
) -> MeasuredNetwork:
    """Run a network and time its phases; then measure each distinct layer alone.

    Parameters
    ----------
    path : Path
        ONNX file; weights that are absent are made up.
    backend : Backend
    monitor : Monitor
        Of this backend; see `reference_monitor`.
    batch : int, optional
        First dimension of the inputs; the file's own by default.
    shapes : mapping of str to sequence of int, optional
        Shapes of inputs with other free dimensions.
    values : mapping of str to sequence of float, optional
        Values of inputs, on which shapes depend; others are made up.
    seconds : float
        Time for whole runs; see `resperf.campaign.measure.guarded_runs`.
    layers : bool
        Measure the layers too, about a third of a second for each distinct one.
    protocol : SamplingProtocol, optional
        Of the layers.
    progress : callable, optional

    Raises
    ------
    NetworkError, ShapeError
        If the file cannot be read, or its shapes depend on values that are not given.
    UnsupportedError
        If the framework cannot run the network.
    MeasurementError
        If it does not fit into the memory of this machine, or of its GPU.
    """
    network = read_network(path, batch=batch, shapes=shapes, values=values)
    if network.undecided:
        raise ShapeError(f"{path}: {network.undecided}")
    takes_values = getattr(backend, "takes_values", False)  # backends of others need not say
    if values and not takes_values:
        raise UnsupportedError(f"{backend.name} is measured with made-up values: leave out --value")
    if why := too_large(network, backend.setting().precision, monitor.memory_bytes()):
        raise MeasurementError(f"{path}: {why} of this device; measure it at a smaller batch")
    if takes_values:
        backend.values = {**_full_lengths(network), **(values or {})}
    subject = NetworkRef(path.stem, graph_digest(weightless(path)))
    timed, row = time_network(
        backend, path, subject, batch=batch, shapes=shapes, seconds=seconds, monitor=monitor
    )
    given = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    setting = dataclasses.replace(row.setting, batch=network.batch, shapes=given)
    medians_ms = {name: median(times_ms) for name, times_ms in timed.phases_ms.items()}
    result = MeasuredNetwork(
        Subject(network.name, row.platform.device, row.setting.framework, network.batch),
        phases=PhaseTimes(*(medians_ms.get(name, math.nan) for name in PHASES)),
        percentiles_ms={
            name: float(np.quantile(timed.totals_ms, share)) for name, share in PERCENTILES.items()
        },
        timed=timed,
        quantities={name: row.value(name) for name in row.samples if name not in PHASES},
        warnings=(*network.notes, *_run_warnings(timed)),
        row=dataclasses.replace(row, setting=setting),
    )
    if not layers:
        return result
    if why := backend.without_layers():
        return dataclasses.replace(result, warnings=(*result.warnings, why))
    lowered = lower(network, row.setting, row.platform)
    measured = measure_layers(
        backend,
        [node.layer for node in lowered.nodes if node.layer is not None],
        protocol or SamplingProtocol(),
        monitor=monitor,
        progress=progress,
    )
    return _with_layers(result, lowered, measured, backend.costs())


def _full_lengths(network: Network) -> dict[str, tuple[int, ...]]:
    """Return values of the inputs that say how long the sequences of recurrent layers are."""
    cast = {node.outputs[0]: node.inputs[0] for node in network.nodes if node.op == "Cast"}
    lengths: dict[str, tuple[int, ...]] = {}
    for node in network.nodes:
        name = "".join(node.inputs[4:5])
        if node.op in RECURRENT and cast.get(name, name) in network.inputs:
            steps = 1 if node.attributes.get("layout") else 0
            lengths[cast.get(name, name)] = (network.tensors[node.inputs[0]].shape[steps],)
    return lengths


def measure_layers(
    backend: Backend,
    layers: Sequence[Layer],
    protocol: SamplingProtocol,
    *,
    monitor: Monitor,
    progress: Progress | None = None,
) -> dict[str, Measurement]:
    """Measure each distinct lowered layer once, again where the machine changed its speed.

    Returns
    -------
    dict of str to Measurement
        By the layer's key.
    """
    distinct = {layer.key: layer for layer in layers}
    measured: dict[str, Measurement] = {}
    for done, (key, layer) in enumerate(distinct.items()):
        if progress is not None:
            progress(done, len(distinct), layer.kind)
        for _ in range(LAYER_ATTEMPTS):
            measured[key] = measure_layer(backend, layer, protocol, monitor=monitor)
            monitor.reading()
            if monitor.is_steady():
                break
    if progress is not None:
        progress(len(distinct), len(distinct), "done")
    return measured


def append_runs(output: Path, runs: Sequence[tuple[Path, MeasuredNetwork]]) -> None:
    """Add measured networks to a dataset, which is made where it is not there.

    Raises
    ------
    DatasetError, OutputError
        As `resperf.dataset.append_networks`.
    """
    from resperf.dataset import append_networks

    rows = [measured.row for _, measured in runs if measured.row is not None]
    contents = [weightless(path) for path in dict.fromkeys(path for path, _ in runs)]
    append_networks(output, rows, {graph_digest(content): content for content in contents})


def _run_warnings(timed: GuardedRuns) -> tuple[str, ...]:
    warnings = []
    if timed.steady_rounds < ROUNDS:
        warnings.append(
            f"the machine did not keep its speed: {timed.rounds - timed.steady_rounds} of "
            f"{timed.rounds} rounds ran while the reference layer was off by more than "
            f"{TOLERANCE:.0%} or a machine check was slow; close other programs and measure again"
        )
    if len(timed.totals_ms) < FEW_RUNS:
        warnings.append(
            f"only {len(timed.totals_ms)} runs: p95 and p99 are about the slowest of them; "
            "use more --seconds"
        )
    return tuple(warnings)


def _with_layers(
    result: MeasuredNetwork,
    lowered: LoweredNetwork,
    measured: Mapping[str, Measurement],
    costs: Mapping[str, float],
) -> MeasuredNetwork:
    """Add the layers, and count re-layouts at the network's edges in the outer phases."""
    layers: list[LayerPrediction] = []
    skipped: list[Skipped] = []
    for node in lowered.nodes:
        row = measured[node.layer.key] if node.layer is not None else None
        if row is None or row.status is not Status.OK:
            if node.role != "view":
                reason = node.reason if row is None else f"{row.status}: {row.detail}"
                skipped.append(Skipped(node.name, node.op, reason))
            continue
        layers.append(
            LayerPrediction(
                name=node.name,
                kind=row.layer.kind,
                execution_ms=row.value(layer_quantity(row.samples)),
                in_range=True,
                key=row.layer.key,
                macs=row.layer.macs,
                sources=node.sources,
                phase=node.role,
            )
        )
    views = sum(node.role == "view" for node in lowered.nodes)
    edges = {
        phase: sum(layer.execution_ms for layer in layers if layer.phase == phase)
        for phase in ("preprocess", "postprocess")
    }
    phases = PhaseTimes(
        result.phases.preprocess_ms + edges["preprocess"],
        result.phases.execution_ms - edges["preprocess"] - edges["postprocess"],
        result.phases.postprocess_ms + edges["postprocess"],
    )
    return dataclasses.replace(
        result,
        phases=phases,
        layers=tuple(layers),
        skipped=tuple(skipped),
        call_ms=costs.get("call_ms", math.nan),
        reshapes_ms=costs.get("reshape_ms", math.nan) * views if views else 0.0,
        warnings=(*result.warnings, *lowered.notes),
        lowering=lowered.method,
    )
