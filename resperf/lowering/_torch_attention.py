"""Scaled-dot-product attention in parts, where PyTorch has no fused kernel for it.

Before version 2 modules compute it so themselves. Since then, the fused kernels take four axes
(batch, heads, tokens, size); tensors with others, such as windows beside heads, go through
PyTorch's ``_scaled_dot_product_attention_math``: since version 2.5 in single precision, whatever
the type of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from resperf.network import Network, Node, Tensor
from resperf.network.protos import data_type_of

_FUSED_AXES = 4
"""PyTorch's kernels take (batch, heads, tokens, width): attention on other axes runs in parts."""
_SINGLE = "float32"
_SINGLE_SINCE = (2, 5)
"""Version from which attention without a fused kernel computes in single precision."""


def attention_in_parts(network: Network) -> Network:
    """Replace attention by two products, a scale, a mask where there is one, and a softmax.

    Parameters
    ----------
    network : Network
        Canonical (`resperf.network.canonical`).
    """
    return _replaced(network, _parts)


def unfused_attention_in_parts(network: Network, version: tuple[int, ...]) -> Network:
    """Replace attention on other than four axes by what PyTorch 2 runs for it.

    Parameters
    ----------
    network : Network
        Canonical, in the types that it runs in: autocast does not look into attention.
    version : tuple of int
        Of PyTorch.
    """
    single = version >= _SINGLE_SINCE
    return _replaced(network, partial(_unfused_parts, single=single))


def _replaced(network: Network, parts: Callable[[Node, dict[str, Tensor]], list[Node]]) -> Network:
    tensors = dict(network.tensors)
    nodes: list[Node] = []
    for node in network.nodes:
        inputs = [tensors.get(name) for name in node.inputs if name]
        # Queries, keys and values of one head are the last two axes of known tensors.
        has_heads = (
            len(node.inputs) >= 3
            and all(tensor is not None and len(tensor.shape) > 1 for tensor in inputs)
            and "q_num_heads" not in node.attributes
        )
        own = node.op == "Attention" and not node.domain
        nodes += parts(node, tensors) if own and has_heads else [node]
    return replace(network, nodes=tuple(nodes), tensors=tensors)


@dataclass
class _Parts:
    """The nodes that stand for one attention."""

    whole: Node
    tensors: dict[str, Tensor]
    nodes: list[Node] = field(default_factory=list)

    def add(self, op: str, *inputs: str, shape: tuple[int, ...] = (), **more: object) -> str:
        """Add a node; its result has the type of its first input, and its shape if none is given.

        Returns
        -------
        str
            Name of the result.
        """
        name = f"{self.whole.name}/{op.lower()}_{len(self.nodes)}"
        self.tensors[name] = replace(
            self.tensors[inputs[0]], name=name, value=None, is_weight=False,
            shape=shape or self.tensors[inputs[0]].shape,
        )  # fmt: skip
        self.nodes.append(Node(name, op, "", inputs, (name,), more))
        return name

    def number(self, value: float) -> str:
        name = f"{self.whole.name}/{value}"
        self.tensors[name] = Tensor(
            name, (), _SINGLE, np.asarray(value, np.float32), is_weight=True
        )
        return name

    def cast(self, tensor: str, dtype: str) -> str:
        """Return a tensor in another type."""
        if self.tensors[tensor].dtype == dtype:
            return tensor
        name = self.add("Cast", tensor, to=data_type_of(dtype))
        self.tensors[name] = replace(self.tensors[name], dtype=dtype)
        return name

    def turned(self, keys: str) -> str:
        """Return the keys with their last two axes exchanged."""
        shape = self.tensors[keys].shape
        perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return self.add("Transpose", keys, shape=tuple(shape[axis] for axis in perm), perm=perm)

    def last(self, op: str, *inputs: str, **attributes: object) -> list[Node]:
        """Return all nodes, of which the last one has the name and result of the whole."""
        return [*self.nodes, replace(self.whole, op=op, inputs=inputs, attributes=attributes)]


def _scores_of(node: Node, tensors: dict[str, Tensor]) -> tuple[int, ...]:
    query, key = (tensors[name].shape for name in node.inputs[:2])
    return (*query[:-1], key[-2])


def _mask_of(node: Node) -> tuple[str, ...]:
    return tuple(name for name in node.inputs[3:4] if name)


def _parts(node: Node, tensors: dict[str, Tensor]) -> list[Node]:
    query, key, value = node.inputs[:3]
    scores, parts = _scores_of(node, tensors), _Parts(node, tensors)
    scale = parts.number(1.0 / np.sqrt(tensors[key].shape[-1]))
    result = parts.add("MatMul", query, parts.turned(key), shape=scores)
    result = parts.add("Mul", result, scale)
    for mask in _mask_of(node):
        result = parts.add("Add", result, mask)
    return parts.last("MatMul", parts.add("Softmax", result, axis=-1), value)


def _unfused_parts(node: Node, tensors: dict[str, Tensor], *, single: bool) -> list[Node]:
    dtype = tensors[node.inputs[0]].dtype
    if len(tensors[node.inputs[0]].shape) == _FUSED_AXES:
        return [node]
    parts, scores = _Parts(node, tensors), _scores_of(node, tensors)
    inside = _SINGLE if single else dtype
    query, key, value = (parts.cast(name, inside) for name in node.inputs[:3])
    root = parts.number(float(tensors[key].shape[-1]) ** -0.25)
    turned = parts.add("Mul", parts.turned(key), root)
    result = parts.add("MatMul", parts.add("Mul", query, root), turned, shape=scores)
    for mask in _mask_of(node):
        result = parts.add("Add", result, mask)
    weights = parts.add("Softmax", result, axis=-1)
    if single:
        weights = _safe(parts, result, weights)
    if inside == dtype:
        return parts.last("MatMul", weights, value)
    parts.cast(weights, dtype)  # PyTorch returns the weights too; nothing reads them.
    product = parts.add("MatMul", weights, value, shape=(*scores[:-1], tensors[value].shape[-1]))
    return parts.last("Cast", product, to=data_type_of(dtype))


def _safe(parts: _Parts, scores: str, weights: str) -> str:
    """Set rows to zero of which every score is minus infinity."""
    hidden = parts.add("Equal", scores, parts.number(-np.inf))
    rows = parts.add("ReduceMin", hidden, shape=(*parts.tensors[scores].shape[:-1], 1), axes=(-1,))
    for name in (hidden, rows):
        parts.tensors[name] = replace(parts.tensors[name], dtype="bool")
    result = parts.add("Where", rows, parts.number(0.0), weights)
    parts.tensors[result] = replace(parts.tensors[weights], name=result)
    return result
