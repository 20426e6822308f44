import errno
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from resperf.backends.monitors import Reading
from resperf.backends.monitors.cpu import CpuMonitor
from resperf.campaign import journal as journal_module
from resperf.campaign.journal import (
    Header,
    Journal,
    best_rows,
    is_noisy,
    read_journal,
    usual_states,
)
from resperf.errors import CampaignError, OutputError
from resperf.layers import Dense
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.platform import Platform, this_platform
from resperf.quantities import PHASES
from resperf.settings import Setting
from resperf.timing import ReferenceHistory

STATES = CpuMonitor.device_states
SETTING = Setting(framework="synthetic", framework_version="1", provider="none", threads=1)
PLATFORM = this_platform("cpu")
HEADER = Header(
    SETTING,
    PLATFORM,
    {"name": "test"},
    7,
    {"resperf": "0"},
    "2026-01-01T00:00:00+00:00",
)


def history_of(*readings: tuple[float, float]) -> ReferenceHistory:
    history = ReferenceHistory()
    for reading in readings:
        history.add(*reading)
    return history


def row(width: int, at: float = 0.0, **changes: object) -> Measurement:
    samples = Samples((1.0, 2.0), 2, 1, StopReason.BUDGET)
    made = Measurement(
        subject=Dense(batch=1, features_in=width, features_out=1),
        status=Status.OK,
        samples=dict.fromkeys(PHASES, samples),
        setting=SETTING,
        platform=PLATFORM,
        isolated_ms=1.0,
        call_ms=0.5,
        started_at=at,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.journal.jsonl"
    journal = Journal(path, HEADER)
    journal.add_costs({"call_ms": 0.5})
    journal.add_costs({"call_ms": 0.7, "overhead_ms_per_layer": 0.1})
    journal.add_row(row(1))
    journal.add_reading(Reading(3.0, 1.5))
    journal.add_reading(Reading(4.0, facts={"clock_mhz": 1300.0}))
    journal.add_reading(Reading(5.0, 1.7, {"clock_mhz": 1200.0}))
    journal.add_row(row(2, status=Status.CRASHED, samples={}, detail="SIGSEGV"))
    journal.close()
    records = read_journal(path)
    assert records.header == HEADER
    assert [r.layer for r in records.rows] == [row(1).layer, row(2).layer]
    assert records.rows[0].samples == row(1).samples
    assert records.rows[1].status is Status.CRASHED
    assert len(records.readings) == 2
    assert [records.readings.time_ms(at) for at in (3.0, 5.0)] == [1.5, 1.7]
    assert records.costs == {
        "call_ms": [0.5, 0.7], "overhead_ms_per_layer": [0.1], "clock_mhz": [1300.0, 1200.0],
    }  # fmt: skip


def test_readings_of_earlier_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"
    Journal(path, HEADER).close()
    with path.open("a") as lines:
        lines.write('{"reading":[3.0,1.5]}\n')
    readings = read_journal(path).readings
    assert (len(readings), readings.time_ms(3.0)) == (1, 1.5)
    # A device without anything else to read writes the same line.
    assert Reading(3.0, 1.5).to_json() == [3.0, 1.5]


def test_a_cut_line_is_dropped_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    journal = Journal(path, HEADER)
    journal.add_row(row(1))
    size = path.stat().st_size
    journal.add_row(row(2))
    journal.close()
    whole = path.read_bytes()
    for length in range(size, len(whole), 97):
        path.write_bytes(whole[:length])
        assert len(read_journal(path).rows) == 1
        again = Journal(path, HEADER)
        again.add_row(row(3))
        again.close()
        widths = [r.layer.fields()["features_in"] for r in read_journal(path).rows]
        assert widths == [1, 3]


def test_a_journal_cut_within_its_header_starts_afresh(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"journal":1,"sett')
    Journal(path, HEADER).close()
    assert read_journal(path).header == HEADER


def test_damage_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    journal = Journal(path, HEADER)
    journal.close()
    with path.open("ab") as file:
        file.write(b"what is this\n")
    with pytest.raises(CampaignError, match="line 2 is damaged"):
        read_journal(path)
    path.write_bytes(b'{"journal": 99}\n')
    with pytest.raises(CampaignError, match="has version 99, this resperf reads 1; finish its"):
        read_journal(path)


def test_two_campaigns_cannot_write_one_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl", HEADER)
    with pytest.raises(OutputError, match="another campaign"):
        Journal(tmp_path / "a.jsonl", HEADER)
    journal.close()
    Journal(tmp_path / "a.jsonl", HEADER).close()


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose another place"):
        Journal(tmp_path / "file" / "a.jsonl", HEADER)


def test_a_full_disk_keeps_all_rows_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    journal = Journal(path, HEADER)
    journal.add_row(row(1))
    write = os.write
    calls = []

    def fill_up(file: int, content: bytes) -> int:
        calls.append(len(content))
        if len(calls) == 1:
            return write(file, content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_module.os, "write", fill_up)
    with pytest.raises(OutputError, match="No space left"):
        journal.add_row(row(2))
    monkeypatch.undo()
    assert path.read_bytes().endswith(b"\n")
    journal.add_row(row(3))
    journal.close()
    assert [r.layer.fields()["features_in"] for r in read_journal(path).rows] == [1, 3]


def test_the_best_of_several_attempts_counts() -> None:
    steady = history_of(*((float(t), 1.0) for t in range(10)))
    drifted, clean, later = row(1, 1.0, flags=("drift",)), row(1, 2.0), row(1, 3.0)
    crashed = row(1, 4.0, status=Status.CRASHED, samples={})
    repeat = row(1, 5.0, repeat=1)
    kept = best_rows([drifted, clean, later, crashed, repeat], steady)
    assert [(r.started_at, r.repeat) for r in kept] == [(3.0, 0), (5.0, 1)]
    assert [r.started_at for r in best_rows([clean, drifted], steady)] == [2.0]


def test_a_state_of_most_rows_is_the_usual_one() -> None:
    steady = history_of((0.0, 1.0), (1000.0, 1.0))
    rows = [row(n, float(n), flags=("caches",) if n % 3 else ("drift",)) for n in range(1, 121)]
    kept = best_rows(rows, steady, usual_states(rows, STATES))
    # Two of three rows are flagged by the check: nothing is wrong with them. Drift always counts.
    assert Counter(each.flags for each in kept) == {(): 80, ("drift",): 40}
    assert not is_noisy(rows[0], steady, usual_states(rows, STATES))
    both = [row(n, float(n), flags=("caches", "drift")) for n in range(1, 121)]
    assert is_noisy(rows[2], steady, usual_states(both, STATES))
    # Half of them, or a few of few, are no rule.
    half = [row(n, float(n), flags=("caches",) * (n % 2)) for n in range(1, 121)]
    assert Counter(each.flags for each in best_rows(half, steady, usual_states(half, STATES))) == {
        (): 60,
        ("caches",): 60,
    }
    assert all(each.flags for each in best_rows(rows[:2], steady, usual_states(rows[:2], STATES)))


def test_rows_of_a_slow_machine_give_way_and_carry_its_ratio() -> None:
    readings = history_of((0.0, 1.0), (1.0, 1.0), (2.0, 1.6), (3.0, 1.6), (4.0, 1.0), (5.0, 1.0),
                          (6.0, 1.0))  # fmt: skip
    slow, fine = row(1, 2.5), row(2, 5.5)
    kept = best_rows([slow, fine], readings)
    assert [r.reference_ratio for r in kept] == [pytest.approx(1.6), pytest.approx(1.0)]
    again = row(1, 4.5)
    assert best_rows([slow, again], readings)[0].started_at == 4.5
    assert best_rows([again, slow], readings)[0].started_at == 4.5


def test_rows_of_networks_bring_settings_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"
    elsewhere = replace(PLATFORM, device="other")

    def run(batch: int, where: Platform) -> Measurement:
        subject = NetworkRef("net", "abc")
        setting = replace(SETTING, batch=batch)
        return Measurement(subject, Status.OK, setting=setting, platform=where, repeat=batch)

    written = [row(1), run(1, PLATFORM), run(2, PLATFORM), run(1, elsewhere), run(1, PLATFORM)]
    journal = Journal(path, HEADER)
    for each in written[:3]:
        journal.add_row(each)
    journal.close()
    journal = Journal(path, HEADER)
    for each in [*written[3:], row(1)]:
        journal.add_row(each)
    journal.close()
    rows = read_journal(path).rows
    assert [each.subject for each in rows] == [each.subject for each in [*written, row(1)]]
    assert [(each.setting, each.platform) for each in rows] == [
        (each.setting, each.platform) for each in [*written, row(1)]
    ]
    assert rows[1].setting is rows[4].setting  # written again, held once
    # Three runs of one network differ in batch or platform; the rows of one layer do not.
    assert len(best_rows([row(1), run(1, PLATFORM), run(2, PLATFORM)], ReferenceHistory())) == 3
