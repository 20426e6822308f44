"""The check of a GPU machine: whole on the simulated device, and with every way a step may end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NETWORK = ROOT / "models" / "networks" / "lenet5.onnx"
TOML = """
samples = 120
seed = 1
[protocol]
min_samples = 3
min_time_s = 0.0
budget_s = 0.005
warmup_s = 0.0
[kinds.conv]
[kinds.pool]
[kinds.dense]
[kinds.activation]
"""
Scenario = Callable[[str], None]


@pytest.fixture
def tool(load_tool: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Its handler would outlive the test.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return load_tool("benchmarks/gpu_check")


def words(folder: Path, *more: object) -> list[str]:
    given = ("--device", "synthetic", "--minutes", 0.05, "--networks", NETWORK, "--batches", 1, 8)
    return [str(each) for each in (folder, *given, *more)]


def by_name(folder: Path) -> dict[str, tuple[str, str]]:
    steps = json.loads((folder / "results.json").read_text())["steps"]
    return {step["name"]: (step["status"], step["reason"]) for step in steps}


def test_the_simulated_device_is_checked_from_end_to_end(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "tiny.toml").write_text(TOML)
    # The campaign has an end of its own, so that no step depends on this machine's speed.
    monkeypatch.setattr(tool, "RUN_SECONDS", (0.05, 0.05))
    folder = tmp_path / "out"
    asked = words(folder, "--campaign", tmp_path / "tiny.toml", "--minutes", 5)
    assert tool.main(asked) == 0
    found = by_name(folder)
    assert len(found) == 6
    assert {status for status, _ in found.values()} == {"ok"}
    text = (folder / "report.md").read_text()
    assert "| synthetic/synthetic | lenet5 | 8 | " in text
    assert "## What could not be run\n\nNothing." in text
    # A whole run on the simulated clock is its three phases.
    (line,) = (each for each in text.splitlines() if "| lenet5 | 1 |" in each)
    assert abs(float(line.split("|")[6].strip().rstrip("%"))) <= 0.1
    # Again: everything is there. No command could run.
    monkeypatch.setattr(tool, "COMMAND", ("/nowhere/resperf",))
    capsys.readouterr()
    assert tool.main(asked) == 0
    assert capsys.readouterr().out.count(": done before") == 6
    with pytest.raises(SystemExit, match="a check with other options"):
        tool.main([*asked, "--method", "gianniti"])


FAKE = """
import json, os, signal, sys, time
words = sys.argv[1:]
name = " ".join(words)
for line in open(os.path.join(os.path.dirname(__file__), "scenario")).read().splitlines():
    part, _, does = line.partition("=")
    if all(each in name for each in part.split("+")):
        exec(does)
host = {"processor": "P", "cores": 1, "memory_bytes": 1}
gpu = {"word": "cuda:0", "cuda": "12.2", "facts": {"name": "T4", "driver": "535", "mig": None,
       "ecc": "on", "persistence": None}}
targets = [{"target": f"{name}/cuda", "measurable": answer, "why": "w"}
           for name, answer in (("a", "yes"), ("b", "unknown"), ("c", "no"))]
documents = [{"batch": batch, "total_ms": 2.0 * batch, "skipped": [1] * (batch - 1),
              "warnings": ["noisy"],
              "phases": {"preprocess_ms": 0.5, "execution_ms": 1.0, "postprocess_ms": None},
              "percentiles_ms": {"p50": 4.0 * batch}} for batch in (1, 8)]
