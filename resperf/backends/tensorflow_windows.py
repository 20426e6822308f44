"""Convolutions and poolings of images, lines and volumes, and transposed ones, in TensorFlow.

Images are in NHWC, as TensorFlow's graph optimiser fuses them. Lines and volumes have the file's
order of axes and are transposed to channels last for the kernel and back, since CPUs have no
other kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import tensorflow as tf

from resperf.backends._attributes import attribute
from resperf.backends.tensorflow_builder import Builder, is_depthwise, kernel_axes, refusal
from resperf.errors import UnsupportedError
from resperf.layers._sliding import same_pads
from resperf.lowering._read import has_input
from resperf.network import Node


@dataclass(frozen=True)
class _Window:
    """The windows of an operator on images: a number, or two, for rows and for columns.

    Pads are those before and after each axis that some window covers.
    """

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[tuple[int, int]]
    is_same: bool

    @classmethod
    def of(cls, builder: Builder, node: Node, kernel: Sequence[int]) -> Self:
        strides, dilations = _of(node, "strides", 2), _of(node, "dilations", 2)
        sizes, counts = builder.input_shape(node, 0)[2:], builder.output_shape(node)[2:]
        axes = list(zip(sizes, kernel, strides, dilations, strict=True))
        same = [same_pads(*axis) for axis in axes]
        auto = str(attribute(node, "auto_pad", "NOTSET"))
        begins = [pads[auto == "SAME_LOWER"] for pads in same]
        if not auto.startswith("SAME"):
            begins = [before for before, _ in _pads(node, 2)]
        pads = [
            (before, max(0, (count - 1) * stride + dilation * (side - 1) + 1 - size - before))
            for (size, side, stride, dilation), count, before in zip(
                axes, counts, begins, strict=True
            )
        ]
        return cls(kernel, strides, dilations, pads, pads == same)

    @property
    def margins(self) -> list[tuple[int, int]]:
        return _around(self.pads, (0, 0))

    @property
    def padding(self) -> dict[str, Any]:
        """Arguments of a raw operation for these pads: VALID, SAME or explicit."""
        if not any(map(sum, self.pads)):
            return {"padding": "VALID"}
        if self.is_same:
            return {"padding": "SAME"}
        sides = [side for pair in self.margins for side in pair]
        return {"padding": "EXPLICIT", "explicit_paddings": sides}


def _around(values: Sequence[Any], other: Any) -> list[Any]:
    """Return one value for each axis of a tensor with channels last: `other` but in space."""
    return [other, *values, other]


def conv(builder: Builder, node: Node) -> Any:
    """Build a convolution."""
    if builder.rank(node, 0) == 4:
        return _image_conv(builder, node)
    kernel, (x, rank) = _kernel(builder, node), _channels_last(builder, node)
    groups = int(node.attributes.get("group", 1))
    if groups > 1 and rank == 3:
        raise refusal(node, f"group={groups} of a volume")
    x = _padded(x, _pads(node, rank))
    strides, dilations = _of(node, "strides", rank), _of(node, "dilations", rank)
    if rank == 1:
        y = tf.nn.conv1d(x, kernel, strides, padding="VALID", dilations=dilations)
    else:
        y = tf.nn.conv3d(x, kernel, _around(strides, 1), "VALID", dilations=_around(dilations, 1))
    if has_input(node, 2):
        y = tf.nn.bias_add(y, builder.value(node, 2))
    return _back(builder, node, y)


def _image_conv(builder: Builder, node: Node) -> Any:
    kernel_shape = builder.input_shape(node, 1)
    window = _Window.of(builder, node, kernel_shape[2:])
    x, kernel = builder.value(node, 0), _kernel(builder, node)
    if builder.is_held(node, 1) and is_depthwise(node, kernel_shape):
        y = _depthwise(window, x, kernel)
    else:
        y = tf.raw_ops.Conv2D(
            input=x,
            filter=kernel,
            strides=_around(window.strides, 1),
            dilations=_around(window.dilations, 1),
            **window.padding,
        )
    bias = builder.bias(node)
    return y if bias is None else tf.raw_ops.BiasAdd(value=y, bias=bias)


def _depthwise(window: _Window, x: Any, kernel: Any) -> Any:
    """Use TensorFlow's kernel for one channel per group."""
    if max(window.dilations) > 1:
        raise UnsupportedError(
            f"conv: dilation={_by(window.dilations)} with one channel per group has no single "
            "kernel in TensorFlow"
        )
    if len(set(window.strides)) > 1:
        raise UnsupportedError(
            f"conv: strides {_by(window.strides)} with one channel per group must be equal in "
            "TensorFlow"
        )
    padding = window.padding
    if padding["padding"] == "EXPLICIT":
        # Fused with a bias, this kernel's own explicit pads abort TensorFlow 2.21.
        x, padding = tf.raw_ops.Pad(input=x, paddings=window.margins), {"padding": "VALID"}
    return tf.raw_ops.DepthwiseConv2dNative(
        input=x, filter=kernel, strides=_around(window.strides, 1), **padding
    )


