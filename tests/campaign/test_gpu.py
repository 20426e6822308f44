"""Campaigns on the synthetic GPU, from the plan to the dataset, through whatever befalls a card."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from fake_nvml import install  # noqa: E402

from resperf.campaign import Bench, Campaign, run_campaign, runner  # noqa: E402
from resperf.campaign.journal import read_journal  # noqa: E402
from resperf.campaign.store import journal_path  # noqa: E402
from resperf.dataset import check_dataset, read_dataset  # noqa: E402
from resperf.errors import CampaignError, DeviceLostError, ResperfError  # noqa: E402
from resperf.measurement import Measurement, Status  # noqa: E402
from resperf.targets import _table  # noqa: E402

CAMPAIGN = """
samples = {samples}
seed = 1
repeat_share = 0.0
[run]
reference_interval_s = 0.0
retry_wait_s = 1000.0
retry_share = 0.5
memory_share = {memory_share}
[kinds.dense]
batch = 1
features_in = {{ law = "uniform", low = 1, high = 2000 }}
features_out = {features_out}
"""


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Make this machine one with a synthetic GPU, and return its module."""
    import synthetic_gpu

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv(synthetic_gpu.LOST, str(tmp_path / "lost"))
    row = synthetic_gpu.TARGET
    monkeypatch.setitem(_table, (row.framework, row.device_class), row)
    install(synthetic_gpu.LIBRARY)
    yield synthetic_gpu
    install(None)


def campaign(tmp_path: Path, samples: int, **words: Any) -> Campaign:
    path = tmp_path / "gpu.toml"
    words = {"memory_share": 0.8, "features_out": 10, **words}
    path.write_text(CAMPAIGN.format(samples=samples, **words))
    return Campaign.from_toml(path)


def go(gpu: Any, tmp_path: Path, samples: int, *, words: Any = None, **settings: Any) -> Any:
    bench = Bench(gpu.TARGET, settings)
    planned = campaign(tmp_path, samples, **(words or {}))
    return run_campaign(planned, tmp_path / "a.h5", bench)


def rows_of(tmp_path: Path) -> tuple[Measurement, ...]:
    return read_dataset(tmp_path / "a.h5").measurements


def expected_ms(row: Measurement) -> float:
    """Return the closed-form time of a dense layer, at 50 GFLOP/s and 5 GB/s."""
    width = row.layer.fields()["features_in"]
    values = width + 10 + 10 * width + 10
    return 0.005 + 2 * 10 * width / 50e6 + 4 * values / 5e6


def test_rows_of_a_hot_or_shared_card_are_measured_again(gpu: Any, tmp_path: Path) -> None:
    result = go(gpu, tmp_path, 60, hot=[30, 2], shared=[25, 1])
    assert (result.reason, result.rows, result.noisy) == ("complete", 60, 0)
    # 61 builds: the reference and 60 rows. Two bursts of heat touch the row before it and two in
    # it; two visits of another process two rows each; some rows of these are the same ones.
    assert 6 <= result.again <= 16
    info = read_dataset(tmp_path / "a.h5").info
    assert info.platform.device == "rtx4090"
    (accelerator,) = info.platform.accelerators
    assert (accelerator.name, accelerator.driver) == ("NVIDIA GeForce RTX 4090", "550.54.15")
    for name, usual in {"sm_clock_mhz": 2520, "temperature_c": 55, "other_processes": 0}.items():
        assert info.machine_costs[name] == usual
    for row in rows_of(tmp_path):
        assert row.flags == ()
        assert row.value("execution_ms") == pytest.approx(expected_ms(row), rel=0.01)
        assert row.reference_ratio == pytest.approx(1.0)
    check_dataset(tmp_path / "a.h5")


def test_heat_that_lasts_is_the_cards_normal_state(gpu: Any, tmp_path: Path) -> None:
    result = go(gpu, tmp_path, 120, hot=[1, 1])
    assert (result.rows, result.noisy) == (120, 0)
    # Until it is known to be the normal state, at 100 rows, rows count as disturbed.
    assert result.again <= 60
    assert any("'throttled' held for 100% of the rows" in note for note in result.notes)


def test_a_lost_card_ends_the_campaign_with_all_rows_and_the_same_command_goes_on(
    gpu: Any, tmp_path: Path, cli: Any
) -> None:
    output = tmp_path / "a.h5"
    with pytest.raises(DeviceLostError) as lost:
        go(gpu, tmp_path, 30, lost_at=12)
    assert "cuda:0 is lost (GPU is lost)" in str(lost.value)
    assert f"10 rows are kept in {output}; the same command goes on" in str(lost.value)
    assert "\n" not in str(lost.value)
    assert {row.status for row in rows_of(tmp_path)} == {Status.OK}
    assert len(rows_of(tmp_path)) == 10
    # It is still lost: nothing is measured, nothing is lost, and one line says so.
    words = ("bench", tmp_path / "gpu.toml", "--framework", "synthgpu", "-o", output)
    shown = cli.run(*words, code=2)
    assert "cuda:0 is lost (GPU is lost)" in shown.err
    assert shown.err.count("\n") == 1
    (tmp_path / "lost").unlink()
    assert go(gpu, tmp_path, 30).measured == 20
    assert {row.status for row in rows_of(tmp_path)} == {Status.OK}
    assert not journal_path(output).exists()


