#!/usr/bin/env python
"""The tables and figures of the ResPerfNet paper beside ours: writes docs/paper.md.

    python tools/report_accuracy.py --work build/accuracy-public     # its fits are used here
    python tools/report_paper.py --accuracy build/accuracy-public    # hours; resumes
    python tools/report_paper.py --accuracy build/accuracy-public --missing --only perfnet-p1000
    python tools/report_paper.py --accuracy build/accuracy-public --write   # what there is

What was measured on a machine of our own is added where it is given, for each framework a campaign
(`resperf bench`) and what `tools/benchmark_networks.py --json` wrote for bundles in folders called
like their methods (`resperf train CAMPAIGN.h5 --method resperfnet -o onnxruntime/resperfnet`):

    python tools/report_paper.py --accuracy build/accuracy-public --write \\
        --campaign onnxruntime=ort.h5 --networks onnxruntime=ort-networks.json

Figures of the paper are from ResPerfNet's Tables 1, 2 and 5 to 9, and section 6.2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from report_accuracy import (
    ROOT,
    Origin,
    Store,
    Unit,
    collect,
    origins_text,
    prepare,
    public_data,
)

from resperf.bundle._provenance import package_versions, source_commit
from resperf.dataset import read_info, read_table
from resperf.features import Array, Columns
from resperf.features.transforms import BoxCox, ZScore
from resperf.files import write_whole
from resperf.platform import this_platform
from resperf.predictors.metrics import errors
from resperf.predictors.perfnet import PerfNet
from resperf.predictors.resperfnet import ResPerfNet
from resperf.quantities import PHASES
from resperf.report.markdown import markdown_table, percent
from resperf.training import Compared, ComparisonSettings, compare
from resperf.training.learning import values_of
from resperf.training.rows import layer_rows
from resperf.training.trials import fit_rows, own_split

OURS = "ensemble"
PAPER_METHODS = ("polynomial", "svr", "xgboost", "perfnet", "resperfnet")
METHODS = (*PAPER_METHODS, OURS)
TABLE_1 = {"polynomial": 63.57, "svr": 58.74, "xgboost": 29.25, "perfnet": 14.96,
           "resperfnet": 11.75}  # fmt: skip
"""MAPE (%) of the execution of convolutions, TensorFlow on the 1080 Ti."""
TABLE_1_TENSORRT = {"polynomial": 316.5, "svr": 59.94, "xgboost": 33.10, "resperfnet": 14.23}
KINDS = ("conv", "pool", "dense")
SMALL_CAMPAIGN = (
    "The layers of a campaign of 45 minutes. The paper's networks learnt from 100,000 samples of "
    "two weeks: with hundreds of rows, 200 epochs are too few steps for them."
)
_TABLES: Mapping[str, Sequence[Sequence[tuple[float, float, float]]]] = {
    # For each kind: preprocess, execution, postprocess; each MAPE %, RMSE ms, MAE ms.
    "Table 5, TensorFlow, GTX 1080 Ti": (
        ((1.603, 0.215, 0.126), (11.75, 0.84, 0.336), (2.821, 0.097, 0.041)),
        ((1.177, 0.150, 0.094), (6.221, 0.367, 0.125), (1.967, 0.091, 0.031)),
        ((6.455, 0.036, 0.025), (4.515, 0.069, 0.036), (13.86, 0.011, 0.009)),
    ),
    "Table 6, TensorFlow, Quadro P1000": (
        ((1.943, 0.478, 0.271), (12.74, 5.022, 2.046), (2.818, 0.105, 0.038)),
        ((1.511, 0.206, 0.122), (5.842, 0.977, 0.390), (2.860, 0.091, 0.035)),
        ((6.691, 0.043, 0.035), (5.687, 0.429, 0.204), (13.61, 0.018, 0.008)),
    ),
    "Table 7, TensorFlow, Quadro P2000": (
        ((1.535, 0.536, 0.308), (12.347, 4.209, 1.671), (3.132, 0.107, 0.045)),
        ((1.321, 0.407, 0.185), (4.425, 0.682, 0.234), (2.728, 0.098, 0.034)),
        ((7.369, 0.017, 0.013), (13.39, 0.073, 0.037), (14.03, 0.011, 0.008)),
    ),
    "Table 8, TensorFlow, Quadro P5000": (
        ((1.247, 0.417, 0.235), (12.23, 1.553, 0.671), (4.072, 0.148, 0.065)),
        ((1.339, 0.398, 0.205), (6.444, 0.527, 0.174), (3.802, 0.131, 0.053)),
        ((5.126, 0.045, 0.035), (5.298, 0.121, 0.121), (18.13, 0.019, 0.019)),
    ),
    "Table 9, TensorRT, GTX 1080 Ti": (
        ((2.283, 0.646, 0.356), (14.23, 0.649, 0.263), (4.334, 0.274, 0.089)),
        ((2.268, 0.689, 0.323), (15.19, 0.497, 0.186), (4.001, 0.141, 0.058)),
        ((5.612, 0.035, 0.027), (13.40, 0.094, 0.045), (18.01, 0.017, 0.014)),
    ),
}
PUBLIC: Mapping[str, Sequence[str]] = {
    "justus-1080ti": ("conv", "dense"),
    "perfnet-1080ti": KINDS,
    "perfnet-p1000": KINDS,
    "perfnet-p5000": KINDS,
}
"""Published measurements that answer to a table, and their kinds."""
BESIDE = {
    "Table 5, TensorFlow, GTX 1080 Ti": ("justus-1080ti", "perfnet-1080ti"),
    "Table 6, TensorFlow, Quadro P1000": ("perfnet-p1000",),
    "Table 8, TensorFlow, Quadro P5000": ("perfnet-p5000",),
}
WHAT = {"execution_ms": "execution", "whole_call_ms": "whole call"}
NETWORKS = {"onnxruntime": "ONNX Runtime", "tensorflow": "TensorFlow", "torch": "PyTorch"}
EPOCHS_SHOWN = (1, 5, 10, 20, 50, 100, 150, 200)

ABSENT = (
    ("Table 1, 2 and 9, TensorRT", "no TensorRT measurement of single layers is published; "
     "`resperf bench gpu-overnight --framework tensorrt` makes one on a GPU"),
    ("Table 1, PerfNet with TensorRT", "the paper does not have it either"),
    ("Table 5, pool, execution", "Justus et al. published convolutions and dense layers, PerfNet "
     "whole calls, which stand in its place"),
    ("Table 5 to 8, preprocess and postprocess", "the authors published whole calls, Justus et al. "
     "execution: the phases were not published apart; ours are those of a CPU, above"),
    ("Table 6 and 8, execution", "of these cards whole calls alone are published, which stand in "
     "its place"),
    ("Table 7", "no measurement of a P2000 is published"),
    ("Figure 2, errors of training rows and RMSE after each epoch", "after an epoch, the MAPE of "
     "the validation rows alone is kept"),
    ("Figure 3 and 5 to 7, LeNet, AlexNet and VGG16 on GPUs", "the authors' times of the networks "
     "are not published; ours are those of a CPU, above"),
    ("Figure 4, predicted against measured execution", "not drawn; the column R² is what the paper "
     "reads from it (above 0.97)"),
    ("100,000 samples", "30,000 (1080 Ti) and 20,000 (P1000, P5000) layers of a kind are "
     "published"),
)  # fmt: skip
"""What of the paper cannot be had, and why."""


@dataclass(frozen=True)
class Training:
    """One training of Figure 2.

    Attributes
    ----------
    method : str
    box_cox : bool
    mape, rmse_ms : float
        Of the test rows, at the best epoch.
    curve : list of float
        MAPE of the validation rows after each epoch.
    """

    method: str
    box_cox: bool
    mape: float
    rmse_ms: float
    curve: list[float]

    @property
    def name(self) -> str:
        return f"{self.method} {'with' if self.box_cox else 'without'} Box-Cox"


class _WithoutBoxCox:
    """A method of the paper whose sizes are only z-scored."""

    def _first_transforms(self, *_rows: Array | Columns) -> tuple[BoxCox | ZScore, ...]:
        return ()


class PlainResPerfNet(_WithoutBoxCox, ResPerfNet):
    """ResPerfNet without Box-Cox."""


class PlainPerfNet(_WithoutBoxCox, PerfNet):
    """PerfNet without Box-Cox."""


TRAINED: Mapping[tuple[str, bool], Callable[..., Any]] = {
    ("resperfnet", True): ResPerfNet,
    ("resperfnet", False): PlainResPerfNet,
    ("perfnet", True): PerfNet,
    ("perfnet", False): PlainPerfNet,
}


def trained(dataset: Path, method: str, box_cox: bool, seed: int, epochs: int) -> Training:
    """Train on the convolutions of a dataset, and judge the best epoch on its test rows."""
    table = read_table(dataset)["conv"]
    rows = layer_rows(table, info=read_info(dataset), many=False)
    trial = own_split(rows.timed(rows.layer_quantity))
    curve: list[float] = []

    def progress(epoch: int, _epochs: int, error: float) -> None:
        if epoch == 1:  # Also after a start that predicted 0 only.
            curve.clear()
        curve.append(error)

    predictor = fit_rows(
        TRAINED[method, box_cox]("conv", epochs=epochs), trial.train, trial.validation,
        rows.layer_quantity, seed=seed, progress=progress,
    )  # fmt: skip
    measured_ms = trial.test.times_ms[rows.layer_quantity]
    found = errors(measured_ms, values_of(predictor, trial.test.examples(rows.layer_quantity)))
    return Training(method, box_cox, found.mape, found.rmse_ms, curve)


def trainings(
    dataset: Path, folder: Path, seed: int, epochs: int, *, write: bool
) -> Iterator[Training]:
    """Yield the trainings of Figure 2; those that are done already are read."""
    for method, box_cox in TRAINED:
        path = folder / f"{dataset.stem}-{method}-{'with' if box_cox else 'without'}-{epochs}.json"
        if not path.exists():
            if write:
                continue
            done = trained(dataset, method, box_cox, seed, epochs)
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, (json.dumps(vars(done)) + "\n").encode())
            print(f"{dataset.stem}: {done.name}: {done.mape:.2%}", flush=True)
        yield Training(**json.loads(path.read_text()))


def figure_2(found: Sequence[Training]) -> str:
    """Show test errors, and validation errors by epoch."""
    epochs = [each for each in EPOCHS_SHOWN if each <= max(len(t.curve) for t in found)]
    rows = [
        [
            each.name, percent(each.mape), f"{each.rmse_ms:.3f}",
            *(percent(min(each.curve[:epoch])) for epoch in epochs),
        ]
        for each in found
    ]  # fmt: skip
    return markdown_table(("method", "MAPE", "RMSE ms", *map(str, epochs)), rows)


def table_1(results: Mapping[Unit, Compared], curves: Mapping[str, Sequence[Training]]) -> str:
    """Show the paper's methods on convolutions: its figures, and ours on published rows.

    The trainings of Figure 2 with Box-Cox are those of the methods themselves.
    """

    def cell(dataset: str, method: str) -> str:
        result = results.get(Unit(dataset, "conv", method, None))
        if result is not None:
            return percent(result.errors.mape)
        same = [
            each.mape
            for each in curves.get(dataset, ())
            if (each.method, each.box_cox) == (method, True)
        ]
        return percent(same[0]) if same else "not run"

    rows = [
        [
            method,
            f"{TABLE_1[method]:.2f}%" if method in TABLE_1 else "",
            cell("justus-1080ti", method),
            cell("perfnet-1080ti", method),
            f"{TABLE_1_TENSORRT[method]:.2f}%" if method in TABLE_1_TENSORRT else "",
        ]
        for method in METHODS
    ]
    return markdown_table(
        ("method", "paper: execution", "Justus et al.: execution", "PerfNet: whole call",
         "paper: TensorRT, execution"),
        rows,
    )  # fmt: skip


def phases_table(title: str, results: Mapping[Unit, Compared]) -> str:
    """Show one of the paper's Tables 5 to 9, and ours on the published rows of that card."""
    rows = []
    for kind, phases in zip(KINDS, _TABLES[title], strict=True):
        rows += [
            [f"{kind}, {phase.removesuffix('_ms')}", "paper", *_three(*figures), ""]
            for phase, figures in zip(PHASES, phases, strict=True)
        ]
        for dataset in BESIDE.get(title, ()):
            for method in ("resperfnet", OURS):
                result = results.get(Unit(dataset, kind, method, None))
                if result is not None:
                    rows.append([f"{kind}, {WHAT[result.phase]} ({dataset})", *_errors(result)])
    return markdown_table(("layer", "method", "MAPE", "RMSE ms", "MAE ms", "R²"), rows)


