"""What can be asked, and what answers, in the order in which it is chosen."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from resperf.bundle import Bundle, find_bundles
from resperf.errors import UnsupportedError
from resperf.prediction.choice import Query, choose, first_fitting
from resperf.prediction.offers import Offer, RestsOn, offers


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Bundle]:
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return find_bundles()[0]


def described(offer: Offer) -> tuple[str, str, RestsOn]:
    name = "" if offer.part is None else offer.part.path.name
    return name, offer.setting.precision, offer.rests_on


def test_own_times_come_first_then_fallbacks_other_devices_and_the_data_sheet(parts):
    groups = list(offers(parts, "rtx3090"))
    of_torch = [[offer for offer in group if offer.framework == "torch"] for group in groups]
    assert [described(group[0]) for group in of_torch if group] == [
        ("gpus-torch-networks", "amp", RestsOn.MEASURED),
        ("gpus-torch-networks", "fp16", RestsOn.FALLBACK),
        ("gpus-torch", "fp32", RestsOn.INFERRED),
        ("", "fp32", RestsOn.ESTIMATED),
    ]
    for offer in chain(*groups):
        assert offer.device == "rtx3090"
        assert offer.bundle.device == "rtx3090"
        assert offer.bundle.setting == offer.setting


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        (Query(), ("gpus-torch", "fp32", RestsOn.INFERRED)),
        (Query(precision="amp"), ("gpus-torch-networks", "amp", RestsOn.MEASURED)),
        (Query(precision="bf16"), ("gpus-torch-networks", "bf16", RestsOn.FALLBACK)),
        (Query(precision="bf16", framework="tensorrt"), ("", "bf16", RestsOn.ESTIMATED)),
        # Latencies of whole networks in TensorRT answer only where it is named.
        (Query(precision="fp16"), ("gpus-torch-networks", "fp16", RestsOn.FALLBACK)),
        (
            Query(precision="fp16", framework="tensorrt"),
            ("gpus-tensorrt", "fp16", RestsOn.MEASURED),
        ),
    ],
)
def test_the_first_that_fits_answers(parts, query, answer):
    chosen = first_fitting(query, offers(parts, "rtx3090"))
    assert chosen is not None
    assert described(chosen) == answer


def test_what_nothing_answers_has_no_offer(parts):
    assert first_fitting(Query(precision="int8"), offers(parts, "rtx3090")) is None
    assert not any(offers(parts, "no such device"))
    # A processor has no data sheet that says what operators take.
    assert {described(offer)[2] for offer in chain(*offers(parts, "cpu"))} == {RestsOn.MEASURED}


def test_of_a_device_the_offers_are_those_among_all(parts):
    for every, own in zip(offers(parts), offers(parts, "l4"), strict=True):
        assert [described(offer) for offer in every if offer.device == "l4"] == [
            *map(described, own)
        ]


def test_the_only_framework_with_a_precision_answers_without_being_named():
    chosen = choose(Query("h100", precision="int8")).bundle
    assert (chosen.framework, chosen.setting.precision) == ("tensorrt", "int8")
    with pytest.raises(UnsupportedError, match="no predictions for h100 with torch in int8"):
        choose(Query("h100", "torch", precision="int8"))
    with pytest.raises(UnsupportedError, match=r"t4 \(Tesla T4\) has no tf32"):
        choose(Query("t4", precision="tf32"))


def test_a_processor_is_answered_in_the_framework_that_was_measured():
    chosen = choose(Query("i9-10940x")).bundle
    assert (chosen.framework, chosen.setting.is_compiled) == ("torch", True)


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        (Query("agx-orin"), "--framework tensorrt --precision fp16"),
        (Query("agx-orin", precision="fp16"), "--framework tensorrt"),
        (Query("agx-orin", "tensorrt"), "--precision fp16"),
    ],
)
def test_the_options_that_lead_to_measurements_are_named(query, hint):
    assert f"(for its measurements: {hint}): " in choose(query).notes[0]
