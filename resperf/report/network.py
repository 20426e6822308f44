"""A predicted or measured network as text: total, phases, layers, what was skipped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from resperf.bundle import Calibration
from resperf.errors import Message, printable
from resperf.measurement import layer_and_optimizer, written_kind
from resperf.prediction import (
    WHOLE_NETWORK,
    Failure,
    LayerPrediction,
    Prediction,
    QuantityPrediction,
)
from resperf.prediction.result import DISPATCH_OF_LAYERS, TRANSFER, Overheads, Skipped, Subject
from resperf.quantities import PHASES, WHOLE_CALL, quantity
from resperf.report.tables import counted, ms_cell, percent_cell, rate_cell, table
from resperf.settings import Mode
from resperf.units import MS_PER_S, format_bytes

if TYPE_CHECKING:
    # Only for its type: a prediction is shown without loading what measures.
    from resperf.workflows.measure import MeasuredNetwork

SHOWN_LAYERS = 10
SHOWN_SKIPPED = 10
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


def network_text(result: Prediction | MeasuredNetwork, *, every: bool = False) -> str:
    """Describe one network.

    Parameters
    ----------
    result : Prediction or MeasuredNetwork
    every : bool
        Show all layers and all skipped operators, not only the first ones.
    """
    parts = (
        _totals(result),
        _parts(result, every) if isinstance(result, Prediction) and result.parts.groups else "",
        _layers(result, every) if result.layers else "",
        _skipped(result, every) if result.skipped else "",
        notes_text(result.remarks.notes) if isinstance(result, Prediction) else "",
        warnings_text(
            result.remarks.warnings if isinstance(result, Prediction) else result.warnings
        ),
    )
    return "\n\n".join(filter(None, parts))


def warnings_text(warnings: Sequence[str]) -> str:
    """Return one line per distinct warning."""
    return "\n".join(f"warning: {warning}" for warning in dict.fromkeys(warnings))


def notes_text(notes: Sequence[str]) -> str:
    """Return one line per note on which bundle answers."""
    return "\n".join(f"note: {note}" for note in dict.fromkeys(notes))


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


def _totals(result: Prediction | MeasuredNetwork) -> str:
    count = result.remarks.calibrated_with if isinstance(result, Prediction) else 0
    calibrated = [f"calibrated with {counted(count, 'network')}"] if count else []
    if (
        isinstance(result, Prediction)
        and result.total.rule == WHOLE_NETWORK
        and math.isnan(result.phases.execution_ms)
    ):
        lines = [f"{result.subject.title}: predicted", *map(quantity_line, result.parts.quantities)]
        return "\n".join([*lines, *calibrated])
    remarks = {"total": _total_remark(result), "execution": _contents(result)}
    lines = [
        f"{result.subject.title}: {'predicted' if isinstance(result, Prediction) else 'measured'}"
    ]
    if isinstance(result, Prediction):
        remarks |= dict.fromkeys(result.overheads.estimated_phases, ESTIMATED)
        lines += incomplete_lines(result)
    times_ms = {"total": result.total_ms} | {
        f"  {quantity(name).stem}": getattr(result.phases, name) for name in PHASES
    }
    if not isinstance(result, Prediction) and math.isnan(result.total_ms):
        times_ms = {}  # Of a training step, which has other parts.
    for name, time_ms in times_ms.items():
        remark = remarks.get(name.strip(), "")
        shown = UNKNOWN_TIME if math.isnan(time_ms) else f"{ms_cell(time_ms):>9} ms"
        lines.append(f"{name:13} {shown}" + (f"  ({remark})" if remark else ""))
    if not isinstance(result, Prediction):
        lines += [
            f"{quantity(name).stem:13} {quantity_cell(value, quantity(name).unit)}"
            for name, value in result.quantities.items()
        ]
        shown = ", ".join(f"{name} {ms_cell(ms)}" for name, ms in result.percentiles_ms.items())
        lines.append(f"{result.runs} whole runs: {shown} ms")
        return "\n".join(lines)
    lines += [
        quantity_line(prediction)
        for prediction in result.parts.quantities
        if prediction.name not in PHASES
    ]
    if result.layers:
        lines.append(_coverage(result))
    lines += filter(None, [_origins(result)])
    if not math.isnan(result.overheads.host_ms):
        lines.append(_host(result))
    lines += calibrated
    if result.remarks.calibrated_by is not None:
        lines.append(_scaled(result.remarks.calibrated_by))
    lines += [f"assumed: {printable(assumption)}" for assumption in result.remarks.assumed]
    return "\n".join(lines)


def incomplete_lines(prediction: Prediction, *, listed: bool = True) -> list[str]:
    """Say what share of the network's work the total covers and what is missing, if anything.

    `listed` refers to a list of the skipped operators below.
    """
    lines = [f"{TOO_LARGE}: {x}"] if (x := prediction.remarks.too_large) else []
    if prediction.complete:
        return lines
    coverage = prediction.coverage
    unsized = coverage["unsized"]
    which = "known " if unsized else ""
    shares = {"multiply-adds": coverage["macs"], "bytes": coverage["moved_bytes"]}
    parts = [
        f"{share_cell(share)} of the network's {which}{what}"
        for what, share in shares.items()
        if not math.isnan(share)
    ]
    rest = f"; the size of {counted(unsized, 'operator')} is not known" if unsized else ""
    work = " and ".join(parts) or "an unknown share of the network's work"
    lines.append(f"{INCOMPLETE}: the total covers {work}{rest}")
    if prediction.skipped:
        skipped = _left_out(prediction.skipped) + (", listed below" if listed else "")
        lines.append(f"the total does not include {skipped}")
    if prediction.overheads.missing_costs:
        names = " and ".join(f"no {cost.name}" for cost in prediction.overheads.missing_costs)
        lines.append(
            "the total does not include overhead between layers: the bundle's dataset holds "
            f"{names}"
        )
    return lines


def _mark(prediction: Prediction) -> str:
    marks = {TOO_LARGE: prediction.remarks.too_large, INCOMPLETE: not prediction.complete}
    return ", ".join(mark for mark, applies in marks.items() if applies)


def share_cell(share: float) -> str:
    """Write a share, rounded down: 0% only for nothing, 100% only for all."""
    if 0 < share < 0.01:
        return "less than 1%"
    return f"{math.floor(share * 100)}%"


def _coverage(prediction: Prediction) -> str:
    """Say how much of the predicted time is inside the trained range."""
    shares = prediction.coverage
    return (
        f"of the total, {shares['in_range']:z.0%} is layers inside the trained range, "
        f"{shares['out_of_range']:z.0%} layers outside it, {shares['other']:z.0%} other costs"
    )


def _origins(prediction: Prediction) -> str:
    """Say what share of the time was measured, inferred and estimated, unless all was measured."""
    shares = prediction.origins
    if not shares["inferred"] and not shares["estimated"] and not shares["given"]:
        return ""
    words = {
        "measured": "learnt from measurements of this device",
        "inferred": f"inferred from {prediction.parts.inferred_from or 'other devices'}",
        "estimated": f"{ESTIMATED} from data sheets and other measurements",
        "host": "waiting for the host",
        "given": "given by the user",
    }
    # Rounding may leave a share of almost nothing.
    percents = {what: f"{shares[name]:z.0%}" for name, what in words.items()}
    listed = ", ".join(f"{share} {what}" for what, share in percents.items() if share != "0%")
    return f"of the total's time: {listed}"


def _host(prediction: Prediction) -> str:
    """Compare the host's dispatch with the device's time."""
    costs, total = prediction.overheads, prediction.total
    device_ms = total.phases.execution_ms - total.waiting_ms
    learnt = " (of the hosts that measured; yours: --host-dispatch-us)"
    source = learnt if costs.host_dispatch_source == DISPATCH_OF_LAYERS else ""
    dispatch = f"{round(costs.host_dispatch_us, 1):g} us{source}"
    return (
        f"execution is the larger of host dispatch, {dispatch} x {costs.kernels} kernels = "
        f"{ms_cell(costs.host_ms)} ms, and device time, "
        f"{ms_cell(device_ms)} ms"
    )


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


def _total_remark(result: Prediction | MeasuredNetwork) -> str:
    """Describe a predicted total: its interval, its estimated part, its lower bound."""
    if not isinstance(result, Prediction):
        return ""
    parts = []
    if not math.isnan(result.low_ms):
        part = " of what is predicted" if result.skipped else ""
        parts.append(f"90% interval{part} {ms_cell(result.low_ms)} to {ms_cell(result.high_ms)}")
    if result.parts.extrapolated:
        parts.append(f"extrapolated: {result.parts.extrapolated}")
    if (estimated_ms := result.origins["estimated_ms"]) > 0:
        parts.append(f"{ms_cell(estimated_ms)} of it {ESTIMATED}")
    if result.lower_bound_ms > 0:
        parts.append(f"at least {ms_cell(result.lower_bound_ms)} at the device's peak")
    return ", ".join(parts)


def _contents(result: Prediction | MeasuredNetwork) -> str:
    """List the parts of the execution phase that are not layers."""
    costs = result.overheads if isinstance(result, Prediction) else result
    parts = []
    if costs.call_ms > 0:
        parts.append(f"per-run overhead {ms_cell(costs.call_ms)}")
    if costs.reshapes_ms > 0:
        mark = f", {ESTIMATED}" if isinstance(costs, Overheads) and costs.reshapes_estimated else ""
        parts.append(f"reshapes {ms_cell(costs.reshapes_ms)}{mark}")
    if isinstance(costs, Overheads) and costs.overhead_ms > 0:
        parts.append(f"overhead between layers {ms_cell(costs.overhead_ms)}")
    return f"of this {', '.join(parts)}" if parts else ""


def _parts(prediction: Prediction, every: bool) -> str:
    """Attribute the execution to groups of operators, with `every` also to single classes."""
    title = (
        "groups of operators: attributed from the times of whole networks, not measured; bands of "
        "equally good fits"
    )
    levels = [prediction.parts.groups, *([prediction.parts.classes] if every else [])]
    rows = [
        [group.name, ms_cell(group.ms), f"{ms_cell(group.low)}-{ms_cell(group.high)}",
         percent_cell(group.ms / prediction.total_ms)]
        for parts in levels
        for group in sorted(parts, key=lambda part: -part.ms)
    ]  # fmt: skip
    headings = ("operators", "ms", "band", "of total")
    return f"{title}\n" + table(headings, rows, text=headings[:1])


def _left_out(skipped: Sequence[Skipped]) -> str:
    copies = sum(entry.op == TRANSFER for entry in skipped)
    counts = {"operator": len(skipped) - copies, TRANSFER: copies}
    return " and ".join(counted(count, what) for what, count in counts.items() if count)


def layer_remarks(layer: LayerPrediction) -> list[str]:
    """Return remarks on a predicted time, its range included; empty strings where none apply."""
    reason = layer.reason if layer.from_limits else f"out of range: {layer.reason}"
    return ["" if layer.in_range else reason, *_marks(layer)]


def _marks(layer: LayerPrediction) -> list[str]:
    bound = f"the device needs at least {ms_cell(layer.lower_bound_ms)} ms"
    given = "given by the user" if layer.given else ""
    return [given, ESTIMATED if layer.estimated else "", bound if layer.below_bound else ""]


def layer_rows(layers: Sequence[LayerPrediction], total_ms: float) -> list[list[str]]:
    """Return the cells of layers: name, kind, ms, interval, share, GMAC, remark."""
    rows = []
    for layer in layers:
        remarks = [
            f"in {layer.phase}" if layer.phase != "execution" else "",
            *layer_remarks(layer),
        ]
        remark = "; ".join(filter(None, remarks))
        share = layer.execution_ms / total_ms if total_ms else float("nan")
        rows.append(
            [layer.name, layer.kind, ms_cell(layer.execution_ms), interval_cell(layer),
             percent_cell(share), f"{layer.macs / 1e9:.3f}", remark]
        )  # fmt: skip
    return rows


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


def interval_cell(result: LayerPrediction | QuantityPrediction) -> str:
    """Write the bounds of a layer's or a network's time; empty if none are known."""
    if isinstance(result, QuantityPrediction):
        low_ms, high_ms = result.low, result.high
    else:
        low_ms, high_ms = result.low_ms, result.high_ms
    return "" if math.isnan(low_ms) else f"{ms_cell(low_ms)}-{ms_cell(high_ms)}"


LAYER_HEADINGS = ("layer", "kind", "ms", "90% interval", "of total", "GMAC", "remark")
TEXT_HEADINGS = ("layer", "kind", "remark", "device", "framework", "")
"""Headings of the columns of text."""


def _layers(result: Prediction | MeasuredNetwork, every: bool) -> str:
    slowest = sorted(result.layers, key=lambda layer: -layer.execution_ms)
    shown = slowest if every else slowest[:SHOWN_LAYERS]
    count = len(slowest)
    more = "" if len(shown) == count else f": {len(shown)} of {count}, --all shows every one"
    rows = layer_rows(shown, result.total_ms)
    return f"layers, slowest first{more}\n" + table(LAYER_HEADINGS, rows, text=TEXT_HEADINGS)


def _skipped(result: Prediction | MeasuredNetwork, every: bool) -> str:
    """List skipped operators, one line per operator type and reason."""
    where = "in the total" if isinstance(result, Prediction) else "measured in isolation"
    groups: dict[tuple[str, str], list[str]] = {}
    reasons = [Message.of(operator.reason) for operator in result.skipped]
    for operator, reason in zip(result.skipped, reasons, strict=True):
        groups.setdefault((operator.op, reason.general), []).append(operator.name)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))
    lines = [
        f"{len(names)} x {op}: {reason} ({_named(names, len(names) if every else SHOWN_SOURCES)})"
        for (op, reason), names in (largest if every else largest[:SHOWN_SKIPPED])
    ]
    more = "" if every else "; --all names every one"
    if len(largest) > len(lines):
        lines.append(f"and {len(largest) - len(lines)} more reasons")
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


def _joined(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Join equal lines of several devices, (device, line) each, and name the first devices."""
    names: dict[str, dict[str, None]] = {}
    for name, line in lines:
        names.setdefault(line, {})[name] = None
    return [f"{_named(list(devices), SHOWN_DEVICES)}{line}" for line, devices in names.items()]


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
    rows = [
        [name, prediction.subject.framework, _batch_cell(prediction.subject.batch),
         _mark(prediction), ms_cell(prediction.asked.value),
         interval_cell(prediction.asked),
         ms_cell(prediction.phases.execution_ms), ms_cell(prediction.origins["estimated_ms"]),
         str(len(prediction.skipped) or ""),
         "network" if prediction.parts.extrapolated
         else str(sum(not x.in_range for x in prediction.layers))]
        for name, prediction in zip(names, predictions, strict=True)
    ]  # fmt: skip
    parts = [subjects[0].network if predictions else "no bundle can predict this network"]
    if rows:
        headings = (
            "device", "framework", "batch", "", "total ms", "90% interval", "execution",
            "estimated", "skipped", "out of range",
        )  # fmt: skip
        parts[0] += "\n" + table(headings, rows, text=TEXT_HEADINGS)
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
        "\n".join(f"not predicted for {line}" for line in _joined(failed)),
        "\n".join(f"damaged: {failure.error}" for failure in failures if not failure.device),
        "\n".join(_joined(lacking)),
        "\n".join(
            f"assumed: {printable(x)}"
            for x in (predictions[0].remarks.assumed if predictions else ())
        ),
        notes_text(_joined(notes)),
        warnings_text(_joined(warnings)),
    ]
    return "\n\n".join(filter(None, parts))


def batches_text(results: Sequence[Prediction | MeasuredNetwork]) -> str:
    """Compare batch sizes of one network: total, time of each image of a batch, images a second.

    Parameters
    ----------
    results : sequence of Prediction or MeasuredNetwork
        An image is one entry of a batch, whatever the network reads.
    """
    rows = []
    for result in results:
        predicted = result if isinstance(result, Prediction) else None
        time_ms = predicted.asked.value if predicted else result.total_ms
        batch = math.nan if result.subject.batch is None else result.subject.batch
        rows.append(
            [_batch_cell(result.subject.batch),
             _mark(predicted) if predicted else "",
             ms_cell(time_ms), interval_cell(predicted.asked) if predicted else "",
             ms_cell(time_ms / batch), rate_cell(batch / time_ms * MS_PER_S)]
        )  # fmt: skip
    headings = ("batch", "", "total ms", "90% interval", "ms per image", "images/s")
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
            [ms_cell(layer.execution_ms), interval_cell(layer), f"{layer.macs / 1e9:.3f}",
             _fields(layer.key), remark]
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