def _three(mape_percent: float, rmse_ms: float, mae_ms: float) -> list[str]:
    return [f"{mape_percent:.4g}%", f"{rmse_ms:g}", f"{mae_ms:g}"]


def _errors(result: Compared) -> list[str]:
    found = result.errors
    return [
        result.method, percent(found.mape), f"{found.rmse_ms:.3g}", f"{found.mae_ms:.3g}",
        f"{result.r2:.4f}",
    ]  # fmt: skip


def campaign_table(dataset: Path, seed: int) -> str:
    """Show the paper's kinds and phases as measured on a machine of our own."""
    settings = ComparisonSettings(
        ("resperfnet", "perfnet", OURS), kinds=KINDS, phases=PHASES, seed=seed
    )
    found = compare(dataset, settings)
    rows = [
        [f"{each.kind}, {each.phase.removesuffix('_ms')}", *_errors(each), str(each.rows_trained),
         percent(each.noise_floor)]
        for each in found.rows
    ]  # fmt: skip
    table = markdown_table(
        ("layer", "method", "MAPE", "RMSE ms", "MAE ms", "R²", "rows trained", "noise floor"), rows
    )
    return "\n\n".join([table, *(f"Note: {note}." for note in found.notes)])


def networks_table(path: Path) -> str:
    """Show whole networks, measured and predicted by each method's bundle."""
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text())
    methods = {Path(bundle).name: rows for bundle, rows in found.items()}
    rows = [
        [
            f"{row['name']}, batch {row['batch']}",
            f"{row['measured_ms']:.4g}",
            *(
                f"{each[place]['predicted_ms'] / row['measured_ms'] - 1:+.1%}"
                for each in methods.values()
            ),
        ]
        for place, row in enumerate(next(iter(methods.values())))
    ]
    means = [
        f"{mean(abs(row['predicted_ms'] / row['measured_ms'] - 1) for row in each):.1%}"
        for each in methods.values()
    ]
    return markdown_table(
        ("network", "measured ms", *methods), [*rows, ["**mean absolute error**", "", *means]]
    )


