"""Half precision as ONNX Runtime runs it on a CPU: in float32 between casts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from resperf.layers.cast import ELEMENT_TYPES
from resperf.network import Network, Node, Rewritten, Tensor
from resperf.network.folding import HALF_PRECISION

NOTE = (
    "stored rules assume that everything in half precision is computed in float32, with casts at "
    "the network's inputs and outputs; ONNX Runtime also casts around some copies"
)


def has_half_precision(network: Network) -> bool:
    """Whether anything in the network has half precision."""
    return any(tensor.dtype in HALF_PRECISION for tensor in network.tensors.values())


def in_float32(network: Network) -> Rewritten:
    """Return the network in float32, with casts at half-precision inputs and outputs.

    ONNX Runtime has few half-precision kernels on a CPU: it casts weights beforehand, and the
    network's inputs and outputs in every run.
    """
    if not has_half_precision(network):
        return Rewritten(network, {})
    read = {name for node in network.nodes for name in node.inputs}
    edges = {
        name: f"{name} in float32"
        for name in (*(each for each in network.inputs if each in read), *network.outputs)
        if name in network.tensors and network.tensors[name].dtype in HALF_PRECISION
    }
    tensors = {name: _as_float32(tensor) for name, tensor in network.tensors.items()}
    tensors |= {new: replace(tensors[name], name=new) for name, new in edges.items()}
    tensors |= {name: network.tensors[name] for name in edges}
    nodes = [_cast(name, edges[name], "float32") for name in network.inputs if name in edges]
    own = nodes.copy()
    for node in network.nodes:
        inputs, outputs = (
            tuple(edges.get(name, name) for name in names) for names in (node.inputs, node.outputs)
        )
        node = replace(node, inputs=inputs, outputs=outputs)
        if node.op == "Cast" and not node.domain:
            node = _plain_cast(node, tensors)
        nodes.append(node)
    back = [
        _cast(edges[name], name, network.tensors[name].dtype)
        for name in network.outputs
        if name in edges and name not in network.inputs
    ]
    whole = replace(network, nodes=(*nodes, *back), tensors=tensors)
    return Rewritten(whole, {cast.name: () for cast in (*own, *back)})


def _as_float32(tensor: Tensor) -> Tensor:
    if tensor.dtype not in HALF_PRECISION:
        return tensor
    value = None if tensor.value is None else tensor.value.astype(np.float32)
    return replace(tensor, dtype="float32", value=value)


def _cast(name: str, result: str, dtype: str) -> Node:
    return Node(f"{result}/Cast", "Cast", "", (name,), (result,), {"to": ELEMENT_TYPES[dtype]})


def _plain_cast(node: Node, tensors: dict[str, Tensor]) -> Node:
    """Turn a cast to half precision into a cast to float32, or into an Identity."""
    before, after = (tensors.get(name) for name in (node.inputs[0], node.outputs[0]))
    if before is None or after is None or after.dtype != "float32":
        return node
    if before.dtype == "float32":
        return replace(node, op="Identity", attributes={})
    return replace(node, attributes={**node.attributes, "to": ELEMENT_TYPES["float32"]})
