"""The plan: what a campaign measures, in which order, and how long that takes.

A device or framework that is not here is planned for by its target's row and rules alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from resperf.backends import known_settings
from resperf.backends._base import check_choices
from resperf.backends.monitors import Monitor
from resperf.campaign.measure import ISOLATED_SHARE, PHASE_SHARES
from resperf.campaign.networks import NetworkRun, harvest
from resperf.campaign.process import WorkerProcess
from resperf.campaign.sampler import Sampler
from resperf.campaign.spec import Campaign, NetworkSpec
from resperf.devices import DeviceFacts, device_facts, estimated_layer_ms
from resperf.errors import CampaignError, MissingExtraError
from resperf.layers import Layer, key_at_any_batch
from resperf.measurement import NetworkRef, Subject
from resperf.platform import Platform
from resperf.quantities import PHASES
from resperf.settings import Setting
from resperf.targets import DEFAULT, Target
from resperf.units import MS_PER_S

_SETTING_FIELDS = frozenset(field.name for field in dataclasses.fields(Setting))


class AbsentDevice:
    """The device of a campaign that is planned where its framework cannot start: never measures.

    Parameters
    ----------
    target : Target
    settings : mapping
        Keywords of the backend. Which it has is known where its framework is installed; those
        that are no fields of a `Setting` do not change the plan.
    device : str
        As after ``--device``: the name of a card, whose facts then count, or of its class.

    Attributes
    ----------
    setting : Setting
        Without the framework's version.
    platform : Platform
        With the card's published facts, if it is known.
    facts : DeviceFacts or None

    Raises
    ------
    ResperfError
        If the target does not have a setting or the precision.
    """

    def __init__(self, target: Target, settings: Mapping[str, Any], device: str = "") -> None:
        self._lowering = target.load("lowering")
        with suppress(MissingExtraError):
            known_settings(target, settings)
        precision = settings.get("precision") or target.precisions[0]
        check_choices(target.name, precision=(precision, target.precisions))
        self.facts: DeviceFacts | None = device_facts(device) if device else None
        given = {name: value for name, value in settings.items() if name in _SETTING_FIELDS}
        optimizer = str(given.pop("optimizer", ""))
        setting = Setting(framework=target.framework, **given)
        self.setting = setting.with_optimizer(optimizer) if optimizer else setting
        on_class = Platform(device=target.device_class)
        self.platform = on_class if self.facts is None else self.facts.platform

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Lower layers by the target's rules."""
        lowered: list[Layer] = self._lowering.lower_layers(layers, self.setting)
        return lowered

    def harvest(self, paths: Sequence[Path], batches: Sequence[int]) -> list[Layer]:
        """Return the lowered layers of networks (see `campaign.networks.harvest`)."""
        return harvest(paths, self.setting, self.platform, batches)

    def build_errors(self, layers: Sequence[Layer]) -> list[str]:
        """Refuse nothing: what the framework refuses is known where it runs."""
        return [""] * len(layers)


CHUNK = 2000
# A kind is left out if the framework refuses each of so many: one may be refused for its shape.
TRIED_LAYERS = 3
FRUITLESS = 10_000
"""Consecutive draws without a new layer after which the ranges count as exhausted."""
BYTES_PER_ROW = 900
"""Size of a dataset's row on disk, compressed: mostly its samples."""
BUILD_BYTES_PER_S = 2e9
WEIGHT_COPIES = 3
SHARES = ISOLATED_SHARE + sum(PHASE_SHARES[name] for name in PHASES)
"""All phases and the isolated run together, as a multiple of the protocol's times."""
RUNS_PER_LAYER = 16
"""Runs of a slow layer over all phases, warm-up included."""
NETWORK_BUILD_S = 1.0
RUNS_PER_NETWORK = 12
"""Runs of a slow network in its rounds, warm-up included."""


Lowerer = WorkerProcess | AbsentDevice
"""What lowers the layers of a plan."""


