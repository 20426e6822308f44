"""The demo's order of work, with the simulated device in place of the campaign's measuring."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from functools import partial

import pytest

from resperf.campaign import Campaign, CampaignResult
from resperf.cli.demo import command
from resperf.dataset import Dataset, DatasetInfo, read_dataset, read_networks, write_dataset
from resperf.layers import Dense
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.quantities import PHASES
from resperf.testing.synthetic import SyntheticBackend, closed_form_ms
from resperf.training import train
from resperf.workflows import demo
from resperf.workflows.measure import measure_network

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
    assert list(result.bundles) == ["baseline", "polynomial"]
    for row, batch in zip(result.rows, (1, 8), strict=True):
        subjects = [one.subject for one in (*row.predictions.values(), row.measured)]
        assert [(one.network, one.batch) for one in subjects] == [("lenet5", batch)] * 3
        of_methods = [one.total_ms for one in row.predictions.values()]
        assert of_methods[0] != of_methods[1]
    assert all(bundle.path.joinpath("bundle.json").exists() for bundle in result.bundles.values())
    runs = read_networks(result.dataset.with_name(demo.RUNS)).measurements
    assert [(row.subject.name, row.setting.batch) for row in runs] == [("lenet5", 1), ("lenet5", 8)]
    assert any("60 rows: 60 ok" in line for line in told)
    assert any("a note" in line for line in told)


def test_without_keras_the_default_is_shown_alone(run, monkeypatch):
    spec_of = importlib.util.find_spec
    without = lambda name: None if name == "keras" else spec_of(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    result, told = run()
    assert list(result.bundles) == ["baseline"]
    assert any("keras is not installed, so baseline is shown alone" in line for line in told)
    assert any("pip install 'resperf[keras]'" in line for line in told)


def with_rounds(measured, reference_rounds):
    return replace(measured, timed=replace(measured.timed, reference_rounds=reference_rounds))


@pytest.mark.parametrize(("spoilt_runs", "again", "left"), [(0, 0, 0), (2, 2, 0), (99, 6, 2)])
def test_what_the_reference_calls_spoilt_is_measured_again(
    run, monkeypatch, spoilt_runs, again, left
):
    measured = []

    def measure(path, *words, **options):
        row = measure_network(path, *words, **options)
        measured.append(path)
        return with_rounds(row, 2 if len(measured) <= spoilt_runs else 3)

    monkeypatch.setattr(demo, "measure_network", measure)
    result, _ = run()
    assert len(measured) == 2 + again
    assert sum(row.is_spoilt for row in result.rows) == left


@pytest.mark.parametrize("spoilt", [False, True])
def test_means_are_of_what_is_not_spoilt_and_both_counts_are_shown(run, monkeypatch, spoilt):
    from click.testing import CliRunner

    result, _ = run()
    first, second = result.rows
    rounds = 0 if spoilt else 3
    phases = replace(second.measured.phases, execution_ms=1e6)
    far = replace(with_rounds(second.measured, rounds), phases=phases)
    rows = (
        replace(first, measured=with_rounds(first.measured, 8)),
        replace(second, measured=far),
    )
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: replace(result, rows=rows))
    shown = CliRunner().invoke(command, [])
    assert shown.exit_code == 0
    (mean,) = [line for line in shown.output.splitlines() if line.startswith("mean absolute")]
    assert mean.startswith(f"mean absolute error of {'1 network' if spoilt else '2 networks'}: ")
    assert "baseline" in mean
    assert "polynomial" in mean
    left_out = "1 network" if spoilt else "0 networks"
    assert f"left out, as the machine's speed changed: {left_out}\n" in shown.output
    document = json.loads(CliRunner().invoke(command, ["--json"]).stdout)
    assert (document["mean_of"], document["spoilt"]) == ((1, 1) if spoilt else (2, 0))
    assert set(document["mean_errors"]) == {"baseline", "polynomial"}
    assert [row["spoilt"] for row in document["networks"]] == [False, spoilt]


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
    assert sum("used as it is" in line for line in told) == 3  # dataset and bundles


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
