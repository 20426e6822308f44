"""NeuSight's files: operators of two sessions, and networks with their operators."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resperf.dataset import (
    NetworkDescription,
    check_dataset,
    noise_floor,
    read_dataset,
    read_networks,
    read_table,
)
from resperf.dataset.importing import import_neusight
from resperf.dataset.importing.rows import ForeignFile
from resperf.errors import DatasetError
from resperf.layers import Activation, Conv, Dense, Elementwise, MatMul, Norm, Operand, Softmax
from resperf.layers import Operator as Read
from resperf.measurement import Measurement
from resperf.network import weightless
from resperf.quantities import Estimator
from resperf.settings import Mode

HEAD = "OPName,Latency,Device,Torch Version,CUDNN Version,Kernel Name,"
OPERATORS = (
    "op,target,meta,input_shapes,input_contiguous,output_shape,dtype,fw_latency,bw_latency,"
    "acc_latency,Name\n"
)
LINEAR = "<class 'torch.nn.modules.linear.Linear'>"
LENET = Path(__file__).parents[3] / "models" / "networks" / "lenet5.onnx"


def row(op: str, time_ms: float, *shape: int, device: str = "Tesla T4") -> str:
    return f'{op},{time_ms},{device},p2.1.0,8902,"kernel<4, float>",{",".join(map(str, shape))}\n'


def written(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A training step of two blocks of one linear layer, and a head."""
    folder = tmp_path / "Tesla_T4"
    block = f"\"{{'s': O([('net.layers.0.dense', {LINEAR})])}}\""
    head = f"\"{{'s': O([('net.head', {LINEAR})])}}\""
    lines = (
        'placeholder,input_ids,{},[],[],"(4, 8)",torch.int64,0.0,0.0,0,input_ids',
        f'call_module,net.layers.0.dense,{block},"[[4, 8, 512]]",[True],"(4, 8, 512)",'
        "torch.float32,1.01,2.01,0.5,dense",
        f'call_method,view,{block},"[[4, 8, 512]]","[True, False]","(32, 512)",torch.float32,'
        "0.01,0.0,0,view",
        f'call_module,net.head,{head},"[[4, 8, 512]]",[True],"(4, 8, 1024)",torch.float32,2.01,'
        "4.01,0.5,head",
        'call_function,<built-in method addmm of type object at 0x15552dc96d80>,{},"[[6], [5, 7], '
        '[7, 6]]","[True, True, True]","(5, 6)",torch.float32,0.02,0.01,0,addmm',
    )
    written(folder, "net_large-train-8-4.csv", OPERATORS + "\n".join(lines) + "\n")
    totals = {"num_layer": 2, "e2e_latency": 12, "fw_latency": 4.0, "bwall_latency": 8.0}
    written(folder, "net_large-train-8-4.json", json.dumps(totals))
    return folder / "net_large-train-8-4.csv"


def test_operators_become_layers_of_two_sessions(tmp_path: Path) -> None:
    train = written(tmp_path, "train_bmm.csv", HEAD + "B,M,N,K\n" + row("bmm", 0.5, 2, 16, 32, 64))
    test = written(
        tmp_path, "test_bmm.csv",
        HEAD + "B,M,N,K\n" + row("bmm", 0.75, 2, 16, 32, 64) + row("bmm", 0.7, 2, 16, 32, 64),
    )  # fmt: skip
    imported = import_neusight([train, test], tmp_path / "t4.h5")
    assert (imported.rows, imported.repeats) == ({"matmul": 3}, 2)
    assert check_dataset(tmp_path / "t4.h5") == []
    rows = read_dataset(tmp_path / "t4.h5").measurements
    times_ms = [round(each.value("execution_ms"), 6) for each in rows]
    sessions = [each.setting.options["session"] for each in rows]
    assert list(zip(times_ms, sessions, strict=True)) == [
        (0.5, "train"), (0.75, "test"), (0.7, "test"),
    ]  # fmt: skip
    assert {each.layer for each in rows} == {MatMul(batch=2, rows=16, columns=32, depth=64)}
    first = rows[0]
    assert first.samples["execution_ms"].estimator is Estimator.MEAN_OF_BEST_FIVE
    assert first.samples["execution_ms"].taken == 25
    assert (first.setting.framework_version, first.setting.precision) == ("2.1.0", "fp32")
    assert (first.setting.compiled, first.platform.device) == ("eager", "t4")
    assert first.setting.options["contains"] == "kernels and dispatch"
    table = read_table(tmp_path / "t4.h5")["matmul"]
    assert table.setting.tolist() == [0, 1, 1]
    # Only the two of one session are repeats: |0.75 - 0.7| / 0.725.
    floor = noise_floor(table, "execution_ms")
    assert (floor.pairs, round(floor.mean_difference, 4)) == (1, 0.069)


