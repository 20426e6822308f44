"""Layout of the HDF5 file: which columns a group has, their units and types.

Changing it raises `SCHEMA_VERSION`, extends the reader and adds a golden file to the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resperf.layers import kind_of
from resperf.measurement import PHASES

SCHEMA_VERSION = 2
"""1: three phases in every file. 2: a file says which phases its rows have, and its source."""
TEXT = "S"
"""Type of a text column: UTF-8, fixed length, padded with NUL (MATLAB and pandas open both)."""
MAX_TEXT_BYTES = 512
"""Longer failure messages are cut: every row of a fixed-length column pays for the longest."""


@dataclass(frozen=True)
class Column:
    """One column: its unit, its meaning, its little-endian NumPy type and its width.

    Attributes
    ----------
    unit, description : str
        Written as attributes of the HDF5 dataset.
    dtype : str
        ``"<i8"``, ``"<i4"``, ``"|u1"`` (yes/no), ``"<f8"``, ``"<f4"`` or `TEXT`.
    width : int
        Values per row; 1 makes a 1-D dataset, more make a 2-D one.
    """

    unit: str
    description: str
    dtype: str
    width: int = 1


ROW_COLUMNS: Mapping[str, Column] = {
    "key": Column("name", "canonical name of the layer", TEXT),
    "status": Column("name", "ok, out_of_memory, timeout, crashed or unsupported", TEXT),
    "repeat": Column("1", "0 the first time, higher where measured again", "<i4"),
    "flags": Column("name", "reasons to measure again, joined by commas", TEXT),
    "detail": Column("name", "message of a failure", TEXT),
    "started_at": Column("s", "start of the measurement, since 1970 (UTC)", "<f8"),
    "duration_s": Column("s", "wall time spent on the layer, building included", "<f8"),
    "overhead_s": Column("s", "part of duration_s outside warm-up and samples", "<f8"),
    "isolated_ms": Column("ms", "median wall time of one run of the layer alone", "<f8"),
    "session_ms": Column("ms", "cost of a session call without any layer", "<f8"),
    "reference_ratio": Column("1", "time of the reference layer over its usual time", "<f8"),
}

MAX_STORED_SAMPLES = 64

PHASE_COLUMNS: Mapping[str, Column] = {
    "ms": Column("ms", "median of the samples of {phase}", "<f8"),
    "samples_ms": Column(
        "ms", "samples of {phase}, padded with NaN", "<f4", width=MAX_STORED_SAMPLES
    ),
    "n_samples": Column("1", "samples of {phase} that are stored", "<i4"),
    "taken": Column("1", "samples of {phase} that were taken", "<i8"),
    "warmups": Column("1", "runs of {phase} before the first sample", "<i8"),
    "stop_reason": Column("name", "why sampling of {phase} stopped: precise or budget", TEXT),
    "drift": Column("bool", "samples of {phase} moved steadily", "|u1"),
}
"""Columns of each phase; their full name is ``<phase>_<name>``."""

_FIELD_TYPES = {"bool": "|u1", "name": TEXT}


def field_columns(kind: str) -> dict[str, Column]:
    """Columns of a layer kind's own fields, in canonical order."""
    return {
        name: Column(spec.unit, spec.description, _FIELD_TYPES.get(spec.unit, "<i8"))
        for name, spec in kind_of(kind).specs().items()
    }


def kind_columns(kind: str, phases: Sequence[str] = PHASES) -> dict[str, Column]:
    """All columns of the group of a layer kind, by name.

    Parameters
    ----------
    kind : str
    phases : sequence of str
        Phases that the file's rows have: `DatasetInfo.phases`.

    Raises
    ------
    LayerError
        If there is no such kind.
    """
    timed = {
        f"{phase}_{name}": Column(
            column.unit, column.description.format(phase=phase), column.dtype, column.width
        )
        for phase in phases
        for name, column in PHASE_COLUMNS.items()
    }
    return {**field_columns(kind), **ROW_COLUMNS, **timed}
