"""Terms that cost time on some device, computed from the quantities of layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from resperf.layers.columns import Array

Term: TypeAlias = "Callable[[Mapping[str, Array]], Array]"

MB, GFLOP = 1e6, 1e9
CACHE_2, CACHE_3 = 1e6, 16e6
"""Bytes above which traffic costs more: rounded sizes of level 2 and 3 caches of common
processors. A fit combines them, so they need not be those of the machine."""


def mb(name: str, *where: str) -> Term:
    """Return MB of a quantity in rows where all flags are 1."""
    return lambda q: q[name] / MB * math.prod(q[flag] for flag in where)


def millions(name: str, *where: str) -> Term:
    """Return millions of a count in rows where all flags are 1."""
    return mb(name, *where)


def beyond(name: str, cache_bytes: float) -> Term:
    """Return MB of a quantity beyond the size of a cache."""
    return lambda q: (q[name] - cache_bytes).clip(0.0) / MB


def flag(name: str) -> Term:
    """Return a quantity of 0 or 1 unchanged."""
    return lambda q: q[name]


def constant(q: Mapping[str, Array]) -> Array:
    """Return 1 for every row."""
    import numpy as np

    return np.ones_like(q["in_bytes"])


def gflop(name: str, *where: str) -> Term:
    """Return GFLOP of a quantity in rows where all flags are 1."""
    return lambda q: q[name] / GFLOP * math.prod(q[flag] for flag in where)


TRAFFIC_TERMS: Mapping[str, Term] = {
    "constant": constant,
    "constant threads": flag("threaded"),
    "in": mb("in_bytes"),
    "in beyond cache 2": beyond("in_bytes", CACHE_2),
    "in beyond cache 3": beyond("in_bytes", CACHE_3),
    "out": mb("out_bytes"),
    "out beyond cache 2": beyond("out_bytes", CACHE_2),
    "out beyond cache 3": beyond("out_bytes", CACHE_3),
}
"""Terms of every kind that reads and writes."""
