"""The ONNX Runtime backend runs the very kernels that ONNX Runtime chooses."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from resperf.backends import backend
from resperf.backends._ort_kernels import GEMM_ACTIVATIONS, copies_graph, kernel_of
from resperf.backends._values import filled
from resperf.backends.onnxruntime import OnnxRuntimeBackend, filled_input
from resperf.copies import (
    COLD_WEIGHTS_BYTES,
    FOOTPRINTS_MB,
    MAX_COPIES,
    weights_cost,
)
from resperf.errors import MeasurementError, ResperfError, UnsupportedError
from resperf.layers import (
    ACTIVATIONS,
    Activation,
    Conv,
    Dense,
    Elementwise,
    Layer,
    Pool,
    Reorder,
    Softmax,
)
from resperf.layers.attention import Attention
from resperf.quantities import PHASES

NETWORKS = Path(__file__).parents[2] / "models" / "networks"


@pytest.fixture(scope="module")
def ort() -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend(threads=1)


def test_arrays_are_filled_to_the_end_without_denormal_numbers() -> None:
    for shape in ((3, 100_001), (3, 500_001)):
        values = filled(shape)
        assert (values.shape, values.dtype) == (shape, np.float32)
        assert values.flags.c_contiguous
        assert values.flags.writeable
        assert np.abs(values).max() < 1
        assert np.abs(values).min() > np.finfo(np.float32).tiny
    assert filled((0, 4)).shape == (0, 4)


def test_an_array_larger_than_memory_is_a_lack_of_memory() -> None:
    with pytest.raises(MemoryError, match="no memory for an array of shape"):
        filled((1 << 50,))


def conv(**fields: object) -> Conv:
    base = {
        "batch": 2, "channels_in": 32, "channels_out": 32, "height": 12, "width": 10,
        "kernel_height": 3, "kernel_width": 3, "pad_top": 1, "pad_right": 1,
    }  # fmt: skip
    return Conv.from_fields({**base, **fields})


def pool(**fields: object) -> Pool:
    base = {
        "batch": 2, "channels_in": 32, "height": 12, "width": 10, "kernel_height": 3,
        "kernel_width": 3, "stride_height": 2, "stride_width": 2,
    }  # fmt: skip
    return Pool.from_fields({**base, **fields})


LAYERS: list[Layer] = [
    conv(),
    conv(activation="relu"),
    conv(activation="sigmoid", bias=False),
    conv(channels_in=3),
    conv(channels_in=18, channels_out=7),
    conv(channels_in=18, activation="relu"),
    conv(channels_in=24, channels_out=24, groups=24),
    conv(channels_in=64, channels_out=64, groups=4),
    conv(channels_in=20, channels_out=30, groups=2),
    conv(dilation_height=2, dilation_width=2),
    conv(stride_height=2),
    pool(),
    pool(channels_in=6),
    pool(mode="average", count_include_pad=True, pad_left=1),
    pool(ceil_mode=True),
    pool(kernel_height=12, kernel_width=10, stride_height=1, stride_width=1, whole_image=True,
         mode="average", layout="nchwc16"),
    Dense(batch=4, features_in=20, features_out=8),
    Dense(batch=1, features_in=20, features_out=8, bias=False),
    *(
        Dense(batch=1, features_in=20, features_out=8, activation=function)
        for function in GEMM_ACTIVATIONS
    ),
]  # fmt: skip


def written_by_a_user(layer: Layer) -> onnx.ModelProto:
    """The layer as an exporter would write it: ONNX operators, nothing fused or blocked."""
    rng = np.random.default_rng(0)
    weights: list[np.ndarray] = []
    fields = layer.fields()
    if isinstance(layer, Dense):
        weights.append(rng.normal(size=(layer.features_out, layer.features_in)))
        node = helper.make_node("Gemm", ["x", "w0"], ["c"], transB=1)
    else:
        window = {
            "kernel_shape": [fields["kernel_height"], fields["kernel_width"]],
            "strides": [fields["stride_height"], fields["stride_width"]],
            "pads": [fields[f"pad_{side}"] for side in ("top", "left", "bottom", "right")],
        }
        if isinstance(layer, Conv):
            taps = layer.channels_in // layer.groups
            weights.append(rng.normal(size=(layer.channels_out, taps, *window["kernel_shape"])))
            dilations = [layer.dilation_height, layer.dilation_width]
            node = helper.make_node(
                "Conv", ["x", "w0"], ["c"], group=layer.groups, dilations=dilations, **window
            )
        else:
            op = {"max": "MaxPool", "average": "AveragePool"}[str(fields["mode"])]
            if fields["whole_image"]:
                node = helper.make_node(f"Global{op}", ["x"], ["c"])
            else:
                window["ceil_mode"] = int(fields["ceil_mode"])
                if op == "AveragePool":
                    window["count_include_pad"] = int(fields["count_include_pad"])
                node = helper.make_node(op, ["x"], ["c"], **window)
    if fields.get("bias"):
        weights.append(rng.normal(size=layer.output_shape[1]))
        node.input.append("w1")
    nodes, last = [node], "c"
    activation = fields.get("activation", "none")
    if activation != "none":
        alone = Activation(batch=1, values=1, activation=str(activation)).as_onnx_node()
        typical = dict(alone.attributes)
        if isinstance(layer, Dense):
            absorbed = GEMM_ACTIVATIONS[str(activation)].items()
            typical = {name.removeprefix("activation_"): value for name, value in absorbed}
        nodes.append(helper.make_node(alone.op, ["c"], ["y"], **typical))
        last = "y"
    arrays = [numpy_helper.from_array(w.astype(np.float32), f"w{i}") for i, w in enumerate(weights)]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, layer.input_shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, layer.output_shape)],
        arrays,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_mask_is_added_to_the_scores_of_attention() -> None:
    layer = Attention(
        batch=2, queries=3, keys=5, heads=2, head_size=4, value_size=4, features=0, masked=True
    )
    model, _, host = copies_graph(layer.as_onnx_node(), 1)
    query, key, value, mask = (
        host[name].reshape(shape)
        for name, shape in (
            ("x", (2, 3, 2, 4)),
            ("extra0", (2, 5, 2, 4)),
            ("extra1", (2, 5, 2, 4)),
            ("extra2", (1, 2, 3, 5)),
        )
    )
    scores = np.exp(np.einsum("bqhd,bkhd->bhqk", query, key) / 2 + mask)
    weights = scores / scores.sum(-1, keepdims=True)
    expected = np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(2, 3, 8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (result,) = session.run(None, host)
    np.testing.assert_allclose(result, expected, rtol=1e-4)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.key[:100])
def test_kernel_is_the_node_of_orts_own_graph(
    layer: Layer, ort: OnnxRuntimeBackend, tmp_path: Path
) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session = onnxruntime.InferenceSession(
        written_by_a_user(layer).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    # The shapes that our layer computes are those that ONNX Runtime computes.
    result = session.run(None, {"x": np.ones(layer.input_shape, np.float32)})[0]
    assert result.shape == layer.output_shape

    graph = onnx.load(tmp_path / "optimised.onnx").graph
    (node,) = [n for n in graph.node if not n.op_type.startswith("Reorder")]
    (lowered,) = ort.lower([layer])
    kernel = kernel_of(lowered, int(ort.setting().options["nchwc_block"]))
    assert (kernel.op, kernel.domain) == (node.op_type, node.domain)
    dims = {init.name: tuple(init.dims) for init in graph.initializer}
    assert list(kernel.weight_shapes) == [dims[name] for name in node.input if name in dims]
    theirs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    for name, value in kernel.attributes.items():
        other = theirs.get(name, {"dilations": [1, 1]}.get(name))
        if isinstance(value, float):
            assert value == pytest.approx(other, rel=1e-6), name
        else:
            assert value == (other.decode() if isinstance(other, bytes) else other), name


# A hard swish is taken apart where no convolution absorbs it.
ALONE = [each for each in ACTIVATIONS if each not in ("none", "hard_swish")]
REORDERS = [
    Reorder(batch=2, channels_in=20, height=5, width=4),
    Reorder(batch=2, channels_in=6, height=5, width=4, layout="nchwc16", layout_out="nchw"),
]


@pytest.mark.parametrize("layer", [*LAYERS, conv(residual=True, activation="relu"),
                                   conv(residual=True, channels_in=18), *REORDERS],
                         ids=lambda layer: layer.key[:100])  # fmt: skip
def test_every_layer_runs_in_all_phases(layer: Layer, ort: OnnxRuntimeBackend) -> None:
    (lowered,) = ort.lower([layer])
    with ort.layer(lowered, budget_ms=5.0) as built:
        assert tuple(built.phases) == PHASES
        for phase in built.phases.values():
            phase.sampler()
        built.isolated()
        execution = built.phases["execution_ms"]
        assert 1 <= execution.copies <= MAX_COPIES
        assert execution.offset == ort.costs()["call_ms"]
    with pytest.raises(MeasurementError):
        built.isolated()


COMPUTED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.99 * x),
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "selu": lambda x: 1.05070102 * np.where(x > 0, x, 1.67326319 * np.expm1(x)),
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "thresholded_relu": lambda x: np.where(x > 0.01, x, 0),
    # Its bounds are both the first of the made-up values.
    "clip": lambda x: np.full_like(x, filled(())),
}  # fmt: skip


@pytest.mark.parametrize("function", COMPUTED)
def test_activations_alone_compute_what_they_are_called(
    ort: OnnxRuntimeBackend, function: str
) -> None:
    (layer,) = ort.lower([Activation(batch=2, values=300, activation=function)])
    with ort.layer(layer, budget_ms=5.0) as built:
        (found,) = built.phases["postprocess_ms"].sampler.run()
    np.testing.assert_allclose(found, COMPUTED[function](filled((2, 300))), rtol=1e-4, atol=1e-6)


def test_copies_of_an_activation_read_each_other(
    ort: OnnxRuntimeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a network, where it may write over its input.
    graphs: list[onnx.GraphProto] = []
    session = ort._session
    monkeypatch.setattr(
        ort, "_session", lambda m, *rest: (graphs.append(m.graph), session(m, *rest))[1]
    )
    with ort.layer(Activation(batch=1, values=64, activation="relu"), budget_ms=5.0):
        pass
    assert [node.input[0] for node in graphs[-1].node[:3]] == ["x", "y0", "y1"]


IN_PLACE = [
    *(Activation(batch=2, values=300, activation=function) for function in ALONE),
    *(
        Elementwise(batch=2, outer=1, middle=1, inner=300, function=function, second="scalar")
        for function in ("add", "sub")
    ),
    Softmax(batch=2, outer=3, values=50, inner=1, function="softmax"),
]


@pytest.mark.parametrize("layer", IN_PLACE, ids=lambda layer: layer.key)
def test_no_copy_reads_numbers_whose_squares_are_denormal(layer: Layer) -> None:
    # Polynomials of them are ten times as slow on some processors, and no network has them.
    kernel = kernel_of(layer, 8)
    assert kernel.in_place
    model, weights, host = copies_graph(kernel, MAX_COPIES)
    for node in model.graph.node[:-1]:
        model.graph.output.append(
            helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, kernel.output_shape)
        )
    for initializer in model.graph.initializer:
        if initializer.name in weights:
            initializer.CopyFrom(
                numpy_helper.from_array(weights[initializer.name], initializer.name)
            )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for values in (host["x"], *session.run(None, host)):
        assert np.abs(values[values != 0]).min(initial=1.0) > 1e-13


def test_a_hard_swish_alone_is_refused(ort: OnnxRuntimeBackend) -> None:
    assert {*ACTIVATIONS} - {*COMPUTED} == {"none", "hard_swish"}
    with pytest.raises(UnsupportedError, match="no kernel for hard_swish alone"):
        ort.layer(Activation(batch=1, values=8, activation="hard_swish"), budget_ms=1.0)


def test_copies_hold_weights_of_their_own(ort: OnnxRuntimeBackend) -> None:
    (layer,) = ort.lower([conv(channels_in=256, channels_out=256)])
    assert layer.weight_bytes > COLD_WEIGHTS_BYTES
    # Even where one copy outlasts the budget there are two, so that weights do not stay warm.
    with ort.layer(layer, budget_ms=1e-6) as built:
        assert built.phases["execution_ms"].copies == 2


def test_large_weights_of_copies_differ_in_content(
    ort: OnnxRuntimeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ONNX Runtime keeps one packed copy of equal weights, which would stay warm in the cache.
    given: list[dict[str, np.ndarray]] = []
    session = ort._session
    monkeypatch.setattr(
        ort, "_session", lambda m, w, *rest: (given.append(w), session(m, w, *rest))[1]
    )
    layer = Dense(batch=1, features_in=512, features_out=512)
    assert layer.weight_bytes > COLD_WEIGHTS_BYTES
    with ort.layer(layer, budget_ms=10.0) as built:
        assert built.phases["execution_ms"].copies >= 2
    copies = given[-1]
    assert not np.array_equal(copies["w0_0"], copies["w1_0"])
    assert not np.shares_memory(copies["w0_0"], copies["w1_0"])


def test_setting_names_every_setting(ort: OnnxRuntimeBackend) -> None:
    setting = ort.setting()
    assert setting.threads == 1
    assert setting.framework_version == onnxruntime.__version__
    assert {"nchwc_block", "execution_mode", "inter_op_threads", "spinning"} <= set(setting.options)
    other = OnnxRuntimeBackend(threads=2).setting()
    assert setting.differences(other) == ["threads: 1 here, 2 there"]


def test_costs_are_small_and_not_negative(ort: OnnxRuntimeBackend) -> None:
    costs = ort.costs()
    assert set(costs) == {"call_ms", "reshape_ms"}
    assert costs["call_ms"] == ort.costs()["call_ms"] >= 0
    overheads = ort.overheads_between_layers()
    weights = [weights_cost(footprint_mb) for footprint_mb in FOOTPRINTS_MB]
    assert set(overheads) == {"overhead_ms_per_layer", "overhead_ms_per_mb", *weights}
    assert min(*costs.values(), *overheads.values()) >= 0
    assert overheads[weights[0]] == 0


def test_an_own_process_shares_one_pool_among_all_sessions() -> None:
    script = """
