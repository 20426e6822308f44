"""What a campaign measures with, and its plan made with that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resperf.campaign.harvest import shipped_networks
from resperf.campaign.plan import Plan, plan
from resperf.campaign.process import WorkerProcess, WorkerSettings
from resperf.campaign.spec import Campaign
from resperf.errors import require
from resperf.layers import Layer
from resperf.machine import Fingerprint

EXCLUDE_BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes at which the layers of excluded networks are left out."""


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
        Networks of which no layer is measured, at any of `EXCLUDE_BATCHES`.
    exclude_keys : frozenset of str
        Keys of lowered layers that are not measured either.
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


def plan_campaign(campaign: Campaign, bench: Bench) -> tuple[Plan, Fingerprint]:
    """Plan a campaign as a start of it would, without measuring.

    Reading and lowering reference networks may take gigabytes, so that the process which does it
    ends here.

    Raises
    ------
    CampaignError
        If the campaign cannot be planned or the framework not be started.
    """
    with WorkerProcess(bench.worker_settings(campaign)) as worker:
        return _plan(campaign, bench, worker), worker.fingerprint


def _plan(campaign: Campaign, bench: Bench, worker: WorkerProcess) -> Plan:
    paths = [*shipped_networks(campaign.mixture.networks), *bench.networks]
    share = campaign.mixture.from_networks
    harvested: list[Layer] = worker.harvest(paths, [1]) if paths and share > 0 else []
    excluded = worker.harvest(bench.exclude, EXCLUDE_BATCHES) if bench.exclude else []
    return plan(
        campaign,
        worker,
        seed=bench.seed,
        samples=bench.samples,
        harvested=harvested,
        exclude_keys=bench.exclude_keys | {layer.key for layer in excluded},
    )
