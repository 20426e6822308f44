"""Grouped convolutions: each group of output channels reads its own input channels only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._sliding import SlidingLayer

_SIDES = ("channels_in", "channels_out")


class GroupedLayer(SlidingLayer):
    """Base class of such kinds, which declare the fields themselves."""

    channels_out: int
    groups: int
    bias: bool

    SCALED: ClassVar[tuple[str, ...]] = _SIDES

    @property
    def filters(self) -> int:
        """Number of weights, without the bias."""
        return self.channels_out * (self.channels_in // self.groups) * self.taps

    @property
    def macs(self) -> int:
        """Multiply-accumulates: one per output value and weight of its filter."""
        return self.value_count * (self.channels_in // self.groups) * self.taps

    @property
    def weight_bytes(self) -> int:
        """Bytes of the filters and the bias."""
        return (self.filters + self.bias * self.channels_out) * self.element_bytes

    @property
    def _filter_shape(self) -> tuple[int, ...]:
        """Output channels, input channels of a group, and the window."""
        return (self.channels_out, self.channels_in // self.groups, *self._window_shape)

    def _check(self) -> None:
        for side in _SIDES:
            if (channels := getattr(self, side)) % self.groups:
                raise LayerError(
                    f"{self.kind}: {side}={channels} is not a multiple of groups={self.groups}"
                )
        super()._check()

    def varied(self, **changes: Any) -> Self:
        """Change some fields; depthwise layers stay depthwise, others retain their groups."""
        groups = self.groups
        if 1 < groups == self.channels_in:
            width = changes.get("channels_in", groups)
            more = {"groups": width, "channels_out": width * (self.channels_out // groups)}
            changes |= {"channels_in": width, **more}
        else:
            changes |= _multiples(changes, groups)
        return super().varied(**changes)


def with_groups(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Make the channels of a draw multiples of its groups.

    ``groups="depthwise"`` stands for as many groups and channels out as channels in.
    """
    groups, width = fields.get("groups", 1), fields["channels_in"]
    if groups == "depthwise":
        return {**fields, "groups": width, "channels_out": width}
    return {**fields, **_multiples(fields, groups)}


def _multiples(fields: Mapping[str, Any], groups: int) -> dict[str, int]:
    """Round the numbers of channels among these fields."""
    return {
        side: max(1, round(fields[side] / groups)) * groups for side in _SIDES if side in fields
    }
