"""Coverage of intervals, on rows that they were not calibrated on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resperf.predictors.intervals import (
    FEWEST_ROWS,
    MAX_BINS,
    MIN_ROWS_OF_KIND,
    Intervals,
    assumed,
    half_width,
    intervals_of_kinds,
    joined_spread,
    widened,
)


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Times whose short half is predicted four times as badly as the long half."""
    random = np.random.default_rng(seed)
    predicted = np.exp(random.uniform(-5, 3, rows))
    spread = np.where(predicted < math.exp(-1), 0.2, 0.05)
    return predicted * np.exp(spread * random.standard_normal(rows)), predicted


def test_intervals_contain_nine_of_ten_new_times_short_and_long_alike() -> None:
    intervals = Intervals.fit(*drawn(2000, 0))
    assert intervals is not None
    assert len(intervals.low) == MAX_BINS
    measured, predicted = drawn(20_000, 1)
    low, high = intervals.bounds(predicted, np.ones(len(predicted), dtype=bool))
    inside = (low <= measured) & (measured <= high)
    for part in (predicted < math.exp(-1.2), predicted > math.exp(-0.8)):
        assert inside[part].mean() == pytest.approx(0.9, abs=0.03)
    # Intervals of short layers are wider.
    widths = np.log(high / low)
    assert np.median(widths[predicted < 0.2]) > 3 * np.median(widths[predicted > 1])


def test_outside_the_trained_range_intervals_are_twice_as_wide() -> None:
    intervals = Intervals.fit(*drawn(500, 0))
    assert intervals is not None
    times = np.array([1.0, 1.0])
    low, high = intervals.bounds(times, np.array([True, False]))
    assert math.log(high[1]) == pytest.approx(2 * math.log(high[0]))
    assert math.log(low[1]) == pytest.approx(2 * math.log(low[0]))
    assert low[0] < 1 < high[0]


def test_a_biased_prediction_is_inside_its_own_interval() -> None:
    measured, predicted = drawn(400, 0)
    intervals = Intervals.fit(3 * measured, predicted)
    assert intervals is not None
    low, high = intervals.bounds(np.array([0.1, 0.1]), np.array([True, False]))
    assert low[0] == 0.1
    assert high[0] > 0.3
    # Outside the range it could err to that side as well.
    assert low[1] == pytest.approx(0.1 * math.exp(-0.1))


def test_too_few_rows_give_none_and_times_of_zero_do_not_count() -> None:
    measured, predicted = drawn(FEWEST_ROWS, 0)
    assert Intervals.fit(measured, predicted) is not None
    assert Intervals.fit(measured[1:], predicted[1:]) is None
    measured[0] = 0.0
    assert Intervals.fit(measured, predicted) is None
    low, high = assumed(np.array([3.0, 3.0]), np.array([True, False]))
    assert low == pytest.approx([1.5, 0.75])
    assert high == pytest.approx([6.0, 12.0])


def test_predictions_clipped_at_zero_have_an_interval() -> None:
    measured, predicted = drawn(400, 0)
    predicted[measured < 0.1] = 0.0
    intervals = Intervals.fit(measured, predicted)
    assert intervals is not None
    low, high = intervals.bounds(np.zeros(1), np.ones(1, dtype=bool))
    assert low[0] == 0.0
    assert 0.05 < high[0] < 0.2
    # The shortest of the other times have intervals as narrow as before.
    low, high = intervals.bounds(np.array([0.1]), np.ones(1, dtype=bool))
    assert 0.03 < low[0] < high[0] < 0.3


