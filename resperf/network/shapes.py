"""Output shapes of nodes: ONNX's inference over the model, then node by node where it has gaps."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resperf.errors import ShapeError
from resperf.layers._operator import CONTRIB
from resperf.network._base import Tensor, TensorType
from resperf.network.contrib import contrib_outputs
from resperf.network.protos import data_type_of, dtype_name

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TypeProto
    from onnx.defs import OpSchema

_DATA_ELEMENTS = 64
"""Constants of at most this many elements may determine a shape."""
_GRAPHS = (5, 10)
"""Types of attributes that hold graphs."""
_CACHED_NODES, _CACHED_ATTRIBUTE_BYTES = 4096, 1024
"""Inferred nodes in the cache, and the most bytes of attributes of one."""
_cache: dict[Hashable, tuple[TensorType | None, ...]] = {}


class ShapeFinder:
    """Finds the element types and shapes of nodes' outputs.

    Parameters
    ----------
    path : Path
        For messages.
    model : ModelProto
        Its inputs' shapes set, its nodes in order.
    """

    def __init__(self, path: Path, model: ModelProto) -> None:
        self._path = path
        self._opsets = {opset.domain: opset.version for opset in model.opset_import}
        self._ir_version = model.ir_version
        self._schemas: dict[tuple[str, str], OpSchema | None] = {}
        self._whole = _infer_model(model)

    def whole(self, name: str) -> TensorType | None:
        """Return what inference over the whole model found, if that is complete."""
        return self._whole.get(name)

    def node(
        self, node: NodeProto, inputs: Mapping[str, Tensor], attributes: Mapping[str, Any]
    ) -> dict[str, TensorType]:
        """Infer one node from the shapes of its inputs; omits outputs that cannot be inferred.

        Raises
        ------
        ShapeError
            If the operator cannot take these shapes.
        """
        operands = {name: tensor for name in node.input if (tensor := inputs.get(name))}
        if len(operands) < len({name for name in node.input if name}):
            return {}
        outputs = self._from_schema(node, operands)
        if not outputs:
            outputs = _from_gaps(node, operands, attributes)
        if not outputs and node.domain == CONTRIB:
            tensors = [operands.get(name) for name in node.input]
            own = contrib_outputs(node.op_type, tensors, attributes) or []
            outputs = {name: output for name, output in zip(node.output, own, strict=False) if name}
        return outputs

    def fewest_inputs(self, node: NodeProto) -> int:
        """Return how many inputs the node's operator needs at least; 0 where that is unknown."""
        schema = self._schema(node)
        return 0 if schema is None else int(schema.min_input)

    def unequal_types(self, node: NodeProto, inputs: Mapping[str, Tensor]) -> str:
        """Say which inputs differ in element type that must not; empty if none do.

        Converters to float16 leave such files, and no framework runs them.
        """
        schema = self._schema(node)
        if schema is None or not schema.inputs:
            return ""
        first: dict[str, Tensor] = {}
        for index, name in enumerate(node.input):
            formal = schema.inputs[min(index, len(schema.inputs) - 1)]
            tensor = inputs.get(name)
            if tensor is None or not formal.is_homogeneous:
                continue
            other = first.setdefault(formal.type_str, tensor)
            if other.dtype != tensor.dtype:
                return f"{other.dtype} ({other.name}) and {tensor.dtype} ({tensor.name})"
        return ""

    def _schema(self, node: NodeProto) -> OpSchema | None:
        from onnx import defs

        key = (node.domain, node.op_type)
        if key not in self._schemas:
            try:
                version = self._opsets.get(node.domain) or 1
                self._schemas[key] = defs.get_schema(node.op_type, version, node.domain)
            except defs.SchemaError:
                self._schemas[key] = None
        return self._schemas[key]

    def _from_schema(self, node: NodeProto, inputs: Mapping[str, Tensor]) -> dict[str, TensorType]:
        try:
            return infer_node(node, inputs, self._opsets, ir_version=self._ir_version)
        except ShapeError as error:
            raise ShapeError(self._misfit(node, inputs.values(), str(error))) from error

    def _misfit(self, node: NodeProto, tensors: Any, error: str) -> str:
        shapes = " and ".join(
            ",".join(map(str, tensor.shape)) or "scalar" for tensor in tensors if tensor
        )
        why = error.replace("[ShapeInferenceError]", "").strip().split("\n")[0]
        return (
            f"{self._path}: node {node.name or node.output[0]!r} ({node.op_type}) cannot take "
            f"{shapes} ({why}); check --batch and --shape, or export with these sizes"
        )


