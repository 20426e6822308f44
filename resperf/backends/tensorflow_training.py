"""A training step of TensorFlow.

Forward pass, backward pass and update are timed as functions of their own: a gradient tape around
a ``tf.function`` runs one that also returns what the backward pass reads, and then the backward
pass. The whole step is a single ``tf.function``, as ``fit`` of Keras runs it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from resperf.backends._training import MOMENTUM, RATE, TrainingStep
from resperf.backends.tensorflow_device import Device
from resperf.backends.tensorflow_runs import Traced
from resperf.errors import ResperfError, UnsupportedError

OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": MOMENTUM}),
    "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {}),
    "adam": ("Adam", {}),
    "adadelta": ("Adadelta", {}),
}
"""Optimizer -> its class in Keras, and its arguments."""
_KERAS_BACKEND = "tensorflow"


class TensorFlowStep(TrainingStep):
    """A training step of a network.

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
        self._apply = self._device.function(partial(_updated, keras_optimizer, self._weights))
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
            _updated(optimizer, weights, tape.gradient(outputs, weights, ones))

        return step


def _differentiable(body: Callable[..., Sequence[Any]], *inputs: Any) -> list[Any]:
    """Return the outputs that have gradients; a network's inputs have none."""
    fixed = [tf.stop_gradient(tensor) for tensor in inputs]
    return [output for output in body(*fixed) if output.dtype.is_floating]


def _updated(optimizer: Any, weights: Sequence[Any], gradients: Sequence[Any]) -> None:
    optimizer.apply(gradients, weights)


def _optimizer(name: str) -> Any:
    """Make an optimizer of Keras.

    Raises
    ------
    ResperfError
        If Keras runs on another framework.
    """
    backend = tf.keras.config.backend()
    if backend != _KERAS_BACKEND:
        raise ResperfError(
            f"Keras runs on {backend}; unset KERAS_BACKEND to measure training steps of TensorFlow"
        )
    class_name, arguments = OPTIMIZERS[name]
    return getattr(tf.keras.optimizers, class_name)(learning_rate=RATE, **arguments)
