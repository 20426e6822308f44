"""Terms of every class of devices, one table per kind: the work that its layers are.

Every term is a quantity that costs time on some device, in MB or GFLOP, never negative. A fit gives
each a coefficient of at least zero, in ms per unit; most are zero. What only one class of devices
has (caches, blocked layouts, idle multiprocessors) is in the table of that class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from resperf.errors import TrainingError
from resperf.features import Array, Columns, quantities
from resperf.layers import kind_of
from resperf.measurement import layer_kind, written_kind
from resperf.settings import OPTIMIZER, OPTIMIZERS
from resperf.targets import UNKNOWN, with_terms

Term: TypeAlias = "Callable[[Mapping[str, Array]], Array]"
Table: TypeAlias = "Mapping[str, Mapping[str, Term]]"
"""Kind -> name of a term -> its function of the kind's quantities."""

MB, GFLOP = 1e6, 1e9


def _in(unit: float, name: str, *where: str) -> Term:
    """Return a quantity, in such units, of rows where all flags are 1."""
    return lambda q: q[name] / unit * math.prod(q[flag] for flag in where)


mb = millions = partial(_in, MB)
gflop = partial(_in, GFLOP)
flag = itemgetter
"""Return a quantity of 0 or 1 unchanged."""


def constant(q: Mapping[str, Array]) -> Array:
    """Return 1 for every row."""
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
    return {f"{label} beyond {name}": _excess(quantity, size) for name, size in sizes_bytes.items()}


def _excess(quantity: str, size_bytes: float) -> Term:
    return lambda q: (q[quantity] - size_bytes).clip(0.0) / MB


def _activated(*functions: str) -> Term:
    """Output bytes of layers with one of these activations."""
    return lambda q: q["out_bytes"] / MB * sum(q[f"activation={name}"] for name in functions)


def _unstrided(q: Mapping[str, Array], taps: int) -> Array:
    """1 for windows of this many taps and stride 1, which have special kernels."""
    return np.asarray((q["taps"] == taps) & (q["strided"] == 0), dtype=float)


def _not(quantity: str, name: str) -> Term:
    """Return MB of a quantity in rows where a flag is 0."""
    return lambda q: q[quantity] / MB * (1 - q[name])


_TRAFFIC: Mapping[str, Term] = {"constant": constant, "in": mb("in_bytes"), "out": mb("out_bytes")}
"""Terms of every kind that reads and writes."""

_PLAIN: Mapping[str, Term] = {**_TRAFFIC, "flops": gflop("flops")}
"""Terms of a kind without a table."""
_WEIGHTED: Mapping[str, Term] = {**_PLAIN, "weights": mb("weight_bytes")}
_ALONG: Mapping[str, Term] = {
    **_TRAFFIC,
    **counts("rows"),
    "in apart": mb("in_bytes", "apart"),
    "constant apart": flag("apart"),
}
"""Terms of kinds that work along one axis, whose values may be apart in memory."""
_POOLED: Mapping[str, Term] = {
    **_TRAFFIC,
    **counts(taps="flops", windows="window_count"),
    "taps mean": millions("flops", "mean"),
    "in whole": mb("in_bytes", "whole"),
}

_ACTIVATIONS: Mapping[str, Term] = {
    "out relu": _activated("relu", "leaky_relu", "clip", "thresholded_relu"),
    "out exponential": _activated(
        "tanh", "sigmoid", "softplus", "elu", "gelu", "gelu_tanh", "silu", "selu", "celu"
    ),
    "out tanh": _activated("tanh"),
    "out hard": _activated("hard_sigmoid", "hard_swish", "softsign"),
}

_CONV: Mapping[str, Term] = {
    **_WEIGHTED,
    # A direct product needs no unfolded copy of its input; a bare one has nothing to add either.
    "in not direct": _not("in_bytes", "direct"),
    "in strided": mb("in_bytes", "strided"),
    "in odd padding": mb("in_bytes", "pad_odd"),
    "out not direct": _not("out_bytes", "direct"),
    "out bias": mb("out_bytes", "bias"),
    "residual": mb("residual_bytes"),
    "weights direct": mb("weight_bytes", "direct"),
    "weights not direct": _not("weight_bytes", "direct"),
    "in not bare": _not("in_bytes", "direct_bare"),
    "out not bare": _not("out_bytes", "direct_bare"),
    "weights bare": mb("weight_bytes", "direct_bare"),
    "weights not bare": _not("weight_bytes", "direct_bare"),
    "weights per image": mb("weight_bytes", "batch"),
    **split("flops real", gflop, "flops_real", "pointwise", "strided", "shallow", "depthwise"),
    "flops grouped": gflop("flops", "grouped"),
    "flops at edges": gflop("flops_real", "edge_share"),
    "flops dilated": gflop("flops_real", "dilated"),
    "flops in tiles": gflop("flops_tile"),
    "flops in tiles 3x3": lambda q: q["flops_tile"] / GFLOP * _unstrided(q, 9),
    "flops in tiles 5x5": lambda q: q["flops_tile"] / GFLOP * _unstrided(q, 25),
    **split("flops in tiles", gflop, "flops_tile", "pointwise", "strided"),
    "flops in deep tiles": gflop("flops_tile_k"),
    "im2col": mb("im2col_bytes"),
    "rows": millions("units"),
    **_ACTIVATIONS,
}

