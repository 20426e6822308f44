#!/usr/bin/env python
"""How well `roofline` predicts published operators of GPUs: writes the tables of docs/gpus.md.

    python tools/report_gpus.py                            # 20 minutes on one core
    python tools/report_gpus.py --only operators,cards
    python tools/report_gpus.py --write                    # the tables of what there is

NeuSight's and Vidur's rows, and convolutions of justus, are read from $RESPERF_PUBLIC_DATA
(../shared/data by default) and imported into the work folder once. A fifth of the layers, chosen by
the hash of their keys, judges and is seen by no fit; a tenth of the others chooses the number of
trees. Rows that the importer flags are left out. No measured row is written into the report.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from report_accuracy import ROOT, public_data

from resperf.dataset import read_table
from resperf.dataset.hdf5 import open_dataset, references_of
from resperf.devices import DeviceFacts, device_facts
from resperf.devices.estimate import CARDS, LAUNCH_MS, estimated_ms
from resperf.layers import KINDS as LAYER_KINDS
from resperf.predictors import Examples
from resperf.predictors.roofline import Roofline
from resperf.report.markdown import markdown_table
from resperf.settings import SESSION

PLACE = (
    "## Operators in PyTorch",
    "<!-- tools/report_gpus.py writes below -->",
    "<!-- tools/report_gpus.py wrote above -->",
)
"""Heading and marks of the tables."""
QUANTITY = "execution_ms"
HELD_OUT, VALIDATION = 0.2, 0.1
SOURCES = ("neusight", "vidur", "justus")
KINDS = ("matmul", "dense", "elementwise", "activation", "softmax", "norm", "conv")
AMD, APART = ("mi100", "mi210"), ("p4",)
"""Cards of another class of devices, and the card that throttled: not in the means."""
FEW = (0, 10, 50, 200)
MOST_OF_OTHERS = 3000
"""Rows of each other card's session where only coefficients are fitted, which use no more."""
FEWEST_JUDGED = 40
"""Rows below which a card's error is shown and does not count in the mean."""
TREES_OF_FEW = 500
"""Fewer than by default, since each card and kind has a fit of its own."""
HALF_KINDS = ("dense", "norm")
YEAR_2018 = {"p100": "p100-pcie", "v100": "v100-pcie"}
"""Cards of justus -> those of NeuSight. Which variant was measured is not published."""
OLD_SESSION = "2018"
ABOVE = 4.0
"""Times the shortest of a card and kind: estimates are judged on rows longer than this, since
shorter ones hold the host's dispatch rather than the device's time."""
SEED = 0

AIMS = {"matmul": 5.0, "dense": 5.0, "elementwise": 1.5, "activation": 1.5, "softmax": 3.0,
        "norm": 3.0, "conv": 15.0}  # fmt: skip
CARD_AIMS = {"matmul": 18.0, "dense": 18.0, "elementwise": 12.0, "activation": 12.0}


@dataclass(frozen=True)
class Rows:
    """Measured layers of one kind on all cards; arrays and tuples have one entry per row."""

    kind: str
    columns: Mapping[str, Any]
    times_ms: Any
    settings: Any
    platforms: Any
    devices: Any
    sessions: Any
    held_out: Any
    validation: Any

    def examples(self, mask: Any) -> Examples:
        """Return some rows as training data."""
        places = np.flatnonzero(mask)
        columns = {name: values[places] for name, values in self.columns.items()}
        return Examples(
            columns, QUANTITY, self.times_ms[places],
            list(self.settings[places]), list(self.platforms[places]),
        )  # fmt: skip

    def groups(self) -> list[tuple[str, str]]:
        """Return the cards and their sessions."""
        return sorted(set(zip(self.devices, self.sessions, strict=True)))

    def of(self, device: str, session: str = "") -> Any:
        """Return which rows are of a card, and of a session of it."""
        return (self.devices == device) & ((self.sessions == session) | (not session))

    def with_rows(self, other: Rows) -> Rows:
        """Return these rows, then others of the same kind."""
        columns = {
            name: np.concatenate([values, other.columns[name]])
            for name, values in self.columns.items()
        }
        joined = {
            name: np.concatenate([values, getattr(other, name)])
            for name, values in vars(self).items()
            if name not in ("kind", "columns")
        }
        return Rows(self.kind, columns, **joined)


