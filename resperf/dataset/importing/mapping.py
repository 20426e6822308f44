"""Mapping files: which column of a CSV file is which field of a layer, or which time."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resperf.errors import DatasetError, ResperfError, first_line
from resperf.layers import kind_of
from resperf.measurement import layer_kind
from resperf.quantities import EXECUTION, QUANTITIES, WHOLE_CALL, Level, layer_quantity
from resperf.settings import OPTIMIZER

FORMATS = ("justus", "perfnet", "neusight")
"""Mappings that resperf ships; that of neusight is of its single operators."""

_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class TimeColumns:
    """Columns of one phase; `shortest` and `longest` are empty if a file has none."""

    median: str
    shortest: str = ""
    longest: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns present, in ascending order of their times."""
        return tuple(filter(None, (self.shortest, self.median, self.longest)))


@dataclass(frozen=True)
class SessionRule:
    """How the session call that every time contains is estimated.

    Attributes
    ----------
    smallest : float
        Share of a kind's forward passes that is used: those that move the fewest bytes.
    share : float
        Share of the shortest time among these that is the session call; the rest is the layer's.
    known_ms : mapping of str to mapping of str to float
        Device -> kind -> value to use instead of an estimate.
    """

    smallest: float
    share: float
    known_ms: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class KindColumns:
    """Where a kind of layer is found in a file.

    Attributes
    ----------
    kind : str
        As `resperf.measurement.written_kind` returns it.
    columns : mapping of str to str
        Field or shorthand of the layer, or ``optimizer`` of a training step -> column.
    constants : mapping of str to str
        Field or shorthand -> value that all rows have.
    where : mapping of str to tuple of str
        Column -> cells that a row of this kind may have; other rows are of another kind.
    """

    kind: str
    columns: Mapping[str, str]
    constants: Mapping[str, str]
    where: Mapping[str, tuple[str, ...]]

    @property
    def needed(self) -> frozenset[str]:
        """Columns that a file of this kind has."""
        return frozenset(self.columns.values()) | frozenset(self.where)


@dataclass(frozen=True)
class SourceMapping:
    """A mapping file.

    Attributes
    ----------
    name, description, citation : str
        Origin of the timings, and what they contain.
    framework, framework_version, provider : str
        As in `resperf.settings.Setting`.
    delimiter : str
        Between the cells of a row.
    unit_ms : float
        Length of one unit of time, in ms.
    samples, warmups : int
        Number of runs behind each median, and of runs before them; 0 if unknown.
    times : mapping of str to TimeColumns
        By quantity: what the times contain. The execution of a training step is its ``step_ms``.
    session : SessionRule or None
        None if the times contain no session call, or are of whole calls.
    values : mapping of str to mapping of str to str
        Field or shorthand -> cell -> value of the layer.
    kinds : tuple of KindColumns
        A row is of the first kind that fits.
    text : mapping
        The file itself as plain JSON values.
    """

    name: str
    description: str
    citation: str
    framework: str
    framework_version: str
    provider: str
    delimiter: str
    unit_ms: float
    samples: int
    warmups: int
    times: Mapping[str, TimeColumns]
    session: SessionRule | None
    values: Mapping[str, Mapping[str, str]]
    kinds: tuple[KindColumns, ...]
    text: Mapping[str, Any] = field(default_factory=dict, repr=False)


def shipped_mapping(name: str) -> SourceMapping:
    """Return a mapping that resperf ships: one of `FORMATS`.

    Raises
    ------
    DatasetError
        If there is no such format.
    """
    if name not in FORMATS:
        raise DatasetError(
            f"no format {name!r} with a mapping; known: {', '.join(FORMATS)}; describe other files "
            "with --mapping"
        )
    text = Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8")
    return mapping_of(tomllib.loads(text), f"format {name}")


