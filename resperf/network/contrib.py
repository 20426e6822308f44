"""Output shapes of ONNX Runtime's own (contrib) operators, which it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from resperf.network._base import MALFORMED, Tensor, TensorType
from resperf.network.protos import data_type_of

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

_OPSET, _IR_VERSION = 17, 10
_NAMES: Mapping[str, str] = {"float": "float32", "double": "float64"}
Shape: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = "Sequence[Tensor | None]"


def inferred_by_onnxruntime(
    node: NodeProto, tensors: Mapping[str, Tensor], data: Mapping[str, TensorProto], version: int
) -> tuple[TensorType | None, ...]:
    """Return types and shapes of the outputs of a node of ONNX Runtime's own, as it infers them.

    A session that is loaded, not initialised, knows them, also where this host has no kernel. None
    for an output that it cannot infer.
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
    except Exception:  # onnxruntime's errors have no common root of their own
        return (None,) * len(node.output)
    inferred = {
        # It writes no dimension of a tensor whose rank it does not know.
        value.name: (_NAMES.get(word, word), tuple(value.shape)) if value.shape else None
        for value in session.outputs_meta
        if all(isinstance(length, int) for length in value.shape)
        and (word := value.type.removeprefix("tensor(").removesuffix(")"))
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


def shape_of(inputs: Inputs, position: int = 0) -> Shape:
    """Return the shape of a required input."""
    tensor = inputs[position]
    if tensor is None:
        raise ValueError(position)
    return tensor.shape


def dtype_of(inputs: Inputs) -> str:
    """Return the element type of the first input."""
    return "float32" if inputs[0] is None else inputs[0].dtype


def _multi_head_caches(inputs: Inputs, attributes: Mapping[str, Any]) -> list[TensorType]:
    """Keys and values of all tokens: those of the cache and the new ones."""
    heads = int(attributes["num_heads"])
    caches: list[TensorType] = []
    for index in (1, 2):
        new, past = shape_of(inputs, index), inputs[index + 5] if len(inputs) > index + 5 else None
        batch, tokens, size = (new[0], new[2], new[3]) if len(new) == 4 else (
            new[0], new[1], new[2] // heads
        )  # fmt: skip
        earlier = 0 if past is None else past.shape[2]
        caches.append((dtype_of(inputs), (batch, heads, earlier + tokens, size)))
    return caches


def _grouped_caches(inputs: Inputs, attributes: Mapping[str, Any]) -> list[TensorType]:
    """Keys and values of all tokens; a cache of more than these keeps its length."""
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    batch, tokens, width = shape_of(inputs)
    # Queries, keys and values may be packed: (batch, tokens, (heads + 2 groups) x size).
    size = width // (heads if inputs[1] is not None else heads + 2 * groups)
    past, total = inputs[3], inputs[6]
    earlier = 0 if past is None else past.shape[2]
    length = None if total is None or total.value is None else int(total.value.item())
    rows = earlier + tokens if length is None else max(earlier, length)
    return [(dtype_of(inputs), (batch, groups, rows, size))] * 2


_CACHES: Mapping[str, Callable[[Inputs, Mapping[str, Any]], list[TensorType]]] = {
    "MultiHeadAttention": _multi_head_caches,
    "GroupQueryAttention": _grouped_caches,
}
"""Operator -> types and shapes of the keys and values that it returns after its first output."""
