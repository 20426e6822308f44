"""Scaled-dot-product attention in parts, as PyTorch ran it before it had a kernel for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from resperf.network import Network, Node, Tensor


def attention_in_parts(network: Network) -> Network:
    """Replace attention by two products, a scale, a mask where there is one, and a softmax.

    Parameters
    ----------
    network : Network
        Canonical (`resperf.network.canonical`).
    """
    tensors = dict(network.tensors)
    nodes: list[Node] = []
    for node in network.nodes:
        nodes += _parts(node, tensors) if node.op == "Attention" and not node.domain else [node]
    return replace(network, nodes=tuple(nodes), tensors=tensors)


def _parts(node: Node, tensors: dict[str, Tensor]) -> list[Node]:
    """Return the nodes of one attention; the last one has its name."""
    query, key, value = node.inputs[:3]
    if any(name not in tensors for name in (query, key, value)):
        return [node]
    keys = tensors[key]
    rank = len(keys.shape)
    perm = (*range(rank - 2), rank - 1, rank - 2)
    scores = (*tensors[query].shape[:-1], keys.shape[-2])
    made: list[Node] = []

    def add(op: str, inputs: tuple[str, ...], shape: tuple[int, ...], **attributes: object) -> str:
        name = f"{node.name}/{op.lower()}"
        tensors[name] = Tensor(name, shape, keys.dtype)
        made.append(Node(name, op, "", inputs, (name,), attributes))
        return name

    scale = f"{node.name}/scale"
    number = np.asarray(1.0 / np.sqrt(keys.shape[-1]), np.float32)
    tensors[scale] = Tensor(scale, (), "float32", number, is_weight=True)
    turned = add("Transpose", (key,), tuple(keys.shape[axis] for axis in perm), perm=perm)
    result = add("Mul", (add("MatMul", (query, turned), scores), scale), scores)
    if len(node.inputs) > 3 and node.inputs[3]:
        result = add("Add", (result, node.inputs[3]), scores)
    result = add("Softmax", (result,), scores, axis=-1)
    return [*made, replace(node, op="MatMul", inputs=(result, value), attributes={})]
