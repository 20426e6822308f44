"""Conformance: whether a backend keeps the contract of `Backend` on this machine.

One small layer of each kind is built, run, timed and freed, and so is LeNet. Tests run this on
every target that their machine has (`tests/testing/test_backends.py`). The rules:

description
    Setting and platform survive JSON, and are those of the target.
costs
    What a call costs are known times of at least 0.
lowering
    Lowering keeps number and kinds of layers, whose keys can be read back.
building
    A layer is built, or refused with UnsupportedError or MemoryError.
phases
    The phases of its mode are there, in order, in the units of their quantities.
samples
    Each run of a phase gives a number of at least 0.
growth
    Execution of a layer four times as large is not faster.
marginal
    One more copy of a layer takes at most as long as the layer alone.
closing
    What was closed is gone: a later run raises MeasurementError.
memory
    A layer that no memory can hold raises MemoryError or UnsupportedError.
network
    A network is built and run, with the phases of its mode.
sum
    Marginal times of a network's layers add up to about the network's time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median

from resperf.backends import Backend, Built, Phase
from resperf.campaign import Campaign
from resperf.campaign.networks import shipped_networks
from resperf.campaign.sampler import Sampler
from resperf.devices import device_class
from resperf.errors import LayerError, MeasurementError, UnsupportedError, first_line, require
from resperf.layers import KINDS, Activation, Conv, Layer, layer_from_key
from resperf.lowering import lower
from resperf.network import read_network
from resperf.quantities import PHASES, QUANTITIES, STEP, layer_quantity
from resperf.settings import Mode, Setting
from resperf.targets import Target
from resperf.units import format_bytes

TIMED = frozenset({"growth", "marginal", "sum"})
"""Rules about times of a machine that may be disturbed: broken, they are doubtful, not failed."""

FACTOR = 4
ROUNDS, WARMUPS, RUNS = 3, 2, 5
"""What is compared runs in turns; a rule of `TIMED` is broken if it is so in every round."""
FASTER, SLOWER = 0.8, 1.25
"""Ratios of two times of one round that noise explains."""
SLACK_MS = 0.01
"""Differences of two calls of one session that noise explains."""
SUM_BAND = (1 / 3, 3.0)
"""Sum of marginal times over the time of LeNet, which is mostly dispatch on some devices."""
BATCH = 4
BUDGET_MS = 0.3
DRAWS = 3
"""Layers of a kind that are tried until one is not refused."""
MEMORY_MARGIN_BYTES = 4 << 30
_CONSTRAINTS = {
    "largest_tensor_bytes": 400_000, "largest_weight_bytes": 200_000, "largest_macs": 3_000_000,
}  # fmt: skip
_REFUSALS = (UnsupportedError, MemoryError)


class Verdict(StrEnum):
    """How a rule was found."""

    PASSED = "passed"
    FAILED = "failed"
    DOUBTFUL = "doubtful"
    REFUSED = "refused"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One rule on one subject.

    Attributes
    ----------
    rule : str
        Its name, as above.
    subject : str
        The kind of the layer, the network's name, or the target's.
    verdict : Verdict
    detail : str
        What was wrong, or why it was refused or skipped.
    """

    rule: str
    subject: str
    verdict: Verdict
    detail: str = ""


@dataclass(frozen=True)
class Conformance:
    """All findings about one backend."""

    findings: tuple[Finding, ...]

    def of(self, *verdicts: Verdict) -> list[Finding]:
        """Return the findings with one of these verdicts."""
        return [finding for finding in self.findings if finding.verdict in verdicts]

    @property
    def conforms(self) -> bool:
        """Whether no rule failed and at least one layer was built."""
        built = any(finding.rule == "phases" for finding in self.findings)
        return built and not self.of(Verdict.FAILED)


