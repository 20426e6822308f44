"""What terms are made of: quantities of layers in MB, GFLOP or millions, where flags are 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from resperf.layers.columns import Array

Term: TypeAlias = "Callable[[Mapping[str, Array]], Array]"
Table: TypeAlias = "Mapping[str, Mapping[str, Term]]"
"""Kind -> name of a term -> its function of the kind's quantities."""

MB, GFLOP = 1e6, 1e9


def mb(name: str, *where: str) -> Term:
    """Return MB of a quantity in rows where all flags are 1."""
    return lambda q: q[name] / MB * math.prod(q[flag] for flag in where)


millions = mb
"""Return millions of a count in rows where all flags are 1."""


def gflop(name: str, *where: str) -> Term:
    """Return GFLOP of a quantity in rows where all flags are 1."""
    return lambda q: q[name] / GFLOP * math.prod(q[flag] for flag in where)


def flag(name: str) -> Term:
    """Return a quantity of 0 or 1 unchanged."""
    return lambda q: q[name]


def constant(q: Mapping[str, Array]) -> Array:
    """Return 1 for every row."""
    import numpy as np

    return np.ones_like(q["in_bytes"])


def counts(*names: str, **others: str) -> dict[str, Term]:
    """Return a term for each count, of the same name or as ``NAME=quantity``."""
    quantities = {name: name for name in names} | others
    return {name: millions(quantity) for name, quantity in quantities.items()}


def split(label: str, term_of: Callable[..., Term], quantity: str, *flags: str) -> dict[str, Term]:
    """Return the term ``LABEL FLAG`` for each flag: the quantity in rows where it is 1.

    A flag may be of the form ``field=choice``; the name then has only the choice.
    """
    return {f"{label} {name.rpartition('=')[2]}": term_of(quantity, name) for name in flags}


def beyond(label: str, quantity: str, sizes_bytes: Mapping[str, float]) -> dict[str, Term]:
    """Return the term ``LABEL beyond CACHE`` for each cache: MB of a quantity beyond its size."""

    def term(size_bytes: float) -> Term:
        return lambda q: (q[quantity] - size_bytes).clip(0.0) / MB

    return {f"{label} beyond {cache}": term(size) for cache, size in sizes_bytes.items()}
