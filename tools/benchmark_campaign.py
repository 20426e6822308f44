"""Run a campaign and print its speed, its overhead per layer and the memory of its processes.

    python tools/benchmark_campaign.py --framework onnxruntime --layers 500
    python tools/benchmark_campaign.py --framework onnxruntime --layers 5000 --brief
    PYTHONPATH=.:tests python tools/benchmark_campaign.py --framework synthetic_gpu:TARGET \\
        --settings '{"hot": [100, 4]}' --layers 10000 --brief

Target: at most 60 ms median overhead per layer outside warm-up and samples; memory that does not
grow with the number of layers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
from benchmark_kill import named_target

from resperf.campaign import Bench, Campaign, run_campaign
from resperf.cli.bench import find_campaign
from resperf.dataset import read_dataset
from resperf.measurement import Status

MEBIBYTE = 1 << 20


class MemoryLog(threading.Thread):
    """Notes the memory of this process and its children every few seconds."""

    def __init__(self, interval_s: float) -> None:
        super().__init__(daemon=True)
        self.readings: list[tuple[float, float, float]] = []
        self._interval_s = interval_s
        self._stop_now = threading.Event()

    def run(self) -> None:
        """Note until told to stop."""
        process, start = psutil.Process(os.getpid()), time.monotonic()
        while not self._stop_now.wait(self._interval_s):
            children = 0
            for child in process.children(recursive=True):
                try:
                    children += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            own = process.memory_info().rss
            self.readings.append((time.monotonic() - start, own / MEBIBYTE, children / MEBIBYTE))

    def stop(self) -> None:
        """Stop noting."""
        self._stop_now.set()
        self.join()


def main() -> int:
    """Run the benchmark and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--campaign", default="demo")
    parser.add_argument("--framework", default="onnxruntime", help="or a target's import string")
    parser.add_argument("--settings", type=json.loads, default={}, help="of the backend, as JSON")
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--brief", action="store_true", help="a tenth of the sampling time")
    arguments = parser.parse_args()
    campaign = Campaign.from_toml(find_campaign(arguments.campaign))
    if arguments.brief:
        limits = replace(campaign.constraints, largest_time_ms=3.0)
        protocol = campaign.protocol.scaled(0.1)
        campaign = replace(campaign, protocol=protocol, constraints=limits)
    log = MemoryLog(2.0)
    log.start()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "benchmark.h5"
        bench = Bench(
            named_target(arguments.framework), arguments.settings, samples=arguments.layers
        )
        result = run_campaign(campaign, output, bench)
        rows = read_dataset(output).measurements
    log.stop()
    done = [row for row in rows if row.status is Status.OK]
    overhead_s = sorted(row.overhead_s for row in done)
    sampling_s = sum(row.duration_s - row.overhead_s for row in done)
    print(f"{result.measured} layers in {result.elapsed_s:.0f} s: "
          f"{result.measured / result.elapsed_s:.2f} layers/s")  # fmt: skip
    print(
        f"statuses {dict(result.statuses)}, {result.again} measured again, "
        f"{result.noisy} rows remain noisy"
    )
    print(
        f"overhead per layer: median {1e3 * result.overhead_s:.1f} ms with journal and messages; "
        f"in the measuring process median {1e3 * overhead_s[len(overhead_s) // 2]:.1f} ms, "
        f"p90 {1e3 * overhead_s[len(overhead_s) * 9 // 10]:.1f} ms; "
        f"warm-up and samples take {sampling_s / result.elapsed_s:.0%} of the time"
    )
    print("memory, MiB (parent, children), over time:")
    for index in range(0, len(log.readings), max(1, len(log.readings) // 12)):
        at_s, own, children = log.readings[index]
        print(f"  {at_s:6.0f} s {own:8.0f} {children:8.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
