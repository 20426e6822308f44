"""What ONNX Runtime makes of a network at one batch size, from what it made of another.

ONNX Runtime takes most of the time of a lowering. Which nodes it makes does not depend on the batch
size, except where it compares shapes or looks for axes of length 1: `at_batch` finds such places.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from resperf.lowering._base import CONTROL_FLOW
from resperf.lowering._ort_shapes import inferred
from resperf.lowering._ort_transposes import transpose_perm
from resperf.lowering._proto import shared_weights
from resperf.network import Network, Node, Tensor
from resperf.network.shapes import shapes_at_batch

if TYPE_CHECKING:
    import onnx

KEPT = 8
LENGTHS = frozenset({"int32", "int64"})
"""Element types of target shapes."""
RELAYOUTS = frozenset({"ReorderInput", "ReorderOutput"})
PRECISE = "InsertedPrecisionFreeCast_"
"""Prefix of ONNX Runtime's names of tensors that it casts to float32."""
_FILTERS = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Operators that have weights behind their first input."""


@dataclass(frozen=True)
class Optimised:
    """What ONNX Runtime makes of a network.

    Attributes
    ----------
    original : Network
    made : Network
        The nodes of the optimised graph. Its tensors are those of both.
    protos : sequence of onnx.NodeProto
        The same nodes, as ONNX Runtime wrote them.
    blocked : sequence of bool
        Whether their outputs are in blocks.
    produced : sequence of str
        Tensors of the original network that they compute.
    constants : set of str
        Names of the constants of the optimised graph.
    """

    original: Network
    made: Network
    protos: Sequence[onnx.NodeProto]
    blocked: Sequence[bool]
    produced: Sequence[str]
    constants: Set[str]


kept: deque[tuple[tuple[object, ...], Optimised]] = deque(maxlen=KEPT)
"""What ONNX Runtime made last in this process, the latest first, and in which way."""


def keep(way: tuple[object, ...], optimised: Optimised) -> None:
    """Keep what ONNX Runtime made of a network in one `way`: its threads and optimisers."""
    kept.appendleft((way, optimised))


def known(network: Network, way: tuple[object, ...]) -> Optimised | None:
    """Return what ONNX Runtime makes of a network that was asked about at another batch size.

    None if it was not, or if that may depend on the batch size.
    """
    for made_so, each in tuple(kept):  # other threads may add some
        if made_so == way and each.original.name == network.name:
            found = at_batch(each, network)
            if found is not None:
                return found
    return None


def at_batch(optimised: Optimised, network: Network) -> Optimised | None:
    """Return what ONNX Runtime makes of a network from what it made of another batch size.

    None where the networks differ in more than the batch size, or the graph may depend on it.
    """
    old, new = optimised.original, _with_names_of(optimised.original, network)
    if not (old.batch and new.batch and _are_alike(old, new)):
        return None
    batches = (old.batch, new.batch)
    makers = {tuple(proto.output): proto for proto in optimised.protos}
    if not all(
        _is_scaled(old.tensors[name], new.tensors[name], batches) for name in new.tensors
    ) or not all(_is_decided_alike(node, old, new, makers) for node in new.nodes):
        return None
    constants = _constants(optimised, new, batches)
    tensors = None if constants is None else _tensors(optimised, new, constants)
    if tensors is None:
        return None
    made = replace(optimised.made, tensors=tensors, inputs=new.inputs, batch=new.batch)
    return replace(optimised, original=new, made=made)


def in_float32(network: Network, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the tensors that ONNX Runtime computes in float32 instead of half precision.

    Those of `names` that it names so.
    """
    originals = {
        name: network.tensors.get(name.removeprefix(PRECISE))
        for name in names
        if name.startswith(PRECISE)
    }
    return {
        name: replace(tensor, name=name, dtype="float32", value=None)
        for name, tensor in originals.items()
        if tensor is not None
    }


