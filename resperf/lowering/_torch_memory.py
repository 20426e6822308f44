"""What a run or a training step of eager PyTorch allocates, in order: from its kernels.

A run frees what nothing reads any more. In a training step, autograd keeps for the backward pass
what an operator's gradient is computed of, by PyTorch's ``derivatives.yaml``. The backward pass
runs in reverse order; a gradient lives until the operator that wrote the tensor has run backwards,
that of a weight until the update. The gradients of the outputs are given, in place of a loss, and
are there with the outputs until the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from resperf.errors import UnsupportedError
from resperf.layers import Operator
from resperf.lowering._torch_eager import POINTWISE_KERNELS, TorchKernel
from resperf.lowering.torch import RunTensors
from resperf.network import Tensor
from resperf.settings import Mode, Setting
from resperf.units import DTYPE_BYTES

WEIGHTS, STATISTICS, INPUTS = "weights", "statistics and constants", "inputs"
STATE, WEIGHT_GRADIENTS, UPDATE = "optimizer state", "gradients of weights", "update of weights"
GRADIENTS, IN_USE = "gradients of tensors", "outputs in use"
GIVEN = "gradients of the network's outputs"
WORKSPACES = "copies within operators"
_RESULT, _STEPS, _GRADIENTS = -1, -2, -3
"""When an operator holds copies: for its result, for gradients step by step, for all of them."""
_INDEX, _STATISTIC = DTYPE_BYTES["int64"], DTYPE_BYTES["float32"]

CELLS = frozenset({"gru", "lstm", "rnn"})
"""Recurrent operators."""

SAVED_INPUTS: Mapping[str, tuple[int, ...]] = {
    # x -> y, both of one shape
    **dict.fromkeys((
        "abs", "clamp", "clamp_min", "cos", "elu", "erf", "gelu", "hardsigmoid", "hardswish",
        "hardtanh", "leaky_relu", "log", "pow", "prelu", "selu", "silu", "sin", "softplus",
    ), (0,)),
    # (batch, channels, rows, columns) -> (batch, channels, rows, columns)
    "avg_pool2d": (0,), "max_pool2d_with_indices": (0,), "native_batch_norm": (0,),
    "native_group_norm": (0,),
    # (..., width) -> (..., width)
    "native_layer_norm": (0,),
    # (..., axis) -> (...)
    "amax": (0,), "amin": (0,), "linalg_vector_norm": (0,), "prod": (0,),
    # x, y -> the larger or smaller; condition, x, y -> x or y
    "maximum": (0, 1), "minimum": (0, 1), "where": (0,),
    # bias, x -> bias + weight * x
    "addcmul": (1,),
    # table, indices -> rows
    "embedding": (1,), "gather": (0, 1), "index": (1,),
    # x (steps, batch, features) -> (steps, batch, hidden)
    **dict.fromkeys(CELLS, (0,)),
    # query, key, value (batch, heads, tokens, size), mask -> (batch, heads, tokens, size)
    "sdpa": (0, 1, 2, 3),
}  # fmt: skip
"""Operator -> its inputs that the backward pass reads."""
SAVED_FACTORS = frozenset({"addmm", "bmm", "convolution", "div", "mm", "mul", "mv"})
"""Operators of which a factor is kept where the other one has a gradient."""
SAVED_RESULTS = frozenset({
    "_log_softmax", "_softmax", "amax", "amin", "exp", "linalg_vector_norm", "prod", "reciprocal",
    "relu", "rsqrt", "sdpa", "sigmoid", "sqrt", "tanh",
})  # fmt: skip
"""Operators of which the backward pass reads the result."""


def _two(count: Callable[[Operator, tuple[int, ...]], int]) -> Callable[[TorchKernel], list[int]]:
    """Return what counts the bytes of as many means, and of as many deviations."""

    def sizes(kernel: TorchKernel) -> list[int]:
        return [count(kernel.operator, kernel.operator.operand(0).shape) * _STATISTIC] * 2

    return sizes


SAVED_BESIDES: Mapping[str, Callable[[TorchKernel], list[int]]] = {
    # mean and deviation: (channels), (rows), (batch, groups)
    "native_batch_norm": _two(lambda _, shape: shape[1]),
    "native_layer_norm": _two(lambda operator, shape: math.prod(shape[: operator.axis(-1)])),
    "native_group_norm": _two(
        lambda operator, shape: shape[0] * int(operator.attributes.get("num_groups", shape[1]))
    ),
    # position of each maximum
    "max_pool2d_with_indices": lambda kernel: [math.prod(kernel.operator.result()) * _INDEX],
    # whether each value was kept
    "native_dropout": lambda kernel: [math.prod(kernel.operator.result())],
    # logarithm of the sum of each query's scores: (batch, heads, tokens)
    "sdpa": lambda kernel: [math.prod(kernel.operator.operand(0).shape[:-1]) * _STATISTIC],
}
"""Operator -> the bytes of what it computes for the backward pass alone."""
KEEPING_NOTHING = frozenset({
    "_to_copy", "add", "cat", "clone", "col2im", "constant_pad_nd", "copy", "cumsum", "flip",
    "mean", "neg", "pixel_shuffle", "repeat", "roll", "stack", "sub", "sum", "topk", "trilu",
    "upsample",
})  # fmt: skip
"""Operators of which the backward pass needs shapes or small indices alone."""
_LARGEST_DEPTHWISE, _LARGEST_WINDOW, _FEWEST_OF_GROUP, _FEWEST_PADDED = 3, 14, 4, 4
"""Windows up to which oneDNN has a kernel of its own for gradients of depthwise weights and of
others; channels of a group, and of an image, from which on it has one, and pads them."""
BLOCK = 16
"""Channels of a block in which oneDNN computes convolutions on CPUs, unless they read fewer."""


_LISTED = SAVED_FACTORS | SAVED_RESULTS | KEEPING_NOTHING | {*SAVED_INPUTS, *SAVED_BESIDES} - CELLS
IN_PLACE = frozenset({"elu", "leaky_relu", "relu", "selu"})
"""Functions that modules overwrite their input by where nothing else reads it (``inplace=True``);
the backward pass then reads the result instead."""
_PASSING_ON = frozenset({"add", "cat", "clone", "stack", "sub", "sum"})
"""Operators that pass the gradient of their result on, or views of it."""


class Optimizer(NamedTuple):
    """What an optimizer keeps and needs, in multiples of all weights.

    Attributes
    ----------
    state : int
        Tensors kept for each weight.
    together, alone : int
        Tensors that an update computes besides: of all weights at once, as by default on CUDA, or
        of one weight after the other.
    moved : int
        Tensors that its operators read and write (``torch.optim``, ``foreach``).
    """

    state: int
    together: int
    alone: int
    moved: int


OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer(0, 0, 0, 3), "momentum": Optimizer(1, 0, 0, 8),
    "adagrad": Optimizer(1, 2, 1, 14), "rmsprop": Optimizer(1, 1, 1, 14),
    "adam": Optimizer(2, 1, 2, 19), "adadelta": Optimizer(2, 2, 2, 29),
}  # fmt: skip


def optimizer_of(setting: Setting) -> Optimizer:
    """Return what the optimizer of a setting needs; SGD if it names none.

    Raises
    ------
    UnsupportedError
        If that is not known.
    """
    try:
        return OPTIMIZERS[setting.optimizer or "sgd"]
    except KeyError:
        raise UnsupportedError(
            f"optimizer {setting.optimizer!r} is not known; known: {', '.join(OPTIMIZERS)}"
        ) from None


class Allocation(NamedTuple):
    """A tensor of a step: what it is, and its bytes."""

    what: str
    size_bytes: int


@dataclass
class StepMemory:
    """What a run or a training step allocates and frees.

    Attributes
    ----------
    allocations : list of Allocation
    resident : int
        How many of them are there between two runs or steps.
    events : list of int
        Number of an allocation when it is made, and its complement (-1 for 0) when it is freed.
    convolved_bytes : int
        What convolutions of several places and one group read and write: libraries need memory of
        their own for these.
    unknown : tuple of str
        Why operators are not counted.
    """

    allocations: list[Allocation] = field(default_factory=list)
    resident: int = 0
    events: list[int] = field(default_factory=list)
    convolved_bytes: int = 0
    unknown: tuple[str, ...] = ()


def memory_of(
    tensors: RunTensors, setting: Setting, *, on_cpu: bool = False, in_place: bool = True
) -> StepMemory:
    """Return what a run or a training step of eager PyTorch allocates.

    Parameters
    ----------
    tensors : RunTensors
        What runs, as `resperf.lowering.torch.run_tensors` returns it.
    setting : Setting
        Its mode, precision, threads and optimizer decide.
    on_cpu : bool
        Whether weights are updated one after the other, and oneDNN copies what it convolves.
    in_place : bool
        Whether the functions of `IN_PLACE` overwrite their input, as most modules have it.

    Raises
    ------
    UnsupportedError
        If the optimizer is none of `OPTIMIZERS`.
    """
    kernels, optimizer = tensors[1], optimizer_of(setting)
    step = _Step(tensors, setting, on_cpu=on_cpu)
    step.reside(optimizer.state)
    step.forward(kernels, IN_PLACE if in_place else frozenset())
    step.backward(kernels)
    if setting.mode is Mode.TRAINING:
        step.update(optimizer)
    step.memory.convolved_bytes = sum(map(_convolved_bytes, kernels))
    reasons = dict.fromkeys(kernel.reason for kernel in kernels if kernel.reason)
    step.memory.unknown = (*reasons, *step.unlisted)
    return step.memory


def _convolved_bytes(kernel: TorchKernel) -> int:
    operator = kernel.operator
    if kernel.op != "convolution" or int(operator.attributes.get("group", 1)) > 1:
        return 0
    data, weights = (operator.operand(position).shape for position in (0, 1))
    if max(weights[2:]) == 1:
        return 0
    values = math.prod(data) + math.prod(operator.result())
    return values * DTYPE_BYTES.get(kernel.output_dtype, _INDEX)


def _copied(kernel: TorchKernel, at: int, threads: int) -> tuple[int, ...]:
    """Return the bytes of an operator's copies on a CPU; the last one outlives the others.

    A convolution reads and writes blocks of channels. `at` is one of the three words above, or the
    operand whose gradient is computed. Which kernel oneDNN takes: as ``ONEDNN_VERBOSE`` told for
    PyTorch 2.13 on processors with AVX-512.
    """
    if kernel.op in CELLS:
        sizes = dict(zip((_STEPS, _GRADIENTS, _RESULT), _cell_bytes(kernel)[1:], strict=True))
        return (sizes.get(at, 0),)
    if kernel.op != "convolution" or at not in (_RESULT, 0, 1):
        return ()
    operator = kernel.operator
    (rows, channels, *pixels), (filters, own, *window) = (
        operator.operand(position).shape for position in (0, 1)
    )
    width, written = DTYPE_BYTES.get(kernel.output_dtype, _INDEX), math.prod(operator.result()[2:])
    groups, places = int(operator.attributes.get("group", 1)), math.prod(window)
    weights = width * filters * own * places
    if kernel.channels_last:
        # Images are read as they are; of weights there is a copy with channels last, and blocks.
        if at == 1 and groups > 1 and max(window) > _LARGEST_DEPTHWISE:
            return (width * groups * BLOCK**2 * places + weights,)
        return (weights * (2 if groups == 1 else 1),)
    if _is_unfolded(kernel, at):
        # By each thread, for a product; gradients of weights are added up.
        unfolded = width * own * places * written
        return (threads * (unfolded + 4 * weights * (at == 1 and groups == 1 < rows)),)
    read = channels
    if groups == 1 or own == 1:
        filters, read = _padded(filters), _padded(channels)
        own = own if groups > 1 or channels < BLOCK else read
        if channels < BLOCK and at:  # Few are read as they are, or as half a block.
            is_plain = at == _RESULT or channels < _FEWEST_PADDED
            read = 0 if is_plain else _padded(channels, BLOCK // 2)
    x, y = width * rows * read * math.prod(pixels), width * rows * filters * written
    w = width * filters * own * places
    is_sparse = max(window) == 1 < max(operator.attributes.get("strides", (1,)))
    gathered = (width * threads * read * written,) if is_sparse else ()  # By each thread.
    return {_RESULT: (x, w, *gathered, y), 0: (y, w, x), 1: (y, x, *gathered, w)}[at]


def _is_unfolded(kernel: TorchKernel, at: int) -> bool:
    """Whether oneDNN has nothing better for a convolution than to unfold its images."""
    operator = kernel.operator
    pixels, (_, own, *window) = operator.operand(0).shape[2:], operator.operand(1).shape
    is_grouped = int(operator.attributes.get("group", 1)) > 1
    is_depthwise, largest = is_grouped and own == 1, max(window)
    dilation = max(operator.attributes.get("dilations", (1,)))
    if is_grouped and not is_depthwise and own < _FEWEST_OF_GROUP * (2 if at == 1 else 1):
        return True
    if at != 1:
        return at == 0 and is_depthwise and dilation > 1
    is_beyond = dilation > 1 and (is_depthwise or (largest - 1) * dilation >= min(pixels))
    return is_beyond or largest > (_LARGEST_DEPTHWISE if is_depthwise else _LARGEST_WINDOW)


def copied_bytes(kernel: TorchKernel, gradients: int, threads: int) -> list[int]:
    """Return the bytes of all copies of a convolution on a CPU in a training step.

    Without a gradient of its input there is one gradient, else there are two.
    """
    return [
        size for at in (_RESULT, 1, 0)[: 1 + gradients] for size in _copied(kernel, at, threads)
    ]


def _padded(channels: int, block: int = BLOCK) -> int:
    return -(-channels // block) * block


def _cell_bytes(kernel: TorchKernel) -> tuple[int, int, int, int]:
    """Return the bytes that a recurrent operator on a CPU holds besides its result.

    Kept for the backward pass; while it computes gradients step by step, then those of its inputs,
    and its result: measured with PyTorch 2.13, whose LSTM is oneDNN's.
    """
    steps, _, features = kernel.operator.operand(0).shape
    _, rows, hidden = kernel.operator.operand(2).shape  # (directions, gates * hidden, hidden)
    width = DTYPE_BYTES.get(kernel.output_dtype, _INDEX)
    result = width * math.prod(kernel.operator.result())
    gates, weights = rows // hidden, width * rows * hidden
    if kernel.op != "lstm":
        kept = 7 if kernel.op == "gru" else 1
        return kept * result, 3 * weights, gates * result, gates * result
    states = result // steps * (steps + 1) * (6 * max(features, hidden) / hidden + 5.2)
    matrices = weights + width * rows * features
    blocks = 2.0 if hidden % BLOCK == features % BLOCK == 0 else 2.8
    sizes = 4 * result + states, 5.3 * result + blocks * matrices, 0, 4.3 * result + matrices
    return tuple(map(int, sizes))  # type: ignore[return-value]


class _Step:
    """Writes down what is allocated; tensors are counted by who still needs them."""

    def __init__(self, tensors: RunTensors, setting: Setting, *, on_cpu: bool) -> None:
        network, kernels, ends = tensors
        self.memory = StepMemory()
        self._on_cpu, self._threads = on_cpu, setting.threads or 1
        self._trains = setting.mode is Mode.TRAINING
        self._network = network
        self._holders: list[int] = []
        self._of: dict[str, int] = {}
        """Tensor or copy -> its allocation."""
        self._gradients: dict[str, int] = {}
        """Tensor or copy -> the allocation of its gradient, as far as it was computed."""
        self._saved: list[list[int]] = []
        self.unlisted: dict[str, None] = {}
        """Why memory is not counted."""
        computed = {*network.inputs, *(name for kernel in kernels for name in _results(kernel))}
        norms = [kernel for kernel in kernels if kernel.op == "native_batch_norm"]
        statistics = {name for kernel in norms for name in kernel.operands[3:5]}
        self._unread = Counter(name for kernel in kernels for name in kernel.storages)
        fixed = [
            x for name in self._unread if (x := network.tensors.get(name)) and name not in computed
        ]
        self._trained = {
            x.name for x in fixed if "float" in x.dtype and math.prod(x.shape) > 1
        } - statistics
        self._constants = [x for x in fixed if x.name not in self._trained]
        self._weights = [x for x in fixed if x.name in self._trained]
        self._differentiable = set(self._trained if self._trains else ())
        self._ends = [*dict.fromkeys(ends)]
        """What the outputs of the network lie in."""
        self._unread.update(self._ends)

    def _allocate(self, what: str, size_bytes: int) -> int:
        number = len(self.memory.allocations)
        self.memory.allocations.append(Allocation(what, size_bytes))
        self.memory.events.append(number)
        self._holders.append(1)
        return number

    @contextmanager
    def _workspace(self, kernel: TorchKernel, at: int) -> Iterator[None]:
        """Hold what a CPU needs to compute the result, or the gradient of an operand."""
        copies = _copied(kernel, at, self._threads) if self._on_cpu else ()
        numbers = [self._allocate(WORKSPACES, size) for size in copies]
        for number in numbers[:-1]:
            self._release(number)
        yield
        for number in numbers[-1:]:
            self._release(number)

    def _hold(self, number: int) -> int:
        self._holders[number] += 1
        return number

    def _release(self, number: int) -> None:
        self._holders[number] -= 1
        if not self._holders[number]:
            self.memory.events.append(~number)

    def _size(self, number: int) -> int:
        return self.memory.allocations[number].size_bytes

    def reside(self, states: int) -> None:
        """Allocate what is there between two steps."""
        for tensor in self._weights:
            self._of[tensor.name] = self._allocate(WEIGHTS, size_of(tensor))
        for tensor in self._constants:
            self._of[tensor.name] = self._allocate(STATISTICS, size_of(tensor))
        for name in self._network.inputs:
            self._of[name] = self._allocate(INPUTS, size_of(self._network.tensors[name]))
        for tensor in self._weights * states * self._trains:
            self._allocate(STATE, size_of(tensor))
        for tensor in filter(None, map(self._network.tensors.get, self._ends * self._trains)):
            if "float" in tensor.dtype and tensor.name not in self._of:
                self._gradients[tensor.name] = self._allocate(GIVEN, size_of(tensor))
        self.memory.resident = len(self.memory.allocations)

    # Forward

    def forward(self, kernels: Sequence[TorchKernel], in_place: Set[str]) -> None:
        """Run every kernel; keep what the backward pass reads."""
        resident, done = set(self._of), list[str]()
        for kernel in kernels:
            if any(self._has_gradient(kernel)) and "float" in kernel.output_dtype:
                self._differentiable.update(_results(kernel)[:1])
            overwrites = kernel.op in in_place and self._overwrite(kernel, resident)
            with self._workspace(kernel, _RESULT):
                self._write(kernel)
                self._saved.append(self._save(kernel, overwrites))
            self._unread.subtract(kernel.storages)
            done += (*kernel.storages, *_results(kernel))
            if kernel.op == "clone" and not kernel.source:
                continue  # What it copies is there as long as the operator that it is copied for.
            names, done = dict.fromkeys(done), []
            for name in names:
                if name in self._of and name not in resident and self._unread[name] <= 0:
                    self._release(self._of.pop(name))

    def _has_gradient(self, kernel: TorchKernel) -> list[bool]:
        return [name in self._differentiable for name in kernel.storages]

    def _overwrite(self, kernel: TorchKernel, resident: Set[str]) -> bool:
        """Let the result take the memory of the input, if nothing else needs that."""
        name = kernel.storages[0]
        if name in resident or name not in self._of or self._unread[name] > 1:
            return False
        if self._holders[self._of[name]] > 1:
            return False
        self._of[_results(kernel)[0]] = self._hold(self._of[name])
        return True

    def _write(self, kernel: TorchKernel) -> None:
        shapes = kernel.operator.outputs
        for index, name in enumerate(_results(kernel)):
            # A bias is added in place, behind the product.
            if not name or name in self._of or index >= len(shapes) or shapes[index] is None:
                continue
            tensor = self._network.tensors.get(name)
            dtype = tensor.dtype if tensor and index else kernel.output_dtype
            values = math.prod(shapes[index] or ())
            self._of[name] = self._allocate(IN_USE, values * DTYPE_BYTES.get(dtype, _INDEX))

    def _save(self, kernel: TorchKernel, overwrites: bool) -> list[int]:
        """Hold what the backward pass of a kernel reads; return its allocations."""
        gradients = self._has_gradient(kernel)
        result = _results(kernel)[:1]
        is_cell = self._on_cpu and kernel.op in CELLS
        besides = SAVED_BESIDES.get(kernel.op)
        sizes = besides(kernel) if besides else []
        if not any(gradients) or self._differentiable.isdisjoint(result):
            if is_cell and kernel.op != "lstm":  # What all steps return, before it is joined.
                sizes = [self._size(self._of[result[0]])]
            for number in [self._allocate(WORKSPACES, size) for size in sizes]:
                self._release(number)
            return []
        if kernel.op not in _LISTED and not is_cell:
            self.unlisted[f"what {kernel.op} keeps for its backward pass is not counted"] = None
        kept = [
            kernel.storages[at] for at in SAVED_INPUTS.get(kernel.op, ()) if at < len(gradients)
        ]
        if kernel.op in SAVED_FACTORS:
            pairs = zip(kernel.storages[:2], gradients[1::-1], strict=True)
            kept += [name for name, other_has in pairs if other_has]
        if overwrites or kernel.op in SAVED_RESULTS:
            kept = [*(() if overwrites else kept), *result]
        saved = []
        for name in dict.fromkeys(kept):
            if name in self._of and name not in self._trained:
                saved.append(self._hold(self._of[name]))
                self._rename(saved[-1], f"kept for {kernel.op}")
        if is_cell:
            sizes = [_cell_bytes(kernel)[0]]
        elif self._on_cpu and kernel.op == "native_dropout":
            # The factors, not whether each value was kept.
            sizes = [values * _STATISTIC for values in sizes]
        return [*saved, *(self._allocate(f"kept for {kernel.op}", size) for size in sizes)]

    def _rename(self, number: int, what: str) -> None:
        before = self.memory.allocations[number]
        if before.what == IN_USE:
            self.memory.allocations[number] = before._replace(what=what)

    # Backward

    def backward(self, kernels: Sequence[TorchKernel]) -> None:
        """Run the kernels backwards, from gradients of the outputs that are given."""
        ends = [
            name for name in self._ends if name in self._of and name not in self._network.inputs
        ]
        given, self._gradients = self._gradients, {}
        for name in filter(self._differentiable.__contains__, ends):
            number = given.get(name)
            size_bytes = self._size(self._of[name])
            self._gradients[name] = (
                self._allocate(GIVEN, size_bytes) if number is None else self._hold(number)
            )
        for kernel, saved in zip(reversed(kernels), reversed(self._saved), strict=True):
            name = _results(kernel)[0] if _results(kernel) else ""
            gradient = self._gradients.get(name)
            computed = []
            if gradient is not None:
                if saved and self._on_cpu and kernel.op in CELLS:
                    with self._workspace(kernel, _STEPS):
                        pass
                    # What each step has kept is freed by then.
                    self._release(saved.pop())
                with self._workspace(kernel, _GRADIENTS):
                    computed = self._gradients_of(kernel, gradient)
                self._release(self._gradients.pop(name))
            for number in saved:
                self._release(number)
            for storage, number in computed:
                self._accumulate(storage, number)
        for name in ends:
            self._release(self._of.pop(name))

    def _gradients_of(self, kernel: TorchKernel, gradient: int) -> list[tuple[str, int]]:
        """Compute the gradients of a kernel's inputs: each input's memory and its gradient."""
        computed = []
        result_bytes = self._size(gradient)
        for at, (name, storage, has_gradient) in enumerate(
            zip(kernel.operands, kernel.storages, self._has_gradient(kernel), strict=True)
        ):
            if not has_gradient:
                continue
            own_bytes, whole_bytes = self._bytes_of(name, storage)
            what = WEIGHT_GRADIENTS if storage in self._trained else GRADIENTS
            is_summed = kernel.op in ("add", "sub") and own_bytes < result_bytes
            if kernel.op in _PASSING_ON and not is_summed:
                number = self._hold(gradient)
            elif kernel.op in POINTWISE_KERNELS - _PASSING_ON and own_bytes < result_bytes:
                # Computed in full, then summed over the axes along which it was repeated.
                full = self._allocate(GRADIENTS, result_bytes)
                number = self._allocate(what, own_bytes)
                self._release(full)
            else:
                with self._workspace(kernel, at):
                    number = self._allocate(what, own_bytes)
            if own_bytes != whole_bytes:
                # That of a slice is written into zeros, that of a repeated tensor is summed.
                whole = self._allocate(what, whole_bytes)
                self._release(number)
                number = whole
            computed.append((storage, number))
        return computed

    def _bytes_of(self, name: str, storage: str) -> tuple[int, int]:
        """Return the bytes of an operand, and of what it is a view of."""
        tensors = self._network.tensors
        own = size_of(tensors[name]) if name in tensors else 0
        whole = size_of(tensors[storage]) if storage in tensors else own
        return own or whole, whole or own

    def _accumulate(self, storage: str, number: int) -> None:
        """Add a gradient to what there is of it: in place unless others read that memory."""
        before = self._gradients.get(storage)
        if before is None:
            self._gradients[storage] = number
            return
        if self._holders[before] > 1:
            size_bytes = self._bytes_of(storage, storage)[0] or self._size(before)
            self._gradients[storage] = self._allocate(GRADIENTS, size_bytes)
            self._release(before)
        self._release(number)

    # Update

    def update(self, optimizer: Optimizer) -> None:
        """Update the weights, and free their gradients."""
        groups, temporaries = [self._weights], optimizer.together
        if self._on_cpu:
            groups, temporaries = [[tensor] for tensor in self._weights], optimizer.alone
        for group in groups:
            numbers = [self._allocate(UPDATE, size_of(tensor)) for tensor in group * temporaries]
            for number in numbers:
                self._release(number)
        for number in self._gradients.values():
            self._release(number)


def _results(kernel: TorchKernel) -> tuple[str, ...]:
    """Return what a kernel writes; a copy has the kernel's name."""
    if kernel.source:
        return kernel.writes
    return kernel.storages[:0] if kernel.op == "add" else (kernel.name,)


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor."""
    return math.prod(tensor.shape) * DTYPE_BYTES.get(tensor.dtype, _INDEX)
