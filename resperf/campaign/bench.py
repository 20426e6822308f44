"""What a campaign measures with, and its plan made with that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resperf.backends.monitors import Monitor, load_monitor
from resperf.campaign.networks import plan_networks, shipped_networks
from resperf.campaign.plan import AbsentDevice, Lowerer, Plan, plan
from resperf.campaign.process import WorkerProcess, WorkerSettings
from resperf.campaign.spec import Campaign, NetworkSpec
from resperf.errors import CampaignError, MissingExtraError, ResperfError
from resperf.layers import Layer
from resperf.platform import OVERSUBSCRIBED, Platform
from resperf.settings import Setting
from resperf.targets import DEFAULT, Target

EXCLUDE_BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes at which excluded networks are lowered: some name a layer otherwise."""


@dataclass(frozen=True)
class Bench:
    """What to measure with: a target, its settings, and the networks to look at.

    Attributes
    ----------
    target : Target
        What runs the layers.
    settings : mapping
        Keywords of the backend, as JSON values.
    samples : int, optional
        Distinct layers; the campaign's own by default.
    networks : sequence of Path
        Reference networks beside those that the campaign names.
    exclude : sequence of Path
        Networks of which no layer is measured, at whatever batch size.
    device : str
        Name of a card, whose facts count in plans for a device that is not here.
    start : callable, optional
        Starts measuring processes elsewhere than on this machine.
    """

    target: Target = DEFAULT
    settings: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    networks: Sequence[Path] = ()
    exclude: Sequence[Path] = ()
    device: str = ""
    start: Callable[..., WorkerProcess] | None = None

    def monitor(self) -> Monitor:
        """Make a monitor of the device, not started."""
        return load_monitor(self.target, str(self.settings.get("device", self.target.device_class)))

    def worker_settings(
        self, campaign: Campaign, options: Mapping[str, Any] | None = None
    ) -> WorkerSettings:
        """Return what a measuring process is started with; keywords of a network's run add up."""
        return WorkerSettings(
            target=self.target,
            settings={**self.settings, **(options or {})},
            protocol=campaign.protocol,
            reference_interval_s=campaign.run.reference_interval_s,
            memory_share=campaign.run.memory_share,
        )


def plan_campaign(
    campaign: Campaign, bench: Bench, *, absent: bool = False
) -> tuple[Plan, Setting, Platform]:
    """Plan a campaign as a start of it would, without measuring.

    Reading and lowering reference networks may take gigabytes, so that the process which does it
    ends here.

    Parameters
    ----------
    campaign : Campaign
    bench : Bench
    absent : bool
        If the framework cannot be started here, plan by the target's rules alone.

    Raises
    ------
    CampaignError
        If the campaign cannot be planned or the framework not be started.
    """
    with _planner(campaign, bench, absent) as (planner, note):
        planned = _plan_with(planner, campaign, bench)
        setting, platform = planner.setting, planner.platform
        if OVERSUBSCRIBED in platform.interconnect:
            short = (
                f"{platform.devices} processes have more threads than cores: rows are labelled "
                f"{OVERSUBSCRIBED}"
            )
            planned = replace(planned, notes=(*planned.notes, short))
        if isinstance(planner, AbsentDevice):
            planned = replace(planned, notes=(note, *planned.notes), facts=planner.facts)
        else:
            planned = replace(planned, monitor=bench.monitor())
        if campaign.networks is not None:
            settings = _settings_of_networks(campaign, campaign.networks, bench, planner)
            planned = planned.with_networks(
                *plan_networks(campaign.networks, settings, seed=campaign.seed)
            )
    return planned, setting, platform


@contextmanager
def _planner(campaign: Campaign, bench: Bench, absent: bool) -> Iterator[tuple[Lowerer, str]]:
    """Start the measuring process, or what replaces it; with a note that says so."""
    try:
        process = (bench.start or WorkerProcess)(bench.worker_settings(campaign))
    except ResperfError as error:
        # This machine's processor is here, so that something else is wrong.
        is_here = bench.target.device_class == DEFAULT.device_class
        fixable = is_here and not isinstance(error, MissingExtraError)
        if not absent or fixable or not bench.target.backend:
            raise
        note = f"planned for a device that is not here, by the rules of its target: {error}"
    else:
        with process:
            yield process, ""
        return
    yield AbsentDevice(bench.target, bench.settings, bench.device), note


def _plan_with(planner: Lowerer, campaign: Campaign, bench: Bench) -> Plan:
    """Plan the layers of a campaign with what lowers them."""
    paths = shipped_networks(campaign.mixture.networks)
    if bench.networks and campaign.mixture.from_networks == 0:
        raise CampaignError(
            f"campaign {campaign.name} draws nothing from networks; set from_networks in "
            "[mixture] of its file, or leave --networks out"
        )
    wanted = paths and campaign.mixture.from_networks > 0
    harvested = planner.harvest(paths, [1]) if wanted else []
    own = planner.harvest(bench.networks, [1]) if bench.networks else []
    excluded = planner.harvest(bench.exclude, EXCLUDE_BATCHES) if bench.exclude else []
    planned = plan(
        campaign,
        planner,
        samples=bench.samples,
        harvested=list({layer.key: layer for layer in (*harvested, *own)}.values()),
        exclude_keys=frozenset(layer.key for layer in excluded),
    )
    return replace(planned, notes=planned.notes + _not_drawn(campaign, own), target=bench.target)


def _settings_of_networks(
    campaign: Campaign, networks: NetworkSpec, bench: Bench, planner: Lowerer
) -> list[tuple[Mapping[str, Any], Setting]]:
    """Ask a process for the setting that each combination of keywords makes."""
    settings: list[tuple[Mapping[str, Any], Setting]] = []
    for options in networks.combinations:
        if not options:
            settings.append((options, planner.setting))
            continue
        if isinstance(planner, AbsentDevice):
            one = AbsentDevice(bench.target, {**bench.settings, **options}, bench.device)
            settings.append((options, one.setting))
            continue
        try:
            with (bench.start or WorkerProcess)(
                bench.worker_settings(campaign, options)
            ) as process:
                settings.append((options, process.setting))
                if process.platform.devices != planner.platform.devices:
                    raise CampaignError(
                        "rows of one file have one number of processes; write --processes"
                    )
        except CampaignError as error:
            words = ", ".join(f"{word}={value!r}" for word, value in options.items())
            raise CampaignError(
                f"networks: {words}: {error}; words of [networks] that are not its own are "
                "settings of the framework"
            ) from error
    return settings


def _not_drawn(campaign: Campaign, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Say which layers of the user's own networks the campaign has no kind for."""
    counts = Counter(layer.kind for layer in layers if layer.kind not in campaign.kinds)
    if not counts:
        return ()
    kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(counts.items()))
    return (
        f"{counts.total()} of {len(layers)} layers of the networks are of kinds that campaign "
        f"{campaign.name} does not draw: {kinds}",
    )
