"""ONNX models of several copies of one layer, or of a network, as TensorRT's parser reads them.

Copies share no tensor: each has inputs, weights and an output of its own. So TensorRT cannot merge
them (it merges convolutions that read one tensor), and drops none, since each makes an output of
the network. All nodes of a copy begin with its name, ``copy3.``, which TensorRT keeps in the names
or metadata of an engine's layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from resperf.backends._base import Shapes
from resperf.backends._values import (
    Array,
    in_order,
    inputs_of_kernel,
    kernel_values,
    made_up,
    network_input,
    onnx_kernel,
    weights_of_kernel,
)
from resperf.errors import UnsupportedError
from resperf.layers import Activation, Kernel, Layer
from resperf.layers.attention import Attention
from resperf.network.protos import data_type_of, dtype_name
from resperf.network.weights import materialise
from resperf.settings import HALF_TYPES

OPSET = 17
"""That of the kernels' attributes; TensorRT 10 and 11 read it."""
INT8_OPERATORS = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "AveragePool", "GlobalAveragePool"}
)
"""Operators that TensorRT computes in int8 between a dequantisation and a quantisation."""
_SCALE = 0.05
_EPSILON = 1e-5
_ROOT_2_OVER_PI = math.sqrt(2 / math.pi)


def kernel_of(layer: Layer, *, int8: bool = False) -> Kernel:
    """Return the ONNX operator of a layer, in the layer's type.

    Parameters
    ----------
    layer : Layer
    int8 : bool
        Whether it is to run in int8.

    Raises
    ------
    UnsupportedError
        If TensorRT's parser has no such operator, or int8 is asked of a layer that has none.
    """
    kernel = onnx_kernel(layer, "TensorRT")
    if kernel.domain and kernel.op not in _STANDARD:
        raise UnsupportedError(
            f"TensorRT's parser has no {kernel.domain}.{kernel.op}, which is ONNX Runtime's own"
        )
    if isinstance(layer, Attention) and layer.features:
        raise UnsupportedError(
            "attention with projections is ONNX Runtime's own; TensorRT runs matrix products and "
            "an attention without projections (features=0)"
        )
    dtype = str(layer.fields().get("dtype"))
    if int8 and (kernel.op not in INT8_OPERATORS or dtype != "float32"):
        raise UnsupportedError(
            f"TensorRT has no int8 kernel for {layer.kind} ({kernel.op}, {dtype}): inside networks "
            "with QuantizeLinear it runs in another type; measure it with precision fp32 or fp16"
        )
    return kernel.in_floats(dtype)


def copies_model(
    kernel: Kernel, copies: int, *, int8: bool = False
) -> tuple[bytes, dict[str, Array]]:
    """Build a model of copies of a kernel.

    Parameters
    ----------
    kernel : Kernel
        As `kernel_of` returned it.
    copies : int
    int8 : bool
        Whether inputs, weights and output are quantised.

    Returns
    -------
    model : bytes
        ONNX. Inputs and outputs are called ``copy3.x``, ``copy3.extra0``, ``copy3.y``.
    host : dict of str to array
        What each copy reads, by the part of the name after the point. Values of type bfloat16 are
        uint16 with the same bits.

    Raises
    ------
    UnsupportedError
        If its values cannot be made up, or it is too large for one ONNX file (2 GB).
    """
    # The model is made in place: copying it would take as long as its weights are large.
    model = ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", OPSET)])
    graph = _Graph(model.graph, kernel, int8)
    for copy in range(copies):
        graph.add(copy)
    return as_bytes(model, "the layer"), graph.host()


def as_bytes(model: ModelProto, name: str) -> bytes:
    """Serialise a model.

    Raises
    ------
    UnsupportedError
        If it is larger than 2 GB, the limit of the format.
    """
    try:
        return bytes(model.SerializeToString())
    except Exception as error:  # protobuf's implementations raise different ones
        raise UnsupportedError(f"{name} has more than 2 GB of weights: {error}") from error


