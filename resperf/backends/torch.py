"""PyTorch on a CPU or a CUDA device: eager, or compiled by TorchDynamo.

Preprocess copies host tensors to the device, postprocess copies results to the host. On a CPU both
copies are forced: ``from_numpy`` and ``numpy()`` alone are views that take no time. On CUDA host
memory is pinned. With channels last, preprocess also lays images out.

Execution of a layer is the marginal time of one more of it on a resident input: copies with weights
of their own run one after the other in one call of Python, and the time of an empty call is
subtracted. On CUDA that is the device's own time, and a kernel's dispatch by the host is a cost
beside it (``dispatch_ms``): eager networks of kernels shorter than this wait for the host.
Execution of a network is one forward pass as the host starts it.

With an optimizer, layers and networks offer a training step in its parts instead. Several processes
share a network's training step by DistributedDataParallel (`resperf.backends._torch_member`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

# OpenMP reads these while PyTorch is imported: threads that wait must not take time from others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch

from resperf.backends._base import (
    Backend,
    Built,
    Phase,
    Shapes,
    as_resperf_error,
    check_choices,
    copies_for,
    median_of,
    usable_threads,
)
from resperf.backends._chain import overheads_between_layers, weights_costs
from resperf.backends._torch_devices import Cpu, Cuda, Device
from resperf.backends._torch_functions import TYPES
from resperf.backends._torch_modules import (
    TorchLayer,
    TorchNetwork,
    host_inputs,
    layer_of_torch,
    size_bytes,
)
from resperf.backends._torch_team import Hosts, RunningTeam
from resperf.backends._training import MOMENTUM, RATE, TrainingStep
from resperf.copies import MAX_COPIES
from resperf.errors import ResperfError, UnsupportedError, first_line
from resperf.layers import Layer
from resperf.lowering.torch import AUTOCAST, as_run, lower_layers
from resperf.network import Network, read_network
from resperf.network.weights import weights_of
from resperf.platform import OVERSUBSCRIBED, Platform, usable_cores
from resperf.settings import Setting

PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("fp32", "amp", "fp16", "bf16"),
    "cuda": ("fp32", "tf32", "amp", "fp16", "bf16"),
}
"""Class of devices -> precisions."""
AUTOCAST_TYPE: Mapping[str, str] = {"cpu": "bfloat16", "cuda": "float16"}
"""Class of devices -> type that autocast computes products in, by PyTorch's own default."""
COMPILED = ("eager", "dynamo")
LAYOUTS = ("nchw", "nhwc")
COMPILER = "inductor"
"""What TorchDynamo compiles with, by PyTorch's default."""
COMPILED_COPIES = 4
"""Copies of a layer that are compiled as one function: more would take long to compile."""
TRAINED_BYTES = 2_000_000_000
"""Limit on what copies of a layer keep for their backward pass."""
MANY_WARMUPS = 2
_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError)


OPTIMIZERS: Mapping[str, Callable[..., Any]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=MOMENTUM),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adadelta": torch.optim.Adadelta,
}


