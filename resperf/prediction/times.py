"""How long layers take: by themselves, and inside a lowered network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from resperf.bundle import Bundle, group_of
from resperf.devices import device_facts, estimated_layer_ms, estimated_ms, lower_bound_ms
from resperf.devices.estimate import CARDS
from resperf.devices.facts import ideal_ms
from resperf.errors import Message, UnsupportedError, listed, printable
from resperf.layers import Layer
from resperf.lowering import (
    LoweredNetwork,
    LoweredNode,
    lower_layers,
    multiplied,
    slow_kernel,
    work_of,
)
from resperf.measurement import layer_key, written_kind
from resperf.network import Network
from resperf.prediction.calibrated import extra_weights_ms, network_factor
from resperf.prediction.data_sheet import Limits, limits_of, sheet_facts
from resperf.prediction.result import (
    EXECUTING,
    OUTER_PHASES,
    LayerPrediction,
    Parts,
    QuantityPrediction,
    Skipped,
)
from resperf.prediction.rules import RULE_OF_METHOD, composable, composed
from resperf.quantities import EXECUTION, PHASES, QUANTITIES, Level
from resperf.settings import HALF_TYPES, PASSES, PRECISION_OF, Setting
from resperf.targets import DEFAULT
from resperf.units import US_PER_MS

_NAMED = 8
"""Operators that an error names."""
_RESIZING = "torch"
"""Framework whose kernel of linear and cubic resizes takes plane after plane."""
LEAST_SHARE = 0.4
"""Smallest share of a layer's isolated time when its weights are in a nearer cache level."""


class Time(NamedTuple):
    """One entry of `resperf.bundle.Times`."""

    ms: float
    in_range: bool
    low_ms: float
    high_ms: float
    reason: str
    estimated: bool = False
    """From the device's limits alone."""


def layer_times(
    bundle: Bundle,
    layers: Sequence[Layer],
    quantity: str = EXECUTION,
    optimizers: Sequence[str] = (),
) -> list[Time]:
    """Predict lowered layers.

    Parameters
    ----------
    bundle : Bundle
    layers : sequence of Layer
        Lowered; kinds may be mixed.
    quantity : str
        A name of `resperf.quantities.QUANTITIES`.
    optimizers : sequence of str, optional
        Of each layer's training step; empty for inference.

    Returns
    -------
    list of Time
        In their order.
    """
    times = bundle.predict(layers, quantity, optimizers)
    columns = (
        column.tolist() for column in (times.ms, times.in_range, times.low_ms, times.high_ms)
    )
    return list(map(Time, *columns, times.reason))


TimesByKey = Mapping[str, tuple[Time, float]]
"""Key of a lowered layer -> its execution, and the share of it in which the device works."""


def times_by_key(bundle: Bundle, layers: Sequence[Layer]) -> TimesByKey:
    """Predict the execution of lowered layers of one or many networks, each distinct one once."""
    distinct = {layer.key: layer for layer in layers}
    chosen = [*distinct.values()]
    shares = bundle.gpu_busy_fraction(chosen).tolist()
    return dict(zip(distinct, zip(layer_times(bundle, chosen), shares, strict=True), strict=True))


def priced(time: Time, layer: Layer, limits: Limits, bundle: Bundle) -> Time:
    """Return a layer's time; if it has none, an estimate from the device's limits, if known.

    Of a type that was not measured, as much shorter or longer than float32 as these say.
    """
    card, dtype = sheet_facts(bundle), getattr(layer, "dtype", "float32")
    if card is None or layer.kind not in bundle.kinds:
        lacking = False
    elif bundle.serves_unseen:
        # Predictors of many cards know the speed of units that no row of the card shows.
        lacking = dtype in PRECISION_OF and math.isnan(card.peak_of(dtype))
    else:
        lacking = dtype not in bundle.part["ranges"].get(layer.kind, {}).get("dtype", [dtype])
    if not lacking and not math.isnan(time.ms):
        return time
    if (facts := limits()) is None:
        return time._replace(ms=math.nan, low_ms=math.nan, high_ms=math.nan)
    sheet = estimated_layer_ms(
        layer, facts, by_plane=card is not None and _by_plane(bundle.setting)
    )
    if math.isnan(sheet.ms):
        reason = f"{facts.device} has no peak of {dtype}"
        return Time(math.nan, False, math.nan, math.nan, reason, estimated=True)
    if not lacking:
        reason = f"no predictor for {layer.kind}"
        return Time(sheet.ms, False, sheet.low_ms, sheet.high_ms, reason, estimated=True)
    plain = layer.replace(dtype="float32")
    (measured,) = layer_times(bundle, [plain])
    ratio = sheet.ms / estimated_layer_ms(plain, facts).ms
    low_ms = min(sheet.low_ms, ratio * measured.low_ms)
    high_ms = max(sheet.high_ms, max(ratio, 1.0) * measured.high_ms)
    return Time(ratio * measured.ms, False, low_ms, high_ms, time.reason, estimated=True)


