"""Predictors: one file per method, one interface; a new method is one row of `METHODS`.

Another package adds a method by an entry point of the group ``resperf.predictors``::

    [project.entry-points."resperf.predictors"]
    "per-mac" = "resperf_toy:PerMac"
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import cast

from resperf.errors import TrainingError, first_line
from resperf.predictors._base import (
    Account,
    Estimate,
    Examples,
    LayerPredictor,
    Predicted,
    Predictor,
    Progress,
    Task,
)
from resperf.quantities import Level

__all__ = [
    "DEFAULT_METHOD", "METHODS", "Account", "Estimate", "Examples", "LayerPredictor", "Predicted",
    "Predictor", "Progress", "Task", "layer_predictor_class", "methods_of", "predictor_class",
    "register",
]  # fmt: skip

METHODS: dict[str, str] = {
    "baseline": "resperf.predictors.baseline:Baseline",
    "boosted": "resperf.predictors.boosted:Boosted",
    "roofline": "resperf.predictors.roofline:Roofline",
    "resperfnet": "resperf.predictors.resperfnet:ResPerfNet",
    "perfnet": "resperf.predictors.resperfnet:PerfNet",
    "gianniti": "resperf.predictors.gianniti:Gianniti",
    "polynomial": "resperf.predictors.regressions:Polynomial",
    "svr": "resperf.predictors.regressions:SVR",
    "xgboost": "resperf.predictors.regressions:XGBoost",
    "xgboost-log": "resperf.predictors.regressions:XGBoostLog",
    "class-costs": "resperf.predictors.class_costs:ClassCosts",
    "kernel-costs": "resperf.predictors.kernel_costs:KernelCosts",
    "convmeter": "resperf.predictors.convmeter:ConvMeter",
    "convmeter-relative": "resperf.predictors.convmeter:ConvMeterRelative",
    "operator-totals": "resperf.predictors.convmeter:OperatorTotals",
    "step-costs": "resperf.predictors.step_costs:StepCosts",
    "memory-timeline": "resperf.predictors.memory_timeline:MemoryTimeline",
    "dnnperf": "resperf.predictors.dnnperf:DNNPerf",
    "predictddl": "resperf.predictors.predictddl:PredictDDL",
}
"""Method -> module:class. Help texts list the methods in this order."""

_OF_DNNPERF = "resperf.predictors.graph_baselines:"
_OF_PREDICTDDL = "resperf.predictors.predictddl:"
VARIANTS: dict[str, str] = {
    "dnnperf-gbdt": f"{_OF_DNNPERF}GBDT",
    "dnnperf-boosted": f"{_OF_DNNPERF}BoostedSums",
    "dnnperf-mlp": f"{_OF_DNNPERF}Perceptron",
    "dnnperf-brp-nas": f"{_OF_DNNPERF}BRPNAS",
    "dnnperf-log": f"{_OF_DNNPERF}Logarithms",
    "dnnperf-gat": f"{_OF_DNNPERF}GraphAttention",
    "dnnperf-standard-scaler": f"{_OF_DNNPERF}StandardScaler",
    "dnnperf-no-tensor-cost": f"{_OF_DNNPERF}NoTensorCost",
    "dnnperf-concat-edge": f"{_OF_DNNPERF}ConcatEdge",
    "dnnperf-average-readout": f"{_OF_DNNPERF}AverageReadout",
    "predictddl-types": f"{_OF_PREDICTDDL}Types",
    "predictddl-linear": f"{_OF_PREDICTDDL}Linear",
    "predictddl-full": f"{_OF_PREDICTDDL}Full",
    "predictddl-log": f"{_OF_PREDICTDDL}Log",
    "predictddl-svr": f"{_OF_PREDICTDDL}SupportVectors",
    "predictddl-mlp": f"{_OF_PREDICTDDL}Perceptron",
}
"""What DNNPerf is compared with, DNNPerf without one of its parts, and PredictDDL's regressors:
methods only by name."""

DEFAULT_METHOD = "boosted"


def predictor_class(method: str) -> type[Predictor]:
    """Return the class of a method.

    Raises
    ------
    TrainingError
        If there is no such method, or its package is broken.
    """
    if method not in METHODS | VARIANTS:
        _add_installed()
    if method not in METHODS | VARIANTS:
        raise TrainingError(f"no method {method!r}; known methods: {', '.join(METHODS)}")
    target = (METHODS | VARIANTS)[method]
    module_name, class_name = target.split(":")
    try:
        return cast(type[Predictor], getattr(importlib.import_module(module_name), class_name))
    except (ImportError, AttributeError) as error:
        raise TrainingError(
            f"method {method} cannot be loaded from {target} ({first_line(error)}); "
            "fix or remove the package that provides it"
        ) from error


@cache
def _add_installed() -> None:
    """Add the methods of other installed packages, once."""
    from importlib.metadata import entry_points

    for point in entry_points(group="resperf.predictors"):
        register(point.name, point.value)


def layer_predictor_class(method: str) -> type[LayerPredictor]:
    """Return the class of a method for layers.

    Raises
    ------
    TrainingError
        If there is no such method, or it is for networks.
    """
    cls = predictor_class(method)
    if not issubclass(cls, LayerPredictor):
        raise TrainingError(
            f"{method} is for whole networks; methods for layers: "
            f"{', '.join(methods_of(Level.LAYER))}"
        )
    return cls


def methods_of(level: Level) -> tuple[str, ...]:
    """Return the methods for layers, or for networks, in the order of the table."""
    return tuple(method for method in METHODS if predictor_class(method).level is level)


def register(method: str, target: str) -> None:
    """Add a method of another package to the table.

    Parameters
    ----------
    method : str
        An unused name.
    target : str
        ``"module:class"``, a `Predictor`.

    Raises
    ------
    TrainingError
        If the name is used.
    """
    if METHODS.setdefault(method, target) != target:
        raise TrainingError(f"there is a method {method!r} already: {METHODS[method]}")
