"""Time training runs of a small network over batch sizes and iterations: a log for `fit-run`.

Gianniti et al. (2019) time every combination of 8 batch sizes and 20 numbers of iterations, and
predict the larger from the smallest 6, 12 and 20 (section 4.3, Table 4). This does the same with a
small convolutional network in eager PyTorch on one thread of the CPU, in about ten minutes, on a
machine that does nothing else.

    python tools/benchmarks/run_grid.py build/grid.csv
    resperf fit-run build/grid.csv --fit-batch 16 --fit-iterations 150

A run is what a script does between its imports and its end: it makes images, network and optimizer,
and trains for so many iterations. Runs are in random order, and written as soon as they are done:
the same command resumes. Virtual machines change their speed: a run before or after which a
fixed product of matrices took much longer than usual is done again, twice at most, and the least
disturbed one is written. Then the errors are printed, on the 140 runs that no fit saw.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resperf.errors import ResperfError
from resperf.report.fit_run import runs_text
from resperf.workflows.fit_run import COLUMNS, Run, fit_run, judge_runs, read_runs

BATCHES = (8, 16, 24, 32, 40, 48, 56, 64)
ITERATIONS = (
    100, 120, 150, 170, 200, 230, 250, 300, 350, 400, 500, 700, 800, 950, 1000, 1100, 1400, 1600,
    2000, 2300,
)  # fmt: skip
SPLITS = ((16, 150), (24, 170), (32, 200))
"""Largest batch size and number of iterations that are fitted: Table 4."""
PAPER = ("3.2 to 5.8%", "1.1 to 6.4%", "2.4 to 3.4%")
"""MAPE of its three networks in Table 4, for each of the splits."""
IMAGES, SIZE, CLASSES = 1024, 16, 10
SLOW, TRIES = 1.2, 3
"""Time of the reference over its shortest from which a run is done again, and how often it is done
at most."""
WARMUP = (32, 200)
"""Batch size and iterations of a run before all others, which is not written."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path, metavar="LOG.csv")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the runs")
    words = parser.parse_args()
    try:
        measure(words.log, words.seed, Watched(run_seconds, reference_seconds))
        print(*errors(read_runs(words.log)), sep="\n")
    except ResperfError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def measure(log: Path, seed: int, seconds_of: Callable[[int, int], float]) -> None:
    """Time what a log lacks, and add it.

    Raises
    ------
    ResperfError
        If the log cannot be read.
    """
    grid = list(itertools.product(BATCHES, ITERATIONS))
    random.Random(seed).shuffle(grid)  # so that a change of the machine's speed is no trend
    if not log.exists():
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(",".join(COLUMNS) + "\n")
    known = {(run.batch, run.iterations) for run in _runs_so_far(log)}
    missing = [each for each in grid if each not in known]
    if missing:
        seconds_of(*WARMUP)
    with log.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for place, (batch, iterations) in enumerate(missing, 1):
            seconds = seconds_of(batch, iterations)
            writer.writerow((batch, iterations, f"{seconds:.6f}"))
            file.flush()
            print(f"{place}/{len(missing)}: {batch} x {iterations}: {seconds:.3f} s",
                  file=sys.stderr)  # fmt: skip


def _runs_so_far(log: Path) -> list[Run]:
    """Read a log, which may have only its first line."""
    return read_runs(log) if len(log.read_text().splitlines()) > 1 else []


@dataclass
class Watched:
    """Times runs, and again where the machine was slow before or after."""

    seconds_of: Callable[[int, int], float]
    reference: Callable[[], float]
    usual_s: float = math.inf

    def __call__(self, batch: int, iterations: int) -> float:
        """Return the seconds of the least disturbed run."""
        found = []
        for _ in range(TRIES):
            before_s = self.reference()
            seconds = self.seconds_of(batch, iterations)
            slowest_s = max(before_s, self.reference())
            self.usual_s = min(self.usual_s, before_s, slowest_s)
            found.append((slowest_s, seconds))
            if slowest_s <= SLOW * self.usual_s:
                break
        return min(found)[1]


def reference_seconds() -> float:
    """Time a fixed product of matrices."""
    import torch

    torch.set_num_threads(1)
    matrix = torch.ones(256, 256)
    started = time.perf_counter()
    for _ in range(50):
        torch.mm(matrix, matrix)
    return time.perf_counter() - started


def run_seconds(batch: int, iterations: int) -> float:
    """Train anew for some iterations; return the seconds of all of it."""
    import torch

    torch.set_num_threads(1)  # small operators on several wait for each other
    started = time.perf_counter()
    torch.manual_seed(0)
    images = torch.randn(IMAGES, 3, SIZE, SIZE)
    labels = torch.randint(CLASSES, (IMAGES,))
    network = _network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    for _ in range(iterations):
        chosen = torch.randint(IMAGES, (batch,))
        loss = loss_of(network(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - started


def _network() -> Any:
    """Make a network of three convolutions for images of 16 x 16."""
    from torch import nn

    def stage(given: int, made: int) -> list[nn.Module]:
        return [nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU(),
                nn.MaxPool2d(2)]  # fmt: skip

    return nn.Sequential(
        *stage(3, 16), *stage(16, 32), *stage(32, 64), nn.Flatten(), nn.Linear(256, CLASSES)
    )


def errors(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line on each split: the errors on the runs that no split fits.

    Raises
    ------
    TrainingError
        If the runs do not determine the coefficients.
    """
    fitted = [[run for run in runs if run.batch <= batch and run.iterations <= iterations]
              for batch, iterations in SPLITS]  # fmt: skip
    tested = [run for run in runs if not any(run in own for own in fitted)]
    for split, own, aim in zip(SPLITS, fitted, PAPER, strict=True):
        *_, summary = runs_text(judge_runs(fit_run(own), tested), own).splitlines()
        yield f"{len(own)} runs up to {split[0]} x {split[1]}: {summary}; the paper's: {aim}"


if __name__ == "__main__":
    sys.exit(main())
