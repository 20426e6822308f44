"""Shapes that a file states for tensors inside the network, where no rule infers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from resperf.network._base import TensorType
from resperf.network.inputs import Inputs
from resperf.network.protos import dtype_name

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto


class DeclaredShapes:
    """Types and shapes of outputs of operators that nobody else knows, such as custom ones.

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
    """

    def __init__(self, graph: GraphProto, inputs: Sequence[ValueInfoProto], sizes: Inputs) -> None:
        # Copies: the reader removes these shapes from the graph.
        self._types = {info.name: _dims(info) for info in (*graph.value_info, *graph.output)}
        self._batch = sizes.fixed_batch, sizes.batch
        self._lengths = {
            name: length
            for info, tensor in zip(inputs, sizes.tensors, strict=True)
            for name, length in zip((_dims(info) or ("", ()))[1], tensor.shape, strict=False)
            if isinstance(name, str) and name
        }

    def get(self, name: str) -> TensorType | None:
        """Return the type and shape of a tensor; None where the file does not state all of it."""
        dtype, dims = self._types.get(name) or ("", ())
        if not dtype:
            return None
        shape = [self._lengths.get(dim, 0) if isinstance(dim, str) else dim for dim in dims]
        fixed, batch = self._batch
        if shape and fixed and batch and dims[0] == fixed:
            shape[0] = batch
        return (dtype, tuple(shape)) if all(length > 0 for length in shape) else None


def _dims(info: ValueInfoProto) -> tuple[str, tuple[int | str, ...]] | None:
    """Return element type and dimensions, names where they are free; None if one is not stated."""
    tensor = info.type.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        return None
    dims = (
        dim.dim_param if dim.HasField("dim_param") else dim.dim_value for dim in tensor.shape.dim
    )
    return dtype_name(tensor.elem_type), tuple(dims)