def share(key: str, salt: str) -> float:
    """Return a number between 0 and 1 that depends on a layer's key alone."""
    digest = hashlib.sha256(f"{salt}{key}".encode()).hexdigest()
    return int(digest[:8], 16) / 2**32


def sources(data: Path) -> dict[str, list[Path]]:
    """Find the published files of each dataset, such as ``neusight-Tesla-T4``."""
    found: dict[str, list[Path]] = {}
    for path in sorted((data / "neusight").glob("*/*/*_*.csv.gz")):
        if path.name.startswith(("train_", "test_")):
            found.setdefault(f"neusight-{path.parent.name}", []).append(path)
    for path in sorted((data / "vidur").glob("compute__*__mlp.csv.gz")):
        found.setdefault(f"vidur-{path.name.split('__')[1]}", []).append(path)
    for old, device in YEAR_2018.items():
        path = data / "justus" / f"{old}_convolution.csv.gz"
        if path.exists():
            found[f"justus-{device}"] = [path]
    if not found:
        raise SystemExit(f"no measurements in {data}; set RESPERF_PUBLIC_DATA to their folder")
    return found


def import_all(data: Path, work: Path, *, only: Sequence[str] = SOURCES) -> list[Path]:
    """Import each card's files with the command that users have, once; return the datasets."""
    work.mkdir(parents=True, exist_ok=True)
    datasets = []
    for name, files in sources(data).items():
        source, _, device = name.partition("-")
        if source not in only:
            continue
        target = work / f"{name}.h5"
        datasets.append(target)
        if not target.exists():
            words = ["dataset", "import", *map(str, files), "--format", source, "-o", str(target)]
            # The other sources' files name their devices.
            words += ["--device", device] if source == "justus" else []
            command = [sys.executable, "-m", "resperf.cli.main", *words]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(f"{name} could not be imported")
    return datasets


@cache
def rows_of(work: Path, kind: str, source: str = "neusight") -> Rows:
    """Read the usable rows of a kind from all imported datasets of a source."""
    columns: dict[str, list[Any]] = {}
    times, keys, settings, platforms = [], [], [], []
    for path in sorted(work.glob(f"{source}-*.h5")):
        with open_dataset(path) as file:
            known_settings, (platform, *_) = references_of(file)
        table = read_table(path).get(kind)
        if table is None:
            continue
        used = np.flatnonzero(table.ok & ~table.defective & ~table.noisy)
        for name, values in table.columns.items():
            columns.setdefault(name, []).append(values[used])
        times.append(table.times_ms[QUANTITY][used])
        keys += table.key[used].astype(str).tolist()
        settings += [known_settings[place] for place in table.setting[used]]
        platforms += [platform] * len(used)
    held_out = np.array([share(key, "") < HELD_OUT for key in keys])
    validation = ~held_out & np.array([share(key, "validation") < VALIDATION for key in keys])
    return Rows(
        kind, {name: np.concatenate(parts) for name, parts in columns.items()},
        np.concatenate(times), np.array(settings, dtype=object), np.array(platforms, dtype=object),
        np.array([each.device for each in platforms]),
        np.array([each.options.get(SESSION, OLD_SESSION) for each in settings]), held_out,
        validation,
    )  # fmt: skip


def fit(rows: Rows, mask: Any, trees: int | None = None) -> Roofline:
    """Fit to the rows of a mask that are not held out."""
    predictor = Roofline(rows.kind) if trees is None else Roofline(rows.kind, trees=trees)
    seen = mask & ~rows.held_out
    return predictor.fit(
        rows.examples(seen & ~rows.validation),
        validation=rows.examples(seen & rows.validation),
        seed=SEED,
    )


