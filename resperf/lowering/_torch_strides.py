"""Which memory a tensor of PyTorch views: strides, as its view operators compute them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Strided:
    """A tensor's shape and strides, in values.

    Attributes
    ----------
    shape, strides : tuple of int
        A stride of 0 repeats one value along an axis.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        """Whether values lie in memory in order, without gaps."""
        expected = 1
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != expected:
                return False
            expected *= length
        return True

    @property
    def order(self) -> tuple[int, ...]:
        """Axes from the largest stride to the smallest; equal ones in the order of the shape."""
        return tuple(sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]))

    @property
    def is_dense(self) -> bool:
        """Whether values lie in memory without gaps or repetition, in any order of the axes."""
        axes = [axis for axis in self.order if self.shape[axis] != 1]
        return self.permuted(axes).is_contiguous if axes else True

    @property
    def has_rows(self) -> bool:
        """Whether all axes but the last can be viewed as one, as products with a matrix ask."""
        leading = zip(self.strides, self.strides[1:-1], self.shape[1:-1], strict=False)
        return all(stride == inner * length for stride, inner, length in leading)

    def permuted(self, axes: Sequence[int]) -> Strided:
        """Return the view with its axes in another order; axes that are left out are dropped."""
        return Strided(
            tuple(self.shape[axis] for axis in axes), tuple(self.strides[axis] for axis in axes)
        )

    def sliced(self, shape: tuple[int, ...], steps: Sequence[int]) -> Strided:
        """Return the view of every `steps`-th value along each axis."""
        return Strided(shape, tuple(s * step for s, step in zip(self.strides, steps, strict=True)))

    def expanded(self, shape: tuple[int, ...]) -> Strided:
        """Return the view that repeats axes of length 1."""
        missing = len(shape) - len(self.shape)
        old = (1,) * missing + self.shape
        strides = (0,) * missing + self.strides
        return Strided(
            shape,
            tuple(
                stride if length == new else 0
                for length, new, stride in zip(old, shape, strides, strict=True)
            ),
        )

    def viewed(self, shape: tuple[int, ...]) -> Strided | None:
        """Return the view in another shape; None where only a copy has it."""
        if math.prod(self.shape) == 0:
            return contiguous(shape)
        # Neighbouring axes whose values follow each other: length and smallest stride.
        blocks: list[tuple[int, int]] = []
        for length, stride in zip(self.shape, self.strides, strict=True):
            if length != 1 and blocks and blocks[-1][1] == length * stride:
                blocks[-1] = (blocks[-1][0] * length, stride)
            elif length != 1:
                blocks.append((length, stride))
        strides: list[int] = []
        left = list(shape)
        for length, stride in reversed(blocks or [(1, 1)]):
            taken = 1
            while left and (taken < length or left[-1] == 1):
                strides.append(stride * taken)
                taken *= left.pop()
            if taken != length:
                return None
        if math.prod(left) != 1:
            return None
        strides += [1] * len(left)
        return Strided(shape, tuple(reversed(strides)))


def contiguous(shape: tuple[int, ...]) -> Strided:
    """Return a tensor whose values lie in memory in order."""
    strides, total = [], 1
    for length in reversed(shape):
        strides.append(total)
        total *= max(length, 1)
    return Strided(shape, tuple(reversed(strides)))


def like(shape: tuple[int, ...], operands: Sequence[Strided]) -> Strided:
    """Return the result of an element-wise operator: in the order of its operand's axes.

    The first operand with the shape of the result decides.
    """
    for operand in operands:
        if operand.shape == shape and not operand.is_contiguous and 0 not in operand.strides:
            order = operand.order
            plain = contiguous(tuple(shape[axis] for axis in order))
            strides = [0] * len(shape)
            for axis, stride in zip(order, plain.strides, strict=True):
                strides[axis] = stride
            return Strided(shape, tuple(strides))
        if operand.shape == shape:
            break
    return contiguous(shape)