class TorchStep(TrainingStep):
    """A training step of copies of a layer, or of a network.

    Gradients are freed with the update, and made anew by the next backward pass, as with
    ``zero_grad(set_to_none=True)``.

    Parameters
    ----------
    forward : callable
        Returns the outputs, of which those with a gradient count.
    inputs : sequence of Tensor
        Their gradients are computed where they require one.
    weights : sequence of Tensor
        What the optimizer updates.
    optimizer : str
    fixed : sequence of Tensor
        What else `forward` reads and has no gradient: statistics, a network's inputs.

    Raises
    ------
    UnsupportedError
        If no output has a gradient.
    """

    def __init__(
        self,
        forward: Callable[[], Sequence[Any]],
        inputs: Sequence[Any],
        weights: Sequence[Any],
        optimizer: str,
        fixed: Sequence[Any] = (),
    ) -> None:
        self._forward, self._leaves, self._fixed = forward, [*inputs, *weights], [*fixed]
        self._outputs: list[Any] = []
        self.forward()
        if not self._outputs:
            raise UnsupportedError("PyTorch computes no gradient of its results")
        self._gradients = [torch.ones_like(output) for output in self._outputs]
        self._optimizer = OPTIMIZERS[optimizer](weights, lr=RATE) if weights else None
        # The first step makes the optimizer's state.
        self.backward()
        self.update()

    @property
    def has_weights(self) -> bool:
        """Whether there is anything to update."""
        return self._optimizer is not None

    def forward(self) -> None:
        """Compute the outputs and keep what the backward pass needs."""
        self._outputs = [output for output in self._forward() if output.requires_grad]

    def backward(self) -> None:
        """Compute all gradients."""
        torch.autograd.backward(self._outputs, self._gradients)
        self._outputs = []

    def update(self) -> None:
        """Update the weights, and free the gradients."""
        if self._optimizer is not None:
            self._optimizer.step()
        self.clear()

    def clear(self) -> None:
        """Free the gradients and the outputs."""
        for leaf in self._leaves:
            leaf.grad = None
        self._outputs = []

    def resident_bytes(self) -> int:
        """Return the bytes that are there between two steps."""
        states = [] if self._optimizer is None else self._optimizer.state.values()
        kept = [
            value for state in states for value in state.values() if isinstance(value, torch.Tensor)
        ]
        return size_bytes([*self._leaves, *self._fixed, *self._gradients, *kept])

    def free(self) -> None:
        """Free everything."""
        self.clear()
        self._leaves, self._fixed, self._gradients, self._optimizer = [], [], [], None
        self._forward = list


