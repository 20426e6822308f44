"""How long accelerators take to sum their gradients: measured all-reduces, as two figures each.

`collectives.toml` holds, for each topology and number of devices, a latency and a bandwidth fitted
to published times by `tools/benchmarks/fit_collectives.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from resperf.devices.exchange import POOLED, Exchanged
from resperf.errors import ResperfError
from resperf.limits import read_toml
from resperf.units import MS_PER_S, US_PER_MS

_TABLE = Path(__file__).with_name("collectives.toml")


@dataclass(frozen=True)
class AllReduce:
    """All-reduces over some devices of a topology.

    Attributes
    ----------
    devices, per_node : int
    latency_us : float
    bandwidth_gb_s : float
        Bytes that one device contributes over time, in 10^9 bytes per second, for many bytes.
    low, high : float
        90% of measured times are between so many times the fitted one, sizes that were not fitted.
    largest_bytes : float
    """

    devices: int
    per_node: int
    latency_us: float
    bandwidth_gb_s: float
    low: float
    high: float
    largest_bytes: float

    def ms(self, devices: int, size_bytes: float) -> tuple[float, float, float]:
        """Return the time for another number of devices, as a ring takes, and its interval.

        Each device sends 2 (n - 1) / n of the bytes, in as many steps as there are devices.
        """
        share = (2 * (devices - 1) / devices) / (2 * (self.devices - 1) / self.devices)
        latency_ms = self.latency_us / US_PER_MS * devices / self.devices
        time_ms = latency_ms + share * size_bytes / (self.bandwidth_gb_s * 1e9) * MS_PER_S
        return time_ms, self.low * time_ms, self.high * time_ms


@dataclass(frozen=True)
class Topology:
    """Devices that are connected in one way.

    Attributes
    ----------
    name, words : str
    device : str
        Name of the devices; empty if their data sheet is not known.
    source : str
    all_reduces : tuple of AllReduce
    """

    name: str
    words: str
    device: str
    source: str
    all_reduces: tuple[AllReduce, ...]

    def exchange_of(self, devices: int, size_bytes: float) -> Exchanged:
        """Return the time of summing gradients, and how a step overlaps it.

        Measured within one node where that was, else over the fewest nodes that were measured; for
        numbers that were not, from the nearest one.
        """
        exact = [row for row in self.all_reduces if row.devices == devices]
        nearest = max(
            exact or self.all_reduces, key=lambda row: (-abs(row.devices - devices), row.per_node)
        )
        nodes = -(-nearest.devices // nearest.per_node)
        where = f"{nearest.devices} in {nodes} node{'s' * (nodes > 1)}"
        how, beyond = f"all-reduce of {where}, {self.name}", []
        if not exact:
            beyond.append(f"all-reduces of {devices} devices were not measured: scaled as a ring")
        if size_bytes > nearest.largest_bytes:
            times = size_bytes / nearest.largest_bytes
            beyond.append(f"{times:.2g} times the largest all-reduce that was measured")
        sums = nearest.ms(devices, size_bytes)
        # How a step overlaps them is that of other clusters: all-reduces alone say nothing of it.
        return Exchanged(sums, POOLED, how, "; ".join(beyond))


@cache
def topologies() -> Mapping[str, Topology]:
    """Return the topologies whose all-reduces were measured, by name."""
    return {
        name: Topology(
            name,
            values["words"],
            values["device"],
            values["source"],
            tuple(AllReduce(**row) for row in values["all_reduce"]),
        )
        for name, values in read_toml(_TABLE, ResperfError).items()
    }


def topology_of(device: str) -> Topology | None:
    """Return the topology of a device; None if none was measured."""
    return next((topology for topology in topologies().values() if topology.device == device), None)
