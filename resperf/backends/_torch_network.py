"""A whole network as a module of PyTorch: its operators one after the other, as eager code runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from resperf.backends._attributes import Function
from resperf.backends._torch_functions import STATISTICS, TYPES, function_of, prepared, prepares
from resperf.backends._torch_layers import made_up
from resperf.errors import LayerError, UnsupportedError
from resperf.layers import Operand, Operator
from resperf.lowering._torch_eager import OWN_DOMAINS, is_behind_transposition
from resperf.network import Network, Node
from resperf.network.canonical import PASSING
from resperf.network.protos import data_type_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Step:
    """One operator: what runs it, which values it reads and writes, and which end with it."""

    function: Function
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]


class TorchNetwork(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """A network as a module whose parameters are its weights.

    Tensors are freed as soon as nobody reads them again, as local variables of eager code are.

    Parameters
    ----------
    network : Network
        As PyTorch runs it (`resperf.lowering.torch.as_run`).
    weights : mapping of str to ndarray
        Values of constants; those that are absent are made up.
    device : torch.device
    channels_last : bool
        Whether images and their filters lie in memory with channels last.
    training : bool
        Whether normalisations use the batch's statistics.

    Raises
    ------
    UnsupportedError
        If PyTorch has no operator for a node.
    """

    def __init__(
        self,
        network: Network,
        weights: Mapping[str, Array],
        device: torch.device,
        *,
        channels_last: bool = False,
        training: bool = False,
    ) -> None:
        super().__init__()
        self._device, self._last = device, channels_last
        self._network, self._weights = network, weights
        self._slots: dict[str, int] = {}
        self._values: list[Any] = []
        self._steps: list[_Step] = []
        self._same, nodes = _equal_constants(network)
        self._makers = {name: node for node in nodes for name in node.outputs if name}
        self._variable = self._makers.keys() | set(network.inputs)
        self._inputs = [self._slot(name) for name in network.inputs]
        readings = [self._read(node, training) for node in nodes]
        self._outputs = [self._slot(name) for name in network.outputs]
        self._plan(nodes, readings)
        # Only the module's own tensors are kept.
        self._network, self._weights, self._makers = replace(network, nodes=()), {}, {}

    def forward(self, *inputs: Any) -> list[Any]:
        """Run every operator; return the network's outputs."""
        values = self._values.copy()
        for slot, value in zip(self._inputs, inputs, strict=True):
            values[slot] = value
        for step in self._steps:
            result = step.function(*[values[slot] for slot in step.reads])
            if isinstance(result, (tuple, list)):
                for slot, output in zip(step.writes, result, strict=False):
                    values[slot] = output
            else:
                values[step.writes[0]] = result
            for slot in step.frees:
                values[slot] = None
        return [values[slot] for slot in self._outputs]

    def free(self) -> None:
        """Free the weights."""
        self._values, self._steps = [], []
        self._parameters.clear()
        self._buffers.clear()

    def _slot(self, name: str) -> int:
        if name not in self._slots:
            if name not in self._variable:
                return self._register(name, self._constant(name))
            self._slots[name] = len(self._values)
            self._values.append(None)
        return self._slots[name]

    def _register(self, name: str, value: Any, *, fixed: bool = False) -> int:
        """Register a constant: floats with axes as a parameter."""
        if name not in self._slots:
            if value is not None:
                trained = value.is_floating_point() and value.ndim > 0 and not fixed
                value = torch.nn.Parameter(value, requires_grad=trained) if trained else value
                register = self.register_parameter if trained else self.register_buffer
                register(f"constant{len(self._values)}", value)
            self._slots[name] = len(self._values)
            self._values.append(value)
        return self._slots[name]

    def _constant(self, name: str) -> Any:
        """Return a constant's value on the device, in the type that the network has there."""
        if not name:
            return None
        name = self._same.get(name, name)
        tensor = self._network.tensors.get(name)
        value = self._weights.get(name)
        if value is None:
            value = tensor.value if tensor is not None else None
        if value is None:
            if tensor is None:
                raise UnsupportedError(f"the shape of {name!r} is not known")
            data = made_up(tensor.shape, _type_of(tensor.dtype, name), self._device)
            return data.contiguous(memory_format=self.format_of(data))
        data = _tensor(np.asarray(value)).to(self._device)
        if tensor is not None and data.is_floating_point():
            data = data.to(_type_of(tensor.dtype, name))
        return data.contiguous(memory_format=self.format_of(data))

    def format_of(self, tensor: Any) -> torch.memory_format:
        """Return the memory format of an input or a filter."""
        last = self._last and tensor.ndim == 4
        return torch.channels_last if last else torch.contiguous_format

    def _read(self, node: Node, training: bool) -> tuple[Function, list[int]]:
        """Return what runs a node, and the slots of its inputs."""
        try:
            operator = self._operator(node)
            function = function_of(operator, training=training)
            if node.op in PASSING and is_behind_transposition(node, self._makers):
                # An exporter writes contiguous() so.
                function = torch.Tensor.contiguous
            if prepares(node.op) and len(node.inputs) > 1:
                return function, [self._slot(node.inputs[0]), *self._prepared(node, operator)]
            fixed = STATISTICS.get(node.op, ())
            # Of their own: an untrained network's file may have one constant as bias and mean.
            return function, [
                self._register(f"statistics {name}", self._constant(name), fixed=True)
                if position in fixed and name not in self._variable
                else self._slot(name)
                for position, name in enumerate(node.inputs)
            ]
        except (LayerError, UnsupportedError) as error:
            raise UnsupportedError(f"{node.op} {node.name!r}: {error}") from error

    def _prepared(self, node: Node, operator: Operator) -> list[int]:
        """Return slots of a node's weights as PyTorch's modules hold them, and of what it reads."""
        rest = node.inputs[1:]
        # What the network computes is no tensor yet: its name stands for it.
        given = [name if name in self._variable else self._constant(name) for name in rest]
        return [
            self._slot(weight)
            if isinstance(weight, str)
            else self._register(f"{node.op} {index} {rest}", weight)
            for index, weight in enumerate(prepared(operator, given))
        ]

    def _operator(self, node: Node) -> Operator:
        tensors = self._network.tensors
        if node.domain not in OWN_DOMAINS:
            raise UnsupportedError(f"operators of domain {node.domain!r} are not PyTorch's")
        inputs = []
        for name in node.inputs:
            tensor = tensors.get(name) if name else None
            if name and tensor is None:
                raise UnsupportedError(f"the shape of {name!r} is not known")
            value = None
            if tensor is not None and name not in self._variable:
                value = tensor.value if tensor.value is not None else self._small(name)
            inputs.append(
                None
                if tensor is None
                else Operand(tensor.shape, tensor.dtype, value, name not in self._variable)
            )
        shapes = tuple(tensors[name].shape if name in tensors else None for name in node.outputs)
        attributes = dict(node.attributes)
        if node.op == "Cast":
            # In a network of half precision, what was cast to float32 has its type too.
            attributes["to"] = data_type_of(tensors[node.outputs[0]].dtype)
        return Operator(
            node.op, attributes, tuple(inputs), shapes, opset=self._network.opsets.get("", 1)
        )

    def _small(self, name: str) -> Array | None:
        """Return a constant's value where it is given and is a few numbers."""
        value = self._weights.get(name)
        return value if value is not None and value.size <= 64 else None

    def _plan(self, nodes: Sequence[Node], readings: Sequence[tuple[Function, list[int]]]) -> None:
        """Order the steps, and free each value behind its last reader."""
        last: dict[int, int] = {}
        for index, (_, slots) in enumerate(readings):
            last |= dict.fromkeys(slots, index)
        kept = {*self._outputs, *(s for s, value in enumerate(self._values) if value is not None)}
        for index, (node, (function, slots)) in enumerate(zip(nodes, readings, strict=True)):
            writes = tuple(self._written(node))
            unread = [slot for slot in writes if slot not in last]
            frees = {slot for slot in (*slots, *unread) if last.get(slot, index) == index} - kept
            self._steps.append(_Step(function, tuple(slots), writes, tuple(frees)))

    def _written(self, node: Node) -> Iterator[int]:
        for index, given in enumerate(node.outputs):
            name = given or f"{node.name} output {index}"
            self._variable.add(name)
            yield self._slot(name)


