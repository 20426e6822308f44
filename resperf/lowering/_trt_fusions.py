"""Which operators TensorRT's builder fuses into one layer of an engine.

The rules are those that NVIDIA documents ("Types of Fusions" of the developer guide, now the Layer
Fusion Catalog: docs.nvidia.com/deeplearning/tensorrt/latest/performance/fusion-catalog.html; "Q/DQ
fusion" and explicit quantization of the same guide). What the documentation leaves open is as in
engines and builder logs that are public, and as NVIDIA answered questions in the issues of its
repository (github.com/NVIDIA/TensorRT); each rule says so. The passes run in the order in which the
builder's log reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from resperf.layers import Activation, Elementwise
from resperf.lowering._read import VIEW_OPS
from resperf.network import Network, Node, Rewritten, Tensor
from resperf.network.canonical import PASSING
from resperf.network.rewriting import Rewriting, unchanged_if_malformed
from resperf.settings import HALF_TYPES

CONVOLUTION, PRODUCT, POINTWISE, SHUFFLE = "FusedConv", "FusedGemm", "PointWise", "Shuffle"
"""Operators of the fused graph, beside ONNX's."""
_BUILT_IN = ("Relu", "Clip")
_CONVOLUTIONS = ("Conv", CONVOLUTION)
_PRODUCTS = ("Gemm", "MatMul", PRODUCT)
_WEIGHTED = (*_CONVOLUTIONS, *_PRODUCTS, "ConvTranspose")
_SUMS = ("Add", "Sum", "Max", "Min")
POINTWISE_OPS = (Activation.OPERATORS | Elementwise.OPERATORS) - {"PRelu"}
"""Activation, ElementWise and Unary layers of TensorRT."""
_COMMUTING = frozenset({"MaxPool", "Pad", "Transpose", "Concat", "Slice", "Split", *VIEW_OPS})
"""Operators that quantisation moves through."""
_NOT_STRIDED = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Upsample"})
"""Operators that cannot read their input from within a larger tensor."""
_NOT_MOVABLE = frozenset({"Resize", "Upsample", "Slice", "Split", SHUFFLE, *VIEW_OPS, "Transpose"})
"""Operators that cannot write their result into a larger tensor."""
_IMAGE_AXES = 4
"""(batch, channels, rows, columns)."""
_POOLED_FILTERS, _POOLED_WINDOW = ((3, 7, 7), (4, 7, 7)), (3, 3)
"""Filters and window of a convolution and a pooling that are one layer in int8."""
_GEOMETRY = ("kernel_shape", "strides", "pads", "dilations", "auto_pad", "group")


class Fusing(Rewriting):
    """A network while layers are fused.

    Attributes
    ----------
    precision : str
    labels : dict of str to str
        Node -> the operators in it, written as TensorRT names layers: ``"Conv + Add + Relu"``,
        ``"PWN(Sigmoid, Mul)"``, ``"Conv || Conv"``.
    parts : dict of str to tuple of Node
        Pointwise layer -> its operators.
    quantized : set of str
        Tensors that are stored as int8. Their entry in `tensors` keeps the type that the network
        computes with.
    copied : dict of str to tuple of str
        Concatenation -> inputs that are copied; all others are written in place.
    """

    def __init__(
        self, network: Network, sources: Mapping[str, tuple[str, ...]], precision: str
    ) -> None:
        super().__init__(network, sources)
        self.precision = precision
        self.labels: dict[str, str] = {}
        self.parts: dict[str, tuple[Node, ...]] = {}
        self.quantized: set[str] = set()
        self.copied: dict[str, tuple[str, ...]] = {}

    def label(self, node: Node) -> str:
        """Return the operators of a node."""
        own = ".".join(filter(None, (node.domain, node.op)))
        plain = f"PWN({own})" if node.op in POINTWISE_OPS and not node.domain else own
        return self.labels.get(node.name, plain)

    def parts_of(self, *nodes: Node) -> tuple[Node, ...]:
        """Return the operators of layers, in their order."""
        return tuple(part for node in nodes for part in self.parts.get(node.name, (node,)))

    def reader_of(self, node: Node) -> Node | None:
        """Return the only reader of a node's only output; None for an output of the network."""
        return self.only_reader(node.outputs[0]) if sum(map(bool, node.outputs)) == 1 else None

    def fuse(self, first: Node, last: Node, joined: Node, label: str) -> Node:
        """Replace two nodes, of which only the second reads the first, by one in its place."""
        if not self.join([first], last, joined):
            raise ValueError(f"{first.name} has other readers")
        self.labels[joined.name] = label
        return joined

    def absorb(self, node: Node, kept: Node) -> None:
        """Remove a node whose work another one does."""
        self.sources[kept.name] = (*self.sources_of(kept), *self.sources_of(node))
        self.replace(node)

    def redirect(self, name: str, to: str) -> None:
        """Let all readers of a tensor read another one."""
        for reader in self.readers(name):
            inputs = tuple(to if input_name == name else input_name for input_name in reader.inputs)
            self.replace(reader, replace(reader, inputs=inputs))

    def is_quantized(self, node: Node) -> bool:
        """Whether a node computes in int8: its main input is stored so."""
        return bool(node.inputs) and node.inputs[0] in self.quantized

    def is_int8(self, node: Node) -> bool:
        """Whether a node computes in int8: by its own quantisation, or because all nodes may."""
        return self.is_quantized(node) or (self.precision == "int8" and not self.quantized)


