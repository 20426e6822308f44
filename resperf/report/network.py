"""A predicted or measured network as text: total, phases, layers, what was skipped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from resperf.bundle import Calibration
from resperf.errors import Message, printable
from resperf.grouping import grouped
from resperf.measurement import layer_and_optimizer, written_kind
from resperf.prediction import (
    WHOLE_NETWORK,
    Failure,
    LayerPrediction,
    Prediction,
    QuantityPrediction,
)
from resperf.prediction.result import (
    DISPATCH_OF_LAYERS,
    EXECUTING,
    TRANSFER,
    USUAL_DISPATCH_US,
    Overheads,
    Skipped,
    Subject,
)
from resperf.quantities import PHASES, WHOLE_CALL, quantity
from resperf.report.tables import counted, ms_cell, percent_cell, rate_cell, table
from resperf.settings import Mode
from resperf.units import MS_PER_S, format_bytes

if TYPE_CHECKING:
    # Only for its type: a prediction is shown without loading what measures.
    from resperf.workflows.measure import MeasuredNetwork

_Row = TypeVar("_Row")
SHOWN_LAYERS = 8
SHOWN_SKIPPED = 4
SHOWN_SOURCES = 4
SHOWN_DEVICES = 4
UNKNOWN_BATCH = "as read"
UNKNOWN_TIME = f"{'unknown':>9}"
TOO_LARGE = "TOO LARGE"
"""Begins the answer for a network that does not fit into the device's memory."""
INCOMPLETE = "INCOMPLETE"
"""Begins every total that does not cover the whole network."""
ESTIMATED = "estimated"
"""Marks times that were estimated, not learnt from measurements of this kind."""


def network_text(
    result: Prediction | MeasuredNetwork,
    *,
    every: bool = False,
    by_kind: bool = False,
    said: Collection[str] = (),
) -> str:
    """Describe one network.

    Parameters
    ----------
    result : Prediction or MeasuredNetwork
    every : bool
        Show all layers and all skipped operators, not only the first ones.
    by_kind : bool
        Sum a prediction's time up by kind instead of showing layers.
    said : collection of str
        Notes and warnings that are not repeated.
    """
    remarks = result.remarks if isinstance(result, Prediction) else result
    notes, warnings = (
        [line for line in getattr(remarks, name, ()) if line not in said]
        for name in ("notes", "warnings")
    )
    if isinstance(result, Prediction) and by_kind:
        times = _kinds(result)
    elif isinstance(result, Prediction) and result.parts.groups:
        times = _parts(result, every)
    else:
        times = _layers(result, every) if result.layers else ""
    parts = (
        _predicted(result) if isinstance(result, Prediction) else _measured(result),
        times,
        _skipped(result, every) if result.skipped else "",
        remarks_text(notes, warnings),
    )
    return "\n\n".join(filter(None, parts))


def remarks_text(notes: Sequence[str] = (), warnings: Sequence[str] = ()) -> str:
    """Return one line per distinct note on which bundle answers, and one per warning."""
    lines = [f"note: {note}" for note in dict.fromkeys(notes)]
    return "\n".join([*lines, *(f"warning: {warning}" for warning in dict.fromkeys(warnings))])


def quantity_line(prediction: QuantityPrediction) -> str:
    """Write a quantity with its interval and unit: ``"peak_memory  1.5 MiB  (90% ...)"``."""
    name = prediction.name.removesuffix(f"_{prediction.unit}")
    bounds = ""
    if not math.isnan(prediction.low):
        low, high = (
            quantity_cell(value, prediction.unit) for value in (prediction.low, prediction.high)
        )
        bounds = f"90% interval {low} to {high}, "
    mode = "" if prediction.mode is Mode.INFERENCE else f"{prediction.mode}, "
    return (
        f"{name:13} {quantity_cell(prediction.value, prediction.unit)}  "
        f"({mode}{bounds}by {prediction.method})"
    )


def quantity_cell(value: float, unit: str) -> str:
    """Write a value in its unit."""
    if math.isnan(value):
        return UNKNOWN_TIME
    return format_bytes(value) if unit == "bytes" else f"{ms_cell(value)} {unit}"


