"""Terms of the physical baseline: possible costs, one table per layer kind.

Every term is a quantity that costs time on some device, in MB or GFLOP, never negative. A fit gives
each a coefficient of at least zero, in ms per unit; most are zero. The tables hold all terms that
help on some framework or device. They are for CPUs and for GPUs with published times; other device
classes may need tables of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from resperf.features import Array
from resperf.layers import OPTIMIZERS, kind_of
from resperf.predictors._term import (
    CACHE_2,
    CACHE_3,
    GFLOP,
    MB,
    TRAFFIC_TERMS,
    Term,
    beyond,
    constant,
    flag,
    gflop,
    mb,
    millions,
)


def _choices(kind: str, field: str) -> tuple[str, ...]:
    return kind_of(kind).specs()[field].choices


def _costly(choices: tuple[str, ...]) -> Term:
    """Output bytes of layers with one of these activations."""
    return lambda q: q["out_bytes"] / MB * sum(q[f"activation={name}"] for name in choices)


def _unstrided(q: Mapping[str, Array], taps: int) -> Array:
    """1 for windows of this many taps and stride 1, which have special kernels."""
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
    # ONNX Runtime has no fast average pooling for windows that extend beyond the padding.
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
    """Bytes of layers with this optimizer."""
    return lambda q: q[quantity] / MB * q[f"optimizer={optimizer}"]


# In steps that were measured with a variable as input, the input is updated like the weights.
_STEP: Mapping[str, Term] = {
    "gradient of input": gflop("flops_data"),
    "gradient of weights": gflop("flops_weights"),
    **{f"constant {name}": flag(f"optimizer={name}") for name in OPTIMIZERS},
    **{f"weights {name}": _under("weight_bytes", name) for name in OPTIMIZERS},
    **{f"in {name}": _under("in_bytes", name) for name in OPTIMIZERS},
}


_TRANSPOSED: Mapping[str, Term] = {
    **TRAFFIC_TERMS,
    "weights": mb("weight_bytes"),
    "weights per image": mb("image_weight_bytes"),
    "flops": gflop("flops"),
    "flops grouped": gflop("flops", "grouped"),
    "columns": mb("columns_bytes"),
    "columns beyond cache 2": beyond("columns_bytes", CACHE_2),
    "products": millions("products"),
}

_CONCAT: Mapping[str, Term] = {
    **TRAFFIC_TERMS,
    "parts": millions("parts"),
    "pieces": millions("pieces"),
}

TERMS: Mapping[str, Mapping[str, Term]] = {
    "conv": _CONV,
    "pool": _POOL,
    "dense": _DENSE,
    "activation": _ACTIVATION,
    "reorder": _REORDER,
    "conv_step": {
        **_CONV,
        **_STEP,
        "gradient of input strided": gflop("flops_data", "strided"),
        "gradient of weights strided": gflop("flops_weights", "strided"),
    },
    "dense_step": {**_DENSE, **_STEP},
    "conv_transpose": _TRANSPOSED,
    "elementwise": {
        **TRAFFIC_TERMS,
        "second": mb("second_bytes"),
        "out costly": mb("out_bytes", "costly"),
        "out series": mb("out_bytes", "series"),
        "out pow": mb("out_bytes", "pow"),
        "in truth": mb("in_bytes", "truth"),
        "in whole": mb("in_bytes", "whole"),
        "out repeated": mb("out_bytes", "repeated"),
        "loops": millions("loops"),
        "values at ends": millions("ends"),
    },
    "matmul": {
        **TRAFFIC_TERMS,
        "second": mb("second_bytes"),
        "second beyond cache 2": beyond("second_bytes", CACHE_2),
        "first transposed": mb("first_bytes", "transposed_first"),
        "second transposed": mb("second_bytes", "transposed"),
        "second by rows": mb("second_bytes", "plain"),
        "flops": gflop("flops"),
        "flops in tiles": gflop("flops_tile"),
        "flops shallow": lambda q: q["flops"] / GFLOP * (q["depth"] < 64),
        "flops one row": gflop("flops", "vector"),
        "products": millions("products"),
        "rows": millions("row_count"),
    },
    "softmax": {
        **TRAFFIC_TERMS,
        "rows": millions("rows"),
        "in apart": mb("in_bytes", "apart"),
        "in log": mb("in_bytes", "log"),
        "in across": mb("in_bytes", "across"),
        "constant apart": flag("apart"),
    },
    "norm": {
        **TRAFFIC_TERMS,
        "rows": millions("rows"),
        **{
            f"in {each}": mb("in_bytes", f"function={each}")
            for each in _choices("norm", "function")
        },
        "in window": mb("windowed_bytes"),
        "constant local response": flag("function=local_response"),
    },
    "reduce": {
        **TRAFFIC_TERMS,
        "rows": millions("rows"),
        "in apart": mb("in_bytes", "apart"),
        "in series": mb("in_bytes", "series"),
        "in places": mb("in_bytes", "places"),
        "constant apart": flag("apart"),
    },
    "concat": _CONCAT,
    "transpose": {
        **TRAFFIC_TERMS,
        "runs": millions("runs"),
        "values one by one": mb("scattered_bytes"),
        "values one by one, matrix": mb("scattered_bytes", "matrix"),
        "values one by one, slow": mb("scattered_bytes", "slow"),
        "runs slow": millions("runs", "slow"),
        "out kept": mb("out_bytes", "keeps_last"),
        "constant kept": flag("keeps_last"),
    },
    "move": {
        **TRAFFIC_TERMS,
        "runs": millions("runs"),
        "out slice": mb("out_bytes", "function=slice"),
        "out strided": mb("out_bytes", "strided"),
        "out pad": mb("out_bytes", "function=pad"),
        "out gather": mb("out_bytes", "function=gather"),
        "out expand": mb("out_bytes", "function=expand"),
        "runs gather": millions("runs", "function=gather"),
        "runs expand": millions("runs", "function=expand"),
        "constant split": flag("function=split"),
        "constant slice": flag("function=slice"),
        "constant pad": flag("function=pad"),
        "parts": millions("parts"),
    },
    "resize": {
        **TRAFFIC_TERMS,
        **{f"out {each}": mb("out_bytes", f"mode={each}") for each in _choices("resize", "mode")},
        "out nearest, doubled": mb("out_bytes", "mode=nearest", "doubled"),
        "out nearest, broken": mb("out_bytes", "mode=nearest", "broken"),
        "out blocked": mb("out_bytes", "blocked"),
        "planes": millions("planes"),
        "pixels": millions("pixels_out"),
    },
    "select": {
        **TRAFFIC_TERMS,
        "condition": mb("condition_bytes"),
        "out repeated": mb("out_bytes", "repeated"),
        "loops": millions("loops"),
    },
    "cast": {
        **TRAFFIC_TERMS,
        "in to float16": mb("in_bytes", "dtype_out=float16"),
        "out from float16": mb("out_bytes", "dtype=float16"),
        "out from truth": mb("out_bytes", "dtype=bool"),
    },
    "depth_to_space": {
        **TRAFFIC_TERMS,
        "planes": millions("planes"),
        "out to depth": mb("out_bytes", "to_depth"),
    },
    "conv_nd": {
        **TRAFFIC_TERMS,
        "weights": mb("weight_bytes"),
        "weights per sample": mb("sample_weight_bytes"),
        "flops": gflop("flops"),
        "flops grouped": gflop("flops", "grouped"),
        "flops depthwise": gflop("flops", "depthwise"),
        "columns": mb("columns_bytes"),
        "columns beyond cache 2": beyond("columns_bytes", CACHE_2),
        "products": millions("products"),
    },
    "conv_transpose_nd": _TRANSPOSED,
    "pool_nd": {
        **TRAFFIC_TERMS,
        "taps": millions("flops"),
        "taps mean": millions("flops", "mean"),
        "taps places": millions("flops", "places"),
        "out places": mb("out_bytes", "places"),
        "taps lp": millions("flops", "powers"),
        "in whole": mb("in_bytes", "whole"),
        "planes": millions("planes"),
        "windows": millions("window_count"),
    },
    "resize_nd": {
        **TRAFFIC_TERMS,
        **{
            f"out {each}": mb("out_bytes", f"mode={each}") for each in _choices("resize_nd", "mode")
        },
        "planes": millions("planes"),
        "pixels": millions("pixels_out"),
    },
    "attention": {
        **TRAFFIC_TERMS,
        "weights": mb("weight_bytes"),
        "flops of projections": gflop("projection_flops"),
        "flops of heads": gflop("head_flops"),
        "scores": mb("score_bytes"),
        "scores causal": mb("score_bytes", "causal"),
        "scores masked": mb("score_bytes", "masked"),
        "products": millions("products"),
    },
    "recurrent": {
        **TRAFFIC_TERMS,
        "weights": mb("weight_bytes"),
        "weights of each step": mb("all_step_weight_bytes"),
        "flops of inputs": gflop("input_flops"),
        "flops of states": gflop("state_flops"),
        "steps": millions("all_steps"),
        "steps lstm": millions("all_steps", "cell=lstm"),
        "gates": millions("gates"),
    },
    "quantize": {
        **TRAFFIC_TERMS,
        "in dynamic": mb("in_bytes", "dynamic"),
        "constant dynamic": flag("dynamic"),
        "out dequantized": mb("out_bytes", "dequantize"),
    },
    "quantized_conv": {
        **TRAFFIC_TERMS,
        "weights": mb("weight_bytes"),
        "flops": gflop("flops"),
        "flops depthwise": gflop("flops", "depthwise"),
        "flops integer": gflop("flops", "integer"),
        "in plain": mb("in_bytes", "plain"),
        "out plain": mb("out_bytes", "plain"),
        "columns": mb("columns_bytes"),
        "products": millions("products"),
        "batch plain": millions("batch", "plain"),
    },
    "quantized_dense": {
        **TRAFFIC_TERMS,
        "weights": mb("weight_bytes"),
        "flops": gflop("flops"),
        "flops one row": gflop("flops", "vector"),
        "in dynamic": mb("in_bytes", "function=dynamic"),
        "rows": millions("batch"),
    },
    "quantized_elementwise": {
        **TRAFFIC_TERMS,
        "second": mb("second_bytes"),
        "values of a table": millions("values", "table"),
        "loops": millions("loops"),
    },
    "quantized_matmul": {
        **TRAFFIC_TERMS,
        "second": mb("second_bytes"),
        "flops": gflop("flops"),
        "products": millions("products"),
        "rows": millions("row_count"),
    },
    "quantized_pool": {
        **TRAFFIC_TERMS,
        "taps": millions("flops"),
        "taps mean": millions("flops", "mean"),
        "taps plain": millions("flops", "plain"),
        "in whole": mb("in_bytes", "whole"),
        "windows": millions("window_count"),
    },
    "quantized_concat": {
        **_CONCAT,
        "values of a table": millions("out_bytes", "rescaled"),
    },
    "quantized_softmax": {
        **TRAFFIC_TERMS,
        "rows": millions("rows"),
        "in apart": mb("in_bytes", "apart"),
        "in across": mb("in_bytes", "across"),
        "constant apart": flag("apart"),
    },
    "einsum": {
        **{term: made for term, made in TRAFFIC_TERMS.items() if term != "constant threads"},
        "flops": gflop("flops"),
        "products": millions("products"),
        "first in another order": mb("first_bytes", "first_other"),
        "second in another order": mb("second_bytes", "second_other"),
        "result in another order": mb("out_bytes", "result_other"),
    },
    "top_k": {
        **TRAFFIC_TERMS,
        "rows": millions("rows"),
        "values one kept": millions("value_count", "single"),
        "values by logarithm of kept": millions("compared"),
        "values apart": millions("value_count", "apart"),
    },
    "cumulate": {
        **{term: made for term, made in TRAFFIC_TERMS.items() if term != "constant threads"},
        "rows": millions("rows"),
        "values": millions("value_count"),
        "in apart": mb("in_bytes", "apart"),
    },
    "indexed": {
        **TRAFFIC_TERMS,
        "rows": millions("rows"),
        "values by elements": millions("value_count", "elements"),
        "out scattered": mb("out_bytes", "scatters"),
        "constant scattered": millions("rows", "scatters"),
    },
    "grid_sample": {
        **TRAFFIC_TERMS,
        **{
            f"values {mode}": millions("value_count", f"mode={mode}")
            for mode in _choices("grid_sample", "mode")
        },
        "planes": millions("planes"),
    },
}
"""Kind -> name of a term -> its function of the kind's quantities."""

PLAIN_TERMS: Mapping[str, Term] = {**TRAFFIC_TERMS, "flops": gflop("flops")}
"""Terms of a kind without a table."""
