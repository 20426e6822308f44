"""Manifest entries that bundles of layers and of networks have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resperf.dataset import DatasetInfo, checksum
from resperf.platform import Platform
from resperf.settings import Setting


def manifest_of(
    part: Mapping[str, Any],
    settings: Sequence[Setting],
    platforms: Sequence[Platform],
    came_from: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the manifest of a bundle of one part for some settings and platforms."""
    stored = {
        "settings": {str(i): setting.to_json() for i, setting in enumerate(settings, start=1)},
        "platforms": {str(i): platform.to_json() for i, platform in enumerate(platforms, start=1)},
    }
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **stored,
        "parts": [{**part, **{name: list(values) for name, values in stored.items()}}],
        "provenance": came_from,
    }


def described_dataset(info: DatasetInfo, dataset: Path) -> dict[str, Any]:
    """Describe a dataset for a bundle's provenance."""
    return {
        "name": dataset.name,
        "checksum": checksum(dataset),
        "campaign": info.campaign.get("name", ""),
        "seed": info.seed,
        "created": info.created,
        "versions": dict(info.versions),
        "phases": list(info.quantities),
        "merged": [dict(merged) for merged in info.merged],
        "source": {
            name: info.source[name]
            for name in ("format", "description", "citation", "files", "call_ms")
            if name in info.source
        },
    }
