"""A toy predictor of whole networks, in a file of its own as another package would have it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from resperf.network import Network
from resperf.platform import Platform
from resperf.predictors import Estimate, Predicted, Predictor, Task
from resperf.quantities import Level
from resperf.settings import Setting


def activation_bytes(network: Network) -> float:
    """Bytes of the largest tensor that is no weight, in float32."""
    return max(4.0 * math.prod(t.shape) for t in network.tensors.values() if not t.is_weight)


class ToyPeakMemory(Predictor):
    """peak = slope x the largest activation: the median ratio."""

    method = "toy-peak-memory"
    level = Level.NETWORK
    quantities = frozenset({"peak_memory_bytes"})

    def _learn(self, task: Task) -> None:
        sizes = np.array([activation_bytes(network) for network in task.examples.networks])
        self.slope_ = float(np.median(task.examples.values / sizes))

    def predict(self, subjects: Any, setting: Setting, platform: Platform) -> Predicted:
        networks: Sequence[Network] = subjects
        sizes = np.array([activation_bytes(network) for network in networks])
        return {"peak_memory_bytes": Estimate.without_bounds(self.slope_ * sizes)}

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        return {"slope": self.slope_}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        self.slope_ = float(values["slope"])
