"""What a bundle does not have, from the limits of the device: its data sheet, or its layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from resperf.bundle import Bundle
from resperf.devices import FP32, DeviceFacts, device_facts
from resperf.features import FEATURE_SET_VERSION
from resperf.layers import Activation, Dense, Elementwise
from resperf.lowering import lower_layers
from resperf.predictors.transfers import Transfers
from resperf.quantities import EXECUTION
from resperf.settings import Setting
from resperf.targets import DEFAULT
from resperf.units import MS_PER_S

METHOD = "data_sheet"
"""Method of what `sheet_bundle` returns."""
_EMPTY = ("costs", "copies", "predictors", "transfers", "ranges", "errors", "intervals", "golden",
          "training")  # fmt: skip
_COPY_CALL_MS = 0.01
_BUS_TIMES_LONGER = 1.25
"""Copies from pinned memory reach about 80% of the bus."""


def sheet_facts(bundle: Bundle) -> DeviceFacts | None:
    """Return the data sheet from which what a bundle lacks is estimated; None if there is none.

    That of a CPU says little about single operators. Bundles of whole calls have times that do not
    add up.
    """
    facts = device_facts(bundle.device)
    if facts is None or facts.device_class == DEFAULT.device_class:
        return None
    return facts if bundle.layer_quantity == EXECUTION else None


Limits = Callable[[], DeviceFacts | None]
"""Returns the limits of a device when they are needed first."""


def limits_of(bundle: Bundle) -> Limits:
    """Return what finds the limits by which operators without a predictor are estimated.

    Those of the data sheet. For a CPU, what a large product and a large addition (or activation)
    take by the bundle's own predictors stands for its peak and its bandwidth.
    """
    return cache(lambda: sheet_facts(bundle) or _of_processor(bundle))


_PRODUCT = Dense(batch=512, features_in=1024, features_out=1024)
_PRODUCTS_LONGER = {FP32: 1.0, "fp64": 2.2, "int32": 16.0, "int64": 45.0}
"""Peak -> how much longer than in float32 such products take in ONNX Runtime: medians on two cores,
of 64 to 512 rows and 256 to 1024 columns. Doubles fill half as many places of a vector."""
_READING = (
    Elementwise(batch=1, inner=6_400_000),
    Activation(batch=1, values=6_400_000, activation="relu"),
)
"""Layers at the speed of memory; the first that a bundle has a predictor for is asked."""


def _of_processor(bundle: Bundle) -> DeviceFacts | None:
    """Read peak and bandwidth off a CPU's predictors; None if it lacks them."""
    if not bundle.platform.is_processor or bundle.layer_quantity != EXECUTION:
        return None
    reading = next((layer for layer in _READING if layer.kind in bundle.kinds), None)
    if reading is None or _PRODUCT.kind not in bundle.kinds:
        return None
    layers = lower_layers([_PRODUCT, reading], bundle.setting, bundle.platform)
    product_ms, reading_ms = bundle.predict(layers, EXECUTION).ms.tolist()
    if not (product_ms > 0 and reading_ms > 0):
        return None
    return DeviceFacts(
        device=bundle.device,
        name=bundle.machine,
        aliases=(),
        device_class=DEFAULT.device_class,
        peaks_flops_per_s={
            peak: _PRODUCT.flops / (longer * product_ms) * MS_PER_S
            for peak, longer in _PRODUCTS_LONGER.items()
        },
        bandwidth_bytes_per_s=reading.moved_bytes / reading_ms * MS_PER_S,
        memory_bytes=0,
        cache_bytes=0,
    )


def estimated_copies(facts: DeviceFacts | None) -> dict[str, Transfers]:
    """Estimate the copies between host and device, by quantity; none if their bus is not known."""
    if facts is None or math.isnan(facts.bus_bytes_per_s):
        return {}
    ms_per_mb = _BUS_TIMES_LONGER * 1e9 / facts.bus_bytes_per_s
    copy = Transfers(_COPY_CALL_MS, (0.0,), (ms_per_mb,), math.inf)
    return {"preprocess_ms": copy, "postprocess_ms": copy}


def sheet_bundle(facts: DeviceFacts, setting: Setting) -> Bundle:
    """Return a bundle without any predictor: all that it says is estimated."""
    part = {
        "device": facts.device,
        "framework": setting.framework,
        "method": METHOD,
        "settings": ["1"],
        "platforms": ["1"],
        **{name: {} for name in _EMPTY},
    }
    manifest = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "feature_set_version": FEATURE_SET_VERSION,
        "settings": {"1": setting.to_json()},
        "platforms": {"1": facts.platform.to_json()},
        "parts": [part],
        "provenance": {},
        "files": {},
    }
    return Bundle(Path(f"data sheet of {facts.device}"), manifest)
