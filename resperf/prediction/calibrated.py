"""What calibrations change: bundles on this machine, layers inside networks, intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from resperf.bundle import Bundle, is_shipped, load_calibration, nearest_machine
from resperf.copies import PACKED_KINDS, weights_moved_ms
from resperf.devices import is_at_hand, target_of
from resperf.errors import ResperfError
from resperf.lowering import LoweredNetwork
from resperf.platform import Platform, this_platform
from resperf.prediction.result import LayerPrediction, QuantityPrediction
from resperf.prediction.rules import RULE_OF_METHOD
from resperf.quantities import EXECUTION
from resperf.settings import Setting

COSTS = "On this CPU expect 15-70% error; `resperf calibrate` (1 min) brings it to about 8%"
"""Mean errors of float32 networks between the machines of the shipped bundles
(docs/accuracy.md, held-out networks)."""
COSTS_SCALED = (
    "On such a CPU expect 6-8% error, on others more; `resperf calibrate` (1 min) measures this one"
)
"""The shipped bundle's, in float32 (docs/accuracy.md, held-out networks)."""
_HOSTS, _PROCESSORS = 0.2, 0.5
"""`Calibration.host_ci` for another host of the same model of processor, and for another processor
with the same vectors: rough."""
STATE_WIDTH = 0.07
"""Nine of ten totals are off by less than this, as a logarithm, because the state of a CPU's host
changes within minutes or from day to day."""


def calibrated_here(bundle: Bundle) -> Bundle:
    """Return a bundle as it answers on this machine, if `resperf calibrate` was run here.

    If it was not, as on the machine most like this one that the bundle knows.

    Raises
    ------
    BundleError
        If what was stored is damaged.
    """
    here = None if bundle.calibrated_by is not None else _here(bundle)
    if here is None:
        return bundle
    calibration = load_calibration(bundle, here)
    if calibration is None and not bundle.runs_calibrations():
        calibration = nearest_machine(bundle)
        if calibration is not None:
            there = calibration.platform
            same = (here.processor, here.model) == (there.processor, there.model)
            calibration = replace(calibration, host_ci=_HOSTS if same else _PROCESSORS)
    return bundle if calibration is None else bundle.for_machine(calibration)


def why_not_by_layers(bundle: Bundle) -> str:
    """Say why layers cannot calibrate a bundle for another machine; empty if they can."""
    if not is_at_hand(bundle.device) or not bundle.setting.threads:
        return f"it is of {bundle.device}, which resperf does not measure here"
    try:
        row = target_of(bundle.device, bundle.framework)
    except ResperfError as error:
        return str(error)
    if not row.backend or bundle.platform.accelerators:
        return f"only what runs on processors is calibrated by layers, not {row.name}"
    if bundle.layer_quantity != EXECUTION or not bundle.kinds or bundle.many_settings:
        return "it has no execution times of layers of one machine"
    if bundle.method in RULE_OF_METHOD:
        return f"it adds layers up by the published rule of {bundle.method}"
    return ""


def _here(bundle: Bundle) -> Platform | None:
    """Return this machine if a bundle may have been calibrated for it."""
    calibration = bundle.calibrated_by
    if (calibration is not None and not calibration.from_bundle) or why_not_by_layers(bundle):
        return None
    try:
        return replace(this_platform(bundle.platform.device), machine_checks={})
    except ResperfError:
        return None


def advice(bundle: Bundle) -> str:
    """Say in one line what it costs that a bundle was not calibrated for this machine.

    Empty if it was, if its layers were measured here, or if it cannot be.
    """
    here, calibration = _here(bundle), bundle.calibrated_by
    if here is None:
        return ""
    if calibration is None:
        differs = is_shipped(bundle) or here.hardware_differences(bundle.platform)
        if bundle.layer_calibrations or not differs:
            return ""
    there, costs = bundle.origin.machine, COSTS
    if calibration is not None:
        there += f"; scaled as on {bundle.platform.machine}, {bundle.platform.instruction_set}"
        costs = COSTS_SCALED
    return f"Using timings of {there} ({bundle.path.name}). {costs}"


def calibrated_with(bundle: Bundle, quantities: Iterable[QuantityPrediction] = ()) -> int:
    """Return how many networks' runs correct quantities of whole networks; without any, layers."""
    ways: list[tuple[str | None, Setting]] = [
        (quantity.name, replace(bundle.setting, mode=quantity.mode)) for quantity in quantities
    ]
    counts = (
        calibration.count
        for part in bundle.parts
        for name, setting in ways or [(None, bundle.setting)]
        for calibration in part.runs_calibrations(name, setting, bundle.platform)
    )
    return max(counts, default=0)


def widths(
    bundle: Bundle, lowered: LoweredNetwork, layers: Sequence[LayerPrediction]
) -> tuple[float, float]:
    """Return `Interval.log_width` and `Interval.common_width`.

    Calibration layers add what they leave in doubt to the width that networks gave before. Without
    one, that doubt is what all layers share, also where too few networks gave a width after the
    layers; `STATE_WIDTH` is joined.
    """
    calibrations = bundle.network_calibrations
    own = calibrations[-1].log_width if calibrations else math.inf
    last = bundle.calibrated_by
    if last is None and bundle.layer_calibrations and math.isinf(own):
        last = bundle.layer_calibrations[-1]
    if last is None:
        apart = math.isinf(own) and bundle.platform.is_processor
        return own, STATE_WIDTH if apart else math.inf
    names = {layer.name: layer.execution_ms for layer in layers}
    placed = [
        (node.layer, names[node.name])
        for node in lowered.nodes
        if node.layer is not None and node.name in names
    ]
    timed_layers, times_ms = zip(*placed, strict=True) if placed else ((), ())
    ci = last.sum_ci(timed_layers, times_ms)
    if math.isinf(own):
        return own, math.hypot(STATE_WIDTH, ci)
    return math.hypot(own, ci), math.inf


def extra_weights_ms(
    lowered: LoweredNetwork, bundle: Bundle, layers_ms: Sequence[float]
) -> list[float]:
    """Return the extra time of each layer because its weights are in another level of cache.

    Between two uses of a weight, a network reads all its weights, and reads and writes the tensors
    of its largest layer.
    """
    nodes = [(node, node.layer) for node in lowered.nodes if node.layer is not None]
    if not nodes:
        return []
    sizes = [layer.weight_bytes if node.role == "execution" else 0 for node, layer in nodes]
    largest = max(layer.input_bytes + layer.output_bytes for _, layer in nodes)
    faster = math.prod(calibration.others for calibration in bundle.layer_calibrations)
    times_ms = [0.0 if math.isnan(layer_ms) else layer_ms / faster for layer_ms in layers_ms]
    stored = [bundle.stored_copies.get(layer.kind) for _, layer in nodes]
    moved_ms = weights_moved_ms(
        bundle.costs,
        sum(sizes) + largest,
        times_ms,
        sizes,
        [layer.kind in PACKED_KINDS for _, layer in nodes],
        [
            copies.of_layer(time_ms, size) if copies is not None and size else None
            for copies, time_ms, size in zip(stored, times_ms, sizes, strict=True)
        ],
    )
    return list(map(float, moved_ms))


def network_factor(bundle: Bundle, group: str) -> float:
    """Return the time of a group's layers inside a network over what is said of them alone."""
    return math.prod(calibration.factor(group) for calibration in bundle.network_calibrations)
