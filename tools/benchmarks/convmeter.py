"""Linear methods on measured networks as ConvMeter judges them: tables.

The datasets are those of campaigns, each on an otherwise idle machine:

    python tools/benchmarks/export.py convmeter build/convmeter
    python tools/benchmarks/export.py convmeter-torch build/convmeter-torch
    resperf bench convmeter-onnxruntime -o ort.h5
    resperf bench convmeter-torch --framework torch -o torch.h5
    resperf bench convmeter-torch-training --framework torch --training sgd -o training.h5
    python tools/benchmarks/convmeter.py ort.h5
    python tools/benchmarks/convmeter.py training.h5

Rows of several processes that share a training step (``resperf bench convmeter-torch-scaling
--processes``, merged by ``resperf dataset merge``) get a table by number of processes.

Every prediction is by a fit without the network, at any batch or image size, and without any of its
blocks (networks whose names have a dash behind the ``@``), as by `resperf evaluate ort.h5 --methods
convmeter --leave-out network`: of the networks, of the blocks, and of both together. `resperf
evaluate ort.h5 --bundle BUNDLE` judges the sum of a bundle's layers on the same rows.

The learning curve draws some networks, at all their sizes, and judges on all others: the mean error
of the draws, and that of the worst. Figures of the paper stand beside: of an Intel Xeon Gold 5318Y
on one core for inference (Table 1), and of an A100 for blocks and training steps (Tables 2 and 3).
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from markdown_tables import markdown_table

from resperf.errors import ResperfError, TrainingError
from resperf.features import Array
from resperf.predictors import Examples, predictor_class
from resperf.predictors.linear import left_out
from resperf.predictors.metrics import mape
from resperf.quantities import QUANTITIES
from resperf.report.methods import left_out_text
from resperf.report.tables import UNKNOWN, percent_cell
from resperf.splits import architecture_of
from resperf.training import LeftOut
from resperf.training.learning import values_of
from resperf.training.left_out import _by_way, _judged, _left_out_parts
from resperf.training.rows import network_examples, network_quantities

METHODS = ("convmeter", "convmeter-relative", "operator-totals")
COUNTS = (3, 5, 10, 15)
"""Numbers of networks of the learning curve."""
PAPER: Mapping[str, Mapping[str, float]] = tomllib.loads(
    Path(__file__).with_name("convmeter.toml").read_text(encoding="utf-8")
)
"""Quantity -> network, or network and block -> MAPE in ConvMeter's Tables 1 to 3."""


def block_of(name: str) -> str:
    """Return the block of a network's name; of ``resnet50@128-Bottleneck4``, ``Bottleneck4``."""
    return name.partition("@")[2].partition("-")[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="METHOD")
    parser.add_argument("--draws", type=int, default=20, help="of networks, for each number")
    words = parser.parse_args()
    try:
        print(f"# {words.dataset.name}")
        for quantity in quantities_of(words.dataset, words.methods):
            notes: list[str] = []
            examples = network_examples(words.dataset, quantity, left_out=notes)
            for note in notes:
                print(f"{quantity}: {note}", file=sys.stderr)
            for setting, device, rows in _by_way(examples):
                print(f"\n## {quantity}, {device}, {setting}")
                print(*report(rows, words.methods, words.draws), sep="\n\n")
    except ResperfError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def quantities_of(dataset: Path, methods: Sequence[str]) -> list[str]:
    """Return the quantities that all methods learn, execution inside latency apart.

    Raises
    ------
    ResperfError
        If the dataset cannot be read, or has no such quantity.
    """
    names = network_quantities(dataset)
    learnt = {*names}.intersection(*(predictor_class(one).quantities or names for one in methods))
    inside = QUANTITIES["latency_ms"].parts if "latency_ms" in names else ()
    chosen = [name for name in names if name in learnt.difference(inside)]
    if not chosen:
        raise TrainingError(
            f"{dataset} has no quantity of networks that {', '.join(methods)} learn; measure some "
            "with: resperf bench convmeter-onnxruntime"
        )
    return chosen


def report(rows: Examples, methods: Sequence[str], draws: int) -> Iterator[str]:
    """Yield all tables of one quantity on one device."""
    is_block = np.array([bool(block_of(network.name)) for network in rows.networks])
    sets = {"networks": ~is_block, "blocks": is_block, "networks and blocks": is_block | ~is_block}
    for on, chosen in sets.items() if is_block.any() else [("networks", ~is_block)]:
        results = each_left_out(rows.select(np.flatnonzero(chosen)), methods)
        yield f"{on}, each network left out:"
        yield left_out_text(results)
        yield names_table(results)
    whole = rows.select(np.flatnonzero(~is_block))
    if len({platform.devices for _, platform in whole.per_row()}) > 1:
        yield ("By the number of devices that share a run, each with a batch of its own; "
               "efficiency is a device's throughput over that of one alone:")  # fmt: skip
        yield devices_table(whole, methods)
    yield "MAPE on all other networks by how many were measured, mean of the draws (worst):"
    yield curve_table(whole, methods, draws)


