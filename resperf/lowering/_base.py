"""What lowering answers: the layers that a framework really runs for a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from resperf.layers import OPERATOR_DOMAINS, Layer
from resperf.network import Network, Node, Tensor

ODD = (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What reading attributes and shapes raises that do not fit their operator."""
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""Operators that run graphs of their own."""
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
        Why there is no layer; empty where there is one.
    sources : tuple of str
        Names of the ONNX nodes that became this one.
    """

    name: str
    op: str
    layer: Layer | None
    role: Role
    reason: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoweredNetwork:
    """The kernels of a network in the order they run.

    Attributes
    ----------
    nodes : tuple of LoweredNode
    inputs, outputs : tuple of Tensor
        What crosses between host and device.
    method : str
        Who lowered it: ``"onnxruntime 1.31.1"`` or ``"rules"``.
    notes : tuple of str
        Words for the user, such as that stored rules stood in for the framework.
    """

    nodes: tuple[LoweredNode, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    method: str
    notes: tuple[str, ...] = ()


def named_apart(node: Node, domains: frozenset[str] = OPERATOR_DOMAINS) -> Node:
    """Let an operator of a foreign domain, or one without inputs, not pass for ONNX's own."""
    if node.domain in domains and (node.inputs or not node.domain):
        return node
    return replace(node, op=".".join(filter(None, (node.domain, node.op))), domain="")


def is_computed_once(network: Network, node: Node) -> bool:
    """Say whether a node computes weights alone, which no run does again."""
    made = [network.tensors.get(name) for name in node.outputs if name]
    return all(tensor is not None and tensor.is_weight for tensor in made)


def answer(
    network: Network, nodes: Sequence[LoweredNode], method: str, notes: tuple[str, ...] = ()
) -> LoweredNetwork:
    """Put the nodes of a lowered network together with what crosses its edges."""
    return LoweredNetwork(
        nodes=tuple(nodes),
        inputs=tuple(network.tensors[name] for name in network.inputs),
        outputs=tuple(network.tensors[name] for name in network.outputs if name in network.tensors),
        method=method,
        notes=notes,
    )
