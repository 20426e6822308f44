"""Rows of whole networks in dataset files, with graphs, settings and platforms by reference."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import h5py
import pytest

from resperf.dataset import (
    Dataset,
    DatasetInfo,
    ListedOperator,
    ListedTensor,
    NetworkDescription,
    append_networks,
    check_dataset,
    description_digest,
    export_dataset,
    merge_datasets,
    noise_warning,
    read_dataset,
    read_info,
    read_networks,
    read_table,
    refuse_to_append,
    summarize,
    write_dataset,
)
from resperf.errors import DatasetError
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import graph_digest
from resperf.quantities import Estimator
from resperf.settings import Mode, Setting

MeasuredFactory = Callable[..., Measurement]
EditedFactory = Callable[..., AbstractContextManager[h5py.File]]
GRAPH = b"any bytes"
NETWORK = NetworkRef("net", graph_digest(GRAPH))
GRAPHS = {NETWORK.digest: GRAPH}


def run_of(info: DatasetInfo, batch: int, **changes: object) -> Measurement:
    samples = {"latency_ms": Samples((1.0 * batch,), 1, 0, StopReason.BUDGET)}
    made = Measurement(
        NETWORK, Status.OK, samples, setting=dataclasses.replace(info.setting, batch=batch),
        platform=info.platform, started_at=float(batch),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_settings_and_platforms_are_written_once(golden: Path) -> None:
    with h5py.File(golden) as file:
        settings = json.loads(file.attrs["settings"])
        assert [each["batch"] for each in settings] == [None, None, 1, 8, 1, 2, 4]
        assert [each["devices"] for each in json.loads(file.attrs["platforms"])] == [1, 2]
        assert file["networks/setting"][()].tolist() == [2, 3, 4, 5, 6]
        assert file["conv/setting"][()].tolist() == [0, 0]
        assert file["networks/step_ms"].attrs["estimator"] == "median"
        assert file["networks/peak_memory_bytes"].attrs["estimator"] == "maximum"
        assert file["networks/peak_memory_samples_bytes"].attrs["unit"] == "bytes"
    rows = read_dataset(golden).measurements
    assert len({id(row.setting) for row in rows}) == 7
    assert rows[9].samples["peak_memory_bytes"].estimator is Estimator.MAXIMUM


def test_tables_of_layers_know_copies_and_no_networks(golden: Path) -> None:
    tables = read_table(golden)
    assert set(tables) == {"conv", "dense", "dense_step", "pool", "reorder"}
    assert tables["dense"].copies["execution_ms"].tolist() == [4, 0]  # the second row failed
    assert tables["dense"].select([1]).copies["execution_ms"].tolist() == [0]


def test_networks_alone_are_read(golden: Path) -> None:
    dataset = read_networks(golden)
    assert [row.subject.key for row in dataset.measurements] == [
        *(f"network(digest={digest})" for digest in 2 * list(dataset.graphs)),
        *3 * ["network(name=net-8)"],
    ]


def test_a_row_without_a_graph_is_refused(tmp_path: Path, info: DatasetInfo) -> None:
    with pytest.raises(DatasetError, match="the graph of a row of net is missing"):
        write_dataset(tmp_path / "a.h5", Dataset(info, (run_of(info, 1),)))


def test_a_network_without_a_graph_is_known_by_its_name_and_description(
    tmp_path: Path, info: DatasetInfo
) -> None:
    linear = ListedOperator(
        "Linear", (ListedTensor((2, 8), "float32"),), (ListedTensor((2, 4)),), [1, True], 24,
        {"forward_ms": 0.25},
    )  # fmt: skip
    described = NetworkDescription("net-8", "net", "nets", sequence=8, batch=2, operators=(linear,))
    content = described.to_bytes()
    named = NetworkRef("net-8", "", description_digest(content))
    rows = (run_of(info, 1), run_of(info, 2, subject=named))
    path = tmp_path / "a.h5"
    descriptions = {named.description: content}
    write_dataset(path, Dataset(info, rows, {NETWORK.digest: GRAPH}, descriptions))
    assert check_dataset(path) == []
    dataset = read_networks(path)
    assert [row.subject for row in dataset.measurements] == [NETWORK, named]
    assert dataset.measurements[1].subject.key == "network(name=net-8)"
    assert NetworkDescription.from_bytes(dataset.descriptions[named.description]) == described
    merge_datasets([path, path], tmp_path / "b.h5")
    assert read_networks(tmp_path / "b.h5").descriptions == descriptions
    assert set(read_table(path)) == set()
    (columns,) = export_dataset(path, tmp_path / "a.csv")
    with columns.open(encoding="utf-8") as file:
        assert [row["description"] for row in csv.DictReader(file)] == ["", named.description]
    write_dataset(path, Dataset(info, rows, {NETWORK.digest: GRAPH}, {"a" * 64: content}))
    assert check_dataset(path) == [
        f"descriptions: the content of description {'a' * 64} does not match its digest",
        "networks: no description with that digest in 1 row (first: row 1)",
    ]
    with pytest.raises(DatasetError, match="the description of a network is damaged"):
        NetworkDescription.from_bytes(b"{}")


def test_rows_of_one_quantity_may_have_unlike_estimators(tmp_path: Path, info: DatasetInfo) -> None:
    several = (6.0, 5.0, 4.0, 3.0, 2.0, 1.0)
    best, median = (
        Samples(several, 9, 0, StopReason.BUDGET, estimator=each)
        for each in (Estimator.MEAN_OF_BEST_FIVE, Estimator.MEDIAN)
    )
    rows = [run_of(info, n, samples={"latency_ms": each}) for n, each in ((1, best), (2, median))]
    path = tmp_path / "a.h5"
    write_dataset(path, Dataset(info, tuple(rows), GRAPHS))
    assert check_dataset(path) == []
    found = read_networks(path).measurements
    assert [row.samples["latency_ms"] for row in found] == [best, median]
    assert [row.value("latency_ms") for row in found] == [3.0, 3.5]
    # Rows that agree need no column.
    write_dataset(path, Dataset(info, (rows[0], rows[0]), GRAPHS))
    (columns,) = export_dataset(path, tmp_path / "a.csv")
    assert "latency_estimator" not in columns.read_text(encoding="utf-8")
    # Without its seal, as other tools would write it.
    path.write_bytes(path.read_bytes()[512:])
    with h5py.File(path, "r+") as file:
        file["networks"]["latency_ms"].attrs["estimator"] = "median"
    assert any("is not the median of its samples" in each for each in check_dataset(path))


def test_merged_networks_are_repeats_where_their_settings_agree(
    tmp_path: Path, info: DatasetInfo, measured: MeasuredFactory
) -> None:
    first = (measured(), run_of(info, 1), run_of(info, 2))
    write_dataset(tmp_path / "a.h5", Dataset(info, first, GRAPHS))
    second = (run_of(info, 1), run_of(info, 1, started_at=9.0))
    write_dataset(tmp_path / "b.h5", Dataset(info, second, GRAPHS))
    merged = merge_datasets([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "c.h5")
    runs = read_networks(tmp_path / "c.h5")
    # The row that both parts have counts once.
    assert [(row.setting.batch, row.repeat) for row in runs.measurements] == [
        (1, 0), (2, 0), (1, 1),
    ]  # fmt: skip
    assert len(merged.measurements) == 4
    assert runs.graphs == GRAPHS
    assert check_dataset(tmp_path / "c.h5") == []


def test_networks_are_added_to_a_file_that_may_be_there(
    tmp_path: Path, info: DatasetInfo, measured: MeasuredFactory
) -> None:
    path = tmp_path / "a.h5"
    append_networks(path, [run_of(info, 2)], GRAPHS)
    assert read_info(path).setting == info.setting  # the batch is each row's own
    append_networks(path, [run_of(info, 2, started_at=5.0), run_of(info, 8)], GRAPHS)
    runs = read_networks(path).measurements
    assert [(row.setting.batch, row.repeat) for row in runs] == [(2, 0), (2, 1), (8, 0)]
    assert check_dataset(path) == []
    layers = tmp_path / "b.h5"
    write_dataset(layers, Dataset(info, (measured(),)))
    append_networks(layers, runs, GRAPHS)
    assert len(read_table(layers)["dense"]) == 1
    assert len(read_networks(layers).measurements) == 3
    assert read_info(layers).campaign == info.campaign


@pytest.mark.parametrize(
    ("where", "how", "words"),
    [
        ({"cores": 64}, {}, "cores: 2 here, 64 there"),
        ({"device": "other"}, {}, "device: cpu here, other there"),
        ({}, {"framework": "other"}, "framework: synthetic here, other there"),
        ({}, {"threads": 1}, "threads: 2 here, 1 there"),
    ],
)
def test_runs_of_another_machine_or_setting_are_not_added(
    tmp_path: Path, info: DatasetInfo, where: dict[str, object], how: dict[str, object], words: str
) -> None:
    path = tmp_path / "a.h5"
    append_networks(path, [run_of(info, 2)], GRAPHS)
    before = path.read_bytes()
    platform = dataclasses.replace(info.platform, **where)  # type: ignore[arg-type]
    setting = dataclasses.replace(info.setting, batch=2, **how)  # type: ignore[arg-type]
    row = run_of(info, 2, platform=platform, setting=setting)
    with pytest.raises(DatasetError, match=f"{words}.*; choose another file"):
        refuse_to_append(path, setting, platform)
    with pytest.raises(DatasetError, match=f"{words}.*; choose another file"):
        append_networks(path, [row], GRAPHS)
    assert path.read_bytes() == before
    refuse_to_append(tmp_path / "absent.h5", setting, platform)


def test_runs_are_not_added_to_an_import(tmp_path: Path, info: DatasetInfo) -> None:
    imported = dataclasses.replace(info, source={"format": "list"})
    path = tmp_path / "a.h5"
    write_dataset(path, Dataset(imported, (run_of(info, 1),), GRAPHS))
    with pytest.raises(DatasetError, match=r"is an import of list.*choose another file"):
        append_networks(path, [run_of(info, 2)], GRAPHS)


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("networks/setting", 7, "networks: no such setting in 1 row (first: row 0)"),
        (
            "networks/digest",
            b"0" * 64,
            "networks: no graph with that digest in 1 row (first: row 0)",
        ),
        ("networks/latency_ms", -1.0, "networks: ok but latency_ms not above 0 in 1 row"),
    ],
)
def test_damaged_rows_are_found(
    edited: EditedFactory, tmp_path: Path, column: str, value: object, problem: str
) -> None:
    with edited() as file:
        file[column][0] = value
    assert any(line.startswith(problem) for line in check_dataset(tmp_path / "a.h5"))


def test_graphs_are_checked_by_their_digests(edited: EditedFactory, tmp_path: Path) -> None:
    with edited() as file:
        (digest,) = file["graphs"]
        file["graphs"][digest][0] = 0
    (problem,) = check_dataset(tmp_path / "a.h5")[1:]
    assert problem == f"graphs: the content of graph {digest} does not match its digest"


def test_summaries_count_networks_beside_layers(golden: Path) -> None:
    summary = summarize(golden)
    assert summary.rows == 13
    networks = summary.groups["networks"]
    assert (networks.rows, networks.subjects) == (5, 2)
    latency = networks.quantities["latency_ms"]
    assert (latency.min, latency.median, latency.max) == (2.5, 2.5, 2.5)
    assert json.loads(json.dumps(summary.to_json()))["networks"]["statuses"] == {
        "ok": 4, "crashed": 1,
    }  # fmt: skip


def test_summaries_of_networks_have_their_latency_and_noise(
    info: DatasetInfo, tmp_path: Path
) -> None:
    def phases(batch: int, repeat: int) -> Measurement:
        samples = {
            f"{phase}_ms": Samples((value,), 1, 0, StopReason.BUDGET)
            for phase, value in zip(
                ("preprocess", "execution", "postprocess"), (0.5, batch + repeat, 0.5), strict=True
            )
        }
        return run_of(info, batch, repeat=repeat, samples=samples, started_at=float(repeat))

    path = tmp_path / "a.h5"
    rows = (phases(1, 0), phases(3, 0), phases(3, 1))
    write_dataset(path, Dataset(info, rows, GRAPHS))
    latency = summarize(path).groups["networks"].quantities["latency_ms"]
    assert (latency.min, latency.median, latency.max) == (2.0, 4.0, 5.0)
    # Runs of 4 and 5 ms at one batch size; those at another are no repeats.
    assert latency.noise.pairs == 1
    assert latency.noise.mean_difference == pytest.approx(1 / 4.5)


def test_noisy_rows_of_networks_are_counted(info: DatasetInfo, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    rows = [run_of(info, batch, flags=("busy",) if batch < 3 else ()) for batch in range(1, 5)]
    write_dataset(path, Dataset(info, tuple(rows), GRAPHS))
    assert noise_warning(read_table(path).values()) == ""
    said = noise_warning(read_table(path, networks=True).values())
    assert said.startswith("2 of 4 measured rows (50%) are noisy")


def test_networks_are_exported_as_a_kind_of_their_own(golden: Path, tmp_path: Path) -> None:
    written = export_dataset(golden, tmp_path / "a.csv")
    (path,) = (each for each in written if each.name == "a.networks.csv")
    header, first, second, *_ = path.read_text().splitlines()
    cells = dict(zip(header.split(","), second.split(","), strict=True))
    assert (cells["name"], cells["step_ms"], cells["peak_memory_bytes"]) == (
        "net",
        "7.5",
        "3145728.0",
    )
    assert cells["latency_ms"] == ""
    assert first.startswith("net,")
    assert "setting" not in cells
    assert "platform" not in cells


def test_exported_networks_name_their_setting(tmp_path: Path, info: DatasetInfo) -> None:
    setting = dataclasses.replace(
        info.setting, mode=Mode.TRAINING, precision="fp16",
        shapes={"x": (1, 3, 224, 224), "mask": (1, 128)},
    )  # fmt: skip
    unknown = Setting("other", batch=8)
    rows = (run_of(info, 1, setting=setting), run_of(info, 2, setting=unknown))
    write_dataset(tmp_path / "a.h5", Dataset(info, rows, GRAPHS))
    export_dataset(tmp_path / "a.h5", tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    names = ("batch", "shapes", "mode", "precision", "threads", "framework", "device")
    assert [[row[name] for name in names] for row in found] == [
        ["", "mask=1x128;x=1x3x224x224", "training", "fp16", "2", "synthetic", "cpu"],
        ["8", "", "inference", "", "", "other", "cpu"],
    ]