def _measured(result: MeasuredNetwork) -> str:
    # Training steps have other parts.
    lines = [str(result), *([] if math.isnan(result.total_ms) else _phases(result))]
    lines += [
        f"{quantity(name).stem:13} {quantity_cell(value, quantity(name).unit)}"
        for name, value in result.quantities.items()
    ]
    shown = ", ".join(f"{name} {ms_cell(ms)}" for name, ms in result.percentiles_ms.items())
    return "\n".join([*lines, f"{len(result.timed.totals_ms)} whole runs: {shown} ms"])


def _predicted(prediction: Prediction) -> str:
    """Begin with the answer; then its parts, what they rest on, and what was assumed.

    They rest on what was measured, inferred and estimated, with their shares of the device's time.
    """
    lines = [str(prediction), *incomplete_lines(prediction)]
    origins, device_ms = prediction.origins, prediction.device_ms
    framework, version = prediction.subject.framework, prediction.subject.framework_version
    words = {
        "measured": "measured" + f" with {framework} {version}" * bool(version),
        "inferred": f"inferred from {prediction.parts.inferred_from or 'other devices'}",
        "estimated": ESTIMATED,
        "given": "given by you",
    }
    shares = {what: origins[f"{name}_ms"] / device_ms for name, what in words.items() if device_ms}
    # Rounding may leave a share of almost nothing.
    basis = [", ".join(f"{x:z.0%} {what}" for what, x in shares.items() if f"{x:z.0%}" != "0%")]
    # What is only estimated has no trained range.
    is_learnt, outside_ms = "100% estimated" not in basis, prediction.coverage["out_of_range_ms"]
    if prediction.parts.extrapolated:
        basis.append(f"extrapolated: {prediction.parts.extrapolated}")
    elif is_learnt and outside_ms >= 0.005 * device_ms > 0:
        basis.append(f"{outside_ms / device_ms:.0%} outside the trained range")
    if prediction.lower_bound_ms >= 0.01 * device_ms > 0:
        basis.append(f"at least {ms_cell(prediction.lower_bound_ms)} ms at the device's peak")
    if prediction.total.rule != WHOLE_NETWORK or not math.isnan(prediction.phases.execution_ms):
        lines += [*_phases(prediction), f"rests on      {'; '.join(filter(None, basis))}"]
    lines += [
        quantity_line(other) for other in prediction.parts.quantities if other.name not in PHASES
    ]
    remarks = prediction.remarks
    if remarks.calibrated_with:
        lines.append(f"calibrated with {counted(remarks.calibrated_with, 'network')}")
    if remarks.calibrated_by is not None:
        lines.append(_scaled(remarks.calibrated_by))
    lines += [f"assumed: {printable(assumption)}" for assumption in remarks.assumed]
    return "\n".join(lines)


def _time_line(name: str, time_ms: float, remark: str = "") -> str:
    shown = UNKNOWN_TIME if math.isnan(time_ms) else f"{ms_cell(time_ms):>9} ms"
    return f"{name:13} {shown}" + (f"  ({remark})" if remark else "")


def _phases(result: Prediction | MeasuredNetwork) -> list[str]:
    """List the phases, and of the execution the times of host and device if both are known.

    Beside the execution stands how it comes about, and its parts that are not layers.
    """
    costs = result.overheads if isinstance(result, Prediction) else result
    words, parts, remarks = [], [], {}
    if costs.call_ms > 0:
        parts.append(f"per-run overhead {ms_cell(costs.call_ms)}")
    if costs.reshapes_ms > 0:
        mark = f", {ESTIMATED}" if isinstance(costs, Overheads) and costs.reshapes_estimated else ""
        parts.append(f"reshapes {ms_cell(costs.reshapes_ms)}{mark}")
    if isinstance(costs, Overheads) and costs.overhead_ms > 0:
        parts.append(f"overhead between layers {ms_cell(costs.overhead_ms)}")
    if isinstance(result, Prediction) and not math.isnan(result.overheads.host_ms):
        words.append("the longer of device and host")
        if (waiting := result.origins["host"]) > 0:
            words.append(f"{waiting:.0%} of the total is waiting for the host")
    words += [f"of this {', '.join(parts)}"] if parts else []
    if isinstance(result, Prediction):
        remarks = {f"{phase}_ms": ESTIMATED for phase in result.overheads.estimated_phases}
    remarks.setdefault("execution_ms", "; ".join(words))
    lines = [
        _time_line(quantity(name).stem, getattr(result.phases, name), remarks.get(name, ""))
        for name in PHASES
    ]
    if isinstance(result, Prediction) and not math.isnan(result.overheads.host_ms):
        lines[2:2] = _host_and_device(result)
    return lines


