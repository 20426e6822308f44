"""TensorRT in process, on a fake GPU whose names and keywords are those of the real bindings."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest

from resperf import targets
from resperf.backends import Built, backend
from resperf.backends._trt_models import copies_model, kernel_of
from resperf.backends.monitors import Monitor
from resperf.campaign.measure import measure_layer
from resperf.campaign.sampler import Sampler
from resperf.campaign.spec import Campaign
from resperf.dataset import Dataset, DatasetInfo, noise_floor, read_info, read_table, write_dataset
from resperf.errors import MeasurementError, MissingExtraError, ResperfError, UnsupportedError
from resperf.layers import KINDS, Activation, Conv, Dense, Layer, Pool, Softmax, layer_from_key
from resperf.measurement import Status
from resperf.quantities import PHASES
from resperf.targets import target
from resperf.timing import SamplingProtocol

if TYPE_CHECKING:
    from resperf.backends.tensorrt import TensorRTBackend

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes"
RECORDER = ROOT / "tools" / "record_tensorrt_surface.py"
FAKED = ("tensorrt", "cuda", "fake_gpu", "fake_surface")
VERSIONS = (("10", "12"), ("11", "13"))
QUICK = SamplingProtocol(min_samples=3, min_time_s=0.0, budget_s=0.005, warmup_s=0.0)
CONV = Conv(
    batch=2, channels_in=8, channels_out=16, height=10, width=10, kernel_height=3, kernel_width=3
)
CONV_MS = 2 * 16 * 8 * 8 / 1e6 + 16 * 8 * 3 * 3 / 1e7
"""Of the fake's closed form: values of the output, and of the weights."""
ATTENTION = "batch=2,queries=5,keys=7,heads=3,head_size=4,value_size=4,features=0,causal=false"


def _forget() -> None:
    for name in list(sys.modules):
        package, private = name.partition(".")[0], "resperf.backends._trt_"
        own = name == "resperf.backends.tensorrt" or name.startswith(private)
        if package in FAKED or own:
            del sys.modules[name]


