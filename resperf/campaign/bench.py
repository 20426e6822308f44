"""What a campaign measures with, and its plan made with that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resperf.campaign.harvest import shipped_networks
from resperf.campaign.plan import Plan, plan
from resperf.campaign.process import WorkerDied, WorkerProcess, WorkerSettings
from resperf.campaign.spec import Campaign
from resperf.errors import CampaignError, require
from resperf.layers import Layer
from resperf.platform import Platform
from resperf.settings import Setting

EXCLUDE_BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes at which excluded networks are lowered: some name a layer otherwise."""


@dataclass(frozen=True)
class Bench:
    """What to measure with: a framework, its settings, and the networks to look at.

    Attributes
    ----------
    framework : str
    settings : mapping
        Keywords of the backend, as JSON values.
    seed : int, optional
        The campaign's own by default.
    samples : int, optional
        Distinct layers; the campaign's own by default.
    networks : sequence of Path
        Reference networks beside those that the campaign names.
    exclude : sequence of Path
        Networks of which no layer is measured, at whatever batch size.
    exclude_keys : frozenset of str
        Keys of lowered layers that are not measured either, at whatever batch size.
    """

    framework: str = "onnxruntime"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    samples: int | None = None
    networks: Sequence[Path] = ()
    exclude: Sequence[Path] = ()
    exclude_keys: frozenset[str] = frozenset()

    def worker_settings(self, campaign: Campaign) -> WorkerSettings:
        """Return what a measuring process is started with."""
        memory = require("psutil", "bench").virtual_memory().total
        return WorkerSettings(
            framework=self.framework,
            settings=self.settings,
            protocol=campaign.protocol,
            reference_interval_s=campaign.run.reference_interval_s,
            memory_bytes=int(memory * campaign.run.memory_share),
        )


class _PlanningProcess:
    """A process that answers a plan's questions, started again where a layer ends it."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._worker = WorkerProcess(settings)
        self.setting, self.platform = self._worker.setting, self._worker.platform

    def __enter__(self) -> _PlanningProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        return self._worker.lower(layers)

    def harvest(self, paths: Sequence[Path], batches: Sequence[int]) -> list[Layer]:
        try:
            return self._worker.harvest(paths, batches)
        except WorkerDied as error:
            names = ", ".join(path.name for path in paths)
            raise CampaignError(f"reading the networks {names} failed: {error.detail}") from error

    def probe(self, layers: Sequence[Layer]) -> list[str]:
        try:
            return self._worker.probe(layers)
        except WorkerDied:
            # Not refused as such; if all its layers do that, the campaign will say so.
            self._worker.close()
            self._worker = WorkerProcess(self._settings)
            return [""] * len(layers)


def plan_campaign(campaign: Campaign, bench: Bench) -> tuple[Plan, Setting, Platform]:
    """Plan a campaign as a start of it would, without measuring.

    Reading and lowering reference networks may take gigabytes, so that the process which does it
    ends here.

    Raises
    ------
    CampaignError
        If the campaign cannot be planned or the framework not be started.
    """
    with _PlanningProcess(bench.worker_settings(campaign)) as process:
        paths = shipped_networks(campaign.mixture.networks)
        if bench.networks and campaign.mixture.from_networks == 0:
            raise CampaignError(
                f"campaign {campaign.name} draws nothing from networks; set from_networks in "
                "[mixture] of its file, or leave --networks out"
            )
        wanted = paths and campaign.mixture.from_networks > 0
        harvested = process.harvest(paths, [1]) if wanted else []
        own = process.harvest(bench.networks, [1]) if bench.networks else []
        excluded = process.harvest(bench.exclude, EXCLUDE_BATCHES) if bench.exclude else []
        planned = plan(
            campaign,
            process,
            seed=bench.seed,
            samples=bench.samples,
            harvested=list({layer.key: layer for layer in (*harvested, *own)}.values()),
            exclude_keys=bench.exclude_keys | {layer.key for layer in excluded},
        )
        planned = replace(planned, notes=planned.notes + _not_drawn(campaign, own))
        return planned, process.setting, process.platform


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
