"""kill -9 a campaign at random moments, resume it, and count rows that were lost or doubled.

    python tools/benchmarks/kill.py --kills 50
    PYTHONPATH=.:tests python tools/benchmarks/kill.py --kills 20 \\
        --framework synthetic_gpu:TARGET --settings '{"hot": [100, 4]}'

Runs on the synthetic device, with the dataset compacted all the time, so that kills hit journal
and dataset alike.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from resperf.campaign import Bench, Campaign, plan_campaign, run_campaign
from resperf.campaign.journal import read_journal
from resperf.campaign.store import journal_path
from resperf.dataset import read_dataset
from resperf.errors import ResperfError
from resperf.targets import Target, register, target

ROOT = Path(__file__).resolve().parents[2]
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
CHILD = "import sys, kill; kill.measure(*sys.argv[1:])"


@dataclass
class Report:
    """What became of the rows."""

    killed: int = 0
    lost: int = 0
    doubled: int = 0
    unreadable: int = 0
    orphans: int = 0
    rows: int = 0
    planned: int = 0
    rows_at_kill: list[int] = field(default_factory=list)


def named_target(word: str) -> Target:
    """Return the target of a framework's name, or of the import string of one that is not here."""
    module, _, name = word.rpartition(":")
    return register(getattr(importlib.import_module(module), name)) if module else target(word)


def measure(campaign: str, output: str, framework: str, settings: str) -> None:
    """Run or resume the campaign; what is killed."""
    bench = Bench(named_target(framework), json.loads(settings))
    run_campaign(Campaign.from_toml(Path(campaign)), Path(output), bench, progress=False)


def kill_and_resume(
    folder: Path,
    *,
    kills: int,
    seed: int,
    layers: int,
    framework: str = "synthetic",
    settings: Mapping[str, Any],
    longest_s: float = 0.25,
) -> Report:
    """Start a campaign `kills` times, kill it each time, then let it finish."""
    campaign, output = folder / "kill.toml", folder / "kill.h5"
    campaign.write_text(CAMPAIGN.format(layers=layers))
    words = [str(campaign), str(output), framework, json.dumps(settings)]
    source, report = random.Random(seed), Report()
    for _ in range(kills):
        before = _identities(output, report)
        process = _start(words)
        _wait_for_growth(output, process, source, longest_s)
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        ended = process.wait()
        if ended != -signal.SIGKILL:
            break
        report.killed += 1
        after = _identities(output, report)
        report.lost += len(before.keys() - after.keys())
        report.rows_at_kill.append(len(after))
        # Children that outlive their parent by more than two seconds.
        report.orphans += len(psutil.wait_procs(children, timeout=2.0)[1])
    before = _identities(output, report)
    if _start(words).wait():
        report.unreadable += 1
        return report
    rows = Counter((row.layer.key, row.repeat) for row in read_dataset(output).measurements)
    report.lost += len(before.keys() - rows.keys())
    report.doubled += sum(count - 1 for count in rows.values())
    report.rows = len(rows)
    planned, *_ = plan_campaign(Campaign.from_toml(campaign), Bench(named_target(framework)))
    report.planned = len(planned.items)
    return report


def _start(words: list[str]) -> subprocess.Popen[bytes]:
    folders = [
        str(ROOT),
        str(ROOT / "tools" / "benchmarks"),
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    return subprocess.Popen([sys.executable, "-c", CHILD, *words], env=environment)


def _wait_for_growth(
    output: Path, process: subprocess.Popen[bytes], source: random.Random, longest_s: float
) -> None:
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
    time.sleep(source.random() * longest_s)


def _identities(output: Path, report: Report) -> Counter[tuple[str, int]]:
    """Read what is on disk: both files must open, whatever happened."""
    found: Counter[tuple[str, int]] = Counter()
    try:
        if output.exists():
            found.update({(r.layer.key, r.repeat): 1 for r in read_dataset(output).measurements})
        if journal_path(output).exists():
            rows = read_journal(journal_path(output)).rows
            found.update((row.layer.key, row.repeat) for row in rows)
    except ResperfError as error:
        print(f"unreadable: {error}", file=sys.stderr)
        report.unreadable += 1
    return found


def main() -> int:
    """Run the benchmark and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=2000)
    parser.add_argument("--longest-s", type=float, default=0.25, help="from first row to kill")
    parser.add_argument("--framework", default="synthetic", help="or a target's import string")
    parser.add_argument("--settings", type=json.loads, default={}, help="of the backend, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = kill_and_resume(
            Path(folder), kills=arguments.kills, seed=arguments.seed, layers=arguments.layers,
            framework=arguments.framework, settings={"real_ms": 10.0, **arguments.settings},
            longest_s=arguments.longest_s,
        )  # fmt: skip
    print(
        f"{report.killed} kills at {report.rows_at_kill} rows\n"
        f"rows {report.rows} of {report.planned} planned; lost {report.lost}, "
        f"doubled {report.doubled}, unreadable files {report.unreadable}, "
        f"processes left over {report.orphans}"
    )
    bad = report.lost + report.doubled + report.unreadable + report.orphans
    return int(bool(bad) or report.rows != report.planned)


if __name__ == "__main__":
    sys.exit(main())
