"""Lowering for ONNX Runtime on the CPU: it is asked for the graph that it would run.

It writes its optimised graph, and we read it without running it. What it answered is cached on
disk, by the network's structure.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resperf import disk_cache
from resperf.errors import LayerError, Message, ShapeError, UnsupportedError, first_line
from resperf.layers import Layer, layer_from_key
from resperf.lowering._base import (
    CONTROL_FLOW,
    LoweredNetwork,
    LoweredNode,
    answer,
    named_by_sources,
    qualified_by_domain,
)
from resperf.lowering._ort_blocks import Placing, lower_layer, lowered_alone
from resperf.lowering._proto import Skeleton, shared_weights, skeleton
from resperf.lowering._read import NCHWC, layer_from_node
from resperf.network import MALFORMED, Network, Node, Tensor, structure_digest
from resperf.network._base import TensorType
from resperf.network.constants import folded
from resperf.network.graph import renamed
from resperf.network.protos import attributes_of, weight
from resperf.network.shapes import complete_only, partial_outputs, partial_type, with_caches
from resperf.platform import Platform, instruction_set
from resperf.settings import NCHWC_BLOCK, Setting

if TYPE_CHECKING:
    import onnx

X86 = frozenset({"avx512f", "avx2", "avx", "sse4_2"})
"""Base instruction sets of one architecture."""
BODY_BYTES = 1 << 22
"""Largest constant that ONNX Runtime folds where a network has subgraphs."""
_ENTRIES: Mapping[str, str] = {
    # The weights of the optimised graph are not needed, but orders of axes, and of pads, are.
    "session.optimized_model_external_initializers_min_size_in_bytes": "256",
    # Packing weights takes most of a session's start and changes no node.
    "session.disable_prepacking": "1",
}
BLOCKS = "NchwcTransformer"
"""ONNX Runtime's optimiser that chooses blocked layouts."""
SUMS = "ConvAddActivationFusion"
"""Its optimiser that fuses additions into convolutions in NCHW; in blocks, others are fused."""
PRECISE = "InsertedPrecisionFreeCast_"
"""Prefix of ONNX Runtime's names of tensors that it casts to float32."""
_FOLDER = "lowering"
"""Of the disk cache."""
_CPU = "CPUExecutionProvider"
_OF_BOOL, _OF_DOUBLE = {"bool": ("max", "min")}, {"float64": ("",)}
_REFUSED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "GRU": _OF_DOUBLE,
    "LSTM": _OF_DOUBLE,
    "ScatterElements": {"float16": ("add", "mul"), **_OF_BOOL},
    "ScatterND": {"float16": ("add", "mul", "max", "min"), **_OF_BOOL},
}
"""Operators, types and reductions that it has no kernel for, which it says when it runs."""
_pool_threads: int | None = None
"""Threads of the pool that all sessions of this process share; None if each has its own."""


