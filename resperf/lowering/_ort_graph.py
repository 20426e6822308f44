"""ONNX Runtime's own lowering: it writes its optimised graph, and we read it without running it."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resperf.errors import Message, UnsupportedError, first_line
from resperf.layers import Conv, Layer, Reorder
from resperf.lowering import _ort_blocks
from resperf.lowering._base import (
    CONTROL_FLOW,
    LoweredNode,
    named_by_sources,
    qualified_by_domain,
)
from resperf.lowering._ort_attention import attention_parts
from resperf.lowering._ort_shapes import inferred
from resperf.lowering._proto import Skeleton, skeleton
from resperf.lowering._read import (
    NCHWC,
    REMOVED_OPS,
    VIEW_OPS,
    about_node,
    as_binary_nodes,
    is_empty,
    layer_from_node,
    output_view_copy,
    reorder,
)
from resperf.network import Network, Node, Tensor
from resperf.network.folding import folded
from resperf.network.graph import renamed
from resperf.network.protos import weight
from resperf.network.shapes import type_and_shape

if TYPE_CHECKING:
    import onnx

BODY_BYTES = 1 << 22
"""Largest constant that ONNX Runtime folds where a network has subgraphs."""
_ENTRIES: Mapping[str, str] = {
    # The weights of the optimised graph are not needed: in another file, they are not parsed.
    # Orders of axes, and of pads, are needed.
    "session.optimized_model_external_initializers_file_name": "weights.bin",
    "session.optimized_model_external_initializers_min_size_in_bytes": "256",
    # Packing weights takes most of a session's start and changes no node.
    "session.disable_prepacking": "1",
}
BLOCKS = "NchwcTransformer"
"""ONNX Runtime's optimiser that chooses blocked layouts."""
PRECISE = "InsertedPrecisionFreeCast_"
"""Prefix of ONNX Runtime's names of tensors that it casts to float32."""
RELAYOUTS = frozenset({"ReorderInput", "ReorderOutput"})
_NCHWC_NAME = re.compile(r"^(?P<tensor>.*?)(?P<made_of>_bn|_mul)?_nchwc(?:_token_\d+)?$")


@dataclass(frozen=True)
class _Optimised:
    """What ONNX Runtime makes of a network.

    Attributes
    ----------
    made : Network
        The nodes of the optimised graph. Its tensors are those of both.
    protos : sequence of onnx.NodeProto
        The same nodes, as ONNX Runtime wrote them.
    blocked : sequence of bool
        Whether their outputs are in blocks.
    produced : sequence of str
        Tensors of the original network that they compute.
    constants : set of str
        Names of the constants of the optimised graph.
    """

    made: Network
    protos: Sequence[onnx.NodeProto]
    blocked: Sequence[bool]
    produced: Sequence[str]
    constants: Set[str]


_Reader = Callable[[Network, _Optimised, int], list[LoweredNode]]


def optimised_model(
    model: Skeleton, *, threads: int, without: Sequence[str] = ()
) -> onnx.ModelProto:
    """Let ONNX Runtime optimise a model for this machine and return what it would run.

    Parameters
    ----------
    model : Skeleton
    threads : int
    without : sequence of str
        Names of its optimisers that are left out.

    Raises
    ------
    UnsupportedError
        If ONNX Runtime refuses the model.
    """
    import onnx
    import onnxruntime

    from resperf.lowering._ort_threads import set_threads

    onnxruntime.set_default_logger_severity(4)
    with tempfile.TemporaryDirectory(prefix="resperf-") as folder:
        target = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        set_threads(options, threads)
        options.optimized_model_filepath = str(target)
        entries = _ENTRIES
        if any(node.op_type in CONTROL_FLOW for node in model.model.graph.node):
            # Subgraphs are passed on unchanged: limit what constant folding could expand them to.
            limit = "optimization.constant_folding_max_output_size_in_bytes"
            entries = {**_ENTRIES, limit: str(BODY_BYTES)}
        for name, value in entries.items():
            options.add_session_config_entry(name, value)
        try:
            if model.weights:
                options.add_external_initializers(
                    list(model.weights),
                    [onnxruntime.OrtValue.ortvalue_from_numpy(v) for v in model.weights.values()],
                )
            onnxruntime.InferenceSession(
                model.model.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=list(without),
            )
        except Exception as error:  # onnxruntime's errors have no common root of their own
            raise UnsupportedError(
                f"ONNX Runtime cannot run this network: {first_line(error)}"
            ) from error
        model_made = onnx.load(target, load_external_data=False)
        # ONNX Runtime writes no shapes of tensors that it inserts, such as transposed ones.
        return onnx.shape_inference.infer_shapes(model_made)


