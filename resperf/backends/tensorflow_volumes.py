"""Convolutions and poolings of lines and volumes, and transposed ones, in TensorFlow.

Lines and volumes have the file's order of axes and are transposed to channels last for the kernel
and back, since CPUs have no other kernel. Images are in their own layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from resperf.backends._attributes import attribute
from resperf.backends.tensorflow_builder import Builder, kernel_axes, refusal
from resperf.errors import UnsupportedError
from resperf.lowering._read import has_input
from resperf.network import Node

_KERNELS: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {
    1: (tf.nn.conv1d, tf.nn.conv1d_transpose),
    2: (tf.nn.conv2d, tf.nn.conv2d_transpose),
    3: (tf.nn.conv3d, tf.nn.conv3d_transpose),
}
"""Spatial axes -> convolution and transposed convolution."""
_POOLS: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {
    1: (tf.nn.max_pool1d, tf.nn.avg_pool1d),
    2: (tf.nn.max_pool2d, tf.nn.avg_pool2d),
    3: (tf.nn.max_pool3d, tf.nn.avg_pool3d),
}


def conv(builder: Builder, node: Node) -> Any:
    """Build a convolution of a line or a volume."""
    kernel, (x, rank) = _kernel(builder, node), _channels_last(builder, node)
    groups = int(node.attributes.get("group", 1))
    if groups > 1 and rank == 3:
        raise refusal(node, f"group={groups} of a volume")
    x = _padded(x, _pads(node, rank))
    strides, dilations = _of(node, "strides", rank), _of(node, "dilations", rank)
    y = _KERNELS[rank][0](x, kernel, strides, padding="VALID", dilations=dilations)
    if has_input(node, 2):
        y = tf.nn.bias_add(y, builder.value(node, 2))
    return _back(builder, node, y)


def conv_transpose(builder: Builder, node: Node) -> Any:
    """Build a transposed convolution: without pads, then cut."""
    kernel, (x, rank) = _kernel(builder, node), _channels_last(builder, node)
    strides, dilations = _of(node, "strides", rank), _of(node, "dilations", rank)
    if int(node.attributes.get("group", 1)) > 1 or set(dilations) != {1}:
        raise refusal(node, "groups and dilations")
    sides = tuple(kernel.shape[:rank])
    wanted = builder.output_shape(node)[2:]
    whole = [
        max((size - 1) * step + side, step * size)
        for size, step, side in zip(x.shape[1:-1], strides, sides, strict=True)
    ]
    before = [before for before, _ in _pads(node, rank)]
    need = [max(size, cut + end) for size, cut, end in zip(whole, before, wanted, strict=True)]
    shape = (x.shape[0], *whole, kernel.shape[-2])
    y = _KERNELS[rank][1](x, kernel, shape, strides, padding="VALID")
    if need != whole:
        y = _padded(y, [(0, more - size) for more, size in zip(need, whole, strict=True)])
    if list(wanted) != need:
        parts = tuple(slice(cut, cut + end) for cut, end in zip(before, wanted, strict=True))
        y = y[(slice(None), *parts)]
    if has_input(node, 2):
        y = tf.nn.bias_add(y, builder.value(node, 2))
    return _back(builder, node, y)


def pool(builder: Builder, node: Node) -> Any:
    """Build a pooling of a line or a volume."""
    rank, most = builder.rank(node, 0) - 2, "Max" in node.op
    if node.op.startswith("Global"):
        reduce = tf.reduce_max if most else tf.reduce_mean
        return reduce(builder.value(node, 0), list(range(2, rank + 2)), keepdims=True)
    if any(node.outputs[1:]):
        raise refusal(node, "the places of the largest values")
    x, rank = _channels_last(builder, node)
    pads = _pads(node, rank)
    padded = any(before or after for before, after in pads)
    if set(_of(node, "dilations", rank)) != {1} or node.attributes.get("ceil_mode", 0):
        raise refusal(node, "dilations and ceil_mode")
    if padded and not (most or node.attributes.get("count_include_pad", 0)):
        raise UnsupportedError(
            f"{node.op} {node.name!r}: a mean that does not count pads cannot be built in "
            "TensorFlow"
        )
    x = _padded(x, pads, x.dtype.min if most else 0)
    sides = [int(side) for side in node.attributes["kernel_shape"]]
    y = _POOLS[rank][0 if most else 1](x, sides, _of(node, "strides", rank), padding="VALID")
    return _back(builder, node, y)


def _kernel(builder: Builder, node: Node) -> Any:
    """Return the filter in TensorFlow's order of axes, which it has if it is constant."""
    if builder.is_held(node, 1):
        return builder.value(node, 1)
    computed = builder.stored(node, 1)
    return tf.transpose(computed, kernel_axes(len(computed.shape)))


def _of(node: Node, name: str, rank: int) -> list[int]:
    return [int(value) for value in node.attributes.get(name) or [1] * rank]


def _channels_last(builder: Builder, node: Node) -> tuple[Any, int]:
    """Return the input with channels last, and its number of spatial axes."""
    x, rank = builder.value(node, 0), builder.rank(node, 0) - 2
    if rank not in _KERNELS:
        raise UnsupportedError(f"{node.op} {node.name!r}: {rank} axes have no kernel in TensorFlow")
    if builder.reads_images(node):
        return x, rank
    return tf.transpose(x, (0, *range(2, rank + 2), 1)), rank


def _back(builder: Builder, node: Node, y: Any) -> Any:
    if builder.reads_images(node):
        return y
    last = len(y.shape) - 1
    return tf.transpose(y, (0, last, *range(1, last)))


def _pads(node: Node, rank: int) -> list[tuple[int, int]]:
    """Return the pads before and after each spatial axis."""
    word = str(attribute(node, "auto_pad", "NOTSET"))
    if word not in ("NOTSET", "VALID", ""):
        raise UnsupportedError(f"{node.op} {node.name!r}: auto_pad={word} of lines and volumes")
    pads = _of(node, "pads", rank) if "pads" in node.attributes else [0] * (2 * rank)
    return list(zip(pads[:rank], pads[rank:], strict=True))


def _padded(x: Any, pads: Sequence[tuple[int, int]], value: Any = 0) -> Any:
    if not any(before or after for before, after in pads):
        return x
    margins = [(0, 0), *pads, (0, 0)]
    return tf.pad(x, margins, constant_values=tf.cast(value, x.dtype))
