"""How accurate every method is on published times of single layers: docs/tables/published.md.

    python tools/benchmarks/published.py            # hours; started again, it goes on
    python tools/benchmarks/published.py --only perfnet-1080ti --methods baseline boosted
    python tools/benchmarks/published.py --write    # the page of what there is, no fits

Measurements are read from $RESPERF_PUBLIC_DATA (../shared/data by default), in folders `justus` and
`perfnet` of files DEVICE_KIND.csv.gz. Imported datasets and each result are kept in the work
folder: delete a result (KIND-METHOD-ROWS.json) to have it made again. Another dataset, seed or
version of the features makes results again. The page names the commit of each figure, and no
measured row is written into it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pages
from markdown_tables import methods_markdown

from resperf.bundle._provenance import PACKAGES
from resperf.dataset import checksum, read_table
from resperf.errors import ResperfError
from resperf.features import FEATURE_SET_VERSION
from resperf.grouping import grouped
from resperf.platform import this_platform
from resperf.predictors import METHODS
from resperf.predictors.metrics import Errors
from resperf.targets import versions_of
from resperf.training import Compared, ComparisonSettings, compare

FORMATS = ("perfnet", "justus")
TIMM_DEVICES: Mapping[str, Sequence[str]] = {
    "gpus": ("3090", "4090", "5090"), "cpus": ("i9_10940x", "i7_12700h"),
}  # fmt: skip
"""Class of devices -> devices, as in the names of timm's files of whole networks."""
SLOW = ("svr", "perfnet", "resperfnet")
"""On one device of each source alone: the published settings would take days on all of them."""
SLOW_ON = ("perfnet-1080ti", "justus-1080ti")
CURVE_DATASET, CURVE_KIND = "perfnet-1080ti", "conv"
CURVE_METHODS = ("baseline", "xgboost", "boosted")
CURVE_ROWS = (500, 1000, 2000, 5000, 10_000)
INTRODUCTION = """\
Timings of single layers by Justus et al. (2018) and by the authors of PerfNet and ResPerfNet
(2019-2020). Layers are split by their key into 80% to train, 10% to choose the best epoch or the
number of trees, and 10% that judge and that no method sees; *rows trained* counts the first two.
Every method has the same settings on every device. MAPE is the mean of |predicted - measured| /
measured, the noise floor the MAPE that a perfect predictor would score, known where layers were
measured more than once. Predictions are those of the exported predictor. Fits ran one after another
on a machine that may have had other work; the first network of a run also loads TensorFlow.

`whole_call` times contain the call and the output's copy, `execution` times do not: they are not
like for like with each other, nor with the tables of the papers. A `_step` is a training step:
forward, backward, update."""


@dataclass(frozen=True)
class Unit:
    """One fit: done as a whole or not at all."""

    dataset: str
    kind: str
    method: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.dataset}: {self.kind}, {self.method}, {self.rows or 'all'} rows"


def sources(data: Path) -> dict[str, list[Path]]:
    """Find the published files: dataset such as ``perfnet-1080ti`` -> its files."""
    return grouped(
        (f"{name}-{file.name.partition('_')[0]}", file)
        for name in FORMATS
        for file in sorted((data / name).glob("*_*.csv.gz"))
    )


def import_layers(name: str, work: Path) -> Path:
    """Import a dataset such as ``justus-k80``, once."""
    source, _, device = name.partition("-")
    words = ("import", *sources(pages.public_data())[name], "--format", source, "--device", device)
    return pages.dataset(work / f"{name}.h5", *words)


def import_networks(part: str, work: Path, layout: str = "n*") -> Path:
    """Import and merge timm's files of a class of devices, or those of one data layout, once."""
    data = pages.public_data() / "timm"
    datasets = []
    for device in TIMM_DEVICES[part]:
        files = sorted(data.glob(f"benchmark-*-{layout}-*{device}*.csv.gz"))
        words = ("import", *files, data / "operators.jsonl.gz", "--format", "timm")
        datasets.append(pages.dataset(work / f"timm-{device}.h5", *words))
    return pages.dataset(work / f"{part}.h5", "merge", *datasets)


def plan(datasets: Mapping[str, Sequence[str]], methods: Sequence[str]) -> Iterator[Unit]:
    """Yield what is to be fitted to the kinds of datasets, quick methods first."""
    units = [Unit(name, kind, method) for name, kinds in datasets.items() for kind in kinds
             for method in methods if method not in SLOW or name in SLOW_ON]  # fmt: skip
    yield from sorted(units, key=lambda unit: unit.method in SLOW)
    if CURVE_KIND in datasets.get(CURVE_DATASET, ()):
        for method in (name for name in CURVE_METHODS if name in methods):
            yield from (Unit(CURVE_DATASET, CURVE_KIND, method, rows) for rows in CURVE_ROWS)


