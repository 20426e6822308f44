"""Copies per run, and the cost of weights that are read from farther caches or memory."""

from __future__ import annotations

import json
import math

import pytest

from resperf.copies import (
    COLD_COPIES_BYTES,
    FOOTPRINTS_MB,
    MAX_COPIES,
    STORED_ROWS,
    StoredCopies,
    copies_of,
    weights_cost,
    weights_moved_ms,
)

MB = 1_000_000
COSTS = {weights_cost(mb): 0.001 * math.log2(mb / 2) for mb in FOOTPRINTS_MB}
"""A microsecond per MB and doubling of the footprint."""


@pytest.mark.parametrize(
    ("one_ms", "weight_bytes", "copies"),
    [
        (0.1, 0, 10),  # fill a millisecond
        (1e-4, 0, MAX_COPIES),
        (5.0, 0, 1),
        (5.0, 1 * MB, 2),  # weights must not stay warm
        (0.1, 4 * MB, COLD_COPIES_BYTES // (4 * MB)),
        (1.0, 4 * MB, 10),  # as the time allows
        (0.01, 800 * MB, 1),  # as memory allows
    ],
)
def test_copies_fill_a_run_and_evict_each_other(
    one_ms: float, weight_bytes: int, copies: int
) -> None:
    assert copies_of(one_ms, weight_bytes) == copies


def test_weights_of_a_small_network_are_in_nearer_caches_than_those_of_copies() -> None:
    # 64 copies of 4 MB were measured; the network reads 16 MB, four doublings fewer.
    moved_ms = weights_moved_ms(COSTS, 16 * MB, [0.1], [4 * MB], [False])
    assert moved_ms == pytest.approx([-4 * 4 * 0.001])


def test_weights_of_a_large_network_are_farther_than_those_of_few_copies() -> None:
    # Two copies of 4 MB were measured, as each takes 5 ms.
    slow = ([5.0, 5.0], [4 * MB, 4 * MB], [False, False])
    moved_ms = weights_moved_ms(COSTS, 128 * MB, *slow)
    assert moved_ms == pytest.approx([4 * 4 * 0.001] * 2)
    # Beyond the measured footprints, the cost is constant.
    beyond = weights_moved_ms(COSTS, 1e12, *slow)
    assert beyond == pytest.approx(weights_moved_ms(COSTS, 256 * MB, *slow))


def test_all_copies_of_small_packed_weights_read_the_same_memory() -> None:
    # 50 copies of 0.2 MB hold 10 MB, but packed ones only 0.2.
    packed, apart = (
        weights_moved_ms(COSTS, 32 * MB, [0.02], [MB // 5], [each])[0] for each in (True, False)
    )
    assert packed == pytest.approx(0.2 * 4 * 0.001)
    assert apart == pytest.approx(0.2 * math.log2(32 / 10) * 0.001)


def test_the_cost_of_weights_never_falls_with_the_footprint() -> None:
    noisy = {**COSTS, weights_cost(64): 0.0}
    moved_ms = weights_moved_ms(noisy, 64 * MB, [5.0], [4 * MB], [False])
    assert moved_ms == pytest.approx([4 * (math.log2(32 / 2) - 2) * 0.001])


def test_without_measured_costs_nothing_changes() -> None:
    assert list(
        weights_moved_ms({"overhead_ms_per_layer": 1.0}, 16 * MB, [0.1], [4 * MB], [False])
    ) == [0.0]


def test_stored_copies_count_instead_of_assumed_ones() -> None:
    # 64 copies of 4 MB would be assumed; two were measured, 8 MB: one doubling from 16.
    stored = StoredCopies.of([0.1, 0.1], [4 * MB, 0], [2, 7])
    assert stored == StoredCopies((0.1,), (4 * MB,), (2,))
    copies = [stored.of_layer(0.12, 5 * MB)]
    assert copies == [2]
    moved_ms = weights_moved_ms(COSTS, 16 * MB, [0.1], [4 * MB], [False], copies)
    assert moved_ms == pytest.approx([4 * 1 * 0.001])
    assumed = weights_moved_ms(COSTS, 16 * MB, [0.1], [4 * MB], [False], [None])
    assert assumed == pytest.approx(weights_moved_ms(COSTS, 16 * MB, [0.1], [4 * MB], [False]))


def test_the_copies_of_the_layer_most_like_one_are_taken() -> None:
    stored = StoredCopies.of([0.1, 10.0, 0.1], [MB, MB, 64 * MB], [50, 2, 4])
    assert stored is not None
    assert [stored.of_layer(*asked) for asked in [(0.2, MB), (5.0, 2 * MB), (0.1, 30 * MB)]] == [
        50, 2, 4,
    ]  # fmt: skip
    assert StoredCopies.from_json(json.loads(json.dumps(stored.to_json()))) == stored


def test_a_bundle_holds_the_copies_of_few_layers() -> None:
    rows = 1000
    stored = StoredCopies.of([1.0] * rows, list(range(1, rows + 1)), [3] * rows)
    assert stored is not None
    assert len(stored.copies) == STORED_ROWS
    assert (stored.weight_bytes[0], stored.weight_bytes[-1]) == (1, rows)
    assert StoredCopies.of([1.0], [5], [0]) is None


def test_damaged_copies_are_refused() -> None:
    with pytest.raises(ValueError, match="damaged"):
        StoredCopies.from_json({"times_ms": [1.0], "weight_bytes": [1, 2], "copies": [1]})
