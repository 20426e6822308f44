"""One network predicted and measured, layer by layer, with the unexplained remainder."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from resperf.prediction import LayerPrediction, Prediction
from resperf.report.comparison import ComparisonRow, comparison_table
from resperf.report.network import (
    incomplete_lines,
    layer_remarks,
    slowest_first,
    warnings_text,
)
from resperf.timing import rank_correlation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resperf.workflows.measure import MeasuredNetwork

SLOWEST, SEARCHED = 5, 7
"""How many of the slowest measured layers are looked up among how many of the slowest predicted."""


def side_by_side_text(
    prediction: Prediction, measured: MeasuredNetwork, *, every: bool = False
) -> str:
    """Show a prediction next to the measurement of the same network and batch.

    Parameters
    ----------
    prediction : Prediction
    measured : MeasuredNetwork
    every : bool
        Show all layers, not only the slowest ones.
    """
    rows = layer_comparison(prediction, measured)
    shown, title = slowest_first(rows, slower_ms, every)
    totals = comparison_table(total_comparison(prediction, measured), title="")
    parts = [
        f"{measured.subject.title}\n{totals}",
        f"layers, {title}\n" + comparison_table(shown, title="layer"),
        order_agreement(rows),
        warnings_text((*prediction.remarks.warnings, *measured.warnings)),
    ]
    return "\n\n".join(filter(None, parts))


def order_agreement(rows: Sequence[ComparisonRow]) -> str:
    """Say how well predicted and measured times agree in the order of layers.

    Spearman's rank correlation (ties have their mean rank), and how many of the slowest measured
    layers are among the slowest predicted. Empty if fewer than `SLOWEST` layers have both times.
    """
    timed = [row for row in rows if row.predicted_ms >= 0 and row.measured_ms >= 0]
    if len(timed) < SLOWEST:
        return ""
    predicted_ms, measured_ms = zip(
        *((row.predicted_ms, row.measured_ms) for row in timed), strict=True
    )
    agreeing = _slowest(measured_ms, SLOWEST) & _slowest(predicted_ms, SEARCHED)
    return (
        f"order of {len(timed)} layers: rank correlation "
        f"{rank_correlation(predicted_ms, measured_ms):.3f}; "
        f"{len(agreeing)} of the {SLOWEST} slowest are among the first {SEARCHED} predicted"
    )


def _slowest(times_ms: Sequence[float], count: int) -> set[int]:
    return set(sorted(range(len(times_ms)), key=lambda index: -times_ms[index])[:count])


def slower_ms(row: ComparisonRow) -> float:
    """Return the longer of both times; 0 if none is known."""
    return max(time_ms for time_ms in (row.predicted_ms, row.measured_ms, 0.0) if time_ms >= 0)


def layer_comparison(prediction: Prediction, measured: MeasuredNetwork) -> list[ComparisonRow]:
    """Return one row per layer that was predicted or measured, in execution order."""
    # An operator may be several layers of one key, such as a sum of four tensors.
    waiting: dict[tuple[str, str], deque[LayerPrediction]] = defaultdict(deque)
    for layer in measured.layers:
        waiting[layer.name, layer.key].append(layer)
    rows = []
    for layer in prediction.layers:
        same = waiting[layer.name, layer.key]
        measured_ms = same.popleft().execution_ms if same else math.nan
        rows.append(_row(layer, layer.execution_ms, measured_ms))
    rest = (layer for layers in waiting.values() for layer in layers)
    return rows + [_row(layer, math.nan, layer.execution_ms) for layer in rest]


def _row(layer: LayerPrediction, predicted_ms: float, measured_ms: float) -> ComparisonRow:
    remark = "; ".join(filter(None, layer_remarks(layer)))
    return ComparisonRow(f"{layer.name} ({layer.kind})", None, predicted_ms, measured_ms, remark)


def sum_of_layers_ms(prediction: Prediction) -> float:
    """Add up the predicted layers of the execution phase; NaN without layers."""
    if not prediction.layers:
        return math.nan
    return sum(layer.execution_ms for layer in prediction.layers if layer.phase == "execution")


def total_comparison(prediction: Prediction, measured: MeasuredNetwork) -> list[ComparisonRow]:
    """Return the total, the phases, and the parts of the execution phase.

    The remainder is the time of the whole network beyond its layers measured in isolation:
    overhead between layers, which is predicted, and operators that were not measured in isolation.
    """
    mine, theirs = prediction.phases, measured.phases
    remark = "; ".join(incomplete_lines(prediction, listed=False))
    alone = len(measured.skipped)
    rest = f"with {alone} operators not measured in isolation" if alone else ""
    return [
        ComparisonRow("total", None, prediction.total_ms, measured.total_ms, remark),
        ComparisonRow("  preprocess", None, mine.preprocess_ms, theirs.preprocess_ms),
        ComparisonRow("  execution", None, mine.execution_ms, theirs.execution_ms),
        ComparisonRow("    sum of layers", None, sum_of_layers_ms(prediction), measured.layers_ms),
        ComparisonRow("    per-run overhead", None, prediction.overheads.call_ms, measured.call_ms),
        ComparisonRow("    reshapes", None, prediction.overheads.reshapes_ms, measured.reshapes_ms),
        ComparisonRow(
            "    remainder", None, prediction.overheads.overhead_ms, measured.remainder_ms, rest
        ),
        ComparisonRow("  postprocess", None, mine.postprocess_ms, theirs.postprocess_ms),
    ]
