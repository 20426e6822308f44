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
    panels = figure.axes
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


def test_predictions_below_zero_are_drawn_on_the_edge(plots, compared) -> None:
    figure = plots.predicted_against_measured([compared("polynomial", -2.0)])
    _, predicted_ms = figure.axes[0].lines[-1].get_data()
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
    axes = plots.error_by_time(rows).axes[0]
    middles, shares = axes.lines[1].get_data()
    assert list(middles[:2]) == pytest.approx([np.sqrt(0.03 * 0.1), np.sqrt(0.1 * 0.3)])
    np.testing.assert_allclose(shares, 5.0)


def test_there_is_a_learning_curve_where_methods_saw_several_numbers_of_rows(
    plots, compared
) -> None:
    rows = [compared("a", 0.2, rows=500), compared("a", 0.1, rows=2000)]
    assert list(plots.figures(rows)) == ["predicted", "by-time", "by-rows"]
    assert list(plots.figures(rows[:1])) == ["predicted", "by-time"]


def test_a_dataset_is_drawn(plots, toy_dataset: Path, tmp_path: Path, capsys) -> None:
    plots.main([str(toy_dataset), str(tmp_path / "p"), "--methods", "baseline"])
    names = [f"{what}-{kind}-execution.png" for kind in ("conv", "dense", "pool")
             for what in ("predicted", "by-time")]  # fmt: skip
    assert sorted(file.name for file in (tmp_path / "p").iterdir()) == sorted(names)
    assert capsys.readouterr().out.split() == [str(tmp_path / "p" / name) for name in names]
