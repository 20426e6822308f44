"""A training step of PyTorch.

Gradients are freed with the update, and made anew by the next backward pass, as with
``zero_grad(set_to_none=True)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from resperf.backends._base import Built, Phase
from resperf.backends._torch_devices import Device
from resperf.backends._torch_modules import size_bytes
from resperf.backends._training import MOMENTUM, RATE, TrainingStep
from resperf.errors import UnsupportedError

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

    On CUDA its times are the device's, without the host's.

    Parameters
    ----------
    forward : callable
        Returns the outputs, of which those with a gradient count.
    inputs : sequence of Tensor
        Their gradients are computed where they require one.
    weights : sequence of Tensor
        What the optimizer updates.
    optimizer : str

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
    ) -> None:
        self._forward, self._leaves = forward, [*inputs, *weights]
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
        return size_bytes([*self._leaves, *self._gradients, *kept])

    def built(
        self, device: Device, parts: Mapping[str, Phase], free: Callable[[], object]
    ) -> Built:
        """Offer parts of the step, and the most memory that a whole one needs.

        Parameters
        ----------
        device : Device
        parts : mapping of str to Phase
        free : callable
            Frees everything.
        """
        peak = Phase(device.peak_bytes(self.step, self.resident_bytes), unit="bytes")
        return Built({**parts, "peak_memory_bytes": peak}, device.call_timer(self.step), free)

    def free(self) -> None:
        """Free everything."""
        self.clear()
        self._leaves, self._gradients, self._optimizer = [], [], None
        self._forward = list
