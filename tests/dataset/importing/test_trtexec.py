"""Engines of TensorRT, read from trtexec's exports and imported."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resperf.dataset import (
    NetworkDescription,
    check_dataset,
    merge_datasets,
    read_dataset,
)
from resperf.dataset.importing import EngineLayer, EngineTensor, import_trtexec, read_exports
from resperf.dataset.importing.engine_layers import typed_layer
from resperf.dataset.importing.trtexec import version_of
from resperf.errors import DatasetError, LayerError
from resperf.measurement import NetworkRef

SMALL = Path(__file__).parent / "trtexec"
GRAPH, PROFILE, TIMES, LOG = (
    SMALL / f"small.{each}" for each in ("graph.json", "profile.json", "times.json", "log")
)
HALF = "Channel major FP16 format where channel % 8 == 0"


def changed(tmp_path: Path, path: Path, change: Any) -> Path:
    """Write a changed copy of an export."""
    content = json.loads(path.read_text())
    change(content)
    copy = tmp_path / path.name
    copy.write_text(json.dumps(content))
    return copy


def test_engine() -> None:
    engine = read_exports([GRAPH, PROFILE, TIMES, LOG])
    assert (engine.name, engine.version, engine.device) == (
        "small", "8.6.1", "NVIDIA GeForce RTX 3090",
    )  # fmt: skip
    assert [layer.type for layer in engine.layers] == [
        "Reformat", "CaskConvolution", "CudaPooling", "NoOp", "CaskConvolution", "CudaPooling",
        "CaskConvolution", "NoOp", "Reformat", "CudaSoftMax",
    ]  # fmt: skip
    sums = engine.layers[4]
    assert sums.nodes == ("Conv_3", "Add_4", "Relu_5")
    assert sums.inputs == (
        EngineTensor(
            "Reformatted Input Tensor 0 to Conv_3 + Add_4 + Relu_5", (2, 4, 4, 4), "float16",
            "hwc16",
        ),
    ) * 2  # fmt: skip
    assert (sums.ms, sums.is_median, sums.parameters["Activation"]) == (0.02, True, "RELU")
    # 10 + 30 + 6 + 0 + 20 + 5 + 8 + 0 + 4 + 7 us.
    assert engine.layers_ms == pytest.approx(0.090)
    assert (engine.profiled_runs, engine.bindings) == (100, ("x", "y"))
    assert [each.name for each in engine.inputs] == ["x"]
    # The first run begins within the warm-up of 200 ms.
    assert engine.warmups == 1
    assert engine.h2d_ms == (0.012, 0.010, 0.011)
    assert engine.compute_ms == (0.080, 0.076, 0.074)
    assert engine.d2h_ms == (0.002, 0.004, 0.003)
    assert engine.facts["Precision"] == "FP32+FP16"
    assert "nets" not in engine.facts["Model"]
    assert not any("GPU-" in value for value in engine.facts.values())


@pytest.mark.parametrize(
    ("digits", "version"), [("8412", "8.4.12"), ("8601", "8.6.1"), ("101303", "10.13.3")]
)
def test_version_in_the_first_line_of_a_log(digits: str, version: str) -> None:
    assert version_of(digits) == version


def test_files_come_in_any_order_and_compressed(tmp_path: Path) -> None:
    packed = tmp_path / "small.graph.json.gz"
    packed.write_bytes(gzip.compress(GRAPH.read_bytes()))
    one, other = read_exports([LOG, TIMES, packed, PROFILE]), read_exports([GRAPH, PROFILE, TIMES])
    assert (one.name, one.layers) == (other.name, other.layers)
    assert other.device == ""


def test_a_file_called_graph_has_the_name_of_the_network(tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    graph.write_bytes(GRAPH.read_bytes())
    assert read_exports([graph]).name == "graph"
    assert read_exports([graph, LOG]).name == "small"


def test_import(tmp_path: Path) -> None:
    imported = import_trtexec([TIMES, LOG, PROFILE, GRAPH], tmp_path / "a.h5")
    assert check_dataset(tmp_path / "a.h5") == []
    rows = read_dataset(tmp_path / "a.h5").measurements
    image = {"kernel_height=3", "pad_top=1", "pad_right=1", "layout=nhwc", "dtype=float16"}
    times_us = {}
    for row in rows:
        if not isinstance(row.subject, NetworkRef):
            time_us = round(row.value("execution_ms") * 1e3, 3)
            times_us[row.layer.kind, time_us] = row.key
            assert row.samples["execution_ms"].taken == 100
            assert not row.setting.cuda_graph
    assert sorted(times_us) == [
        ("cast", 4), ("conv", 20), ("conv", 30), ("dense", 8), ("pool", 5), ("pool", 6),
        ("softmax", 7),
    ]  # fmt: skip
    assert image | {"residual=0", "channels_in=3"} <= set(times_us["conv", 30].split(","))
    assert image | {"residual=1", "activation=relu"} <= set(times_us["conv", 20].split(","))
    assert times_us["dense", 8] == (
        "dense:batch=2,features_in=4,features_out=10,bias=1,activation=none,dtype=float16"
    )
    assert "mode=average,whole_image=1" in times_us["pool", 5]
    run = next(row for row in rows if isinstance(row.subject, NetworkRef))
    assert run.value("preprocess_ms") == pytest.approx(0.011)
    assert run.value("execution_ms") == pytest.approx(0.076)
    assert run.value("postprocess_ms") == pytest.approx(0.003)
    assert run.value("latency_ms") == pytest.approx(0.090)
    assert run.samples["execution_ms"].warmups == 1
    setting = run.setting
    assert (setting.framework, setting.framework_version, setting.precision) == (
        "tensorrt", "8.6.1", "fp16",
    )  # fmt: skip
    assert (setting.batch, setting.shapes) == (2, {"x": (2, 3, 8, 8)})
    assert run.platform.device == "rtx3090"
    (engine,) = imported.info.source["engines"]
    assert engine["layers_ms"] / engine["whole_ms"] == pytest.approx(0.090 / 0.076)
    assert (engine["layers"], engine["views"], engine["relayouts"]) == (10, 2, 2)
    assert engine["relayouts_ms"] == pytest.approx(0.014)
    assert engine["copies"] is True
    assert [(each.ms, each.reason) for each in imported.untyped] == [
        (0.010, "it changes type and format at once")
    ]
    # Nothing is lost: every layer of the engine is described, with its time.
    described = read_dataset(tmp_path / "a.h5").descriptions[run.subject.description]
    layers = NetworkDescription.from_bytes(described).operators
    assert len(layers) == 10
    assert sum(each.times_ms["execution_ms"] for each in layers) == pytest.approx(0.090)


def test_copies_of_zero_are_not_measured(tmp_path: Path) -> None:
    def without_copies(runs: list[dict[str, float]]) -> None:
        for run in runs:
            run |= {"h2dMs": 0, "d2hMs": 0}

    times = changed(tmp_path, TIMES, without_copies)
    import_trtexec([GRAPH, times, LOG], tmp_path / "a.h5")
    (run,) = read_dataset(tmp_path / "a.h5").measurements
    assert set(run.samples) == {"execution_ms"}
    assert run.value("latency_ms") != run.value("latency_ms")


def test_profile_alone_has_no_network_row(tmp_path: Path) -> None:
    imported = import_trtexec([GRAPH, PROFILE], tmp_path / "a.h5", device="a100")
    assert "networks" not in imported.rows
    assert imported.info.source["engines"][0]["whole_ms"] is None


def test_engines_of_several_files_are_merged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        import_trtexec([GRAPH, PROFILE, TIMES, LOG], tmp_path / f"{name}.h5")
    merged = merge_datasets([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "c.h5")
    assert len(merged.info.source["engines"]) == 2


def test_profile_of_older_versions_has_means_or_sums(tmp_path: Path) -> None:
    def means(entries: list[dict[str, Any]]) -> None:
        for entry in entries[1:]:
            del entry["medianMs"]

    def sums(entries: list[dict[str, Any]]) -> None:
        means(entries)
        for entry in entries[1:]:
            del entry["averageMs"]

    for change in (means, sums):
        layer = read_exports([GRAPH, changed(tmp_path, PROFILE, change)]).layers[1]
        # 3.3 ms in 100 runs.
        assert (layer.ms, layer.is_median) == (pytest.approx(0.033), False)


@pytest.mark.parametrize(
    ("name", "metadata", "nodes", "spans"),
    [
        ("__myl_Conv_0", "[ONNX Layer: /a/Conv]\x1f[ONNX Layer: /a/Relu]", ("/a/Conv", "/a/Relu"),
         False),
        ("__myl_Conv_0", "[ONNX Layer: /a]\x1e[ONNX Layer: /b]\x1f[ONNX Layer: /a]", ("/a", "/b"),
         False),
        ("__myl_Move_3", "", (), False),
        ("Conv_5 + PWN(PWN(Sigmoid_6), Mul_7)", "", ("Conv_5", "Sigmoid_6", "Mul_7"), False),
        ("Conv_1 || Conv_2", "", ("Conv_1", "Conv_2"), False),
        ("{ForeignNode[/a/Mul.../b/Add]}", "", ("/a/Mul", "/b/Add"), True),
        ("fc.bias + (Unnamed Layer* 36) [Shuffle] + Gemm_4", "", ("fc.bias", "Gemm_4"), False),
        ("Reformatting CopyNode for Input Tensor 0 to Conv_5", "", (), False),
    ],
)  # fmt: skip
def test_nodes(
    tmp_path: Path, name: str, metadata: str, nodes: tuple[str, ...], spans: bool
) -> None:
    path = tmp_path / "graph.json"
    layer = {"Name": name, "LayerType": "kgen", "Metadata": metadata}
    # trtexec does not escape the characters between names.
    text = json.dumps({"Layers": [layer]}).replace("\\u001f", "\x1f").replace("\\u001e", "\x1e")
    path.write_text(text)
    (read,) = read_exports([path]).layers
    assert (read.nodes, read.spans) == (nodes, spans)


@pytest.mark.parametrize(
    ("written", "dtype", "layout"),
    [
        ("Row major linear FP32", "float32", "linear"),
        ("Row major Int8 format", "int8", "linear"),
        ("Channel major FP32 format", "float32", "hwc"),
        (HALF, "float16", "hwc8"),
        ("Two wide channel vectorized row major FP16 format", "float16", "chw2"),
        ("Thirty-two wide channel vectorized row major Int8 format", "int8", "chw32"),
        ("Thirty-two wide channel vectorized row major FP16 format with 3 spatial dimensions",
         "float16", "cdhw32"),
        ("Half", "float16", ""),
        ("BFloat16", "bfloat16", ""),
        ("HWC8 | FP16", "float16", "hwc8"),
        ("N/A due to dynamic shapes", "", ""),
    ],
)  # fmt: skip
def test_formats(tmp_path: Path, written: str, dtype: str, layout: str) -> None:
    tensor = {"Name": "x", "Dimensions": [1, 8, 2, 2], "Format/Datatype": written}
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"Layers": [{"Name": "a", "Inputs": [tensor]}]}))
    (read,) = read_exports([path]).layers[0].inputs
    assert (read.dtype, read.layout) == (dtype, layout)


def test_sizes_that_are_not_fixed(tmp_path: Path) -> None:
    def any_batch(content: dict[str, Any]) -> None:
        for layer in content["Layers"]:
            for tensor in (*layer["Inputs"], *layer["Outputs"]):
                tensor["Dimensions"][0] = -1
        del content["Bindings"]

    graph = changed(tmp_path, GRAPH, any_batch)
    imported = import_trtexec([graph, PROFILE, TIMES, LOG], tmp_path / "a.h5")
    assert imported.rows == {"networks": 1}
    assert {each.reason for each in imported.untyped} == {"the export gives no sizes"}
    (run,) = read_dataset(tmp_path / "a.h5").measurements
    # What the log says of the run.
    assert (run.setting.batch, run.setting.shapes) == (2, {"x": (2, 3, 8, 8)})
    import_trtexec([graph, PROFILE, TIMES], tmp_path / "b.h5", device="a100")
    (run,) = read_dataset(tmp_path / "b.h5").measurements
    assert (run.setting.batch, run.setting.shapes) == (None, {})


def test_an_input_of_shapes_is_read_by_no_layer(tmp_path: Path) -> None:
    graph = changed(tmp_path, GRAPH, lambda content: content["Bindings"].append("sizes"))
    log = tmp_path / "small.log"
    log.write_text(LOG.read_text().replace("x=2x3x8x8", "x=2x3x8x8,sizes=2"))
    assert [each.name for each in read_exports([graph, log]).inputs] == ["x"]


def test_names_alone(tmp_path: Path) -> None:
    def names(content: dict[str, Any]) -> None:
        content["Layers"] = [layer["Name"] for layer in content["Layers"]]

    imported = import_trtexec([changed(tmp_path, GRAPH, names), PROFILE, TIMES, LOG],
                              tmp_path / "a.h5")  # fmt: skip
    assert imported.rows == {"networks": 1}
    assert {each.reason for each in imported.untyped} == {
        "only its name is exported; trtexec --profilingVerbosity=detailed exports more"
    }
    (sums,) = imported.info.source["engines"]
    # By its name, a layer that runs nothing is a change of format, too.
    assert (sums["layers_ms"], sums["relayouts"]) == (pytest.approx(0.090), 3)


def test_layers_of_the_profile_and_of_the_graph(tmp_path: Path) -> None:
    def entry(name: str, ms: float) -> dict[str, Any]:
        return {"name": name, "timeMs": 100 * ms, "averageMs": ms, "medianMs": ms}

    def unlike(entries: list[dict[str, Any]]) -> None:
        entries += [entry("[HostToDeviceCopy 0]", 0.003), entry("Softmax_9", 0.001)]
        del entries[2]

    engine = read_exports([GRAPH, changed(tmp_path, PROFILE, unlike)])
    found = {layer.name: layer.ms for layer in engine.layers}
    # A layer that runs twice in a run; a copy that only the profile has; a layer without a time.
    assert found["Softmax_9"] == pytest.approx(0.008)
    assert found["[HostToDeviceCopy 0]"] == 0.003
    assert math.isnan(found["Conv_0 + Relu_1"])
    assert engine.layers_ms == pytest.approx(0.090 - 0.030 + 0.003 + 0.001)

    def shorter(entries: list[dict[str, Any]]) -> None:
        del entries[2:6]

    with pytest.raises(DatasetError, match="another engine than small, of which it lacks 3 of 8"):
        read_exports([GRAPH, changed(tmp_path, PROFILE, shorter)])


@pytest.mark.parametrize("detailed", [True, False])
def test_copies_of_a_dla_belong_to_its_node(tmp_path: Path, detailed: bool) -> None:
    def tensor(name: str) -> dict[str, Any]:
        return {"Name": name, "Dimensions": [1, 32, 8, 8], "Format/Datatype": "Half"}

    first, middle, last = "{ForeignNode[Conv_0...Relu_9]}", "Conv_10", "{ForeignNode[Conv_11]}"
    nodes = [
        (first, "DLA", "x", "a"),
        (middle, "CaskConvolution", "a", "b"),
        (last, "DLA", "b", "y"),
    ]
    layers = [
        {"Name": name, "LayerType": kind, "Inputs": [tensor(read)], "Outputs": [tensor(written)]}
        if detailed
        else name
        for name, kind, read, written in nodes
    ]
    times_ms = {
        "x to nvm": 0.1, first: 0.01, "a from nvm": 4.0, "x copy finish": 0.002,
        "a copy finish": 0.003, middle: 0.5, "b to nvm": 0.2, last: 0.02, "y from nvm": 2.0,
        "b copy finish": 0.004, "y copy finish": 0.005,
    }  # fmt: skip
    graph, profile = tmp_path / "graph.json", tmp_path / "profile.json"
    graph.write_text(json.dumps({"Layers": layers, "Bindings": ["x", "y"]}))
    rows = [{"name": name, "averageMs": ms} for name, ms in times_ms.items()]
    profile.write_text(json.dumps([{"count": 100}, *rows]))
    engine = read_exports([graph, profile])
    # 0.1 + 0.01 + 4 + 0.002 + 0.003, 0.5, and 0.2 + 0.02 + 2 + 0.004 + 0.005 ms.
    assert [layer.ms for layer in engine.layers] == pytest.approx([4.115, 0.5, 2.229])
    # Without a DLA, such an entry is of another engine.
    graph.write_text(json.dumps({"Layers": [middle]}))
    profile.write_text(json.dumps([{"count": 100}, rows[0], rows[5]]))
    with pytest.raises(DatasetError, match="which has no layer 'x to nvm'"):
        read_exports([graph, profile])


@pytest.mark.parametrize("timed", ["", " [profile 1]"])
@pytest.mark.parametrize("tensors", ["", " [profile 1]"])
def test_optimization_profiles(tmp_path: Path, timed: str, tensors: str) -> None:
    def second(layer: dict[str, Any]) -> dict[str, Any]:
        sides = {
            side: [{**each, "Name": each["Name"] + tensors} for each in layer[side]]
            for side in ("Inputs", "Outputs")
        }
        return {**layer, **sides, "Name": f"{layer['Name']} [profile 1]"}

    def two(content: dict[str, Any]) -> None:
        content["Layers"] += list(map(second, content["Layers"]))
        content["Bindings"] += ["x [profile 1]", "y [profile 1]"]

    def named(entries: list[dict[str, Any]]) -> None:
        for entry in entries[1:]:
            entry["name"] += timed

    graph, profile = changed(tmp_path, GRAPH, two), changed(tmp_path, PROFILE, named)
    engine = read_exports([graph, profile, LOG])
    assert engine.layers_ms == pytest.approx(0.090)
    assert engine.layers[4].name == f"Conv_3 + Add_4 + Relu_5{timed}"
    assert engine.layers[4].nodes == ("Conv_3", "Add_4", "Relu_5")
    assert engine.bindings == ("x", "y")
    assert [(each.name, each.shape) for each in engine.inputs] == [("x", (2, 3, 8, 8))]


def test_times_of_older_versions(tmp_path: Path) -> None:
    def older(runs: list[dict[str, float]]) -> None:
        for run in runs:
            run |= {"inMs": run.pop("h2dMs"), "outMs": run.pop("d2hMs")}

    engine = read_exports([GRAPH, changed(tmp_path, TIMES, older)])
    assert engine.h2d_ms == (0.012, 0.010, 0.011)
    assert engine.d2h_ms == (0.002, 0.004, 0.003)


def test_other_encodings(tmp_path: Path) -> None:
    log, graph = tmp_path / "small.log", tmp_path / "small.graph.json"
    log.write_text(LOG.read_text(), encoding="utf-16")
    graph.write_bytes(b"\xef\xbb\xbf" + GRAPH.read_bytes() + b"\n\0\0")
    assert read_exports([graph, log]).device == "NVIDIA GeForce RTX 3090"


def test_damaged_exports_are_refused_in_one_line(tmp_path: Path) -> None:
    rng = random.Random(22)
    files = {path.name: path.read_bytes() for path in (GRAPH, PROFILE, TIMES, LOG)}
    values = (None, -1, 1e30, math.nan, "x", [], {}, [None], 10**400, True)

    def mutated(content: bytes) -> bytes:
        document = json.loads(content)
        holder = rng.choice(document["Layers"] if isinstance(document, dict) else document)
        holder = rng.choice([each for each in (document, holder) if isinstance(each, dict | list)])
        place = rng.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
        holder[place] = rng.choice(values)
        return json.dumps(document).encode()

    def cut(content: bytes) -> bytes:
        return content[: rng.randrange(len(content))]

    def packed_and_cut(content: bytes) -> bytes:
        return cut(gzip.compress(content))

    refused = []
    for name in rng.choices([*files][:3], k=80):
        for each, content in files.items():
            (tmp_path / each).write_bytes(content)
        change = rng.choice((cut, packed_and_cut, mutated))
        (tmp_path / name).write_bytes(change(files[name]))
        try:
            read_exports([tmp_path / each for each in files])
        except DatasetError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert not any("\n" in error for error in refused)


def image(*shape: int, dtype: str = "float16", layout: str = "hwc8") -> EngineTensor:
    return EngineTensor("", shape, dtype, layout)


def convolution(
    inputs: tuple[EngineTensor, ...], output: EngineTensor, name: str = "Conv_0", **values: object
) -> EngineLayer:
    window = {"Kernel": [3, 3], "Stride": [2, 2], "PrePadding": [1, 1], "PostPadding": [1, 1]}
    usual = {"OutMaps": 16, "Groups": 1, "HasBias": 1, "Activation": "NONE"}
    return EngineLayer(
        name, "CaskConvolution", inputs, (output,), (*name.replace("PWN(", "").split(" + "),),
        parameters={"ParameterType": "Convolution", **window, **usual, **values},
    )  # fmt: skip


def test_typed_convolutions() -> None:
    wide, narrow = image(1, 8, 9, 9), image(1, 16, 5, 5)
    # TensorRT 8.2 said only whether a relu is fused.
    older = convolution((wide,), narrow, HasReLU=1)
    del older.parameters["Activation"]  # type: ignore[attr-defined]
    assert typed_layer(older).fields()["activation"] == "relu"
    layer = typed_layer(convolution((wide,), narrow, Activation="CLIPPED_RELU", HasBias=0))
    assert {"activation=clip", "bias=0", "stride_width=2"} <= set(layer.key.split(","))
    # The file gives no pads where they follow from SAME: (5 - 1) x 2 + 3 - 9 = 2, one per side.
    same = {"PaddingMode": "kSAME_UPPER", "PrePadding": [0, 0], "PostPadding": [0, 0]}
    assert typed_layer(convolution((wide,), narrow, **same)).fields()["pad_bottom"] == 1
    # Int8 in blocks of 32: requantised, and limited by a relu for nothing.
    read, written = (
        image(1, each, size, size, dtype="int8", layout="chw32")
        for each, size in ((32, 9), (16, 5))
    )
    quantized = typed_layer(convolution((read,), written, Activation="RELU"))
    assert quantized.kind == "quantized_conv"
    assert quantized.fields()["layout"] == "nchwc32"
    with pytest.raises(LayerError, match="no ONNX operator"):
        quantized.as_onnx_node()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (convolution((image(1, 8, 9, 9),), image(1, 16, 5, 5, dtype="float32")),
         "another type"),
        (convolution((image(1, 8, 9, 9),), image(1, 16, 5, 5, layout="linear")),
         "another format"),
        (convolution((image(1, 8, 9, 9, layout="chw2"),), image(1, 16, 5, 5, layout="chw2")),
         "format chw2"),
        (convolution((image(1, 8, 9, 9, layout=""),), image(1, 16, 5, 5, layout="")),
         "a format that is not exported"),
        (convolution((image(1, 8, 9, 9),), image(1, 16, 4, 4)), "window does not give"),
        (convolution((image(1, 8, 9, 9), image(1, 16, 1, 1)), image(1, 16, 5, 5)), "not added"),
        (convolution((image(1, 8, 9, 9),), image(1, 16, 5, 5), Activation="MYSTERY"), "MYSTERY"),
        (convolution((image(1, 8, 9, 9),), image(1, 16, 5, 5), "Conv_0 + PWN(Erf_1)"),
         "pointwise"),
        (EngineLayer("a", "ConvActPool", (), (), ()), "ConvActPool"),
        (convolution((image(1, 8, 2, 2),), image(1, 16, 1, 1), Stride=[1 << 99] * 2),
         "no layer has"),
        (replace(convolution((image(1, 8, 9, 9),), image(1, 16, 5, 5)),
                 type="CaskDeconvolutionV2"), "transposed"),
        (EngineLayer("a", "CaskConvolution", (image(1, 8, 9, 9),), (image(1, 16, 5, 5),), (),
                     parameters={"ParameterType": "Convolution"}), "lacks parameters"),
    ],
)  # fmt: skip
def test_layers_without_a_kind(layer: EngineLayer, reason: str) -> None:
    with pytest.raises(LayerError, match=reason):
        typed_layer(layer)


def moved(parameters: dict[str, object], *tensors: EngineTensor) -> str:
    kind = str(parameters["ParameterType"])
    layer = EngineLayer("a", kind, tensors[:1], tensors[1:], (), parameters=parameters)
    return typed_layer(layer).key


def test_moves() -> None:
    plain = {"dtype": "float32", "layout": "linear"}
    first, second = image(2, 8, 4, 3, **plain), image(2, 3, 8, 4, **plain)
    shuffle = {"ParameterType": "Shuffle", "FirstTranspose": [0, 3, 1, 2],
               "SecondTranspose": [0, 1, 2, 3]}  # fmt: skip
    # (8 x 4) and 3 swap.
    assert moved(shuffle, first, second).startswith("transpose:batch=2,dim1=32,dim2=3,")
    pad = {"ParameterType": "Slice", "Start": [0, 0, 0, -1], "Size": [2, 8, 4, 5],
           "Stride": [1, 1, 1, 1], "Mode": "FILL"}  # fmt: skip
    assert "length=3,length_out=5" in moved(pad, first, image(2, 8, 4, 5, **plain))
    cut = {"ParameterType": "Slice", "Start": [0, 2, 0, 0], "Size": [2, 3, 4, 3],
           "Stride": [1, 2, 1, 1], "Mode": "DEFAULT"}  # fmt: skip
    assert "length=8,length_out=3" in moved(cut, first, image(2, 3, 4, 3, **plain))
    blocks = image(2, 8, 4, 3, dtype="float32", layout="chw32")
    reformat: dict[str, object] = {"ParameterType": "Reformat"}
    relayout = moved(reformat, first, blocks)
    assert relayout.startswith("reorder:")
    assert "layout=nchw,layout_out=nchwc32" in relayout
    narrow = image(2, 8, 4, 3, dtype="int8", layout="linear")
    assert "function=quantize" in moved(reformat, first, narrow)
    assert moved(reformat, first, first).startswith("move:")
    for source, result, reason in (
        (image(2, 8, 4, 3), narrow, "type and format"),
        (image(2, 8, 4, 3, layout="linear"), narrow, "scaled conversion"),
        (image(2, 8, 4, 3), image(2, 8, 4, 3, layout="hwc16"), "pads channels"),
    ):
        with pytest.raises(LayerError, match=reason):
            moved(reformat, source, result)


def renamed(content: list[dict[str, Any]]) -> None:
    content[2]["name"] = "Conv_7"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tmp: [tmp, GRAPH.read_text()[:-40]], "cut short"),
        (lambda tmp: [tmp, "layer,ms\n1,2\n"], "not an export of trtexec"),
        (lambda tmp: [tmp, '{"layers": []}'], "no export of trtexec"),
        (lambda tmp: [tmp, '{"Layers": ["Conv_0"]}'], "another engine than bad"),
        (lambda tmp: [tmp, '{"Layers": ["Conv_0"], "Bindings": 3}'], "cannot be read"),
        (lambda tmp: [tmp, f'{{"Layers": [{"9" * 5000}]}}'], "cut short or not an export"),
        (lambda tmp: [tmp, GRAPH.read_text().replace("[2, 3, 8, 8]", "[2, 3, 8, 1e30]")], "1e"),
        (lambda tmp: [tmp, "[" * 100_000], "cut short or not an export"),
        (lambda tmp: [tmp, '{"Layers": []}'], "--profilingVerbosity=detailed"),
        (lambda tmp: [tmp, '{"Layers": [{"LayerType": "NoOp"}]}'], "cannot be read"),
    ],
)
def test_bad_graphs(tmp_path: Path, change: Any, message: str) -> None:
    path, text = change(tmp_path / "bad.json")
    path.write_text(text)
    with pytest.raises(DatasetError, match=message) as caught:
        import_trtexec([path, PROFILE, LOG], tmp_path / "a.h5")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a.h5").exists()


def test_bad_companions(tmp_path: Path) -> None:
    other = changed(tmp_path, PROFILE, renamed)
    with pytest.raises(
        DatasetError, match="another engine than small, which has no layer 'Conv_7'"
    ):
        read_exports([GRAPH, other])
    with pytest.raises(DatasetError, match="are both a profile"):
        read_exports([GRAPH, PROFILE, other])
    with pytest.raises(DatasetError, match="are the same file"):
        read_exports([GRAPH, GRAPH])
    with pytest.raises(DatasetError, match="no file with layer information among small"):
        read_exports([PROFILE, TIMES])
    with pytest.raises(DatasetError, match="has no times"):
        import_trtexec([GRAPH, LOG], tmp_path / "a.h5")
    with pytest.raises(DatasetError, match="name it with --device"):
        import_trtexec([GRAPH, PROFILE], tmp_path / "a.h5")
    log = tmp_path / "other.log"
    log.write_text(LOG.read_text().replace("x=2x3x8x8", "x=1x3x8x8"))
    with pytest.raises(DatasetError, match="its input is x=1x3x8x8, that of small x=2x3x8x8"):
        read_exports([GRAPH, log])
    two = "x=2x3x8x8\n[I] Input inference shape : z=1x7"
    log.write_text(LOG.read_text().replace("x=2x3x8x8", two))
    with pytest.raises(DatasetError, match="its input is z=1x7, that of small x=2x3x8x8"):
        read_exports([GRAPH, log])
    other_log = tmp_path / "other_device.log"
    other_log.write_text(LOG.read_text().replace("RTX 3090", "RTX 4090"))
    with pytest.raises(DatasetError, match="Device is NVIDIA GeForce RTX 4090, that of the other"):
        read_exports([GRAPH, LOG, other_log])
    # The median of the file is 0.076 ms.
    log.write_text(f"{LOG.read_text()}[I] GPU Compute Time: min = 1 ms, median = 0.085 ms, p\n")
    assert read_exports([GRAPH, PROFILE, log]).layers
    with pytest.raises(DatasetError, match=r"run takes 0.076 ms, the summary .* says 0.085 ms"):
        read_exports([GRAPH, TIMES, log])
    metadata = tmp_path / "metadata.json"
    metadata.write_text('{"performance_summary": {"GPU Compute Time": [1, 1, 1, 0.06, 1]},'
                        ' "model_options": {"Model": "small.onnx"}}')  # fmt: skip
    with pytest.raises(DatasetError, match=r"says 0.06 ms"):
        read_exports([GRAPH, TIMES, metadata])
    times = changed(tmp_path, TIMES, lambda runs: [run.update(computeMs=2) for run in runs])
    with pytest.raises(DatasetError, match=r"run takes 2 ms, its layers add up to 0.09 ms"):
        read_exports([GRAPH, PROFILE, times])
    times = changed(tmp_path, TIMES, lambda runs: runs[1].pop("h2dMs"))
    with pytest.raises(DatasetError, match="has a run that cannot be read"):
        read_exports([GRAPH, times])


ROOT = Path(os.environ.get("RESPERF_PUBLIC_DATA", Path(__file__).parents[4] / "shared" / "data"))
ENGINES = [
    # Name, layers, median run and sum of the layers in ms, device, precision, rows of layers.
    ("pytorch-resnet-A100-fp16-resnet", 36, 0.862, 1.017, "a100-80gb", "fp16", 24),
    ("pytorch-resnet-A100-fp32-resnet", 32, 1.991, 2.124, "a100-80gb", "tf32", 24),
    ("pytorch-resnet-A100-qat-residual-qgap-resnet-qat-residual-qgap", 24, 0.500, 0.673,
     "a100-80gb", "int8", 13),
    ("pytorch-resnet-A100-qat-resnet-qat", 37, 0.883, 1.096, "a100-80gb", "int8", 10),
    ("tensorflow-resnet-RTX-3090-fp32-resnet", 103, 12.168, 12.400, "rtx3090", "tf32", 72),
    ("tensorflow-resnet-RTX-3090-qat-resnet-qat", 63, 2.195, 2.381, "rtx3090", "int8", 39),
    ("trex-mobilenet.qat", 73, 0.351, 0.469, "titan-rtx", "int8", 39),
]  # fmt: skip


@pytest.mark.skipif(
    not (ROOT / "trtexec").is_dir(), reason=f"no engines in {ROOT}; set RESPERF_PUBLIC_DATA"
)
@pytest.mark.parametrize("engine", ENGINES, ids=[each[0] for each in ENGINES])
def test_published_engines(tmp_path: Path, engine: tuple[Any, ...]) -> None:
    name, layers, whole_ms, layers_ms, device, precision, rows = engine
    files = [*(ROOT / "trtexec").glob(f"{name}.*")]
    imported = import_trtexec(files, tmp_path / "a.h5")
    assert check_dataset(tmp_path / "a.h5") == []
    (sums,) = imported.info.source["engines"]
    assert sums["layers"] == layers
    assert sums["whole_ms"] == pytest.approx(whole_ms, abs=5e-4)
    assert sums["layers_ms"] == pytest.approx(layers_ms, abs=5e-4)
    assert 1.01 < sums["layers_ms"] / sums["whole_ms"] < 1.35
    assert sums["copies"] is False
    assert imported.rows["networks"] == 1
    assert sum(imported.rows.values()) == rows + 1
    assert imported.info.platform.device == device
    assert imported.info.setting.precision == precision
    # Every layer is a row, a view or named with the reason why it is none.
    assert rows + sums["views"] + len(imported.untyped) == layers
    read = read_exports(files)
    summary = next(
        json.loads(file.text)["performance_summary"]
        for file in read.files
        if "profile.metadata" in file.name
    )
    # trtexec's own median, which leaves the warm-up out as well.
    assert sums["whole_ms"] == pytest.approx(summary["GPU Compute Time"][3], abs=1e-5)
    assert read.warmups > 0
    assert Counter(tensor.dtype for layer in read.layers for tensor in layer.inputs)[""] == 0
