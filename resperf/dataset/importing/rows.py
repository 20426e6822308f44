"""Rows of a published CSV file as layers and times; invalid rows are counted by reason."""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from resperf.dataset.importing.mapping import UNITS_MS, KindColumns, SourceMapping, TimeColumns
from resperf.errors import DatasetError, LayerError, listed
from resperf.layers import Layer, kind_of
from resperf.measurement import layer_kind, quantity_of, written_kind, written_layer
from resperf.quantities import layer_quantity

_GZIP = b"\x1f\x8b"
_EMPTY = frozenset({"", "nan", "na", "null", "none"})


@dataclass(frozen=True)
class ForeignRow:
    """A valid row.

    Attributes
    ----------
    layer : Layer
    optimizer : str
        Of a training step; empty for a forward pass.
    times_ms : mapping of str to tuple of float
        Quantity to its shortest, median and longest time, or only the median.
    location : str
        File and line, for messages.
    """

    layer: Layer
    optimizer: str
    times_ms: Mapping[str, tuple[float, ...]]
    location: str

    @property
    def kind(self) -> str:
        """The layer's kind, as `resperf.measurement.written_kind` returns it."""
        return written_kind(self.layer.kind, self.optimizer)

    @property
    def median_ms(self) -> float:
        """Median of the layer's own time."""
        times_ms = self.times_ms[layer_quantity(self.times_ms)]
        return times_ms[len(times_ms) // 2]


@dataclass
class Counted:
    """Rows to which something happened for one reason, and where the first of them is."""

    reason: str
    first: str
    rows: int = 0
    what: str = "left out"

    def __str__(self) -> str:
        plural = "s"[: self.rows != 1]
        return f"{self.rows} row{plural} {self.what}: {self.reason} (first: {self.first})"


class CountedRows:
    """All rows to which something happened, by reason.

    Parameters
    ----------
    what : str
        What happened to them.
    """

    def __init__(self, what: str = "left out") -> None:
        self._what = what
        self._by_reason: dict[str, Counted] = {}

    def add(self, reason: str, location: str, detail: str = "") -> None:
        """Count a row; the first one of each reason is stored with its detail."""
        first = f"{location}: {detail}" if detail else location
        counted = Counted(reason, first, what=self._what)
        self._by_reason.setdefault(reason, counted).rows += 1

    def all(self) -> tuple[Counted, ...]:
        """Return one entry per reason, the most frequent first."""
        return tuple(sorted(self._by_reason.values(), key=lambda counted: -counted.rows))


class _InvalidRowError(Exception):
    """A row is invalid: reason, and its content."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class ForeignFile:
    """A text file in memory.

    Attributes
    ----------
    name : str
        Without its folder.
    sha256 : str
        Of the file itself, compressed or not.
    text : str
    """

    name: str
    sha256: str
    text: str

    @classmethod
    def read(cls, path: Path) -> ForeignFile:
        """Read a text file, compressed with gzip or not.

        Raises
        ------
        DatasetError
            If it cannot be read, or is not UTF-8 text.
        """
        try:
            content = path.read_bytes()
            plain = gzip.decompress(content) if content.startswith(_GZIP) else content
            # What PowerShell writes of a program's output is UTF-16.
            is_wide = plain.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            text = plain.decode("utf-16" if is_wide else "utf-8-sig")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DatasetError(
                f"{path} is a damaged gzip file ({error}); fetch it again"
            ) from error
        except OSError as error:
            raise DatasetError(f"{path} cannot be read ({error.strerror or error})") from error
        except UnicodeDecodeError as error:
            raise DatasetError(f"{path} is not text in UTF-8: {error}") from error
        return cls(path.name, hashlib.sha256(content).hexdigest(), text)

    def cells(
        self, check_header: Callable[[str, Sequence[str]], None] | None = None
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield each row's location, and its non-empty cells by column.

        Parameters
        ----------
        check_header : callable, optional
            Takes the file's name and its columns; raises `DatasetError` if they are wrong.

        Raises
        ------
        DatasetError
            If the file is not CSV.
        """
        header, lines = self._lines()
        if check_header is not None:
            check_header(self.name, header)
        for location, row in lines:
            cells = dict(zip(header, map(str.strip, row), strict=False))
            yield location, {name: cell for name, cell in cells.items() if cell}

    def rows(self, mapping: SourceMapping, left_out: CountedRows) -> Iterator[ForeignRow]:
        """Yield the valid rows, and count the others.

        Raises
        ------
        DatasetError
            If the header lacks columns that the mapping needs, or the file is not CSV.
        """
        header, lines = self._lines(mapping.delimiter)
        reader = _Reader(mapping, self._kinds(mapping, header))
        for location, cells in lines:
            try:
                if len(cells) != len(header):
                    raise _InvalidRowError("not as many cells as columns", f"{len(cells)} cells")
                yield reader.row(dict(zip(header, cells, strict=True)), location)
            except _InvalidRowError as error:
                left_out.add(error.reason, location, error.detail)

    def _lines(self, delimiter: str = ",") -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
        """Return the columns, and each row's location and cells; an empty line is no row."""

        def read() -> Iterator[tuple[str, list[str]]]:
            table = csv.reader(io.StringIO(self.text), delimiter=delimiter, strict=True)
            try:
                for cells in table:
                    if cells:
                        yield f"{self.name} line {table.line_num}", cells
            except csv.Error as error:
                where = f"{self.name} line {table.line_num}"
                raise DatasetError(f"{where} is not CSV: {error}") from error

        lines = read()
        _, header = next(lines, ("", []))
        return [cell.strip() for cell in header], lines

    def _kinds(self, mapping: SourceMapping, header: Sequence[str]) -> list[KindColumns]:
        """Find the kinds of which this file may have rows."""
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise DatasetError(f"{self.name} has two columns {twice[0]!r}; rename one")
        times = [name for columns in mapping.times.values() for name in columns.names]
        has_columns(*times)(self.name, header)
        kinds = [kind for kind in mapping.kinds if kind.needed <= set(header)]
        if not kinds:
            lacking = "; ".join(
                f"{kind.kind} lacks {', '.join(sorted(kind.needed - set(header)))}"
                for kind in mapping.kinds
            )
            raise DatasetError(f"{self.name} is no file of {mapping.name}: {lacking}")
        return kinds


SHOWN_COLUMNS = 12
"""How many columns of a file an error names."""


def has_columns(*columns: str) -> Callable[[str, Sequence[str]], None]:
    """Return a check of a file's header: all of these columns must be there."""

    def check(name: str, header: Sequence[str]) -> None:
        missing = [column for column in columns if column not in header]
        if missing:
            shown = listed(header, SHOWN_COLUMNS) or "none"
            raise DatasetError(f"{name} has no column {missing[0]!r}; its columns are {shown}")

    return check


def read_files(paths: Sequence[Path]) -> list[ForeignFile]:
    """Read published files.

    Raises
    ------
    DatasetError
        If one cannot be read, or two are the same.
    """
    files = [ForeignFile.read(path) for path in paths]
    for file in files:
        names = [other.name for other in files if other.sha256 == file.sha256]
        if len(names) > 1:
            raise DatasetError(f"{' and '.join(names)} are the same file; name it once")
    return files


class _Reader:
    """Turns cells into layers and times; the meaning of each text is cached."""

    def __init__(self, mapping: SourceMapping, kinds: Sequence[KindColumns]) -> None:
        self._mapping, self._kinds = mapping, kinds
        self._word = cache(self._meaning)
        self._names: dict[str, set[str]] = {}
        for kind in kinds:
            for word, spec in kind_of(layer_kind(kind.kind)).specs.items():
                self._names.setdefault(word, set()).update(spec.choices)

    def row(self, cells: Mapping[str, str], location: str) -> ForeignRow:
        """Return layer and times of a row.

        Raises
        ------
        _InvalidRowError
            If the row is invalid.
        """
        kind = next((kind for kind in self._kinds if self._fits(kind, cells)), None)
        if kind is None:
            columns = sorted({column for kind in self._kinds for column in kind.where})
            shown = ", ".join(f"{c}={cells[c]}" for c in columns)
            raise _InvalidRowError("of no kind in the mapping", shown)
        layer, optimizer = self._layer(kind, cells)
        times_ms = {
            quantity_of(kind.kind, name): self._times(columns, cells)
            for name, columns in self._mapping.times.items()
        }
        return ForeignRow(layer, optimizer, times_ms, location)

    def _fits(self, kind: KindColumns, cells: Mapping[str, str]) -> bool:
        return all(_plain(cells[column]) in allowed for column, allowed in kind.where.items())

    def _layer(self, kind: KindColumns, cells: Mapping[str, str]) -> tuple[Layer, str]:
        words = dict(kind.constants)
        for word, column in kind.columns.items():
            words[word] = self._word(word, column, cells[column])
        try:
            return written_layer(kind.kind, words, typed=True)
        except LayerError as error:
            raise _InvalidRowError("not a possible layer", str(error)) from error

    def _meaning(self, word: str, column: str, text: str) -> str:
        cell = _plain(text)
        if (
            cell.casefold() in _EMPTY
            and cell not in self._mapping.values.get(word, {})
            and cell not in self._names.get(word, ())
        ):
            raise _InvalidRowError(f"no value in {column}")
        choices = self._mapping.values.get(word)
        if choices is None:
            return cell
        if cell not in choices:
            raise _InvalidRowError(f"a value in {column} that is not in the mapping", repr(cell))
        return choices[cell]

    def _times(self, columns: TimeColumns, cells: Mapping[str, str]) -> tuple[float, ...]:
        times = tuple(self._number(name, cells) for name in columns.names)
        if min(times) <= 0:
            raise _InvalidRowError("a time that is not above 0", _shown(columns, times))
        if list(times) != sorted(times):
            raise _InvalidRowError("shortest, median and longest time out of order",
                                 _shown(columns, times))  # fmt: skip
        return tuple(time * UNITS_MS[self._mapping.unit] for time in times)

    def _number(self, column: str, cells: Mapping[str, str]) -> float:
        cell = cells[column].strip()
        if cell.casefold() in _EMPTY:
            raise _InvalidRowError(f"no value in {column}")
        try:
            number = float(cell)
        except ValueError as error:
            raise _InvalidRowError(f"{column} is not a number", repr(cell)) from error
        if not math.isfinite(number):
            raise _InvalidRowError(f"{column} is not a finite number", repr(cell))
        return number


def _shown(columns: TimeColumns, times: Sequence[float]) -> str:
    return ", ".join(f"{name}={time:g}" for name, time in zip(columns.names, times, strict=True))


def _plain(cell: str) -> str:
    """Strip a cell; integers written with a point lose it: ``3.0`` becomes 3."""
    text = cell.strip()
    if "." not in text:
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if math.isfinite(number) and number == int(number) else text