def fused(rewritten: Rewritten, precision: str) -> Fusing:
    """Return the layers that TensorRT builds for a canonical network.

    Parameters
    ----------
    rewritten : Rewritten
        Canonical (`resperf.network.canonical`), its tensors in the types that they run in.
    precision : str
        As in `resperf.settings.Setting`: int8 is no type of a tensor.
    """
    graph = Fusing(rewritten.network, rewritten.sources, precision)
    for node in graph.walk():
        unchanged_if_malformed(_fold_weights)(graph, node)
    _apply(graph, PASSING, _pass_through)
    _apply(graph, ("QuantizeLinear",), _join_equal)
    _apply(graph, ("DequantizeLinear",), _read_int8)
    _apply(graph, _COMMUTING, _pass_int8)
    for ops, rule in _RULES:
        _apply(graph, ops, rule)
    _merge(graph)
    _apply(graph, POINTWISE_OPS | {POINTWISE}, _chain)
    _apply(graph, _WEIGHTED, _any_activation)
    _apply(graph, ("QuantizeLinear",), _quantized_output)
    _apply(graph, _CONVOLUTIONS, _pooled)
    _apply(graph, _SHUFFLES, _shuffle)
    _apply(graph, ("Concat",), _concatenate)
    return graph


def _apply(graph: Fusing, ops: Iterable[str], rule: Callable[[Fusing, Node], None]) -> None:
    for node in graph.walk():
        if node.op in ops and not node.domain:
            unchanged_if_malformed(rule)(graph, node)


def _fold_weights(graph: Fusing, node: Node) -> None:
    """Remove a node that computes with weights alone, such as a dequantisation of int8 weights."""
    sized = [name for name in node.outputs if name in graph.tensors]
    if not node.inputs or not all(graph.is_weight(name) for name in node.inputs if name):
        return
    if len(sized) == len(node.outputs) and not set(sized) & set(graph.network.outputs):
        graph.tensors |= {name: replace(graph.tensors[name], is_weight=True) for name in sized}
        graph.replace(node)


def _pass_through(graph: Fusing, node: Node) -> None:
    """Remove a node without effect."""
    if node.outputs[0] in graph.network.outputs:
        return
    graph.redirect(node.outputs[0], node.inputs[0])
    if (maker := graph.maker.get(node.inputs[0])) is None:
        graph.replace(node)
    else:
        graph.absorb(node, maker)


# Q/DQ


def _join_equal(graph: Fusing, node: Node) -> None:
    """Join equal quantisations of one tensor, such as those of two layers that read it."""
    same = [
        reader for reader in graph.readers(node.inputs[0])
        if reader.op == node.op and not reader.domain
        and _scales(graph, reader) == _scales(graph, node)
    ]  # fmt: skip
    first = min(same, key=graph.position)
    if first is not node and node.outputs[0] not in graph.network.outputs:
        graph.redirect(node.outputs[0], first.outputs[0])
        graph.absorb(node, first)


def _scales(graph: Fusing, node: Node) -> list[object]:
    """Return what equal scales and zero points have in common: their values, else their names."""
    values = [(name, graph.tensors[name].value) for name in node.inputs[1:] if name]
    return [
        name if value is None else (value.dtype.name, value.shape, value.tobytes())
        for name, value in values
    ]


