import math
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import psutil
import pytest

from resperf.campaign import Bench, Campaign, run_campaign, runner
from resperf.campaign.bench import plan_campaign
from resperf.campaign.journal import read_journal
from resperf.campaign.process import WorkerDied
from resperf.campaign.store import journal_path
from resperf.dataset import check_dataset, read_dataset, read_info
from resperf.errors import CampaignError, DatasetError, ResperfError
from resperf.measurement import Measurement, Status
from resperf.targets import _table, target


def made(**changes: Any) -> Campaign:
    run = {"reference_interval_s": 0.0, "retry_wait_s": 0.0, **changes.pop("run", {})}
    dense = {
        "batch": 1,
        "features_in": {"law": "uniform", "low": 1, "high": 400},
        "features_out": 5,
        **changes.pop("dense", {}),
    }
    values = {"name": "test", "samples": 30, "seed": 1, "repeat_share": 0.1, "run": run,
              "kinds": {"dense": dense}}  # fmt: skip
    return Campaign.from_mapping({**values, **changes})


def go(
    campaign: Campaign,
    output: Path,
    *,
    hours: float | None = None,
    on: str | None = None,
    **bench: Any,
) -> Any:
    with_what = Bench(target("synthetic", on), **bench)
    return run_campaign(campaign, output, with_what, hours=hours)


def rows_of(output: Path) -> tuple[Measurement, ...]:
    return read_dataset(output).measurements


def identities(output: Path) -> Counter[tuple[str, int]]:
    return Counter((row.layer.key, row.repeat) for row in rows_of(output))


def width(row: Measurement) -> Any:
    return row.layer.fields()["features_in"]


def test_a_campaign_fills_a_dataset(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    result = go(made(), output)
    rows = rows_of(output)
    assert result.reason == "complete"
    assert result.rows == len(rows) == result.measured
    assert sum(row.repeat == 0 for row in rows) == 30
    assert result.statuses == {"ok": len(rows)}
    assert max(identities(output).values()) == 1
    assert check_dataset(output) == []
    assert not journal_path(output).exists()
    row = rows[0]
    # By backend/synthetic.py; four bytes each of w inputs, 5 outputs and 5 (w + 1) weights.
    moved = 4 * (width(row) + 5 + 5 * (width(row) + 1))
    expected = 0.005 + 2 * 5 * width(row) / 50e6 + moved / 5e6
    assert row.value("execution_ms") == pytest.approx(expected, rel=1e-3)
    assert row.reference_ratio == pytest.approx(1.0)


def test_costs_are_measured_now_and_then_and_their_medians_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = chain([3.0, 1.0, 2.0, 9.0], repeat(2.5))
    monkeypatch.setattr(runner, "COSTS_INTERVAL_S", 0.0)
    monkeypatch.setattr(
        runner.WorkerProcess,
        "costs",
        lambda _: {"call_ms": 0.5, "overhead_ms_per_layer": next(answers)},
    )
    output = tmp_path / "a.h5"
    go(made(samples=5, repeat_share=0.0), output)
    costs = read_info(output).machine_costs
    assert (costs["call_ms"], costs["overhead_ms_per_layer"]) == (0.5, 2.5)


def test_a_process_that_dies_of_measuring_costs_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: runner.WorkerProcess) -> dict[str, float]:
        raise WorkerDied(Status.CRASHED, "it fell over")

    monkeypatch.setattr(runner.WorkerProcess, "costs", die)
    result = go(made(samples=5), tmp_path / "a.h5")
    assert result.statuses == {"ok": result.rows}


