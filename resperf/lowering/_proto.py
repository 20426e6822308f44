"""Write a `Network` back as an ONNX model with placeholder weights, for frameworks to lower."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from resperf.errors import UnsupportedError
from resperf.grouping import grouped
from resperf.lowering._base import CONTROL_FLOW
from resperf.network import Network, Node, Tensor
from resperf.network.graph import all_tensors, captured
from resperf.network.protos import data_type_of, has_bytes
from resperf.units import DTYPE_BYTES, format_bytes

if TYPE_CHECKING:
    import onnx

FREE_WEIGHT_BYTES = 1 << 20
"""Matrices above this size become inputs where no fusion reads their values."""

MAX_WEIGHT_BYTES = 1 << 30
"""Largest weight that is given placeholder values. Tables and matrices of language models may be
larger: they become inputs. What is left are filters: VGG's first dense layer as one has 0.4 GB."""

_VIEWS = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"})
_ANY_VALUE = 0.5
"""Neither 0 nor 1: optimisers remove additions of 0 and products with 1."""
_ANY_VALUES = 1 << 16
"""How many values of a weight are this: optimisers look at scalars and short vectors alone."""


@dataclass(frozen=True)
class Skeleton:
    """A network as an ONNX model, with its weights stored separately.

    Attributes
    ----------
    model : onnx.ModelProto
        Weights are external data in a file that does not exist.
    weights : dict of str to ndarray
        Placeholder values of those weights; they share memory.
    """

    model: onnx.ModelProto
    weights: dict[str, npt.NDArray[Any]]


def skeleton(network: Network, keep_weights: bool = False) -> Skeleton:
    """Write the structure of `network` as a model that a framework can load.

    Parameters
    ----------
    network : Network
    keep_weights : bool
        Whether matrices above `FREE_WEIGHT_BYTES` stay weights, and may have any size.

    Raises
    ------
    UnsupportedError
        If a tensor has an element type that ONNX lacks, or an attribute cannot be written.
    """
    from onnx import TensorProto, helper, numpy_helper

    if shared := shared_weights(network):
        # Equal weights are read under one name, as ONNX Runtime does.
        renamed = [
            replace(node, inputs=tuple(shared.get(name, name) for name in node.inputs))
            for node in network.nodes
        ]
        tensors = {name: network.weight_tensors[name] for name in shared.values()}
        network = replace(network, nodes=tuple(renamed), tensors={**network.tensors, **tensors})
    free = set() if keep_weights else _free_matrices(network)
    # Nodes compute weights too, such as dequantised ones.
    computed = {name for node in network.nodes for name in node.outputs}
    values = _bias_scales(network)
    nodes = [_node_proto(network, node) for node in network.nodes]
    used = {name for node in nodes for name in (*node.input, *captured(node)) if name}
    used.update(network.outputs)
    inputs = [network.tensors[name] for name in network.inputs]
    outputs = [network.tensors[name] for name in network.outputs if name in network.tensors]
    initializers: list[Any] = []
    absent: dict[str, Tensor] = {}
    for tensor in network.tensors.values():
        if not tensor.is_weight or tensor.name not in used or tensor.name in computed:
            continue
        value = values.get(tensor.name, tensor.value)
        if value is not None:
            initializers.append(numpy_helper.from_array(np.asarray(value, order="C"), tensor.name))
        elif tensor.name in free or tensor.dtype == "string":
            # ONNX Runtime takes no weights in texts.
            inputs.append(tensor)
        else:
            absent[tensor.name] = tensor
            proto = TensorProto(
                name=tensor.name,
                data_type=_element_type(tensor),
                dims=tensor.shape,
                data_location=TensorProto.EXTERNAL,
            )
            proto.external_data.add(key="location", value="absent.bin")
            initializers.append(proto)
    ends = (
        [helper.make_tensor_value_info(x.name, _element_type(x), x.shape) for x in tensors]
        for tensors in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, network.name or "network", *ends, initializers)
    opsets = [helper.make_opsetid(domain, version) for domain, version in network.opsets.items()]
    return Skeleton(
        helper.make_model(graph, opset_imports=opsets, ir_version=8),
        _shared_values(absent, math.inf if keep_weights else MAX_WEIGHT_BYTES),
    )


def _node_proto(network: Network, node: Node) -> onnx.NodeProto:
    from onnx import helper, numpy_helper

    proto = helper.make_node(node.op, node.inputs, node.outputs, node.name, domain=node.domain)
    bodies = _bodies(network, node) if node.op in CONTROL_FLOW else {}
    for label, value in {**node.attributes, **bodies}.items():
        if isinstance(value, tuple) and not value:
            # An empty list means the same as an absent one, but has no element type.
            continue
        if isinstance(value, np.ndarray):
            value = numpy_helper.from_array(value)
        try:
            proto.attribute.append(helper.make_attribute(label, value))
        except (TypeError, ValueError) as error:
            raise UnsupportedError(
                f"{node.op} {node.name!r}: its attribute {label!r} cannot be written"
            ) from error
    return proto


