"""State of a network while it is built in TensorFlow: weights, layers, tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from resperf.backends._values import Array
from resperf.errors import LayerError, UnsupportedError
from resperf.layers import Dense
from resperf.lowering._read import has_input, layer_of, tensor_of
from resperf.lowering.tensorflow import FILE_AXES, STORED_AXES, Storage, foldable_norm, moves, nhwc
from resperf.network import Network, Node, Tensor
from resperf.network.rewriting import Rewriting

_CONSTANT_VALUE = 0.01
HELD_VALUES = 16
"""Constants of more values are captured tensors, like variables; smaller ones are in the graph."""
BY_VALUE = frozenset({
    "BatchNormalization", "Clip", "Pad", "Slice", "Split", "Resize", "Upsample", "Tile", "Expand",
    "Reshape", "TopK", "CumSum", "QuantizeLinear", "DequantizeLinear",
})  # fmt: skip
"""Operators whose constants are read while the graph is built."""


class Builder:
    """Turns a network's nodes into TensorFlow operations, in order.

    Parameters
    ----------
    network : Network
        Without nodes that pass their input through.
    weights : mapping of str to ndarray, or None
        Values of constants, in the file's layout; None where only shapes and types are held.
    training : bool
        Whether weights are variables, and normalisations use the batch's statistics.

    Attributes
    ----------
    held : list of Tensor or Variable
        What the traced function captures, or shapes and types of that; clearing the list frees the
        weights.
    storage : Storage
        Which tensors of rank 4 are stored in NHWC.
    products : set of str
        Nodes that multiply by a held matrix (features_in, features_out).
    statistics : dict of str to (Variable, Variable)
        Running mean and variance of each BatchNormalization that is trained.
    folded : set of str
        Each BatchNormalization that is folded into its convolution's weights.
    """

    def __init__(
        self, network: Network, weights: Mapping[str, Array] | None, *, training: bool = False
    ) -> None:
        self.network = network
        self.training = training
        self.held: list[Any] = []
        self.statistics: dict[str, tuple[Any, Any]] = {}
        self.storage = Storage.of(network)
        self._weights, self._holds_values = weights or {}, weights is not None
        self._values: dict[tuple[str, bool], Any] = {}
        self.products: set[str] = set()
        self._constants: dict[tuple[str, int], int] = {}
        self._indices: dict[tuple[Any, ...], int] = {}
        self.folded: set[str] = set()
        # Before tracing: weights that are made while tracing become constants of the graph.
        graph = Rewriting(network)
        for node in network.nodes:
            if self._hold_product(node) or self._hold_folded(node, graph):
                continue
            if training and node.op == "BatchNormalization":
                self.statistics[node.name] = tuple(
                    tf.Variable(self.constant(node, i), trainable=False) for i in (3, 4)
                )
                self._hold_constants(node, range(3))
            elif node.op not in BY_VALUE:
                self._hold_constants(node, range(len(node.inputs)))
            elif training:
                self._hold_constants(node, range(1))

    def outputs(
        self,
        build: Callable[[Builder, Node], Any],
        *inputs: Any,
        weights: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Build every node on the network's inputs; called while the function is traced.

        Parameters
        ----------
        build : callable
            Returns the output of a node, or a tuple of several.
        *inputs : Tensor
            As stored: images in NHWC (`stored_shape`).
        weights : sequence of Tensor, optional
            Instead of `held`.
        """
        held = self.held
        # A variable is read once.
        self.held = [tf.convert_to_tensor(x) for x in (held if weights is None else weights)]
        for name, value in zip(self.network.inputs, inputs, strict=True):
            self._values[self._key(name)] = value
        for node in self.network.nodes:
            result = build(self, node)
            values = result if isinstance(result, tuple) else (result,)
            for name, value in zip(node.outputs, values, strict=False):
                if name:
                    self._values[self._key(name)] = value
        outputs = [self._stored(name) for name in self.network.outputs]
        self._values, self.held = {}, held
        return outputs

    def _key(self, name: str) -> tuple[str, bool]:
        return name, name in self.storage.images

    def _stored(self, name: str) -> Any:
        """Return a tensor as it is stored; a network may also end with one of its constants."""
        if self._key(name) in self._values:
            return self._values[self._key(name)]
        return tf.constant(self._array(self.network.tensors[name]))

    def stored_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that a tensor has in memory."""
        shape = self.network.tensors[name].shape
        return nhwc(shape) if name in self.storage.images else shape

    def free_host_weights(self) -> None:
        """Free the host's copy of all weights, since the traced function references this object."""
        self._weights = {}

    def reads_images(self, node: Node) -> bool:
        """Whether a node runs on NHWC images."""
        return self.storage.reads_images(self.network, node)

    def value(self, node: Node, position: int) -> Any:
        """Return a node's input as a tensor, in the layout that the node reads."""
        name, as_image = node.inputs[position], self.reads_images(node)
        if self._key(name) not in self._values:
            return self._constant_tensor(node, position, as_image)
        if self.rank(node, position) != 4:
            return self._values[name, False]
        if (name, as_image) not in self._values:
            stored, shape = self._values[self._key(name)], tensor_of(self.network, node, position)
            self._values[name, as_image] = _converted(stored, shape.shape, as_image)
        return self._values[name, as_image]

    def stored(self, node: Node, position: int = 0) -> Any:
        """Return a node's input as it is stored."""
        return self._stored(node.inputs[position])

    def optional(self, node: Node, position: int) -> Any:
        """Return a node's input as a tensor; None if it is absent."""
        return self.value(node, position) if has_input(node, position) else None

    def axis(self, node: Node, axis: int) -> int:
        """Return the position in memory of an axis of a node's first input in the file."""
        rank = self.rank(node, 0)
        is_image = rank == 4 and self.reads_images(node)
        return STORED_AXES.index(axis % 4) if is_image else axis % rank

    def is_held(self, node: Node, position: int) -> bool:
        """Whether a node's input is a captured constant."""
        return (node.name, position) in self._constants

    def _constant_tensor(self, node: Node, position: int, as_image: bool) -> Any:
        if self.is_held(node, position):
            return self.held[self._constants[node.name, position]]
        as_image = as_image and not is_per_channel(node, position)
        return tf.constant(self._in_layout(self.constant(node, position), as_image))

    def _in_layout(self, array: Array, as_image: bool) -> Array:
        """Transpose a constant that broadcasts along the axes of NCHW images in the file."""
        if not as_image or not array.ndim:
            return array
        return array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(STORED_AXES)

    def _hold_constants(self, node: Node, positions: Iterable[int]) -> None:
        """Capture a node's large constants, in the layout that it reads.

        In training those of few values too, since floats with axes are trained. Nodes that read
        the same constant share it.
        """
        is_convolution = node.op in ("Conv", "ConvTranspose")
        for position in positions:
            tensor = self.network.tensors.get(node.inputs[position])
            is_kernel = is_convolution and position == 1
            if tensor is None or not tensor.is_weight:
                continue
            fewest = 0 if self.training and tensor.shape else HELD_VALUES
            if math.prod(tensor.shape) <= fewest and not is_convolution:
                continue
            array = self.constant(node, position)
            is_image = False
            if is_kernel:
                array = kernel_in_layout(node, array)
            elif not is_per_channel(node, position):
                is_image = self.reads_images(node)
                array = self._in_layout(array, is_image)
            form = is_kernel, is_image, is_kernel and is_depthwise(node, tensor.shape)
            self._hold(node, position, array, *form)

    def _hold(self, node: Node, position: int, array: Array, *form: object) -> None:
        """Capture an input of a node, once for all that read it in one form."""
        what = (node.inputs[position] if has_input(node, position) else "", *form)
        if what not in self._indices:
            self._indices[what] = len(self.held)
            self.held.append(self._captured(array))
        self._constants[node.name, position] = self._indices[what]

    def _captured(self, array: Array) -> Any:
        if not self._holds_values:
            return tf.TensorSpec(array.shape, array.dtype)
        tensor = tf.constant(array)
        is_trained = self.training and tensor.dtype.is_floating and array.ndim
        return tf.Variable(tensor) if is_trained else tensor

    def constant(self, node: Node, position: int) -> Array:
        """Return a node's constant input in the file's layout.

        Raises
        ------
        UnsupportedError
            If it is not a constant.
        """
        tensor = tensor_of(self.network, node, position)
        if not tensor.is_weight and tensor.name not in self._weights:
            raise UnsupportedError(
                f"{node.op} {node.name!r}: input {tensor.name!r} must be a constant in TensorFlow"
            )
        return self._array(tensor)

    def _array(self, tensor: Tensor) -> Array:
        """Return a constant's value in the type that it has in the network's precision."""
        if tensor.name in self._weights:
            array = np.asarray(self._weights[tensor.name])
        elif tensor.value is not None:
            array = np.asarray(tensor.value)
        else:
            whole = np.dtype(tensor.dtype).kind in "iub"
            value = np.array(1 if whole else _CONSTANT_VALUE, tensor.dtype)
            array = np.broadcast_to(value, tensor.shape)
        return array.astype(tensor.dtype, copy=False)

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

    def bias(self, node: Node) -> Any:
        """Return the third input of a node, or what is folded into it; None without one."""
        if self.is_held(node, 2):
            return self.held[self._constants[node.name, 2]]
        return self.optional(node, 2)

    def scale_and_shift(self, norm: Node) -> tuple[Array, Array]:
        """Return the scale and shift of a BatchNormalization, per channel."""
        gamma, beta, mean, variance = (
            self.constant(norm, position).astype(np.float32) for position in range(1, 5)
        )
        scale = gamma / np.sqrt(variance + norm.attributes.get("epsilon", 1e-5))
        dtype = tensor_of(self.network, norm, 0).dtype
        return scale.astype(dtype), (beta - mean * scale).astype(dtype)

    def _has_fixed_weights(self, node: Node) -> bool:
        positions = [position for position in (1, 2) if has_input(node, position)]
        return all(tensor_of(self.network, node, position).is_weight for position in positions)

    def _hold_product(self, node: Node) -> bool:
        """Capture matrix and bias of a product with fixed weights, if it is one."""
        if node.op not in ("Gemm", "MatMul") or not self._has_fixed_weights(node):
            return False
        if node.attributes.get("transA", 0) or self.rank(node, 1) != 2:
            return False
        try:
            layer_of(Dense, self.network, node)
        except (UnsupportedError, LayerError):
            return False
        form = "product", repr(sorted(node.attributes.items()))
        for position, array in enumerate(self._weights_of_product(node), 1):
            self._hold(node, position, array, *form)
        self.products.add(node.name)
        return True

    def _hold_folded(self, node: Node, graph: Rewriting) -> bool:
        """Capture filter and bias of a convolution with the normalisation behind it, if any."""
        if node.op != "Conv" or self.training or not self._has_fixed_weights(node):
            return False
        norm = foldable_norm(graph, node) if self.rank(node, 0) == 4 else None
        if norm is None:
            return False
        scale, shift = self.scale_and_shift(norm)
        kernel = self.constant(node, 1)
        bias = self.constant(node, 2) if has_input(node, 2) else np.zeros_like(shift)
        folded = (kernel * scale.reshape(-1, 1, 1, 1)).astype(kernel.dtype)
        folded = kernel_in_layout(node, folded)
        self._hold(node, 1, folded, norm.name)
        self._hold(node, 2, (bias * scale + shift).astype(kernel.dtype), norm.name)
        self.folded.add(norm.name)
        return True

    def _weights_of_product(self, node: Node) -> list[Array]:
        """Return matrix and bias; a matrix is never transposed."""
        weights = [self.constant(node, i) for i in (1, 2) if has_input(node, i)]
        if node.op != "Gemm":
            return weights
        if node.attributes.get("transB", 0):
            weights[0] = weights[0].T
        for index, factor in enumerate(("alpha", "beta")[: len(weights)]):
            if node.attributes.get(factor, 1.0) != 1.0:
                scaled = weights[index] * np.float32(node.attributes[factor])
                weights[index] = scaled.astype(weights[index].dtype)
        features_out = weights[0].shape[1]
        return [weights[0], *(np.broadcast_to(b, (1, features_out))[0] for b in weights[1:])]