def incomplete_lines(prediction: Prediction, *, listed: bool = True) -> list[str]:
    """Say what share of the network's work the total covers and what is missing, if anything.

    `listed` refers to a list of the skipped operators below.
    """
    lines = [f"{TOO_LARGE}: {x}"] if (x := prediction.remarks.too_large) else []
    if prediction.complete:
        return lines
    coverage = prediction.coverage
    unsized = coverage["unsized"]
    at_most = "at most " if unsized else ""
    shares = {"multiply-adds": coverage["macs"], "bytes": coverage["moved_bytes"]}
    # What operators of unknown size do may be any share: all of the rest tells nothing.
    parts = [
        f"{at_most}{share_cell(share)} of the network's {what}"
        for what, share in shares.items()
        if share < 1 or (share == 1 and not unsized)
    ]
    rest = f"; the size of {counted(unsized, 'operator')} is not known" if unsized else ""
    work = " and ".join(parts) or "an unknown share of the network's work"
    lines.append(f"{INCOMPLETE}: the total covers {work}{rest}")
    if prediction.skipped:
        skipped = _left_out(prediction.skipped) + (", listed below" if listed else "")
        lines.append(f"the total does not include {skipped}")
    if missing := prediction.overheads.missing_costs:
        lines.append(f"the total does not include overhead between layers: {missing[0].reason}")
    return lines


def _mark(prediction: Prediction) -> str:
    marks = {TOO_LARGE: prediction.remarks.too_large, INCOMPLETE: not prediction.complete}
    return ", ".join(mark for mark, applies in marks.items() if applies)


def share_cell(share: float) -> str:
    """Write a share, rounded down: 0% only for nothing, 100% only for all."""
    return "less than 1%" if 0 < share < 0.01 else f"{math.floor(share * 100)}%"


def _host_and_device(prediction: Prediction) -> list[str]:
    """Show the times of device and host, of which the longer one is the execution."""
    costs = prediction.overheads
    device_ms = prediction.phases.execution_ms - prediction.total.waiting_ms
    launches = f"{costs.kernels} launches x {round(costs.host_dispatch_us, 1):g} us"
    if costs.host_dispatch_source == DISPATCH_OF_LAYERS:
        low_ms, high_ms = map(ms_cell, costs.host_range_ms)
        usual = " to ".join(f"{dispatch_us:g}" for dispatch_us in USUAL_DISPATCH_US)
        launches = (
            f"{low_ms} to {high_ms}: {launches} on the hosts that measured, {usual} are usual; "
            "set yours with --host-dispatch-us"
        )
    return [_time_line("  device", device_ms), _time_line("  host", costs.host_ms, launches)]


def _scaled(calibration: Calibration) -> str:
    """Say by what the times were scaled to this machine, and how sure that is."""
    factors = ", ".join(
        f"{group} {calibration.factor(group):.2f} (within a factor of {math.exp(ci):.2f})"
        for group, ci in calibration.factor_ci.items()
    )
    disturbed = f"; {'; '.join(calibration.remarks)}" if calibration.remarks else ""
    where = "this machine"
    if calibration.from_bundle:
        where = f"a machine more like this one than the bundle's ({calibration.platform.machine})"
    by = f"{calibration.count} calibration layers on {calibration.at[:10]}"
    return f"calibrated for {where} by {by}: {factors}{disturbed}"


def _parts(prediction: Prediction, every: bool) -> str:
    """Attribute the execution to groups of operators, with `every` also to single classes."""
    title = (
        "groups of operators: attributed from the times of whole networks, not measured; bands of "
        "equally good fits"
    )
    rows = [
        [group.name, ms_cell(group.ms), f"{ms_cell(group.low)}-{ms_cell(group.high)}",
         percent_cell(group.ms / prediction.total_ms)]
        for parts in [prediction.parts.groups, *([prediction.parts.classes] if every else [])]
        for group in sorted(parts, key=lambda part: -part.ms)
    ]  # fmt: skip
    headings = ("operators", "ms", "band", "of total")
    return f"{title}\n" + table(headings, rows, text=headings[:1])


