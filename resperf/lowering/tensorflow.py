"""TensorFlow's lowering as rules. Images have the layout NHWC unless the setting says NCHW.

Its graph optimiser fuses a convolution or a matrix product with its bias, an added tensor and an
activation; BatchNormalization after a convolution is folded into its weights beforehand. Every
other operator runs as in the file. Where an operator of images reads a tensor in the file's order
of axes, or the other way round, a transposition is added, which is a layer too (`Storage`).

XLA also fuses element-wise operators and reductions with each other and into products. Which ones
is not stored here: its layers are those without XLA, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from resperf.errors import LayerError, Message, UnsupportedError
from resperf.layers import (
    FUNCTION_OF,
    Activation,
    Conv,
    Dense,
    Elementwise,
    Layer,
    Operand,
    Operator,
    Pool,
    function_of,
    layer_of_operator,
)
from resperf.layers.reduce import Reduce
from resperf.layers.resize import Resize
from resperf.lowering._base import (
    LoweredNetwork,
    LoweredNode,
    answer,
    in_precision,
    in_type,
    qualified_by_domain,
    with_fields,
)
from resperf.lowering._read import (
    REMOVED_OPS,
    VIEW_OPS,
    about_node,
    as_binary_nodes,
    is_empty,
    layer_from_node,
    layer_of,
    tensor_of,
)
from resperf.network import MALFORMED, Network, Node, Tensor
from resperf.network.rewriting import Rewriting
from resperf.platform import Platform
from resperf.settings import HALF_TYPES, Setting

LAYOUT = "nhwc"
OWN_DOMAINS = frozenset({"", "com.microsoft"})
STORED_AXES, FILE_AXES = (0, 2, 3, 1), (0, 3, 1, 2)
"""Axis in the file (NCHW) of each axis of an image in NHWC, and back."""
XLA_NOTE = (
    "XLA fuses operators across these layers, which are those without XLA: what it fuses is not "
    "known, so that their sum is no prediction of the whole network"
)
_INT8 = "TensorFlow computes with 8 bits in TensorFlow Lite only"
NO_OPERATOR: Mapping[str, str] = {
    "reorder": "it has a single image layout",
    "grid_sample": "it has no operator that samples at given places",
    "resize_nd": "it resizes images only",
    **dict.fromkeys(
        ("quantized_conv", "quantized_dense", "quantized_elementwise", "quantized_matmul",
         "quantized_pool", "quantized_concat", "quantized_softmax"), _INT8,
    ),
}  # fmt: skip
"""Kinds that TensorFlow cannot run, and why."""
IMAGE_OPS = frozenset({
    "Conv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "ConvTranspose",
    "Resize", "Upsample", "LRN", "DepthToSpace", "SpaceToDepth", "InstanceNormalization",
})  # fmt: skip
"""Operators that read and write images."""
EITHER_OPS = frozenset({
    *FUNCTION_OF, *Elementwise.OPERATORS, "Concat", "Softmax", "LogSoftmax", "Pad", "Slice",
    "Split", "Where", "Cast", "BatchNormalization", "QuantizeLinear", "DequantizeLinear",
    *(op for op in Reduce.OPERATORS if op.startswith("Reduce")),
})  # fmt: skip
"""Operators that run in the layout of what they read; all others in the file's order of axes."""


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Lower layers one by one: the same for every machine and version."""
    layout, dtype = setting.layout or LAYOUT, HALF_TYPES.get(setting.precision, "")
    return [lower_layer(in_type(layer, dtype), layout) for layer in layers]


def lower_layer(layer: Layer, layout: str = LAYOUT) -> Layer:
    """Give an image its layout; kinds that do not have it stay as they are.

    A ceil mode that changes no output is dropped, since TensorFlow has no such setting.
    """
    if isinstance(layer, Pool):
        plain = layer.replace(layout=layout, ceil_mode=False)
        return plain if plain.output_shape == layer.output_shape else layer.replace(layout=layout)
    return with_fields(layer, {"layout": layout}) if isinstance(layer, Conv | Resize) else layer


def lower(network: Network, setting: Setting, _platform: Platform) -> LoweredNetwork:
    """Lower a network by rules, which hold for every machine and version.

    TensorFlow does not write its optimised graph.
    """
    named = replace(
        network, nodes=tuple(qualified_by_domain(node, OWN_DOMAINS) for node in network.nodes)
    )
    present = without_removed(in_precision(named, setting.precision))
    rules = _Rules(present, Rewriting(present), Storage.of(present, setting.layout or LAYOUT))
    nodes: list[LoweredNode] = []
    absorbed: set[str] = set()
    for node in present.nodes:
        outputs = [present.tensors.get(name) for name in node.outputs if name]
        is_folded = all(tensor is not None and tensor.is_weight for tensor in outputs)
        if node.name not in absorbed and not is_folded:
            lowered = [*rules.transpositions(node), *rules.layers(node)]
            absorbed.update(source for part in lowered for source in part.sources)
            nodes += lowered
    notes = (XLA_NOTE,) if setting.compiled == "xla" else ()
    return answer(network, nodes, "rules", notes)


@dataclass(frozen=True)
class Storage:
    """Which tensors of rank 4 are stored as NHWC images; all others have the file's order of axes.

    Attributes
    ----------
    layout : str
        Of images: ``"nhwc"`` or ``"nchw"``, which is the file's order.
    images : frozenset of str
        Names of the tensors in NHWC.
    """

    layout: str
    images: frozenset[str]

    @classmethod
    def of(cls, network: Network, layout: str = LAYOUT) -> Storage:
        """Choose for every tensor, so that operators of images need the fewest transpositions."""
        if layout != "nhwc":
            return cls(layout, frozenset())

        def computed(names: Sequence[str]) -> list[str]:
            return [tensor.name for tensor in _computed_images(network, names)]

        wanted: set[str] = set()
        for node in reversed(network.nodes):
            if node.op in IMAGE_OPS:
                wanted.update(computed(node.inputs[:1]))
            elif node.op in EITHER_OPS and wanted.intersection(node.outputs):
                wanted.update(computed(node.inputs))
        images = wanted.intersection(network.inputs)
        for node in network.nodes:
            outputs = computed(node.outputs)
            if node.op in IMAGE_OPS or (
                node.op in EITHER_OPS and images.intersection(computed(node.inputs))
            ):
                images.update(outputs)
            elif node.op in VIEW_OPS or node.op == "Transpose":
                images.update(wanted.intersection(outputs))
        return cls(layout, frozenset(images))

    def reads_images(self, network: Network, node: Node) -> bool:
        """Whether a node runs on NHWC images."""
        if self.layout != "nhwc" or not node.inputs:
            return False
        if node.op in IMAGE_OPS:
            first = network.tensors.get(node.inputs[0])
            return first is not None and len(first.shape) == 4
        return node.op in EITHER_OPS and not self.images.isdisjoint(node.inputs)

    def converted(self, network: Network, node: Node) -> list[str]:
        """Return the inputs of a node that are transposed for it; a change of shape has its own."""
        if node.op in VIEW_OPS or node.op == "Transpose":
            return []
        as_images = self.reads_images(network, node)
        return [
            tensor.name
            for tensor in _computed_images(network, node.inputs)
            if (tensor.name in self.images) != as_images and moves(tensor.shape)
        ]


def _computed_images(network: Network, names: Sequence[str]) -> list[Tensor]:
    """Return the tensors of four axes that are not constant."""
    sized = (network.tensors[name] for name in names if name in network.tensors)
    return [tensor for tensor in sized if len(tensor.shape) == 4 and not tensor.is_weight]


def moves(shape: Sequence[int]) -> bool:
    """Whether the values of an image change places between NCHW and NHWC."""
    return shape[1] > 1 and shape[2] * shape[3] > 1


def nhwc(shape: Sequence[int]) -> tuple[int, ...]:
    """Convert an NCHW shape; other ranks are not changed."""
    return tuple(shape[axis] for axis in STORED_AXES) if len(shape) == 4 else tuple(shape)


def without_removed(network: Network, *, training: bool = False) -> Network:
    """Remove nodes that pass their input through, as Dropout does but in training."""
    removed = REMOVED_OPS - {"Dropout"} if training else REMOVED_OPS
    stands_for: dict[str, str] = {}
    nodes = []
    for node in network.nodes:
        inputs = tuple(stands_for.get(name, name) for name in node.inputs)
        if node.op in removed:
            stands_for[node.outputs[0]] = inputs[0]
        else:
            nodes.append(replace(node, inputs=inputs))
    outputs = tuple(stands_for.get(name, name) for name in network.outputs)
    return replace(network, nodes=tuple(nodes), outputs=outputs)


def foldable_norm(graph: Rewriting, conv: Node) -> Node | None:
    """Return the BatchNormalization that is the only reader of a convolution, if any."""
    follower = graph.only_reader(conv.outputs[0])
    if follower is None or follower.op != "BatchNormalization":
        return None
    constant = all(map(graph.is_weight, follower.inputs[1:5]))
    return follower if constant and follower.inputs[0] == conv.outputs[0] else None


@dataclass
class _Fusion:
    """A node and the followers that are fused into it, in order."""

    graph: Rewriting
    nodes: list[Node] = field(default_factory=list)

    @property
    def output(self) -> str:
        return self.nodes[-1].outputs[0]

    def fuse(self, follower: Node | None) -> bool:
        """Fuse a follower, if there is one."""
        if follower is None:
            return False
        self.nodes.append(follower)
        return True

    def fuse_bias(self, channel_axis: int) -> bool:
        """Fuse an addition of one constant per channel."""
        follower, other = self._addition()
        if follower is None or not self.graph.is_weight(other):
            return False
        image, shape = self.graph.shape(self.output), self.graph.shape(other)
        channels = image[channel_axis] if len(image) >= abs(channel_axis) else -1
        aligned = (1,) * (len(image) - len(shape)) + shape
        fits = len(aligned) == len(image) and aligned[channel_axis] == channels
        rest = aligned[:channel_axis] + (aligned[channel_axis + 1 :] if channel_axis != -1 else ())
        return fits and set(rest) <= {1} and self.fuse(follower)

    def fuse_residual(self) -> bool:
        """Fuse the addition of another tensor that was computed before."""
        follower, other = self._addition()
        graph, tensors = self.graph, self.graph.tensors
        if follower is None or other not in tensors or tensors[other].is_weight:
            return False
        same = self.output in tensors and tensors[other].shape == tensors[self.output].shape
        maker = graph.maker.get(other)
        earlier = maker is None or graph.position(maker) < graph.position(self.nodes[-1])
        return same and earlier and other != self.output and self.fuse(follower)

    def fuse_activation(self) -> str:
        follower = self.graph.only_reader(self.output)
        if follower is None or follower.op not in Activation.OPERATORS:
            return "none"
        self.fuse(follower)
        return function_of(follower.op, follower.attributes)

    def _addition(self) -> tuple[Node | None, str]:
        follower = self.graph.only_reader(self.output)
        if follower is None or follower.op not in ("Add", "Sum") or len(follower.inputs) != 2:
            return None, ""
        first, second = follower.inputs
        return follower, second if first == self.output else first

    def lowered(self, op: str, layer: Layer) -> LoweredNode:
        sources = tuple(node.name for node in self.nodes)
        fused = f"_Fused{op}" if len(sources) > 1 else op
        return LoweredNode(sources[0], fused, layer, "execution", sources=sources)


@dataclass
class _Rules:
    """The lowering of single nodes of one network."""

    network: Network
    graph: Rewriting
    storage: Storage
    transposed: set[tuple[str, bool]] = field(default_factory=set)

    def transpositions(self, node: Node) -> list[LoweredNode]:
        """Return the transpositions of a node's inputs that no earlier node needed."""
        transpositions = []
        for name in self.storage.converted(self.network, node):
            to_image = name not in self.storage.images
            if (name, to_image) in self.transposed:
                continue
            self.transposed.add((name, to_image))
            transpositions.append(self._transposition(f"{name} as stored", name, to_image))
        return transpositions

    def _transposition(self, label: str, name: str, to_image: bool) -> LoweredNode:
        tensor = self.network.tensors[name]
        shape, perm = (tensor.shape, STORED_AXES) if to_image else (nhwc(tensor.shape), FILE_AXES)
        return LoweredNode(
            label, "Transpose", _transpose_layer(shape, perm, tensor.dtype), "execution"
        )

    def layers(self, node: Node) -> list[LoweredNode]:
        """Return the layers of a node and of those fused into it."""
        if node.op in VIEW_OPS:
            return self._view(node)
        if is_empty(self.network, node):
            return [LoweredNode(node.name, node.op, None, "view", sources=(node.name,))]
        rule = _RULES.get(node.op)
        if rule is not None:
            try:
                return [rule(self, node)]
            except (UnsupportedError, LayerError) as error:
                reason = Message.of(error)
        try:
            first, *others = as_binary_nodes(self.network, node)
            lowered = [self._plain(first)]
            # Only the first part has the node as its source.
            return [*lowered, *(replace(self._plain(other), sources=()) for other in others)]
        except (UnsupportedError, LayerError) as error:
            return [_unknown(node, reason if rule is not None else Message.of(error))]
        except MALFORMED as error:
            return [_unknown(node, f"its attributes are malformed ({error!r})")]

    def _plain(self, node: Node) -> LoweredNode:
        """Read an operator that nothing is fused with."""
        if node.op == "Transpose" and (moved := self._moved(node)) is not None:
            return moved
        layer = layer_from_node(self.network, node)
        if layer.kind in NO_OPERATOR:
            raise UnsupportedError(f"no {layer.kind} in TensorFlow: {NO_OPERATOR[layer.kind]}")
        return _Fusion(self.graph, [node]).lowered(node.op, lower_layer(layer, self.storage.layout))

    def _moved(self, node: Node) -> LoweredNode | None:
        """Read a transposition of or to an image: in memory it may move nothing."""
        perm = stored_perm(self.network, self.storage, node)
        tensor = tensor_of(self.network, node, 0)
        if perm == tuple(range(len(tensor.shape))):
            return LoweredNode(node.name, "Identity", None, "view", sources=(node.name,))
        shape = nhwc(tensor.shape) if tensor.name in self.storage.images else tensor.shape
        layer = _transpose_layer(shape, perm, tensor.dtype)
        return LoweredNode(node.name, "Transpose", layer, "execution", sources=(node.name,))

    def _view(self, node: Node) -> list[LoweredNode]:
        """Read a change of shape, which transposes images unless it flattens them."""
        view = LoweredNode(node.name, "Reshape", None, "view", sources=(node.name,))
        before, after = node.inputs[0], node.outputs[0]
        first, last = view_transposes(self.network, self.storage, node)
        return [
            *([self._transposition(f"{before} for {node.name}", before, False)] if first else []),
            view,
            *([self._transposition(f"{after} as stored", after, True)] if last else []),
        ]


