"""Lowering for the simulated device: ONNX Runtime's fusions, and plain NCHW everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from resperf.layers import Layer
from resperf.lowering import _cache, _ort_blocks, _ort_graph
from resperf.lowering._base import LoweredNetwork, answer
from resperf.lowering.fusions import FusionRule
from resperf.lowering.onnxruntime import installed
from resperf.network import Network
from resperf.platform import Platform
from resperf.settings import Setting

FUSION_RULES = (FusionRule("conv", "relu"), FusionRule("dense", "relu"))


def lower(network: Network, _setting: Setting, _platform: Platform) -> LoweredNetwork:
    """Lower a network as ONNX Runtime does where it has no blocked layouts."""
    network = network.with_unfolded_nodes()
    nodes = _cache.once(
        network, (installed(), "synthetic"), lambda: _ort_graph.ask_for(network, 0, threads=1)
    )
    return answer(network, nodes, installed())


def lower_layers(layers: Sequence[Layer], _setting: Setting) -> list[Layer]:
    """Put each layer into plain NCHW."""
    return [_ort_blocks.lower_layer(layer, block=0) for layer in layers]
