"""A training step in its parts, each sampled alone: what the frameworks share.

The gradients of the outputs are given, in place of a loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from resperf.backends._base import Phase
from resperf.timing import Sampler

RATE = 1e-6
"""Learning rate: weights stay as they are."""
MOMENTUM = 0.9
"""Of the optimizer ``momentum``."""


class TrainingStep(ABC):
    """Forward pass, backward pass and update, of a network or of copies of a layer."""

    @property
    def has_weights(self) -> bool:
        """Whether there is anything to update."""
        return True

    @abstractmethod
    def forward(self) -> None:
        """Compute the outputs and keep what the backward pass needs."""

    @abstractmethod
    def backward(self) -> None:
        """Compute all gradients."""

    @abstractmethod
    def update(self) -> None:
        """Update the weights, and free the gradients."""

    @abstractmethod
    def clear(self) -> None:
        """Free the gradients and the outputs."""

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

    def phases(self, timer: Callable[..., Sampler], copies: int = 1) -> dict[str, Phase]:
        """Return the quantities of one copy; without weights there is no update.

        Parameters
        ----------
        timer : callable
            ``timer(run, before)`` returns a sampler of the work ``run``; ``before`` is not timed.
        copies : int
        """
        samplers: dict[str, Any] = {
            "forward_ms": timer(self.forward, self.clear),
            "backward_ms": timer(self.backward, self._ready_to_go_back),
        }
        if self.has_weights:
            samplers["update_ms"] = timer(self.update, self._ready_to_update)
        samplers["step_ms"] = timer(self.step, self.clear)
        return {name: Phase(sampler, copies=copies) for name, sampler in samplers.items()}