class _Graph:
    """Nodes, weights, inputs and outputs of the copies so far."""

    def __init__(self, graph: GraphProto, kernel: Kernel, quantized: bool) -> None:
        graph.name = "copies"
        self._graph, self._kernel, self._quantized = graph, kernel, quantized
        self._weights, self._reads = weights_of_kernel(kernel), inputs_of_kernel(kernel)
        self._copy = 0
        self._count = 0

    def add(self, copy: int) -> None:
        """Add one copy: the operator, a residual, and the activation that is fused into it."""
        self._copy, self._count, kernel = copy, 0, self._kernel
        read = {name: self._input(name) for name in self._reads}
        residual = read.pop("extra0") if kernel.op == "Conv" and "extra0" in read else ""
        first, *others = read.values()
        operands = [first, *self._own_weights(), *others]
        names = [*in_order(kernel, operands, ""), *self._constants()]
        if kernel.op in _STANDARD:
            result = _STANDARD[kernel.op](self, names)
        else:
            more = kernel.more_outputs
            result = self.node(kernel.op, *names, more_outputs=more, **kernel.attributes)
        if residual:
            result = self.node("Add", result, residual)
        if kernel.activation != "none":
            result = self._activation(result)
        self._output(result)

    def host(self) -> dict[str, Array]:
        """Return what a copy reads, by name without the copy."""
        if self._quantized:
            return {name: made_up(shape, "int8") for name, (shape, _) in self._reads.items()}
        inputs = {
            name: (shape, "float32" if dtype == "bfloat16" else dtype)
            for name, (shape, dtype) in self._reads.items()
        }
        return {
            name: _bits(values) if self._reads[name][1] == "bfloat16" else values
            for name, values in kernel_values(self._kernel, inputs).items()
        }

    def node(self, op: str, *inputs: str, more_outputs: int = 0, **attributes: object) -> str:
        """Add a node of this copy; return the name of its first output."""
        self._count += 1
        name = f"copy{self._copy}.{op}{self._count}"
        results = [f"{name}.out", *(f"{name}.more{index}" for index in range(more_outputs))]
        self._graph.node.append(helper.make_node(op, inputs, results, name, **attributes))
        return results[0]

    def constant(self, values: Array | Sequence[int] | float) -> str:
        """Add a constant of this copy: integers as int64, floats in the kernel's type."""
        self._count += 1
        array = np.asarray(values)
        name = f"c{self._copy}_{self._count}"
        dtype = self._kernel.dtype if array.dtype.kind == "f" else str(array.dtype)
        self._graph.initializer.append(tensor(name, array, dtype))
        return name

    def _input(self, name: str) -> str:
        shape, dtype = self._reads[name]
        full = f"copy{self._copy}.{name}"
        self._graph.input.append(_info(full, shape, "int8" if self._quantized else dtype))
        return self._dequantized(full) if self._quantized else full

    def _output(self, result: str) -> None:
        kernel, full = self._kernel, f"copy{self._copy}.y"
        dtype = kernel.output_dtype or kernel.dtype
        if self._quantized:
            dtype = "int8"
            result = self.node("QuantizeLinear", result, *self._scale())
        self._graph.node[-1].output[0] = full
        self._graph.output.append(_info(full, kernel.output_shape, dtype))

    def _own_weights(self) -> list[str]:
        names = []
        for index, (shape, dtype) in enumerate(self._weights):
            # The bias stays float32, and takes no part in the products.
            int8 = self._quantized and len(shape) > 1
            name = f"w{self._copy}_{index}"
            weight = _made_up_weight(name, shape, "int8" if int8 else dtype, self._copy)
            self._graph.initializer.append(weight)
            names.append(self._dequantized(name) if int8 else name)
        return self._bounds() if self._kernel.op == "Clip" else names

    def _bounds(self) -> list[str]:
        return [self.constant(0.0), self.constant(6.0)]

    def _constants(self) -> list[str]:
        given = self._kernel.constants
        return ["" if ints is None else self.constant(np.array(ints, np.int64)) for ints in given]

    def _scale(self) -> tuple[str, str]:
        """Add scale and zero point, which says that the type is int8."""
        return self.constant(_SCALE), self.constant(np.array(0, np.int8))

    def _dequantized(self, name: str) -> str:
        return self.node("DequantizeLinear", name, *self._scale())

    def _activation(self, result: str) -> str:
        """Add the activation that is fused into a kernel."""
        kernel = Activation(batch=1, values=1, activation=self._kernel.activation).as_onnx_node()
        if kernel.op in _STANDARD:
            return _STANDARD[kernel.op](self, [result])
        bounds = self._bounds() if kernel.op == "Clip" else []
        return self.node(kernel.op, result, *bounds, **kernel.attributes)


def _gelu(graph: _Graph, names: Sequence[str]) -> str:
    """Add a GELU as PyTorch exports it: x / 2 * (1 + erf(x / sqrt(2)))."""
    (x,) = names
    return _gated(graph, x, graph.node("Erf", graph.node("Div", x, graph.constant(math.sqrt(2)))))


