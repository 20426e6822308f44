"""Results as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from resperf.units import json_number


def _plain(value: Any) -> Any:
    """Turn values into those that JSON knows; NaN and infinities become null."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value


def json_text(value: Any) -> str:
    """Write a value as indented, standard JSON.

    Parameters
    ----------
    value : mapping, sequence, str, float, int, bool or None
        NaN and infinities are written as null, as standard JSON has no word for them.
    """
    return json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False)
