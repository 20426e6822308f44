"""Output shapes of nodes.

ONNX's inference over the model, then node by node where it has gaps, then what the file states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from resperf.errors import ShapeError
from resperf.layers._operator import CONTRIB
from resperf.network._base import PartialType, Tensor, TensorType
from resperf.network.contrib import inferred_by_onnxruntime, with_caches
from resperf.network.graph import subgraphs
from resperf.network.inputs import Inputs, dims_of, dims_words
from resperf.network.protos import data_type_of, dtype_name

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto
    from onnx.defs import OpSchema

DATA_ELEMENTS = 64
"""Constants of at most this many elements may determine a shape."""
_CACHED_NODES, _CACHED_ATTRIBUTE_BYTES = 4096, 1024
"""Inferred nodes in the cache, and the most bytes of attributes of one."""
_cache: dict[Hashable, tuple[PartialType | None, ...]] = {}


@cache
def schema_of(op: str, version: int, domain: str) -> OpSchema | None:
    """Return ONNX's definition of an operator; None if it has none."""
    from onnx import defs

    try:
        return defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None


def node_outputs(
    path: Path,
    node: NodeProto,
    opsets: Mapping[str, int],
    inputs: Mapping[str, Tensor],
    attributes: Mapping[str, Any],
) -> dict[str, PartialType]:
    """Infer one node from the shapes of its inputs, as far as they can be inferred.

    Raises
    ------
    ShapeError
        If the operator cannot take these shapes.
    """
    operands = {name: tensor for name in node.input if (tensor := inputs.get(name))}
    if len(operands) < len({name for name in node.input if name}):
        return {}
    try:
        outputs = partial_outputs(node, operands, opsets)
    except ShapeError as error:
        shapes = " and ".join(dims_words(part.shape) or "scalar" for part in operands.values())
        why = str(error).replace("[ShapeInferenceError]", "").strip().split("\n")[0]
        raise ShapeError(
            f"{path}: node {node.name or node.output[0]!r} ({node.op_type}) cannot take "
            f"{shapes} ({why}); check --batch and --shape, or export with these sizes"
        ) from error
    if not complete_only(outputs):
        outputs |= _from_gaps(node, operands, attributes)
    if node.domain == CONTRIB:
        return {**outputs, **with_caches(node, operands, attributes, complete_only(outputs))}
    return outputs


def partial_outputs(
    node: NodeProto, inputs: Mapping[str, Tensor], opsets: Mapping[str, int]
) -> dict[str, PartialType]:
    """Infer a node's outputs by ONNX's or ONNX Runtime's rules; omits those that they cannot infer.

    Parameters
    ----------
    node : NodeProto
    inputs : mapping of str to Tensor
        All its inputs.
    opsets : mapping of str to int
        Version of each domain.

    Raises
    ------
    ShapeError
        If the operator cannot take these shapes; says why.
    """
    version = opsets.get(node.domain, int(node.domain == CONTRIB))
    if not version:
        return {}
    key = _cache_key(node, inputs, version)
    outputs = None if key is None else _cache.get(key)
    if outputs is None:
        outputs = _inferred(node, inputs, version)
        if key is not None:
            if len(_cache) >= _CACHED_NODES:
                _cache.clear()
            _cache[key] = outputs
    return {name: part for name, part in zip(node.output, outputs, strict=True) if part and name}


def _cache_key(node: NodeProto, tensors: Mapping[str, Tensor], version: int) -> Hashable | None:
    """Return everything that determines a node's output shapes; tensor names do not.

    Networks repeat the same few layers. None for nodes with large attributes or subgraphs.
    """
    attributes = tuple(attribute.SerializeToString() for attribute in node.attribute)
    if sum(map(len, attributes)) > _CACHED_ATTRIBUTE_BYTES or any(True for _ in subgraphs(node)):
        return None
    inputs = tuple(
        (tensor.dtype, tensor.shape, _small_value(tensor))
        if (tensor := tensors.get(name))
        else None
        for name in node.input
    )
    outputs = tuple(map(bool, node.output))
    return node.domain, node.op_type, version, attributes, inputs, outputs


