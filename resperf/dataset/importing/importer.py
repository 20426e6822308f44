"""From published CSV files, as a mapping describes them, to a dataset file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from resperf.dataset.importing.mapping import SessionRule, SourceMapping
from resperf.dataset.importing.published import Imported, Published
from resperf.dataset.importing.rows import ForeignRow, read_files
from resperf.devices import canonical_device
from resperf.errors import DatasetError
from resperf.grouping import grouped
from resperf.measurement import Samples, StopReason, layer_kind
from resperf.quantities import EXECUTION, STEP
from resperf.settings import MEASURED_BY, Setting


def import_dataset(
    paths: Sequence[Path], output: Path, *, mapping: SourceMapping, device: str
) -> Imported:
    """Read CSV files of one source and device and write them as one dataset.

    Rows of equal layers become repeats of one key, numbered in the order of the files. A session
    call that the times contain is subtracted and stored as ``call_ms``; the time with it is
    ``isolated_ms``. If only the shortest, median and longest time are given, these are the samples.

    Parameters
    ----------
    paths : sequence of Path
        CSV files, compressed with gzip or not; a row is of the mapping's first kind that fits.
    output : Path
    mapping : SourceMapping
    device : str
        Any name of `resperf.devices`, or another.

    Raises
    ------
    DatasetError
        If a file cannot be read or does not fit the mapping, or no row is valid.
    OutputError
        If the output cannot be written.
    """
    published = Published(mapping, device)
    files = read_files(paths)
    rows_of = [list(file.rows(mapping, published.left_out)) for file in files]
    rows = [row for file_rows in rows_of for row in file_rows]
    costs = (
        session_costs(rows, mapping.session, canonical_device(device)) if mapping.session else {}
    )
    setting = Setting(
        framework=mapping.framework,
        framework_version=mapping.framework_version,
        provider=mapping.provider,
        options={MEASURED_BY: mapping.name},
    )
    settings = {
        optimizer: setting.with_optimizer(optimizer)
        for optimizer in {row.optimizer for row in rows}
    }
    for row in rows:
        # If no call was subtracted, its cost is not known.
        call_ms = costs.get(row.kind, math.nan)
        if row.median_ms <= call_ms:
            published.left_out.add(
                "a time that is not longer than the call", row.location,
                f"{row.median_ms:g} ms, the call {call_ms:g} ms",
            )  # fmt: skip
            continue
        samples = _samples(row, mapping, costs.get(row.kind, 0.0))
        published.add(
            row.layer, settings[row.optimizer], samples, isolated_ms=row.median_ms,
            call_ms=call_ms,
        )  # fmt: skip
    counted = [
        {"name": file.name, "sha256": file.sha256, "rows": len(file_rows)}
        for file, file_rows in zip(files, rows_of, strict=True)
    ]
    source = {"files": counted, "mapping": mapping.text}
    return published.write(output, files, call_ms=costs, source=source)


def session_costs(
    rows: Sequence[ForeignRow], rule: SessionRule, device: str
) -> Mapping[str, float]:
    """Estimate the cost of a call in the times of each kind, in ms.

    A call without a layer was not timed, so it is estimated from the smallest layers. A call takes
    no longer than the shortest of those forward passes that move the fewest bytes. A training step
    contains the same call as a forward pass of its layer. Kinds are estimated separately, because
    they were measured in separate campaigns.

    Parameters
    ----------
    rows : sequence of ForeignRow
    rule : SessionRule
    device : str
        Values in `rule` for this device are used instead of estimates.

    Returns
    -------
    mapping of str to float
        `ForeignRow.kind` -> cost in ms.

    Raises
    ------
    DatasetError
        If there are training steps of a kind, but neither forward passes nor a value in `rule`.
    """
    given_ms = rule.known_ms.get(device, {})
    forward = grouped((row.kind, row) for row in rows if not row.optimizer)
    costs = {}
    for kind in dict.fromkeys(row.kind for row in rows):
        base = layer_kind(kind)
        if base in given_ms:
            costs[kind] = given_ms[base]
        elif base in forward:
            by_size = sorted(forward[base], key=lambda row: row.layer.moved_bytes)
            smallest = by_size[: math.ceil(rule.smallest * len(by_size))]
            costs[kind] = rule.share * min(row.median_ms for row in smallest)
        else:
            raise DatasetError(
                f"training steps of {base} layers, but no forward pass to estimate the session "
                f"call from; import the rows of forward passes in the same command"
            )
    return costs


def _samples(row: ForeignRow, mapping: SourceMapping, call_ms: float) -> dict[str, Samples]:
    """Turn the given times into samples: shortest, median and longest are quantiles."""
    subtracted = {EXECUTION: call_ms, STEP: call_ms}
    return {
        name: Samples(
            # The shortest run may take less than the subtracted call; times are not negative.
            tuple(max(time_ms - subtracted.get(name, 0.0), 0.0) for time_ms in times_ms),
            max(mapping.samples, len(times_ms)),
            mapping.warmups,
            StopReason.BUDGET,
        )
        for name, times_ms in row.times_ms.items()
    }