def _by_plane(setting: Setting) -> bool:
    """Whether a kernel of the framework's own resizes images with channels first."""
    return setting.framework == _RESIZING and not setting.is_compiled and setting.layout != "nhwc"


def layer_prediction(
    bundle: Bundle,
    layer: Layer,
    time: Time,
    *,
    name: str,
    phase: str,
    sources: tuple[str, ...] = (),
    optimizer: str = "",
) -> LayerPrediction:
    """Describe a lowered layer's predicted time.

    Parameters
    ----------
    bundle : Bundle
        Tells which times are estimates; its device gives the lower bound.
    layer : Layer
    time : Time
    name, phase, sources
        As in `LayerPrediction`.
    optimizer : str
        Of the layer's training step; empty for inference.
    """
    facts = device_facts(bundle.device)
    passes = PASSES if optimizer else 1
    bound_ms = math.nan if facts is None else lower_bound_ms(layer, facts, passes)
    if not time.in_range and time.ms < bound_ms:
        # What was not measured is not faster than the data sheet.
        high_ms = max(time.high_ms, CARDS.high * bound_ms)
        time = time._replace(ms=bound_ms, low_ms=bound_ms, high_ms=high_ms)
    kind = written_kind(layer.kind, optimizer)
    stem = QUANTITIES[bundle.layer_quantity].stem
    estimated = time.estimated or f"{kind} {stem}" in bundle.estimates
    return LayerPrediction(
        name=name,
        kind=kind,
        execution_ms=time.ms,
        in_range=time.in_range,
        reason=time.reason,
        low_ms=time.low_ms,
        high_ms=time.high_ms,
        key=layer_key(layer, optimizer),
        macs=layer.macs * passes,
        moved_bytes=layer.moved_bytes,
        sources=sources,
        phase=phase,
        estimated=estimated and not math.isnan(time.ms),
        from_limits=time.estimated,
        inferred=not estimated and bundle.infers(kind, getattr(layer, "dtype", "float32")),
        lower_bound_ms=bound_ms,
    )


def predict_layers(
    layers: Sequence[Layer], bundle: Bundle, optimizers: Sequence[str] = ()
) -> list[LayerPrediction]:
    """Predict single layers: their execution, or whole calls if the bundle has only these.

    Parameters
    ----------
    layers : sequence of Layer
        They are first lowered for the bundle's framework, one to one.
    bundle : Bundle
    optimizers : sequence of str, optional
        Of each layer's training step; empty for inference.

    Returns
    -------
    list of LayerPrediction
        Kinds without a predictor are estimated from the device's limits; without any, and of
        training steps, ``execution_ms`` is NaN. ``phase`` says what it contains.
    """
    bundle = bundle.without_session()
    given = optimizers or [""] * len(layers)
    lowered = lower_layers(layers, bundle.setting, bundle.platform)
    predicted = layer_times(bundle, lowered, bundle.layer_quantity, given)
    limits = limits_of(bundle)
    times = [
        # What a training step takes beside its passes is not known from a data sheet.
        priced(time, layer, (lambda: None) if optimizer else limits, bundle)
        for time, layer, optimizer in zip(predicted, lowered, given, strict=True)
    ]
    return [
        layer_prediction(
            bundle,
            layer,
            time,
            name=f"{written_kind(layer.kind, optimizer)}_{index}",
            phase=QUANTITIES[bundle.own_quantity(written_kind(layer.kind, optimizer))].stem,
            optimizer=optimizer,
        )
        for index, (layer, time, optimizer) in enumerate(zip(lowered, times, given, strict=True))
    ]