def _read_int8(graph: Fusing, node: Node) -> None:
    """Make a dequantisation part of each layer that reads it, which then reads int8: "Q/DQ fusion".

    One that makes an output of the network stays.
    """
    maker, stored = graph.maker.get(node.inputs[0]), node.inputs[0]
    if maker is None or node.outputs[0] in graph.network.outputs:
        return
    dtype = graph.tensors[node.outputs[0]].dtype
    graph.tensors[stored] = replace(graph.tensors[stored], dtype=dtype)
    graph.quantized.add(stored)
    graph.redirect(node.outputs[0], stored)
    graph.absorb(node, maker)


def _pass_int8(graph: Fusing, node: Node) -> None:
    """Let int8 values go on through a layer that moves or selects them."""
    computed = set(_computed(graph, node.inputs))
    if computed and computed <= graph.quantized:
        graph.quantized.update(node.outputs)


def _quantized_output(graph: Fusing, node: Node) -> None:
    """Fuse a quantisation into the int8 layer that computes its input.

    A pooling or a change of shape between both computes with the int8 values (quantisation moves
    backwards through commuting layers). Where something else reads the unquantised values, the
    quantisation is a layer of its own.
    """
    maker = graph.maker.get(node.inputs[0])
    while maker is not None and graph.reader_of(maker) is not None:
        quantizable = maker.op in (*_WEIGHTED, POINTWISE, *POINTWISE_OPS, "AveragePool",
                                   "GlobalAveragePool")  # fmt: skip
        if quantizable and graph.is_quantized(maker):
            last = graph.maker[node.inputs[0]]
            if last.op in _COMMUTING:
                graph.quantized.add(last.inputs[0])
            graph.fuse(last, node, replace(last, outputs=node.outputs), graph.label(last))
            return
        if maker.op not in _COMMUTING or len(_computed(graph, maker.inputs)) != 1:
            return
        maker = graph.maker.get(maker.inputs[0])


def _pooled(graph: Fusing, node: Node) -> None:
    """Fuse an int8 convolution of an image and the max pooling behind it.

    "Convolution and Pooling", of one precision; for int8 only (issue 2518). All engines that show
    it (``ConvActPool``) are of ResNets, which begin with a window of 7 and pool windows of 3.
    """
    reader = graph.reader_of(node)
    filters = graph.shape(node.inputs[1])
    if reader is None or reader.op != "MaxPool" or filters[1:] not in _POOLED_FILTERS:
        return
    if tuple(reader.attributes["kernel_shape"]) != _POOLED_WINDOW:
        return
    if graph.is_int8(node) and (not graph.quantized or reader.inputs[0] in graph.quantized):
        joined = replace(node, name=reader.name, outputs=reader.outputs)
        graph.fuse(node, reader, joined, f"{graph.label(node)} + {graph.label(reader)}")


# Convolutions and products


def _pad(graph: Fusing, node: Node) -> None:
    """Fuse a padding with zeros into the convolution behind it.

    "Padding and Convolution/Deconvolution": if no padding is negative. Not into a pooling: engines
    keep both.
    """
    conv = graph.reader_of(node)
    rank = len(graph.shape(node.inputs[0]))
    written = node.attributes.get("pads")
    given = tuple(graph.numbers(node.inputs[1]) or () if written is None else written)
    zero = len(node.inputs) < 3 or not node.inputs[2] or graph.is_near(node.inputs[2], 0.0)
    if conv is None or conv.op not in _CONVOLUTIONS or conv.inputs[0] != node.outputs[0]:
        return
    if node.attributes.get("mode", "constant") not in ("constant", b"constant") or not zero:
        return
    before, after = given[:rank], given[rank:]
    if min(given, default=-1) < 0 or any((*before[:2], *after[:2])) or len(node.inputs) > 3:
        return
    if conv.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID", b"NOTSET", b"VALID"):
        return
    own = tuple(conv.attributes.get("pads", (0,) * (2 * (rank - 2))))
    pads = tuple(int(a) + int(b) for a, b in zip(own, (*before[2:], *after[2:]), strict=True))
    attributes = {k: v for k, v in conv.attributes.items() if k != "auto_pad"} | {"pads": pads}
    joined = replace(conv, inputs=(node.inputs[0], *conv.inputs[1:]), attributes=attributes)
    graph.fuse(node, conv, joined, f"{graph.label(node)} + {graph.label(conv)}")