def test_a_card_that_fails_without_being_lost_gets_its_last_rows_measured_again(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resperf.campaign.runner.HOPELESS", 2)
    with pytest.raises(CampaignError, match=r"2 subjects in a row.*unforeseen error"):
        go(gpu, tmp_path, 10, fail={"error": "features_out=10,"})
    journal = read_journal(journal_path(tmp_path / "a.h5"))
    assert [row.status for row in journal.rows] == [Status.CRASHED] * 2
    assert go(gpu, tmp_path, 10).measured == 10
    assert [row.status for row in rows_of(tmp_path)] == [Status.OK] * 10


def test_a_full_card_is_a_row_and_what_cannot_fit_is_not_built(gpu: Any, tmp_path: Path) -> None:
    # Allocations fail above 8 MB; a layer of four copies has up to 32 MB.
    result = go(gpu, tmp_path, 40, words={"features_out": 1000}, memory_bytes=8_000_000)
    full = [row for row in rows_of(tmp_path) if row.status is Status.OUT_OF_MEMORY]
    assert result.statuses == {Status.OK: 40 - len(full), Status.OUT_OF_MEMORY: len(full)}
    assert 5 < len(full) < 35
    assert {row.detail for row in full} == {"CUDA out of memory"}
    assert all(4 * row.layer.moved_bytes > 8_000_000 for row in full)


def test_what_needs_more_than_the_cards_memory_is_refused_by_estimate(
    gpu: Any, tmp_path: Path
) -> None:
    # 2.6e-6 of 24 GiB are 67,003 bytes, less than a layer of 2000 x 10 weights has.
    result = go(gpu, tmp_path, 40, words={"memory_share": 2.6e-6})
    refused = [row for row in rows_of(tmp_path) if row.status is Status.OUT_OF_MEMORY]
    assert 0 < len(refused) < 40
    assert result.rows == 40
    for row in rows_of(tmp_path):
        assert (row.status is Status.OUT_OF_MEMORY) == (row.layer.moved_bytes > 67_003)
    assert "needs at least" in refused[0].detail
    assert "more than the 65.4 KiB that may be used of cuda" in refused[0].detail


def test_a_network_whose_weights_alone_do_not_fit_is_refused_too(gpu: Any, tmp_path: Path) -> None:
    # LeNet has 61,706 weights, 28 x 28 inputs and ten outputs, in float32: 250,000 bytes.
    shipped = TESTS.parent / "models" / "networks" / "lenet5.onnx"
    path, statuses = tmp_path / "networks.toml", []
    for share in (249_990 / gpu.CARD.memory_bytes, 250_010 / gpu.CARD.memory_bytes):
        path.write_text(
            f'[run]\nmemory_share = {share}\n[networks]\nfiles = ["{shipped}"]\nseconds = 0.1\n'
        )
        output = tmp_path / f"{len(statuses)}.h5"
        planned = Campaign.from_toml(path)
        statuses += [*run_campaign(planned, output, Bench(gpu.TARGET)).statuses]
    assert statuses == [Status.OUT_OF_MEMORY, Status.OK]


HOLD = """
import time
import synthetic_gpu
from resperf.backends.monitors import load_monitor
from resperf.campaign.runner import only_campaign_on
with only_campaign_on(load_monitor(synthetic_gpu.TARGET, "cuda:0")):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_campaign_on_the_same_card_says_so_and_a_killed_one_does_not_keep_it(
    gpu: Any, tmp_path: Path, cli: Any
) -> None:
    campaign(tmp_path, 4)
    words = ("bench", tmp_path / "gpu.toml", "--framework", "synthgpu", "-o", tmp_path / "a.h5")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])},
    )  # fmt: skip
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        shown = cli.run(*words, "--device", "cuda", code=2)
        assert shown.err.count("\n") == 1
        busy = f"another resperf (process {holder.pid}) is measuring on cuda"
        assert f"{busy}; wait" in shown.err
        assert busy in cli.run("measure", "lenet5", *words[2:4], "--device", "cuda", code=2).err
        assert not (tmp_path / "a.h5").exists()
        # Another card is free.
        second = Bench(gpu.TARGET, {"device": "cuda:1"})
        run_campaign(campaign(tmp_path, 4), tmp_path / "b.h5", second)
        platform = read_dataset(tmp_path / "b.h5").info.platform
        assert platform.device == "nvidia-rtx-6000-ada-generation"
        holder.kill()
        holder.wait()
    assert "4 rows (4 ok)" in cli.text(*words, "--device", "cuda")


def test_a_device_that_is_not_there_is_one_line(gpu: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ResperfError, match=r"no device cuda:3: this machine has cuda:0 \(NVIDIA Ge"
    ):
        go(gpu, tmp_path, 4, device="cuda:3")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.toml"]


def test_memory_stays_flat(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner keeps about a KiB of each row, the measuring process nothing."""
    held: list[tuple[int, int]] = []
    show = runner.Run._show

    def note(run: Any, start: float) -> None:
        show(run, start)
        resident = psutil.Process(run._worker._process.pid).memory_info().rss
        held.append((tracemalloc.get_traced_memory()[0], resident))

    monkeypatch.setattr(runner.Run, "_show", note)
    tracemalloc.start()
    try:
        result = go(gpu, tmp_path, 200, words={"features_out": 50}, hot=[100, 2])
    finally:
        tracemalloc.stop()
    assert (result.rows, result.noisy) == (200, 0)
    (own, worker), (own_later, worker_later) = held[50], held[200]
    assert (own_later - own) / 150 < 2000
    assert worker_later - worker < 1 << 20
