"""The report on GPUs: which rows judge, what counts in means, and what it writes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("h5py")


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("report_gpus")


def judged(tool: ModuleType, device: str, mape: float, rows: int = 100, session: str = "train"):
    return tool.Judged(device, session, rows, mape, mape / 2, mape)


def test_a_layer_is_held_out_in_every_session_and_order(tool: ModuleType) -> None:
    keys = [f"dense:batch={batch}" for batch in range(2000)]
    held_out = [tool.share(key, "") < tool.HELD_OUT for key in keys]
    assert held_out == [tool.share(key, "") < tool.HELD_OUT for key in keys]
    assert 0.17 < sum(held_out) / len(keys) < 0.23


def test_sessions_are_combined_by_rows(tool: ModuleType) -> None:
    found = [judged(tool, "t4", 10.0, 300), judged(tool, "t4", 2.0, 100, "test")]
    assert tool.combined(found)["t4"].mape == pytest.approx(8.0)


def test_means_leave_out_p4_amd_and_cards_with_few_rows(tool: ModuleType) -> None:
    rows = [
        judged(tool, "t4", 4.0),
        judged(tool, "h100", 6.0),
        judged(tool, "p4", 90.0),
        judged(tool, "mi100", 80.0),
        judged(tool, "a100-80gb", 70.0, rows=5),
    ]
    assert tool.mean_of(tool.combined(rows), "mape") == pytest.approx(5.0)
    table = tool.by_card({"dense": rows}, {"dense": 5.5})
    assert table.splitlines()[-1].endswith("| 5.0 | 5.0 | 5.5 |")
    assert "| 90.0 |" in table


def test_shares_inside_intervals_are_means_over_rows_and_then_cards(tool: ModuleType) -> None:
    rows = [
        tool.Judged("t4", "train", 300, 5.0, 5.0, 5.0, inside=100.0),
        tool.Judged("t4", "test", 100, 5.0, 5.0, 5.0, inside=60.0),
        tool.Judged("h100", "test", 100, 5.0, 5.0, 5.0, inside=80.0),
    ]
    table = tool.by_interval({"dense": rows})
    assert table.splitlines()[-1] == "| dense | 80.0 | 90.0 | 85.0 |"


def test_only_what_is_between_the_marks_is_replaced(tool: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "gpus.md"
    page.write_text("# GPUs\n\nBefore.\n")
    tool.write("first", page)
    page.write_text(page.read_text() + "\nAfter.\n")
    tool.write("second", page)
    text = page.read_text()
    assert text.startswith("# GPUs\n\nBefore.\n")
    assert "second" in text
    assert "first" not in text
    assert text.endswith("\nAfter.\n")
