"""All monitors: the contract's defaults, and the table of those that differ."""

from __future__ import annotations

import json
import math
import time

import pytest

from resperf.backends.monitors import Monitor, Reading, load_monitor
from resperf.layers import Dense
from resperf.targets import Target, target, targets
from resperf.testing.synthetic import SESSION_MS, SyntheticBackend, closed_form_ms

LAYER = Dense(batch=1, features_in=4, features_out=4)


MEASURED = [row for row in targets() if row.backend]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.name)
def test_every_target_that_is_measured_has_a_monitor(row: Target) -> None:
    monitor = load_monitor(row)
    assert type(monitor) is not Monitor
    assert monitor.waits_for <= set(monitor.device_states)


def test_the_default_monitor_times_the_reference() -> None:
    assert Monitor.reference is not None
    device = SyntheticBackend(gflops=100.0, gb_per_s=10.0)
    with load_monitor(Target("abacus", "wood", lowering="")).start(device) as monitor:
        reading = monitor.before()
        assert reading is not None
        # By the backend's own sampler, not by the monitor's clock.
        execution_ms = closed_form_ms(Monitor.reference, "execution_ms", 100.0, 10.0)
        assert reading.reference_ms == pytest.approx(SESSION_MS + execution_ms, rel=1e-3)
        assert monitor.after(LAYER, 0.01) == ()
        assert monitor.is_steady()
    assert (monitor.device_states, monitor.usual_times(), monitor.costs()) == ((), {}, {})


def test_the_simulated_device_drives_the_clock() -> None:
    device = SyntheticBackend()
    with load_monitor(target("synthetic")).start(device) as monitor:
        before_s, before_ns = monitor.now(), monitor.clock()
        assert abs(before_s - time.time()) < 60
        device.spend(1500.0)
        assert monitor.clock() - before_ns == 1_500_000_000
        assert monitor.now() - before_s == pytest.approx(1.5)
        # A reading is due every three seconds of the simulated time.
        assert monitor.reading() is not None
        assert monitor.reading() is None
        device.spend(3000.0)
        assert monitor.reading() is not None


@pytest.mark.parametrize(
    "reading", [Reading(3.0, 1.5), Reading(4.0, facts={"mhz": 1.0}), Reading(5.0, 2.0, {"mhz": 1})]
)
def test_a_reading_survives_json(reading: Reading) -> None:
    again = Reading.from_json(json.loads(json.dumps(reading.to_json(), allow_nan=False)))
    assert (again.at, again.facts) == (reading.at, reading.facts)
    same = again.reference_ms == reading.reference_ms
    assert same or (math.isnan(again.reference_ms) and math.isnan(reading.reference_ms))
