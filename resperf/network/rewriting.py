"""A network's nodes while they are replaced: which node makes and which ones read a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from resperf.network._base import Network, Node, Rewritten, Tensor

_TOLERANCE = 1e-3


class Rewriting:
    """Nodes in order, by the tensors that they make and read.

    Replacing a node takes the same time in a network of any size.

    Parameters
    ----------
    network : Network
    sources : mapping of str to tuple of str
        As in `Rewritten`.
    """

    def __init__(
        self, network: Network, sources: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self.network, self.sources = network, dict(sources or {})
        self.tensors: dict[str, Tensor] = dict(network.tensors)
        self.opset = network.opsets.get("", 1)
        # By identity, since a new node's name may be that of another one.
        self._slots: list[list[Node]] = [[node] for node in network.nodes]
        self._positions: dict[int, int] = {}
        self.maker: dict[str, Node] = {}
        self._readers: dict[str, dict[int, Node]] = {}
        for position, node in enumerate(network.nodes):
            self._enter(node, position)

    def _enter(self, node: Node, position: int) -> None:
        self._positions[id(node)] = position
        self.maker.update({name: node for name in node.outputs if name})
        for name in filter(None, node.inputs):
            self._readers.setdefault(name, {})[id(node)] = node

    def walk(self) -> Iterator[Node]:
        """Yield the nodes in order; of several that replace the last one yielded, the others."""
        for slot in self._slots:
            yield from slot

    def position(self, node: Node) -> int:
        """Position of a node, or of the one that it replaced, in the order of the start."""
        return self._positions[id(node)]

    def readers(self, name: str) -> list[Node]:
        """Return the nodes that read a tensor."""
        return list(self._readers.get(name, {}).values())

    def replace(self, node: Node, *new: Node) -> None:
        """Replace a node by others, or by none."""
        position = self.position(node)
        slot = self._slots[position]
        index = next(index for index, other in enumerate(slot) if other is node)
        slot[index : index + 1] = new
        del self._positions[id(node)]
        for name in node.outputs:
            if self.maker.get(name) is node:
                del self.maker[name]
        for name in filter(None, node.inputs):
            self._readers[name].pop(id(node), None)
        for replacement in new:
            self._enter(replacement, position)

    def join(self, parts: Iterable[Node], last: Node, joined: Node) -> bool:
        """Replace nodes by one in the place of the last; not if others read what they compute.

        Returns
        -------
        bool
            Whether they were replaced.
        """
        inside = {id(part): part for part in (*parts, last)}
        inner = [part for part in inside.values() if part is not last]
        for name in (name for part in inner for name in part.outputs):
            if (
                name in self.network.outputs
                or not self._readers.get(name, {}).keys() <= inside.keys()
            ):
                return False
        self.sources[joined.name] = tuple(
            own
            for part in sorted(inside.values(), key=self.position)
            for own in self.sources.get(part.name, (part.name,))
        )
        for part in inner:
            self.replace(part)
        self.replace(last, joined)
        return True

    def only_reader(self, name: str) -> Node | None:
        """Return the node that alone reads a tensor, once; None for an output of the network."""
        readers = self.readers(name)
        is_read_once = len(readers) == 1 and readers[0].inputs.count(name) == 1
        return readers[0] if is_read_once and name not in self.network.outputs else None

    def is_near(self, name: str, *values: float) -> bool:
        """Whether a tensor is a constant number, equal to one of some within a tolerance."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.value is None or tensor.value.size != 1:
            return False
        if tensor.value.dtype.kind not in "fiu":
            return False
        number = float(tensor.value.item())
        return any(math.isclose(number, value, rel_tol=_TOLERANCE) for value in values)

    def is_weight(self, name: str) -> bool:
        """Whether a tensor is a constant of any size."""
        tensor = self.tensors.get(name)
        return tensor is not None and tensor.is_weight

    def is_number(self, name: str) -> bool:
        """Whether a tensor is a constant of one element."""
        return self.is_weight(name) and set(self.shape(name)) <= {1}

    def is_vector(self, name: str) -> bool:
        """Whether a tensor is a constant of one axis."""
        return self.is_weight(name) and len(self.shape(name)) == 1

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; empty if it is unknown."""
        tensor = self.tensors.get(name)
        return () if tensor is None else tensor.shape

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Values of an integer constant."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.value is None or tensor.value.dtype.kind not in "iu":
            return None
        return tuple(int(number) for number in tensor.value.ravel())

    def axes(self, node: Node) -> tuple[int, ...]:
        """Axes of a reduction, from its attribute or its input; empty if it names none."""
        axes = node.attributes.get("axes")
        if axes is None and len(node.inputs) > 1:
            axes = self.numbers(node.inputs[1])
        return tuple(axes or ())

    def is_last_mean(self, node: Node) -> bool:
        """Whether a node is a mean over the last axis, which it keeps."""
        if node.op != "ReduceMean" or node.domain or not node.inputs:
            return False
        rank = len(self.shape(node.inputs[0]))
        keeps = bool(node.attributes.get("keepdims", 1))
        return keeps and rank > 0 and self.axes(node) in ((-1,), (rank - 1,))

    def rewritten(self) -> Rewritten:
        """Return the rewritten network."""
        network = replace(self.network, nodes=tuple(self.walk()), tensors=self.tensors)
        return Rewritten(network, self.sources)
