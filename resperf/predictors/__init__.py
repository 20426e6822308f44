"""Predictors: one file per method behind one contract; the table holds import strings."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from resperf.errors import TrainingError
from resperf.predictors._base import Predictor, Progress

__all__ = ["DEFAULT_METHOD", "METHODS", "Predictor", "Progress", "predictor_class"]

METHODS: Mapping[str, str] = {
    "baseline": "resperf.predictors.baseline:Baseline",
    "residual": "resperf.predictors.residual:Residual",
    "boosted": "resperf.predictors.boosted:Boosted",
    "ensemble": "resperf.predictors.ensemble:Ensemble",
    "resperfnet": "resperf.predictors.resperfnet:ResPerfNet",
    "perfnet": "resperf.predictors.perfnet:PerfNet",
    "linear": "resperf.predictors.linear:Linear",
    "polynomial": "resperf.predictors.polynomial:Polynomial",
    "svr": "resperf.predictors.svr:SVR",
    "xgboost": "resperf.predictors.xgboost:XGBoost",
    "xgboost-log": "resperf.predictors.xgboost:XGBoostLog",
}
"""Method -> module:class."""

DEFAULT_METHOD = "ensemble"


def predictor_class(method: str) -> type[Predictor]:
    """Return the class of a method.

    Raises
    ------
    TrainingError
        If there is no such method.
    """
    if method not in METHODS:
        raise TrainingError(f"no method {method!r}; known methods: {', '.join(METHODS)}")
    module_name, class_name = METHODS[method].split(":")
    return cast(type[Predictor], getattr(importlib.import_module(module_name), class_name))