import os
from resperf.backends.onnxruntime import OnnxRuntimeBackend
from resperf.layers import Dense

def threads():
    return len(os.listdir("/proc/self/task"))

backend = OnnxRuntimeBackend(threads=3)
backend.own_process()
backend.own_process()
layer = backend.lower([Dense(batch=1, features_in=8, features_out=8)])[0]
with backend.layer(layer, budget_ms=1.0):
    before = threads()
    with backend.layer(layer, budget_ms=1.0) as other:
        other.isolated()
        print(threads() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0"]


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (conv(dtype="float16"), "float32"),
        (conv(layout="nhwc"), "nhwc"),
        (conv(activation="gelu"), "does not fuse gelu"),
        (pool(channels_in=6, layout="nchwc16"), "no multiple of 16"),
        (Dense(batch=1, features_in=4, features_out=4, activation="gelu"), "does not fuse gelu"),
    ],
)
def test_what_no_kernel_runs_is_refused(layer: Layer, words: str, ort: OnnxRuntimeBackend) -> None:
    if ort.setting().options["nchwc_block"] != "16":
        pytest.skip("written for blocks of 16 channels")
    with pytest.raises(UnsupportedError, match=words):
        ort.layer(layer, budget_ms=1.0)


def test_an_input_has_the_values_that_are_given() -> None:
    size = SimpleNamespace(name="size", type="tensor(int64)", shape=[2])
    assert filled_input(size, {}).tolist() == [1, 1]
    assert filled_input(size, {"size": (30, 40)}).tolist() == [30, 40]
    assert filled_input(size, {"size": (9,)}).tolist() == [9, 9]


