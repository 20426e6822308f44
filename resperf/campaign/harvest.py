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
    """Read networks and return the layers that the framework runs for them, each once.

    Parameters
    ----------
    paths : sequence of Path
        ONNX files; weights may be absent.
    setting : Setting
    platform : Platform
        Names the framework that lowers them.
    batches : sequence of int
        Batch sizes at which every network is lowered, as far as it allows them.

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


def network_folders() -> list[Path]:
    """Folders that hold the shipped reference networks: of the repository, of the wheel."""
    package = Path(__file__).resolve().parent.parent
    return [package.parent / "models" / "networks", package / "data" / "models" / "networks"]


def shipped_networks(names: Sequence[str]) -> list[Path]:
    """Find reference networks by name; ``"*"`` stands for all of them.

    Raises
    ------
    CampaignError
        If a name is not among them.
    """
    shipped = {
        path.stem: path for folder in network_folders() for path in sorted(folder.glob("*.onnx"))
    }
    found: dict[str, Path] = {}
    for name in names:
        if name != "*" and name not in shipped:
            raise CampaignError(
                f"no reference network {name!r}; known: {', '.join(sorted(shipped)) or 'none'}"
            )
        found |= shipped if name == "*" else {name: shipped[name]}
    return list(found.values())
