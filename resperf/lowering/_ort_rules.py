"""ONNX Runtime's lowering as stored rules, for hosts and files that cannot ask it.

They follow ONNX Runtime 1.31 on the CPU and cover convolution, pooling and matrix products with
what is fused into them; the tests hold them against ONNX Runtime's own graph.
"""

from __future__ import annotations

from resperf.layers import Conv, Layer, Pool, Reorder

CHANNEL_ALIGNMENT = 4
"""ReorderInput takes channels in fours; a convolution with others stays in NCHW."""


def lower_layer(layer: Layer, block: int) -> Layer:
    """Give one layer the layout that ONNX Runtime chooses where blocks hold `block` channels."""
    if isinstance(layer, Conv):
        return layer.replace(layout=_layout(is_blocked_conv(layer, block), block))
    if isinstance(layer, Pool):
        return layer.replace(layout=_layout(is_blocked_pool(layer, block), block))
    if isinstance(layer, Reorder) and block:
        if layer.layout == "nchw":
            return layer.replace(layout_out=f"nchwc{block}")
        return layer.replace(layout=f"nchwc{block}", layout_out="nchw")
    return layer


def _layout(blocked: bool, block: int) -> str:
    return f"nchwc{block}" if blocked else "nchw"


def is_blocked_conv(conv: Conv, block: int) -> bool:
    """Whether ONNX Runtime runs the convolution in its blocked layout."""
    if not block:
        return False
    taps = conv.channels_in // conv.groups
    if conv.groups == 1:
        return conv.channels_in < block or conv.channels_in % CHANNEL_ALIGNMENT == 0
    if taps == 1 and conv.channels_out == conv.groups:
        return conv.channels_in % CHANNEL_ALIGNMENT == 0
    return taps % block == 0 and (conv.channels_out // conv.groups) % block == 0


def reads_plain(conv: Conv, block: int) -> bool:
    """Whether a blocked convolution reads its image in NCHW: a network's first layers do."""
    return conv.groups == 1 and conv.channels_in < block


def is_blocked_pool(pool: Pool, block: int) -> bool:
    """Whether ONNX Runtime pools in its blocked layout."""
    return bool(block) and pool.channels_in % block == 0
