"""Totals over the operators of a network, counted from its graph alone: what linear methods read.

A network is its ONNX graph, or the list of operators that PyTorch ran (`RunNetwork`). Values of a
batch are those of the batch size that the network was read at; all but weights and numbers of
layers are in proportion to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add
from typing import NamedTuple

from resperf.lowering import macs_of
from resperf.network import Network, Tensor
from resperf.predictors.operator_classes import RunNetwork, RunOperator

CONVOLUTION, POINTWISE, GROUPED = "convolution", "pointwise convolution", "grouped convolution"
PRODUCT, BATCHED, OTHER = "product", "batched product", "other"
SORTS = (CONVOLUTION, POINTWISE, GROUPED, PRODUCT, BATCHED, OTHER)
"""Sorts of operators; a pointwise convolution has windows of one value, a product is of weights, a
batched one of two results."""
CONVOLUTIONS = (CONVOLUTION, POINTWISE, GROUPED)
_CONV_OPS = frozenset({"Conv", "FusedConv", "ConvTranspose", "ConvInteger", "QLinearConv"})
_PRODUCTS = frozenset({
    "Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulInteger", "QLinearMatMul", "QGemm",
    "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
})  # fmt: skip
_VIEWS = frozenset({
    "Constant", "ConstantOfShape", "Dropout", "Flatten", "Identity", "Reshape", "Shape", "Size",
    "Squeeze", "Unsqueeze",
})  # fmt: skip
"""Operators that move no values."""


class Operation(NamedTuple):
    """One operator, or several equal ones.

    Attributes
    ----------
    sort : str
        One of `SORTS`.
    macs : float
        Multiply-adds of all.
    inputs, outputs : float
        Values of the first input (of a product the one that is no weight) and first output of all.
    data : float
        Values that all read and write, without weights.
    weights : float
        Values of the weights that all read.
    times : int
        How often the network runs it.
    """

    sort: str
    macs: float
    inputs: float
    outputs: float
    data: float
    weights: float
    times: int


class Totals(NamedTuple):
    """The metrics of ConvMeter, section 3.

    Attributes
    ----------
    flops : float
        Of all operators, two for each multiply-add.
    inputs, outputs : float
        Values that convolutions read and write; see `summed`.
    weights : float
        Learnt values.
    layers : float
        Operators with weights.
    summed : str
        ``"convolutions"``, or ``"products"`` if there is none.
    """

    flops: float
    inputs: float
    outputs: float
    weights: float
    layers: float
    summed: str


@dataclass(frozen=True)
class Counted:
    """A network as what it computes; operators that only change shapes, or weights, are left out.

    Attributes
    ----------
    name : str
    operations : tuple of Operation
    weights : float
        Learnt values.
    left_out : tuple of str
        Why operators are not counted.
    images : float
        Batch size.
    """

    name: str
    operations: tuple[Operation, ...]
    weights: float
    left_out: tuple[str, ...] = ()
    images: float = 1.0

    @cached_property
    def totals(self) -> Totals:
        """The metrics at the batch size of the network."""
        main = [operation for operation in self.operations if operation.sort in CONVOLUTIONS]
        summed = "convolutions" if main else "products"
        main = main or [operation for operation in self.operations if operation.sort == PRODUCT]
        return Totals(
            2 * sum(operation.macs for operation in self.operations),
            sum(operation.inputs for operation in main),
            sum(operation.outputs for operation in main),
            self.weights,
            float(sum(operation.times for operation in self.operations if operation.weights)),
            summed,
        )

    @cached_property
    def by_sort(self) -> dict[str, Operation]:
        """Sums of the operators of each sort."""
        sums = {sort: Operation(sort, 0.0, 0.0, 0.0, 0.0, 0.0, 0) for sort in SORTS}
        for operation in self.operations:
            sums[operation.sort] = Operation(
                operation.sort, *map(add, sums[operation.sort][1:], operation[1:])
            )
        return sums

    def scaled(self, factor: float) -> Counted:
        """Return the network at so many times its batch size (equation 3)."""
        return replace(
            self,
            images=self.images * factor,
            operations=tuple(
                operation._replace(
                    macs=operation.macs * factor,
                    inputs=operation.inputs * factor,
                    outputs=operation.outputs * factor,
                    data=operation.data * factor,
                )
                for operation in self.operations
            ),
        )


def counted(network: Network | RunNetwork) -> Counted:
    """Count what a network computes."""
    images = float(network.batch or 1)
    if isinstance(network, RunNetwork):
        weights, operations = network.parameters, _listed(network)
        return Counted(network.name, tuple(operations), weights, network.left_out, images)
    learnt = (_size(tensor) for tensor in network.tensors.values() if tensor.is_learnt)
    weights = float(sum(learnt) if network.parameters is None else network.parameters)
    return Counted(network.name, tuple(_of_graph(network)), weights, images=images)


def _of_graph(network: Network) -> Iterator[Operation]:
    for node in network.nodes:
        if node.op in _VIEWS:
            continue
        given = [network.tensors[name] for name in node.inputs if name in network.tensors]
        outputs = [network.tensors[name] for name in node.outputs if name in network.tensors]
        data = [tensor for tensor in given if not tensor.is_weight]
        weights = [tensor for tensor in given if tensor.is_learnt]
        if not (data and outputs):
            continue
        macs = macs_of(network, node)
        yield Operation(
            _sort(node.op, int(node.attributes.get("group", 1)), weights),
            0.0 if math.isnan(macs) else macs,
            _size(data[0]),
            _size(outputs[0]),
            sum(map(_size, (*data, *outputs))),
            sum(map(_size, weights)),
            1,
        )


def _sort(op: str, groups: int, weights: Sequence[Tensor]) -> str:
    if op in _CONV_OPS:
        return _convolution(groups, weights[0].shape if weights else ())
    if op in _PRODUCTS:
        return PRODUCT if weights else BATCHED
    return OTHER


def _convolution(groups: int, filters: Sequence[int]) -> str:
    if groups > 1:
        return GROUPED
    return POINTWISE if len(filters) > 2 and set(filters[2:]) == {1} else CONVOLUTION


def _size(tensor: Tensor) -> float:
    return float(math.prod(tensor.shape))


def _listed(network: RunNetwork) -> Iterator[Operation]:
    for operator in network.operators:
        if operator.of_weights or not operator.outputs:
            continue
        sort, data, macs = _work(operator)
        weights = sum(one.values for one in operator.inputs if one.is_weight)
        values = sum(
            one.values for one in (*operator.inputs, *operator.outputs[:1]) if not one.is_weight
        )
        grown = network.scale * operator.count
        yield Operation(
            sort, macs * grown, data * grown, operator.outputs[0].values * grown, values * grown,
            weights * operator.count, operator.count,
        )  # fmt: skip


def _work(operator: RunOperator) -> tuple[str, float, float]:
    """Return the sort of an operator of PyTorch, the values it reads, and its multiply-adds."""
    output_values, inputs = operator.outputs[0].values, operator.inputs
    if operator.op == "convolution":
        filters = inputs[1]
        sort = _convolution(operator.groups, filters.shape)
        return sort, inputs[0].values, output_values * filters.values / max(filters.shape[0], 1)
    if operator.op in ("addmm", "mm"):
        data, _ = inputs[-2:]
        return PRODUCT, data.values, output_values * data.shape[-1]
    if operator.op in ("bmm", "baddbmm"):
        data = inputs[-2]
        return BATCHED, data.values, output_values * data.shape[-1]
    if operator.op == "sdpa":
        query, key = inputs[:2]
        return BATCHED, query.values, 2 * query.values * key.shape[-2]
    return OTHER, inputs[0].values if inputs else 0.0, 0.0
