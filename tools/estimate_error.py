"""Compare times estimated from data sheets alone with measured ones, by card and kind of layer.

    resperf dataset import FOLDER --format neusight -o card.h5      # one per card
    python tools/estimate_error.py card.h5 ...

The estimate (`resperf.devices.estimated_ms`) learns nothing from these rows but its two factors and
its interval, which are the same for all cards and kinds. Rows near the shortest time of their card
and kind hold the host's dispatch rather than the device's time, and are left out: `--above`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from resperf.dataset import read_dataset
from resperf.devices import device_facts, estimated_layer_ms
from resperf.devices.estimate import INTERVAL
from resperf.errors import ResperfError
from resperf.layers import Layer
from resperf.measurement import Status
from resperf.quantities import EXECUTION
from resperf.report.tables import percent_cell, table

Pairs = npt.NDArray[np.float64]
QUANTILES = (0.05, 0.5, 0.95)


def measured_and_estimated(path: Path) -> dict[tuple[str, str], Pairs]:
    """Return (device, kind) -> measured and estimated times in ms, of shape (rows, 2)."""
    found = defaultdict(list)
    for row in read_dataset(path).measurements:
        if row.status is not Status.OK or not isinstance(row.subject, Layer):
            continue
        if row.setting.optimizer or EXECUTION not in row.samples:
            continue
        facts = device_facts(row.platform.device)
        if facts is None:
            raise ResperfError(f"{path}: the facts of {row.platform.device!r} are not known")
        times_ms = row.samples[EXECUTION].value, estimated_layer_ms(row.subject, facts).ms
        found[facts.device, row.subject.kind].append(times_ms)
    return {key: np.array(rows) for key, rows in found.items()}


def row_of(pairs: Pairs, above: float) -> list[str] | None:
    """Return the cells of one card and kind: rows, errors, quantiles of measured over estimated."""
    measured_ms, estimated_ms = pairs[pairs[:, 0] > above * pairs[:, 0].min()].T
    if not len(measured_ms):
        return None
    ratios = measured_ms / estimated_ms
    inside = (ratios >= INTERVAL[0]) & (ratios <= INTERVAL[1])
    error = np.mean(np.abs(estimated_ms / measured_ms - 1))
    quantiles = [f"{each:.2f}" for each in np.quantile(ratios, QUANTILES)]
    return [str(len(ratios)), percent_cell(error), *quantiles, percent_cell(inside.mean())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--above", type=float, default=4.0, help="times the shortest time")
    given = parser.parse_args()
    rows = []
    for path in given.datasets:
        for (device, kind), pairs in sorted(measured_and_estimated(path).items()):
            cells = row_of(pairs, given.above)
            if cells is not None:
                rows.append([device, kind, *cells])
    headings = ("device", "kind", "rows", "MAPE", *(f"{q:.0%}" for q in QUANTILES), "inside")
    print(table(headings, rows, text=("device", "kind")))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
