"""A training step of PyTorch: forward pass, backward pass and update, each sampled alone.

The gradients of the outputs are given, in place of a loss. Gradients are freed with the update, and
made anew by the next backward pass, as with ``zero_grad(set_to_none=True)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from resperf.backends._base import Phase
from resperf.backends._torch_devices import Device
from resperf.backends._torch_network import size_bytes
from resperf.errors import ResperfError, UnsupportedError

RATE = 1e-6
"""Learning rate: weights stay as they are."""
_OPTIMIZERS: Mapping[str, Callable[..., Any]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adadelta": torch.optim.Adadelta,
}


def check_optimizer(name: str) -> None:
    """Refuse an unknown optimizer.

    Raises
    ------
    ResperfError
    """
    if name and name not in _OPTIMIZERS:
        raise ResperfError(
            f"no optimizer {name!r} in PyTorch's backend; it has {', '.join(_OPTIMIZERS)}"
        )


class TrainingStep:
    """A training step of copies of a layer, or of a network.

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
        self._gradients = [torch.ones_like(each) for each in self._outputs]
        self._optimizer = _OPTIMIZERS[optimizer](weights, lr=RATE) if weights else None
        # The first step makes the optimizer's state.
        self.backward()
        self.update()

    def forward(self) -> None:
        """Compute the outputs and keep what the backward pass needs."""
        self._outputs = [each for each in self._forward() if each.requires_grad]

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
        for each in self._leaves:
            each.grad = None
        self._outputs = []

    def step(self) -> None:
        """Run a whole training step."""
        self.forward()
        self.backward()
        self.update()

    def _ready_to_go_back(self) -> None:
        self.clear()
        self.forward()

    def _ready_to_update(self) -> None:
        self._ready_to_go_back()
        self.backward()

    def resident_bytes(self) -> int:
        """Return the bytes that are there between two steps."""
        states = [] if self._optimizer is None else self._optimizer.state.values()
        kept = [
            each for state in states for each in state.values() if isinstance(each, torch.Tensor)
        ]
        return size_bytes([*self._leaves, *self._gradients, *kept])

    def phases(self, device: Device, copies: int = 1) -> dict[str, Phase]:
        """Return the quantities of one copy; without weights there is no update.

        On CUDA these are the device's times, without the host's.
        """
        found = {
            "forward_ms": device.timer(self.forward, self.clear),
            "backward_ms": device.timer(self.backward, self._ready_to_go_back),
        }
        if self._optimizer is not None:
            found["update_ms"] = device.timer(self.update, self._ready_to_update)
        found["step_ms"] = device.timer(self.step, self.clear)
        return {
            name: Phase(sampler, divisor=copies, copies=copies) for name, sampler in found.items()
        }

    def peak_memory(self, device: Device) -> Phase:
        """Return the most memory that a step needs."""
        return Phase(device.peak_bytes(self.step, self.resident_bytes), unit="bytes")

    def free(self) -> None:
        """Free everything."""
        self.clear()
        self._leaves, self._gradients, self._optimizer = [], [], None
        self._forward = list