def read_mapping(path: Path) -> SourceMapping:
    """Read a mapping file (docs/importing.md).

    Raises
    ------
    DatasetError
        If the file cannot be read, or is incomplete.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror or error})") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DatasetError(f"{path} is not a TOML file: {first_line(error)}") from error
    return mapping_of(values, str(path))


def mapping_of(values: Mapping[str, Any], where: str) -> SourceMapping:
    """Make a mapping from a file's values.

    Parameters
    ----------
    values : mapping
        Parsed TOML.
    where : str
        Named in errors.

    Raises
    ------
    DatasetError
        If something is missing, unknown or of another type.
    """
    try:
        return _mapping(_Table(values, ""))
    except ResperfError as error:
        raise DatasetError(f"{where}: {error}; see docs/importing.md") from error


class _Table:
    """A table of a mapping file; every value is checked and marked as read."""

    def __init__(self, values: Any, place: str) -> None:
        if not isinstance(values, Mapping):
            raise DatasetError(f"{place} must be a table")
        self.values, self.place = values, place
        self._read: set[str] = set()

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Return a value of a type; it is required unless there is a default."""
        self._read.add(name)
        value = self.values.get(name, default)
        if value is None:
            raise DatasetError(f"{self._named(name)} is missing")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise DatasetError(f"{self._named(name)} = {value!r} has the wrong type")
        return value

    def table(self, name: str) -> _Table:
        """Return a table, empty if there is none."""
        self._read.add(name)
        return _Table(self.values.get(name, {}), self._named(name))

    def texts(self, name: str) -> dict[str, str]:
        """Return a table of texts."""
        inner = self.table(name)
        return {key: inner.get(key, str) for key in inner.values}

    def close(self) -> None:
        """Refuse names that were not read."""
        unknown = sorted(set(self.values) - self._read)
        if unknown:
            raise DatasetError(f"{self._named(unknown[0])} is not known")

    def _named(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name


def _mapping(table: _Table) -> SourceMapping:
    times = table.table("times")
    unit = times.get("unit", str)
    if unit not in _UNITS_MS:
        raise DatasetError(f"times.unit = {unit!r} must be one of {', '.join(_UNITS_MS)}")
    mapping = SourceMapping(
        name=table.get("name", str),
        description=table.get("description", str),
        citation=table.get("citation", str, ""),
        framework=table.get("framework", str),
        framework_version=table.get("framework_version", str, "unknown"),
        provider=table.get("provider", str, "unknown"),
        delimiter=table.get("delimiter", str, ","),
        unit_ms=_UNITS_MS[unit],
        samples=_count(times, "samples", 1),
        warmups=_count(times, "warmups", 0),
        times=_times(times),
        session=_session(table.table("session")) if "session" in table.values else None,
        values=_choices(table.table("values")),
        kinds=_kinds(table.table("kinds")),
        text=dict(table.values),
    )
    times.close()
    table.close()
    if len(mapping.delimiter) != 1:
        raise DatasetError(f"delimiter = {mapping.delimiter!r} must be one character")
    if mapping.session is not None and EXECUTION not in mapping.times:
        raise DatasetError("a session call is subtracted from execution: add times.execution")
    return mapping


def _count(table: _Table, name: str, default: int) -> int:
    count = int(table.get(name, int, default))
    if count < default:
        raise DatasetError(f"times.{name} = {count} must be at least {default}")
    return count


def _times(table: _Table) -> dict[str, TimeColumns]:
    found = {}
    timed = [row for row in QUANTITIES.values() if row.is_time and Level.LAYER in row.levels]
    for row in timed:
        inner = table.table(row.stem)
        if inner.values:
            found[row.name] = TimeColumns(
                inner.get("median", str), inner.get("min", str, ""), inner.get("max", str, "")
            )
            inner.close()
            if bool(found[row.name].shortest) != bool(found[row.name].longest):
                raise DatasetError(f"times.{row.stem}: min and max come together")
    if layer_quantity(found) not in found:
        raise DatasetError("times needs the columns of execution or whole_call")
    if WHOLE_CALL in found and len(found) > 1:
        raise DatasetError("times of whole_call contain all phases: remove the other phases")
    return found


def _session(table: _Table) -> SessionRule:
    known = table.table("known_ms")
    number = (int, float)
    known_ms = {}
    for device in known.values:
        inner = known.table(device)
        known_ms[device] = {kind: float(inner.get(kind, number)) for kind in inner.values}
    rule = SessionRule(
        float(table.get("smallest", number)), float(table.get("share", number)), known_ms
    )
    table.close()
    for name, share in (("smallest", rule.smallest), ("share", rule.share)):
        if not 0 < share <= 1:
            raise DatasetError(f"session.{name} = {share} must be above 0 and at most 1")
    return rule


def _choices(table: _Table) -> dict[str, dict[str, str]]:
    return {word: table.texts(word) for word in table.values}


def _kinds(table: _Table) -> tuple[KindColumns, ...]:
    kinds: dict[str, KindColumns] = {}
    for kind in table.values:
        kinds[kind] = _kind(kind, table.table(kind), kinds)
    if not kinds:
        raise DatasetError("no kinds: add a table such as [kinds.conv]")
    return tuple(kinds.values())


def _kind(kind: str, table: _Table, before: Mapping[str, KindColumns]) -> KindColumns:
    """Read ``[kinds.KIND]``; ``like`` copies columns and constants of an earlier kind."""
    like = table.get("like", str, "")
    if like and like not in before:
        raise DatasetError(f"kinds.{kind}.like = {like!r} is no kind above it")
    base = before.get(like)
    columns = {**(base.columns if base else {}), **table.texts("columns")}
    constants = {**(base.constants if base else {}), **table.texts("constants")}
    conditions = table.table("where")
    where = {column: _cells(conditions, column) for column in conditions.values}
    table.close()
    _check_words(kind, [*columns, *constants])
    return KindColumns(kind, columns, constants, where)


def _cells(table: _Table, column: str) -> tuple[str, ...]:
    cells: Sequence[Any] = table.get(column, list)
    if not all(isinstance(cell, str) for cell in cells):
        raise DatasetError(f'{table.place}.{column} must list texts, such as ["0"]')
    return tuple(cells)


def _check_words(kind: str, words: Sequence[str]) -> None:
    cls = kind_of(layer_kind(kind))
    known = {*cls.specs(), *cls.aliases, *(("padding",) if "pad_top" in cls.specs() else ())}
    known |= {OPTIMIZER} if kind != cls.kind else set()
    unknown = sorted(set(words) - known)
    if unknown:
        raise DatasetError(
            f"kinds.{kind}: {unknown[0]!r} is no field; it has {', '.join(sorted(known))}"
        )
