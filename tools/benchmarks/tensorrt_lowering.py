"""Compare what the rules for TensorRT lower networks to with the layers of real engines.

    python tools/benchmarks/tensorrt_lowering.py GRAPH.json NETWORK.onnx [--precision fp16]
    python tools/benchmarks/tensorrt_lowering.py ../shared/data/trtexec [--differences]

GRAPH.json is written by trtexec --exportLayerInfo with --profilingVerbosity=detailed. A folder
stands for the engines in it whose network is known here: those of TensorRT Engine Explorer.

Compute layers (convolutions and products, pooling, pointwise) agree if kernel, stride, padding,
groups, number of computed inputs, whether there is an activation, and the shapes of first input and
outputs are the same. They are matched in the order of execution: ``in order``; ``any order`` counts
them as a multiset. Layers that TensorRT compiled as a whole (``ForeignNode``) have no layers to
compare; the nodes in them are left out on both sides where they are named.
"""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from resperf.dataset.importing.trtexec import Engine, EngineLayer, read_exports
from resperf.errors import ResperfError
from resperf.layers import Activation, Conv, Dense, Elementwise, Pool
from resperf.lowering import LoweredNetwork, LoweredNode
from resperf.lowering.tensorrt import lower
from resperf.network import Network, read_graph, read_network, stripped_model
from resperf.platform import Platform
from resperf.report.tables import percent_cell, table
from resperf.settings import Setting

ROOT = Path(__file__).resolve().parents[2]
_EXPORTED, _REFERENCE = ROOT / "tests/lowering/exported", ROOT / "models/networks"
ANY_GPU = Platform("cuda", "any", instruction_set="", cores=1, memory_bytes=1, system="Linux")


class Known(NamedTuple):
    """The network of an engine.

    `quantized` are the operators whose inputs are quantised: ``Conv`` (and products), ``Add`` for
    the shortcut of a residual sum, ``GlobalAveragePool``.
    """

    network: Path
    precision: str
    quantized: tuple[str, ...] = ()


_RESNET18, _RESNET50 = _EXPORTED / "resnet18-torch.onnx", _EXPORTED / "resnet50-keras.onnx"
KNOWN = {
    "pytorch-resnet-A100-fp32-resnet": Known(_RESNET18, "fp32"),
    "pytorch-resnet-A100-fp16-resnet": Known(_RESNET18, "fp16"),
    "tensorflow-resnet-RTX-3090-fp32-resnet": Known(_RESNET50, "fp32"),
    "pytorch-resnet-A100-qat-resnet-qat": Known(_RESNET18, "int8", ("Conv",)),
    "pytorch-resnet-A100-qat-residual-qgap-resnet-qat-residual-qgap": Known(
        _RESNET18, "int8", ("Conv", "Add", "GlobalAveragePool")
    ),
    "tensorflow-resnet-RTX-3090-qat-resnet-qat": Known(
        _RESNET50, "int8", ("Conv", "Add", "ReduceMean")
    ),
    "trex-mobilenet.qat": Known(_REFERENCE / "mobilenet_v2.onnx", "int8", ("Conv",)),
}


@dataclass(frozen=True)
class Group:
    """A layer, as far as both sides know it: kind, parameters and shapes are compared."""

    same: tuple[Any, ...]
    name: str

    def __str__(self) -> str:
        return f"{self.name}: {' '.join(map(str, self.same))}"


def of_engine(layer: EngineLayer) -> Group | None:
    """Return a compute layer of an engine; None for any other layer."""
    given = dict(layer.parameters)
    kind = str(given.get("ParameterType", layer.type))
    is_pooled = kind == "ConvActPool"
    if is_pooled:
        given |= {key.removeprefix("Conv"): value for key, value in given.items()}
    if not layer.inputs or not layer.outputs:
        return None
    count, first = len(layer.inputs), layer.inputs[0].shape
    results = tuple(tensor.shape for tensor in layer.outputs)
    active = given.get("Activation", "NONE") != "NONE" or "PWN(" in layer.name
    if is_pooled or kind in ("Convolution", "Deconvolution"):
        window = [tuple(given[word]) for word in ("Kernel", "Stride", "PrePadding", "PostPadding")]
        if first[2:] == (1, 1) == window[0] and count == 1:
            same = ("dense", *first[:2], results[0][1], active)
        else:
            shapes = (first,) if is_pooled else (first, *results)
            same = ("convolution", *window, given.get("Groups", 1), count, active, *shapes)
    elif kind == "Pooling":
        window = [tuple(given[word]) for word in ("WindowSize", "Stride", "PrePadding")]
        same = ("pooling", *window, first, *results)
    elif kind.lower() in ("matrixmultiply", "gemm") and count == 1:
        same = ("dense", math.prod(first[:-1]), first[-1], results[0][-1], active)
    elif kind.lower() in ("matrixmultiply", "gemm"):
        same = ("product", count, first, *results)
    elif kind.startswith(("PointWise", "ElementWise", "Activation", "Unary")):
        same = ("pointwise", len({tensor.name for tensor in layer.inputs}), *results)
    else:
        return None
    return Group(same, layer.name)


