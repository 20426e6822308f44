"""Harvest: the lowered layers of reference networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from resperf.errors import CampaignError
from resperf.layers import Layer
from resperf.platform import Platform
from resperf.settings import Setting


def harvest(
    paths: Sequence[Path], setting: Setting, platform: Platform, batches: Sequence[int]
) -> list[Layer]:
    """Read networks and return the distinct layers that the framework runs for them.

    Parameters
    ----------
    paths : sequence of Path
        ONNX files; weights may be absent.
    setting : Setting
    platform : Platform
        Of the framework that lowers them.
    batches : sequence of int
        Batch sizes at which every network that allows them is lowered.

    Raises
    ------
    NetworkError, ShapeError, UnsupportedError
        If a file cannot be read or lowered.
    """
    from resperf.lowering import lower
    from resperf.network import networks_at

    layers: dict[str, Layer] = {}
    for path in paths:
        for network in networks_at(path, batches):
            lowered = lower(network, setting, platform)
            for node in lowered.nodes:
                if node.layer is not None:
                    layers.setdefault(node.layer.key, node.layer)
    return list(layers.values())


def shipped_networks(names: Sequence[str]) -> list[Path]:
    """Find reference networks by name; ``"*"`` stands for all of them.

    Raises
    ------
    CampaignError
        If a name is not among them.
    """
    from resperf.network import files

    shipped = files.shipped_networks()
    paths: dict[str, Path] = {}
    for name in names:
        if name != "*" and name not in shipped:
            raise CampaignError(
                f"no reference network {name!r}; known: {', '.join(sorted(shipped)) or 'none'}"
            )
        paths |= shipped if name == "*" else {name: shipped[name]}
    return list(paths.values())