@dataclass(frozen=True)
class Judged:
    """Errors in percent over rows of one session of a card.

    `above` is over rows longer than twice the 2% quantile of the session's times, which is its
    launch floor where it has one; `inside` is the share of rows in their 90% interval, in percent.
    """

    device: str
    session: str
    rows: int
    mape: float
    median: float
    above: float
    inside: float = float("nan")


def judge(predictor: Roofline, rows: Rows, mask: Any) -> Iterator[Judged]:
    """Predict the rows of a mask, each in its own session."""
    for device, session in rows.groups():
        own = rows.of(device, session)
        places = np.flatnonzero(mask & own)
        if not len(places):
            continue
        columns = {name: values[places] for name, values in rows.columns.items()}
        setting, platform = rows.settings[places[0]], rows.platforms[places[0]]
        predicted = predictor.predict(columns, setting, platform)[QUANTITY]
        measured_ms = rows.times_ms[places]
        off = 100 * np.abs(predicted.values / measured_ms - 1)
        inside = (measured_ms >= predicted.low) & (measured_ms <= predicted.high)
        above = measured_ms > 2 * np.quantile(rows.times_ms[own], 0.02)
        yield Judged(
            device, session, len(places), float(off.mean()), float(np.median(off)),
            float(off[above].mean()) if above.any() else float("nan"), float(100 * inside.mean()),
        )  # fmt: skip


def combined(found: Sequence[Judged]) -> dict[str, Judged]:
    """Combine the sessions of each card, by rows."""
    cards = {}
    for device in dict.fromkeys(each.device for each in found):
        own = [each for each in found if each.device == device]
        counts = [each.rows for each in own]

        def mean(name: str, own: Sequence[Judged] = own, counts: Sequence[int] = counts) -> float:
            values = np.array([getattr(each, name) for each in own])
            known = np.isfinite(values)
            return (
                float(np.average(values[known], weights=np.array(counts)[known]))
                if known.any()
                else float("nan")
            )

        names = ("mape", "median", "above", "inside")
        cards[device] = Judged(device, "", sum(counts), *map(mean, names))
    return cards


def operators(work: Path, kind: str) -> dict[str, Any]:
    """Judge held-out layers of sessions that were learnt from."""
    rows = rows_of(work, kind)
    everything = np.ones(len(rows.times_ms), dtype=bool)
    predictor = fit(rows, everything)
    return {"trees": predictor.best_trees_, "judged": listed(judge(predictor, rows, rows.held_out))}


def sessions(work: Path, kind: str) -> dict[str, Any]:
    """Judge all layers of a card's second session, of which nothing was learnt."""
    rows = rows_of(work, kind)
    first = {device: max(own for each, own in rows.groups() if each == device)
             for device in set(rows.devices)}  # fmt: skip
    learnt = np.array([first[device] for device in rows.devices]) == rows.sessions
    if learnt.all():
        return {"judged": []}
    return {"judged": listed(judge(fit(rows, learnt), rows, ~learnt))}


def cards(work: Path, kind: str) -> dict[str, Any]:
    """Leave each card out: all of its layers are judged, by its data sheet alone."""
    return few_rows(work, kind, (0,))


def few(work: Path, kind: str) -> dict[str, Any]:
    """Judge a card's held-out layers from a few of its other layers, and all other cards."""
    return few_rows(work, kind, FEW[1:])


def few_rows(work: Path, kind: str, counts: Sequence[int]) -> dict[str, Any]:
    """Judge each card from `counts` of its rows; without any, on all of them."""
    rows = rows_of(work, kind)
    random = np.random.default_rng(SEED)
    order = random.permutation(len(rows.times_ms))
    seen = order[~rows.held_out[order]]
    others = np.zeros(len(order), dtype=bool)
    for device, session in rows.groups():
        others[seen[rows.of(device, session)[seen]][:MOST_OF_OTHERS]] = True
    judged = []
    for device in sorted(set(rows.devices)):
        own = rows.of(device)
        largest = max(
            (session for each, session in rows.groups() if each == device),
            key=lambda session, device=device: rows.of(device, session).sum(),
        )
        session = rows.of(device, largest)
        for count in counts:
            mask = others & ~own
            mask[seen[session[seen] & ~rows.validation[seen]][:count]] = True
            predictor = fit(rows, mask, trees=TREES_OF_FEW if count == max(FEW) else 1)
            target = session & rows.held_out if count else own
            judged += [{**row, "from": count} for row in listed(judge(predictor, rows, target))]
    return {"judged": judged}


