"""Predicted against measured: which turns count, and what errors and intervals add up to."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from resperf.prediction.choice import Query, choose

LENET = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("benchmarks/judge")


def turn(total_ms: float, steady_rounds: int = 1) -> dict[str, float]:
    return {"total_ms": total_ms, "steady_rounds": steady_rounds}


def test_turns_without_a_steady_round_count_only_where_there_is_no_other(tool: ModuleType) -> None:
    assert tool.counted_ms([turn(1.0), turn(9.0, 0), turn(2.0)]) == [1.0, 2.0]
    assert tool.counted_ms([turn(9.0, 0), turn(7.0, 0)]) == [9.0, 7.0]
    # 10 and 12 are 20% apart, and 1/11 off their median each.
    text = tool.noise([[turn(10.0), turn(12.0)], [turn(5.0)]])
    assert text == ("repeats differ by 20.0% (median) and are 9.1% off their median (mean), 1 "
                    "networks have none")  # fmt: skip


def test_errors_intervals_and_precisions_are_summed_up(tool: ModuleType) -> None:
    def judged(name: str, total_ms: float, *, complete: bool = True) -> Any:
        prediction = SimpleNamespace(total_ms=total_ms, low_ms=0.9 * total_ms, layers=(),
                                     high_ms=1.1 * total_ms, complete=complete)  # fmt: skip
        return tool.Judged(Path(f"{name}.onnx"), prediction, 10.0)

    runs = {"a": judged("a", 9.5), "b": judged("b-fp16", 13.0, complete=False)}
    text = tool.report(runs, SimpleNamespace(part={}))
    every, float32, half = text.splitlines()
    assert "all: 2 runs: mean error 17.5%, median 17.5%, within 10% 50%" in every
    assert "worst 30%, mean deviation +12.5%; in the 90% interval 50%, median width 0.20" in every
    assert every.endswith("; 1 incomplete")
    assert "fp16: 1 runs: mean error 30.0%" in float32 + half


def test_a_run_is_predicted_beside_the_median_of_its_turns(tool: ModuleType) -> None:
    turns = {"lenet5@2": [turn(1.0), turn(3.0), turn(2.0)]}
    found = tool.judge(choose(Query("h100")).bundle, {"lenet5@2": (LENET, 2)}, turns)
    assert found["lenet5@2"].measured_ms == 2.0
    assert found["lenet5@2"].prediction.subject.batch == 2
    assert "lenet5" in str(found["lenet5@2"].row("lenet5"))
