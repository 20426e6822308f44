"""What lowering returns: the layers that a framework really runs for a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from resperf.errors import LayerError, UnsupportedError
from resperf.grouping import grouped
from resperf.layers import OPERATOR_DOMAINS, Layer
from resperf.layers._base import FieldValue
from resperf.network import Network, Node, Tensor
from resperf.network.protos import data_type_of
from resperf.settings import HALF_TYPES

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""Operators that run subgraphs."""
SINGLE = "float32"
Role = Literal["execution", "preprocess", "postprocess", "view", "unknown"]


@dataclass(frozen=True)
class LoweredNode:
    """One kernel that the framework runs.

    Attributes
    ----------
    name : str
        Name in the lowered graph.
    op : str
        What the framework calls it.
    layer : Layer or None
        The layer to measure or predict; None for ``view`` and ``unknown``.
    role : str
        ``execution``; ``preprocess`` or ``postprocess`` for a re-layout of a network's input or
        output; ``view`` for a node that changes only a shape; ``unknown`` where no layer kind fits.
    reason : str
        Why there is no layer, a `Message` if that names nodes; empty where there is one.
    sources : tuple of str
        Names of the ONNX nodes that were fused into this one, or removed next to it.
    """

    name: str
    op: str
    layer: Layer | None
    role: Role
    reason: str = ""
    sources: tuple[str, ...] = ()


_ENGINE_SHARE = 0.4
"""Host's time for a kernel of a backward pass, of one of a run: at most this on DenseNets."""
_CAST_SHARE = 0.25
"""Likewise for a cast that autocast inserts: 5.4 us against 20 of other kernels in the best fit to
13 networks in mixed precision at batch 1 on an H200's host, which they wait for."""


