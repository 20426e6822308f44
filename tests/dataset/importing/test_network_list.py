"""A list of networks and times becomes rows of networks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from resperf.cli.main import main
from resperf.dataset import (
    check_dataset,
    merge_datasets,
    read_info,
    read_networks,
)
from resperf.dataset.importing import import_list
from resperf.errors import DatasetError
from resperf.network import read_graph, read_network
from resperf.quantities import Estimator
from resperf.settings import Mode, Setting

NETWORKS = Path(__file__).parents[3] / "models" / "networks"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two real networks in a folder of the list's own."""
    (tmp_path / "nets").mkdir()
    for name in ("lenet5", "alexnet"):
        shutil.copy(NETWORKS / f"{name}.onnx", tmp_path / "nets")
    return tmp_path


def listed(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_networks_settings_and_times_are_stored(folder: Path) -> None:
    path = listed(
        folder,
        "network,batch,time_ms,framework,threads,precision\n"
        "nets/lenet5.onnx,1,0.5,onnxruntime,2,\n"
        "nets/lenet5.onnx,8,2.5,onnxruntime,2,fp16\n"
        "nets/alexnet.onnx,,7,onnxruntime,,\n"
        "nets/lenet5.onnx,1,0.6,onnxruntime,2,\n",
    )
    imported = import_list([path], folder / "runs.h5", device="my card")
    assert (dict(imported.rows), imported.quantities, imported.repeats) == (
        {"networks": 4}, ("latency_ms",), 1,
    )  # fmt: skip
    assert check_dataset(folder / "runs.h5") == []
    shutil.rmtree(folder / "nets")  # the dataset holds what is needed of them
    dataset = read_networks(folder / "runs.h5")
    rows = {(row.subject.name, row.setting.batch, row.repeat): row for row in dataset.measurements}
    assert {key: round(row.value("latency_ms"), 6) for key, row in rows.items()} == {
        ("lenet5", 1, 0): 0.5, ("lenet5", 8, 0): 2.5, ("alexnet", None, 0): 7.0,
        ("lenet5", 1, 1): 0.6,
    }  # fmt: skip
    assert rows["lenet5", 8, 0].setting == Setting(
        "onnxruntime", threads=2, precision="fp16", batch=8
    )
    assert rows["lenet5", 8, 0].platform.device == "my card"
    assert rows["lenet5", 8, 0].samples["latency_ms"].estimator is Estimator.UNKNOWN
    graph = dataset.graphs[rows["lenet5", 8, 0].subject.digest]
    again, original = (
        read_graph(graph, "lenet5", batch=8),
        read_network(NETWORKS / "lenet5.onnx", batch=8),
    )
    assert again.nodes == original.nodes
    assert {name: each.shape for name, each in again.tensors.items()} == {
        name: each.shape for name, each in original.tensors.items()
    }


def test_quantities_of_one_run_are_one_row(folder: Path) -> None:
    path = listed(
        folder,
        "network,value,quantity,mode,optimizer,device,estimator\n"
        "nets/lenet5.onnx,3.5,step,training,sgd,GeForce GTX 1080 Ti,median\n"
        "nets/lenet5.onnx,1e6,peak_memory_bytes,training,sgd,1080ti,maximum\n"
        "nets/lenet5.onnx,4.5,step_ms,training,sgd,1080ti,median\n",
    )
    import_list([path], folder / "runs.h5")
    first, second = read_networks(folder / "runs.h5").measurements
    assert (first.value("step_ms"), first.value("peak_memory_bytes")) == (3.5, 1e6)
    assert (second.value("step_ms"), second.repeat) == (4.5, 1)
    assert first.setting.mode is Mode.TRAINING
    assert first.platform.device == "1080ti"
    assert first.samples["peak_memory_bytes"].estimator is Estimator.MAXIMUM


def test_a_shipped_network_is_named_without_a_file(folder: Path) -> None:
    path = listed(folder, "network,batch,time_ms\nresnet18,1,3.5\n")
    import_list([path], folder / "runs.h5", device="cpu")
    (row,) = read_networks(folder / "runs.h5").measurements
    assert row.subject.name == "resnet18"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("nets/none.onnx,1,1,,", "no file"),
        (",1,1,,", "no network is named"),
        ("nets/lenet5.onnx,0,1,,", "batch: '0' is not an integer of at least 1"),
        ("nets/lenet5.onnx,1,soon,,", "'soon' is not a number"),
        ("nets/lenet5.onnx,1,-1,,", "latency_ms = -1 is not above 0"),
        ("nets/lenet5.onnx,1,,,", "no latency_ms is given"),
        ("nets/lenet5.onnx,1,1,lunch,", "no quantity 'lunch'"),
        ("nets/lenet5.onnx,1,1,peak_memory_bytes,", "is in bytes; call the column 'value'"),
        ("nets/lenet5.onnx,1,1,,x:1x3", "shapes: 'x:1x3' is not a shape such as"),
        ("nets/lenet5.onnx,1,1,,someone=1x3", "someone"),
    ],
)
def test_a_row_that_makes_no_sense_is_named(folder: Path, row: str, reason: str) -> None:
    header = "network,batch,time_ms,quantity,shapes\n"
    path = listed(folder, f"{header}nets/lenet5.onnx,1,1,,\n{row}\n")
    imported = import_list([path], folder / "runs.h5", device="cpu")
    (bad,) = imported.left_out
    assert bad.first == "runs.csv line 3"
    assert reason in bad.reason
    with pytest.raises(
        DatasetError, match=r"nothing to import: 1 row left out: .*: runs\.csv line 2"
    ):
        import_list([listed(folder, header + row)], folder / "b.h5", device="cpu")


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("network,time_ms,moon", "an unknown column 'moon'"),
        ("network,network,time_ms", "two columns 'network'"),
        ("batch,time_ms", "no column 'network'"),
        ("network,batch", "needs either a column 'time_ms'"),
        ("network,time_ms,value", "needs either a column 'time_ms'"),
    ],
)
def test_a_list_without_its_columns_is_refused(folder: Path, header: str, problem: str) -> None:
    with pytest.raises(DatasetError, match=problem):
        import_list([listed(folder, f"{header}\n")], folder / "a.h5", device="cpu")


