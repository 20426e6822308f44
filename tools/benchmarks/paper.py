"""The tables and figures of the ResPerfNet paper beside ours: writes docs/tables/paper.md.

    python tools/benchmarks/published.py                # its fits are used here
    python tools/benchmarks/paper.py                    # hours; started again, it goes on
    python tools/benchmarks/paper.py --only perfnet-p1000
    python tools/benchmarks/paper.py --write            # what there is

What was measured on a machine of our own is added where it is given, for each framework a campaign
(`resperf bench`) and what `tools/benchmarks/judge.py --json` wrote for bundles in folders called
like their methods (`resperf train CAMPAIGN.h5 --method resperfnet -o onnxruntime/resperfnet`):

    python tools/benchmarks/paper.py --write \\
        --campaign onnxruntime=ort.h5 --networks onnxruntime=ort-networks.json

Figures of the paper are from ResPerfNet's Tables 1, 2 and 5 to 9, and section 6.2 (paper.toml).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pages
from markdown_tables import markdown_table, methods_markdown, percent
from published import Store, Unit, collect, compared, import_layers, platform_line

from resperf.dataset import read_info
from resperf.features import Array, Columns
from resperf.features.transforms import BoxCox, ZScore
from resperf.predictors import DEFAULT_METHOD, register
from resperf.predictors.resperfnet import PerfNet, ResPerfNet
from resperf.quantities import PHASES
from resperf.report.engine_comparison import ComparisonRow
from resperf.report.tables import ms_cell, percent_cell
from resperf.training import Compared, ComparisonSettings, compare

PAPER: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("paper.toml").read_text(encoding="utf-8")
)
OURS = DEFAULT_METHOD
METHODS = ("polynomial", "svr", "xgboost", "perfnet", "resperfnet", OURS)
KINDS = ("conv", "pool", "dense")
EPOCHS_SHOWN = (1, 5, 10, 20, 50, 100, 150, 200)
ON_1080TI = ("justus-1080ti", "perfnet-1080ti")

ABSENT = (
    ("Table 1, 2 and 9, TensorRT", "no TensorRT measurement of single layers is published; "
     "`resperf bench gpu-overnight --framework tensorrt` makes one on a GPU"),
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
    ("100,000 samples", "30,000 (1080 Ti) and 20,000 (P1000, P5000) layers of a kind are "
     "published"),
)  # fmt: skip
"""What of the paper cannot be had, and why."""


class _WithoutBoxCox:
    """A method of the paper whose sizes are only z-scored."""

    def _first_transforms(self, *_rows: Array | Columns) -> tuple[BoxCox | ZScore, ...]:
        return ()


class PlainResPerfNet(_WithoutBoxCox, ResPerfNet):
    """ResPerfNet without Box-Cox."""


class PlainPerfNet(_WithoutBoxCox, PerfNet):
    """PerfNet without Box-Cox."""


TRAINED = {
    "resperfnet with Box-Cox": "resperfnet",
    "resperfnet without Box-Cox": "resperfnet-plain",
    "perfnet with Box-Cox": "perfnet",
    "perfnet without Box-Cox": "perfnet-plain",
}
"""The trainings of Figure 2."""


def trained(dataset: Path, method: str, seed: int) -> dict[str, Any]:
    """Train on the convolutions of a dataset; return errors, and MAPE after each epoch."""
    curve: list[float] = []

    def progress(_kind: str, _phase: str, epoch: int, _epochs: int, error: float) -> None:
        if epoch == 1:  # Also after a start that predicted 0 only.
            curve.clear()
        curve.append(error)

    settings = ComparisonSettings((method,), kinds=("conv",), seed=seed)
    (result,) = compare(dataset, settings, progress=progress).rows
    return {**result.to_json(), "curve": curve}


def figure_2(work: Path, dataset: str, seed: int, make: bool) -> str:
    """Show test errors, and validation errors by epoch, of the trainings that there are."""
    rows = []
    for name, method in TRAINED.items():
        path = work / "figure-2" / f"{dataset}-{method}.json"
        if make:
            pages.load_or_make(path, partial(trained, work / f"{dataset}.h5", method, seed), seed)
        if record := pages.stored(path, seed):
            result = record["result"]
            lowest = (percent(min(result["curve"][:epoch])) for epoch in EPOCHS_SHOWN)
            rows.append([name, percent(result["mape"]), f"{result['rmse_ms']:.3f}", *lowest])
    return markdown_table(("method", "MAPE", "RMSE ms", *map(str, EPOCHS_SHOWN)), rows)


def of_paper(name: str, method: str) -> str:
    return f"{PAPER[name][method]:.2f}%" if method in PAPER[name] else ""


def table_1(results: Mapping[Unit, Compared]) -> str:
    """Show the paper's methods on convolutions: its figures, and ours on published rows."""

    def cell(dataset: str, method: str) -> str:
        result = results.get(Unit(dataset, "conv", method))
        return "not run" if result is None else percent(result.errors.mape)

    rows = [
        [method, of_paper("table_1", method), *(cell(dataset, method) for dataset in ON_1080TI),
         of_paper("table_1_tensorrt", method)]
        for method in METHODS
    ]  # fmt: skip
    return markdown_table(
        ("method", "paper: execution", "Justus et al.: execution", "PerfNet: whole call",
         "paper: TensorRT, execution"),
        rows,
    )  # fmt: skip


