"""A method whose predictor answers for any card: times of a V100 by the ratio of peaks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resperf.devices import devices
from resperf.platform import Platform
from resperf.predictors import Estimate, Predicted
from resperf.predictors.gianniti import Gianniti
from resperf.settings import SESSION, Setting

DISPATCH_MS, DEVICE_SHARE = 0.5, 0.25
PEAK_OF_ROWS = devices()["v100"].peaks_flops_per_s["fp32"]


class ToyOfAnyCard(Gianniti):
    """Linear on a V100; on other cards longer by the ratio of their peaks."""

    method = "toy-of-any-card"
    unseen_devices = True

    def has_rows_of(
        self,
        platform: Platform,
        setting: Setting | None = None,
        dtype: str = "",
    ) -> bool:
        return platform.device == "v100"

    def predict(self, subjects: Any, setting: Setting, platform: Platform) -> Predicted:
        factor = PEAK_OF_ROWS / devices()[platform.device].peaks_flops_per_s["fp32"]
        found = super().predict(subjects, setting, platform)
        nothing = np.full(len(next(iter(found.values())).values), math.nan)
        return {
            name: Estimate(factor * each.values, nothing, nothing) for name, each in found.items()
        }


class ToyWithDispatch(ToyOfAnyCard):
    """Times of which three quarters are dispatch, which it knows if no session is named."""

    method = "toy-with-dispatch"

    def gpu_busy_fraction(self, columns: Any, setting: Setting, platform: Platform) -> Any:
        return np.full(len(next(iter(columns.values()))), DEVICE_SHARE)

    def dispatch_ms(self, setting: Setting, platform: Platform) -> float:
        return math.nan if SESSION in setting.options else DISPATCH_MS