def check_backend(
    backend: Backend, target: Target, *, kinds: Collection[str] = tuple(KINDS)
) -> Conformance:
    """Check a backend against all rules of this module.

    Parameters
    ----------
    backend : Backend
    target : Target
        Its row of the table.
    kinds : collection of str
        Kinds of layers to check.

    Returns
    -------
    Conformance
        No error of the backend is raised: it is a finding.
    """
    (network,) = shipped_networks(["lenet5"])
    findings = [
        *_guarded("description", target.name, _described(backend, target)),
        *_guarded("costs", target.name, _costs(backend, target)),
    ]
    for kind in kinds:
        findings += _guarded("building", kind, _of_kind(backend, kind))
    if any(finding.rule == "phases" for finding in findings):
        findings += _guarded("memory", target.name, _memory(backend))
    findings += _guarded("network", network.stem, _whole(backend, network))
    return Conformance(tuple(findings))


def _guarded(rule: str, subject: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Turn an error that nobody expects of a backend into a failed rule."""
    try:
        yield from findings
    except Exception as error:
        # Whatever else a framework raises would end a campaign.
        yield Finding(rule, subject, Verdict.FAILED, f"{type(error).__name__}: {first_line(error)}")


def _finding(rule: str, subject: str, wrong: str) -> Finding:
    broken = Verdict.DOUBTFUL if rule in TIMED else Verdict.FAILED
    return Finding(rule, subject, broken if wrong else Verdict.PASSED, wrong)


def _described(backend: Backend, target: Target) -> Iterator[Finding]:
    """Read setting and platform back from JSON, and compare them with the target."""
    setting, platform = backend.setting(), backend.platform()
    wrong = []
    for name, value in (("setting", setting), ("platform", platform)):
        again = type(value).from_json(json.loads(json.dumps(value.to_json(), allow_nan=False)))
        if again != value:
            wrong.append(f"{name} is another one after JSON")
    if setting.framework != target.framework:
        wrong.append(f"setting names framework {setting.framework!r}")
    named = device_class(platform.device, setting.framework)
    if named != target.device_class:
        wrong.append(f"platform names device {platform.device!r} of class {named!r}")
    if not setting.framework_version:
        wrong.append("setting has no framework version")
    yield _finding("description", target.name, "; ".join(wrong))


def _costs(backend: Backend, target: Target) -> Iterator[Finding]:
    """Look for the call, which every row of a layer has, and for what a view costs."""
    costs = dict(backend.costs())
    needed = ["call_ms", *(["reshape_ms"] if "reshape_ms" not in target.no_such_costs else [])]
    wrong = [f"no {name}" for name in needed if name not in costs]
    wrong += [f"{name} is {value}" for name, value in costs.items() if not _is_amount(value)]
    yield _finding("costs", target.name, "; ".join(wrong))


def _is_amount(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def small_layers(kind: str, count: int = DRAWS) -> list[Layer]:
    """Draw small layers from a kind's own ranges, always the same."""
    campaign = Campaign.from_mapping(
        {"name": "conformance", "kinds": {kind: {}}, "constraints": _CONSTRAINTS}
    )
    return Sampler(campaign, seed=3).draw(count)


def _of_kind(backend: Backend, kind: str) -> Iterator[Finding]:
    """Check the first layer of a kind that is not refused."""
    layers = small_layers(kind)
    lowered = backend.lower(layers)
    yield _lowering(layers, lowered)
    reason = ""
    for layer, lowered_layer in zip(layers, lowered, strict=False):
        try:
            with backend.layer(lowered_layer, budget_ms=BUDGET_MS) as built:
                yield _finding("building", kind, "")
                yield from _checked(backend, kind, built, learns=lowered_layer.weight_bytes > 0)
                yield from _timed(backend, layer, built)
        except _REFUSALS as error:
            reason = reason or str(error) or type(error).__name__
        else:
            yield _closing(kind, built)
            return
    yield Finding("building", kind, Verdict.REFUSED, reason)


def _larger(layer: Layer) -> Layer | None:
    """Return the layer at four times its batch size, if that makes it so much larger."""
    try:
        larger = layer.varied(batch=FACTOR * int(layer.fields()["batch"]))
    except LayerError:
        return None
    grows = larger.macs >= 2 * layer.macs and larger.input_bytes >= 2 * layer.input_bytes
    return larger if grows and larger.is_runnable else None


def _lowering(drawn: Sequence[Layer], lowered: Sequence[Layer]) -> Finding:
    kind, wrong = drawn[0].kind, ""
    kinds = [layer.kind for layer in lowered]
    if kinds != [layer.kind for layer in drawn]:
        wrong = f"{len(drawn)} layers of kind {kind} became {', '.join(kinds) or 'none'}"
    elif [layer_from_key(layer.key) for layer in lowered] != list(lowered):
        wrong = f"{lowered[0].key} is another layer when read back"
    return _finding("lowering", kind, wrong)


def expected_phases(setting: Setting, *, learns: bool = True) -> tuple[str, ...]:
    """Return the quantities that what is built in this mode offers, in order.

    A layer without weights has nothing that a training step would update.
    """
    if setting.mode is Mode.INFERENCE:
        return PHASES
    steps = QUANTITIES[STEP].parts
    return steps if learns else steps[:-1]


def _checked(
    backend: Backend, subject: str, built: Built, *, learns: bool = True
) -> Iterator[Finding]:
    """Check the phases of what was built, and run each of them."""
    expected = expected_phases(backend.setting(), learns=learns)
    yield _finding("phases", subject, "; ".join(_wrong_phases(built.phases, expected)))
    wrong = []
    for name, phase in built.phases.items():
        values = [phase.sampler() for _ in range(RUNS)]
        wrong += [f"{name}: a run gave {bad}" for bad in values if not _is_amount(bad)][:1]
    alone_ms = built.isolated()
    wrong += [] if _is_amount(alone_ms) else [f"a run alone gave {alone_ms}"]
    yield _finding("samples", subject, "; ".join(wrong))


def _wrong_phases(phases: Mapping[str, Phase], expected: Sequence[str]) -> Iterator[str]:
    present = [name for name in phases if name in expected]
    if present != list(expected):
        yield f"phases {', '.join(present) or 'none'} instead of {', '.join(expected)}"
    for name, phase in phases.items():
        if name not in QUANTITIES:
            yield f"no quantity {name!r}"
        elif phase.unit != QUANTITIES[name].unit:
            yield f"{name} is sampled in {phase.unit!r}"
        if not (math.isfinite(phase.offset) and phase.copies >= 1):
            yield f"{name}: offset {phase.offset}, {phase.copies} copies"


def _timed(backend: Backend, layer: Layer, built: Built) -> Iterator[Finding]:
    """Compare the layer's marginal time with the layer alone, and with a larger layer."""
    own = layer_quantity(built.phases)
    if own not in built.phases:
        return
    if own in PHASES:
        yield _marginal(layer.kind, built, built.phases[own])
    larger = _larger(layer)
    if larger is None:
        yield Finding("growth", layer.kind, Verdict.SKIPPED, "no layer of four times its size")
        return
    try:
        with backend.layer(backend.lower([larger])[0], budget_ms=BUDGET_MS) as large:
            yield _growth(layer.kind, built.phases[own], large.phases[own])
    except _REFUSALS as error:
        yield Finding("growth", layer.kind, Verdict.SKIPPED, f"the larger one is refused: {error}")


def _growth(kind: str, small: Phase, large: Phase) -> Finding:
    rounds = [(_fastest(small), _fastest(large)) for _ in range(ROUNDS)]
    small_ms, large_ms = (median(times) for times in zip(*rounds, strict=True))
    faster = all(large < FASTER * small - SLACK_MS for small, large in rounds)
    wrong = f"{FACTOR} times as large, it takes {large_ms:.4g} ms instead of {small_ms:.4g}"
    return _finding("growth", kind, wrong * faster)


def _marginal(kind: str, built: Built, phase: Phase) -> Finding:
    rounds = [(_fastest(phase), _fastest(Phase(built.isolated))) for _ in range(ROUNDS)]
    marginal_ms, alone_ms = (median(times) for times in zip(*rounds, strict=True))
    longer = all(more > SLOWER * alone + SLACK_MS for more, alone in rounds)
    negative = all(more < -SLACK_MS - (1 - FASTER) * alone for more, alone in rounds)
    wrong = f"one more copy takes {marginal_ms:.4g} ms, one alone {alone_ms:.4g}"
    return _finding("marginal", kind, wrong * (longer or negative))


def _fastest(phase: Phase) -> float:
    """Return the least of a few samples after a warm-up: what disturbs a run makes it longer."""
    for _ in range(WARMUPS):
        phase.sampler()
    return min((phase.sampler() - phase.offset) / phase.copies for _ in range(RUNS))


def _closing(subject: str, built: Built) -> Finding:
    """Run what was closed, and close it once more."""
    wrong = "it still runs" if built.phases else ""
    try:
        built.isolated()
        wrong = "it still runs"
    except MeasurementError:
        built.close()
    return _finding("closing", subject, wrong)


def _memory(backend: Backend) -> Iterator[Finding]:
    """Build layers that do not fit: larger than any address space, and than the device's memory."""
    yield _refusal(backend, Activation(batch=1, values=1 << 50, activation="relu"))
    sizes = [
        accelerator.memory_bytes
        for accelerator in backend.platform().accelerators
        if accelerator.memory_bytes
    ]
    if not sizes:
        reason = "a layer just larger than memory would fill this machine's own"
        yield Finding("memory", "device", Verdict.SKIPPED, reason)
        return
    # Only the output is large, so that the host need not hold it before the device refuses it.
    pixels = 1 << 20
    channels = 2 * max(sizes) // (4 * pixels)
    layer = Conv(
        batch=1, channels_in=1, channels_out=channels, height=1 << 10, width=1 << 10,
        kernel_height=1, kernel_width=1,
    )  # fmt: skip
    yield _refusal(backend, layer)


def _refusal(backend: Backend, layer: Layer) -> Finding:
    size = format_bytes(layer.moved_bytes)
    try:
        with (
            _limited_memory(),
            backend.layer(backend.lower([layer])[0], budget_ms=BUDGET_MS) as built,
        ):
            built.isolated()
    except _REFUSALS as error:
        detail = f"{type(error).__name__}: {first_line(error)}"
        return Finding("memory", layer.kind, Verdict.PASSED, detail)
    return _finding("memory", layer.kind, f"a layer of {size} was built and run")


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Let large allocations of this process fail even if the system promises what it lacks."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(require("psutil", "bench").Process().memory_info().data)
    allowed = used + MEMORY_MARGIN_BYTES
    if soft != resource.RLIM_INFINITY:
        allowed = min(allowed, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _whole(backend: Backend, path: Path) -> Iterator[Finding]:
    """Run a network, and compare it with its layers."""
    try:
        built = backend.network(path, batch=BATCH)
    except _REFUSALS as error:
        yield Finding("network", path.stem, Verdict.REFUSED, str(error) or type(error).__name__)
        return
    with built:
        checks = list(_checked(backend, path.stem, built))
        wrong = "; ".join(check.detail for check in checks if check.detail)
        yield _finding("network", path.stem, wrong)
        own = layer_quantity(built.phases)
        if own in built.phases:
            yield _sum(backend, path, built.phases[own], own)
    yield _closing(path.stem, built)


def _sum(backend: Backend, path: Path, whole: Phase, own: str) -> Finding:
    """Add up layers, calls and views as predictions do; overhead between layers is not known."""
    nodes = lower(read_network(path, batch=BATCH), backend.setting(), backend.platform()).nodes
    layers = {node.layer.key: node.layer for node in nodes if node.layer is not None}
    times_ms: dict[str, float] = {}
    for key, layer in layers.items():
        try:
            with backend.layer(layer, budget_ms=BUDGET_MS) as built:
                times_ms[key] = _fastest(built.phases[own])
        except _REFUSALS as error:
            return Finding("sum", path.stem, Verdict.SKIPPED, f"{key} is refused: {error}")
    costs = backend.costs()
    views = sum(node.role == "view" for node in nodes)
    parts_ms = [times_ms[node.layer.key] for node in nodes if node.layer is not None]
    sum_ms = sum(parts_ms) + costs["call_ms"] + views * costs.get("reshape_ms", 0.0)
    whole_ms = _fastest(whole)
    ratio = sum_ms / whole_ms if whole_ms > 0 else math.inf
    low, high = SUM_BAND
    wrong = "" if low <= ratio <= high else f"layers take {sum_ms:.4g} ms, the whole {whole_ms:.4g}"
    return _finding("sum", path.stem, wrong)