def phases_table(table: Mapping[str, Any], results: Mapping[Unit, Compared]) -> str:
    """Show one of the paper's Tables 5 to 9, and ours on the published rows of that card."""
    rows = []
    for kind in KINDS:
        rows += [
            [f"{kind}, {phase.removesuffix('_ms')}", "paper", f"{mape:.4g}%", f"{rmse:g}",
             f"{mae:g}", ""]
            for phase, (mape, rmse, mae) in zip(PHASES, table[kind], strict=True)
        ]  # fmt: skip
        for dataset in table["beside"]:
            for method in ("resperfnet", OURS):
                result = results.get(Unit(dataset, kind, method))
                if result is not None:
                    errors, phase = result.errors, result.phase.removesuffix("_ms")
                    rows.append([
                        f"{kind}, {phase} ({dataset})", method, percent(errors.mape),
                        f"{errors.rmse_ms:.3g}", f"{errors.mae_ms:.3g}", f"{result.r2:.4f}",
                    ])  # fmt: skip
    return markdown_table(("layer", "method", "MAPE", "RMSE ms", "MAE ms", "R²"), rows)


def campaign_table(dataset: Path, seed: int) -> str:
    """Show the paper's kinds and phases as measured on a machine of our own."""
    settings = ComparisonSettings(
        ("resperfnet", "perfnet", OURS), kinds=KINDS, phases=PHASES, seed=seed
    )
    comparison = compare(dataset, settings)
    notes = [f"Note: {note}." for note in comparison.notes]
    return "\n\n".join([methods_markdown(comparison.rows), *notes])


def networks_table(path: Path) -> str:
    """Show whole networks, measured and predicted by each method's bundle."""
    by_bundle: dict[str, list[dict[str, Any]]] = json.loads(path.read_text())
    methods = {
        Path(bundle).name: [ComparisonRow(**row) for row in rows]
        for bundle, rows in by_bundle.items()
    }
    rows = [
        [f"{runs[0].name}, batch {runs[0].batch}", ms_cell(runs[0].measured_ms),
         *(percent_cell(run.error, signed=True) for run in runs)]
        for runs in zip(*methods.values(), strict=True)
    ]  # fmt: skip
    means = [percent_cell(mean(abs(run.error) for run in runs)) for runs in methods.values()]
    return markdown_table(
        ("network", "measured ms", *methods), [*rows, ["**mean absolute error**", "", *means]]
    )


