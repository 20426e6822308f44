"""Platforms: differences of two machines, and their effect on times."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from resperf.platform import (
    Accelerator,
    CpuFacts,
    Platform,
    distance,
    instruction_set,
    this_platform,
    usable_cores,
)
from resperf.settings import Setting

XEON = Platform(
    device="cpu", processor="Intel(R) Xeon(R) Processor", family=6, model=143, stepping=8,
    caches={"L2": 2 << 20}, instruction_set="avx512f", cores=2, memory_bytes=100, system="Linux",
    machine_checks={"core_ms": 1.0},
)  # fmt: skip
SETTING = Setting("f", "1", "p", threads=2, options={"spinning": "on"})


def test_a_machine_is_itself() -> None:
    here = this_platform("cpu")
    assert here.differences(this_platform("cpu")) == []
    assert here.cores == usable_cores() >= 1
    assert here.instruction_set == instruction_set() != ""


@pytest.mark.parametrize(
    "platform", [XEON, replace(XEON, accelerators=(Accelerator("H100", 80 << 30),), devices=2)]
)
def test_a_platform_is_read_as_it_was_written(platform: Platform) -> None:
    written = json.loads(json.dumps(platform.to_json()))
    assert Platform.from_json({**written, "moon_phase": "full"}) == platform


def test_facts_of_a_processor_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    told = CpuFacts(
        name="Red 5", flags=frozenset({"fpu", "avx2", "avx512f", "amx_tile"}), family=6, model=207,
        caches={"L1d": 48 << 10, "L3": 32 << 20}, hypervisor="QEMU",
    )  # fmt: skip
    monkeypatch.setattr("resperf.platform.cpu_facts", lambda: told)
    found = this_platform("mine")
    assert (found.device, found.processor, found.instruction_set) == (
        "mine", "Red 5", "avx512f+amx_tile",
    )  # fmt: skip
    assert (found.family, found.model, found.stepping) == (6, 207, None)
    assert found.caches == {"L1d": 48 << 10, "L3": 32 << 20}
    assert found.hypervisor == "QEMU"


def test_another_generation_of_the_same_name_is_reported() -> None:
    assert XEON.differences(replace(XEON, model=207)) == [
        "model: 143 here, 207 there, another generation under the same processor name"
    ]
    # The effect of both is said once; of caches, those that differ.
    older = replace(XEON, family=7, model=207, caches={**XEON.caches, "L2": 1 << 20})
    assert XEON.differences(older) == [
        "family: 6 here, 7 there, another generation under the same processor name",
        "model: 143 here, 207 there",
        "caches: L2 2.0 MiB here, L2 1.0 MiB there, times of layers that fit only one of them "
        "may differ",
    ]
    guest = replace(XEON, hypervisor="QEMU")
    assert guest.differences(replace(XEON, hypervisor="unknown")) == []
    assert len(guest.differences(replace(XEON, hypervisor="xen"))) == 1
    renamed = XEON.differences(replace(XEON, model=207, processor="Other"))
    assert renamed == [
        "processor: Intel(R) Xeon(R) Processor here, Other there",
        "model: 143 here, 207 there, another processor generation",
    ]


def test_the_number_of_processes_that_share_a_run_tells_platforms_apart() -> None:
    two = replace(XEON, devices=2, interconnect="gloo on 1 host")
    assert XEON.differences(two) == ["devices: 1 here, 2 there"]
    assert two.differences(replace(two, interconnect="gloo on 2 hosts")) == [
        "interconnect: gloo on 1 host here, gloo on 2 hosts there, times of transfers between "
        "devices may differ"
    ]


def test_facts_that_one_side_does_not_know_are_not_compared() -> None:
    unknown = replace(XEON, family=None, model=None, stepping=None, caches={}, machine_checks={})
    assert XEON.differences(unknown) == unknown.differences(XEON) == []


def test_machine_checks_show_which_machine_is_faster() -> None:
    slower = replace(XEON, machine_checks={"core_ms": 1.12, "other_ms": 9.0})
    assert XEON.differences(slower) == [
        "core_ms: 1 here, 1.12 there, this machine is 1.12 times faster"
    ]
    more = [replace(XEON, machine_checks={"copy_gb_per_s": rate}) for rate in (10.0, 20.0)]
    assert more[1].differences(more[0]) == [
        "copy_gb_per_s: 20 here, 10 there, this machine is 2.00 times faster"
    ]
    assert slower.differences(XEON)[0].endswith("this machine is 1.12 times slower")
    assert XEON.differences(replace(XEON, machine_checks={"core_ms": 1.05})) == []


def test_a_device_with_a_custom_name_has_the_same_hardware() -> None:
    named = replace(XEON, device="mine")
    assert XEON.differences(named) == ["device: cpu here, mine there"]
    assert XEON.hardware_differences(named) == []


def test_a_little_memory_more_is_the_same_machine() -> None:
    assert XEON.differences(replace(XEON, memory_bytes=109)) == []
    assert XEON.differences(replace(XEON, memory_bytes=120)) != []


def test_of_accelerators_the_driver_counts_and_the_hosts_stepping_does_not() -> None:
    mine = replace(XEON, accelerators=(Accelerator("H100", driver="550"),))
    theirs = replace(XEON, accelerators=(Accelerator("H100", driver="560"),), stepping=1)
    assert mine.differences(theirs) == [
        "accelerators: H100 driver=550 here, H100 driver=560 there, another device, driver or "
        "clock: all times may differ"
    ]
    assert mine.differences(XEON)[0].startswith("accelerators: H100 driver=550 here, none there")


def test_facts_of_accelerators_that_old_files_do_not_know_are_no_difference() -> None:
    old = replace(XEON, accelerators=(Accelerator.from_json({"name": "H100", "driver": "550"}),))
    known = Accelerator("H100", driver="550", uuid_hash="ab", ecc="on", mig="off", cuda="12.4")
    mine = replace(XEON, accelerators=(known,))
    assert mine.differences(old) == old.differences(mine) == []
    theirs = replace(XEON, accelerators=(replace(known, uuid_hash="cd", ecc="off"),))
    assert mine.differences(theirs) == [
        "accelerators: H100 uuid_hash=ab ecc=on here, H100 uuid_hash=cd ecc=off there, another "
        "device, driver or clock: all times may differ"
    ]
    two = replace(XEON, accelerators=(known, known))
    assert mine.differences(two)[0].startswith("accelerators: H100 driver=550 uuid_hash=ab")


def test_distance_counts_cores_before_names_and_names_before_generations() -> None:
    here = this_platform("cpu")
    setting = replace(SETTING, threads=here.cores)
    assert not any(distance(setting, here))
    generation = replace(here, model=(here.model or 0) + 1) if here.model else here
    name = replace(here, processor="another")
    cores = replace(here, cores=here.cores + 1)
    order = [distance(setting, each) for each in (here, generation, name, cores)]
    assert order == sorted(order)


def test_platforms_are_hashed_by_what_is_compared() -> None:
    assert len({XEON, replace(XEON), replace(XEON, caches={"L2": 1})}) == 2


def test_machine_checks_are_those_of_a_dataset_s_machine_costs() -> None:
    costs = {"call_ms": 0.1, "check_call_us": 20.0, "check_copy_gb_per_s": 9.0}
    assert XEON.with_machine_checks(costs).machine_checks == {
        "check_call_us": 20.0,
        "check_copy_gb_per_s": 9.0,
    }
    assert XEON.with_machine_checks({}).machine_checks == {}


def test_a_platform_of_which_only_the_name_is_known_differs_in_nothing_else() -> None:
    assert XEON.differences(Platform("cpu")) == Platform("cpu").differences(XEON) == []
    assert Platform("cpu", cores=4).differences(XEON) == ["cores: 4 here, 2 there"]
