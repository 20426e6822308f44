"""Reading: shapes for any batch, folded constants, notes. Small networks made by onnx.helper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from resperf.errors import NetworkError, ShapeError
from resperf.network import Network, read_network

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Dims = Sequence[int | str | None] | None


def value(name: str, dims: Dims, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def constant(name: str, data: Any, kind: Any = np.int64) -> TensorProto:
    return numpy_helper.from_array(np.array(data, kind), name)


def weight(name: str, *dims: int) -> TensorProto:
    return numpy_helper.from_array(np.zeros(dims, np.float32), name)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Network]:
    def reader(
        nodes: Sequence[NodeProto],
        inputs: Sequence[Any],
        outputs: Sequence[str],
        weights: Sequence[TensorProto] = (),
        *,
        opset: int = 17,
        ir_version: int = 8,
        value_info: Sequence[Any] = (),
        output_dims: Dims = None,
        functions: Sequence[Any] = (),
        domains: Sequence[str] = (),
        **options: Any,
    ) -> Network:
        infos = [value(name, output_dims) for name in outputs]
        graph = helper.make_graph(
            nodes, "g", inputs, infos, list(weights), value_info=list(value_info)
        )
        imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=ir_version, functions=list(functions)
        )
        path = tmp_path / "net.onnx"
        path.write_bytes(model.SerializeToString())
        return read_network(path, **options)

    return reader


def flat_net(target: Sequence[int]) -> dict[str, Any]:
    """A convolution, a Reshape to `target`, a dense layer on 4 * 6 * 6 = 144 features."""
    return {
        "nodes": [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[3, 3]),
            helper.make_node("Reshape", ["c", "shape"], ["f"], "reshape"),
            helper.make_node("Gemm", ["f", "v"], ["y"], "dense", transB=1),
        ],
        "outputs": ["y"],
        "weights": [weight("w", 4, 3, 3, 3), weight("v", 10, 144), constant("shape", target)],
    }


def test_shapes_are_those_of_the_arithmetic(read: Callable[..., Network]) -> None:
    net = read(**flat_net([-1, 144]), inputs=[value("x", ["n", 3, 8, 8])], batch=5)
    assert net.tensors["c"].shape == (5, 4, 6, 6)
    assert net.tensors["y"].shape == (5, 10)
    assert (net.inputs, net.outputs, net.batch, net.notes) == (("x",), ("y",), 5, ())
    assert [node.op for node in net.nodes] == ["Conv", "Reshape", "Gemm"]
    assert net.nodes[0].attributes == {"kernel_shape": (3, 3)}
    assert net.tensors["w"].is_weight
    assert not net.tensors["c"].is_weight
    assert net.opsets == {"": 17}


@pytest.mark.parametrize("target", [[1, 144], [1, -1]])
def test_a_batch_fixed_in_reshape_is_replaced_and_noted(
    read: Callable[..., Network], target: list[int]
) -> None:
    net = read(**flat_net(target), inputs=[value("x", [1, 3, 8, 8])], batch=8)
    assert net.tensors["f"].shape == (8, 144)
    assert net.tensors["y"].shape == (8, 10)
    assert net.notes == ("batch 1 was fixed in the shapes of reshape; read as 8",)
    reshape = net.nodes[1]
    assert net.tensors[reshape.inputs[1]].value.tolist()[0] == 8


def test_without_a_batch_the_fixed_one_stays(read: Callable[..., Network]) -> None:
    net = read(**flat_net([1, -1]), inputs=[value("x", [1, 3, 8, 8])])
    assert net.batch == 1
    assert net.notes == ()
    assert net.tensors["shape"].value.tolist() == [1, -1]


def test_a_batch_folded_into_heads_grows_with_it(read: Callable[..., Network]) -> None:
    # Two images with three heads were exported as 6; four images make 12.
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"], "heads")]
    net = read(nodes, [value("x", [2, 3, 5, 4])], ["y"], [constant("s", [6, 5, 4])], batch=4)
    assert net.tensors["y"].shape == (12, 5, 4)


def test_a_batch_that_does_not_reach_an_output_is_noted(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
    ]
    net = read(nodes, [value("x", [1, 6])], ["t"], batch=4)
    assert net.tensors["t"].shape == (6, 4)
    assert any("batch 4 does not reach output t" in note for note in net.notes)


def test_a_free_batch_asks_for_the_option(read: Callable[..., Network]) -> None:
    with pytest.raises(ShapeError, match=r"dimension 0 \('n'\) of input 'x'.*--batch 1"):
        read(**flat_net([-1, 144]), inputs=[value("x", ["n", 3, 8, 8])])


def test_another_free_dimension_asks_for_a_shape(read: Callable[..., Network]) -> None:
    with pytest.raises(ShapeError, match=r"dimension 2 \('h'\) of input 'x'.*--shape x=1,3,N,N"):
        read(**flat_net([-1, 144]), inputs=[value("x", ["n", 3, "h", None])], batch=1)


def test_a_shape_fills_free_dimensions_and_batch_overrides_its_first(
    read: Callable[..., Network],
) -> None:
    inputs = [value("x", ["n", 3, "h", None])]
    net = read(**flat_net([-1, 144]), inputs=inputs, batch=2, shapes={"x": (1, 3, 8, 8)})
    assert net.tensors["x"].shape == (2, 3, 8, 8)
    assert net.tensors["y"].shape == (2, 10)


def test_a_named_dimension_given_once_applies_to_all_inputs(read: Callable[..., Network]) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    inputs = [value("a", ["n", "length"]), value("b", ["n", "length"])]
    net = read(nodes, inputs, ["y"], shapes={"a": (2, 7)})
    assert net.tensors["b"].shape == (2, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": {"image": (1, 3, 8, 8)}}, r"no input 'image'.*its inputs are: x"),
        ({"shapes": {"x": (1, 3, 8)}}, r"has 3 dimensions, but input 'x'.*has 4"),
        ({"shapes": {"x": (1, 3, -8, 8)}}, "every dimension must be a positive number"),
        ({"batch": 0}, "batch 0 is not a positive number"),
        ({"batch": 10**15}, "tensor 'x' cannot have the shape"),
        ({"batch": 1, "shapes": {"x": (1, 3, 10, 10)}}, r"dense.*(144|256) features.*--shape"),
        ({"batch": 1, "shapes": {"x": (1, 5, 8, 8)}}, "conv.*is given 5 features.*take 3"),
    ],
)
def test_an_impossible_size_is_refused(
    read: Callable[..., Network], options: dict[str, Any], message: str
) -> None:
    net = flat_net([0, -1])
    with pytest.raises(ShapeError, match=message):
        read(**net, inputs=[value("x", [1, 3, 8, 8])], **options)


def decoder(*lengths: str) -> dict[str, Any]:
    """Two caches joined with what the tokens become, and a mask over both."""
    total, past = lengths
    nodes = [
        helper.make_node("Concat", [f"past.{i}", "tokens"], [f"present.{i}"], axis=1)
        for i in range(2)
    ]
    nodes.append(helper.make_node("Add", ["present.0", "mask"], ["y"]))
    inputs = [
        value("tokens", ["n", "new", 4]), value("mask", ["n", total, 4]),
        value("past.0", ["n", past, 4]), value("past.1", ["n", past, 4]),
    ]  # fmt: skip
    return {"nodes": nodes, "inputs": inputs, "outputs": ["y", "present.0", "present.1"]}


def test_a_pattern_gives_several_inputs_a_shape_and_sums_follow(
    read: Callable[..., Network],
) -> None:
    given = {"tokens": (1, 1, 4), "past.*": (1, 8, 4)}
    net = read(**decoder("past_length + new", "past_length"), shapes=given)
    assert net.tensors["past.1"].shape == (1, 8, 4)
    assert net.tensors["mask"].shape == (1, 9, 4)
    assert net.tensors["present.1"].shape == net.tensors["y"].shape == (1, 9, 4)
    given = {"tokens": (1, 7, 4), "past.*": (1, 0, 4)}
    prompt = read(**decoder("past_length + new", "past_length"), shapes=given)
    assert prompt.tensors["past.0"].shape == (1, 0, 4)
    assert prompt.tensors["y"].shape == (1, 7, 4)


def test_a_whole_name_counts_before_a_pattern(read: Callable[..., Network]) -> None:
    nodes = [helper.make_node("Concat", ["p.a", "p.b"], ["y"], axis=0)]
    inputs = [value("p.a", ["n", 2]), value("p.b", ["m", 2])]
    for given in ({"p.*": (3, 2), "p.b": (5, 2)}, {"p.b": (5, 2), "p.*": (3, 2)}):
        assert read(nodes, inputs, ["y"], shapes=given).tensors["y"].shape == (8, 2)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"future*": (1, 8, 4)}, r"no input 'future\*'.*its inputs are: tokens, mask, past.0"),
        (
            {"past*": (1, 8, 4), "*.1": (1, 9, 4)},
            r"past\* and --shape \*.1 give input 'past.1' two",
        ),
        ({"*": (1, 0, 4), "mask": (1, 0, 4)}, "every input is empty"),
        ({"past.*": (0, 8, 4)}, "every dimension must be a positive number .0 only for"),
        ({"tokens": (1, 1, 4)}, r"'past.0'.* is free.*--shape 'past.\*=N,N,4'"),
    ],
)
def test_shapes_of_caches_that_do_not_fit_are_refused(
    read: Callable[..., Network], shapes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        read(**decoder("total", "past_length"), shapes={"mask": (1, 9, 4)} | shapes)


def test_an_input_without_a_shape_asks_for_one(read: Callable[..., Network]) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    with pytest.raises(ShapeError, match="--shape x="):
        read(nodes, [value("x", None)], ["y"], batch=1)
    net = read(nodes, [value("x", None)], ["y"], shapes={"x": (4, 2)})
    assert net.tensors["y"].shape == (4, 2)


def test_dynamic_reshape_as_pytorch_exports_it_is_folded(read: Callable[..., Network]) -> None:
    # x.view(x.size(0), x.size(1) * 2, -1): Shape, Gather, Mul, Unsqueeze, Concat, Reshape.
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Constant", [], ["zero"], value=constant("", 0)),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Gather", ["s", "one"], ["c"]),
        helper.make_node("Mul", ["c", "two"], ["c2"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Unsqueeze", ["c2", "axis"], ["c1"]),
        helper.make_node("Concat", ["n1", "c1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["r", "target"], ["y"]),
    ]
    weights = [
        constant("one", 1), constant("two", 2), constant("axis", [0]), constant("rest", [-1])
    ]  # fmt: skip
    net = read(nodes, [value("x", ["n", 3, 4, 4])], ["y"], weights, batch=6)
    assert [node.op for node in net.nodes] == ["Relu", "Reshape"]
    assert net.tensors["target"].value.tolist() == [6, 6, -1]
    assert net.tensors["y"].shape == (6, 6, 8)


def test_repeats_computed_by_one_hot_are_folded(read: Callable[..., Network]) -> None:
    """GCViT repeats its global query for every window, by numbers that OneHot places."""
    weights = [
        constant("axis", 1), constant("rank", 3), constant("off_on", [1, 4]), constant("one", [1]),
    ]  # fmt: skip
    nodes = [
        helper.make_node("OneHot", ["axis", "rank", "off_on"], ["repeats"]),
        helper.make_node("Unsqueeze", ["x", "one"], ["windows"]),
        helper.make_node("Tile", ["windows", "repeats"], ["y"]),
    ]
    network = read(nodes, [value("x", [2, 5])], ["y"], weights)
    assert network.tensors["y"].shape == (2, 4, 5)
    assert not any("unknown" in note for note in network.notes)


def test_operators_on_weights_alone_give_weights(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "wt"], ["y"]),
    ]
    net = read(nodes, [value("x", [2, 300])], ["y"], [weight("w", 50, 300)])
    assert [node.op for node in net.nodes] == ["MatMul"]
    derived = net.tensors["wt"]
    assert (derived.shape, derived.is_weight, derived.value) == ((300, 50), True, None)
    assert net.tensors["y"].shape == (2, 50)


def test_weights_may_come_from_constant_of_shape(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3]),
    ]
    weights = [constant("s", [512, 512, 3, 3])]
    net = read(nodes, [value("x", [1, 512, 5, 5])], ["y"], weights)
    assert net.tensors["w"].shape == (512, 512, 3, 3)
    assert net.tensors["w"].is_weight
    assert net.tensors["y"].shape == (1, 512, 3, 3)


def test_random_operators_are_not_constants(read: Callable[..., Network]) -> None:
    nodes = [helper.make_node("RandomNormalLike", ["w"], ["y"])]
    net = read(nodes, [], ["y"], [weight("w", 50, 300)])
    assert [node.op for node in net.nodes] == ["RandomNormalLike"]
    assert not net.tensors["y"].is_weight


def test_stale_shapes_in_the_file_are_ignored(read: Callable[..., Network]) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    net = read(
        nodes, [value("x", [1, 3])], ["y"], batch=4,
        value_info=[value("r", [1, 3])], output_dims=[1, 3],
    )  # fmt: skip
    assert net.tensors["r"].shape == net.tensors["y"].shape == (4, 3)


def test_weights_that_are_also_inputs_are_weights(read: Callable[..., Network]) -> None:
    inputs = [value("x", [1, 3, 8, 8]), value("w", [4, 3, 3, 3]), value("v", [10, 144]),
              value("shape", [2], INT64)]  # fmt: skip
    net = read(**flat_net([1, -1]), inputs=inputs, ir_version=3, opset=11, batch=3)
    assert net.inputs == ("x",)
    assert net.tensors["w"].shape == (4, 3, 3, 3)
    assert net.tensors["y"].shape == (3, 10)


def test_opset_1_reshape_has_its_target_in_an_attribute(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r"], ["y"], shape=[1, -1]),
    ]
    net = read(nodes, [value("x", [1, 3, 2, 2])], ["y"], opset=1, ir_version=3, batch=4)
    assert net.tensors["y"].shape == (4, 12)
    assert net.nodes[1].attributes == {"shape": (4, -1)}


def test_dropout_masks_are_ignored(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("Dropout", ["x"], ["d", "mask"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    net = read(nodes, [value("x", [2, 3])], ["y"], opset=9)
    assert net.tensors["y"].shape == (2, 3)
    assert net.notes == ()


def test_nodes_with_unused_outputs_are_dropped(read: Callable[..., Network]) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Tanh", ["x"], ["idle"])]
    net = read(nodes, [value("x", [2, 3])], ["y"])
    assert [node.op for node in net.nodes] == ["Relu"]
    assert "idle" not in net.tensors


def test_nodes_get_names_and_order(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("Tanh", ["b"], ["y"], "same"),
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"], "same"),
    ]
    net = read(nodes, [value("x", [2, 3])], ["y"])
    assert [node.op for node in net.nodes] == ["Relu", "Relu", "Tanh"]
    names = [node.name for node in net.nodes]
    assert len(set(names)) == 3
    assert all(names)


def test_an_unknown_operator_stays_and_its_output_is_unknown(
    read: Callable[..., Network],
) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Sparkle", ["a"], ["b"], "sparkle", domain="com.example"),
        helper.make_node("Relu", ["b"], ["y"], "after"),
    ]
    net = read(nodes, [value("x", [2, 3])], ["y"], domains=["com.example"])
    assert [(node.op, node.domain) for node in net.nodes][1] == ("Sparkle", "com.example")
    assert net.tensors.keys() == {"x", "a"}
    assert net.notes == (
        "output shapes are unknown from sparkle (Sparkle), after (Relu)",
        "the shape of 'b' (Sparkle) is not known; give it: --shape b=N,...",
    )


def test_the_file_states_what_a_custom_operator_returns(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("Sparkle", ["x"], ["a", "b"], "sparkle", domain="com.example"),
        helper.make_node("Relu", ["a"], ["c"], "after"),
        helper.make_node("Glitter", ["c"], ["y"], "glitter", domain="com.example"),
    ]
    net = read(
        nodes, [value("x", ["n", 3, "size"])], ["y"], domains=["com.example"],
        value_info=[value("a", ["n", "size", 7]), value("b", ["n", "other"], INT64),
                    value("c", [9, 9])],
        output_dims=["n", 5], shapes={"x": [4, 3, 6]},
    )  # fmt: skip
    assert net.tensors["a"].shape == (4, 6, 7)
    # What is inferred is not taken from the file, and a length that nobody knows stays unknown.
    assert net.tensors["c"].shape == (4, 6, 7)
    assert "b" not in net.tensors
    assert net.tensors["y"].shape == (4, 5)
    assert "output shapes of sparkle, glitter are those that the file states" in net.notes


def test_a_stated_batch_of_the_file_is_the_requested_one(read: Callable[..., Network]) -> None:
    nodes = [helper.make_node("Sparkle", ["x"], ["y"], "sparkle", domain="com.example")]
    net = read(
        nodes, [value("x", [1, 3])], ["y"], domains=["com.example"], output_dims=[1, 8], batch=16
    )
    assert net.tensors["y"].shape == (16, 8)


@pytest.mark.parametrize("first", ["batch", 1])
def test_a_first_dimension_that_is_not_a_batch_stays(
    read: Callable[..., Network], first: str | int
) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Relu", ["state"], ["z"]),
    ]
    net = read(nodes, [value("x", [first, 3]), value("state", [2, 1, 5])], ["y", "z"], batch=8)
    assert net.tensors["y"].shape == (8, 3)
    assert net.tensors["z"].shape == (2, 1, 5)
    assert net.notes[0] == "input 'state' stays 2,1,5: its first dimension is not a batch"


def test_the_batch_is_set_beside_a_scalar_input(read: Callable[..., Network]) -> None:
    nodes = [helper.make_node("Mul", ["sample", "step"], ["y"])]
    net = read(nodes, [value("step", []), value("sample", [1, 4])], ["y"], batch=8)
    assert net.tensors["y"].shape == (8, 4)
    assert net.batch == 8
    assert net.notes == ()


def test_malformed_attributes_of_onnx_runtime_operators_give_no_shape(
    read: Callable[..., Network],
) -> None:
    nodes = [
        helper.make_node("Attention", ["x", "w", "b"], ["a"], domain="com.microsoft",
                         qkv_hidden_sizes=["a", "b", "c"]),
        helper.make_node("FusedConv", ["i", "v"], ["c"], domain="com.microsoft",
                         strides=[2.0, 2.0]),
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("Relu", ["c"], ["z"]),
    ]  # fmt: skip
    inputs = [value("x", [2, 5, 8]), value("i", [1, 4, 9, 9])]
    weights = [weight("w", 8, 24), weight("b", 24), weight("v", 6, 4, 3, 3)]
    net = read(nodes, inputs, ["y", "z"], weights, domains=["com.microsoft"])
    assert not {"a", "c", "y", "z"} & net.tensors.keys()


@pytest.mark.parametrize(
    ("op", "weights", "attributes", "shape"),
    [
        ("MatMulNBits", [("q", 16, 1, 16), ("s", 16)],
         {"K": 8, "N": 16, "bits": 4, "block_size": 32}, (2, 5, 16)),
        ("BiasSplitGelu", [("b", 8)], {}, (2, 5, 4)),
        ("QuickGelu", [], {"alpha": 1.7}, (2, 5, 8)),
        ("MoE", [("r", 5, 4), ("w", 4, 6, 8), ("v", 4, 8, 6)], {"k": 2}, (2, 5, 8)),
    ],
)  # fmt: skip
def test_onnx_runtime_is_asked_for_shapes_of_its_own(
    read: Callable[..., Network], op: str, weights: list[Any], attributes: dict[str, Any],
    shape: tuple[int, ...],
) -> None:  # fmt: skip
    names = [name for name, *_ in weights]
    if op == "MoE":
        names.insert(2, "")
    stored = [
        numpy_helper.from_array(np.zeros(dims, np.uint8 if name == "q" else np.float32), name)
        for name, *dims in weights
    ]
    nodes = [helper.make_node(op, ["x", *names], ["y"], domain="com.microsoft", **attributes)]
    net = read(nodes, [value("x", [2, 5, 8])], ["y"], stored, domains=["com.microsoft"])
    assert net.tensors["y"].shape == shape


@pytest.mark.parametrize("op", ["Attention", "SkipLayerNormalization", "FastGelu", "BiasAdd"])
def test_operators_of_onnx_runtime_have_shapes(read: Callable[..., Network], op: str) -> None:
    more = {"Attention": ["w", "b"], "SkipLayerNormalization": ["x", "g"], "FastGelu": []}
    inputs = ["x", *more.get(op, ["g", "x"])]
    attributes = {"num_heads": 2} if op == "Attention" else {}
    nodes = [
        helper.make_node(op, inputs, ["a"], "own", domain="com.microsoft", **attributes),
        helper.make_node("Relu", ["a"], ["y"], "after"),
    ]
    weights = [weight("w", 8, 24), weight("b", 24), weight("g", 8)]
    net = read(nodes, [value("x", [2, 5, 8])], ["y"], weights, domains=["com.microsoft"])
    assert net.tensors["y"].shape == (2, 5, 8)
    assert net.notes == ()


def test_the_long_name_of_the_default_domain_is_accepted(read: Callable[..., Network]) -> None:
    inner = helper.make_graph(
        [helper.make_node("Tanh", ["a"], ["out"], domain="ai.onnx")], "g", [], [value("out", None)]
    )
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], "sum", domain="ai.onnx"),
        helper.make_node("If", ["flag"], ["y"], then_branch=inner, else_branch=inner),
    ]
    inputs = [value("x", [2, 1]), value("flag", [], TensorProto.BOOL)]
    net = read(nodes, inputs, ["y"], [weight("w", 1, 3)], domains=["ai.onnx"])
    assert {node.domain for node in net.nodes} == {""}
    assert net.tensors["a"].shape == (2, 3)


def test_overridable_weights_are_noted(read: Callable[..., Network]) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    inputs = [value("x", [2, 3]), value("w", [3])]
    (note,) = read(nodes, inputs, ["y"], [weight("w", 3)]).notes
    assert "1 weights are also inputs of the network" in note
    # Before version 4 of the format, weights had to be inputs.
    assert read(nodes, inputs, ["y"], [weight("w", 3)], ir_version=3).notes == ()


def test_what_subgraphs_read_stays_though_first_outputs_have_no_name(
    read: Callable[..., Network],
) -> None:
    def loop(captured: str, result: str) -> NodeProto:
        body = helper.make_graph(
            [
                helper.make_node("Identity", ["go"], ["on"]),
                helper.make_node("Add", ["state", captured], ["next"]),
                helper.make_node("Abs", ["next"], ["seen"]),
            ],
            "body",
            [value("i", [], INT64), value("go", [], TensorProto.BOOL), value("state", [3])],
            [value("on", [], TensorProto.BOOL), value("next", [3]), value("seen", [3])],
        )
        return helper.make_node("Loop", ["count", "", "x"], ["", result], body=body)

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Tanh", ["x"], ["b"], "second"),
        loop("a", "y"),
        loop("b", "z"),
    ]
    inputs = [value("x", [3]), value("count", [], INT64)]
    net = read(nodes, inputs, ["y", "z"])
    assert [node.op for node in net.nodes] == ["Relu", "Tanh", "Loop", "Loop"]


def test_control_flow_stays_with_what_it_captures(read: Callable[..., Network]) -> None:
    def branch(op: str) -> GraphProto:
        node = helper.make_node(op, ["a"], ["out"])
        return helper.make_graph([node], op, [], [value("out", [2, 3])])

    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node(
            "If", ["flag"], ["y"], then_branch=branch("Tanh"), else_branch=branch("Sigmoid")
        ),
    ]
    inputs = [value("x", [2, 3]), value("flag", [], TensorProto.BOOL)]
    net = read(nodes, inputs, ["y"])
    assert [node.op for node in net.nodes] == ["Relu", "If"]
    assert isinstance(net.nodes[1].attributes["then_branch"], bytes)
    assert net.tensors["y"].shape == (2, 3)


def squeezed(branch_of: Callable[..., GraphProto]) -> list[NodeProto]:
    """Write what PyTorch exports for ``x.squeeze(1)`` of a tensor whose axes are free."""
    return [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Constant", [], ["one"], value_ints=[1]),
        helper.make_node("Gather", ["shape", "one"], ["length"]),
        helper.make_node("Equal", ["length", "one"], ["is_one"]),
        helper.make_node(
            "If", ["is_one"], ["y"],
            then_branch=branch_of("Squeeze", ["x", "axes"]),
            else_branch=branch_of("Identity", ["x"]),
        ),
        helper.make_node("Relu", ["y"], ["z"], "relu"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("length", "ops", "shape"),
    [(1, ["Squeeze", "Tanh", "Relu"], (2, 3)), (4, ["Identity", "Tanh", "Relu"], (2, 4, 3))],
)
def test_a_branch_with_a_known_condition_is_inlined(
    read: Callable[..., Network], length: int, ops: list[str], shape: tuple[int, ...]
) -> None:
    def branch(op: str, inputs: list[str]) -> GraphProto:
        nodes = [helper.make_node(op, inputs, ["t"], "n"), helper.make_node("Tanh", ["t"], ["u"])]
        axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
        info = helper.make_tensor_value_info("u", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, op, [], [info], [axes] if op == "Squeeze" else [])

    net = read(squeezed(branch), [value("x", [2, length, 3])], ["z"])
    assert [node.op for node in net.nodes] == ops
    assert net.nodes[-2].outputs == ("y",)
    assert net.tensors["z"].shape == shape
    assert net.notes == ()


def test_what_a_nested_branch_reads_stays(read: Callable[..., Network]) -> None:
    info = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)

    def branch(node: NodeProto) -> GraphProto:
        return helper.make_graph([node], "b", [], [info])

    leaves = [branch(helper.make_node(op, ["a"], ["out"])) for op in ("Tanh", "Sigmoid")]
    inside = helper.make_node("If", ["flag"], ["out"], then_branch=leaves[0], else_branch=leaves[1])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("v", 9, [], [True])),
        helper.make_node(
            "If", ["yes"], ["y"], then_branch=branch(inside), else_branch=leaves[0]
        ),
    ]  # fmt: skip
    inputs = [value("x", [2, 3]), value("flag", [], TensorProto.BOOL)]
    net = read(nodes, inputs, ["y"])
    assert [node.op for node in net.nodes] == ["Relu", "If"]
    assert net.tensors["a"].shape == (2, 3)


def test_a_branch_may_pass_outer_tensors_through_or_return_one_twice(
    read: Callable[..., Network],
) -> None:
    def branch() -> GraphProto:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xtt"]
        return helper.make_graph([helper.make_node("Tanh", ["x"], ["t"])], "b", [], ends)

    nodes = [
        helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("v", 9, [], [True])),
        helper.make_node(
            "If", ["yes"], ["a", "b", "c"], then_branch=branch(), else_branch=branch()
        ),
        helper.make_node("Sum", ["a", "b", "c"], ["y"]),
    ]
    net = read(nodes, [value("x", [2, 3])], ["y"])
    assert sorted(node.op for node in net.nodes) == ["Identity", "Identity", "Sum", "Tanh"]
    assert {net.tensors[name].shape for name in "abcy"} == {(2, 3)}


def test_functions_of_the_model_are_inlined(read: Callable[..., Network]) -> None:
    body = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Tanh", ["t"], ["b"])]
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]
    )
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="local")]
    net = read(nodes, [value("x", [2, 3])], ["y"], functions=[function], domains=["local"])
    assert [node.op for node in net.nodes] == ["Relu", "Tanh"]
    assert net.tensors["y"].shape == (2, 3)


def test_functions_that_expand_exponentially_are_refused(read: Callable[..., Network]) -> None:
    # Each of 40 functions calls the next one twice: 2^40 nodes.
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = []
    for index in range(40):
        op = f"f{index + 1}" if index < 39 else "Relu"
        domain = "local" if index < 39 else ""
        body = [
            helper.make_node(op, ["a"], ["t"], domain=domain),
            helper.make_node(op, ["t"], ["b"], domain=domain),
        ]
        functions.append(helper.make_function("local", f"f{index}", ["a"], ["b"], body, opsets))
    nodes = [helper.make_node("f0", ["x"], ["y"], domain="local")]
    with pytest.raises(NetworkError, match="1099511627776 nodes once its functions are inlined"):
        read(nodes, [value("x", [2, 3])], ["y"], functions=functions, domains=["local"])


def test_a_file_can_be_read_again(tmp_path: Path) -> None:
    """A path given as text works, and reading does not change the file."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [value("x", ["n", 3])], [value("y", None)]
    )
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    before = path.read_bytes()
    assert [read_network(path, batch=n).tensors["y"].shape for n in (1, 7)] == [(1, 3), (7, 3)]
    assert path.read_bytes() == before


