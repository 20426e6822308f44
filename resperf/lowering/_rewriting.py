"""A network's nodes while they are rewritten: which node produces and reads which tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

from resperf.lowering._base import MALFORMED
from resperf.network import Network, Node, Rewritten, Tensor

Step = TypeVar("Step", bound=Callable[..., Any])

_TOLERANCE = 1e-3


def unchanged_if_malformed(step: Step) -> Step:
    """Skip a step where a node's attributes or shapes do not fit its operator.

    The error is reported later, when a layer is made of the node. A step must read everything
    before it changes anything.
    """

    @wraps(step)
    def attempt(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(*MALFORMED):
            return step(*args, **kwargs)
        return None

    return attempt  # type: ignore[return-value]


@dataclass
class Rewriting:
    """Nodes in order, and which node produces and reads which tensor.

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
        self._index_nodes()

    def _index_nodes(self) -> None:
        """Index producers and readers of all tensors."""
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

    def _position(self, node: Node) -> int:
        return next(place for place, each in enumerate(self.nodes) if each is node)

    def _replace(self, node: Node, *new: Node) -> None:
        """Replace a node by others, or by none."""
        place = self._position(node)
        self.nodes[place : place + 1] = new
        self._leave(node)
        for each in new:
            self._enter(each)

    def _sources_of(self, node: Node) -> tuple[str, ...]:
        """Names of the original nodes that a node replaces."""
        return self.sources.get(node.name, (node.name,))

    def _is_read_once(self, node: Node) -> bool:
        """Whether exactly one node reads a node's output, which is no output of the network."""
        name = node.outputs[0]
        return len(self.readers.get(name, ())) == 1 and name not in self.network.outputs

    def _sole_reader(self, node: Node, op: str) -> Node | None:
        """Return the only reader of a node, if it has this operator."""
        if not self._is_read_once(node):
            return None
        reader = self.readers[node.outputs[0]][0]
        return reader if reader.op == op else None

    def _is_constant(self, name: str, value: float) -> bool:
        """Whether a tensor is a constant of one element, equal to the value within a tolerance."""
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
        """Values of an integer constant."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.value is None or tensor.value.dtype.kind not in "iu":
            return None
        return tuple(int(each) for each in tensor.value.ravel())

    def _present_nodes(self) -> Iterator[Node]:
        """Yield the nodes that existed at the start and were not replaced meanwhile."""
        for node in list(self.nodes):
            if all(self.maker.get(name) is node for name in node.outputs if name):
                yield node

    def rewritten(self) -> Rewritten:
        """Return the rewritten network."""
        network = replace(self.network, nodes=tuple(self.nodes), tensors=self.tensors)
        return Rewritten(network, self.sources)


def transpose_perm(node: Node, tensors: Mapping[str, Tensor]) -> tuple[int, ...] | None:
    """Return the permutation of a Transpose; None for any other or malformed node."""
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