def ask(
    network: Network, block: int, *, threads: int, without: Sequence[str] = ()
) -> list[LoweredNode]:
    """Return what ONNX Runtime makes of a network, with custom operators as unknown ones.

    Parameters
    ----------
    network : Network
    block : int
        Channels per block of this machine's layout; 0 where it has none.
    threads : int
    without : sequence of str
        Names of its optimisers that are left out.

    Raises
    ------
    UnsupportedError
        If it refuses the network.
    """
    return _asked(network, _read_optimised, block, threads, tuple(without))


def ask_for(network: Network, block: int, *, threads: int) -> list[LoweredNode]:
    """Return what ONNX Runtime makes of a network on a machine of another layout than this one's.

    Parameters
    ----------
    network : Network
    block : int
        Channels per block of that machine's layout; 0 where it has none.
    threads : int

    Raises
    ------
    UnsupportedError
        If ONNX Runtime refuses the network.
    """
    if not block:
        return ask(network, 0, threads=threads, without=(BLOCKS,))
    # In blocks, it fuses additions itself.
    return _asked(network, _read_plain, block, threads, (BLOCKS, "ConvAddActivationFusion"))


def _asked(
    network: Network, read: _Reader, block: int, threads: int, without: tuple[str, ...]
) -> list[LoweredNode]:
    parts = _without_custom(network)
    if not parts.nodes:
        return _with_custom(network, [])
    model = optimised_model(skeleton(parts), threads=threads, without=without)
    return _with_custom(network, read(network, _optimised_as(parts, model.graph), block))


def _without_custom(network: Network) -> Network:
    """Cut custom operators out: what they read becomes an output, what they write an input.

    ONNX Runtime refuses networks with operators that it does not have, and fuses nothing into them.
    """
    custom = _custom(network)
    if not custom:
        return network
    cut = {node.name for node in custom}
    made = [name for node in custom for name in node.outputs if name]
    fixed = {*made, *network.inputs}
    read = dict.fromkeys(
        name
        for node in custom
        for name in node.inputs
        if name in network.tensors and name not in fixed and not network.tensors[name].is_weight
    )
    return replace(
        network,
        nodes=tuple(node for node in network.nodes if node.name not in cut),
        inputs=(*network.inputs, *(name for name in made if name in network.tensors)),
        outputs=tuple(
            dict.fromkeys(name for name in (*network.outputs, *read) if name not in made)
        ),
    )


def _custom(network: Network) -> list[Node]:
    """Return the operators that ONNX Runtime does not have.

    Also those that read a tensor of unknown shape behind them, which can be no input.
    """
    custom: list[Node] = []
    unsized: set[str] = set()
    for node in network.nodes:
        if (node.domain, node.op) not in _operators() or not unsized.isdisjoint(node.inputs):
            custom.append(node)
            unsized |= {name for name in node.outputs if name and name not in network.tensors}
    return custom


@cache
def _operators() -> Set[tuple[str, str]]:
    """Return domain and name of every operator that ONNX Runtime has."""
    from onnxruntime.capi import onnxruntime_pybind11_state

    schemas = onnxruntime_pybind11_state.get_all_operator_schema()
    return {(schema.domain, schema.name) for schema in schemas}