answers = {
    "doctor": {"host": host, "gpus": [gpu], "no_gpu": "", "frameworks": [], "targets": targets,
               "advice": ["persistence mode is off"]},
    "bench": {"statuses": {"ok": 3}, "layers_per_second": 1.0, "doubtful": 0},
    "train": {}, "predict": documents, "measure": [documents["--batch 8" in name]],
}
print(json.dumps(answers[words[0]]))
"""


@pytest.fixture
def scenario(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Replace `resperf`: lines of WORD+WORD=CODE say what a command with these words does."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    monkeypatch.setattr(tool, "COMMAND", (sys.executable, str(script)))

    def write(lines: str) -> None:
        (tmp_path / "scenario").write_text(lines)

    return write


def test_a_step_that_does_not_end_is_ended(
    tool: ModuleType, scenario: Scenario, tmp_path: Path
) -> None:
    scenario("train=signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)\n")
    started = time.monotonic()
    status = tool.run_command(["train"], tmp_path / "log", 1.0)
    assert time.monotonic() - started < 30
    assert tool.reason(status, tmp_path / "log", 1.0) == "no end within 1 s"


def test_no_failing_step_ends_the_check(
    tool: ModuleType, scenario: Scenario, tmp_path: Path
) -> None:
    scenario(
        "bench+--framework a=print('x', file=sys.stderr); "
        "sys.exit('noise\\nresperf: error: out of memory | now')\n"
        "measure+--framework a+--batch 8=os._exit(3)\n"
        "measure+--framework a+--batch 1=os.kill(os.getpid(), signal.SIGSEGV)\n"
        "train+b-cuda=print('[]'); sys.exit(7)\n"
    )
    folder = tmp_path / "out"
    assert tool.main(words(folder)) == 0
    found = by_name(folder)
    assert found["c/cuda"] == ("skipped", "w")
    assert found["a/cuda/bench"] == ("failed", "out of memory | now")
    assert found["a/cuda/train"] == ("skipped", "the campaign has no rows")
    assert found["a/cuda/predict-lenet5"] == ("skipped", "no bundle was trained")
    assert found["a/cuda/measure-lenet5-8"] == ("failed", "exit status 3")
    assert found["a/cuda/measure-lenet5-1"] == (
        "failed", "ended by SIGSEGV; see a-cuda-measure-lenet5-1.err",
    )  # fmt: skip
    assert found["b/cuda/train"] == ("failed", "exit status 7")
    assert found["b/cuda/measure-lenet5-8"] == ("ok", "")
    text = (folder / "report.md").read_text()
    assert "| a/cuda/bench | failed | out of memory / now |" in text
    # What was measured without a prediction is there.
    assert "| b/cuda | lenet5 | 8 | 16.00 | 32.00 | -50.0% | - | - | noisy |" in text
    # What failed or was skipped is repeated.
    scenario("bench+--framework b=sys.exit(1)\n")
    assert tool.main(words(folder)) == 0
    assert {name for name, (status, _) in by_name(folder).items() if status != "ok"} == {"c/cuda"}
    assert "| 16.00 (without 7 operators) |" in (folder / "report.md").read_text()


def test_a_device_that_is_not_there_fails_the_check(
    tool: ModuleType, scenario: Scenario, tmp_path: Path
) -> None:
    scenario("doctor=sys.exit('no device')\n")
    assert tool.main(words(tmp_path / "out")) == 2
    assert by_name(tmp_path / "out") == {"doctor": ("failed", "no device")}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_what_is_done(
    sent: signal.Signals, scenario: Scenario, tmp_path: Path
) -> None:
    scenario("bench+--framework a=open('started', 'w'); time.sleep(60)\n")
    folder = tmp_path / "out"
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools' / 'benchmarks')!r}); "
        "import gpu_check; "
        f"gpu_check.COMMAND = (sys.executable, {str(tmp_path / 'fake.py')!r}); "
        f"sys.exit(gpu_check.main({words(folder)!r}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        stop = time.monotonic() + 60
        while not (tmp_path / "started").exists() and time.monotonic() < stop:
            time.sleep(0.02)
        os.kill(running.pid, sent)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert said == "interrupted; the same command goes on\n"
    found = by_name(folder)
    assert found["a/cuda/bench"] == ("interrupted", "interrupted")
