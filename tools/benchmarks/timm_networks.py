"""How well times of whole networks follow from costs of operator classes: docs/tables/timm.md.

    for device in 3090 4090 5090 i9_10940x i7_12700h; do
        resperf dataset import ../shared/data/timm/*$device*.csv.gz \\
            ../shared/data/timm/operators.jsonl.gz --format timm -o build/timm-$device.h5
    done
    OMP_NUM_THREADS=1 nice python tools/benchmarks/timm_networks.py build/timm-*.h5

All figures are cross-validated on the datasets given. Shrinkage is chosen within the training part
of each fold. Results of each file are kept in the work folder; delete one to have it made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pages import kept, parser_of, write_page

from resperf.devices import DeviceFacts, device_facts
from resperf.features import Array
from resperf.predictors._class_fit import (
    FEWEST_NETWORKS,
    Identified,
    Relative,
    Shrinkage,
    alike,
    columns_of,
    costs_of,
    relative_to,
)
from resperf.predictors._fitted_classes import ClassFit
from resperf.predictors._left_out_cards import CardRows, spread_of
from resperf.predictors._nearness import Nearness
from resperf.predictors.operator_classes import RunNetwork, Terms, class_terms
from resperf.report.markdown import markdown_table
from resperf.settings import SESSION, Mode, Setting
from resperf.splits import folds_of
from resperf.training.rows import network_examples

NETWORK_FOLDS = 10
_NOTHING = Identified(0, 0, 1.0, ())
LEAST_DIFFERENCE = 0.1
"""Share of a network's time that added blocks must take: less is within the noise."""
AIMS = {"eager": "7%", "compiled": "9%", "training": "8.5%"}


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
        nearness = Nearness.fit(bare.class_ms(sheet_ms[~own]), errors)
        found[own] = ratios[own] * nearness.factors(bare.class_ms(sheet_ms[own]))
    return found


def judged(file: File) -> dict[str, Any]:
    """Return the errors of one file's networks, by fits without their families or sizes."""
    relative, costs = relative_of(file)
    found: dict[str, Any] = {}
    ways = (("family", file.families, None), ("network", file.same, NETWORK_FOLDS))
    for name, groups, count in ways:
        folds = folds_of(groups) if count is None else folds_of(groups, count)
        chosen = chosen_shrinkages(relative, folds, file.families)
        ratios = relative.each_left_out(groups, folds, chosen)
        found[name] = _error(ratios)
        found[f"{name} corrected"] = _error(corrected(file, relative, costs, ratios, folds, chosen))
        if name == "family":
            found["blocks"] = added_blocks(file, ratios)
    return found


def _error(ratios: Array) -> float:
    return float(np.mean(np.abs(ratios - 1)))


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
    """Yield a row per card that is predicted by the geometric mean of the other cards' fits."""
    kinds: dict[tuple[str, str], dict[str, File]] = {}
    for file in latest_files(files):
        if file.sort in ("eager", "compiled"):
            kind = file.setting.layout, file.setting.compiled
            kinds.setdefault(kind, {})[file.facts.device] = file
    for (layout, compiled), known in kinds.items():
        if len(known) < 2:
            continue
        cards = [card_rows(file) for file in known.values()]
        spread = spread_of(cards)
        for card, file in zip(cards, known.values(), strict=True):
            others = [np.log(each.fit.predict(card.terms).values) for each in cards
                      if each is not card]  # fmt: skip
            error = _error(np.exp(np.mean(others, axis=0)) / card.times_ms)
            yield [file.facts.name, f"{layout}, {compiled}", f"{error:.1%}",
                   f"{np.exp(spread.width):.2f}", f"{spread.coverage:.1%}"]  # fmt: skip


def card_rows(file: File) -> CardRows:
    fit = ClassFit.fit(file.terms, file.times_ms, file.families, training=False, similar=file.same)
    return CardRows(fit, file.terms, file.times_ms, file.families, file.is_training)


