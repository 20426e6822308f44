"""How well `roofline` predicts published operators of GPUs: writes docs/tables/gpus.md.

    python tools/benchmarks/gpus.py                          # 20 minutes on one core
    python tools/benchmarks/gpus.py --only operators cards   # these again
    python tools/benchmarks/gpus.py --write                  # the page of what there is

NeuSight's and Vidur's rows are read from $RESPERF_PUBLIC_DATA
(../shared/data by default) and imported into the work folder once. A fifth of the layers, chosen by
the hash of their keys, judges and is seen by no fit; a tenth of the others chooses the number of
trees. Rows that the importer flags are left out. No measured row is written into the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pages
from markdown_tables import markdown_table

from resperf.dataset import read_info, read_table
from resperf.devices import device_facts
from resperf.devices.estimate import CARDS, estimated_layer_ms
from resperf.grouping import grouped
from resperf.predictors.roofline import Roofline
from resperf.settings import SESSION
from resperf.splits import fold_of_keys
from resperf.training.rows import LayerRows, layer_rows

QUANTITY = "execution_ms"
HELD_OUT, VALIDATION = 5, 10
"""Parts of the layers of which one is held out, and of the others of which one chooses."""
KINDS = ("matmul", "dense", "elementwise", "activation", "softmax", "norm", "conv")
AMD, APART = ("mi100", "mi210"), ("p4",)
"""Cards of another class of devices, and the card that throttled: not in the means."""
MOST_OF_OTHERS = 3000
"""Rows of each other card's session where only coefficients are fitted, which use no more."""
FEWEST_JUDGED = 40
"""Rows below which a card's error is shown and does not count in the mean."""
HALF_KINDS = ("dense", "norm")
ABOVE = 4.0
"""Times the shortest of a card and kind: estimates are judged on rows longer than this, since
shorter ones hold the host's dispatch rather than the device's time."""
SEED = 0

Judged = dict[str, Any]
"""Errors over the rows of one session of a card: label, device, session, rows, and in percent mape
and inside (the share of rows in their 90% interval)."""


@dataclass(frozen=True)
class Rows:
    """Measured layers of one kind on all cards; all but `layers` have one entry per row."""

    layers: LayerRows
    devices: Any
    sessions: Any
    held_out: Any
    validation: Any

    @property
    def all(self) -> Any:
        return np.ones(len(self.layers), dtype=bool)

    def groups(self) -> list[tuple[str, str]]:
        """Return the cards and their sessions."""
        return sorted(set(zip(self.devices, self.sessions, strict=True)))

    def of(self, device: str, session: str = "") -> Any:
        """Return which rows are of a card, and of a session of it."""
        return (self.devices == device) & ((self.sessions == session) | (not session))


def import_all(work: Path) -> list[Path]:
    """Import each card's files, such as ``neusight-Tesla-T4``, once; return the datasets."""
    data = pages.public_data()
    neusight = sorted((data / "neusight").glob("*/*/t[er]*_*.csv.gz"))
    pairs = [(f"neusight-{path.parent.name}", path) for path in neusight]
    vidur = sorted((data / "vidur").glob("compute__*__mlp.csv.gz"))
    groups = grouped([*pairs, *((f"vidur-{path.name.split('__')[1]}", path) for path in vidur)])
    return [
        pages.dataset(work / f"{name}.h5", "import", *files, "--format", name.partition("-")[0])
        for name, files in groups.items()
    ]


@cache
def rows_of(work: Path, kind: str, source: str = "neusight") -> Rows:
    """Read the usable rows of a kind from all imported datasets of a source."""
    dataset = pages.dataset(work / f"{source}.h5", "merge", *sorted(work.glob(f"{source}-*.h5")))
    rows = layer_rows(read_table(dataset)[kind], info=read_info(dataset), many=True)
    held_out = fold_of_keys(rows.keys, HELD_OUT, SEED) == 0
    return Rows(
        rows,
        np.array([platform.device for platform in rows.platforms]),
        np.array([setting.options[SESSION] for setting in rows.settings]),
        held_out,
        ~held_out & (fold_of_keys(rows.keys, VALIDATION, SEED + 1) == 0),
    )