def half(work: Path, kind: str) -> dict[str, Any]:
    """Judge Vidur's layers in float16: held out of each card (from 1), and of no card (from 0)."""
    if kind not in HALF_KINDS:
        return {"judged": []}
    rows = rows_of(work, kind, "vidur")
    everything = np.ones(len(rows.times_ms), dtype=bool)
    known = listed(judge(fit(rows, everything), rows, rows.held_out))
    judged = [{**row, "from": 1} for row in known]
    for device in sorted(set(rows.devices)):
        own = rows.of(device)
        judged += [{**row, "from": 0} for row in listed(judge(fit(rows, ~own, trees=1), rows, own))]
    return {"judged": judged}


def conv2018(work: Path, kind: str) -> dict[str, Any]:
    """Judge how far the convolutions of 2018 on two of the cards help with NeuSight's."""
    if kind != "conv":
        return {"judged": []}
    new, old = rows_of(work, kind), rows_of(work, kind, "justus")
    both = new.with_rows(old)
    is_new = both.sessions != OLD_SESSION
    judged = []

    def add(name: str, predictor: Roofline, target: Any) -> None:
        judged.extend({**row, "from": name} for row in listed(judge(predictor, both, target)))

    alone = fit(both, is_new)
    add("held out", alone, is_new & both.held_out)
    add("held out, with those of 2018", fit(both, ~both.held_out), is_new & both.held_out)
    for device in sorted(set(new.devices)):
        own = is_new & both.of(device)
        add("card left out", fit(both, is_new & ~own, trees=1), own)
        add("card left out, with those of 2018", fit(both, ~own, trees=1), own)
        others = fit(both, ~both.of(device), trees=1)
        add("card left out, with those of 2018 of other cards", others, own)
    add("those of 2018 by NeuSight's", alone, ~is_new)
    add("those of 2018 by NeuSight's, 3x3 and stride 1", alone, ~is_new & as_neusight(both))
    return {"judged": judged}


def as_neusight(rows: Rows) -> Any:
    """Return which convolutions are of the only sort that NeuSight has."""
    expected = {"kernel": 3, "stride": 1}
    sides = [
        rows.columns[f"{name}_{side}"] == value
        for name, value in expected.items()
        for side in ("height", "width")
    ]
    return np.all([*sides, rows.columns["pad_top"] == 1, rows.columns["pad_left"] == 1], axis=0)


@dataclass(frozen=True)
class Estimates:
    """Times of a kind on one card above `ABOVE` times the shortest, and their estimates.

    Attributes
    ----------
    measured_ms, sheet_ms : array (rows,)
    computes : array of bool (rows,)
        Whether operations decide by the data sheet, rather than bytes.
    """

    measured_ms: Any
    sheet_ms: Any
    computes: Any


@cache
def estimates_of(work: Path, kind: str, device: str, source: str) -> Estimates:
    """Estimate a card's layers of a kind from its data sheet, as predictions do."""
    rows = rows_of(work, kind, source)
    places = np.flatnonzero(rows.of(device))
    places = places[rows.times_ms[places] > ABOVE * np.min(rows.times_ms[places], initial=np.inf)]
    layers = LAYER_KINDS[kind].over({name: values[places] for name, values in rows.columns.items()})
    dtypes = rows.columns.get("dtype", np.full(len(rows.times_ms), "float32"))[places]
    facts = device_facts(device)
    assert facts is not None  # The importers refuse cards without facts.
    works = zip(layers.flops, layers.moved_bytes, dtypes.astype(str), strict=True)
    found = [bounds_ms(*work, facts) for work in works]
    computed_ms, moved_ms = np.array(found).reshape(-1, 2).T
    return Estimates(
        rows.times_ms[places], np.maximum(computed_ms, moved_ms), computed_ms >= moved_ms
    )