_DENSE: Mapping[str, Term] = {
    **_WEIGHTED,
    "weights one row": mb("weight_bytes", "vector"),
    "flops one row": gflop("flops", "vector"),
    "flops few rows": gflop("flops", "few_rows"),
    "flops in tiles": gflop("flops_tile"),
    "flops in large tiles": gflop("flops_tile_gpu"),
    "flops narrow": gflop("flops", "narrow"),
    **_ACTIVATIONS,
}

_OPTIMIZED = [f"optimizer={name}" for name in OPTIMIZERS]
# In steps that were measured with a variable as input, the input is updated like the weights.
_STEP: Mapping[str, Term] = {
    "gradient of input": gflop("flops_data"),
    "gradient of weights": gflop("flops_weights"),
    **{f"constant {name}": flag(f"optimizer={name}") for name in OPTIMIZERS},
    **split("weights", mb, "weight_bytes", *_OPTIMIZED),
    **split("in", mb, "in_bytes", *_OPTIMIZED),
}

_TRANSPOSED: Mapping[str, Term] = {
    **_WEIGHTED,
    "weights per image": mb("image_weight_bytes"),
    "flops grouped": gflop("flops", "grouped"),
    "columns": mb("columns_bytes"),
    **counts("products"),
}

_SAMPLED = ("mode=linear", "mode=nearest", "mode=cubic")
_CONCAT: Mapping[str, Term] = {**_TRAFFIC, **counts("parts", "pieces")}

