"""Text on a network over batch sizes and numbers of devices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from resperf.report.tables import ms_cell, rate_cell, table
from resperf.units import format_duration

if TYPE_CHECKING:
    from resperf.prediction.scaling import Scaling


def scaling_text(scaling: Scaling) -> str:
    """Show times and throughput, and from where on one more device adds little."""
    rows = [
        [
            str(point.batch), str(point.devices), str(point.batch * point.devices),
            ms_cell(point.time_ms), f"{ms_cell(point.low_ms)} to {ms_cell(point.high_ms)}",
            rate_cell(point.samples_per_s),
            *(
                "" if math.isnan(values[0])
                else "{} ({} to {})".format(*map(format_duration, values))
                for values in (
                    (point.epoch_s, point.low_epoch_s, point.high_epoch_s),
                    (point.training_s, point.low_training_s, point.high_training_s),
                )
            ),
            "extrapolated" if point.extrapolated else "",
        ]
        for points in scaling.series.values()
        for point in points
    ]  # fmt: skip
    headings = (
        "batch per device", "devices", "batch", scaling.quantity.replace("_", " "), "90% interval",
        "samples/s", "epoch", "training", "",
    )  # fmt: skip
    kind = "devices share each batch" if scaling.strong else "each device has a batch of its own"
    title = f"{scaling.network} on {scaling.device}, {scaling.framework}, {scaling.method}: {kind}"
    lines = [title, table(headings, rows, text=("90% interval", ""))]
    for batch in scaling.series:
        turning = scaling.turning_point(batch)
        if turning is not None:
            lines.append(
                f"batch {batch}: beyond {turning} devices, one more adds less than "
                f"{scaling.least_gain:.0%} of the throughput of one"
            )
    if scaling.composed_of:
        lines.append(f"composed, not measured together: {'; '.join(scaling.composed_of)}")
    why = {point.extrapolated for points in scaling.series.values() for point in points}
    lines += [f"extrapolated: {reason}" for reason in sorted(filter(None, why))]
    return "\n".join([*lines, *(f"note: {note}" for note in scaling.notes)])
