"""The demo's order of work, with the simulated device in place of the campaign's measuring."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial

import pytest

from resperf.campaign import Campaign, CampaignResult
from resperf.dataset import Dataset, DatasetInfo, read_dataset, read_networks, write_dataset
from resperf.layers import Dense
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.quantities import PHASES
from resperf.testing.synthetic import SyntheticBackend, closed_form_ms
from resperf.training import train
from resperf.workflows import demo

CAMPAIGN = Campaign.from_mapping(
    {"name": "tiny", "kinds": {"dense": {"batch": 1, "features_in": 8, "features_out": 8}}}
)
ROW_S = 2.0
ROWS = 60


def fake_campaign(campaign, output, bench, **options) -> CampaignResult:
    """Write rows of closed-form times, as a campaign of two minutes would."""
    device = SyntheticBackend()
    setting, platform = device.setting(), device.platform()
    rows = []
    for size in range(ROWS):
        layer = Dense(batch=1 + size % 8, features_in=50 + 7 * size, features_out=10 + 2 * size)
        phases = {
            phase: Samples((closed_form_ms(layer, phase, 50.0, 5.0),) * 5, 5, 1, StopReason.PRECISE)
            for phase in PHASES
        }
        rows.append(
            Measurement(
                layer, Status.OK, phases, setting=setting, platform=platform,
                started_at=1.0 + size, duration_s=ROW_S,
            )
        )  # fmt: skip
    info = DatasetInfo(
        setting, platform, campaign.to_json(), 0, {"resperf": "0"}, "2026-01-01T00:00:00+00:00",
        {"call_ms": 0.02, "reshape_ms": 0.0},
    )  # fmt: skip
    write_dataset(output, Dataset(info, tuple(rows)))
    fake_campaign.calls.append((bench, options))
    return CampaignResult(
        output, fake_campaign.reason, ROWS, {"ok": ROWS}, ROWS, 0, 0, ROWS * ROW_S, 0.0, ("a note",)
    )


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the demo on LeNet alone, with the baseline as its predictor."""
    fake_campaign.calls, fake_campaign.reason = [], "hours"
    device = SyntheticBackend()
    monkeypatch.setattr(demo, "backend", lambda _: device)
    monkeypatch.setattr(demo, "run_campaign", fake_campaign)
    monkeypatch.setattr(demo, "SHIPPED", ("lenet5",))
    monkeypatch.setattr(demo, "NETWORK_SECONDS", 1e-3)
    monkeypatch.setattr(demo, "light_networks", list)
    monkeypatch.setattr("resperf.training.train", partial(train, method="baseline"))
    monkeypatch.setattr(demo, "DEFAULT_METHOD", "baseline")
    monkeypatch.setattr(demo, "PAPERS_METHOD", "polynomial")
    told: list[str] = []

    def call(minutes: float = 2.0):
        told.clear()
        result = demo.run_demo(CAMPAIGN, tmp_path / "demo", minutes=minutes, tell=told.append)
        return result, told

    return call


def test_predictions_stand_beside_measurements_of_the_same_networks(run):
    result, told = run()
    subjects = [[each.subject for each in row] for row in result.rows]
    expected = [[("lenet5", batch)] * 2 for batch in (1, 8)]
    assert [[(each.network, each.batch) for each in row] for row in subjects] == expected
    assert result.bundle.joinpath("bundle.json").exists()
    runs = read_networks(result.dataset.with_name(demo.RUNS)).measurements
    assert [(row.subject.name, row.setting.batch) for row in runs] == [("lenet5", 1), ("lenet5", 8)]
    assert any("60 rows: 60 ok" in line for line in told)
    assert any("a note" in line for line in told)


def test_the_papers_method_is_judged_on_the_same_layers_as_the_default(run, monkeypatch):
    result, told = run()
    assert [(row.kind, row.method) for row in result.methods] == [
        ("dense", "baseline"), ("dense", "polynomial"),
    ]  # fmt: skip
    assert len({row.errors.rows for row in result.methods}) == 1
    found = importlib.util.find_spec
    without = lambda name: None if name == "keras" else found(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    result, told = run()
    assert result.methods == ()
    assert any("keras is not installed, so baseline is shown alone" in line for line in told)
    assert any("pip install 'resperf[keras]'" in line for line in told)


def test_no_layer_of_a_judged_network_is_measured_for_training(run):
    run()
    [(bench, options)] = fake_campaign.calls
    assert [path.stem for path in bench.exclude] == ["lenet5"]
    assert options["hours"] == pytest.approx(2.0 / 60)


def test_a_second_demo_uses_what_is_there(run):
    run(minutes=2.0)  # 60 rows of 2 s are 2 minutes
    result, told = run(minutes=2.0)
    assert len(fake_campaign.calls) == 1
    assert result.campaign is None
    assert sum("used as it is" in line for line in told) == 2  # dataset and bundle


def test_a_bundle_of_other_rows_is_not_used(run):
    result, _ = run(minutes=2.0)
    read = read_dataset(result.dataset)
    write_dataset(result.dataset, replace(read, measurements=read.measurements[::-1]))
    _, told = run(minutes=2.0)
    assert sum("used as it is" in line for line in told) == 1  # the dataset


def test_a_longer_demo_goes_on_for_the_time_that_is_left(run):
    run(minutes=2.0)
    run(minutes=5.0)
    assert fake_campaign.calls[1][1]["hours"] == pytest.approx(3.0 / 60)


def test_an_interrupted_campaign_ends_the_demo(run):
    fake_campaign.reason = "interrupted"
    with pytest.raises(KeyboardInterrupt):
        run()