def _left_out(skipped: Sequence[Skipped]) -> str:
    copies = sum(entry.op == TRANSFER for entry in skipped)
    counts = {"operator": len(skipped) - copies, TRANSFER: copies}
    return " and ".join(counted(count, what) for what, count in counts.items() if count)


def _kinds(prediction: Prediction) -> str:
    rows = [
        [row.kind, str(row.layers or ""), ms_cell(row.ms),
         percent_cell(row.ms / prediction.total_ms), f"{row.macs / 1e9:.3f}" if row.macs else "",
         str(row.out_of_range or "")]
        for row in prediction.by_kind()
    ]  # fmt: skip
    headings = ("kind", "layers", "ms", "of total", "GMAC", "out of range")
    how = "" if prediction.layers else ", attributed from the times of whole networks, not measured"
    return f"by kind, slowest first{how}\n" + table(headings, rows, text=headings[:1])


def within_text(prediction: Prediction, within_ms: float) -> str:
    """Say which batch fits into a time, and how fast it is; `prediction` is of that batch."""
    time, batch = f"within {ms_cell(within_ms)} ms", prediction.subject.batch
    if math.isinf(within_ms):
        time = "within the device's memory"
    if prediction.time_ms > within_ms:
        return f"{time}: not even batch 1, which takes {ms_cell(prediction.time_ms)} ms"
    if prediction.remarks.too_large:
        return f"{time}: not even batch 1, which is too large for the device's memory"
    return f"{time}: batch {batch} at most, {rate_cell(prediction.samples_per_s)} samples/s"


def _marks(layer: LayerPrediction) -> list[str]:
    """Return remarks on a predicted time; empty strings where none apply."""
    bound = f"the device needs at least {ms_cell(layer.lower_bound_ms)} ms"
    given = "given by the user" if layer.given else ""
    return [given, ESTIMATED if layer.estimated else "", bound if layer.below_bound else ""]


def lowering_text(prediction: Prediction, *, every: bool = False) -> str:
    """List every kernel that the framework runs, with the nodes of the network that became it.

    Only the first of many nodes are named unless `every` is true.
    """
    rows = []
    for node in prediction.parts.nodes:
        remark = "" if node.role == "execution" else node.role
        layer, reason = ("", node.reason) if node.layer is None else (_fields(node.layer.key), "")
        remarks = "; ".join(filter(None, [remark, reason]))
        sources = _named(node.sources, len(node.sources) if every else SHOWN_SOURCES)
        rows.append([node.op, sources, layer, remarks])
    headings = ("kernel", "from nodes", "layer", "remark")
    kernels = table(headings, rows, text=headings)
    return f"lowered by {prediction.parts.lowering}, in the order they run\n{kernels}"


def _named(names: Sequence[str], most: int) -> str:
    shown = ", ".join(names[:most])
    rest = len(names) - most
    return shown + (f" and {rest} more" if rest > 0 else "")


def interval_cell(low_ms: float, high_ms: float) -> str:
    """Write the bounds of a layer's or a network's time; empty if none are known."""
    return "" if math.isnan(low_ms) else f"{ms_cell(low_ms)}-{ms_cell(high_ms)}"


TEXT_HEADINGS = ("layer", "kind", "remark", "device", "framework", "rests on", "")
"""Headings of the columns of text."""


def slowest_first(
    rows: Sequence[_Row], time_ms: Callable[[_Row], float], every: bool
) -> tuple[list[_Row], str]:
    """Return the slowest rows, or all, and a title that says how many these are."""
    slowest = sorted(rows, key=time_ms, reverse=True)
    shown = slowest if every else slowest[:SHOWN_LAYERS]
    count = f": {len(shown)} of {len(rows)}, --all shows every one"
    return shown, "slowest first" + count * (len(shown) < len(rows))


