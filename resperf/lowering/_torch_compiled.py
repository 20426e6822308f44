"""What ``torch.compile`` fuses: element-wise operators and reductions over the same values.

An operator joins the kernel that computes its latest input, if that is no product or convolution
and if nothing else that it reads is computed in between. A kernel of which nothing else reads the
results, such as the normalisation of a shortcut, becomes part of the one that reads them. Copies of
what such a kernel computes are written by it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from resperf.lowering._torch_eager import POINTWISE_KERNELS, TorchKernel

REDUCTIONS = frozenset({
    "_log_softmax", "_softmax", "amax", "amin", "linalg_vector_norm", "mean", "native_group_norm",
    "native_layer_norm", "prod", "sum",
})  # fmt: skip
FUSED = REDUCTIONS | POINTWISE_KERNELS | {"clone", "constant_pad_nd", "native_batch_norm", "roll"}
"""Operators that become part of generated kernels; all others are calls of libraries."""


@dataclass
class _Group:
    values: int
    kernels: list[TorchKernel] = field(default_factory=list)

    def accepts(self, values: int) -> bool:
        """Whether an operator on so many values may join."""
        return self.values == values and all(kernel.op in FUSED for kernel in self.kernels)

    @property
    def written(self) -> list[str]:
        """Tensors that its operators compute."""
        return [name for kernel in self.kernels for name in kernel.writes]

    def absorb(self, other: _Group, read: Counter[str]) -> None:
        """Compute what another group does, if nothing else reads it.

        Parameters
        ----------
        other : _Group
            Empty afterwards if it was absorbed.
        read : Counter of str
            How often the network reads each tensor.
        """
        here = Counter(name for kernel in (*other.kernels, *self.kernels) for name in kernel.reads)
        if all(here[name] == read[name] for name in other.written):
            self.kernels[:0] = other.kernels
            other.kernels = []


def fused_kernels(kernels: Sequence[TorchKernel]) -> list[list[TorchKernel]]:
    """Return the kernels of a compiled network: each a list of eager ones.

    Parameters
    ----------
    kernels : sequence of TorchKernel
        Of the eager network, in order.
    """
    groups: list[_Group] = []
    maker: dict[str, int] = {}
    read = Counter(name for kernel in kernels for name in kernel.reads)
    for kernel in kernels:
        before = sorted({maker[name] for name in kernel.reads if name in maker})
        shapes = [x.shape for x in kernel.operator.inputs if x is not None]
        shapes += [shape for shape in kernel.operator.outputs if shape is not None]
        # It computes with as many values as its largest tensor has.
        values = max(map(math.prod, shapes), default=0)
        fuses = kernel.op in FUSED
        index = (
            before[-1] if fuses and before and groups[before[-1]].accepts(values) else len(groups)
        )
        if index == len(groups):
            groups.append(_Group(values))
        group = groups[index]
        group.kernels.append(kernel)
        for other in before:
            if fuses and other != index and groups[other].accepts(values):
                group.absorb(groups[other], read)
        maker.update(dict.fromkeys(group.written, index))
    return [group.kernels for group in groups if group.kernels]