def test_a_row_without_a_device_is_named(folder: Path) -> None:
    path = listed(folder, "network,time_ms,device\nnets/lenet5.onnx,1,\nnets/lenet5.onnx,1,k80\n")
    (bad,) = import_list([path], folder / "a.h5").left_out
    assert "--device" in bad.reason


def test_the_command_line_imports_lists(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = listed(folder, "network,time_ms\nnets/lenet5.onnx,1.5\nnets/lenet5.onnx,x\n")
    words = ["dataset", "import", str(path), "-o", str(folder / "a.h5")]
    assert main([*words, "--format", "list", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{folder / 'a.h5'}: 1 rows of latency_ms",
        "  networks: 1 rows",
        "1 network, 1 with a graph",
        "1 row left out: 'x' is not a number (first: runs.csv line 3)",
    ]
    assert main(["dataset", "info", str(folder / "a.h5")]) == 0
    shown = capsys.readouterr().out
    assert "imported   list: runs.csv" in shown
    assert "contains   latency_ms: runs of networks" in shown
    assert ["networks", "latency_ms", "1.500"] in [line.split()[:3] for line in shown.splitlines()]
    assert main(["dataset", "info", str(folder / "a.h5"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["networks"]["rows"] == 1
    assert main([*words, "--format", "justus", "--force"]) == 2
    assert "--device" in capsys.readouterr().err


def test_lists_of_one_machine_merge_whatever_their_first_batches_are(folder: Path) -> None:
    parts = []
    for batch in (1, 8):
        rows = f"nets/lenet5.onnx,{batch},{batch}.5,onnxruntime,2\n"
        path = listed(folder, f"network,batch,time_ms,framework,threads\n{rows}")
        parts.append(folder / f"{batch}.h5")
        import_list([path], parts[-1], device="my card")
    assert read_info(parts[0]).setting == Setting("onnxruntime", threads=2)
    merge_datasets(parts, folder / "both.h5")
    runs = read_networks(folder / "both.h5").measurements
    assert sorted((row.setting.batch, row.value("latency_ms")) for row in runs) == [
        (1, 1.5), (8, 8.5),
    ]  # fmt: skip