def _layers(result: Prediction | MeasuredNetwork, every: bool) -> str:
    shown, title = slowest_first(result.layers, lambda layer: layer.execution_ms, every)
    rows = []
    for layer in shown:
        # Without `every`, not why a layer is out of range.
        reason = f"out of range: {layer.reason}" if every else "out of range"
        reason = layer.reason if layer.from_limits else reason
        phase = f"in {layer.phase}" if layer.phase != EXECUTING else ""
        remarks = [phase, "" if layer.in_range else reason, *_marks(layer)]
        share = layer.execution_ms / result.total_ms if result.total_ms else math.nan
        rows.append(
            [layer.name, layer.kind, ms_cell(layer.execution_ms),
             interval_cell(layer.low_ms, layer.high_ms), percent_cell(share),
             f"{layer.macs / 1e9:.3f}", "; ".join(filter(None, remarks))]
        )  # fmt: skip
    headings = ("layer", "kind", "ms", "90% interval", "of total", "GMAC", "remark")
    return f"layers, {title}\n" + table(headings, rows, text=TEXT_HEADINGS)


def _skipped(result: Prediction | MeasuredNetwork, every: bool) -> str:
    """List skipped operators, one line per operator type and reason."""
    where = "in the total" if isinstance(result, Prediction) else "measured in isolation"
    reasons = [Message.of(operator.reason) for operator in result.skipped]
    groups = grouped(
        ((operator.op, reason.general), operator.name)
        for operator, reason in zip(result.skipped, reasons, strict=True)
    )
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))
    lines = [
        f"{len(names)} x {op}: {reason} ({_named(names, len(names) if every else SHOWN_SOURCES)})"
        for (op, reason), names in (largest if every else largest[:SHOWN_SKIPPED])
    ]
    more = "" if every else "; --all names every one"
    if len(largest) > len(lines):
        lines.append(f"and {counted(len(largest) - len(lines), 'more reason')}")
    unread = next((reason.unread for reason in reasons if reason.unread), "")
    if unread and isinstance(result, Prediction) and result.total.rule != WHOLE_NETWORK:
        lines.append(f"a time of your own counts them: --custom {unread}=0.5ms")
    return "\n".join([f"not {where}: {_left_out(result.skipped)}{more}", *map(printable, lines)])


def _distinct_names(subjects: Sequence[Subject]) -> list[str]:
    """Name each prediction by its device; if bundles of a device differ, by its bundle's name."""
    bundles: dict[tuple[str, str], set[str]] = {}
    for subject in subjects:
        bundles.setdefault((subject.device, subject.framework), set()).add(subject.bundle)

    def name(subject: Subject) -> str:
        others = bundles[subject.device, subject.framework]
        if len(others) == 1:
            return subject.device
        folder = Path(subject.bundle).name
        if sum(Path(other).name == folder for other in others) > 1:
            folder = subject.bundle
        return folder if folder.startswith(f"{subject.device}-") else f"{subject.device} ({folder})"

    return [name(subject) for subject in subjects]


def _batch_cell(batch: int | None) -> str:
    return UNKNOWN_BATCH if batch is None else str(batch)