def report(
    results: Mapping[Unit, Compared],
    origins: Mapping[Unit, Origin],
    curves: Mapping[str, Sequence[Training]],
    campaigns: Mapping[str, Path],
    networks: Mapping[str, Path],
    seed: int,
) -> str:
    """Write the page."""
    machine = this_platform("cpu")
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    parts = [
        "# The paper's tables, and ours",
        "ResPerfNet (Wang et al., 2020) beside resperf, row by row. Written by `python "
        f"tools/report_paper.py` on {datetime.now(UTC):%Y-%m-%d}, seed {seed}, at commit "
        f"{source_commit()}; {machine.machine}; {versions}.",
        "The authors' own samples are not the published ones, so that no two figures of a row were "
        "judged on the same layers. *Justus et al.*: forward passes in TensorFlow 1 on a 1080 Ti, "
        "input on the GPU, which is the paper's execution and one session call. *PerfNet*: whole "
        "calls in TensorFlow 1.13 that the authors published, copies included. Layers are split by "
        "key: 80% to train, 10% to choose the best epoch, 10% to judge (the paper: 80 and 20%).",
        "## Table 1: methods on convolutions, GTX 1080 Ti",
        table_1(results, curves),
        "## Box-Cox and epochs (Figure 2)",
        "MAPE and RMSE of the test rows at the best epoch, then the lowest MAPE of the validation "
        "rows after so many epochs. The paper: 11.75% with Box-Cox, about 2 points more without, "
        "after 200 epochs. The trainings are others than those of Table 1: equal methods differ "
        "where they were fitted at another commit.",
    ]
    for name, found in curves.items():
        if found:
            parts += [f"{name}, convolutions:", figure_2(found)]
    parts += [
        "## Tables 2 and 5 to 9: kinds and phases",
        "Table 2 is the execution of Tables 5 and 9.",
    ]
    for title in _TABLES:
        parts += [f"### {title}", phases_table(title, results)]
    parts.append("### At which commits")
    for name in PUBLIC:
        own = {unit: origin for unit, origin in origins.items() if unit.dataset == name}
        if own:
            parts += [f"{name}:", origins_text(own)]
    parts.append("## The same on a machine of our own, phases apart")
    if campaigns:
        parts.append(SMALL_CAMPAIGN)
    for framework, dataset in campaigns.items():
        info = read_info(dataset)
        parts += [
            f"### {NETWORKS.get(framework, framework)} on {info.platform.machine}",
            campaign_table(dataset, seed),
        ]
    if not campaigns:
        parts.append("Not run yet.")
    parts += [
        "## LeNet, AlexNet and VGG16 (Figure 3)",
        "The paper's means over all batch sizes, GTX 1080 Ti: ResPerfNet 8.4%, PerfNet 24.04% "
        "(TensorFlow); ResPerfNet 17% (TensorRT). Each method predicts all layers and phases; no "
        "layer of the three networks was measured or trained on.",
    ]
    for framework, path in networks.items():
        parts += [f"### {NETWORKS.get(framework, framework)}", networks_table(path)]
    if not networks:
        parts.append("Not run yet.")
    parts += [
        "## What cannot be had",
        markdown_table(("of the paper", "why"), [list(each) for each in ABSENT]),
    ]
    return "\n\n".join(parts) + "\n"