def _transpose_layer(shape: tuple[int, ...], perm: tuple[int, ...], dtype: str) -> Layer:
    operands = (Operand(shape, dtype),)
    result = tuple(shape[axis] for axis in perm)
    return layer_of_operator(Operator("Transpose", {"perm": perm}, operands, (result,)))


def stored_perm(network: Network, storage: Storage, node: Node) -> tuple[int, ...]:
    """Return the order of axes of a ``Transpose`` as its input and output are stored."""
    rank = len(tensor_of(network, node, 0).shape)
    perm = [int(axis) for axis in node.attributes.get("perm") or range(rank)[::-1]]
    if node.outputs[0] in storage.images:
        perm = [perm[axis] for axis in STORED_AXES]
    if node.inputs[0] in storage.images:
        perm = [STORED_AXES.index(axis) for axis in perm]
    return tuple(perm)


def view_transposes(network: Network, storage: Storage, node: Node) -> tuple[bool, bool]:
    """Say whether a change of shape transposes an image before and after it.

    Images that are flattened keep their values in NHWC order, as in a TensorFlow network. A single
    pixel has the same order in memory in both layouts.
    """
    before = network.tensors.get(node.inputs[0])
    after = network.tensors.get(node.outputs[0])
    if before is None or after is None:
        return False, False
    flattens = len(after.shape) == 2 and after.shape[0] == before.shape[0]
    return (
        before.name in storage.images and not flattens and before.shape[2] * before.shape[3] > 1,
        after.name in storage.images and after.shape[2] * after.shape[3] > 1,
    )