def joined(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Join equal lines of several devices, (device, line) each, and name the first devices."""
    names = grouped((line, name) for name, line in dict.fromkeys(lines))
    return [f"{_named(devices, SHOWN_DEVICES)}{line}" for line, devices in names.items()]


def _device_row(name: str, prediction: Prediction) -> list[str]:
    """Return the cells of a device; where its host is not known, without the device's own time."""
    host_ms = prediction.overheads.host_ms
    times = ["", ""] if math.isnan(host_ms) else [ms_cell(prediction.device_ms), ms_cell(host_ms)]
    outside = str(sum(not layer.in_range for layer in prediction.layers))
    return [
        name, prediction.subject.framework, _batch_cell(prediction.subject.batch),
        _mark(prediction), ms_cell(prediction.time_ms),
        interval_cell(prediction.asked.low, prediction.asked.high), *times,
        prediction.rests_on, str(len(prediction.skipped) or ""),
        "network" if prediction.parts.extrapolated else outside,
    ]  # fmt: skip


def everywhere_text(predictions: Sequence[Prediction], failures: Sequence[Failure]) -> str:
    """Compare predictions of several bundles in one table.

    What is said of several devices alike is said once.

    Parameters
    ----------
    predictions : sequence of Prediction
    failures : sequence of Failure
        Bundles that cannot predict the network.
    """
    subjects = [prediction.subject for prediction in predictions]
    names = _distinct_names(subjects)
    rows = [_device_row(*pair) for pair in zip(names, predictions, strict=True)]
    parts = [subjects[0].network if predictions else "no bundle can predict this network"]
    if rows:
        headings = (
            "device", "framework", "batch", "", "total ms", "90% interval", "device ms",
            "host ms", "rests on", "skipped", "out of range",
        )  # fmt: skip
        parts[0] += "\n" + table(headings, rows, text=TEXT_HEADINGS)
    if any(prediction.sorting_ms < prediction.total_ms for prediction in predictions):
        parts.append(
            "host ms: launches as on the hosts that measured. Your host is not known, so rows are "
            "sorted by the device's time; set --host-dispatch-us"
        )
    pairs = {(name, subject.framework) for name, subject in zip(names, subjects, strict=True)}
    counts = Counter(name for name, _ in pairs)
    lacking, notes, warnings = [], [], []
    for name, prediction in zip(names, predictions, strict=True):
        label = f"{name} with {prediction.subject.framework}" if counts[name] > 1 else name
        lacking += [(label, f": {line}") for line in incomplete_lines(prediction, listed=False)]
        notes += [(label, f": {note}") for note in prediction.remarks.notes]
        # Each device would name another layer and reason; the table has the number.
        warnings += [
            (label, f": {Message.of(line).general}") for line in prediction.remarks.warnings
        ]
    failed = [(x.device, f" with {x.framework}: {x.error}") for x in failures if x.device]
    parts += [
        "\n".join(f"not predicted for {line}" for line in joined(failed)),
        "\n".join(f"damaged: {failure.error}" for failure in failures if not failure.device),
        "\n".join(joined(lacking)),
        "\n".join(f"assumed: {printable(x)}" for y in predictions[:1] for x in y.remarks.assumed),
        remarks_text(notes=joined(notes)),
        remarks_text(warnings=joined(warnings)),
    ]
    return "\n\n".join(filter(None, parts))


def batches_text(results: Sequence[Prediction | MeasuredNetwork]) -> str:
    """Compare batch sizes of one network: total, time of each sample of a batch, throughput.

    Parameters
    ----------
    results : sequence of Prediction or MeasuredNetwork
    """
    rows = []
    for result in results:
        predicted = result if isinstance(result, Prediction) else None
        asked = predicted.asked if predicted else None
        time_ms = asked.value if asked else result.total_ms
        batch = math.nan if result.subject.batch is None else result.subject.batch
        rows.append(
            [_batch_cell(result.subject.batch),
             _mark(predicted) if predicted else "",
             ms_cell(time_ms), interval_cell(asked.low, asked.high) if asked else "",
             ms_cell(time_ms / batch), rate_cell(batch / time_ms * MS_PER_S)]
        )  # fmt: skip
    headings = ("batch", "", "total ms", "90% interval", "ms per sample", "samples/s")
    return "all batch sizes\n" + table(headings, rows, text=TEXT_HEADINGS)


def layers_text(layers: Sequence[LayerPrediction]) -> str:
    """List layers without a network, in their order, with the fields that are not the default.

    Parameters
    ----------
    layers : sequence of LayerPrediction
        ``execution_ms`` may be NaN if a bundle has no predictor.
    """
    rows = []
    for layer in layers:
        reason = "" if layer.in_range else layer.reason or "no predictor"
        remark = "; ".join(filter(None, [reason, *_marks(layer)]))
        rows.append(
            [ms_cell(layer.execution_ms), interval_cell(layer.low_ms, layer.high_ms),
             f"{layer.macs / 1e9:.3f}", _fields(layer.key), remark]
        )  # fmt: skip
    whole = any(layer.phase == quantity(WHOLE_CALL).stem for layer in layers)
    headings = ("ms, whole call" if whole else "ms", "90% interval", "GMAC", "layer", "remark")
    return table(headings, rows, text=TEXT_HEADINGS)


def _fields(key: str) -> str:
    layer, optimizer = layer_and_optimizer(key)
    specs = layer.specs
    written = [
        f"{name}={str(value).lower()}"
        for name, value in layer.fields().items()
        if name == "layout" or value != specs[name].default
    ]
    written += [f"optimizer={optimizer}"] * bool(optimizer)
    return " ".join([written_kind(layer.kind, optimizer), *written])