def test_splits_into_sequences_are_read_as_splits(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "size"], ["pieces"], axis=1),
        helper.make_node("SequenceAt", ["pieces", "first"], ["a"]),
        helper.make_node("SequenceAt", ["pieces", "last"], ["b"]),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
    ]
    constants = [constant("size", 3), constant("first", 0), constant("last", -1)]
    network = read(nodes, [value("x", ["n", 8])], ["y"], constants, opset=18, batch=2)
    # Pieces of 3, 3 and 2: the first and the last are read.
    assert network.tensors["a"].shape == (2, 3)
    assert network.tensors["b"].shape == (2, 2)
    assert network.tensors["y"].shape == (2, 5)
    assert [node.op for node in network.nodes] == ["Split", "Identity", "Identity", "Concat"]
    assert not network.notes


def test_a_split_into_single_slices_drops_their_axis(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["pieces"], axis=1, keepdims=0),
        helper.make_node("SequenceAt", ["pieces", "place"], ["y"]),
    ]
    network = read(
        nodes, [value("x", ["n", 3, 4])], ["y"], [constant("place", 1)], opset=18, batch=2
    )
    assert network.tensors["y"].shape == (2, 4)


def test_a_sequence_that_is_read_whole_stays(read: Callable[..., Network]) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["pieces"], axis=1),
        helper.make_node("SequenceLength", ["pieces"], ["count"]),
    ]
    network = read(nodes, [value("x", ["n", 3])], ["count"], opset=18, batch=2)
    assert [node.op for node in network.nodes] == ["SplitToSequence", "SequenceLength"]