def test_every_operator_has_a_kind(tmp_path: Path) -> None:
    conv = (
        HEAD + "B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding\n"
        + row("conv", 1.5, 8, 16, 32, 3, 14, 1, 1)
    )  # fmt: skip
    files = [
        written(tmp_path, "train_conv.csv", conv),
        written(
            tmp_path, "test_linear.csv", HEAD + "B,M,N,K\n" + row("linear", 1.25, 1, 512, 64, 128)
            + row("linear", 1.25, 2, 512, 64, 128),
        ),
        written(
            tmp_path, "test_elem.csv",
            HEAD + "B,H\n" + row("mul", 0.5, 64, 100) + row("powu", 0.5, 64, 100)
            + row("gelu", 0.5, 64, 100) + row("erf", 0.5, 64, 100),
        ),
        written(tmp_path, "train_softmax.csv", HEAD + "B,H\n" + row("softmax", 0.5, 64, 100)),
        written(tmp_path, "train_ln.csv", HEAD + "B,H\n" + row("ln", 0.5, 64, 100)),
    ]  # fmt: skip
    imported = import_neusight(files, tmp_path / "a.h5")
    assert {each.layer for each in read_dataset(tmp_path / "a.h5").measurements} == {
        Conv(batch=8, channels_in=16, height=14, width=14, kernel_height=3, kernel_width=3,
             channels_out=32, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1),
        Dense(batch=512, features_in=128, features_out=64),
        Elementwise(batch=64, inner=100, function="mul", second="same"),
        Elementwise(batch=64, inner=100, function="pow", second="scalar"),
        Activation(batch=64, values=100, activation="gelu"),
        Softmax(batch=64, outer=1, values=100, inner=1),
        Norm(batch=64, channels=100, pixels=1, function="layer"),
    }  # fmt: skip
    assert [(each.reason, each.rows) for each in imported.left_out] == [
        ("of no kind in the mapping", 2)
    ]


def test_the_layers_are_those_that_a_graph_is_read_as() -> None:
    image = Operand((64, 100), "float32")
    again = Elementwise.read(Read("Mul", {}, (image, image), ((64, 100),)))
    assert again == Elementwise(batch=64, inner=100, function="mul", second="same")
    scalar = Elementwise.read(Read("Mul", {}, (image, Operand((), "float32")), ((64, 100),)))
    assert scalar == Elementwise(batch=64, inner=100, function="mul", second="scalar")
    norm = Norm.read(Read("LayerNormalization", {"axis": -1}, (image,), ((64, 100),)))
    assert norm == Norm(batch=64, channels=100, pixels=1, function="layer")


