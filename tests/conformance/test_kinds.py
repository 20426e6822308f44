"""Every kind of layer says all that resperf asks of it, and agrees with itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from resperf.backends import backend
from resperf.backends._ort_kernels import CONV_ACTIVATIONS, GEMM_ACTIVATIONS, kernel_of
from resperf.campaign.sampler import Sampler
from resperf.campaign.spec import Campaign
from resperf.errors import LayerError
from resperf.features import columns_of, feature_matrix, quantities
from resperf.layers import (
    ACTIVATIONS,
    KINDS,
    Kernel,
    Layer,
    Operand,
    Operator,
    layer_from_key,
    layer_of_operator,
)
from resperf.layers._sliding import WindowLayer
from resperf.predictors.terms.work import physical_terms
from resperf.units import DTYPE_BYTES

DRAWS = 40
SMALL_BYTES = 400_000
BLOCK = 16
NO_OPERATOR = ("reorder",)
"""Kinds that no ONNX operator does the work of."""
UNMEASURED: Mapping[str, set[str]] = {
    "activation": {"hard_swish"},
    **{
        kind: set(ACTIVATIONS) - set(fusible) - {"none"}
        for kind, fusible in (("conv", CONV_ACTIVATIONS), ("dense", GEMM_ACTIVATIONS))
    },
}
"""Functions that ONNX Runtime has no such kernel for."""
READ = [kind for kind in KINDS if kind not in NO_OPERATOR]


def drawn(kind: str, count: int = DRAWS) -> list[Layer]:
    """Draw small layers from the kind's own ranges."""
    campaign = Campaign.from_mapping({
        "name": "test", "kinds": {kind: {}},
        "constraints": {"largest_tensor_bytes": SMALL_BYTES, "largest_macs": 3_000_000},
    })  # fmt: skip
    return Sampler(campaign, seed=3).draw(count)


def kernel(layer: Layer) -> Kernel:
    """Return what ONNX Runtime makes of the layer's operator: with fused operators."""
    return kernel_of(layer, BLOCK)


def as_operator(kernel: Kernel) -> Operator:
    """Say what a graph with this node in it would say."""
    shapes = (kernel.input_shape, *kernel.weight_shapes, *kernel.extra_shapes)
    fixed = len(kernel.weight_shapes)
    inputs = [
        Operand(shape, dtype, is_fixed=0 < place <= fixed)
        for place, (shape, dtype) in enumerate(zip(shapes, kernel.input_dtypes, strict=True))
    ]
    inputs = [inputs[place] for place in kernel.order or range(len(inputs))]
    given = [
        None if each is None else Operand((len(each),), "int64", np.array(each))
        for each in kernel.constants
    ]
    return Operator(
        op=kernel.op,
        domain=kernel.domain,
        attributes=kernel.attributes,
        inputs=(*inputs, *given),
        outputs=(kernel.output_shape,) * (1 + kernel.more_outputs),
        block=BLOCK if kernel.domain.endswith("nchwc") else 1,
    )


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_kind_declares_everything(kind: str) -> None:
    cls = KINDS[kind]
    assert "batch" in cls.specs
    assert set(cls.ENCODED) <= set(cls.specs)
    assert {cls.PLACED_BY, cls.FUNCTION or "", *cls.SCALED} <= {"", *cls.specs}
    assert set(cls.REDRAWN) <= {*cls.specs, *cls.aliases}
    assert cls.RANGES.keys() <= {*cls.specs, *cls.aliases, *cls.WORDS}
    for other, theirs in KINDS.items():
        assert other == kind or not cls.OPERATORS & theirs.OPERATORS


@pytest.mark.parametrize("kind", READ)
def test_a_kind_has_operators_or_shares_another_kind_s(kind: str) -> None:
    read = layer_of_operator(as_operator(kernel(drawn(kind, 1)[0])))
    assert KINDS[kind].OPERATORS or read.kind == kind


@pytest.mark.parametrize("kind", NO_OPERATOR)
def test_a_kind_without_an_operator_says_so(kind: str) -> None:
    assert not KINDS[kind].OPERATORS
    layer = drawn(kind, 1)[0]
    with pytest.raises(LayerError, match=f"no ONNX operator does the work of a {kind} layer"):
        layer.as_onnx_node()
    with pytest.raises(LayerError, match=f"Foo is no layer of kind {kind}"):
        type(layer).read(Operator("Foo", {}, (), ()))


