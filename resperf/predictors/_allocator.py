"""PyTorch's caching allocator on CUDA, as it serves a list of allocations.

Sizes are rounded to 512 bytes. Up to 1 MiB is taken from segments of 2 MiB, less than 10 MiB from
segments of 20 MiB, and what is larger from a segment of its own size in whole 2 MiB. The smallest
free block that is large enough is split; what is freed is joined with its free neighbours
(``c10/cuda/CUDACachingAllocator.cpp``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from resperf.lowering._torch_memory import StepMemory

_ROUND = 512
_MIB = 1 << 20
_SMALL, _SMALL_SEGMENT = _MIB, 2 * _MIB
_LARGE, _LARGE_SEGMENT = 10 * _MIB, 20 * _MIB
_SEGMENT_ROUND = 2 * _MIB
_STEPS = 2
"""Steps after which further ones reserve no more."""


def rounded(size_bytes: int) -> int:
    """Return what an allocation takes."""
    return max(_ROUND, -(-size_bytes // _ROUND) * _ROUND)


@dataclass(eq=False)
class Block:
    """A part of a segment, between its neighbours."""

    address: int
    size: int
    small: bool
    before: Block | None = None
    after: Block | None = None
    is_free: bool = False


class CachingAllocator:
    """Reserves segments and never returns them.

    Attributes
    ----------
    reserved : int
        Bytes of all segments.
    """

    def __init__(self) -> None:
        self.reserved = 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}

    def allocate(self, size_bytes: int) -> Block:
        """Return a block of at least so many bytes."""
        size = rounded(size_bytes)
        small = size <= _SMALL
        free = self._free[small]
        index = bisect_left(free, (size, 0))  # of equal blocks, the one at the lowest address
        if index < len(free):
            _, _, block = free.pop(index)
        else:
            block = Block(self.reserved, _segment_of(size), small)
            self.reserved += block.size
        block.is_free = False
        rest = block.size - size
        if rest >= _ROUND if small else rest > _SMALL:
            self._split(block, size)
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.small, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._add(rest)

    def _add(self, block: Block) -> None:
        block.is_free = True
        insort(self._free[block.small], (block.size, block.address, block))

    def free(self, block: Block) -> None:
        """Return a block."""
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                self._remove(other)
                self._join(block, other)
        self._add(block)

    def _remove(self, block: Block) -> None:
        free = self._free[block.small]
        free.pop(bisect_left(free, (block.size, block.address)))
        block.is_free = False

    def _join(self, block: Block, other: Block) -> None:
        block.size += other.size
        if other is block.after:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        else:
            block.address, block.before = other.address, other.before
            if block.before is not None:
                block.before.after = block


def _segment_of(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _LARGE:
        return _LARGE_SEGMENT
    return -(-size // _SEGMENT_ROUND) * _SEGMENT_ROUND


@dataclass(frozen=True)
class Peaks:
    """Most memory that a training step needs.

    Attributes
    ----------
    allocated_bytes : int
        Of all tensors at once.
    reserved_bytes : int
        Of the allocator's segments, which is never less.
    groups : mapping of str to int
        Bytes alive at the peak by what they are, the largest first.
    """

    allocated_bytes: int
    reserved_bytes: int
    groups: Mapping[str, int]


def peaks_of(memory: StepMemory) -> Peaks:
    """Serve the allocations of training steps one after the other."""
    allocator = CachingAllocator()
    blocks: dict[int, Block] = {}
    live = most = 0
    at_peak: list[int] = []
    for event in memory.events[: memory.resident] + memory.events[memory.resident :] * _STEPS:
        if event >= 0:
            block = blocks[event] = allocator.allocate(memory.allocations[event].size_bytes)
            live += block.size
            continue
        # The peak is right before the first tensor is freed.
        if live > most:
            most, at_peak = live, [*blocks]
        block = blocks.pop(~event)
        live -= block.size
        allocator.free(block)
    groups: Counter[str] = Counter()
    for number in at_peak:
        what, size_bytes = memory.allocations[number]
        groups[what] += rounded(size_bytes)
    return Peaks(sum(groups.values()), allocator.reserved, dict(groups.most_common()))
