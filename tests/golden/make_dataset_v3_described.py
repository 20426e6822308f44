"""Write dataset-v3-described.h5: networks of which only names and descriptions are known.

Run once, when such networks were added to schema version 3.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from make_dataset_v3 import GRAPH, INFO, NETWORK

from resperf.dataset import (
    Dataset,
    ListedOperator,
    ListedTensor,
    NetworkDescription,
    description_digest,
    write_dataset,
)
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.quantities import Estimator

LINEAR = ListedOperator(
    "Linear",
    (ListedTensor((2, 8), "float16"), ListedTensor((4, 8), "float16", True)),
    (ListedTensor((2, 4), "float16"),),
    {"name": "head"},
    24,
    {"forward_ms": 0.25},
)
DESCRIPTION = NetworkDescription(
    "net-8", "net", "nets", sequence=8, batch=2, parameters=36, operators=(LINEAR,)
)
CONTENT = DESCRIPTION.to_bytes()
NAMED = NetworkRef("net-8", "", description_digest(CONTENT))
SOURCED = dataclasses.replace(
    INFO, quantities=(), source={"format": "neusight", "description": "d", "files": [],
                                 "left_out": {}, "marked": {"flagged throttled: r": 1}},
)  # fmt: skip


def _row(network: NetworkRef, batch: int, **changes: object) -> Measurement:
    best = Samples((1.5 * batch,), 25, 0, StopReason.BUDGET, estimator=Estimator.MEAN_OF_BEST_FIVE)
    row = Measurement(
        network, Status.OK, {"execution_ms": best},
        setting=dataclasses.replace(INFO.setting, batch=batch, options={"session": "train"}),
        platform=INFO.platform, started_at=math.nan, duration_s=math.nan, overhead_s=math.nan,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)  # type: ignore[arg-type]


def rows() -> list[Measurement]:
    """A network with a graph, and one without: steady, throttled, and without a time."""
    return [
        _row(NETWORK, 1),
        _row(NAMED, 1),
        _row(NAMED, 2, flags=("throttled",), detail="at 20% of the peak"),
        _row(NAMED, 4, status=Status.CRASHED, samples={}, detail="no step time"),
    ]


if __name__ == "__main__":
    write_dataset(
        Path(__file__).with_name("dataset-v3-described.h5"),
        Dataset(SOURCED, tuple(rows()), {NETWORK.digest: GRAPH}, {NAMED.description: CONTENT}),
    )
