"""Measurements survive the journal's JSON."""

from __future__ import annotations

import json
import math

import pytest

from resperf.errors import LayerError
from resperf.layers import Dense
from resperf.measurement import (
    Measurement,
    NetworkRef,
    Samples,
    Status,
    StopReason,
    layer_and_optimizer,
    layer_key,
)
from resperf.platform import Platform
from resperf.quantities import Estimator
from resperf.settings import Mode, Setting

LAYER = Dense(batch=1, features_in=2, features_out=3)
SETTING, PLATFORM = Setting("synthetic", threads=2), Platform("synthetic")


def test_a_measurement_survives_json() -> None:
    samples = Samples((1.0, 3.0, 2.0, 10.0), taken=9, warmups=2, stop_reason=StopReason.BUDGET)
    measurement = Measurement(
        LAYER, Status.OK, {"execution_ms": samples}, setting=SETTING, platform=PLATFORM,
        isolated_ms=2.5, started_at=12.0, flags=("busy",), repeat=1,
    )  # fmt: skip
    text = json.dumps(measurement.to_json(), allow_nan=False)
    again = Measurement.from_json(json.loads(text), SETTING, PLATFORM)
    assert again.samples == measurement.samples
    assert (again.layer, again.status, again.repeat) == (LAYER, Status.OK, 1)
    assert (again.flags, again.isolated_ms) == (("busy",), 2.5)
    assert math.isnan(again.call_ms)
    assert math.isnan(again.reference_ratio)
    assert again.value("execution_ms") == 2.5


def test_a_failure_has_no_times() -> None:
    failed = Measurement(
        LAYER, Status.CRASHED, setting=SETTING, platform=PLATFORM, detail="signal 11"
    )
    assert math.isnan(failed.value("execution_ms"))
    assert Measurement.from_json(failed.to_json(), SETTING, PLATFORM).detail == "signal 11"


def test_samples_say_how_many_copies_a_run_held_and_what_it_was_divided_by() -> None:
    samples = Samples((2.0,), 1, 1, StopReason.BUDGET, copies=4, divisor=4.0, offset=0.5)
    written = json.loads(json.dumps(samples.to_json()))
    assert Samples.from_json(written) == samples


def test_a_network_is_a_subject_too() -> None:
    samples = Samples((7.0, 5.0), 2, 1, StopReason.BUDGET, estimator=Estimator.MAXIMUM)
    measurement = Measurement(
        NetworkRef("lenet", "abc"), Status.OK, {"peak_memory_bytes": samples}, setting=SETTING,
        platform=PLATFORM,
    )  # fmt: skip
    text = json.dumps(measurement.to_json(), allow_nan=False)
    again = Measurement.from_json(json.loads(text), SETTING, PLATFORM)
    assert again.subject == NetworkRef("lenet", "abc")
    assert again.value("peak_memory_bytes") == 7.0
    with pytest.raises(TypeError, match="lenet is a network"):
        _ = again.layer


def test_a_derived_quantity_is_the_sum_of_its_parts_unless_it_was_measured() -> None:
    samples = {
        f"{phase}_ms": Samples((value,), 1, 0, StopReason.BUDGET)
        for phase, value in {"preprocess": 1.0, "execution": 2.0, "postprocess": 4.0}.items()
    }
    run = Measurement(NetworkRef("n", "a"), Status.OK, samples, setting=SETTING, platform=PLATFORM)
    assert run.value("latency_ms") == 7.0
    samples["latency_ms"] = Samples((9.0,), 1, 0, StopReason.BUDGET)
    assert run.value("latency_ms") == 9.0
    assert math.isnan(run.value("step_ms"))


def test_estimators_make_one_value_of_samples() -> None:
    values = (6.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    expected = {"median": 3.5, "mean of the best five": 3.0, "mean of a throughput run": 3.5,
                "maximum": 6.0, "unknown": 3.5}  # fmt: skip
    for name, value in expected.items():
        samples = Samples(values, 6, 0, StopReason.BUDGET, estimator=Estimator(name))
        assert samples.value == value


def test_a_training_step_is_a_layer_under_a_setting_with_a_key_of_its_own() -> None:
    adam = SETTING.with_optimizer("adam")
    assert (adam.mode, adam.with_optimizer("")) == (Mode.TRAINING, SETTING)
    step = Measurement(LAYER, Status.UNSUPPORTED, setting=adam, platform=PLATFORM)
    # Datasets and bundles hold such keys: they never change.
    assert (
        step.key
        == layer_key(LAYER, "adam")
        == (
            "dense_step:batch=1,features_in=2,features_out=3,bias=1,activation=none,dtype=float32,"
            "optimizer=adam"
        )
    )
    assert layer_and_optimizer(step.key) == (LAYER, "adam")
    assert layer_and_optimizer(LAYER.key) == (LAYER, "")
    sgd = Measurement(
        LAYER, Status.UNSUPPORTED, setting=SETTING.with_optimizer("sgd"), platform=PLATFORM
    )
    assert len({step.identity, sgd.identity, (LAYER.key,)}) == 3
    for key, optimizer in ((step.key.replace("adam", "lion"), "lion"), ("dense_step:batch=1", "")):
        with pytest.raises(LayerError, match=f"optimizer='{optimizer}' must be one of sgd"):
            layer_and_optimizer(key)