@dataclass(frozen=True)
class LoweredNetwork:
    """The kernels of a network in the order they run.

    Attributes
    ----------
    nodes : tuple of LoweredNode
    inputs, outputs : tuple of Tensor
        What is copied between host and device.
    method : str
        What lowered it: ``"onnxruntime 1.31.1"`` or ``"rules"``.
    notes : tuple of str
        For the user, such as that another version was asked than the one measured.
    unsized_outputs : tuple of str
        Names of outputs that are copied as well, but whose shape is unknown.
    by_engine : int
        How many nodes, the last ones, PyTorch's engine for backward passes starts, without Python.
    by_autocast : int
        How many nodes are casts that PyTorch's autocast inserts, without Python.
    """

    nodes: tuple[LoweredNode, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    method: str
    notes: tuple[str, ...] = ()
    unsized_outputs: tuple[str, ...] = ()
    by_engine: int = 0
    by_autocast: int = 0

    @property
    def starts(self) -> int:
        """How many kernels the host starts, as many as take it as long as those of a run."""
        kernels = sum(node.role != "view" for node in self.nodes)
        saved = self.by_engine * (1 - _ENGINE_SHARE) + self.by_autocast * (1 - _CAST_SHARE)
        return kernels - round(saved)


def named_by_sources(network: Network, nodes: Iterable[LoweredNode]) -> list[LoweredNode]:
    """Sort the sources of each node in the network's order, and name it after the first.

    Sources that are not in the network are left out.
    """
    order = {node.name: index for index, node in enumerate(network.nodes)}
    named = []
    for node in nodes:
        own = (name for name in node.sources if name in order)
        sources = tuple(sorted(own, key=order.__getitem__))
        named.append(replace(node, sources=sources, name=sources[0] if sources else node.name))
    return named


def qualified_by_domain(node: Node, domains: frozenset[str] = OPERATOR_DOMAINS) -> Node:
    """Put the domain into the name of a foreign operator, so that no rule takes it for ONNX's.

    The same for an operator without inputs.
    """
    if node.domain in domains and (node.inputs or not node.domain):
        return node
    return replace(node, op=".".join(filter(None, (node.domain, node.op))), domain="")


def in_precision(network: Network, precision: str) -> Network:
    """Give float32 tensors the half-precision type of a setting's precision; others stay."""
    dtype = HALF_TYPES.get(precision)
    if dtype is None:
        return network
    tensors = {
        name: replace(tensor, dtype=dtype) if tensor.dtype == SINGLE else tensor
        for name, tensor in network.tensors.items()
    }
    return replace(network, tensors=tensors)


def with_types(network: Network, convert: Callable[[Tensor], Tensor]) -> Network:
    """Convert all tensors of a network; a Cast becomes one to the type that its result now has."""
    tensors, weights = (
        {name: convert(tensor) for name, tensor in mapping.items()}
        for mapping in (network.tensors, network.weight_tensors)
    )
    nodes = []
    for node in network.nodes:
        if node.op == "Cast" and not node.domain and node.outputs[0] in tensors:
            to = data_type_of(tensors[node.outputs[0]].dtype)
            node = replace(node, attributes={**node.attributes, "to": to})
        nodes.append(node)
    return replace(network, tensors=tensors, weight_tensors=weights, nodes=tuple(nodes))


def with_fields(layer: Layer, changes: Mapping[str, FieldValue]) -> Layer:
    """Change fields of a layer; it stays as it is where its kind does not have such values."""
    try:
        return layer.replace(**changes) if changes else layer
    except LayerError:
        return layer


def largest(layers: Iterable[Callable[[], Layer]]) -> Layer:
    """Return the layer that moves most bytes: it stands for all operators of one kernel.

    Raises
    ------
    LayerError, UnsupportedError
        If none of them is a layer: why the first is not.
    """
    there, reasons = list[Layer](), list[Exception]()
    for layer in layers:
        try:
            there.append(layer())
        except (LayerError, UnsupportedError) as error:
            reasons.append(error)
    if not there:
        raise reasons[0]
    return max(there, key=lambda layer: layer.moved_bytes)


def in_type(layer: Layer, dtype: str) -> Layer:
    """Give a float32 layer another type, if its kind has it; an empty one changes nothing."""
    is_single = layer.fields().get("dtype") == SINGLE
    return with_fields(layer, {"dtype": dtype} if dtype and is_single else {})


def answer(
    network: Network, nodes: Sequence[LoweredNode], method: str, notes: tuple[str, ...] = ()
) -> LoweredNetwork:
    """Assemble a lowered network from its nodes and its inputs and outputs.

    Every original node becomes a source of some lowered node. One that was removed or fused belongs
    to the producer of its input. After an input of the network, or where it computes a constant, it
    belongs to its reader.
    """
    owner = {name: index for index, node in enumerate(nodes) for name in node.sources}
    missing = [node for node in network.nodes if node.name not in owner]
    maker = {name: node.name for node in network.nodes for name in node.outputs if name}
    readers = grouped((name, node.name) for node in network.nodes for name in node.inputs)
    more: dict[int, list[str]] = defaultdict(list)
    # Forwards again for nodes after those that have an owner by now.
    for forwards in (True, False, True):
        for node in missing if forwards else reversed(missing):
            others = [maker[name] for name in node.inputs if name in maker]
            if not forwards:
                others = [reader for name in node.outputs for reader in readers.get(name, ())]
            indices = [owner[name] for name in others if name in owner]
            if indices and node.name not in owner:
                owner[node.name] = max(indices) if forwards else min(indices)
                more[owner[node.name]].append(node.name)
    order = {node.name: index for index, node in enumerate(network.nodes)}
    accounted = [
        replace(node, sources=tuple(sorted({*node.sources, *more[index]}, key=order.__getitem__)))
        if index in more
        else node
        for index, node in enumerate(nodes)
    ]
    return LoweredNetwork(
        nodes=tuple(accounted),
        inputs=tuple(network.tensors[name] for name in network.inputs),
        outputs=tuple(network.tensors[name] for name in network.outputs if name in network.tensors),
        method=method,
        notes=notes,
        unsized_outputs=tuple(name for name in network.outputs if name not in network.tensors),
    )
