"""A layer's operator, or a network of them one after the other, as eager PyTorch runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from resperf.backends._attributes import Function
from resperf.backends._torch_functions import PREPARE, STATISTICS, TYPES, function_of, prepared
from resperf.backends._values import in_order, onnx_kernel
from resperf.errors import LayerError, UnsupportedError
from resperf.layers import Kernel, Layer, Operand, Operator, spread_indices
from resperf.layers._operator import CONTRIB
from resperf.lowering._torch_eager import OWN_DOMAINS, is_behind_transposition
from resperf.network import Network, Node
from resperf.network.canonical import PASSING
from resperf.network.protos import data_type_of

_BLOCK = 1 << 18
_GATED = frozenset({"LSTM", "GRU", "RNN"})
"""Operators whose weights are held in another number."""
_SMALL = 0.05
"""Scale of made-up values: neither denormal nor growing over products."""


@dataclass(frozen=True)
class TorchLayer:
    """A layer's operator in PyTorch.

    Attributes
    ----------
    kernel : Kernel
        Shapes and types of its tensors.
    operator : Operator
        The same with its inputs in order.
    function : callable
        Takes the first input and `others`; returns the result, or several.
    order : tuple of int
        Position of each input in (first input, weights, extras), -1 for an absent one, and beyond
        these for constants.
    channels_last : bool
        Whether images lie in memory with channels last.
    """

    kernel: Kernel
    operator: Operator
    function: Function
    order: tuple[int, ...]
    channels_last: bool

    def format_of(self, tensor: Any) -> torch.memory_format:
        """Return the memory format of a tensor of this layer."""
        last = self.channels_last and tensor.ndim == 4
        return torch.channels_last if last else torch.contiguous_format

    def first_input(self, device: torch.device) -> Any:
        """Make up the first input."""
        return self._input_values(0, self.kernel.input_shape, device)

    def others(self, device: torch.device, extras: Sequence[Any] = ()) -> list[Any]:
        """Return the inputs after the first of one copy, with new weights.

        Parameters
        ----------
        device : torch.device
        extras : sequence of Tensor
            What all copies share (`extras`).
        """
        weights = [
            self._input_values(1 + index, shape, device)
            for index, shape in enumerate(self.kernel.weight_shapes)
        ]
        given = [None, *weights, *extras]
        rest = [
            given[position] if 0 <= position < len(given) else None for position in self.order[1:]
        ]
        while rest and rest[-1] is None:
            rest.pop()
        return prepared(self.operator, rest) if rest else rest

    def extras(self, device: torch.device) -> list[Any]:
        """Make up the further computed inputs, which all copies share."""
        count = 1 + len(self.kernel.weight_shapes)
        extras = [
            self._input_values(count + index, shape, device)
            for index, shape in enumerate(self.kernel.extra_shapes)
        ]
        if self.kernel.index_bound:
            shape = self.kernel.extra_shapes[0]
            indices = spread_indices(math.prod(shape), self.kernel.index_bound).reshape(shape)
            extras[0] = torch.from_numpy(indices).to(device)
        return extras

    def trained(self, others: Sequence[Any]) -> list[Any]:
        """Return the weights among the inputs after the first that an optimizer updates."""
        return [value for index, value in enumerate(others) if self._is_trained(index, value)]

    def with_trained(self, others: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
        """Return the inputs after the first with weights changed that an optimizer updates."""
        return [
            change(value) if self._is_trained(index, value) else value
            for index, value in enumerate(others)
        ]

    def _is_trained(self, index: int, value: Any) -> bool:
        weights = range(1, 1 + len(self.kernel.weight_shapes))
        if value is None or not value.is_floating_point() or not weights:
            return False
        fixed = STATISTICS.get(self.operator.op, ())
        own = self.operator.op in _GATED or self.order[1 + index] in weights
        return own and 1 + index not in fixed

    def _input_values(self, position: int, shape: Sequence[int], device: torch.device) -> Any:
        values = made_up(shape, TYPES[self.kernel.input_dtypes[position]], device)
        if self.kernel.positive and values.is_floating_point():
            values = values.abs() + 0.5
        if position in STATISTICS.get(self.operator.op, ()):
            values = values.abs() + 0.5
        return values.contiguous(memory_format=self.format_of(values))


def made_up(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Any:
    """Make a tensor: small floats, integers from 1 to 8, alternating booleans."""
    count = math.prod(shape)
    block = torch.randn(min(max(count, 1), _BLOCK), device=device)
    if dtype == torch.bool:
        values = block > 0
    elif dtype.is_floating_point:
        values = (block * _SMALL).to(dtype)
    else:
        values = (block.abs() * 4 % 8 + 1).to(dtype)
    repeats = -(-count // len(values)) if count else 0
    return values.repeat(repeats)[:count].reshape(tuple(shape))


def layer_of_torch(layer: Layer, *, training: bool = False) -> TorchLayer:
    """Return how PyTorch runs a lowered layer.

    Raises
    ------
    UnsupportedError
        If it has no such operator, or runs the layer as several or as a view.
    """
    layout = str(layer.fields().get("layout", "nchw"))
    if layout not in ("nchw", "nhwc"):
        raise UnsupportedError(f"{layer.kind}: PyTorch has no layout {layout}, only nchw and nhwc")
    kernel = onnx_kernel(layer, "PyTorch")
    if kernel.activation != "none" or (kernel.op == "Conv" and kernel.extra_shapes):
        raise UnsupportedError(
            f"{layer.kind}: PyTorch adds residuals and runs activations as operators of their own; "
            "lower the layer first"
        )
    if adapt := _ADAPTED.get(layer.kind):
        kernel = adapt(layer, kernel)
    kernel = kernel.in_floats(str(layer.fields().get("dtype", "float32")))
    operator, order = _as_operator(kernel)
    after = _AFTER.get(layer.kind)
    function = function_of(operator, training=training)
    if after is not None:
        function = after(layer, function)
    return TorchLayer(kernel, operator, function, order, layout == "nhwc")


def _as_operator(kernel: Kernel) -> tuple[Operator, tuple[int, ...]]:
    """Return the node that a graph would have, and where its inputs come from."""
    shapes = (kernel.input_shape, *kernel.weight_shapes, *kernel.extra_shapes)
    fixed = len(kernel.weight_shapes)
    given: list[Operand | None] = [
        Operand(shape, dtype, is_fixed=0 < position <= fixed)
        for position, (shape, dtype) in enumerate(zip(shapes, kernel.input_dtypes, strict=True))
    ]
    constants = [
        None if ints is None else Operand((len(ints),), "int64", np.array(ints), is_fixed=True)
        for ints in kernel.constants
    ]
    inputs = (*in_order(kernel, given, None), *constants)
    order = kernel.order or tuple(range(len(given)))
    beyond = tuple(range(len(given), len(given) + len(constants)))
    operator = Operator(
        kernel.op, kernel.attributes, inputs, (kernel.output_shape,) * (1 + kernel.more_outputs)
    )
    return operator, (*order, *beyond)


def _activation(_layer: Layer, kernel: Kernel) -> Kernel:
    """Use the functions of PyTorch's own modules: Hardsigmoid of slope 1/6, ReLU6."""
    if kernel.op == "HardSigmoid":
        return replace(kernel, attributes={"alpha": 1 / 6, "beta": 0.5})
    if kernel.op == "Clip":
        return replace(kernel, weight_shapes=(), constants=((0,), (6,)))
    return kernel


