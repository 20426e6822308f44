"""Networks side by side, each a column: predicted or measured, by kind of layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resperf.errors import ResperfError, first_line, printable, require
from resperf.measurement import NetworkRef, Status
from resperf.network import MALFORMED
from resperf.prediction import PhaseTimes
from resperf.prediction.result import KindTime, Subject, times_by_kind
from resperf.quantities import PHASES
from resperf.records import Record, parse_json
from resperf.report.network import joined, remarks_text
from resperf.report.tables import ms_cell, percent_cell, table

_WRITE = (
    "write some with resperf predict NETWORK -o FILE.json or resperf measure NETWORK --json > "
    "FILE.json"
)


@dataclass(frozen=True)
class _Shown(Record):
    """What is shown of a document."""

    summary: str
    batch: int | None
    kinds: tuple[KindTime, ...]
    warnings: tuple[str, ...] = ()


def saved_runs(path: Path) -> list[dict[str, Any]]:
    """Read networks from a file of `predict` or `measure`, or those of a dataset.

    Raises
    ------
    ResperfError
        If there are none.
    """
    try:
        is_dataset = path.suffix == ".h5"
        read = _runs_of_dataset(path) if is_dataset else parse_json(path.read_text("utf-8"))
        listed = read if isinstance(read, list) else [read]
        documents = [x for x in listed if isinstance(x, dict) and "kinds" in x]
        for document in documents:
            _Shown.from_json(document)
    except MALFORMED as error:
        why = f"holds no networks that can be read ({first_line(error)})"
        raise ResperfError(f"{path} {why}; {_WRITE}") from error
    if not documents:
        raise ResperfError(f"{path} holds no networks; {_WRITE}")
    return documents


def _runs_of_dataset(path: Path) -> list[dict[str, Any]]:
    require("h5py", "bench")
    from resperf.dataset import read_networks

    documents = []
    for row in read_networks(path).measurements:
        if isinstance(row.subject, NetworkRef) and row.status is Status.OK:
            setting, phases = row.setting, PhaseTimes(*map(row.value, PHASES))
            subject = Subject(
                row.subject.name, row.platform.device, setting.framework, setting.batch,
                precision=setting.precision, compiled=setting.compiled,
            )  # fmt: skip
            kinds = times_by_kind(phases.total_ms, phases, (), {})
            documents.append(
                {
                    "summary": f"{subject.title}: measured", "batch": setting.batch,
                    "kinds": [kind.to_json() for kind in kinds],
                }
            )  # fmt: skip
    return documents


def columns_text(documents: Sequence[Mapping[str, Any]]) -> str:
    """Show networks side by side, each a column; of two, also the differences, largest first.

    Parameters
    ----------
    documents : sequence of mapping
        As `Prediction.to_json` and `MeasuredNetwork.to_json` return them.
    """
    names = [chr(ord("A") + index) for index in range(len(documents))]
    times_ms: dict[str, list[float]] = {"total": [0.0] * len(documents)}
    counts: dict[str, list[int]] = {}
    for index, document in enumerate(documents):
        for kind in document["kinds"]:
            time_ms = kind["ms"] or 0.0
            times_ms.setdefault(kind["kind"], [0.0] * len(documents))[index] = time_ms
            times_ms["total"][index] += time_ms
            counts.setdefault(kind["kind"], [0] * len(documents))[index] = kind.get("layers", 0)
    headings = ["", *(f"{name} ms" for name in names)]
    rows = [[kind, *map(ms_cell, row_ms)] for kind, row_ms in times_ms.items()]
    if len(documents) == 2:
        headings += ["B - A", "change"]
        for row, (first_ms, second_ms) in zip(rows, times_ms.values(), strict=True):
            share = (second_ms - first_ms) / first_ms if first_ms else math.nan
            # Rounding may leave a difference of almost nothing.
            row += [ms_cell(round(second_ms - first_ms, 9)), percent_cell(share, signed=True)]
    headings.append("layers")
    for row in rows:  # A number for each column, one where all are equal.
        numbers = counts.get(row[0], [0])
        shown = numbers if len(set(numbers)) > 1 else numbers[:1]
        row.append("/".join(map(str, shown)) if any(numbers) else "")
    off_ms = {kind: max(row_ms) - min(row_ms) for kind, row_ms in times_ms.items()}
    rows[1:] = sorted(rows[1:], key=lambda row: -off_ms[row[0]])
    titles, notes, warnings = [], [], []
    for name, document in zip(names, documents, strict=True):
        titles.append(f"{name}: {printable(document['summary'])}")
        if document.get("inferred_from"):
            notes.append((name, ": predicted as a whole, its kinds are classes of operators"))
        warnings += [(name, f": {printable(warning)}") for warning in document.get("warnings", ())]
    compared = table(headings, rows, text=headings[:1])
    remarks = remarks_text(notes=joined(notes)), remarks_text(warnings=joined(warnings))
    return "\n\n".join(filter(None, ("\n".join(titles), compared, *remarks)))