def accuracy(results: Sequence[tuple[File, dict[str, Any]]]) -> str:
    """Lay out the errors of each file, and means of each sort of files."""
    keys = ("family", "family corrected", "network", "network corrected")
    rows = []
    for sort in ("eager", "compiled", "training", "training NHWC", "CPU"):
        own = [(file, found) for file, found in results if file.sort == sort]
        rows += [
            [file.name, sort, str(len(file.networks)), *(f"{found[key]:.1%}" for key in keys),
             AIMS.get(sort, "")]
            for file, found in own
        ]  # fmt: skip
        if own:
            means = [f"{np.mean([found[key] for _, found in own]):.1%}" for key in keys]
            rows.append([f"**mean, {sort}**", sort, "", *means, AIMS.get(sort, "")])
    headings = ("file", "sort", "networks", "family out", "corrected", "network out",
                "corrected, network out", "aim, family out")  # fmt: skip
    return markdown_table(headings, rows)


def main() -> None:
    parser = parser_of(__doc__, "timm")
    parser.add_argument("datasets", type=Path, nargs="+")
    given = parser.parse_args()
    files = sorted((file for path in given.datasets for file in files_of(path)),
                   key=lambda file: file.name)  # fmt: skip
    results = [
        (each, kept(given.work / f"{each.name}.json", lambda each=each: judged(each))["result"])
        for each in files
    ]
    inside = {
        each.name: kept(
            given.work / f"{each.name}-coverage.json", lambda each=each: coverage(each)
        )["result"]
        for each in latest_files(files)
    }
    blocks = [(file.name, found["blocks"]) for file, found in results if found["blocks"]["pairs"]]
    write_page(given.output, "Networks on GPUs: costs of operator classes from whole networks", [
        "The predictor `class-costs` learns what classes of operators cost from the times of whole "
        "networks alone. These are its errors on timm's measurements (PyTorch Image Models, folder "
        "`results`, Apache-2.0), as MAPE. **All figures are cross-validated on the data at hand, "
        "on which the classes, the terms and the constants of the correction were developed.**",
        "## Each file by itself",
        "*Family out*: every family (timm's module) is predicted by a fit without it. *Network "
        "out*: every network is predicted without it, its other sizes and its twins. *Corrected*: "
        "with the correction by near networks, learnt without the fold; its aim, network out, is "
        "4%. For fp32 on CPUs, casts are left out; training steps are predicted from the operators "
        "of the forward pass.",
        accuracy(results),
        "## Networks inside their 90% intervals",
        "Of fits without a fourth of the families, or of the networks with their other sizes and "
        "twins; the latest file of each device and setting.",
        markdown_table(("file", "family out", "network out"), [
            [name, *(f"{found[key]:.1%}" for key in ("family", "network"))]
            for name, found in inside.items()
        ]),
        "## Added blocks",
        "Pairs of networks of one family at the same batch size of which one has all operators of "
        "the other, with shapes and types; the difference of their times is predicted, the family "
        f"left out. Pairs whose difference is below {LEAST_DIFFERENCE:.0%} of the larger time are "
        "left out. The aim is a median of 6%, eager.",
        markdown_table(("file", "pairs", "median error", "90% of pairs below"), [
            [name, str(found["pairs"]), f"{found['median']:.1%}", f"{found['p90']:.1%}"]
            for name, found in blocks
        ]),
        "## Cards that nobody measured",
        "The latest file of each card, predicted with its data sheet by the geometric mean of what "
        "the other cards' fits say. The interval is the next card's factor as those of the cards "
        "that were left out, families left out as well, by Student's t for so few cards; *inside* "
        "is the share of networks in it, of three cards in an interval made without the card.",
        markdown_table(
            ("card that is left out", "", "MAPE", "interval, factor", "inside"),
            list(left_out_cards(files)),
        ),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