def bounds_ms(
    flops: float, moved_bytes: float, dtype: str, facts: DeviceFacts
) -> tuple[float, float]:
    """Return a layer's estimate from its operations alone, and from its bytes alone."""
    return (
        estimated_ms(flops, 0.0, facts, dtype).ms,
        estimated_ms(0.0, moved_bytes, facts, dtype).ms,
    )


def withheld(work: Path, kind: str) -> dict[str, Any]:
    """Estimate a kind on cards as if they had no rows of it: by data sheet, and by other kinds."""
    judged, inside = [], {}
    for source in ("neusight", "vidur"):
        if source == "vidur" and kind not in HALF_KINDS:
            continue
        kinds = KINDS if source == "neusight" else HALF_KINDS
        for device in sorted(set(rows_of(work, kind, source).devices)):
            own = estimates_of(work, kind, device, source)
            if not len(own.measured_ms):
                continue
            others = [
                estimates_of(work, other, device, source)
                for other in kinds
                if other != kind and device in rows_of(work, other, source).devices
            ]
            adapted_ms = by_other_kinds(own, others)
            for name, times_ms in (
                ("by data sheet", own.sheet_ms), ("by other kinds", adapted_ms),
            ):  # fmt: skip
                errors = 100 * np.abs(times_ms / own.measured_ms - 1)
                both = (float(np.mean(errors)), float(np.median(errors)), float("nan"))
                row = Judged(device, source, len(errors), *both)
                judged.append({**vars(row), "from": name})
            ratios = own.measured_ms / own.sheet_ms
            share = np.mean((ratios >= CARDS.low) & (ratios <= CARDS.high))
            inside[f"{source}, {device}"] = [float(np.median(ratios)), float(share)]
    return {"judged": judged, "ratios": inside}


def by_other_kinds(own: Estimates, others: Sequence[Estimates]) -> Any:
    """Scale estimates by what the card's other kinds take, where operations or bytes decide.

    The factor is the median over kinds of the median of measured over estimated; 1 where no other
    kind has `FEWEST_JUDGED` such rows.
    """
    times_ms = own.sheet_ms.copy()
    for computes in (True, False):
        medians = [
            float(np.median((each.measured_ms / each.sheet_ms)[each.computes == computes]))
            for each in others
            if np.sum(each.computes == computes) >= FEWEST_JUDGED
        ]
        factor = float(np.median(medians)) if medians else 1.0
        chosen = own.computes == computes
        times_ms[chosen] = LAUNCH_MS + factor * (own.sheet_ms[chosen] - LAUNCH_MS)
    return times_ms


def listed(found: Iterator[Judged]) -> list[dict[str, Any]]:
    """Return results as plain JSON values."""
    return [vars(each) for each in found]


PARTS: Mapping[str, Callable[[Path, str], dict[str, Any]]] = {
    "operators": operators, "cards": cards, "half": half, "sessions": sessions,
    "few": few, "withheld": withheld, "conv2018": conv2018,
}  # fmt: skip


def read_judged(result: Mapping[str, Any], learnt_from: int | str | None = None) -> list[Judged]:
    """Read results back, those of fits to some number or sort of rows."""
    return [
        Judged(**{name: value for name, value in row.items() if name != "from"})
        for row in result["judged"] if learnt_from is None or row["from"] == learnt_from
    ]  # fmt: skip


def cell(value: float) -> str:
    """Write an error."""
    return f"{value:.1f}" if np.isfinite(value) else ""


def mean_of(cards_of_kind: Mapping[str, Judged], name: str) -> float:
    """Return the mean over cards, P4 and AMD's apart, as are cards with few rows."""
    values = [
        getattr(each, name)
        for device, each in cards_of_kind.items()
        if device not in (*AMD, *APART) and each.rows >= FEWEST_JUDGED
    ]
    known = np.array(values)[np.isfinite(values)]
    return float(np.mean(known)) if len(known) else float("nan")


def devices_of(found: Mapping[str, list[Judged]]) -> list[str]:
    """Return the cards, those that are not in the means last."""
    return sorted(
        {each.device for rows in found.values() for each in rows},
        key=lambda device: (device in AMD, device in APART, device),
    )


