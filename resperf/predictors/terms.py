"""Physical terms that a baseline may use: one named table per layer kind.

Every term is a quantity that costs time on some device, in MB or GFLOP, never negative. A fit gives
each a coefficient of at least zero, in ms per unit, and most get zero: the table holds what helps
on some framework or device, and the data decide.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from resperf.errors import TrainingError
from resperf.features import Array, Columns, quantities
from resperf.layers import ACTIVATIONS, KINDS, OPTIMIZERS
from resperf.layers.terms import (
    CACHE_2,
    CACHE_3,
    GFLOP,
    MB,
    Term,
    beyond,
    constant,
    flag,
    gflop,
    mb,
    millions,
)


def _costly(choices: tuple[str, ...]) -> Term:
    """Output bytes under one of these activations."""
    return lambda q: q["out_bytes"] / MB * sum(q[f"activation={name}"] for name in choices)


def _unstrided(q: Mapping[str, Array], taps: int) -> Array:
    """1 where a window of this many taps moves by one pixel: kernels have special code for it."""
    return np.asarray((q["taps"] == taps) & (q["strided"] == 0), dtype=float)


_ACTIVATION_TERMS: Mapping[str, Term] = {
    "out relu": _costly(("relu", "leaky_relu", "clip", "thresholded_relu")),
    "out exponential": _costly(
        ("tanh", "sigmoid", "softplus", "elu", "gelu", "gelu_tanh", "silu", "selu", "celu")
    ),
    "out tanh": _costly(("tanh",)),
    "out hard": _costly(("hard_sigmoid", "hard_swish", "softsign")),
}

_CONV: Mapping[str, Term] = {
    "constant": constant,
    "in": mb("in_bytes"),
    "in not direct": lambda q: q["in_bytes"] / MB * (1 - q["direct"]),
    "in strided": mb("in_bytes", "strided"),
    "in odd padding": mb("in_bytes", "pad_odd"),
    "in beyond cache 2": beyond("in_bytes", CACHE_2),
    "in beyond cache 3": beyond("in_bytes", CACHE_3),
    "out": mb("out_bytes"),
    "out not direct": lambda q: q["out_bytes"] / MB * (1 - q["direct"]),
    "out bias": mb("out_bytes", "bias"),
    "out beyond cache 2": beyond("out_bytes", CACHE_2),
    "out beyond cache 3": beyond("out_bytes", CACHE_3),
    "residual": mb("residual_bytes"),
    "weights": mb("weight_bytes"),
    "weights direct": mb("weight_bytes", "direct"),
    "weights not direct": lambda q: q["weight_bytes"] / MB * (1 - q["direct"]),
    "in not bare": lambda q: q["in_bytes"] / MB * (1 - q["direct_bare"]),
    "out not bare": lambda q: q["out_bytes"] / MB * (1 - q["direct_bare"]),
    "weights bare": mb("weight_bytes", "direct_bare"),
    "weights not bare": lambda q: q["weight_bytes"] / MB * (1 - q["direct_bare"]),
    "weights beyond cache 2": beyond("weight_bytes", CACHE_2),
    "weights beyond cache 3": beyond("weight_bytes", CACHE_3),
    "weights per image": mb("weight_bytes", "batch"),
    "weights per image, plain": lambda q: q["weight_bytes"] / MB * q["batch"] * q["plain"],
    "flops": gflop("flops"),
    "flops plain": gflop("flops", "plain"),
    "flops real": gflop("flops_real", "blocked"),
    "flops real in columns": gflop("flops_columns", "blocked"),
    "flops real in blocks": gflop("flops_block", "blocked"),
    "flops real pointwise": gflop("flops_real", "pointwise"),
    "flops real strided": gflop("flops_real", "strided"),
    "flops real shallow": gflop("flops_real", "shallow"),
    "flops real depthwise": gflop("flops_real", "depthwise"),
    "flops grouped": gflop("flops", "grouped"),
    "flops at edges": gflop("flops_real", "edge_share"),
    "flops dilated": gflop("flops_real", "dilated"),
    "products plain": millions("products", "plain"),
    "im2col plain": mb("im2col_bytes", "plain"),
    "out plain": mb("out_bytes", "plain"),
    "in plain": mb("in_bytes", "plain"),
    "constant plain": flag("plain"),
    "flops in tiles": gflop("flops_tile"),
    "flops in tiles 3x3": lambda q: q["flops_tile"] / GFLOP * _unstrided(q, 9),
    "flops in tiles 5x5": lambda q: q["flops_tile"] / GFLOP * _unstrided(q, 25),
    "flops in tiles pointwise": gflop("flops_tile", "pointwise"),
    "flops in tiles strided": gflop("flops_tile", "strided"),
    "flops in deep tiles": gflop("flops_tile_k"),
    "im2col": mb("im2col_bytes"),
    "rows": millions("units"),
    "constant threads": flag("threaded"),
    **_ACTIVATION_TERMS,
}  # fmt: skip

_POOL: Mapping[str, Term] = {
    "constant": constant,
    "in": mb("in_bytes"),
    "in really read": mb("read_bytes"),
    "in strided": mb("in_bytes", "strided"),
    "in beyond cache 2": beyond("in_bytes", CACHE_2),
    "in beyond cache 3": beyond("in_bytes", CACHE_3),
    "in whole image": mb("in_bytes", "whole_image"),
    "out": mb("out_bytes"),
    "out beyond cache 2": beyond("out_bytes", CACHE_2),
    "out beyond cache 3": beyond("out_bytes", CACHE_3),
    "window": gflop("flops"),
    "window real": gflop("flops_real"),
    "window maximum": gflop("flops_real", "maximum"),
    "window plain": gflop("flops_real", "plain"),
    "window plain maximum": lambda q: q["flops_real"] / GFLOP * q["plain"] * q["maximum"],
    "window strided": gflop("flops_real", "strided"),
    "window plain strided": lambda q: q["flops_real"] / GFLOP * q["plain"] * q["strided"],
    "window at edges": gflop("flops_real", "edge_share"),
    "window ceil": gflop("flops_real", "ceil"),
    # ONNX Runtime has no fast kernel for means over windows that are partly beyond the padding.
    "window ceil counted plain": lambda q: (
        q["flops_real"] / GFLOP * q["ceil"] * q["counts_pad"] * q["plain"]
    ),
    "planes": millions("planes"),
    "rows": millions("row_count"),
    "rows plain": millions("row_count", "plain"),
    "out plain": mb("out_bytes", "plain"),
    "in plain": mb("in_bytes", "plain"),
    "constant plain": flag("plain"),
}

_DENSE: Mapping[str, Term] = {
    "constant": constant,
    "in": mb("in_bytes"),
    "out": mb("out_bytes"),
    "weights": mb("weight_bytes"),
    "weights one row": mb("weight_bytes", "vector"),
    "weights beyond cache 2": beyond("weight_bytes", CACHE_2),
    "weights beyond cache 3": beyond("weight_bytes", CACHE_3),
    "flops": gflop("flops"),
    "flops one row": gflop("flops", "vector"),
    "flops few rows": gflop("flops", "few_rows"),
    "constant threads": flag("threaded"),
    "flops in tiles": gflop("flops_tile"),
    "flops in large tiles": gflop("flops_tile_gpu"),
    "flops narrow": gflop("flops", "narrow"),
    **_ACTIVATION_TERMS,
}

_ACTIVATION: Mapping[str, Term] = {
    "constant": constant,
    "in": mb("in_bytes"),
    "in beyond cache 2": beyond("in_bytes", CACHE_2),
    "in beyond cache 3": beyond("in_bytes", CACHE_3),
    "out": mb("out_bytes"),
    "constant threads": flag("threaded"),
    **_ACTIVATION_TERMS,
}

_REORDER: Mapping[str, Term] = {
    "constant": constant,
    "in": mb("in_bytes"),
    "padded": mb("padded_bytes"),
    "in beyond cache 2": beyond("in_bytes", CACHE_2),
    "in beyond cache 3": beyond("in_bytes", CACHE_3),
    "padded beyond cache 2": beyond("padded_bytes", CACHE_2),
    "padded beyond cache 3": beyond("padded_bytes", CACHE_3),
    "padded to blocked": mb("padded_bytes", "to_blocked"),
    "in from blocked": mb("in_bytes", "from_blocked"),
    "constant to blocked": flag("to_blocked"),
    "planes": millions("planes"),
    "planes to blocked": millions("planes", "to_blocked"),
}


def _under(quantity: str, optimizer: str) -> Term:
    """Bytes that are updated by one optimizer."""
    return lambda q: q[quantity] / MB * q[f"optimizer={optimizer}"]


# Where the input of a measured step is a variable itself, it is updated like the weights.
_STEP: Mapping[str, Term] = {
    "gradient of input": gflop("flops_data"),
    "gradient of weights": gflop("flops_weights"),
    **{f"constant {name}": flag(f"optimizer={name}") for name in OPTIMIZERS},
    **{f"weights {name}": _under("weight_bytes", name) for name in OPTIMIZERS},
    **{f"in {name}": _under("in_bytes", name) for name in OPTIMIZERS},
}

TERMS: Mapping[str, Mapping[str, Term]] = {
    "conv": _CONV, "pool": _POOL, "dense": _DENSE, "activation": _ACTIVATION,
    "reorder": _REORDER,
    "conv_step": {
        **_CONV, **_STEP,
        "gradient of input strided": gflop("flops_data", "strided"),
        "gradient of weights strided": gflop("flops_weights", "strided"),
    },
    "dense_step": {**_DENSE, **_STEP},
    **{kind: cls.TERMS for kind, cls in KINDS.items() if hasattr(cls, "TERMS")},
}  # fmt: skip
"""Kind -> name of a term -> how it follows from `resperf.features.quantities`."""


FACTORED: Mapping[str, str] = {
    kind: field
    for kind, cls in KINDS.items()
    if (field := (*cls.ENCODED, "")[0] if cls.FUNCTION is None else cls.FUNCTION)
}
"""Kind -> the field whose choices make one and the same work take more or less time."""

_GROWING = frozenset({"constant scattered"})
"""Names of terms that are no constants, though they sound so: stored bundles have them."""

_SLOWEST_MS_PER_MB = 0.3
"""No memory is slower than 3 GB/s. Terms beyond a cache are small in many rows, so that without
this bound noise makes them huge where they are not."""


def largest_coefficients(kind: str) -> Array:
    """Return the upper bound of each coefficient in ms per unit, infinite where there is none."""
    bounds = [_SLOWEST_MS_PER_MB if "beyond cache" in name else np.inf for name in TERMS[kind]]
    return np.array(bounds)


def constant_terms(names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Say which terms do not grow with the layer, as an array of bool."""
    return np.array([name.startswith("constant") and name not in _GROWING for name in names])


def choices_of(kind: str, columns: Columns) -> Array | None:
    """Return each layer's choice that a baseline has factors for, such as its function.

    None for kinds that have no such field.
    """
    field = FACTORED.get(kind)
    return None if field is None else np.asarray(columns[field]).astype(str)


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