def test_a_throttled_session_is_flagged_and_counted(tmp_path: Path) -> None:
    # 2 x 2048 x 2048 x 2048 operations are 17.2 GFLOP: 2.12 ms at the peak of 8.1 TFLOP/s.
    slow = [row("linear", 10.6, 1, 2048, 2048, 2048) for _ in range(10)]
    fast = [row("linear", 4.2, 1, 2048, 2048, 2048) for _ in range(10)]
    files = [
        written(tmp_path, "train_linear.csv", HEAD + "B,M,N,K\n" + "".join(slow)),
        written(tmp_path, "test_linear.csv", HEAD + "B,M,N,K\n" + "".join(fast)),
    ]
    imported = import_neusight(files, tmp_path / "a.h5")
    (marked,) = imported.marked
    assert (marked.what, marked.rows) == ("flagged throttled", 10)
    assert marked.first == "train_linear.csv line 2: large products at 20% of the peak"
    assert "large products reach less than 25%" in marked.reason
    rows = read_dataset(tmp_path / "a.h5").measurements
    assert {(each.setting.options["session"], each.flags, each.detail) for each in rows} == {
        ("train", ("throttled",), "large products at 20% of the peak"), ("test", (), ""),
    }  # fmt: skip
    # Nine large products are too few to judge a session.
    few = HEAD + "B,M,N,K\n" + "".join(slow[:9])
    imported = import_neusight([written(tmp_path, "train_linear.csv", few)], tmp_path / "b.h5")
    assert imported.marked == ()


def test_files_without_versions_are_those_of_amd(tmp_path: Path) -> None:
    text = "OPName,Latency,Device,Kernel Name,B,H\nadd,0.016,AMD Instinct MI100,k,58,13\n"
    import_neusight([written(tmp_path, "train_add.csv", text)], tmp_path / "a.h5")
    (only,) = read_dataset(tmp_path / "a.h5").measurements
    assert (only.platform.device, only.setting.framework_version) == ("mi100", "2.4.1")
    assert only.setting.provider == "rocm"


def only_network(path: Path) -> tuple[Measurement, NetworkDescription]:
    dataset = read_networks(path)
    (found,) = dataset.measurements
    assert check_dataset(path) == []
    return found, NetworkDescription.from_bytes(dataset.descriptions[found.subject.description])


def test_a_network_keeps_its_operators(network: Path, tmp_path: Path) -> None:
    imported = import_neusight([network, network.with_suffix(".json")], tmp_path / "a.h5")
    assert (imported.rows, imported.networks, imported.graphs) == ({"networks": 1}, 1, 0)
    assert imported.quantities == ("forward_ms", "backward_ms")
    found, described = only_network(tmp_path / "a.h5")
    assert (found.value("forward_ms"), found.value("backward_ms")) == (4.0, 8.0)
    assert found.samples["forward_ms"].estimator is Estimator.UNKNOWN
    assert (found.setting.mode, found.setting.batch) == (Mode.TRAINING, 4)
    assert (found.subject.name, found.platform.device) == ("net_large-8", "t4")
    assert (described.architecture, described.family, described.sequence) == ("net_large", "net", 8)
    operators = described.operators
    assert [(each.op, each.count) for each in operators] == [
        ("placeholder", 1), ("Linear", 2), ("view", 2), ("Linear", 1), ("addmm", 1),
    ]  # fmt: skip
    assert operators[2].attributes == {"name": "view", "contiguous": [True, False]}
    assert operators[1].times_ms == {
        "forward_ms": 1.01, "backward_ms": 2.01, "accumulate_ms": 0.5,
    }  # fmt: skip
    # Without a launch of 0.01 ms each, forward takes 2 x 1.00 + 2.00 + 0.01 ms.
    assert (found.flags, found.detail) == ((), "")


def test_a_throttled_network_is_flagged(network: Path, tmp_path: Path) -> None:
    # 2 x (2 x 32768 x 4096 x 4096) operations in 2 x 1010 ms, and little in 2.01 ms.
    text = network.read_text().replace("4, 8, 512", "16, 2048, 4096").replace(",1.01,", ",1010,")
    network.write_text(text)
    totals = {"num_layer": 2, "fw_latency": 2022.0, "bwall_latency": 8.0}
    network.with_suffix(".json").write_text(json.dumps(totals))
    imported = import_neusight([network], tmp_path / "a.h5")
    assert [(each.what, each.rows) for each in imported.marked] == [("flagged throttled", 1)]
    found, _ = only_network(tmp_path / "a.h5")
    assert (found.flags, found.detail) == (("throttled",), "linear layers at 13% of the peak")