@dataclass(frozen=True)
class Planned:
    """One measurement to take.

    Attributes
    ----------
    subject : Layer or NetworkRef
    repeat : int
        0 the first time.
    run : NetworkRun or None
        How a network is run; None for a layer, which has the campaign's own setting.
    """

    subject: Subject
    repeat: int = 0
    run: NetworkRun | None = None

    @property
    def layer(self) -> Layer:
        """The subject of an item that is a layer."""
        assert not isinstance(self.subject, NetworkRef)
        return self.subject

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Identifies its row when a campaign is resumed: `Measurement.identity`, and the repeat."""
        if self.run is None:
            return self.layer.key, self.repeat
        return self.run.network.key, self.run.setting, self.repeat


@dataclass(frozen=True)
class Plan:
    """All measurements of a campaign in their order.

    Attributes
    ----------
    items : tuple of Planned
        Those of layers first.
    stream : Stream
        Source of the layers, from which more can be drawn.
    notes : tuple of str
        What was skipped, and why.
    monitor : Monitor
        Of the device; says which layers are built several times.
    contents : mapping of str to bytes
        Of the networks: digest -> graph without weights, or description.
    target : Target
        Says how long building takes.
    facts : DeviceFacts or None
        Of a card that is not here; else the campaign's `constraints` say how fast the device is.
    predicted_s : tuple of float
        Rough estimate of each item's duration.
    """

    items: tuple[Planned, ...]
    stream: Stream
    notes: tuple[str, ...] = ()
    monitor: Monitor = field(default_factory=Monitor, compare=False)
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    target: Target = DEFAULT
    facts: DeviceFacts | None = None

    def with_networks(
        self, runs: Sequence[NetworkRun], contents: Mapping[str, bytes], notes: Sequence[str]
    ) -> Plan:
        """Return this plan with what `plan_networks` returned behind its layers."""
        campaign = self.stream.campaign
        spec = campaign.networks or NetworkSpec()
        repeated = [
            run
            for run in runs
            if random.Random(f"{campaign.seed} {run.network.key}").random() < spec.repeat_share
        ]
        items = [Planned(run.network, 0, run) for run in runs]
        times = range(1, 1 + spec.repeats)
        items += [Planned(run.network, repeat, run) for repeat in times for run in repeated]
        # A process measures under one setting: runs of one stand together, repeats after them.
        return replace(
            self, items=(*self.items, *items), notes=(*self.notes, *notes), contents=contents
        )

    @cached_property
    def predicted_s(self) -> tuple[float, ...]:  # noqa: D102 -- an attribute
        return tuple(map(self.item_s, self.items))

    def item_s(self, item: Planned) -> float:
        """Predict how long measuring a layer or a network takes: building it, then sampling."""
        campaign = self.stream.campaign
        if item.run is None:
            return self._layer_s(item.layer)
        seconds = campaign.networks.seconds if campaign.networks is not None else 0.0
        run_ms = 2 * item.run.macs / (campaign.constraints.gflops * 1e6)
        return NETWORK_BUILD_S + max(1.25 * seconds, RUNS_PER_NETWORK * run_ms / MS_PER_S)

    def _layer_s(self, layer: Layer) -> float:
        protocol = self.stream.campaign.protocol
        build_s = self.target.build_s + WEIGHT_COPIES * layer.weight_bytes / BUILD_BYTES_PER_S
        quick_s = SHARES * (protocol.warmup_s / 2 + 0.7 * protocol.budget_s)
        if self.facts is not None:
            predicted_ms = estimated_layer_ms(layer, self.facts).ms
        else:
            predicted_ms = self.stream.campaign.constraints.predicted_ms(layer)
        slow_s = RUNS_PER_LAYER * predicted_ms / MS_PER_S
        taken_s = build_s + max(quick_s, slow_s)
        if self.monitor.depends_on_place(layer, predicted_ms):
            # Further builds share the budget of the first one.
            again = protocol.placements - 1
            taken_s += min(again * taken_s / protocol.placements, protocol.placements_s)
        return taken_s

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The distinct layers in drawing order."""
        return tuple(i.layer for i in self.items if i.run is None and i.repeat == 0)

    @property
    def networks(self) -> tuple[Planned, ...]:
        """The measurements of networks."""
        return tuple(item for item in self.items if item.run is not None)

    @property
    def counts(self) -> Mapping[str, int]:
        """Distinct layers per kind."""
        return Counter(layer.kind for layer in self.layers)

    @property
    def repeats(self) -> int:
        """Number of repeated measurements of layers."""
        return sum(item.repeat > 0 and item.run is None for item in self.items)

    @property
    def hours(self) -> float:
        """Predicted duration."""
        return sum(self.predicted_s) / 3600

    @property
    def too_large(self) -> int:
        """Number of layers that do not fit into the memory of the card of `facts`."""
        memory_bytes = math.inf if self.facts is None else self.facts.memory_bytes
        return sum(layer.moved_bytes > memory_bytes for layer in self.layers)

    def first_layers(self, hours: float) -> int:
        """Count the distinct layers that begin within a time."""
        ends_s = itertools.accumulate(self.predicted_s, initial=0.0)
        return sum(
            item.repeat == 0 and item.run is None
            for item, starts_s in zip(self.items, ends_s, strict=False)
            if starts_s < hours * 3600
        )

    @property
    def disk_bytes(self) -> int:
        """Predicted size of the dataset."""
        return BYTES_PER_ROW * len(self.items)


