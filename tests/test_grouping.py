"""Groups of values."""

from resperf.grouping import grouped


def test_values_of_a_key_stand_together_in_their_order() -> None:
    pairs = [("pool", 3), ("conv", 2), ("pool", 1)]
    assert grouped(pairs) == {"pool": [3, 1], "conv": [2]}
    assert list(grouped(pairs)) == ["pool", "conv"]
    assert grouped([]) == {}