@pytest.fixture(params=VERSIONS, ids=["tensorrt10", "tensorrt11"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say which versions the fakes are of."""
    tensorrt, cuda = request.param
    monkeypatch.setenv("FAKE_TENSORRT", tensorrt)
    monkeypatch.setenv("FAKE_CUDA", cuda)


@pytest.fixture
def gpu(version: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Put the fakes in place of the real packages; the GPU's clock is at 0."""
    monkeypatch.syspath_prepend(str(FAKES))
    # No NVML looks the card up.
    monkeypatch.setattr(targets, "_LOCAL", {})
    _forget()
    yield importlib.import_module("fake_gpu").reset()
    _forget()


@pytest.fixture
def started(gpu: Any) -> TensorRTBackend:
    return backend("tensorrt", "cuda", device="cuda:0")  # type: ignore[return-value]


def taken(built: Built) -> dict[str, float]:
    """Return one sample of each quantity."""
    return {
        name: (phase.sampler() - phase.offset) / phase.copies
        for name, phase in built.phases.items()
    }


def times(of: TensorRTBackend, layer: Layer) -> dict[str, float]:
    with of.layer(layer, budget_ms=10.0) as built:
        return taken(built)


def test_phases_of_a_layer(started: TensorRTBackend, gpu: Any) -> None:
    with started.layer(CONV, budget_ms=10.0) as built:
        found = taken(built)
        assert list(found)[:3] == list(PHASES)
        assert found == pytest.approx({
            "preprocess_ms": 0.01 + 2 * 8 * 10 * 10 * 4 / 1e7,
            "execution_ms": CONV_MS,
            "postprocess_ms": 0.01 + 2 * 16 * 8 * 8 * 4 / 1e7,
            "profiled_ms": CONV_MS,
            "relayout_ms": 0.0,
        }, rel=1e-9)  # fmt: skip
        assert built.phases["execution_ms"].copies == 16
        assert built.isolated() == pytest.approx(CONV_MS + 0.004)
    with pytest.raises(MeasurementError):
        built.isolated()


def test_the_session_is_the_time_of_an_engine_without_layers(started: TensorRTBackend) -> None:
    assert dict(started.costs()) == pytest.approx({"call_ms": 0.004, "reshape_ms": 0.0})


def test_a_layer_is_measured_with_what_is_fused_into_it(started: TensorRTBackend) -> None:
    fused = CONV.replace(activation="relu", residual=True)
    assert times(started, fused)["execution_ms"] == pytest.approx(CONV_MS)
    gelu = Activation(batch=2, values=500, activation="gelu")
    assert times(started, gelu)["execution_ms"] == pytest.approx(2 * 500 / 1e6)


def test_re_layouts_are_no_part_of_the_execution(started: TensorRTBackend, gpu: Any) -> None:
    gpu.relayouts = True
    found = times(started, CONV)
    assert found["execution_ms"] == pytest.approx(CONV_MS)
    assert found["profiled_ms"] == pytest.approx(CONV_MS)
    assert found["relayout_ms"] == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("precision", "speed", "value_bytes"),
    [("fp32", 1, 4), ("tf32", 2, 4), ("fp16", 2, 2), ("bf16", 2, 2), ("int8", 4, 1)],
)
def test_precisions(gpu: Any, precision: str, speed: int, value_bytes: int) -> None:
    own: Any = backend("tensorrt", "cuda", precision=precision)
    assert own.setting().precision == precision
    (lowered,) = own.lower([CONV.replace(activation="relu")])
    found = times(own, lowered)
    assert found["execution_ms"] == pytest.approx(CONV_MS / speed)
    assert found["preprocess_ms"] == pytest.approx(0.01 + 2 * 8 * 10 * 10 * value_bytes / 1e7)
    # Softmax is no operator of int8.
    softmax = Softmax(batch=1, outer=2, values=16, inner=1, function="softmax")
    if precision == "int8":
        with pytest.raises(UnsupportedError, match=r"no int8 kernel for softmax .*fp32 or fp16"):
            own.layer(softmax, budget_ms=1.0)
    else:
        times(own, own.lower([softmax])[0])


@pytest.mark.usefixtures("tensorrt_rtx")
def test_the_backend_keeps_the_contract(started: TensorRTBackend) -> None:
    conformance: Any = pytest.importorskip("resperf.testing.backends")
    kinds = ("conv", "pool", "dense", "softmax", "reorder", "attention")
    result = conformance.check_backend(started, target("tensorrt", "cuda"), kinds=kinds)
    assert result.of(conformance.Verdict.FAILED) == []
    assert {each.subject for each in result.of(conformance.Verdict.REFUSED)} == {"reorder"}
    # The kernels of TensorRT for RTX hold a copy, which the stand-in of TensorRT cannot build.
    (network,) = (each for each in result.findings if each.rule == "sum")
    assert "no importer for Slice" in network.detail


def test_copies_that_share_a_tensor_are_merged_and_refused(
    started: TensorRTBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = importlib.import_module("resperf.backends._trt_models")
    of_its_own = copies._Graph._input

    def shared(graph: Any, name: str) -> str:
        return f"copy0.{name}" if graph._copy else of_its_own(graph, name)

    assert started.costs()
    monkeypatch.setattr(copies._Graph, "_input", shared)
    merged = r"merged copies 0, 1, .* of a conv layer into one kernel \(copy0\.Conv1 \+ copy1"
    with pytest.raises(UnsupportedError, match=merged):
        started.layer(CONV, budget_ms=10.0)


def test_copies_that_are_computed_beforehand_are_refused(
    started: TensorRTBackend, gpu: Any
) -> None:
    assert started.costs()
    gpu.hides = frozenset({"Conv"})
    with pytest.raises(UnsupportedError, match="1 of 1 copies of a conv layer are not among"):
        started.layer(CONV, budget_ms=10.0)


def test_several_streams_are_refused(started: TensorRTBackend, gpu: Any) -> None:
    assert started.costs()
    gpu.aux_streams = 3
    with pytest.raises(UnsupportedError, match="a conv layer on 4 streams at once"):
        started.layer(CONV, budget_ms=10.0)


def test_a_second_build_times_its_kernels_anew_and_the_spread_is_stored(
    started: TensorRTBackend, gpu: Any, tmp_path: Path
) -> None:
    assert started.costs()
    gpu.noise = 0.05
    rows = [
        measure_layer(started, CONV, QUICK, monitor=Monitor(), repeat=repeat) for repeat in (0, 1)
    ]
    assert [row.status for row in rows] == [Status.OK, Status.OK]
    assert set(rows[0].samples) == {*PHASES, "profiled_ms", "relayout_ms"}
    first, second = (row.value("execution_ms") for row in rows)
    assert first != pytest.approx(second, rel=0.01)
    info = DatasetInfo(rows[0].setting, rows[0].platform, campaign={}, seed=0, versions={})
    write_dataset(tmp_path / "rows.h5", Dataset(info, tuple(rows)))
    floor = noise_floor(read_table(tmp_path / "rows.h5")["conv"], "execution_ms")
    assert floor.pairs == 1
    assert floor.mean_difference == pytest.approx(2 * abs(first - second) / (first + second))


def test_layers_of_one_campaign_share_a_timing_cache(started: TensorRTBackend, gpu: Any) -> None:
    assert started.costs()
    gpu.noise, before = 0.05, gpu.tries
    alone_and_copies = times(started, CONV)
    # Sixteen copies and the one alone are timed once; the next layer's kernel is another one.
    assert gpu.tries == before + 1
    times(started, CONV.replace(batch=3))
    assert gpu.tries == before + 2
    assert alone_and_copies["profiled_ms"] == pytest.approx(alone_and_copies["execution_ms"])


def test_what_does_not_fit_is_a_row_and_leaves_nothing(started: TensorRTBackend, gpu: Any) -> None:
    assert started.costs()
    gpu.memory_bytes = 200_000
    # Its weights fit, its output does not; then not even the weights; then no context.
    layers = (CONV.replace(batch=64), Dense(batch=1, features_in=1000, features_out=1000), CONV)
    for layer in layers:
        gpu.memory_bytes = 1000 if layer is CONV else gpu.memory_bytes
        row = measure_layer(started, layer, QUICK, monitor=Monitor())
        assert row.status is Status.OUT_OF_MEMORY, layer
        assert (gpu.device, gpu.host, gpu.contexts) == ({}, {}, 0)


def test_nothing_is_left_in_memory_or_on_disk(
    started: TensorRTBackend, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for layer in (CONV, Dense(batch=4, features_in=300, features_out=300)):
        times(started, layer)
    assert (gpu.device, gpu.host, gpu.contexts) == ({}, {}, 0)
    assert list(tmp_path.iterdir()) == []


def test_large_weights_are_read_from_memory(started: TensorRTBackend) -> None:
    dense = Dense(batch=1, features_in=600, features_out=600)
    with started.layer(dense, budget_ms=100.0) as built:
        assert built.phases["execution_ms"].copies == 16
        assert taken(built)["execution_ms"] == pytest.approx(600 / 1e6 + 600 * 600 / 1e7)


def test_what_the_parser_does_not_know_is_refused_in_its_words(started: TensorRTBackend) -> None:
    with pytest.raises(UnsupportedError, match="cannot read a norm layer: LRN: no importer"):
        started.layer(layer_from_key(draw_one("norm", "local_response").key), budget_ms=1.0)
    reorder = KINDS["reorder"].from_fields(
        {"batch": 1, "channels_in": 8, "height": 4, "width": 4, "layout_out": "nchwc8"}
    )
    with pytest.raises(UnsupportedError, match="no ONNX operator does the work"):
        started.layer(reorder, budget_ms=1.0)
    with pytest.raises(UnsupportedError, match=r"no com\.microsoft\.QLinearAdd"):
        started.layer(draw_one("quantized_elementwise", "add"), budget_ms=1.0)


def draw_one(kind: str, function: str) -> Layer:
    return next(each for each in drawn(kind, 60) if each.fields()["function"] == function)


def drawn(kind: str, count: int) -> list[Layer]:
    campaign = Campaign.from_mapping({
        "name": "test", "kinds": {kind: {}},
        "constraints": {"largest_tensor_bytes": 40_000, "largest_macs": 300_000},
    })  # fmt: skip
    return Sampler(campaign, seed=5).draw(count)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_whole_network(gpu: Any, network: Path, precision: str) -> None:
    own: Any = backend("tensorrt", "cuda", precision=precision)
    with own.network(network, batch=4, shapes=None) as built:
        found, isolated_ms = taken(built), built.isolated()
    half = precision == "fp16"
    speed = 2 if half else 1
    layers_ms = 4 * 6 * 8 * 8 / 1e6 / speed + 6 * 3 * 3 * 3 / 1e7 / speed
    layers_ms += 4 * 10 / 1e6 / speed + 6 * 8 * 8 * 10 / 1e7 / speed
    # Float32 inputs and outputs are converted at the ends of a network of half precision.
    layers_ms += half * (4 * 3 * 8 * 8 / 1e6 + 4 * 10 / 1e6 / 2)
    assert found["preprocess_ms"] == pytest.approx(0.01 + 4 * 3 * 8 * 8 * 4 / 1e7)
    assert found["postprocess_ms"] == pytest.approx(0.01 + 4 * 10 * 4 / 1e7)
    assert found["profiled_ms"] == pytest.approx(layers_ms)
    assert found["relayout_ms"] == pytest.approx(0.002 * half)
    assert found["execution_ms"] == pytest.approx(0.004 + layers_ms + 0.002 * half)
    assert isolated_ms == found["execution_ms"]
    assert (gpu.device, gpu.host) == ({}, {})


CAMPAIGN = """
samples = 6
seed = 1
repeat_share = 1.0
[protocol]
min_samples = 3
budget_s = 0.002
min_time_s = 0.0
warmup_s = 0.0
[constraints]
largest_tensor_bytes = 400_000
largest_weight_bytes = 400_000
[kinds.conv]
activation = ["none", "relu"]
"""


def test_a_campaign_in_a_process_of_its_own(
    version: None, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = tmp_path / "site"
    folder.mkdir()
    install = "import fake_nvml as f; f.install(f.FakeNvml([f.FakeGpu()]))"
    (folder / "sitecustomize.py").write_text(install)
    paths = map(str, (folder, FAKES, FAKES.parent, ROOT))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(str(FAKES.parent))
    (tmp_path / "c.toml").write_text(CAMPAIGN)
    nvml: Any = importlib.import_module("fake_nvml")
    words = ("--framework", "tensorrt", "--device", "cuda:0", "--precision", "tf32")
    with nvml.installed(nvml.FakeNvml([nvml.FakeGpu()])):
        cli.run("bench", tmp_path / "c.toml", *words, "-o", tmp_path / "rows.h5")
    assert {path.name for path in tmp_path.iterdir()} == {"site", "c.toml", "rows.h5"}
    table = read_table(tmp_path / "rows.h5")["conv"]
    assert table.ok.all()
    assert len(table.ok) == 12
    profiled, execution = (table.times_ms[f"{name}_ms"] for name in ("profiled", "execution"))
    np.testing.assert_allclose(profiled, execution, rtol=1e-4)
    info = read_info(tmp_path / "rows.h5")
    assert info.setting.precision == "tf32"
    assert info.machine_costs["call_ms"] == pytest.approx(0.004)
    assert info.platform.accelerators[0].name == "NVIDIA GeForce RTX 4090"


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Write a convolution, a ReLU and a dense layer; the weights of the latter are not there."""
    weights = onnx.numpy_helper.from_array(np.ones((6, 3, 3, 3), np.float32), "w")
    absent = onnx.TensorProto(
        name="d", data_type=1, dims=(384, 10), data_location=onnx.TensorProto.EXTERNAL
    )
    absent.external_data.add(key="location", value="absent.bin")
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
         node("Relu", ["c"], ["r"], "relu"),
         node("Flatten", ["r"], ["f"], "flat"), node("Gemm", ["f", "d"], ["y"], "dense")],
        "net", [info("x", 1, ("n", 3, 8, 8))], [info("y", 1, ("n", 10))], [weights, absent],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "net.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_int8_networks_must_be_quantised(gpu: Any, network: Path) -> None:
    own = backend("tensorrt", "cuda", precision="int8")
    with pytest.raises(UnsupportedError, match=r"net\.onnx has no QuantizeLinear.*quantise it"):
        own.network(network, batch=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cuda:3"}, "no device cuda:3; this machine has cuda:0 only"),
        (
            {"precision": "amp"},
            "precision=amp does not exist in TensorRT; it has fp32, tf32, fp16, bf16, int8",
        ),
        ({"optimization_level": 9}, "optimization_level=9 must be from 0 to 5"),
        ({"threads": 2}, "no setting .threads."),
    ],
)
def test_wrong_settings(gpu: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ResperfError, match=message):
        backend("tensorrt", "cuda", **settings)


def test_options_are_in_the_setting(gpu: Any) -> None:
    own = backend("tensorrt", "cuda", optimization_level=1)
    assert own.setting().options["optimization_level"] == "1"
    assert own.setting().framework_version.startswith(os.environ["FAKE_TENSORRT"])
    assert own.setting().precision == "fp32"


def test_without_a_gpu(gpu: Any) -> None:
    gpu.devices = 0
    with pytest.raises(ResperfError, match=r"no GPU can be used: text of cuda.*; .*nvid"):
        backend("tensorrt", "cuda")


def test_on_a_gpu_that_tensorrt_does_not_support(gpu: Any) -> None:
    gpu.refusal = "Target GPU SM 61 is not supported by this TensorRT release"
    with pytest.raises(ResperfError, match=r"TensorRT 1.* cannot start on this GPU: Target GPU SM"):
        backend("tensorrt", "cuda")


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    _forget()
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'resperf\[tensorrt\]'"):
        target("tensorrt", "cuda").load("backend")
    _forget()


def test_without_tensorrts_own_library(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "libnvinfer.so.10: cannot open shared object file"
    (tmp_path / "tensorrt.py").write_text(f"raise ImportError({words!r})")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ResperfError, match=f"cannot be loaded .{words}.*LD_LIBRARY_PATH"):
        target("tensorrt", "cuda").load("backend")


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_valid_models_with_results_of_their_own(kind: str) -> None:
    layers, ran = drawn(kind, 4), 0
    for layer in layers:
        try:
            kernel = kernel_of(layer)
        except UnsupportedError:
            continue
        model, host = copies_model(kernel, 2)
        onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        feeds = {f"copy{i}.{name}": v for i in (0, 1) for name, v in host.items()}
        first, second = session.run(["copy0.y", "copy1.y"], feeds)
        assert first.shape == second.shape == kernel.output_shape
        if len(kernel.weight_shapes) and kind in ("conv", "dense", "conv_nd", "matmul"):
            assert not np.array_equal(first, second)
        ran += 1
    refused = {"reorder"} | {each for each in KINDS if each.startswith("quantized_")}
    assert ran or kind in refused


def test_activations_and_attention_are_what_onnx_runtime_computes() -> None:
    for function in ("gelu", "gelu_tanh", "silu", "clip", "relu"):
        layer = Activation(batch=2, values=300, activation=function)
        model, host = copies_model(kernel_of(layer), 1)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"copy0.x": host["x"]})
        x = host["x"].astype(np.float64)
        expected = {
            "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
            "gelu_tanh": lambda x: (
                0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
            ),
            "silu": lambda x: x / (1 + np.exp(-x)),
            "clip": lambda x: np.clip(x, 0, 6),
            "relu": lambda x: np.maximum(x, 0),
        }[function]
        np.testing.assert_allclose(found, expected(x), atol=1e-6)
    layer = layer_from_key(f"attention:{ATTENTION},masked=true,dtype=float32")
    model, host = copies_model(kernel_of(layer), 1)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {f"copy0.{name}": v for name, v in host.items()})
    q, k, v = (
        host[name].reshape(2, -1, 3, 4).transpose(0, 2, 1, 3) for name in ("x", "extra0", "extra1")
    )
    scores = q @ k.transpose(0, 1, 3, 2) / 2 + host["extra2"]
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(
        found, (weights @ v).transpose(0, 2, 1, 3).reshape(2, 5, 12), atol=1e-6
    )


NORM = "batch=2,channels=8,pixels=3,window=1,dtype=float32"


@pytest.mark.parametrize(
    "key",
    [
        "matmul:batch=2,outer=3,rows=4,depth=5,columns=6,transposed_first=true,transposed=true,"
        "dtype=float32",
        "matmul:batch=2,outer=3,rows=4,depth=5,columns=6,transposed_first=false,transposed=true,"
        "dtype=float32",
        *(f"norm:{NORM},function={each}" for each in ("rms", "skip_layer", "skip_rms")),
    ],
)
def test_operators_of_onnx_runtime_are_written_as_onnx_computes_them(key: str) -> None:
    kernel = kernel_of(layer_from_key(key))
    model, host = copies_model(kernel, 1)
    copy = onnx.ModelProto.FromString(model)
    assert {node.domain for node in copy.graph.node} == {""}
    onnx.checker.check_model(copy)
    # The operator itself, with the same weights.
    given = [host["x"]]
    given += [
        onnx.numpy_helper.to_array(each)
        for each in copy.graph.initializer
        if each.name.startswith("w0_")
    ]
    given += [host[f"extra{place}"] for place in range(len(kernel.extra_shapes))]
    feeds = {f"n{place}": values for place, values in enumerate(given)}
    own = {"epsilon": 1e-5} if "Norm" in kernel.op else {}
    node = onnx.helper.make_node(
        kernel.op, list(feeds), ["y"], domain=kernel.domain, **kernel.attributes, **own
    )
    single = onnx.TensorProto.FLOAT
    inputs = [onnx.helper.make_tensor_value_info(k, single, v.shape) for k, v in feeds.items()]
    outputs = [onnx.helper.make_tensor_value_info("y", single, None)]
    opsets = [onnx.helper.make_opsetid(*each) for each in (("", 17), ("com.microsoft", 1))]
    whole = onnx.helper.make_graph([node], "g", inputs, outputs)
    model = onnx.helper.make_model(whole, opset_imports=opsets, ir_version=8)
    (expected,) = _run(model, feeds)
    feeds = {f"copy0.{name}": values for name, values in host.items()}
    (found,) = _run(copy, feeds)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def _run(model: Any, feeds: Mapping[str, Any]) -> Any:
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=providers)
    return session.run(None, feeds)


def test_layers_have_the_types_of_a_precision(gpu: Any) -> None:
    own = backend("tensorrt", "cuda", precision="bf16")
    cast = KINDS["cast"].from_fields({"batch": 1, "values": 9, "dtype_out": "float16"})
    pool = Pool(batch=1, channels_in=4, height=4, width=4, kernel_height=2, kernel_width=2)
    lowered = own.lower([CONV, pool, cast])
    assert [each.fields()["dtype"] for each in lowered] == ["bfloat16", "bfloat16", "float32"]
    assert backend("tensorrt", "cuda").lower([CONV]) == [CONV]


def test_a_fake_cannot_have_what_the_real_bindings_lack(gpu: Any) -> None:
    surface: Any = importlib.import_module("fake_surface")
    tensorrt: Any = importlib.import_module("tensorrt")
    read = surface.read("tensorrt", "11")

    class Builder:
        def create_network(self, explicit_batch: bool) -> None: ...

    with pytest.raises(AssertionError, match=r"create_network takes \[\['flags='\]\], not"):
        surface.real(read, Builder)
    assert hasattr(tensorrt, "Builder")
    assert not hasattr(tensorrt.BuilderFlag, "STRICT_TYPES")
    assert hasattr(tensorrt.BuilderFlag, "FP16") == (os.environ["FAKE_TENSORRT"] == "10")
    config = tensorrt.Builder(tensorrt.ILogger()).create_builder_config()
    with pytest.raises(AttributeError, match="max_workspace_size cannot be set"):
        config.max_workspace_size = 1
    with pytest.raises(NotImplementedError, match=r"the fake has no IBuilderConfig\.reset; "):
        config.reset  # noqa: B018
    with pytest.raises(AttributeError, match="has no max_workspace"):
        config.max_workspace  # noqa: B018


def test_signatures_are_read_from_docstrings() -> None:
    spec = importlib.util.spec_from_file_location("recorder", RECORDER)
    assert spec is not None
    assert spec.loader is not None
    tool: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)

    def one() -> None:
        """one(self: a.B, first: Tuple[int, str], second: float = None, **kwargs) -> int"""

    def many(*args: object, **kwargs: object) -> None:
        """many(*args, **kwargs)

        Overloaded function.

        1. many(self: a.B) -> None

        2. many(self: a.B, size_t count) -> None
        """

    assert tool.signatures("one", one) == [["first", "second="]]
    assert tool.signatures("many", many) == [[], ["count"]]


@pytest.mark.parametrize("package", ["tensorrt", "cuda"])
def test_the_recorded_surfaces_are_those_of_the_real_bindings(package: str, tmp_path: Path) -> None:
    """Runs where the real packages can be imported; TensorRT's bindings need no GPU for that."""
    module = {"tensorrt": "tensorrt", "cuda": "cuda.bindings.runtime"}[package]
    ask = f"import {module} as m, importlib; print(importlib.import_module("
    ask += f"{'m.__name__' if package == 'tensorrt' else repr('cuda.bindings')}).__version__)"
    said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    if said.returncode:
        pytest.skip(f"{module} cannot be imported: {said.stderr.strip().splitlines()[-1]}")
    recorded = FAKES / "surfaces" / f"{package}-{said.stdout.partition('.')[0]}.json"
    if not recorded.exists():
        pytest.skip(f"no recorded surface of {package} {said.stdout.strip()}")
    copy = tmp_path / "surface.json"
    copy.write_text(recorded.read_text())
    subprocess.run([sys.executable, str(RECORDER), module, str(copy)], check=True)
    surface: dict[str, Any] = json.loads(copy.read_text())
    before: dict[str, Any] = json.loads(recorded.read_text())
    if surface["version"] != before["version"]:
        pytest.skip(f"recorded from {before['version']}, here is {surface['version']}")
    assert surface == before