def fit(rows: Rows, mask: Any, **sizes: int) -> Roofline:
    """Fit to the rows of a mask that are not held out."""
    seen = mask & ~rows.held_out
    learnt, validation = (
        rows.layers.select(seen & part).examples(QUANTITY)
        for part in (~rows.validation, rows.validation)
    )
    return Roofline(rows.layers.kind, **sizes).fit(learnt, validation=validation, seed=SEED)


def judge(label: str, predictor: Roofline, rows: Rows, mask: Any) -> Iterator[Judged]:
    """Predict the rows of a mask, each in its own session."""
    for device, session in rows.groups():
        chosen = rows.layers.select(mask & rows.of(device, session))
        if not len(chosen):
            continue
        how, where = chosen.settings[0], chosen.platforms[0]
        predicted = predictor.predict(chosen.columns, how, where)[QUANTITY]
        low, high = predicted.low / predicted.values, predicted.high / predicted.values
        ratios = chosen.times_ms[QUANTITY] / predicted.values
        yield errors(ratios, low, high, label=label, device=device, session=session)


def errors(ratios: Any, low: Any, high: Any, **names: str) -> Judged:
    """Sum up measured over predicted times; `low` and `high` are the intervals' over predicted."""
    return {
        **names, "rows": len(ratios), "mape": float(100 * np.mean(np.abs(1 / ratios - 1))),
        "inside": float(100 * np.mean((ratios >= low) & (ratios <= high))),
    }  # fmt: skip


def operators(work: Path, kind: str) -> Iterator[Judged]:
    """Judge held-out layers of sessions that were learnt from."""
    rows = rows_of(work, kind)
    yield from judge(kind, fit(rows, rows.all), rows, rows.held_out)


def sessions(work: Path, kind: str) -> Iterator[Judged]:
    """Judge all layers of a card's second session, of which nothing was learnt."""
    rows = rows_of(work, kind)
    last = dict(rows.groups())
    learnt = np.array([last[device] for device in rows.devices]) == rows.sessions
    if not learnt.all():
        yield from judge(kind, fit(rows, learnt), rows, ~learnt)


def cards(work: Path, kind: str) -> Iterator[Judged]:
    """Leave each card out: all of its layers are judged, by its data sheet alone."""
    yield from left_out(rows_of(work, kind), kind)


def half(work: Path, kind: str) -> Iterator[Judged]:
    """Judge Vidur's layers in float16: held out of each card, and of cards left out."""
    if kind not in HALF_KINDS:
        return
    rows = rows_of(work, kind, "vidur")
    yield from judge(f"{kind}, held out", fit(rows, rows.all), rows, rows.held_out)
    yield from left_out(rows, f"{kind}, card left out")


def left_out(rows: Rows, label: str) -> Iterator[Judged]:
    """Judge all layers of each card by coefficients that are fitted to some of the others'."""
    order = np.random.default_rng(SEED).permutation(len(rows.layers))
    seen = order[~rows.held_out[order]]
    others = ~rows.all
    for group in rows.groups():
        others[seen[rows.of(*group)[seen]][:MOST_OF_OTHERS]] = True
    for device in sorted(set(rows.devices)):
        own = rows.of(device)
        yield from judge(label, fit(rows, others & ~own, trees=1), rows, own)


def withheld(work: Path, kind: str) -> Iterator[Judged]:
    """Estimate a kind on cards as if they had no rows of it: by data sheet, as predictions do."""
    for source, kinds, words in (
        ("neusight", KINDS, ""), ("vidur", HALF_KINDS, " in float16"),
    ):  # fmt: skip
        rows = rows_of(work, kind, source) if kind in kinds else None
        for device in sorted(set(rows.devices)) if rows else ():
            own = rows.of(device)
            times_ms = rows.layers.times_ms[QUANTITY]
            chosen = rows.layers.select(own & (times_ms > ABOVE * min(times_ms[own])))
            facts = device_facts(device)
            assert facts is not None  # The importers refuse cards without facts.
            ratios = np.array([
                measured_ms / estimated_layer_ms(layer, facts).ms
                for layer, measured_ms in
                zip(chosen.layers(), chosen.times_ms[QUANTITY], strict=True)
            ])  # fmt: skip
            if len(ratios):
                names = {"label": f"{kind}{words}", "device": device, "session": source}
                own = errors(ratios, CARDS.low, CARDS.high, **names)
                yield own | {"ratio": float(np.median(ratios))}


