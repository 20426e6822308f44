"""`resperf evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from resperf.cli._options import JSON

if TYPE_CHECKING:
    from resperf.training import Evaluation
    from resperf.training.evaluate import Part

_PATH = click.Path(path_type=Path)


@click.command(epilog="Example: resperf evaluate datasets/demo.h5 --bundle cpu-onnxruntime")
@click.argument("file", metavar="FILE.h5", type=_PATH)
@click.option(
    "--bundle", "bundle_path", required=True, type=_PATH, metavar="PATH", help="Folder of a bundle."
)
@click.option(
    "--split",
    type=click.Choice(["test", "all"]),
    default="test",
    show_default=True,
    help="test: rows that no training reads. all: every row that this bundle has not seen.",
)
@JSON
def command(file: Path, bundle_path: Path, split: str, as_json: bool) -> None:
    """Compare the predictions of a bundle with the measured times of FILE.h5.

    Per kind and phase: MAPE (mean of |predicted - measured| / measured), RMSE and MAE in ms, the
    share of rows within 10%, and the noise floor: the MAPE that a perfect predictor would score,
    known where layers were measured twice. In JSON, MAPE and shares are fractions: 0.05 is 5%.
    """
    from resperf.bundle import Bundle
    from resperf.training import evaluate

    evaluation = evaluate(file, Bundle.load(bundle_path), cast("Part", split))
    if as_json:
        from resperf.report.documents import json_text

        print(json_text([row.to_json() for row in evaluation.rows]))
    else:
        print(_table(evaluation))
    for note in evaluation.notes:
        print(f"note: {note}", file=sys.stderr)


def _table(evaluation: Evaluation) -> str:
    from resperf.report.tables import Column, ms_cell, percent_cell, table

    columns = (
        Column("kind"), Column("phase"), Column("method"), Column("rows", right=True),
        Column("MAPE", right=True), Column("noise floor", right=True),
        Column("within 10%", right=True), Column("RMSE ms", right=True),
        Column("MAE ms", right=True), Column("out of range", right=True),
    )  # fmt: skip
    rows = [
        [
            row.kind, row.phase, row.method, str(row.errors.rows), percent_cell(row.errors.mape),
            percent_cell(row.noise_floor), percent_cell(row.errors.within_10),
            ms_cell(row.errors.rmse_ms), ms_cell(row.errors.mae_ms), str(row.out_of_range),
        ]
        for row in evaluation.rows
    ]  # fmt: skip
    return table(columns, rows)
