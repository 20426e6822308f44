"""Results as JSON text."""

from __future__ import annotations

import json
from typing import Any

from resperf.units import json_values


def json_text(value: Any) -> str:
    """Write a value as indented, standard JSON.

    Parameters
    ----------
    value : mapping, sequence, str, float, int, bool or None
        NaN and infinities become null, since standard JSON cannot express them.
    """
    return json.dumps(json_values(value), indent=2, allow_nan=False, ensure_ascii=False)