WORK: Table = {
    "conv": _CONV,
    "pool": {
        **_TRAFFIC,
        "in really read": mb("read_bytes"),
        "in strided": mb("in_bytes", "strided"),
        "in whole image": mb("in_bytes", "whole_image"),
        "window": gflop("flops"),
        "window real": gflop("flops_real"),
        **split("window", gflop, "flops_real", "maximum", "strided", "ceil"),
        "window at edges": gflop("flops_real", "edge_share"),
        **counts("planes", rows="row_count"),
    },
    "dense": _DENSE,
    "activation": {**_TRAFFIC, **_ACTIVATIONS},
    "reorder": {
        "constant": constant,
        "in": mb("in_bytes"),
        "padded": mb("padded_bytes"),
        **counts("planes"),
    },
    "conv_step": {
        **_CONV,
        **_STEP,
        "gradient of input strided": gflop("flops_data", "strided"),
        "gradient of weights strided": gflop("flops_weights", "strided"),
    },
    "dense_step": {**_DENSE, **_STEP},
    "conv_transpose": _TRANSPOSED,
    "conv_transpose_nd": _TRANSPOSED,
    "conv_nd": {
        **_WEIGHTED,
        "weights per sample": mb("sample_weight_bytes"),
        **split("flops", gflop, "flops", "grouped", "depthwise"),
        "columns": mb("columns_bytes"),
        **counts("products"),
    },
    "elementwise": {
        **_TRAFFIC,
        "second": mb("second_bytes"),
        **split("out", mb, "out_bytes", "costly", "series", "pow", "repeated"),
        **split("in", mb, "in_bytes", "truth", "whole"),
        **counts("loops"),
        "values at ends": millions("ends"),
    },
    "matmul": {
        **_TRAFFIC,
        "second": mb("second_bytes"),
        "first transposed": mb("first_bytes", "transposed_first"),
        "second transposed": mb("second_bytes", "transposed"),
        "second by rows": mb("second_bytes", "plain"),
        "flops": gflop("flops"),
        "flops in tiles": gflop("flops_tile"),
        "flops shallow": lambda q: q["flops"] / GFLOP * (q["depth"] < 64),
        "flops one row": gflop("flops", "vector"),
        **counts("products", rows="row_count"),
    },
    "softmax": {**_ALONG, **split("in", mb, "in_bytes", "log", "across")},
    "quantized_softmax": {**_ALONG, **split("in", mb, "in_bytes", "across")},
    "reduce": {**_ALONG, **split("in", mb, "in_bytes", "series", "places")},
    "norm": {
        **_TRAFFIC,
        **counts("rows"),
        **split("in", mb, "in_bytes", "function=layer", "function=rms", "function=skip_layer"),
        **split("in", mb, "in_bytes", "function=instance", "function=batch"),
        **split("in", mb, "in_bytes", "function=local_response", "function=skip_rms"),
        "in window": mb("windowed_bytes"),
        "constant local response": flag("function=local_response"),
    },
    "concat": _CONCAT,
    "quantized_concat": {**_CONCAT, "values of a table": millions("out_bytes", "rescaled")},
    "transpose": {
        **_TRAFFIC,
        **counts("runs"),
        "values one by one": mb("scattered_bytes"),
        **split("values one by one,", mb, "scattered_bytes", "matrix", "slow"),
        "runs slow": millions("runs", "slow"),
        "out kept": mb("out_bytes", "keeps_last"),
        "constant kept": flag("keeps_last"),
    },
    "move": {
        **_TRAFFIC,
        **split("out", mb, "out_bytes", "function=slice", "function=pad", "strided"),
        **split("out", mb, "out_bytes", "function=gather", "function=expand"),
        **split("runs", millions, "runs", "function=gather", "function=expand"),
        "constant split": flag("function=split"),
        "constant slice": flag("function=slice"),
        "constant pad": flag("function=pad"),
        **counts("runs", "parts"),
    },
    "resize": {
        **_TRAFFIC,
        **split("out", mb, "out_bytes", "mode=nearest", "mode=linear", "mode=cubic"),
        "out nearest_rounded": mb("out_bytes", "mode=nearest_rounded"),
        "out nearest, doubled": mb("out_bytes", "mode=nearest", "doubled"),
        "out nearest, broken": mb("out_bytes", "mode=nearest", "broken"),
        **counts("planes", pixels="pixels_out"),
    },
    "resize_nd": {
        **_TRAFFIC,
        **split("out", mb, "out_bytes", "mode=nearest", "mode=linear"),
        **counts("planes", pixels="pixels_out"),
    },
    "select": {
        **_TRAFFIC,
        "condition": mb("condition_bytes"),
        "out repeated": mb("out_bytes", "repeated"),
        **counts("loops"),
    },
    "cast": {
        **_TRAFFIC,
        "in to float16": mb("in_bytes", "dtype_out=float16"),
        "out from float16": mb("out_bytes", "dtype=float16"),
        "out from truth": mb("out_bytes", "dtype=bool"),
    },
    "depth_to_space": {**_TRAFFIC, **counts("planes"), "out to depth": mb("out_bytes", "to_depth")},
    "pool_nd": {
        **_POOLED,
        **split("taps", millions, "flops", "places"),
        "out places": mb("out_bytes", "places"),
        "taps lp": millions("flops", "powers"),
        **counts("planes"),
    },
    "quantized_pool": _POOLED,
    "attention": {
        **_TRAFFIC,
        "weights": mb("weight_bytes"),
        "flops of projections": gflop("projection_flops"),
        "flops of heads": gflop("head_flops"),
        "scores": mb("score_bytes"),
        **split("scores", mb, "score_bytes", "causal", "masked"),
        **counts("products"),
    },
    "recurrent": {
        **_TRAFFIC,
        "weights": mb("weight_bytes"),
        "weights of each step": mb("all_step_weight_bytes"),
        "flops of inputs": gflop("input_flops"),
        "flops of states": gflop("state_flops"),
        "steps lstm": millions("all_steps", "cell=lstm"),
        **counts("gates", steps="all_steps"),
    },
    "quantize": {
        **_TRAFFIC,
        "in dynamic": mb("in_bytes", "dynamic"),
        "out dequantized": mb("out_bytes", "dequantize"),
        "constant dynamic": flag("dynamic"),
    },
    "quantized_conv": {
        **_WEIGHTED,
        **split("flops", gflop, "flops", "depthwise", "integer"),
        "flops in tiles": gflop("flops_tile"),
        **split("flops in tiles", gflop, "flops_tile", "dtype=int8"),
        **split("weights", mb, "weight_bytes", "dtype=int8"),
        "pieces apart": millions("group_pieces", "grouped_products"),
        "products integer": millions("products", "integer"),
        "flops integer int8": gflop("flops", "integer", "dtype=int8"),
        "products integer int8": millions("products", "integer", "dtype=int8"),
        "out depthwise int8": mb("out_bytes", "depthwise", "dtype=int8"),
        "columns": mb("columns_bytes"),
        **counts("products"),
    },
    "quantized_dense": {
        **_WEIGHTED,
        "flops one row": gflop("flops", "vector"),
        **split("flops", gflop, "flops", "dtype=int8"),
        **split("weights", mb, "weight_bytes", "dtype=int8"),
        "in dynamic": mb("in_bytes", "function=dynamic"),
        **counts(rows="batch"),
    },
    "quantized_elementwise": {
        **_TRAFFIC,
        "second": mb("second_bytes"),
        "values of a table": millions("values", "table"),
        **counts("loops"),
    },
    "quantized_matmul": {
        **_PLAIN,
        **split("flops", gflop, "flops", "dtype=int8"),
        "second": mb("second_bytes"),
        **counts("products", rows="row_count"),
    },
    "einsum": {
        **_PLAIN,
        **counts("products"),
        "first in another order": mb("first_bytes", "first_other"),
        "second in another order": mb("second_bytes", "second_other"),
        "result in another order": mb("out_bytes", "result_other"),
    },
    "top_k": {
        **_TRAFFIC,
        "values one kept": millions("value_count", "single"),
        "values apart": millions("value_count", "apart"),
        "values by logarithm of kept": millions("compared"),
        **counts("rows"),
    },
    "cumulate": {
        **_TRAFFIC,
        **counts("rows", values="value_count"),
        "in apart": mb("in_bytes", "apart"),
    },
    "indexed": {
        **_TRAFFIC,
        **counts("rows"),
        "values by elements": millions("value_count", "elements"),
        "out scattered": mb("out_bytes", "scatters"),
        "constant scattered": millions("rows", "scatters"),
    },
    "grid_sample": {
        **_TRAFFIC,
        **split("values", millions, "value_count", *_SAMPLED),
        **counts("planes"),
    },
}


