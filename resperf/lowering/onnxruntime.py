"""Lowering for ONNX Runtime on the CPU: it is asked for the graph that it would run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from resperf.layers import Layer
from resperf.lowering import _cache, _ort_blocks, _ort_graph
from resperf.lowering._base import LoweredNetwork, answer
from resperf.lowering._proto import shared_weights, skeleton
from resperf.lowering._read import NCHWC
from resperf.network import Network, Node, Tensor
from resperf.platform import Platform, instruction_set
from resperf.settings import NCHWC_BLOCK, Setting

X86 = frozenset({"avx512f", "avx2", "avx", "sse4_2"})
"""Base instruction sets of one architecture."""


def lower(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    """Lower a network; see `resperf.lowering.lower`.

    The installed version is asked, also where the layers were measured with another one: a note
    says so.

    Raises
    ------
    UnsupportedError
        If ONNX Runtime cannot run the network.
    """
    inputs = network.inputs
    network = network.as_onnxruntime_runs()
    difference = _difference(setting, platform)
    notes = (f"lowered by ONNX Runtime, {difference}",) if difference else ()
    block = int(setting.options.get(NCHWC_BLOCK, "0"))
    shared = sorted(shared_weights(network).items())
    also = (str(shared),) if shared else ()
    identity = (installed(), instruction_set(), setting.provider, str(block), *also)
    nodes = _cache.once(network, identity, lambda: _ort_graph.ask(network, block))
    return answer(replace(network, inputs=inputs), nodes, installed(), notes)


def _difference(setting: Setting, platform: Platform) -> str:
    """Say why ONNX Runtime may make other layers here than there; empty if it does not."""
    import onnxruntime

    here, there = onnxruntime.__version__, setting.framework_version
    if here != there:
        return f"version {here} here, {there} there: it may fuse other operators there"
    here, there = instruction_set(), platform.instruction_set
    if here != there and not {name.partition("+")[0] for name in (here, there)} <= X86:
        return f"instruction set {here} here, {there} there: it may fuse other operators there"
    return ""


def installed() -> str:
    """Return the name and version of the installed ONNX Runtime."""
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Give each layer the layout that ONNX Runtime would choose."""
    block = int(setting.options.get(NCHWC_BLOCK, "0"))
    return [_ort_blocks.lower_layer(layer, block) for layer in layers]


@cache
def block_size() -> int:
    """Channels per block of ONNX Runtime's own layout on this machine; 0 where it has none."""
    shapes = {"x": (1, 4, 8, 8), "w": (1, 4, 1, 1), "y": (1, 1, 8, 8)}
    network = Network(
        name="block_size",
        nodes=(Node("conv", "Conv", "", ("x", "w"), ("y",), {}),),
        tensors={name: Tensor(name, shapes[name], "float32", None, name == "w") for name in shapes},
        inputs=("x",),
        outputs=("y",),
        opsets={"": 17},
        batch=1,
    )
    graph = _ort_graph.optimised_model(skeleton(network)).graph
    dims = {initializer.name: initializer.dims for initializer in graph.initializer}
    return next((dims[node.input[1]][0] for node in graph.node if node.domain == NCHWC), 0)
