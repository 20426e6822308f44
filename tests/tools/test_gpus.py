"""The page on operators of GPUs: what counts in means."""

from __future__ import annotations

from types import ModuleType

import pytest

pytest.importorskip("h5py")


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("benchmarks/gpus")


def judged(device: str, mape: float, rows: int = 100, session: str = "train", inside=None):
    return {"label": "dense", "device": device, "session": session, "rows": rows, "mape": mape,
            "inside": inside}  # fmt: skip


def test_means_leave_out_p4_amd_and_cards_with_few_rows(tool: ModuleType) -> None:
    rows = [
        judged("t4", 5.0, 300), judged("t4", 1.0, 100, "test"), judged("h100", 6.0),
        judged("p4", 90.0), judged("mi100", 80.0), judged("a100-80gb", 70.0, rows=5),
    ]  # fmt: skip
    table = tool.by_card(rows)
    assert table.splitlines()[-1] == "| dense | 70.0 | 6.0 | 4.0 | 90.0 | 80.0 | 5.0 |"


def test_shares_inside_intervals_are_means_over_rows_and_then_cards(tool: ModuleType) -> None:
    rows = [
        judged("t4", 5.0, 300, inside=100.0), judged("t4", 5.0, 100, "test", inside=60.0),
        judged("h100", 5.0, inside=80.0),
    ]  # fmt: skip
    table = tool.by_card(rows, name="inside")
    assert table.splitlines()[-1] == "| dense | 80.0 | 90.0 | 85.0 |"
