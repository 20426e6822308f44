"""Predictions as a trace that Perfetto and Chrome open: layers in the order they run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from resperf.prediction import Prediction
from resperf.prediction.result import COSTS, EXECUTING, OUTER_PHASES, WAITING
from resperf.quantities import PHASES, quantity
from resperf.units import US_PER_MS, json_values

_PHASES, _LAYERS = 0, 1
"""Tracks of a prediction."""


def trace_text(predictions: Sequence[Prediction]) -> str:
    """Write predictions in the Trace Event Format, each as a process with two tracks.

    The phases are above. Below, all that an execution consists of stands one behind the other: the
    layers, then what they do not contain, such as the overhead between them; of a network that was
    predicted as a whole, its classes of operators.
    Layers without a time are left out.

    Parameters
    ----------
    predictions : sequence of Prediction

    Returns
    -------
    str
        JSON; times are in microseconds. Arguments of an event are its keys of ``--json``.
    """
    events: list[dict[str, Any]] = []
    for process, prediction in enumerate(predictions):
        names = {"process_name": (0, str(prediction)), "thread_name": (_PHASES, "phases")}
        events += [_name(process, what, *given) for what, given in names.items()]
        events.append(_name(process, "thread_name", _LAYERS, "layers, in the order they run"))
        events += _events(process, prediction)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, allow_nan=False)


def _name(process: int, what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": track, "name": what, "args": {"name": name}}


def _events(process: int, prediction: Prediction) -> Iterator[dict[str, Any]]:
    """Yield the events of one prediction; its phases follow each other without gaps."""
    at_ms = 0.0
    phases = {name: getattr(prediction.phases, name) for name in PHASES}
    if math.isnan(prediction.total_ms):
        phases = {prediction.asked.name: prediction.time_ms}
    for name, phase_ms in phases.items():
        if math.isnan(phase_ms):
            continue
        stem = quantity(name).stem
        yield _event(process, _PHASES, stem, "phase", at_ms, phase_ms, {})
        inside_ms = at_ms
        is_rest = stem == EXECUTING or len(phases) == 1
        for label, category, part_ms, arguments in _parts(prediction, stem, is_rest):
            if part_ms > 0:
                yield _event(process, _LAYERS, label, category, inside_ms, part_ms, arguments)
                inside_ms += part_ms
        at_ms += phase_ms


def _parts(
    prediction: Prediction, phase: str, is_rest: bool
) -> Iterator[tuple[str, str, float, dict[str, Any]]]:
    """Yield name, category, time and arguments of what a phase consists of."""
    for layer in prediction.layers:
        if layer.phase == phase:
            yield layer.name, layer.kind, layer.execution_ms, layer.to_json()
    if not is_rest:
        return
    costs, outer = {*COSTS.values(), WAITING, "remainder"}, {*OUTER_PHASES}
    for row in prediction.by_kind():
        if row.kind in costs or not (prediction.layers or row.kind in outer):
            yield row.kind, "cost" if row.kind in costs else "class", row.ms, row.to_json()


def _event(
    process: int, track: int, name: str, category: str, at_ms: float, time_ms: float,
    arguments: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    return {
        "ph": "X", "pid": process, "tid": track, "name": name, "cat": category,
        "ts": at_ms * US_PER_MS, "dur": time_ms * US_PER_MS, "args": json_values(arguments),
    }  # fmt: skip
