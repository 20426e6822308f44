"""The journal: every row as soon as it exists, in a file that survives any kill.

JSON lines. The first is the header (what the rows belong to), then one per measurement
(``{"row": ...}``), change of setting or platform for the rows that follow (``{"setting": ...,
"platform": ...}``), reading of the device (``{"reading": [at, reference_ms, facts]}``, facts only
where there are any), set of machine costs (``{"costs": ...}``) and network's graph before its
first row (``{"graph": base64}``). Each is one write on an O_APPEND descriptor and one fsync, so
that at most the line in flight can be lost; a tail without its newline is cut when the file is
opened again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import mmap
import os
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resperf.backends.monitors import Reading
from resperf.errors import CampaignError, OutputError, ResperfError
from resperf.files import lock, sync_folder
from resperf.measurement import TOLERANCE, Measurement, NetworkRef, Status
from resperf.platform import Platform
from resperf.records import Record, parse_json
from resperf.settings import Setting
from resperf.timing import ReferenceHistory

VERSION = 1
USUAL_SHARE = 0.6
"""A state that more of the rows than this were measured in is how the machine usually is."""
# Of so many rows, a share of `USUAL_SHARE` has a standard error of 5%.
_FEWEST_FLAGGED = 100


@dataclass(frozen=True)
class Header(Record):
    """What all rows of a journal belong to."""

    setting: Setting
    platform: Platform
    campaign: Mapping[str, Any]
    seed: int
    versions: Mapping[str, str]
    created: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"journal": VERSION, **super().to_json()}


@dataclass
class Records:
    """What a journal or a dataset holds, while a campaign runs.

    Attributes
    ----------
    header : Header or None
        None where nothing has been written yet.
    rows : list of Measurement
        Every attempt, in the order taken.
    readings : ReferenceHistory
    costs : dict of str to list of float
        What was measured of the machine's costs each time, in milliseconds.
    contents : dict of str to bytes
        Digest -> a network's graph without weights, or its description.
    where : tuple of Setting and Platform, or None
        How and where the rows that follow were measured; None where as the header says.
    known_wheres : dict
        All of them, so that rows share them.
    """

    header: Header | None = None
    rows: list[Measurement] = field(default_factory=list)
    readings: ReferenceHistory = field(default_factory=ReferenceHistory)
    costs: dict[str, list[float]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict, repr=False)
    where: tuple[Setting, Platform] | None = None
    known_wheres: dict[tuple[Setting, Platform], tuple[Setting, Platform]] = field(
        default_factory=dict, repr=False
    )

    def add_reading(self, reading: Reading) -> None:
        """Record a reading of the device; its facts count as costs, of which medians are stored."""
        if not math.isnan(reading.reference_ms):
            self.readings.add(reading.at, reading.reference_ms)
        self.add_costs(reading.facts)

    def add_costs(self, costs: Mapping[str, float]) -> None:
        """Record the machine's costs as they were measured once."""
        for name, value in costs.items():
            self.costs.setdefault(name, []).append(value)


def read_journal(path: Path) -> Records:
    """Read a journal; a last line that was never finished is left out.

    Raises
    ------
    CampaignError
        If the file is not a journal, or one of another version, or a finished line of it is
        damaged.
    """
    records = Records()
    # Line by line: the file of a long campaign is several times larger than what is used of it.
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                values = parse_json(line)
                version = values["journal"] if records.header is None else VERSION
                if version == VERSION:
                    _add_line(records, values)
            except (ValueError, KeyError, TypeError, AttributeError, ResperfError) as error:
                raise CampaignError(
                    f"journal {path}: line {number} is damaged ({type(error).__name__}: {error}); "
                    "remove that line, or move the file away to start afresh"
                ) from error
            if version != VERSION:
                raise CampaignError(
                    f"journal {path} has version {version!r}, this resperf reads {VERSION}; finish "
                    "its campaign with the resperf that wrote it, or move it away to start afresh"
                )
    return records


def _add_line(records: Records, values: Mapping[str, Any]) -> None:
    """Add one line's content."""
    if records.header is None:
        records.header = Header.from_json(values)
    elif "row" in values:
        where = records.where or (records.header.setting, records.header.platform)
        records.rows.append(Measurement.from_json(values["row"], *where))
    elif "setting" in values:
        where = Setting.from_json(values["setting"]), Platform.from_json(values["platform"])
        records.where = records.known_wheres.setdefault(where, where)
    elif "reading" in values:
        records.add_reading(Reading.from_json(values["reading"]))
    elif "content" in values:
        content = base64.b64decode(values["content"])
        records.contents[hashlib.sha256(content).hexdigest()] = content
    else:
        records.add_costs(values["costs"])