def test_a_complete_campaign_has_nothing_left_to_do(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    go(made(), output)
    before = rows_of(output)
    result = go(made(), output)
    assert (result.measured, result.rows) == (0, len(before))
    assert identities(output) == Counter((r.layer.key, r.repeat) for r in before)
    assert not journal_path(output).exists()


def test_more_samples_go_on_where_fewer_ended(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    go(made(), output, samples=10)
    first = identities(output)
    result = go(made(samples=30), output)
    assert not first - identities(output)
    assert sum(row.repeat == 0 for row in rows_of(output)) == 30
    assert result.measured == len(rows_of(output)) - sum(first.values())


def test_a_failing_layer_becomes_a_row_and_the_campaign_goes_on(
    tmp_path: Path, failure: Any
) -> None:
    campaign = made(
        samples=4, repeat_share=0.0, run={"timeout_s": 0.3}, dense={"features_in": [1, 2, 3, 4]}
    )
    output = tmp_path / "a.h5"
    go(campaign, output, settings={"fail": {failure.name: "features_in=3,"}})
    by_width = {width(row): row for row in rows_of(output)}
    assert set(by_width) == {1, 2, 3, 4}
    assert by_width[3].status is failure.status
    assert failure.detail in by_width[3].detail
    assert by_width[3].samples == {}
    assert {by_width[w].status for w in (1, 2, 4)} == {Status.OK}


def test_a_memory_limit_ends_a_layer_and_not_the_machine(tmp_path: Path) -> None:
    from resperf.campaign.process import WorkerDied, WorkerProcess, WorkerSettings

    share = (200 << 20) / psutil.virtual_memory().total
    settings = WorkerSettings(target("synthetic"), memory_share=share)
    with WorkerProcess(settings) as worker:
        limits = Path(f"/proc/{worker._process.pid}/limits")
        if limits.exists():
            (line,) = re.findall(r"Max data size +(\d+)", limits.read_text())
            assert int(line) == pytest.approx(200 << 20, abs=1)
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied) as death:
            worker.costs()
    assert death.value.status is Status.OUT_OF_MEMORY


def test_the_process_is_recycled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from resperf.campaign import runner

    started = []
    real = runner.WorkerProcess

    def count(*arguments: Any, **options: Any) -> Any:
        started.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(runner, "WorkerProcess", count)
    campaign = made(samples=10, repeat_share=0.0, run={"recycle_layers": 4})
    result = go(campaign, tmp_path / "a.h5")
    assert result.measured == 10
    assert len(started) == 3


def test_rows_of_a_slow_machine_are_measured_again(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    campaign = made(samples=30, repeat_share=0.0, run={"retry_share": 1.0, "retry_wait_s": 1000.0})
    # The reference is built first, so these are four layers; a fifth lies between a slow reading
    # and a good one.
    result = go(campaign, output, settings={"slow": [10, 13, 2.0]})
    assert result.again == 5
    assert result.noisy == 0
    for row in rows_of(output):
        expected = 0.005 + 10 * width(row) / 50e6 + 4 * (6 * width(row) + 10) / 5e6
        assert row.value("execution_ms") == pytest.approx(expected, rel=0.01)


def test_noisy_rows_are_measured_a_bounded_number_of_times(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    campaign = made(samples=5, repeat_share=0.0, run={"retry_share": 10.0, "retries": 2},
                    protocol={"precision": 0.001, "budget_s": 0.01})  # fmt: skip
    # Noise of a half makes the readings of the reference disagree for good.
    result = go(campaign, output, settings={"noise": 0.9})
    assert result.again <= 10
    assert result.measured == 5 + result.again
    assert len(rows_of(output)) == 5


def test_another_machine_campaign_or_seed_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    go(made(), output, samples=3)
    before = output.read_bytes()
    for changes, options, part in (
        ({}, {"settings": {"threads": 4}}, "threads: 4 here, 1 there"),
        ({"protocol": {"budget_s": 0.5}}, {}, "campaign's protocol changed"),
        ({"seed": 9}, {}, "seed: 9 here, 1 there"),
    ):
        with pytest.raises(CampaignError, match=part):
            go(made(**changes), output, **options)
    assert output.read_bytes() == before
    assert not journal_path(output).exists()


def test_a_damaged_dataset_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    output.write_bytes(b"not a dataset")
    with pytest.raises(DatasetError):
        go(made(), output)
    assert output.read_bytes() == b"not a dataset"


def test_time_that_is_up_stops_cleanly(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    result = go(made(samples=150), output, settings={"real_ms": 30.0}, hours=4 / 3600)
    assert result.reason == "hours"
    assert 0 < result.rows < 150
    assert len(rows_of(output)) == result.rows
    assert journal_path(output).exists()
    # A start of a campaign with a limit of its own has that much time again.
    limited = made(samples=150, run={"hours": 0.6 / 3600})
    assert go(limited, output, settings={"real_ms": 30.0}).reason == "hours"
    result = go(limited, output, hours=1.0)
    assert result.reason == "complete"
    assert max(identities(output).values()) == 1
    assert sum(row.repeat == 0 for row in rows_of(output)) == 150


def test_planning_does_not_count_as_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_plan(*words: Any, **named: Any) -> Any:
        time.sleep(0.3)
        return plan_campaign(*words, **named)

    monkeypatch.setattr("resperf.campaign.runner.plan_campaign", slow_plan)
    result = go(made(samples=150), tmp_path / "a.h5", settings={"real_ms": 30.0}, hours=0.2 / 3600)
    assert result.reason == "hours"
    assert result.rows > 0


def test_a_signal_keeps_finished_rows(
    tmp_path: Path, interrupt: Callable[[Path], threading.Thread]
) -> None:
    output = tmp_path / "a.h5"
    campaign = made(samples=400, repeat_share=0.0)
    journal = journal_path(output)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    thread = interrupt(journal)
    result = go(campaign, output, settings={"real_ms": 10.0})
    thread.join()
    assert result.reason == "interrupted"
    assert 5 <= result.rows < 400
    assert len(rows_of(output)) == result.rows
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert len(read_journal(journal).rows) == result.measured


def test_a_framework_that_cannot_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResperfError, match="no framework 'abacus'"):
        run_campaign(made(), tmp_path / "a.h5", Bench(target("abacus")))
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_always_dies_ends_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resperf.campaign.runner.HOPELESS", 3)
    with pytest.raises(CampaignError, match=r"3 subjects in a row.*SIGSEGV"):
        go(made(), tmp_path / "a.h5", settings={"fail": {"crash": "features_out=5,"}})


def test_rows_of_several_starts_come_together_with_their_samples(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    go(made(), output, samples=4)
    go(made(run={"compact_interval_s": 0.0}), output, samples=12)
    go(made(), output)
    rows = rows_of(output)
    assert max(identities(output).values()) == 1
    assert sum(row.repeat == 0 for row in rows) == 30
    assert all(len(row.samples["execution_ms"].values) >= 5 for row in rows)
    assert all(row.reference_ratio == pytest.approx(1.0) for row in rows)


DEVICES = Path(__file__).parent / "devices"


def test_a_device_class_with_a_monitor_of_its_own_needs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks are journaled, throttled rows flagged and taken again, memory limits its own."""
    monkeypatch.setenv("PYTHONPATH", str(DEVICES), prepend=os.pathsep)
    monkeypatch.syspath_prepend(DEVICES)
    like_a_gpu = replace(
        target("synthetic"), device_class="gpu_like", monitor="nvml_like:NvmlLikeMonitor"
    )
    monkeypatch.setitem(_table, ("synthetic", "gpu_like"), like_a_gpu)
    output = tmp_path / "a.h5"
    campaign = made(
        samples=12,
        repeat_share=0.0,
        run={"memory_share": 0.5, "retry_share": 0.5, "retry_wait_s": 1000.0},
    )
    # There is no reference that is built first: the seventh and eighth layer are hot.
    slow = {"slow": [6, 7, 2.0]}
    result = go(campaign, output, settings=slow, hours=1.0, on="gpu_like")
    assert (result.reason, result.rows) == ("complete", 12)
    dataset = read_dataset(output)
    # One reading before each measurement: 1400 MHz mostly, 700 while hot.
    assert dataset.info.machine_costs["sm_clock_mhz"] == 1400.0
    assert dataset.info.machine_costs["memory_limit_gb"] == 8.0
    assert "reference_ms" not in dataset.info.machine_costs
    # The device is still hot when the ninth begins. That its power is capped, such layers, which
    # wait for memory, do not feel.
    assert result.again == 3
    assert result.noisy == 0
    assert {row.flags for row in dataset.measurements} == {()}
    assert all(math.isnan(row.reference_ratio) for row in dataset.measurements)
    for row in dataset.measurements:
        expected = 0.005 + 10 * width(row) / 50e6 + 4 * (6 * width(row) + 10) / 5e6
        assert row.value("execution_ms") == pytest.approx(expected, rel=0.01)