@dataclass(frozen=True)
class TermTable:
    """What may cost time on one class of devices: the work of each kind, and what follows here.

    Attributes
    ----------
    usual : mapping of str to callable
        Terms of all kinds that are not in `own`.
    own : mapping of str to mapping
        Kind -> its terms on this class.
    """

    usual: Mapping[str, Term]
    own: Table


_GROWING = frozenset({"constant scattered"})
"""Terms that are no constants despite their names, which stored bundles use."""


def terms_of(kind: str, device_class: str = UNKNOWN) -> Mapping[str, Term]:
    """Return the terms of a kind by name.

    Parameters
    ----------
    kind : str
        As `resperf.measurement.written_kind` returns it.
    device_class : str, optional
        A class without a table (or an unknown one) has the terms of all classes: a fit leaves out
        what does not help.
    """
    terms = dict(WORK.get(kind, _PLAIN))
    for target in with_terms(device_class):
        table: TermTable = target.load("terms")
        terms |= table.own.get(kind, table.usual)
    return terms


def constant_terms(names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return which terms are constants, as an array of bool."""
    return np.array([name.startswith("constant") and name not in _GROWING for name in names])


def choices_of(kind: str, columns: Columns) -> Array | None:
    """Return the value of each layer's `Layer.FUNCTION`; None for kinds without one."""
    cls = kind_of(layer_kind(kind))
    field = (*cls.ENCODED, "")[0] if cls.FUNCTION is None else cls.FUNCTION
    return None if not field else np.asarray(columns[field]).astype(str)


def physical_terms(
    kind: str,
    columns: Columns,
    names: tuple[str, ...] | None = None,
    layer_quantities: Mapping[str, Array] | None = None,
    device_class: str = UNKNOWN,
) -> Array:
    """Return the terms of layers as a matrix of shape (rows, terms).

    Parameters
    ----------
    kind : str
        Layer kind.
    columns : mapping of str to array
        As `resperf.features.columns_of` returns them.
    names : tuple of str, optional
        All of the kind by default.
    layer_quantities : mapping of str to array, optional
        The result of `resperf.features.quantities`, where it was already computed.
    device_class : str, optional
        Its table is read beside those of all other classes.

    Raises
    ------
    TrainingError
        If there is no term of some name.
    """
    name = written_kind(kind, OPTIMIZER in columns)
    table = {**terms_of(name), **terms_of(name, device_class)}
    chosen = tuple(table) if names is None else names
    unknown = [name for name in chosen if name not in table]
    if unknown or not chosen:
        raise TrainingError(f"no physical terms {', '.join(unknown)} for kind {kind!r}")
    q = quantities(kind, columns) if layer_quantities is None else layer_quantities
    return np.stack([np.asarray(table[name](q), dtype=float) for name in chosen], axis=1)