def _scale(graph: Fusing, node: Node) -> None:
    """Fold a batch normalisation, or a factor or bias per channel, into the weights before it.

    "Convolution and Scale"; scales that follow each other are one as well. The name of the layer
    does not tell.
    """
    while (reader := graph.reader_of(node)) is not None:
        constant = _scale_of(graph, node, reader)
        if constant is None:
            return
        inputs = node.inputs
        if len(inputs) < 3 and reader.op in ("BatchNormalization", "Add", "Sub"):
            inputs = (*inputs, constant)
        joined = replace(node, name=reader.name, inputs=inputs, outputs=reader.outputs)
        node = graph.fuse(node, reader, joined, graph.label(node))


def _scale_of(graph: Fusing, node: Node, reader: Node) -> str | None:
    """Return the constant with which a reader scales or shifts channels, if it does that."""
    first = reader.inputs[0] == node.outputs[0]
    if reader.domain or not graph.is_weight(node.inputs[1]):
        return None
    if reader.op == "BatchNormalization":
        constant = len(reader.inputs) == 5 and all(map(graph.is_weight, reader.inputs[1:]))
        return reader.inputs[2] if first and constant else None
    if reader.op not in (("Add", "Mul", "Sub", "Div") if first else ("Add", "Mul")):
        return None
    other = reader.inputs[1 if first else 0]
    shape, image = graph.shape(other), graph.shape(node.outputs[0])
    axis = len(image) - 1 if node.op in _PRODUCTS else 1
    aligned = (1,) * (len(image) - len(shape)) + shape
    per_channel = len(aligned) == len(image) and all(
        length == 1 or index == axis for index, length in enumerate(aligned)
    )
    return other if graph.is_weight(other) and per_channel else None


def _residual(graph: Fusing, node: Node) -> None:
    """Fuse the sum, maximum or minimum of two tensors into the convolution that computes one.

    "Convolution and ElementWise Operation": shapes must be equal. Of two convolutions, that which
    comes last in the network takes it, and runs when the other operand is there (as ``Conv_155 +
    Add_160`` runs behind ``Conv_158 + Relu_159``). A convolution with an activation takes none;
    in one or three dimensions neither, since no kind of layer could say so.
    """
    if len(node.inputs) != 2 or node.inputs[0] == node.inputs[1]:
        return
    candidates = []
    for name, other in (node.inputs, node.inputs[::-1]):
        maker = graph.maker.get(name)
        fits = maker is not None and maker.op == "Conv" and not maker.domain
        if maker is None or not fits or graph.reader_of(maker) is not node:
            continue
        same = graph.shape(name) == graph.shape(other) and len(graph.shape(name)) == _IMAGE_AXES
        if same and not graph.is_weight(other):
            candidates.append((graph.position(maker), maker, other))
    if not candidates:
        return
    _, conv, other = max(candidates, key=lambda candidate: candidate[0])
    bias = conv.inputs[2] if len(conv.inputs) > 2 else ""
    joined = Node(
        node.name, CONVOLUTION, "", (*conv.inputs[:2], bias, other), node.outputs, conv.attributes
    )
    graph.fuse(conv, node, joined, f"{graph.label(conv)} + {node.op}")


def _activation(graph: Fusing, node: Node) -> None:
    """Fuse Relu or Clip behind a convolution or product, also behind its residual sum.

    "Convolution and ReLU Activation", "Convolution and Clip Activation"; a product with constant
    weights is a convolution to TensorRT 8, and its example in the documentation.
    """
    reader = graph.reader_of(node)
    if reader is not None and reader.op in _BUILT_IN and not reader.domain:
        _fuse_activation(graph, node, reader, reader.op, reader.op)


def _fuse_activation(graph: Fusing, node: Node, reader: Node, op: str, label: str) -> None:
    if node.op in _PRODUCTS and not graph.is_weight(node.inputs[1]):
        return
    fused_op = {"Conv": CONVOLUTION, "Gemm": PRODUCT, "MatMul": "FusedMatMul"}.get(node.op, node.op)
    attributes = dict(node.attributes) | ({"activation": op} if op else {})
    joined = Node(reader.name, fused_op, "", node.inputs, reader.outputs, attributes)
    graph.fuse(node, reader, joined, f"{graph.label(node)} + {label}")