def _with_custom(network: Network, lowered: Sequence[LoweredNode]) -> list[LoweredNode]:
    """Put custom operators back, as operators without a layer, in the order of the network.

    ONNX Runtime orders the parts around them as it likes.
    """
    custom = _custom(network)
    if not custom:
        return [*lowered]
    order = {node.name: place for place, node in enumerate(network.nodes)}
    placed, place = [], -1
    for each in lowered:
        # A re-layout without sources stays behind what is before it.
        place = max((order[name] for name in each.sources), default=place)
        placed.append((place, each))
    for node in custom:
        unknown = _lowered(network, qualified_by_domain(node), 1, is_blocked=False)
        placed.append((order[node.name], replace(unknown, sources=(node.name,))))
    return [each for _, each in sorted(placed, key=itemgetter(0))]


def _read_optimised(network: Network, optimised: _Optimised, block: int) -> list[LoweredNode]:
    """Turn the nodes of an optimised graph into lowered nodes of `network`.

    Every lowered node computes a tensor of the original network, perhaps in another layout and
    with channels padded to whole blocks: that tensor's shape is the layer's.
    """
    around = optimised.made
    lowered: list[LoweredNode] = []
    further: list[list[LoweredNode]] = []
    for node, is_blocked, in_place in zip(
        around.nodes, optimised.blocked, _add_in_place(optimised), strict=True
    ):
        pieces, between = attention_parts(node, around.tensors)
        inside = replace(around, tensors={**around.tensors, **between}) if between else around
        first, *others = (
            _lowered(inside, each, block, is_blocked=is_blocked)
            for each in pieces or as_binary_nodes(inside, node)
        )
        if in_place and isinstance(first.layer, Conv):
            first = replace(first, layer=first.layer.replace(residual=False))
        lowered.append(first)
        further.append(others)
    sources = _sources(network, optimised.produced)
    edged = _with_edges(network, lowered, optimised.protos)
    named = named_by_sources(
        network,
        (node.from_sources(names) for node, names in zip(edged, sources, strict=True)),
    )
    # Further parts of a node take the name of the first, which has the sources.
    return [
        node
        for first, others in zip(named, further, strict=True)
        for node in (first, *(replace(each, name=first.name) for each in others))
    ]


def _add_in_place(optimised: _Optimised) -> list[bool]:
    """Whether each node adds to its residual in place."""
    residual = _ort_blocks.RESIDUAL
    reads = [proto.input for proto in optimised.protos]
    lasting = {*optimised.made.inputs, *optimised.made.outputs, *optimised.constants}
    return _ort_blocks.added_in_place(
        reads, [names[residual] if len(names) > residual else None for names in reads], lasting
    )


def _read_plain(network: Network, optimised: _Optimised, block: int) -> list[LoweredNode]:
    """Turn an optimised graph without blocked layouts into nodes in blocks of another machine.

    `_ort_blocks` gives the layouts.
    """
    around = optimised.made
    sources = _sources(network, optimised.produced)
    names = {node.name: each for node, each in zip(around.nodes, sources, strict=True)}
    joined = _with_hard_swish(network, around, names)
    return named_by_sources(network, _ort_blocks.in_blocks(joined, block, names))


def _with_hard_swish(
    network: Network, around: Network, sources: dict[str, tuple[str, ...]]
) -> Network:
    """Join the parts of HardSwish: ONNX Runtime inlines what it does not run in blocks.

    Changes the `sources` of the products, which become it.
    """
    whole = {node.outputs[0] for node in network.nodes if node.op == "HardSwish"}
    readers = Counter(name for node in around.nodes for name in node.inputs)
    gates = {
        node.outputs[0]: node
        for node in around.nodes
        if node.op == "HardSigmoid" and readers[node.outputs[0]] == 1
    }
    nodes: list[Node] = []
    for node in around.nodes:
        gate = next((gates[name] for name in node.inputs if name in gates), None)
        if gate is not None and node.op == "Mul" and node.outputs[0] in whole:
            nodes.remove(gate)
            sources[node.name] += sources[gate.name]
            node = replace(node, op="HardSwish", inputs=gate.inputs, attributes={})
        nodes.append(node)
    return replace(around, nodes=tuple(nodes))


