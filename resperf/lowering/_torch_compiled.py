"""What ``torch.compile`` fuses: element-wise operators and reductions over the same values.

An operator joins the kernel that computes its latest input, if that is no product or convolution
and if nothing else that it reads is computed in between. Copies of what such a kernel computes are
written by it.
"""

from __future__ import annotations

import math
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

    @property
    def is_open(self) -> bool:
        """Whether another operator may join."""
        return all(kernel.op in FUSED for kernel in self.kernels)


def fused_kernels(kernels: Sequence[TorchKernel]) -> list[list[TorchKernel]]:
    """Return the kernels of a compiled network: each a list of eager ones.

    Parameters
    ----------
    kernels : sequence of TorchKernel
        Of the eager network, in order.
    """
    groups: list[_Group] = []
    maker: dict[str, int] = {}
    for kernel in kernels:
        place = _place(kernel, groups, maker)
        if place is None:
            place = len(groups)
            groups.append(_Group(_values(kernel)))
        groups[place].kernels.append(kernel)
        maker.update(dict.fromkeys(kernel.writes, place))
    return [group.kernels for group in groups]


def _place(kernel: TorchKernel, groups: list[_Group], maker: dict[str, int]) -> int | None:
    """Return the group that a kernel joins; None for a new one."""
    if kernel.op not in FUSED:
        return None
    before = sorted({maker[name] for name in kernel.reads if name in maker})
    if not before:
        return None
    latest = before[-1]
    same = groups[latest].values == _values(kernel)
    return latest if same and groups[latest].is_open else None


def _values(kernel: TorchKernel) -> int:
    """Return how many values a kernel computes with: those of its largest tensor."""
    shapes = [each.shape for each in kernel.operator.inputs if each is not None]
    shapes += [shape for shape in kernel.operator.outputs if shape is not None]
    return max((math.prod(shape) for shape in shapes), default=0)
