"""The grid of batch sizes and iterations: what is measured, and how fits to its corner do."""

from __future__ import annotations

from types import ModuleType

import pytest

from resperf.workflows.fit_run import read_runs


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("benchmarks/run_grid")


def seconds(batch: int, iterations: int) -> float:
    return 2e-3 * batch * iterations + 5e-2 * iterations + 0.1 * batch + 3.0


def test_a_stopped_grid_measures_what_the_log_lacks(tool, tmp_path):
    log, asked = tmp_path / "new" / "log.csv", []

    def stops(batch: int, iterations: int) -> float:
        if len(asked) == 31:
            raise KeyboardInterrupt
        asked.append((batch, iterations))
        return seconds(batch, iterations)

    with pytest.raises(KeyboardInterrupt):
        tool.measure(log, 0, stops)
    assert asked[0] == tool.WARMUP
    assert len(read_runs(log)) == 30
    # In no order of size.
    assert asked[1:] != sorted(asked[1:])
    rest = []
    tool.measure(log, 0, lambda *run: rest.append(run) or seconds(*run))
    assert len(rest) == 1 + 130
    assert not {*rest[1:]} & {*asked[1:]}
    runs = read_runs(log)
    assert len({(run.batch, run.iterations) for run in runs}) == len(runs) == 160
    # Table 4's sizes; the log follows the form, and in proportion is wrong.
    for count, line in zip((6, 12, 20), tool.errors(runs), strict=True):
        assert line.startswith(f"{count} runs up to ")
        assert "140 other runs: mean absolute error 0.0%" in line
        proportional = line.partition("batch x iterations: ")[2].partition("%")[0]
        assert float(proportional) > 10


def test_disturbed_runs_are_done_again(tool):
    seconds = iter([1.0, 9.0, 5.0, 2.0, 8.0, 7.0, 6.0])
    references = iter([1.0, 1.1, 1.0, 3.0, 2.0, 2.5, 1.0, 1.0, 3.0, 3.0, 2.0, 2.0, 2.5, 2.5])
    watched = tool.Watched(lambda *_: next(seconds), lambda: next(references))
    assert watched(8, 100) == 1.0
    assert watched(8, 100) == 2.0, "two were disturbed"
    assert watched(8, 100) == 7.0, "all were disturbed, this one least"
    assert next(seconds, None) is None


def test_a_run_trains_a_network(tool):
    pytest.importorskip("torch")
    assert tool.run_seconds(8, 2) > 0