def refusal(node: Node, why: str) -> UnsupportedError:
    """Say what of a node TensorFlow does not have."""
    return UnsupportedError(f"{node.op} {node.name!r}: {why} cannot be built in TensorFlow")


def _converted(value: Any, shape: tuple[int, ...], to_image: bool) -> Any:
    """Transpose a tensor of a shape in the file to an image, or back."""
    if not moves(shape):
        return tf.reshape(value, nhwc(shape) if to_image else shape)
    return tf.transpose(value, STORED_AXES if to_image else FILE_AXES)


def is_depthwise(node: Node, kernel_shape: Sequence[int]) -> bool:
    """Whether a node is a convolution of images with one channel per group."""
    groups = int(node.attributes.get("group", 1))
    return node.op == "Conv" and len(kernel_shape) == 4 and groups > 1 and kernel_shape[1] == 1


def kernel_in_layout(node: Node, array: Array) -> Array:
    """Transpose a filter (channels, channels, rows, ...) to (rows, ..., channels, channels).

    TensorFlow's transposed convolutions have the input's channels last, as ONNX's have them first;
    its depthwise ones have the output's channels of each group last.
    """
    if is_depthwise(node, array.shape):
        return array.reshape(int(node.attributes["group"]), -1, *array.shape[2:]).transpose(
            2, 3, 0, 1
        )
    return array.transpose(kernel_axes(array.ndim))


def kernel_axes(rank: int) -> tuple[int, ...]:
    """Return the axes of ONNX's filter in TensorFlow's order."""
    return (*range(2, rank), 1, 0)


PER_CHANNEL = frozenset({"Conv", "ConvTranspose", "InstanceNormalization", "BatchNormalization"})
"""Operators whose weights, behind the first input, hold one value per channel."""


def is_per_channel(node: Node, position: int) -> bool:
    """Whether a node's input holds one value per channel."""
    return node.op in PER_CHANNEL and position > 0
