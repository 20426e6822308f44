#!/usr/bin/env python
"""Learning curves of campaigns that choose their layers, beside random ones.

The training rows of a dataset stand in for all layers that could be measured: "measuring" one is
looking it up. Both curves start with the same random rows; from there one goes on at random,
the other as `resperf bench --adaptive` does. Both are judged on the dataset's test split:

    resperf bench cpu-90min --hours 1.5 -o all.h5
    python tools/benchmark_adaptive.py all.h5 --kinds conv dense

For two errors, the mean of the relative ones and the root of the mean square of their logarithms,
which counts large ones more, the table says how many random measurements reach what so many chosen
ones do. Choosing looks for layers that are predicted badly, so it shortens the tail first.

    python tools/benchmark_adaptive.py plain.h5 --chosen adaptive.h5 --judges other.h5

compares two measured campaigns, layers in the order of measurement: all of them count, whether they
train, validate, test or failed. Judged are the layers of the test split of other campaigns (without
any, of both), which train neither, of kinds that both campaigns sample.
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

from resperf.campaign.adaptive import choose_by_score
from resperf.campaign.spec import AdaptiveSettings
from resperf.dataset import read_info, read_table
from resperf.features import Array
from resperf.layers import KINDS
from resperf.predictors import layer_predictor_class
from resperf.report.tables import table
from resperf.training.disagreement import acquisition_score
from resperf.training.fit import FEWEST_ROWS, FEWEST_ROWS_FOR_NETWORK
from resperf.training.rows import LayerRows, layer_rows
from resperf.training.trials import fit_rows, own_split

Chooser = Callable[[LayerRows, LayerRows, int, np.random.Generator], Array]
"""(measured rows, others, how many) -> places of the chosen ones among the others."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["conv", "dense", "pool"])
    parser.add_argument("--start", type=int, default=200, help="random rows to start with")
    parser.add_argument("--most", type=int, default=10**9, help="rows at which the curves end")
    parser.add_argument("--method", default="boosted", help="what learns from the chosen rows")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--chosen", type=Path, help="an adaptive campaign, beside a random one")
    parser.add_argument(
        "--judges", type=Path, nargs="*", default=[],
        help="campaigns whose test splits judge; both by default",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.judges and arguments.chosen is None:
        parser.error("--judges goes with --chosen")
    if arguments.chosen is not None:
        paths = {"plain": arguments.dataset, "adaptive": arguments.chosen}
        drawn = {name: _rows(path) for name, path in paths.items()}
        tests = _tests([_rows(path) for path in arguments.judges] or list(drawn.values()))
        both = set.intersection(*map(set, drawn.values()))
        tests = {kind: test for kind, test in tests.items() if kind in both}
        orders = {name: _order(path) for name, path in paths.items()}
        counts = _counts(arguments.start, min(map(len, orders.values())), arguments.most)
        beyond = _counts(counts[-1], len(orders["plain"]), arguments.most)
        every = {"plain": [*counts, *beyond[1:]], "adaptive": counts}
        curves = {
            name: _curve_of(
                rows, orders[name], tests, every[name], arguments.method, arguments.seeds
            )
            for name, rows in drawn.items()
        }
        _show_all(curves)
        return
    for kind, rows in _rows(arguments.dataset).items():
        if kind not in arguments.kinds:
            continue
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


def _by_score(
    known: LayerRows, others: LayerRows, count: int, random: np.random.Generator
) -> Array:
    """As the campaign does: with probabilities proportional to the acquisition scores."""
    scores = acquisition_score(known, others.columns).tolist()
    kind, source = known.kind, Random(int(random.integers(2**32)))
    have = {kind: len(known)}
    places = choose_by_score(
        [kind] * len(others), scores, weights={kind: 1.0}, learnt=have, have=have,
        count=count, source=source,
    )  # fmt: skip
    return np.array(places)


def _rows(dataset: Path) -> dict[str, LayerRows]:
    tables = read_table(dataset)
    info = read_info(dataset)
    return {kind: layer_rows(tables[kind], info=info) for kind in KINDS if kind in tables}


CHOOSERS: Mapping[str, Chooser] = {"plain": _plainly, "adaptive": _by_score}
ERRORS = ("mean %", "root mean square %")
COUNTED = ("each kind", "each layer")
"""What counts alike where all kinds are judged: both errors are said for each."""
UNPREDICTED = (100.0,) * len(ERRORS)
"""Errors of a kind that nothing predicts."""
FEWEST_JUDGED = 3
"""Test rows of a kind that counts."""

Point = tuple[int, tuple[float, ...]]


def _curve(
    rows: LayerRows, chooser: Chooser, start: int, most: int, method: str, seeds: int
) -> list[Point]:
    """Rows measured, and both errors on the test split: means over seeds."""
    parts = own_split(rows)
    pool = len(parts.train)
    counts = _counts(start, pool, most)
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
            known = parts.train.select(taken)
            found[count].append(_errors(known, parts.validation, parts.test, method, seed))
    return _means(found)


def _counts(start: int, pool: int, most: int) -> list[int]:
    counts = [min(start, pool)]
    while counts[-1] < min(0.9 * pool, most):
        counts.append(min(pool, math.ceil(counts[-1] * (1 + AdaptiveSettings().growth))))
    return counts


def _means(found: Mapping[int, list[tuple[float, ...]]]) -> list[Point]:
    return [(count, _mean(errors)) for count, errors in found.items()]


def _mean(errors: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Mean of each sort of error."""
    return tuple(mean(each) for each in zip(*errors, strict=True))


def _of_all(errors: Sequence[tuple[float, ...]], layers: Sequence[int]) -> tuple[float, ...]:
    """Both errors of all kinds together: with each kind, and with each layer, counting alike."""
    means, roots = np.array(errors).T
    root = math.sqrt(np.average(roots**2, weights=layers))
    return (*_mean(errors), float(np.average(means, weights=layers)), root)


def _tests(campaigns: Sequence[Mapping[str, LayerRows]]) -> dict[str, LayerRows]:
    """Layers of the test split that any of some campaigns measured, without kinds of few rows."""
    found: dict[str, LayerRows] = {}
    for rows in campaigns:
        for kind, each in rows.items():
            test = own_split(each).test
            known = set(found[kind].keys) if kind in found else set()
            new = test.select(np.array([key not in known for key in test.keys], dtype=bool))
            found[kind] = _beside(found[kind], new) if kind in found else new
    return {kind: test for kind, test in found.items() if len(test) >= FEWEST_JUDGED}


def _order(path: Path) -> list[str]:
    """Keys of the layers of a campaign, in the order in which they were measured first."""
    first: dict[str, float] = {}
    for rows in read_table(path).values():
        if np.isnan(rows.started_at).any():
            raise SystemExit(f"{path} does not say when its rows were measured")
        for key, moment in zip(rows.key.astype(str), rows.started_at, strict=True):
            first[key] = min(first.get(key, math.inf), moment)
    return sorted(first, key=first.__getitem__)


def _curve_of(
    rows: Mapping[str, LayerRows],
    order: Sequence[str],
    tests: Mapping[str, LayerRows],
    counts: Sequence[int],
    method: str,
    seeds: int,
) -> list[Point]:
    """Layers that a campaign had measured, and the error of all kinds together."""
    found: dict[int, list[tuple[float, ...]]] = {}
    for count in counts:
        known = set(order[:count])
        parts = {
            kind: own_split(each.select(np.array([key in known for key in each.keys], dtype=bool)))
            for kind, each in rows.items()
        }
        found[count] = [
            _of_all(
                [
                    _kind_errors(parts[kind].train, parts[kind].validation, test, method, seed)
                    for kind, test in tests.items()
                ],
                [len(test) for test in tests.values()],
            )
            for seed in range(seeds)
        ]  # fmt: skip
    return _means(found)


def _kind_errors(
    train: LayerRows, validation: LayerRows, test: LayerRows, method: str, seed: int
) -> tuple[float, ...]:
    """Errors of what a bundle would hold: the baseline alone for few rows, nothing for fewer."""
    if len(train) < FEWEST_ROWS:
        return UNPREDICTED
    few = len(train) + len(validation) < FEWEST_ROWS_FOR_NETWORK
    return _errors(train, validation, test, "baseline" if few else method, seed)


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


def _errors(
    train: LayerRows, validation: LayerRows, test: LayerRows, method: str, seed: int
) -> tuple[float, ...]:
    phase = train.layer_quantity
    predictor = layer_predictor_class(method)(train.kind)
    fit_rows(predictor, train, validation, phase, seed=seed)
    ratios = predictor.values(test.columns) / test.times_ms[phase]
    square = float(np.mean(np.log(ratios) ** 2))
    return 100 * float(np.mean(np.abs(ratios - 1))), 100 * math.sqrt(square)


def _show_all(curves: Mapping[str, list[Point]]) -> None:
    for number, counted in enumerate(COUNTED):
        print(f"{counted} counts alike:")
        places = slice(number * len(ERRORS), (number + 1) * len(ERRORS))
        _show("all", {
            name: [(rows, errors[places]) for rows, errors in points]
            for name, points in curves.items()
        })  # fmt: skip


def _show(kind: str, curves: Mapping[str, list[Point]]) -> None:
    body = []
    # A plain campaign may be longer than the one beside it.
    for (count, plainly), (_, chosen) in zip(curves["plain"], curves["adaptive"], strict=False):
        cells = [str(count)]
        for place, _ in enumerate(ERRORS):
            plain = [(rows, errors[place]) for rows, errors in curves["plain"]]
            needed = _needed(plain, chosen[place])
            cells += [
                f"{plainly[place]:.2f}", f"{chosen[place]:.2f}",
                f"{needed / count:.2f}" if needed else f"above {plain[-1][0] / count:.2f}",
            ]  # fmt: skip
        body.append(cells)
    headings = [f"{kind} rows"]
    for name in ERRORS:
        headings += [f"{name}, plain", "adaptive", "plain rows for the same"]
    print(table(headings, body), end="\n\n", flush=True)


def _needed(curve: Sequence[tuple[int, float]], error: float) -> float | None:
    """Rows at which a curve reaches an error, between its points in logarithms."""
    for (few, above), (many, below) in pairwise(curve):
        if above >= error >= below:
            share = 0.0 if above == below else (above - error) / (above - below)
            return math.exp(math.log(few) + share * (math.log(many) - math.log(few)))
    return float(curve[0][0]) if error >= curve[0][1] else None


if __name__ == "__main__":
    main()