def test_positions_of_pytorch_exports_are_constants(read: Callable[..., Network]) -> None:
    # As torch.arange(tokens) is written: the step has the type of the limit.
    nodes = [
        helper.make_node("Shape", ["x"], ["tokens"], start=1, end=2),
        helper.make_node("Squeeze", ["tokens"], ["limit"]),
        helper.make_node("CastLike", ["one", "limit"], ["step"]),
        helper.make_node("CastLike", ["zero", "limit"], ["start"]),
        helper.make_node("Range", ["start", "limit", "step"], ["positions"]),
        helper.make_node("Unsqueeze", ["positions", "axis"], ["row"]),
        helper.make_node("Gather", ["table", "row"], ["embedded"]),
        helper.make_node("CastLike", ["one", "x"], ["scale"]),
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("Unsqueeze", ["scaled", "last"], ["columns"]),
        helper.make_node("Add", ["columns", "embedded"], ["y"]),
    ]
    constants = [
        constant("one", 1.0, np.float32),
        constant("zero", 0.0, np.float32),
        constant("axis", [0]),
        constant("last", [2]),
        weight("table", 32, 8),
    ]
    network = read(nodes, [value("x", ["n", 16])], ["y"], constants, opset=18, batch=2)
    assert network.tensors["y"].shape == (2, 16, 8)
    assert [node.op for node in network.nodes] == ["Mul", "Unsqueeze", "Add"]
    scale = network.tensors["scale"]
    assert scale.dtype == "float32"
    assert scale.value is not None
    assert scale.value.item() == 1.0


