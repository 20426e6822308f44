"""The sum of layers as a predictor of networks, with the interface of all predictors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from resperf.bundle import NETWORK, Bundle
from resperf.errors import TrainingError
from resperf.features import Columns
from resperf.grouping import grouped
from resperf.network import Network
from resperf.platform import Platform
from resperf.prediction.network import predict_networks
from resperf.predictors import Estimate, Predicted, Predictor, Task
from resperf.quantities import PHASES, Level
from resperf.settings import Setting


class SumOfLayers(Predictor):
    """Lowers a network for a bundle's target, predicts its layers and composes its quantities.

    It is made from a bundle and is not fitted itself: the bundle's predictors of layers and its
    in-network correction are.

    Parameters
    ----------
    bundle : Bundle
        Its part nearest to the given setting and platform predicts; one of several devices
        predicts under that setting on that platform.
    """

    method = "sum_of_layers"
    level = Level.NETWORK

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(NETWORK)
        self.bundle = bundle
        self.quantity_ = "latency_ms"

    def _learn(self, task: Task) -> None:  # noqa: ARG002
        raise TrainingError(
            f"{self.method} is made of predictors of layers; train these, then fit the in-network "
            "correction with: resperf calibrate"
        )

    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict the three phases, their sum, and other quantities that follow from layers."""
        kinds = [part for part in self.bundle.parts if part.kinds]
        part = kinds[0].part_for(None, None, setting, platform) if kinds else self.bundle
        if part.many_settings:
            part = part.for_device(platform, setting)
        networks = cast("Sequence[Network]", subjects)
        predictions = predict_networks(networks, part, whole=False, in_session=True)
        self.notes_ = tuple(
            f"{prediction.subject.network}: its total leaves out {len(prediction.skipped)} "
            f"operators and {len(prediction.overheads.missing_costs)} costs that the bundle does "
            "not predict"
            for prediction in predictions
            if not prediction.complete
        )
        pairs: list[tuple[str, tuple[float, float, float]]] = []
        for prediction in predictions:
            unknown = (math.nan, math.nan)
            values = {name: (getattr(prediction.phases, name), *unknown) for name in PHASES}
            values["latency_ms"] = prediction.total_ms, prediction.low_ms, prediction.high_ms
            values |= {
                one.name: (one.value, one.low, one.high) for one in prediction.parts.quantities
            }
            pairs += values.items()
        rows = grouped(pairs)
        return {name: Estimate(*np.array(values, dtype=float).T) for name, values in rows.items()}

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:  # noqa: ARG002
        return {}

    @classmethod
    def load(cls, values: Mapping[str, Any], folder: Path) -> Self:  # noqa: ARG003
        """Make it from the bundle in a folder."""
        return cls(Bundle.load(folder))

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Everything is in the bundle."""
