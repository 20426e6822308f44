"""Bundles as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from resperf.devices import device_facts
from resperf.quantities import WHOLE_CALL
from resperf.report.tables import percent_cell, table
from resperf.settings import Setting

MOST_KINDS = 8
"""Above this number of kinds, only `COMMON_KINDS` and the median of the rest are shown."""
COMMON_KINDS = ("conv", "dense", "pool", "elementwise", "matmul")


def device_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """List bundles.

    Parameters
    ----------
    entries : sequence of mapping
        ``device``, ``framework``, ``settings``, ``machine`` (processor and cores as text),
        ``method``,
        ``date``, ``path``, ``quantity`` (what the layers' times contain) and ``validation_error``
        (per kind, fractions), and ``devices`` if it has several; a damaged bundle has ``path`` and
        ``damaged`` (the reason) instead.
    """
    whole = [entry for entry in entries if not entry.get("damaged")]
    names = _names([entry["path"] for entry in whole])
    parts = []
    if whole:
        headings = (
            "device", "framework", "precision", "machine", "method", "date", "validation error",
            "bundle",
        )  # fmt: skip
        rows = [
            [_device(entry), entry["framework"], _precisions(entry), _machine(entry),
             entry["method"], entry["date"][:10], _errors(entry), names[entry["path"]]]
            for entry in whole
        ]  # fmt: skip
        parts.append(table(headings, rows, text=headings))
    parts += [
        f"{names[entry['path']]}, {entry['framework']}, has rows of: {', '.join(entry['devices'])}"
        for entry in whole
        if len(entry.get("devices", ())) > 1
    ]
    parts += [
        f"damaged: {entry['path']}: {entry['damaged']}" for entry in entries if entry.get("damaged")
    ]
    return "\n".join(parts)


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Return path -> name of its folder, or the path itself if another folder has that name."""
    counts = Counter(Path(path).name for path in set(paths))
    return {path: path if counts[Path(path).name] > 1 else Path(path).name for path in paths}


def _machine(entry: Mapping[str, Any]) -> str:
    """Return the machine of a device that is not known by its own name alone."""
    return "" if device_facts(entry["device"]) else str(entry["machine"])


def _precisions(entry: Mapping[str, Any]) -> str:
    """List the precisions of the settings, with ``compiled`` if only compiled runs have one."""
    settings = [Setting.from_json(each) for each in entry.get("settings", ())]
    eager = {each.precision for each in settings if not each.is_compiled}
    found = (
        each.precision if each.precision in eager else f"{each.precision} compiled"
        for each in settings
    )
    return ", ".join(dict.fromkeys(filter(None, found)))


def _device(entry: Mapping[str, Any]) -> str:
    others = len(entry.get("devices", ())) - 1
    return f"{entry['device']} and {others} more" if others > 0 else str(entry["device"])


def _errors(entry: Mapping[str, Any]) -> str:
    found: Mapping[str, float] = entry["validation_error"]
    shown = {
        kind: error
        for kind, error in found.items()
        if len(found) <= MOST_KINDS or kind in COMMON_KINDS
    }
    listed = ", ".join(f"{kind} {percent_cell(error)}" for kind, error in shown.items())
    if len(found) > len(shown):
        rest = [error for kind, error in found.items() if kind not in shown]
        listed += f", {len(rest)} others {percent_cell(median(rest))} (median)"
    return f"{listed} (whole calls)" if entry.get("quantity") == WHOLE_CALL else listed
