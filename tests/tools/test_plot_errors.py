"""Plots of compared methods: what is drawn, and that it becomes small files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the plots are drawn by it")


@pytest.fixture
def plots(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("plot_errors")


def test_each_method_has_a_panel_with_its_points(plots, compared) -> None:
    rows = [compared(name, 0.04 * place) for place, name in enumerate("abcde", start=1)]
    figure = plots.predicted_against_measured(rows)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [panel.get_title().split("\n")[0] for panel in panels] == list("abcde")
    assert "MAPE 8.0%" in panels[1].get_title()
    for panel, row in zip(panels, rows, strict=True):
        measured_ms, predicted_ms = panel.lines[-1].get_data()
        np.testing.assert_allclose(measured_ms, row.measured_ms)
        np.testing.assert_allclose(predicted_ms, row.predicted_ms)
        equal, below, above = (line.get_data() for line in panel.lines[:3])
        np.testing.assert_allclose(equal[0], equal[1])
        np.testing.assert_allclose(below[1], 0.9 * np.asarray(below[0]))
        np.testing.assert_allclose(above[1], 1.1 * np.asarray(above[0]))


def test_predictions_below_zero_and_too_many_points_are_still_drawn(
    plots, compared, monkeypatch
) -> None:
    monkeypatch.setattr(plots, "SHOWN_POINTS", 10)
    figure = plots.predicted_against_measured([compared("polynomial", -2.0)])
    measured_ms, predicted_ms = figure.axes[0].lines[-1].get_data()
    assert len(measured_ms) == 10
    # The shortest and the longest are included; values below zero are drawn on the edge.
    assert (min(measured_ms), max(measured_ms)) == pytest.approx((0.05, 20))
    assert set(predicted_ms) == {figure.axes[0].get_ylim()[0]}


def test_the_learning_curve_and_the_bins_show_the_figures(plots, compared) -> None:
    rows = [
        compared("a", 0.2, rows=500), compared("b", 0.1, rows=500),
        compared("a", 0.1, rows=2000), compared("b", 0.05, rows=2000),
    ]  # fmt: skip
    axes = plots.error_by_rows(rows).axes[0]
    assert [line.get_label() for line in axes.lines] == ["a", "b", "noise floor"]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[500, 20], [2000, 10]])
    np.testing.assert_allclose(axes.lines[1].get_xydata(), [[500, 10], [2000, 5]])
    assert list(axes.lines[2].get_ydata()) == [1.0, 1.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["500", "2000"]
    axes = plots.error_by_time(rows).axes[0]
    middles, shares = axes.lines[1].get_data()
    assert list(middles[:2]) == pytest.approx([np.sqrt(0.03 * 0.1), np.sqrt(0.1 * 0.3)])
    np.testing.assert_allclose(shares, 5.0)


def test_files_are_small_and_named_by_what_they_show(plots, compared, tmp_path: Path) -> None:
    rows = [
        compared("a", 0.2, rows=500), compared("a", 0.1, rows=2000),
        compared("a", 0.1, kind="pool"),
    ]  # fmt: skip
    written = plots.write_plots(rows, tmp_path)
    assert [path.name for path in written] == [
        "predicted-conv-execution.png", "by-time-conv-execution.png",
        "by-rows-conv-execution.png", "predicted-pool-execution.png",
        "by-time-pool-execution.png",
    ]  # fmt: skip
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 100_000


def test_a_dataset_is_drawn(plots, toy_dataset: Path, tmp_path: Path, capsys) -> None:
    plots.main([str(toy_dataset), str(tmp_path / "p"), "--methods", "baseline"])
    names = [f"{what}-{kind}-execution.png" for kind in ("conv", "dense", "pool")
             for what in ("predicted", "by-time")]  # fmt: skip
    assert sorted(file.name for file in (tmp_path / "p").iterdir()) == sorted(names)
    assert capsys.readouterr().out.split() == [str(tmp_path / "p" / name) for name in names]