def main(words: Sequence[str] | None = None) -> None:
    register("resperfnet-plain", f"{__name__}:PlainResPerfNet")
    register("perfnet-plain", f"{__name__}:PlainPerfNet")
    parser = pages.page_parser(__doc__, "paper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--campaign", nargs="+", default=[], metavar="FRAMEWORK=FILE.h5")
    parser.add_argument("--networks", nargs="+", default=[], metavar="FRAMEWORK=FILE.json")
    parser.add_argument("--only", nargs="+", choices=PAPER["public"], help="to train on")
    parser.set_defaults(work=pages.ROOT / "build" / "published")
    given = parser.parse_args(words)
    store = Store(given.work, given.seed)
    units = [
        Unit(dataset, kind, method)
        for dataset, kinds in PAPER["public"].items()
        for kind in kinds
        # The 1080 Ti shows all methods; the other cards have a table of ResPerfNet only.
        for method in (METHODS if "1080ti" in dataset else ("resperfnet", OURS))
    ]
    if not given.write:
        for name in given.only or PAPER["public"]:
            import_layers(name, given.work)
        collect([u for u in units if not given.only or u.dataset in given.only], store)
    loaded = {unit: record for unit in units if (record := store.load(unit))}
    results = {unit: compared(record) for unit, record in loaded.items()}
    make = not given.write and not given.only
    parts = [
        f"ResPerfNet (Wang et al., 2020) beside resperf, row by row. {platform_line(given.seed)}",
        "The authors' own samples are not the published ones, so that no two figures of a row were "
        "judged on the same layers. *Justus et al.*: forward passes in TensorFlow 1 on a 1080 Ti, "
        "input on the GPU, which is the paper's execution and one call. *PerfNet*: whole calls in "
        "TensorFlow 1.13 that the authors published, copies included. Layers are split by key: 80% "
        "to train, 10% to choose the best epoch, 10% to judge (the paper: 80 and 20%).",
        "## Table 1: methods on convolutions, GTX 1080 Ti",
        table_1(results),
        "## Box-Cox and epochs (Figure 2)",
        "MAPE and RMSE of the test rows at the best epoch, then the lowest MAPE of the validation "
        "rows after so many epochs. The paper: 11.75% with Box-Cox, about 2 points more without, "
        "after 200 epochs. The trainings are others than those of Table 1.",
        *(
            f"{name}, convolutions:\n\n{figure_2(given.work, name, given.seed, make)}"
            for name in ON_1080TI
        ),
        "## Tables 2 and 5 to 9: kinds and phases",
        "Table 2 is the execution of Tables 5 and 9.",
    ]
    for table in PAPER["tables"]:
        parts += [f"### {table['title']}", phases_table(table, results)]
    parts += ["### At which commits",
              pages.commits({str(unit): record for unit, record in loaded.items()}),
              "## The same on a machine of our own, phases apart"]  # fmt: skip
    for framework, _, file in (word.partition("=") for word in given.campaign):
        machine = read_info(Path(file)).platform.machine
        parts += [f"### {framework} on {machine}", campaign_table(Path(file), given.seed)]
    parts += [
        "## LeNet, AlexNet and VGG16 (Figure 3)",
        "The paper's means over all batch sizes, GTX 1080 Ti: ResPerfNet 8.4%, PerfNet 24.04% "
        "(TensorFlow); ResPerfNet 17% (TensorRT). Each method predicts all layers and phases; no "
        "layer of the three networks was measured or trained on.",
    ]
    for framework, _, file in (word.partition("=") for word in given.networks):
        parts += [f"### {framework}", networks_table(Path(file))]
    parts += ["## What cannot be had",
              markdown_table(("of the paper", "why"), [list(row) for row in ABSENT])]  # fmt: skip
    pages.write_page(given.output, "The paper's tables, and ours", parts)


if __name__ == "__main__":
    main()
