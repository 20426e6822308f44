"""Campaigns of whole networks on the simulated device: rows, settings, failures, resuming."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resperf.campaign import Bench, Campaign, CampaignResult, plan_campaign, run_campaign
from resperf.campaign.journal import read_journal
from resperf.campaign.process import WorkerProcess, WorkerSettings
from resperf.campaign.store import journal_path
from resperf.dataset import NetworkDescription, check_dataset, read_dataset
from resperf.errors import CampaignError
from resperf.layers import Dense
from resperf.measurement import Measurement, NetworkRef, Status
from resperf.network import graph_digest, weightless
from resperf.platform import Platform
from resperf.quantities import PHASES
from resperf.settings import Setting
from resperf.targets import target
from resperf.testing.synthetic import CALL_MS, SESSION_MS, closed_form_ms
from resperf.training.rows import network_examples

SHIPPED = Path(__file__).parents[2] / "models" / "networks"
LENET = SHIPPED / "lenet5.onnx"
SECONDS = 0.003


@pytest.fixture
def folder(tmp_path: Path, perceptron: Callable[..., Path]) -> Path:
    for width in range(1, 6):
        perceptron(f"net{width}.onnx", 8, width)
    return tmp_path


def made(folder: Path, *, kinds: Any = None, run: Any = None, **networks: Any) -> Campaign:
    values: dict[str, Any] = {"name": "test", "run": {"retry_wait_s": 0.0, **(run or {})}}
    own = {"files": ["net*.onnx"], "batches": [1], "seconds": SECONDS}
    values["networks"] = {**own, **networks}
    if kinds is not None:
        values |= {"kinds": kinds, "samples": 3, "repeat_share": 0.0}
    return Campaign.from_mapping(values, folder=folder)


def go(campaign: Campaign, output: Path, **bench: Any) -> CampaignResult:
    return run_campaign(campaign, output, Bench(target("synthetic"), **bench))


def rows_of(output: Path) -> tuple[Measurement, ...]:
    return read_dataset(output).measurements


def runs(output: Path) -> list[tuple[str, int | None, int, int]]:
    """Return name, batch, threads and repeat of each row of a network, sorted."""
    rows = [row for row in rows_of(output) if isinstance(row.subject, NetworkRef)]
    return sorted(
        (row.subject.name, row.setting.batch, row.setting.threads, row.repeat) for row in rows
    )


def test_networks_become_rows_with_their_graphs(folder: Path) -> None:
    output = folder / "a.h5"
    result = go(made(folder, batches=[1, 4]), output)
    assert (result.reason, result.rows, result.networks) == ("complete", 10, 10)
    assert result.statuses == {"ok": 10}
    assert runs(output) == [(f"net{w}", b, 1, 0) for w in range(1, 6) for b in (1, 4)]
    assert check_dataset(output) == []
    assert not journal_path(output).exists()
    dataset = read_dataset(output)
    assert dataset.graphs == {
        graph_digest(graph): graph
        for graph in (weightless(folder / f"net{w}.onnx") for w in range(1, 6))
    }
    assert dataset.info.quantities == ()
    assert dataset.info.setting.batch is None
    for row in dataset.measurements:
        assert isinstance(row.subject, NetworkRef)
        batch, width = row.setting.batch or 0, int(row.subject.name[3:])
        layer = Dense(batch=batch, features_in=8, features_out=width, bias=False)
        execution_ms = SESSION_MS + closed_form_ms(layer, "execution_ms", 50, 5)
        assert row.value("execution_ms") == pytest.approx(execution_ms, rel=1e-3)
        crossing_ms = 2 * CALL_MS + 4 * batch * (8 + width) / 5e6
        assert row.value("latency_ms") == pytest.approx(execution_ms + crossing_ms, rel=1e-3)
        assert row.reference_ratio == pytest.approx(1.0)


def test_rows_have_the_families_that_the_campaign_says(folder: Path) -> None:
    output = folder / "a.h5"
    families = {"narrow": ["net[12]"], "wide": ["net4", "net5"]}
    batches = list(range(1, 12))
    with pytest.raises(CampaignError, match="25 subjects in a row"):
        go(
            made(folder, families=families, batches=batches),
            output,
            settings={"fail": {"crash": "net"}},
        )
    # The journal has what its rows refer to.
    go(made(folder, families=families, batches=batches), output)
    dataset = read_dataset(output)
    assert check_dataset(output) == []
    assert len(dataset.graphs) == 5
    of = {
        row.subject.name: NetworkDescription.from_bytes(
            dataset.descriptions[row.subject.description]
        ).family
        for row in dataset.measurements
        if isinstance(row.subject, NetworkRef) and row.subject.description
    }
    assert of == {"net1": "narrow", "net2": "narrow", "net4": "wide", "net5": "wide"}
    examples = network_examples(output, "execution_ms")
    assert set(examples.groups) == {"narrow", "net3", "wide"}


def test_what_is_measured_is_not_measured_again(folder: Path) -> None:
    output = folder / "a.h5"
    go(made(folder, files=["net1.onnx"]), output)
    before = rows_of(output)
    assert go(made(folder, files=["net1.onnx"]), output).measured == 0
    # More networks, batch sizes and repeats go on where fewer ended.
    more = made(folder, files=["net[12].onnx"], batches=[1, 2], repeats=1)
    result = go(more, output)
    assert result.measured == 7
    assert [row for row in rows_of(output) if row in before] == list(before)
    assert runs(output) == [
        (f"net{w}", b, 1, repeat) for w in (1, 2) for b in (1, 2) for repeat in (0, 1)
    ]
    assert check_dataset(output) == []


def test_layers_and_networks_are_in_one_dataset(folder: Path) -> None:
    output = folder / "a.h5"
    kinds = {"dense": {"batch": 1, "features_in": [16, 32, 64], "features_out": 5}}
    result = go(made(folder, kinds=kinds), output)
    assert (result.rows, result.networks) == (8, 5)
    layers = [row for row in rows_of(output) if not isinstance(row.subject, NetworkRef)]
    assert len(layers) == 3
    # The last layers lie between two readings of the process that measured them.
    assert all(row.reference_ratio == pytest.approx(1.0) for row in layers)
    assert check_dataset(output) == []
    assert go(made(folder, kinds=kinds), output).measured == 0


def test_each_combination_of_settings_is_a_setting(folder: Path) -> None:
    output = folder / "a.h5"
    campaign = made(folder, files=["net1.onnx"], batches=[2], threads=[1, 3], gflops=[50, 25])
    result = go(campaign, output, settings={"gb_per_s": 4})
    assert result.statuses == {"ok": 4}
    found = {
        (row.setting.threads, row.setting.options["gflops"], row.setting.options["gb_per_s"])
        for row in rows_of(output)
    }
    assert found == {(t, g, "4") for t in (1, 3) for g in ("50", "25")}
    layer = Dense(batch=2, features_in=8, features_out=1, bias=False)
    for row in rows_of(output):
        gflops = float(row.setting.options["gflops"])
        execution_ms = SESSION_MS + closed_form_ms(layer, "execution_ms", gflops, 4)
        assert row.value("execution_ms") == pytest.approx(execution_ms, rel=1e-3)
    # The file's own setting is that of the command line.
    assert read_dataset(output).info.setting.threads == 1
    with pytest.raises(CampaignError, match=r"networks: batchs=1: .*'batchs'.* settings of the"):
        go(made(folder, batchs=1), folder / "b.h5")


def test_a_failing_network_becomes_a_row_and_the_campaign_goes_on(
    folder: Path, failure: Any
) -> None:
    output = folder / "a.h5"
    campaign = made(folder, files=["net[1-3].onnx"], timeout_s=2)
    go(campaign, output, settings={"fail": {failure.name: "net2"}})
    rows = {row.subject.name: row for row in rows_of(output) if isinstance(row.subject, NetworkRef)}
    assert (rows["net2"].status, rows["net2"].samples) == (failure.status, {})
    assert failure.detail in rows["net2"].detail
    assert [rows[name].status for name in ("net1", "net3")] == [Status.OK] * 2
    assert check_dataset(output) == []


def test_what_cannot_be_read_is_a_row_or_a_note(folder: Path) -> None:
    output = folder / "a.h5"
    (folder / "net9.onnx").write_bytes(b"no network")
    result = go(made(folder, files=["net[19].onnx"], shapes={"other": [1, 8]}), output)
    [note] = result.notes
    assert "net9.onnx is left out: " in note
    [row] = rows_of(output)
    assert row.status is Status.UNSUPPORTED
    assert "other" in row.detail
    with pytest.raises(CampaignError, match=r"none can be read: .*net9\.onnx"):
        go(made(folder, files=["net9.onnx"]), folder / "b.h5")


def test_rows_of_a_slow_machine_are_measured_again(folder: Path) -> None:
    output = folder / "a.h5"
    campaign = made(folder, run={"retry_share": 1.0})
    # The reference is built first: the fourth network runs at half the speed, its second run not.
    result = go(campaign, output, settings={"slow": [4, 4, 2.0]})
    assert (result.again, result.noisy, result.rows) == (1, 0, 5)
    assert {row.flags for row in rows_of(output)} == {()}
    times_ms = {row.subject.key: row.value("execution_ms") for row in rows_of(output)}
    assert max(times_ms.values()) == pytest.approx(min(times_ms.values()), rel=1e-2)


def test_a_campaign_that_was_interrupted_goes_on(
    folder: Path, interrupt: Callable[[Path], threading.Thread]
) -> None:
    output = folder / "a.h5"
    campaign = made(folder, batches=[1, 2, 3, 4], threads=[1, 2])

    thread = interrupt(journal_path(output))
    first = go(campaign, output, settings={"real_ms": 50.0})
    thread.join()
    assert first.reason == "interrupted"
    assert 5 <= first.rows < 40
    assert len(runs(output)) == first.rows
    # What the journal knows does not depend on the dataset, nor on files that are still there.
    output.unlink()
    (folder / "net1.onnx").unlink()
    second = go(campaign, output)
    assert second.reason == "complete"
    assert set(runs(output)) >= {
        (f"net{w}", b, t, 0) for w in range(2, 6) for b in range(1, 5) for t in (1, 2)
    }
    assert len(set(runs(output))) == second.rows == len(runs(output))
    assert first.measured + second.measured == second.rows
    assert runs(output)[0][0] == "net1"
    assert check_dataset(output) == []


def test_the_journal_holds_the_graphs_of_its_rows(folder: Path) -> None:
    output = folder / "a.h5"
    with pytest.raises(CampaignError, match="25 subjects in a row"):
        go(
            made(folder, batches=list(range(1, 12))),
            output,
            settings={"fail": {"crash": "net"}},
        )
    records = read_journal(journal_path(output))
    assert {row.status for row in records.rows} == {Status.CRASHED}
    assert set(records.contents) == {
        row.subject.digest for row in records.rows if isinstance(row.subject, NetworkRef)
    }


def test_files_are_patterns_and_folders(folder: Path) -> None:
    (folder / "more").mkdir()
    shutil.copy(folder / "net1.onnx", folder / "more" / "again.onnx")
    shutil.copy(folder / "net2.onnx", folder / "more")
    output = folder / "a.h5"
    # One graph at one batch size is one run, whatever its file is called.
    go(made(folder, files=["more", "net2.onnx", str(folder / "net3*")], batches=[1]), output)
    assert [name for name, *_ in runs(output)] == ["again", "net2", "net3"]
    with pytest.raises(CampaignError, match=r"no file fits 'none/\*\.onnx'; patterns are relative"):
        go(made(folder, files=["none/*.onnx"]), output)


@pytest.mark.parametrize(
    ("networks", "part"),
    [
        ([1], "networks=.1. must be a table"),
        ({}, "add files"),
        ({"files": "a.onnx"}, r"files='a.onnx' must be a list of words"),
        ({"files": [""]}, "files=.* must be a list"),
        ({"files": ["a"], "batches": 8}, "batches=8 must be a list of integers of at least 1"),
        ({"files": ["a"], "batches": [0]}, "batches=.0. must be a list"),
        ({"files": ["a"], "batches": [True]}, "batches=.* must be a list"),
        ({"files": ["a"], "seconds": 0}, "seconds=0 must be a number above 0"),
        ({"files": ["a"], "seconds": "3"}, "seconds='3' must be of type float"),
        ({"files": ["a"], "repeats": 1.5}, "repeats=1.5 must be of type int"),
        ({"files": ["a"], "shapes": [1]}, "shapes=.1. must be a table"),
        ({"files": ["a"], "shapes": {"x": 3}}, "shapes.x=3 must be a list"),
        ({"files": ["a"], "threads": []}, "threads=.* is no setting of a framework"),
        (
            {"files": ["a"], "threads": {"a": 1}},
            "own words are batches, drawn, families, files, repeat_share, repeats, ",
        ),
    ],
)
def test_wrong_values_are_named(networks: Any, part: str) -> None:
    with pytest.raises(CampaignError, match=part):
        Campaign.from_mapping({"name": "test", "networks": networks})


def test_durations_follow_from_seconds_and_work(folder: Path) -> None:
    from resperf.campaign import plan_campaign

    bench = Bench(target("synthetic"))
    planned, *_ = plan_campaign(made(folder, seconds=4.0, batches=[1, 2], repeats=1), bench)
    assert (len(planned.networks), planned.layers, planned.repeats) == (20, (), 0)
    # A second to build, and five of rounds.
    assert planned.predicted_s == pytest.approx([6.0] * 20)
    [unet] = plan_campaign(
        made(SHIPPED, files=["unet.onnx"], batches=[1]), bench
    )[0].predicted_s  # fmt: skip
    # 48.1e9 multiply-adds at 60 GFLOP/s, twelve times.
    assert unet == pytest.approx(1 + 12 * 2 * 48.1 / 60, rel=0.01)


def test_methods_of_networks_learn_what_follows_from_phases(folder: Path) -> None:
    from resperf.training.rows import network_examples, network_quantities

    output = folder / "a.h5"
    go(made(folder, repeats=1), output)
    assert network_quantities(output) == (*PHASES, "latency_ms")
    examples = network_examples(output, "latency_ms")
    assert sorted(network.name for network in examples.networks) == [f"net{w}" for w in range(1, 6)]
    first = next(row for row in rows_of(output) if isinstance(row.subject, NetworkRef))
    assert isinstance(first.subject, NetworkRef)
    values = {net.name: ms for net, ms in zip(examples.networks, examples.values, strict=True)}
    latency_ms = sum(first.value(name) for name in PHASES)
    assert values[first.subject.name] == pytest.approx(latency_ms, rel=1e-3)


def test_a_campaign_has_one_number_of_processes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a start have one platform, which says how many share their runs."""

    class Process(WorkerProcess):
        def __init__(self, settings: WorkerSettings) -> None:
            shared = settings.settings.get("processes", 1)
            self.setting, self.platform = Setting("toy"), Platform("cpu", devices=shared)

        def close(self) -> None:
            """End nothing."""

    monkeypatch.setattr("resperf.campaign.bench.WorkerProcess", Process)
    with pytest.raises(CampaignError, match="one number of processes; write --processes"):
        plan_campaign(made(folder, processes=[1, 2]), Bench(target("synthetic")))