def by_card(judged: Sequence[Judged], name: str = "mape") -> str:
    """Lay out one row per label, one column per card, and the mean.

    Sessions of a card are combined by their rows; the P4, AMD's cards and those with few rows are
    in no mean.
    """
    judged = [result for result in judged if result.get(name) is not None]
    devices = sorted({result["device"] for result in judged},
                     key=lambda device: (device in AMD, device in APART, device))  # fmt: skip
    groups = grouped(((result["label"], result["device"]), result) for result in judged)
    cells = []
    for label in dict.fromkeys(label for label, _ in groups):
        counted, row = [], [label]
        for device in devices:
            own = groups.get((label, device), [])
            rows = [result["rows"] for result in own]
            values = [result[name] for result in own]
            value = float(np.average(values, weights=rows)) if own else math.nan
            row.append(pages.cell(value))
            if sum(rows) >= FEWEST_JUDGED and device not in (*AMD, *APART):
                counted.append(value)
        cells.append([*row, pages.cell(float(np.mean(counted)) if counted else math.nan)])
    return markdown_table((HEADINGS[name], *devices, "mean"), cells)


HEADINGS = {
    "mape": "MAPE in %",
    "inside": "inside the 90% interval, in %",
    "ratio": "measured / estimated, median",
}
PARTS: Mapping[str, tuple[Callable[[Path, str], Iterator[Judged]], str, str]] = {
    "operators": (operators, "Layers that were not learnt, on cards that were",
                  "20% of the layers, by the hash of their keys; each in its own session."),
    "half": (half, "Half precision",
             "Vidur's layers of language models in float16, kernels alone: 20% held out of each "
             "card, and cards that were left out."),
    "sessions": (sessions, "Another session of the same card",
                 "Learnt from one session of each card, judged on all layers of the other."),
    "cards": (cards, "Cards that were left out",
              "All layers of a card, from its data sheet and the other cards of its class; the "
              "dispatch of its host is the median of the others."),
    "withheld": (withheld, "A kind that a card has no rows of",
                 "The estimate from the data sheet alone, "
                 f"on rows above {ABOVE:g} times the shortest of their card and kind."),
}  # fmt: skip


def main() -> None:
    parser = pages.page_parser(__doc__, "gpus")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="make these again")
    given = parser.parse_args()
    if not given.write:
        import_all(given.work)
        for part, kind in product(given.only or PARTS, KINDS):
            path = given.work / f"{part}-{kind}.json"
            if given.only:
                path.unlink(missing_ok=True)
            judged = partial(PARTS[part][0], given.work, kind)
            pages.load_or_make(path, lambda judged=judged: list(judged()))
    parts = [
        f"Seed {SEED}. Means are over NVIDIA's cards but the P4, which throttled, and those with "
        f"fewer than {FEWEST_JUDGED} rows; `mi100` and `mi210` are `torch/rocm` and have "
        "coefficients of their own."
    ]
    for part, (_, title, words) in PARTS.items():
        paths = {kind: given.work / f"{part}-{kind}.json" for kind in KINDS}
        records = {kind: record for kind, path in paths.items() if (record := pages.stored(path))}
        judged = [row for record in records.values() for row in record["result"]]
        parts += [f"## {title}", pages.commits(records), words, by_card(judged)]
        if part in ("operators", "cards", "withheld"):
            parts += [by_card(judged, name=name) for name in ("inside", "ratio")]
    pages.write_page(given.output, "Operators in PyTorch on GPUs", parts)


if __name__ == "__main__":
    main()
