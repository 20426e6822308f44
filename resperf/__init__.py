"""Predict how long a neural network takes on a device, from measured layers.

The public names are those of `__all__`; importing the package loads no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resperf._version import __version__
from resperf.errors import ResperfError

if TYPE_CHECKING:
    from resperf.prediction.api import predict as predict

__all__ = ["ResperfError", "__version__", "predict"]


def __getattr__(name: str) -> Any:
    """Load `predict` on first use, so that `import resperf` stays light."""
    if name == "predict":
        from resperf.prediction.api import predict

        return predict
    raise AttributeError(f"module 'resperf' has no attribute {name!r}")
