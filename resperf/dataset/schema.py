"""Layout of the HDF5 file: columns of each group, their units and types.

Changing a released one raises `SCHEMA_VERSION`, extends the reader and adds a golden file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from resperf.layers import kind_of
from resperf.measurement import layer_kind
from resperf.quantities import PHASES, Quantity, quantity
from resperf.settings import OPTIMIZER

SCHEMA_VERSION = 1
TEXT = "S"
"""Type of a text column: UTF-8, fixed length, padded with NUL (MATLAB and pandas open both)."""
MAX_TEXT_BYTES = 512
"""Longer failure messages are cut: a fixed-length column takes the longest one's space per row."""


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
    "call_ms": Column("ms", "cost of a call without any layer", "<f8"),
    "reference_ratio": Column("1", "time of the reference layer over its usual time", "<f8"),
    "setting": Column("1", "place in the file's settings", "<i4"),
    "platform": Column("1", "place in the file's platforms", "<i4"),
}

# Not `resperf.measurement.MAX_SAMPLES`: the width of a column changes with the schema only.
MAX_STORED_SAMPLES = 64

NETWORKS, GRAPHS, DESCRIPTIONS = "networks", "graphs", "descriptions"
"""Groups that hold no layers: rows of whole networks, their graphs without weights, and what is
known of networks besides (only where something is)."""

_NETWORK_NAMES: Mapping[str, Column] = {
    "name": Column("name", "the network, for people", TEXT),
    "digest": Column("name", "SHA-256 of its graph, the name of which in graphs it is", TEXT),
}
_DESCRIBED: Mapping[str, Column] = {
    "description": Column("name", "SHA-256 of its description, its name in descriptions", TEXT)
}
_OF_LAYERS = frozenset({"key", "isolated_ms", "call_ms"})

SAMPLE_COLUMNS: Mapping[str, Column] = {
    "value": Column("{unit}", "{stem}: one value of its samples, by the estimator", "<f8"),
    "samples": Column(
        "{unit}", "samples of {stem}, padded with NaN", "<f4", width=MAX_STORED_SAMPLES
    ),
    "n_samples": Column("1", "samples of {stem} that are stored", "<i4"),
    "taken": Column("1", "samples of {stem} that were taken", "<i8"),
    "warmups": Column("1", "runs of {stem} before the first sample", "<i8"),
    "stop_reason": Column("name", "why sampling of {stem} stopped: precise or budget", TEXT),
    "drift": Column("bool", "samples of {stem} moved steadily", "|u1"),
    "copies": Column("1", "copies that a run of {stem} held, 0 where unknown", "<i4"),
    "divisor": Column("1", "what a run's value less the offset was divided by", "<f8"),
    "offset": Column("{unit}", "what was subtracted from a run's value", "<f8"),
}
"""Columns of each quantity; `column_name` gives their names."""

_ESTIMATOR = Column("name", "how {stem} follows from its samples, where rows differ in it", TEXT)

_FIELD_TYPES = {"bool": "|u1", "name": TEXT}
_OPTIMIZER = Column("name", "optimizer that updates the weights", TEXT)


def field_columns(group: str) -> dict[str, Column]:
    """Return the columns of the layers' fields, in canonical order, and of steps' optimizers."""
    kind = layer_kind(group)
    fields = {
        name: Column(spec.unit, spec.description, _FIELD_TYPES.get(spec.unit, "<i8"))
        for name, spec in kind_of(kind).specs.items()
    }
    return {**fields, **({OPTIMIZER: _OPTIMIZER} if kind != group else {})}


def column_name(quantity: Quantity, label: str) -> str:
    """Name a column of a quantity: ``execution_ms``, ``execution_samples_ms``, ``execution_taken``.

    Parameters
    ----------
    quantity : Quantity
    label : str
        A name of `SAMPLE_COLUMNS`.
    """
    if label == "value":
        return quantity.name
    unit = f"_{quantity.unit}" if label == "samples" else ""
    return f"{quantity.stem}_{label}{unit}"


def estimator_column(quantity: Quantity) -> dict[str, Column]:
    """Return the column that says by row how a quantity's values follow from samples.

    Groups have it only if their rows differ; else the quantity's attribute ``estimator`` says it.
    """
    described = _ESTIMATOR.description.format(stem=quantity.stem)
    return {column_name(quantity, "estimator"): replace(_ESTIMATOR, description=described)}


def _sample_columns(names: Sequence[str]) -> dict[str, Column]:
    return {
        column_name(row, label): replace(
            column,
            unit=column.unit.format(unit=row.unit),
            description=column.description.format(stem=row.stem),
        )
        for row in map(quantity, names)
        for label, column in SAMPLE_COLUMNS.items()
    }


def kind_columns(group: str, quantities: Sequence[str] = PHASES) -> dict[str, Column]:
    """Return all columns of a group of layers, by name.

    Parameters
    ----------
    group : str
        As `resperf.measurement.written_kind` returns it.
    quantities : sequence of str
        Those of the group.

    Raises
    ------
    LayerError
        If there is no such kind.
    ResperfError
        If there is no such quantity.
    """
    return {**field_columns(group), **ROW_COLUMNS, **_sample_columns(quantities)}


def network_columns(quantities: Sequence[str], *, described: bool = False) -> dict[str, Column]:
    """Return all columns of the group of network rows, by name; arguments as in `kind_columns`.

    With `described`, the file has descriptions of networks, and rows refer to them.
    """
    rows = {name: column for name, column in ROW_COLUMNS.items() if name not in _OF_LAYERS}
    names = {**_NETWORK_NAMES, **(_DESCRIBED if described else {})}
    return {**names, **rows, **_sample_columns(quantities)}
