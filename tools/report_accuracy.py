#!/usr/bin/env python
"""How accurate every method is on published measurements: writes docs/accuracy.md.

    python tools/report_accuracy.py                # hours; stopped and started again, it goes on
    python tools/report_accuracy.py --only perfnet-1080ti --methods baseline,boosted
    python tools/report_accuracy.py --write        # the report of what there is, without training

The measurements are read from $RESPERF_PUBLIC_DATA (../shared/data by default), in folders `justus`
and `perfnet` of files DEVICE_KIND.csv.gz. Imported datasets and each result are kept in the work
folder: delete a result (KIND-METHOD-ROWS.json) to have it made again, a dataset to have it imported
again and all of its results made again; other features make everything again, and other code what
depends on it. The report names the commit at which each figure was computed; with --write alone,
figures of code that has changed since are shown, and named as such. No measured row is written
into the report.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from plot_errors import write_plots

from resperf.bundle._provenance import package_versions, source_commit
from resperf.cli.main import main as resperf
from resperf.dataset import checksum, read_table
from resperf.errors import ResperfError
from resperf.features import FEATURE_SET_VERSION
from resperf.files import write_whole
from resperf.platform import this_platform
from resperf.predictors import DEFAULT_METHOD, METHODS
from resperf.predictors.metrics import errors, errors_by_time, r_squared
from resperf.report.markdown import markdown_table, methods_markdown, percent
from resperf.report.methods import at_most_rows
from resperf.training import Compared, ComparisonSettings, compare

ROOT = Path(__file__).resolve().parents[1]
FORMATS = ("perfnet", "justus")
QUICK = ("baseline", "gianniti", "boosted", "xgboost", "xgboost-log", "polynomial")
MAIN = ("residual", "ensemble")
SLOW = ("svr", "perfnet", "resperfnet")
"""On one device of each source alone: the published settings would take days on all of them."""

PLOTTED = ("perfnet-1080ti", "justus-1080ti")
CURVE_DATASET, CURVE_KIND = "perfnet-1080ti", "conv"
CURVE_METHODS = ("baseline", "xgboost", "boosted", "residual", "ensemble")
CURVE_ROWS = (500, 1000, 2000, 5000, 10_000)

CHOSEN = "ensemble"
"""What the figures that were asked for are read off, beside the default of `resperf train`."""

INTRODUCTION = """\
Timings of single layers by Justus et al. (2018) and by the authors of PerfNet and ResPerfNet
(2019-2020), as imported by `resperf dataset import`. Layers are split by their key into 80% to
train, 10% to choose the best epoch or the number of trees, and 10% that judge and that no method
sees; *rows trained* counts the first two. Every method has the same settings on every device.
MAPE is the mean of |predicted - measured| / measured, the noise floor the MAPE that a perfect
predictor would score, known where layers were measured more than once. Predictions are those of
the exported predictor. Fits ran one after another on a machine that may have had other work; the
first network of a run also loads TensorFlow.

`whole_call` times contain the session call and the output's copy, `execution` times do not: they
are not like for like with each other, nor with the tables of the papers. A `_step` is a training
step: forward, backward, update.

