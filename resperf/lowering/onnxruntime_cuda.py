"""Lowering for ONNX Runtime's CUDA provider: asked of the installed ONNX Runtime, or by rules.

As ONNX Runtime's source says (``graph_transformer_utils.cc``), the CUDA provider gets the fusions
of all providers: convolutions with normalisations, factors and terms per channel, Gemm, gelu and
its bias, LayerNormalization with its skip connection, scales and transpositions of products,
attention. It does not get those of the CPU alone, which are left out here (`CPU_ONLY`):
activations and residuals fused into convolutions and products, and blocked layouts. So ONNX Runtime
on any CPU, without these, makes the graph that the CUDA provider runs.

Not expressed: fusions of the CUDA provider alone (GroupQueryAttention) and networks with
QuantizeLinear. None of it has been compared with a GPU's own graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.lowering import _cache, _ort_graph, _ort_rules
from resperf.lowering._base import LoweredNetwork, LoweredNode, answer
from resperf.lowering._ort_half_precision import has_half_precision
from resperf.lowering.onnxruntime import installed, too_large
from resperf.network import Network
from resperf.platform import Platform
from resperf.settings import Setting

PROVIDER = "CUDAExecutionProvider"
CPU_ONLY = (
    "GemmActivationFusion", "ConvActivationFusion", "ConvAddActivationFusion", "NchwcTransformer",
    "NhwcTransformer", "MatMulIntegerToFloatFusion", "DynamicQuantizeMatMulFusion",
    "MatMulNBitsFusion",
)  # fmt: skip
"""ONNX Runtime's optimisers for nodes of its CPU provider only."""
_NOTES = {
    "QuantizeLinear": "what the CUDA provider makes of quantised operators is not known",
    "GroupQueryAttention": "how the CUDA provider runs GroupQueryAttention is not known",
}


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Lower layers one by one: images in NCHW, activations and residuals apart."""
    dtype = "float16" if setting.precision == "fp16" else ""
    return [_lower_layer(layer, dtype) for layer in layers]


def _lower_layer(layer: Layer, dtype: str) -> Layer:
    lowered = _ort_rules.lower_layer(layer, 0)
    fields = lowered.fields()
    changes: dict[str, str | bool] = {}
    if lowered.kind in _ort_rules.FUSED_ACTIVATIONS:
        changes["activation"] = "none"
    if fields.get("residual"):
        changes["residual"] = False
    if dtype and fields.get("dtype") == "float32":
        changes["dtype"] = dtype
    return lowered.replace(**changes) if changes else lowered


def lower(
    network: Network, setting: Setting, _platform: Platform, *, method: str = "auto"
) -> LoweredNetwork:
    """Lower a network; see `resperf.lowering.lower`.

    Raises
    ------
    UnsupportedError
        If the setting is another provider's, or NHWC: what runs then is not known.
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
    if method not in ("auto", "framework", "rules"):
        raise UnsupportedError(f"no lowering method {method!r}; use auto, framework or rules")
    why_rules = ""
    if method == "auto":
        why_rules = _difference(network, setting)
        method = "rules" if why_rules else "framework"
    ops = {node.op for node in network.nodes}
    notes = tuple(note for op, note in _NOTES.items() if op in ops)
    if method == "framework":
        return answer(network, _ask(network), installed(), notes)
    if why_rules:
        notes = (f"lowered by stored rules, not by ONNX Runtime: {why_rules}", *notes)
    nodes = _ort_rules.lower_nodes(network, 0, on_cpu=False)
    return answer(network, nodes, "rules", notes)


def _difference(network: Network, setting: Setting) -> str:
    """Say why this host's ONNX Runtime would answer something else; empty if it would not."""
    import onnxruntime

    if setting.framework_version != onnxruntime.__version__:
        return f"version {onnxruntime.__version__} here, {setting.framework_version} there"
    if has_half_precision(network):
        return "a CPU computes half precision in float32"
    return too_large(network)


def _ask(network: Network) -> list[LoweredNode]:
    """Return ONNX Runtime's own lowering without what only CPUs have, through the cache."""
    return _cache.once(
        network,
        (installed(), PROVIDER),
        lambda: _ort_graph.ask(network, 0, threads=1, without=CPU_ONLY),
    )