def lower(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    """Lower a network; see `resperf.lowering.lower`.

    The installed version is asked, also where the layers were measured with another one: a note
    says so.

    Raises
    ------
    UnsupportedError
        If ONNX Runtime cannot run the network.
    """
    import onnxruntime

    inputs = network.inputs
    network = network.as_onnxruntime_runs()
    difference = ""
    here, there = onnxruntime.__version__, setting.framework_version
    sets = instruction_set(), platform.instruction_set
    if here != there:
        difference = f"version {here} here, {there} there"
    elif sets[0] != sets[1] and not {name.partition("+")[0] for name in sets} <= X86:
        difference = f"instruction set {sets[0]} here, {sets[1]} there"
    why = f"lowered by ONNX Runtime, {difference}: it may fuse other operators there"
    notes = (why,) if difference else ()
    block = int(setting.options.get(NCHWC_BLOCK, "0"))
    shared = sorted(shared_weights(network).items())
    also = (str(shared),) if shared else ()
    identity = (instruction_set(), setting.provider, str(block), *also)
    if setting.provider == _CPU:
        _check_kernels(network)
    nodes = once(network, identity, lambda: ask(network, block))
    return answer(replace(network, inputs=inputs), nodes, installed(), notes)


def _check_kernels(network: Network) -> None:
    """Refuse what ONNX Runtime loads, and refuses when it runs."""
    for node in network.nodes:
        data = network.tensors.get(node.inputs[0]) if node.op in _REFUSED else None
        if data is not None:  # Its shape may depend on values.
            reduction = node.attributes.get("reduction", "")
            if reduction in _REFUSED[node.op].get(data.dtype, ()):
                what = f"{node.op} does not support {data.dtype}"
                what += f" with reduction {reduction!r}" * bool(reduction)
                raise UnsupportedError(
                    f"ONNX Runtime cannot run this network: {what} ({node.name})"
                )


def installed() -> str:
    """Return the name and version of the installed ONNX Runtime."""
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Give each layer the layout that ONNX Runtime would choose."""
    block = int(setting.options.get(NCHWC_BLOCK, "0"))
    return [lower_layer(layer, block) for layer in layers]


@cache
def block_size() -> int:
    """Channels per block of ONNX Runtime's own layout on this machine; 0 where it has none."""
    shapes = {"x": (1, 4, 8, 8), "w": (1, 4, 1, 1), "y": (1, 1, 8, 8)}
    network = Network(
        name="block_size",
        nodes=(Node("conv", "Conv", "", ("x", "w"), ("y",), {}),),
        tensors={name: Tensor(name, shapes[name], "float32", None, name == "w") for name in shapes},
        inputs=("x",),
        outputs=("y",),
        opsets={"": 17},
        batch=1,
    )
    graph = optimised_model(skeleton(network)).graph
    dims = {initializer.name: initializer.dims for initializer in graph.initializer}
    return next((dims[node.input[1]][0] for node in graph.node if node.domain == NCHWC), 0)


def once(
    network: Network, identity: Sequence[str], make: Callable[[], list[LoweredNode]]
) -> list[LoweredNode]:
    """Return the lowered nodes cached for this structure and `identity`, or make and cache them.

    `identity` is what they depend on beside the network and ONNX Runtime's version.
    """
    code = disk_cache.code_state("layers", "lowering", "network")
    name = disk_cache.name_of(code, structure_digest(network), installed(), *identity)
    with suppress(LayerError, *MALFORMED):
        nodes = []
        layers: dict[str | None, Layer | None] = {None: None}
        for label, op, key, role, reason, indices in disk_cache.load(_FOLDER, name):
            sources = tuple(network.nodes[index].name for index in indices)
            label = sources[0] if sources else label
            if key not in layers:  # Networks have many equal layers, which become one value.
                layers[key] = layer_from_key(key)
            nodes.append(LoweredNode(label, op, layers[key], role, Message(*reason), sources))
        return nodes
    nodes = make()
    position = {node.name: index for index, node in enumerate(network.nodes)}
    rows = [
        (
            node.name, node.op, node.layer and node.layer.key, node.role,
            (reason, reason.general, reason.unread), [position[name] for name in node.sources],
        )
        for node in nodes
        for reason in [Message.of(node.reason)]
    ]  # fmt: skip
    disk_cache.store(_FOLDER, name, rows)
    return nodes


def share_threads(threads: int) -> None:
    """Make all later sessions of this process share one pool of threads.

    A session's own threads spin while they wait for its next run, and so take a core from another
    session that is being timed. ONNX Runtime creates the shared pool once per process and then
    refuses sessions with their own threads: call this only in processes that do nothing but
    measure.
    """
    import onnxruntime

    global _pool_threads
    if _pool_threads is None:
        onnxruntime.set_global_thread_pool_sizes(threads, 1)
        _pool_threads = threads


def session_options(threads: int) -> Any:
    """Return the options of a silent session with so many threads for one operator.

    Operators run one at a time. Where the process shares a pool, that pool's size applies instead.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    if _pool_threads is None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    else:
        options.use_per_session_threads = False
    return options


def optimised_model(model: Skeleton, without: Sequence[str] = ()) -> onnx.ModelProto:
    """Let ONNX Runtime optimise a model for this machine and return what it would run.

    Parameters
    ----------
    model : Skeleton
    without : sequence of str
        Names of its optimisers that are left out.

    Raises
    ------
    UnsupportedError
        If ONNX Runtime refuses the model.
    """
    import onnx
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    # Two files, not a folder: making and deleting one takes 5 ms, a twentieth of a prediction.
    file, target = tempfile.mkstemp(prefix="resperf-", suffix=".onnx")
    os.close(file)
    # A null device takes what ONNX Runtime writes of weights: a fifth of the time.
    weights = Path(f"{target}.weights")
    weights.symlink_to(os.devnull)
    options = session_options(1)
    options.optimized_model_filepath = target
    entries = {**_ENTRIES, "session.optimized_model_external_initializers_file_name": weights.name}
    if any(node.op_type in CONTROL_FLOW for node in model.model.graph.node):
        # Subgraphs are passed on unchanged: limit what constant folding could expand them to.
        limit = "optimization.constant_folding_max_output_size_in_bytes"
        entries[limit] = str(BODY_BYTES)
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    try:
        if model.weights:
            add_weights(options, model.model, model.weights)
        onnxruntime.InferenceSession(
            model.model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(without),
        )
        model_made = onnx.load(target, load_external_data=False)
    except Exception as error:  # onnxruntime's errors have no common root of their own
        raise UnsupportedError(
            f"ONNX Runtime cannot run this network: {first_line(error)}"
        ) from error
    finally:
        weights.unlink(missing_ok=True)
        Path(target).unlink()
    # ONNX Runtime writes no shapes of tensors that it inserts, such as transposed ones.
    return onnx.shape_inference.infer_shapes(model_made)


def add_weights(options: Any, model: onnx.ModelProto, weights: Mapping[str, Any]) -> None:
    """Give a session the values of external weights, without a copy.

    Values of less than a byte lie in one each: the session reads the first ones only.
    """
    from onnxruntime import OrtValue

    types = {proto.name: proto.data_type for proto in model.graph.initializer}
    options.add_external_initializers(
        list(weights),
        [OrtValue.ortvalue_from_numpy_with_onnx_type(v, types[k]) for k, v in weights.items()],
    )


def ask(network: Network, block: int, without: Sequence[str] = ()) -> list[LoweredNode]:
    """Return what ONNX Runtime makes of a network, with custom operators as unknown ones.

    Its own blocked layouts are those of this machine: it is asked without, and `_ort_blocks` places
    those of the machine that is asked about.

    Parameters
    ----------
    network : Network
    block : int
        Channels per block of that machine's layout; 0 where it has none.
    without : sequence of str
        Names of its optimisers that are left out.

    Raises
    ------
    UnsupportedError
        If it refuses the network.
    """
    # What ONNX Runtime does not have, and what reads a tensor of unknown shape behind it, which can
    # be no input.
    custom: list[Node] = []
    unsized: set[str] = set()
    for node in network.nodes:
        if (node.domain, node.op) not in _operators() or not unsized.isdisjoint(node.inputs):
            custom.append(node)
            unsized |= {name for name in node.outputs if name and name not in network.tensors}
    parts = without_custom(network, custom) if custom else network
    lowered: list[LoweredNode] = []
    if parts.nodes:
        without = (*without, BLOCKS, SUMS) if block else (*without, BLOCKS)
        around, sources = _read(parts, optimised_model(skeleton(parts), without).graph)
        if block:
            around = _with_hard_swish(network, around, sources)
        lowered = named_by_sources(network, Placing(around, block, sources).run())
    return with_custom(network, custom, lowered) if custom else lowered


def without_custom(network: Network, custom: Sequence[Node]) -> Network:
    """Cut custom operators out: what they read becomes an output, what they write an input.

    ONNX Runtime refuses networks with operators that it does not have, and fuses nothing into them.
    """
    cut = {node.name for node in custom}
    written = [name for node in custom for name in node.outputs if name]
    fixed = {*written, *network.inputs}
    read = dict.fromkeys(
        name
        for node in custom
        for name in node.inputs
        if name in network.tensors and name not in fixed and not network.tensors[name].is_weight
    )
    return replace(
        network,
        nodes=tuple(node for node in network.nodes if node.name not in cut),
        inputs=(*network.inputs, *(name for name in written if name in network.tensors)),
        outputs=tuple(
            dict.fromkeys(name for name in (*network.outputs, *read) if name not in written)
        ),
    )


@cache
def _operators() -> Set[tuple[str, str]]:
    """Return domain and name of every operator that ONNX Runtime has."""
    from onnxruntime.capi import onnxruntime_pybind11_state

    schemas = onnxruntime_pybind11_state.get_all_operator_schema()
    return {(schema.domain, schema.name) for schema in schemas}


def with_custom(
    network: Network, custom: Sequence[Node], lowered: Sequence[LoweredNode]
) -> list[LoweredNode]:
    """Put custom operators back, as operators without a layer, in the order of the network.

    ONNX Runtime orders the parts around them as it likes.
    """
    order = {node.name: index for index, node in enumerate(network.nodes)}
    placed, position = [], -1
    for part in lowered:
        # A re-layout without sources stays behind what is before it.
        position = max((order[name] for name in part.sources), default=position)
        placed.append((position, part))
    for node in custom:
        unknown = lowered_alone(network, qualified_by_domain(node), layer_from_node)
        placed.append((order[node.name], replace(unknown, sources=(node.name,))))
    return [part for _, part in sorted(placed, key=itemgetter(0))]


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


def _read(network: Network, graph: onnx.GraphProto) -> tuple[Network, dict[str, tuple[str, ...]]]:
    """Read an optimised graph as a network that has the tensors of the original one as well.

    Also return the names of the original nodes that each of its nodes replaces.
    """
    makers = {node.name: node for node in network.nodes}
    path = Path(network.name)
    inner, tensors = _tensors(network, graph, path)
    origin: dict[str, str] = {}
    nodes: list[Node] = []
    # Large matrices are inputs of this graph only: where they are weights, they are cast once.
    computed = {name for node in network.nodes for name in node.outputs}
    free = {info.name for info in graph.input}.difference(network.inputs, computed)
    produced = []
    for proto in graph.node:
        if proto.op_type == "Cast" and proto.input[0] in free:
            continue
        # The first output that is present.
        first = next((index for index, name in enumerate(proto.output) if name), 0)
        own, *rest = proto.output[first:]
        original = tensor_name = _original_tensor(network, makers, proto.name, own)
        attributes = attributes_of(path, proto)
        inputs = {name: t for name in proto.input if (t := tensors.get(origin.get(name, name)))}
        before = tensors.get(original)
        outputs = []
        if own not in inner or any(name and name not in tensors for name in (original, *rest)):
            outputs = _inferred(proto, inputs, attributes, network.opsets)[first:]
        # ONNX Runtime sinks transpositions: a node's output may have another order of axes.
        if own in inner:
            tensor_name = own
            tensors[own] = inner[own]
        elif outputs and outputs[0] and outputs[0] != (before and (before.dtype, before.shape)):
            # An int8 operator writes other values under the name of the one in floats.
            tensor_name = own
            tensors[own] = Tensor(own, outputs[0][1], outputs[0][0])
        for name, output in zip((tensor_name, *rest), outputs, strict=False):
            if name and output and name not in tensors:
                tensors[name] = Tensor(name, output[1], output[0])
        if first == 0 and own in tensors and own not in network.tensors:
            # Shape arithmetic in an inlined definition determines the shapes of its tensors.
            value = _value(proto, attributes, tensors, origin)
            tensors[own] = replace(tensors[own], value=value)
        origin[own] = tensor_name
        node = Node(
            # Nodes of an inlined definition have no name.
            name=proto.name or f"{proto.op_type}_{tensor_name}",
            op=proto.op_type,
            domain=proto.domain,
            inputs=tuple(origin.get(name, name) for name in proto.input),
            outputs=(*proto.output[:first], tensor_name, *rest),
            attributes=attributes,
        )
        nodes.append(node)
        produced.append(original.removeprefix(PRECISE))
    sources = dict(zip((node.name for node in nodes), _sources(network, produced), strict=True))
    return replace(network, nodes=tuple(nodes), tensors=tensors), sources


def _tensors(
    network: Network, graph: onnx.GraphProto, path: Path
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors inside an optimised graph whose whole shape is known, and all known ones.

    The latter include those of the original network, and those that ONNX Runtime computes in
    float32 instead of half precision.
    """
    parts = {v.name: part for v in graph.value_info if (part := partial_type(v.type))}
    inner = {
        name: Tensor(name, shape, dtype)
        for name, (dtype, shape) in complete_only(parts).items()
        if all(shape)
    }
    precise = {
        name: replace(network.tensors[own], name=name, dtype="float32", value=None)
        for node in graph.node
        for name in (*node.input, *node.output)
        if name.startswith(PRECISE) and (own := name.removeprefix(PRECISE)) in network.tensors
    }
    weights = {proto.name: weight(path, proto) for proto in graph.initializer}
    # ONNX Runtime also transposes constants without renaming them: its weights come last.
    return inner, {**inner, **precise, **network.tensors, **weights}


def _original_tensor(network: Network, makers: Mapping[str, Node], label: str, own: str) -> str:
    """Name of the original tensor that a lowered node of this name and output computes."""
    if own.startswith(PRECISE):
        return own
    # A fused x * sigmoid(x) is named after the product.
    name = label.partition("/QuickGeluFusion")[0]
    if own not in network.tensors and name in makers:
        return next((output for output in makers[name].outputs if output), own)
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


def _inferred(
    proto: onnx.NodeProto,
    tensors: Mapping[str, Tensor],
    attributes: Mapping[str, Any],
    opsets: Mapping[str, int],
) -> list[TensorType | None]:
    """Return types and shapes of the outputs of a node, which may be one that ONNX Runtime inserts.

    As many as can be derived from its inputs; None stands for an absent output before others that
    are present.
    """
    if not tensors or len(tensors) < len({name for name in proto.input if name}):
        return []
    outputs: dict[str, TensorType] = {}
    with suppress(ShapeError):
        outputs = complete_only(partial_outputs(proto, tensors, opsets))
    if proto.domain:
        outputs = with_caches(proto, tensors, attributes, outputs)
    return [outputs.get(name) for name in proto.output]


def _sources(network: Network, produced: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the original nodes that each node of an optimised graph replaces, in their order.

    The walk goes back from the tensor that it computes to those that earlier nodes computed.
    """
    maker = {name: node for node in network.nodes for name in node.outputs if name}
    order = {node.name: index for index, node in enumerate(network.nodes)}
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
        sources.append(tuple(sorted(names, key=order.__getitem__)))
    return sources