def _bodies(network: Network, node: Node) -> dict[str, Any]:
    """Return the subgraphs of a node by the attribute that holds them, with placeholder weights.

    Raises
    ------
    UnsupportedError
        If they have too many weights, or it is an If on a constant of unknown value: a placeholder
        would choose the branch.
    """
    from onnx import GraphProto, helper, numpy_helper

    graphs = {
        label: GraphProto.FromString(value)
        for label, value in node.attributes.items()
        if isinstance(value, bytes)
    }
    absent = [
        proto
        for graph in graphs.values()
        for proto in all_tensors(graph)
        if proto.data_type and not has_bytes(proto)
    ]
    weight_bytes = sum(4 * math.prod(proto.dims) for proto in absent)
    if weight_bytes > MAX_WEIGHT_BYTES:
        raise UnsupportedError(
            f"{node.op} {node.name!r}: the graphs inside it have {format_bytes(weight_bytes)} of "
            "weights, more than ONNX Runtime can be asked about"
        )
    for proto in absent:
        dtype = helper.tensor_dtype_to_np_dtype(proto.data_type)
        values = np.full(tuple(proto.dims), _ANY_VALUE, dtype)
        proto.CopyFrom(numpy_helper.from_array(values, proto.name))
    condition = network.tensors.get(node.inputs[0]) if node.op == "If" and node.inputs else None
    if condition is not None and condition.is_weight and condition.value is None:
        raise UnsupportedError(f"If {node.name!r}: its condition is a weight of unknown value")
    return graphs


def shared_weights(network: Network) -> dict[str, str]:
    """Return names of weights that are another one's ``Identity`` -> the name of that one.

    PyTorch's exporter writes equal weights once. ONNX Runtime does not cast shared ones beforehand.
    """
    shared: dict[str, str] = {}
    for node in network.weight_nodes:
        if node.op == "Identity" and not node.domain:
            shared[node.outputs[0]] = shared.get(node.inputs[0], node.inputs[0])
    return shared


def _bias_scales(network: Network) -> dict[str, npt.NDArray[Any]]:
    """Return values for unknown scales of quantised biases that fit those of other scales.

    ONNX Runtime fuses a bias only if its scale is that of the input times that of the weights.
    """
    scale_of = {
        node.outputs[0]: network.tensors.get(node.inputs[1])
        for node in network.nodes
        if node.op == "DequantizeLinear" and len(node.inputs) > 1
    }
    values = {}
    for node in network.nodes:
        scales = [scale for name in node.inputs[:3] if (scale := scale_of.get(name)) is not None]
        if node.op in ("Conv", "Gemm") and len(scales) == 3 and scales[2].value is None:
            first, weights = (_ANY_VALUE if s.value is None else s.value for s in scales[:2])
            product = np.asarray(first * weights, scales[2].dtype).ravel()
            if len(product) in (1, math.prod(scales[2].shape)):
                values[scales[2].name] = np.broadcast_to(product, scales[2].shape)
    return values


def _free_matrices(network: Network) -> set[str]:
    """Names of large weights that only matrix products without a BatchNormalization read."""
    following = grouped((name, node) for node in network.nodes for name in node.inputs)
    products = set()
    for node in network.nodes:
        if node.op not in ("Gemm", "MatMul"):
            continue
        # ONNX Runtime folds a normalisation into such weights, also one behind views.
        readers = following.get(node.outputs[0], [])
        while len(readers) == 1 and readers[0].op in _VIEWS:
            readers = following.get(readers[0].outputs[0], [])
        if [reader.op for reader in readers] != ["BatchNormalization"]:
            products.add(node.name)
    return {
        name
        for name, tensor in network.tensors.items()
        if tensor.is_weight
        and 4 * math.prod(tensor.shape) > FREE_WEIGHT_BYTES
        and name in following
        and all(x.name in products and name not in x.inputs[2:] for x in following[name])
    }


def _element_type(tensor: Tensor) -> int:
    number = data_type_of(tensor.dtype)
    if not number:
        raise UnsupportedError(
            f"tensor {tensor.name!r} has element type {tensor.dtype!r}, which cannot be lowered"
        )
    return number


def numpy_type(tensor: Tensor) -> np.dtype[Any]:
    from onnx import helper

    dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(_element_type(tensor))
    return dtype


def _shared_values(absent: dict[str, Tensor], most_bytes: float) -> dict[str, npt.NDArray[Any]]:
    """Allocate one block per element type; every weight is a view of it."""
    sizes = {name: math.prod(tensor.shape) for name, tensor in absent.items()}
    by_size = sorted(absent.values(), key=lambda tensor: sizes[tensor.name])
    largest = {tensor.dtype: tensor for tensor in by_size}
    for tensor in largest.values():
        weight_bytes = sizes[tensor.name] * DTYPE_BYTES.get(tensor.dtype, 1)
        if weight_bytes > most_bytes:
            raise UnsupportedError(
                f"weight {tensor.name!r} of shape {'x'.join(map(str, tensor.shape))} has "
                f"{format_bytes(weight_bytes)}, more than ONNX Runtime can be asked about; check "
                "the file"
            )
    # Zeros that nobody writes take no time.
    blocks = {
        dtype: np.zeros(sizes[tensor.name], numpy_type(tensor)) for dtype, tensor in largest.items()
    }
    for block in blocks.values():
        block[:_ANY_VALUES] = _ANY_VALUE
    return {
        name: blocks[tensor.dtype][: sizes[name]].reshape(tensor.shape)
        for name, tensor in absent.items()
    }