def of_rules(network: Network, node: LoweredNode) -> Group | None:
    """Return a compute layer of the rules; None for any other layer."""
    layer = node.layer
    if layer is None or node.role != "execution":
        return None
    if isinstance(layer, Conv):
        shapes = [layer.input_shape]
        if "MaxPool" not in node.op:
            shapes += (
                (layer.batch, channels, *layer.output_shape[2:])
                for channels in _branches(network, node, layer)
            )
        same = ("convolution", *_window(layer), layer.groups, 1 + layer.residual,
                _is_active(node, layer), *shapes)  # fmt: skip
    elif isinstance(layer, Dense):
        sizes = (layer.batch, layer.features_in, layer.features_out)
        same = ("dense", *sizes, _is_active(node, layer))
    elif isinstance(layer, Pool):
        same = ("pooling", *_window(layer)[:3], layer.input_shape, layer.output_shape)
    elif node.op == "MatMul":
        read, written = _outside(network, node)
        same = ("product", 2, *(network.tensors[name].shape for name in (*read[:1], *written)))
    elif isinstance(layer, Activation | Elementwise) or node.op.startswith("PWN("):
        read, written = _outside(network, node)
        same = ("pointwise", len(read), *(network.tensors[name].shape for name in written))
    else:
        return None
    return Group(same, f"{node.op} ({node.name})")


def _window(layer: Conv | Pool) -> tuple[tuple[int, int], ...]:
    """Return kernel, stride, and padding before and after."""
    return (
        (layer.kernel_height, layer.kernel_width), (layer.stride_height, layer.stride_width),
        (layer.pad_top, layer.pad_left), (layer.pad_bottom, layer.pad_right),
    )  # fmt: skip


def _is_active(node: LoweredNode, layer: Conv | Dense) -> bool:
    return layer.activation != "none" or "PWN(" in node.op


def _nodes_of(network: Network, names: Iterable[str]) -> list[Any]:
    wanted = set(names)
    return [node for node in network.nodes if node.name in wanted]


def _branches(network: Network, node: LoweredNode, layer: Conv) -> list[int]:
    """Return the output channels of convolutions that were merged."""
    if "||" not in node.op:
        return [layer.channels_out]
    convolutions = [source for source in _nodes_of(network, node.sources) if source.op == "Conv"]
    return [network.tensors[conv.outputs[0]].shape[1] for conv in convolutions]


def _outside(network: Network, node: LoweredNode) -> tuple[list[str], list[str]]:
    """Return the computed tensors that a layer reads, and those that it writes for others."""
    own = _nodes_of(network, node.sources)
    computed = {name for node in own for name in node.outputs}
    names = {node.name for node in own}
    read_elsewhere = {n for node in network.nodes if node.name not in names for n in node.inputs}
    read = [name for node in own for name in node.inputs
            if name and name not in computed and not network.tensors[name].is_weight]  # fmt: skip
    written = [
        name for node in own for name in node.outputs
        if name in read_elsewhere or name in network.outputs
    ]  # fmt: skip
    return list(dict.fromkeys(read)), written


@dataclass(frozen=True)
class Agreement:
    """How far the rules agree with an engine, in compute layers."""

    engine: Sequence[Group]
    rules: Sequence[Group]

    @cached_property
    def _sides(self) -> list[list[tuple[Any, ...]]]:
        return [[group.same for group in groups] for groups in (self.engine, self.rules)]

    @cached_property
    def _matcher(self) -> difflib.SequenceMatcher[tuple[Any, ...]]:
        return difflib.SequenceMatcher(None, *self._sides, autojunk=False)

    @property
    def in_order(self) -> float:
        """The share of layers that agree in order."""
        size = sum(block.size for block in self._matcher.get_matching_blocks())
        return size / max(map(len, self._sides))

    @property
    def any_order(self) -> float:
        """The share of layers that agree in any order."""
        engine, rules = map(Counter, self._sides)
        return (engine & rules).total() / max(map(len, self._sides))

    def differences(self) -> list[str]:
        """Return what is in one sequence only, in order."""
        lines = []
        for word, a, b, c, d in self._matcher.get_opcodes():
            if word != "equal":
                lines += [f"  engine {group}" for group in self.engine[a:b]]
                lines += [f"  rules  {group}" for group in self.rules[c:d]]
        return lines


def compare(engine: Engine, network: Network, lowered: LoweredNetwork) -> Agreement:
    """Compare an engine's compute layers with those of the rules."""
    compiled = _compiled(engine, network)
    mine = [group for layer in engine.layers if (group := of_engine(layer))]
    theirs = [
        group for node in lowered.nodes
        if not set(node.sources) & compiled and (group := of_rules(network, node))
    ]  # fmt: skip
    return Agreement(mine, theirs)


