"""TensorFlow's lowering on a CPU as stored rules. Images have the layout NHWC.

Its graph optimiser fuses a convolution or a matrix product with its bias, an added tensor and an
activation; BatchNormalization after a convolution is folded into its weights beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from resperf.errors import LayerError, UnsupportedError
from resperf.layers import Activation, Conv, Dense, Layer, Pool, function_of
from resperf.lowering._base import (
    LoweredNetwork,
    LoweredNode,
    answer,
    is_computed_once,
    qualified_by_domain,
)
from resperf.lowering._read import (
    REMOVED_OPS,
    VIEW_OPS,
    layer_from_node,
    layer_of,
    tensor_of,
)
from resperf.lowering.fusions import FusionRule
from resperf.network import Network, Node
from resperf.platform import Platform
from resperf.settings import Setting

LAYOUT = "nhwc"
OWN_DOMAINS = frozenset({""})
FUSION_RULES = (
    *(FusionRule("conv", function) for function in ("relu", "clip", "elu", "leaky_relu")),
    *(FusionRule("conv", function, fused=False) for function in ("sigmoid", "softplus")),
    *(FusionRule("dense", function) for function in ("relu", "clip", "elu", "leaky_relu")),
    FusionRule("dense", "softplus", fused=False),
)


def lower_layers(layers: Sequence[Layer], _setting: Setting) -> list[Layer]:
    """Lower layers one by one: the same for every CPU and version."""
    return [lower_layer(layer) for layer in layers]


def lower_layer(layer: Layer) -> Layer:
    """Give an image the layout that TensorFlow uses on a CPU.

    A ceil mode that changes no output is dropped, since TensorFlow has no such setting.
    """
    if isinstance(layer, Pool):
        plain = layer.replace(layout=LAYOUT, ceil_mode=False)
        return plain if plain.output_shape == layer.output_shape else layer.replace(layout=LAYOUT)
    return layer.replace(layout=LAYOUT) if isinstance(layer, Conv) else layer


def lower(
    network: Network, _setting: Setting, _platform: Platform, *, method: str = "auto"
) -> LoweredNetwork:
    """Lower a network by rules, which hold for every CPU and version.

    Parameters
    ----------
    network : Network
    method : {"auto", "rules"}

    Raises
    ------
    UnsupportedError
        If another method is requested: TensorFlow does not write its optimised graph.
    """
    if method not in ("auto", "rules"):
        raise UnsupportedError(
            f"lowering method {method!r} does not exist for TensorFlow, which does not write its "
            "optimised graph; use rules"
        )
    named = replace(
        network, nodes=tuple(qualified_by_domain(each, OWN_DOMAINS) for each in network.nodes)
    )
    present = without_removed(named)
    links = Links.of(present)
    nodes: list[LoweredNode] = []
    absorbed: set[str] = set()
    for node in present.nodes:
        if node.name not in absorbed and not is_computed_once(present, node):
            lowered = _lower_node(present, links, node)
            absorbed.update(lowered.sources)
            nodes.append(lowered)
    return answer(network, nodes, "rules")


def without_removed(network: Network) -> Network:
    """Remove nodes that pass their input through: readers then read that input."""
    stands_for: dict[str, str] = {}
    nodes = []
    for node in network.nodes:
        inputs = tuple(stands_for.get(name, name) for name in node.inputs)
        if node.op in REMOVED_OPS:
            stands_for[node.outputs[0]] = inputs[0]
        else:
            nodes.append(replace(node, inputs=inputs))
    outputs = tuple(stands_for.get(name, name) for name in network.outputs)
    return replace(network, nodes=tuple(nodes), outputs=outputs)


@dataclass(frozen=True)
class Links:
    """Which nodes read which tensor, and at which position it is produced.

    Attributes
    ----------
    readers : mapping of str to list of Node
        By tensor name.
    made_at : mapping of str to int
        Position of the node that produces a tensor; graph inputs are absent.
    outputs : frozenset of str
        Outputs of the network.
    """

    readers: Mapping[str, list[Node]]
    made_at: Mapping[str, int]
    outputs: frozenset[str]

    @classmethod
    def of(cls, network: Network) -> Links:
        """Collect the links of a network."""
        readers: dict[str, list[Node]] = {}
        made_at: dict[str, int] = {}
        for position, node in enumerate(network.nodes):
            for name in filter(None, node.inputs):
                readers.setdefault(name, []).append(node)
            for name in filter(None, node.outputs):
                made_at[name] = position
        return cls(readers, made_at, frozenset(network.outputs))

    def only_reader(self, name: str) -> Node | None:
        """Return the only reader of a tensor, if there is exactly one."""
        found = self.readers.get(name, [])
        return found[0] if len(found) == 1 and name not in self.outputs else None


def foldable_norm(network: Network, links: Links, conv: Node) -> Node | None:
    """Return the BatchNormalization that is the only reader of a convolution, if any."""
    follower = links.only_reader(conv.outputs[0])
    if follower is None or follower.op != "BatchNormalization":
        return None
    constant = all(
        name in network.tensors and network.tensors[name].is_weight for name in follower.inputs[1:5]
    )
    return follower if constant and follower.inputs[0] == conv.outputs[0] else None


@dataclass
class _Fusion:
    """A node and the followers that are fused into it, in order."""

    network: Network
    links: Links
    nodes: list[Node] = field(default_factory=list)

    @property
    def output(self) -> str:
        return self.nodes[-1].outputs[0]

    def take(self, follower: Node | None) -> bool:
        """Fuse a follower, if there is one."""
        if follower is None:
            return False
        self.nodes.append(follower)
        return True

    def take_norm(self) -> bool:
        return self.take(foldable_norm(self.network, self.links, self.nodes[-1]))

    def take_bias(self, channel_axis: int) -> bool:
        """Fuse an addition of one constant per channel."""
        follower, other = self._addition()
        tensors = self.network.tensors
        if follower is None or other not in tensors or not tensors[other].is_weight:
            return False
        image = tensors[self.output].shape if self.output in tensors else ()
        shape = tensors[other].shape
        channels = image[channel_axis] if len(image) >= abs(channel_axis) else -1
        aligned = (1,) * (len(image) - len(shape)) + shape
        fits = len(aligned) == len(image) and aligned[channel_axis] == channels
        rest = aligned[:channel_axis] + (aligned[channel_axis + 1 :] if channel_axis != -1 else ())
        return fits and set(rest) <= {1} and self.take(follower)

    def take_residual(self) -> bool:
        """Fuse the addition of another tensor that was computed before."""
        follower, other = self._addition()
        tensors = self.network.tensors
        if follower is None or other not in tensors or tensors[other].is_weight:
            return False
        same = self.output in tensors and tensors[other].shape == tensors[self.output].shape
        earlier = self.links.made_at.get(other, -1) < self.links.made_at[self.output]
        return same and earlier and other != self.output and self.take(follower)

    def take_activation(self) -> str:
        follower = self.links.only_reader(self.output)
        if follower is None or follower.op not in Activation.OPERATORS:
            return "none"
        self.take(follower)
        return function_of(follower.op, follower.attributes)

    def _addition(self) -> tuple[Node | None, str]:
        follower = self.links.only_reader(self.output)
        if follower is None or follower.op not in ("Add", "Sum") or len(follower.inputs) != 2:
            return None, ""
        first, second = follower.inputs
        return follower, second if first == self.output else first

    def lowered(self, op: str, layer: Layer) -> LoweredNode:
        sources = tuple(node.name for node in self.nodes)
        fused = f"_Fused{op}" if len(sources) > 1 else op
        return LoweredNode(sources[0], fused, lower_layer(layer), "execution", sources=sources)


def _lower_node(network: Network, links: Links, node: Node) -> LoweredNode:
    if node.op in VIEW_OPS:
        return LoweredNode(node.name, "Reshape", None, "view", sources=(node.name,))
    rule = _RULES.get(node.op)
    if rule is None:
        return _unknown(node, f"no layer kind for {node.op}")
    try:
        return rule(network, links, node)
    except (UnsupportedError, LayerError) as error:
        return _unknown(node, str(error))


def _unknown(node: Node, reason: str) -> LoweredNode:
    return LoweredNode(node.name, node.op, None, "unknown", reason, (node.name,))


def _conv(network: Network, links: Links, node: Node) -> LoweredNode:
    plain = layer_of(Conv, network, node)
    fusion = _Fusion(network, links, [node])
    bias = plain.bias
    bias |= fusion.take_norm()
    bias |= not bias and fusion.take_bias(channel_axis=1)
    residual = fusion.take_residual()
    activation = fusion.take_activation()
    layer = plain.replace(bias=bias, residual=residual, activation=activation)
    return fusion.lowered("Conv2D", layer)


def _dense(network: Network, links: Links, node: Node) -> LoweredNode:
    plain = layer_of(Dense, network, node)
    fusion = _Fusion(network, links, [node])
    bias = plain.bias or fusion.take_bias(channel_axis=-1)
    layer = plain.replace(bias=bias, activation=fusion.take_activation())
    return fusion.lowered("MatMul", layer)


def _pool(network: Network, links: Links, node: Node) -> LoweredNode:
    layer = layer_of(Pool, network, node)
    local, whole = {"max": ("MaxPool", "Max"), "average": ("AvgPool", "Mean")}[layer.mode]
    return _Fusion(network, links, [node]).lowered(whole if layer.whole_image else local, layer)


def _activation(network: Network, links: Links, node: Node) -> LoweredNode:
    layer = layer_from_node(network, node)
    return _Fusion(network, links, [node]).lowered(node.op, layer)


def reduced_axes(network: Network, node: Node) -> tuple[int, ...] | None:
    """Return a reduction's axes from its attribute or input; None for all axes."""
    axes = node.attributes.get("axes")
    if axes is None and len(node.inputs) > 1 and node.inputs[1]:
        value = tensor_of(network, node, 1).value
        if value is None:
            raise UnsupportedError(f"{node.op} {node.name!r}: its axes are not constant")
        axes = value.tolist()
    return None if axes is None else tuple(int(axis) for axis in axes)


def _mean(network: Network, links: Links, node: Node) -> LoweredNode:
    """Read a mean over height and width, which is a global pooling."""
    image = tensor_of(network, node, 0)
    axes = reduced_axes(network, node)
    rank = len(image.shape)
    if rank != 4 or axes is None or {axis % rank for axis in axes} != {2, 3}:
        raise UnsupportedError(f"no layer kind for ReduceMean over axes {axes}")
    batch, channels, height, width = image.shape
    layer = Pool(
        batch=batch, channels_in=channels, height=height, width=width, kernel_height=height,
        kernel_width=width, mode="average", whole_image=True, layout=LAYOUT, dtype=image.dtype,
    )  # fmt: skip
    return _Fusion(network, links, [node]).lowered("Mean", layer)


_RULES: Mapping[str, Callable[[Network, Links, Node], LoweredNode]] = {
    "Conv": _conv,
    "ReduceMean": _mean,
    **dict.fromkeys(Activation.OPERATORS, _activation),
    **dict.fromkeys(Dense.OPERATORS, _dense),
    **dict.fromkeys(Pool.OPERATORS, _pool),
}
