"""Whether a network fits into a device's memory."""

from __future__ import annotations

from collections.abc import Mapping

from resperf.lowering._proto import shared_weights
from resperf.lowering._work import tensor_bytes
from resperf.network import Network
from resperf.network.canonical import canonical
from resperf.units import format_bytes

_SHARES: Mapping[str, tuple[float, float]] = {
    "amp": (1, 0.5), "fp16": (0.5, 0.5), "bf16": (0.5, 0.5), "int8": (0.25, 0.25)
}  # fmt: skip
"""Precision -> what float32 weights and other float32 values have of their bytes at least."""
_NOT_IN_PLACE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that read inputs until their end: others may write over them."""


def too_large(network: Network, precision: str, memory_bytes: float) -> str:
    """Say what of a network does not fit into memory; empty if it may fit.

    Counted are weights, inputs, outputs, and the values between operators that are alive at the
    same time, in the order of the file. Frameworks need more, for workspaces and themselves.

    Parameters
    ----------
    network : Network
    precision : str
        As in `resperf.settings.Setting`.
    memory_bytes : float
    """
    weight_bytes, value_bytes = _needed(network, precision)
    if weight_bytes + value_bytes > memory_bytes:
        # Attention that runs as one kernel holds no scores.
        weight_bytes, value_bytes = _needed(canonical(network).network, precision)
    if weight_bytes + value_bytes <= memory_bytes:
        return ""
    parts = [f"{format_bytes(weight_bytes)} of weights"] if weight_bytes else []
    if weight_bytes <= memory_bytes:
        parts.append(f"{format_bytes(value_bytes)} of inputs, outputs and values between operators")
    return f"{' and '.join(parts)} do not fit into {format_bytes(memory_bytes)}"


def _needed(network: Network, precision: str) -> tuple[float, float]:
    """Return the bytes of weights, and the most bytes of other values at once."""
    shared, shares = shared_weights(network), _SHARES.get(precision, (1, 1))
    computed = {name for node in network.nodes for name in node.outputs}
    weights, values = dict[str, float](), dict[str, float]()
    for name, tensor in network.tensors.items():
        is_weight = tensor.is_weight and name not in computed
        share = shares[not is_weight] if tensor.dtype == "float32" else 1
        sizes = weights if is_weight else values
        sizes[shared.get(name, name)] = max(0.0, tensor_bytes(tensor) * share)  # Texts have none.
    return sum(weights.values()), _most_alive(network, values)


def _most_alive(network: Network, sizes: Mapping[str, float]) -> float:
    """Return the most bytes of values that are alive at once; inputs and outputs always are."""
    last = {name: node.name for node in network.nodes for name in node.inputs}
    kept = {*network.inputs, *network.outputs}
    alive = most = sum(sizes.get(name, 0) for name in kept)
    for node in network.nodes:
        ends = {name for name in node.inputs if last[name] == node.name} - kept
        freed = sum(sizes.get(name, 0) for name in ends)
        written = sum(sizes.get(x, 0) for x in node.outputs if x in last and x not in kept)
        most = max(most, alive + written - freed * (node.op not in _NOT_IN_PLACE))
        alive += written - freed
    return most
