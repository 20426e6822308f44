"""Tables of published latencies: settings, cards, and the graphs that rows are joined to."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from resperf.dataset import NetworkDescription, read_networks
from resperf.dataset.importing import Imported, import_latencies
from resperf.errors import DatasetError
from resperf.measurement import Measurement
from resperf.quantities import Estimator
from resperf.training.rows import network_examples

ROW = {
    "source": "github:a/b:c.md@1", "licence": "MIT", "network": "Net-S", "family": "Net",
    "build": "nets.net(width=8)", "input": "3x64x64", "batch": "8", "precision": "fp16",
    "gpu": "RTX 3060 12GB", "trt_version": "8.6.1", "content": "GPU compute (no CUDA graph)",
    "statistic": "median of 30", "latency_ms": "1.25", "note": "", "grade": "A",
}  # fmt: skip


def imported_rows(folder: Path, *changes: dict[str, str]) -> tuple[Imported, list[Measurement]]:
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, tuple(ROW))
        writer.writeheader()
        writer.writerows({**ROW, **change} for change in changes)
    imported = import_latencies([path], folder / "rows.h5")
    return imported, list(read_networks(folder / "rows.h5").measurements)


def test_a_row_is_a_network_under_the_setting_that_its_source_states(tmp_path: Path) -> None:
    _, (row,) = imported_rows(tmp_path, {})
    assert (row.subject.name, row.value("execution_ms")) == ("nets.net-width-8@3x64x64", 1.25)
    assert row.samples["execution_ms"].estimator is Estimator.MEDIAN
    setting = row.setting
    assert (setting.framework, setting.framework_version) == ("tensorrt", "8.6.1")
    assert (setting.precision, setting.batch, setting.cuda_graph) == ("fp16", 8, False)
    assert setting.options["session"] == "github:a/b"
    assert setting.options["source"] == "github:a/b:c.md@1"
    assert setting.options["contains"] == "GPU compute (no CUDA graph)"
    stored = read_networks(tmp_path / "rows.h5").descriptions[row.subject.description]
    assert NetworkDescription.from_bytes(stored) == NetworkDescription(
        "nets.net-width-8@3x64x64", "Net-S", "Net", image_size=64
    )


def test_precisions_graphs_and_sequences(tmp_path: Path) -> None:
    _, rows = imported_rows(
        tmp_path,
        {"precision": "fp32/tf32", "content": "trtexec --useCudaGraph"},
        {"precision": "fp32", "content": "GPU compute (CUDA graph)", "input": "seq128"},
    )
    assert [row.setting.precision for row in rows] == ["tf32", "fp32"]
    assert all(row.setting.cuda_graph for row in rows)
    assert rows[1].subject.name == "nets.net-width-8@seq128"


def test_spellings_of_one_card_are_one_card_and_unknown_variants_are_marked(tmp_path: Path) -> None:
    names = {
        "RTX 3060": "rtx3060", "RTX 3060 12GB": "rtx3060", "RTX 3060 Laptop": "rtx3060-laptop",
        "Jetson Orin Nano 8GB (not Super)": "orin-nano", "Jetson Orin Nano 8GB": "orin-nano",
        "Jetson Orin Nano Super 8GB": "orin-nano-super", "Jetson AGX Orin 64GB": "agx-orin",
        "V100-SXM2-32GB": "v100-32gb", "V100 (variant not stated)": "v100",
    }  # fmt: skip
    imported, rows = imported_rows(tmp_path, *({"gpu": name} for name in names))
    assert [row.platform.device for row in rows] == list(names.values())
    (marked,) = imported.marked
    assert str(marked) == (
        "1 row of an unknown variant: the source does not say which V100; taken as v100 (first: "
        "rows.csv line 10)"
    )


def test_rows_are_joined_to_the_graph_of_their_network_and_size(tmp_path: Path) -> None:
    imported_rows(tmp_path, {}, {"input": "3x32x32"}, {"family": "Other", "input": "3x16x16"})
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3, 8, 8]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    folder = tmp_path / "graphs"
    folder.mkdir()
    for size in (64, 16):
        path = folder / f"nets.net-width-8@3x{size}x{size}.onnx"
        path.write_bytes(helper.make_model(graph).SerializeToString())
    imported = import_latencies([tmp_path / "rows.csv"], tmp_path / "rows.h5", graphs=folder)
    assert (imported.networks, imported.graphs) == (2, 1)  # equal graphs are one network
    left_out: list[str] = []
    examples = network_examples(tmp_path / "rows.h5", "execution_ms", left_out=left_out)
    assert [network.tensors["x"].shape for network in examples.networks] == [(8, 3, 8, 8)]
    assert examples.groups == ["Net"]
    assert left_out == ["left out: 1 without a graph, first nets.net-width-8@3x32x32"]


def test_rows_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    imported, rows = imported_rows(
        tmp_path, {}, {"latency_ms": "0"}, {"batch": "many"}, {"precision": "fp4"}, {"gpu": ""}
    )
    assert len(rows) == 1
    assert sorted(str(counted) for counted in imported.left_out) == [
        "1 row left out: no value in gpu (first: rows.csv line 6)",
        "3 rows left out: a figure that cannot be read (first: rows.csv line 3: 0 ms at batch 8 in "
        "fp16)",
    ]


def test_another_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("network,time\na,1\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="no column"):
        import_latencies([tmp_path / "rows.csv"], tmp_path / "rows.h5")
