"""Plots of compared methods: what is drawn, and that it becomes small files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from resperf.errors import OutputError
from resperf.report import plots


def test_reports_of_methods_do_not_load_matplotlib() -> None:
    script = (
        "import sys, resperf.report.methods, resperf.report.plots, resperf.cli.evaluate\n"
        "assert not {'matplotlib', 'PIL'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def drawing() -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the extra [plot]")


@pytest.mark.usefixtures("drawing")
def test_each_method_has_a_panel_with_its_points(compared) -> None:
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


@pytest.mark.usefixtures("drawing")
def test_predictions_below_zero_and_too_many_points_are_still_drawn(compared, monkeypatch) -> None:
    monkeypatch.setattr(plots, "SHOWN_POINTS", 10)
    figure = plots.predicted_against_measured([compared("polynomial", -2.0)])
    measured_ms, predicted_ms = figure.axes[0].lines[-1].get_data()
    assert len(measured_ms) == 10
    # The shortest and the longest are included; values below zero are drawn on the edge.
    assert (min(measured_ms), max(measured_ms)) == pytest.approx((0.05, 20))
    assert set(predicted_ms) == {figure.axes[0].get_ylim()[0]}


@pytest.mark.usefixtures("drawing")
def test_the_learning_curve_and_the_bins_show_the_figures(compared) -> None:
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


@pytest.mark.usefixtures("drawing")
def test_files_are_small_and_named_by_what_they_show(compared, tmp_path: Path) -> None:
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


@pytest.mark.usefixtures("drawing")
def test_a_folder_that_cannot_be_created_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose another folder"):
        plots.ready_to_plot(tmp_path / "file" / "plots")
    plots.ready_to_plot(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