def _gelu_tanh(graph: _Graph, names: Sequence[str]) -> str:
    """Add its approximation: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    x = names[0]
    cube = graph.node("Mul", graph.node("Mul", x, x), x)
    inner = graph.node("Add", x, graph.node("Mul", cube, graph.constant(0.044715)))
    scaled = graph.node("Mul", inner, graph.constant(_ROOT_2_OVER_PI))
    return _gated(graph, x, graph.node("Tanh", scaled))


def _gated(graph: _Graph, x: str, gate: str) -> str:
    """Multiply x by half of one plus the gate."""
    both = graph.node("Mul", x, graph.node("Add", gate, graph.constant(1.0)))
    return graph.node("Mul", both, graph.constant(0.5))


def _silu(graph: _Graph, names: Sequence[str]) -> str:
    """Add x * sigmoid(x)."""
    (x,) = names
    return graph.node("Mul", x, graph.node("Sigmoid", x))


def _attention(graph: _Graph, names: Sequence[str]) -> str:
    """Add softmax(q k^T / sqrt(size) + mask) v of several heads, which TensorRT fuses itself."""
    kernel, heads = graph._kernel, int(graph._kernel.attributes["num_heads"])
    given = [name for name in names if name]
    shapes = (kernel.input_shape, *kernel.extra_shapes[:2])

    def by_head(name: str, shape: Sequence[int], order: Sequence[int]) -> str:
        apart = graph.constant(np.array([*shape[:2], heads, shape[2] // heads], np.int64))
        return graph.node("Transpose", graph.node("Reshape", name, apart), perm=list(order))

    orders = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    q, k, v = (by_head(*arguments) for arguments in zip(given, shapes, orders, strict=False))
    size = kernel.input_shape[2] // heads
    scores = graph.node("MatMul", q, k)
    scores = graph.node("Mul", scores, graph.constant(1 / math.sqrt(size)))
    if len(given) > 3:
        scores = graph.node("Add", scores, given[3])
    weighed = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v)
    joined = graph.node("Transpose", weighed, perm=[0, 2, 1, 3])
    return graph.node("Reshape", joined, graph.constant(np.array(kernel.output_shape, np.int64)))


def _product(graph: _Graph, names: Sequence[str]) -> str:
    """Add a product of transposed matrices; TensorRT makes the transpositions part of it."""
    kernel = graph._kernel
    factors = []
    shapes = (kernel.input_shape, *kernel.extra_shapes)
    for name, shape, word in zip(names, shapes, ("transA", "transB"), strict=True):
        *outer, rows, columns = range(len(shape))
        turned = kernel.attributes[word]
        perm = [*outer, columns, rows]
        factors.append(graph.node("Transpose", name, perm=perm) if turned else name)
    return graph.node("MatMul", *factors)


def _rms(graph: _Graph, names: Sequence[str]) -> str:
    """Add x / sqrt(mean(x^2) + epsilon) * scale."""
    x, scale = names
    square = graph.node("ReduceMean", graph.node("Mul", x, x), axes=[-1], keepdims=1)
    root = graph.node("Sqrt", graph.node("Add", square, graph.constant(_EPSILON)))
    return graph.node("Mul", graph.node("Div", x, root), scale)


def _skip_rms(graph: _Graph, names: Sequence[str]) -> str:
    """Add the same of a sum."""
    x, skip, scale = names
    return _rms(graph, [graph.node("Add", x, skip), scale])


def _skip_layer_norm(graph: _Graph, names: Sequence[str]) -> str:
    """Add a LayerNormalization of a sum."""
    x, skip, *weights = names
    total = graph.node("Add", x, skip)
    return graph.node("LayerNormalization", total, *weights, axis=-1, epsilon=_EPSILON)


_STANDARD: Mapping[str, Callable[[_Graph, Sequence[str]], str]] = {
    "Gelu": _gelu,
    "FastGelu": _gelu_tanh,
    "QuickGelu": _silu,
    "MultiHeadAttention": _attention,
    "Attention": _attention,
    "FusedMatMul": _product,
    "SimplifiedLayerNormalization": _rms,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms,
}
"""ONNX Runtime's own operators that ONNX's operators add up to, as exporters write them."""


def _made_up_weight(name: str, shape: Sequence[int], dtype: str, copy: int) -> TensorProto:
    """Return a weight with values of a copy's own."""
    values = made_up(shape, "float32" if dtype in HALF_TYPES.values() else dtype, zero_points=True)
    if values.ndim and values.size:
        values.flat[0] = 1 + copy
    return tensor(name, values, dtype)


def tensor(name: str, values: Array, dtype: str) -> TensorProto:
    """Return a constant; its values are converted to the type."""
    raw = _bits(values) if dtype == "bfloat16" else values.astype(dtype, copy=False)
    return TensorProto(
        name=name,
        data_type=data_type_of(dtype),
        dims=values.shape,
        raw_data=np.ascontiguousarray(raw).tobytes(),
    )


