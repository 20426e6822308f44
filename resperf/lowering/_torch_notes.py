"""Where a file may differ from the module of PyTorch that it was exported from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from resperf.devices import device_facts
from resperf.devices.estimate import estimated_layer_ms
from resperf.layers import Layer
from resperf.network import Network, Node, Rewritten
from resperf.platform import Platform

_SUBSTANTIAL = 0.1
"""Share of the time, by data sheet, from which normalisations in pieces are named."""
_MEANS = frozenset({"GlobalAveragePool", "ReduceMean", "ReduceSum"})
_SHAPES = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_SMALL = frozenset({"Add", "Clip", "Div", "Max", "Mul", "Pow", "Reciprocal", "Sub"})
"""Operators between a mean and the root of a variance."""
_MEAN, _ROOT, _SCALED, _DONE = "mean", "root", "scaled", "done"
_IN_PIECES = (
    "{} normalisations or affine steps are in pieces, about {:.0%} of the time: each operator is "
    "predicted by itself, as in a module that is written so; a module such as GroupNorm is one "
    "faster kernel"
)
_AS_ONE = (
    "{} normalisations that the file has in pieces are predicted as one kernel each, about {:.0%} "
    "of the time, as in LayerNorm; a module that is written in pieces takes longer"
)


def notes_of(
    network: Network,
    joined: Rewritten,
    kernels: Sequence[tuple[str, Layer | None]],
    platform: Platform,
) -> tuple[str, ...]:
    """Say whether normalisations are predicted in pieces or as one kernel, or may be folded.

    Parameters
    ----------
    network : Network
        As in the file.
    joined : Rewritten
        The same, canonical.
    kernels : sequence of (str, Layer or None)
        The node of `joined` and the layer of each; none where compiled, as chains are fused.
    platform : Platform
        Without a data sheet, kernels are taken to be alike.
    """
    facts = device_facts(platform.device)
    times_ms = np.array([
        1.0 if facts is None or layer is None else estimated_layer_ms(layer, facts).ms
        for _, layer in kernels
    ])  # fmt: skip
    count, pieces = _pieces(joined.network)
    whole = {node.name for node in joined.network.nodes
             if "Norm" in node.op and len(joined.sources.get(node.name, ())) > 2}  # fmt: skip
    for steps, names, words in ((count, pieces, _IN_PIECES), (len(whole), whole, _AS_ONE)):
        own = np.array([name in names for name, _ in kernels], dtype=bool)
        if (part_ms := np.nansum(times_ms[own])) > _SUBSTANTIAL * (total := np.nansum(times_ms)):
            return (words.format(steps, part_ms / total),)
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
    if node.op in ("Div", "Mul") and _ROOT in behind and values > 1:
        return _DONE
    if node.op == "Mul" and by_weight and behind <= {_DONE}:
        return _SCALED
    if node.op == "Add" and by_weight and behind == {_SCALED}:
        return _DONE
    if node.op in _MEANS and values:
        return _MEAN
    if node.op == "Sqrt" and behind == {_MEAN}:
        return _ROOT
    goes_on = node.op in _SHAPES or (node.op in _SMALL and behind <= {_MEAN, _ROOT})
    return max(behind) if behind and goes_on else ""
