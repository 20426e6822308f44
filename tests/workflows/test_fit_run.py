"""The time of runs from batch size and iterations: Gianniti's form on exact and noisy logs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from resperf.errors import DatasetError, TrainingError, UnsupportedError
from resperf.workflows.fit_run import Run, fit_run, judge_runs, read_runs

BATCHES, ITERATIONS = (8, 16, 24, 32, 64), (100, 150, 200, 500, 2000)


def seconds(batch: float, iterations: float) -> float:
    return 2e-3 * batch * iterations + 5e-2 * iterations + 0.1 * batch + 3.0


GRID = [Run(b, i, seconds(b, i)) for b, i in itertools.product(BATCHES, ITERATIONS)]
SMALL = [run for run in GRID if run.batch <= 16 and run.iterations <= 200]


def test_the_form_is_recovered_from_the_smallest_runs():
    assert len(SMALL) == 6
    fit = fit_run(SMALL)
    assert fit.coefficients == pytest.approx(
        {"batch x iterations": 2e-3, "iterations": 5e-2, "batch": 0.1, "constant": 3.0}
    )
    assert fit.seconds(128, 10_000) == pytest.approx(seconds(128, 10_000))
    assert fit.beyond(64, 2000) == pytest.approx(40.0)
    judged = judge_runs(fit, GRID)
    assert np.abs(judged.errors()).max() < 1e-9
    # Time per iteration that does not depend on the batch size: in proportion is wrong.
    assert np.abs(judged.errors_in_proportion()).mean() > 0.1
    assert fit.falling == ()
    assert fit.odd_run() == ""


def test_errors_are_signed_as_in_equation_1():
    fit = fit_run(SMALL)
    (short,) = judge_runs(fit, [Run(8, 100, seconds(8, 100) * 2)]).errors()
    assert short == pytest.approx(-0.5)


def test_one_batch_size_says_nothing_about_others():
    fit = fit_run([run for run in GRID if run.batch == 16])
    assert set(fit.coefficients) == {"iterations", "constant"}
    assert fit.seconds(16, 5000) == pytest.approx(seconds(16, 5000))
    with pytest.raises(UnsupportedError, match="have batch 16, which says nothing about 32"):
        fit.seconds(32, 100)
    one = fit_run([run for run in GRID if run.iterations == 200])
    assert one.seconds(128, 200) == pytest.approx(seconds(128, 200))
    with pytest.raises(UnsupportedError, match="have iterations 200, which says nothing about 20"):
        one.seconds(8, 20)


def test_more_work_in_less_time_is_refused():
    falling = [Run(b, i, 100 - b * i / 20) for b, i in itertools.product((8, 16), (20, 50, 100))]
    with pytest.raises(TrainingError, match="more iterations or batch takes less time"):
        fit_run(falling)
    line = [Run(16, i, 100 - i / 2) for i in (20, 50, 100)]
    with pytest.raises(TrainingError, match="more iterations takes less time"):
        fit_run(line)


SLOW_FIRST = [Run(32, 100, 95), Run(32, 200, 23.9), Run(64, 100, 21), Run(64, 200, 41.7)]


@pytest.mark.parametrize(
    ("runs", "named"),
    [
        # By 2 ms x batch x iterations and 50 ms x iterations, the first run takes 12 s.
        (
            [*SLOW_FIRST, Run(128, 100, 39.5), Run(128, 400, 155)],
            "batch 32 .* took 95 s, by .* 11.77 s",
        ),
        (
            [Run(32, 100, 95), Run(32, 200, 24), Run(32, 400, 46)],
            "100 iterations took 95 s, by .* 13",
        ),
        (
            [Run(*run[:2], run.seconds * (1000 if run == GRID[7] else 1)) for run in GRID],
            rf"batch 16 and 200 iterations took .*, by the others it is {seconds(16, 200):g} s",
        ),
    ],
)
def test_the_run_that_is_off_is_named(runs, named):
    with pytest.raises(TrainingError, match=f"less time.*{named}.*: leave it out"):
        fit_run(runs)


def test_a_run_that_is_off_without_turning_the_fit_is_noted(tmp_path, cli):
    runs = [Run(32, 100, 95), Run(32, 200, 24), Run(32, 1000, 110), Run(32, 2000, 215)]
    assert "batch 32 and 100 iterations" in fit_run(runs).odd_run()
    log = write(
        tmp_path / "log.csv",
        "\n".join(["batch,iterations,seconds", *map("{0[0]},{0[1]},{0[2]}".format, runs)]),
    )
    (note,) = cli.json("fit-run", log)["notes"]
    assert "took 95 s, by the others it is 13.8 s" in note


def test_a_run_too_small_for_the_fit_is_refused():
    fit = fit_run([Run(32, i, i / 10 - 10) for i in (1000, 2000, 4000)])
    with pytest.raises(UnsupportedError, match="gives -9 s for batch 32 and 10 iterations"):
        fit.seconds(32, 10)


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (SMALL[2:5], "3 runs do not determine 4 coefficients"),
        (SMALL[:1], "1 runs do not determine 2 coefficients"),
        ([Run(8, 100, 1.0)] * 6, "have the same batch and iterations"),
        ([Run(n, 10 * n, float(n)) for n in (8, 16, 24, 32)], "change together"),
    ],
)
def test_what_does_not_determine_the_form_is_refused(runs, reason):
    with pytest.raises(TrainingError, match=reason):
        fit_run(runs)


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("batch,iterations\n1,2\n", "has no column seconds"),
        ("batch,iteration,seconds\n1,2,3\n", r"no column iterations \(did you mean iteration"),
        ("batch,iterations,seconds\n", "holds no runs"),
        ("batch,iterations,seconds\n8,100,-1\n", "line 2: seconds is '-1', not a number above 0"),
        ("batch,iterations,seconds\n8,100,0\n", "line 2: seconds is '0'"),
        ("batch,iterations,seconds\n8,100,nan\n", "line 2: seconds is 'nan'"),
        (
            "batch,iterations,seconds\n8,1e300,3\n",
            "line 2: iterations is '1e300', not .* up to 1e.12",
        ),
        ("batch,iterations,seconds\n8,,3\n", "line 2: iterations is ''"),
        ("batch,iterations,seconds\n8\n", "line 2: iterations is ''"),
        ("", "has no column batch"),
    ],
)
def test_bad_logs_are_refused_in_one_line(text, reason, tmp_path):
    with pytest.raises(DatasetError, match=reason):
        read_runs(write(tmp_path / "log.csv", text))


def test_the_command_shows_errors_and_predictions(tmp_path, cli):
    lines = ["batch,iterations,seconds", *(f"{b:g},{i:g},{s!r}" for b, i, s in GRID)]
    log = write(tmp_path / "log.csv", "\n".join(lines))
    words = ("fit-run", log, "--fit-batch", "16", "--fit-iterations", "200")
    text = cli.text(*words, "--batch", "128", "256", "--iterations", "10000")
    assert "time = +2 ms x batch x iterations +50 ms x iterations" in text
    assert "fitted to 6 runs" in text
    assert "19 other runs: mean absolute error 0.0%" in text
    assert "400" in text.splitlines()[-2]
    document = cli.json(*words, "--batch", "128", "--iterations", "10000", "20000")
    assert [each["iterations"] for each in document["predictions"]] == [10000, 20000]
    assert document["predictions"][0]["seconds"] == pytest.approx(seconds(128, 10_000))
    assert sum(each["fitted"] for each in document["runs"]) == 6
    assert "needs both --batch and --iterations" in cli.error(*words, "--batch", "8")
    assert "no run of at most this batch size" in cli.error("fit-run", log, "--fit-batch", "4")
    assert "no such file" in cli.error("fit-run", tmp_path / "none.csv").lower()
