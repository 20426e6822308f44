"""Output shapes of nodes.

ONNX's inference over the model, then node by node where it has gaps, then what the file states.
ONNX Runtime is asked for those of its own (contrib) operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from resperf.errors import ShapeError
from resperf.layers._operator import CONTRIB
from resperf.network._base import MALFORMED, PartialType, Tensor, TensorType
from resperf.network.graph import subgraphs
from resperf.network.inputs import Inputs, dims_of, dims_words
from resperf.network.protos import data_type_of, dtype_name

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto
    from onnx.defs import OpSchema

DATA_ELEMENTS = 64
"""Constants of at most this many elements may determine a shape."""
_CACHED_NODES, _CACHED_ATTRIBUTE_BYTES = 4096, 1024
"""Inferred nodes in the cache, and the most bytes of attributes of one."""
_cache: dict[Hashable, tuple[PartialType | None, ...]] = {}
_OPSET, _IR_VERSION = 17, 10
_NAMES: Mapping[str, str] = {"float": "float32", "double": "float64"}
_Operands: TypeAlias = Sequence[Any]
"""Tensors; None where an input is absent."""


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
    # All that determines the shapes: networks repeat the same few layers under other names.
    attributes = tuple(attribute.SerializeToString() for attribute in node.attribute)
    values = {
        name: tuple(tensor.value.ravel().tolist())
        for name, tensor in inputs.items()
        if tensor.value is not None and tensor.value.size <= DATA_ELEMENTS
    }
    operands = tuple(
        (tensor.dtype, tensor.shape, values.get(name)) if (tensor := inputs.get(name)) else None
        for name in node.input
    )
    key = (node.domain, node.op_type, version, attributes, operands, tuple(map(bool, node.output)))
    outputs = _cache.get(key)
    if outputs is None:
        outputs = _inferred(node, inputs, version)
        is_large = sum(map(len, attributes)) > _CACHED_ATTRIBUTE_BYTES
        if not is_large and not any(True for _ in subgraphs(node)):
            if len(_cache) >= _CACHED_NODES:
                _cache.clear()
            _cache[key] = outputs
    return {name: part for name, part in zip(node.output, outputs, strict=True) if part and name}


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


def inferred_by_onnxruntime(
    node: NodeProto, tensors: Mapping[str, Tensor], data: Mapping[str, TensorProto], version: int
) -> tuple[PartialType | None, ...]:
    """Return types and shapes of the outputs of a node of ONNX Runtime's own, as it infers them.

    A session that is loaded, not initialised, knows them, also where this host has no kernel. None
    for an output that it cannot infer.

    Raises
    ------
    ShapeError
        If the operator cannot take these shapes; says why.
    """
    from onnx import ValueInfoProto, helper
    from onnxruntime.capi import onnxruntime_pybind11_state as ort

    graph = helper.make_graph(
        [node], "node",
        [helper.make_tensor_value_info(name, data_type_of(tensor.dtype), tensor.shape)
         for name, tensor in tensors.items() if name not in data],
        [ValueInfoProto(name=name) for name in node.output if name], [*data.values()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(node.domain, version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(options, model.SerializeToString(), False, False)
    except Exception as error:  # onnxruntime's errors have no common root of their own
        _, refused, why = str(error).partition("[ShapeInferenceError]")
        if refused:
            raise ShapeError(why) from error
        return (None,) * len(node.output)
    inferred = {
        # It writes no dimension of a tensor whose rank it does not know.
        value.name: (
            _NAMES.get(word, word),
            tuple(dim if isinstance(dim, int) else None for dim in value.shape) or None,
        )
        for value in session.outputs_meta
        if (word := value.type.removeprefix("tensor(").removesuffix(")"))
    }
    return tuple(inferred.get(name) for name in node.output)


def with_caches(
    node: NodeProto,
    tensors: Mapping[str, Tensor],
    attributes: Mapping[str, Any],
    outputs: Mapping[str, TensorType],
) -> dict[str, TensorType]:
    """Add the keys and values of all tokens that an attention returns behind its result.

    ONNX Runtime does not infer their number.
    """
    rule, own = _CACHES.get(node.op_type), list[TensorType]()
    with suppress(*MALFORMED):
        own = rule([tensors.get(name) for name in node.input], attributes) if rule else []
    return {**dict(zip(node.output[1:], own, strict=False)), **outputs}


def _multi_head_caches(inputs: _Operands, attributes: Mapping[str, Any]) -> list[TensorType]:
    """Keys and values of the new tokens: ONNX Runtime infers those with earlier ones."""
    heads, news = int(attributes["num_heads"]), [tensor.shape for tensor in inputs[1:3]]
    shapes = ((s[0], heads, s[1], s[2] // heads) if len(s) == 3 else s for s in news)
    return [(inputs[0].dtype, shape) for shape in shapes]


def _grouped_caches(inputs: _Operands, attributes: Mapping[str, Any]) -> list[TensorType]:
    """Keys and values of all tokens; a cache of more than these keeps its length."""
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    batch, tokens, width = inputs[0].shape
    # Queries, keys and values may be packed: (batch, tokens, (heads + 2 groups) x size).
    size = width // (heads if inputs[1] is not None else heads + 2 * groups)
    past, total = inputs[3], inputs[6]
    earlier = 0 if past is None else past.shape[2]
    length = None if total is None or total.value is None else int(total.value.item())
    rows = earlier + tokens if length is None else max(earlier, length)
    return [(inputs[0].dtype, (batch, groups, rows, size))] * 2


_CACHES: Mapping[str, Callable[[_Operands, Mapping[str, Any]], list[TensorType]]] = {
    "MultiHeadAttention": _multi_head_caches,
    "GroupQueryAttention": _grouped_caches,
}
"""Operator -> types and shapes of the keys and values that it returns after its first output."""


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
    graph: GraphProto, inputs: Sequence[ValueInfoProto], sizes: Inputs, given: Mapping[str, int]
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
    lambda inputs, _: inputs[0].shape,
)  # fmt: skip