def test_what_computes_with_weights_alone_is_kept_beside_the_network(
    read: Callable[..., Network],
) -> None:
    nodes = [
        helper.make_node("Mul", ["table", "table"], ["squared"]),
        helper.make_node("Transpose", ["squared"], ["turned"], perm=[1, 0]),
        helper.make_node("Relu", ["table"], ["unused"]),
        helper.make_node("Add", ["one", "one"], ["two"]),
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("MatMul", ["doubled", "turned"], ["y"]),
    ]
    constants = [weight("table", 3, 4), constant("one", 1.0, np.float32)]
    network = read(nodes, [value("x", ["n", 4])], ["y"], constants, batch=2)
    assert [node.op for node in network.nodes] == ["Mul", "MatMul"]
    # Neither what nothing reads nor arithmetic of numbers.
    assert [node.op for node in network.weight_nodes] == ["Mul", "Transpose"]
    whole = network.with_weight_nodes()
    assert [node.op for node in whole.nodes] == ["Mul", "Transpose", "Mul", "MatMul"]
    assert whole.tensors["squared"].shape == (3, 4)
    assert "squared" not in network.tensors
    assert not whole.weight_nodes


def padding(kind: int, first: str = "side") -> list[NodeProto]:
    """Pad rows to an even number, which is computed in an element type from `first`."""
    return [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "two"], ["side"]),
        helper.make_node("Cast", [first], ["number"], to=kind),
        helper.make_node("Div", ["number", "half"], ["pairs"], "halve"),
        helper.make_node("Ceil", ["pairs"], ["up"], "round"),
        helper.make_node("Mul", ["up", "half"], ["even"], "double"),
        helper.make_node("Sub", ["even", "number"], ["more"], "rest"),
        helper.make_node("Cast", ["more"], ["count"], "count", to=INT64),
        helper.make_node("Unsqueeze", ["count", "axis"], ["row"], "vector"),
        helper.make_node("Concat", ["zeros", "row", "axis"], ["pads"], "pads", axis=0),
        helper.make_node("Pad", ["x", "pads"], ["padded"], "pad"),
        helper.make_node("Shape", ["padded"], ["of padded"], "again"),
        helper.make_node("Reshape", ["padded", "of padded"], ["y"], "reshape"),
    ]


