"""`resperf evaluate --methods` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resperf.cli.main import main
from resperf.errors import MissingExtraError

ANSWERS = {
    "kind", "phase", "method", "rows_trained", "rows_validation", "rows", "mape", "rmse_ms",
    "median_ape", "mae_ms", "within_10", "r2", "bins", "fold_mapes", "fit_s", "predict_us",
    "noise_floor",
}  # fmt: skip


def evaluate(*words: object) -> int:
    return main(["evaluate", *map(str, words)])


def test_a_table_of_methods(toy_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--methods", "baseline", "--rows", 40, 50, toy_dataset, "--kind", "conv") == 0
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.out.splitlines()]
    found = [line[:4] for line in lines if line[:3] == ["conv", "execution_ms", "baseline"]]
    assert found == [
        ["conv", "execution_ms", "baseline", "40"],
        ["conv", "execution_ms", "baseline", "50"],
    ]
    assert "conv execution_ms: MAPE by measured time" in shown.out
    assert shown.err == ""


def test_the_same_as_json(toy_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(toy_dataset, "--methods", "baseline", "--folds", 3, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in rows] == ["conv", "dense", "pool"]
    for row in rows:
        assert set(row) == ANSWERS
        assert 0 <= row["mape"] < 0.2  # a fraction, not a percentage
        assert len(row["fold_mapes"]) == 3
        assert sum(each["rows"] for each in row["bins"]) == row["rows"]


def test_another_file_judges(toy_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # All layers are in both files, so there is no training data.
    assert evaluate(toy_dataset, "--methods", "baseline", "--test", toy_dataset) == 2
    assert "80 layers of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "magic"], "no method 'magic'"),
        (["--methods", ","], "give either --bundle B (or --device D) or --methods A,B"),
        (["--methods", "baseline", "--bundle", "B"], "give either"),
        (["--methods", "baseline", "--split", "all"], "--split needs --bundle"),
        (["--bundle", "B", "--rows", "500"], "--rows needs --methods"),
        (["--bundle", "B", "--plot", "P"], "--plot needs --methods"),
        (["--bundle", "B", "--seed", "0"], "--seed needs --methods"),
        (["--methods", "baseline", "--folds", "1"], "--folds"),
        (["--methods", "baseline", "--rows", "0"], "must be an integer"),
        (["--methods", "baseline", "--kind", "lstm"], "no layer of kind lstm"),
        (["--methods", "baseline", "--phase", "lunch"], "has no lunch times"),
        (["--methods", "baseline", "--test", "absent.h5"], "no dataset absent.h5"),
        (
            ["--methods", "baseline", "--test", "T", "--folds", "3"],
            "give either folds or a test dataset",
        ),
    ],
)
def test_mistakes_exit_2(
    toy_dataset: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert evaluate(toy_dataset, *words) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_what_was_finished_before_ctrl_c_is_shown(
    toy_dataset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from resperf import training

    real = training.compare

    def interrupted(*arguments, **settings):
        real(*arguments, **settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "compare", interrupted)
    assert evaluate(toy_dataset, "--methods", "baseline", "--json") == 130
    assert [row["kind"] for row in json.loads(capsys.readouterr().out)] == ["conv", "dense", "pool"]


def test_plots(toy_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the extra [plot]")
    words = [toy_dataset, "--methods", "baseline", "--kind", "dense", "--plot", tmp_path / "p"]
    assert evaluate(*words) == 0
    names = ["predicted-dense-execution.png", "by-time-dense-execution.png"]
    assert sorted(file.name for file in (tmp_path / "p").iterdir()) == sorted(names)
    # matplotlib prints this when it searches fonts for the first time.
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("plot: ")]
    assert told == [f"plot: {tmp_path / 'p' / name}" for name in names]


def test_without_matplotlib_nothing_is_trained_in_vain(
    toy_dataset: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(module: str, extra: str) -> None:
        raise MissingExtraError(f"{module} needs resperf[{extra}]")

    monkeypatch.setattr("resperf.report.plots.require", absent)
    monkeypatch.setattr("resperf.training.compare", lambda *_, **__: pytest.fail("was trained"))
    assert evaluate(toy_dataset, "--methods", "baseline", "--plot", tmp_path / "p") == 2
    assert capsys.readouterr().err == "resperf: error: matplotlib needs resperf[plot]\n"
    assert not (tmp_path / "p").exists()
