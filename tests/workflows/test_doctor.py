"""The doctor tells what a machine can measure, and never breaks with a broken framework."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pynvml")
sys.path.insert(0, str(Path(__file__).parents[1]))
from fake_nvml import GIBIBYTE, FakeGpu, FakeNvml, installed

from resperf.backends import onnxruntime_facts
from resperf.backends._facts import FrameworkFacts
from resperf.report.doctor import doctor_text
from resperf.targets import Target, target, targets
from resperf.workflows import doctor
from resperf.workflows.doctor import (
    Answer,
    Examination,
    Folder,
    Framework,
    Gpu,
    Host,
    ask,
    examine,
    examine_framework,
    examine_host,
    facts_module,
    gpu_advice,
    host_advice,
    judge,
)

ROOT = Path(__file__).parents[2]
HOST = Host("P", 8, 8, None, 32 << 30, 30 << 30, "", ("performance",), 0.1, ())
CARD: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3", "driver": "535.1", "clock_mhz": 1980,
    "memory_bytes": 80 << 30, "mig": "off", "ecc": "on", "persistence": "on",
}  # fmt: skip
GPU = Gpu("cuda:0", "h100", "12.2", CARD, {"other_processes": 0, "reasons": []})
CUDA_ROW = Target("framex", "cuda", backend="b:B", packages=("framex",), install="resperf[framex]")
CPU_ROW = dataclasses.replace(CUDA_ROW, device_class="cpu")


def test_every_framework_can_be_asked() -> None:
    rows = [row for row in targets() if row.backend and row.packages]
    asked = {row.framework for row in rows if facts_module(row)}
    assert asked == {row.framework for row in rows}
    assert facts_module(Target("f", "d", backend="no.such_module:Backend")) == ""
    assert facts_module(Target("f", "d")) == ""


def test_onnx_runtime_is_asked_in_a_process_of_its_own() -> None:
    found = examine_framework("onnxruntime")
    assert found.problem == ""
    assert found.facts == onnxruntime_facts.facts()
    assert found.facts.version == found.packages["onnxruntime"]
    assert found.facts.devices == ("cpu",)
    assert any("CPU" in note for note in found.facts.notes)
    state = judge(target(), found)
    assert (state.measurable, state.install) == (Answer.YES, "")


def test_a_provider_that_does_not_start_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: names)
    found = onnxruntime_facts.facts()
    assert found.devices == ("cpu",)
    assert found.notes[1].startswith("provider CUDA is there, but does not start")


def test_tensorflow_and_torch_say_what_they_find() -> None:
    pytest.importorskip("tensorflow")
    from resperf.backends import tensorflow_facts

    assert tensorflow_facts.facts().devices == ("cpu",)
    pytest.importorskip("torch")
    from resperf.backends import torch_facts

    assert torch_facts.facts().devices[0] == "cpu"


BROKEN = {
    "import": ("raise ImportError('libcudart.so.12: cannot open')", "it cannot be loaded: Impor"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
    "hangs": ("import time; time.sleep(60)", "no answer within 0.5 s"),
    "exits": ("import sys; sys.exit(3)", "it exits with 3"),
    "silent": ("import os; os._exit(0)", "its answer could not be read"),
}


@pytest.mark.parametrize(("code", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_framework_is_one_line(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_framework.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    facts, problem = ask("broken_framework", timeout_s=0.5 if "sleep" in code else 30)
    assert facts is None
    assert said in problem
    assert "\n" not in problem
    state = judge(CPU_ROW, Framework("framex", {"framex": "1"}, facts, problem))
    assert (state.measurable, state.why) == (Answer.NO, f"framex 1: {problem}")
    assert state.install == "pip install 'resperf[framex]'"


def asked(*devices: str, cuda: str = "", notes: tuple[str, ...] = ()) -> Framework:
    return Framework("framex", {"framex": "2"}, FrameworkFacts("2", devices, cuda, notes))


@pytest.mark.parametrize(
    ("row", "framework", "gpus", "measurable", "why"),
    [
        (Target("f", "d"), Framework("f"), (), "no", "resperf cannot measure it"),
        (CPU_ROW, Framework("framex"), (), "no", "framex is not installed"),
        (CPU_ROW, asked("cpu"), (), "yes", "framex 2"),
        (CUDA_ROW, asked("cpu", "cuda:0"), (), "no", "there is no driver"),
        (CUDA_ROW, asked("cpu", "cuda:0"), (GPU,), "yes", "framex 2"),
        (CUDA_ROW, asked("cpu"), (GPU,), "no", "framex 2 finds no cuda device (not built for it)"),
        (CUDA_ROW, asked("cpu", cuda="12.8", notes=("driver too old",)), (GPU,), "no",
         "framex 2 finds no cuda device (built for CUDA 12.8); driver too old"),
        (CPU_ROW, Framework("framex", {"framex": "2"}), (), "unknown", "cannot be asked"),
        (target("synthetic"), Framework("synthetic"), (), "yes", "it needs no package"),
    ],
)  # fmt: skip
def test_targets_are_judged(
    row: Target, framework: Framework, gpus: tuple[Gpu, ...], measurable: str, why: str
) -> None:
    state = judge(row, framework, gpus, "there is no driver")
    assert state.measurable == measurable
    assert why in state.why


def test_what_every_campaign_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MEASURING", {"no_such_module": "bench"})
    state = judge(CPU_ROW, asked("cpu"))
    assert (state.measurable, state.why) == (Answer.NO, "no_such_module not installed")
    assert state.install == "pip install 'resperf[bench]'"


def test_what_a_machine_reports_is_read(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 100 kB\nMemAvailable:    2048 kB\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/memory.max": "1048576\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    host = examine_host(tmp_path)
    assert (host.available_bytes, host.memory_bytes) == (2048 << 10, 1 << 20)
    assert (host.core_limit, host.governors) == (1.5, ("powersave",))
    nothing = examine_host(tmp_path / "empty")
    assert (nothing.available_bytes, nothing.core_limit, nothing.governors) == (None, None, ())


def test_folders_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    found = {each.what: each for each in examine_host().folders}
    assert not found["caches"].writable
    assert found["datasets"].writable
    assert found["datasets"].path == str(tmp_path)
    assert found["datasets"].free_bytes > 0


def test_a_machine_s_faults_become_advice() -> None:
    assert host_advice(HOST) == []
    full = Folder("datasets", "/d", 5 << 20, writable=True)
    closed = Folder("caches", "/c", None, writable=False)
    bad = dataclasses.replace(
        HOST, cores=1, core_limit=0.5, available_bytes=1 << 20, hypervisor="QEMU", load=3.0,
        governors=("powersave", "performance"), folders=(full, closed),
    )  # fmt: skip
    words = (
        "clock governor powersave, performance", "fewer than two cores", "--threads 1",
        "load 3.0 on 1 core(s)", "only 1.0 MiB of memory", "virtual machine (QEMU)",
        "datasets: only 5.0 MiB are free in /d", "caches: /c cannot be written",
    )  # fmt: skip
    advice = host_advice(bad)
    assert len(advice) == len(words)
    for line, word in zip(advice, words, strict=True):
        assert word in line


def test_a_card_s_faults_become_advice() -> None:
    # Whether clocks are locked cannot be asked: that is all there is to say of a good card.
    assert [line[:32] for line in gpu_advice([GPU], [])] == ["cuda:0: whether its clocks are l"]
    facts = {**CARD, "persistence": "off", "mig": "on"}
    state = {"other_processes": 2, "reasons": ["hardware_thermal", "idle"]}
    newer = dataclasses.replace(asked("cpu", cuda="13.0"), name="torch")
    same_major = dataclasses.replace(asked("cuda:0", cuda="12.8"), name="tensorflow")
    words = (
        "persistence mode is off", "2 other processes", "throttled (hardware_thermal)", "MIG is on",
        "clocks are locked is unknown", "supports CUDA 12.2, but torch was built for 13.0",
    )  # fmt: skip
    advice = gpu_advice(
        [Gpu("cuda:1", "h100", "12.2", facts, state)], [newer, same_major, Framework("x")]
    )
    assert len(advice) == len(words)
    for line, word in zip(advice, words, strict=True):
        assert line.startswith("cuda:1: ")
        assert word in line


@pytest.fixture
def one_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with one card and an old driver, which says little of it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(doctor, "ask", lambda *_, **__: (FrameworkFacts("9", ("cuda:0",)), ""))
    row = Target("synthetic", "cuda", backend="b:B")
    monkeypatch.setattr(doctor, "targets", lambda: (row, target("synthetic")))
    silent = {
        "nvmlDeviceGetMigMode", "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetComputeRunningProcesses",
    }  # fmt: skip
    card = FakeGpu("Tesla T4", memory_bytes=GIBIBYTE, unsupported=silent)
    absent = frozenset({"nvmlSystemGetDriverVersion"})
    with installed(FakeNvml([card], absent=absent)):
        yield


def test_a_card_is_described_and_what_is_unknown_is_unknown(one_card: None) -> None:
    found = examine()
    assert [(each.target, each.measurable) for each in found.targets] == [("synthetic/cuda", "yes")]
    text = doctor_text(found)
    assert (
        "cuda:0: Tesla T4 (predict calls it t4), driver unknown, CUDA up to 12.4, 1.0 GiB" in text
    )
    assert "MIG unknown, ECC off, persistence mode unknown, other processes unknown" in text
    assert Examination.from_json(found.to_json()).gpus == found.gpus
    only = examine("cuda:0")
    assert [each.target for each in only.targets] == ["synthetic/cuda"]
    absent = examine("cuda:7")
    assert absent.gpus == ()
    why = "there is no device cuda:7: this machine has cuda:0 (Tesla T4)"
    assert absent.targets[0].why == why


def test_the_command_loads_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys; from resperf.cli.main import main; "
        "assert main(['doctor', '--device', 'synthetic', '--json']) == 0; "
        "print(sorted({'tensorflow', 'torch', 'onnxruntime', 'keras', 'tensorrt'} "
        "& set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.stderr == "[]\n"
    said = json.loads(done.stdout)
    assert [each["target"] for each in said["targets"]] == ["synthetic/synthetic"]


def test_the_command_line(cli) -> None:
    assert "synthetic/synthetic   yes" in cli.text("doctor", "--device", "synthetic")
    assert "'abacus' is no device of this machine" in cli.error("doctor", "--device", "abacus")


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("numpy", f"predicted by asking numpy {np.__version__}"),
        ("not-there", "to predict it: pip install 'resperf[x]'"),
    ],
)
def test_the_package_that_is_asked_for_kernels_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, says: str
) -> None:
    row = Target("framey", "cpu", asked_package=package, asked_install="resperf[x]")
    monkeypatch.setattr(doctor, "targets", lambda: [row])
    framework = examine_framework("framey")
    assert says in framework.kernels
