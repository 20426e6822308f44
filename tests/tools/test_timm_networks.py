"""The page on whole networks: networks of known costs, judged without their own fold."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from resperf.devices import device_facts
from resperf.predictors.operator_classes import RunNetwork, RunOperator, RunTensor, class_terms
from resperf.settings import Setting

pytest.importorskip("scipy")
pytest.importorskip("h5py")

CARDS = {"rtx3090": 1.0, "rtx4090": 1.25, "rtx5090": 0.8}
NOISE = 0.1


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("benchmarks/timm_networks")


def networks(count: int = 120) -> list[RunNetwork]:
    random = np.random.default_rng(1)
    found = []
    for number in range(count):
        rows, width = (int(2 ** random.integers(8, 13)) for _ in range(2))
        data = RunTensor((rows, width), "float16")
        weights = RunTensor((width, width), "float16", is_weight=True)
        counts = [int(each) for each in random.integers(1, 9, 2)]
        operators = (
            RunOperator("mm", (data, weights), (data,), count=counts[0]),
            RunOperator("relu", (data,), (data,), count=counts[1]),
        )
        found.append(RunNetwork(f"net{chr(97 + number % 26)}{number // 26}x", operators))
    return found


def file_of(tool: ModuleType, card: str, noise: float = 0.0, seed: int = 0):
    """Twice the data sheet's terms, times the card's factor and some noise."""
    facts = device_facts(card)
    assert facts is not None
    some = networks()
    draw = np.random.default_rng(seed)
    times = [
        2 * CARDS[card] * np.exp(noise * draw.standard_normal())
        * sum(t for cost, t in class_terms(each, facts).items() if cost.term in ("bytes", "flops"))
        for each in some
    ]  # fmt: skip
    setting = Setting("torch", "2.9.1", precision="amp", layout="nchw", compiled="eager")
    families = [f"family{number % 10}" for number in range(len(some))]
    return tool.File(card, setting, facts, some, np.array(times), families, [64] * len(some))


def test_known_costs_are_found_without_a_networks_own_fold(tool: ModuleType) -> None:
    row = tool.judged(file_of(tool, "rtx3090"))
    assert max(row["family"], row["network"], row["family corrected"]) < 0.02


def test_nine_of_ten_networks_are_inside_their_intervals(tool: ModuleType) -> None:
    inside = tool.coverage(file_of(tool, "rtx3090", NOISE))
    assert set(inside) == {"family", "network"}
    for share in inside.values():
        assert 0.82 <= share <= 0.97


def test_each_card_is_judged_by_the_others(tool: ModuleType) -> None:
    files = [file_of(tool, card, seed=place) for place, card in enumerate(CARDS)]
    older = replace(files[0], setting=replace(files[0].setting, framework_version="1.13"))
    rows = list(tool.left_out_cards([older, *files]))
    assert [row[1] for row in rows] == ["nchw, eager"] * 3
    for row, (card, factor) in zip(rows, CARDS.items(), strict=True):
        others = [each for name, each in CARDS.items() if name != card]
        expected = abs(np.sqrt(others[0] * others[1]) / factor - 1)
        assert float(row[2].rstrip("%")) / 100 == pytest.approx(expected, abs=0.02)
    assert {row[-1] for row in rows} == {"100.0%"}
