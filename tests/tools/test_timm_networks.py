"""The page on whole networks: cards of known costs, judged by the fits of the others."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from resperf.devices import device_facts
from resperf.platform import Platform
from resperf.predictors import Examples
from resperf.predictors.operator_classes import RunNetwork, RunOperator, RunTensor, class_terms
from resperf.settings import Setting

pytest.importorskip("scipy")
pytest.importorskip("h5py")

CARDS = {"rtx3090": 1.0, "rtx4090": 1.25, "rtx5090": 0.8}


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


def rows_of(card: str, version: str = "2.9.1") -> list[tuple[RunNetwork, float, Setting, Platform]]:
    """Make rows that take twice the data sheet's terms, times the card's factor."""
    facts = device_facts(card)
    assert facts is not None
    setting = Setting("torch", version, batch=64, precision="amp", layout="nchw", compiled="eager")
    return [
        (
            each,
            2 * CARDS[card] * sum(t for cost, t in class_terms(each, facts).items()
                                  if cost.term in ("bytes", "flops")),
            setting, Platform(card),
        )
        for each in networks()
    ]  # fmt: skip


def test_each_card_is_judged_by_the_others(tool: ModuleType) -> None:
    rows = [*rows_of("rtx3090", "1.13"), *(row for card in CARDS for row in rows_of(card))]
    subjects, values, settings, platforms = zip(*rows, strict=True)
    families = [f"family{number % 10}" for number in range(len(rows))]
    examples = Examples(subjects, "execution_ms", np.array(values), settings, platforms, families)
    found = list(tool.left_out_cards(examples))
    assert [row[:2] for row in found] == [[card, "inference amp nchw eager"] for card in CARDS]
    for row, (card, factor) in zip(found, CARDS.items(), strict=True):
        others = [each for name, each in CARDS.items() if name != card]
        expected = abs(np.sqrt(others[0] * others[1]) / factor - 1)
        assert float(row[2].rstrip("%")) / 100 == pytest.approx(expected, abs=0.02)
    assert {row[-1] for row in found} == {"100.0%"}


def test_the_page_has_a_row_of_each_file_and_says_what_was_computed(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"file": "rtx3090: torch", "networks": 9, "mape": 0.125, "inside": 0.5}
    for by in tool.LEFT_OUT:
        tool.kept(tmp_path / f"3090-{by}.json", lambda: [found])
    page = tmp_path / "timm.md"
    words = ["tool", "--work", str(tmp_path), "--output", str(page), "--write"]
    monkeypatch.setattr("sys.argv", words)
    tool.main()
    text = page.read_text()
    assert "| rtx3090: torch | 9 | 12.5% | 50.0% | 12.5% | 50.0% |" in text
    assert "`: 3090-family, 3090-network\n" in text
