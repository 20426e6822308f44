"""Runs of networks in a campaign's journal: what an interrupted calibration goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from resperf._version import __version__
from resperf.backends import Backend
from resperf.campaign.journal import Header, Journal, read_journal
from resperf.campaign.store import journal_path
from resperf.dataset import append_networks
from resperf.errors import CampaignError
from resperf.measurement import Measurement, NetworkRef, Status
from resperf.network import graph_digest, weightless


class RunJournal:
    """Rows of networks, on disk as soon as they exist; a dataset when all are there.

    Parameters
    ----------
    output : Path
        The dataset; its journal lies beside it.
    device : Backend
        What runs the networks: rows of other settings or platforms are not found.
    seconds : float
        Runs that took another time are forgotten.

    Raises
    ------
    OutputError
        If the journal cannot be written, or another process writes it.
    """

    def __init__(self, output: Path, device: Backend, seconds: float) -> None:
        self.output = output
        self._setting, platform = device.setting(), device.platform()
        header = Header(
            setting=self._setting,
            platform=platform,
            campaign={"name": "networks", "seconds": seconds},
            seed=0,
            versions={"resperf": __version__},
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        path = journal_path(output)
        rows = _earlier_rows(path, header)
        self._journal = Journal(path, header)
        self._rows = {row.identity: row for row in rows if not platform.differences(row.platform)}
        self._graphs: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._journal.close()

    def find(self, path: Path, batch: int | None) -> Measurement | None:
        """Return the row of a network that was run already."""
        content = weightless(path)
        digest = graph_digest(content)
        self._graphs[digest] = content
        setting = replace(self._setting, batch=batch)
        asked = (NetworkRef(path.stem, digest).key, setting)
        return self._rows.get(asked)

    def add(self, row: Measurement) -> None:
        """Append a row; when this returns, it survives a power cut.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        self._journal.add_row(row)
        self._rows[row.identity] = row

    def finish(self) -> None:
        """Add the rows of networks that were asked for to the dataset, and remove the journal.

        Raises
        ------
        DatasetError, OutputError
            If the dataset is damaged or cannot be written; the journal stays.
        """
        rows = [row for row in self._rows.values() if _digest(row) in self._graphs]
        if rows:
            graphs = {digest: self._graphs[digest] for digest in map(_digest, rows)}
            append_networks(self.output, rows, graphs)
        journal_path(self.output).unlink(missing_ok=True)


def _digest(row: Measurement) -> str:
    assert isinstance(row.subject, NetworkRef)
    return row.subject.digest


def _earlier_rows(path: Path, header: Header) -> Sequence[Measurement]:
    """Read the rows of an interrupted start; a journal of something else is removed."""
    if not path.exists():
        return ()
    try:
        records = read_journal(path)
    except CampaignError:
        records = None
    if records is None or records.header is None or records.header.campaign != header.campaign:
        path.unlink()
        return ()
    return [
        row
        for row in records.rows
        if isinstance(row.subject, NetworkRef) and row.status is Status.OK
    ]
