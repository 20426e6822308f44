"""ONNX's own Attention and RotaryEmbedding (operator set 23) as the work that ONNX Runtime does.

Its CPU kernels have no layer kind of their own: Attention joins the cache and the new keys and
values, multiplies head by head, adds the mask, and takes a softmax, which are layers; a rotation
is a product with a row for each token. Measured, one head's parts take as long as the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from resperf.layers._operator import CONTRIB
from resperf.network import MALFORMED, Node, Tensor

ROTATIONS = frozenset({("", "RotaryEmbedding"), (CONTRIB, "RotaryEmbedding")})


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

    Nothing if it is another operator, or a shape is not known.
    """
    known = [tensors.get(name) if name else None for name in node.inputs]
    if any(name and each is None for name, each in zip(node.inputs, known, strict=True)):
        return (), {}
    try:
        if (node.domain, node.op) in ROTATIONS:
            return _rotation(node, known)
        if (node.domain, node.op) == ("", "Attention"):
            return _attention(node, known)
    except MALFORMED:
        pass
    return (), {}


def by_heads(shape: tuple[int, ...], heads: int) -> tuple[int, int, int, int]:
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


def _rotation(node: Node, known: list[Tensor | None]) -> tuple[tuple[Node, ...], dict[str, Tensor]]:
    values = _given(known[0])
    parts = _Parts(node, values.dtype)
    angles = parts.tensor("angles", values.shape[-2:])
    parts.add("Mul", (node.inputs[0], angles), node.outputs[0])
    return tuple(parts.nodes), parts.tensors


def _attention(
    node: Node, known: list[Tensor | None]
) -> tuple[tuple[Node, ...], dict[str, Tensor]]:
    known = [*known, *[None] * 6]
    query, mask, attributes = _given(known[0]), known[3], node.attributes
    parts = _Parts(node, query.dtype)
    batch, heads, tokens, size = by_heads(query.shape, int(attributes.get("q_num_heads", 0)))
    outputs = (*node.outputs, "", "")
    rows = tokens
    whole: list[str] = []
    for place, label in ((1, "key"), (2, "value")):
        new = by_heads(_given(known[place]).shape, int(attributes.get("kv_num_heads", 0)))
        past = known[place + 3]
        rows = new[2] + (0 if past is None else past.shape[2])
        if past is not None or outputs[place]:
            own = parts.tensor(f"new_{label}", new)
            joined = parts.tensor(f"all_{label}", (*new[:2], rows, new[3]))
            given = (own,) if past is None else (node.inputs[place + 3], own)
            if math.prod((*new[:2], rows, new[3])):
                parts.add("Concat", given, outputs[place] or joined, axis=2)
        # Several heads may share keys and values, which are not copied.
        whole.append(parts.tensor(label, (batch, heads, rows, new[3])))
    lengths = (batch, heads, tokens, rows)
    queries = parts.tensor("query", (batch, heads, tokens, size))
    last = parts.add(
        "FusedMatMul", (queries, whole[0]), parts.tensor("scores", lengths), CONTRIB, transB=1
    )
    if attributes.get("softcap"):
        limit = parts.tensor("softcap", ())
        for label, op in (("scaled", "Mul"), ("bent", "Tanh"), ("capped", "Mul")):
            operands = (last, limit) if op == "Mul" else (last,)
            last = parts.add(op, operands, parts.tensor(label, lengths))
    if mask is not None or attributes.get("is_causal"):
        shape = (tokens, rows) if mask is None else (*mask.shape[:-1], rows)
        operands = (last, parts.tensor("mask", shape))
        last = parts.add("Add", operands, parts.tensor("masked", lengths))
    last = parts.add("Softmax", (last,), parts.tensor("weights", lengths), axis=-1)
    parts.add("MatMul", (last, whole[1]), node.outputs[0])
    return tuple(parts.nodes), parts.tensors
