"""Plans for a device or framework that is not here, by the target's row and rules alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from resperf.backends import known_settings
from resperf.backends._base import check_choices
from resperf.campaign.harvest import harvest
from resperf.devices import DeviceFacts, device_facts
from resperf.errors import MissingExtraError
from resperf.layers import Layer
from resperf.platform import Accelerator, Platform
from resperf.settings import Setting
from resperf.targets import Target

_SETTING_FIELDS = frozenset(field.name for field in dataclasses.fields(Setting))


class AbsentDevice:
    """Stands in for the measuring process while a campaign is planned: it cannot measure.

    Parameters
    ----------
    target : Target
    settings : mapping
        Keywords of the backend. Which it has is known where its framework is installed; those
        that are no fields of a `Setting` do not change the plan.
    device : str
        As after ``--device``: the name of a card, whose facts then count, or of its class.

    Attributes
    ----------
    setting : Setting
        Without the framework's version.
    platform : Platform
        With the card's published facts, if it is known.
    facts : DeviceFacts or None

    Raises
    ------
    ResperfError
        If the target does not have a setting or the precision.
    """

    def __init__(self, target: Target, settings: Mapping[str, Any], device: str = "") -> None:
        self._lowering = target.load("lowering")
        with suppress(MissingExtraError):
            known_settings(target, settings)
        precision = settings.get("precision") or target.precisions[0]
        check_choices(target.name, precision=(precision, target.precisions))
        self.facts: DeviceFacts | None = device_facts(device) if device else None
        given = {name: value for name, value in settings.items() if name in _SETTING_FIELDS}
        optimizer = str(given.pop("optimizer", ""))
        setting = Setting(framework=target.framework, **given)
        self.setting = setting.with_optimizer(optimizer) if optimizer else setting
        self.platform = _platform(target, self.facts)

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Lower layers by the target's rules."""
        lowered: list[Layer] = self._lowering.lower_layers(layers, self.setting)
        return lowered

    def harvest(self, paths: Sequence[Path], batches: Sequence[int]) -> list[Layer]:
        """Return the lowered layers of networks (see `campaign.harvest`)."""
        return harvest(paths, self.setting, self.platform, batches)

    def build_errors(self, layers: Sequence[Layer]) -> list[str]:
        """Refuse nothing: what the framework refuses is known where it runs."""
        return [""] * len(layers)


def _platform(target: Target, facts: DeviceFacts | None) -> Platform:
    if facts is None:
        return Platform(device=target.device_class)
    card = Accelerator(
        name=facts.name,
        memory_bytes=facts.memory_bytes,
        compute_capability=facts.compute_capability,
    )
    return Platform(device=facts.device, accelerators=(card,))