def by_interval(found: Mapping[str, list[Judged]]) -> str:
    """Lay out the share of rows inside their interval: one row per kind, one column per card."""
    devices = devices_of(found)
    cells = [
        [
            kind, *(cell(own[device].inside) if device in own else "" for device in devices),
            cell(mean_of(own, "inside")),
        ]
        for kind, own in ((kind, combined(rows)) for kind, rows in found.items())
    ]  # fmt: skip
    return markdown_table(("inside the 90% interval, in %", *devices, "mean"), cells)


def by_card(found: Mapping[str, list[Judged]], aims: Mapping[str, float]) -> str:
    """Lay out one row per kind, one column per card, and the mean beside the aim."""
    devices = devices_of(found)
    if not found:
        return ""
    cells = []
    for kind, rows in found.items():
        own = combined(rows)
        cells.append([
            kind, *(cell(own[device].mape) if device in own else "" for device in devices),
            cell(mean_of(own, "mape")), cell(mean_of(own, "above")), cell(aims.get(kind, np.nan)),
        ])  # fmt: skip
    headings = ("MAPE in %", *devices, "mean", "mean above the floor", "aim")
    filled = [place for place in range(len(headings)) if any(row[place] for row in cells)]
    return markdown_table(
        [headings[place] for place in filled],
        [[row[place] for place in filled] for row in cells],
    )


def by_sort(result: Mapping[str, Any]) -> dict[str, list[Judged]]:
    """Return results by what they were learnt from."""
    return {name: read_judged(result, name)
            for name in dict.fromkeys(row["from"] for row in result["judged"])}  # fmt: skip