def _unknown(node: Node, reason: str) -> LoweredNode:
    return LoweredNode(node.name, node.op, None, "unknown", reason, (node.name,))


def _conv(rules: _Rules, node: Node) -> LoweredNode:
    plain = layer_of(Conv, rules.network, node)
    fusion = _Fusion(rules.graph, [node])
    bias = plain.bias
    bias |= fusion.fuse(foldable_norm(rules.graph, node))
    bias |= not bias and fusion.fuse_bias(channel_axis=1)
    residual = fusion.fuse_residual()
    activation = fusion.fuse_activation()
    layer = plain.replace(bias=bias, residual=residual, activation=activation)
    return fusion.lowered("Conv2D", lower_layer(layer, rules.storage.layout))


def _dense(rules: _Rules, node: Node) -> LoweredNode:
    plain = layer_of(Dense, rules.network, node)
    fusion = _Fusion(rules.graph, [node])
    bias = plain.bias or fusion.fuse_bias(channel_axis=-1)
    return fusion.lowered("MatMul", plain.replace(bias=bias, activation=fusion.fuse_activation()))


def _pool(rules: _Rules, node: Node) -> LoweredNode:
    layer = lower_layer(layer_of(Pool, rules.network, node), rules.storage.layout)
    mode = str(layer.fields()["mode"])
    local, whole = {"max": ("MaxPool", "Max"), "average": ("AvgPool", "Mean")}[mode]
    op = whole if layer.fields()["whole_image"] else local
    return _Fusion(rules.graph, [node]).lowered(op, layer)


