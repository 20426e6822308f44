"""Families of networks whose sizes a campaign draws: those that DNNPerf was judged on.

DNNPerf (Gao et al. 2023, section IV-A) took them from TF-Slim. Their layers are the same here, with
TF-Slim's paddings made symmetric.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from resperf.campaign.builder import Builder
from resperf.campaign.laws import Law
from resperf.campaign.spec import DrawnSpec
from resperf.errors import CampaignError

ATTEMPTS = 100
"""Draws for each network that is asked for: most may be duplicates or beyond the limits."""


class Draw:
    """Draws the sizes of one network, each by the law that its campaign gives it.

    Attributes
    ----------
    words : set of str
        What was drawn.
    """

    def __init__(self, laws: Mapping[str, Law], seed: str) -> None:
        self._laws, self._source = laws, random.Random(seed)
        self.words: set[str] = set()

    def __call__(self, word: str) -> Any:
        """Draw a size; again at every call.

        Raises
        ------
        CampaignError
            If there is no law for it.
        """
        self.words.add(word)
        if word not in self._laws:
            raise CampaignError(f"the networks have a size {word!r} too: add its values")
        return self._laws[word].draw(self._source)

    def images(self) -> Builder:
        """Begin a network of square images."""
        pixels = self("pixels")
        return Builder(self("channels"), pixels, pixels, batch=self("batch"))

    def scaled(self, channels: int) -> int:
        """Scale a number of channels."""
        percent: int = self("width_percent")
        return max(1, channels * percent // 100)


def _lenet(draw: Draw) -> Builder:
    net = draw.images().conv(draw.scaled(32), 5, 1, 2).relu().pool(2, 2)
    net.conv(draw.scaled(64), 5, 1, 2).relu().pool(2, 2)
    return net.flatten().dense(1024).relu().dropout().dense(10)


def _alexnet_v2(draw: Draw) -> Builder:
    net = draw.images().conv(draw.scaled(64), 11, 4).relu().pool(3, 2)
    net.conv(draw.scaled(192), 5, 1, 2).relu().pool(3, 2)
    for channels in (384, 384, 256):
        net.conv(draw.scaled(channels), 3, 1, 1).relu()
    return _classified(net.pool(3, 2), 4096)


def _overfeat(draw: Draw) -> Builder:
    net = draw.images().conv(draw.scaled(64), 11, 4).relu().pool(2, 2)
    net.conv(draw.scaled(256), 5).relu().pool(2, 2)
    for channels in (512, 1024, 1024):
        net.conv(draw.scaled(channels), 3, 1, 1).relu()
    return _classified(net.pool(2, 2), 3072)


def _classified(net: Builder, units: int) -> Builder:
    """Add dense layers as TF-Slim writes them: the first is a convolution of the whole image."""
    net.conv(units, net.shape[1:]).relu().dropout()
    return net.conv(4096, 1).relu().dropout().conv(1000, 1)


VGG = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def _vgg(draw: Draw) -> Builder:
    net = draw.images()
    for count, channels in zip(VGG[draw("depth")], (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            net.conv(channels, 3, 1, 1).relu()
        net.pool(2, 2)
    return _classified(net, 4096)


RESNET = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}


def _resnet(draw: Draw, *, norm_first: bool) -> Builder:
    """Build ResNet V1, or V2, which normalises before the convolutions."""
    net = draw.images()
    net = net.conv(64, 7, 2, 3) if norm_first else net.conv_norm(64, 7, 2).relu()
    net.pool(3, 2, 1)
    for stage, depth in enumerate(RESNET[draw("depth")]):
        for index in range(depth):
            # The last block of a stage has the stride, as in TF-Slim.
            stride = 2 if index == depth - 1 and stage < 3 else 1
            _bottleneck(net, 64 << stage, stride, norm_first)
    if norm_first:
        net.norm().relu()
    return net.average().conv(1000, 1)


def _bottleneck(net: Builder, width: int, stride: int, norm_first: bool) -> None:
    start = shortcut = net.at
    inner = net.norm().relu().at if norm_first else start
    if net.shape[0] != 4 * width:
        net.conv(4 * width, 1, stride, bias=norm_first)
        shortcut = (net if norm_first else net.norm()).at
    elif stride > 1:
        shortcut = net.go(start).pool(1, stride).at
    net.go(inner).conv_norm(width, 1).relu().conv_norm(width, 3, stride).relu()
    net.conv(4 * width, 1, bias=norm_first)
    if norm_first:
        net.add(shortcut)
    else:
        net.norm().add(shortcut).relu()


Step = Any
"""A pooling, a convolution by channels, kernel and stride (without padding where it has a stride),
or branches of steps."""


def _mixed_35(pooled: int) -> Step:
    """Return the branches of a block of 35 x 35 values."""
    return [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], ["average", (pooled, 1)]]


def _mixed_17(n: int) -> Step:
    wide, high = (1, 7), (7, 1)
    long = [(n, 1), (n, high), (n, wide), (n, high), (192, wide)]
    return [[(192, 1)], [(n, 1), (n, wide), (192, high)], long, ["average", (192, 1)]]


_SPLIT = [[(384, (1, 3))], [(384, (3, 1))]]
_MIXED_8 = [[(320, 1)], [(384, 1), _SPLIT], [(448, 1), (384, 3), _SPLIT], ["average", (192, 1)]]
INCEPTION: list[Step] = [
    (32, 3, 2), (32, 3, 1), (64, 3), "max", (80, 1), (192, 3, 1), "max",
    *map(_mixed_35, (32, 64, 64)),
    [[(384, 3, 2)], [(64, 1), (96, 3), (96, 3, 2)], ["max"]],
    *map(_mixed_17, (128, 160, 160, 192)),
    [[(192, 1), (320, 3, 2)], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)], ["max"]],
    _MIXED_8, _MIXED_8,
]  # fmt: skip


def _inception_v3(draw: Draw) -> Builder:
    """Build Inception V3 up to one of its 18 end points."""
    least, percent = draw("min_depth"), draw("width_percent")
    steps = INCEPTION[: draw("endpoint")]
    net = _inception(draw.images(), steps, lambda width: max(width * percent // 100, least))
    return net.average().dropout(0.2).conv(1000, 1)


def _inception(net: Builder, steps: list[Step], width: Callable[[int], int]) -> Builder:
    for step in steps:
        if step == "max":
            net.pool(3, 2)
        elif step == "average":
            net.pool(3, 1, 1, op="AveragePool")
        elif isinstance(step, list):
            start = net.at
            net.concat([_inception(net.go(start), branch, width).at for branch in step])
        else:
            channels, kernel, *strides = step
            kernels = (kernel, kernel) if isinstance(kernel, int) else kernel
            pads = (0, 0) if strides else tuple(size // 2 for size in kernels)
            stride = strides[0] if strides else 1
            net.conv(width(channels), kernels, stride, pads, bias=False).norm().relu()
    return net


def _recurrent(draw: Draw, cell: str) -> Builder:
    """Build layers of a cell on sequences, and a dense layer on their last output."""
    steps, batch, width = draw("steps"), draw("batch"), draw("features")
    net = Builder(steps, width, batch=batch)
    net.op("steps", "Transpose", (batch, width), perm=[1, 0, 2])
    for _ in range(draw("layers")):
        width, hidden = net.shape[-1], draw("hidden")
        gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[cell] * hidden
        weights = {"w": (1, gates, width), "r": (1, gates, hidden), "b": (1, 2 * gates)}
        own: dict[str, Any] = {"linear_before_reset": 1} if cell == "GRU" else {}
        net.op("cell", cell, (1, batch, hidden), weights, hidden_size=hidden, **own)
        net.op("squeeze", "Squeeze", (batch, hidden), {"axes": [1]})
        net.macs += batch * steps * gates * (width + hidden)
    return net.op("last", "Gather", net.shape[-1:], {"index": -1}, axis=0).dense(10)


def _searched(draw: Draw, cell: Callable[[Builder, Draw], object]) -> Builder:
    """Build cells of one type, poolings and Dropout between them, and dense layers."""
    net = draw.images()
    for _ in range(draw("cells")):
        cell(net, draw)
        if draw("pool") and net.shape[1] > 1:
            net.pool(2, 2)
        if draw("dropout"):
            net.dropout()
    net.flatten()
    for _ in range(draw("dense_layers")):
        net.dense(draw("units")).relu()
    return net.dense(10)


def _plain_conv(net: Builder, draw: Draw) -> None:
    kernel = draw("kernel")
    net.conv(draw("filters"), kernel, 1, kernel // 2).relu()


def _conv(net: Builder, draw: Draw) -> Builder:
    return net.conv_norm(draw("filters"), draw("kernel")).relu()


def _two(net: Builder, draw: Draw) -> None:
    _conv(_conv(net, draw), draw)


def _residual(net: Builder, draw: Draw) -> None:
    start = net.at
    end = _conv(net, draw).conv_norm(draw("filters"), draw("kernel")).at
    if start[1] != end[1]:
        start = net.go(start).conv_norm(end[1][0], 1).at
    net.go(end).add(start).relu()


def _dense(net: Builder, draw: Draw) -> None:
    for _ in range(2):
        net.concat([net.at, _conv(net, draw).at])


def _branches(net: Builder, draw: Draw) -> None:
    start = net.at
    ends = [_conv(net.go(start), draw).at for _ in range(3)]
    pooled = net.go(start).pool(3, 1, 1).conv_norm(draw("filters"), 1).relu().at
    net.concat([*ends, pooled])


def _separable(net: Builder, draw: Draw) -> None:
    for _ in range(2):
        net.conv_norm(net.shape[0], draw("kernel"), groups=net.shape[0])
        net.conv_norm(draw("filters"), 1).relu()


CELLS: Mapping[str, Callable[[Builder, Draw], object]] = {
    "chain": _plain_conv, "plain": _two, "residual": _residual, "dense": _dense,
    "inception": _branches, "separable": _separable,
}  # fmt: skip
"""The paper has chains and five types of cells in a figure that says no more: these are ours."""

Family = Callable[[Draw], Builder]
FAMILIES: Mapping[str, Family] = {
    "lenet": _lenet, "alexnet_v2": _alexnet_v2, "overfeat": _overfeat, "vgg": _vgg,
    "resnet_v1": partial(_resnet, norm_first=False), "resnet_v2": partial(_resnet, norm_first=True),
    "inception_v3": _inception_v3,
    **{cell.lower(): partial(_recurrent, cell=cell) for cell in ("RNN", "LSTM", "GRU")},
    **{f"nas_{name}": partial(_searched, cell=cell) for name, cell in CELLS.items()},
}  # fmt: skip
"""Family -> what builds a network of it from drawn sizes."""


def draw_networks(
    spec: DrawnSpec, seed: str, families: Mapping[str, Family] = FAMILIES
) -> list[tuple[str, bytes]]:
    """Draw different networks of each family; return them with their families.

    Raises
    ------
    CampaignError
        If a family is unknown or has no such size, or the sizes and limits allow too few networks.
    """
    drawn: list[tuple[str, bytes]] = []
    words: set[str] = set()
    for family in spec.families:
        if family not in families:
            raise CampaignError(f"no family {family!r}; it is one of {', '.join(families)}")
        networks: dict[bytes, None] = {}
        for attempt in range(ATTEMPTS * spec.count):
            draw = Draw(spec.laws, f"{seed} {family} {attempt}")
            net = families[family](draw)
            words |= draw.words
            if net.macs <= spec.largest_macs and net.parameters <= spec.largest_parameters:
                networks[net.model(family).SerializeToString(deterministic=True)] = None
            if len(networks) == spec.count:
                break
        else:
            raise CampaignError(
                f"the sizes and limits allow {len(networks)} networks of {family}, not "
                f"{spec.count}; widen them or lower its count"
            )
        drawn += [(family, content) for content in networks]
    if unused := sorted(set(spec.laws) - words):
        raise CampaignError(f"{', '.join(spec.families)} have no size {', '.join(unused)}")
    return drawn
