"""Clusters: alike or unlike nodes, their devices and what connects them, as TOML files.

A file has a table per kind of node and one per connection; what it leaves out is not known::

    [[node]]
    name = "worker"
    count = 4
    device = "v100"
    devices = 2
    cores = 32
    ram_bytes = 2.56e11

    [between]
    name = "25 Gbit/s Ethernet"
    latency_s = 3e-5
    bandwidth_bytes_per_s = 2.5e9
    devices_per_nic = 2

A table ``[exchange]`` may hold coefficients that were fitted to training steps on the cluster.
Sums over nodes are those of PredictDDL (section III-C, equations 1-2).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from resperf.devices import canonical_device, device_facts, known_facts, names_like
from resperf.devices.exchange import POOLED, Exchange, Exchanged, exchange_s
from resperf.devices.facts import plausible
from resperf.errors import ResperfError, did_you_mean
from resperf.limits import AT_LEAST_1, SHARE, Limited, limited, read_toml
from resperf.units import MS_PER_S

_FOLDER = Path(__file__).with_name("clusters")
_TABLES = ("name", "source", "node", "inside", "between", "exchange")
"""What a file may have at its top."""


@dataclass(frozen=True, kw_only=True)
class Link(Limited):
    """A connection over which devices sum their gradients.

    Attributes
    ----------
    name : str
        Such as ``"NVLink"``.
    latency_s : float
        Of an all-reduce over n devices, what does not grow with its bytes, divided by log2(n).
    bandwidth_bytes_per_s : float
        Of one network card between nodes, of one device inside a node; in one direction.
    devices_per_nic : int or None
        Devices of a node that share one network card.
    source : str
        Who measured or published it.
    """

    name: str
    latency_s: float = plausible(1e-8, 1.0, "s", MISSING)
    bandwidth_bytes_per_s: float = plausible(1e5, 1e13, "bytes/s", MISSING)
    devices_per_nic: int | None = limited(None, AT_LEAST_1)
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Node(Limited):
    """A server, or several alike ones. Unknown facts are None.

    Attributes
    ----------
    name : str
    count : int
        Alike servers.
    device : str or None
        Name of its accelerators in ``devices.toml``; None where the processor computes.
    devices : int
        Accelerators, or processes of training on a processor, of one server.
    sockets, cores : int or None
        Processors, and cores installed.
    cores_available : float or None
        Cores that programs may use (affinity, quota of a container); all without it.
    ram_bytes, ram_available_bytes : float or None
        Memory installed, and what programs can still get.
    gpu_memory_bytes : float or None
        Of one accelerator; by default that of its data sheet.
    flops_per_s : float or None
        Of one accelerator, or of the whole processor; by default the peak of the data sheet.
    disk_bytes_per_s : float or None
        Reading what is not cached.
    load : float or None
        Share of the processor that other programs use.
    """

    name: str
    count: int = limited(1, AT_LEAST_1)
    device: str | None = None
    devices: int = plausible(1, 1024, "devices", 1)
    sockets: int | None = plausible(1, 64, "sockets")
    cores: int | None = plausible(1, 8192, "cores")
    cores_available: float | None = plausible(0.01, 8192, "cores")
    ram_bytes: float | None = plausible(2**26, 2**50, "bytes")
    ram_available_bytes: float | None = plausible(0, 2**50, "bytes")
    gpu_memory_bytes: float | None = plausible(2**26, 2**43, "bytes")
    flops_per_s: float | None = plausible(1e8, 1e17, "FLOP/s")
    disk_bytes_per_s: float | None = plausible(1e4, 1e12, "bytes/s")
    load: float | None = limited(None, SHARE)

    def __post_init__(self) -> None:
        super().__post_init__()
        for part, whole in (("cores_available", "cores"), ("ram_available_bytes", "ram_bytes")):
            used, installed = getattr(self, part), getattr(self, whole)
            if used is not None and installed is not None and used > installed:
                raise ResperfError(f"{part}={used:g} is more than {whole}={installed:g}")
        if self.device is None:
            if self.gpu_memory_bytes is not None:
                raise ResperfError("gpu_memory_bytes is given without a device; name its GPU")
            return
        facts = device_facts(self.device)
        if facts is None:
            near = " or ".join(names_like(self.device))
            hint = f" (did you mean {near}?)" if near else ""
            raise ResperfError(
                f"device={self.device!r} is not known{hint}; resperf devices lists the names"
            )
        object.__setattr__(self, "device", canonical_device(self.device))
        if self.gpu_memory_bytes is None:
            object.__setattr__(self, "gpu_memory_bytes", facts.memory_bytes)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Facts that are not known, by name; those of GPUs where there are none apart."""
        names = [name for name, value in vars(self).items() if value is None and name != "device"]
        absent = ("gpu_memory_bytes",) * (self.device is None)
        has_peak = ("flops_per_s",) * (self.peak_flops_per_s() is not None)
        return tuple(name for name in names if name not in (*absent, *has_peak))

    def peak_flops_per_s(self, dtype: str = "float32") -> float | None:
        """Return the operations per second of one device for a type of values.

        As given; else by the data sheet, at the peak that frameworks use without being asked to.
        """
        if self.flops_per_s is not None or self.device is None:
            return self.flops_per_s
        peak = known_facts(self.device).peak_of(dtype)
        return peak if peak > 0 else None  # NaN if it is not published

    @property
    def available_share(self) -> float | None:
        """Share of the installed cores that can be had: equation 2 over the whole server.

        Servers of which nothing is said are idle: a planned cluster has all its cores.
        """
        if self.cores is None:
            return None
        cores = self.cores if self.cores_available is None else self.cores_available
        return cores * (1 - (self.load or 0.0)) / self.cores