PADDING = [constant("two", 2), constant("axis", [0]), constant("zeros", [0] * 6)]


def test_shapes_computed_in_half_precision_are_known_and_kept_beside_the_network(
    read: Callable[..., Network],
) -> None:
    image = value("x", ["n", 3, 7, 8])
    exact = read(
        padding(FLOAT), [image], ["y"], [*PADDING, constant("half", 2, np.float32)], batch=2
    )
    assert not exact.unfolded_nodes
    half = [*PADDING, constant("half", 2, np.float16)]
    network = read(padding(TensorProto.FLOAT16), [image], ["y"], half, batch=2)
    assert [node.op for node in network.nodes] == ["Pad", "Reshape"]
    assert network.tensors["y"].shape == (2, 3, 8, 8)
    # Casts of constants have kernels. What follows from the shape that arithmetic gives is kept.
    names = ["halve", "round", "double", "rest", "count", "vector", "pads", "again"]
    assert [node.name for node in network.unfolded_nodes] == names
    whole = network.with_unfolded_nodes()
    assert [node.name for node in whole.nodes] == [*names[:-1], "pad", "again", "reshape"]
    assert not whole.tensors["pads"].is_weight
    assert whole.tensors["number"].is_weight
    # Other weights than theirs are as before.
    assert whole.tensors.keys() - network.tensors.keys() == {
        "half", "number", "pairs", "up", "even", "more", "count", "axis", "row", "zeros",
    }  # fmt: skip
    assert whole.with_unfolded_nodes() is whole
    # Read again at another batch size, from what was kept.
    other = read(padding(TensorProto.FLOAT16), [image], ["y"], half, batch=3)
    assert [node.name for node in other.unfolded_nodes] == names
    assert other.tensors["y"].shape == (3, 3, 8, 8)