def pairs(words: Sequence[str]) -> dict[str, Path]:
    """Parse FRAMEWORK=FILE."""
    return {word.partition("=")[0]: Path(word.partition("=")[2]) for word in words}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=public_data())
    parser.add_argument("--accuracy", type=Path, default=ROOT / "build" / "accuracy-public")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "paper.md")
    parser.add_argument("--campaign", nargs="+", default=[], metavar="FRAMEWORK=FILE.h5")
    parser.add_argument("--networks", nargs="+", default=[], metavar="FRAMEWORK=FILE.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=200, help="of Figure 2")
    parser.add_argument("--only", action="append", metavar="DATASET", help="to train on")
    parser.add_argument(
        "--missing",
        action="store_true",
        help="fit what was never fitted; keep figures of code that has changed since",
    )
    parser.add_argument("--write", action="store_true", help="write the page, train nothing")
    given = parser.parse_args(words)
    given.accuracy.mkdir(parents=True, exist_ok=True)
    store = Store(given.accuracy, given.seed)
    prepare(given.data, given.accuracy, list(PUBLIC), importing=not given.write)
    units = [
        Unit(dataset, kind, method, None)
        for dataset, kinds in PUBLIC.items()
        for kind in kinds
        # The 1080 Ti shows all methods; the other cards have a table of ResPerfNet only.
        for method in (METHODS if "1080ti" in dataset else ("resperfnet", OURS))
    ]
    if not given.write:
        collect(
            [
                unit
                for unit in units
                if (not given.only or unit.dataset in given.only)
                and not (given.missing and store.origin(unit))
            ],
            store,
        )
    origins = {unit: origin for unit in units if (origin := store.origin(unit)) is not None}
    results = {unit: store.load(unit) for unit in origins}
    curves = {
        name: list(
            trainings(
                given.accuracy / f"{name}.h5", given.accuracy / "figure-2", given.seed,
                given.epochs, write=given.write or bool(given.only and name not in given.only),
            )
        )
        for name in ("justus-1080ti", "perfnet-1080ti")
    }  # fmt: skip
    campaigns, networks = pairs(given.campaign), pairs(given.networks)
    page = report(results, origins, curves, campaigns, networks, given.seed)
    given.output.write_text(page, encoding="utf-8")
    print(f"{given.output}: {len(results)} of {len(units)} fits")


if __name__ == "__main__":
    main()
