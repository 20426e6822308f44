"""TensorFlow on a CPU or a CUDA device.

Preprocess is ``tf.constant`` of a host array; postprocess is ``numpy()`` of the output. Both copy.
Execution is the marginal time of a copy of the layer inside one function, on a resident input:
several copies with different weights run one after the other, and the time of the call is
subtracted. The graph optimiser runs as usual, so that bias, residual and activation are fused as in
a network. Weights are captured tensors, like variables: constants would be re-laid out beforehand.

On a GPU each phase ends when ``SyncDevice`` returns, which waits for the stream; the call that is
subtracted contains one too. With XLA (``compiled="xla"``) a run holds one copy, since XLA would
fuse several; tracing and compiling happen while the layer is built.

With an optimizer, networks offer a training step in its parts instead.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

# TensorFlow reads this while it is imported; otherwise it logs its build to stderr.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from resperf.backends._base import Backend, Built, Phase, Shapes, check_choices, usable_threads
from resperf.backends._chain import overheads_between_layers
from resperf.backends._training import MOMENTUM, RATE, TrainingStep
from resperf.backends._values import Array, network_input
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_device import XLA, Device, chosen_device
from resperf.backends.tensorflow_operators import build
from resperf.backends.tensorflow_runs import (
    Traced,
    call_costs_ms,
    layer_run,
    operator_of,
    refused,
    resident,
    run_of,
)
from resperf.errors import ResperfError, UnsupportedError, silent_stderr
from resperf.layers import Layer
from resperf.lowering._base import in_precision
from resperf.lowering._read import REMOVED_OPS
from resperf.lowering.tensorflow import LAYOUT, lower_layers, without_removed
from resperf.network import Network, read_network
from resperf.network.weights import weights_of
from resperf.settings import HALF_TYPES, Setting
from resperf.timing import WallClock

OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": MOMENTUM}),
    "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {}),
    "adam": ("Adam", {}),
    "adadelta": ("Adadelta", {}),
}
"""Optimizer -> its class in Keras, and its arguments."""


class TensorFlowStep(TrainingStep):
    """A training step of a network.

    Forward pass, backward pass and update are timed as functions of their own: a gradient tape
    around a ``tf.function`` runs one that also returns what the backward pass reads, and then the
    backward pass. The whole step is a single ``tf.function``, as ``fit`` of Keras runs it.

    Parameters
    ----------
    body : callable
        Adds the network to a graph: returns its outputs for its inputs.
    inputs : sequence of Tensor
    held : list of Tensor or Variable
        What the network captures; variables that an output depends on are trained. Emptied when
        the step is freed.
    optimizer : str
    device : Device

    Raises
    ------
    UnsupportedError
        If no output depends on a variable in a way that TensorFlow can differentiate.
    """

    def __init__(
        self,
        body: Callable[..., Sequence[Any]],
        inputs: Sequence[Any],
        held: list[Any],
        optimizer: str,
        device: Device,
    ) -> None:
        self._inputs, self._device = inputs, device
        self._network = Traced(partial(_differentiable, body), inputs, held, device)
        self._weights = [variable for variable in held if isinstance(variable, tf.Variable)]
        self._tape: Any = None
        self._outputs: list[Any] = []
        self._gradients: list[Any] = []
        try:
            self._prepare(body, optimizer)
        except BaseException:
            self.free()
            raise

    def _prepare(self, body: Callable[..., Sequence[Any]], optimizer: str) -> None:
        self.forward()
        self._ones = [tf.ones_like(output) for output in self._outputs]
        self.backward()
        # What no output depends on is never updated.
        self._weights = [
            weight
            for weight, gradient in zip(self._weights, self._gradients, strict=True)
            if gradient is not None
        ]
        if not self._weights:
            raise UnsupportedError("TensorFlow computes no gradient of its results")
        with self._device.here():
            keras_optimizer = _optimizer(optimizer)
            keras_optimizer.build(self._weights)
        weights = self._weights
        self._apply = self._device.function(lambda values: keras_optimizer.apply(values, weights))
        self._whole = self._device.function(self._built_step(body, keras_optimizer))
        self.clear()
        # The first steps trace.
        self.step()
        self._ready_to_update()
        self.update()

    def forward(self) -> None:
        """Compute the outputs and keep what the backward pass needs."""
        with self._device.here(), tf.GradientTape() as tape:
            self._outputs = self._network(*self._inputs)
        self._tape = tape

    def backward(self) -> None:
        """Compute all gradients."""
        with self._device.here():
            self._gradients = self._tape.gradient(self._outputs, self._weights, self._ones)
        self._tape, self._outputs = None, []

    def update(self) -> None:
        """Update the weights, and free the gradients."""
        self._apply(self._gradients)
        self.clear()

    def clear(self) -> None:
        """Free the gradients and the outputs."""
        self._tape, self._outputs, self._gradients = None, [], []

    def step(self) -> None:
        """Run a whole training step as one function, without what the parts have kept."""
        self.clear()
        self._whole(*self._inputs)

    def free(self) -> None:
        """Free everything."""
        self.clear()
        self._network.release()
        self._weights, self._inputs, self._ones = [], [], []
        self._apply = self._whole = None
        # The optimizer refers to itself.
        gc.collect()

    def _built_step(self, body: Callable[..., Any], optimizer: Any) -> Callable[..., None]:
        weights, ones, device = self._weights, self._ones, self._device

        def step(*inputs: Any) -> None:
            with device.here(), tf.GradientTape() as tape:
                outputs = _differentiable(body, *inputs)
            optimizer.apply(tape.gradient(outputs, weights, ones), weights)

        return step


def _differentiable(body: Callable[..., Sequence[Any]], *inputs: Any) -> list[Any]:
    """Return the outputs that have gradients; a network's inputs have none."""
    fixed = [tf.stop_gradient(tensor) for tensor in inputs]
    return [output for output in body(*fixed) if output.dtype.is_floating]


