"""Features: from layers to named numbers, the same numpy code for training and for prediction."""

from __future__ import annotations

from resperf.features.matrix import (
    FEATURE_SET_VERSION,
    Array,
    Columns,
    columns_of,
    columns_of_keys,
    feature_matrix,
    plain_and_log2,
    quantities,
    take,
)

__all__ = [
    "FEATURE_SET_VERSION", "Array", "Columns", "columns_of", "columns_of_keys",
    "feature_matrix", "plain_and_log2", "quantities", "take",
]  # fmt: skip
