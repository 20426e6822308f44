"""The networks of a campaign: where their files come from, how each is run, and their layers."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from resperf.campaign.spec import NetworkSpec
from resperf.errors import CampaignError, ResperfError
from resperf.layers import Layer
from resperf.measurement import NetworkRef
from resperf.platform import Platform
from resperf.settings import PLAIN_PRECISIONS, Setting


@dataclass(frozen=True)
class NetworkRun:
    """A network and how it is run.

    Attributes
    ----------
    network : NetworkRef
    path : Path
        Its file.
    setting : Setting
        That of its rows: the framework's, with the network's batch size and shapes.
    options : mapping
        Keywords of the backend that has this setting.
    macs : float
        Multiply-adds; 0 where unknown.
    least_bytes : float
        Inputs, outputs and weights, which memory must hold at least; 0 where unknown.
    """

    network: NetworkRef
    path: Path
    setting: Setting
    options: Mapping[str, Any] = field(default_factory=dict)
    macs: float = 0.0
    least_bytes: float = 0.0


def network_sources(spec: NetworkSpec) -> list[Path]:
    """Find the files of a campaign's networks, each once.

    Raises
    ------
    CampaignError
        If a pattern fits no file.
    NetworkError
        If a folder holds no network.
    """
    from resperf.network.files import network_files

    files: list[Path] = []
    for pattern in spec.files:
        # Path.glob takes no absolute pattern.
        paths = sorted(glob.glob(str(spec.folder / pattern), recursive=True))  # noqa: PTH207
        if not paths:
            raise CampaignError(
                f"networks: no file fits {pattern!r}; patterns are relative to "
                f"{spec.folder.resolve()}"
            )
        files += [path.resolve() for path in network_files(list(map(Path, paths)))]
    return list(dict.fromkeys(files))


def plan_networks(
    spec: NetworkSpec, settings: Sequence[tuple[Mapping[str, Any], Setting]], *, seed: int = 0
) -> tuple[list[NetworkRun], dict[str, bytes], list[str]]:
    """Plan the runs of all networks at all batch sizes under all settings.

    Parameters
    ----------
    spec : NetworkSpec
    settings : sequence of (mapping, Setting)
        Keywords of the backend, and the setting that it has with them.
    seed : int
        Of the networks that are drawn.

    Returns
    -------
    runs : list of NetworkRun
        Setting by setting.
    contents : dict of str to bytes
        Digest -> graph without weights, or description.
    notes : list of str
        Files that were left out, and why.

    Raises
    ------
    CampaignError, NetworkError
        As `network_sources`, or if no file can be read.
    """
    from resperf.dataset import NetworkDescription, description_digest
    from resperf.network import graph_digest, weightless
    from resperf.splits import architecture_of

    contents: dict[str, bytes] = {}
    described: list[NetworkRun] = []
    notes: list[str] = []
    families = {path: spec.family_of(path.stem) for path in network_sources(spec)}
    for path, family in (families | drawn_networks(spec, seed)).items():
        try:
            graph = weightless(path)
        except ResperfError as error:
            notes.append(f"{path} is left out: {error}")
            continue
        network = NetworkRef(path.stem, graph_digest(graph))
        if family:
            content = NetworkDescription(path.stem, architecture_of(path.stem), family).to_bytes()
            network = replace(network, description=description_digest(content))
            contents[network.description] = content
        contents[network.digest] = graph
        described += [_described(network, path, batch, spec) for batch in spec.batches or (None,)]
    if not described:
        raise CampaignError(f"networks: none can be read: {'; '.join(notes)}")
    runs: dict[Any, NetworkRun] = {}
    for options, setting in settings:
        # Values are at most so many times smaller than in the file.
        smaller = 1 if setting.precision in PLAIN_PRECISIONS else 4
        for one in described:
            own = replace(setting, batch=one.setting.batch, shapes=one.setting.shapes)
            least_bytes = one.least_bytes / smaller
            runs[one.network.key, own] = replace(
                one, options=options, setting=own, least_bytes=least_bytes
            )
    return list(runs.values()), contents, notes


def drawn_networks(spec: NetworkSpec, seed: int) -> dict[Path, str]:
    """Write the networks that a campaign draws; return file -> family.

    They are the same on every machine, and the first of each family come first. The files last as
    long as this process.

    Raises
    ------
    CampaignError
        If a family is unknown, has no such size, or its sizes allow too few networks.
    """
    if not spec.drawn:
        return {}
    from resperf.campaign.families import draw_networks

    folder = Path(mkdtemp(dir=_folder().name))
    families: dict[Path, str] = {}
    counts: Counter[str] = Counter()
    for number, table in enumerate(spec.drawn):
        for family, content in draw_networks(table, f"{seed} {number}"):
            path = folder / f"{family}-{counts[family]:03}.onnx"
            path.write_bytes(content)
            families[path] = family
            counts[family] += 1
    return dict(sorted(families.items(), key=lambda item: item[0].stem.rpartition("-")[2]))


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="resperf-")


def _described(network: NetworkRef, path: Path, batch: int | None, spec: NetworkSpec) -> NetworkRun:
    """Describe a run under no setting yet; what cannot be read so will be a row that says so."""
    from resperf.lowering import work_of
    from resperf.network import read_network

    setting = Setting("", batch=batch, shapes=spec.shapes)
    try:
        read = read_network(path, batch=batch, shapes=spec.shapes or None)
    except ResperfError:
        return NetworkRun(network, path, setting)
    work = work_of(read, [node.name for node in read.nodes])
    macs, least_bytes = (value if value > 0 else 0.0 for value in work)
    return NetworkRun(
        network, path, replace(setting, batch=read.batch), macs=macs, least_bytes=least_bytes
    )


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
            for node in lower(network, setting, platform).nodes:
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
