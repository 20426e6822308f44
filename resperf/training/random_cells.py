"""Random networks of DARTS-like cells, on which GHN-2 learns to write weights.

Their primitives and cells are those of DeepNets-1M ("Parameter Prediction for Unseen Deep
Architectures", NeurIPS 2021, appendix A), scaled to what two cores train in an hour: 16-pixel
images, 8 or 16 channels, 3 to 6 cells, separable convolutions once instead of twice, and a
convolution of stride 2 where the others have a factorised reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
    channels: list[int] = field(default_factory=lambda: [3])

    def network(self) -> list[Primitive]:
        """Draw a stem, cells and a head."""
        rng = self.rng
        self.has_norm = rng.random() < 0.8
        width, self.pixels = int(rng.choice((8, 16))), PIXELS
        stem = self.conv(0, width, int(rng.choice((3, 5, 7))), int(rng.choice((1, 2))))
        self.pixels //= self.nodes[1].stride
        cells, sums = int(rng.integers(3, 7)), int(rng.integers(1, 4))
        states = (stem, stem)
        for cell in range(cells):
            reduces = cell in (cells // 3, 2 * cells // 3)
            width *= 2 if reduces else 1
            states = (states[1], self.cell(states, width, sums, 2 if reduces else 1))
        last = self.add("glob_avg", states[1], relu=bool(rng.random() < 0.5))
        if rng.random() < 0.5:
            last = self.weighted("conv", last, (2 * width, self.channels[last], 1, 1), norm=False)
        self.weighted(
            "conv",
            last,
            (CLASSES, self.channels[last], 1, 1),
            norm=False,
            relu=last > states[1] + 1,
        )
        return self.nodes

    def add(
        self, kind: str, *inputs: int, channels: int = 0, shape: tuple[int, ...] = (),
        stride: int = 1, dilation: int = 1, relu: bool = False,
    ) -> int:  # fmt: skip
        """Append a node; by default it has as many channels as its first input."""
        self.nodes.append(Primitive(kind, inputs, shape, stride, dilation, relu))
        self.channels.append(channels or self.channels[inputs[0]])
        return len(self.nodes) - 1

    def weighted(
        self, kind: str, x: int, shape: tuple[int, ...], *, norm: bool, stride: int = 1,
        dilation: int = 1, relu: bool = False,
    ) -> int:  # fmt: skip
        """Append a convolution, and a norm or else its bias."""
        x = self.add(
            kind, x, channels=shape[0], shape=shape, stride=stride, dilation=dilation, relu=relu
        )
        return self.add("bn" if norm and self.has_norm else "bias", x, shape=shape[:1])

    def conv(self, x: int, width: int, kernel: int, stride: int = 1, *, relu: bool = False) -> int:
        shape = (width, self.channels[x], kernel, kernel)
        return self.weighted("conv", x, shape, norm=True, stride=stride, relu=relu)

    def cell(self, inputs: tuple[int, int], width: int, sums: int, stride: int) -> int:
        """Append a cell: sums of two random operators each, concatenated."""
        before = [self.pixels_of(index) // self.pixels for index in inputs]
        states = [
            self.conv(index, width, 1, step, relu=True)
            for index, step in zip(inputs, before, strict=True)
        ]
        self.pixels //= stride
        for _ in range(sums):
            terms = []
            for chosen in self.rng.choice(len(states), 2, replace=False):
                step = stride if chosen < 2 else 1
                operator = _OPERATORS[self.rng.choice(list(_OPERATORS))]
                terms.append(operator(self, states[chosen], width, step))
            states.append(self.add("sum", *terms))
        if sums == 1:
            return states[2]
        return self.add("concat", *states[2:], channels=width * sums)

    def pixels_of(self, index: int) -> int:
        """Return the height of a node's output."""
        node = self.nodes[index]
        return self.pixels_of(node.inputs[0]) // node.stride if node.inputs else PIXELS

    def separable(self, x: int, width: int, stride: int, kernel: int, dilation: int) -> int:
        kind, shape = "sep_conv" if dilation == 1 else "dil_conv", (width, 1, kernel, kernel)
        x = self.add(kind, x, shape=shape, stride=stride, dilation=dilation, relu=True)
        return self.conv(x, width, 1)

    def two_lines(self, x: int, width: int, stride: int) -> int:
        x = self.add("conv", x, shape=(width, width, 1, 7), relu=True)
        return self.weighted("conv", x, (width, width, 7, 1), norm=True, stride=stride)

    def pool(self, kind: str, x: int, stride: int) -> int:
        return self.add(kind, x, stride=stride)

    def skip(self, x: int, width: int, stride: int) -> int:
        return x if stride == 1 else self.conv(x, width, 1, stride, relu=True)

    def gate(self, x: int, width: int, stride: int) -> int:
        x = self.skip(x, width, stride)
        inner = max(4, width // 4)
        gate = self.add("glob_avg", x)
        gate = self.weighted("conv", gate, (inner, width, 1, 1), norm=False)
        gate = self.weighted("conv", gate, (width, inner, 1, 1), norm=False, relu=True)
        return self.add("cse", x, gate)

    def attention(self, x: int, width: int, stride: int) -> int:
        x = self.skip(x, width, stride)
        if self.pixels_of(x) > 4:  # Attention over more than 16 places would be most of the time.
            return self.conv(x, width, 3, relu=True)
        y = self.add("pos_enc", x, shape=(width, 1, *(self.pixels_of(x),) * 2))
        y = self.add("ln", y, shape=(width,))
        parts = [self.weighted("conv", y, (width, width, 1, 1), norm=False) for _ in range(3)]
        y = self.add("msa", *parts)
        return self.weighted("conv", y, (width, width, 1, 1), norm=False)


_OPERATORS: Mapping[str, Callable[[_Drawing, int, int, int], int]] = {
    "max_pool": lambda self, x, _, stride: self.pool("max_pool", x, stride),
    "avg_pool": lambda self, x, _, stride: self.pool("avg_pool", x, stride),
    "skip": _Drawing.skip,
    "sep_3": lambda self, x, width, stride: self.separable(x, width, stride, 3, 1),
    "sep_5": lambda self, x, width, stride: self.separable(x, width, stride, 5, 1),
    "dil_3": lambda self, x, width, stride: self.separable(x, width, stride, 3, 2),
    "dil_5": lambda self, x, width, stride: self.separable(x, width, stride, 5, 2),
    **{
        f"conv_{kernel}": lambda self, x, width, stride, kernel=kernel: self.conv(  # type: ignore[misc]
            x, width, kernel, stride, relu=True
        )
        for kernel in (1, 3, 5, 7)
    },
    "conv_1x7_7x1": _Drawing.two_lines,
    "msa": _Drawing.attention,
    "cse": _Drawing.gate,
}
"""DARTS's primitives as DeepNets-1M extends them; `none` is an edge that is not drawn."""