def time(
    network: Network,
    lowered: LoweredNetwork,
    bundle: Bundle,
    times: TimesByKey,
    quantities: Mapping[str, QuantityPrediction],
    custom: CustomTimes | None,
    *,
    estimate: bool = True,
) -> Parts:
    """Return the times of a lowered network's layers, and quantities that follow from theirs.

    Parameters
    ----------
    network : Network
    lowered : LoweredNetwork
    bundle : Bundle
    times : TimesByKey
        Times of its layers by themselves.
    quantities : mapping of str to QuantityPrediction
        What predictors of whole networks say.
    custom : CustomTimes or None
        Times that the user states.
    estimate : bool
        Whether nodes without a predictor are estimated by the device's limits, so that only those
        of unknown work are skipped.
    """
    limits: Limits = limits_of(bundle) if estimate else lambda: None
    with_layer = [node.layer for node in lowered.nodes if node.layer is not None]
    isolated = [times[layer.key][0] for layer in with_layer]
    shares, extra_ms = [1.0] * len(isolated), [0.0] * len(isolated)
    if bundle.method not in RULE_OF_METHOD:  # The published rules add up isolated layers.
        shares = [times[layer.key][1] for layer in with_layer]
        extra_ms = extra_weights_ms(lowered, bundle, [layer_time.ms for layer_time in isolated])
    predicted = iter(zip(isolated, extra_ms, shares, strict=True))
    layers: list[LayerPrediction] = []
    skipped: list[Skipped] = []
    times_ms: dict[str, list[float]] = {phase: [] for phase in (EXECUTING, *OUTER_PHASES)}
    counted: set[str] = set()
    is_asked = bundle.framework == DEFAULT.framework and bundle.platform.is_processor
    for node in lowered.nodes:
        if node.role == "view":
            continue
        own = None if node.layer is None else next(predicted)
        if is_asked and slow_kernel(network, node):
            own = None
        part: LayerPrediction | Skipped | None = None
        if custom is not None and (own is None or math.isnan(own[0].ms)):
            part = custom.layer(node)
        if part is None:
            part = (
                _without_layer(network, node, bundle, limits, counted)
                if own is None
                else _in_network(bundle, node, limits, *own)
            )
        phase = EXECUTING if node.role == "unknown" else node.role
        if isinstance(part, Skipped):
            skipped.append(part)
            times_ms[phase].append(math.nan)
        else:
            layers.append(part)
            times_ms[phase].append(part.execution_ms)
    return Parts(
        tuple(layers),
        times_ms,
        tuple(skipped),
        lowered.nodes,
        lowered.method,
        "stored" if bundle.stored_copies else "assumed",
        tuple({**_other_quantities(with_layer, bundle), **quantities}.values()),
        warnings=(
            *lowered.notes,
            *_layer_warnings([layer for layer in layers if layer.kind in bundle.kinds]),
        ),
    )


def _in_network(
    bundle: Bundle, node: LoweredNode, limits: Limits, isolated: Time, more_ms: float, busy: float
) -> LayerPrediction | Skipped:
    """Turn a layer's isolated time into its time inside the network."""
    layer = node.layer
    assert layer is not None
    isolated = priced(isolated, layer, limits, bundle)
    if math.isnan(isolated.ms):
        missing = f"the bundle has no predictor for {layer.kind}"
        reason = isolated.reason if isolated.estimated else missing
        return Skipped(node.name, node.op, reason, layer.macs, layer.moved_bytes)
    factor = busy
    if node.role == EXECUTING:
        factor *= network_factor(bundle, group_of(layer))
    ms, low_ms, high_ms = (
        factor * (max(time_ms + more_ms, LEAST_SHARE * time_ms) if more_ms else time_ms)
        for time_ms in (isolated.ms, isolated.low_ms, isolated.high_ms)
    )
    inside = isolated._replace(ms=ms, low_ms=low_ms, high_ms=high_ms)
    return layer_prediction(
        bundle, layer, inside, name=node.name, phase=node.role, sources=node.sources
    )


def _without_layer(
    network: Network, node: LoweredNode, bundle: Bundle, limits: Limits, counted: set[str]
) -> LayerPrediction | Skipped:
    """Estimate a kernel that no kind of layer describes, if its work and the limits are known.

    An operator with several kernels counts once: its name is added to those `counted`.
    """
    work = work_of(network, [source for source in node.sources if source not in counted])
    counted.update(node.sources)
    facts = None if math.isnan(work.macs + work.moved_bytes) else limits()
    if facts is None:
        return Skipped(node.name, node.op, node.reason or "no layer kind fits this operator", *work)
    factor = network_factor(bundle, node.op)
    op = node.op.rpartition(".")[2]
    dtype, taps = multiplied(network, node.sources)
    if op.casefold() == "matmulnbits":
        dtype = HALF_TYPES.get(bundle.setting.precision, dtype)
    op = slow_kernel(network, node) or op
    sheet = estimated_ms(2 * work.macs, work.moved_bytes, facts, dtype, op)
    if math.isnan(sheet.ms):
        return Skipped(node.name, node.op, f"{facts.device} has no peak of {dtype}", *work)
    is_card = facts.device_class != DEFAULT.device_class
    bound_ms = facts.least_moving_ms(work.moved_bytes)
    if dtype != "float32":  # Which operators have fast algorithms in it is not known.
        bound_ms = max(bound_ms, ideal_ms(2 * work.macs / taps, facts.largest_peak_of(dtype)))
    return LayerPrediction(
        name=node.name,
        kind=node.op,
        execution_ms=factor * sheet.ms,
        in_range=False,
        reason=f"no predictor for {node.op}",
        macs=int(work.macs),
        moved_bytes=int(work.moved_bytes),
        sources=node.sources,
        estimated=True,
        from_limits=True,
        lower_bound_ms=bound_ms if is_card else math.nan,
        low_ms=factor * sheet.low_ms,
        high_ms=factor * sheet.high_ms,
    )