What was measured on a machine of our own, whole networks among it, stands in
[accuracy-measured.md](accuracy-measured.md)."""


@dataclass(frozen=True)
class Unit:
    """One fit: done as a whole or not at all."""

    dataset: str
    kind: str
    method: str
    rows: int | None

    @property
    def stem(self) -> str:
        return f"{self.kind}-{self.method}-{self.rows or 'all'}"

    def __str__(self) -> str:
        return f"{self.dataset}: {self.kind}, {self.method}, {self.rows or 'all'} rows"


@dataclass(frozen=True)
class Origin:
    """What a result was computed with: the commit, and whether its code has changed since."""

    commit: str
    changed: bool


Results = Mapping[str, Sequence[Compared]]
"""Dataset -> results, those of one kind together."""


def public_data() -> Path:
    """Return the folder that the published measurements are looked for in."""
    default = ROOT.parent / "shared" / "data"
    return Path(os.environ.get("RESPERF_PUBLIC_DATA", default))


def sources(data: Path) -> dict[str, list[Path]]:
    """Find the published files: dataset such as ``perfnet-1080ti`` -> its files."""
    found: dict[str, list[Path]] = {}
    for name in FORMATS:
        for file in sorted((data / name).glob("*_*.csv.gz")):
            found.setdefault(f"{name}-{file.name.partition('_')[0]}", []).append(file)
    if not found:
        raise SystemExit(f"no measurements in {data}; set RESPERF_PUBLIC_DATA to their folder")
    return found


def import_dataset(name: str, files: Sequence[Path], target: Path) -> None:
    """Import published files with the command that users have."""
    source, _, device = name.partition("-")
    words = ["dataset", "import", *map(str, files), "--format", source, "--device", device]
    if resperf([*words, "-o", str(target)]):
        raise SystemExit(f"{name} could not be imported")


def prepare(
    data: Path, work: Path, only: Sequence[str] | None, *, importing: bool
) -> dict[str, list[str]]:
    """Import what is not imported yet; return the kinds of each dataset."""
    datasets: dict[str, list[str]] = {}
    for name, files in sources(data).items():
        target = work / f"{name}.h5"
        if only and name not in only:
            continue
        if importing and not target.exists():
            import_dataset(name, files, target)
        if target.exists():
            datasets[name] = list(read_table(target))
    if not datasets:
        raise SystemExit(f"nothing to do; datasets: {', '.join(sources(data))}")
    return datasets


def plan(datasets: Mapping[str, Sequence[str]], methods: Sequence[str]) -> Iterator[Unit]:
    """Yield what is to be fitted: what is quick or shows most comes first.

    Parameters
    ----------
    datasets : mapping of str to sequence of str
        Name -> its kinds.
    methods : sequence of str
        Those asked for.
    """

    def units(chosen: Sequence[str], names: Sequence[str]) -> Iterator[Unit]:
        for name in names:
            for kind in datasets[name]:
                yield from (Unit(name, kind, each, None) for each in chosen if each in methods)

    plotted = [name for name in PLOTTED if name in datasets]
    others = [name for name in datasets if name not in PLOTTED]
    yield from units(QUICK, [*plotted, *others])
    yield from units(MAIN, plotted)
    if CURVE_KIND in datasets.get(CURVE_DATASET, ()):
        for method in (each for each in CURVE_METHODS if each in methods):
            yield from (Unit(CURVE_DATASET, CURVE_KIND, method, rows) for rows in CURVE_ROWS)
    yield from units(MAIN, others)
    yield from units(SLOW, plotted)
    yield from units([each for each in methods if each not in {*QUICK, *MAIN, *SLOW}], plotted)


class Store:
    """Results in the work folder: one JSON file and one file of times per unit."""

    def __init__(self, work: Path, seed: int) -> None:
        self.work = work
        self.seed = seed
        self._checksums: dict[str, str] = {}

    def dataset(self, unit: Unit) -> Path:
        return self.work / f"{unit.dataset}.h5"

    def checksum(self, unit: Unit) -> str:
        if unit.dataset not in self._checksums:
            self._checksums[unit.dataset] = checksum(self.dataset(unit))
        return self._checksums[unit.dataset]

    def origin(self, unit: Unit) -> Origin | None:
        """Return the origin of a result of the dataset, seed and features as they are now.

        None where there is no such result.
        """
        path = self.work / unit.dataset / f"{unit.stem}.json"
        if not path.exists():
            return None
        values = json.loads(path.read_text())
        made_with = (values["checksum"], values["seed"], values.get("features"))
        if made_with != (self.checksum(unit), self.seed, FEATURE_SET_VERSION):
            return None
        return Origin(values["commit"], changed=values.get("code") != code_digest(unit.method))

    def has(self, unit: Unit) -> bool:
        """Say whether a result is there that would come out the same now."""
        origin = self.origin(unit)
        return origin is not None and not origin.changed

    def save(self, unit: Unit, result: Compared) -> None:
        """Keep a result; the JSON file comes last, so that it is whole where it is there."""
        folder = self.work / unit.dataset
        folder.mkdir(exist_ok=True)
        np.savez_compressed(
            folder / f"{unit.stem}.npz",
            measured_ms=result.measured_ms,
            predicted_ms=result.predicted_ms,
        )
        values = {
            "checksum": self.checksum(unit), "seed": self.seed, "features": FEATURE_SET_VERSION,
            "commit": source_commit(), "code": code_digest(unit.method), "result": result.to_json(),
        }  # fmt: skip
        text = json.dumps(values, indent=1) + "\n"
        write_whole(folder / f"{unit.stem}.json", text.encode())

    def load(self, unit: Unit) -> Compared:
        """Read a result back."""
        stem = self.work / unit.dataset / unit.stem
        values = json.loads(stem.with_name(f"{unit.stem}.json").read_text())["result"]
        with np.load(stem.with_name(f"{unit.stem}.npz")) as times:
            measured_ms, predicted_ms = times["measured_ms"], times["predicted_ms"]
        floor = values["noise_floor"]
        return Compared(
            kind=values["kind"], phase=values["phase"], method=values["method"],
            rows_trained=values["rows_trained"], rows_validation=values["rows_validation"],
            errors=errors(measured_ms, predicted_ms),
            bins=errors_by_time(measured_ms, predicted_ms),
            r2=r_squared(measured_ms, predicted_ms), fold_mapes=(), fit_s=values["fit_s"],
            predict_us=values["predict_us"],
            noise_floor=float("nan") if floor is None else floor,
            measured_ms=measured_ms, predicted_ms=predicted_ms,
        )  # fmt: skip


def run(unit: Unit, store: Store) -> Compared:
    """Fit and judge one method."""
    rows = (unit.rows,) if unit.rows else ()
    settings = ComparisonSettings((unit.method,), rows, kinds=(unit.kind,), seed=store.seed)
    return compare(store.dataset(unit), settings).rows[0]


def collect(units: Sequence[Unit], store: Store) -> dict[Unit, str]:
    """Run what is not done yet, telling how far it is; return what failed, and why."""
    waiting = [unit for unit in units if not store.has(unit)]
    print(f"{len(units)} fits, {len(units) - len(waiting)} of them done", flush=True)
    failed: dict[Unit, str] = {}
    start = time.monotonic()
    for place, unit in enumerate(waiting, start=1):
        try:
            result = run(unit, store)
        except ResperfError as error:
            failed[unit] = str(error)
            print(f"{place}/{len(waiting)} {unit}: {error}", flush=True)
            continue
        store.save(unit, result)
        print(
            f"{place}/{len(waiting)} {unit}: {result.errors.mape:.2%}, fit {result.fit_s:.0f} s, "
            f"{(time.monotonic() - start) / 60:.0f} min in all",
            flush=True,
        )
    return failed


def wanted(results: Results, method: str) -> str:
    """Hold the results against what was asked for: what, at most, found, and whether it is met."""

    def figure(dataset: str, kind: str, name: str = method, rows: int | None = None) -> float:
        chosen = [
            each for each in results.get(dataset, ()) if (each.kind, each.method) == (kind, name)
        ]
        if rows is not None:
            chosen = [each for each in chosen if each.rows_trained == rows]
        return at_most_rows(chosen)[0].errors.mape if chosen else float("nan")

    lines: list[tuple[str, float, float]] = [
        (f"perfnet 1080ti {kind}, whole call", most, figure("perfnet-1080ti", kind))
        for kind, most in (("conv", 0.023), ("pool", 0.025), ("dense", 0.07))
    ]
    lines.append(("the same conv from 2,000 rows", 0.038, figure(CURVE_DATASET, "conv", rows=2000)))
    for kind in ("conv", "dense"):
        forward = figure("justus-1080ti", kind)
        reference = figure("justus-1080ti", kind, "xgboost-log")
        step = figure("justus-1080ti", f"{kind}_step")
        lines += [
            (f"justus 1080ti {kind}: two thirds of `xgboost-log`", reference * 2 / 3, forward),
            (f"justus 1080ti {kind} steps: 1.5 x the forward pass", forward * 1.5, step),
        ]
    answers = [
        "not run" if np.isnan(most + found) else "yes" if found <= most else "**no**"
        for _, most, found in lines
    ]
    cells = [
        [what, percent(most), percent(found), answer]
        for (what, most, found), answer in zip(lines, answers, strict=True)
    ]
    return markdown_table(("what", "at most", "found", "met"), cells)


def origins_text(origins: Mapping[Unit, Origin]) -> str:
    """Say for each commit which figures were computed at it, and which of them are out of date."""
    units: dict[Origin, dict[str, list[str]]] = {}
    for unit, origin in origins.items():
        rows = f" ({unit.rows} rows)" if unit.rows else ""
        units.setdefault(origin, {}).setdefault(f"{unit.kind}{rows}", []).append(unit.method)
    return "\n".join(
        f"- computed at `{origin.commit}`"
        f"{', **code changed since**' if origin.changed else ''}: "
        + "; ".join(f"{kind}: {', '.join(methods)}" for kind, methods in kinds.items())
        for origin, kinds in units.items()
    )


def write_report(
    results: Results,
    origins: Mapping[Unit, Origin],
    missing: Sequence[str],
    output: Path,
    seed: int,
) -> None:
    """Write the report, and its plots into a folder beside it."""
    pictures = output.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    machine = this_platform("cpu")
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    parts = [
        "# How accurate on published measurements",
        "Written by `python tools/report_accuracy.py` on "
        f"{datetime.now(UTC):%Y-%m-%d}, seed {seed}, at commit {source_commit()}; each section "
        "names the commits that its figures were computed at; "
        f"{machine.processor}, {machine.cores} cores; {versions}.",
        INTRODUCTION,
    ]
    for method in dict.fromkeys((CHOSEN, DEFAULT_METHOD)):
        if any(result.method == method for each in results.values() for result in each):
            parts += [f"## What was asked for, with `{method}`", wanted(results, method)]
    for name, found in results.items():
        own = {unit: origin for unit, origin in origins.items() if unit.dataset == name}
        parts += [f"## {name}", methods_markdown(found), origins_text(own)]
        if name in PLOTTED:
            (pictures / name).mkdir(exist_ok=True)
            parts += [
                f"![{path.stem}]({path.relative_to(output.parent).as_posix()})"
                for path in write_plots(found, pictures / name)
            ]
    if missing:
        parts += ["## Not there", "\n".join(f"- {each}" for each in missing)]
    output.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"{output}: {sum(map(len, results.values()))} results, {len(missing)} missing")


def absent(units: Sequence[Unit], failed: Mapping[Unit, str]) -> list[str]:
    """Say what is missing and why, the methods of one kind in one line."""
    methods: dict[tuple[str, str], list[str]] = {}
    for unit in units:
        rows = f", {unit.rows} rows" if unit.rows else ""
        place = f"{unit.dataset}: {unit.kind}{rows}"
        methods.setdefault((place, failed.get(unit, "not run")), []).append(unit.method)
    return [f"{place}: {', '.join(names)}: {why}" for (place, why), names in methods.items()]


@cache
def code_digest(method: str) -> str:
    """Return what changes with the code that a method's figures depend on.

    That is everything of resperf that fitting, comparing and the method import, one through
    another, without comments and docstrings.
    """
    waiting = ["resperf.training.compare", METHODS[method].partition(":")[0]]
    seen: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        path = module_file(name)
        if name in seen or path is None:
            continue
        seen[name], names = meaning(path.read_text(encoding="utf-8"))
        waiting += names
    return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()


@cache
def meaning(code: str) -> tuple[str, list[str]]:
    """Return a module without comments and docstrings, and the names that it imports."""
    tree = ast.parse(code)
    names = list(imported(tree))
    return hashlib.sha256(ast.dump(without_docstrings(tree)).encode()).hexdigest(), names


def module_file(name: str) -> Path | None:
    """Find the file of a module of resperf; None for what is no module."""
    path = ROOT.joinpath(*name.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if name.partition(".")[0] == "resperf" and file.is_file():
            return file
    return None


def imported(tree: ast.Module) -> Iterator[str]:
    """Name what a module imports, wherever in it; a name of a module may be none itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Leave out the texts that stand by themselves."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not is_text(each)]  # type: ignore[attr-defined]
    return tree


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=public_data(), help="folder of the measurements"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "accuracy-public")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "accuracy.md")
    parser.add_argument("--only", action="append", metavar="DATASET", help="such as justus-k80")
    parser.add_argument("--methods", help="some methods, with commas between; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the report, train nothing")
    given = parser.parse_args(words)
    methods = given.methods.split(",") if given.methods else list(METHODS)
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        parser.error(f"no method {', '.join(unknown)}; known: {', '.join(METHODS)}")
    given.work.mkdir(parents=True, exist_ok=True)
    store = Store(given.work, given.seed)
    datasets = prepare(given.data, given.work, given.only, importing=not given.write)
    failed = {} if given.write else collect(list(plan(datasets, methods)), store)
    # The report is of all that there is, whatever was asked for this time.
    everything = prepare(given.data, given.work, None, importing=False)
    order = {method: place for place, method in enumerate(METHODS)}
    units = sorted(
        set(plan(everything, list(METHODS))),
        key=lambda unit: (
            list(everything).index(unit.dataset), unit.kind, order[unit.method],
            unit.rows or sys.maxsize,
        ),
    )  # fmt: skip
    results: dict[str, list[Compared]] = {}
    origins = {unit: origin for unit in units if (origin := store.origin(unit)) is not None}
    for unit in origins:
        results.setdefault(unit.dataset, []).append(store.load(unit))
    missing = absent([unit for unit in units if unit not in origins], failed)
    write_report(results, origins, missing, given.output, given.seed)


if __name__ == "__main__":
    main()
