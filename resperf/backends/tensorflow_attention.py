"""Attention in TensorFlow, which has no kernel for it: two products and a softmax, as Keras."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from resperf.backends.tensorflow_builder import Builder, refusal
from resperf.lowering._read import has_input
from resperf.network import Node


def multi_head_attention(builder: Builder, node: Node) -> Any:
    """Build ONNX Runtime's attention of projected (batch, tokens, heads x size) tensors."""
    heads = int(node.attributes["num_heads"])
    query, key, value = (_in_heads(builder.value(node, position), heads) for position in range(3))
    return _joined(builder, node, _mixed(node, query, key, value))


def attention(builder: Builder, node: Node) -> Any:
    """Build an attention operator: ONNX's of three tensors, or ONNX Runtime's with projection."""
    if node.domain:
        return _projected(builder, node)
    query, key, value = (builder.value(node, position) for position in range(3))
    if len(query.shape) == 3:
        by_query = int(node.attributes["q_num_heads"])
        by_key = int(node.attributes["kv_num_heads"])
        query = _in_heads(query, by_query)
        key, value = _in_heads(key, by_key), _in_heads(value, by_key)
    if query.shape[1] != key.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = (tf.repeat(tensor, repeats, axis=1) for tensor in (key, value))
    mixed = _mixed(node, query, key, value)
    if builder.rank(node, 0) == 4:
        return mixed
    return _joined(builder, node, mixed)


def _projected(builder: Builder, node: Node) -> Any:
    """Project tokens to queries, keys and values with one product, then attend."""
    heads = int(node.attributes["num_heads"])
    x = builder.value(node, 0)
    joined = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), builder.value(node, 1))
    if has_input(node, 2):
        joined = tf.nn.bias_add(joined, builder.value(node, 2))
    joined = tf.reshape(joined, (*x.shape[:-1], joined.shape[-1]))
    sizes = node.attributes.get("qkv_hidden_sizes") or [joined.shape[-1] // 3] * 3
    query, key, value = (
        _in_heads(part, heads) for part in tf.split(joined, [int(size) for size in sizes], -1)
    )
    return _joined(builder, node, _mixed(node, query, key, value))


def _in_heads(tokens: Any, heads: int) -> Any:
    batch, count, size = tokens.shape
    return tf.transpose(tf.reshape(tokens, (batch, count, heads, size // heads)), (0, 2, 1, 3))


def _joined(builder: Builder, node: Node, mixed: Any) -> Any:
    return tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), builder.output_shape(node))


def _mixed(node: Node, query: Any, key: Any, value: Any) -> Any:
    """Return the values mixed by the softmax of the scaled products of queries and keys."""
    if any(has_input(node, position) for position in range(3, len(node.inputs))):
        raise refusal(node, "masks and past tokens")
    scale = float(node.attributes.get("scale", 0.0)) or 1 / math.sqrt(query.shape[-1])
    scores = tf.matmul(query * tf.cast(scale, query.dtype), key, transpose_b=True)
    if node.attributes.get("unidirectional", 0) or node.attributes.get("is_causal", 0):
        rows, columns = scores.shape[-2:]
        seen = tf.linalg.band_part(tf.ones((rows, columns), tf.bool), -1, columns - rows)
        scores = tf.where(seen, scores, scores.dtype.min)
    return tf.matmul(tf.nn.softmax(scores), value)
