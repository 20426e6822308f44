"""`resperf evaluate`: a bundle, or methods, on rows that they were not trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from click.core import ParameterSource

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, WHAT, Command, option
from resperf.quantities import QUANTITIES, Level
from resperf.report.methods import PLACE, left_out_text, methods_text
from resperf.report.tables import UNKNOWN, ms_cell, percent_cell, setting_columns, table

if TYPE_CHECKING:
    from resperf.bundle import Bundle
    from resperf.training import Compared, ComparisonSettings, Evaluated, Evaluation
    from resperf.training.evaluate import Part

_ONLY_WITH_BUNDLE = ("split",)
_ONLY_WITH_METHODS = ("test", "rows", "folds", "seed", "by")
_GROUPS = ("network", "family")
_EXAMPLES = """\b
Examples:
  resperf evaluate datasets/demo.h5 --bundle cpu-onnxruntime
  resperf evaluate datasets/demo.h5 --device cpu
  resperf evaluate datasets/demo.h5 --methods baseline,boosted --rows 500 1000
  resperf evaluate runs.h5 --methods convmeter,operator-totals --leave-out network
  resperf evaluate runs.h5 --methods all --leave-out vgg,alexnet
"""


def _names(_ctx: click.Context, _param: click.Parameter, words: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (words or "").split(",") if word.strip())


@click.command(cls=Command, epilog=_EXAMPLES)
@options.DATASET
@options.BUNDLE
@options.DEVICE
@options.FRAMEWORK
@option(
    "--split",
    section=WHAT,
    type=click.Choice(["test", "all"]),
    default="test",
    show_default=True,
    help="Rows for a bundle. test: the test split. all: every row that it was not trained on.",
)
@option(
    "--methods",
    section=COMMON,
    callback=_names,
    metavar="A,B,...",
    help="Train these methods and evaluate them on the same rows; all: every method.",
)
@option(
    "--test",
    section=WHAT,
    type=options.PATH,
    metavar="OTHER.h5",
    help="Evaluate on all rows of this file; all rows of FILE.h5 are then training data.",
)
@options.numbers(
    "--rows",
    section=WHAT,
    help="Learning curve: train on that many rows of each kind, or of seen families, --rows 500 "
    "1000 2000.",
)
@option(
    "--folds",
    section=WHAT,
    type=click.IntRange(min=2),
    metavar="K",
    help="Cross-validate in K folds over the rows outside the test split, which is not read.",
)
@option(
    "--leave-out",
    "by",
    section=WHAT,
    callback=_names,
    metavar="network|family|A,B,...",
    help="Judge --methods for whole networks: each network, or family of them, by a fit without "
    "it (with --folds K, K parts of them); or families A,B and a fifth of the other runs, by a fit "
    "to the rest.",
)
@options.SEED
@options.PAGE
@options.JSON
@click.pass_context
def command(
    ctx: click.Context,
    file: Path,
    bundle: str | None,
    device: str | None,
    framework: str | None,
    split: str,
    methods: tuple[str, ...],
    test: Path | None,
    rows: tuple[int, ...],
    folds: int | None,
    by: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Evaluate a bundle, or compare methods, on measured times of FILE.h5.

    Per kind and quantity: MAPE (mean of |predicted - measured| / measured), RMSE and MAE in ms, the
    share of rows within 10%, and the noise floor: the MAPE that a perfect predictor would score,
    known if layers were measured twice. In JSON, MAPE and shares are fractions: 0.05 is 5%.

    If FILE.h5 has rows of whole networks, a bundle's totals are compared with them, network by
    network.

    With --methods, all methods are trained on the same rows and evaluated on the same other rows:
    the test split of FILE.h5, or another file. This also shows the error by measured time, the
    seconds of a fit, and the microseconds per predicted layer. Rows trained include the tenth
    that only chooses the best epoch.
    """
    of_bundle = any(given is not None for given in (bundle, device, framework))
    if of_bundle == bool(methods):
        raise click.UsageError("give either --bundle B (or --device D) or --methods A,B", ctx)
    _refuse(ctx, _ONLY_WITH_METHODS if of_bundle else _ONLY_WITH_BUNDLE)
    if of_bundle:
        _evaluate(file, _judged(file, device, framework, bundle), cast("Part", split), as_json)
        return
    from resperf.predictors import methods_of
    from resperf.training import ComparisonSettings

    if by:
        of_families = by[0] not in _GROUPS
        _refuse(ctx, ("test",), "a comparison of methods for layers, without --leave-out")
        if of_families:
            _refuse(ctx, ("folds",), "--leave-out network or family")
        else:
            _refuse(ctx, ("rows",), "--leave-out FAMILY,... or methods for layers")
    if methods == ("all",):
        methods = methods_of(Level.NETWORK if by else Level.LAYER)
    if by:
        _leave_out(file, methods, by, rows, folds, seed, as_json)
    else:
        _compare(file, ComparisonSettings(methods, rows, folds, seed=seed), test, as_json)