def test_features_and_terms_are_finite_and_agree_with_the_layers(kind: str) -> None:
    layers = drawn(kind, 400)
    if issubclass(KINDS[kind], WindowLayer):
        layers[::2] = [layer.replace(layout="nchwc16") for layer in layers[::2]]
    columns = columns_of(layers)
    q = quantities(kind, columns)
    # A convolution's residual is counted separately, and a re-layout pads blocks.
    in_bytes = q["in_bytes"] + q.get("residual_bytes", 0)
    filled = q["padded_bytes"] - q["in_bytes"] if kind == "reorder" else 0
    np.testing.assert_array_equal(in_bytes, [layer.input_bytes for layer in layers])
    np.testing.assert_array_equal(q["out_bytes"], [layer.output_bytes for layer in layers])
    np.testing.assert_allclose(
        q["moved_bytes"] - filled, [layer.moved_bytes for layer in layers], rtol=1e-14
    )
    # The same properties for one layer and for many.
    many = type(layers[0]).over(columns)
    for name in ("input_bytes", "output_bytes", "weight_bytes", "moved_bytes", "macs"):
        expected = [getattr(layer, name) for layer in layers]
        np.testing.assert_array_equal(np.broadcast_to(getattr(many, name), len(layers)), expected)
    names, matrix = feature_matrix(kind, columns)
    assert len(set(names)) == len(names) == matrix.shape[1]
    assert np.isfinite(matrix).all()
    terms = physical_terms(kind, columns)
    assert np.isfinite(terms).all()
    assert (terms >= 0).all()
    # Every feature varies between draws, unless it is constant by definition.
    constant = [n for n, c in zip(names, matrix.T, strict=True) if len(set(c.tolist())) == 1]
    functions = {f"activation={each}" for each in UNMEASURED.get(kind, ())}
    # Frameworks choose layouts and types, and dilated poolings do not occur.
    chosen = ("dtype=", "layout=", "layout_out=", *functions, *(["dilated"] * (kind == "pool")))
    assert not [name for name in constant if not name.startswith(chosen)]


def test_draws_are_layers_with_readable_keys(kind: str) -> None:
    layers = drawn(kind)
    assert len({layer.key for layer in layers}) > DRAWS / 2
    assert [layer_from_key(layer.key) for layer in layers] == layers


@pytest.mark.parametrize("kind", READ)
def test_a_kernel_writes_what_the_layer_says(kind: str) -> None:
    for layer in drawn(kind):
        dtype = layer.as_onnx_node().output_dtype or layer.as_onnx_node().dtype
        assert math.prod(layer.output_shape) * DTYPE_BYTES[dtype] == layer.output_bytes


@pytest.mark.parametrize("kind", READ)
def test_a_graph_with_the_kernel_in_it_is_read_as_the_same_work(kind: str) -> None:
    layers = drawn(kind, 400)
    # They include every choice of every field, so that every path of reading is checked.
    for name, spec in KINDS[kind].specs.items():
        if name in KINDS[kind].ENCODED and name in KINDS[kind].RANGES:
            found = {layer.fields()[name] for layer in layers}
            assert found == set(spec.choices) - UNMEASURED.get(kind, set()), name
    same = 0
    for layer in layers:
        if layer.fields().get("residual"):
            # The bias comes before the residual.
            layer = layer.replace(bias=True)
        made = kernel(layer)
        again = layer_of_operator(as_operator(made))
        assert again.kind == kind
        assert (again.input_bytes, again.output_bytes) == (layer.input_bytes, layer.output_bytes)
        assert (again.macs, again.weight_bytes) == (layer.macs, layer.weight_bytes)
        # Reading may normalise how rows and axes of length one are written, but only once.
        assert kernel(layer_of_operator(as_operator(kernel(again)))) == kernel(again)
        same += kernel(again) == made
    assert same > 0.7 * len(layers)


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime_runs_it(kind: str) -> None:
    started = backend("onnxruntime", threads=1)
    for layer in started.lower(drawn(kind, 25)):
        with started.layer(layer, budget_ms=0.05) as built:
            for phase in built.phases.values():
                phase.sampler()


def test_an_unsupported_operator_is_refused_with_the_reason() -> None:
    with pytest.raises(LayerError, match="no layer kind for operator Foo"):
        layer_of_operator(Operator("Foo", {}, (), ()))
    with pytest.raises(LayerError, match=r"operator com\.acme\.Softmax"):
        layer_of_operator(Operator("Softmax", {}, (Operand((2, 3)),), ((2, 3),), domain="com.acme"))
    with pytest.raises(LayerError, match="Softmax of type int64"):
        layer_of_operator(Operator("Softmax", {}, (Operand((2, 3), "int64"),), ((2, 3),)))
    with pytest.raises(LayerError, match="Add of type string"):
        layer_of_operator(Operator("Add", {}, (Operand((2, 3), "string"),) * 2, ((2, 3),)))


def test_layers_of_networks_can_be_scaled(kind: str) -> None:
    campaign = Campaign.from_mapping(
        {"name": "test", "kinds": {kind: {}}, "mixture": {"from_networks": 1.0, "exact": 0.0}}
    )
    original = max(drawn(kind, 60), key=lambda layer: layer.moved_bytes)
    layers = Sampler(campaign, seed=1, harvested=[original]).draw(40)
    for name in original.SCALED:
        found = {layer.fields()[name] for layer in layers}
        assert len(found) > 3 or found == {1}, name
    for name, spec in original.specs.items():
        if spec.choices and name not in original.REDRAWN:
            assert {layer.fields()[name] for layer in layers} == {original.fields()[name]}
