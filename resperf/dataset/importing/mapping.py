"""Mapping files: which column of a CSV file is which field of a layer, or which time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from resperf.errors import DatasetError, ResperfError
from resperf.layers import kind_of
from resperf.limits import AT_LEAST_1, FIRST_SHARE, Limited, limited, read_toml
from resperf.measurement import layer_kind
from resperf.quantities import EXECUTION, QUANTITIES, WHOLE_CALL, Level, layer_quantity
from resperf.settings import OPTIMIZER

FORMATS = ("justus", "perfnet", "neusight")
"""Mappings that resperf ships; that of neusight is of its single operators."""

UNITS_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Source(Limited):
    """Where published rows are from.

    Attributes
    ----------
    name : str
        Of the format.
    description, citation : str
        What the times are, and who published them.
    """

    name: str
    description: str
    citation: str = ""


@dataclass(frozen=True)
class TimeColumns(Limited):
    """Columns of one phase: its median time, the shortest and the longest one.

    `min` and `max` are empty if a file has none.
    """

    median: str
    min: str = ""
    max: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.min) != bool(self.max):
            raise DatasetError("min and max come together")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns present, in ascending order of their times."""
        return tuple(filter(None, (self.min, self.median, self.max)))


@dataclass(frozen=True, kw_only=True)
class Runs(Limited):
    """How every time was taken.

    Attributes
    ----------
    unit : str
        Of the times: ``"ns"``, ``"us"``, ``"ms"`` or ``"s"``.
    samples, warmups : int
        Number of runs behind each median, and of runs before them; 0 if unknown.
    """

    unit: str
    samples: int = limited(1, AT_LEAST_1)
    warmups: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in UNITS_MS:
            raise DatasetError(f"unit={self.unit!r} must be one of {', '.join(UNITS_MS)}")


@dataclass(frozen=True)
class SessionRule(Limited):
    """How the call that every time contains is estimated.

    Attributes
    ----------
    smallest : float
        Share of a kind's forward passes that is used: those that move the fewest bytes.
    share : float
        Share of the shortest time among these that is the call; the rest is the layer's.
    known_ms : mapping of str to mapping of str to float
        Device -> kind -> value to use instead of an estimate.
    """

    smallest: float = limited(MISSING, FIRST_SHARE)
    share: float = limited(MISSING, FIRST_SHARE)
    known_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class KindColumns(Limited):
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
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for column, cells in self.where.items():
            if not all(isinstance(cell, str) for cell in cells):
                raise DatasetError(f'where.{column} must list texts, such as ["0"]')
        cls = kind_of(layer_kind(self.kind))
        allowed = {*cls.specs, *cls.aliases, *(("padding",) if "pad_top" in cls.specs else ())}
        allowed |= {OPTIMIZER} if self.kind != cls.kind else set()
        if unknown := sorted({*self.columns, *self.constants} - allowed):
            raise DatasetError(f"{unknown[0]!r} is no field; it has {', '.join(sorted(allowed))}")

    @property
    def needed(self) -> frozenset[str]:
        """Columns that a file of this kind has."""
        return frozenset(self.columns.values()) | frozenset(self.where)


@dataclass(frozen=True, kw_only=True)
class SourceMapping(Runs, Source):
    """A mapping file.

    Attributes
    ----------
    framework, framework_version, provider : str
        As in `resperf.settings.Setting`.
    delimiter : str
        Between the cells of a row.
    times : mapping of str to TimeColumns
        By quantity: what the times contain. The execution of a training step is its ``step_ms``.
    session : SessionRule or None
        None if the times contain no per-run overhead, or are of whole calls.
    values : mapping of str to mapping of str to str
        Field or shorthand -> cell -> value of the layer.
    kinds : tuple of KindColumns
        A row is of the first kind that fits.
    text : mapping
        The file itself as plain JSON values.
    """

    framework: str
    framework_version: str = "unknown"
    provider: str = "unknown"
    delimiter: str = ","
    times: Mapping[str, TimeColumns]
    session: SessionRule | None = None
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kinds: tuple[KindColumns, ...]
    text: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter) != 1:
            raise DatasetError(f"delimiter = {self.delimiter!r} must be one character")
        if layer_quantity(self.times) not in self.times:
            raise DatasetError("times needs the columns of execution or whole_call")
        if WHOLE_CALL in self.times and len(self.times) > 1:
            raise DatasetError("times of whole_call contain all phases: remove the other phases")
        if self.session is not None and EXECUTION not in self.times:
            raise DatasetError("a call is subtracted from execution: add times.execution")
        if not self.kinds:
            raise DatasetError("no kinds: add a table such as [kinds.conv]")


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
            "with --format MAP.toml"
        )
    return read_mapping(Path(__file__).with_name(f"{name}.toml"))


def read_mapping(path: Path) -> SourceMapping:
    """Read a mapping file (docs/importing.md).

    Raises
    ------
    DatasetError
        If the file cannot be read, or is incomplete.
    """
    return mapping_of(read_toml(path, DatasetError), str(path))


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
        times = dict(_table(values, "times"))
        columns = {
            row.name: TimeColumns.from_table(times.pop(row.stem), f"times.{row.stem}")
            for row in _TIMED
            if row.stem in times
        }
        if unknown := sorted(times.keys() - {entry.name for entry in fields(Runs)}):
            stems = ", ".join(row.stem for row in _TIMED)
            raise DatasetError(f"times: no quantity {unknown[0]!r} of layers; known: {stems}")
        runs = Runs.from_table(times, "times")
        return SourceMapping.from_table(
            {word: value for word, value in values.items() if word not in ("times", "kinds")},
            "the mapping",
            **vars(runs),
            times=columns,
            kinds=_kinds(_table(values, "kinds")),
            text=dict(values),
        )
    except ResperfError as error:
        raise DatasetError(f"{where}: {error}; see docs/importing.md") from error


_TIMED = [row for row in QUANTITIES.values() if row.is_time and Level.LAYER in row.levels]


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, Mapping):
        raise DatasetError(f"{name}={table!r} must be a table")
    return table


def _kinds(tables: Mapping[str, Any]) -> tuple[KindColumns, ...]:
    """Read ``[kinds]``; ``like`` copies columns and constants of an earlier kind."""
    kinds: dict[str, KindColumns] = {}
    for kind in tables:
        own, where = dict(_table(tables, kind)), f"kinds.{kind}"
        if like := own.pop("like", ""):
            if like not in tuple(kinds):
                raise DatasetError(f"{where}: like={like!r} is no kind above it")
            for name in ("columns", "constants"):
                own[name] = {**getattr(kinds[like], name), **_table(own, name)}
        kinds[kind] = KindColumns.from_table(own, where, kind=kind)
    return tuple(kinds.values())