class Journal:
    """A journal that is open for appending, and locked against a second campaign.

    Parameters
    ----------
    path : Path
    header : Header
        Written if the file is new or empty.

    Raises
    ------
    OutputError
        If the file cannot be written, or another process has it open.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {error.strerror}; choose another place with -o"
            ) from error
        try:
            if not lock(self._file):
                raise OutputError(
                    f"another campaign is writing {path}; wait for it or choose another output"
                )
            self._size = _cut_tail(self._file)
            new = self._size == 0
            # What the last line before said of where is not looked up: the next row says it again.
            self._where = (header.setting, header.platform) if new else None
            if new:
                self._append(header.to_json())
                sync_folder(path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def add_row(self, row: Measurement) -> None:
        """Append a measurement, after its setting and platform where these are new."""
        where = (row.setting, row.platform)
        if where != self._where:
            self._append({"setting": where[0].to_json(), "platform": where[1].to_json()})
            self._where = where
        self._append({"row": row.to_json()})

    def add_reading(self, reading: Reading) -> None:
        """Append a reading of the device."""
        self._append({"reading": reading.to_json()})

    def add_costs(self, costs: Mapping[str, float]) -> None:
        """Append the machine's costs as they were measured this time."""
        self._append({"costs": dict(costs)})

    def add_content(self, content: bytes) -> None:
        """Append a network's graph without weights, or its description."""
        self._append({"content": base64.b64encode(content).decode()})

    def close(self) -> None:
        """Close the file, which stays."""
        os.close(self._file)

    def remove(self) -> None:
        """Close the file and remove it: all its rows are in the dataset."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)

    def _append(self, values: Mapping[str, Any]) -> None:
        line = json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            written = os.write(self._file, line)
            if written != len(line):
                # A disk that fills up takes a part; the next write would then say ENOSPC.
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise OutputError(
                f"cannot write {self._path}: {error.strerror}; all rows before this one are there, "
                "make room and start the same command again"
            ) from error
        self._size += len(line)


def _cut_tail(file: int) -> int:
    """Cut a last line that was never finished; return the size that remains."""
    size = os.fstat(file).st_size
    if not size:
        return 0
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as lines:
        finished = lines.rfind(b"\n") + 1
    if finished != size:
        os.ftruncate(file, finished)
        os.fsync(file)
    return finished


def row_identity(row: Measurement) -> tuple[Hashable, ...]:
    """Return what identifies a row when a campaign is resumed: its subject, and the repeat."""
    return (*row.identity, row.repeat)


def middle_of(row: Measurement) -> float:
    """Moment half-way through a measurement (seconds since 1970)."""
    return row.started_at + row.duration_s / 2


def is_noisy(row: Measurement, readings: ReferenceHistory, usual: Collection[str] = ()) -> bool:
    """Whether a row should be measured again: it is flagged, or the machine was off its speed.

    Flags of a state that is `usual_states` of this machine are no reason.
    """
    if row.status is not Status.OK:
        return False
    return any(flag not in usual for flag in row.flags) or _is_off_speed(row, readings)


def usual_states(rows: Iterable[Measurement], states: Iterable[str]) -> dict[str, float]:
    """Return which states hold so often that this is how the machine is, and how often.

    On some hosts two virtual cores are hardly ever near each other. Then nearly all rows are
    measured so, and those of the rare fast moments are the exceptions.

    Parameters
    ----------
    rows : iterable of Measurement
    states : iterable of str
        Flags that tell of a state of the machine (`Monitor.device_states`).
    """
    measured = [row for row in rows if row.status is Status.OK]
    if len(measured) < _FEWEST_FLAGGED:
        return {}
    counts = Counter(flag for row in measured for flag in row.flags)
    shares = {name: counts[name] / len(measured) for name in states}
    return {name: share for name, share in shares.items() if share > USUAL_SHARE}


def _speed_ratio(row: Measurement, readings: ReferenceHistory) -> float:
    """Return the reference's time over its median; a network's rounds were judged by their own."""
    if isinstance(row.subject, NetworkRef):
        return row.reference_ratio
    return readings.ratio(middle_of(row))


def _is_off_speed(row: Measurement, readings: ReferenceHistory) -> bool:
    off = _speed_ratio(row, readings) - 1
    # A network may leave the machine in a state in which the reference is faster.
    return (off if isinstance(row.subject, NetworkRef) else abs(off)) > TOLERANCE


def best_rows(
    rows: Iterable[Measurement], readings: ReferenceHistory, usual: Collection[str] = ()
) -> list[Measurement]:
    """Choose one row per subject and repeat, with its ratio to the reference's median filled in.

    An ``ok`` row comes before a failed one, one with fewer signs of noise before one with
    more (each flag is one, and so is a machine off its speed), and else the later before the
    earlier. Rows come in the order they were taken. A flag that is usual on the machine
    (`usual_states`) is taken off.
    """
    if usual:
        rows = [
            replace(row, flags=tuple(flag for flag in row.flags if flag not in usual))
            for row in rows
        ]
    best: dict[tuple[Hashable, ...], tuple[tuple[bool, int], int, Measurement]] = {}
    for order, row in enumerate(rows):
        signs = len(row.flags) + _is_off_speed(row, readings)
        rank = (row.status is Status.OK, -signs)
        identity = row_identity(row)
        if identity not in best or rank >= best[identity][0]:
            best[identity] = (rank, order, row)
    chosen = sorted(best.values(), key=lambda item: item[1])
    return [_with_ratio(row, readings) for _, _, row in chosen]


def _with_ratio(row: Measurement, readings: ReferenceHistory) -> Measurement:
    ratio = _speed_ratio(row, readings)
    return row if math.isnan(ratio) else replace(row, reference_ratio=ratio)
