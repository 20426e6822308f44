"""timm's files: step times by network, joined to lists of operators."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from resperf.dataset import (
    ListedOperator,
    ListedTensor,
    NetworkDescription,
    check_dataset,
    export_dataset,
    read_networks,
)
from resperf.dataset.importing import import_timm
from resperf.errors import DatasetError
from resperf.measurement import Measurement, Status
from resperf.network import Network
from resperf.quantities import Estimator
from resperf.settings import Mode
from resperf.training import leave_out
from resperf.training.rows import network_examples

HEAD = "model,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count\n"
INFER = "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv"
CONV = ["aten.convolution", [[[2, 3, 64, 64], "f2", 0], [[8, 3, 3, 3], "f2", 1]],
        [[[2, 8, 62, 62], "f2"]], [[1, 1], False], 2]  # fmt: skip


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def listed(model: str, size: int, params: int, *, reparameterised: bool = False) -> str:
    values = {
        "ok": 1, "model": model, "size": size, "params": params, "module": f"{model}s", "kw": {},
        "reparameterised": reparameterised, "ops": [CONV], "nops": 2, "nlayer": 2, "sec": 0.1,
    }  # fmt: skip
    return json.dumps(values) + "\n"


def rows_of(path: Path) -> list[tuple[Measurement, NetworkDescription]]:
    assert check_dataset(path) == []
    found = read_networks(path)
    return [
        (row, NetworkDescription.from_bytes(found.descriptions[row.subject.description]))
        for row in found.measurements
    ]


def test_the_name_of_a_file_is_its_setting(tmp_path: Path) -> None:
    train = (
        "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n"
        "net,1000,64.5,64,64,0.32\n"
    )
    files = [
        written(tmp_path, INFER, HEAD + "net,64,2000.5,51.25,256.0,0.32\nnet,96,10,5,,0.32\n"),
        written(tmp_path, "benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv", train),
    ]
    imported = import_timm(files, tmp_path / "a.h5")
    assert (imported.rows, imported.quantities) == ({"networks": 3}, ("execution_ms", "step_ms"))
    (first, described), (second, _), (step, _) = rows_of(tmp_path / "a.h5")
    assert (first.subject.name, first.value("execution_ms")) == ("net-64", 51.25)
    assert (second.subject.name, second.setting.batch) == ("net-96", None)
    samples = first.samples["execution_ms"]
    assert samples.estimator is Estimator.THROUGHPUT_MEAN
    assert (samples.taken, samples.warmups) == (40, 10)
    setting = first.setting
    assert (setting.framework, setting.framework_version, setting.batch) == ("torch", "2.4.0", 256)
    assert (setting.precision, setting.layout, setting.compiled) == ("amp", "nhwc", "eager")
    assert (setting.mode, setting.optimizer) == (Mode.INFERENCE, "")
    assert setting.options == {
        "measured by": "timm", "session": INFER.removesuffix(".csv"), "CUDA": "12.4",
        "contains": "forward, kernels and dispatch",
    }  # fmt: skip
    assert (first.platform.device, first.platform.processor) == ("rtx3090", "GeForce RTX 3090")
    assert described == NetworkDescription("net-64", "net", image_size=64, parameters=320000)
    assert (step.value("step_ms"), step.setting.framework_version) == (64.5, "1.12")
    assert (step.setting.mode, step.setting.optimizer) == (Mode.TRAINING, "sgd")
    assert step.setting.options["contains"] == "forward, backward and update, kernels and dispatch"
    (table,) = export_dataset(tmp_path / "a.h5", tmp_path / "a.csv")
    assert ",nhwc,eager," in table.read_text().splitlines()[1]


def test_processors_are_compiled_and_of_their_own_class(tmp_path: Path) -> None:
    name = "benchmark-infer-fp32-nchw-pt221-cpu-i7_12700h-dynamo.csv"
    import_timm([written(tmp_path, name, HEAD + "net,64,10,5.5,1,0.32\n")], tmp_path / "a.h5")
    ((row, _),) = rows_of(tmp_path / "a.h5")
    assert (row.platform.device, row.setting.provider) == ("i7-12700h", "cpu")
    assert (row.setting.compiled, row.setting.precision) == ("dynamo", "fp32")
    assert "CUDA" not in row.setting.options


def test_lists_are_joined_by_architecture_size_and_parameters(tmp_path: Path) -> None:
    lists = (
        listed("net", 64, 1234567)
        + listed("rep", 64, 9876543)
        + listed("rep", 64, 7654321, reparameterised=True)
        + listed("same", 64, 5000000)
        + listed("same", 64, 5000000, reparameterised=True)
    )
    rows = (
        "net,64,10,1,256,1.23\nnet,96,10,2,256,1.23\nnet,64,10,3,256,1.5\n"
        "rep,64,10,4,256,7.65\nsame,64,10,5,256,5\n"
    )
    operators = written(tmp_path, "operators.jsonl", lists)
    file = written(tmp_path, INFER, HEAD + rows)
    imported = import_timm([file, operators], tmp_path / "a.h5")
    found = {row.value("execution_ms"): described for row, described in rows_of(tmp_path / "a.h5")}
    assert {time_ms: each.name for time_ms, each in found.items()} == {
        1: "net-64", 2: "net-96", 3: "net-64-1.5M", 4: "rep-64-reparameterised",
        # Of two with equal parameters, that of the other rows of this file.
        5: "same-64-reparameterised",
    }  # fmt: skip
    conv = ListedOperator(
        "aten.convolution",
        (ListedTensor((2, 3, 64, 64), "float16"), ListedTensor((8, 3, 3, 3), "float16", True)),
        (ListedTensor((2, 8, 62, 62), "float16"),),
        [[1, 1], False],
        2,
    )
    assert found[1] == NetworkDescription(
        "net-64", "net", "nets", image_size=64, batch=2, parameters=1234567, operators=(conv,)
    )
    assert found[4].reparameterised
    assert [len(found[time_ms].operators) for time_ms in (2, 3)] == [0, 0]
    assert [(each.what, each.reason, each.rows) for each in imported.marked] == [
        ("without a list of operators", "no list has their architecture and size", 1),
        ("without a list of operators",
         "another number of parameters than in the lists: another architecture", 1),
    ]  # fmt: skip
    plain = written(tmp_path, INFER, HEAD + "rep,64,10,4,256,9.88\nsame,64,10,5,256,5\n")
    import_timm([plain, operators], tmp_path / "a.h5")
    assert [row.subject.name for row, _ in rows_of(tmp_path / "a.h5")] == ["rep-64", "same-64"]


def test_rows_without_a_time_stay_and_are_counted(tmp_path: Path) -> None:
    text = HEAD + "net,64,,,,1.23\nnet,96,10,1,256,1.23\nnet,,10,1,256,1.23\nnet,64,10,-1,256,1.2\n"
    imported = import_timm([written(tmp_path, INFER, text)], tmp_path / "a.h5")
    (failed, _), (ok, _) = rows_of(tmp_path / "a.h5")
    assert (failed.status, failed.samples) == (Status.CRASHED, {})
    assert failed.detail == "the file gives no step time"
    assert ok.status is Status.OK
    assert [(each.what, each.rows) for each in imported.marked] == [("without a time", 1)]
    assert [(each.reason, each.rows) for each in imported.left_out] == [
        ("no value in infer_img_size", 1), ("a figure that cannot be read", 1),
    ]  # fmt: skip


FLOAT = TensorProto.FLOAT


def graph_file(folder: Path, name: str, channels: int) -> None:
    """Write a convolution of 9 x channels^2 weights, its normalisation, and a constant mask."""
    shapes = {"w": (channels, channels, 3, 3), "mask": (1, channels, 1, 1)} | dict.fromkeys(
        ("scale", "bias", "mean", "variance"), (channels,)
    )
    norm = ["c", "scale", "bias", "mean", "variance"]
    made = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("BatchNormalization", norm, ["n"]),
            helper.make_node("Add", ["n", "mask"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", channels, 64, 64])],
        [helper.make_tensor_value_info("y", FLOAT, ["batch", channels, 62, 62])],
        [numpy_helper.from_array(np.ones(shape, np.float32), key) for key, shape in shapes.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)])
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())


def test_graphs_are_attached_where_name_and_parameters_fit(tmp_path: Path) -> None:
    # 9 x 64^2 weights and 2 x 64 of the normalisation: 36,992. The mask's 64 may be parameters.
    lists = (
        listed("net", 64, 36992)
        + listed("net", 96, 36992)
        + listed("rep", 64, 80000)
        + listed("rep", 64, 36992, reparameterised=True)
        + listed("less", 64, 36800)
        + listed("more", 64, 37057)
    )
    rows = "".join(f"{name},10,1,256,0.04\n" for name in ("net,64", "net,96", "rep,64", "less,64"))
    operators = written(tmp_path, "operators.jsonl", lists)
    file = written(tmp_path, INFER, HEAD + rows + "more,64,10,1,256,0.04\nnone,64,10,1,256,0.03\n")
    for name in ("net-64", "rep-64-reparameterised", "less-64", "more-64", "none-64"):
        graph_file(tmp_path / "graphs", name, 64)
    graph_file(tmp_path / "graphs", "rep-64", 96)
    imported = import_timm([file, operators], tmp_path / "a.h5", graphs=tmp_path / "graphs")
    with_graph = {row.subject.name for row, _ in rows_of(tmp_path / "a.h5") if row.subject.digest}
    assert with_graph == {"net-64", "rep-64-reparameterised"}
    assert imported.graphs == 1
    (marked,) = (each for each in imported.marked if "graph" in each.what)
    assert (marked.what, marked.rows) == ("without the graph of their name", 3)
    assert marked.reason == "the graph has another number of parameters"
    assert marked.first == "less-64.onnx: 37,056 in the graph, 36,800 measured"
    examples = network_examples(tmp_path / "a.h5", "execution_ms", lists=True)
    # The graph is read at the batch size that was measured; what has none stays a list.
    read = [each for each in examples.networks if isinstance(each, Network)]
    assert [each.tensors["x"].shape for each in read] == [(256, 64, 64, 64)]
    assert [each.parameters for each in read] == [37056]
    # Equal graphs are repeats of one network.
    assert examples.groups == ["nets", "nets", "lesss", "mores"]


def test_a_folder_without_any_network_of_the_files_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, INFER, HEAD + "net,64,10,1,256,0.04\n")
    (tmp_path / "graphs").mkdir()
    with pytest.raises(DatasetError, match=r"has no file with .* network, such as net-64\.onnx"):
        import_timm([file], tmp_path / "a.h5", graphs=tmp_path / "graphs")
    assert not (tmp_path / "a.h5").exists()


def test_an_error_names_the_first_of_many_columns(tmp_path: Path) -> None:
    file = written(tmp_path, INFER, ",".join(f"c{i}" for i in range(100)) + "\n")
    with pytest.raises(DatasetError, match=r"its columns are c0, c1, .*, c11 and 88 more$"):
        import_timm([file], tmp_path / "a.h5")


def test_training_needs_graphs(tmp_path: Path) -> None:
    file = written(tmp_path, INFER, HEAD + "net,64,10,1,256,1.23\n")
    import_timm([file], tmp_path / "a.h5")
    with pytest.raises(DatasetError, match=r"has no graphs of its networks; import .* --graphs"):
        network_examples(tmp_path / "a.h5", "execution_ms")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("results.csv", HEAD, "results.csv is no file of timm: names say mode, precision"),
        ("benchmark-infer-amp-nhwc-pt240-cu124-voodoo2.csv", HEAD, "no device 'voodoo2'; name it"),
        (INFER, "model,param_count\nnet,1\n", "has no column 'infer_step_time'; its columns are"),
        (INFER, HEAD, "nothing to import: the files hold no rows"),
        ("operators.jsonl", "{}\n", "line 1 is no list of operators"),
        ("operators.jsonl", listed("net", 64, 1), "no file says which device it is of"),
    ],
)
def test_other_files_are_refused_in_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    files = [written(tmp_path, name, text)]
    if text == "{}\n":
        files.append(written(tmp_path, INFER, HEAD + "net,64,10,1,256,1.23\n"))
    with pytest.raises(DatasetError, match=message) as raised:
        import_timm(files, tmp_path / "a.h5")
    assert "\n" not in str(raised.value)


def test_sizes_of_one_architecture_are_left_out_together(tmp_path: Path) -> None:
    sizes = {"one": (64, 96), "two": (64, 128), "six": (96,), "ten": (160,)}
    pairs = [(name, size) for name, own in sizes.items() for size in own]
    lists = written(tmp_path, "operators.jsonl", "".join(listed(*each, 320000) for each in pairs))
    times = "".join(f"{name},{size},10,{size / 8},256,0.32\n" for name, size in pairs)
    import_timm([written(tmp_path, INFER, HEAD + times), lists], tmp_path / "a.h5")
    [found] = leave_out(tmp_path / "a.h5", ["convmeter"], by="network")
    assert {each.name: each.rows for each in found.groups} == {
        name: len(own) for name, own in sizes.items()
    }
    assert found.fits == 4
    assert {each.name for each in found.families} == {f"{name}s" for name in sizes}
    [by_family] = leave_out(tmp_path / "a.h5", ["convmeter"], by="family")
    assert (by_family.fits, by_family.families) == (4, ())
