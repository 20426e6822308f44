"""Random networks of DARTS-like cells, on which GHN-2 learns to write weights.

Their primitives and cells are those of DeepNets-1M ("Parameter Prediction for Unseen Deep
Architectures", NeurIPS 2021, appendix A), scaled to what two cores train in an hour: 16-pixel
images, 8 or 16 channels, 3 to 6 cells, separable convolutions once instead of twice, and a
convolution of stride 2 where the others have a factorised reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from resperf.features.primitives import PrimitiveGraph

CLASSES = 10
PIXELS = 16


@dataclass(frozen=True)
class Primitive:
    """One node: its type and weight shape as in `PrimitiveGraph`, and how it is run."""

    type: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...] = ()
    stride: int = 1
    dilation: int = 1
    relu: bool = False
    """Whether it reads the positive part of its input."""


def graph_of_primitives(nodes: Sequence[Primitive]) -> PrimitiveGraph:
    """Return the graph of nodes in order."""
    edges = {(source, target) for target, node in enumerate(nodes) for source in node.inputs}
    return PrimitiveGraph(
        tuple(node.type for node in nodes), tuple(node.shape for node in nodes), tuple(edges)
    )


def random_network(rng: np.random.Generator) -> list[Primitive]:
    """Draw a network of 3 to 6 cells for images of 16 pixels; the last node are the classes."""
    return _Drawing(rng).network()


@dataclass
class _Drawing:
    rng: np.random.Generator
    nodes: list[Primitive] = field(default_factory=lambda: [Primitive("input", ())])
    sizes: list[tuple[int, int]] = field(default_factory=lambda: [(3, PIXELS)])
    """Channels and height of each node's output."""

    def network(self) -> list[Primitive]:
        """Draw a stem, cells and a head."""
        rng = self.rng
        self.has_norm = rng.random() < 0.8
        width = int(rng.choice((8, 16)))
        stem = self.conv(0, width, int(rng.choice((3, 5, 7))), stride=int(rng.choice((1, 2))))
        cells, sums = int(rng.integers(3, 7)), int(rng.integers(1, 4))
        states = (stem, stem)
        for cell in range(cells):
            stride = 2 if cell in (cells // 3, 2 * cells // 3) else 1
            width *= stride
            states = (states[1], self.cell(states, width, sums, stride))
        mean = last = self.add("glob_avg", states[1], relu=bool(rng.random() < 0.5))
        if rng.random() < 0.5:
            last = self.conv(last, 2 * width, 1, norm=False)
        self.conv(last, CLASSES, 1, norm=False, relu=last > mean)
        return self.nodes

    def add(self, kind: str, *inputs: int, channels: int = 0, stride: int = 1, **how: Any) -> int:
        """Append a node; by default it has as many channels as its first input."""
        self.nodes.append(Primitive(kind, inputs, stride=stride, **how))
        same, height = self.sizes[inputs[0]]
        self.sizes.append((channels or same, height // stride))
        return len(self.nodes) - 1

    def weighted(
        self, x: int, *shape: int, kind: str = "conv", norm: bool = True, **how: Any
    ) -> int:
        """Append a convolution, and a norm or else its bias."""
        x = self.add(kind, x, channels=shape[0], shape=shape, **how)
        return self.add("bn" if norm and self.has_norm else "bias", x, shape=shape[:1])

    def conv(self, x: int, width: int, kernel: int, **how: Any) -> int:
        return self.weighted(x, width, self.sizes[x][0], kernel, kernel, **how)

    def cell(self, inputs: tuple[int, int], width: int, sums: int, stride: int) -> int:
        """Append a cell: sums of two random operators each, concatenated."""
        heights = [self.sizes[index][1] for index in inputs]
        states = [
            self.conv(index, width, 1, stride=height // heights[1], relu=True)
            for index, height in zip(inputs, heights, strict=True)
        ]
        for _ in range(sums):
            terms = []
            for chosen in self.rng.choice(len(states), 2, replace=False):
                operator = _OPERATORS[self.rng.choice(list(_OPERATORS))]
                terms.append(operator(self, states[chosen], width, stride if chosen < 2 else 1))
            states.append(self.add("sum", *terms))
        return states[2] if sums == 1 else self.add("concat", *states[2:], channels=width * sums)

    def separable(self, x: int, width: int, stride: int, kernel: int, dilation: int = 1) -> int:
        kind, shape = "sep_conv" if dilation == 1 else "dil_conv", (width, 1, kernel, kernel)
        x = self.add(kind, x, shape=shape, stride=stride, dilation=dilation, relu=True)
        return self.conv(x, width, 1)

    def two_lines(self, x: int, width: int, stride: int) -> int:
        x = self.add("conv", x, shape=(width, width, 1, 7), relu=True)
        return self.weighted(x, width, width, 7, 1, stride=stride)

    def skip(self, x: int, width: int, stride: int) -> int:
        return x if stride == 1 else self.conv(x, width, 1, stride=stride, relu=True)

    def gate(self, x: int, width: int, stride: int) -> int:
        x = self.skip(x, width, stride)
        gate = self.conv(self.add("glob_avg", x), max(4, width // 4), 1, norm=False)
        return self.add("cse", x, self.conv(gate, width, 1, norm=False, relu=True))

    def attention(self, x: int, width: int, stride: int) -> int:
        x = self.skip(x, width, stride)
        height = self.sizes[x][1]
        if height > 4:  # Attention over more than 16 places would be most of the time.
            return self.conv(x, width, 3, relu=True)
        y = self.add("pos_enc", x, shape=(width, 1, height, height))
        y = self.add("ln", y, shape=(width,))
        y = self.add("msa", *(self.conv(y, width, 1, norm=False) for _ in range(3)))
        return self.conv(y, width, 1, norm=False)


_OPERATORS: Mapping[str, Callable[[_Drawing, int, int, int], int]] = {
    "max_pool": lambda self, x, _, stride: self.add("max_pool", x, stride=stride),
    "avg_pool": lambda self, x, _, stride: self.add("avg_pool", x, stride=stride),
    "skip": _Drawing.skip,
    "sep_3": partial(_Drawing.separable, kernel=3),
    "sep_5": partial(_Drawing.separable, kernel=5),
    "dil_3": partial(_Drawing.separable, kernel=3, dilation=2),
    "dil_5": partial(_Drawing.separable, kernel=5, dilation=2),
    "conv_1": lambda self, x, width, stride: self.conv(x, width, 1, stride=stride, relu=True),
    "conv_3": lambda self, x, width, stride: self.conv(x, width, 3, stride=stride, relu=True),
    "conv_5": lambda self, x, width, stride: self.conv(x, width, 5, stride=stride, relu=True),
    "conv_7": lambda self, x, width, stride: self.conv(x, width, 7, stride=stride, relu=True),
    "conv_1x7_7x1": _Drawing.two_lines,
    "msa": _Drawing.attention,
    "cse": _Drawing.gate,
}
"""DARTS's primitives as DeepNets-1M extends them; `none` is an edge that is not drawn."""