def _optimizer(name: str) -> Any:
    """Make an optimizer of Keras.

    Raises
    ------
    ResperfError
        If Keras runs on another framework.
    """
    backend = tf.keras.config.backend()
    if backend != "tensorflow":
        raise ResperfError(
            f"Keras runs on {backend}; unset KERAS_BACKEND to measure training steps of TensorFlow"
        )
    class_name, arguments = OPTIMIZERS[name]
    return getattr(tf.keras.optimizers, class_name)(learning_rate=RATE, **arguments)


@cache
def start(device: Device, training: bool) -> None:
    """Run something once: what TensorFlow loads for the first network is no network's memory."""
    with device.here():
        image, kernel = tf.ones((1, 8, 8, 4)), tf.Variable(tf.ones((3, 3, 4, 4)))
        weight = tf.Variable(tf.ones((256, 4)))

        def network() -> Any:
            return tf.reshape(tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "SAME")), (1, 256)) @ weight

        if training:
            step = TensorFlowStep(lambda: [network()], [], [kernel, weight], "adam", device)
            step.free()
        else:
            device.function(network)()


def _computing_weights(network: Network) -> Network:
    """Return a network that computes its weights from its constants in each run, as in training.

    Copies of a constant stay constants of their own, as in the network that was exported.
    """
    whole = network.with_weight_nodes()
    computing = [
        node
        for node in network.weight_nodes
        if node.op not in REMOVED_OPS and whole.tensors[node.outputs[0]].value is None
    ]
    computed = {name for node in computing for name in node.outputs}
    tensors = {
        name: replace(tensor, is_weight=False) if name in computed else tensor
        for name, tensor in whole.tensors.items()
    }
    return replace(whole, nodes=(*computing, *network.nodes), tensors=tensors)


_MADE_UP = frozenset({"float32", "float16", "bfloat16", "int64", "int32", "bool"})


_REFUSALS = (tf.errors.OpError, ValueError, TypeError, LookupError, NotImplementedError)


PRECISIONS = ("", "fp32", "tf32", *HALF_TYPES)
COMPILED = ("", "graph", XLA)


