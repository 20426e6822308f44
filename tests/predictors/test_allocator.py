"""PyTorch's caching allocator, by hand."""

from __future__ import annotations

import pytest

from resperf.lowering._torch_memory import Allocation, StepMemory
from resperf.predictors._allocator import CachingAllocator, peaks_of

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
    ],
)
def test_a_segment_depends_on_the_size(size: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert allocator.reserved == reserved


def test_sizes_are_rounded_to_512_bytes() -> None:
    allocator = CachingAllocator()
    assert [allocator.allocate(size).size for size in (0, 1, 512, 513)] == [512, 512, 512, 1024]
    assert allocator.reserved == 2 * MIB


def test_the_smallest_block_that_is_large_enough_is_split() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(25 * MIB) is small
    # 5 MiB are left of it, which serve the next one.
    assert allocator.allocate(4 * MIB).before is small
    assert allocator.allocate(35 * MIB) is large
    assert allocator.reserved == 70 * MIB


def test_a_rest_of_up_to_one_mib_is_not_split_from_a_large_block() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(12 * MIB)
    allocator.free(block)
    assert allocator.allocate(11 * MIB).size == 12 * MIB


def test_free_neighbours_are_joined() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(6 * MIB) for _ in range(3)]
    assert allocator.reserved == 20 * MIB
    for block in (blocks[0], blocks[2], blocks[1]):
        allocator.free(block)
    assert allocator.allocate(20 * MIB - 512).size == 20 * MIB
    assert allocator.reserved == 20 * MIB


def test_small_tensors_do_not_take_from_large_segments() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(15 * MIB))
    allocator.allocate(MIB // 2)
    assert allocator.reserved == 16 * MIB + 2 * MIB


def test_peaks_of_a_step() -> None:
    """Weights stay; y takes the place of x in the second step, and z is never there with both."""
    memory = StepMemory(
        [Allocation("weights", 16 * MIB), Allocation("x", 30 * MIB), Allocation("y", 20 * MIB)],
        resident=1, events=[0, 1, 2, ~1, ~2],
    )  # fmt: skip
    peaks = peaks_of(memory)
    assert peaks.allocated_bytes == 66 * MIB
    assert peaks.reserved_bytes == 66 * MIB
    assert list(peaks.groups.items()) == [("x", 30 * MIB), ("y", 20 * MIB), ("weights", 16 * MIB)]


def test_of_equal_blocks_the_one_at_the_lowest_address_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(12 * MIB) for _ in range(3)]
    for block in (blocks[1], blocks[2], blocks[0]):
        allocator.free(block)
    assert allocator.allocate(12 * MIB) is blocks[0]