def test_quantised_shapes_are_folded_but_not_quantised_weights(
    read: Callable[..., Network],
) -> None:
    nodes = padding(FLOAT, "back")
    nodes[2:2] = [
        helper.make_node("Cast", ["side"], ["length"], to=FLOAT),
        helper.make_node("QuantizeLinear", ["length", "one", "zero"], ["narrow"], "quantise"),
        helper.make_node("DequantizeLinear", ["narrow", "one", "zero"], ["back"], "dequantise"),
    ]
    nodes += [
        helper.make_node("DequantizeLinear", ["filters", "one", "zero"], ["w"], "weights"),
        helper.make_node("DequantizeLinear", ["b8", "one", "zero"], ["b"], "bias"),
        helper.make_node("Conv", ["y", "w", "b"], ["z"], "conv"),
    ]
    weights = [
        *PADDING, constant("half", 2, np.float32), constant("one", 1, np.float32),
        constant("zero", 0, np.uint8), constant("filters", np.zeros((4, 3, 1, 1)), np.uint8),
        constant("b8", np.zeros(4), np.uint8),
    ]  # fmt: skip
    network = read(nodes, [value("x", [2, 3, 7, 8])], ["z"], weights)
    assert network.tensors["z"].shape == (2, 4, 8, 8)
    assert [node.name for node in network.nodes] == ["pad", "reshape", "weights", "bias", "conv"]
    unfolded = [node.name for node in network.unfolded_nodes]
    assert unfolded[:3] == ["dequantise", "Cast_number", "halve"]


