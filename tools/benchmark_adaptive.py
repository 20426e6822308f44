#!/usr/bin/env python
"""Learning curves of campaigns that choose their layers, beside plainly drawn ones.

The training rows of a dataset stand in for all layers that could be measured: "measuring" one is
looking it up. Both curves start with the same plainly drawn rows; from there one goes on plainly,
the other as `resperf bench --adaptive` does. Both are judged on the dataset's test split:

    resperf bench cpu-90min --hours 1.5 -o all.h5
    python tools/benchmark_adaptive.py all.h5 --kinds conv dense

For two errors, the mean of the relative ones and the root of the mean square of their logarithms,
which counts large ones more, the table says how many plain measurements reach what so many chosen
ones do. Choosing looks for layers that are foretold badly, so that it shortens the tail first.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean

import numpy as np

from resperf.campaign.adaptive import drawn_by_weight
from resperf.campaign.spec import AdaptiveSettings
from resperf.dataset import read_table
from resperf.features import Array, take
from resperf.predictors import predictor_class
from resperf.report.tables import Column, table
from resperf.training.disagreement import disagreement
from resperf.training.rows import LayerRows, layer_rows
from resperf.training.trials import fit_rows, own_split

Chooser = Callable[[LayerRows, LayerRows, int, np.random.Generator], Array]
"""(measured rows, others, how many) -> places of the chosen ones among the others."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["conv", "dense", "pool"])
    parser.add_argument("--start", type=int, default=200, help="rows drawn plainly first")
    parser.add_argument("--most", type=int, default=10**9, help="rows at which the curves end")
    parser.add_argument("--method", default="boosted", help="what learns from the chosen rows")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    tables = read_table(arguments.dataset)
    for kind in arguments.kinds:
        rows = layer_rows(tables[kind])
        curves = {
            name: _curve(
                rows, chooser, arguments.start, arguments.most, arguments.method, arguments.seeds
            )
            for name, chooser in CHOOSERS.items()
        }
        _show(kind, curves)


def _plainly(known: LayerRows, others: LayerRows, count: int, random: np.random.Generator) -> Array:
    del known
    return random.choice(len(others), count, replace=False)


def _by_doubt(
    known: LayerRows, others: LayerRows, count: int, random: np.random.Generator
) -> Array:
    """As the campaign does: part plainly, the rest by the square of the disagreement."""
    plain = round(AdaptiveSettings().plain * count)
    order = random.permutation(len(others))
    rest = order[plain:]
    weights = disagreement(known, take(others.columns, rest)) ** 2
    source = Random(int(random.integers(2**32)))
    chosen = drawn_by_weight(rest.tolist(), weights.tolist(), count - plain, source)
    return np.concatenate([order[:plain], np.array(chosen, dtype=order.dtype)])


CHOOSERS: Mapping[str, Chooser] = {"plain": _plainly, "adaptive": _by_doubt}
ERRORS = ("mean %", "root mean square %")
Point = tuple[int, tuple[float, ...]]


def _curve(
    rows: LayerRows, chooser: Chooser, start: int, most: int, method: str, seeds: int
) -> list[Point]:
    """Rows measured, and both errors on the test split: means over seeds."""
    parts = own_split(rows)
    pool = len(parts.train)
    counts = [min(start, pool)]
    while counts[-1] < min(0.9 * pool, most):
        counts.append(min(pool, math.ceil(counts[-1] * (1 + AdaptiveSettings().growth))))
    found: dict[int, list[tuple[float, ...]]] = {count: [] for count in counts}
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        taken = random.choice(pool, counts[0], replace=False)
        for count in counts:
            if count > len(taken):
                others = np.setdiff1d(np.arange(pool), taken)
                known = _beside(parts.train.select(taken), parts.validation)
                new = chooser(known, parts.train.select(others), count - len(taken), random)
                taken = np.concatenate([taken, others[new]])
            found[count].append(_errors(rows, taken, method, seed))
    return [
        (count, tuple(mean(each) for each in zip(*errors, strict=True)))
        for count, errors in found.items()
    ]


def _beside(some: LayerRows, others: LayerRows) -> LayerRows:
    """Return rows of both; each stays in its own part of the split, which its key decides."""
    return LayerRows(
        some.kind,
        {name: np.concatenate([some.columns[name], others.columns[name]]) for name in some.columns},
        (*some.keys, *others.keys),
        {
            phase: np.concatenate([some.times_ms[phase], others.times_ms[phase]])
            for phase in some.times_ms
        },
        np.concatenate([some.measured, others.measured]),
        {},
    )


def _errors(rows: LayerRows, taken: Array, method: str, seed: int) -> tuple[float, ...]:
    parts, phase = own_split(rows), rows.layer_phase
    predictor = predictor_class(method)(rows.kind)
    fit_rows(predictor, parts.train.select(taken), parts.validation, phase, seed=seed)
    ratios = predictor.predict(parts.test.columns) / parts.test.times_ms[phase]
    square = float(np.mean(np.log(ratios) ** 2))
    return 100 * float(np.mean(np.abs(ratios - 1))), 100 * math.sqrt(square)


def _show(kind: str, curves: Mapping[str, list[Point]]) -> None:
    body = []
    for (count, plainly), (_, chosen) in zip(curves["plain"], curves["adaptive"], strict=True):
        cells = [str(count)]
        for place, _ in enumerate(ERRORS):
            plain = [(rows, errors[place]) for rows, errors in curves["plain"]]
            needed = _needed(plain, chosen[place])
            cells += [
                f"{plainly[place]:.2f}", f"{chosen[place]:.2f}",
                f"{needed / count:.2f}" if needed else f"above {plain[-1][0] / count:.2f}",
            ]  # fmt: skip
        body.append(cells)
    columns = [Column(f"{kind} rows", right=True)]
    for name in ERRORS:
        columns += [Column(f"{name}, plain", right=True), Column("adaptive", right=True),
                    Column("plain rows for the same", right=True)]  # fmt: skip
    print(table(columns, body), end="\n\n", flush=True)


def _needed(curve: Sequence[tuple[int, float]], error: float) -> float | None:
    """Rows at which a curve reaches an error, between its points in logarithms."""
    for (few, above), (many, below) in pairwise(curve):
        if above >= error >= below:
            share = 0.0 if above == below else (above - error) / (above - below)
            return math.exp(math.log(few) + share * (math.log(many) - math.log(few)))
    return float(curve[0][0]) if error >= curve[0][1] else None


if __name__ == "__main__":
    main()
