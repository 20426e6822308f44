"""Where a file may differ from the module of PyTorch that it was exported from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resperf.devices import device_facts
from resperf.devices.estimate import estimated_layer_ms
from resperf.layers import Norm
from resperf.lowering._base import LoweredNode
from resperf.network import Network, Node
from resperf.platform import Platform

_SUBSTANTIAL = 0.1
"""Share of the time, by data sheet, from which normalisations in pieces are named."""
_MEANS = frozenset({"GlobalAveragePool", "ReduceMean", "ReduceSum"})
_SHAPES = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_SMALL = frozenset({"Add", "Clip", "Div", "Max", "Mul", "Pow", "Reciprocal", "Sub"})
"""Operators between a mean and the root of a variance."""
_MEAN, _ROOT, _SCALED, _DONE = "mean", "root", "scaled", "done"


def notes_of(
    network: Network, joined: Network, nodes: Sequence[LoweredNode], platform: Platform
) -> tuple[str, ...]:
    """Say whether normalisations are predicted in pieces or as one kernel, or may be folded.

    Parameters
    ----------
    network, joined : Network
        As in the file, and canonical.
    nodes : sequence of LoweredNode
        None where compiled: chains of operators are one kernel then.
    platform : Platform
        Without a data sheet, kernels are taken to be alike.
    """
    count, pieces = _pieces(joined)
    whole = {node.name for node in nodes if isinstance(node.layer, Norm) and len(node.sources) > 2}
    facts, part_ms, total_ms = device_facts(platform.device), 0.0, 0.0
    for node in nodes:
        layer = node.layer
        ms = 1.0 if facts is None or layer is None else estimated_layer_ms(layer, facts).ms
        total_ms += ms
        part_ms += ms * (node.name in whole or not pieces.isdisjoint(node.sources))
    if part_ms > _SUBSTANTIAL * total_ms:
        return (
            f"{count + len(whole)} normalisations or affine steps are in pieces, about "
            f"{part_ms / total_ms:.0%} of the time: {count} are predicted operator by operator, "
            f"{len(whole)} as one kernel, such as LayerNorm; the module may have them otherwise",
        )
    ops = {node.op for node in network.nodes}
    if "Conv" not in ops or pieces or any("Norm" in op for op in ops):
        return ()
    return (
        "the file has no normalisations: if its exporter folded them into the convolutions, the "
        "module takes longer than this",
    )


def _pieces(network: Network) -> tuple[int, set[str]]:
    """Return how many normalisations and affine steps are in pieces, and the names of their nodes.

    A normalisation divides by the root of a mean, or multiplies by its reciprocal. An affine step
    is a product with a weight of several values to which another one is added.
    """
    chains: dict[str, tuple[str, set[str]]] = {}
    count, names = 0, set[str]()
    for node in network.nodes:
        behind = [chains[name] for name in node.inputs if name in chains]
        if not (state := _state(network, node, {state for state, _ in behind})):
            continue
        own = {node.name}.union(*(before for _, before in behind))
        chains[node.outputs[0]] = state, own
        if state == _DONE:
            count += names.isdisjoint(own)
            names |= own
    return count, names


def _state(network: Network, node: Node, behind: set[str]) -> str:
    """Return what a node makes of tensors in these states; empty if it is in no normalisation."""
    tensors = [network.tensors[name] for name in node.inputs if name in network.tensors]
    values = sum(not tensor.is_weight for tensor in tensors)
    by_weight = any(tensor.is_weight and math.prod(tensor.shape) > 1 for tensor in tensors)
    goes_on = node.op in _SHAPES or (node.op in _SMALL and behind <= {_MEAN, _ROOT})
    steps = (
        (_DONE, node.op in ("Div", "Mul") and _ROOT in behind and values > 1),
        (_SCALED, node.op == "Mul" and by_weight and behind <= {_DONE}),
        (_DONE, node.op == "Add" and by_weight and behind == {_SCALED}),
        (_MEAN, node.op in _MEANS and values),
        (_ROOT, node.op == "Sqrt" and behind == {_MEAN}),
        (max(behind, default=""), goes_on),
    )
    return next((state for state, holds in steps if holds), "")
