"""How long a training step takes on several devices: one device's step and the exchange.

The exchange sums gradients in rings, inside each node and between nodes, while the backward pass
goes on. Equations are those of Pollux (Qiao et al. 2021, section 3.2), T = (Tg^g + Ts^g)^(1/g),
with Ts by the bytes and what connects the devices instead of per network, so that they hold for
networks that nobody measured. ``clusters/*.toml`` hold coefficients that
`resperf.predictors.exchange_fit` fitted to published steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from resperf.limits import AT_LEAST_1, FIRST_SHARE, NOT_NEGATIVE, Limited, limited
from resperf.units import MS_PER_S

GRADIENT_BYTES = 4
"""Of a weight: gradients are float32, also under autocast."""
BUCKET_BYTES = 25 << 20
"""What PyTorch's DistributedDataParallel sums at once (``bucket_cap_mb``)."""

_WIDER, _LEAST_WIDE = 2, 0.2
"""How much wider intervals are, in logarithms, and how wide at least, beyond the devices that were
fitted: fits to 8 devices of eight clusters were 2 to 16% off beyond."""


@dataclass(frozen=True, kw_only=True)
class Exchange(Limited):
    """What a step costs on several devices beside the latencies and bandwidths of their links.

    Defaults are pooled over the clusters that ship, each of which counts alike; their interval is
    that of clusters left out (tools/benchmarks/distributed.py --clusters).

    Attributes
    ----------
    slowdown : float
        One device's step in a group over that alone: the input and the host are shared.
    overlap : float
        Exponent g; 1 if nothing of the exchange is hidden, large if the longer part hides all of
        the other.
    contention : float
        Devices of a node share its network card: the bytes between nodes take m^contention times
        as long with m devices on each.
    contention_of_two : float
        The same between two nodes, whose ring goes to and fro on one connection.
    host_s : float
        Of the host for each step, whatever its gradients, in seconds.
    low, high : float
        90% of measured steps of networks that were not fitted took so many times the prediction.
    most_devices : int or None
        Largest group that was fitted; None if these coefficients are those of other clusters.
    """

    slowdown: float = limited(1.038, AT_LEAST_1)
    overlap: float = limited(1.57, AT_LEAST_1)
    contention: float = limited(0.1, NOT_NEGATIVE)
    contention_of_two: float = limited(0.19, NOT_NEGATIVE)
    host_s: float = limited(1e-3, NOT_NEGATIVE)
    low: float = limited(0.7, FIRST_SHARE)
    high: float = limited(1.8, AT_LEAST_1)
    most_devices: int | None = limited(None, AT_LEAST_1)

    def beyond(self) -> Exchange:
        """Return the coefficients with the interval of more devices than were fitted."""
        low, high = (self.low**_WIDER, self.high**_WIDER)
        return replace(self, low=min(low, 1 - _LEAST_WIDE), high=max(high, 1 + _LEAST_WIDE))

    def step_s(self, alone_s: Any, sums_s: Any) -> Any:
        """Return the step of a group, in seconds, from that of one device and the exchange."""
        alone, sums = self.slowdown * alone_s, self.host_s + sums_s
        # Divided by the larger, since high powers of small times underflow.
        larger = np.maximum(alone, sums)
        powers = (alone / larger) ** self.overlap + (sums / larger) ** self.overlap
        return larger * powers ** (1 / self.overlap)

    def step_ms(
        self, alone_ms: tuple[float, float, float], sums_ms: tuple[float, float, float]
    ) -> tuple[float, float, float]:
        """Return the step of a group in ms: its value, and the ends of its 90% interval.

        Parameters
        ----------
        alone_ms, sums_ms : tuple of float
            One device's step, and the exchange without what it overlaps: value, low and high.
        """

        def step_ms(alone: int, sums: int) -> float:
            return (
                float(self.step_s(alone_ms[alone] / MS_PER_S, sums_ms[sums] / MS_PER_S)) * MS_PER_S
            )

        value = step_ms(0, 0)
        # Errors of the parts have nothing to do with each other: the squares of their logarithms
        # are added.
        low, high = (
            value * math.exp(sign * math.hypot(*map(math.log, ratios)))
            for sign, ratios in (
                (-1, (value / step_ms(1, 0), value / step_ms(0, 1), 1 / self.low)),
                (1, (step_ms(2, 0) / value, step_ms(0, 2) / value, self.high)),
            )
        )
        return value, low, high


POOLED = Exchange()


class Exchanged(NamedTuple):
    """The exchange of gradients over some devices.

    Attributes
    ----------
    sums_ms : tuple of float
        Time of the sums alone, with the ends of its 90% interval.
    exchange : Exchange
    how : str
        What it was composed of.
    beyond : str
        Why it is extrapolated; empty if it is not.
    """

    sums_ms: tuple[float, float, float]
    exchange: Exchange
    how: str
    beyond: str


def ring_s(
    size_bytes: Any, members: Any, latency_s: float, bandwidth_bytes_per_s: float, share: Any = 1.0
) -> Any:
    """Return the time of summing gradients over the members of a ring, in seconds; 0 for one.

    Each sends 2 (n - 1) / n of the bytes. Every bucket has the latency of its own.

    Parameters
    ----------
    size_bytes, members : float, or arrays of shape (rows,)
    latency_s : float
        Of one all-reduce, divided by log2(members).
    bandwidth_bytes_per_s : float
    share : float or array of shape (rows,)
        How many times as long the bytes take because others use the connection.
    """
    buckets = np.maximum(np.ceil(size_bytes / BUCKET_BYTES), 1)
    sent = 2 * (members - 1) / members * size_bytes / bandwidth_bytes_per_s
    return sent * share + buckets * latency_s * np.log2(members)


def exchange_s(
    size_bytes: Any, nodes: Any, per_node: Any, inside: tuple[float, float],
    between: tuple[float, float], exchange: Exchange, sharing: Any = None,
) -> Any:  # fmt: skip
    """Return the time of summing gradients inside nodes, and then between them, in seconds.

    Parameters
    ----------
    size_bytes : float, or array of shape (rows,)
    nodes, per_node : int, or arrays of shape (rows,)
        Nodes that take part, and devices of each.
    inside, between : tuple of float
        Latency in seconds and bandwidth in bytes per second.
    exchange : Exchange
    sharing : int, optional
        Devices that share a network card; all of a node by default.
    """
    exponent = np.where(np.equal(nodes, 2), exchange.contention_of_two, exchange.contention)
    shared = per_node if sharing is None else np.minimum(per_node, sharing)
    return ring_s(size_bytes, per_node, *inside) + ring_s(
        size_bytes, nodes, *between, np.power(np.asarray(shared, float), exponent)
    )
