"""Lowering for ONNX Runtime on the CPU: the graph that it optimises itself, or stored rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from resperf import disk_cache
from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.lowering import _cache, _ort_graph, _ort_rules
from resperf.lowering._base import LoweredNetwork, LoweredNode, answer
from resperf.lowering._ort_half_precision import NOTE as HALF_PRECISION_NOTE
from resperf.lowering._ort_half_precision import has_half_precision
from resperf.lowering._proto import embedded_weight_bytes, shared_weights
from resperf.network import Network
from resperf.platform import Platform, instruction_set
from resperf.settings import Setting
from resperf.units import format_bytes

X86 = frozenset({"avx512f", "avx2", "avx", "sse4_2"})
"""Base instruction sets of one architecture."""
MAX_COPIED_WEIGHT_BYTES = 100_000_000
"""Networks with more convolution weights are lowered by rules: ORT would copy the weights."""
QUANTIZED_NOTE = (
    "stored rules do not fuse operators between QuantizeLinear and DequantizeLinear, so that the "
    "real time is shorter; predict on a machine like the bundle's"
)


def lower(
    network: Network, setting: Setting, platform: Platform, *, method: str = "auto"
) -> LoweredNetwork:
    """Lower a network; see `resperf.lowering.lower`."""
    block = int(setting.options.get("nchwc_block", "0"))
    why_rules = ""
    if method == "auto":
        why_rules = _difference(setting, platform) or too_large(network)
        if not why_rules:
            try:
                return lower(network, setting, platform, method="framework")
            except UnsupportedError as error:
                why_rules = str(error)
        method = "rules"
    if method == "rules":
        notes = (f"lowered by stored rules, not by ONNX Runtime: {why_rules}",) if why_rules else ()
        if any(node.op in ("QuantizeLinear", "DequantizeLinear") for node in network.nodes):
            notes = (*notes, QUANTIZED_NOTE)
        if has_half_precision(network):
            notes = (*notes, HALF_PRECISION_NOTE)
        nodes = _by_rules(network, block, cached=bool(why_rules))
        return answer(network, nodes, "rules", notes)
    if method != "framework":
        raise UnsupportedError(f"no lowering method {method!r}; use auto, framework or rules")
    return answer(network, _ask(network, setting, block), installed())


def _by_rules(network: Network, block: int, *, cached: bool) -> list[LoweredNode]:
    """Lower by rules, through the cache if `cached`."""
    if not cached:
        return _ort_rules.lower_nodes(network, block)
    identity = ("rules", str(block))
    return _cache.once(network, identity, lambda: _ort_rules.lower_nodes(network, block))


def installed() -> str:
    """Return the name and version of the installed ONNX Runtime."""
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


def _machine() -> tuple[str, str]:
    """Return the facts of this machine that ONNX Runtime's lowering depends on."""
    return installed(), instruction_set()


def _ask(network: Network, setting: Setting, block: int) -> list[LoweredNode]:
    """Return ONNX Runtime's own lowering, through the cache."""
    shared = sorted(shared_weights(network).items())
    also = (str(shared),) if shared else ()
    identity = (*_machine(), setting.provider, str(setting.threads), str(block), *also)
    return _cache.once(
        network, identity, lambda: _ort_graph.ask(network, block, threads=setting.threads)
    )


def too_large(network: Network) -> str:
    """Say why a network has too many weights for ONNX Runtime to copy; empty if it has not."""
    weight_bytes = embedded_weight_bytes(network)
    if weight_bytes <= MAX_COPIED_WEIGHT_BYTES:
        return ""
    return f"it would have to copy {format_bytes(weight_bytes)} of weights"


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Give each layer the layout that ONNX Runtime would choose."""
    block = int(setting.options.get("nchwc_block", "0"))
    return [_ort_rules.lower_layer(layer, block) for layer in layers]


@cache
def block_size(*, threads: int) -> int:
    """Channels per block of this machine's NCHWc layout; 0 if ONNX Runtime has none."""
    name = disk_cache.name_of("block", disk_cache.code_state("lowering"), *_machine(), threads)
    found = disk_cache.load("lowering", name)
    if not isinstance(found, int):
        found = _ort_graph.block_size(threads=threads)
        disk_cache.store("lowering", name, found)
    return found


def _same_layout(setting: Setting, platform: Platform) -> bool:
    """Whether this host's ONNX Runtime lowers alike despite another instruction set.

    Within one architecture, only the block size of its layout depends on the instruction set.
    """
    families = {
        each.partition("+")[0] in X86 for each in (platform.instruction_set, instruction_set())
    }
    block = setting.options.get("nchwc_block")
    return families == {True} and block == str(block_size(threads=max(setting.threads, 1)))


def _difference(setting: Setting, platform: Platform) -> str:
    """Say why this host's ONNX Runtime may lower differently; empty if it does not."""
    import onnxruntime

    if setting.framework_version != onnxruntime.__version__:
        return f"version {onnxruntime.__version__} here, {setting.framework_version} there"
    if platform.instruction_set != instruction_set() and not _same_layout(setting, platform):
        return f"instruction set {instruction_set()} here, {platform.instruction_set} there"
    return ""
