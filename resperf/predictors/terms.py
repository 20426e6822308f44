"""Physical terms that a baseline may use: one named table per layer kind.

Every term is a quantity that costs time on some device, in MB or GFLOP, never negative. A fit gives
each a coefficient of at least zero, in ms per unit, and most get zero: the table holds what helps
on some framework or device, and the data decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from resperf.errors import TrainingError
from resperf.features import Array, Columns, quantities
from resperf.layers import ACTIVATIONS, OPTIMIZERS

Term = Callable[[Mapping[str, Array]], Array]

_MB, _GFLOP = 1e6, 1e9
# Bytes of second and third level caches beyond which traffic gets dearer: rounded values of common
# processors. A fit blends them, so they need not be those of the machine.
_CACHE_2, _CACHE_3 = 1e6, 16e6


def _mb(name: str) -> Term:
    return lambda q: q[name] / _MB


def _gflop(name: str, where: str = "") -> Term:
    if not where:
        return lambda q: q[name] / _GFLOP
    return lambda q: q[name] / _GFLOP * q[where]


def _beyond(name: str, cache_bytes: float) -> Term:
    return lambda q: np.maximum(q[name] - cache_bytes, 0.0) / _MB


def _one(q: Mapping[str, Array]) -> Array:
    return np.ones_like(q["in_bytes"])


def _costly(choices: tuple[str, ...]) -> Term:
    """Output bytes under one of these activations."""
    return lambda q: q["out_bytes"] / _MB * sum(q[f"activation={name}"] for name in choices)


def _unstrided(q: Mapping[str, Array], taps: int) -> Array:
    """1 where a window of this many taps moves by one pixel: kernels have special code for it."""
    return np.asarray((q["taps"] == taps) & (q["strided"] == 0), dtype=float)


_ACTIVATION_TERMS: Mapping[str, Term] = {
    "out relu": _costly(("relu", "leaky_relu", "clip")),
    "out exponential": _costly(("tanh", "sigmoid", "softplus", "elu", "gelu", "silu")),
    "out tanh": _costly(("tanh",)),
    "out hard": _costly(("hard_sigmoid", "hard_swish")),
}

_CONV: Mapping[str, Term] = {
    "constant": _one,
    "in": _mb("in_bytes"),
    "in not direct": lambda q: q["in_bytes"] / _MB * (1 - q["direct"]),
    "in strided": lambda q: q["in_bytes"] / _MB * q["strided"],
    "in odd padding": lambda q: q["in_bytes"] / _MB * q["pad_odd"],
    "in beyond cache 2": _beyond("in_bytes", _CACHE_2),
    "in beyond cache 3": _beyond("in_bytes", _CACHE_3),
    "out": _mb("out_bytes"),
    "out not direct": lambda q: q["out_bytes"] / _MB * (1 - q["direct"]),
    "out bias": lambda q: q["out_bytes"] / _MB * q["bias"],
    "out beyond cache 2": _beyond("out_bytes", _CACHE_2),
    "out beyond cache 3": _beyond("out_bytes", _CACHE_3),
    "residual": _mb("residual_bytes"),
    "weights": _mb("weight_bytes"),
    "weights direct": lambda q: q["weight_bytes"] / _MB * q["direct"],
    "weights not direct": lambda q: q["weight_bytes"] / _MB * (1 - q["direct"]),
    "in not bare": lambda q: q["in_bytes"] / _MB * (1 - q["direct_bare"]),
    "out not bare": lambda q: q["out_bytes"] / _MB * (1 - q["direct_bare"]),
    "weights bare": lambda q: q["weight_bytes"] / _MB * q["direct_bare"],
    "weights not bare": lambda q: q["weight_bytes"] / _MB * (1 - q["direct_bare"]),
    "weights beyond cache 2": _beyond("weight_bytes", _CACHE_2),
    "weights beyond cache 3": _beyond("weight_bytes", _CACHE_3),
    "weights per image": lambda q: q["weight_bytes"] / _MB * q["batch"],
    "weights per image, plain": lambda q: q["weight_bytes"] / _MB * q["batch"] * q["plain"],
    "flops": _gflop("flops"),
    "flops plain": _gflop("flops", "plain"),
    "flops real": _gflop("flops_real", "blocked"),
    "flops real in columns": _gflop("flops_columns", "blocked"),
    "flops real in blocks": _gflop("flops_block", "blocked"),
    "flops real pointwise": _gflop("flops_real", "pointwise"),
    "flops real strided": _gflop("flops_real", "strided"),
    "flops real shallow": _gflop("flops_real", "shallow"),
    "flops real depthwise": _gflop("flops_real", "depthwise"),
    "flops grouped": _gflop("flops", "grouped"),
    "flops at edges": _gflop("flops_real", "edge_share"),
    "flops dilated": _gflop("flops_real", "dilated"),
    "products plain": lambda q: q["products"] / 1e6 * q["plain"],
    "im2col plain": lambda q: q["im2col_bytes"] / _MB * q["plain"],
    "out plain": lambda q: q["out_bytes"] / _MB * q["plain"],
    "in plain": lambda q: q["in_bytes"] / _MB * q["plain"],
    "constant plain": lambda q: q["plain"],
    "flops in tiles": _gflop("flops_tile"),
    "flops in tiles 3x3": lambda q: q["flops_tile"] / _GFLOP * _unstrided(q, 9),
    "flops in tiles 5x5": lambda q: q["flops_tile"] / _GFLOP * _unstrided(q, 25),
    "flops in tiles pointwise": _gflop("flops_tile", "pointwise"),
    "flops in tiles strided": _gflop("flops_tile", "strided"),
    "flops in deep tiles": _gflop("flops_tile_k"),
    "im2col": _mb("im2col_bytes"),
    "rows": lambda q: q["units"] / 1e6,
    "constant threads": lambda q: q["threaded"],
    **_ACTIVATION_TERMS,
}  # fmt: skip

_POOL: Mapping[str, Term] = {
    "constant": _one,
    "in": _mb("in_bytes"),
    "in really read": _mb("read_bytes"),
    "in strided": lambda q: q["in_bytes"] / _MB * q["strided"],
    "in beyond cache 2": _beyond("in_bytes", _CACHE_2),
    "in beyond cache 3": _beyond("in_bytes", _CACHE_3),
    "in whole image": lambda q: q["in_bytes"] / _MB * q["whole_image"],
    "out": _mb("out_bytes"),
    "out beyond cache 2": _beyond("out_bytes", _CACHE_2),
    "out beyond cache 3": _beyond("out_bytes", _CACHE_3),
    "window": _gflop("flops"),
    "window real": _gflop("flops_real"),
    "window maximum": _gflop("flops_real", "maximum"),
    "window plain": _gflop("flops_real", "plain"),
    "window plain maximum": lambda q: q["flops_real"] / _GFLOP * q["plain"] * q["maximum"],
    "window strided": _gflop("flops_real", "strided"),
    "window plain strided": lambda q: q["flops_real"] / _GFLOP * q["plain"] * q["strided"],
    "window at edges": _gflop("flops_real", "edge_share"),
    "window ceil": _gflop("flops_real", "ceil"),
    "planes": lambda q: q["planes"] / 1e6,
    "rows": lambda q: q["row_count"] / 1e6,
    "rows plain": lambda q: q["row_count"] / 1e6 * q["plain"],
    "out plain": lambda q: q["out_bytes"] / _MB * q["plain"],
    "in plain": lambda q: q["in_bytes"] / _MB * q["plain"],
    "constant plain": lambda q: q["plain"],
}

_DENSE: Mapping[str, Term] = {
    "constant": _one,
    "in": _mb("in_bytes"),
    "out": _mb("out_bytes"),
    "weights": _mb("weight_bytes"),
    "weights one row": lambda q: q["weight_bytes"] / _MB * q["vector"],
    "weights beyond cache 2": _beyond("weight_bytes", _CACHE_2),
    "weights beyond cache 3": _beyond("weight_bytes", _CACHE_3),
    "flops": _gflop("flops"),
    "flops one row": _gflop("flops", "vector"),
    "flops few rows": _gflop("flops", "few_rows"),
    "constant threads": lambda q: q["threaded"],
    "flops in tiles": _gflop("flops_tile"),
    "flops in large tiles": _gflop("flops_tile_gpu"),
    "flops narrow": _gflop("flops", "narrow"),
    **_ACTIVATION_TERMS,
}

_ACTIVATION: Mapping[str, Term] = {
    "constant": _one,
    "in": _mb("in_bytes"),
    "in beyond cache 2": _beyond("in_bytes", _CACHE_2),
    "in beyond cache 3": _beyond("in_bytes", _CACHE_3),
    "out": _mb("out_bytes"),
    "constant threads": lambda q: q["threaded"],
    **_ACTIVATION_TERMS,
}

_REORDER: Mapping[str, Term] = {
    "constant": _one,
    "in": _mb("in_bytes"),
    "padded": _mb("padded_bytes"),
    "in beyond cache 2": _beyond("in_bytes", _CACHE_2),
    "in beyond cache 3": _beyond("in_bytes", _CACHE_3),
    "padded beyond cache 2": _beyond("padded_bytes", _CACHE_2),
    "padded beyond cache 3": _beyond("padded_bytes", _CACHE_3),
    "padded to blocked": lambda q: q["padded_bytes"] / _MB * q["to_blocked"],
    "in from blocked": lambda q: q["in_bytes"] / _MB * q["from_blocked"],
    "constant to blocked": lambda q: q["to_blocked"],
    "planes": lambda q: q["planes"] / 1e6,
    "planes to blocked": lambda q: q["planes"] / 1e6 * q["to_blocked"],
}


def _under(quantity: str, optimizer: str) -> Term:
    """Bytes that are updated by one optimizer."""
    return lambda q: q[quantity] / _MB * q[f"optimizer={optimizer}"]


def _flag(name: str) -> Term:
    return lambda q: q[name]


# Where the input of a measured step is a variable itself, it is updated like the weights.
_STEP: Mapping[str, Term] = {
    "gradient of input": _gflop("flops_data"),
    "gradient of weights": _gflop("flops_weights"),
    **{f"constant {name}": _flag(f"optimizer={name}") for name in OPTIMIZERS},
    **{f"weights {name}": _under("weight_bytes", name) for name in OPTIMIZERS},
    **{f"in {name}": _under("in_bytes", name) for name in OPTIMIZERS},
}

TERMS: Mapping[str, Mapping[str, Term]] = {
    "conv": _CONV, "pool": _POOL, "dense": _DENSE, "activation": _ACTIVATION,
    "reorder": _REORDER,
    "conv_step": {
        **_CONV, **_STEP,
        "gradient of input strided": _gflop("flops_data", "strided"),
        "gradient of weights strided": _gflop("flops_weights", "strided"),
    },
    "dense_step": {**_DENSE, **_STEP},
}  # fmt: skip
"""Kind -> name of a term -> how it follows from `resperf.features.quantities`."""


_SLOWEST_MS_PER_MB = 0.3
"""No memory is slower than 3 GB/s. Terms beyond a cache are small in many rows, so that without
this bound noise makes them huge where they are not."""


def largest_coefficients(kind: str) -> Array:
    """Return the upper bound of each coefficient in ms per unit, infinite where there is none."""
    bounds = [_SLOWEST_MS_PER_MB if "beyond cache" in name else np.inf for name in TERMS[kind]]
    return np.array(bounds)


def physical_terms(kind: str, columns: Columns, names: tuple[str, ...] | None = None) -> Array:
    """Return the terms of layers as a matrix of shape (rows, terms).

    Parameters
    ----------
    kind : str
        Layer kind.
    columns : mapping of str to array
        As `resperf.features.columns_of` returns them.
    names : tuple of str, optional
        Which terms; all of the kind's unless given.

    Raises
    ------
    TrainingError
        If no terms are defined for the kind, or there is no term of a given name.
    """
    table = TERMS.get(kind, {})
    chosen = tuple(table) if names is None else names
    unknown = [name for name in chosen if name not in table]
    if unknown or not chosen:
        raise TrainingError(f"no physical terms {', '.join(unknown)} for kind {kind!r}")
    known = dict(quantities(kind, columns))
    for field, choices in (("activation", ACTIVATIONS), ("optimizer", OPTIMIZERS)):
        if field in columns:
            values = np.asarray(columns[field])
            known |= {f"{field}={name}": (values == name).astype(float) for name in choices}
    return np.stack([np.asarray(table[name](known), dtype=float) for name in chosen], axis=1)
