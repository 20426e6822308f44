"""Lowering for ONNX Runtime on the CPU: its own optimised graph, or stored rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from resperf import kept
from resperf.errors import UnsupportedError
from resperf.layers import Layer
from resperf.lowering import _cache, _ort_graph, _ort_rules
from resperf.lowering._base import LoweredNetwork, LoweredNode, answer
from resperf.lowering._ort_halves import NOTE as HALVES_NOTE
from resperf.lowering._ort_halves import has_halves
from resperf.lowering._proto import embedded_weight_bytes, skeleton
from resperf.network import Network
from resperf.platform import Platform, instruction_set
from resperf.settings import Setting
from resperf.units import format_bytes

X86 = frozenset({"avx512f", "avx2", "avx", "sse4_2"})
"""What the instruction sets of one architecture begin with."""
ASK_WEIGHT_BYTES = 100_000_000
"""Networks with more convolution weights than this are lowered by rules: ORT would copy them."""
QUANTIZED = (
    "stored rules do not know which operators between QuantizeLinear and DequantizeLinear become "
    "one: such a network is faster than this says; ask on a machine like the bundle's"
)


def lower(
    network: Network, setting: Setting, platform: Platform, *, method: str = "auto"
) -> LoweredNetwork:
    """Lower a network as `resperf.lowering.lower` says."""
    block = int(setting.options.get("nchwc_block", "0"))
    why_rules = ""
    if method == "auto":
        why_rules = _difference(setting, platform) or _too_large(network)
        if not why_rules:
            try:
                return lower(network, setting, platform, method="framework")
            except UnsupportedError as error:
                why_rules = str(error)
        method = "rules"
    if method == "rules":
        notes = (f"lowered by stored rules, not by ONNX Runtime: {why_rules}",) if why_rules else ()
        if any(node.op in ("QuantizeLinear", "DequantizeLinear") for node in network.nodes):
            notes = (*notes, QUANTIZED)
        if has_halves(network):
            notes = (*notes, HALVES_NOTE)
        nodes = _by_rules(network, block, keep=bool(why_rules))
        return answer(network, nodes, "rules", notes)
    if method != "framework":
        raise UnsupportedError(f"no lowering method {method!r}; use auto, framework or rules")
    return answer(network, _ask(network, setting, block), _installed())


def _by_rules(network: Network, block: int, *, keep: bool) -> list[LoweredNode]:
    """Return what the rules make of a network, kept where nobody asked for the rules themselves."""
    if not keep:
        return _ort_rules.lower_nodes(network, block)
    identity = ("rules", str(block))
    return _cache.once(network, identity, lambda: _ort_rules.lower_nodes(network, block))


def _installed() -> str:
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


def _machine() -> tuple[str, str]:
    """Return what decides on this machine what ONNX Runtime makes of a network."""
    return _installed(), instruction_set()


def _ask(network: Network, setting: Setting, block: int) -> list[LoweredNode]:
    """Return ONNX Runtime's answer, as it was kept where it was asked before."""
    identity = (*_machine(), setting.provider, str(setting.threads), str(block))
    return _cache.once(
        network,
        identity,
        lambda: _ort_graph.read_optimised(
            network,
            _ort_graph.optimised_graph(skeleton(network), threads=setting.threads),
            block,
        ),
    )


def _too_large(network: Network) -> str:
    """Say why ONNX Runtime is not asked about a network whose weights it would have to copy."""
    weight_bytes = embedded_weight_bytes(network)
    if weight_bytes <= ASK_WEIGHT_BYTES:
        return ""
    return f"it would have to copy {format_bytes(weight_bytes)} of weights"


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Give each layer the layout that ONNX Runtime would choose for it."""
    block = int(setting.options.get("nchwc_block", "0"))
    return [_ort_rules.lower_layer(layer, block) for layer in layers]


@cache
def block_size(*, threads: int) -> int:
    """Channels per block of this machine's NCHWc layout; 0 where ONNX Runtime has none."""
    name = kept.name_of("block", kept.code_state("lowering"), *_machine(), threads)
    found = kept.load("lowering", name)
    if not isinstance(found, int):
        found = _ort_graph.block_size(threads=threads)
        kept.store("lowering", name, found)
    return found


def _lays_alike(setting: Setting, platform: Platform) -> bool:
    """Whether this host's ONNX Runtime chooses the same nodes, though it has other instructions.

    On one architecture, only the channels of its blocked layout hang on them.
    """
    families = {
        each.partition("+")[0] in X86 for each in (platform.instruction_set, instruction_set())
    }
    block = setting.options.get("nchwc_block")
    return families == {True} and block == str(block_size(threads=max(setting.threads, 1)))


def _difference(setting: Setting, platform: Platform) -> str:
    """Say why this host's ONNX Runtime may lower otherwise than that of a setting and platform."""
    import onnxruntime

    if setting.framework_version != onnxruntime.__version__:
        return f"version {onnxruntime.__version__} here, {setting.framework_version} there"
    if platform.instruction_set != instruction_set() and not _lays_alike(setting, platform):
        return f"instruction set {instruction_set()} here, {platform.instruction_set} there"
    return ""
