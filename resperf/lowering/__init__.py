"""Lowering: from a network's operators to the layers that a framework really runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

from resperf.devices import target_of
from resperf.errors import ResperfError, UnsupportedError
from resperf.layers import Layer
from resperf.lowering._base import LoweredNetwork, LoweredNode
from resperf.lowering._proto import skeleton
from resperf.lowering._work import (
    Work,
    macs_of,
    multiplied,
    slow_kernel,
    tensor_bytes,
    too_large,
    work_of,
)
from resperf.network import NETWORKS_CACHED, Network
from resperf.platform import Platform
from resperf.settings import Setting

__all__ = [
    "LoweredNetwork",
    "LoweredNode",
    "Work",
    "lower",
    "lower_layers",
    "macs_of",
    "multiplied",
    "skeleton",
    "slow_kernel",
    "tensor_bytes",
    "too_large",
    "work_of",
]


class Lowering(Protocol):
    """The contract of a target's lowering module."""

    def lower(self, network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
        """Lower a network as it runs under `setting` on `platform`."""
        ...

    def lower_layers(self, layers: Sequence[Layer], setting: Setting) -> list[Layer]:
        """Lower layers as drawn or typed."""
        ...


_answers: deque[tuple[Network, Setting, Platform, LoweredNetwork]] = deque(maxlen=NETWORKS_CACHED)
"""Last results of `lower`."""


def _lowering(setting: Setting, platform: Platform) -> Lowering:
    try:
        return cast(Lowering, target_of(platform.device, setting.framework).load("lowering"))
    except ResperfError as error:
        raise UnsupportedError(f"no lowering: {error}") from error


def lower(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    """Turn a network into the layers that the framework of `setting` runs.

    Parameters
    ----------
    network : Network
    setting : Setting
    platform : Platform
        Machine that the layers are for: usually a bundle's.

    The last results are kept, by the identity of the network.

    Raises
    ------
    UnsupportedError
        If the framework has no lowering, or cannot run the network.
    """
    for about, how, where, answer in _answers:
        if about is network and how == setting and where == platform:
            return answer
    lowered = _lowering(setting, platform).lower(network, setting, platform)
    _answers.append((network, setting, platform, lowered))
    return lowered


def lower_layers(layers: Sequence[Layer], setting: Setting, platform: Platform) -> list[Layer]:
    """Turn layers as drawn or typed into lowered layers of the same kinds, one for one."""
    return _lowering(setting, platform).lower_layers(layers, setting)