class TorchBackend(Backend):
    """PyTorch on a CPU or a CUDA device.

    Parameters
    ----------
    threads : int, optional
        Threads within an operator on the host; all usable cores by default, and one where the
        number of processes is given.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    precision : {"fp32", "tf32", "amp", "fp16", "bf16"}
        ``fp32`` is without TF32; ``tf32`` exists on CUDA. ``amp`` is autocast, to float16 on CUDA
        and to bfloat16 on a CPU.
    layout : {"nchw", "nhwc"}
        ``nhwc`` is ``torch.channels_last``.
    compiled : {"eager", "dynamo"}
        ``dynamo`` is ``torch.compile``; compiling is not timed.
    optimizer : str
        Measures training steps with it; inference if it is empty.
    processes : int, optional
        Processes of this host that share each training step of a network, each with a batch of its
        own and, on CUDA, a device of its own.
    hosts : mapping, optional
        Fields of `Hosts`, if several hosts share each step, each with so many processes.

    Raises
    ------
    ResperfError
        If the device is not there, or does not have such a setting.
    """

    name = "torch"

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str = "cpu",
        precision: str = "fp32",
        layout: str = "nchw",
        compiled: str = "eager",
        optimizer: str = "",
        processes: int | None = None,
        hosts: Mapping[str, Any] | None = None,
    ) -> None:
        if processes is not None and processes < 1:
            raise ResperfError(f"{processes} processes; there must be at least 1")
        self.threads = usable_threads(threads if processes is None else threads or 1)
        self._processes, self._hosts = processes or 1, Hosts(**hosts or {})
        self._members = self._processes * self._hosts.count
        kind = device.partition(":")[0]
        check_choices("PyTorch", device=(kind, PRECISIONS))
        check_choices(
            f"PyTorch on {kind}", precision=(precision, PRECISIONS[kind]), layout=(layout, LAYOUTS),
            compiled=(compiled, COMPILED), optimizer=(optimizer, ("", *OPTIMIZERS)),
        )  # fmt: skip
        if self._members > 1 and (not optimizer or compiled != "eager"):
            raise ResperfError(
                "several processes share training steps of eager PyTorch only; add --training sgd, "
                "or measure with one process"
            )
        if self._members > 1 and ":" in device:
            raise ResperfError(
                f"several processes take a host's devices from the first on, not {device}; write "
                f"{kind}"
            )
        self.word, self._kind = device, kind
        self._precision, self._layout, self._compiled = precision, layout, compiled
        self._optimizer = optimizer
        torch.set_num_threads(self.threads)
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self._device: Device = Cpu() if kind == "cpu" else Cuda(device)

    def platform(self) -> Platform:
        """Describe this machine and the device, and how many share a run."""
        platform = super().platform()
        if self._members == 1:
            return platform
        library = self._device.libraries.rpartition(":")[2]
        machines = self._hosts.machines
        busy = self._members * self.threads > machines * usable_cores()
        connected = f"{library} on {machines} host{'s' * (machines > 1)}"
        connected += f", {OVERSUBSCRIBED}" * busy
        return replace(platform, devices=self._members, interconnect=connected)

    @cached_property
    def _running_team(self) -> RunningTeam:
        # Each process adds its number to the device.
        settings = {
            "threads": self.threads, "device": f"{self._kind}:", "precision": self._precision,
            "layout": self._layout, "optimizer": self._optimizer,
        }  # fmt: skip
        return RunningTeam(self._processes, settings, self._hosts)

    def has_joined(self) -> bool:
        """Start this host's share of the processes that share a step, if the first host asks."""
        return self._hosts.rank > 0 and bool(self._running_team)

    def setting(self) -> Setting:
        """How PyTorch runs layers and networks here."""
        options = {"inter_op_threads": str(torch.get_num_interop_threads())}
        if self._precision == "amp":
            options[AUTOCAST] = AUTOCAST_TYPE[self._kind]
        return Setting(
            framework=self.name,
            framework_version=torch.__version__,
            provider=self._device.provider,
            threads=self.threads,
            precision=self._precision,
            layout=self._layout,
            compiled=self._compiled,
            options=options,
        ).with_optimizer(self._optimizer)

    @cached_property
    def _call_ms(self) -> float:
        """Time of a call that runs no operator, as layers are timed."""
        run = self._run_of(lambda x: x, torch.ones(1, device=self._device.torch_device), [])
        return median_of(self._device.timer(run))

    @cached_property
    def _costs_ms(self) -> dict[str, float]:
        """What a call, a view and (on CUDA) the dispatch of a kernel cost."""
        x = torch.ones((1, 64), device=self._device.torch_device)
        call_ms = self._call_ms
        views = self._run_of(lambda y: y.reshape(8, 8), x, [[]] * MAX_COPIES)
        reshape_ms = (median_of(self._device.timer(views)) - call_ms) / MAX_COPIES
        costs_ms = {"call_ms": call_ms, "reshape_ms": max(reshape_ms, 0.0)}
        if isinstance(self._device, Cuda):
            device, kernels = self._device, self._run_of(torch.relu, x, [[]] * MAX_COPIES)
            costs_ms["dispatch_ms"] = median_of(lambda: device.dispatch_ms(kernels, MAX_COPIES))
        return costs_ms

    def costs(self) -> Mapping[str, float]:
        """Measure what a call and a view cost, and on CUDA the dispatch of a kernel; cached."""
        return self._costs_ms

    def overheads_between_layers(self) -> Mapping[str, float]:
        """Measure the overhead between layers and what weights cost by where they lie, now.

        Nothing on CUDA, where layers alone read and write the device's memory, as in a network,
        and nothing of compiled networks or training steps, whose layers do not add up like this.
        """
        if self._kind != "cpu" or self._optimizer or self._compiled != "eager":
            return {}
        return {
            **overheads_between_layers(self, lambda chain: self._built(chain, {})),
            **weights_costs(self._many_ms),
        }

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Leave out what PyTorch runs as operators of their own; give layers layout and type."""
        return lower_layers(layers, self.setting())

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        """Build one lowered layer: alone, and in as many copies as give a precise marginal time.

        Raises
        ------
        UnsupportedError
            If PyTorch has no such operator.
        MemoryError
            If it does not fit.
        """
        torch_layer = layer_of_torch(layer, training=bool(self._optimizer))
        self._device.check(layer.moved_bytes)
        try:
            if self._optimizer:
                return self._trained_layer(torch_layer, layer, budget_ms)
            return self._layer(torch_layer, layer, budget_ms)
        except _ERRORS as error:
            raise self._error(error, f"{layer.kind} ({layer.key})") from error

    def network(self, path: Path, *, batch: int | None, shapes: Shapes | None = None) -> Built:
        """Build a whole network from an ONNX file as a module of the same operators.

        Operators that the exporter wrote in parts are joined (`resperf.network.canonical`); absent
        weights are made up.

        Raises
        ------
        NetworkError, UnsupportedError
            If the file cannot be read or run.
        MemoryError
            If it does not fit.
        """
        if self._members > 1:
            return self._running_team.network(path, batch, shapes)
        network = read_network(path, batch=batch, shapes=shapes)
        return self._built(network, weights_of(path, batch=batch, shapes=shapes))

    def _layer(self, torch_layer: TorchLayer, layer: Layer, budget_ms: float) -> Built:
        device = self._device.torch_device
        x, extras = torch_layer.first_input(device), torch_layer.extras(device)
        first = torch_layer.others(device, extras)
        alone = self._run_of(torch_layer.function, x, [first])
        output = _first_result(alone())
        most = MAX_COPIES if self._compiled == "eager" else COMPILED_COPIES
        timer = self._device.timer(alone)
        copies = copies_for(timer, self._call_ms, layer.weight_bytes, budget_ms, most)
        sets = [first, *(torch_layer.others(device, extras) for _ in range(copies - 1))]
        many = self._run_of(torch_layer.function, x, sets) if copies > 1 else alone
        many()
        while self._compiled == "eager" and len(sets) > 1 and not self._device.holds(many):
            del sets[len(sets) // 2 :]
        execution = Phase(self._device.timer(many), offset=self._call_ms, copies=len(sets))
        host = x.to("cpu", memory_format=torch.contiguous_format)
        return Built.of_phases(
            self._device.uploads([host], torch_layer.format_of),
            execution,
            self._device.downloads(lambda: [output]),
            self._device.call_timer(alone),
            sets.clear,
        )

    def _run_of(
        self, function: Callable[..., Any], x: Any, sets: Sequence[Sequence[Any]]
    ) -> Callable[[], Any]:
        """Return a call that runs copies of a function, each with inputs of its own after `x`."""
        if self._compiled != "eager" and sets:
            return self._compiled_run(function, x, sets)

        def run() -> Any:
            result = None
            with torch.inference_mode():
                for others in sets:
                    result = function(x, *others)
            return result

        return run

    def _compiled_run(
        self, function: Callable[..., Any], x: Any, sets: Sequence[Sequence[Any]]
    ) -> Callable[[], Any]:
        """Compile the copies as one function, with an input each: equal calls would be merged."""
        inputs = [x, *(x.clone() for _ in sets[1:])]

        def copies(inputs: Sequence[Any], sets: Sequence[Sequence[Any]]) -> list[Any]:
            return [function(first, *others) for first, others in zip(inputs, sets, strict=True)]

        compiled = self._compile(copies)

        def run() -> Any:
            with torch.inference_mode():
                return compiled(inputs, sets)[-1]

        return run

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile for fixed shapes; the first call does it."""
        torch.compiler.reset()
        compiled: Callable[..., Any] = torch.compile(function, dynamic=False, backend=COMPILER)
        return compiled

    def _trained_layer(self, torch_layer: TorchLayer, layer: Layer, budget_ms: float) -> Built:
        """Build the training step of a layer, alone and in copies."""
        device = self._device.torch_device
        x, extras = torch_layer.first_input(device), torch_layer.extras(device)
        alone = self._step_of(torch_layer, x, extras, 1)
        copies = copies_for(self._device.timer(alone.step), 0.0, 3 * layer.weight_bytes, budget_ms)
        copies = max(1, min(copies, int(TRAINED_BYTES // max(2 * layer.moved_bytes, 1))))
        many = self._step_of(torch_layer, x, extras, copies) if copies > 1 else alone
        while copies > 1 and not self._device.holds(many.step):
            many.free()
            copies //= 2
            many = self._step_of(torch_layer, x, extras, copies)

        def free() -> None:
            alone.free()
            many.free()

        phases = many.phases(self._device.timer, copies)
        peak = self._device.peak_bytes(alone.step, alone.resident_bytes)
        built = Built(phases, self._device.call_timer(alone.step), free)
        return built.with_memory({"peak_memory_bytes": peak})

    def _step_of(
        self, torch_layer: TorchLayer, x: Any, extras: Sequence[Any], copies: int
    ) -> TorchStep:
        """Make the training step of copies, each with an input of its own that shares memory."""
        inputs = [
            x.detach().requires_grad_() if x.is_floating_point() else x for _ in range(copies)
        ]
        sets = [torch_layer.others(self._device.torch_device, extras) for _ in range(copies)]
        if self._precision == "amp":
            # Autocast keeps weights in single precision, and casts them in each forward pass.
            sets = [torch_layer.with_trained(others, torch.Tensor.float) for others in sets]
        weights = [weight for others in sets for weight in torch_layer.trained(others)]
        for weight in weights:
            weight.requires_grad_()
        fixed = [
            value for others in sets for value in others
            if isinstance(value, torch.Tensor) and not value.requires_grad
        ]  # fmt: skip

        def forward() -> list[Any]:
            with self._autocast():
                return [
                    _first_result(torch_layer.function(one, *others))
                    for one, others in zip(inputs, sets, strict=True)
                ]

        leaves = [leaf for leaf in inputs if leaf.requires_grad]
        return TorchStep(forward, leaves, weights, self._optimizer, fixed)

    def _built(self, network: Network, weights: Mapping[str, Any]) -> Built:
        """Build a network with resident inputs."""
        try:
            return self._network(as_run(network, self.setting()), weights)
        except _ERRORS as error:
            raise self._error(error, network.name) from error

    def _error(self, error: Exception, what: str) -> Exception:
        """Return an error of ours; where the device runs nothing any more, one that ends this."""
        if self._device.has_failed():
            return RuntimeError(f"{what}: {first_line(error)}")
        return as_resperf_error(error, "PyTorch", what)

    def _network(self, network: Network, weights: Mapping[str, Any]) -> Built:
        device, training = self._device.torch_device, bool(self._optimizer)
        self._memory = self._device.network_memory()
        module = TorchNetwork(
            network, weights, device, channels_last=self._layout == "nhwc", training=training
        )
        hosts = host_inputs(network)
        inputs = [host.to(device, memory_format=module.format_of(host)) for host in hosts]
        whole: Callable[..., Any] = module if self._compiled == "eager" else self._compile(module)
        if training:
            return self._trained_network(module, whole, inputs)

        def run() -> Any:
            with torch.inference_mode(), self._autocast():
                return whole(*inputs)

        outputs = [run()]
        resident = partial(size_bytes, [*module.parameters(), *module.buffers(), *inputs])

        def free() -> None:
            module.free()
            inputs.clear()
            outputs.clear()

        return Built.of_phases(
            self._device.uploads(hosts, module.format_of),
            Phase(self._device.run_timer(run)),
            self._device.downloads(lambda: outputs[0]),
            self._device.call_timer(run),
            free,
        ).with_memory(self._memory(run, resident))

    def _autocast(self) -> Any:
        """Return the context that casts, where the precision is ``amp``."""
        dtype = TYPES[AUTOCAST_TYPE[self._kind]]
        return torch.autocast(self._kind, dtype=dtype, enabled=self._precision == "amp")

    def _trained_network(
        self, module: TorchNetwork, whole: Callable[..., Any], inputs: Sequence[Any]
    ) -> Built:
        """Build the training step of a network, as the host starts it; inputs have no gradient."""

        def forward() -> Any:
            with self._autocast():
                return whole(*inputs)

        tensors = [*module.parameters(), *module.buffers()]
        weights = [tensor for tensor in tensors if tensor.requires_grad]
        fixed = [*inputs, *(tensor for tensor in tensors if not tensor.requires_grad)]
        step = TorchStep(forward, [], weights, self._optimizer, fixed)

        def free() -> None:
            step.free()
            module.free()

        phases = step.phases(self._device.run_timer)
        if isinstance(self._device, Cuda):  # Processes together repeat no sample.
            on_device = self._device.device_timer(step.step, step.clear)
            phases |= {} if on_device is None else {"device_step_ms": Phase(on_device)}
        built = Built(phases, self._device.call_timer(step.step), free)
        return built.with_memory(self._memory(step.step, step.resident_bytes))

    def _many_ms(self, layer: Layer, copies: int) -> float:
        """Time copies of a layer in one run."""
        torch_layer = layer_of_torch(self.lower([layer])[0])
        device = self._device.torch_device
        sets = [torch_layer.others(device) for _ in range(copies)]
        run = self._run_of(torch_layer.function, torch_layer.first_input(device), sets)
        run()
        timed = self._device.timer(run)
        return max(median_of(timed, 0.0, warmups=MANY_WARMUPS) - self._call_ms, 0.0)


def _first_result(result: Any) -> Any:
    """Return the first of several results."""
    return result[0] if isinstance(result, (tuple, list)) else result