def _attention(_layer: Layer, kernel: Kernel) -> Kernel:
    packed = kernel.op == "Attention" and kernel.domain == CONTRIB
    return replace(kernel, op="PackedAttention") if packed else kernel


def _move(layer: Layer, kernel: Kernel) -> Kernel:
    function = str(layer.fields()["function"])
    if function in ("slice", "split"):
        raise UnsupportedError(f"move: a {function} is a view in PyTorch, and runs no kernel")
    if function == "gather":
        rows = kernel.constants[0]
        assert rows is not None
        return replace(
            kernel, constants=(), extra_shapes=((len(rows),),), dtypes=(kernel.dtype, "int64"),
            index_bound=kernel.input_shape[1],
        )  # fmt: skip
    return replace(kernel, op="Identity", constants=()) if function == "copy" else kernel


def _recurrent(_layer: Layer, kernel: Kernel) -> Kernel:
    """Let the gate of a GRU act behind the product, as PyTorch's does."""
    if kernel.op != "GRU":
        return kernel
    return replace(kernel, attributes={**kernel.attributes, "linear_before_reset": 1})


def _copied_move(layer: Layer, function: Function) -> Function:
    if str(layer.fields()["function"]) == "copy":
        return lambda x: x.clone()
    if str(layer.fields()["function"]) == "expand":
        return lambda x, *others: function(x, *others).contiguous()
    return function