class Store:
    """Results in the work folder: one JSON file per unit."""

    def __init__(self, work: Path, seed: int) -> None:
        self.work = work
        self.seed = seed
        self._checksum = cache(checksum)

    def _place(self, unit: Unit) -> tuple[Path, list[object]]:
        """Return the file of a unit's result, and what it must have been made with."""
        content = self._checksum(self.work / f"{unit.dataset}.h5")
        name = f"{unit.kind}-{unit.method}-{unit.rows or 'all'}.json"
        made_with = [content, self.seed, FEATURE_SET_VERSION]
        return self.work / unit.dataset / name, made_with

    def load(self, unit: Unit) -> dict[str, Any] | None:
        """Return the result of the dataset, seed and features as they are now, with its commit."""
        return pages.stored(*self._place(unit))

    def add(self, unit: Unit) -> Compared:
        """Fit, judge and store one method."""
        path, made_with = self._place(unit)
        return compared(pages.load_or_make(path, lambda: self.fit(unit).to_json(), made_with))

    def fit(self, unit: Unit) -> Compared:
        """Fit and judge one method."""
        rows = (unit.rows,) if unit.rows else ()
        settings = ComparisonSettings((unit.method,), rows, kinds=(unit.kind,), seed=self.seed)
        return compare(self.work / f"{unit.dataset}.h5", settings).rows[0]


def compared(record: Mapping[str, Any]) -> Compared:
    """Read a stored result, which lacks the times of single rows."""
    values, none = record["result"], np.empty(0)
    own = {field.name: values[field.name] for field in fields(Compared) if field.name in values}
    own["noise_floor"] = math.nan if own["noise_floor"] is None else own["noise_floor"]
    return Compared(**own, errors=Errors.from_json(values), measured_ms=none, predicted_ms=none)


def collect(units: Sequence[Unit], store: Store) -> dict[Unit, str]:
    """Run what is not done yet, telling how far it is; return what failed, and why."""
    waiting = [unit for unit in units if store.load(unit) is None]
    print(f"{len(units)} fits, {len(units) - len(waiting)} of them done", flush=True)
    failed: dict[Unit, str] = {}
    for number, unit in enumerate(waiting, start=1):
        try:
            result = store.add(unit)
        except ResperfError as error:
            failed[unit] = told = str(error)
        else:
            told = f"{result.errors.mape:.2%}, fit {result.fit_s:.0f} s"
        print(f"{number}/{len(waiting)} {unit}: {told}", flush=True)
    return failed


def platform_line(seed: int) -> str:
    """Say what machine and packages a page was written with."""
    machine = this_platform("cpu")
    versions = ", ".join(f"{name} {version}" for name, version in versions_of(PACKAGES).items())
    return f"Seed {seed}; {machine.processor}, {machine.cores} cores; {versions}."


def main(words: Sequence[str] | None = None) -> None:
    parser = pages.page_parser(__doc__, "published")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="DATASET", help="such as justus-k80")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    given = parser.parse_args(words)
    names = sources(pages.public_data())
    for name in () if given.write else given.only or names:
        import_layers(name, given.work)
    # The page is of all that there is, whatever was asked for this time.
    paths = {name: given.work / f"{name}.h5" for name in names}
    datasets = {name: list(read_table(path)) for name, path in paths.items() if path.exists()}
    store = Store(given.work, given.seed)
    failed = {}
    if not given.write:
        asked = {name: datasets[name] for name in given.only or datasets}
        failed = collect(list(plan(asked, given.methods)), store)
    every = list(plan(datasets, list(METHODS)))
    loaded = {unit: record for unit in every if (record := store.load(unit))}
    parts = [platform_line(given.seed), INTRODUCTION]
    for name in datasets:
        own = sorted((unit for unit in loaded if unit.dataset == name), key=lambda unit: unit.kind)
        if own:
            parts += [f"## {name}", methods_markdown([compared(loaded[unit]) for unit in own])]
            parts.append(pages.commits({str(unit): loaded[unit] for unit in own}))
    missing = {str(unit): failed.get(unit, "not run") for unit in every if unit not in loaded}
    if missing:
        parts += ["## Not there", pages.by_words(missing)]
    pages.write_page(given.output, "How accurate on published measurements", parts)


if __name__ == "__main__":
    main()
