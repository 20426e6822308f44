"""Devices as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from resperf.devices import device_facts
from resperf.quantities import WHOLE_CALL
from resperf.report.tables import percent_cell, table


def device_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """List devices, one a line.

    Parameters
    ----------
    rows : sequence of mapping
        ``device``, ``framework``, ``precisions``, ``rests_on`` and ``bundle`` (``name`` and
        ``path``, or None); of devices with times of their own also ``machine`` (processor and cores
        as text), ``quantity`` (what the layers' times contain) and ``validation_error`` (per kind,
        fractions). A damaged bundle has ``bundle`` and ``damaged`` (the reason) alone.
    """
    whole = [row for row in rows if "damaged" not in row]
    bundles = {row["bundle"]["path"]: row["bundle"]["name"] for row in rows if row["bundle"]}
    counts = Counter(bundles.values())

    def named(bundle: Mapping[str, str] | None) -> str:
        """Return the name of a bundle, or its folder if another one has that name."""
        return "" if bundle is None else bundle["path" if counts[bundle["name"]] > 1 else "name"]

    parts = []
    if whole:
        headings = (
            "device", "framework", "precision", "rests on", "median error", "bundle", "machine",
        )  # fmt: skip
        # A card is known by its own name alone.
        cells = [
            [row["device"], row["framework"], ", ".join(row["precisions"]), row["rests_on"],
             _error(row), named(row["bundle"]),
             "" if device_facts(row["device"]) else row.get("machine", "")]
            for row in whole
        ]  # fmt: skip
        parts.append(table(headings, cells, text=headings))
    parts += [
        f"damaged: {row['bundle']['path']}: {row['damaged']}" for row in rows if "damaged" in row
    ]
    return "\n".join(parts)


def _error(row: Mapping[str, Any]) -> str:
    """Return the median of the kinds' validation errors, where the device's own times have one."""
    errors: Mapping[str, float] = row.get("validation_error", {})
    if not errors:
        return ""
    error = percent_cell(median(errors.values()))
    return f"{error} (whole calls)" if row["quantity"] == WHOLE_CALL else error