def _equal_constants(network: Network) -> tuple[dict[str, str], list[Node]]:
    """Return constants that exporters write once and copy by Identity, with what they equal.

    Each is a weight, or statistics, of its own in the network that was exported. Nodes are returned
    without these copies.
    """
    variables = {*network.inputs, *(name for node in network.nodes for name in node.outputs)}
    same: dict[str, str] = {}
    nodes = []
    for node in network.nodes:
        source = node.inputs[0] if node.op == "Identity" else ""
        if source and (source in same or source not in variables):
            same[node.outputs[0]] = same.get(source, source)
        else:
            nodes.append(node)
    return same, nodes


def _type_of(dtype: str, name: str) -> torch.dtype:
    if dtype not in TYPES:
        raise UnsupportedError(f"{name!r} is of type {dtype}, which PyTorch does not have")
    return TYPES[dtype]


def _tensor(array: Array) -> Any:
    """Return an array as a tensor of its own memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def host_inputs(network: Network) -> list[Any]:
    """Make up a network's inputs on the host; integers are 1, which every table has.

    Raises
    ------
    UnsupportedError
        If PyTorch has no such type.
    """
    inputs = []
    for name in network.inputs:
        tensor = network.tensors[name]
        dtype = _type_of(tensor.dtype, name)
        if dtype.is_floating_point:
            inputs.append(made_up(tensor.shape, dtype, torch.device("cpu")))
        else:
            inputs.append(torch.ones(tensor.shape, dtype=dtype))
    return inputs


def size_bytes(tensors: Sequence[Any]) -> int:
    """Return the bytes of tensors that lie in memory of their own."""
    return sum(math.prod(x.shape) * x.element_size() for x in tensors if x is not None)
