"""What a campaign's probes see: networks' times while one is slow, over those while none is.

    python tools/benchmark_probes.py models/networks/*.onnx --seconds 120

Networks and probes are timed alternately. A probe is worth its time if the networks that its state
affects take longer while it is slow, and vary less while none is.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

from resperf.backends import backend
from resperf.backends.monitors import load_monitor
from resperf.targets import target
from resperf.timing import SamplingProtocol, sample

TURN = SamplingProtocol(min_samples=3, min_time_s=0.05, budget_s=0.1, warmup_s=0.02)
"""How a network is timed in one turn."""
FEWEST = 5
"""Turns in a state that say something about it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", type=Path)
    parser.add_argument("--framework", default="onnxruntime")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between rounds")
    arguments = parser.parse_args()

    device = backend(arguments.framework)
    device.own_process()
    with ExitStack() as stack:
        monitor = stack.enter_context(load_monitor(target(arguments.framework)).start(device))
        runs = {
            path.stem: stack.enter_context(device.network(path, batch=arguments.batch))
            .phases["execution_ms"]
            .sampler
            for path in arguments.networks
        }
        turns: dict[str, list[tuple[str, float]]] = {name: [] for name in runs}
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            for name, run in runs.items():
                before = monitor.active_flags()
                time_ms = median(sample(run, TURN).values)
                after = monitor.active_flags()
                state = " then ".join(sorted({*before, *after})) or "steady"
                turns[name].append((state if before == after else "changing", time_ms))
            time.sleep(arguments.pause)
        report(turns, {name: each for name, (each, _) in monitor.usual_times().items()})


def report(turns: dict[str, list[tuple[str, float]]], usual_ms: dict[str, float]) -> None:
    """Print each network's time in the steady state, its spread, and the ratios of the others."""
    states = Counter(state for each in turns.values() for state, _ in each)
    print(*(f"{name}: usually {time_ms:.3f} ms" for name, time_ms in usual_ms.items()), sep="\n")
    print(
        ", ".join(f"{state} {count / states.total():.0%}" for state, count in states.most_common())
    )
    others = [state for state in states if state not in ("steady", "changing")]
    print(
        f"{'network':28}{'steady ms':>10}{'spread':>9}", *(f"{'x ' + each:>12}" for each in others)
    )
    for name, each in turns.items():
        steady = [time_ms for state, time_ms in each if state == "steady"]
        if len(steady) < FEWEST:
            print(f"{name:28} too few steady turns")
            continue
        usual = median(steady)
        low, *_, high = quantiles(steady, n=10)
        cells = []
        for other in others:
            slow = [time_ms for state, time_ms in each if state == other]
            cells.append(f"{median(slow) / usual:12.2f}" if len(slow) >= FEWEST else f"{'-':>12}")
        print(f"{name:28}{usual:10.3f}{(high - low) / usual:9.0%}", *cells)


if __name__ == "__main__":
    main()