def _other_quantities(layers: Sequence[Layer], bundle: Bundle) -> dict[str, QuantityPrediction]:
    """Compose quantities other than the three phases from predictors of layers."""
    names = [name for name in bundle.layer_quantities if name not in PHASES]
    quantities: dict[str, QuantityPrediction] = {}
    if not names:
        return quantities
    times = {name: layer_times(bundle, layers, name) for name in names}
    for name, row in QUANTITIES.items():
        if Level.NETWORK in row.levels and composable(name, names):
            value, low, high = (
                composed(name, {part: [getattr(t, end) for t in times[part]] for part in names})
                for end in ("ms", "low_ms", "high_ms")
            )
            quantities[name] = QuantityPrediction(
                name, value, low, high, "sum_of_layers", bundle.setting.mode
            )
    return quantities


def _layer_warnings(layers: Sequence[LayerPrediction]) -> Iterator[str]:
    """Count the layers outside the trained range and those below their bounds."""
    groups = {
        "outside the trained range": [
            f"{layer.name} ({layer.reason})" for layer in layers if not layer.in_range
        ],
        "predicted faster than the device's peak": [
            f"{layer.name} ({layer.execution_ms:.3g} ms, at least {layer.lower_bound_ms:.3g} ms)"
            for layer in layers
            if layer.below_bound
        ],
    }
    for what, named in groups.items():
        if named:
            counted = f"{len(named)} of {len(layers)} layers are {what}"
            yield Message(f"{counted}, first {named[0]}", counted)


class CustomTimes:
    """Gives operators without a layer the times that the user states, and counts them.

    Parameters
    ----------
    network : Network
    times_ms : mapping of str to float
        By domain and operator.

    Raises
    ------
    UnsupportedError
        If a time is not above 0, or the network has no such operator.
    """

    def __init__(self, network: Network, times_ms: Mapping[str, float]) -> None:
        self._times_ms = dict(times_ms)
        self._network = network
        self._names = {
            node.name: f"{node.domain}.{node.op}" if node.domain else node.op
            for node in network.nodes
        }
        self._used: Counter[str] = Counter()
        there = dict.fromkeys(self._names.values())
        for name, time_ms in self._times_ms.items():
            if not 0 < time_ms < math.inf:
                raise UnsupportedError(f"{name}: {time_ms} ms is not a time above 0")
            if name not in there:
                others = [op for op in there if "." in op] or list(there)
                named = listed(list(map(printable, others)), _NAMED)
                raise UnsupportedError(
                    f"{network.name} has no operator {name!r} to give a time; it has: {named}"
                )

    def layer(self, node: LoweredNode) -> LayerPrediction | None:
        """Return a node with its stated time; None if it has none."""
        # PyTorch's kernels have names of their own, in lower case, where their shapes are known.
        kernel = node.op.casefold()
        name = next(
            (
                op
                for op in dict.fromkeys(filter(None, map(self._names.get, node.sources)))
                if op in self._times_ms
                and kernel in (op.casefold(), op.rpartition(".")[2].casefold(), "unknown")
            ),
            "",
        )
        if not name:
            return None
        self._used[name] += 1
        time_ms = self._times_ms[name]
        return LayerPrediction(
            name=node.name, kind=node.op, execution_ms=time_ms, in_range=True,
            sources=node.sources, low_ms=time_ms, high_ms=time_ms, given=True,
        )  # fmt: skip

    def statements(self) -> tuple[str, ...]:
        """Say which operators have which stated times.

        Raises
        ------
        UnsupportedError
            If there are times of operators that are predicted without them.
        """
        for name in self._times_ms:
            if name not in self._used:
                raise UnsupportedError(
                    f"{name} of {self._network.name} is predicted by layers, or runs nothing: "
                    f"leave out --custom {name}"
                )
        return tuple(
            f"{count} x {name} takes {_duration(self._times_ms[name])} each (--custom)"
            if count > 1
            else f"{name} takes {_duration(self._times_ms[name])} (--custom)"
            for name, count in self._used.items()
        )


def _duration(time_ms: float) -> str:
    return f"{time_ms:g} ms" if time_ms >= 0.01 else f"{time_ms * US_PER_MS:g} us"
