"""Terms that cost time on some device: how each follows from the quantities of layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from resperf.layers.columns import Array

Term: TypeAlias = "Callable[[Mapping[str, Array]], Array]"

MB, GFLOP = 1e6, 1e9
CACHE_2, CACHE_3 = 1e6, 16e6
"""Bytes beyond which traffic gets dearer: rounded second and third level caches of common
processors. A fit blends them, so they need not be those of the machine."""


def mb(name: str, *where: str) -> Term:
    """Give MB of a quantity, where flags are 1."""
    return lambda q: q[name] / MB * math.prod(q[flag] for flag in where)


def millions(name: str, *where: str) -> Term:
    """Give millions of a count, where flags are 1."""
    return mb(name, *where)


def beyond(name: str, cache_bytes: float) -> Term:
    """Give MB of a quantity beyond a cache."""
    return lambda q: (q[name] - cache_bytes).clip(0.0) / MB


def flag(name: str) -> Term:
    """Give a quantity of 0 or 1 as it is."""
    return lambda q: q[name]


def constant(q: Mapping[str, Array]) -> Array:
    """Give 1 for every row."""
    import numpy as np

    return np.ones_like(q["in_bytes"])


def gflop(name: str, *where: str) -> Term:
    """Give GFLOP of a quantity, where flags are 1."""
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
