"""What NVML says of GPUs, asked through pynvml's own code with a fake library behind it."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_nvml import GIBIBYTE, FakeGpu, FakeNvml, installed

from resperf import nvml
from resperf.devices import device_class
from resperf.errors import DeviceLostError, MissingExtraError, ResperfError
from resperf.platform import Accelerator, Platform, this_platform

A100 = "NVIDIA A100-SXM4-40GB"


@pytest.fixture(autouse=True)
def no_settings_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


@pytest.fixture
def machine() -> Iterator[FakeNvml]:
    """Two cards, of which the second is divided."""
    second = FakeGpu(
        A100, "GPU-99", 40 * GIBIBYTE, mig=1, ecc=1, instances=["1g.5gb", "2g.10gb"],
        capability=(8, 0),
    )  # fmt: skip
    with installed(FakeNvml([FakeGpu(), second])) as library:
        yield library


def test_all_that_a_card_tells(machine: FakeNvml) -> None:
    facts = nvml.Gpu("cuda:0").facts()
    assert len(facts.uuid_hash) == 16
    assert facts.uuid_hash not in machine.gpus[0].uuid
    assert replace(facts, uuid_hash="") == nvml.GpuFacts(
        number=0, name="NVIDIA GeForce RTX 4090", driver="550.54.15", cuda="12.4",
        compute_capability="8.9", memory_bytes=24 * GIBIBYTE, clock_mhz=3105,
        memory_clock_mhz=10501, power_limit_w=450, ecc="off", mig="off", persistence="on",
        pcie="PCIe 4.0 x16",
    )  # fmt: skip
    machine.gpus[0].pids = [os.getpid(), 4711]
    machine.gpus[0].reasons = (
        pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    )
    state = nvml.Gpu("cuda").state()
    assert state == nvml.GpuState(
        sm_clock_mhz=2520, memory_clock_mhz=10501, temperature_c=55, power_w=301.5,
        utilisation_percent=97, used_memory_bytes=3 * GIBIBYTE,
        reasons=frozenset({"power_cap", "hardware_thermal"}), other_processes=1,
    )  # fmt: skip
    assert state.numbers["is_throttled"] == state.numbers["is_power_capped"] == 1.0


def test_bits_have_pynvmls_values() -> None:
    theirs = {
        "idle": "GpuIdle", "application_clocks": "ApplicationsClocksSetting",
        "power_cap": "SwPowerCap", "hardware_slowdown": "HwSlowdown", "sync_boost": "SyncBoost",
        "software_thermal": "SwThermalSlowdown", "hardware_thermal": "HwThermalSlowdown",
        "power_brake": "HwPowerBrakeSlowdown", "display_clocks": "DisplayClockSetting",
    }  # fmt: skip
    values = {k: getattr(pynvml, f"nvmlClocksEventReason{name}") for k, name in theirs.items()}
    assert dict(nvml.REASONS) == values


def test_what_a_card_does_not_answer_is_unknown_and_not_0(machine: FakeNvml) -> None:
    machine.gpus[0].unsupported = {
        name for name in dir(pynvml) if name.startswith("nvmlDeviceGet") and "Name" not in name
    }
    gpu = nvml.Gpu("cuda:0")
    facts = gpu.facts()
    assert facts == nvml.GpuFacts(
        number=0, name="NVIDIA GeForce RTX 4090", driver="550.54.15", cuda="12.4"
    )
    assert gpu.state() == nvml.GpuState()
    assert gpu.state().numbers == {}
    assert gpu.memory_bytes() is None
    assert gpu.throttled_s() is None
    assert facts.accelerator == Accelerator(facts.name, driver="550.54.15", cuda="12.4")


def test_a_driver_that_dropped_an_old_function_tells_the_temperature_by_the_new_one() -> None:
    with installed(FakeNvml([FakeGpu()], absent=frozenset({"nvmlDeviceGetTemperature"}))):
        assert nvml.Gpu().state().temperature_c == 55


def test_a_driver_before_535_tells_its_throttle_reasons_under_their_old_name() -> None:
    old = frozenset({"nvmlDeviceGetCurrentClocksEventReasons"})
    card = FakeGpu(reasons=pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown)
    with installed(FakeNvml([card], absent=old)):
        assert nvml.Gpu().state().reasons == {"power_brake"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1 was not found: install"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded: install it, or"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "was updated while another version is loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "this user may not use the NVIDIA driver"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown Error"),
    ],
)
def test_without_a_driver_one_line_says_what_to_do(code: int, words: str) -> None:
    with (
        installed(FakeNvml([FakeGpu()], init=code)),
        pytest.raises(ResperfError, match=f"no NVIDIA GPU can be used: .*{words}"),
    ):
        this_platform("cuda:0")


def test_without_the_package_the_error_has_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'resperf\[cuda\]'"):
        nvml.gpus()


def test_a_device_that_is_not_there_is_told_with_those_that_are(machine: FakeNvml) -> None:
    message = r"no device cuda:3: .*has cuda:0 \(NVIDIA GeForce RTX 4090\), cuda:1 \(NVIDIA A100.*"
    with pytest.raises(ResperfError, match=message):
        this_platform("cuda:3")
    with pytest.raises(ResperfError, match="'cuda:x' must be written like cuda:1"):
        nvml.Gpu("cuda:x")


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1,0", ["1g.5gb", "NVIDIA GeForce RTX 4090"]),
        ("GPU-1111", ["NVIDIA GeForce RTX 4090"]),
        ("MIG-2g.10gb", ["2g.10gb"]),
        ("0,7,1", ["NVIDIA GeForce RTX 4090"]),
        ("GPU-7", []), ("", []), ("-1", []),
    ],
)  # fmt: skip
def test_devices_are_numbered_as_cuda_does(
    machine: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = nvml.gpus()
    assert [each.name.removeprefix(f"{A100} MIG ") for each in found] == names
    if not names:
        with pytest.raises(ResperfError, match="has no GPU with CUDA_VISIBLE_DEVICES="):
            nvml.Gpu("cuda:0")


def test_another_order_of_cuda_is_refused(
    machine: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    with pytest.raises(ResperfError, match="CUDA_DEVICE_ORDER=FASTEST_FIRST numbers GPUs otherwi"):
        nvml.Gpu("cuda:0")


def test_of_a_divided_card_cuda_uses_the_first_instance(machine: FakeNvml) -> None:
    facts = nvml.Gpu("cuda:1").facts()
    assert (facts.name, facts.memory_bytes) == (f"{A100} MIG 1g.5gb", 5 * GIBIBYTE)
    assert (facts.mig, facts.ecc, facts.power_limit_w) == ("on", "on", 450)
    machine.gpus[1].instances = []
    with pytest.raises(ResperfError, match="cuda:1 is in MIG mode and has no instance"):
        nvml.Gpu("cuda:1")
    assert "has no instance" in str(nvml.gpus()[1].trouble)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_a_lost_card_is_told_from_one_that_does_not_answer_a_question(
    machine: FakeNvml, code: int
) -> None:
    gpu = nvml.Gpu("cuda:0")
    gpu.check()
    machine.gpus[0].is_lost, machine.gpus[0].error = True, code
    for asked in (gpu.check, gpu.state, gpu.facts, gpu.memory_bytes, gpu.throttled_s):
        with pytest.raises(DeviceLostError, match=r"cuda:0 is lost \(GPU .*dmesg"):
            asked()
    with pytest.raises(DeviceLostError, match=r"cuda:0 is lost \(GPU"):
        nvml.Gpu("cuda:0")
    lost, other = nvml.gpus()
    assert (lost.name, other.trouble) == ("unknown", "")
    assert str(lost.trouble).startswith("cuda:0 is lost (GPU")


def test_in_a_container_one_of_the_processes_is_this_one(
    machine: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = nvml.Gpu("cuda:0")
    machine.gpus[0].pids = [101, 102]
    monkeypatch.setattr(nvml, "_is_host", lambda: True)
    assert gpu.state().other_processes == 2
    monkeypatch.setattr(nvml, "_is_host", lambda: False)
    assert gpu.state().other_processes == 1
    assert math.isnan(gpu.process_bytes())
    machine.gpus[0].pids, machine.gpus[0].process_bytes = [101], 2 * GIBIBYTE
    assert gpu.process_bytes() == 2 * GIBIBYTE
    monkeypatch.setattr(nvml, "_is_host", lambda: True)
    assert math.isnan(gpu.process_bytes())
    machine.gpus[0].pids = [101, os.getpid()]
    assert gpu.process_bytes() == 2 * GIBIBYTE
    machine.gpus[0].pids = []
    assert gpu.state().other_processes == 0


def test_a_platform_has_the_name_that_users_know(machine: FakeNvml) -> None:
    found = this_platform("cuda:0")
    assert found.device == "rtx4090"
    (accelerator,) = found.accelerators
    assert (accelerator.name, accelerator.power_limit_w) == ("NVIDIA GeForce RTX 4090", 450)
    assert nvml.word_of(accelerator) == "cuda:0"
    assert Platform.from_json(found.to_json()) == found
    machine.gpus[0].name = "NVIDIA RTX 6000 Ada Generation"
    unknown = this_platform("cuda:0")
    assert unknown.device == "nvidia-rtx-6000-ada-generation"
    assert device_class(unknown.device, "torch") == "cuda"
    machine.gpus[0].name = "Tesla V100-SXM2-32GB"  # as older drivers call it
    assert this_platform("cuda").device == "v100-32gb"
    with pytest.raises(ResperfError, match="does not have the X that is measured on"):
        nvml.word_of(Accelerator("X", uuid_hash="0"))


def test_no_setting_is_ever_changed() -> None:
    """Every function of NVML that resperf names exists in pynvml and only reads."""
    root = Path(nvml.__file__).parent
    named = {
        (path.name, name)
        for path in root.rglob("*.py")
        for name in re.findall(r"\bnvml[A-Z]\w+", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert {file for file, _ in named} == {"nvml.py"}
    for _, name in named:
        assert callable(getattr(pynvml, name))
        assert name == "nvmlInit" or name.startswith(("nvmlDeviceGet", "nvmlSystemGet"))


def test_nothing_but_questions_reaches_the_library(machine: FakeNvml) -> None:
    for word in ("cuda:0", "cuda:1"):
        gpu = nvml.Gpu(word)
        gpu.facts(), gpu.state(), gpu.throttled_s(), gpu.check()
    reads = ("nvmlDeviceGet", "nvmlSystemGet", "nvmlInit")
    assert len(set(machine.called)) > 20
    assert [name for name in machine.called if not name.startswith(reads)] == []
