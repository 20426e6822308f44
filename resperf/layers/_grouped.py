"""Grouped convolutions: each group of output channels reads its own input channels only."""

from __future__ import annotations

from typing import Any, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer


class GroupedLayer(Layer):
    """Base class of such kinds, which declare the fields themselves."""

    channels_in: int
    channels_out: int
    groups: int

    def _check(self) -> None:
        if self.channels_in % self.groups or self.channels_out % self.groups:
            raise LayerError(f"{self.kind}: groups={self.groups} do not divide the channels")
        super()._check()

    def varied(self, **changes: Any) -> Self:
        """Change some fields; depthwise layers stay depthwise."""
        if self.groups > 1 and self.groups == self.channels_in:
            width = changes.get("channels_in", self.channels_in)
            changes |= {"groups": width, "channels_out": width * self.channels_out // self.groups}
        return self.replace(**changes)


def with_groups(made: dict[str, Any]) -> dict[str, Any]:
    """Replace ``groups="depthwise"`` of a draw: as many groups and channels out as channels in."""
    if made["groups"] != "depthwise":
        return made
    return {**made, "groups": made["channels_in"], "channels_out": made["channels_in"]}
