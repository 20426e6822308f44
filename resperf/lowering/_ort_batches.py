"""ONNX Runtime's optimised graph of a network at one batch size, made from that of another.

ONNX Runtime takes most of the time of a lowering. Which nodes it makes does not depend on the batch
size, except where it compares shapes or looks for axes of length 1: `at_batch` finds such places.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from resperf.lowering._base import CONTROL_FLOW
from resperf.lowering._ort_transposes import transpose_perm
from resperf.lowering._proto import shared_weights
from resperf.network import Network, Node, Tensor

if TYPE_CHECKING:
    import onnx

GRAPHS_KEPT = 8
LENGTHS = frozenset({"int32", "int64"})
"""Element types of target shapes."""
_FILTERS = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Operators that have weights behind their first input."""


@dataclass(frozen=True)
class _Made:
    network: Network
    way: tuple[object, ...]
    model: onnx.ModelProto


graphs: deque[_Made] = deque(maxlen=GRAPHS_KEPT)
"""The last graphs that ONNX Runtime made in this process, the latest first."""


def keep(network: Network, way: tuple[object, ...], model: onnx.ModelProto) -> None:
    """Keep what ONNX Runtime made of a network in one `way`: its threads and optimisers."""
    graphs.appendleft(_Made(network, way, model))


def known_graph(network: Network, way: tuple[object, ...]) -> onnx.GraphProto | None:
    """Return the graph of a network that was asked about at another batch size.

    None if it was not, or if the graph may depend on the batch size.
    """
    for each in tuple(graphs):  # other threads may add some
        if each.way == way and each.network.name == network.name:
            graph = at_batch(each.model, each.network, network)
            if graph is not None:
                return graph
    return None


def at_batch(model: onnx.ModelProto, old: Network, new: Network) -> onnx.GraphProto | None:
    """Return what ONNX Runtime makes of `new` from what it made of `old`, at another batch size.

    Parameters
    ----------
    model : onnx.ModelProto
        Optimised graph of `old`.
    old, new : Network

    Returns
    -------
    onnx.GraphProto or None
        None where they differ in more than the batch size, or the graph may depend on it.
    """
    import onnx

    new = _with_names_of(old, new)
    if not (old.batch and new.batch and _are_alike(old, new)):
        return None
    ratio = Fraction(new.batch, old.batch)
    made = {tuple(node.output): node for node in model.graph.node}
    if not all(
        _is_scaled(old.tensors[name], new.tensors[name], ratio) for name in new.tensors
    ) or not all(_is_decided_alike(node, old, new, made) for node in new.nodes):
        return None
    scaled = onnx.ModelProto()
    scaled.CopyFrom(model)
    graph = scaled.graph
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for constant in graph.initializer:
        if constant.name in old.tensors:
            is_set = _set_constant(constant, old.tensors[constant.name], new)
        else:
            is_set = _set_target(constant, readers.get(constant.name, []), old, new, ratio)
        if not is_set:
            return None
    del graph.value_info[:]
    for info in (*graph.input, *graph.output):
        dims = info.type.tensor_type.shape.dim
        if info.name not in new.tensors or len(dims) != len(new.tensors[info.name].shape):
            return None
        for dim, length in zip(dims, new.tensors[info.name].shape, strict=True):
            dim.dim_value = length
    return onnx.shape_inference.infer_shapes(scaled).graph


def _with_names_of(old: Network, new: Network) -> Network:
    """Give constants of `new` the names of `old`: target shapes have one for each batch size."""
    names: dict[str, str] = {}
    for before, now in zip(old.nodes, new.nodes, strict=False):
        names |= {b: a for a, b in zip(before.inputs, now.inputs, strict=False) if a != b}
    tensors = {name: each for name, each in new.tensors.items() if name not in names}
    for own, name in names.items():
        own_tensor = new.tensors.get(own)
        if own_tensor is None or own_tensor.dtype not in LENGTHS or own_tensor.value is None:
            return new
        renamed = replace(own_tensor, name=name)
        if not _is_same(tensors.setdefault(name, renamed).value, renamed.value):
            return new
    nodes = (
        replace(each, inputs=tuple(names.get(name, name) for name in each.inputs))
        for each in new.nodes
    )
    return replace(new, nodes=tuple(nodes), tensors=tensors) if names else new


def _are_alike(old: Network, new: Network) -> bool:
    """Whether two networks have the same operators, tensors and constants but for lengths."""
    if (old.inputs, old.outputs, old.opsets) != (new.inputs, new.outputs, new.opsets):
        return False
    if old.tensors.keys() != new.tensors.keys() or len(old.nodes) != len(new.nodes):
        return False
    if shared_weights(old) != shared_weights(new):
        return False
    return all(map(_is_same_node, old.nodes, new.nodes)) and all(
        _is_same_tensor(old.tensors[name], each) for name, each in new.tensors.items()
    )