def plan(
    campaign: Campaign,
    lowerer: Lowerer,
    *,
    samples: int | None = None,
    harvested: Sequence[Layer] = (),
    exclude_keys: frozenset[str] = frozenset(),
) -> Plan:
    """Draw layers, lower them, drop duplicates, and schedule repeats for later.

    Parameters
    ----------
    campaign : Campaign
    lowerer : Lowerer
        Lowers drawn layers to those that the framework runs.
    samples : int, optional
        Distinct layers; the campaign's own by default. A longer plan starts as a shorter one.
    harvested : sequence of Layer
        Layers of reference networks.
    exclude_keys : frozenset of str
        Keys of lowered layers that are never planned, at any batch size.

    Raises
    ------
    CampaignError
        If no layer meets the constraints, or the framework can run no kind of the campaign.
    """
    if not campaign.kinds:
        return Plan((), Stream(campaign))
    wanted = campaign.samples if samples is None else samples
    skip, notes = _unsupported_kinds(campaign, lowerer)
    stream = Stream(campaign, harvested, exclude_keys, skip)
    stream.fill(lowerer, wanted)
    notes += stream.notes(wanted)
    if campaign.mixture.from_networks > 0 and not harvested:
        notes.append("no reference network was given or found: all layers are from the ranges")
    return Plan(stream.items(stream.layers[:wanted]), stream, tuple(notes))


