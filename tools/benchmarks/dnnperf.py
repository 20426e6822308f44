"""Training steps and their memory as DNNPerf judges them (Gao et al. 2023, section IV): tables.

    resperf dataset merge datasets/dnnperf-hpo-cpu.h5 datasets/dnnperf-nas-cpu.h5 -o seen.h5
    python tools/benchmarks/dnnperf.py seen.h5 alexnet_v2 vgg overfeat resnet_v2 gru

Every figure is the mean of the seeds, which draw the rows and the first weights, by `resperf
evaluate FILE --methods METHOD --leave-out FAMILY,... --seed S`; `--rows` learns from fewer rows.
The paper's figures are those of its complete test set (Tables V and VIII) and by rows (IX).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markdown_tables import markdown_table
from pages import parser_of

from resperf.predictors import VARIANTS
from resperf.quantities import PEAK_MEMORY, STEP
from resperf.training import LeftOut, leave_out

HEADINGS = "method,quantity,setting,learnt,paper %,seeds,rows,MRE %,median %,inside %,RMSE"
METHODS = ("step-costs", "memory-timeline", "operator-totals", "dnnperf", *VARIANTS)
PAPER = tomllib.loads(Path(__file__).with_name("dnnperf.toml").read_text(encoding="utf-8"))
"""Quantity -> method, or number of rows -> MRE in percent."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("unseen", nargs="+", metavar="FAMILY")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", type=int, default=[], help="to learn from")
    args = parser.parse_args(arguments)
    columns = ["seen families", "unseen families", *args.unseen]
    for method in args.methods:
        judged: dict[tuple[str, ...], list[LeftOut]] = {}
        for seed in args.seeds:
            rows = leave_out(args.file, [method], unseen=args.unseen, counts=args.rows, seed=seed)
            for row in rows:
                if row.quantity in (STEP, PEAK_MEMORY):
                    learnt = str(row.learnt) if args.rows else "all"
                    judged.setdefault((row.quantity, row.setting, learnt), []).append(row)
        lines = [[method, *key, *means(rows, columns)] for key, rows in judged.items()]
        print(markdown_table([*HEADINGS.split(","), *columns], lines), flush=True)


def means(rows: Sequence[LeftOut], columns: Sequence[str]) -> list[str]:
    """Return the figures of fits that differ in their seed, as the headings name them."""
    values = []
    for row in rows:
        of_group = {group.name: group.mape for group in (*row.groups, *row.families)}
        own = [row.errors.mape, row.errors.median_ape, row.in_interval, row.errors.rmse_ms / 100]
        values.append([*own, *(of_group.get(name, np.nan) for name in columns)])
    first, *_ = rows
    counts = [str(PAPER[first.quantity].get(first.method, "")), len(rows), first.errors.rows]
    return [*map(str, counts), *(f"{100 * value:.1f}" for value in np.mean(values, axis=0))]


if __name__ == "__main__":
    sys.exit(main())
