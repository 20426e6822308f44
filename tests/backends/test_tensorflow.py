"""The TensorFlow backend computes what ONNX Runtime computes, and times the documented phases."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from onnx import TensorProto, helper

from resperf.backends import tensorflow_runs
from resperf.backends.tensorflow import TensorFlowBackend
from resperf.backends.tensorflow_runs import (
    MAX_COPIES_PER_RUN,
    Operator,
    chain,
    dummy_weights,
    layer_run,
    operator_of,
    traced_copies,
)
from resperf.errors import ResperfError, UnsupportedError
from resperf.layers import Activation, Conv, Dense, Layer, Pool, Reorder
from resperf.lowering.tensorflow import lower_layer
from resperf.quantities import PHASES

Array = np.ndarray[Any, Any]


def conv(**fields: Any) -> Conv:
    base = {
        "batch": 2, "channels_in": 6, "height": 11, "width": 9, "kernel_height": 3,
        "kernel_width": 3, "channels_out": 4,
    }  # fmt: skip
    return Conv(**(base | fields))


def pool(**fields: Any) -> Pool:
    base = {
        "batch": 2, "channels_in": 6, "height": 11, "width": 9, "kernel_height": 3,
        "kernel_width": 3,
    }  # fmt: skip
    return Pool(**(base | fields))


def pads(top: int, left: int, bottom: int, right: int) -> dict[str, int]:
    return {"pad_top": top, "pad_left": left, "pad_bottom": bottom, "pad_right": right}


def stride(rows: int, columns: int) -> dict[str, int]:
    return {"stride_height": rows, "stride_width": columns}


def dilation(rows: int, columns: int) -> dict[str, int]:
    return {"dilation_height": rows, "dilation_width": columns}


FUNCTIONS = (
    "relu", "tanh", "sigmoid", "leaky_relu", "elu", "softplus", "hard_sigmoid", "hard_swish",
    "gelu", "selu", "celu", "softsign", "thresholded_relu",
)  # fmt: skip

LAYERS: dict[str, Layer] = {
    "valid": conv(),
    "same": conv(**pads(1, 1, 1, 1)),
    "same, strided": conv(height=12, **stride(2, 2), **pads(0, 1, 1, 1)),
    "explicit, strided": conv(**stride(2, 1), **pads(1, 0, 2, 2)),
    "pads that no window reaches": conv(height=10, **stride(2, 2), **pads(1, 1, 1, 1)),
    "dilated": conv(**dilation(2, 3), **pads(2, 1, 0, 3)),
    "dilated and strided": conv(**dilation(2, 2), **stride(2, 2)),
    "groups": conv(groups=2),
    "groups, same, strided": conv(groups=2, **stride(2, 2), **pads(1, 1, 1, 1)),
    "depthwise": conv(groups=6, channels_out=6, **pads(1, 1, 1, 1)),
    "depthwise, two per channel": conv(groups=6, channels_out=12, **stride(2, 2)),
    "depthwise, explicit": conv(groups=6, channels_out=6, **stride(2, 2), **pads(1, 1, 1, 1)),
    "no bias": conv(bias=False, kernel_height=1, kernel_width=1),
    "residual": conv(residual=True, activation="relu", **pads(1, 1, 1, 1)),
    "tall kernel": conv(kernel_height=5, kernel_width=1, **pads(2, 0, 2, 0)),
    "max": pool(**stride(2, 2)),
    "max, same": pool(**pads(1, 1, 1, 1)),
    "max, explicit": pool(**stride(2, 2), **pads(1, 0, 1, 1)),
    "max, ceil": pool(height=12, width=10, ceil_mode=True, **stride(2, 2)),
    "max, ceil and pads": pool(ceil_mode=True, **stride(3, 3), **pads(1, 1, 0, 0)),
    "average": pool(mode="average", **stride(2, 3)),
    "average, same": pool(mode="average", **pads(1, 1, 1, 1)),
    "average, pads counted": pool(mode="average", count_include_pad=True, **pads(1, 1, 1, 1)),
    "average, ceil like same": pool(height=12, width=10, mode="average", ceil_mode=True,
                                    **stride(2, 2)),
    "mean of the image": pool(mode="average", whole_image=True, kernel_height=11, kernel_width=9),
    "maximum of the image": pool(whole_image=True, kernel_height=11, kernel_width=9),
    "dense": Dense(batch=3, features_in=10, features_out=7),
    "dense, no bias": Dense(batch=1, features_in=10, features_out=7, bias=False),
    **{f"activation {name}": conv(activation=name) for name in FUNCTIONS},
    **{f"{name} alone": Activation(batch=3, values=50, activation=name) for name in FUNCTIONS},
}  # fmt: skip

ONNX_ACTIVATIONS = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "leaky_relu": "LeakyRelu", "elu": "Elu",
    "softplus": "Softplus", "hard_sigmoid": "HardSigmoid", "hard_swish": "HardSwish",
    "gelu": "Gelu", "selu": "Selu", "celu": "Celu", "softsign": "Softsign",
    "thresholded_relu": "ThresholdedRelu",
}  # fmt: skip


def onnx_nodes(layer: Layer) -> list[onnx.NodeProto]:
    """The layer as an ONNX graph: inputs x, w, b and r, output y."""
    outputs = iter(["t1", "t2", "t3"])
    done = next(outputs)
    if isinstance(layer, Activation):
        nodes, done = [], "x"
    elif isinstance(layer, Dense):
        nodes = [helper.make_node("Gemm", ["x", "w", "b"][: 2 + layer.bias], [done])]
    else:
        assert isinstance(layer, Conv | Pool)
        window: dict[str, Any] = {
            "strides": [layer.stride_height, layer.stride_width],
            "dilations": [layer.dilation_height, layer.dilation_width],
            "pads": [layer.pad_top, layer.pad_left, layer.pad_bottom, layer.pad_right],
            "kernel_shape": [layer.kernel_height, layer.kernel_width],
        }
        if isinstance(layer, Conv):
            inputs = ["x", "w", "b"][: 2 + layer.bias]
            nodes = [helper.make_node("Conv", inputs, [done], group=layer.groups, **window)]
        elif layer.whole_image:
            op = {"max": "GlobalMaxPool", "average": "GlobalAveragePool"}[layer.mode]
            nodes = [helper.make_node(op, ["x"], [done])]
        else:
            op = {"max": "MaxPool", "average": "AveragePool"}[layer.mode]
            if layer.mode == "average":
                window["count_include_pad"] = int(layer.count_include_pad)
            window["ceil_mode"] = int(layer.ceil_mode)
            nodes = [helper.make_node(op, ["x"], [done], **window)]
    if getattr(layer, "residual", False):
        nodes.append(helper.make_node("Add", [done, "r"], ["t2"]))
        done = "t2"
    activation = getattr(layer, "activation", "none")
    if activation != "none":
        nodes.append(helper.make_node(ONNX_ACTIVATIONS[activation], [done], ["t3"]))
        done = "t3"
    return [*nodes, helper.make_node("Identity", [done], ["y"])]


def onnx_result(layer: Layer, values: dict[str, Array]) -> Array:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in values.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, layer.output_shape)
    graph = helper.make_graph(onnx_nodes(layer), "layer", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model, full_check=False)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    result: Array = session.run(None, values)[0]
    return result


def onnx_values(layer: Layer) -> dict[str, Array]:
    """Random input, weights, bias and residual, as far as the layer has them."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"x": layer.input_shape}
    if isinstance(layer, Conv):
        taps = (layer.channels_in // layer.groups, layer.kernel_height, layer.kernel_width)
        shapes["w"] = (layer.channels_out, *taps)
        shapes |= {"b": (layer.channels_out,)} if layer.bias else {}
        shapes |= {"r": layer.output_shape} if layer.residual else {}
    if isinstance(layer, Dense):
        shapes["w"] = (layer.features_in, layer.features_out)
        shapes |= {"b": (layer.features_out,)} if layer.bias else {}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def stored(array: Array) -> Any:
    return tf.constant(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array)


def stored_weights(layer: Layer, array: Array) -> Array:
    """A filter (out, in / groups, rows, columns), or any other constant, as TensorFlow has it."""
    if array.ndim < 4:
        return array
    assert isinstance(layer, Conv)
    if 1 < layer.groups == layer.channels_in:
        sides = (layer.kernel_height, layer.kernel_width)
        return array.reshape(layer.groups, -1, *sides).transpose(2, 3, 0, 1)
    return array.transpose(2, 3, 1, 0)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_layers_compute_what_onnx_means(tensorflow: TensorFlowBackend, layer: Layer) -> None:
    (layer,) = tensorflow.lower([layer])
    values = onnx_values(layer)
    operator = operator_of(layer)
    weights = [stored_weights(layer, values[name]) for name in "wb" if name in values]
    assert [w.shape for w in weights] == [shape for shape, _ in operator.weights]
    extras = [stored(values["r"])] if "r" in values else []
    x = stored(values["x"])
    # Through the graph optimiser, which may replace every kernel and has bugs.
    twice = traced_copies(operator, x, [weights, weights], extras)
    try:
        y = twice(x).numpy()
    except tf.errors.UnimplementedError as error:
        # On processors without oneDNN's kernels.
        if "does not support grouped convolutions" not in error.message:
            raise
        pytest.skip(f"TensorFlow cannot run this layer here: {error.message[:100]}")
    y = y.transpose(0, 3, 1, 2) if y.ndim == 4 else y
    np.testing.assert_allclose(y, onnx_result(layer, values), rtol=1e-3, atol=1e-4)


REFUSED: dict[str, tuple[Layer, str]] = {
    "layout": (conv(), "stores images as nhwc here, not nchw"),
    "reorder": (Reorder(batch=1, channels_in=4, height=8, width=8), "single image layout"),
    "dilated depthwise": (
        lower_layer(conv(groups=6, channels_out=6, **dilation(2, 2))),
        "dilation=2x2 with one channel per group",
    ),
    "unequal strides, depthwise": (
        lower_layer(conv(groups=6, channels_out=6, **stride(1, 2))),
        "strides 1x2",
    ),
    "dilated pool": (lower_layer(pool(**dilation(2, 2))), "dilation=2x2 has no kernel"),
    "explicit average": (
        lower_layer(pool(mode="average", **stride(2, 2), **pads(1, 1, 1, 0))),
        "count_include_pad=False",
    ),
    "ceil average": (
        lower_layer(pool(height=12, mode="average", ceil_mode=True, count_include_pad=True,
                         **stride(2, 2), **pads(1, 1, 1, 1))),
        "ceil_mode=True",
    ),
    "wide pads": (lower_layer(pool(**pads(3, 0, 0, 0))), "3 padded pixels"),
}  # fmt: skip


@pytest.mark.parametrize(("layer", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_layers_without_a_tensorflow_kernel_are_refused(
    tensorflow: TensorFlowBackend, layer: Layer, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        tensorflow.layer(layer, budget_ms=1.0)


@pytest.mark.parametrize(
    "layer",
    [conv(activation="relu"), pool(mode="average"), Dense(batch=1, features_in=8, features_out=8)],
)
def test_a_layer_has_three_phases(
    tensorflow: TensorFlowBackend, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_runs, "copies_for", lambda *given: given[-1])
    (layer,) = tensorflow.lower([layer])
    with tensorflow.layer(layer, budget_ms=1.0) as built:
        assert tuple(built.phases) == PHASES
        (x,) = built.phases["preprocess_ms"].sampler.run()
        y = built.isolated.run()
        (host,) = built.phases["postprocess_ms"].sampler.run()
        marginal = built.phases["execution_ms"].sampler.run()
        assert tuple(x.shape) == operator_of(layer).input_shape
        assert isinstance(host, np.ndarray)
        np.testing.assert_array_equal(host, y.numpy())  # type: ignore[attr-defined]
        np.testing.assert_array_equal(host, marginal.numpy())  # type: ignore[attr-defined]
        execution = built.phases["execution_ms"]
        assert execution.copies == MAX_COPIES_PER_RUN
        assert execution.offset >= tensorflow.costs()["call_ms"]
        for phase in ("preprocess_ms", "postprocess_ms"):
            assert (built.phases[phase].copies, built.phases[phase].offset) == (1, 0.0)
            assert built.phases[phase].copies == 1


@pytest.mark.parametrize(
    ("layer", "kernel", "fused_away"),
    [
        (conv(activation="relu"), "FusedConv2D", ("BiasAdd", "Relu")),
        (pool(), "MaxPool", ()),
        (Dense(batch=2, features_in=8, features_out=8), "FusedMatMul", ("BiasAdd",)),
    ],
)
def test_the_optimiser_prunes_no_copy_and_fuses_within_it(
    tensorflow: TensorFlowBackend,
    optimised_ops: Callable[[Any, Any], list[str]],
    layer: Layer,
    kernel: str,
    fused_away: tuple[str, ...],
) -> None:
    operator = operator_of(tensorflow.lower([layer])[0])
    x = tf.ones(operator.input_shape)
    weights = [dummy_weights(operator) for _ in range(5)]
    function = tf.function(
        lambda image: chain(operator, image, weights, []), autograph=False
    ).get_concrete_function(tf.TensorSpec(x.shape, x.dtype))
    ops = optimised_ops(function, x)
    assert sum(kernel in op for op in ops) == 5
    assert not set(ops) & set(fused_away)


def test_copies_have_different_weights() -> None:
    operator = operator_of(Dense(batch=1, features_in=3, features_out=2))
    # x = 1, and matrices of 1, 10 and 100: only the last copy's result is returned.
    weights = [[tf.fill((3, 2), value), tf.zeros(2)] for value in (1.0, 10.0, 100.0)]
    y = chain(operator, tf.ones((1, 3)), weights, [])
    assert y.numpy().tolist() == [[300.0, 300.0]]


def test_costs_are_measured_once(tensorflow: TensorFlowBackend) -> None:
    costs = tensorflow.costs()
    assert costs["call_ms"] == tensorflow.costs()["call_ms"] > 0
    assert set(costs) == {"call_ms", "reshape_ms"}
    assert min(costs.values()) >= 0
    assert tensorflow.costs() == costs
    overheads = tensorflow.overheads_between_layers()
    assert set(overheads) == {"overhead_ms_per_layer", "overhead_ms_per_mb"}
    assert min(overheads.values()) >= 0


def test_closing_a_layer_frees_its_weights(
    tensorflow: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = []

    def made(operator: Operator) -> list[tf.Tensor]:
        weights = dummy_weights(operator)
        alive.append(weakref.ref(weights[0]))
        return weights

    monkeypatch.setattr(tensorflow_runs, "dummy_weights", made)
    operator = operator_of(Dense(batch=1, features_in=300, features_out=2))
    run = layer_run(operator, {"call_ms": 0.0, "link_ms": 0.0}, 1.0)
    assert alive
    assert all(each() is not None for each in alive)
    with run:
        pass
    assert all(each() is None for each in alive)


def test_the_setting_holds_every_option(tensorflow: TensorFlowBackend) -> None:
    setting = tensorflow.setting()
    assert setting.framework == "tensorflow"
    assert setting.framework_version == tf.__version__
    assert setting.threads == tf.config.threading.get_intra_op_parallelism_threads()
    assert setting.options["inter_op_threads"] == "1"
    assert "onednn" in setting.options


def test_threads_cannot_change_within_a_process(tensorflow: TensorFlowBackend) -> None:
    with pytest.raises(ResperfError, match="start a new process"):
        TensorFlowBackend(threads=tensorflow.threads + 1)
    TensorFlowBackend(threads=tensorflow.threads)
    with pytest.raises(ResperfError, match="threads=0"):
        TensorFlowBackend(threads=0)


def test_too_little_memory_is_a_memory_error(
    tensorflow: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr("resperf.backends.tensorflow.layer_run", exhausted)
    with pytest.raises(MemoryError, match="OOM when allocating"):
        tensorflow.layer(Dense(batch=1, features_in=3, features_out=2), budget_ms=1.0)