def _any_activation(graph: Fusing, node: Node) -> None:
    """Fuse a pointwise layer of one tensor into the convolution before it.

    "Convolution and Generic Activation", after pointwise fusion; for fp16 and int8 since Turing,
    and of quantised convolutions only where the result is quantised as well (issue 2134). Engines
    in single precision keep both layers, and none fuses it behind layers that were merged side by
    side.
    """
    reader = graph.reader_of(node)
    if reader is None or "activation" in node.attributes or len(node.inputs) > 3:
        return
    if graph.is_quantized(node):
        behind = graph.readers(reader.outputs[0])
        fuses = bool(behind) and all(other.op == "QuantizeLinear" for other in behind)
    else:
        dtype = graph.tensors[node.inputs[0]].dtype
        fuses = graph.is_int8(node) or dtype in HALF_TYPES.values()
    if not fuses:
        return
    if reader.op == POINTWISE or reader.op in POINTWISE_OPS:
        parts = graph.parts_of(reader)
        if _computed(graph, reader.inputs) == [node.outputs[0]]:
            named = [part.op for part in parts if part.op in Activation.OPERATORS]
            last = "FastGelu" if named and _by_tanh(parts) else (named or [""])[-1]
            _fuse_activation(graph, node, reader, last, graph.label(reader))


def _by_tanh(parts: Sequence[Node]) -> bool:
    return any(part.attributes.get("approximate") in ("tanh", b"tanh") for part in parts)


def _computed(graph: Fusing, names: Iterable[str]) -> list[str]:
    """Return the tensors that are not constant, once each."""
    return list(dict.fromkeys(name for name in names if name and not graph.is_weight(name)))


def _scaled_activation(graph: Fusing, node: Node) -> None:
    """Fuse Relu or Clip behind a batch normalisation that is a layer of its own.

    "Scale and Activation".
    """
    reader = graph.reader_of(node)
    if reader is not None and reader.op in _BUILT_IN and not reader.domain:
        joined = replace(node, name=reader.name, outputs=reader.outputs)
        graph.fuse(node, reader, joined, f"{graph.label(node)} + {reader.op}")


def _average(graph: Fusing, node: Node) -> None:
    """Replace a mean over height and width by a pooling: "Reduce" of the reduction fusions."""
    rank = len(graph.shape(node.inputs[0]))
    if rank == 4 and {axis % rank for axis in graph.axes(node)} == {2, 3}:
        pool = Node(node.name, "GlobalAveragePool", "", node.inputs[:1], node.outputs, {})
        graph.labels[node.name] = graph.label(node)
        graph.replace(node, pool)


_RULES: tuple[tuple[tuple[str, ...], Callable[[Fusing, Node], None]], ...] = (
    (("ReduceMean",), _average),
    (("Pad",), _pad),
    (("Conv", "ConvTranspose", "Gemm", "BatchNormalization"), _scale),
    (_SUMS, _residual),
    (_WEIGHTED, _activation),
    (("BatchNormalization",), _scaled_activation),
)
"""Operators -> the rule of fusions that begin or end with them, in order."""


@unchanged_if_malformed
def _merge(graph: Fusing) -> None:
    """Merge convolutions of one tensor side by side: ``A + Relu || B + Relu``.

    The documentation names the aggregation of layers with the same source and similar parameters
    only. In engines, kernel, stride, padding and dilation are equal, there are no groups and no
    residual sums, and all have the same built-in activation or none; int8 convolutions stay apart.
    """
    for name in graph.read_tensors():
        alike: dict[tuple[object, ...], list[Node]] = {}
        for node in sorted(graph.readers(name), key=graph.position):
            if (key := _alike(graph, node, name)) is not None:
                alike.setdefault(key, []).append(node)
        for nodes in alike.values():
            if len(nodes) > 1:
                _merge_nodes(graph, nodes)


def _alike(graph: Fusing, node: Node, name: str) -> tuple[object, ...] | None:
    """Return what convolutions have in common that are merged."""
    attributes = node.attributes
    if node.op not in _CONVOLUTIONS or node.domain or len(node.inputs) > 3:
        return None
    if node.inputs[0] != name or graph.is_int8(node) or attributes.get("group", 1) != 1:
        return None
    filters = graph.shape(node.inputs[1])
    if len(filters) != 4 or not graph.is_weight(node.inputs[1]):
        return None
    geometry = {key: attributes.get(key) for key in _GEOMETRY} | {"kernel_shape": filters[2:]}
    return (attributes.get("activation"), *map(repr, geometry.values()))


