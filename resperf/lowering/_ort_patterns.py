"""Groups of ONNX operators that ONNX Runtime turns into one before it looks at single ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from resperf.network import Network, Node, Tensor

ROOT_2 = 1.4142135
_TOLERANCE = 1e-3
HEADS_FIRST = (2, 0, 3, 1, 4)
"""How exporters turn (batch, tokens, 3, heads, size) before they take the three apart."""


@dataclass(frozen=True)
class Rewritten:
    """A network whose groups are single nodes.

    Attributes
    ----------
    network : Network
    sources : mapping of str to tuple of str
        Name of a new node -> names of the nodes that it stands for; those that only help it have
        none.
    """

    network: Network
    sources: Mapping[str, tuple[str, ...]]


def with_patterns(network: Network) -> Rewritten:
    """Rewrite what PyTorch's exporter writes in parts: gelu, heads, and pieces of one tensor."""
    graph = _Graph(network)
    graph.join_gelu()
    graph.split_before_turning()
    graph.join_pieces()
    return Rewritten(
        replace(network, nodes=tuple(graph.nodes), tensors=graph.tensors), graph.sources
    )


@dataclass
class _Graph:
    """Nodes in order, and who makes and reads which tensor."""

    network: Network
    nodes: list[Node] = field(init=False)
    tensors: dict[str, Tensor] = field(init=False)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes, self.tensors = list(self.network.nodes), dict(self.network.tensors)
        self._index()

    def _index(self) -> None:
        self.maker = {name: node for node in self.nodes for name in node.outputs if name}
        self.readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)

    def _constant(self, name: str) -> float | None:
        """Value of a constant of one element."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.value is None or tensor.value.size != 1:
            return None
        return float(tensor.value.reshape(()).item())

    def _is_constant(self, name: str, value: float) -> bool:
        found = self._constant(name)
        return found is not None and abs(found - value) < _TOLERANCE

    def _sole_reader(self, node: Node, op: str) -> Node | None:
        """Return the only node that reads this one, if its operator is that one."""
        name = node.outputs[0]
        readers = self.readers.get(name, [])
        if len(readers) != 1 or name in self.network.outputs or readers[0].op != op:
            return None
        return readers[0]

    def _other(self, node: Node, name: str) -> str:
        """Return the other input of a node with two."""
        others = [each for each in node.inputs if each != name]
        return others[0] if len(node.inputs) == 2 and len(others) == 1 else ""

    def join_gelu(self) -> None:
        """Turn x / sqrt(2), its error function, + 1, times x, times a half into one operator."""
        gone: set[str] = set()
        made: dict[str, Node] = {}
        for erf in self.nodes:
            found = self._gelu(erf) if erf.op == "Erf" and erf.inputs else None
            if found is None:
                continue
            x, parts = found
            last = parts[-1]
            name = f"{last.name}/Gelu"
            made[last.name] = Node(name, "Gelu", "com.microsoft", (x,), last.outputs, {})
            self.sources[name] = tuple(part.name for part in parts)
            gone |= {part.name for part in parts[:-1]}
        if made:
            self.nodes = [made.get(n.name, n) for n in self.nodes if n.name not in gone]
            self._index()

    def _gelu(self, erf: Node) -> tuple[str, list[Node]] | None:
        divided = self.maker.get(erf.inputs[0])
        if divided is None or divided.op != "Div" or len(divided.inputs) != 2:
            return None
        if self._sole_reader(divided, "Erf") is not erf:
            return None
        x = divided.inputs[0]
        added = self._sole_reader(erf, "Add")
        if added is None or not self._is_constant(divided.inputs[1], ROOT_2):
            return None
        if not self._is_constant(self._other(added, erf.outputs[0]), 1.0):
            return None
        product = self._sole_reader(added, "Mul")
        if product is None:
            return None
        other = self._other(product, added.outputs[0])
        parts = [divided, erf, added, product]
        halved = self._sole_reader(product, "Mul")
        if other == x and halved is not None:
            fits = self._is_constant(self._other(halved, product.outputs[0]), 0.5)
            return (x, [*parts, halved]) if fits else None
        if self._is_constant(other, 0.5) and halved is not None:
            fits = self._other(halved, product.outputs[0]) == x
            return (x, [*parts, halved]) if fits else None
        half = self.maker.get(other)
        if half is None or half.op != "Mul" or self._sole_reader(half, "Mul") is not product:
            return None
        fits = self._is_constant(self._other(half, x), 0.5)
        return (x, [divided, erf, added, half, product]) if fits else None

    def split_before_turning(self) -> None:
        """Take queries, keys and values apart before their axes change order, not after.

        ONNX Runtime moves a transposition of (batch, tokens, 3, heads, size) behind the split of
        its three; that of the keys then merges with their own.
        """
        for turned in list(self.nodes):
            split = self._sole_reader(turned, "Split") if turned.op == "Transpose" else None
            if split is None or tuple(turned.attributes.get("perm", ())) != HEADS_FIRST:
                continue
            image = self.tensors.get(turned.inputs[0])
            views = [self.readers.get(name, []) for name in split.outputs]
            if image is None or int(split.attributes.get("axis", 0)) != 0:
                continue
            if any(len(each) != 1 or each[0].op != "Squeeze" for each in views):
                continue
            self._split_tokens(turned, split, [each[0] for each in views], image)

    def _split_tokens(
        self, turned: Node, split: Node, views: Sequence[Node], image: Tensor
    ) -> None:
        batch, tokens, _, heads, size = image.shape
        made: dict[str, list[Node]] = {turned.name: [], split.name: []}
        parts = [f"{name}/tokens" for name in split.outputs]
        early = Node(
            f"{split.name}/tokens", "Split", "", turned.inputs[:1], tuple(parts),
            {"axis": 2, "split": (image.shape[2] // len(parts),) * len(parts)},
        )  # fmt: skip
        self.sources[early.name] = (turned.name, split.name)
        made[split.name] = [early]
        for part, view in zip(parts, views, strict=True):
            result, order = view.outputs[0], (0, 2, 1, 3)
            own = self._sole_reader(view, "Transpose")
            names = [view.name]
            if own is not None and tuple(own.attributes.get("perm", ())) == (0, 1, 3, 2):
                result, order = own.outputs[0], (0, 2, 3, 1)
                names, made[own.name] = [view.name, own.name], []
            flat = f"{part}/flat"
            self.tensors[part] = Tensor(part, (batch, tokens, 1, heads, size), image.dtype)
            self.tensors[flat] = Tensor(flat, (batch, tokens, heads, size), image.dtype)
            late = Node(f"{view.name}/heads", "Transpose", "", (flat,), (result,), {"perm": order})
            squeeze = Node(f"{view.name}/flat", "Squeeze", "", (part,), (flat,), {})
            self.sources |= {squeeze.name: (), late.name: tuple(names)}
            made[view.name] = [squeeze, late]
        self.nodes = [new for node in self.nodes for new in made.get(node.name, [node])]
        self._index()

    def join_pieces(self) -> None:
        """Turn slices and gatherings that take a tensor apart along an axis into one split."""
        for name in list(self.readers):
            pieces = self._pieces(name)
            if pieces is None:
                continue
            axis, ordered = pieces
            place = {node.name: index for index, node in enumerate(self.nodes)}
            first = min((node for node, _, _ in ordered), key=lambda node: place[node.name])
            whole, split_name = self.tensors[name], f"{first.name}/Split"
            outputs = []
            views: dict[str, Node] = {}
            for node, start, end in ordered:
                result = node.outputs[0]
                if node.op == "Gather":
                    part = f"{result}/part"
                    shape = (*whole.shape[:axis], end - start, *whole.shape[axis + 1 :])
                    self.tensors[part] = Tensor(part, shape, whole.dtype)
                    view = Node(f"{node.name}/Squeeze", "Squeeze", "", (part,), (result,), {})
                    views[node.name] = view
                    self.sources[view.name] = ()
                    outputs.append(part)
                else:
                    outputs.append(result)
            lengths = tuple(end - start for _, start, end in ordered)
            split = Node(
                split_name, "Split", "", (name,), tuple(outputs), {"axis": axis, "split": lengths}
            )
            self.sources[split_name] = tuple(node.name for node, _, _ in ordered)
            gone = {node.name for node, _, _ in ordered}
            nodes: list[Node] = []
            for node in self.nodes:
                nodes += [split] if node.name == first.name else []
                if node.name not in gone:
                    nodes.append(node)
                elif node.name in views:
                    nodes.append(views[node.name])
            self.nodes = nodes
        self._index()

    def _pieces(self, name: str) -> tuple[int, list[tuple[Node, int, int]]] | None:
        """Return the axis and the readers that part a tensor along it, from its start to its end.

        Each with the first index that it takes and the one behind its last.
        """
        whole = self.tensors.get(name)
        readers = [node for node in self.readers[name] if node.op in ("Gather", "Slice")]
        readers = [node for node in readers if node.inputs[0] == name]
        if whole is None or whole.is_weight or len(readers) < 2:
            return None
        found = [self._piece(node, whole) for node in readers]
        axes = {each[0] for each in found if each is not None}
        if None in found or len(axes) != 1:
            return None
        ordered = sorted(
            ((node, each[1], each[2]) for node, each in zip(readers, found, strict=True) if each),
            key=lambda piece: piece[1],
        )
        axis, bounds = axes.pop(), [start for _, start, _ in ordered]
        ends = [end for _, _, end in ordered]
        if [*bounds, whole.shape[axis]] != [0, *ends]:
            return None
        return axis, ordered

    def _piece(self, node: Node, whole: Tensor) -> tuple[int, int, int] | None:
        """Return (axis, start, end) of what a node takes, where it is a constant piece of one."""
        rank = len(whole.shape)
        if node.op == "Gather":
            tensor = self.tensors.get(node.inputs[1]) if len(node.inputs) > 1 else None
            index = self._constant(node.inputs[1]) if tensor is not None else None
            axis = int(node.attributes.get("axis", 0))
            if index is None or tensor is None or tensor.shape or not -rank <= axis < rank:
                return None
            start = int(index) % whole.shape[axis % rank]
            return axis % rank, start, start + 1
        if len(node.inputs) < 4:
            return None
        numbers = [self._numbers(each) for each in node.inputs[1:5]]
        if any(found is None or len(found) != 1 for found in numbers):
            return None
        (start,), (end,), (axis,), *step = (found for found in numbers if found is not None)
        if (step and step[0] != (1,)) or not -rank <= axis < rank:
            return None
        length = whole.shape[axis % rank]
        start, end = (min(each + length if each < 0 else each, length) for each in (start, end))
        return (axis % rank, start, end) if 0 <= start < end else None

    def _numbers(self, name: str) -> Sequence[int] | None:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.value is None:
            return None
        return tuple(int(each) for each in tensor.value.ravel())