def _refuse(ctx: click.Context, names: Sequence[str], needed: str = "") -> None:
    """Refuse options that would have no effect."""
    needed = needed or ("--methods" if names is _ONLY_WITH_METHODS else "--bundle")
    for param in ctx.command.params:
        given = ctx.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT
        if param.name in names and given:
            raise click.UsageError(f"{param.opts[0]} needs {needed}", ctx)


def _judged(file: Path, device: str | None, framework: str | None, bundle: str | None) -> Bundle:
    """Return the bundle that is evaluated; rows say which of its devices they are of."""
    from resperf.bundle import Bundle, is_bundle
    from resperf.dataset import read_info
    from resperf.prediction.choice import Query, choose, place_of

    folder = place_of(bundle, framework)
    if device is None and framework is None and folder and is_bundle(folder):
        return Bundle.load(folder)
    # A card's bundles differ in the precisions that they have.
    precision = None if bundle else read_info(file).setting.precision or None
    return choose(Query(device, framework, bundle, precision)).bundle.check()


def _evaluate(file: Path, bundle: Bundle, split: Part, as_json: bool) -> None:
    from resperf.prediction.sum_of_layers import SumOfLayers
    from resperf.training import evaluate

    evaluation = evaluate(file, bundle, split, SumOfLayers(bundle))
    of_networks = [
        f"{row.phase}, {row.method}:\n{_networks_table(row)}"
        for row in evaluation.rows
        if row.networks
    ]
    documents = [row.to_json() for row in evaluation.rows]
    options.show(as_json, documents, "\n\n".join([_table(evaluation), *of_networks]))
    options.show_notes(evaluation.notes)


def _compare(file: Path, settings: ComparisonSettings, test: Path | None, as_json: bool) -> None:
    from resperf.training import compare, progress_bar

    rows: list[Compared] = []
    try:
        with progress_bar() as progress:
            comparison = compare(
                file, settings, test=test, on_result=rows.append, progress=progress
            )
    finally:
        # Finished results may have taken hours: show them even after Ctrl-C.
        if rows:
            options.show(as_json, [row.to_json() for row in rows], methods_text(rows))
    options.show_notes(comparison.notes)


def _leave_out(
    file: Path,
    methods: tuple[str, ...],
    by: tuple[str, ...],
    rows: tuple[int, ...],
    folds: int | None,
    seed: int,
    as_json: bool,
) -> None:
    from resperf.training import leave_out

    notes: list[str] = []
    what = {"by": by[0]} if by[0] in _GROUPS else {"unseen": by, "counts": rows}
    results = leave_out(file, methods, **what, folds=folds, seed=seed, notes=notes)
    options.show(as_json, [result.to_json() for result in results], left_out_text(results))
    options.show_notes(list(dict.fromkeys(notes)))


def _table(evaluation: Evaluation) -> str:
    headings = (
        *PLACE, "rows", "MAPE", "median", "noise floor", "within 10%", "in 90% interval",
        "RMSE ms", "MAE ms", "out of range",
    )  # fmt: skip
    rows = [
        [
            row.kind, row.phase, row.method, str(row.errors.rows), percent_cell(row.errors.mape),
            percent_cell(row.errors.median_ape), percent_cell(row.noise_floor),
            percent_cell(row.errors.within_10),
            percent_cell(row.in_interval), ms_cell(row.errors.rmse_ms),
            ms_cell(row.errors.mae_ms), str(row.out_of_range),
        ]
        for row in evaluation.rows
    ]  # fmt: skip
    return table(headings, rows, text=PLACE)


def _networks_table(row: Evaluated) -> str:
    from resperf.report.network import quantity_cell

    unit = QUANTITIES[row.phase].unit
    settings = setting_columns([run.setting for run in row.networks])
    if len({run.device for run in row.networks}) > 1:
        settings = {"device": [run.device for run in row.networks], **settings}
    headings = ("network", *settings, "batch", "measured", "predicted", "error", "90% interval")
    rows = []
    for index, run in enumerate(row.networks):
        low, high = quantity_cell(run.low, unit), quantity_cell(run.high, unit)
        rows.append(
            [
                run.network,
                *(cells[index] for cells in settings.values()),
                UNKNOWN if run.batch is None else str(run.batch),
                quantity_cell(run.measured, unit),
                quantity_cell(run.predicted, unit),
                percent_cell(run.error, signed=True),
                UNKNOWN if math.isnan(run.low) else f"{low} to {high}",
            ]
        )
    return table(headings, rows, text=("network", *settings))
