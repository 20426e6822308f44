import random
from collections import Counter

import pytest

from resperf.campaign.laws import law
from resperf.errors import CampaignError


def draws(written: object, count: int = 4000) -> list[object]:
    source = random.Random(1)
    made = law(written, "here")
    return [made.draw(source) for _ in range(count)]


def test_uniform_reaches_both_bounds_equally() -> None:
    counts = Counter(draws({"law": "uniform", "low": 3, "high": 6}))
    assert set(counts) == {3, 4, 5, 6}
    assert min(counts.values()) > 900


def test_log_uniform_gives_each_doubling_the_same_share() -> None:
    values = draws({"law": "log_uniform", "low": 1, "high": 1023})
    assert min(values) == 1
    assert max(values) <= 1023
    shares = Counter(int(v).bit_length() for v in values)
    # Ten doublings from 1 to 1024.
    assert all(300 < shares[bits] < 500 for bits in range(1, 11))


def test_rounding_stays_in_the_range() -> None:
    values = draws({"law": "log_uniform", "low": 5, "high": 100, "round_to": [8]})
    # 5, 6 and 7 round to 8; nothing rounds to 104.
    assert set(values) <= set(range(8, 97, 8))


def test_a_value_without_a_multiple_in_range_is_not_rounded() -> None:
    assert set(draws({"law": "uniform", "low": 1, "high": 3, "round_to": [8]}, 50)) == {1, 2, 3}


def test_choices_follow_their_weights() -> None:
    counts = Counter(draws({"law": "choices", "values": ["a", "b"], "weights": [3, 1]}))
    assert counts["a"] / 4000 == pytest.approx(0.75, abs=0.03)


def test_short_forms() -> None:
    assert set(draws(7, 10)) == {7}
    assert set(draws(True, 10)) == {True}
    assert set(draws(["same", "valid"], 50)) == {"same", "valid"}


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ({"low": 1, "high": 2}, "no law None"),
        ({"law": "normal"}, "no law 'normal'"),
        ({"law": "uniform", "low": 4, "high": 3}, "low=4 and high=3"),
        ({"law": "log_uniform", "low": 0, "high": 3}, "low=0"),
        ({"law": "uniform", "low": 1, "high": 2.5}, "high=2.5"),
        ({"law": "uniform", "low": 1, "high": 2, "step": 1}, "has no step"),
        ({"law": "uniform", "low": 1, "high": 2, "round_to": [0]}, "round_to"),
        ({"law": "choices", "values": []}, "list of values"),
        ({"law": "choices", "values": [1, 2], "weights": [1]}, "weights"),
        ({"law": "choices", "values": [1, 2], "weights": [1, -1]}, "weights"),
        ({"law": "choices", "values": [1], "same_share": 2}, "same_share"),
        (1.5, "is not a law"),
    ],
)
def test_wrong_laws_are_named(written: object, part: str) -> None:
    with pytest.raises(CampaignError, match=part):
        law(written, "here")
