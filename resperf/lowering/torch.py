"""PyTorch's lowering as rules: eager, with autocast, or compiled.

Eager PyTorch runs one kernel per operator of the network (`resperf.network.canonical`), with
``precision=amp`` also the casts of autocast. Compiled, chains of element-wise operators and
reductions are one kernel. The rules hold the network in the file: an exporter that folds
normalisations into convolutions saves time that the eager network takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from resperf.errors import LayerError, Message, UnsupportedError
from resperf.layers import Activation, Layer
from resperf.layers._base import FieldValue
from resperf.layers._sliding import WindowLayer
from resperf.lowering._base import (
    LoweredNetwork,
    LoweredNode,
    answer,
    in_precision,
    largest,
    with_fields,
)
from resperf.lowering._torch_attention import attention_in_parts, unfused_attention_in_parts
from resperf.lowering._torch_autocast import HALF, SINGLE, autocast
from resperf.lowering._torch_compiled import fused_kernels
from resperf.lowering._torch_eager import TorchKernel, eager_run
from resperf.lowering._torch_notes import notes_of
from resperf.network import Network, Rewritten
from resperf.network.canonical import canonical
from resperf.platform import Platform
from resperf.settings import HALF_TYPES, Mode, Setting

RunTensors = tuple[Network, list[TorchKernel], tuple[str, ...]]
"""A network as it runs, its kernels, and the memory that its outputs lie in."""

COMPILED = frozenset({"dynamo", "inductor"})
_SINGLE_IN_AMP: Mapping[str, tuple[str, ...]] = {
    "norm": ("layer", "rms", "skip_layer", "skip_rms"), "softmax": (), "cumulate": (),
    "resize": (), "resize_nd": (), "reduce": ("sum", "prod", "l1", "l2", "log_sum_exp", "log_sum"),
    "elementwise": ("exp", "log", "pow", "square", "cube", "reciprocal"),
}  # fmt: skip
"""Kinds that autocast runs in single precision, all functions or some of them."""
_FUSED_ATTENTION_SINCE = (2,)
"""First version with a kernel of its own for scaled-dot-product attention."""
_UNKNOWN_VERSION = (1 << 20,)
"""Later than all versions: one that is no number is taken to have what the latest one has."""


AUTOCAST = "autocast"
"""Option of a setting: the type of autocast's products; float16 where it is not said."""


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    """Lower layers one by one: what PyTorch runs as operators of their own is left out.

    These are activations and residuals that a layer has besides its own work. Images get the
    setting's layout, and floats its half precision, where their kind has it.
    """
    return [_lowered_layer(layer, setting) for layer in layers]


def _lowered_layer(layer: Layer, setting: Setting) -> Layer:
    fields, changes = layer.fields(), dict[str, FieldValue]()
    if "activation" in fields and not isinstance(layer, Activation):
        changes["activation"] = "none"
    if "residual" in fields:
        changes["residual"] = False
    if _is_laid_out(layer, setting):
        changes["layout"] = setting.layout
    dtype = _dtype_of_layer(layer, setting)
    if dtype and fields.get("dtype") == SINGLE:
        changes["dtype"] = dtype
    return with_fields(layer, changes)


def _dtype_of_layer(layer: Layer, setting: Setting) -> str:
    """Return the type that a layer of floats has in a precision; empty for its own."""
    if setting.precision != "amp":
        return HALF_TYPES.get(setting.precision, "")
    functions = _SINGLE_IN_AMP.get(layer.kind)
    if functions is None or (functions and layer.fields().get("function") not in functions):
        return setting.options.get(AUTOCAST, HALF)
    return ""


def lower(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    """Lower a network by rules.

    Parameters
    ----------
    network : Network
    setting : Setting
        Its precision, version and whether it is compiled decide what runs.
    platform : Platform
        Its data sheet says how much of the time normalisations in pieces are.
    """
    network = _whole(network, setting)
    joined, kernels = _kernels(network, setting)
    original = {node.name for node in network.nodes}
    nodes: list[LoweredNode] = []
    groups = fused_kernels(kernels) if setting.compiled in COMPILED else [[k] for k in kernels]
    for group in groups:
        sources = tuple(
            source
            for kernel in group
            for source in joined.sources.get(kernel.source, (kernel.source,))
            if source in original
        )
        nodes.append(_lowered(group, sources, setting))
    apart = () if setting.compiled in COMPILED else nodes
    notes = notes_of(network, joined.network, apart, platform)
    casts = [node for node in apart if node.op == "_to_copy" and not node.sources]
    by_autocast = len(casts) * (setting.precision == "amp")
    return replace(answer(network, nodes, "rules", notes), by_autocast=by_autocast)


def run_kernels(network: Network, setting: Setting) -> list[TorchKernel]:
    """Return the operators that eager PyTorch runs, with their shapes and types."""
    return _kernels(network, setting)[1]


def run_tensors(network: Network, setting: Setting) -> RunTensors:
    """Return the network as it runs, its kernels, and the memory that its outputs lie in."""
    whole = _as_run(network, setting)[1]
    return whole, *eager_run(whole, **_how(setting))


def as_run(network: Network, setting: Setting) -> Network:
    """Return the operators that PyTorch is asked for; with ``amp`` without the casts it adds."""
    return _as_run(
        network, replace(setting, precision="" if setting.precision == "amp" else setting.precision)
    )[1]


def _kernels(network: Network, setting: Setting) -> tuple[Rewritten, list[TorchKernel]]:
    joined, whole = _as_run(network, setting)
    return joined, eager_run(whole, **_how(setting))[0]


def _how(setting: Setting) -> dict[str, bool]:
    return {"channels_last": setting.layout == "nhwc", "training": setting.mode is Mode.TRAINING}


def _as_run(network: Network, setting: Setting) -> tuple[Rewritten, Network]:
    joined = canonical(_whole(network, setting).with_weight_nodes())
    whole, version = joined.network, _version(setting.framework_version)
    if version < _FUSED_ATTENTION_SINCE:
        whole = attention_in_parts(whole)
    if setting.precision == "amp":
        whole = autocast(whole, setting.options.get(AUTOCAST, HALF))
    else:
        whole = in_precision(whole, setting.precision)
    return joined, unfused_attention_in_parts(whole, version)


def _whole(network: Network, setting: Setting) -> Network:
    """Add the operators that no output needs, where no compiler leaves them out."""
    return network if setting.compiled in COMPILED else network.with_dead_nodes()


def _version(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; later than all where it is unknown."""
    numbers = version.split(".")[:2]
    return tuple(map(int, numbers)) if all(map(str.isdigit, numbers)) else _UNKNOWN_VERSION


def _lowered(
    group: Sequence[TorchKernel], sources: tuple[str, ...], setting: Setting
) -> LoweredNode:
    """Return the node of a kernel, which may be a fused one."""
    name, op = group[0].name, group[0].op if len(group) == 1 else "fused"
    try:
        layer = largest(partial(_layer, kernel, setting) for kernel in group)
    except (LayerError, UnsupportedError) as error:
        return LoweredNode(name, op or "unknown", None, "unknown", Message.of(error), sources)
    return LoweredNode(name, op, layer, "execution", sources=sources)


def _layer(kernel: TorchKernel, setting: Setting) -> Layer:
    """Return the layer of a kernel; images have the setting's layout."""
    layer = kernel.layer()
    return layer.replace(layout=setting.layout) if _is_laid_out(layer, setting) else layer


def _is_laid_out(layer: Layer, setting: Setting) -> bool:
    if not setting.layout or not isinstance(layer, WindowLayer):
        return False
    return layer.fields().get("layout", setting.layout) != setting.layout
