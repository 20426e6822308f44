"""A small network made of given layers, one behind the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resperf.layers import Conv, Dense, Pool
from resperf.network import Network, Node, Tensor

_ACTIVATION_OPS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}


def chained(layers: Sequence[Conv | Pool | Dense]) -> Network:
    """Write layers as a network in ONNX operators; images are flattened before a dense layer.

    Each layer's input must be as large as the output of the one before.
    """
    tensors = [Tensor("x", layers[0].input_shape, "float32")]
    nodes: list[Node] = []

    def add(op: str, inputs: tuple[str, ...], shape: tuple[int, ...], **attributes: object) -> None:
        name = f"{op.lower()}{len(nodes)}"
        nodes.append(Node(name, op, "", inputs, (f"{name}_out",), attributes))
        tensors.append(Tensor(f"{name}_out", shape, "float32"))

    for place, layer in enumerate(layers):
        shape = tensors[-1].shape
        if isinstance(layer, Dense) and len(shape) > 2:
            add("Flatten", (tensors[-1].name,), (shape[0], math.prod(shape[1:])), axis=1)
        before = tensors[-1].name
        if isinstance(layer, Pool):
            add("MaxPool", (before,), layer.output_shape, **_window(layer))
            continue
        weights = [
            Tensor(f"w{place}", _weight_shape(layer), "float32", is_weight=True),
            Tensor(f"b{place}", (layer.output_shape[1],), "float32", is_weight=True),
        ]
        tensors = [*weights, *tensors]
        inputs = (before, *(weight.name for weight in weights))
        if isinstance(layer, Conv):
            add("Conv", inputs, layer.output_shape, **_window(layer))
        else:
            add("Gemm", inputs, layer.output_shape, transB=1)
        if layer.activation != "none":
            add(_ACTIVATION_OPS[layer.activation], (tensors[-1].name,), layer.output_shape)
    return Network(
        name="chain",
        nodes=tuple(nodes),
        tensors={tensor.name: tensor for tensor in tensors},
        inputs=("x",),
        outputs=nodes[-1].outputs,
        opsets={"": 17},
        batch=layers[0].batch,
    )


def _window(layer: Conv | Pool) -> dict[str, object]:
    return {
        "kernel_shape": (layer.kernel_height, layer.kernel_width),
        "strides": (layer.stride_height, layer.stride_width),
    }


def _weight_shape(layer: Conv | Dense) -> tuple[int, ...]:
    if isinstance(layer, Dense):
        return (layer.features_out, layer.features_in)
    taps = layer.channels_in // layer.groups
    return (layer.channels_out, taps, layer.kernel_height, layer.kernel_width)