def _by(values: Sequence[int]) -> str:
    return "x".join(map(str, values))


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
    y = tf.nn.conv_transpose(x, kernel, shape, strides, padding="VALID")
    if need != whole:
        y = _padded(y, [(0, more - size) for more, size in zip(need, whole, strict=True)])
    if list(wanted) != need:
        parts = tuple(slice(cut, cut + end) for cut, end in zip(before, wanted, strict=True))
        y = y[(slice(None), *parts)]
    if has_input(node, 2):
        y = tf.nn.bias_add(y, builder.value(node, 2))
    return _back(builder, node, y)


def pool(builder: Builder, node: Node) -> Any:
    """Build a pooling."""
    rank, most = builder.rank(node, 0) - 2, "Max" in node.op
    if node.op.startswith("Global"):
        reduce = tf.reduce_max if most else tf.reduce_mean
        axes = [builder.axis(node, axis) for axis in range(2, rank + 2)]
        return reduce(builder.value(node, 0), axes, keepdims=True)
    if rank == 2:
        return _image_pool(builder, node)
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
    y = tf.nn.pool(x, sides, "MAX" if most else "AVG", _of(node, "strides", rank), padding="VALID")
    return _back(builder, node, y)


def _image_pool(builder: Builder, node: Node) -> Any:
    window = _Window.of(builder, node, [int(side) for side in node.attributes["kernel_shape"]])
    if max(window.dilations) > 1:
        raise UnsupportedError(
            f"pool: dilation={_by(window.dilations)} has no kernel in TensorFlow on CPU"
        )
    for pads, side in zip(window.pads, window.kernel, strict=True):
        if max(pads) >= side:
            raise UnsupportedError(
                f"pool: {max(pads)} padded pixels must be fewer than the {side} of the window in "
                "TensorFlow"
            )
    x, padding = builder.value(node, 0), window.padding
    how = {"ksize": _around(window.kernel, 1), "strides": _around(window.strides, 1)}
    if "Max" in node.op:
        return tf.raw_ops.MaxPool(input=x, **how, **padding)
    counts_pads = bool(node.attributes.get("count_include_pad", 0))
    ceil_mode = bool(node.attributes.get("ceil_mode", 0))
    # TensorFlow's own padding never counts in a mean, and it pads as SAME or not at all.
    if padding["padding"] == "VALID" or (padding["padding"] == "SAME" and not counts_pads):
        return tf.raw_ops.AvgPool(value=x, **how, **padding)
    if counts_pads and not ceil_mode:
        padded = tf.raw_ops.Pad(input=x, paddings=window.margins)
        return tf.raw_ops.AvgPool(value=padded, padding="VALID", **how)
    raise UnsupportedError(
        f"pool: a mean over pads {window.pads[0]} and {window.pads[1]} with count_include_pad="
        f"{counts_pads}, ceil_mode={ceil_mode} has no kernel in TensorFlow, which pads means as "
        "SAME only"
    )


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
    if rank not in (1, 2, 3):
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
    return tf.pad(x, _around(pads, (0, 0)), constant_values=tf.cast(value, x.dtype))