def test_a_total_that_is_not_the_sum_is_flagged(network: Path, tmp_path: Path) -> None:
    totals = {"num_layer": 2, "fw_latency": 6.0, "bwall_latency": 8.0}
    network.with_suffix(".json").write_text(json.dumps(totals))
    imported = import_neusight([network], tmp_path / "a.h5")
    assert [(each.what, each.rows) for each in imported.marked] == [("flagged inconsistent", 1)]
    found, _ = only_network(tmp_path / "a.h5")
    assert found.flags == ("inconsistent",)
    assert found.detail == "forward_ms is 1.50 of the operators"


def test_graphs_are_attached_by_name(network: Path, tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "net_large-8.onnx").write_bytes(LENET.read_bytes())
    imported = import_neusight([network], tmp_path / "a.h5", graphs=tmp_path / "graphs")
    assert imported.graphs == 1
    dataset = read_networks(tmp_path / "a.h5")
    assert dataset.graphs == {dataset.measurements[0].subject.digest: weightless(LENET)}
    with pytest.raises(DatasetError, match=r"graphs .*absent is no folder"):
        import_neusight([network], tmp_path / "b.h5", graphs=tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("data.csv", "a,b\n", r"data.csv is no file of neusight: names are train_OP.csv"),
        ("train_add.csv", "a,b\n1,2\n", "has no column 'Device'"),
        ("train_add.csv", HEAD + "B,H\n" + row("add", 1, 2, 3, device="Voodoo 2"),
         "no device 'Voodoo 2'; name it with --device, one of 1080ti, "),
        ("train_add.csv", "OPName,Device,B,H\nadd,Tesla T4,2,3\n", "has no column 'Latency'"),
        ("train_add.csv", HEAD + "X\n" + row("add", 1, 2), "is no file of neusight: matmul lacks"),
        ("train_add.csv", HEAD + "B,H\n" + row("add", 0, 2, 3), "nothing to import: 1 row l"),
    ],
)  # fmt: skip
def test_other_files_are_refused_in_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(DatasetError, match=message) as raised:
        import_neusight([written(tmp_path, name, text)], tmp_path / "a.h5")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "a.h5").exists()


def test_files_of_two_devices_are_refused(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "a", "train_add.csv", HEAD + "B,H\n" + row("add", 1, 2, 3)),
        written(
            tmp_path / "b", "train_add.csv",
            HEAD + "B,H\n" + row("add", 1, 2, 3, device="Tesla P4"),
        ),
    ]  # fmt: skip
    with pytest.raises(DatasetError, match=r"train_add.csv is of t4, .*train_add.csv of p4; imp"):
        import_neusight(files, tmp_path / "c.h5")
    assert import_neusight(files, tmp_path / "c.h5", device="L4").rows == {"elementwise": 2}
    with pytest.raises(DatasetError, match="are the same file; name it once"):
        import_neusight([files[0], files[0]], tmp_path / "c.h5")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("net_large-train-8-4.json", None, "needs net_large-train-8-4.json with the network's tot"),
        ("net_large-train-8-4.json", "{}", "needs num_layer, fw_latency and bwall_latency"),
        ("net_large-train-8-4.json", '{"num_layer": 0, "fw_latency": 1, "bwall_latency": 1}',
         "num_layer and times must be above 0"),
        ("net_large-train-8-4.csv", "op,target\n", "has no column 'meta'"),
        ("net_large-train-8-4.csv", OPERATORS, "lists no operators"),
        ("net_large-train-8-4.csv", OPERATORS + "call_module,a,,[],[],?,,1,1,1,a\n",
         "line 2 is no operator of a network"),
    ],
)  # fmt: skip
def test_a_damaged_network_is_refused_in_one_line(
    network: Path, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    path = network.with_name(name)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(DatasetError, match=message) as raised:
        import_neusight([network], tmp_path / "a.h5")
    assert "\n" not in str(raised.value)


def test_the_place_of_a_quoted_row_is_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'x,y\n"1\n",2\n3,\n')
    file = ForeignFile.read(path)
    assert list(file.cells()) == [
        ("a.csv line 3", {"x": "1", "y": "2"}), ("a.csv line 4", {"x": "3"}),
    ]  # fmt: skip
