"""kill -9 at random moments: no row lost or doubled, and the files always open."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from resperf import targets

TOOL = Path(__file__).resolve().parents[2] / "tools" / "benchmarks" / "kill.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kill", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_kills_lose_at_most_the_row_in_flight(tmp_path: Path, tool: ModuleType) -> None:
    report = tool.kill_and_resume(tmp_path, kills=6, seed=4, layers=150, settings={"real_ms": 10.0})
    assert report.killed == 6
    assert report.lost == 0
    assert report.doubled == 0
    assert report.unreadable == 0
    assert report.orphans == 0
    assert report.rows == report.planned
    # The kills were spread over the campaign, not all before its first row.
    assert sum(rows > 0 for rows in report.rows_at_kill) >= 3


def test_a_gpu_that_throttles_meanwhile_loses_no_more(
    tmp_path: Path, tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = Path(__file__).resolve().parents[1]
    monkeypatch.syspath_prepend(tests)
    monkeypatch.setenv("PYTHONPATH", str(tests), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    import synthetic_gpu
    from fake_nvml import install

    monkeypatch.setattr("resperf.targets._table", dict(targets._table))
    install(synthetic_gpu.LIBRARY)
    try:
        report = tool.kill_and_resume(
            tmp_path, kills=2, seed=2, layers=40, framework="synthetic_gpu:TARGET",
            settings={"real_ms": 10.0, "hot": [20, 2]},
        )  # fmt: skip
    finally:
        install(None)
    assert report.killed == 2
    assert report.lost + report.doubled + report.unreadable + report.orphans == 0
    assert report.rows == report.planned
