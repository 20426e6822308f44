"""Shapes of nodes that ONNX Runtime inserts, where neither it nor ONNX's inference states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resperf.errors import ShapeError
from resperf.network._base import TensorType
from resperf.network.contrib import Inputs, contrib_outputs
from resperf.network.shapes import infer_node

if TYPE_CHECKING:
    import onnx


def inferred(
    proto: onnx.NodeProto,
    inputs: Inputs,
    attributes: Mapping[str, Any],
    opsets: Mapping[str, int],
) -> list[TensorType | None]:
    """Return types and shapes of a node's outputs, as many as can be derived from its inputs.

    None stands for an absent output before others that are present.

    Parameters
    ----------
    proto : onnx.NodeProto
    inputs : sequence of Tensor or None
        None where an input is absent or not known.
    attributes : mapping of str to Any
    opsets : mapping of str to int
    """
    tensors = {
        name: tensor for name, tensor in zip(proto.input, inputs, strict=True) if tensor and name
    }
    if not tensors or len(tensors) < len({name for name in proto.input if name}):
        return []
    own = contrib_outputs(proto.op_type, inputs, attributes) if proto.domain else None
    if own is not None:
        return [*own]
    try:
        outputs = infer_node(proto, tensors, opsets)
    except ShapeError:
        return []
    complete = all(name in outputs for name in proto.output if name)
    return [outputs.get(name) for name in proto.output] if complete else []
