"""Measurements survive the journal's JSON."""

from __future__ import annotations

import json
import math

from resperf.layers import Dense
from resperf.measurement import Measurement, PhaseSamples, Status, StopReason

LAYER = Dense(batch=1, features_in=2, features_out=3)


def test_a_measurement_survives_json() -> None:
    samples = PhaseSamples((1.0, 3.0, 2.0, 10.0), taken=9, warmups=2, stop_reason=StopReason.BUDGET)
    measurement = Measurement(
        layer=LAYER, status=Status.OK, phases={"execution": samples}, isolated_ms=2.5,
        started_at=12.0, flags=("busy",), repeat=1,
    )  # fmt: skip
    text = json.dumps(measurement.to_json(), allow_nan=False)
    again = Measurement.from_json(json.loads(text))
    assert again.phases == measurement.phases
    assert (again.layer, again.status, again.repeat) == (LAYER, Status.OK, 1)
    assert (again.flags, again.isolated_ms) == (("busy",), 2.5)
    assert math.isnan(again.session_ms)
    assert math.isnan(again.reference_ratio)
    assert again.phase_ms("execution") == 2.5


def test_a_failure_has_no_times() -> None:
    failed = Measurement(layer=LAYER, status=Status.CRASHED, detail="signal 11")
    assert math.isnan(failed.phase_ms("execution"))
    assert Measurement.from_json(failed.to_json()).detail == "signal 11"


def test_samples_say_how_many_copies_a_run_held_and_what_it_was_divided_by() -> None:
    samples = PhaseSamples((2.0,), 1, 1, StopReason.BUDGET, copies=4, divisor=4.0, offset=0.5)
    written = json.loads(json.dumps(samples.to_json()))
    assert PhaseSamples.from_json(written) == samples
    earlier = {k: v for k, v in written.items() if k not in ("copies", "divisor", "offset")}
    read = PhaseSamples.from_json(earlier)
    assert (read.copies, read.divisor, read.offset) == (None, 1.0, 0.0)
