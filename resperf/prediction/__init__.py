"""Prediction: a network and a bundle give a total, phases, layers and skipped operators."""

from resperf.prediction.api import Failure, predict, predict_everywhere, predict_within
from resperf.prediction.network import predict_network, predict_networks
from resperf.prediction.result import (
    WHOLE_NETWORK,
    LayerPrediction,
    PhaseTimes,
    Prediction,
    QuantityPrediction,
    Skipped,
)
from resperf.prediction.sum_of_layers import SumOfLayers
from resperf.prediction.times import predict_layers

__all__ = [
    "WHOLE_NETWORK", "Failure", "LayerPrediction", "PhaseTimes", "Prediction",
    "QuantityPrediction", "Skipped", "SumOfLayers", "predict", "predict_everywhere",
    "predict_layers", "predict_network", "predict_networks", "predict_within",
]  # fmt: skip