def _optimised_as(network: Network, graph: onnx.GraphProto) -> _Optimised:
    """Read an optimised graph as a network that has the tensors of the original one as well."""
    from onnx import helper

    makers = {node.name: node for node in network.nodes}
    weights = {each.name: weight(Path(network.name), each) for each in graph.initializer}
    inner = _inner_tensors(graph)
    # ONNX Runtime also transposes constants without renaming them: its weights come last.
    tensors = {**inner, **_in_float32(network, graph), **network.tensors, **weights}
    origin: dict[str, str] = {}
    blocked: set[str] = set()
    nodes: list[Node] = []
    # Large matrices are inputs of this graph only: where they are weights, they are cast once.
    computed = {name for node in network.nodes for name in node.outputs}
    free = {each.name for each in graph.input}.difference(network.inputs, computed)
    protos = [each for each in graph.node if each.op_type != "Cast" or each.input[0] not in free]
    was_blocked, produced = [], []
    for proto in protos:
        original = tensor_name = _original_tensor(network, makers, proto, origin)
        is_blocked = _is_blocked(proto, blocked)
        attributes = {a.name: _plain(helper.get_attribute_value(a)) for a in proto.attribute}
        inputs = [tensors.get(origin.get(each, each)) for each in proto.input]
        place = _first_output(proto)
        own, before = proto.output[place], tensors.get(original)
        # ONNX Runtime sinks transpositions: a node's output may have another order of axes.
        may_be_transposed = not is_blocked and proto.op_type not in RELAYOUTS
        known = []
        if (may_be_transposed and own not in inner) or any(
            each and each not in tensors for each in (original, *proto.output[place + 1 :])
        ):
            known = inferred(proto, inputs, attributes, network.opsets)[place:]
        if may_be_transposed:
            if own in inner:
                tensor_name = own
                tensors[own] = inner[own]
            elif (
                known and known[0] and (before is None or (before.dtype, before.shape) != known[0])
            ):
                # An int8 operator writes other values under the name of the one in floats.
                tensor_name = own
                tensors[own] = Tensor(own, known[0][1], known[0][0])
        for each, found in zip((tensor_name, *proto.output[place + 1 :]), known, strict=False):
            if each and found and each not in tensors:
                tensors[each] = Tensor(each, found[1], found[0])
        if place == 0 and own in tensors and own not in network.tensors:
            # Shape arithmetic in an inlined definition determines the shapes of its tensors.
            value = _value(proto, attributes, tensors, origin)
            tensors[own] = replace(tensors[own], value=value)
        if proto.op_type == "ReorderInput" and _is_channels_last(proto) and tensor_name in tensors:
            # Convolutions after it read their image under this name.
            last = tensors[tensor_name]
            tensor_name = f"{tensor_name} by channels"
            tensors[tensor_name] = replace(last, name=tensor_name, shape=_channels_first(last))
        origin[own] = tensor_name
        if is_blocked:
            blocked.add(own)
        is_unnamed = proto.op_type in RELAYOUTS or not proto.name
        node = Node(
            # ORT's numbering of re-layouts differs from run to run; nodes of an inlined definition
            # have no name.
            name=f"{proto.op_type}_{tensor_name}" if is_unnamed else proto.name,
            op=proto.op_type,
            domain=proto.domain,
            inputs=tuple(origin.get(name, name) for name in proto.input),
            outputs=(*proto.output[:place], tensor_name, *proto.output[place + 1 :]),
            attributes=attributes,
        )
        nodes.append(node)
        was_blocked.append(is_blocked)
        produced.append(original.removeprefix(PRECISE))
    made = replace(network, nodes=tuple(nodes), tensors=tensors)
    return _Optimised(made, protos, was_blocked, produced, weights.keys())


def _in_float32(network: Network, graph: onnx.GraphProto) -> dict[str, Tensor]:
    """Return the tensors that ONNX Runtime computes in float32 instead of half precision."""
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    # Blocked nodes are named by tensors that the graph no longer has.
    names |= {match["tensor"] for node in graph.node if (match := _NCHWC_NAME.match(node.name))}
    originals = {
        name: network.tensors.get(name.removeprefix(PRECISE))
        for name in names
        if name.startswith(PRECISE)
    }
    return {
        name: replace(tensor, name=name, dtype="float32", value=None)
        for name, tensor in originals.items()
        if tensor is not None
    }


