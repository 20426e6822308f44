"""Lowering for TensorRT: TensorRT for RTX is asked, without a GPU, which kernels it makes.

Each lowered node is a kernel of the engine, with the name and nodes that TensorRT prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from resperf.devices import device_facts
from resperf.errors import UnsupportedError
from resperf.layers import OPERATOR_DOMAINS, Layer
from resperf.layers.cast import Cast
from resperf.lowering._base import (
    LoweredNetwork,
    LoweredNode,
    answer,
    in_precision,
    in_type,
    named_by_sources,
)
from resperf.lowering._trt_kernels import TRIED, Engine, engine_of
from resperf.lowering._trt_layers import homes, layers_of
from resperf.lowering._trt_model import is_quantized
from resperf.lowering.onnxruntime import with_custom, without_custom
from resperf.network import Network
from resperf.platform import Platform
from resperf.settings import HALF_TYPES, Setting

_ASKED, _OLDEST = "8.0", "5.0"
"""Compute capability that is asked for (`resperf.lowering._trt_build`), and the oldest that
TensorRT after 8.5 runs on."""
_ALIKE = ("8.0", "8.6", "8.9", "12.0", "12.1")
"""Compute capabilities that TensorRT for RTX builds the same kernels for."""
_REPEATED = {
    "If": "runs one of its branches, the kernels of all are counted",
    **dict.fromkeys(("Loop", "Scan"), "runs its body many times, of which one is counted"),
}
"""Operators whose kernels are not run once each."""
_NOT_ASKED = "NonMaxSuppression"
"""Operator that TensorRT has and TensorRT for RTX has not."""
_WHOLE = 0.995
"""Share of a network's work from which on all of it has a layer."""


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Give layers the type that they have in a precision; TensorRT chooses their formats itself."""
    dtype = HALF_TYPES.get(setting.precision, "")
    return [layer if isinstance(layer, Cast) else in_type(layer, dtype) for layer in layers]


def lower(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    """Lower a network; see `resperf.lowering.lower`.

    Raises
    ------
    UnsupportedError
        If TensorRT refuses the network, does not run on the card, or cannot be asked here.
    """
    card = _capability(platform)
    if card and float(card) < float(_OLDEST):
        raise UnsupportedError(
            f"TensorRT after 8.5 does not run on {platform.device}, of compute capability {card}: "
            f"it needs {_OLDEST}; choose another device or framework"
        )
    # Users bring plugins for their own operators, which nothing is fused into.
    custom = [
        node
        for node in network.nodes
        if node.domain not in OPERATOR_DOMAINS
        or (node.op == _NOT_ASKED and node.outputs[0] in network.tensors)
    ]
    asked = without_custom(network, custom) if custom else network
    engine = engine_of(asked, setting.precision)
    nodes = layers_of(in_precision(asked, setting.precision), engine.kernels)
    repeated = [
        LoweredNode(
            node.name, node.op, None, "unknown", f"{node.op} {_REPEATED[node.op]}", (node.name,)
        )
        for node in asked.nodes
        if node.op in _REPEATED
    ]
    notes = (*_notes(asked, setting, engine, card), *_notes_on_kernels(asked, engine, nodes))
    named = named_by_sources(network, [*nodes, *repeated])
    lowered_nodes = with_custom(network, custom, named) if custom else named
    return answer(network, lowered_nodes, f"tensorrt-rtx {engine.version} without a GPU", notes)


def _capability(platform: Platform) -> str:
    """Return the compute capability of a platform's card; empty if it is not known."""
    facts = next(iter(platform.accelerators), device_facts(platform.device))
    return "" if facts is None else facts.compute_capability


def _notes(network: Network, setting: Setting, engine: Engine, card: str) -> Iterator[str]:
    """Say what TensorRT was asked about other than the network on the card."""
    if engine.version not in TRIED:
        yield f"TensorRT for RTX {engine.version} is asked, only {', '.join(TRIED)} was tried"
    if card not in _ALIKE:
        yield (
            f"kernels are those of compute capability {_ASKED}, which TensorRT for RTX can be "
            f"asked for; the card has {card or 'an unknown one'}"
        )
    if setting.precision == "int8" and not is_quantized(network):
        yield (
            "the file quantises nothing: Conv, Gemm and MatMul with weights are taken to run in "
            "int8, the others in float16"
        )


def _notes_on_kernels(
    network: Network, engine: Engine, nodes: Sequence[LoweredNode]
) -> Iterator[str]:
    streams = {kernel.stream for kernel in engine.kernels}
    if len(streams) > 1:
        yield (
            f"TensorRT runs kernels in {len(streams)} streams, where some overlap; their times "
            "are added up"
        )
    macs, moved_bytes = homes(network, engine.kernels, nodes)
    if min(macs, moved_bytes) < _WHOLE:
        yield (
            f"{macs:.0%} of the multiply-adds and {moved_bytes:.0%} of the bytes of its kernels "
            "have a layer"
        )
