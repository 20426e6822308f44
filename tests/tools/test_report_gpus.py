"""The report on GPUs: which rows judge, what counts in means, and what it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from resperf.devices import device_facts, estimated_layer_ms
from resperf.features import columns_of
from resperf.layers import Conv, Dense
from resperf.platform import Platform
from resperf.predictors.roofline import Roofline
from resperf.settings import Setting

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


def rows_of_layers(tool: ModuleType, kind: str, layers, times_ms, device: str, session="train"):
    """Return rows of layers, none of them held out."""
    count = len(layers)
    platform, setting = Platform(device), Setting("torch", "2", "cuda", 0)

    def each(value):
        return np.array([value] * count, dtype=object)

    no = np.zeros(count, dtype=bool)
    return tool.Rows(
        kind, columns_of(layers), np.array(times_ms), each(setting), each(platform), each(device),
        each(session), no, no,
    )  # fmt: skip


@pytest.fixture
def withheld(tool: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """Run the part on dense layers of a V100 that take some times longer than estimated."""

    def run(*times_longer: float, above: float) -> dict:
        facts = device_facts("v100")
        layers = [
            Dense(batch=512, features_in=256 * 2**n, features_out=256 * 2**n)
            for n in range(len(times_longer))
        ]
        times_ms = [
            longer * estimated_layer_ms(layer, facts).ms
            for longer, layer in zip(times_longer, layers, strict=True)
        ]
        dense = rows_of_layers(tool, "dense", layers, times_ms, "v100")
        monkeypatch.setattr(tool, "ABOVE", above)
        monkeypatch.setattr(tool, "KINDS", ("dense",))
        monkeypatch.setattr(tool, "HALF_KINDS", ())
        monkeypatch.setattr(tool, "rows_of", lambda *_: dense)
        return tool.withheld(Path("none"), "dense")

    return run


def test_errors_of_estimates_and_the_share_inside_the_interval(tool, withheld) -> None:
    # Off by 20% and 75% of the measured time; 4 times longer is outside the interval.
    result = withheld(1.25, 4.0, above=0.5)
    by_sort = tool.by_sort(result)
    assert set(by_sort) == {"by data sheet", "by other kinds"}
    assert by_sort["by data sheet"][0].mape == pytest.approx(47.5)
    assert result["ratios"]["neusight, v100"] == [pytest.approx(2.625), 0.5]
    assert "| dense | 1 | 2.62 | 50.0% | 50.0% (v100) |" in tool.by_ratio({"dense": result})


def test_estimates_are_not_judged_near_the_shortest_row(withheld) -> None:
    judged = withheld(1.0, 1.0, 1.0, above=4.0)["judged"]
    assert [each["rows"] for each in judged] == [1, 1]


def test_estimates_follow_what_other_kinds_take_longer(tool: ModuleType) -> None:
    moves, computes = np.zeros(40, dtype=bool), np.ones(40, dtype=bool)
    own = tool.Estimates(np.ones(2), np.array([1.0, 1.0]), np.array([False, True]))
    others = [tool.Estimates(np.full(40, factor), np.ones(40), moves) for factor in (2.0, 4.0)]
    # Too few rows of which operations decide: the estimate stays.
    others.append(tool.Estimates(np.full(39, 9.0), np.ones(39), computes[:39]))
    launch_ms = 0.005
    expected = [launch_ms + 3.0 * (1 - launch_ms), 1.0]
    assert tool.by_other_kinds(own, others) == pytest.approx(expected)


def test_convolutions_of_2018_are_judged_apart(tool: ModuleType, monkeypatch) -> None:
    """Rows of 2018 take three times as long as NeuSight's; each source follows the data sheet."""
    random = np.random.default_rng(0)
    layers = [
        Conv(batch=int(b), channels_in=int(c), height=28, width=28, kernel_height=kernel,
             kernel_width=kernel, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1,
             channels_out=int(c))
        for b, c, kernel in zip(
            random.integers(8, 64, 120), random.integers(64, 512, 120), [3] * 90 + [5] * 30,
            strict=True,
        )
    ]  # fmt: skip

    def some(layers, factor: float, session: str):
        parts = []
        for device in ("p100-pcie", "v100-pcie"):
            facts = device_facts(device)
            times_ms = [factor * 2 * each.macs / facts.peaks_flops_per_s["fp32"] * 1e3
                        for each in layers]  # fmt: skip
            parts.append(rows_of_layers(tool, "conv", layers, times_ms, device, session))
        rows = parts[0].with_rows(parts[1])
        number = np.arange(len(rows.times_ms))
        return replace(rows, held_out=number % 5 == 0, validation=number % 5 == 1)

    found = {
        "neusight": some(layers[:90], 1.5, "train"),
        "justus": some(layers, 4.5, tool.OLD_SESSION),
    }
    monkeypatch.setattr(
        tool, "rows_of", lambda _, __, source="neusight": found[source]
    )  # fmt: skip
    monkeypatch.setattr(tool, "Roofline", lambda kind, trees=5: Roofline(kind, trees=trees))
    by_sort = tool.by_sort(tool.conv2018(Path("none"), "conv"))
    assert {each.session for each in by_sort["held out"]} == {"train"}
    assert all(each.rows == 18 and each.mape < 5 for each in by_sort["held out"])
    by_new = by_sort["those of 2018 by NeuSight's, 3x3 and stride 1"]
    assert [(each.rows, each.session) for each in by_new] == [(90, "2018")] * 2
    assert all(each.mape == pytest.approx(200 / 3, abs=2) for each in by_new)
    assert {each.rows for each in by_sort["those of 2018 by NeuSight's"]} == {120}
    assert tool.conv2018(Path("none"), "dense") == {"judged": []}
