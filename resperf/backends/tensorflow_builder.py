"""State of a network while it is built in TensorFlow: weights, layers, tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from resperf.backends.tensorflow_layers import Array, weights_from_onnx
from resperf.errors import UnsupportedError
from resperf.layers import Conv, Dense, Layer, Pool
from resperf.lowering._read import has_input, layer_of, tensor_of
from resperf.lowering.tensorflow import Links, foldable_norm, lower_layer
from resperf.network import Network, Node

STORED_AXES = (0, 2, 3, 1)
"""Axis in the file (NCHW) of each axis of an image in TensorFlow (NHWC)."""
_CONSTANT_VALUE = 0.01


class Builder:
    """Turns a network's nodes into TensorFlow operations, in order.

    Parameters
    ----------
    network : Network
        Without nodes that pass their input through.
    weights : mapping of str to ndarray
        Values of constants, in the file's layout.

    Attributes
    ----------
    held : list of Tensor
        Tensors that the traced function captures; clearing the list frees the weights.
    """

    def __init__(self, network: Network, weights: Mapping[str, Array]) -> None:
        self.network = network
        self.held: list[Any] = []
        self._weights = weights
        self._values: dict[str, Any] = {}
        self._layers: dict[str, tuple[Layer, slice]] = {}
        self._folded: set[str] = set()
        # Before tracing: weights that are made while tracing become constants of the graph.
        links = Links.of(network)
        for node in network.nodes:
            if node.op in _LAYERS and self._has_fixed_weights(node):
                self._add_layer(node, links)

    def outputs(self, build: Callable[[Builder, Node], Any], *inputs: Any) -> list[Any]:
        """Build every node on the network's inputs; called while the function is traced."""
        self._values = dict(zip(self.network.inputs, inputs, strict=True))
        for node in self.network.nodes:
            self._values[node.outputs[0]] = build(self, node)
        found = [self._values[name] for name in self.network.outputs]
        self._values = {}
        return found

    def free_host_weights(self) -> None:
        """Free the host's copy of all weights, since the traced function references this object."""
        self._weights = {}

    def value(self, node: Node, position: int) -> Any:
        """Return a node's input as a tensor, constants in the layout of the other inputs."""
        name = node.inputs[position]
        if name in self._values:
            return self._values[name]
        array = self.constant(node, position)
        if array.ndim and 4 in (self.rank(node, i) for i in range(len(node.inputs))):
            # In the file it broadcasts along NCHW axes.
            array = array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(STORED_AXES)
        return tf.constant(np.ascontiguousarray(array))

    def constant(self, node: Node, position: int) -> Array:
        """Return a node's constant input in the file's layout.

        Raises
        ------
        UnsupportedError
            If it is not a constant.
        """
        tensor = tensor_of(self.network, node, position)
        if tensor.name in self._weights:
            return np.asarray(self._weights[tensor.name])
        if not tensor.is_weight:
            raise UnsupportedError(
                f"{node.op} {node.name!r}: input {tensor.name!r} must be a constant in TensorFlow"
            )
        if tensor.value is not None:
            return np.asarray(tensor.value)
        return np.full(tensor.shape, _CONSTANT_VALUE, tensor.dtype)

    def input_shape(self, node: Node, position: int) -> tuple[int, ...]:
        """Return the shape of an input in the file."""
        return tensor_of(self.network, node, position).shape

    def rank(self, node: Node, position: int) -> int:
        """Return the rank of an input in the file."""
        return len(self.input_shape(node, position))

    def output_shape(self, node: Node) -> tuple[int, ...]:
        """Return the shape of the first output in the file."""
        try:
            return self.network.tensors[node.outputs[0]].shape
        except KeyError as error:
            raise UnsupportedError(
                f"{node.op} {node.name!r}: the shape of its output is not known"
            ) from error

    def has_layer(self, node: Node) -> bool:
        """Whether the node is a layer with constant weights."""
        return node.name in self._layers

    def layer_of(self, node: Node) -> tuple[Layer, list[Any]]:
        """Return the layer of a node, and its weights."""
        layer, place = self._layers[node.name]
        return layer, self.held[place]

    def is_folded(self, node: Node) -> bool:
        """Whether a BatchNormalization is folded into its convolution's weights."""
        return node.name in self._folded

    def scale_and_shift(self, norm: Node) -> tuple[Array, Array]:
        """Return the scale and shift of a BatchNormalization, per channel."""
        gamma, beta, mean, variance = (self.constant(norm, position) for position in range(1, 5))
        scale = gamma / np.sqrt(variance + norm.attributes.get("epsilon", 1e-5))
        return scale.astype(np.float32), (beta - mean * scale).astype(np.float32)

    def _has_fixed_weights(self, node: Node) -> bool:
        return node.op != "MatMul" or (
            tensor_of(self.network, node, 1).is_weight and self.rank(node, 1) == 2
        )

    def _add_layer(self, node: Node, links: Links) -> None:
        layer = lower_layer(layer_of(_LAYERS[node.op], self.network, node))
        weights = self._weights_of_layer(node)
        norm = foldable_norm(self.network, links, node) if node.op == "Conv" else None
        if norm is not None:
            scale, shift = self.scale_and_shift(norm)
            bias = weights[1] if len(weights) > 1 else np.zeros_like(shift)
            weights = [weights[0] * scale.reshape(-1, 1, 1, 1), bias * scale + shift]
            layer = layer.replace(bias=True)
            self._folded.add(norm.name)
        start = len(self.held)
        self.held += [tf.constant(array) for array in weights_from_onnx(layer, weights)]
        self._layers[node.name] = (layer, slice(start, len(self.held)))

    def _weights_of_layer(self, node: Node) -> list[Array]:
        """Return filter or matrix and bias in ONNX's layout; a matrix is never transposed."""
        if node.op in Pool.OPERATORS:
            return []
        if node.op == "Gemm" and node.attributes.get("transA", 0):
            raise UnsupportedError(f"Gemm {node.name!r}: transA cannot be built in TensorFlow")
        weights = [self.constant(node, i) for i in (1, 2) if has_input(node, i)]
        if node.op != "Gemm":
            return weights
        if node.attributes.get("transB", 0):
            weights[0] = np.ascontiguousarray(weights[0].T)
        for place, factor in enumerate(("alpha", "beta")[: len(weights)]):
            if node.attributes.get(factor, 1.0) != 1.0:
                weights[place] = weights[place] * np.float32(node.attributes[factor])
        features_out = weights[0].shape[1]
        return [weights[0], *(np.broadcast_to(b, (1, features_out))[0] for b in weights[1:])]


_LAYERS: Mapping[str, type[Layer]] = {
    "Conv": Conv,
    "Gemm": Dense,
    "MatMul": Dense,
    **dict.fromkeys(Pool.OPERATORS, Pool),
}
