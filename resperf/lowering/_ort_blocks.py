"""Blocked layouts, placed on ONNX Runtime's optimised graph.

ONNX Runtime itself places blocks of this machine's size only, and copies the weights of
convolutions for that. So it is asked for its graph without blocks, and the layouts of any machine
are placed here as its NchwcTransformer does; tests compare both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace

from resperf.errors import LayerError, Message, UnsupportedError
from resperf.layers import (
    BLOCKED_LAYOUTS,
    FUNCTION_OF,
    Conv,
    Layer,
    Move,
    Operand,
    Operator,
    Pool,
    Reorder,
    Resize,
)
from resperf.lowering._base import LoweredNode, Role
from resperf.lowering._ort_attention import MAKERS, attention_parts
from resperf.lowering._read import (
    NCHWC,
    REMOVED_OPS,
    VIEW_OPS,
    as_binary_nodes,
    is_empty,
    layer_from_node,
    reorder,
)
from resperf.network import Network, Node, Tensor

CHANNEL_ALIGNMENT = 4
"""ReorderInput takes channels in fours; a convolution with another count stays in NCHW."""
BLOCKED_ACTIVATIONS = frozenset({"Relu", "Tanh", "Sigmoid", "HardSigmoid"})
"""Activations that are fused into a blocked convolution after its residual."""
PLAIN_ACTIVATIONS = BLOCKED_ACTIVATIONS | {"LeakyRelu", "Clip"}
"""Activations that are fused into a convolution in NCHW after its residual."""
RESIDUAL = 3
"""Input of a convolution that is a residual."""
BLOCKED_FUNCTIONS = BLOCKED_ACTIVATIONS | {"Gelu", "QuickGelu"}
"""Activations that run on blocked tensors."""
CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Permutations from NCHW to NHWC and back."""
RESIZES = frozenset({"Resize", "Upsample"})
BLOCKED_SUMS = frozenset({"Add", "Sum"})
BLOCKED_BINARIES = BLOCKED_SUMS | {"Mul"}


