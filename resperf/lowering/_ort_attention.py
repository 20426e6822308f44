"""Attention with a cache or a mask, and rotations, as the work that ONNX Runtime does.

Its CPU kernels for ONNX's own Attention, RotaryEmbedding and TensorScatter (operator sets 23 and
24) and for its own GroupQueryAttention and MultiHeadAttention have no layer kind where they do more
than products and a softmax. They join the cache and the new keys and values, multiply head by head,
add the mask, and take a softmax, which are layers; a rotation is a product with a row for each
token, and new rows of a cache of fixed length are a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from resperf.layers._operator import CONTRIB
from resperf.network import MALFORMED, Node, Tensor

Heads = tuple[int, int, int, int]
"""(batch, heads, tokens, size)."""
_Inputs = Sequence["Tensor | None"]


@dataclass
class _Parts:
    """Nodes that an operator becomes, and the tensors between them."""

    node: Node
    dtype: str
    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def tensor(self, label: str, shape: tuple[int, ...]) -> str:
        name = f"{self.node.name}/{label}"
        self.tensors[name] = Tensor(name, shape, self.dtype)
        return name

    def add(
        self, op: str, inputs: tuple[str, ...], output: str, domain: str = "", **attributes: Any
    ) -> str:
        self.nodes.append(replace(
            self.node, op=op, domain=domain, inputs=inputs, outputs=(output,),
            attributes=attributes,
        ))  # fmt: skip
        return output


def attention_parts(
    node: Node, tensors: Mapping[str, Tensor]
) -> tuple[tuple[Node, ...], dict[str, Tensor]]:
    """Return the nodes that do an operator's work, and the tensors between them.

    Nothing if a shape is not known.
    """
    inputs = [tensors.get(name) if name else None for name in node.inputs]
    if any(name and tensor is None for name, tensor in zip(node.inputs, inputs, strict=True)):
        return (), {}
    try:
        parts = MAKERS[node.domain, node.op](node, [*inputs, *[None] * _MOST_INPUTS])
    except MALFORMED:
        return (), {}
    return ((), {}) if parts is None else (tuple(parts.nodes), parts.tensors)


def by_heads(shape: tuple[int, ...], heads: int) -> Heads:
    """(batch, heads, tokens, size) of a tensor of four axes, or of three with joined heads."""
    if len(shape) == 4:
        batch, heads, tokens, size = shape
        return batch, heads, tokens, size
    batch, tokens, width = shape
    return batch, heads, tokens, width // heads


def _given(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ValueError("absent")
    return tensor


def _rotation(node: Node, inputs: _Inputs) -> _Parts:
    values = _given(inputs[0])
    parts = _Parts(node, values.dtype)
    parts.add("Mul", (node.inputs[0], parts.tensor("angles", values.shape[-2:])), node.outputs[0])
    return parts


def _scattered(node: Node, inputs: _Inputs) -> _Parts:
    """Return the copy of a cache of fixed length, some rows of which are new."""
    past, new = _given(inputs[0]), _given(inputs[1])
    parts = _Parts(node, past.dtype)
    axis = int(node.attributes.get("axis", -2)) % len(past.shape)
    kept = past.shape[axis] - new.shape[axis]
    rest = parts.tensor("kept", (*past.shape[:axis], kept, *past.shape[axis + 1 :]))
    parts.add("Concat", (rest, node.inputs[1]), node.outputs[0], axis=axis)
    return parts


def _attention(node: Node, inputs: _Inputs) -> _Parts:
    """ONNX's own: the mask is added to the scores, and so is that of a causal one."""
    query, mask, attributes = _given(inputs[0]), inputs[3], node.attributes
    parts = _Parts(node, query.dtype)
    queries = by_heads(query.shape, int(attributes.get("q_num_heads", 0)))
    new = [
        by_heads(_given(inputs[position]).shape, int(attributes.get("kv_num_heads", 0)))
        for position in (1, 2)
    ]
    added = None if mask is None else mask.shape
    if added is None and attributes.get("is_causal"):
        added = (queries[2], 1)
    _products(parts, queries, new, _cached(parts, inputs[4:6], new, (4, 5)), added)
    return parts


