"""Errors of estimates, on two dense layers of a V100 whose times are by hand."""

from __future__ import annotations

import sys

import pytest

from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.devices import device_facts, estimated_layer_ms
from resperf.layers import Dense
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.platform import Platform
from resperf.settings import Setting

SETTING = Setting("torch", "2", "cuda", 0)
CARD = device_facts("v100")


def row(features: int, times_longer: float, platform: Platform) -> Measurement:
    layer = Dense(batch=512, features_in=features, features_out=features)
    ms = times_longer * estimated_layer_ms(layer, CARD).ms
    samples = {"execution_ms": Samples((ms,) * 5, 5, 1, StopReason.PRECISE)}
    return Measurement(
        layer, Status.OK, samples, setting=SETTING, platform=platform, isolated_ms=1.0,
        session_ms=0.0, started_at=1.0, reference_ratio=1.0,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path, monkeypatch, load_tool, capsys):
    """Run the tool on rows that take some times longer than estimated; return its last line."""

    def run(*times_longer: float, device: str = "v100", above: float = 0.5) -> list[str]:
        platform = Platform(device)
        rows = tuple(row(256 * 2**n, each, platform) for n, each in enumerate(times_longer))
        info = DatasetInfo(
            setting=SETTING, platform=platform, campaign={"name": "by hand"}, seed=0, versions={},
            created="2026-01-01T00:00:00+00:00", machine_costs={},
        )  # fmt: skip
        write_dataset(tmp_path / "rows.h5", Dataset(info, rows))
        words = ["estimate_error", str(tmp_path / "rows.h5"), "--above", str(above)]
        monkeypatch.setattr(sys, "argv", words)
        load_tool("estimate_error").main()
        return capsys.readouterr().out.splitlines()[-1].split()

    return run


def test_errors_and_the_share_inside_the_interval_are_printed(table) -> None:
    # Off by 20% and 75% of the measured time; 4 times longer is outside the interval.
    assert table(1.25, 4.0)[:4] == ["v100", "dense", "2", "47.5%"]
    assert table(1.25, 4.0)[-1] == "50.0%"
    assert table(2.0, 2.0)[5] == "2.00"


def test_rows_near_the_shortest_are_left_out(table) -> None:
    assert table(1.0, 1.0, 1.0, above=4)[2] == "1"