def _bits(values: Array) -> Array:
    """Return the bits of bfloat16 values: the upper halves of float32 ones."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _info(name: str, shape: Sequence[int], dtype: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, data_type_of(dtype), shape)


_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_FLOAT32_INPUTS: Mapping[str, tuple[int, ...]] = {"Resize": (2,), "Upsample": (1,)}
"""Operator -> inputs that are float32 whatever its tensors are: scales."""


def network_model(
    path: Path, precision: str, *, batch: int | None = None, shapes: Shapes | None = None
) -> tuple[bytes, dict[str, Array]]:
    """Read a network for TensorRT.

    Parameters
    ----------
    path : Path
    precision : str
        ``"fp16"`` and ``"bf16"`` replace float32, but for inputs and outputs, which are converted;
        ``"int8"`` is for networks with QuantizeLinear, which stay as they are.
    batch, shapes
        As in `resperf.network.read_network`.

    Returns
    -------
    model : bytes
        With all weights; those that the file lacks are made up.
    host : dict of str to array
        Values of the inputs.

    Raises
    ------
    NetworkError, UnsupportedError
        If the file cannot be read, has more than 2 GB of weights, or has no int8 operators.
    """
    model, weights = materialise(path, batch=batch, shapes=shapes)
    if precision == "int8" and not any(node.op_type in _QUANTIZERS for node in model.graph.node):
        raise UnsupportedError(
            f"{path.name} has no QuantizeLinear, which says what TensorRT computes in int8; "
            "quantise it first, or measure it with another precision"
        )
    for proto in model.graph.initializer:
        if proto.name in weights:
            proto.CopyFrom(numpy_helper.from_array(np.asarray(weights.pop(proto.name)), proto.name))
    if precision in HALF_TYPES:
        _halve(model.graph, HALF_TYPES[precision])
        _convert_ends(model.graph, data_type_of(HALF_TYPES[precision]))
    names = {proto.name for proto in model.graph.initializer}
    host = {proto.name: _value_of(proto) for proto in model.graph.input if proto.name not in names}
    return as_bytes(model, path.name), host


def _value_of(given: ValueInfoProto) -> Array:
    """Make up the values of an input."""
    kind = given.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    return network_input(given.name, shape, dtype_name(kind.elem_type))


def _halve(graph: GraphProto, dtype: str) -> None:
    """Replace float32 by a shorter type everywhere, but for the scales of resizes."""
    scales = {
        node.input[index]
        for node in graph.node
        for index in _FLOAT32_INPUTS.get(node.op_type, ())
        if index < len(node.input)
    }
    for proto in graph.initializer:
        if proto.data_type == TensorProto.FLOAT and proto.name not in scales:
            proto.CopyFrom(tensor(proto.name, numpy_helper.to_array(proto), dtype))
    # Types of tensors in between follow from their operators.
    del graph.value_info[:]
    for node in graph.node:
        if not scales.intersection(node.output):
            _halve_node(node, dtype)


def _convert_ends(graph: GraphProto, half: int) -> None:
    """Convert float32 inputs to a shorter type, and such outputs back, as users keep them."""
    weights = {proto.name for proto in graph.initializer}
    nodes = list(graph.node)
    for is_output, ends in ((False, graph.input), (True, graph.output)):
        for end in ends:
            if end.type.tensor_type.elem_type != TensorProto.FLOAT or end.name in weights:
                continue
            inside, end.name = end.name, f"{end.name}.float32"
            read, written = (inside, end.name) if is_output else (end.name, inside)
            to = TensorProto.FLOAT if is_output else half
            cast = helper.make_node("Cast", [read], [written], f"{written} cast", to=to)
            nodes.insert(len(nodes) if is_output else 0, cast)
    del graph.node[:]
    graph.node.extend(nodes)


def _halve_node(node: NodeProto, dtype: str) -> None:
    """Replace float32 in what a node makes by itself: conversions, constants, branches."""
    half = data_type_of(dtype)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            _halve(attribute.g, dtype)
        elif attribute.type == AttributeProto.TENSOR:
            if attribute.t.data_type == TensorProto.FLOAT:
                values = numpy_helper.to_array(attribute.t)
                attribute.t.CopyFrom(tensor("", values, dtype))
        elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = half
        elif attribute.name in ("value_float", "value_floats"):
            values = np.array(helper.get_attribute_value(attribute), np.float32)
            attribute.CopyFrom(helper.make_attribute("value", tensor("", values, dtype)))
