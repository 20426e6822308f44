"""Lowering for ONNX Runtime on the CPU: its own optimised graph, or stored rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.lowering import _ort_graph, _ort_rules
from resperf.lowering._base import LoweredNetwork
from resperf.lowering._proto import skeleton
from resperf.machine import Fingerprint, instruction_set
from resperf.network import Network

ASK_WEIGHT_BYTES = 100_000_000
"""Networks with more convolution weights than this are lowered by rules: ORT would copy them."""


def lower(network: Network, fingerprint: Fingerprint, *, method: str = "auto") -> LoweredNetwork:
    """Lower a network as `resperf.lowering.lower` says."""
    block = int(fingerprint.settings.get("nchwc_block", "0"))
    notes: tuple[str, ...] = ()
    if method == "auto":
        difference = _difference(fingerprint)
        if difference:
            notes = (f"lowered by stored rules, not by ONNX Runtime itself: {difference}",)
        method = "rules" if difference else "framework"
    if method == "rules":
        return _answer(network, _ort_rules.lower_nodes(network, block), "rules", notes)
    if method != "framework":
        raise UnsupportedError(f"no lowering method {method!r}; use auto, framework or rules")
    import onnxruntime

    model = skeleton(network)
    if model.weight_bytes > ASK_WEIGHT_BYTES:
        return _answer(network, _ort_rules.lower_nodes(network, block), "rules", notes)
    graph = _ort_graph.optimised_graph(model, threads=fingerprint.threads)
    nodes = _ort_graph.read_optimised(network, list(graph.node), block)
    return _answer(network, nodes, f"onnxruntime {onnxruntime.__version__}", notes)


def lower_layers(layers: Sequence[Layer], fingerprint: Fingerprint) -> list[Layer]:
    """Give each layer the layout that ONNX Runtime would choose for it."""
    block = int(fingerprint.settings.get("nchwc_block", "0"))
    return [_ort_rules.lower_layer(layer, block) for layer in layers]


@cache
def block_size(*, threads: int) -> int:
    """Channels per block of this machine's NCHWc layout; 0 where ONNX Runtime has none."""
    return _ort_graph.block_size(threads=threads)


def _difference(fingerprint: Fingerprint) -> str:
    """Say why this host's ONNX Runtime may lower otherwise than the fingerprint's."""
    import onnxruntime

    if fingerprint.framework_version != onnxruntime.__version__:
        return f"version {onnxruntime.__version__} here, {fingerprint.framework_version} there"
    if fingerprint.instruction_set != instruction_set():
        return f"instruction set {instruction_set()} here, {fingerprint.instruction_set} there"
    return ""


def _answer(
    network: Network, nodes: Sequence[object], method: str, notes: tuple[str, ...]
) -> LoweredNetwork:
    return LoweredNetwork(
        nodes=tuple(nodes),  # type: ignore[arg-type]
        inputs=tuple(network.tensors[name] for name in network.inputs),
        outputs=tuple(
            network.tensors[name] for name in network.outputs if name in network.tensors
        ),
        method=method,
        notes=notes,
    )
