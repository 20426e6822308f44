#!/usr/bin/env python
"""How well times of whole networks follow from the costs of operator classes: writes a page.

    for device in 3090 4090 5090 i9_10940x i7_12700h; do
        resperf dataset import ../shared/data/timm/*$device*.csv.gz \\
            ../shared/data/timm/operators.jsonl.gz --format timm -o build/timm-$device.h5
    done
    OMP_NUM_THREADS=1 nice python tools/report_timm.py build/timm-*.h5

All figures are cross-validated on the datasets given. Shrinkage is chosen within the training part
of each fold. Results of each file are kept in the work folder; delete one to have it made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from resperf.devices import DeviceFacts, device_facts
from resperf.features import Array
from resperf.predictors._class_fit import (
    FEWEST_NETWORKS,
    SHRINKAGES,
    Identified,
    Relative,
    Shrinkage,
    alike,
    columns_of,
    costs_of,
    relative_to,
)
from resperf.predictors._fitted_classes import ClassFit, group_of
from resperf.predictors._left_out_cards import CardRows, errors_of_left_out, spread_of
from resperf.predictors.intervals import ASSUMED
from resperf.predictors.operator_classes import Cost, RunNetwork, Terms, class_terms
from resperf.report.markdown import markdown_table
from resperf.settings import SESSION, Mode, Setting
from resperf.splits import first_of_keys, folds_of
from resperf.training.correction import Placed, fit_correction, priors_of_runs, total_ms
from resperf.training.rows import network_examples

ROOT = Path(__file__).resolve().parents[1]
PAGE, WORK = ROOT / "docs" / "networks-on-gpus.md", ROOT / "build" / "timm"
COUNTS = (10, 30, 100, 300)
DRAWS = 3
NETWORK_FOLDS = 10
CURVES = ("infer-amp-nchw-pt240-cu124-rtx3090", "infer-amp-nchw-pt291-cu128-4090-dynamo",
          "infer-amp-nchw-pt291-cu130-5090", "train-amp-nchw-pt112-cu113-rtx3090")  # fmt: skip
"""Files of which is shown how many networks are needed."""
_NOTHING = Identified(0, 0, 1.0, ())
LEAST_DIFFERENCE = 0.1
"""Share of a network's time that added blocks must take: less is within the noise."""
AIMS = {"eager": "7%", "compiled": "9%", "training": "8.5%"}
SISTERS = {
    ("rtx4090", "eager"): (("rtx3090", "2.4.0"), ("rtx5090", "2.9.1")),
    ("rtx5090", "eager"): (("rtx4090", "2.9.1"), ("rtx3090", "2.4.0")),
    ("rtx3090", "eager"): (("rtx4090", "2.4.0"), ("rtx5090", "2.9.1")),
    ("rtx5090", "dynamo"): (("rtx4090", "2.9.1"),),
}  # fmt: skip
"""Card, compiled or not -> cards that it is predicted from, with versions; the sister first."""


@dataclass(frozen=True)
class File:
    """Rows of one published file."""

    name: str
    setting: Setting
    facts: DeviceFacts
    networks: list[RunNetwork]
    times_ms: Array
    families: list[str]
    batches: list[int]

    @cached_property
    def terms(self) -> list[Terms]:
        return [class_terms(network, self.facts) for network in self.networks]

    @property
    def names(self) -> list[str]:
        return [network.name for network in self.networks]

    @property
    def is_training(self) -> bool:
        return self.setting.mode is Mode.TRAINING

    @cached_property
    def same(self) -> list[str]:
        return alike(self.names, self.terms)

    def select(self, chosen: Any) -> File:
        """Return the rows of a mask."""
        places = np.flatnonzero(chosen)
        return File(
            self.name, self.setting, self.facts, [self.networks[each] for each in places],
            self.times_ms[places], [self.families[each] for each in places],
            [self.batches[each] for each in places],
        )  # fmt: skip

    @property
    def sort(self) -> str:
        if self.facts.device_class != "cuda":
            return "CPU"
        if self.is_training:
            return "training" if self.setting.layout == "nchw" else "training NHWC"
        return "compiled" if self.setting.compiled == "dynamo" else "eager"