def _small_value(tensor: Tensor) -> tuple[Any, ...] | None:
    """Return the values of a constant that may determine a shape."""
    value = tensor.value
    return None if value is None or value.size > DATA_ELEMENTS else tuple(value.ravel().tolist())


def _inferred(
    node: NodeProto, tensors: Mapping[str, Tensor], version: int
) -> tuple[PartialType | None, ...]:
    """Infer a node's outputs in order; None for those that ONNX's rules cannot infer."""
    from onnx import helper, numpy_helper, shape_inference

    nothing = (None,) * len(node.output)
    schema = schema_of(node.op_type, version, node.domain)
    if schema is None and node.domain != CONTRIB:
        return nothing
    data = {
        name: numpy_helper.from_array(tensor.value, name)
        for name, tensor in tensors.items()
        if tensor.value is not None and tensor.value.size <= DATA_ELEMENTS
    }
    if schema is None:
        return inferred_by_onnxruntime(node, tensors, data, version)
    types = {
        name: helper.make_tensor_type_proto(data_type_of(tensor.dtype), tensor.shape)
        for name, tensor in tensors.items()
    }
    try:
        outputs = shape_inference.infer_node_outputs(schema, node, types, data)
    except shape_inference.InferenceError as error:
        raise ShapeError(str(error)) from error
    except Exception:  # a schema without inference, or a C++ type error
        return nothing
    protos = [outputs.get(name) for name in node.output]
    least = 1 if node.op_type == "ConvTranspose" else 0
    for dim in (d for proto in protos if proto for d in proto.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value < least:
            raise ShapeError(f"a dimension of its output would be {dim.dim_value}")
    return tuple(None if proto is None else partial_type(proto) for proto in protos)


def model_outputs(model: ModelProto) -> dict[str, PartialType]:
    """Infer a whole model, its inputs' shapes set and its nodes in order.

    Omits what is no tensor, and empty ones: inference node by node says if none should be.
    """
    from onnx import shape_inference

    try:
        # Data propagation is off: it allocates a message per element, gigabytes for a long vector.
        # Constant folding finds the same values.
        graph = shape_inference.infer_shapes(model).graph
    except Exception:  # inference node by node finds and reports any error again
        return {}
    return {
        info.name: part
        for info in (*graph.value_info, *graph.output)
        if (part := partial_type(info.type)) and 0 not in (part[1] or ())
    }


def declared_outputs(
    graph: GraphProto,
    inputs: Sequence[ValueInfoProto],
    sizes: Inputs,
    given: Mapping[str, int],
) -> dict[str, TensorType]:
    """Return types and shapes that the file states in full: custom operators have no other.

    They are those of the file at the requested sizes: a dimension that has the name of an input's
    has its length, and the batch that the file fixes is the requested one.

    Parameters
    ----------
    graph : GraphProto
        With the shapes of the file.
    inputs : sequence of ValueInfoProto
        Its inputs without weights, as in the file.
    sizes : Inputs
        The same at the requested sizes.
    given : mapping of str to int
        Lengths of named dimensions.
    """
    lengths = dict(given) | {
        name: length
        for info, tensor in zip(inputs, sizes.tensors, strict=True)
        for name, length in zip(dims_of(info), tensor.shape, strict=False)
        if isinstance(name, str)
    }
    outputs: dict[str, TensorType] = {}
    for info in {info.name: info for info in (*graph.value_info, *graph.output)}.values():
        tensor_type, dims = info.type.tensor_type, dims_of(info)
        shape = [lengths.get(dim, 0) if isinstance(dim, str) else dim or 0 for dim in dims]
        if dims and sizes.fixed_batch and sizes.batch and dims[0] == sizes.fixed_batch:
            shape[0] = sizes.batch
        is_stated = tensor_type.elem_type and tensor_type.HasField("shape")
        if is_stated and all(length > 0 for length in shape):
            outputs[info.name] = dtype_name(tensor_type.elem_type), tuple(shape)
    return outputs


def batched_outputs(graph: GraphProto, inputs: Sequence[ValueInfoProto]) -> set[str]:
    """Name the outputs whose first dimension has the name of an input's first dimension."""
    firsts = {dim for info in inputs for dim in dims_of(info)[:1] if isinstance(dim, str)}
    return {info.name for info in graph.output if firsts.intersection(dims_of(info)[:1])}


def complete_only(parts: Mapping[str, PartialType]) -> dict[str, TensorType]:
    """Return the tensors whose shape is known."""
    return {
        name: cast(TensorType, part)
        for name, part in parts.items()
        if part[1] is not None and None not in part[1]
    }


def partial_type(proto: TypeProto) -> PartialType | None:
    """Return element type and shape as far as known; None if it is no tensor."""
    if not proto.HasField("tensor_type"):
        return None
    dtype = dtype_name(proto.tensor_type.elem_type)
    if not proto.tensor_type.HasField("shape"):
        return dtype, None
    return dtype, tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in proto.tensor_type.shape.dim
    )


