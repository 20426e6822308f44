"""Conversions between units; names elsewhere carry the unit (`time_ms`, `moved_bytes`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

NS_PER_MS = 1e6
US_PER_MS = 1e3
MS_PER_S = 1e3
NS_PER_S = NS_PER_MS * MS_PER_S
_MS = {"us": 1 / US_PER_MS, "ms": 1.0, "s": MS_PER_S}
"""Unit of time -> its milliseconds."""
_DURATION = re.compile(r"(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)(us|ms|s)")
TIME_WORDS = "a time above 0 in us, ms or s"
"""What `parse_ms` reads."""
DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2,
    "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
LOW_BITS = {
    "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4e2m1": 4, "float8e4m3fn": 8,
    "float8e4m3fnuz": 8, "float8e5m2": 8, "float8e5m2fnuz": 8, "float8e8m0": 8,
}  # fmt: skip
"""Types of quantised weights that no layer kind has -> bits of a value; files pack them."""


def json_values(value: Any) -> Any:
    """Return the same mappings, sequences and records as JSON; NaN and infinities become None."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [json_values(item) for item in value]
    return value


def format_bytes(size_bytes: float) -> str:
    """Write a size with a binary prefix: ``format_bytes(2048) == "2.0 KiB"``."""
    for prefix in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if prefix == "B" else f"{size_bytes:.1f} {prefix}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Write a duration in its two largest units: ``"1 h 05 min"``, ``"3 min 20 s"``, ``"8 s"``."""
    total_s = max(0, round(seconds))
    hours, minutes, rest = total_s // 3600, total_s % 3600 // 60, total_s % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def parse_ms(text: str) -> float:
    """Read a time such as ``"10ms"``.

    Raises
    ------
    ValueError
        If the text is none, or not above 0.
    """
    match = _DURATION.fullmatch(text)
    time_ms = float(match[1]) * _MS[match[4]] if match else 0.0
    if not 0 < time_ms < math.inf:
        raise ValueError(text)
    return time_ms


def format_ms(time_ms: float) -> str:
    """Write a time with about four significant digits, in milliseconds: ``"12.35"``."""
    if time_ms == 0:
        return "0"
    if not math.isfinite(time_ms):
        return str(time_ms)
    magnitude = math.floor(math.log10(abs(time_ms)))
    # Four digits, three for times below 10 us; no exponents.
    digits = max(0, 3 - magnitude) if magnitude >= 0 else max(4, 2 - magnitude)
    return f"{time_ms:.{digits}f}"


def format_rate(per_s: float) -> str:
    """Write a rate with at least three digits, and no more than it has before the point."""
    return f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.3g}"
