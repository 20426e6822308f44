"""A writer of ONNX networks without weights, one operator after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from onnx import ModelProto, TensorProto, helper

OPSET = 17
IR_VERSION = 8
ABSENT_FILE = "absent.weights"
Shape = tuple[int, ...]
_TYPES = {bool: TensorProto.BOOL, int: TensorProto.INT64, float: TensorProto.FLOAT}
Point = tuple[str, Shape]
"""A tensor of the network: its name, and its shape without the batch."""


class Builder:
    """Adds one operator at a time to the tensor that is current.

    Weights are marked as external data in a file that is never written: whoever runs the network
    draws them.

    Attributes
    ----------
    shape : tuple of int
        Of the current tensor, without the batch.
    macs : int
        Multiply-adds of convolutions and products with weights, for the whole batch.
    parameters : int
        Elements of all weights.
    """

    def __init__(self, *shape: int, batch: int = 1, dtype: int = TensorProto.FLOAT) -> None:
        self.batch = batch
        self.input = helper.make_tensor_value_info("input", dtype, [batch, *shape])
        self.name, self.shape = "input", shape
        self.nodes: list[Any] = []
        self.weights: list[TensorProto] = []
        self.macs = self.parameters = 0

    def model(self, name: str) -> ModelProto:
        """Finish: the current tensor is the output."""
        self.nodes[-1].output[0] = "output"
        shape = [self.batch, *self.shape]
        output = helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, name, [self.input], [output], self.weights)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(
            graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="resperf"
        )

    @property
    def at(self) -> Point:
        """The current tensor, to come back to."""
        return self.name, self.shape

    def go(self, at: Point) -> Self:
        """Make another tensor the current one."""
        self.name, self.shape = at
        return self

    def op(
        self, word: str, op: str, shape: Shape, weights: Mapping[str, Any] = {}, *,
        reads: Sequence[str] = (), **attributes: Any,
    ) -> Self:  # fmt: skip
        """Add a node that reads the current tensor, or those in `reads`, and weights."""
        name = f"{word}{len(self.nodes) + 1}"
        self.weights += [weight(f"{name}.{suffix}", given) for suffix, given in weights.items()]
        self.parameters += sum(math.prod(w) for w in weights.values() if isinstance(w, tuple))
        inputs = [*(reads or [self.name]), *(f"{name}.{suffix}" for suffix in weights)]
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return self.go((name, shape))

    def conv(
        self, channels: int, kernel: int | Shape, stride: int = 1, pad: int | Shape = 0, *,
        groups: int = 1, bias: bool = True,
    ) -> Self:  # fmt: skip
        """Add a convolution; a kernel or padding of two numbers is of height and width."""
        kernels = (kernel, kernel) if isinstance(kernel, int) else kernel
        pads = (pad, pad) if isinstance(pad, int) else pad
        weights: dict[str, Shape] = {"weight": (channels, self.shape[0] // groups, *kernels)}
        if bias:
            weights["bias"] = (channels,)
        sizes = zip(self.shape[1:], kernels, pads, strict=True)
        shape = (channels, *((n + 2 * p - k) // stride + 1 for n, k, p in sizes))
        self.macs += self.batch * math.prod((*weights["weight"], *shape[1:]))
        return self.op(
            "conv", "Conv", shape, weights, kernel_shape=kernels, strides=[stride] * 2,
            pads=[*pads, *pads], dilations=[1, 1], group=groups,
        )  # fmt: skip

    def up(self, channels: int) -> Self:
        """Transposed convolution that doubles height and width."""
        c, h, w = self.shape
        weights = {"weight": (c, channels, 2, 2), "bias": (channels,)}
        self.macs += self.batch * math.prod((*weights["weight"], h, w))
        return self.op(
            "up", "ConvTranspose", (channels, 2 * h, 2 * w), weights, kernel_shape=[2, 2],
            strides=[2, 2],
        )  # fmt: skip

    def norm(self) -> Self:
        """Batch normalisation."""
        weights = dict.fromkeys(("scale", "bias", "mean", "variance"), self.shape[:1])
        return self.op("norm", "BatchNormalization", self.shape, weights, epsilon=1e-5)

    def same(self, op: str, **attributes: Any) -> Self:
        """Add an operator whose output is like its input, such as ``Relu``."""
        return self.op(op.lower(), op, self.shape, **attributes)

    def relu(self) -> Self:  # noqa: D102
        return self.same("Relu")

    def relu6(self) -> Self:  # noqa: D102
        return self.op("relu6_", "Clip", self.shape, {"min": 0.0, "max": 6.0})

    def silu(self) -> Self:  # noqa: D102
        start = self.at
        return self.same("Sigmoid").joined("Mul", start)

    def hard_swish(self) -> Self:  # noqa: D102
        return self.same("HardSwish")

    def gelu(self) -> Self:
        """GELU as exporters write it."""
        start = self.at
        self.op("root", "Div", self.shape, {"root": 2**0.5}).same("Erf")
        self.op("one", "Add", self.shape, {"one": 1.0}).joined("Mul", start)
        return self.op("half", "Mul", self.shape, {"half": 0.5})

    def dropout(self, ratio: float = 0.5) -> Self:
        """Dropout, which training steps run."""
        return self.op("dropout", "Dropout", self.shape, {"ratio": ratio, "training": True})

    def pool(
        self, kernel: int, stride: int, pad: int = 0, *, op: str = "MaxPool", ceil: bool = False
    ) -> Self:
        """Add a pooling of square windows."""
        c, h, w = self.shape
        extra = stride - 1 if ceil else 0
        shape = (c, *((n + 2 * pad - kernel + extra) // stride + 1 for n in (h, w)))
        return self.op(
            "pool", op, shape, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4,
            ceil_mode=int(ceil),
        )  # fmt: skip

    def average(self) -> Self:
        """Average over height and width."""
        return self.op("average", "GlobalAveragePool", (self.shape[0], 1, 1))

    def flatten(self) -> Self:  # noqa: D102
        return self.op("flatten", "Flatten", (math.prod(self.shape),), axis=1)

    def dense(self, units: int) -> Self:
        """Add a layer on vectors."""
        weights = {"weight": (units, *self.shape), "bias": (units,)}
        self.macs += self.batch * math.prod(weights["weight"])
        return self.op("dense", "Gemm", (units,), weights, transB=1)

    def linear(self, units: int) -> Self:
        """Add a layer on the last axis."""
        shape, weights = (*self.shape[:-1], units), (self.shape[-1], units)
        self.macs += self.batch * math.prod(shape) * self.shape[-1]
        self.op("product", "MatMul", shape, {"weight": weights})
        return self.op("bias", "Add", shape, {"bias": (units,)})

    def layer_norm(self) -> Self:
        """Normalise the last axis."""
        weights = dict.fromkeys(("scale", "bias"), self.shape[-1:])
        return self.op("norm", "LayerNormalization", self.shape, weights, axis=-1)

    def reshape(self, *shape: int) -> Self:
        """Reshape all axes but the batch."""
        return self.op("reshape", "Reshape", shape, {"shape": [self.batch, *shape]})

    def transpose(self, *axes: int) -> Self:
        """Transpose the axes behind the batch, which are counted from 1."""
        shape = tuple(self.shape[axis - 1] for axis in axes)
        return self.op("transpose", "Transpose", shape, perm=[0, *axes])

    def joined(self, op: str, other: Point) -> Self:
        """Add an operator of the current tensor and another, such as ``Mul``."""
        return self.op(op.lower(), op, self.shape, reads=[self.name, other[0]])

    def add(self, other: Point) -> Self:  # noqa: D102
        return self.joined("Add", other)

    def concat(self, branches: Sequence[Point]) -> Self:
        """Concatenate channels."""
        names, shapes = zip(*branches, strict=True)
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        return self.op("concat", "Concat", shape, reads=names, axis=1)

    def conv_norm(self, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> Self:
        """Convolution with SAME padding and without bias, then normalisation."""
        return self.conv(channels, kernel, stride, kernel // 2, groups=groups, bias=False).norm()


def weight(name: str, given: Shape | float | list[int]) -> TensorProto:
    """Declare a weight whose bytes are nowhere, or numbers that are part of the structure."""
    if not isinstance(given, tuple):
        values = given if isinstance(given, list) else [given]
        shape = [len(values)] if isinstance(given, list) else []
        return helper.make_tensor(name, _TYPES[type(values[0])], shape, values)
    tensor = TensorProto(dims=given, data_type=TensorProto.FLOAT, name=name)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=ABSENT_FILE)
    return tensor
