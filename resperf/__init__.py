"""Predict how long a neural network takes on a device, from measured layers.

The public names are those of `__all__`; importing the package loads no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from resperf._version import __version__
from resperf.errors import (
    BundleError,
    CampaignError,
    DatasetError,
    DeviceError,
    DeviceLostError,
    LayerError,
    MeasurementError,
    MissingExtraError,
    NetworkError,
    OutputError,
    ResperfError,
    ShapeError,
    TrainingError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from resperf.prediction.api import predict, predict_many, predict_scaling, predict_within
    from resperf.prediction.known import KnownDevice, list_devices
    from resperf.prediction.result import Prediction
    from resperf.prediction.scaling import Scaling

__all__ = [
    "BundleError", "CampaignError", "DatasetError", "DeviceError", "DeviceLostError",
    "KnownDevice", "LayerError", "MeasurementError", "MissingExtraError", "NetworkError",
    "OutputError", "Prediction", "ResperfError", "Scaling", "ShapeError", "TrainingError",
    "UnsupportedError", "__version__", "list_devices", "predict", "predict_many",
    "predict_scaling", "predict_within",
]  # fmt: skip

_PLACES = {
    "KnownDevice": "resperf.prediction.known",
    "Prediction": "resperf.prediction.result",
    "Scaling": "resperf.prediction.scaling",
    "list_devices": "resperf.prediction.known",
    "predict": "resperf.prediction.api",
    "predict_many": "resperf.prediction.api",
    "predict_scaling": "resperf.prediction.api",
    "predict_within": "resperf.prediction.api",
}
"""Public names that are loaded on first use, so that `import resperf` stays light -> modules."""


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'resperf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
