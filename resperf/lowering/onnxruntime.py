"""Lowering for ONNX Runtime on the CPU: it is asked for the graph that it would run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from resperf import disk_cache
from resperf.layers import Layer
from resperf.lowering import _cache, _ort_blocks, _ort_graph
from resperf.lowering._base import LoweredNetwork, LoweredNode, answer
from resperf.lowering._proto import embedded_weight_bytes, shared_weights
from resperf.network import Network
from resperf.platform import Platform, instruction_set
from resperf.settings import NCHWC_BLOCK, Setting

X86 = frozenset({"avx512f", "avx2", "avx", "sse4_2"})
"""Base instruction sets of one architecture."""
MAX_COPIED_WEIGHT_BYTES = 100_000_000
"""With more weights than that, ONNX Runtime is asked for its graph without blocked layouts, for
which it would copy them: two seconds and 1.6 GB for a VGG-19."""


def lower(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    """Lower a network; see `resperf.lowering.lower`.

    The installed version is asked, also where the layers were measured with another one: a note
    says so.

    Raises
    ------
    UnsupportedError
        If ONNX Runtime cannot run the network.
    """
    network = network.with_unfolded_nodes()
    difference = _difference(setting, platform)
    notes = (f"lowered by ONNX Runtime, {difference}",) if difference else ()
    return answer(network, _ask(network, setting), installed(), notes)


def _difference(setting: Setting, platform: Platform) -> str:
    """Say why ONNX Runtime may make other layers here than there; empty if it does not."""
    import onnxruntime

    here, there = onnxruntime.__version__, setting.framework_version
    if here != there:
        return f"version {here} here, {there} there: it may fuse other operators there"
    here, there = instruction_set(), platform.instruction_set
    if here != there and not {each.partition("+")[0] for each in (here, there)} <= X86:
        return f"instruction set {here} here, {there} there: it may fuse other operators there"
    return ""


def installed() -> str:
    """Return the name and version of the installed ONNX Runtime."""
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


def _machine() -> tuple[str, str]:
    """Return the facts of this machine that ONNX Runtime's lowering depends on."""
    return installed(), instruction_set()


def _ask(network: Network, setting: Setting) -> list[LoweredNode]:
    """Return ONNX Runtime's own lowering in blocks of a setting's size, through the cache."""
    block = int(setting.options.get(NCHWC_BLOCK, "0"))
    shared = sorted(shared_weights(network).items())
    also = (str(shared),) if shared else ()
    own = block == block_size(threads=max(setting.threads, 1))
    copies = embedded_weight_bytes(network) <= MAX_COPIED_WEIGHT_BYTES
    ask = _ort_graph.ask if own and copies else _ort_graph.ask_for
    identity = (*_machine(), setting.provider, str(setting.threads), str(block), *also)
    return _cache.once(network, identity, lambda: ask(network, block, threads=setting.threads))


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Give each layer the layout that ONNX Runtime would choose."""
    block = int(setting.options.get(NCHWC_BLOCK, "0"))
    return [_ort_blocks.lower_layer(layer, block) for layer in layers]


@cache
def block_size(*, threads: int) -> int:
    """Channels per block of this machine's NCHWc layout; 0 if ONNX Runtime has none."""
    name = disk_cache.name_of("block", disk_cache.code_state("lowering"), *_machine(), threads)
    found = disk_cache.load("lowering", name)
    if not isinstance(found, int):
        found = _ort_graph.block_size(threads=threads)
        disk_cache.store("lowering", name, found)
    return found
