"""kill -9 at random moments: no row lost or doubled, and the files always open.

With more kills: ``RESPERF_KILLS=50 pytest tests/campaign/test_kill.py``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from resperf import targets
from resperf.campaign import Bench, Campaign, plan_campaign, run_campaign
from resperf.campaign.journal import read_journal
from resperf.campaign.store import journal_path
from resperf.dataset import read_dataset
from resperf.targets import Target, register, target

TESTS = Path(__file__).resolve().parents[1]
KILLS = int(os.environ.get("RESPERF_KILLS", "6"))
ROWS_OF_A_KILL = 25
# Compacted all the time, so that kills hit journal and dataset alike.
CAMPAIGN = """
samples = {layers}
seed = 1
repeat_share = 0.05
[run]
reference_interval_s = 0.05
retry_wait_s = 0.0
compact_interval_s = 0.2
[kinds.dense]
batch = {{ law = "uniform", low = 1, high = 64 }}
features_in = {{ law = "uniform", low = 1, high = 2000 }}
features_out = {{ law = "uniform", low = 1, high = 500 }}
"""
CHILD = "import sys, test_kill; test_kill.measure(*sys.argv[1:])"
LONGEST_S = 0.25
"""From the first new row to a kill."""


@dataclass
class Report:
    """What became of the rows."""

    killed: int = 0
    lost: int = 0
    doubled: int = 0
    orphans: int = 0
    rows: int = 0
    planned: int = 0
    rows_at_kill: list[int] = field(default_factory=list)


def named_target(word: str) -> Target:
    """Return the synthetic target, or that of the GPU that the tests make up."""
    if word == "synthetic":
        return target(word)
    import synthetic_gpu

    return register(synthetic_gpu.TARGET)


def measure(campaign: str, output: str, framework: str, settings: str) -> None:
    """Run or resume the campaign; what is killed."""
    bench = Bench(named_target(framework), json.loads(settings))
    run_campaign(Campaign.from_toml(Path(campaign)), Path(output), bench)


def kill_and_resume(
    folder: Path, *, kills: int, seed: int, framework: str, settings: Mapping[str, Any]
) -> Report:
    """Start a campaign `kills` times, kill it each time, then let it finish."""
    campaign, output = folder / "kill.toml", folder / "kill.h5"
    campaign.write_text(CAMPAIGN.format(layers=ROWS_OF_A_KILL * kills))
    words = [str(campaign), str(output), framework, json.dumps({"real_ms": 10.0, **settings})]
    source, report = random.Random(seed), Report()
    for _ in range(kills):
        before = identities(output)
        process = started(words)
        wait_for_growth(output, process, source)
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            break
        report.killed += 1
        after = identities(output)
        report.lost += len(before.keys() - after.keys())
        report.rows_at_kill.append(len(after))
        # They end by themselves within seconds, on a busy machine within more of them.
        report.orphans += len(psutil.wait_procs(children, timeout=60.0)[1])
    before = identities(output)
    assert started(words).wait() == 0
    rows = Counter((row.layer.key, row.repeat) for row in read_dataset(output).measurements)
    report.lost += len(before.keys() - rows.keys())
    report.doubled += sum(count - 1 for count in rows.values())
    report.rows = len(rows)
    planned, *_ = plan_campaign(Campaign.from_toml(campaign), Bench(named_target(framework)))
    report.planned = len(planned.items)
    return report


def started(words: list[str]) -> subprocess.Popen[bytes]:
    folders = [str(TESTS.parent), str(TESTS), str(TESTS / "campaign")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.Popen([sys.executable, "-c", CHILD, *words], env=environment)


def wait_for_growth(output: Path, process: subprocess.Popen[bytes], source: random.Random) -> None:
    """Wait until the campaign measures, then for a random moment of it."""
    journal, start = journal_path(output), time.monotonic()
    size = journal.stat().st_size if journal.exists() else 0
    # One kill in five hits the start: reading, planning, opening.
    if source.random() < 0.2:
        time.sleep(source.random())
        return
    while process.poll() is None and time.monotonic() - start < 60:
        if journal.exists() and journal.stat().st_size > size:
            break
        time.sleep(0.005)
    time.sleep(source.random() * LONGEST_S)


def identities(output: Path) -> Counter[tuple[str, int]]:
    """Read what is on disk: both files must open, whatever happened."""
    found: Counter[tuple[str, int]] = Counter()
    if output.exists():
        found.update({(r.layer.key, r.repeat): 1 for r in read_dataset(output).measurements})
    if journal_path(output).exists():
        found.update((row.layer.key, row.repeat) for row in read_journal(journal_path(output)).rows)
    return found


def test_kills_lose_at_most_the_row_in_flight(tmp_path: Path) -> None:
    report = kill_and_resume(tmp_path, kills=KILLS, seed=4, framework="synthetic", settings={})
    assert report.killed == KILLS
    assert report.lost + report.doubled + report.orphans == 0
    assert report.rows == report.planned
    # The kills were spread over the campaign, not all before its first row.
    assert sum(rows > 0 for rows in report.rows_at_kill) >= KILLS // 2


def test_a_gpu_that_throttles_meanwhile_loses_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)  # of workers
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    import synthetic_gpu
    from fake_nvml import install

    monkeypatch.setattr("resperf.targets._table", dict(targets._table))
    install(synthetic_gpu.LIBRARY)
    try:
        report = kill_and_resume(
            tmp_path, kills=2, seed=2, framework="synthetic_gpu", settings={"hot": [20, 2]}
        )
    finally:
        install(None)
    assert report.killed == 2
    assert report.lost + report.doubled + report.orphans == 0
    assert report.rows == report.planned