def _from_gaps(
    node: NodeProto, tensors: Mapping[str, Tensor], attributes: Mapping[str, Any]
) -> dict[str, TensorType]:
    """Shapes for old versions of operators that ONNX cannot infer (opsets 1 to 6)."""
    rule = _GAPS.get(node.op_type) if not node.domain else None
    if rule is None or not tensors:
        return {}
    inputs = [tensors[name] for name in node.input if name]
    try:
        shape = rule(inputs, attributes)
    except (LookupError, TypeError):  # ranks or attributes that the operator does not have
        return {}
    return {} if shape is None else {node.output[0]: (inputs[0].dtype, shape)}


def _same(inputs: Sequence[Tensor], _: Mapping[str, Any]) -> tuple[int, ...]:
    return inputs[0].shape


def _joined(inputs: Sequence[Tensor], attributes: Mapping[str, Any]) -> tuple[int, ...]:
    shape, axis = list(inputs[0].shape), attributes.get("axis", 1)
    shape[axis] = sum(tensor.shape[axis] for tensor in inputs)
    return tuple(shape)


def _reshaped(inputs: Sequence[Tensor], attributes: Mapping[str, Any]) -> tuple[int, ...] | None:
    shape = inputs[0].shape
    dims = [shape[i] if dim == 0 else dim for i, dim in enumerate(attributes.get("shape", ()))]
    total = math.prod(shape)
    if dims.count(-1) == 1:
        rest = -math.prod(dims)
        if rest <= 0 or total % rest:
            return None
        dims[dims.index(-1)] = total // rest
    return tuple(dims) if min(dims, default=0) >= 0 and math.prod(dims) == total else None


def _padded(inputs: Sequence[Tensor], attributes: Mapping[str, Any]) -> tuple[int, ...] | None:
    shape, pads = inputs[0].shape, attributes.get("paddings", ())
    if len(pads) != 2 * len(shape):
        return None
    return tuple(dim + pads[i] + pads[i + len(shape)] for i, dim in enumerate(shape))


_GAPS: Mapping[
    str, Callable[[Sequence[Tensor], Mapping[str, Any]], tuple[int, ...] | None]
] = {
    "Concat": _joined,
    "Pad": _padded,
    "Reshape": _reshaped,
} | dict.fromkeys(
    (
        "Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp",
        "Floor", "GroupNormalization", "HardSigmoid", "Identity", "InstanceNormalization", "LRN",
        "LeakyRelu", "Log", "LogSoftmax", "Max", "MeanVarianceNormalization", "Min", "Mul", "Neg",
        "PRelu", "Pow", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softmax", "Softplus",
        "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu",
    ),
    _same,
)  # fmt: skip