def _compiled(engine: Engine, network: Network) -> set[str]:
    """Return the nodes of parts that were compiled as a whole: from the first to the last."""
    places = {node.name: index for index, node in enumerate(network.nodes)}
    compiled: set[str] = set()
    for layer in engine.layers:
        ends = [places[name] for name in layer.nodes if name in places]
        if layer.spans and ends:
            compiled |= {node.name for node in network.nodes[min(ends) : max(ends) + 1]}
    return compiled


def quantized(model: ModelProto, ops: Sequence[str]) -> ModelProto:
    """Return a network with Q/DQ before operators, as quantisation toolkits insert them.

    Parameters
    ----------
    model : ModelProto
        Left unchanged.
    ops : sequence of str
        As in `Known`. Products are quantised with ``Conv``; of a sum, the shortcut: the operand
        that no convolution computes, or the later one.
    """
    result = ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    nodes = list(graph.node)
    weights = {tensor.name for tensor in graph.initializer}
    maker = {name: index for index, node in enumerate(nodes) for name in node.output}
    del graph.node[:]
    graph.initializer.append(numpy_helper.from_array(np.asarray(0.05, np.float32), "qdq/scale"))
    graph.initializer.append(numpy_helper.from_array(np.asarray(0, np.int8), "qdq/zero"))
    for node in nodes:
        for index in _quantized_inputs(node, ops, weights, maker, nodes):
            for word, op in (("Q", "QuantizeLinear"), ("DQ", "DequantizeLinear")):
                name = f"{node.name or node.output[0]}/{index}/{word}"
                given = [node.input[index], "qdq/scale", "qdq/zero"]
                graph.node.append(helper.make_node(op, given, [name], name=name))
                node.input[index] = name
        graph.node.append(node)
    return result


def _quantized_inputs(
    node: NodeProto, ops: Sequence[str], weights: set[str], maker: dict[str, int], nodes: Any
) -> list[int]:
    if node.op_type in ("Conv", "Gemm", "MatMul"):
        return [0, 1] if "Conv" in ops else []
    if node.op_type not in ops:
        return []
    if node.op_type != "Add":
        return [0]
    if any(name in weights or name not in maker for name in node.input):
        return []

    def of_convolution(index: int) -> tuple[bool, int]:
        producer = nodes[maker[node.input[index]]]
        while producer.op_type == "BatchNormalization":
            producer = nodes[maker[producer.input[0]]]
        return producer.op_type != "Conv", maker[node.input[index]]

    return [max((0, 1), key=of_convolution)]


def lowered_network(case: Known, engine: Engine) -> tuple[Network, LoweredNetwork]:
    """Read and lower a network, quantised or not, at the engine's batch size."""
    batches = {tensor.shape[0] for tensor in engine.inputs if tensor.shape}
    batch = batches.pop() if len(batches) == 1 else None
    if case.quantized:
        model = quantized(stripped_model(case.network), case.quantized)
        network = read_graph(model.SerializeToString(), case.network.stem, batch=batch)
    else:
        network = read_network(case.network, batch=batch)
    return network, lower(network, Setting("tensorrt", precision=case.precision), ANY_GPU)


def _pairs(engine: Path, network: Path | None, precision: str) -> list[tuple[Path, Known]]:
    if network is not None:
        return [(engine, Known(network, precision))]
    pairs = [(engine / f"{name}.graph.json.gz", case) for name, case in KNOWN.items()]
    if missing := [path.name for path, _ in pairs if not path.is_file()]:
        sys.exit(f"{engine} lacks {', '.join(missing)}; give a GRAPH.json and its NETWORK.onnx")
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", type=Path, help="GRAPH.json[.gz], or a folder of known engines")
    parser.add_argument("network", type=Path, nargs="?", help="its ONNX file")
    parser.add_argument("--precision", default="fp32", help="that it was built with")
    parser.add_argument("--differences", action="store_true", help="print unmatched layers")
    arguments = parser.parse_args()
    rows = []
    for path, case in _pairs(arguments.engine, arguments.network, arguments.precision):
        try:
            engine = read_exports([path])
            network, lowered = lowered_network(case, engine)
        except ResperfError as error:
            sys.exit(str(error))
        result = compare(engine, network, lowered)
        rows.append([
            engine.name, case.precision, "yes" if case.quantized else "",
            str(len(result.engine)), str(len(result.rules)),
            percent_cell(result.in_order), percent_cell(result.any_order),
        ])  # fmt: skip
        if arguments.differences:
            print("\n".join([engine.name, *result.differences()]))
    headings = ("engine", "precision", "Q/DQ", "engine's", "rules'", "in order", "any order")
    print(table(headings, rows, text=headings[:3]))


if __name__ == "__main__":
    main()