def _is_same_node(old: Node, new: Node) -> bool:
    words = [(n.name, n.op, n.domain, n.inputs, n.outputs) for n in (old, new)]
    return (
        words[0] == words[1]
        and new.op not in CONTROL_FLOW
        and old.attributes.keys() == new.attributes.keys()
        and all(_is_same(old.attributes[name], value) for name, value in new.attributes.items())
    )


def _is_same_tensor(old: Tensor, new: Tensor) -> bool:
    """Whether two tensors differ in lengths only; integers may be lengths."""
    kinds = [(t.dtype, t.is_weight, t.value is None, len(t.shape)) for t in (old, new)]
    may_differ = new.dtype in LENGTHS or old.shape != new.shape
    return kinds[0] == kinds[1] and (may_differ or _is_same(old.value, new.value))


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(new, np.ndarray):
        return bool(np.array_equal(old, new))
    return not isinstance(new, Tensor) and bool(old == new)


def _is_scaled(old: Tensor, new: Tensor, ratio: Fraction) -> bool:
    """Whether at most one axis is longer, by the ratio of the batch sizes."""
    differing = [(a, b) for a, b in zip(old.shape, new.shape, strict=True) if a != b]
    return not differing or (len(differing) == 1 and differing[0][1] == differing[0][0] * ratio)


def _is_decided_alike(
    node: Node, old: Network, new: Network, made: Mapping[tuple[str, ...], onnx.NodeProto]
) -> bool:
    """Whether ONNX Runtime decides the same about a node at both batch sizes.

    It removes a node that changes nothing, writes a transposition that moves axes of length 1 as a
    Reshape, and fuses additions of equal shapes. A node that it left as it is where shapes are
    equal stays where they are not.
    """
    if node.op == "Transpose" and _keeps_order(node, old) != _keeps_order(node, new):
        return False
    equal_before, equal_now = (_equal_shapes(node, each) for each in (old, new))
    if equal_before == equal_now:
        return True
    kept = made.get(node.outputs)
    return (
        equal_before > equal_now
        and kept is not None
        and (kept.op_type, len(kept.input)) == (node.op, len(node.inputs))
    )


def _equal_shapes(node: Node, network: Network) -> set[tuple[str, str]]:
    """Return the pairs of a node's tensors that have equal shapes; filters are none of them."""
    names = (*(node.inputs[:1] if node.op in _FILTERS else node.inputs), *node.outputs)
    shapes = {name: network.tensors[name].shape for name in names if name in network.tensors}
    return {(a, b) for a, b in combinations(shapes, 2) if shapes[a] == shapes[b]}


def _keeps_order(node: Node, network: Network) -> bool:
    """Whether a transposition moves axes of length 1 only."""
    order = transpose_perm(node, network.tensors)
    image = network.tensors.get(node.inputs[0])
    if order is None or image is None:
        return False
    longer = [axis for axis in order if image.shape[axis] != 1]
    return longer == sorted(longer)


def _set_constant(constant: onnx.TensorProto, before: Tensor, new: Network) -> bool:
    """Give a constant of the graph the value that it has in `new`; False if that is not known."""
    from onnx import numpy_helper

    now = new.tensors[constant.name]
    if before.shape == now.shape and _is_same(before.value, now.value):
        # Integers of unknown value may be lengths.
        return now.is_weight or now.value is not None or now.dtype not in LENGTHS
    if tuple(constant.dims) != before.shape:
        return False
    if now.value is not None:
        constant.CopyFrom(numpy_helper.from_array(np.asarray(now.value), constant.name))
    else:
        constant.dims[:] = now.shape
    return True


def _set_target(
    constant: onnx.TensorProto,
    readers: Sequence[onnx.NodeProto],
    old: Network,
    new: Network,
    ratio: Fraction,
) -> bool:
    """Do the same with a constant that ONNX Runtime made: a Reshape to it has the batch first."""
    import onnx
    from onnx import numpy_helper

    if constant.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
        return True
    if all(map(_reads_places, readers)):
        return True
    if constant.external_data or any(node.op_type != "Reshape" for node in readers):
        return False
    sizes = {tuple(_size(node.input[0], each) for each in (old, new)) for node in readers}
    target = numpy_helper.to_array(constant).copy()
    if all(before is not None and before == now for before, now in sizes):
        return True
    if not target.size or target[0] <= 0:
        return True
    longer = int(target[0]) * ratio
    target[0] = int(longer)
    constant.CopyFrom(numpy_helper.from_array(target, constant.name))
    return longer.denominator == 1


def _reads_places(node: onnx.NodeProto) -> bool:
    """Whether the constants that ONNX Runtime makes for an operator are never the batch size."""
    if node.op_type == "Split":
        return any(each.name == "axis" and each.i for each in node.attribute)
    return node.op_type in ("Squeeze", "Unsqueeze", "Gather", "Pad")


def _size(name: str, network: Network) -> int | None:
    tensor = network.tensors.get(name)
    return None if tensor is None else math.prod(tensor.shape)