class TensorFlowBackend(Backend):
    """TensorFlow on a CPU or a CUDA device.

    Parameters
    ----------
    threads : int, optional
        Threads within an operation; all usable cores by default. Operations run one at a time.
    device : str
        ``"cuda:0"`` is the first GPU; else the name of the platform, on the CPU.
    precision : {"", "fp32", "tf32", "fp16", "bf16"}
        What is float32 in a file is computed in. With ``tf32``, a GPU's products and convolutions
        round their inputs, as is TensorFlow's own default; with ``fp32`` or without, they do not.
    layout : {"", "nhwc"}
        Of images.
    compiled : {"", "graph", "xla"}
        ``graph`` by default.
    optimizer : str
        Measures training steps of networks with it; inference if it is empty.

    Raises
    ------
    ResperfError
        If there is no such device, or TensorFlow already runs otherwise in this process.
    """

    name = "tensorflow"

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str = "cpu",
        precision: str = "",
        layout: str = "",
        compiled: str = "",
        optimizer: str = "",
    ) -> None:
        self.threads = usable_threads(threads)
        check_choices(
            "TensorFlow", precision=(precision, PRECISIONS), layout=(layout, ("", LAYOUT)),
            compiled=(compiled, COMPILED), optimizer=(optimizer, ("", *OPTIMIZERS)),
        )  # fmt: skip
        self.word, self._precision, self._optimizer = device, precision, optimizer
        _set_threads(self.threads)
        with silent_stderr():
            # TensorFlow logs to stderr while it looks for devices and starts.
            self._device = chosen_device(device, compiled or "graph")
            if precision == "tf32" and not self._device.is_gpu:
                raise ResperfError(
                    "precision=tf32 exists on NVIDIA GPUs only; CPUs have fp32, fp16, bf16"
                )
            tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
            tf.constant(0.0)

    def setting(self) -> Setting:
        """How TensorFlow runs layers and networks here."""
        return Setting(
            framework=self.name,
            framework_version=tf.__version__,
            provider="GPU" if self._device.is_gpu else "CPU",
            threads=self.threads,
            precision=self._precision or ("fp32" if self._device.is_gpu else ""),
            layout=LAYOUT if self._device.is_gpu else "",
            # Not where it is as ever, on CPUs.
            compiled=self._device.compiled
            if self._device.is_gpu or self._device.compiled == XLA
            else "",
            options={
                "inter_op_threads": "1",
                "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
            },
        ).with_optimizer(self._optimizer)

    @cached_property
    def _call_costs_ms(self) -> dict[str, float]:
        return call_costs_ms(self._device)

    def costs(self) -> Mapping[str, float]:
        """Measure what a call and a reshape cost; cached."""
        return {name: self._call_costs_ms[name] for name in ("call_ms", "reshape_ms")}

    def overheads_between_layers(self) -> Mapping[str, float]:
        """Measure the overhead between layers, now; a GPU's layers contain it, steps have none."""
        if self._device.is_gpu or self._optimizer:
            return {}
        return overheads_between_layers(self, lambda chain: self._built(chain, {}))

    def _built(self, network: Network, weights: Mapping[str, Array]) -> Built:
        """Build a network with resident inputs, or its training step; missing weights are made up.

        Images are in NHWC; all other tensors have the file's order of axes.

        Raises
        ------
        UnsupportedError
            If it cannot be run.
        """
        device, optimizer = self._device, self._optimizer
        network = without_removed(
            _computing_weights(network) if optimizer else network, training=bool(optimizer)
        )
        for name in network.inputs:
            if network.tensors[name].dtype not in _MADE_UP:
                raise UnsupportedError(
                    f"input {name!r} is {network.tensors[name].dtype}, which cannot be made up; "
                    f"inputs may be {', '.join(sorted(_MADE_UP))}"
                )
        with device.here():
            builder = Builder(network, weights, training=bool(optimizer))
        arrays = [
            network_input(name, builder.stored_shape(name), network.tensors[name].dtype)
            for name in network.inputs
        ]
        inputs = resident(arrays, device)
        outputs = partial(builder.outputs, build)
        if optimizer:
            step = TensorFlowStep(outputs, inputs, builder.held, optimizer, device)
            builder.free_host_weights()
            return Built(step.phases(device.timed), device.timed(step.step), step.free)
        function = Traced(outputs, inputs, builder.held, device)
        builder.free_host_weights()
        run = device.finished(lambda: function(*inputs))
        timed = WallClock(run)
        return run_of(arrays, run(), Phase(timed), timed, [function], device)

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Give images their layout, and layers the type that they have in the precision."""
        return lower_layers(layers, self.setting())

    def without_layers(self) -> str:
        """Say why layers have no training steps here: what is built of one is its inference."""
        if not self._optimizer:
            return ""
        return (
            "in TensorFlow training steps are measured of whole networks only; those of single "
            "layers are with --framework torch"
        )

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        """Build one lowered layer.

        Raises
        ------
        UnsupportedError
            If TensorFlow cannot run such a layer here.
        MemoryError
            If it does not fit.
        """
        try:
            return layer_run(operator_of(layer), self._call_costs_ms, budget_ms, self._device)
        except _REFUSALS as error:
            raise refused(error) from error

    def network(self, path: Path, *, batch: int | None, shapes: Shapes | None = None) -> Built:
        """Build a whole network from an ONNX file as one function of resident tensors.

        NHWC images are flattened in that order, as in a TensorFlow network: results then differ
        from the file's unless it flattens single pixels. Missing weights are replaced by dummy
        values. With an optimizer it is the network's training step.

        Raises
        ------
        NetworkError, UnsupportedError
            If the file cannot be read or run.
        MemoryError
            If it does not fit.
        """
        try:
            network = in_precision(read_network(path, batch=batch, shapes=shapes), self._precision)
            start(self._device, bool(self._optimizer))
            memory = self._device.memory()
            whole = self._built(network, weights_of(path, batch=batch, shapes=shapes))
            return whole.with_memory(memory(whole.isolated))
        except _REFUSALS as error:
            raise refused(error) from error


def _set_threads(threads: int) -> None:
    """Set TensorFlow's threads, which is only possible before its first operation."""
    threading = tf.config.threading
    try:
        threading.set_inter_op_parallelism_threads(1)
        threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError as error:
        present = threading.get_intra_op_parallelism_threads()
        between = threading.get_inter_op_parallelism_threads()
        if (present, between) != (threads, 1):
            raise ResperfError(
                f"TensorFlow already runs with {present or 'default'} threads inside and "
                f"{between or 'default'} between operations in this process; start a new process "
                f"to measure with {threads} and 1"
            ) from error