def each_left_out(rows: Examples, methods: Sequence[str]) -> list[LeftOut]:
    """Judge each network, and each block, by fits without any row of its network."""
    names = [f"{architecture_of(network.name)} {block_of(network.name)}".strip()
             for network in rows.networks]  # fmt: skip
    groups = [architecture_of(network.name) for network in rows.networks]
    named = replace(rows, groups=names)
    parts = _left_out_parts(groups, None, uses_validation=False)
    return [_judged(method, named, groups, parts, "network", 0, "", "") for method in methods]


def names_table(results: Sequence[LeftOut]) -> str:
    """Show the error of each network or block beside the paper's."""
    aims = PAPER.get(results[0].quantity, {})
    errors = [
        {group.name: group.mape for group in result.families or result.groups} for result in results
    ]
    rows = [
        [name, *(percent_cell(mapes[name]) for mapes in errors),
         f"{aims[name]:.0%}" if name in aims else UNKNOWN]
        for name in errors[0]
    ]  # fmt: skip
    return markdown_table(("network", *(result.method for result in results), "paper's"), rows)


def predicted(method: str, rows: Examples, learnt: Array, judged: Array) -> Array:
    """Predict some rows by a fit to others.

    Raises
    ------
    TrainingError
        If those do not determine its coefficients.
    """
    train_rows = rows.select(np.flatnonzero(learnt))
    fitted = predictor_class(method)("network").fit(train_rows, validation=train_rows, seed=0)
    return values_of(fitted, rows.select(np.flatnonzero(judged)))


def devices_table(rows: Examples, methods: Sequence[str]) -> str:
    """Show the errors of each method by number of devices, and those of the efficiency."""
    groups = [architecture_of(network.name) for network in rows.networks]
    runs = [
        (network.name, setting.batch or 0, platform.devices)
        for network, (setting, platform) in zip(rows.networks, rows.per_row(), strict=True)
    ]
    row_of_run = {run: row for row, run in enumerate(runs)}
    table = []
    for method in methods:
        estimates = left_out(groups, partial(predicted, method, rows))
        for count in sorted({devices for *_, devices in runs}):
            own = [row for row, run in enumerate(runs) if run[2] == count]
            pairs = [(row_of_run[*runs[row][:2], 1], row) for row in own
                     if (*runs[row][:2], 1) in row_of_run]  # fmt: skip
            alone, several = np.array(pairs, dtype=int).reshape(-1, 2).T
            real, ours = (times[alone] / times[several] for times in (rows.values, estimates))
            cells = [float(real.mean()), float(ours.mean()), mape(real, ours)] if pairs else []
            table.append([
                method, str(count), str(len(own)),
                percent_cell(mape(rows.values[own], estimates[own])),
                *(map(percent_cell, cells) if cells else [UNKNOWN] * 3),
            ])  # fmt: skip
    headings = ("method", "devices", "rows", "MAPE", "mean efficiency measured", "predicted",
                "MAPE of the efficiency")  # fmt: skip
    return markdown_table(headings, table)


def curve_table(rows: Examples, methods: Sequence[str], draws: int) -> str:
    """Show the errors of fits to all sizes of a few networks, drawn at random, on all others."""
    groups = np.array([architecture_of(network.name) for network in rows.networks])
    names = np.unique(groups)
    # What a method reads of each graph is counted once, for all of its fits.
    ready = [
        replace(rows, subjects=predictor_class(method)("network").prepared(rows.networks),
                groups=groups.tolist())
        for method in methods
    ]  # fmt: skip
    table = []
    for count in (number for number in COUNTS if number < len(names)):
        chosen = [
            np.isin(groups, np.random.default_rng(draw).permutation(names)[:count])
            for draw in range(draws)
        ]
        cells = []
        for method, own in zip(methods, ready, strict=True):
            mapes = list(errors_of_draws(method, own, chosen))
            mean = percent_cell(float(np.mean(mapes))) if mapes else UNKNOWN
            cells.append(f"{mean} ({percent_cell(max(mapes, default=math.nan))})")
        table.append([str(count), f"{np.mean([mask.sum() for mask in chosen]):.0f}", *cells])
    return markdown_table(("networks", "measurements", *methods), table)


def errors_of_draws(method: str, rows: Examples, draws: Sequence[Array]) -> Iterator[float]:
    """Yield the error of each draw that gave coefficients."""
    for learnt in draws:
        try:
            yield mape(rows.values[~learnt], predicted(method, rows, learnt, ~learnt))
        except TrainingError:
            continue


if __name__ == "__main__":
    sys.exit(main())