_ADAPTED: Mapping[str, Callable[[Layer, Kernel], Kernel]] = {
    "activation": _activation,
    "attention": _attention,
    "move": _move,
    "recurrent": _recurrent,
}
"""Kinds whose ONNX operator differs in a constant from what PyTorch's modules run."""
_AFTER: Mapping[str, Callable[[Layer, Function], Function]] = {
    "move": _copied_move,
    "transpose": lambda _layer, function: lambda x: function(x).contiguous(),
}
"""Kinds that are copies of what is a view in a network."""


Array = npt.NDArray[Any]
_Slots = tuple[int, ...]


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
        Whether normalisations use the batch's statistics, and Dropout drops values.

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
        # What runs it, the slots that it reads and writes, and those that end with it.
        self._steps: list[tuple[Function, _Slots, _Slots, _Slots]] = []
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
        for function, reads, writes, frees in self._steps:
            result = function(*[values[slot] for slot in reads])
            if isinstance(result, (tuple, list)):
                # By number: a name for the last one would hold it until the next such operator.
                for index, slot in enumerate(writes[: len(result)]):
                    values[slot] = result[index]
            else:
                values[writes[0]] = result
            for slot in frees:
                values[slot] = None
        return [values[slot] for slot in self._outputs]

    def free(self) -> None:
        """Free the weights."""
        self._values, self._steps = [], []
        self._parameters.clear()
        self._buffers.clear()

    def _slot(self, name: str) -> int:
        is_constant = name not in self._slots and name not in self._variable
        return self._register(name, self._constant(name) if is_constant else None)

    def _register(self, name: str, value: Any, *, fixed: bool = False) -> int:
        """Register a constant: floats with axes as a parameter; None is no value yet."""
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
        if value is None and tensor is not None:
            value = tensor.value
        if value is not None:
            data = _tensor(np.asarray(value)).to(self._device)
            if tensor is not None and data.is_floating_point():
                data = data.to(_type_of(tensor.dtype, name))
        elif tensor is not None:
            data = _unknown(tensor.shape, _type_of(tensor.dtype, name), self._device)
        else:
            raise UnsupportedError(f"the shape of {name!r} is not known")
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
            passes = node.op in PASSING and not (training and node.op == "Dropout")
            if passes and is_behind_transposition(node, self._makers):
                # An exporter writes contiguous() so.
                function = torch.Tensor.contiguous
            if node.op in PREPARE and len(node.inputs) > 1:
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
            names = [name or f"{node.name} output {i}" for i, name in enumerate(node.outputs)]
            self._variable.update(names)
            writes = tuple(map(self._slot, names))
            unread = [slot for slot in writes if slot not in last]
            frees = {slot for slot in (*slots, *unread) if last.get(slot, index) == index} - kept
            self._steps.append((function, tuple(slots), writes, tuple(frees)))


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
        inputs.append(_unknown(tensor.shape, _type_of(tensor.dtype, name), torch.device("cpu")))
    return inputs


def _unknown(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Any:
    """Make up an input or a constant of a network: it may look up a table of two rows."""
    if dtype.is_floating_point:
        return made_up(shape, dtype, device)
    return torch.ones(tuple(shape), dtype=dtype, device=device)


def size_bytes(tensors: Sequence[Any]) -> int:
    """Return the bytes of tensors that lie in memory of their own."""
    return sum(math.prod(x.shape) * x.element_size() for x in tensors if x is not None)
