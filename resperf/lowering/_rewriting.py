"""A network's nodes while they are rewritten: who makes and reads which tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

from resperf.lowering._base import ODD
from resperf.network import Network, Node, Tensor

Step = TypeVar("Step", bound=Callable[..., Any])

_TOLERANCE = 1e-3


def left_as_it_is(step: Step) -> Step:
    """Let a step do nothing where a node's attributes or shapes do not fit its operator.

    Whoever makes a layer of such a node says what is wrong with it. Steps change nothing before
    they know everything.
    """

    @wraps(step)
    def trying(*words: Any, **more: Any) -> Any:
        with contextlib.suppress(*ODD):
            return step(*words, **more)
        return None

    return trying  # type: ignore[return-value]


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
        self._enter_all()

    def _enter_all(self) -> None:
        """Find who makes and reads what, from the nodes alone."""
        self.maker: dict[str, Node] = {}
        self.readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            self._enter(node)

    def _enter(self, node: Node) -> None:
        self.maker.update({name: node for name in node.outputs if name})
        for name in dict.fromkeys(node.inputs):
            self.readers.setdefault(name, []).append(node)

    def _leave(self, node: Node) -> None:
        for name in node.outputs:
            if self.maker.get(name) is node:
                del self.maker[name]
        for name in dict.fromkeys(node.inputs):
            self.readers[name] = [each for each in self.readers[name] if each is not node]

    def _place(self, node: Node) -> int:
        return next(place for place, each in enumerate(self.nodes) if each is node)

    def _swap(self, node: Node, *new: Node) -> None:
        """Put other nodes, or none, where one stands."""
        place = self._place(node)
        self.nodes[place : place + 1] = new
        self._leave(node)
        for each in new:
            self._enter(each)

    def _own(self, node: Node) -> tuple[str, ...]:
        """Names of the original nodes that a node stands for."""
        return self.sources.get(node.name, (node.name,))

    def _is_read_once(self, node: Node) -> bool:
        """Whether one node reads what a node makes, and nobody outside does."""
        name = node.outputs[0]
        return len(self.readers.get(name, ())) == 1 and name not in self.network.outputs

    def _sole_reader(self, node: Node, op: str) -> Node | None:
        """Return the only node that reads this one, if its operator is that one."""
        if not self._is_read_once(node):
            return None
        reader = self.readers[node.outputs[0]][0]
        return reader if reader.op == op else None

    def _other(self, node: Node, name: str) -> str:
        """Return the other input of a node with two."""
        others = [each for each in node.inputs if each != name]
        return others[0] if len(node.inputs) == 2 and len(others) == 1 else ""

    def _is_constant(self, name: str, value: float) -> bool:
        """Whether a tensor is a constant of one element, about that one."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.value is None or tensor.value.size != 1:
            return False
        if tensor.value.dtype.kind not in "fiu":
            return False
        return abs(float(tensor.value.reshape(()).item()) - value) < _TOLERANCE

    def _is_weight(self, name: str) -> bool:
        tensor = self.tensors.get(name)
        return tensor is not None and tensor.is_weight

    def _numbers(self, name: str) -> tuple[int, ...] | None:
        """Whole numbers of a constant."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.value is None or tensor.value.dtype.kind not in "iu":
            return None
        return tuple(int(each) for each in tensor.value.ravel())

    def _each(self) -> Iterator[Node]:
        """Give the nodes that there were, as far as they are still there."""
        for node in list(self.nodes):
            if all(self.maker.get(name) is node for name in node.outputs if name):
                yield node

    def rewritten(self) -> Rewritten:
        """Return the network as it is by now."""
        network = replace(self.network, nodes=tuple(self.nodes), tensors=self.tensors)
        return Rewritten(network, self.sources)


def turning_order(node: Node, tensors: Mapping[str, Tensor]) -> tuple[int, ...] | None:
    """Return the order of axes that a Transpose gives; None for any other or odd node."""
    if node.op != "Transpose" or node.domain or len(node.inputs) != 1:
        return None
    tensor = tensors.get(node.inputs[0])
    order = node.attributes.get("perm")
    if order is None and tensor is not None:
        order = tuple(reversed(range(len(tensor.shape))))
    if not isinstance(order, Sequence) or isinstance(order, str):
        return None
    order = tuple(order)
    if sorted(map(repr, order)) != sorted(map(repr, range(len(order)))):
        return None
    return order if tensor is None or len(tensor.shape) == len(order) else None
