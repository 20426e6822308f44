"""Output shapes of ONNX Runtime's own (contrib) operators, which it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from resperf.errors import ShapeError
from resperf.network._base import MALFORMED, PartialType, Tensor, TensorType
from resperf.network.protos import data_type_of

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

_OPSET, _IR_VERSION = 17, 10
_NAMES: Mapping[str, str] = {"float": "float32", "double": "float64"}
Inputs: TypeAlias = Sequence[Any]
"""Tensors; None where an input is absent."""


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


def _multi_head_caches(inputs: Inputs, attributes: Mapping[str, Any]) -> list[TensorType]:
    """Keys and values of the new tokens: ONNX Runtime infers those with earlier ones."""
    heads, news = int(attributes["num_heads"]), [tensor.shape for tensor in inputs[1:3]]
    shapes = ((s[0], heads, s[1], s[2] // heads) if len(s) == 3 else s for s in news)
    return [(inputs[0].dtype, shape) for shape in shapes]


def _grouped_caches(inputs: Inputs, attributes: Mapping[str, Any]) -> list[TensorType]:
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


_CACHES: Mapping[str, Callable[[Inputs, Mapping[str, Any]], list[TensorType]]] = {
    "MultiHeadAttention": _multi_head_caches,
    "GroupQueryAttention": _grouped_caches,
}
"""Operator -> types and shapes of the keys and values that it returns after its first output."""