def reduced_axes(network: Network, node: Node) -> tuple[int, ...] | None:
    """Return a reduction's axes from its attribute or input; None for all axes."""
    axes = node.attributes.get("axes")
    if axes is None and len(node.inputs) > 1 and node.inputs[1]:
        value = tensor_of(network, node, 1).value
        if value is None:
            raise UnsupportedError(about_node(node, Message("its axes are not constant")))
        axes = value.tolist()
    return None if axes is None else tuple(int(axis) for axis in axes)


def _mean(rules: _Rules, node: Node) -> LoweredNode:
    """Read a mean over height and width, which is a global pooling."""
    network = rules.network
    image = tensor_of(network, node, 0)
    axes = reduced_axes(network, node)
    rank = len(image.shape)
    if rank != 4 or axes is None or {axis % rank for axis in axes} != {2, 3}:
        raise UnsupportedError(f"ReduceMean over axes {axes} is no pooling")
    batch, channels, height, width = image.shape
    layer = Pool(
        batch=batch, channels_in=channels, height=height, width=width, kernel_height=height,
        kernel_width=width, mode="average", whole_image=True, layout=rules.storage.layout,
        dtype=image.dtype,
    )  # fmt: skip
    return _Fusion(rules.graph, [node]).lowered("Mean", layer)


_RULES: Mapping[str, Callable[[_Rules, Node], LoweredNode]] = {
    "Conv": _conv,
    "ReduceMean": _mean,
    **dict.fromkeys(Dense.OPERATORS, _dense),
    **dict.fromkeys(Pool.OPERATORS, _pool),
}
