"""Lowering for ONNX Runtime's CUDA provider, asked of the installed ONNX Runtime.

As ONNX Runtime's source says (``graph_transformer_utils.cc``), the CUDA provider gets the fusions
of all providers: convolutions with normalisations, factors and terms per channel, Gemm, gelu and
its bias, LayerNormalization with its skip connection, scales and transpositions of products,
attention. It does not get those of the CPU alone, which are left out here (`CPU_ONLY`):
activations and residuals fused into convolutions and products, and blocked layouts. So ONNX Runtime
on any CPU, without these, makes the graph that the CUDA provider runs. Half precision, which a CPU
has few kernels of, is asked about in float32; casts between the two are then left out.

Not expressed: fusions of the CUDA provider alone (GroupQueryAttention) and networks with
QuantizeLinear. None of it has been compared with a GPU's own graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.lowering._base import LoweredNetwork, LoweredNode, answer, with_types
from resperf.lowering._ort_blocks import lower_layer
from resperf.lowering.onnxruntime import ask, installed, once
from resperf.network import Network, Tensor
from resperf.network.constants import HALF_PRECISION
from resperf.platform import Platform
from resperf.settings import Setting

PROVIDER = "CUDAExecutionProvider"
CPU_ONLY = (
    "GemmActivationFusion", "ConvActivationFusion", "ConvAddActivationFusion", "NchwcTransformer",
    "NhwcTransformer", "MatMulIntegerToFloatFusion", "DynamicQuantizeMatMulFusion",
    "MatMulNBitsFusion",
)  # fmt: skip
"""ONNX Runtime's optimisers for nodes of its CPU provider only."""
_FUSES_ACTIVATIONS = frozenset({"conv", "conv_nd", "dense"})
"""Kinds whose kernels end with an activation on CPUs only."""
_NOTES = {
    "QuantizeLinear": "what the CUDA provider makes of quantised operators is not known",
    "GroupQueryAttention": "how the CUDA provider runs GroupQueryAttention is not known",
}


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Lower layers one by one: images in NCHW, activations and residuals apart."""
    dtype = "float16" if setting.precision == "fp16" else ""
    return [_lower_layer(layer, dtype) for layer in layers]


def _lower_layer(layer: Layer, dtype: str) -> Layer:
    lowered = lower_layer(layer, 0)
    fields = lowered.fields()
    changes: dict[str, str | bool] = {}
    if lowered.kind in _FUSES_ACTIVATIONS:
        changes["activation"] = "none"
    if fields.get("residual"):
        changes["residual"] = False
    if dtype and fields.get("dtype") == "float32":
        changes["dtype"] = dtype
    return lowered.replace(**changes) if changes else lowered


def lower(network: Network, setting: Setting, _platform: Platform) -> LoweredNetwork:
    """Lower a network; see `resperf.lowering.lower`.

    Raises
    ------
    UnsupportedError
        If the setting is another provider's, or NHWC: what runs then is not known; or if ONNX
        Runtime cannot run the network.
    """
    if setting.provider not in ("", PROVIDER):
        raise UnsupportedError(
            f"the layers that {setting.provider} makes of a network are not known to onnxruntime; "
            "lower it for tensorrt/cuda, or measure the whole network"
        )
    if setting.layout == "nhwc":
        raise UnsupportedError(
            "which operators the CUDA provider runs in NHWC is not known; measure whole networks"
        )
    inputs, network = network.inputs, network.with_overridable().with_dead_nodes()
    ops = {node.op for node in network.nodes}
    notes = tuple(note for op, note in _NOTES.items() if op in ops)
    nodes = once(
        network,
        (PROVIDER,),
        lambda: [
            _in_precision(network, node)
            for node in ask(with_types(network, _as_float32), 0, CPU_ONLY)
        ],
    )
    return answer(replace(network, inputs=inputs), nodes, installed(), notes)


def _as_float32(tensor: Tensor) -> Tensor:
    if tensor.dtype not in HALF_PRECISION:
        return tensor
    value = None if tensor.value is None else tensor.value.astype(np.float32)
    return replace(tensor, dtype="float32", value=value)


def _in_precision(network: Network, lowered: LoweredNode) -> LoweredNode:
    """Give a layer the precision of the tensors that its operators write."""
    layer = lowered.layer
    if layer is None or layer.fields().get("dtype") != "float32":
        return lowered
    sources = {
        name for node in network.nodes if node.name in lowered.sources for name in node.outputs
    }
    dtypes = {network.tensors[name].dtype for name in sources if name in network.tensors}
    half = dtypes & HALF_PRECISION
    return replace(lowered, layer=layer.replace(dtype=half.pop())) if half else lowered
