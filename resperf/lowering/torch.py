"""PyTorch's lowering on CUDA devices as stored rules: eager, with autocast, or compiled.

Eager PyTorch runs one kernel per operator of the network (`resperf.network.canonical`), with
``precision=amp`` also the casts of autocast. Compiled, chains of element-wise operators and
reductions are one kernel. The rules hold the network in the file: an exporter that folds
normalisations into convolutions saves time that the eager network takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from resperf.errors import LayerError, UnsupportedError
from resperf.layers import Layer
from resperf.lowering._base import LoweredNetwork, LoweredNode, answer
from resperf.lowering._torch_attention import attention_in_parts, unfused_attention_in_parts
from resperf.lowering._torch_autocast import HALF, SINGLE, autocast
from resperf.lowering._torch_compiled import fused_kernels
from resperf.lowering._torch_eager import TorchKernel, eager_kernels
from resperf.network import Network, Rewritten
from resperf.network.canonical import canonical
from resperf.platform import Platform
from resperf.settings import Setting

COMPILED = frozenset({"dynamo", "inductor"})
_TYPES = {"fp16": HALF, "bf16": "bfloat16"}
_FUSED_ATTENTION_SINCE = (2,)
"""First version with a kernel of its own for scaled-dot-product attention."""
_UNKNOWN_VERSION = (1 << 20,)


def lower_layers(layers: Sequence[Layer], _setting: Setting) -> list[Layer]:
    """Lower layers one by one: PyTorch runs them as they are."""
    return list(layers)


def lower(
    network: Network, setting: Setting, _platform: Platform, *, method: str = "auto"
) -> LoweredNetwork:
    """Lower a network by rules.

    Parameters
    ----------
    network : Network
    setting : Setting
        Its precision, version and whether it is compiled decide what runs.
    method : {"auto", "rules"}

    Raises
    ------
    UnsupportedError
        If another method is requested.
    """
    if method not in ("auto", "rules"):
        raise UnsupportedError(
            f"lowering method {method!r} does not exist for PyTorch, which is not asked what it "
            "runs; use rules"
        )
    joined, kernels = _kernels(network, setting)
    original = {node.name for node in network.nodes}
    nodes: list[LoweredNode] = []
    groups = fused_kernels(kernels) if setting.compiled in COMPILED else [[k] for k in kernels]
    for group in groups:
        names = [kernel.source for kernel in group if kernel.source]
        sources = tuple(
            each for name in names for each in joined.sources.get(name, (name,)) if each in original
        )
        nodes.append(_lowered(group, sources))
    return answer(network, nodes, "rules", _notes(network))


def _notes(network: Network) -> tuple[str, ...]:
    """Say where the file may differ from the module that it was exported from."""
    ops = {node.op for node in network.nodes}
    if "Conv" not in ops or any("Norm" in op for op in ops):
        return ()
    return (
        "the file has no normalisations: if its exporter folded them into the convolutions, the "
        "module itself takes longer; what is predicted is the network in the file",
    )


def run_kernels(network: Network, setting: Setting) -> list[TorchKernel]:
    """Return the operators that eager PyTorch runs, with their shapes and types."""
    return _kernels(network, setting)[1]


def _kernels(network: Network, setting: Setting) -> tuple[Rewritten, list[TorchKernel]]:
    joined = canonical(network.with_weight_nodes())
    whole, version = joined.network, _version(setting.framework_version)
    if version < _FUSED_ATTENTION_SINCE:
        whole = attention_in_parts(whole)
    whole = unfused_attention_in_parts(_in_precision(whole, setting.precision), version)
    return joined, eager_kernels(whole)


def _in_precision(network: Network, precision: str) -> Network:
    """Give tensors the types that they have in a precision."""
    if precision == "amp":
        return autocast(network)
    dtype = _TYPES.get(precision)
    if dtype is None:
        return network
    tensors = {
        name: replace(each, dtype=dtype) if each.dtype == SINGLE else each
        for name, each in network.tensors.items()
    }
    return replace(network, tensors=tensors)


def _version(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; later than all where it is unknown."""
    numbers = version.split(".")[:2]
    return tuple(map(int, numbers)) if all(map(str.isdigit, numbers)) else _UNKNOWN_VERSION


def _lowered(group: Sequence[TorchKernel], sources: tuple[str, ...]) -> LoweredNode:
    """Return the node of a kernel; of a fused one, what moves most bytes stands for all."""
    name, op = group[0].name, group[0].op if len(group) == 1 else "fused"
    layers, reasons = [], []
    for kernel in group:
        try:
            layers.append(kernel.layer())
        except (LayerError, UnsupportedError) as error:
            reasons.append(str(error))
    if not layers:
        return LoweredNode(name, op or "unknown", None, "unknown", reasons[0], sources)
    layer = max(layers, key=lambda each: each.moved_bytes)
    return LoweredNode(name, op, layer, "execution", sources=sources)