def _merge_nodes(graph: Fusing, nodes: Sequence[Node]) -> None:
    first = nodes[0]
    filters = graph.shape(first.inputs[1])
    channels = sum(graph.shape(node.inputs[1])[0] for node in nodes)
    weights, bias = f"{first.name}/merged_weights", f"{first.name}/merged_bias"
    dtype = graph.tensors[first.inputs[1]].dtype
    graph.tensors[weights] = Tensor(weights, (channels, *filters[1:]), dtype, is_weight=True)
    graph.tensors[bias] = Tensor(bias, (channels,), dtype, is_weight=True)
    biased = any(len(node.inputs) > 2 and node.inputs[2] for node in nodes)
    inputs = (first.inputs[0], weights, *((bias,) if biased else ()))
    outputs = tuple(name for node in nodes for name in node.outputs)
    graph.labels[first.name] = " || ".join(map(graph.label, nodes))
    merged = replace(first, inputs=inputs, outputs=outputs)
    sources = tuple(own for node in nodes for own in graph.sources_of(node))
    graph.replace(first, merged)
    for node in nodes[1:]:
        graph.replace(node)
    graph.sources[first.name] = sources


# Pointwise layers


def _chain(graph: Fusing, node: Node) -> None:
    """Fuse a pointwise layer and those before it that only it reads.

    "PointWise Fusion" of Activation, ElementWise, Unary and Constant layers; an operand may be
    broadcast. There is a limit to their number, which is not documented: none here.
    """
    for name in _computed(graph, node.inputs):
        maker = graph.maker.get(name)
        if maker is None or maker.domain or maker.op not in POINTWISE_OPS | {POINTWISE}:
            continue
        if graph.is_read_once(maker):
            parts = graph.parts_of(maker, node)
            outside = [
                operand for operand in (*maker.inputs, *node.inputs) if operand not in maker.outputs
            ]
            inputs = tuple(dict.fromkeys(filter(None, outside)))
            joined = Node(node.name, POINTWISE, "", inputs, node.outputs, {})
            inner = ", ".join(_inside(graph.label(member)) for member in (maker, node))
            node = graph.fuse(maker, node, joined, f"PWN({inner})")
            graph.parts[node.name] = parts


def _inside(label: str) -> str:
    return label.removeprefix("PWN(").removesuffix(")") if label.startswith("PWN(") else label


# Shuffles and concatenations

_SHUFFLES = (*VIEW_OPS, "Transpose", SHUFFLE)


def _shuffle(graph: Fusing, node: Node) -> None:
    """Fuse a change of shape and a transposition that follow each other.

    "Shuffle and Shuffle": a layer transposes, reshapes and transposes again. Two that reshape are
    one only if no transposition lies between them.
    """
    while (reader := graph.reader_of(node)) is not None:
        if reader.op not in _SHUFFLES or reader.domain or reader.inputs[0] != node.outputs[0]:
            return
        parts = graph.parts_of(node, reader)
        moves = "".join("T" if part.op == "Transpose" else "R" for part in parts)
        if "T" in moves.strip("T"):
            return
        joined = Node(reader.name, SHUFFLE, "", node.inputs, reader.outputs, {})
        label = f"{graph.label(node)} + {graph.label(reader)}"
        node = graph.fuse(node, reader, joined, label)
        graph.parts[node.name] = parts


def is_view(graph: Fusing, node: Node) -> bool:
    """Whether a change of shape moves no values."""
    moves = (part for part in graph.parts_of(node) if part.op == "Transpose")
    return all(_keeps_order(graph, part) for part in moves)


@unchanged_if_malformed
def _keeps_order(graph: Fusing, node: Node) -> bool:
    """Whether a transposition moves only axes of length one."""
    shape = graph.shape(node.inputs[0])
    order = node.attributes.get("perm") or tuple(reversed(range(len(shape))))
    long = [axis for axis in order if shape[axis] != 1]
    return long == sorted(long)


def _concatenate(graph: Fusing, node: Node) -> None:
    """Let the inputs of a concatenation be written in place, where that is possible.

    The builder's log calls it concatenation elimination. A copy remains of what was computed side
    by side (``inception_3a/1x1 copy``), of a resized or reshaped tensor, of an input of the
    network, and of what a pooling, a resize or another concatenation reads as well.
    """
    network, once = graph.network, set[str]()
    copied = []
    for name in _computed(graph, node.inputs):
        maker = graph.maker.get(name)
        others = [reader for reader in graph.readers(name) if reader is not node]
        fixed = maker is None or maker.op in _NOT_MOVABLE or len(maker.outputs) > 1
        read = any(reader.op in _NOT_STRIDED or reader.op == "Concat" for reader in others)
        if fixed or read or name in network.outputs or name in once:
            copied.append(name)
        once.add(name)
    copied += [name for name in node.inputs if name and graph.is_weight(name)]
    graph.copied[node.name] = tuple(copied)
