"""Facts of a processor, from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from resperf.platform import CpuFacts, cpu_facts

XEON = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 207
model name\t: Intel(R) Xeon(R) Processor
stepping\t: 2
microcode\t: 0x1
flags\t\t: fpu vme sse2 avx512f hypervisor lahf_lm
bugs\t\t: spectre_v1

processor\t: 1
cpu family\t: 15
model\t\t: 1
stepping\t: 9
"""
GRAVITON = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""
CACHES = {
    "index3": ("3", "Unified", "266240K"),
    "index0": ("1", "Data", "48K"),
    "index1": ("1", "Instruction", "32K"),
    "index2": ("2", "Unified", "2M"),
}


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cache_files(caches: dict[str, tuple[str, ...]]) -> dict[str, str]:
    names = ("level", "type", "size")
    return {
        f"sys/devices/system/cpu/cpu0/cache/{index}/{name}": f"{value}\n"
        for index, values in caches.items()
        for name, value in zip(names, values, strict=True)
    }


def test_a_guest_on_a_server(tmp_path: Path) -> None:
    vendor = {"sys/class/dmi/id/sys_vendor": "QEMU\n"}
    root = machine(tmp_path, {"proc/cpuinfo": XEON, **cache_files(CACHES), **vendor})
    assert cpu_facts(root) == CpuFacts(
        name="Intel(R) Xeon(R) Processor",
        flags=frozenset({"fpu", "vme", "sse2", "avx512f", "hypervisor", "lahf_lm"}),
        family=6,
        model=207,
        stepping=2,
        caches={"L1d": 48 << 10, "L1i": 32 << 10, "L2": 2 << 20, "L3": 266240 << 10},
        hypervisor="QEMU",
    )


@pytest.mark.parametrize(
    ("cpuinfo", "files", "hypervisor"),
    [
        (XEON, {}, "unknown"),
        (XEON, {"sys/hypervisor/type": "xen\n"}, "xen"),
        # The board of a real machine has a vendor too.
        (XEON.replace(" hypervisor", ""), {"sys/class/dmi/id/sys_vendor": "Dell Inc.\n"}, ""),
    ],
)
def test_a_hypervisor_is_detected(
    tmp_path: Path, cpuinfo: str, files: dict[str, str], hypervisor: str
) -> None:
    assert cpu_facts(machine(tmp_path, {"proc/cpuinfo": cpuinfo, **files})).hypervisor == hypervisor


def test_unknown_facts_are_absent(tmp_path: Path) -> None:
    assert cpu_facts(tmp_path) == CpuFacts()
    odd = {"index0": ("1", "Data", ""), "index1": ("1", "Data", "64K")}
    root = machine(tmp_path / "arm", {"proc/cpuinfo": GRAVITON, **cache_files(odd)})
    assert cpu_facts(root) == CpuFacts(
        flags=frozenset({"fp", "asimd", "evtstrm", "aes", "sve"}),
        caches={"L1d": 64 << 10},
    )


def test_this_machine_has_facts() -> None:
    assert all(size > 0 for size in cpu_facts().caches.values())
