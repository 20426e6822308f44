#!/usr/bin/env python
"""Compare costs of operator classes learnt from graphs with those learnt from operator lists.

    resperf dataset import FILES operators.jsonl.gz --format timm -o build/lists.h5
    resperf dataset import FILES operators.jsonl.gz --format timm --graphs FOLDER -o build/graphs.h5
    python tools/compare_graphs_with_lists.py build/graphs.h5 build/lists.h5

Both datasets hold the same rows. Graphs go through the reading and the lowering that predictions
use. Every family is predicted by fits without it: to the rows that have a graph, from lists or from
graphs; and to the lists of all rows, which then predict lists or graphs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from resperf.features import Array
from resperf.network import Network
from resperf.predictors._class_fit import (
    FEWEST_NETWORKS,
    columns_of,
    costs_of,
    relative_to,
)
from resperf.predictors.class_costs import terms_of
from resperf.predictors.operator_classes import Terms
from resperf.report.tables import table
from resperf.settings import SESSION
from resperf.splits import folds_of
from resperf.training.rows import network_examples

QUANTITY = "execution_ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", type=Path, help="dataset with graphs")
    parser.add_argument("lists", type=Path, help="dataset of the same rows without graphs")
    arguments = parser.parse_args()
    graphs, lists = (
        network_examples(path, QUANTITY, lists=True) for path in (arguments.graphs, arguments.lists)
    )
    if [each.name for each in graphs.networks] != [each.name for each in lists.networks]:
        raise SystemExit("the datasets hold different rows")
    sessions = [setting.options[SESSION] for setting in lists.settings]
    rows = []
    for session in sorted(set(sessions)):
        places = [place for place, each in enumerate(sessions) if each == session]
        listed, read = (
            [
                terms_of(every.networks[each], every.settings[each], every.platforms[each])
                for each in places
            ]
            for every in (lists, graphs)
        )
        has_graph = np.array([isinstance(graphs.networks[each], Network) for each in places])
        times_ms = lists.values[places]
        families = [lists.groups[each] for each in places]
        own = [family for family, known in zip(families, has_graph, strict=True) if known]
        some = np.flatnonzero(has_graph)
        of_some = (_family_out([terms[each] for each in some], times_ms[has_graph], own)
                   for terms in (listed, read))  # fmt: skip
        of_all = (
            _error(_ratios(listed, judged, times_ms, families)[has_graph])
            for judged in (listed, read)
        )
        shares = [abs(_total(read[each]) / _total(listed[each]) - 1) for each in some]
        rows.append(
            [session.removeprefix("benchmark-"), str(len(some)), f"{np.median(shares):.1%}"]
            + [f"{error:.1%}" for error in (*of_some, *of_all)]
        )
    print(table(
        ("file", "graphs", "work differs, median", "from lists", "from graphs",
         "all lists, predict lists", "all lists, predict graphs"), rows, text=("file",),
    ))  # fmt: skip


def _family_out(terms: Sequence[Terms], times_ms: Array, families: Sequence[str]) -> float:
    return _error(_ratios(terms, terms, times_ms, families))


def _ratios(
    learnt: Sequence[Terms], judged: Sequence[Terms], times_ms: Array, families: Sequence[str]
) -> Array:
    """Return predicted over measured times, each fourth of the families predicted by the rest."""
    costs = costs_of(learnt, min(FEWEST_NETWORKS, max(2, len(learnt) // 8)), training=False)
    relative, other = (
        relative_to(times_ms, columns_of(terms, costs).sheet_ms, costs, training=False)
        for terms in (learnt, judged)
    )
    folds = np.array(folds_of(families))
    found = np.zeros(len(folds))
    for fold in np.unique(folds):
        rest = folds != fold
        known = relative.some(rest)
        shrinkage = known.best_shrinkage(
            [f for f, kept in zip(families, rest, strict=True) if kept]
        )
        found[~rest] = other.matrix[~rest] @ known.solve(shrinkage)
    return found


def _error(ratios: Array) -> float:
    return float(np.mean(np.abs(ratios - 1)))


def _total(terms: Terms) -> float:
    return sum(terms.values())


if __name__ == "__main__":
    main()
