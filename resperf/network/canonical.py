"""Undo what exporters do, for targets that cannot be asked what they run.

An exporter writes operators that its operator set lacks in parts. They are joined again, named as
ONNX names them in later operator sets: ``LayerNormalization`` (17), ``Gelu`` (20),
``GroupNormalization`` (21), ``Attention`` (23), ``Swish`` (24). Where the file's operator set has
the operator, parts are what the network computes, and they stay. A matrix product and its bias
become one ``Gemm``, of any rank.

Never used before ONNX Runtime's own lowering, which finds such parts by its own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from resperf.network._base import MALFORMED, Network, Node, Rewritten
from resperf.network.rewriting import Rewriting
from resperf.units import LOW_BITS

PASSING = frozenset({"Identity", "Dropout"})
"""Operators that return their input in inference."""
_SQRT_2 = 1.41421356


def canonical(network: Network) -> Rewritten:
    """Join the operators that an exporter wrote in parts.

    Parameters
    ----------
    network : Network
        As read from a file.
    """
    graph = Rewriting(network)
    for node in graph.walk():
        if not node.domain and node.op in _RULES:
            # The error is reported later, when a layer is made of the node.
            with suppress(*MALFORMED):
                _join(graph, node)
    return graph.rewritten()


def _join(graph: Rewriting, last: Node) -> None:
    """Join what the first rule finds that ends with a node."""
    for rule, since in _RULES[last.op]:
        if graph.opset < since and (result := rule(graph, last)) is not None:
            match, joined = result
            if graph.join(match.nodes, last, joined):
                return


class _Match:
    """The nodes that a rule looks through, from the last one backwards."""

    def __init__(self, graph: Rewriting, last: Node) -> None:
        self.graph, self.nodes = graph, [last]

    def maker_of(self, name: str, *ops: str) -> Node | None:
        """Return the node that makes a tensor, if it has one of the operators."""
        node = self.graph.maker.get(name)
        if node is None or node.op not in ops or node.domain:
            return None
        self.nodes.append(node)
        return node

    def behind_passing(self, name: str) -> str:
        """Return the tensor that operators without effect make this one of."""
        while (node := self.graph.maker.get(name)) and node.op in PASSING:
            self.nodes.append(node)
            name = node.inputs[0]
        return name

    def split(self, node: Node, test: Callable[[str], bool]) -> tuple[str, str] | None:
        """Return the input of a node with two that passes a test, and the other one."""
        if len(node.inputs) != 2:
            return None
        first, second = node.inputs
        if test(second):
            return second, first
        return (first, second) if test(first) else None

    def scaled(self, node: Node, *values: float) -> str | None:
        """Return the input that a node multiplies by, or adds to, one of some numbers."""
        operands = self.split(node, lambda name: self.graph.is_near(name, *values))
        return None if operands is None else operands[1]


_Joined = tuple[_Match, Node] | None


def _joined(
    last: Node, op: str, inputs: tuple[str, ...], attributes: Mapping[str, object] | None = None
) -> Node:
    return Node(last.name, op, "", inputs, last.outputs, attributes or {})


def _linear(graph: Rewriting, last: Node) -> _Joined:
    """Join a product with a constant matrix and its bias."""
    match = _Match(graph, last)
    operands = match.split(last, graph.is_vector)
    product = operands and match.maker_of(operands[1], "MatMul")
    if not product or not operands:
        return None
    matrix = graph.shape(product.inputs[1])
    if not graph.is_weight(product.inputs[1]) or len(matrix) != 2:
        return None
    if graph.shape(operands[0]) != matrix[1:]:
        return None
    return match, _joined(last, "Gemm", (*product.inputs, operands[0]))


def _packed_product(graph: Rewriting, last: Node) -> _Joined:
    """Join a product and the dequantisation of its matrix of few bits, which is read packed."""
    match = _Match(graph, last)
    matrix = match.maker_of(last.inputs[1], "DequantizeLinear")
    if matrix is None or not graph.is_weight(matrix.inputs[0]):
        return None
    if graph.tensors[matrix.inputs[0]].dtype not in LOW_BITS:
        return None
    return match, _joined(last, "MatMulNBits", (last.inputs[0], *matrix.inputs, *last.inputs[2:]))


def _plain_conv(graph: Rewriting, node: Node) -> _Joined:
    """Drop the bias of zeros that exporters give a convolution."""
    bias = graph.tensors.get(node.inputs[2]) if len(node.inputs) == 3 else None
    if bias is None or bias.value is None or np.any(bias.value):
        return None
    return _Match(graph, node), replace(node, inputs=node.inputs[:2])


def _group_norm(graph: Rewriting, last: Node) -> _Joined:
    """Join a normalisation of groups, each as one channel, with its scale and bias."""
    match = _Match(graph, last)
    shifted = match.split(last, graph.is_weight)
    product = shifted and match.maker_of(shifted[1], "Mul")
    scaled = product and match.split(product, graph.is_weight)
    back = scaled and match.maker_of(scaled[1], "Reshape")
    norm = back and match.maker_of(back.inputs[0], "InstanceNormalization")
    apart = norm and match.maker_of(norm.inputs[0], "Reshape")
    if not apart or not norm or not scaled or not shifted:
        return None
    value, grouped = apart.inputs[0], graph.shape(norm.inputs[0])
    if len(grouped) != 3 or graph.shape(value) != graph.shape(last.outputs[0]):
        return None
    attributes = {**norm.attributes, "num_groups": grouped[1]}
    return match, _joined(last, "GroupNormalization", (value, scaled[0], shifted[0]), attributes)


def _times_one(graph: Rewriting, last: Node) -> _Joined:
    """Drop a factor of one, which exporters write where a function has such a parameter."""
    for number, other in (last.inputs, last.inputs[::-1]):
        tensor = graph.tensors.get(number)
        if tensor is not None and tensor.value is not None and tensor.value.size == 1:
            same = graph.shape(other) == graph.shape(last.outputs[0])
            if same and tensor.value.item() == 1:
                return _Match(graph, last), _joined(last, "Identity", (other,))
    return None


def _whole_assignment(graph: Rewriting, last: Node) -> _Joined:
    """Drop an assignment to all of a tensor, as which exporters write changes in place.

    Of a ``copy_`` into a tensor they write a cast to its type first: it stays.
    """
    data, indices, updates = last.inputs[:3]
    rows = graph.tensors.get(indices)
    if (maker := graph.maker.get(updates)) and maker.op == "CastLike":
        return None
    if rows is None or rows.value is None or graph.shape(updates) != graph.shape(data):
        return None
    if not np.array_equal(rows.value.ravel(), np.arange(graph.shape(data)[0])):
        return None
    return _Match(graph, last), _joined(last, "Identity", (updates,))


def _batch_statistics(graph: Rewriting, last: Node) -> _Joined:
    """Join a batch normalisation and the mean and variance that it computes of its own input."""
    match = _Match(graph, last)
    value = last.inputs[0]
    mean, mean_square = (match.maker_of(name, "ReduceMean") for name in last.inputs[3:5])
    if mean is None or mean_square is None or mean.inputs[0] != value:
        return None
    square = match.maker_of(mean_square.inputs[0], "Mul", "Pow")
    difference = square and match.maker_of(square.inputs[0], "Sub")
    other = difference and match.maker_of(difference.inputs[1], "ReduceMean")
    if not other or not difference or {difference.inputs[0], other.inputs[0]} != {value}:
        return None
    attributes = {**last.attributes, "training_mode": 1}
    return match, replace(last, inputs=last.inputs[:3], attributes=attributes)


def _gated_by_itself(graph: Rewriting, last: Node) -> _Joined:
    """Join a tensor times its sigmoid (SiLU), or times its hard sigmoid."""
    for gate, other in (last.inputs, last.inputs[::-1]):
        match = _Match(graph, last)
        node = match.maker_of(gate, "Sigmoid", "HardSigmoid")
        if node and node.inputs[0] == other:
            op = "Swish" if node.op == "Sigmoid" else "HardSwish"
            return match, _joined(last, op, (other,))
    return None


def _gelu(graph: Rewriting, last: Node) -> _Joined:
    """Join 0.5 x (1 + erf(x / sqrt 2)), its factors in any order."""
    match = _Match(graph, last)
    factors = list(_factors(match, last))
    halves = [name for name in factors if graph.is_near(name, 0.5)]
    others = [name for name in factors if name not in halves]
    if len(halves) != 1 or len(others) != 2:
        return None
    for gate, value in (others, others[::-1]):
        one = match.maker_of(gate, "Add")
        inner = one and match.scaled(one, 1.0)
        erf = inner and match.maker_of(inner, "Erf")
        scale = erf and match.maker_of(erf.inputs[0], "Div", "Mul")
        if scale and match.scaled(scale, _SQRT_2, 1 / _SQRT_2) == value:
            return match, _joined(last, "Gelu", (value,), {"approximate": "none"})
    return None


def _factors(match: _Match, node: Node) -> Iterator[str]:
    """Yield the factors of a product of products, each of which one node reads."""
    for name in node.inputs:
        inner = match.graph.maker.get(name)
        if inner is not None and inner.op == "Mul" and len(match.graph.readers(name)) == 1:
            match.nodes.append(inner)
            yield from _factors(match, inner)
        else:
            yield name


def _layer_norm(graph: Rewriting, last: Node) -> _Joined:
    """Join (x - mean) / sqrt(variance + epsilon) x scale + bias over the last axis."""
    match = _Match(graph, last)
    operands = match.split(last, graph.is_vector)
    product = operands and match.maker_of(operands[1], "Mul")
    weighted = product and match.split(product, graph.is_vector)
    ratio = weighted and match.maker_of(weighted[1], "Div")
    if not ratio or not operands or not weighted:
        return None
    difference = match.maker_of(ratio.inputs[0], "Sub")
    root = match.maker_of(ratio.inputs[1], "Sqrt")
    total = root and match.maker_of(root.inputs[0], "Add")
    variance = total and match.split(total, graph.is_number)
    mean_square = variance and match.maker_of(variance[1], "ReduceMean")
    square = mean_square and match.maker_of(mean_square.inputs[0], "Pow", "Mul")
    if not difference or not square or not mean_square or not variance:
        return None
    mean = match.maker_of(difference.inputs[1], "ReduceMean")
    if mean is None or difference.outputs[0] != square.inputs[0]:
        return None
    value = difference.inputs[0]
    if mean.inputs[0] != value or not all(map(graph.is_last_mean, (mean, mean_square))):
        return None
    epsilon = graph.tensors[variance[0]].value
    attributes = {"axis": -1} | ({} if epsilon is None else {"epsilon": float(epsilon.item())})
    return match, _joined(last, "LayerNormalization", (value, weighted[0], operands[0]), attributes)


def _attention(graph: Rewriting, last: Node) -> _Joined:
    """Join scaled-dot-product attention, as exporters write it: queries and keys are both scaled.

    A network's own attention in parts scales one of them, or the scores: it stays in parts.
    """
    match = _Match(graph, last)
    softmax = match.maker_of(match.behind_passing(last.inputs[0]), "Softmax")
    if not softmax:
        return None
    scores, mask = softmax.inputs[0], ""
    masked = match.maker_of(scores, "Add")
    if masked:
        for product, other in (masked.inputs, masked.inputs[::-1]):
            if (maker := graph.maker.get(product)) and maker.op == "MatMul":
                scores, mask = product, other
                break
    product_node = match.maker_of(scores, "MatMul")
    scaled = product_node and [match.maker_of(name, "Mul") for name in product_node.inputs]
    if not scaled or None in scaled:
        return None
    pairs = [node and match.split(node, graph.is_number) for node in scaled]
    if None in pairs:
        return None
    (_, query), (_, transposed) = [pair for pair in pairs if pair]
    key = _before_transpose(match, transposed)
    if key is None:
        return None
    inputs = (query, key, last.inputs[1], *((mask,) if mask else ()))
    return match, _joined(last, "Attention", inputs)


def _before_transpose(match: _Match, name: str) -> str | None:
    """Return the keys that an exporter transposed, which it may do on fewer axes."""
    graph = match.graph
    wanted = (*graph.shape(name)[:-2], *graph.shape(name)[:-3:-1])
    for _ in range(3):
        node = match.maker_of(name, "Reshape", "Transpose")
        if node is None:
            return None
        name = node.inputs[0]
        if node.op == "Transpose" and graph.shape(name) == wanted:
            return name
        if node.op == "Reshape" and graph.shape(name) == wanted and len(match.nodes) > 1:
            return name
    return None


_LATEST = 1 << 20
_RULES: Mapping[str, tuple[tuple[Callable[[Rewriting, Node], _Joined], int], ...]] = {
    "Add": ((_layer_norm, 17), (_group_norm, 21), (_linear, _LATEST)),
    "BatchNormalization": ((_batch_statistics, _LATEST),),
    "Conv": ((_plain_conv, _LATEST),),
    "Gemm": ((_packed_product, _LATEST),),
    "MatMul": ((_packed_product, _LATEST), (_attention, 23)),
    "Mul": ((_gelu, 20), (_gated_by_itself, 24), (_times_one, _LATEST)),
    "ScatterND": ((_whole_assignment, _LATEST),),
}
"""Operator of the last part -> its rules, each with the operator set that has the whole."""