def channels_first(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of an image with its channels last as one with its channels first."""
    batch, *pixels, channels = tensor.shape
    return (batch, channels, *pixels)


def _constants(
    optimised: Optimised, new: Network, batches: tuple[int, int]
) -> dict[str, Tensor] | None:
    """Return the constants of the optimised graph at another batch size; None if unknown."""
    old, tensors = optimised.original, optimised.made.tensors
    for name, each in new.tensors.items():
        # ONNX Runtime made another constant of it, such as its cast.
        folded = each.is_weight and name not in optimised.constants and each.dtype not in LENGTHS
        if folded and each.shape != old.tensors[name].shape:
            return None
    readers: dict[str, list[onnx.NodeProto]] = {}
    for proto in optimised.protos:
        for name in proto.input:
            readers.setdefault(name, []).append(proto)
    found: dict[str, Tensor] = {}
    for name in optimised.constants:
        if name in old.tensors:
            constant = _constant_at(tensors[name], old.tensors[name], new.tensors[name])
        else:
            constant = _target_at(tensors[name], readers.get(name, []), old, new, batches)
        if constant is None:
            return None
        found[name] = constant
    return found


def _tensors(
    optimised: Optimised, new: Network, constants: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """Return all tensors around the optimised graph at another batch size; None if unknown."""
    old, before = optimised.original.tensors, optimised.made.tensors
    now = {**in_float32(new, before), **new.tensors, **constants}
    own = {  # those that are not simply tensors of the network
        name
        for name, each in before.items()
        if name not in now or (name in old and each is not old[name] and name not in constants)
    }
    for node, proto, is_blocked in zip(
        optimised.made.nodes, optimised.protos, optimised.blocked, strict=True
    ):
        # A re-layout is named by what it reads.
        outputs = [name for name in node.outputs if name in before and name not in node.inputs]
        if (is_blocked or node.op in RELAYOUTS) and own.isdisjoint(outputs):
            continue
        was, read = ([known.get(name) for name in node.inputs] for known in (before, now))
        if all(a is b for a, b in zip(was, read, strict=True)):
            now |= {name: before[name] for name in outputs if name in own}
            continue
        found = _outputs(node, proto, new.opsets, was, read, before)
        for name in outputs:
            tensor = found.get(name)
            if name in own:
                if tensor is None or before[name].value is not None:
                    return None
                now[name] = tensor
            elif tensor is not None and tensor.shape != now[name].shape:
                # Axes in another order, of which the other batch size told nothing.
                return None
    return now


def _outputs(
    node: Node,
    proto: onnx.NodeProto,
    opsets: Mapping[str, int],
    was: Sequence[Tensor | None],
    read: Sequence[Tensor | None],
    before: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return what a node of the optimised graph makes at another batch size, as far as known."""
    if node.op in RELAYOUTS:
        # Only an image with its channels last has another name behind it.
        [image] = read
        shape = None if image is None else channels_first(image)
        return {} if shape is None else {n: replace(before[n], shape=shape) for n in node.outputs}
    names = [name for name in node.outputs if name]
    if all(name in before for name in names):
        made = [before[name].shape for name in names]
        shapes = shapes_at_batch(node.op, node.domain, opsets, node.attributes, was, read, made)
        if shapes is not None:
            return {
                name: replace(before[name], shape=shape, value=None)
                for name, shape in zip(names, shapes, strict=True)
            }
    known = inferred(proto, read, node.attributes, opsets)
    return {
        name: Tensor(name, each[1], each[0])
        for name, each in zip(node.outputs, known, strict=False)
        if name and each is not None
    }


def _with_names_of(old: Network, new: Network) -> Network:
    """Give constants of `new` the names of `old`: target shapes have one for each batch size."""
    names: dict[str, str] = {}
    for before, now in zip(old.nodes, new.nodes, strict=False):
        if before is not now:
            names |= {b: a for a, b in zip(before.inputs, now.inputs, strict=False) if a != b}
    if not names:
        return new
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
    return replace(new, nodes=tuple(nodes), tensors=tensors)


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
    if old is new:
        return new.op not in CONTROL_FLOW
    words = [(n.name, n.op, n.domain, n.inputs, n.outputs) for n in (old, new)]
    return (
        words[0] == words[1]
        and new.op not in CONTROL_FLOW
        and old.attributes.keys() == new.attributes.keys()
        and all(_is_same(old.attributes[name], value) for name, value in new.attributes.items())
    )


def _is_same_tensor(old: Tensor, new: Tensor) -> bool:
    """Whether two tensors differ in lengths only; integers may be lengths."""
    if old is new:
        return True
    kinds = [(t.dtype, t.is_weight, t.value is None, len(t.shape)) for t in (old, new)]
    may_differ = new.dtype in LENGTHS or old.shape != new.shape
    return kinds[0] == kinds[1] and (may_differ or _is_same(old.value, new.value))


def _is_same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if isinstance(new, np.ndarray):
        return bool(np.array_equal(old, new))
    return not isinstance(new, Tensor) and bool(old == new)


def _is_scaled(old: Tensor, new: Tensor, batches: tuple[int, int]) -> bool:
    """Whether at most one axis is longer, by the ratio of the batch sizes."""
    if old is new:
        return True
    differing = [(a, b) for a, b in zip(old.shape, new.shape, strict=True) if a != b]
    if len(differing) != 1:
        return not differing
    [(before, now)] = differing
    return now * batches[0] == before * batches[1]


def _is_decided_alike(
    node: Node, old: Network, new: Network, makers: Mapping[tuple[str, ...], onnx.NodeProto]
) -> bool:
    """Whether ONNX Runtime decides the same about a node at both batch sizes.

    It removes a node that changes nothing, writes a transposition that moves axes of length 1 as a
    Reshape, and fuses additions of equal shapes. A node that it left as it is where shapes are
    equal stays where they are not.
    """
    if node.op == "Transpose" and _keeps_order(node, old) != _keeps_order(node, new):
        return False
    before, now = _shapes(node, old), _shapes(node, new)
    equal_both = len(set(zip(before, now, strict=True)))
    if equal_both == len(set(before)) == len(set(now)):
        return True
    left = makers.get(node.outputs)
    return (
        equal_both == len(set(now))  # what is equal now was before
        and left is not None
        and (left.op_type, len(left.input)) == (node.op, len(node.inputs))
    )


def _shapes(node: Node, network: Network) -> list[tuple[int, ...]]:
    """Return the shapes of a node's tensors; filters are none of them."""
    names = (*(node.inputs[:1] if node.op in _FILTERS else node.inputs), *node.outputs)
    return [network.tensors[name].shape for name in names if name in network.tensors]


def _keeps_order(node: Node, network: Network) -> bool:
    """Whether a transposition moves axes of length 1 only."""
    order = transpose_perm(node, network.tensors)
    image = network.tensors.get(node.inputs[0])
    if order is None or image is None:
        return False
    longer = [axis for axis in order if image.shape[axis] != 1]
    return longer == sorted(longer)


def _constant_at(constant: Tensor, before: Tensor, now: Tensor) -> Tensor | None:
    """Return a constant of the graph where it is `now` and was `before`; None if not known."""
    if before.shape == now.shape and _is_same(before.value, now.value):
        # Integers of unknown value may be lengths.
        known = now.is_weight or now.value is not None or now.dtype not in LENGTHS
        return constant if known else None
    if constant.shape != before.shape:
        return None
    return replace(constant, shape=now.shape, value=now.value)


def _target_at(
    constant: Tensor,
    readers: Sequence[onnx.NodeProto],
    old: Network,
    new: Network,
    batches: tuple[int, int],
) -> Tensor | None:
    """Do the same with a constant that ONNX Runtime made: a Reshape to it has the batch first."""
    if constant.dtype not in LENGTHS or all(map(_reads_places, readers)):
        return constant
    target = constant.value
    if target is None or any(proto.op_type != "Reshape" for proto in readers):
        return None
    sizes = {tuple(_size(proto.input[0], each) for each in (old, new)) for proto in readers}
    if all(before is not None and before == now for before, now in sizes):
        return constant
    if not target.size or target[0] <= 0:
        return constant
    first, rest = divmod(int(target[0]) * batches[1], batches[0])
    value = np.array([first, *target[1:]], target.dtype)
    return None if rest else replace(constant, value=value)


def _reads_places(node: onnx.NodeProto) -> bool:
    """Whether the constants that ONNX Runtime makes for an operator are never the batch size."""
    if node.op_type == "Split":
        return any(each.name == "axis" and each.i for each in node.attribute)
    return node.op_type in ("Squeeze", "Unsqueeze", "Gather", "Pad")


def _size(name: str, network: Network) -> int | None:
    tensor = network.tensors.get(name)
    return None if tensor is None else math.prod(tensor.shape)