def _channels_first(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of an image with its channels last as one with its channels first."""
    batch, *pixels, channels = tensor.shape
    return (batch, channels, *pixels)


def _is_channels_last(proto: onnx.NodeProto) -> bool:
    return any(each.name == "channels_last" and each.i for each in proto.attribute)


def _inner_tensors(graph: onnx.GraphProto) -> dict[str, Tensor]:
    """Return the tensors whose whole shape is stated or inferred, also inside fused nodes.

    The shape of a blocked tensor differs from the original's: nodes that compute a tensor of the
    original network use the original shape.
    """
    known = {value.name: type_and_shape(value.type) for value in graph.value_info}
    return {
        name: Tensor(name, each[1], each[0])
        for name, each in known.items()
        if each is not None and all(each[1])
    }


def _is_blocked(proto: onnx.NodeProto, blocked: Set[str]) -> bool:
    """Say whether a node's output is blocked: it is if all its inputs are."""
    if proto.domain == NCHWC:
        return bool(proto.op_type != "ReorderOutput")
    return bool(proto.input) and all(name in blocked for name in proto.input)


def _original_tensor(
    network: Network, makers: Mapping[str, Node], proto: onnx.NodeProto, origin: Mapping[str, str]
) -> str:
    """Name of the original network's tensor that a lowered node computes.

    A blocked node is named after it, with a suffix where a normalisation or a product became a
    depthwise convolution. A node that reads and writes blocked tensors only (Concat, Add) has its
    own name, but its output is renamed.
    """
    match = _NCHWC_NAME.match(proto.name)
    if proto.domain == NCHWC and match:
        marked = match["tensor"] + (match["made_of"] or "")
        return marked if marked in network.tensors else match["tensor"]
    if proto.op_type == "ReorderInput":
        return origin.get(proto.input[0], proto.input[0])
    own = str(proto.output[_first_output(proto)])
    if own.startswith(PRECISE):
        return own
    # A fused x * sigmoid(x) is named after the product.
    name = proto.name.partition("/QuickGeluFusion")[0]
    if own not in network.tensors and name in makers:
        return next((each for each in makers[name].outputs if each), own)
    return own


def _value(
    proto: onnx.NodeProto,
    attributes: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    origin: Mapping[str, str],
) -> Any:
    """Return the small tensor that inserted shape arithmetic computes, or None."""
    if len(tensors[proto.output[0]].shape) > 1 or len(proto.output) > 1:
        return None
    values = folded(renamed(proto, origin), attributes, tensors)
    return None if values is None else values[0]


def _first_output(proto: onnx.NodeProto) -> int:
    """Index of the first output that is present."""
    return next((place for place, name in enumerate(proto.output) if name), 0)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, list) else value


def _lowered(network: Network, node: Node, block: int, *, is_blocked: bool) -> LoweredNode:
    layer = output_view_copy(network, node) if node.op in VIEW_OPS else None
    reason = "" if layer is not None else _why_view(network, node)
    if reason:
        return LoweredNode(node.name, node.op, None, "view", reason)
    try:
        layer = layer or _layer(network, node, block, is_blocked=is_blocked)
    except UnsupportedError as error:
        return LoweredNode(node.name, node.op, None, "unknown", Message.of(error))
    return LoweredNode(node.name, node.op, layer, "execution")


def _why_view(network: Network, node: Node) -> str:
    """Say why a node runs nothing; empty if it does."""
    if node.op in VIEW_OPS | REMOVED_OPS:
        return "changes only the shape"
    if node.op in ("Shape", "Size") and not node.domain:
        return "returns a shape"
    return "has no output values" if is_empty(network, node) else ""


def _layer(network: Network, node: Node, block: int, *, is_blocked: bool) -> Layer:
    if node.op in RELAYOUTS:
        return _reorder(network, node, f"nchwc{block}")
    if node.op in Conv.OPERATORS:
        network, node = _with_filters(network, node)
    return layer_from_node(network, node, block if is_blocked else 1)


