"""Training steps and their memory as DNNPerf judges them (Gao et al. 2023, section IV): tables.

    resperf dataset merge datasets/dnnperf-hpo-cpu.h5 datasets/dnnperf-nas-cpu.h5 -o seen.h5
    resperf dataset merge seen.h5 datasets/dnnperf-unseen.h5 -o all.h5
    python tools/benchmarks/dnnperf.py seen.h5
    python tools/benchmarks/dnnperf.py all.h5 --unseen harder

Every figure is the mean of the seeds, which draw the rows and the first weights, by `resperf
evaluate FILE --methods A,B --leave-out FAMILY,... --seed S`. Results are kept, so that a start that
ended goes on; `--methods` and `--seeds` do some of them.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pages import load_or_make, page_parser, write_page

from resperf.dataset import read_networks
from resperf.predictors import VARIANTS, predictor_class
from resperf.quantities import PEAK_MEMORY, STEP
from resperf.report.markdown import markdown_table
from resperf.training import leave_out

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "dnnperf": ("alexnet_v2", "vgg", "overfeat", "resnet_v2", "gru"),
    "harder": (
        "mobilenet_v2", "mobilenet_v3", "efficientnet", "densenet", "convnext", "unet", "vit",
        "bert", "gpt2",
    ),
}  # fmt: skip
"""Lists of unseen families."""
OURS = ("step-costs", "memory-timeline", "operator-totals")
SHARES = (0.05, 0.1, 0.2, 0.5)
"""Of the rows to learn from, in the learning curve."""
PAPER: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("dnnperf.toml").read_text(encoding="utf-8")
)
"""Quantity -> method -> MRE in Tables V to VII, or rows -> MRE in Table IX."""


def results(args: Any, method: str, seed: int, share: float = 1.0) -> list[dict[str, Any]]:
    """Judge a method by a fit to a share of the rows; kept in a file."""
    counts = [round(share * args.learnt)] if share < 1 else []
    make = partial(
        leave_out, args.file, [method], unseen=FAMILIES[args.unseen], counts=counts, seed=seed
    )
    path = args.work / args.unseen / f"{method}-{seed}-{share:g}.json"
    if args.write and not path.exists():
        return []
    record = load_or_make(path, lambda: [row.to_json() for row in make()], args.digest)
    return list(record["result"])


def means(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    """Return rows, MRE, median, share within the interval, RMSE, and the MRE of groups."""
    values = [
        [row["rows"], 100 * row["mape"], 100 * row["median_ape"], 100 * row["in_interval"],
         row["rmse_ms"] / (1e6 if row["quantity"] == PEAK_MEMORY else 1.0),
         *(100 * group_error(row, name) for name in columns)]
        for row in rows
    ]  # fmt: skip
    first, *others = np.mean(np.array(values, dtype=float), axis=0)
    return [f"{first:.0f}", *("" if np.isnan(value) else f"{value:.1f}" for value in others)]


def group_error(row: Mapping[str, Any], name: str) -> float:
    """Return the MRE of a part or a family."""
    groups = [*row["groups"], *row["families"]]
    return next((group["mape"] for group in groups if group["name"] == name), np.nan)


def table(args: Any, quantity: str, methods: Sequence[str], share: float = 1.0) -> str:
    """Write the errors of methods on one quantity, by optimizer where there are several."""
    columns = ["seen families", "unseen families", *FAMILIES[args.unseen]]
    lines = []
    for method in methods:
        by_way: dict[str, list[dict[str, Any]]] = {}
        for seed in args.seeds:
            for row in results(args, method, seed, share):
                if row["quantity"] == quantity:
                    by_way.setdefault(row["setting"].rpartition(", ")[2], []).append(row)
        for optimizer, rows in by_way.items():
            paper = PAPER[quantity].get(method, "") if args.unseen == "dnnperf" else ""
            learnt = str(round(np.mean([row["learnt"] for row in rows])))
            cells = [method, optimizer, str(len(rows)), learnt, *means(rows, columns), str(paper)]
            lines.append(cells)
    unit = "MB" if quantity == PEAK_MEMORY else "ms"
    headings = ("method", "optimizer", "seeds", "learnt", "rows", "MRE %", "median %", "inside %",
                f"RMSE {unit}", *columns, "paper: MRE %")  # fmt: skip
    return markdown_table(headings, lines) if lines else ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = page_parser(__doc__, "dnnperf")
    parser.add_argument("file", type=Path)
    parser.add_argument("--unseen", choices=FAMILIES, default="dnnperf")
    parser.add_argument("--methods", nargs="+", default=[*OURS, "dnnperf", *VARIANTS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args(arguments)
    args.digest = hashlib.sha256(args.file.read_bytes()).hexdigest()
    rows = len(read_networks(args.file).measurements)
    args.learnt = max(row["learnt"] for row in results(args, OURS[0], args.seeds[0]))
    parts = [f"{rows} rows of {args.file.name}; MRE is the mean relative error."]
    for quantity in (STEP, PEAK_MEMORY):
        own = [m for m in args.methods if quantity in predictor_class(m).quantities]
        parts += [f"## {quantity}", table(args, quantity, own)]
        if "dnnperf" in own and args.unseen == "dnnperf":
            parts.append(f"Learning curve; the paper, by rows: {PAPER[quantity]['rows']}")
            parts += [table(args, quantity, ["dnnperf"], share) for share in SHARES]
    output = args.output.with_stem(f"{args.output.stem}-{args.unseen}")
    write_page(output, "DNNPerf's tables, and ours", parts)


if __name__ == "__main__":
    sys.exit(main())
