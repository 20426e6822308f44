"""A training step of eager PyTorch, as layers of the kinds that its runs have.

Nobody has measured kernels of backward passes by themselves, so that layers of the same work stand
for them: two products for a product, two convolutions for a convolution, and for all else layers
that move as many bytes. Gradients that several operators return of one tensor are added up. The
update moves as many bytes as the optimizer's operators do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from resperf.errors import UnsupportedError
from resperf.layers import Conv, Elementwise, Layer
from resperf.layers._operator import FLOATS
from resperf.lowering._base import LoweredNetwork, LoweredNode
from resperf.lowering._torch_memory import optimizer_of
from resperf.lowering.torch import as_run, lower
from resperf.network import Network
from resperf.platform import Platform
from resperf.settings import HALF_TYPES, Setting

_PRODUCTS = (
    "attention", "conv", "conv_nd", "conv_transpose", "conv_transpose_nd", "dense", "einsum",
    "matmul", "recurrent",
)  # fmt: skip
"""Kinds whose backward pass is twice the work of the forward pass."""


def require_trainable(network: Network) -> None:
    """Refuse a network that training cannot change.

    Raises
    ------
    UnsupportedError
        If it is quantised, has no output of floats, or no weight of floats.
    """
    why = ""
    for node in network.nodes:
        if "Quantize" in node.op or node.op.startswith("QLinear") or node.op.endswith("Integer"):
            why = f"{node.name!r} ({node.op}) has no gradient (take the file before quantisation)"
    outputs = [network.tensors[name] for name in network.outputs if name in network.tensors]
    if outputs and not any(tensor.dtype in FLOATS for tensor in outputs):
        why = "no output is of floats"
    weights = (*network.tensors.values(), *network.weight_tensors.values())
    if not any(tensor.is_learnt and tensor.dtype in FLOATS for tensor in weights):
        why = why or "no weight is of floats"
    if why:
        raise UnsupportedError(f"{network.name} cannot be trained: {why}; leave out --train")


def training_step(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    """Lower a network's forward pass, backward pass and update, in this order.

    Parameters
    ----------
    network : Network
    setting : Setting
        With the optimizer.
    platform : Platform

    Raises
    ------
    UnsupportedError
        If the optimizer is not known, or as `lower`.
    """
    forward = lower(network, setting, platform)
    layers = [
        layer
        for node in reversed(forward.nodes)
        if node.layer is not None
        for layer in _backward(node.layer)
    ]
    layers += _added_up(as_run(network, setting))
    if parameters := int(network.parameters or 0):
        dtype = HALF_TYPES.get(setting.precision, "float32")
        sums = optimizer_of(setting).moved / 3
        layers.append(Elementwise(batch=1, inner=round(sums * parameters), dtype=dtype))
    behind = [
        LoweredNode(f"backward_{index}", layer.kind, layer, "execution")
        for index, layer in enumerate(layers)
    ]
    # Inputs, and gradients of outputs, lie on the device.
    nodes = (*forward.nodes, *behind)
    return replace(forward, nodes=nodes, inputs=(), outputs=(), by_engine=len(behind))


def _backward(layer: Layer) -> list[Layer]:
    """Return what stands for the gradients of a layer's inputs and weights."""
    if layer.kind in _PRODUCTS:
        return [layer] * (3 if _is_pointwise(layer) else 2)
    if isinstance(layer, Elementwise) and layer.function in ("add", "sub"):
        return []
    # A value and its gradient are read, and the gradient of the input is written.
    one = _elementwise(layer.output_shape, "mul", str(layer.fields().get("dtype", "float32")))
    # A normalisation sums them first, and has read the batch's statistics.
    return {"norm": [one, one], "activation": [one], "elementwise": [one]}.get(layer.kind, [layer])


def _is_pointwise(layer: Layer) -> bool:
    """Whether it convolves single places: sums of its weights' gradients are long and slow."""
    return isinstance(layer, Conv) and layer.kernel_height * layer.kernel_width == 1


def _added_up(network: Network) -> Iterator[Layer]:
    """Yield the sums of gradients of tensors that several operators read."""
    variables = {name for node in network.nodes for name in node.outputs}
    readers = Counter(name for node in network.nodes for name in node.inputs if name in variables)
    for name, count in readers.items():
        tensor = network.tensors.get(name)
        if tensor is not None and tensor.dtype in FLOATS and tensor.shape:
            yield from [_elementwise(tensor.shape, "add", tensor.dtype)] * (count - 1)


def _elementwise(shape: tuple[int, ...], function: str, dtype: str) -> Layer:
    """Return a function of two tensors of a shape."""
    inner = max(math.prod(shape[1:]), 1)
    return Elementwise(batch=max(shape[0], 1), inner=inner, function=function, dtype=dtype)
