"""Shapes of nodes that ONNX Runtime inserts, where neither it nor ONNX's inference states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resperf.errors import ShapeError
from resperf.network._base import Known
from resperf.network.contrib import Inputs, contrib_outputs
from resperf.network.shapes import infer_node

if TYPE_CHECKING:
    import onnx


def inferred(
    proto: onnx.NodeProto,
    inputs: Inputs,
    attributes: Mapping[str, Any],
    opsets: Mapping[str, int],
) -> list[Known | None]:
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
    known = {name: each for name, each in zip(proto.input, inputs, strict=True) if each and name}
    if not known or len(known) < len({name for name in proto.input if name}):
        return []
    own = contrib_outputs(proto.op_type, inputs, attributes) if proto.domain else None
    if own is not None:
        return [*own]
    try:
        found = infer_node(proto, known, opsets)
    except ShapeError:
        return []
    complete = all(name in found for name in proto.output if name)
    return [found.get(name) for name in proto.output] if complete else []
