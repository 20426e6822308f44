"""Lowering for the simulated device: ONNX Runtime's fusions, and plain NCHW everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.lowering import _ort_rules
from resperf.lowering._base import LoweredNetwork, answer
from resperf.lowering.fusions import FusionRule
from resperf.network import Network
from resperf.platform import Platform
from resperf.settings import Setting

FUSION_RULES = (FusionRule("conv", "relu"), FusionRule("dense", "relu"))


def lower(
    network: Network, _setting: Setting, _platform: Platform, *, method: str = "auto"
) -> LoweredNetwork:
    """Lower a network by rules.

    Raises
    ------
    UnsupportedError
        If `method` is ``framework``: there is none.
    """
    if method == "framework":
        raise UnsupportedError("the simulated device has no framework to ask; use rules or auto")
    return answer(network, _ort_rules.lower_nodes(network, block=0), "rules")


def lower_layers(layers: Sequence[Layer], _setting: Setting) -> list[Layer]:
    """Put each layer into plain NCHW."""
    return [_ort_rules.lower_layer(layer, block=0) for layer in layers]