def files_of(dataset: Path) -> Iterator[File]:
    """Yield the files that a dataset was imported from."""
    for quantity in ("execution_ms", "step_ms"):
        try:
            examples = network_examples(dataset, quantity, lists=True)
        except ValueError:
            continue
        sessions = [setting.options[SESSION] for setting in examples.settings]
        for name in sorted(set(sessions)):
            rows = [place for place, each in enumerate(sessions) if each == name]
            settings = [examples.settings[row] for row in rows]
            facts = device_facts(examples.platforms[rows[0]].device)
            if facts is None:
                raise SystemExit(f"{dataset}: the data sheet of its device is not known")
            networks: list[Any] = [examples.networks[row] for row in rows]
            yield File(
                name.removeprefix("benchmark-"), settings[0], facts, networks,
                examples.values[rows], [examples.groups[row] for row in rows],
                [setting.batch or 1 for setting in settings],
            )  # fmt: skip


def relative_of(file: File) -> tuple[Relative, tuple[Any, ...]]:
    fewest = min(FEWEST_NETWORKS, max(2, len(file.networks) // 8))
    costs = costs_of(file.terms, fewest, training=file.is_training)
    sheet_ms = columns_of(file.terms, costs).sheet_ms
    return relative_to(file.times_ms, sheet_ms, costs, training=file.is_training), costs


def chosen_shrinkages(
    relative: Relative, folds: Sequence[str], families: Sequence[str]
) -> dict[str, Shrinkage]:
    """Choose the shrinkage of each fold without its rows."""
    parts = np.array(folds)
    found = {}
    for part in sorted(set(folds)):
        rest = np.flatnonzero(parts != part)
        inner = relative.some(rest)
        found[part] = inner.best_shrinkage([families[each] for each in rest])
    return found


def corrected(
    file: File, relative: Relative, costs: Any, ratios: Array, folds: Sequence[str],
    shrinkages: dict[str, Shrinkage],
) -> Array:  # fmt: skip
    """Return predictions over measured times, corrected by networks of other folds."""
    parts, found = np.array(folds), np.array(ratios)
    sheet_ms = relative.matrix * file.times_ms[:, None]
    for part in sorted(set(folds)):
        own = parts == part
        inner = relative.some(~own)
        coefficients = inner.solve(shrinkages[part])
        similar = folds_of([name for name, mine in zip(file.same, own, strict=True) if not mine])
        errors = 1 / np.maximum(inner.left_out(similar, shrinkages[part]), 1e-9)
        bare = ClassFit(
            costs, coefficients, relative.expected, coefficients[None], shrinkages[part],
            _NOTHING, None, None, None, 0.0, 0,
        )  # fmt: skip
        nearness = bare.corrected_by(sheet_ms[~own], errors)
        found[own] = ratios[own] * nearness.factors(bare.class_ms(sheet_ms[own]))
    return found


def convmeter(file: File, folds: Sequence[str], *, weighted: bool) -> Array:
    """Return predictions over measured times of ConvMeter's linear form, each fold left out.

    FLOPs, inputs and outputs of convolutions and products, and a constant; of training steps also
    the parameters. Least squares as published, or of relative errors.
    """
    totals = np.array([_totals(network, file.is_training) for network in file.networks])
    totals /= np.maximum(totals.max(axis=0), 1e-30)
    parts, found = np.array(folds), np.zeros(len(folds))
    for part in set(folds):
        own = parts == part
        matrix, aim = totals[~own], file.times_ms[~own]
        if weighted:
            matrix, aim = matrix / aim[:, None], np.ones(len(aim))
        coefficients = np.linalg.lstsq(matrix, aim, rcond=None)[0]
        found[own] = totals[own] @ coefficients / file.times_ms[own]
    return found


def _totals(network: RunNetwork, training: bool) -> list[float]:
    flops = given = made = 0.0
    for each in network.operators:
        if each.op not in ("convolution", "addmm", "mm") or each.of_weights:
            continue
        data, weights = each.inputs[0], each.inputs[1]
        if each.op == "convolution":
            work = each.outputs[0].values * weights.values / max(weights.shape[0], 1)
        else:
            data, weights = each.inputs[-2:]
            work = each.outputs[0].values * data.shape[-1]
        flops += work * each.count
        given += data.values * each.count
        made += each.outputs[0].values * each.count
    scaled = [value * network.scale for value in (flops, given, made)]
    return [*scaled, 1.0, *([network.parameters] if training else [])]


def judged(file: File) -> dict[str, Any]:
    """Return all figures of one file."""
    relative, costs = relative_of(file)
    by_family, by_network = folds_of(file.families), folds_of(file.same, NETWORK_FOLDS)
    chosen = chosen_shrinkages(relative, by_family, file.families)
    family = relative.each_left_out(file.families, by_family, chosen)
    chosen_network = chosen_shrinkages(relative, by_network, file.families)
    network = relative.each_left_out(file.same, by_network, chosen_network)
    told = relative.identified(costs)
    return {
        "file": file.name, "sort": file.sort, "networks": len(file.networks),
        "families": len(set(file.families)), "same": len(set(file.same)),
        "rank": told.rank, "terms": told.terms, "condition": told.condition,
        "collinear": [list(each) for each in told.collinear],
        "shrinkages": sorted(set(chosen.values())),
        "family": _error(family), "family median": _median(family),
        "family corrected": _error(
            corrected(file, relative, costs, family, by_family, chosen)
        ),
        "network": _error(network),
        "network corrected": _error(
            corrected(file, relative, costs, network, by_network, chosen_network)
        ),
        "convmeter": _error(convmeter(file, file.families, weighted=False)),
        "convmeter relative": _error(convmeter(file, file.families, weighted=True)),
        "blocks": added_blocks(file, family),
        "worst": worst_families(file, family),
    }  # fmt: skip


def _error(ratios: Array) -> float:
    return float(np.mean(np.abs(ratios - 1)))


def _median(ratios: Array) -> float:
    return float(np.median(np.abs(ratios - 1)))


def worst_families(file: File, ratios: Array) -> list[list[Any]]:
    """Return the families that add most to the error: networks, median of predicted - 1, MAPE."""
    names = np.array(file.families)
    rows = [
        [name, int(own.sum()), float(np.median(ratios[own]) - 1), _error(ratios[own])]
        for name in sorted(set(file.families))
        if (own := names == name).any()
    ]
    return sorted(rows, key=lambda row: -row[1] * row[3])[:8]


def added_blocks(file: File, ratios: Array) -> dict[str, Any]:
    """Judge differences of networks of one family, batch and image of which one contains another.

    All operators of the smaller one, shapes and types included, are in the larger one at least as
    often; the difference takes at least `LEAST_DIFFERENCE` of the larger one's time.
    """
    numbers: dict[Any, int] = {}
    lists = [
        Counter(
            {
                numbers.setdefault((each.op, each.inputs, each.outputs), len(numbers)): each.count
                for each in network.operators
            }
        )
        for network in file.networks
    ]
    sizes = [each.total() for each in lists]
    predicted = ratios * file.times_ms
    errors = []
    groups: dict[tuple[str, int], list[int]] = {}
    for row, key in enumerate(zip(file.families, file.batches, strict=True)):
        groups.setdefault(key, []).append(row)
    for rows in groups.values():
        for small in rows:
            for large in rows:
                if sizes[small] >= sizes[large] or not lists[small].keys() <= lists[large].keys():
                    continue
                if not lists[small] <= lists[large]:
                    continue
                measured = file.times_ms[large] - file.times_ms[small]
                if measured >= LEAST_DIFFERENCE * file.times_ms[large]:
                    errors.append(abs((predicted[large] - predicted[small]) / measured - 1))
    if not errors:
        return {"pairs": 0}
    return {"pairs": len(errors), "median": float(np.median(errors)),
            "p90": float(np.quantile(errors, 0.9))}  # fmt: skip


def learning_curve(file: File) -> dict[str, float]:
    """Return the error on all other families of fits to a few networks, the mean of some draws."""
    found = {}
    for count in COUNTS:
        errors = []
        for seed in range(DRAWS):
            chosen = first_of_keys([f"{n} {b}" for n, b in enumerate(file.names)], count, seed)
            some = file.select(chosen)
            relative, costs = relative_of(some)
            coefficients = relative.solve(relative.best_shrinkage(some.families))
            rest = file.select(~chosen)
            sheet_ms = columns_of(rest.terms, costs).sheet_ms
            errors.append(_error(sheet_ms @ coefficients / rest.times_ms))
        found[str(count)] = float(np.mean(errors))
    return found


def transfers(files: Sequence[File]) -> Iterator[list[str]]:
    """Yield a row per card: predicted from others, with none, 10 and 30 networks of its own."""
    by_key = {
        (file.facts.device, file.setting.compiled, file.setting.framework_version): file
        for file in files
        if file.setting.mode is Mode.INFERENCE and file.setting.layout == "nchw"
    }
    for (device, compiled), sources in SISTERS.items():
        others = [by_key.get((name, compiled, version)) for name, version in sources]
        own = [each for key, each in by_key.items() if key[:2] == (device, compiled)]
        known = [each for each in others if each is not None]
        if not own or len(known) != len(others):
            continue
        yield transferred(max(own, key=lambda each: each.setting.framework_version), known)


def transferred(target: File, others: Sequence[File]) -> list[str]:
    """Predict a card by coefficients relative to data sheets, and by one factor on its sister."""
    costs, relative = together(others)
    shrinkage = SHRINKAGES[1]
    pooled = relative.solve(shrinkage)
    own_sheet = columns_of(target.terms, costs).sheet_ms
    by_sheet = own_sheet @ pooled / target.times_ms
    sister = others[0]
    on_sister = columns_of([class_terms(n, sister.facts) for n in target.networks], costs).sheet_ms
    alone = relative.some(np.arange(len(sister.networks))).solve(shrinkage)
    by_sister = on_sister @ alone / target.times_ms
    bandwidth = sister.facts.bandwidth_bytes_per_s / target.facts.bandwidth_bytes_per_s
    cells = [target.facts.name, target.setting.compiled,
             ", ".join(file.facts.name for file in others)]  # fmt: skip
    cells += [_percent(_error(by_sheet)), _percent(_error(by_sister * bandwidth))]
    for count in COUNTS[:2]:
        ours, baseline = [], []
        for seed in range(DRAWS):
            chosen = first_of_keys([f"{n} {b}" for n, b in enumerate(target.names)], count, seed)
            factor = 1 / np.median(by_sheet[chosen])
            own = own_sheet[chosen] / target.times_ms[chosen, None]
            fitted = Relative(own, factor * pooled).solve(_own_shrinkage(own, factor * pooled))
            ours.append(_error(own_sheet[~chosen] @ fitted / target.times_ms[~chosen]))
            baseline.append(_error(by_sister[~chosen] / np.median(by_sister[chosen])))
        cells += [_percent(float(np.mean(ours))), _percent(float(np.mean(baseline)))]
    return cells + by_runs(target, costs, own_sheet * pooled)


RUNS = (1, 3, 10, 30)
"""Networks of a card that `calibrate --runs` is given."""
RUN_DRAWS = 30


def by_runs(target: File, costs: Sequence[Cost], by_sheet_ms: Array) -> list[str]:
    """Correct what others' coefficients say of a card by a few networks of it, as runs.

    Errors on the card's other networks, means of many draws; and how many of these are inside the
    90% interval.
    """
    groups = [group_of(cost.of) for cost in costs]
    names = sorted(set(groups))
    member = np.array([[float(group == name) for name in names] for group in groups])
    placed = [
        Placed(str(row), None, float(time_ms), dict(zip(names, parts, strict=True)), 0, 0.0, 0.0)
        for row, (time_ms, parts) in enumerate(
            zip(target.times_ms, by_sheet_ms @ member, strict=True)
        )
    ]
    cells = []
    for count in RUNS:
        errors, inside = [], []
        for seed in range(RUN_DRAWS):
            chosen = first_of_keys([f"{n} {b}" for n, b in enumerate(target.names)], count, seed)
            some = [placed[row] for row in np.flatnonzero(chosen)]
            learnt = fit_correction(some, {}, priors_of_runs(ASSUMED))
            rest = [placed[row] for row in np.flatnonzero(~chosen)]
            ratios = np.array([total_ms(each, learnt) / each.measured_ms for each in rest])
            errors.append(_error(ratios))
            inside.append(float(np.mean(np.abs(np.log(ratios)) <= learnt.log_width)))
        cells.append(f"{np.mean(errors):.1%} ({np.max(errors):.1%}), {np.mean(inside):.0%}")
    return cells


def coverage(file: File) -> dict[str, float]:
    """Return the shares of networks inside their 90% intervals, of fits without their fold."""
    found = {}
    for name, folds in (("family", folds_of(file.families)), ("network", folds_of(file.same))):
        parts, inside = np.array(folds), np.zeros(len(folds), dtype=bool)
        for part in sorted(set(folds)):
            own = parts == part
            rest = file.select(~own)
            fit = ClassFit.fit(
                rest.terms, rest.times_ms, rest.families, training=file.is_training,
                similar=rest.same,
            )  # fmt: skip
            judged = file.select(own)
            estimate = fit.predict(judged.terms)
            is_above, is_below = (
                estimate.low <= judged.times_ms, judged.times_ms <= estimate.high,
            )  # fmt: skip
            inside[own] = is_above & is_below
        found[name] = float(inside.mean())
    return found


def latest_files(files: Sequence[File]) -> list[File]:
    """Return of each device, mode, layout, eager or compiled, the file of the latest version."""
    found = {
        (each.facts.device, each.setting.mode, each.setting.layout, each.setting.compiled): each
        for each in sorted(files, key=lambda file: file.setting.framework_version)
    }
    chosen = {file.name for file in found.values()}
    return [file for file in files if file.name in chosen]


def left_out_cards(files: Sequence[File]) -> Iterator[list[str]]:
    """Yield a row per card that is predicted from the others in each of the ways that were tried.

    The geometric mean of what the other cards' fits say, without and with their corrections, and
    one fit to the other cards together.
    """
    kinds: dict[tuple[str, str], dict[str, File]] = {}
    for file in latest_files(files):
        if file.sort in ("eager", "compiled"):
            kind = file.setting.layout, file.setting.compiled
            kinds.setdefault(kind, {})[file.facts.device] = file
    for (layout, compiled), known in kinds.items():
        if len(known) < 2:
            continue
        cards = [_card(file) for file in known.values()]
        without_families = errors_of_left_out(cards)
        spread = spread_of(cards)
        for place, (card, file) in enumerate(zip(cards, known.values(), strict=True)):
            others = [each for number, each in enumerate(cards) if number != place]
            rows = [each for number, each in enumerate(known.values()) if number != place]
            plain, corrected_ms = [], []
            for other in others:
                sheet_ms = columns_of(card.terms, other.fit.costs).sheet_ms
                plain.append(np.log(sheet_ms @ other.fit.coefficients))
                corrected_ms.append(np.log(other.fit.predict(card.terms).values))
            ways = [np.exp(np.mean(each, axis=0)) / card.times_ms for each in (plain, corrected_ms)]
            ways += [np.exp(without_families[place]), by_one_fit(file, rows)]
            yield [file.facts.name, f"{layout}, {compiled}", *(_percent(_error(w)) for w in ways),
                   f"{np.exp(spread.width):.2f}", _percent(spread.coverage)]  # fmt: skip


def _card(file: File) -> CardRows:
    fit = ClassFit.fit(file.terms, file.times_ms, file.families, training=False, similar=file.same)
    return CardRows(fit, file.terms, file.times_ms, file.families, file.is_training)


def together(files: Sequence[File]) -> tuple[tuple[Any, ...], Relative]:
    """Return the terms of several cards, and these relative to the measured times."""
    costs = costs_of([t for file in files for t in file.terms], training=False)
    sheet_ms = np.concatenate([columns_of(file.terms, costs).sheet_ms for file in files])
    times_ms = np.concatenate([file.times_ms for file in files])
    return costs, relative_to(times_ms, sheet_ms, costs, training=False)


def by_one_fit(target: File, others: Sequence[File]) -> Array:
    """Return predictions over measured times of a card by one fit to the other cards together."""
    costs, relative = together(others)
    predicted_ms = columns_of(target.terms, costs).sheet_ms @ relative.solve(SHRINKAGES[1])
    return np.asarray(predicted_ms / target.times_ms)


def _own_shrinkage(matrix: Array, expected: Array) -> Shrinkage:
    """Choose on the card's own few networks how strongly they are drawn to other cards."""
    names = [str(row) for row in range(len(matrix))]
    errors = {
        each: _error(Relative(matrix, expected).left_out(folds_of(names), each))
        for each in (Shrinkage(0.0, strength) for strength in (0.1, 0.3, 1.0, 3.0))
    }
    return min(errors, key=errors.__getitem__)


def _percent(share: float) -> str:
    return f"{share:.1%}"


def page(
    results: Sequence[dict[str, Any]], curves: Any, moved: Sequence[list[str]],
    inside: dict[str, dict[str, float]], left_out: Sequence[list[str]],
) -> str:  # fmt: skip
    """Return the page."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout.strip()  # fmt: skip
    order = ("eager", "compiled", "training", "training NHWC", "CPU")
    main = sorted(results, key=lambda row: (order.index(row["sort"]), row["file"]))
    keys = ("family", "family corrected", "network", "network corrected", "convmeter",
            "convmeter relative")  # fmt: skip
    rows = [
        [row["file"], row["sort"], str(row["networks"]), *(_percent(row[key]) for key in keys),
         AIMS.get(row["sort"], "")]
        for row in main
    ]  # fmt: skip
    for sort in order:
        some = [row for row in main if row["sort"] == sort]
        if some:
            means = [_percent(float(np.mean([row[key] for row in some]))) for key in keys]
            rows.append([f"**mean, {sort}**", sort, "", *means, AIMS.get(sort, "")])
    accuracy = markdown_table(
        ("file", "sort", "networks", "family out", "corrected", "network out",
         "corrected, network out",
         "ConvMeter, family out", "ConvMeter, relative fit", "aim, family out"),
        rows,
    )  # fmt: skip
    blocks = markdown_table(
        ("file", "pairs", "median error", "90% of pairs below"),
        [
            [row["file"], str(row["blocks"]["pairs"]), _percent(row["blocks"]["median"]),
             _percent(row["blocks"]["p90"])]
            for row in main if row["blocks"]["pairs"]
        ],
    )  # fmt: skip
    told = markdown_table(
        ("file", "terms", "rank", "condition", "shrinkage chosen", "known only together"),
        [
            [row["file"], str(row["terms"]), str(row["rank"]),
             f"{row['condition']:.1e}" if row["condition"] < 1e12 else "singular",
             ", ".join(f"{a:g} and {b:g}" for a, b in row["shrinkages"]),
             "; ".join(" + ".join(each) for each in row["collinear"][:2])]
            for row in main
        ],
    )  # fmt: skip
    worst = markdown_table(
        ("file", "families with most error: networks, median of predicted over measured, MAPE"),
        [
            [row["file"], "; ".join(
                f"{name} {count}: {bias:+.0%}, {error:.0%}"
                for name, count, bias, error in row["worst"]
            )]
            for row in main
        ],
    )  # fmt: skip
    few = markdown_table(
        ("file", *(f"{count} networks" for count in COUNTS)),
        [[name, *(_percent(curve[str(count)]) for count in COUNTS)]
         for name, curve in sorted(curves.items())],
    )  # fmt: skip
    cards = markdown_table(
        ("card", "", "from", "data sheet alone", "sister by bandwidth", "10 networks",
         "factor, 10 networks", "30 networks", "factor, 30 networks"),
        [row[:-len(RUNS)] for row in moved],
    )  # fmt: skip
    runs = markdown_table(
        ("card", "", "from", "without runs", *(f"{count} networks" for count in RUNS)),
        [row[:4] + row[-len(RUNS):] for row in moved],
    )  # fmt: skip
    intervals = markdown_table(
        ("file", "family out", "network out"),
        [[row["file"], *(_percent(inside[row["file"]][key]) for key in ("family", "network"))]
         for row in main if row["file"] in inside],
    )  # fmt: skip
    unseen = markdown_table(
        ("card that is left out", "", "mean of fits", "with their corrections",
         "mean of fits, family out too", "one fit", "interval, factor", "inside"),
        list(left_out),
    )  # fmt: skip
    date = datetime.now(UTC).date().isoformat()
    return _PAGE.format(
        command="OMP_NUM_THREADS=1 nice python tools/report_timm.py build/timm-*.h5", date=date,
        commit=commit, accuracy=accuracy, blocks=blocks, told=told, worst=worst, few=few,
        cards=cards, runs=runs, run_draws=RUN_DRAWS, intervals=intervals, unseen=unseen,
        draws=DRAWS, least=f"{LEAST_DIFFERENCE:.0%}",
    )  # fmt: skip


_PAGE = """# Networks on GPUs: costs of operator classes from whole networks

The predictor `class-costs` ([methods.md](methods.md)) learns what classes of operators cost from
the times of whole networks alone. These are its errors on timm's measurements (PyTorch Image
Models, folder `results`, Apache-2.0).

```
{command}
```

{date}, commit {commit}. MAPE. **All figures are cross-validated on the data at hand, on which the
classes, the terms and the constants of the correction were also developed**; families and devices
that are held back elsewhere are the test. The shrinkage is chosen within the training part of
each fold, by one rule for all files.

## Each file by itself

*Family out*: every family (timm's module) is predicted by a fit without it. *Network out*: every
network is predicted without it, its other sizes and its twins. *Corrected*: with the correction
by near networks, learnt without the fold. ConvMeter's linear form (FLOPs, inputs and outputs of
convolutions and products, a constant) is fitted to the same rows, as published by least squares,
and on relative errors. Aims are given for family out without a correction; the aim of the
correction, network out, is 4%.

{accuracy}

Operator lists were traced under autocast in inference. For fp32 on CPUs, casts are left out;
training steps are predicted from the operators of the forward pass.

{worst}

## Are the 90% intervals as wide as they should be?

Share of the networks whose measured time is inside, of fits without a fourth of the families, or
of the networks with their other sizes and twins; the latest file of each device and setting.

{intervals}

## Added blocks

Pairs of networks of one family at the same batch size of which one has all operators of the
other, with shapes and types; the difference of their times is predicted, the family left out.
Pairs whose difference is below {least} of the larger time are left out. The aim is a median of
6%, eager.

{blocks}

## What is told apart

Rank and condition of the terms relative to measured times, without what the data sheet adds; the
rank counts singular values above a thousandth of the largest. Combinations that are not
determined follow the data sheet. Single operators are therefore only attributed, with the band of
equally good fits; compiled networks have no such column.

{told}

## How many networks are needed

Fits to a few networks drawn at random, judged on all others; the mean of {draws} draws. Other
sizes of a drawn network may be among those judged.

{few}

## One card from the others and its data sheet

Coefficients relative to data sheets, fitted to the other cards together, beside the sister card's
times with one factor: its bandwidth's without networks of the card, the median ratio with 10 or
30. With networks of its own, ours is fitted to them, drawn towards the other cards' coefficients
times one factor. Means of {draws} draws.

{cards}

The same card and others, with the networks of its own as runs of `resperf calibrate --runs`:
nothing is fitted anew, the groups of operators get factors that are drawn to 1. The mean error on
the card's other networks over {run_draws} draws; in brackets that of the worst draw; and how many
of them are inside the 90% interval. The priors (0.2 for a card's factor and for a group's around
it, 0.2 for networks around both) were chosen with these cards in view.

{runs}

## Cards that nobody measured

The latest file of each card, predicted with its data sheet from the other cards' fits. Three ways
were tried: the geometric mean of what the fits say, the same with their corrections by near
networks (the networks are known on the other cards), and one fit to the others together. The second
one answers. The last columns are of its interval: the next card's factor as those of the cards that
were left out, families left out as well, by Student's t for so few cards; and the share of networks
inside it, of three cards in an interval that was made without the card.

{unseen}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--output", type=Path, default=PAGE)
    parser.add_argument("--only", default="", help="files whose name contains this")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    files = [
        file for path in arguments.datasets for file in files_of(path)
        if arguments.only in file.name
    ]  # fmt: skip
    results = [_kept(arguments.work / f"{file.name}.json", file, judged) for file in files]
    curves = {
        file.name: _kept(arguments.work / f"{file.name}-curve.json", file, learning_curve)
        for file in files
        if file.name in CURVES
    }
    inside = {
        file.name: _kept(arguments.work / f"{file.name}-coverage.json", file, coverage)
        for file in latest_files(files)
    }
    moved, left_out = list(transfers(files)), list(left_out_cards(files))
    text = page(results, curves, moved, inside, left_out)
    arguments.output.write_text(text, encoding="utf-8")


def _kept(path: Path, file: File, make: Callable[[File], Any]) -> Any:
    """Return a stored result, or make and store it."""
    if not path.exists():
        path.write_text(json.dumps(make(file)), encoding="utf-8")
        print(path.stem, file=sys.stderr)
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
