"""Attention and recurrent layers in TensorFlow; the latter loop over the steps, as in Keras."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from resperf.backends._attributes import attribute
from resperf.backends.tensorflow_builder import Builder, refusal
from resperf.errors import UnsupportedError
from resperf.lowering._read import has_input
from resperf.network import Node

State = tuple[Any, ...]
Cell = Callable[[Any, State, Any], State]
"""Returns the next state from the projected input, the state, and its product."""


def recurrent(builder: Builder, node: Node) -> tuple[Any, ...]:
    """Build an LSTM, GRU or RNN with default activations; returns all states and the last ones.

    The input's products of all steps are one product. Gates are in the file's order.
    """
    if has_input(node, 4) or node.attributes.get("layout", 0) or has_input(node, 7):
        raise refusal(node, "sequence lengths, peepholes and layout=1")
    if node.op == "GRU" and not node.attributes.get("linear_before_reset", 0):
        raise UnsupportedError(
            f"GRU {node.name!r}: linear_before_reset=0 cannot be built in TensorFlow, whose GRU "
            "multiplies before it resets"
        )
    x = builder.value(node, 0)
    matrices, repeated = builder.value(node, 1), builder.value(node, 2)
    bias, hidden = builder.optional(node, 3), int(node.attributes["hidden_size"])
    direction = str(attribute(node, "direction", "forward"))
    count = 2 if node.op == "LSTM" else 1
    outputs, last = [], []
    for index in range(matrices.shape[0]):
        backwards = direction == "reverse" or index == 1
        steps = tf.reverse(x, [0]) if backwards else x
        begin = tuple(
            builder.value(node, 5 + i)[index] if has_input(node, 5 + i) else
            tf.zeros((x.shape[1], hidden), x.dtype)
            for i in range(count)
        )  # fmt: skip
        states, end = _run(
            _CELLS[node.op], steps, matrices[index], repeated[index],
            None if bias is None else bias[index], begin,
        )  # fmt: skip
        outputs.append(tf.reverse(states, [0]) if backwards else states)
        last.append(end)
    return tf.stack(outputs, axis=1), *(tf.stack(state) for state in zip(*last, strict=True))


def _run(
    cell: Cell, x: Any, matrix: Any, repeated: Any, bias: Any, begin: State
) -> tuple[Any, State]:
    """Run one direction and return the states of all steps, and the last one."""
    steps, batch, features = x.shape
    joined = tf.matmul(tf.reshape(x, (steps * batch, features)), matrix, transpose_b=True)
    given, again = (None, None) if bias is None else tf.split(bias, 2)
    if given is not None:
        joined = tf.nn.bias_add(joined, given)
    projected = tf.reshape(joined, (steps, batch, -1))
    states = tf.TensorArray(x.dtype, steps, element_shape=begin[0].shape)

    def step(index: Any, state: State, written: Any) -> tuple[Any, State, Any]:
        product = tf.matmul(state[0], repeated, transpose_b=True)
        product = product if again is None else tf.nn.bias_add(product, again)
        state = cell(projected[index], state, product)
        return index + 1, state, written.write(index, state[0])

    _, end, written = tf.while_loop(
        lambda index, _state, _written: index < steps,
        step,
        (0, begin, states),
        maximum_iterations=steps,
    )
    return written.stack(), end


def _lstm(x: Any, state: State, product: Any) -> State:
    enter, leave, forget, fresh = tf.split(x + product, 4, axis=1)
    kept = tf.sigmoid(forget) * state[1] + tf.sigmoid(enter) * tf.tanh(fresh)
    return tf.sigmoid(leave) * tf.tanh(kept), kept


def _gru(x: Any, state: State, product: Any) -> State:
    update, reset, fresh = tf.split(x, 3, axis=1)
    by_update, by_reset, by_fresh = tf.split(product, 3, axis=1)
    kept = tf.sigmoid(update + by_update)
    new = tf.tanh(fresh + tf.sigmoid(reset + by_reset) * by_fresh)
    return (kept * state[0] + (1 - kept) * new,)


def _rnn(x: Any, _state: State, product: Any) -> State:
    return (tf.tanh(x + product),)


_CELLS: Mapping[str, Cell] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


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
    return mixed if builder.rank(node, 0) == 4 else _joined(builder, node, mixed)


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
