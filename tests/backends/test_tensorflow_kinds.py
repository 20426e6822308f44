"""Every kind with a TensorFlow operator computes what ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

from resperf.backends._ort_kernels import copies_graph
from resperf.backends.tensorflow import TensorFlowBackend
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_operators import build
from resperf.backends.tensorflow_runs import _alone
from resperf.campaign.sampler import Sampler
from resperf.campaign.spec import Campaign
from resperf.errors import UnsupportedError
from resperf.layers import KINDS, Kernel, Layer
from resperf.lowering.tensorflow import FILE_AXES, NO_OPERATOR

FUSED = ("conv", "dense", "activation")
"""Kinds with fused functions, which `test_tensorflow` checks."""
BUILT = [kind for kind in KINDS if kind not in NO_OPERATOR and kind not in FUSED]
DRAWS = 5
EDGES = ("resize",)
"""Kinds whose operators treat edges in another way than ONNX's."""


def drawn(kind: str, count: int = DRAWS) -> list[Layer]:
    campaign = Campaign.from_mapping({
        "name": "test", "kinds": {kind: {}},
        "constraints": {"largest_tensor_bytes": 60_000, "largest_macs": 300_000},
    })  # fmt: skip
    return Sampler(campaign, seed=5).draw(count)


def onnx_result(kernel: Kernel) -> tuple[dict[str, Any], dict[str, Any], Any]:
    model, weights, host = copies_graph(kernel, 1)
    if kernel.op == "BatchNormalization":  # variances are positive
        weights = {name: np.abs(array) for name, array in weights.items()}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_external_initializers(
        list(weights), [onnxruntime.OrtValue.ortvalue_from_numpy(w) for w in weights.values()]
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return weights, host, session.run(None, host)[0]


def tensorflow_result(kernel: Kernel, weights: dict[str, Any], host: dict[str, Any]) -> Any:
    network = _alone(kernel)
    named = {f"w{name.partition('_')[2]}": array for name, array in weights.items()}
    builder = Builder(network, named)
    given = [
        tf.constant(
            host[name].transpose(0, 2, 3, 1) if name in builder.storage.images else host[name]
        )
        for name in network.inputs
    ]
    (y,) = builder.outputs(build, *given)
    return y.numpy().transpose(FILE_AXES) if "y" in builder.storage.images else y.numpy()


def test_forms_without_an_operator_say_so(tensorflow: TensorFlowBackend) -> None:
    lp = drawn("pool_nd", 1)[0].replace(mode="lp")
    with pytest.raises(UnsupportedError, match=r"LpPool .* cannot be built in TensorFlow"):
        tensorflow.layer(lp, budget_ms=1.0)
    for kind in NO_OPERATOR:
        with pytest.raises(UnsupportedError, match=f"has no {kind} layer: {NO_OPERATOR[kind]}"):
            tensorflow.layer(drawn(kind, 1)[0], budget_ms=1.0)


@pytest.mark.parametrize("kind", BUILT)
def test_a_kind_computes_what_onnx_means(tensorflow: TensorFlowBackend, kind: str) -> None:
    computed = 0
    for layer in drawn(kind):
        kernel = layer.replace(
            **({"layout": "nchw"} if "layout" in layer.fields() else {})
        ).as_onnx_node()
        try:
            weights, host, expected = onnx_result(kernel)
        except Exception:  # no kernel of this type on a CPU
            continue
        try:
            y = tensorflow_result(kernel, weights, host)
        except UnsupportedError:
            continue
        computed += 1
        assert y.shape == expected.shape, layer
        assert y.dtype == expected.dtype, layer
        if kind in EDGES:
            continue
        np.testing.assert_allclose(
            y.astype(float), expected.astype(float), rtol=2e-3, atol=2e-3, err_msg=layer.key
        )
    assert computed


def test_a_convolution_of_a_volume_computes_what_onnx_means(tensorflow: TensorFlowBackend) -> None:
    layer = next(each for each in drawn("conv_nd", 60) if len(each.as_onnx_node().input_shape) == 5)
    kernel = layer.replace(groups=1).as_onnx_node()
    weights, host, expected = onnx_result(kernel)
    y = tensorflow_result(kernel, weights, host)
    np.testing.assert_allclose(y, expected, rtol=2e-3, atol=2e-3)
