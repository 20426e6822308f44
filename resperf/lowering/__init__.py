"""Lowering: from a network's operators to the layers that a framework really runs."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.lowering._base import LoweredNetwork, LoweredNode, Role
from resperf.lowering._proto import Skeleton, skeleton
from resperf.lowering._work import Work, tensor_bytes, work_of
from resperf.network import NETWORKS_KEPT, Network
from resperf.platform import Platform
from resperf.settings import Setting

__all__ = [
    "LOWERINGS",
    "LoweredNetwork",
    "LoweredNode",
    "Role",
    "Skeleton",
    "Work",
    "lower",
    "lower_layers",
    "skeleton",
    "tensor_bytes",
    "work_of",
]


class Lowering(Protocol):
    """What each framework's module offers."""

    def lower(
        self, network: Network, setting: Setting, platform: Platform, *, method: str = "auto"
    ) -> LoweredNetwork:
        """Lower a network as it runs under `setting` on `platform`."""
        ...

    def lower_layers(self, layers: Sequence[Layer], setting: Setting) -> list[Layer]:
        """Lower layers as drawn or typed."""
        ...


LOWERINGS: Mapping[str, str] = {
    "onnxruntime": "resperf.lowering.onnxruntime",
    "tensorflow": "resperf.lowering.tensorflow",
    "synthetic": "resperf.lowering.synthetic",
}


_answers: deque[tuple[Network, Setting, Platform, LoweredNetwork]] = deque(maxlen=NETWORKS_KEPT)
"""What `lower` was asked about last by ``auto``, and what it said."""


def _lowering(framework: str) -> Lowering:
    if framework not in LOWERINGS:
        raise UnsupportedError(
            f"no lowering for framework {framework!r}; known: {', '.join(LOWERINGS)}"
        )
    return cast(Lowering, importlib.import_module(LOWERINGS[framework]))


def lower(
    network: Network, setting: Setting, platform: Platform, *, method: str = "auto"
) -> LoweredNetwork:
    """Turn a network into the layers that the framework of `setting` runs.

    Parameters
    ----------
    network : Network
    setting : Setting
    platform : Platform
        Framework and machine that the layers are meant for: usually a bundle's.
    method : {"auto", "framework", "rules"}
        ``framework`` asks the installed framework, ``rules`` uses stored rules, ``auto`` asks the
        framework where it is the same version and lays images alike. What was answered last is
        kept, as long as the same objects are asked about.

    Raises
    ------
    UnsupportedError
        If the framework has no lowering, or `method` cannot be followed.
    """
    if method == "auto":
        for about, how, where, answer in _answers:
            if about is network and how is setting and where is platform:
                return answer
    lowered = _lowering(setting.framework).lower(network, setting, platform, method=method)
    if method == "auto":
        _answers.append((network, setting, platform, lowered))
    return lowered


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Turn layers as drawn or typed into lowered layers of the same kinds, one for one."""
    return _lowering(setting.framework).lower_layers(layers, setting)
