"""Terms of GPU cards beside a layer's work: the second-level cache, and idle multiprocessors.

All sizes are those of the layer. Terms relative to a card, with which one fit serves several cards,
are in ``card.py``.
"""

from resperf.predictors.terms.work import TermTable, beyond, millions

_CACHES = {"4 MB": 4e6, "16 MB": 16e6}
"""Bytes above which traffic costs more: cards of 2016 to 2018 have 1 to 6 MB of second-level cache,
those of 2020 to 2022 up to 50. A fit combines them."""

_USUAL = {**beyond("in", "in_bytes", _CACHES), **beyond("out", "out_bytes", _CACHES)}
_WEIGHTS = beyond("weights", "weight_bytes", _CACHES)

# One tile of a product is computed on one multiprocessor, step by step along the depth. With fewer
# tiles than multiprocessors, its time is that of the layer, however few tiles there are.
_CONV = {**_USUAL, **_WEIGHTS, "depth": millions("k")}
_DENSE = {**_WEIGHTS, "depth": millions("features_in")}

CUDA = TermTable(
    usual=_USUAL, own={"conv": _CONV, "conv_step": _CONV, "dense": _DENSE, "dense_step": _DENSE}
)
