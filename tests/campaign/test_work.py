"""Measurements dealt to the devices that share them."""

from __future__ import annotations

from resperf.campaign.plan import Planned
from resperf.campaign.work import Work
from resperf.layers import Dense

ITEMS = [Planned(Dense(batch=1, features_in=width, features_out=4), repeat)
         for width, repeat in ((1, 0), (2, 0), (1, 1), (2, 1))]  # fmt: skip


def work(*devices: str) -> Work:
    made = Work()
    made.add((item, 1.0) for item in ITEMS)
    for device in devices:
        made.join(device)
    return made


def taken(made: Work, device: str) -> Planned | None:
    found = made.take(device)
    return found and found[0]


def test_alone_a_device_takes_all_in_order_and_each_once() -> None:
    made = work("a")
    made.add((item, 1.0) for item in ITEMS)
    assert (len(made), made.remaining_s) == (4, 4.0)
    for item in ITEMS:
        assert taken(made, "a") == item
        made.finish("a")
    assert (taken(made, "a"), len(made), made.remaining_s) == (None, 0, 0.0)


def test_a_repeat_goes_to_another_device_as_long_as_there_is_one() -> None:
    made = work("a", "b")
    for item in ITEMS[:2]:
        assert taken(made, "a") == item
        made.finish("a")
    # Both repeats are of what it measured itself.
    assert taken(made, "a") is None
    assert taken(made, "b") == ITEMS[2]
    made.finish("b")
    made.leave("b")
    assert taken(made, "a") == ITEMS[3]


def test_what_an_earlier_start_measured_is_left_out_and_repeated_by_others() -> None:
    made = Work()
    made.note([ITEMS[0].identity], "a")
    made.join("a")
    made.join("b")
    made.add((item, 1.0) for item in (ITEMS[0], ITEMS[2]))
    assert taken(made, "a") is None
    assert taken(made, "b") == ITEMS[2]


def test_what_a_device_did_not_finish_is_dealt_again_first() -> None:
    made = work("a", "b")
    assert taken(made, "a") == ITEMS[0]
    assert len(made) == 4
    made.leave("a")
    assert taken(made, "b") == ITEMS[0]


def test_a_second_loss_is_the_subjects_doing() -> None:
    made = work("a", "b")
    assert [made.lose(ITEMS[0]), made.lose(ITEMS[1]), made.lose(ITEMS[0])] == [False, False, True]