def lower_layer(layer: Layer, block: int) -> Layer:
    """Give one layer the layout that ONNX Runtime chooses where blocks hold `block` channels."""
    blocked = f"nchwc{block}"
    if isinstance(layer, Conv):
        taps, outputs = (n // layer.groups for n in (layer.channels_in, layer.channels_out))
        fours = layer.channels_in % CHANNEL_ALIGNMENT == 0
        if layer.groups == 1:
            fits = layer.channels_in < block or fours
        elif taps == outputs == 1:
            fits = fours
        else:
            fits = block > 0 and taps % block == 0 and outputs % block == 0
        return layer.replace(layout=blocked if block and fits else "nchw")
    if isinstance(layer, Pool):
        # A global pooling keeps the layout of its input.
        stays = layer.whole_image and layer.layout == "nchw"
        is_blocked = not stays and block and layer.channels_in % block == 0
        return layer.replace(layout=blocked if is_blocked else "nchw")
    if isinstance(layer, Reorder) and block:
        if layer.layout in ("nchw", "nhwc"):
            return layer.replace(layout_out=blocked)
        plain = layer.layout_out if layer.layout_out == "nhwc" else "nchw"
        return layer.replace(layout=blocked, layout_out=plain)
    if isinstance(layer, Resize) and block and layer.layout in BLOCKED_LAYOUTS:
        return layer.replace(layout=blocked)
    return layer


def added_in_place(
    reads: Sequence[Sequence[Hashable]],
    residuals: Sequence[Hashable | None],
    lasting: Set[Hashable],
) -> list[bool]:
    """Whether nodes write over the residual that they add: nothing else reads it then or later.

    Such a convolution takes as long as without the addition, and is a layer without residual.
    Measured alone, the residual is an input of the graph, which the kernel copies before it adds:
    that is a layer with one.

    Parameters
    ----------
    reads : sequence of sequence of Hashable (nodes,)
        Tensors that each node reads, in their order.
    residuals : sequence of Hashable or None (nodes,)
        The one of them that it adds, if any.
    lasting : set of Hashable
        What may not be written over: inputs, constants and outputs of the network.
    """
    last = {name: index for index, names in enumerate(reads) for name in names}
    return [
        residual is not None
        and residual not in lasting
        and last[residual] == index
        and list(names).count(residual) == 1
        for index, (names, residual) in enumerate(zip(reads, residuals, strict=True))
    ]


def lowered_alone(
    network: Network, node: Node, read: Callable[[Network, Node], Layer]
) -> LoweredNode:
    """Lower a node that is fused with no other; `read` makes its layer."""
    layer: Layer | None = None
    why_view, result = "", network.tensors.get(node.outputs[0]) if node.op in VIEW_OPS else None
    if result is not None and node.outputs[0] in network.outputs:
        # Elsewhere ONNX Runtime reuses the input's memory: outputs get their own.
        operand = Operand(result.shape, result.dtype)
        with suppress(LayerError):
            layer = Move.copied(Operator(node.op, {}, (operand,), (result.shape,)))
    if layer is None and node.op in VIEW_OPS | REMOVED_OPS:
        why_view = "changes only the shape"
    elif node.op in ("Shape", "Size") and not node.domain:
        why_view = "returns a shape"
    elif layer is None and is_empty(network, node):
        why_view = "has no output values"
    if why_view:
        return LoweredNode(node.name, node.op, None, "view", why_view)
    try:
        layer = layer or read(network, node)
    except UnsupportedError as error:
        return LoweredNode(node.name, node.op, None, "unknown", Message.of(error))
    return LoweredNode(node.name, node.op, layer, "execution")


@dataclass(eq=False)
class _Step:
    """A node of the lowered graph while others may still be fused into it."""

    node: Node
    layer: Layer | None
    role: Role
    reason: str
    sources: list[str]
    result: str
    """Tensor that it computes: that of the last node fused into it."""
    is_blocked: bool = False
    reads: tuple[str, ...] = field(default_factory=tuple)
    """Tensors in NCHW."""
    reads_blocked: tuple[str, ...] = field(default_factory=tuple)
    residual: str = ""
    """Tensor that a convolution adds."""


@dataclass
class Placing:
    """One pass over the nodes of ONNX Runtime's optimised graph, in order.

    Attributes
    ----------
    network : Network
        The graph, optimised without blocked layouts.
    block : int
        Channels per block; 0 places none.
    sources : mapping of str to tuple of str
        Name of a node -> those of the original nodes that it replaces.
    """

    network: Network
    block: int
    sources: Mapping[str, tuple[str, ...]]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    steps: list[_Step] = field(default_factory=list)
    maker: dict[str, _Step] = field(default_factory=dict)
    reordered: dict[tuple[str, str], _Step] = field(default_factory=dict)

    def run(self) -> list[LoweredNode]:
        """Lower every node, then reorder blocked tensors where plain ones are read."""
        # Parts of operators add tensors.
        self.tensors = dict(self.network.tensors)
        self.network = replace(self.network, tensors=self.tensors)
        self.uses.update(name for node in self.network.nodes for name in node.inputs if name)
        self.uses.update(self.network.outputs)
        for node in self.network.nodes:
            self._lower(node)
        read: list[tuple[str, Role]] = [(x, "execution") for step in self.steps for x in step.reads]
        read += [(name, "postprocess") for name in self.network.outputs]
        for name, role in read:
            maker = self.maker.get(name)
            if maker is not None and maker.is_blocked and (name, "out") not in self.reordered:
                self._reorder(name, "out", role, self.steps.index(maker) + 1)
        # Convolutions lose the residuals that they write over.
        reads = [
            [*(("", n) for n in s.reads), *(("blocks", n) for n in s.reads_blocked)]
            for s in self.steps
        ]
        residuals = [
            ("" if s.residual in s.reads else "blocks", s.residual)
            if s.residual in self.maker
            else None
            for s in self.steps
        ]
        in_place = added_in_place(reads, residuals, {("", name) for name in self.network.outputs})
        lowered = []
        for step, writes_over in zip(self.steps, in_place, strict=True):
            layer, op = step.layer, step.node.op
            if isinstance(layer, Conv):
                layer = layer.replace(residual=False) if writes_over else layer
                # In blocks, all convolutions have one name.
                op = "Conv" if step.is_blocked else op
            sources = tuple(step.sources)
            lowered.append(LoweredNode(step.node.name, op, layer, step.role, step.reason, sources))
        return lowered

    def _lower(self, node: Node) -> None:
        """Fuse a node into an earlier step, or make it a step of its own."""
        if self.block and (step := self._fuse_activation(node) or self._fuse_residual(node)):
            step.sources += self.sources[node.name]
            step.result = node.outputs[0]
            self.maker[step.result] = step
            return
        parts: tuple[Node, ...] = ()
        if (node.domain, node.op) in MAKERS:
            parts, between = attention_parts(node, self.tensors)
            self.tensors.update(between)
        elif node.op == "HardSwish":  # It has no kernel: x * HardSigmoid(x), of the same shape.
            gate = replace(node, op="HardSigmoid")
            parts = gate, replace(node, op="Mul", inputs=(node.inputs[0], node.outputs[0]))
        first, *others = parts or as_binary_nodes(self.network, node)
        # Further parts take the name of the first, which has the sources.
        sources = self.sources[node.name]
        name = next(iter(sources), node.name)
        # All parts of a sum are blocked, or none.
        blocked = self._is_blocked(node, None) if node.op == first.op and others else None
        self._make(first, sources, blocked)
        for part in others:
            self._make(replace(part, name=name), (), blocked)

    def _only_reader(self, name: str) -> _Step | None:
        """Return the step that computes `name`, if nothing else reads it."""
        step = self.maker.get(name)
        alone = step is not None and step.result == name and self.uses[name] == 1
        return step if alone else None

    def _fuse_activation(self, node: Node) -> _Step | None:
        """Fuse an activation into the convolution before it, and return that step.

        ONNX Runtime did so already where there is no residual, but for HardSwish in blocks.
        """
        if node.op not in PLAIN_ACTIVATIONS and node.op != "HardSwish":
            return None
        step = self._only_reader(node.inputs[0])
        if step is None or not isinstance(step.layer, Conv) or step.layer.activation != "none":
            return None
        if node.op == "HardSwish":
            fuses = step.is_blocked and node.outputs[0] not in self.network.outputs
        elif step.is_blocked:
            late = step.layer.residual or step.node.op not in Conv.OPERATORS
            fuses = late and node.op in BLOCKED_ACTIVATIONS
        else:
            bounds = [name for name in node.inputs[1:] if name]
            fuses = step.layer.residual and (not bounds or self._are_fixed(bounds))
        if not fuses:
            return None
        step.layer = step.layer.replace(activation=FUNCTION_OF[node.op])
        return step

    def _fuse_residual(self, node: Node) -> _Step | None:
        """Fuse the addition of a tensor of the same shape into a convolution; return its step."""
        if node.op not in BLOCKED_SUMS:
            return None
        shapes = {getattr(self.network.tensors.get(name), "shape", None) for name in node.inputs}
        if len(node.inputs) != 2 or len(shapes) != 1 or node.inputs[0] == node.inputs[1]:
            return None
        makers = [self.maker.get(name) for name in node.inputs]
        blocked = [maker is not None and maker.is_blocked for maker in makers]
        for name in node.inputs:
            step = self._only_reader(name)
            if step is None or not isinstance(step.layer, Conv):
                continue
            if step.is_blocked:
                alike = all(blocked)
            else:
                # ONNX Runtime fuses a sum in NCHW only into a convolution that adds a bias.
                alike = node.op == "Add" and step.layer.bias and not any(blocked)
            if step.layer.residual or step.layer.activation != "none" or not alike:
                continue
            other = next(n for n in node.inputs if n != name)
            if step.is_blocked:
                step.reads_blocked += (other,)
            else:
                step.reads += (other,)
            step.residual = other
            maker = self.maker.get(other)
            if maker is not None and self.steps.index(maker) > self.steps.index(step):
                # It runs after the one whose result it now adds.
                self.steps.remove(step)
                self.steps.insert(self.steps.index(maker) + 1, step)
            step.layer = step.layer.replace(residual=True)
            return step
        return None

    def _make(self, node: Node, sources: Sequence[str], blocked: bool | None) -> None:
        """Make a step of a node, in the layout that ONNX Runtime would choose.

        Parameters
        ----------
        node : Node
        sources : sequence of str
            Names of the original nodes that it replaces.
        blocked : bool or None
            Whether its output is blocked, where that was decided for the node it is a part of.
        """
        if node.op == "Transpose" and node.attributes.get("perm") == CHANNELS_LAST:
            maker = self.maker.get(node.inputs[0])
            if maker is not None and maker.is_blocked and self._is_image(node.inputs[0]):
                self._to_channels_last(node, sources)
                return
        alone = lowered_alone(self.network, node, self._layer)
        layer = alone.layer
        step = _Step(node, layer, alone.role, alone.reason, [*sources], node.outputs[0])
        step.is_blocked = self._is_blocked(node, layer) if blocked is None else blocked
        # A blocked convolution of few channels, a network's first, reads its image in NCHW.
        reads_plain = (
            isinstance(layer, Conv) and layer.groups == 1 and layer.channels_in < self.block
        )
        if step.is_blocked and layer is not None and not reads_plain:
            self._to_blocked(node.inputs[0])
        if node.op in Conv.OPERATORS:
            step.residual = node.inputs[RESIDUAL] if len(node.inputs) > RESIDUAL else ""
        names = tuple(name for name in node.inputs if name)
        if not step.is_blocked or reads_plain:
            step.reads = names
        else:
            step.reads_blocked = names
        self.steps.append(step)
        self.maker.update({name: step for name in node.outputs if name})

    def _layer(self, network: Network, node: Node) -> Layer:
        first = node.inputs[0] if node.inputs else ""
        maker = self.maker.get(first)
        if node.op in Conv.OPERATORS:
            # Constant weights and biases are blocked before. A bias in half precision that several
            # nodes read is cast in every run.
            fixed = self._are_fixed([name for name in node.inputs[1:RESIDUAL] if name])
            return lower_layer(layer_from_node(network, node), self.block if fixed else 0)
        if node.op in Pool.OPERATORS:
            block = self.block if maker is None or maker.is_blocked else 1
            return lower_layer(layer_from_node(network, node, block), self.block)
        if maker is not None and maker.is_blocked and self._is_image(first):
            batch, channels, height, width = network.tensors[first].shape
            # What multiplies each channel by a constant, or normalises it, runs as a convolution.
            scales = node.op == "BatchNormalization" and self._are_fixed(node.inputs[1:])
            if node.op == "Mul" and len(node.inputs) == 2 and self._are_fixed(node.inputs[1:]):
                factors = network.tensors[node.inputs[1]].shape
                scales = len(factors) in (3, 4) and factors[-3:] == (channels, 1, 1)
            if scales:
                return Conv(
                    batch=batch, channels_in=channels, height=height, width=width,
                    kernel_height=1, kernel_width=1, channels_out=channels, groups=channels,
                    bias=node.op == "BatchNormalization", layout=f"nchwc{self.block}",
                )  # fmt: skip
        return layer_from_node(network, node, self.block if self._is_blocked(node, None) else 1)

    def _are_fixed(self, names: Sequence[str]) -> bool:
        """Whether all tensors of these names are constant, and there are any."""
        tensors = [self.network.tensors.get(name) for name in names]
        return bool(names) and all(tensor is not None and tensor.is_weight for tensor in tensors)

    def _is_blocked(self, node: Node, layer: Layer | None) -> bool:
        """Whether a step's output is blocked."""
        if layer is not None and "layout" in layer.specs:
            return str(layer.fields()["layout"]).startswith("nchwc")
        read = node.inputs[:1] if node.op in RESIZES else node.inputs
        makers = [self.maker.get(name) for name in read]
        if not makers or not all(maker is not None and maker.is_blocked for maker in makers):
            return False
        if not all(self._is_image(name) for name in (*read, *node.outputs[:1])):
            return False
        if node.op in BLOCKED_FUNCTIONS:
            return True
        if node.op in RESIZES:
            return self._has_blocked_resize(node)
        shapes = [self.network.tensors[name].shape for name in read]
        if node.op in BLOCKED_BINARIES:
            return len(set(shapes)) == 1
        if node.op == "Concat":
            return node.attributes.get("axis") == 1 and not any(s[1] % self.block for s in shapes)
        return False

    def _is_image(self, name: str) -> bool:
        """Whether a tensor has four axes; no other is ever blocked."""
        tensor = self.network.tensors.get(name)
        return tensor is not None and len(tensor.shape) == 4

    def _has_blocked_resize(self, node: Node) -> bool:
        """Whether ONNX Runtime has a blocked kernel for this Resize."""
        shapes = [self.network.tensors[name].shape for name in (node.inputs[0], node.outputs[0])]
        mode = str(node.attributes.get("mode", "nearest"))
        places = str(node.attributes.get("coordinate_transformation_mode", "half_pixel"))
        if mode == "nearest":
            floors = node.attributes.get("nearest_mode") == "floor"
            fits = node.op == "Upsample" or (places == "asymmetric" and floors)
        else:
            fits = mode == "linear" and places in ("half_pixel", "asymmetric", "align_corners")
        return fits and not any(b % a for a, b in zip(*shapes, strict=True))

    def _to_channels_last(self, node: Node, sources: Sequence[str]) -> None:
        """Fuse a transposition to NHWC into the re-layout from blocks."""
        layer = reorder(self.network.tensors[node.inputs[0]].shape, f"nchwc{self.block}", "nhwc")
        reordering = replace(node, op="ReorderOutput", domain=NCHWC)
        step = _Step(reordering, layer, "execution", "", [*sources], node.outputs[0])
        step.reads_blocked = node.inputs
        self.steps.append(step)
        self.maker[step.result] = step

    def _to_blocked(self, name: str) -> None:
        """Reorder a plain tensor into blocks, once for all its readers."""
        maker = self.maker.get(name)
        if (maker is not None and maker.is_blocked) or (name, "in") in self.reordered:
            return
        role: Role = "preprocess" if name in self.network.inputs else "execution"
        self._reorder(name, "in", role, len(self.steps))
        transposes = maker is not None and maker.node.op == "Transpose"
        if maker is None or not transposes or maker.node.attributes.get("perm") != CHANNELS_FIRST:
            return
        if self._only_reader(name) is maker and self._is_image(name):
            # The re-layout reads the NHWC image, so that the transposition is gone.
            self.steps.remove(maker)
            step = self.reordered[name, "in"]
            step.layer = step.layer and step.layer.replace(layout="nhwc")
            step.sources += maker.sources

    def _reorder(self, name: str, direction: str, role: Role, position: int) -> None:
        if not self._is_image(name):
            return
        layouts = ("nchw", f"nchwc{self.block}")[:: 1 if direction == "in" else -1]
        layer = reorder(self.network.tensors[name].shape, *layouts)
        op = {"in": "ReorderInput", "out": "ReorderOutput"}[direction]
        node = Node(f"{op}_{name}", op, NCHWC, (name,), (name,), {})
        step = _Step(node, layer, role, "", [], name)
        step.reads, step.reads_blocked = ((name,), ()) if direction == "in" else ((), (name,))
        self.reordered[name, direction] = step
        self.steps.insert(position, step)