@dataclass(frozen=True)
class Total:
    """A capability over all servers.

    Attributes
    ----------
    sum, minimum : float
        The minimum is what a synchronous step waits for.
    spread : float
        (maximum - minimum) / maximum.
    """

    sum: float
    minimum: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes and what connects them.

    Attributes
    ----------
    name : str
    nodes : tuple of Node
    inside, between : Link or None
        Between devices of one node, and between nodes; None if not known.
    exchange : Exchange
        Coefficients of training steps; by default those of other clusters.
    source : str

    Raises
    ------
    ResperfError
        If it has no nodes, or two of one name.
    """

    name: str
    nodes: tuple[Node, ...]
    inside: Link | None = None
    between: Link | None = None
    exchange: Exchange = POOLED
    source: str = ""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ResperfError("a cluster needs at least one [[node]]")
        names = [node.name for node in self.nodes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ResperfError(
                f"two nodes are called {', '.join(twice)}; alike ones are one with a count"
            )

    @property
    def servers(self) -> int:
        """Number of nodes, alike ones counted."""
        return sum(node.count for node in self.nodes)

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return sum(node.count * node.devices for node in self.nodes)

    @property
    def devices_per_node(self) -> int | None:
        """Devices of each node; None where nodes differ."""
        numbers = {node.devices for node in self.nodes}
        return numbers.pop() if len(numbers) == 1 else None

    def totals(self, dtype: str = "float32") -> Mapping[str, Total | None]:
        """Return each capability over all servers; None where one of them does not know it.

        A server's memory, disk and processor count by equations 1-2 of PredictDDL: capability /
        installed cores x available cores. Those of accelerators count in full.

        Parameters
        ----------
        dtype : str
            Of which operations are counted.
        """

        def per_core(value: float | None, node: Node) -> float | None:
            share = node.available_share
            return None if value is None or share is None else value * share

        def flops(node: Node) -> float | None:
            peak = node.peak_flops_per_s(dtype)
            if node.device is None:
                return per_core(peak, node)
            return None if peak is None else peak * node.devices

        of_server: Mapping[str, Callable[[Node], float | None]] = {
            "devices": lambda node: node.devices,
            "sockets": lambda node: node.sockets,
            "cores": lambda node: per_core(node.cores, node),
            "ram_bytes": lambda node: per_core(node.ram_bytes, node),
            "gpu_memory_bytes": lambda node: (
                None if node.gpu_memory_bytes is None else node.gpu_memory_bytes * node.devices
            ),
            "flops_per_s": flops,
            "disk_bytes_per_s": lambda node: per_core(node.disk_bytes_per_s, node),
        }
        return {name: _total(self.nodes, value) for name, value in of_server.items()}

    def placed(self, devices: int) -> tuple[int, int]:
        """Return the nodes that so many devices fill, and how many are on the fullest.

        Raises
        ------
        ResperfError
            If the cluster has fewer.
        """
        if devices > self.devices:
            raise ResperfError(
                f"{devices} devices are more than the {self.devices} of cluster {self.name}; name "
                "fewer, or add nodes to its file"
            )
        left, nodes, most = devices, 0, 0
        for node in self.nodes:
            used = min(node.count, -(-left // node.devices))
            if used:
                nodes, most = nodes + used, max(most, min(left, node.devices))
            left = max(left - used * node.devices, 0)
        return nodes, most

    def exchange_of(self, devices: int, size_bytes: float) -> Exchanged:
        """Return the time of summing gradients of the first so many devices.

        Raises
        ------
        ResperfError
            If there are fewer, or what connects them is not known.
        """
        nodes, per_node = self.placed(devices)
        for word, members in (("inside", per_node), ("between", nodes)):
            if members > 1 and getattr(self, word) is None:
                raise ResperfError(
                    f"cluster {self.name} does not say what connects {members} "
                    f"{'devices of a node' if word == 'inside' else 'nodes'}: add [{word}] with "
                    "latency_s and bandwidth_bytes_per_s to its file (resperf cluster --ray "
                    "--exchange -o FILE.toml measures between nodes)"
                )
        inside, between = (
            (0.0, math.inf) if link is None else (link.latency_s, link.bandwidth_bytes_per_s)
            for link in (self.inside, self.between)
        )
        sharing = None if self.between is None else self.between.devices_per_nic
        time_s = exchange_s(size_bytes, nodes, per_node, inside, between, self.exchange, sharing)
        most, beyond, exchange = self.exchange.most_devices, "", self.exchange
        if most is None:
            beyond = f"no steps on {self.name} were fitted, only on other clusters"
        elif devices > most:
            beyond, exchange = f"steps on at most {most} devices were fitted", exchange.beyond()
        how = f"an exchange over {nodes} node{'s' * (nodes > 1)} of {self.name}"
        return Exchanged((float(time_s) * MS_PER_S,) * 3, exchange, how, beyond)

    def to_toml(self) -> str:
        """Write what `read_cluster` reads."""
        lines = [f"{word} = {_value(getattr(self, word))}" for word in ("name", "source")]
        tables = [("[[node]]", node) for node in self.nodes]
        tables += [(f"[{word}]", link) for word in ("inside", "between", "exchange")
                   if (link := getattr(self, word)) not in (None, POOLED)]  # fmt: skip
        for title, table in tables:
            lines += ["", title, *_lines(table)]
        return "\n".join(lines) + "\n"


def _total(nodes: tuple[Node, ...], value: Callable[[Node], float | None]) -> Total | None:
    counted = [(number, node.count) for node in nodes if (number := value(node)) is not None]
    if len(counted) < len(nodes):
        return None
    numbers = [number for number, _ in counted]
    most, least = max(numbers), min(numbers)
    whole = sum(number * count for number, count in counted)
    return Total(whole, least, (most - least) / most if most else 0.0)


def _lines(table: Limited) -> Iterator[str]:
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if value is not None and value != field.default:
            yield f"{field.name} = {_value(value)}"


def _value(value: Any) -> str:
    """Write a string or number, which are alike in JSON and TOML but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_cluster(path: Path) -> Cluster:
    """Read a cluster from a TOML file.

    Raises
    ------
    ResperfError
        If it cannot be read, or a fact is missing, unknown or not plausible; names the key.
    """
    values = read_toml(path, ResperfError)
    try:
        if unknown := sorted(set(values) - set(_TABLES)):
            raise ResperfError(f"no {', '.join(unknown)} in a cluster: {', '.join(_TABLES)}")
        nodes = values.get("node", [])
        if not isinstance(nodes, list):
            raise ResperfError("write [[node]], with two brackets: there may be several")
        for word in ("name", "source"):
            if not isinstance(values.get(word, ""), str):
                raise ResperfError(f"{word}={values[word]!r} must be of type str")
        return Cluster(
            name=values.get("name") or path.stem,
            nodes=tuple(
                Node.from_table(node, f"node {number}", ("name",))
                for number, node in enumerate(nodes, 1)
            ),
            inside=_link(values, "inside"),
            between=_link(values, "between"),
            exchange=Exchange.from_table(values.get("exchange", {}), "exchange"),
            source=values.get("source", ""),
        )
    except ResperfError as error:
        raise ResperfError(f"{path}: {error}") from error


def _link(values: Mapping[str, Any], word: str) -> Link | None:
    return Link.from_table(values[word], word) if word in values else None


@cache
def named_clusters() -> Mapping[str, Cluster]:
    """Return the clusters that are shipped, by the names of their files."""
    return {path.stem: read_cluster(path) for path in sorted(_FOLDER.glob("*.toml"))}


def cluster_of(word: str) -> Cluster:
    """Return a cluster by the path of its file or by the name of a shipped one.

    Raises
    ------
    ResperfError
        If there is none, or the file is wrong.
    """
    if Path(word).is_file():
        return read_cluster(Path(word))
    if word in named_clusters():
        return named_clusters()[word]
    names = ", ".join(named_clusters()) or "none"
    raise ResperfError(
        f"no cluster {word!r}{did_you_mean(word, named_clusters())}: neither a file nor one of: "
        f"{names}"
    )
