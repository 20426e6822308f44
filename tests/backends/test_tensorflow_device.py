"""TensorFlow on CUDA devices, with the CPU under another name: its calls wait, as on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from onnx import TensorProto, helper

from resperf.backends import tensorflow_runs
from resperf.backends._values import made_up
from resperf.backends.tensorflow import TensorFlowBackend
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_device import Device, chosen_device
from resperf.backends.tensorflow_operators import build
from resperf.backends.tensorflow_runs import call_costs_ms, layer_run, operator_of, queued_chain
from resperf.campaign.sampler import Sampler
from resperf.campaign.spec import Campaign
from resperf.errors import ResperfError
from resperf.layers import Activation, Conv, Dense, Layer, Norm, Softmax
from resperf.lowering import lower
from resperf.network import read_network
from resperf.network.weights import weights_of
from resperf.quantities import PHASES

FREE = {"call_ms": 0.0, "link_ms": 0.0}
QUEUED = Device("/device:CPU:0")
"""Not the name of the CPU here: treated as a GPU."""
CONV = Conv(
    batch=2, channels_in=6, height=11, width=9, kernel_height=3, kernel_width=3, channels_out=4,
    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1, activation="relu", layout="nhwc",
)  # fmt: skip
DENSE = Dense(batch=2, features_in=8, features_out=4)


@pytest.mark.parametrize(
    ("layer", "kernel"),
    [
        (CONV, "FusedConv2D"),
        (Activation(batch=2, values=64, activation="tanh"), "Tanh"),
        (Softmax(batch=2, values=64), "Softmax"),
    ],
)
def test_copies_on_a_stream_are_neither_pruned_nor_merged(
    tensorflow: TensorFlowBackend,
    optimised_ops: Callable[[Any, Any], list[str]],
    layer: Layer,
    kernel: str,
) -> None:
    operator = operator_of(layer)
    x = tf.ones(operator.input_shape)
    weights = [tensorflow_runs.dummy_weights(operator) for _ in range(5)]
    function = tf.function(
        lambda image: queued_chain(operator, image, weights, []), autograph=False
    ).get_concrete_function(tf.TensorSpec(x.shape, x.dtype))
    ops = optimised_ops(function, x)
    assert sum(kernel in op for op in ops) == 5
    # It would copy an output to the host.
    assert "Assert" not in ops
    y, marks = function(x)
    assert np.array_equal(marks, [y.numpy().flat[0]] * 5)


def test_a_layer_waits_for_its_device(
    tensorflow: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[str] = []
    sync = tf.raw_ops.SyncDevice
    monkeypatch.setattr(tf.raw_ops, "SyncDevice", lambda: waits.append("sync") or sync())
    monkeypatch.setattr(tensorflow_runs, "copies_for", lambda *_: 3)
    built = layer_run(operator_of(DENSE), FREE, 1.0, QUEUED)
    with built:
        assert tuple(built.phases) == PHASES
        assert built.phases["execution_ms"].copies == 3
        waits.clear()
        for name in ("preprocess_ms", "execution_ms"):
            assert built.phases[name].sampler() > 0
        built.isolated()
        assert len(waits) == 3
        # numpy() waits by itself.
        (host,) = built.phases["postprocess_ms"].sampler.run()
        assert (host.shape, len(waits)) == ((2, 4), 3)


def test_costs_of_a_call_contain_the_wait(
    tensorflow: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_runs, "_ROUND_SECONDS", 0.001)
    costs = call_costs_ms(QUEUED)
    assert costs["call_ms"] > 0
    assert min(costs.values()) >= 0


def test_xla_gets_one_copy_and_computes_the_same(
    tensorflow: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_runs, "_ROUND_SECONDS", 0.001)
    device = Device(compiled="xla")
    operator = operator_of(Activation(batch=2, values=64, activation="gelu"))
    built = layer_run(operator, FREE, 1.0, device)
    with built:
        assert built.phases["execution_ms"].copies == 1
        (host,) = built.phases["postprocess_ms"].sampler.run()
    x = made_up((2, 64), "float32")
    np.testing.assert_allclose(host, tf.nn.gelu(x), rtol=1e-4, atol=1e-6)
    assert call_costs_ms(device)["reshape_ms"] == 0.0


def test_the_chosen_gpu_is_the_only_one_and_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    gpus = [SimpleNamespace(name=f"gpu{i}") for i in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *given: calls.append(given))
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda *given: calls.append(given)
    )
    assert chosen_device("cuda:1", "graph") == Device("/GPU:0", "graph")
    assert calls == [(gpus[1], "GPU"), (gpus[1], True)]
    with pytest.raises(ResperfError, match="no device cuda:2 here; it sees cuda:0 to cuda:1"):
        chosen_device("cuda:2", "graph")

    def started(*_: object) -> None:
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", started)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus[:1])
    with pytest.raises(ResperfError, match="start a new process"):
        chosen_device("cuda:1", "graph")
    assert chosen_device("cuda", "xla") == Device("/GPU:0", "xla")


def test_without_a_gpu_one_line_says_what_to_install(
    tensorflow: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    with pytest.raises(ResperfError, match=r"CPUs only.*pip install 'tensorflow\[and-cuda\]'"):
        TensorFlowBackend(threads=tensorflow.threads, device="cuda:0")
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: True)
    with pytest.raises(ResperfError, match=r"sees no GPU here.*nvidia-smi"):
        TensorFlowBackend(threads=tensorflow.threads, device="cuda:0")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "int8"}, "precision=int8 .* fp32, tf32, fp16, bf16"),
        ({"precision": "tf32"}, "tf32 exists on NVIDIA GPUs only"),
        ({"layout": "nchw"}, "layout=nchw does not exist in TensorFlow; it has nhwc"),
        ({"compiled": "dynamo"}, "it has graph, xla"),
    ],
)
def test_settings_that_do_not_exist_are_refused(
    tensorflow: TensorFlowBackend, settings: dict[str, str], words: str
) -> None:
    with pytest.raises(ResperfError, match=words):
        TensorFlowBackend(threads=tensorflow.threads, **settings)  # type: ignore[arg-type]


def test_half_precision_is_the_type_of_layers_and_networks(
    tensorflow: TensorFlowBackend, network_file: Callable[..., Path]
) -> None:
    half = TensorFlowBackend(threads=tensorflow.threads, precision="bf16")
    half.__dict__["_call_costs_ms"] = {"call_ms": 0.0, "link_ms": 0.0, "reshape_ms": 0.0}
    assert half.setting().precision == "bf16"
    norm = Norm(batch=1, channels=8, pixels=4, function="layer")
    for layer in half.lower([DENSE, norm]):
        with half.layer(layer, budget_ms=1.0) as built:
            (host,) = built.phases["postprocess_ms"].sampler.run()
            assert host.dtype.name == "bfloat16"
    weights = {"w": np.ones((4, 3, 1, 1), np.float32), "b": np.ones(4, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    path = network_file("c.onnx", nodes, {"x": [1, 3, 4, 5]}, {"y": [1, 4, 4, 5]}, weights)
    with half.network(path, batch=None) as built:
        (host,) = built.phases["postprocess_ms"].sampler.run()
        assert (host.dtype.name, host.shape) == ("bfloat16", (1, 4, 5, 4))


@pytest.fixture
def transformer(network_file: Callable[..., Path]) -> Path:
    """Token numbers, an embedding, one attention in parts, a gate, and a head."""
    random = np.random.default_rng(3)
    weights: dict[str, Any] = {
        "table": random.standard_normal((20, 8), np.float32),
        **{f"w{part}": random.standard_normal((8, 8), np.float32) for part in "qkvo"},
        "gamma": random.standard_normal(8, np.float32),
        "beta": random.standard_normal(8, np.float32),
        "heads": np.array([0, 0, 2, 4], np.int64),
        "tokens": np.array([0, 0, 8], np.int64),
        "scale": np.array(0.5, np.float32),
    }
    n = helper.make_node
    nodes = [n("Gather", ["table", "ids"], ["e"])]
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            n("MatMul", ["e", f"w{part}"], [f"{part}0"]),
            n("Reshape", [f"{part}0", "heads"], [f"{part}1"]),
            n("Transpose", [f"{part}1"], [part], perm=order),
        ]
    nodes += [
        n("MatMul", ["q", "k"], ["s0"]),
        n("Mul", ["s0", "scale"], ["s1"]),
        n("Softmax", ["s1"], ["s"], axis=-1),
        n("MatMul", ["s", "v"], ["m0"]),
        n("Transpose", ["m0"], ["m1"], perm=[0, 2, 1, 3]),
        n("Reshape", ["m1", "tokens"], ["m"]),
        n("MatMul", ["m", "wo"], ["o"]),
        n("Add", ["o", "e"], ["r"]),
        n("LayerNormalization", ["r", "gamma", "beta"], ["l"]),
        n("Sigmoid", ["l"], ["g"]),
        n("Mul", ["g", "l"], ["u"]),
        n("ReduceMean", ["u"], ["y"], axes=[1], keepdims=0),
    ]
    inputs = {"ids": (TensorProto.INT64, [2, 5])}
    return network_file("transformer.onnx", nodes, inputs, {"y": [2, 8]}, weights)


def test_a_transformer_computes_what_onnx_runtime_computes(
    tensorflow: TensorFlowBackend, transformer: Path
) -> None:
    ids = np.arange(10).reshape(2, 5)
    network = read_network(transformer)
    (y,) = Builder(network, weights_of(transformer)).outputs(build, tf.constant(ids))
    session = onnxruntime.InferenceSession(transformer, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(y, session.run(None, {"ids": ids})[0], rtol=1e-3, atol=1e-4)
    lowered = lower(network, tensorflow.setting(), tensorflow.platform())
    # Nothing is an image, so that nothing is transposed but where the file says so.
    assert [node.op for node in lowered.nodes].count("Transpose") == 4
    kinds = {node.layer.kind for node in lowered.nodes if node.layer is not None}
    assert kinds == {
        "move", "dense", "matmul", "transpose", "softmax", "elementwise", "norm", "activation",
        "reduce",
    }  # fmt: skip
    assert {node.role for node in lowered.nodes} == {"execution", "view"}
    with tensorflow.network(transformer, batch=None) as built:
        assert built.isolated() > 0


@pytest.mark.parametrize("kind", ["attention", "recurrent", "indexed", "select", "norm"])
def test_layers_of_other_kinds_have_three_phases(tensorflow: TensorFlowBackend, kind: str) -> None:
    campaign = Campaign.from_mapping({
        "name": "test", "kinds": {kind: {}}, "constraints": {"largest_tensor_bytes": 20_000},
    })  # fmt: skip
    (layer,) = tensorflow.lower(Sampler(campaign, seed=1).draw(1))
    with tensorflow.layer(layer, budget_ms=0.5) as built:
        for phase in built.phases.values():
            assert phase.sampler() > 0
