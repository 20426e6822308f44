"""Facts of a processor, from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from resperf.platform_facts import Cache, CpuFacts, cpu_facts

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
    "index3": ("3", "Unified", "266240K", "0-1"),
    "index0": ("1", "Data", "48K", "0"),
    "index1": ("1", "Instruction", "32K", "0"),
    "index2": ("2", "Unified", "2M", "0,32"),
}


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cache_files(caches: dict[str, tuple[str, ...]]) -> dict[str, str]:
    names = ("level", "type", "size", "shared_cpu_list")
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
        caches=(
            Cache(1, "data", 48 * 1024, 1),
            Cache(1, "instruction", 32 * 1024, 1),
            Cache(2, "unified", 2 * 1024 * 1024, 2),
            Cache(3, "unified", 266240 * 1024, 2),
        ),
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
    odd = {"index0": ("1", "Data", "", "0"), "index1": ("1", "Data", "64K", "")}
    root = machine(tmp_path, {"proc/cpuinfo": GRAVITON, **cache_files(odd)})
    assert cpu_facts(root) == CpuFacts(
        flags=frozenset({"fp", "asimd", "evtstrm", "aes", "sve"}),
        caches=(Cache(1, "data", 64 * 1024, 1),),
    )


@pytest.mark.parametrize(
    ("processors", "shared_by"), [("0", 1), ("0-3", 4), ("0-1,8-9,12", 5), ("all", 1)]
)
def test_processors_that_share_a_cache_are_counted(
    tmp_path: Path, processors: str, shared_by: int
) -> None:
    root = machine(tmp_path, cache_files({"index0": ("2", "Unified", "1M", processors)}))
    assert cpu_facts(root).caches == (Cache(2, "unified", 1 << 20, shared_by),)


def test_this_machine_has_facts() -> None:
    facts = cpu_facts()
    assert hash(facts) == hash(cpu_facts())
    assert all(cache.bytes > 0 for cache in facts.caches)
