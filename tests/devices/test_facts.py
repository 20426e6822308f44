"""A user's own card as a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from resperf.devices import devices, read_device
from resperf.errors import ResperfError

CARD = """
[mycard]
class = "cuda"
peak_tflops = { fp32 = 20.48, fp16 = 81.9 }
bandwidth_gb_s = 512
memory_gib = 16
cache_mib = 32
multiprocessors = 40
cores_per_multiprocessor = 128
boost_mhz = 2000
memory_bus_bits = 256
memory_gbit_s_per_pin = 16
board_w = 200
process_nm = 5
"""


def card(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = CARD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "mycard.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_card_is_read(tmp_path: Path) -> None:
    facts = read_device(card(tmp_path))
    assert (facts.device, facts.name, facts.device_class) == ("mycard", "mycard", "cuda")
    assert facts.peaks_flops_per_s == {"fp32": 20.48e12, "fp16": 81.9e12}
    assert (facts.bandwidth_bytes_per_s, facts.memory_bytes) == (512e9, 16 << 30)
    assert (facts.multiprocessors, facts.board_w, facts.process_nm) == (40, 200, 5)


def test_the_shipped_table_has_the_same_form(tmp_path: Path) -> None:
    table = (Path(__file__).parents[2] / "resperf" / "devices" / "devices.toml").read_text()
    start = table.index("[rtx4090]")
    path = tmp_path / "rtx4090.toml"
    path.write_text(table[start : table.index("\n[", start + 1)])
    assert read_device(path) == devices()["rtx4090"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bandwidth_gb_s = 512", "", "mycard: bandwidth_gb_s must be given"),
        ("board_w = 200", "", "mycard: board_w must be given"),
        ("fp32 = 20.48, ", "", "peak_tflops: fp32 must be given"),
        ("bandwidth_gb_s = 512", "bandwidth_gb_s = 5e11",
         r"bandwidth_gb_s=5\d+\.0 must be plausible: between 5 and 30000 GB/s"),
        ("boost_mhz = 2000", "boost_mhz = 2.0", "boost_mhz=2.0 must be plausible: between 200 and"),
        ("cache_mib = 32", "cache_mib = 'much'", "cache_mib='much' must be of type float"),
        ("fp32 = 20.48", "fp32 = 40.96", "peak_tflops.fp32=40.96 contradicts .* 20.48"),
        ("memory_bus_bits = 256", "memory_bus_bits = 384", "bandwidth_gb_s=512 contradicts"),
        ("{ fp32 = 20.48, fp16 = 81.9 }", "20.48", "peak_tflops=20.48 must be a table"),
        ("fp16 = 81.9", "half = 81.9", "peak_tflops has no half; it has bf16, fp16, fp32, "),
        ("board_w = 200", "tdp_w = 200", "mycard has no tdp_w; it has aliases, bandwidth_gb_s, "),
        ('class = "cuda"', 'class = "abacus"', "class = 'abacus'; it must be one of cpu, cuda, "),
        ('class = "cuda"', "", "mycard: class must be given"),
        ('class = "cuda"', 'class = ["cuda"]', r"class=\['cuda'\] must be of type str"),
        ("[mycard]", "[other]\n[mycard]", "needs one table .* it has other, mycard"),
        ("[mycard]", "[mycard", "is not a TOML file"),
        ("cache_mib = 32", f"cache_mib = {'9' * 400}", "cache_mib=9+ must be plausible"),
        ("cache_mib = 32", f"cache_mib = {'9' * 5000}", "is not a TOML file"),
        ("cache_mib = 32", f"cache_mib = {'[' * 100_000}", "is not a TOML file"),
    ],
)  # fmt: skip
def test_a_wrong_fact_is_one_line_that_names_it(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(ResperfError, match=message) as raised:
        read_device(card(tmp_path, (old, new)))
    assert "\n" not in str(raised.value)
    assert "mycard.toml" in str(raised.value)


def test_all_missing_facts_are_named_at_once(tmp_path: Path) -> None:
    words = (
        "mycard: bandwidth_gb_s, board_w, boost_mhz, cache_mib, class, memory_gib, "
        "multiprocessors, peak_tflops, process_nm must be given"
    )
    path = tmp_path / "mycard.toml"
    path.write_text("[mycard]\n")
    with pytest.raises(ResperfError, match=words):
        read_device(path)
    path.write_text('[mycard]\nclass = "cpu"\n')
    with pytest.raises(ResperfError, match="bandwidth_gb_s, cache_mib, memory_gib, peak_tflops "):
        read_device(path)


def test_an_absent_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResperfError, match=r"absent.toml cannot be read \(No such file"):
        read_device(tmp_path / "absent.toml")