def by_ratio(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Lay out measured over estimated times of kinds, and how many are inside the interval."""
    cells = []
    for kind, result in results.items():
        found = {
            name.partition(", ")[2]: values
            for name, values in result["ratios"].items()
            if name.startswith("neusight")
        }
        if found:
            worst = min(found, key=lambda device: found[device][1])
            ratio, inside = np.mean([found[device] for device in found], axis=0)
            cells.append([
                kind, str(len(found)), f"{ratio:.2f}", f"{inside:.1%}",
                f"{found[worst][1]:.1%} ({worst})",
            ])  # fmt: skip
    headings = ("kind", "cards", "measured / estimated, median", "inside the interval", "fewest")
    return markdown_table(headings, cells)


def by_count(
    results: Mapping[str, Mapping[str, Any]], zero: Mapping[str, Mapping[str, Any]]
) -> str:
    """Lay out errors by the number of rows of the new card."""
    cells = []
    for kind, result in results.items():
        none = combined(read_judged(zero[kind])) if kind in zero else {}
        found = {count: combined(read_judged(result, count)) for count in FEW[1:]}
        cells += [
            [
                f"{kind}, {device}", cell(none[device].mape) if device in none else "",
                *(cell(found[count][device].mape) for count in FEW[1:]),
            ]
            for device in found[FEW[1]]
        ]  # fmt: skip
    return markdown_table(("MAPE in %", *(f"{count} rows" for count in FEW)), cells)


def report(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Write the tables."""

    def origin(part: str) -> str:
        kinds: dict[str, list[str]] = {}
        for kind, result in results.get(part, {}).items():
            kinds.setdefault(result["commit"], []).append(kind)
        told = (f"`{commit}` ({', '.join(names)})" for commit, names in kinds.items())
        return f"Computed at commit {', '.join(told) or 'none: not run'}."

    def judged(part: str) -> dict[str, list[Judged]]:
        return {kind: read_judged(result) for kind, result in results.get(part, {}).items()}

    sections = [
        f"Written by `python tools/report_gpus.py` on {datetime.now(UTC):%Y-%m-%d}, seed {SEED}. "
        "Means are over NVIDIA's "
        f"cards but the P4, which throttled, and those with fewer than {FEWEST_JUDGED} rows; "
        "`mi100` and `mi210` are `torch/rocm` and have "
        "coefficients of their own. *Above the floor*: rows longer than twice the 2% quantile of "
        "their session.",
        "### Layers that were not learnt, on cards that were",
        origin("operators"),
        "20% of the layers, by the hash of their keys; each predicted in its own session.",
        by_card(judged("operators"), AIMS),
        by_interval(judged("operators")),
        "### Half precision",
        origin("half"),
        "Vidur's layers of language models in float16, kernels alone: 20% held out of each card, "
        "and cards that were left out.",
        by_card(
            {
                f"{kind}, {name}": read_judged(result, count)
                for kind, result in results.get("half", {}).items()
                for count, name in ((1, "held out"), (0, "card left out"))
                if result["judged"]
            },
            {},
        ),
        "### Another session of the same card",
        origin("sessions"),
        "Learnt from one session of each card, judged on all layers of the other.",
        by_card(judged("sessions"), {}),
        "### Cards that were left out",
        origin("cards"),
        "All layers of a card, from its data sheet and the other cards of its class; the dispatch "
        "of its host is the median of the others.",
        by_card(judged("cards"), CARD_AIMS),
        by_interval(judged("cards")),
        "### A few rows of a new card",
        origin("few"),
        "Chosen at random from its larger session, judged on the 20% held out of it (0 rows: on "
        "all layers). From 200 rows on, trees correct the sum of terms.",
        by_count(results.get("few", {}), results.get("cards", {})),
        "### A kind that a card has no rows of",
        origin("withheld"),
        "The estimate from the data sheet alone, and the same times what the card's other kinds "
        "take longer than theirs (median over kinds, operations and bytes apart), on rows above "
        f"{ABOVE:g} times the shortest of their card and kind; then the same for Vidur's rows in "
        "float16.",
        *(
            by_card(
                {
                    f"{kind}, {name}": [each for each in rows if each.session == source]
                    for kind, result in results.get("withheld", {}).items()
                    for name, rows in by_sort(result).items()
                    if any(each.session == source for each in rows)
                },
                {},
            )
            for source in ("neusight", "vidur")
        ),
        "Means over NeuSight's cards of the median and of the share inside the interval of the "
        "estimate from the data sheet:",
        by_ratio(results.get("withheld", {})),
        "### Convolutions of 2018",
        origin("conv2018"),
        "Single convolutions in TensorFlow 1 on a P100 and a V100 beside NeuSight's (3x3, stride "
        "1), each source with coefficients of its own. A card that was left out keeps its rows of "
        "2018.",
        by_card(by_sort(results.get("conv2018", {}).get("conv", {"judged": []})), {}),
    ]
    return "\n\n".join(sections)


def commit() -> str:
    """Name the commit of the code."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write(text: str, output: Path, place: tuple[str, str, str] = PLACE) -> None:
    """Replace what is between two marks; add them at the end, with a heading, if there are none."""
    page = output.read_text(encoding="utf-8")
    heading, begin, end = place
    if begin not in page:
        page = f"{page.rstrip()}\n\n{heading}\n\n{begin}\n{end}\n"
    before, rest = page.split(begin)
    after = rest.split(end)[1]
    output.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def default_work() -> Path:
    """Return the folder of imported datasets and results."""
    cache_folder = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
    return Path(cache_folder) / "resperf-gpus"


def main() -> None:
    """Import, judge what is not judged yet, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=default_work())
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--write", action="store_true", help="judge nothing")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "gpus.md")
    given = parser.parse_args()
    if not given.write:
        import_all(public_data(), given.work)
        for part in given.only.split(","):
            for kind in given.kinds.split(","):
                start = time.process_time()
                result = {**PARTS[part](given.work, kind), "commit": commit()}
                (given.work / f"{part}-{kind}.json").write_text(json.dumps(result) + "\n")
                print(f"{part}, {kind}: {time.process_time() - start:.0f} s", flush=True)
    results: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        for kind in KINDS:
            path = given.work / f"{part}-{kind}.json"
            if path.exists():
                results.setdefault(part, {})[kind] = json.loads(path.read_text())
    write(report(results), given.output)


if __name__ == "__main__":
    main()
