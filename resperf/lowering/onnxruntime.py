"""Lowering for ONNX Runtime on the CPU: the graph that it optimises itself, or stored rules."""

from __future__ import annotations

from collections import Counter
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
from resperf.settings import NCHWC_BLOCK, Setting
from resperf.units import format_bytes

X86 = frozenset({"avx512f", "avx2", "avx", "sse4_2"})
"""Base instruction sets of one architecture."""
MAX_COPIED_WEIGHT_BYTES = 100_000_000
"""Networks with more convolution weights are lowered by rules: ORT would copy the weights."""
QUANTIZED_NOTE = (
    "stored rules do not fuse operators between QuantizeLinear and DequantizeLinear, so that the "
    "real time is shorter"
)


def lower(
    network: Network, setting: Setting, platform: Platform, *, method: str = "auto"
) -> LoweredNetwork:
    """Lower a network; see `resperf.lowering.lower`.

    ONNX Runtime of another version or architecture than the bundle's is asked as well. Where it
    makes other layers than the stored rules, a note says which.
    """
    network = network.with_unfolded_nodes()
    block = int(setting.options.get(NCHWC_BLOCK, "0"))
    why_rules = ""
    notes: tuple[str, ...] = ()
    if method == "auto":
        why_rules = too_large(network)
        if not why_rules:
            try:
                nodes = _ask(network, setting, block)
                notes = _unlike(network, nodes, _difference(setting, platform), block)
                return answer(network, nodes, installed(), notes)
            except UnsupportedError as error:
                why_rules = str(error)
        method = "rules"
    if method == "rules":
        if why_rules:
            notes = (f"lowered by stored rules, not by ONNX Runtime: {why_rules}",)
        if _is_quantised(network):
            notes = (*notes, QUANTIZED_NOTE)
        if has_half_precision(network):
            notes = (*notes, HALF_PRECISION_NOTE)
        nodes = _by_rules(network, block, cached=bool(why_rules))
        return answer(network, nodes, "rules", notes)
    if method != "framework":
        raise UnsupportedError(f"no lowering method {method!r}; use auto, framework or rules")
    return answer(network, _ask(network, setting, block), installed())


def _difference(setting: Setting, platform: Platform) -> str:
    """Say why ONNX Runtime may make other layers here than there; empty if it does not."""
    import onnxruntime

    here, there = onnxruntime.__version__, setting.framework_version
    if here != there:
        return f"version {here} here, {there} there"
    here, there = instruction_set(), platform.instruction_set
    if here != there and not {each.partition("+")[0] for each in (here, there)} <= X86:
        return f"instruction set {here} here, {there} there"
    return ""


def _is_quantised(network: Network) -> bool:
    return any(node.op in ("QuantizeLinear", "DequantizeLinear") for node in network.nodes)


def _unlike(
    network: Network, nodes: Sequence[LoweredNode], elsewhere: str, block: int
) -> tuple[str, ...]:
    """Say which layers of ONNX Runtime as it is `elsewhere` are not those of the stored rules."""
    if not elsewhere:
        return ()
    asked = f"lowered by ONNX Runtime, {elsewhere}"
    if _is_quantised(network):
        return (f"{asked}: it may fuse int8 operators differently there",)
    try:
        expected = _layers(_by_rules(network, block, cached=True))
    except UnsupportedError:
        return (f"{asked}: which layers it makes there is not known",)
    found = _layers(nodes)
    if found == expected:
        return ()
    counted = "; ".join(
        f"{word}: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"
        for word, layers in (("only here", found - expected), ("only there", expected - found))
        if (kinds := _by_kind(layers))
    )
    return (
        f"{asked}: by the stored rules of version {_ort_rules.VERSION}, other layers run there "
        f"({counted}, of {expected.total()})",
    )


def _layers(nodes: Sequence[LoweredNode]) -> Counter[tuple[str, str]]:
    """Count kernels, by kind of layer (or operator) and key."""
    return Counter(
        (node.op, "") if node.layer is None else (node.layer.kind, node.layer.key)
        for node in nodes
        if node.role != "view"
    )


def _by_kind(layers: Counter[tuple[str, str]]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for (kind, _), count in layers.items():
        kinds[kind] += count
    return kinds


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
    """Return ONNX Runtime's own lowering in blocks of a size, through the cache."""
    shared = sorted(shared_weights(network).items())
    also = (str(shared),) if shared else ()
    own = block_size(threads=max(setting.threads, 1))
    ask = _ort_graph.ask if block == own else _ort_graph.ask_for
    identity = (*_machine(), setting.provider, str(setting.threads), str(block), *also)
    return _cache.once(network, identity, lambda: ask(network, block, threads=setting.threads))


def too_large(network: Network) -> str:
    """Say why a network has too many weights for ONNX Runtime to copy; empty if it has not."""
    weight_bytes = embedded_weight_bytes(network)
    if weight_bytes <= MAX_COPIED_WEIGHT_BYTES:
        return ""
    return f"it would have to copy {format_bytes(weight_bytes)} of weights"


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Give each layer the layout that ONNX Runtime would choose."""
    block = int(setting.options.get(NCHWC_BLOCK, "0"))
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