def _reorder(network: Network, node: Node, blocked: str) -> Reorder:
    """Read a re-layout from or to blocks, from the shape of what it writes."""
    tensor = network.tensors.get(node.outputs[0])
    if tensor is None or len(tensor.shape) != 4:
        raise UnsupportedError(about_node(node, Message("the shape of its image is not known")))
    to_blocked, last = node.op == "ReorderInput", bool(node.attributes.get("channels_last"))
    shape = _channels_first(tensor) if last and not to_blocked else tensor.shape
    plain = "nhwc" if last else "nchw"
    return reorder(shape, plain, blocked) if to_blocked else reorder(shape, blocked, plain)


def _with_filters(network: Network, node: Node) -> tuple[Network, Node]:
    """Give a convolution of images the filters that it has by the shapes around it.

    ONNX Runtime pads the channels of a depthwise one to whole blocks, and so counts more groups.
    """
    image, result = (network.tensors.get(name) for name in (node.inputs[0], node.outputs[0]))
    if image is not None and len(image.shape) in (3, 5):
        return network, node
    if image is None or result is None or len(result.shape) != 4:
        raise UnsupportedError(about_node(node, Message("its shapes are not those of an image")))
    counted = int(node.attributes.get("group", 1))
    groups = min(counted, image.shape[1])
    weights = network.tensors.get(node.inputs[1])
    unwritten = (1, 1) if weights is None else weights.shape[2:]
    kernel = tuple(int(k) for k in node.attributes.get("kernel_shape", unwritten))
    shape = (result.shape[1], image.shape[1] // groups, *kernel)
    if weights is not None and groups == counted and weights.shape == shape:
        return network, node
    filters = Tensor("filters", shape, image.dtype, is_weight=True)
    inputs = (node.inputs[0], "filters", *node.inputs[2:])
    names = (*inputs, *node.outputs)
    tensors = {name: network.tensors[name] for name in names if name in network.tensors}
    around = replace(network, tensors={**tensors, "filters": filters})
    attributes = {**node.attributes, "group": groups}
    return around, replace(node, inputs=inputs, attributes=attributes)


def _with_edges(
    network: Network,
    lowered: list[LoweredNode],
    nodes: Sequence[onnx.NodeProto],
) -> list[LoweredNode]:
    """Mark the re-layouts of the network's own inputs and outputs."""
    marked = []
    for node, proto in zip(lowered, nodes, strict=True):
        if proto.op_type == "ReorderInput" and proto.input[0] in network.inputs:
            node = replace(node, role="preprocess")
        elif proto.op_type == "ReorderOutput" and proto.output[0] in network.outputs:
            node = replace(node, role="postprocess")
        marked.append(node)
    return marked


def _sources(network: Network, produced: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the original nodes that each node of an optimised graph replaces.

    The walk goes back from the tensor that it computes to those that earlier nodes computed.
    Nothing behind a custom operator was made of what is before it.
    """
    maker = {name: node for node in _without_custom(network).nodes for name in node.outputs if name}
    owned: set[str] = set()
    sources: list[tuple[str, ...]] = []
    for tensor_name in produced:
        stack, names = [tensor_name], []
        while stack:
            node = maker.get(stack.pop())
            if node is None or node.name in owned:
                continue
            owned.add(node.name)
            names.append(node.name)
            stack.extend(node.inputs)
        sources.append(tuple(names))
    return sources


def block_size(*, threads: int) -> int:
    """Channels per block of ONNX Runtime's NCHWc layout on this machine; 0 where it has none."""
    image = Tensor("x", (1, 4, 8, 8), "float32")
    weight = Tensor("w", (1, 4, 1, 1), "float32", np.full((1, 4, 1, 1), 0.5, np.float32), True)
    result = Tensor("y", (1, 1, 8, 8), "float32")
    network = Network(
        name="probe",
        nodes=(Node("conv", "Conv", "", ("x", "w"), ("y",), {"kernel_shape": (1, 1)}),),
        tensors={t.name: t for t in (image, weight, result)},
        inputs=("x",),
        outputs=("y",),
        opsets={"": 17},
        batch=1,
    )
    graph = optimised_model(skeleton(network), threads=threads).graph
    for node in graph.node:
        if node.domain == NCHWC and node.op_type == "Conv":
            dims = {init.name: init.dims for init in graph.initializer}
            return int(dims[node.input[1]][0])
    return 0
