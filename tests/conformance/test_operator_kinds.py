"""Every kind of layer that is one file says all that resperf asks of it, and agrees with itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resperf.backends import backend
from resperf.campaign.sampler import draw
from resperf.campaign.spec import Campaign
from resperf.errors import LayerError
from resperf.features import columns_of, feature_matrix, quantities
from resperf.layers import (
    OPERATOR_KINDS,
    Kernel,
    Operand,
    Operator,
    OperatorLayer,
    layer_from_key,
    layer_of_operator,
)
from resperf.predictors.terms import physical_terms
from resperf.units import DTYPE_BYTES

DRAWS = 40
SMALL_BYTES = 400_000


def drawn(kind: str, count: int = DRAWS) -> list[OperatorLayer]:
    """Draw small layers from the kind's own ranges."""
    campaign = Campaign.from_mapping({
        "name": "test", "kinds": {kind: {}},
        "constraints": {"largest_tensor_bytes": SMALL_BYTES, "largest_macs": 3_000_000},
    })  # fmt: skip
    layers = draw(campaign, seed=3, count=count)
    assert all(isinstance(layer, OperatorLayer) for layer in layers)
    return [layer for layer in layers if isinstance(layer, OperatorLayer)]


def as_operator(kernel: Kernel) -> Operator:
    """Say what a graph with this node in it would say."""
    shapes = (kernel.input_shape, *kernel.weight_shapes, *kernel.extra_shapes)
    inputs = [*map(Operand, shapes, kernel.input_dtypes)]
    inputs = [inputs[place] for place in kernel.order or range(len(inputs))]
    given = [
        None if each is None else Operand((len(each),), "int64", np.array(each))
        for each in kernel.given
    ]
    return Operator(
        op=kernel.op,
        domain=kernel.domain,
        attributes=kernel.attributes,
        inputs=(*inputs, *given),
        outputs=(kernel.output_shape,) * (1 + kernel.more_outputs),
        block=16 if kernel.domain.endswith("nchwc") else 1,
    )


@pytest.fixture(params=OPERATOR_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_kind_says_everything_about_itself(kind: str) -> None:
    cls = OPERATOR_KINDS[kind]
    # It has operators of its own, or another kind's become it.
    read = layer_of_operator(as_operator(drawn(kind, 1)[0].kernel()))
    assert cls.OPERATORS or read.kind == kind
    assert "batch" in cls.specs()
    assert set(cls.ENCODED) <= set(cls.specs())
    for other, theirs in OPERATOR_KINDS.items():
        assert other == kind or not cls.OPERATORS & theirs.OPERATORS


def test_features_and_terms_are_finite_and_agree_with_the_layers(kind: str) -> None:
    layers = drawn(kind, 400)
    columns = columns_of(layers)
    q = quantities(kind, columns)
    np.testing.assert_array_equal(q["in_bytes"], [layer.input_bytes for layer in layers])
    np.testing.assert_array_equal(q["out_bytes"], [layer.output_bytes for layer in layers])
    np.testing.assert_array_equal(q["moved_bytes"], [layer.moved_bytes for layer in layers])
    names, matrix = feature_matrix(kind, columns)
    assert len(set(names)) == len(names) == matrix.shape[1]
    assert np.isfinite(matrix).all()
    terms = physical_terms(kind, columns)
    assert np.isfinite(terms).all()
    assert (terms >= 0).all()
    # Every feature that is no constant by its meaning differs between draws.
    constant = [n for n, c in zip(names, matrix.T, strict=True) if len(set(c.tolist())) == 1]
    assert not [name for name in constant if not name.startswith("dtype=")]


def test_draws_are_layers_that_keys_name(kind: str) -> None:
    layers = drawn(kind)
    assert len({layer.key for layer in layers}) > DRAWS / 2
    assert [layer_from_key(layer.key) for layer in layers] == layers
    for layer in layers:
        dtype = layer.kernel().output_dtype or layer.kernel().dtype
        assert math.prod(layer.output_shape) * DTYPE_BYTES[dtype] == layer.output_bytes


def test_a_graph_with_the_kernel_in_it_is_read_as_the_same_work(kind: str) -> None:
    layers = drawn(kind, 400)
    # Every name of every field is among them, so that every way of reading is checked.
    for name, spec in OPERATOR_KINDS[kind].specs().items():
        if name in OPERATOR_KINDS[kind].ENCODED:
            assert {layer.fields()[name] for layer in layers} == set(spec.choices), name
    same = 0
    for layer in layers:
        kernel = layer.kernel()
        again = layer_of_operator(as_operator(kernel))
        assert again.kind == kind
        assert (again.input_bytes, again.output_bytes) == (layer.input_bytes, layer.output_bytes)
        assert (again.macs, again.weight_bytes) == (layer.macs, layer.weight_bytes)
        # Rows may be told apart otherwise from the batch, and axes of one value named otherwise,
        # but only once.
        assert layer_of_operator(as_operator(again.kernel())).kernel() == again.kernel()
        same += again.kernel() == kernel
    assert same > 0.7 * len(layers)


def test_onnx_runtime_runs_it(kind: str) -> None:
    started = backend("onnxruntime", threads=1)
    for layer in drawn(kind, 25):
        with started.layer(layer, budget_ms=0.05) as built:
            for phase in built.phases.values():
                phase.sampler()


def test_an_operator_that_is_no_layer_says_why() -> None:
    with pytest.raises(LayerError, match="no layer kind for operator Foo"):
        layer_of_operator(Operator("Foo", {}, (), ()))
    with pytest.raises(LayerError, match=r"operator com\.acme\.Softmax"):
        layer_of_operator(Operator("Softmax", {}, (Operand((2, 3)),), ((2, 3),), domain="com.acme"))
    with pytest.raises(LayerError, match="Softmax of type int64"):
        layer_of_operator(Operator("Softmax", {}, (Operand((2, 3), "int64"),), ((2, 3),)))
    with pytest.raises(LayerError, match="Add of type string"):
        layer_of_operator(Operator("Add", {}, (Operand((2, 3), "string"),) * 2, ((2, 3),)))


def test_layers_taken_from_networks_are_scaled_and_stay_of_their_sort(kind: str) -> None:
    campaign = Campaign.from_mapping(
        {"name": "test", "kinds": {kind: {}}, "mixture": {"from_networks": 1.0, "exact": 0.0}}
    )
    original = max(drawn(kind, 60), key=lambda layer: layer.moved_bytes)
    layers = draw(campaign, seed=1, count=40, harvested=[original])
    for name in original.SCALED:
        found = {layer.fields()[name] for layer in layers}
        assert len(found) > 3 or found == {1}, name
    for name, spec in original.specs().items():
        if spec.choices:
            assert {layer.fields()[name] for layer in layers} == {original.fields()[name]}