def _grouped(node: Node, inputs: _Inputs) -> _Parts:
    """ONNX Runtime's GroupQueryAttention: later tokens are left out of the softmax."""
    query, attributes = _given(inputs[0]), node.attributes
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    parts = _Parts(node, query.dtype)
    batch, tokens, width = query.shape
    size = width // (heads if inputs[1] is not None else heads + 2 * groups)
    queries, new = (batch, heads, tokens, size), (batch, groups, tokens, size)
    if attributes.get("do_rotary"):
        for label, shape in (("query", queries), ("key", new)):
            operands = parts.tensor(f"{label}_turned", shape), parts.tensor("angles", shape[-2:])
            parts.add("Mul", operands, parts.tensor(f"{label}_rotated", shape))
    rows = _cached(parts, inputs[3:5], [new, new], (3, 4))
    _products(parts, queries, [new, new], rows, None)
    return parts


def _multi_head(node: Node, inputs: _Inputs) -> _Parts | None:
    """ONNX Runtime's MultiHeadAttention, where it does more than the layer `attention`."""
    if not any(tensor is not None for tensor in inputs[3:8]) and not any(node.outputs[1:]):
        return None
    heads = int(node.attributes["num_heads"])
    tensors = [_given(tensor) for tensor in inputs[:3]]
    parts = _Parts(node, tensors[0].dtype)
    for label, tensor in zip(("query", "key", "value"), tensors, strict=True):
        if len(tensor.shape) == 3:
            plain = (*tensor.shape[:2], heads, tensor.shape[2] // heads)
            name = parts.tensor(f"{label}_read", plain)
            if inputs[3] is not None:
                row = parts.tensor(f"{label}_bias", plain[-2:])
                name = parts.add("Add", (name, row), parts.tensor(f"{label}_moved", plain))
            turned = parts.tensor(f"{label}_turned", by_heads(tensor.shape, heads))
            parts.add("Transpose", (name,), turned, perm=(0, 2, 1, 3))
    queries, *new = (by_heads(tensor.shape, heads) for tensor in tensors)
    bias = inputs[5] or inputs[4]
    added = None if bias is None else (queries[2], 1) if bias is inputs[4] else bias.shape
    _products(parts, queries, new, _cached(parts, inputs[6:8], new, (6, 7)), added)
    return parts


def _cached(parts: _Parts, past: _Inputs, new: Sequence[Heads], positions: tuple[int, int]) -> int:
    """Join cached and new keys and values; return how many there are of each."""
    node, rows = parts.node, new[0][2]
    outputs = (*node.outputs, "", "")[1:3]
    for label, shape, earlier, position, output in zip(
        ("key", "value"), new, past, positions, outputs, strict=True
    ):
        if earlier is None and not output:
            continue
        rows = shape[2] + (0 if earlier is None else earlier.shape[2])
        joined = (*shape[:2], rows, shape[3])
        own = parts.tensor(f"new_{label}", shape)
        result = output or parts.tensor(f"all_{label}", joined)
        given = (own,) if earlier is None else (node.inputs[position], own)
        parts.add("Concat", given, result, axis=2)
    return rows


def _products(
    parts: _Parts, queries: Heads, new: Sequence[Heads], rows: int,
    added: tuple[int, ...] | None,
) -> None:  # fmt: skip
    """Add scores, mask, softmax and weighted values; groups of heads share keys and values."""
    batch, heads, tokens, size = queries
    lengths = (batch, heads, tokens, rows)
    keys = parts.tensor("key", (batch, heads, rows, size))
    values = parts.tensor("value", (batch, heads, rows, new[1][3]))
    query = parts.tensor("query", queries)
    last = parts.add(
        "FusedMatMul", (query, keys), parts.tensor("scores", lengths), CONTRIB, transB=1
    )
    if float(parts.node.attributes.get("softcap", 0.0)) > 0:
        limit = parts.tensor("softcap", ())
        for label, op in (("scaled", "Mul"), ("bent", "Tanh"), ("capped", "Mul")):
            operands = (last, limit) if op == "Mul" else (last,)
            last = parts.add(op, operands, parts.tensor(label, lengths))
    if added is not None:
        operands = (last, parts.tensor("mask", (*added[:-1], rows)))
        last = parts.add("Add", operands, parts.tensor("masked", lengths))
    last = parts.add("Softmax", (last,), parts.tensor("weights", lengths), axis=-1)
    parts.add("MatMul", (last, values), parts.node.outputs[0])


_MOST_INPUTS = 12
MAKERS: Mapping[tuple[str, str], Callable[[Node, _Inputs], _Parts | None]] = {
    ("", "Attention"): _attention,
    ("", "RotaryEmbedding"): _rotation,
    (CONTRIB, "RotaryEmbedding"): _rotation,
    ("", "TensorScatter"): _scattered,
    (CONTRIB, "GroupQueryAttention"): _grouped,
    (CONTRIB, "MultiHeadAttention"): _multi_head,
}
"""Domain and operator -> what makes its parts; None where it is a layer as it is."""
