"""Predictions as a trace that Perfetto and Chrome open: layers in the order they run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from resperf.prediction import Prediction
from resperf.prediction.result import EXECUTING, OUTER_PHASES
from resperf.quantities import PHASES, quantity
from resperf.units import US_PER_MS, json_values

_TRACKS = (("thread_name", 0, "phases"), ("thread_name", 1, "layers, in the order they run"))


def trace_text(predictions: Sequence[Prediction]) -> str:
    """Write predictions in the Trace Event Format, each as a process with two tracks.

    The phases are above. Below, all that an execution consists of stands one behind the other: the
    layers, then what they do not contain, such as the overhead between them; of a network that was
    predicted as a whole, its classes of operators. Layers without a time are left out.

    Parameters
    ----------
    predictions : sequence of Prediction

    Returns
    -------
    str
        JSON; times are in microseconds. Arguments of an event are its keys of ``--json``.
    """
    events: list[dict[str, Any]] = []
    for pid, prediction in enumerate(predictions):
        for what, track, name in (("process_name", 0, str(prediction)), *_TRACKS):
            named = {"name": what, "args": {"name": name}}
            events.append({"ph": "M", "pid": pid, "tid": track, **named})
        begins_us = [0.0, 0.0]
        for track, name, category, time_ms, arguments in _parts(prediction):
            begins_us[1] = begins_us[track]  # a phase begins where the last one ended
            event = {"ph": "X", "pid": pid, "tid": track, "name": name, "cat": category}
            times = {"ts": begins_us[track], "dur": time_ms * US_PER_MS}
            events.append({**event, **times, "args": json_values(arguments)})
            begins_us[track] += time_ms * US_PER_MS
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, allow_nan=False)


def _parts(prediction: Prediction) -> Iterator[tuple[int, str, str, float, dict[str, Any]]]:
    """Yield track, name, category, time and arguments of each phase, then of what is inside."""
    phases = {quantity(name).stem: getattr(prediction.phases, name) for name in PHASES}
    if math.isnan(prediction.total_ms):
        phases = {quantity(prediction.asked.name).stem: prediction.time_ms}
    for phase, phase_ms in phases.items():
        if math.isnan(phase_ms):
            continue
        yield 0, phase, "phase", phase_ms, {}
        layers = [layer for layer in prediction.layers if layer.phase == phase]
        inside = [(one.name, one.kind, one.execution_ms, one.to_json()) for one in layers]
        if phase == EXECUTING or len(phases) == 1:
            apart = {*OUTER_PHASES, *(layer.kind for layer in prediction.layers)}
            rows = [row for row in prediction.by_kind() if row.kind not in apart]
            inside += [(row.kind, "cost", row.ms, row.to_json()) for row in rows]
        yield from ((1, *part) for part in inside if part[2] > 0)