def test_quantisation_to_16_bits_has_known_types(read: Callable[..., Network]) -> None:
    own = {"domain": "com.microsoft"}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantise", **own),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "back", **own),
    ]
    weights = [constant("scale", 0.1, np.float32), constant("zero", 7, np.uint16)]
    net = read(nodes, [value("x", [2, 3])], ["y"], weights, domains=["com.microsoft"])
    assert (net.tensors["q"].dtype, net.tensors["q"].shape) == ("uint16", (2, 3))
    assert (net.tensors["y"].dtype, net.tensors["y"].shape) == ("float32", (2, 3))


def test_sequences_of_unknown_lengths_are_full_and_noted(read: Callable[..., Network]) -> None:
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT32, [2])
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "", "lengths"], ["y"], "cell", hidden_size=4)]
    weights = [weight("w", 1, 16, 8), weight("r", 1, 16, 4)]
    net = read(nodes, [value("x", [5, 2, 8]), lengths], ["y"], weights)
    assert net.notes == ("sequences of cell are taken to have full length",)


def test_a_network_of_integers_has_their_type(network_file: Callable[..., Path]) -> None:
    types = TensorProto
    nodes = [
        helper.make_node("Gather", ["t", "i"], ["g"]),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    floats, ints = {"t": (types.FLOAT16, [9, 4])}, {"t": (types.INT32, [9, 4])}
    index = {"i": (types.INT64, [500])}
    for given, own, of_floats in ((floats, "float16", "float16"), (ints, "int32", "float32")):
        network = read_network(network_file("n.onnx", nodes, {**given, **index}, {"y": None}))
        assert (network.own_type, network.float_type) == (own, of_floats)
