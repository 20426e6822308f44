"""Results as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from resperf.units import json_values

SCHEMA_VERSION = 1
"""Version of the keys of JSON output (docs/predicting.md): raised if one is removed or changes its
meaning, not if one is added."""


def versioned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document that begins with the version of its keys."""
    return {"schema_version": SCHEMA_VERSION, **document}


def json_text(value: Any) -> str:
    """Write a value as indented, standard JSON.

    Parameters
    ----------
    value : mapping, sequence, str, float, int, bool or None
        NaN and infinities become null, since standard JSON cannot express them. Letters beyond
        ASCII are escaped: not every terminal and pipe has them.
    """
    return json.dumps(json_values(value), indent=2, allow_nan=False)