def test_a_whole_network_runs_in_all_phases(ort: OnnxRuntimeBackend) -> None:
    with ort.network(NETWORKS / "lenet5.onnx", batch=3) as built:
        built.phases["preprocess_ms"].sampler.run()
        built.phases["execution_ms"].sampler.run()
        (result,) = built.phases["postprocess_ms"].sampler.run()
    assert result.shape == (3, 10)
    assert np.isfinite(result).all()


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ResperfError, match="colour"):
        backend("onnxruntime", colour="red")
    with pytest.raises(ResperfError, match="at least 1"):
        backend("onnxruntime", threads=-1)


@pytest.mark.parametrize("mode", ["ORT_SEQUENTIAL", "ORT_PARALLEL"])
def test_onnxruntime_runs_branches_one_after_the_other_in_both_modes(
    mode: str, tmp_path: Path
) -> None:
    # Predictions add operators up for either mode: this fails where a version runs them at once.
    nodes, ends = [], []
    for branch in "pq":
        before = "x"
        for step in range(6):
            name = f"{branch}{step}"
            nodes.append(helper.make_node("CumSum", [before, "axis"], [name], name))
            before = name
        ends.append(before)
    nodes.append(helper.make_node("Add", ends, ["y"], "join"))
    infos = [helper.make_tensor_value_info(name, 1, [256, 256]) for name in "xy"]
    axis = numpy_helper.from_array(np.array(1), "axis")
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    options.inter_op_num_threads, options.intra_op_num_threads = 2, 1
    # Equal branches would become one.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, {"x": np.ones((256, 256), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    runs = [each for each in events if each["name"].endswith("_kernel_time")]
    runs.sort(key=lambda each: each["ts"])
    assert len(runs) == 13
    # Times are whole microseconds.
    assert all(b["ts"] >= a["ts"] + a["dur"] - 1 for a, b in itertools.pairwise(runs))
    assert len({each["tid"] for each in runs}) == 1
