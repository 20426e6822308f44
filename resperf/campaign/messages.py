"""How a layer is named in the messages between the campaign and its measuring process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resperf.layers import Layer, kind_of


def plain(layer: Layer) -> dict[str, Any]:
    """Name a layer as JSON values."""
    return {"kind": layer.kind, "fields": layer.fields()}


def layer_of(message: Mapping[str, Any]) -> Layer:
    """Make the layer that a message names."""
    return kind_of(message["kind"]).from_fields(message["fields"])