def infer_node(
    node: NodeProto,
    inputs: Mapping[str, Tensor],
    opsets: Mapping[str, int],
    *,
    ir_version: int = 10,
) -> dict[str, TensorType]:
    """Infer a node's outputs by ONNX's own rules; omits those that cannot be inferred.

    Parameters
    ----------
    node : NodeProto
    inputs : mapping of str to Tensor
        All its inputs.
    opsets : mapping of str to int
        Version of each domain.
    ir_version : int

    Raises
    ------
    ShapeError
        If the operator cannot take these shapes; says why.
    """
    version = opsets.get(node.domain)
    if version is None:
        return {}
    key = _cache_key(node, inputs, version, ir_version)
    outputs = None if key is None else _cache.get(key)
    if outputs is None:
        outputs = _inferred(node, inputs, version, ir_version)
        if key is not None:
            if len(_cache) >= _CACHED_NODES:
                _cache.clear()
            _cache[key] = outputs
    return {name: full for name, full in zip(node.output, outputs, strict=True) if full and name}


def _cache_key(
    node: NodeProto, tensors: Mapping[str, Tensor], version: int, ir_version: int
) -> Hashable | None:
    """Return everything that determines a node's output shapes; tensor names do not.

    Networks repeat the same few layers. None for nodes with large attributes or subgraphs.
    """
    attributes = tuple(attribute.SerializeToString() for attribute in node.attribute)
    if sum(map(len, attributes)) > _CACHED_ATTRIBUTE_BYTES or any(
        attribute.type in _GRAPHS for attribute in node.attribute
    ):
        return None
    inputs = tuple(
        (tensor.dtype, tensor.shape, _small_value(tensor))
        if (tensor := tensors.get(name))
        else None
        for name in node.input
    )
    outputs = tuple(map(bool, node.output))
    return node.domain, node.op_type, version, ir_version, attributes, inputs, outputs


def _small_value(tensor: Tensor) -> tuple[Any, ...] | None:
    """Return the values of a constant that may determine a shape."""
    value = tensor.value
    return None if value is None or value.size > _DATA_ELEMENTS else tuple(value.ravel().tolist())


def _inferred(
    node: NodeProto, tensors: Mapping[str, Tensor], version: int, ir_version: int
) -> tuple[TensorType | None, ...]:
    """Infer a node's outputs in order; None for those that ONNX's rules cannot infer."""
    from onnx import defs, numpy_helper, shape_inference

    nothing = (None,) * len(node.output)
    try:
        schema = defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return nothing
    data = {
        name: numpy_helper.from_array(tensor.value, name)
        for name, tensor in tensors.items()
        if tensor.value is not None and tensor.value.size <= _DATA_ELEMENTS
    }
    types = {name: _type_proto(tensor) for name, tensor in tensors.items()}
    try:
        outputs = shape_inference.infer_node_outputs(
            schema, node, types, data, ir_version=ir_version
        )
    except shape_inference.InferenceError as error:
        raise ShapeError(str(error)) from error
    except Exception:  # a schema without inference, or a C++ type error
        return nothing
    protos = (outputs.get(name) for name in node.output)
    return tuple(None if proto is None else type_and_shape(proto) for proto in protos)


def _infer_model(model: ModelProto) -> dict[str, TensorType]:
    from onnx import shape_inference

    try:
        # Data propagation is off: it allocates a message per element, gigabytes for a long vector.
        # Constant folding finds the same values.
        graph = shape_inference.infer_shapes(model).graph
    except Exception:  # inference node by node finds and reports any error again
        return {}
    return {
        info.name: tensor_type
        for infos in (graph.value_info, graph.output)
        for info in infos
        if (tensor_type := type_and_shape(info.type))
    }


def type_and_shape(proto: TypeProto) -> TensorType | None:
    """Return element type and shape; None where a dimension is unknown, or it is no tensor."""
    if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    shape = []
    for dim in proto.tensor_type.shape.dim:
        if not dim.HasField("dim_value") or dim.dim_value < 0:
            return None
        shape.append(dim.dim_value)
    return dtype_name(proto.tensor_type.elem_type), tuple(shape)


def _type_proto(tensor: Tensor) -> TypeProto:
    from onnx import helper

    return helper.make_tensor_type_proto(data_type_of(tensor.dtype), tensor.shape)


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
