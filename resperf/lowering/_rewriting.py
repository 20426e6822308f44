"""A network's nodes while they are rewritten: who makes and reads which tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from resperf.network import Network, Node, Tensor

RewritingT = TypeVar("RewritingT", bound="Rewriting")

_TOLERANCE = 1e-3


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


@dataclass
class Rewriting:
    """Nodes in order, and who makes and reads which tensor.

    Parameters
    ----------
    network : Network
    sources : dict of str to tuple of str
        As in `Rewritten`.
    """

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

    def _is_weight(self, name: str) -> bool:
        tensor = self.tensors.get(name)
        return tensor is not None and tensor.is_weight

    def _numbers(self, name: str) -> Sequence[int] | None:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.value is None:
            return None
        return tuple(int(each) for each in tensor.value.ravel())

    def handed_to(self, rewriting: type[RewritingT]) -> RewritingT:
        """Let another class go on."""
        found = self.rewritten()
        return rewriting(found.network, dict(found.sources))

    def rewritten(self) -> Rewritten:
        """Return the network as it is by now."""
        network = replace(self.network, nodes=tuple(self.nodes), tensors=self.tensors)
        return Rewritten(network, self.sources)