class Stream:
    """Distinct lowered layers of a campaign, in the order in which its seed draws them.

    Parameters
    ----------
    campaign : Campaign
    harvested : sequence of Layer
    exclude_keys : frozenset of str
    skip_kinds : frozenset of str
        Kinds that the framework cannot run.

    Attributes
    ----------
    layers : list of Layer
        Layers drawn so far.
    """

    def __init__(
        self,
        campaign: Campaign,
        harvested: Sequence[Layer] = (),
        exclude_keys: frozenset[str] = frozenset(),
        skip_kinds: frozenset[str] = frozenset(),
    ) -> None:
        self.campaign = campaign
        self.layers: list[Layer] = []
        self._new_sampler = partial(Sampler, campaign, harvested=harvested, skip_kinds=skip_kinds)
        self._excluded_layers = frozenset(map(key_at_any_batch, exclude_keys))
        self._seen: set[str] = set()
        self._excluded = 0

    @cached_property
    def _sampler(self) -> Sampler:
        return self._new_sampler(seed=self.campaign.seed)

    def fill(self, lowerer: Lowerer, wanted: int) -> None:
        """Draw until there are `wanted` layers, or the ranges seem exhausted."""
        fruitless = 0
        while len(self.layers) < wanted and fruitless < FRUITLESS:
            before = len(self.layers)
            count = min(CHUNK, 50 + 2 * (wanted - before))
            for layer in lowerer.lower(self._sampler.draw(count)):
                self._add(layer)
            fruitless = fruitless + count if len(self.layers) == before else 0

    def _add(self, layer: Layer) -> None:
        """Add a lowered layer unless it is a duplicate or excluded."""
        if layer.key in self._seen:
            return
        self._seen.add(layer.key)
        if self.is_excluded(layer):
            self._excluded += 1
        else:
            self.layers.append(layer)

    def is_excluded(self, layer: Layer) -> bool:
        """Say whether a layer belongs to an excluded network, at any batch size."""
        return key_at_any_batch(layer.key) in self._excluded_layers

    def candidates(
        self, lowerer: Lowerer, count: int, batch: int, skipped: Set[str]
    ) -> list[Layer]:
        """Draw distinct layers by more even shares, without advancing the stream.

        Parameters
        ----------
        lowerer : Lowerer
        count : int
            How many are drawn; duplicates, excluded and skipped ones are dropped.
        batch : int
            Number of the batch: each draws other layers.
        skipped : set of str
            Keys of layers to drop.
        """
        power = self.campaign.adaptive.share_power
        seed = self.campaign.seed + 1_000_003 * batch
        sampler = self._new_sampler(seed=seed, share_power=power)
        layers: dict[str, Layer] = {}
        for start in range(0, count, CHUNK):
            drawn = sampler.draw(min(CHUNK, count - start))
            layers |= {layer.key: layer for layer in lowerer.lower(drawn)}
        return [v for key, v in layers.items() if key not in skipped and not self.is_excluded(v)]

    def items(self, layers: Sequence[Layer]) -> tuple[Planned, ...]:
        """Return the measurements of layers, each repeat well after the previous measurement.

        Which are repeated depends on the layer's key alone: a longer plan repeats the same ones.
        """
        # Imported late: only the process that plans needs numpy.
        from resperf.splits import split_of_keys

        placed: list[tuple[float, Planned]] = []
        is_test = split_of_keys([layer.key for layer in layers]).test
        for position, layer in enumerate(layers):
            placed.append((position, Planned(layer)))
            source = random.Random(f"repeat {self.campaign.seed} {layer.key}")
            repeats = int(source.random() < self.campaign.repeat_share)
            tested = self.campaign.test_repeats * bool(is_test[position])
            later = float(position)
            for repeat in range(1, 1 + max(repeats, tested)):
                later += 50.5 + int(source.random() * 500)
                placed.append((later, Planned(layer, repeat=repeat)))
        return tuple(item for _, item in sorted(placed, key=lambda pair: pair[0]))

    def notes(self, wanted: int) -> list[str]:
        """Say which of the wanted layers were skipped or do not exist."""
        notes = []
        if self._excluded:
            notes.append(
                f"{self._excluded} drawn layers belong to excluded networks and are skipped"
            )
        if len(self.layers) < wanted:
            notes.append(
                f"the ranges hold only {len(self.layers)} distinct layers of the {wanted} wanted"
            )
        return notes


def _unsupported_kinds(campaign: Campaign, lowerer: Lowerer) -> tuple[frozenset[str], list[str]]:
    """Find kinds of which the framework can build none of a few cheap layers."""
    skip, notes = set(), []
    for kind in campaign.kinds:
        others = frozenset(campaign.kinds) - {kind}
        sampler = Sampler(campaign, seed=campaign.seed, skip_kinds=others)
        drawn = lowerer.lower(sampler.draw(8 * TRIED_LAYERS))
        cheap = sorted(drawn, key=campaign.constraints.predicted_ms)[:TRIED_LAYERS]
        reasons = lowerer.build_errors(cheap)
        if all(reasons):
            skip.add(kind)
            notes.append(f"no layers of kind {kind}: {reasons[0]}")
    if skip == set(campaign.kinds):
        raise CampaignError(f"this framework can run no kind of the campaign: {'; '.join(notes)}")
    return frozenset(skip), notes