def of_kinds(
    layer_ci: dict[str, float], rows: int, random: np.random.Generator
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Kinds of different errors, with so many rows each."""
    predicted = {kind: np.exp(random.uniform(-5, 3, rows)) for kind in layer_ci}
    return {
        kind: (each * np.exp(layer_ci[kind] * random.standard_normal(rows)), each)
        for kind, each in predicted.items()
    }


def test_kinds_of_few_rows_cover_nine_of_ten_together_each_scaled_by_its_error() -> None:
    random = np.random.default_rng(5)
    inside, rows, spread = [], [], []
    for _ in range(60):
        layer_ci = {f"kind {n}": float(np.exp(random.uniform(-4, -0.5))) for n in range(20)}
        counts = {kind: int(random.choice([5, 8, 15, 35])) for kind in layer_ci}
        judged = {
            kind: pair for kind, each in layer_ci.items()
            for pair in of_kinds({kind: each}, counts[kind], random).values()
        }  # fmt: skip
        found = intervals_of_kinds(judged)
        assert found.keys() == layer_ci.keys()
        for kind, (measured, predicted) in of_kinds(layer_ci, 50, random).items():
            low, high = found[kind].bounds(predicted, np.ones(50, dtype=bool))
            inside.append(float(((low <= measured) & (measured <= high)).mean()))
            rows.append(counts[kind])
            spread.append(layer_ci[kind])
    shares, weights, spreads_of_all = np.array(inside), np.array(rows), np.array(spread)
    assert np.average(shares, weights=weights) == pytest.approx(0.9, abs=0.02)
    # Kinds of hardly any rows, those predicted worst, and those predicted best.
    assert shares[weights == 5].mean() > 0.87
    for part in (spreads_of_all > 0.3, spreads_of_all < 0.04):
        assert 0.85 < np.average(shares[part], weights=weights[part]) < 0.97


def test_rows_of_one_layer_in_several_sessions_count_once() -> None:
    # Ten cards were measured on the same eleven layers, of which one is far off on all cards.
    errors = np.array([*[0.01] * 10, 0.2])
    times = np.ones(11)
    judged = {f"card {n}": (times * np.exp(errors), times) for n in range(10)}
    numbers = dict.fromkeys(judged, range(11))
    apart, together = (intervals_of_kinds(judged, names)["card 0"] for names in ({}, numbers))
    # One in eleven rows may be outside; of eleven layers that is not shown.
    assert apart.high[0] < 0.1 < 0.2 < together.high[0]


def test_a_kind_of_many_rows_is_calibrated_by_itself() -> None:
    random = np.random.default_rng(6)
    layer_ci = {f"kind {n}": 0.5 for n in range(9)}
    judged = of_kinds(layer_ci, 10, random) | {"many": drawn(400, 0)}
    found = intervals_of_kinds(judged)
    assert found["many"] == Intervals.fit(*judged["many"])
    assert found["kind 1"].high[0] > 2 * max(found["many"].high)


def test_kinds_of_hardly_any_rows_have_no_intervals() -> None:
    random = np.random.default_rng(7)
    few = of_kinds(dict.fromkeys("abc", 0.1), FEWEST_ROWS // 3, random)
    assert intervals_of_kinds(few) == {}
    empty = np.array([])
    enough = few | of_kinds({"d": 0.1}, MIN_ROWS_OF_KIND, random) | {"nothing": (empty, empty)}
    enough |= of_kinds({"next to nothing": 0.1}, MIN_ROWS_OF_KIND - 1, random)
    assert intervals_of_kinds(enough).keys() == {*"abcd"}
    # Predictions clipped at zero have no relative error; the others do.
    measured, predicted = few["a"]
    more = enough | of_kinds({"e": 0.1}, 20, random)
    for cut, left in ((1, {*"abcde"}), (len(predicted), {*"bcde"})):
        zeros = np.where(np.arange(len(predicted)) < cut, 0.0, predicted)
        found = intervals_of_kinds(more | {"a": (measured, zeros)})
        assert found.keys() == left
        assert max(each.high[0] for each in found.values()) < 0.5
    # Exact predictions have intervals of no width.
    exact = {kind: (each, each) for kind, (_, each) in enough.items()}
    assert intervals_of_kinds(exact)["a"].high == (0.0,)


def test_equal_predictions_share_a_bin() -> None:
    measured, _ = drawn(400, 0)
    predicted = np.where(np.arange(400) < 300, 0.002, np.linspace(0.01, 1.0, 400))
    intervals = Intervals.fit(measured, predicted)
    assert intervals is not None
    # Six bins were wanted; the constant's three hundred rows leave two to the others.
    assert len(intervals.low) == 2
    assert intervals.edges_ms[0] > 0.7
    # A constant has one bin.
    constant = Intervals.fit(measured, np.full(400, 0.002))
    assert constant is not None
    assert constant.edges_ms == ()


def test_intervals_come_back_from_json_and_damaged_ones_are_refused() -> None:
    intervals = Intervals.fit(*drawn(300, 0))
    assert intervals is not None
    assert Intervals.from_json(intervals.to_json()) == intervals
    values = intervals.to_json()
    with pytest.raises(ValueError, match="do not fit their bins"):
        Intervals.from_json({**values, "low": [0.0]})
    for name, wrong in (
        ("low", [math.nan, *values["low"][1:]]),
        ("low", [0.1, *values["low"][1:]]),
        ("high", [-0.1, *values["high"][1:]]),
        ("edges_ms", values["edges_ms"][::-1]),
        ("share", 0.5),
    ):
        with pytest.raises(ValueError, match="damaged"):
            Intervals.from_json({**values, name: wrong})
    with pytest.raises(TypeError, match="low='x'"):
        Intervals.from_json({**values, "low": ["x", *values["low"][1:]]})


def test_a_new_group_is_as_uncertain_as_groups_not_rows_say() -> None:
    """Three groups at 0.2 below, at, and 0.2 above: their outer twentieths are at the outer two."""
    few = [np.full(4, each) for each in (-0.2, 0.0, 0.2)]
    intervals = Intervals.of_groups(few)
    assert intervals is not None
    # Student's t with two degrees of freedom is 2.920 at 95%, the normal distribution 1.645.
    reach = 0.2 * 2.920 / 1.645 * math.sqrt(1 + 1 / 3)
    assert (-intervals.low[0], intervals.high[0]) == pytest.approx((reach, reach), rel=1e-3)
    # More rows say nothing about other groups, more groups do.
    many = [np.full(4000, -0.2), *few[1:]]
    assert Intervals.of_groups(many) == intervals
    nine = Intervals.of_groups(few * 3)
    assert nine is not None
    assert 0.2 < nine.high[0] < 0.6 * intervals.high[0]
    # Groups that all take longer: a prediction is inside its own interval nevertheless.
    longer = Intervals.of_groups([each + 1 for each in few])
    assert longer is not None
    assert (longer.low[0], longer.high[0]) == pytest.approx((0.0, 1 + reach), rel=1e-3)
    assert Intervals.of_groups(few[:2]) is None


def test_groups_count_where_their_rows_err_together() -> None:
    """Half of the groups have many rows and differ by 2%, the others have few and differ by 20%."""

    def of_groups(seed: int, rows: tuple[int, int] = (100, 5)) -> tuple[np.ndarray, list[str]]:
        random = np.random.default_rng(seed)
        sizes = np.repeat(rows, 40)
        shifts = np.repeat((0.02, 0.2), 40) * random.standard_normal(80)
        names = [str(number) for number in np.repeat(np.arange(80), sizes)]
        return np.exp(np.repeat(shifts, sizes)), names

    new = np.concatenate([of_groups(seed, (1, 1))[0] for seed in range(100, 150)])
    inside: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(20):
        measured, names = of_groups(seed)
        for grouped, shares in inside.items():
            intervals = Intervals.fit(measured, np.ones_like(measured), names if grouped else ())
            assert intervals is not None
            low, high = intervals.bounds(np.ones_like(new), np.ones(len(new), dtype=bool))
            shares.append(float(np.mean((low <= new) & (new <= high))))
    assert np.mean(inside[False]) < 0.8
    assert 0.88 < np.mean(inside[True]) < 0.95


def test_a_predictors_own_bounds_are_wider_outside_the_range() -> None:
    predicted, low, high = np.array([1.0, 1.0, 1.0]), np.full(3, 0.8), np.full(3, 1.5)
    low[2] = high[2] = math.nan
    inside = np.array([True, False, False])
    wider = widened(predicted, low, high, inside)
    np.testing.assert_allclose(wider, [[0.8, 0.64, math.nan], [1.5, 2.25, math.nan]])


def test_few_degrees_of_freedom_widen_an_interval() -> None:
    """With one, Student's distribution is Cauchy's: its 95th percentile is tan(0.45 pi)."""
    pytest.importorskip("scipy")
    assert half_width(2.0) == pytest.approx(2 * 1.6449, rel=1e-4)
    assert half_width(2.0, 1) == pytest.approx(2 * math.tan(0.45 * math.pi))


def test_what_was_known_counts_as_two_errors() -> None:
    """Squares of two errors, 8, and of two more as large as the known spread: 16 over 4."""
    assert joined_spread(8.0, 2, 2.0) == (2.0, 4)
