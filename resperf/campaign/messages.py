"""Layers in the messages between a campaign and its measuring process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resperf.layers import Layer, kind_of


def plain(layer: Layer) -> dict[str, Any]:
    """Convert a layer to JSON values."""
    return {"kind": layer.kind, "fields": layer.fields()}


def layer_of(message: Mapping[str, Any]) -> Layer:
    """Convert JSON values back to a layer."""
    return kind_of(message["kind"]).from_fields(message["fields"])
