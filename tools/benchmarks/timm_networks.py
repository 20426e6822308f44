"""How well times of whole networks follow from costs of operator classes: docs/tables/timm.md.

    OMP_NUM_THREADS=1 nice python tools/benchmarks/timm_networks.py    # an hour; it goes on
    python tools/benchmarks/timm_networks.py --only i7_12700h --write  # the page of what there is

timm's files are read from $RESPERF_PUBLIC_DATA (../shared/data by default) and imported into the
work folder once. All figures are cross-validated on them, as by `resperf evaluate DATASET --methods
class-costs --leave-out family --folds 4`. Results are kept; delete one to have it made again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pages import commits, imported, kept, merged, parser_of, public_data, write_page

from resperf.predictors import Examples
from resperf.predictors.class_costs import ClassCosts, _latest, setting_name, terms_of
from resperf.predictors.metrics import mape
from resperf.report.markdown import markdown_table
from resperf.splits import FOLDS
from resperf.training import leave_out
from resperf.training.left_out import By
from resperf.training.rows import network_examples

PARTS: Mapping[str, Sequence[str]] = {
    "gpus": ("3090", "4090", "5090"), "cpus": ("i9_10940x", "i7_12700h"),
}  # fmt: skip
"""Devices of one class, as in the names of timm's files."""
NETWORK_FOLDS = 10
LEFT_OUT: Mapping[By, int] = {"family": FOLDS, "network": NETWORK_FOLDS}


def import_device(device: str, work: Path) -> Path:
    """Import timm's files of a device, once."""
    data = public_data() / "timm"
    files = [*sorted(data.glob(f"benchmark-*{device}*.csv.gz")), data / "operators.jsonl.gz"]
    return imported(work / f"timm-{device}.h5", "timm", files)


def import_part(part: str, work: Path) -> Path:
    """Import and merge timm's files of a class of devices, once."""
    return merged(work / f"{part}.h5", [import_device(each, work) for each in PARTS[part]])


def errors_of(dataset: Path, by: By) -> list[dict[str, Any]]:
    """Judge each of the files of a dataset by itself."""
    found = leave_out(dataset, ["class-costs"], by=by, folds=LEFT_OUT[by])
    return [
        {"file": each.setting.rpartition("benchmark-")[2], "networks": each.errors.rows,
         "mape": each.errors.mape, "inside": each.in_interval}
        for each in found
    ]  # fmt: skip


def left_out_cards(examples: Examples) -> Iterator[list[str]]:
    """Yield a row per card that is predicted by the geometric mean of the other cards' fits."""
    fitted = ClassCosts("network").fit(examples, validation=examples, seed=0)
    ways = examples.per_row()
    names = np.array([setting_name(*way) for way in ways])
    for kind, spread in fitted.spreads_.items():
        words = kind.partition(" ")[2]
        keys = {key: key.split(" ")[0] for key in fitted.fits_ if f" {words} " in key}
        latest = _latest(keys)
        for card, key in latest.items():
            own = np.flatnonzero(names == key)
            terms = [terms_of(examples.networks[row], *ways[row]) for row in own]
            others = [np.log(fitted.fits_[each].predict(terms).values)
                      for each in latest.values() if each != key]  # fmt: skip
            error = mape(examples.values[own], np.exp(np.mean(others, axis=0)))
            yield [card, words, f"{error:.1%}", f"{np.exp(spread.width):.2f}",
                   f"{spread.coverage:.1%}"]  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__, "timm")
    devices = [device for part in PARTS.values() for device in part]
    parser.add_argument("--only", nargs="+", choices=devices, default=devices)
    given = parser.parse_args()
    paths = {(device, by): given.work / f"{device}-{by}.json"
             for device in devices for by in LEFT_OUT}  # fmt: skip
    cards = given.work / "cards.json"
    if not given.write:
        for (device, by), path in paths.items():
            if device in given.only:
                kept(path, lambda d=device, b=by: errors_of(import_device(d, given.work), b))
        kept(cards, lambda: list(left_out_cards(
            network_examples(import_part("gpus", given.work), "execution_ms", lists=True)
        )))  # fmt: skip
    stored = {path.stem: json.loads(path.read_text()) for path in (*paths.values(), cards)
              if path.exists()}  # fmt: skip
    rows: dict[str, list[str]] = {}
    for device, by in paths:
        for each in stored.get(f"{device}-{by}", {"result": []})["result"]:
            row = rows.setdefault(each["file"], [each["file"], str(each["networks"])])
            row += [f"{each['mape']:.1%}", f"{each['inside']:.1%}"]
    write_page(given.output, "Networks on GPUs: costs of operator classes from whole networks", [
        commits(stored),
        "The predictor `class-costs` learns what classes of operators cost from the times of whole "
        "networks alone. These are its errors on timm's measurements (PyTorch Image Models, folder "
        "`results`, Apache-2.0), as MAPE. **All figures are cross-validated on the data at hand, "
        "on which the classes, the terms and the constants of the correction were developed.**",
        "## Each file by itself",
        f"*Family out*: families (timm's modules) are predicted in {FOLDS} parts by fits without "
        f"them. *Network out*: architectures in {NETWORK_FOLDS} parts, all sizes of one together. "
        "*Inside*: the share of networks in their 90% interval. For fp32 on CPUs, casts are left "
        "out; training steps are predicted from the operators of the forward pass.",
        markdown_table(
            ("file", "networks", "family out", "inside", "network out", "inside"),
            [*rows.values()],
        ),
        "## Cards that nobody measured",
        "The latest file of each card, predicted with its data sheet by the geometric mean of what "
        "the other cards' fits say. The interval is the next card's factor as those of the cards "
        "that were left out, families left out as well, by Student's t for so few cards; *inside* "
        "is the share of networks in it, of three cards in an interval made without the card.",
        markdown_table(("card that is left out", "", "MAPE", "interval, factor", "inside"),
                       stored.get("cards", {"result": []})["result"]),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
