"""How many copies one run holds, and what weights cost that lie elsewhere than alone."""

from __future__ import annotations

import math

import pytest

from resperf.copies import (
    COLD_COPIES_BYTES,
    FOOTPRINTS_MB,
    MAX_COPIES,
    copies_of,
    weights_cost,
    weights_moved_ms,
)

MB = 1_000_000
COSTS = {weights_cost(mb): 0.001 * math.log2(mb / 2) for mb in FOOTPRINTS_MB}
"""A microsecond for each MB and each doubling of what is read in between."""


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
def test_copies_fill_a_run_and_push_each_other_out(
    one_ms: float, weight_bytes: int, copies: int
) -> None:
    assert copies_of(one_ms, weight_bytes) == copies


def test_weights_of_a_small_network_lie_nearer_than_those_of_copies() -> None:
    # 64 copies of 4 MB were measured; the network reads 16 MB, four doublings fewer.
    moved_ms = weights_moved_ms(COSTS, 16 * MB, [0.1], [4 * MB], [False])
    assert moved_ms == pytest.approx([-4 * 4 * 0.001])


def test_weights_of_a_large_network_lie_farther_than_those_of_few_copies() -> None:
    # Two copies of 4 MB were measured, as each takes 5 ms.
    slow = ([5.0, 5.0], [4 * MB, 4 * MB], [False, False])
    moved_ms = weights_moved_ms(COSTS, 128 * MB, *slow)
    assert moved_ms == pytest.approx([4 * 4 * 0.001] * 2)
    # Beyond what was measured nothing is known.
    beyond = weights_moved_ms(COSTS, 1e12, *slow)
    assert beyond == pytest.approx(weights_moved_ms(COSTS, 256 * MB, *slow))


def test_all_copies_of_small_packed_weights_read_the_same() -> None:
    # 50 copies of 0.2 MB hold 10 MB, but packed ones only 0.2.
    packed, apart = (
        weights_moved_ms(COSTS, 32 * MB, [0.02], [MB // 5], [each])[0] for each in (True, False)
    )
    assert packed == pytest.approx(0.2 * 4 * 0.001)
    assert apart == pytest.approx(0.2 * math.log2(32 / 10) * 0.001)


def test_what_is_read_more_rarely_never_costs_less() -> None:
    noisy = {**COSTS, weights_cost(64): 0.0}
    moved_ms = weights_moved_ms(noisy, 64 * MB, [5.0], [4 * MB], [False])
    assert moved_ms == pytest.approx([4 * (math.log2(32 / 2) - 2) * 0.001])


def test_nothing_moves_where_the_machine_was_not_asked() -> None:
    assert list(weights_moved_ms({"node_ms": 1.0}, 16 * MB, [0.1], [4 * MB], [False])) == [0.0]
