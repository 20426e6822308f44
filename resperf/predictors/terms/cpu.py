"""Terms of CPUs beside a layer's work: caches, threads, and the blocked layouts of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

from resperf.predictors.terms.work import Term, TermTable, beyond, flag, gflop, mb, millions

_CACHE_2 = {"cache 2": 1e6}
_CACHES = {**_CACHE_2, "cache 3": 16e6}
"""Bytes above which traffic costs more: rounded sizes of level 2 and 3 caches of common
processors. A fit combines them, so they need not be those of the machine."""

_IN = beyond("in", "in_bytes", _CACHES)
_CACHED = {**_IN, **beyond("out", "out_bytes", _CACHES)}
_WEIGHTS = beyond("weights", "weight_bytes", _CACHES)
_THREADS: Mapping[str, Term] = {"constant threads": flag("threaded")}
_USUAL = {**_CACHED, **_THREADS}
_WITH_COLUMNS = {**_USUAL, **beyond("columns", "columns_bytes", _CACHE_2)}
_PLAIN: Mapping[str, Term] = {
    "in plain": mb("in_bytes", "plain"),
    "out plain": mb("out_bytes", "plain"),
}

_CONV: Mapping[str, Term] = {
    **_USUAL,
    **_WEIGHTS,
    "weights per image, plain": mb("weight_bytes", "batch", "plain"),
    "flops plain": gflop("flops", "plain"),
    "flops real": gflop("flops_real", "blocked"),
    "flops real in columns": gflop("flops_columns", "blocked"),
    "flops real in blocks": gflop("flops_block", "blocked"),
    "products plain": millions("products", "plain"),
    "im2col plain": mb("im2col_bytes", "plain"),
    **_PLAIN,
    "constant plain": flag("plain"),
}

CPU = TermTable(
    usual=_USUAL,
    own={
        "conv": _CONV,
        "conv_step": _CONV,
        "conv_nd": _WITH_COLUMNS,
        "conv_transpose": _WITH_COLUMNS,
        "conv_transpose_nd": _WITH_COLUMNS,
        "pool": {
            **_CACHED,
            "window plain": gflop("flops_real", "plain"),
            "window plain maximum": gflop("flops_real", "plain", "maximum"),
            "window plain strided": gflop("flops_real", "plain", "strided"),
            # ONNX Runtime has no fast average pooling for windows that extend beyond the padding.
            "window ceil counted plain": gflop("flops_real", "ceil", "counts_pad", "plain"),
            "rows plain": millions("row_count", "plain"),
            **_PLAIN,
            "constant plain": flag("plain"),
        },
        "dense": {**_WEIGHTS, **_THREADS},
        "dense_step": {**_WEIGHTS, **_THREADS},
        "activation": {**_IN, **_THREADS},
        "reorder": {
            **_IN,
            **beyond("padded", "padded_bytes", _CACHES),
            "padded to blocked": mb("padded_bytes", "to_blocked"),
            "in from blocked": mb("in_bytes", "from_blocked"),
            "constant to blocked": flag("to_blocked"),
            "planes to blocked": millions("planes", "to_blocked"),
        },
        "matmul": {**_USUAL, **beyond("second", "second_bytes", _CACHE_2)},
        "resize": {**_USUAL, "out blocked": mb("out_bytes", "blocked")},
        "quantized_conv": {**_USUAL, **_PLAIN, "batch plain": millions("batch", "plain")},
        "quantized_pool": {**_USUAL, "taps plain": millions("flops", "plain")},
        "einsum": _CACHED,
        "cumulate": _CACHED,
    },
)
