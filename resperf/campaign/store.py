"""Where a campaign writes its rows: the journal while it runs, the dataset when it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from platform import python_version
from statistics import median

from resperf._version import __version__
from resperf.backends.monitors import REFERENCE_COST, Monitor, Reading
from resperf.campaign.journal import (
    Header,
    Journal,
    Records,
    best_rows,
    middle_of,
    read_journal,
    row_identity,
    usual_states,
)
from resperf.campaign.spec import Campaign
from resperf.dataset import Dataset, DatasetInfo, read_dataset, read_networks, write_dataset
from resperf.errors import CampaignError
from resperf.measurement import Measurement, NetworkRef
from resperf.platform import Platform
from resperf.quantities import PHASES
from resperf.settings import Setting
from resperf.timing import KNOWN_READINGS


def journal_path(output: Path) -> Path:
    """Return the path of the journal that belongs to a dataset."""
    return output.with_name(output.stem + ".journal.jsonl")


def written_rows(
    folder: Path, campaign: Campaign, setting: Setting, platform: Platform
) -> Iterator[tuple[str, list[Measurement]]]:
    """Return the rows of a campaign that alike devices wrote in a folder, by dataset's name."""
    new = _new_header(campaign, setting, platform.kind)
    names = (path.name.removesuffix(".journal.jsonl") for path in folder.glob("*.journal.jsonl"))
    for name in sorted({*names, *(path.stem for path in folder.glob("*.h5"))}):
        settled = _from_dataset(folder / f"{name}.h5")
        journal = journal_path(folder / f"{name}.h5")
        written = read_journal(journal) if journal.exists() else Records()
        header = written.header or settled.header
        if header is not None and not _differences(header, campaign, new):
            yield name, [*settled.rows, *written.rows]


class Store:
    """Rows of one campaign, on disk.

    Parameters
    ----------
    output : Path
        The dataset; its journal lies beside it.
    campaign : Campaign
    setting : Setting
    platform : Platform
        How and where is about to be measured.
    monitor : Monitor
        Of its class of devices: names what of the machine's costs is its own, and usual states.
    contents : mapping of str to bytes, optional
        Of the networks that rows are added of: digest -> graph without weights, or description.
    usual_ms : mapping of str to float, optional
        What is known of `Monitor.usual_times` where neither journal nor dataset says it.

    Raises
    ------
    CampaignError
        If what is there belongs to another machine, campaign or seed; says in what they differ.
    DatasetError
        If the dataset is damaged.
    OutputError
        If nothing can be written there, or another campaign is.

    Attributes
    ----------
    output : Path
    settled : list of Measurement
        Rows of an earlier, finished start, without their samples.
    rows : list of Measurement
        Rows of the journal, without their samples: every attempt, in the order taken.
    readings : ReferenceHistory
    usual : dict of str to (float, int)
        What `Monitor.usual_times` said, under names that a dataset's machine costs have too.
    """

    def __init__(
        self,
        output: Path,
        campaign: Campaign,
        *,
        setting: Setting,
        platform: Platform,
        monitor: Monitor,
        contents: Mapping[str, bytes] | None = None,
        usual_ms: Mapping[str, float] | None = None,
    ) -> None:
        self._states = monitor.device_states
        self._known_contents = contents or {}
        self.output = output
        self._campaign = campaign
        compacted = _from_dataset(output)
        new = _new_header(campaign, setting, platform)
        _refuse_differences(output, compacted.header, campaign, new)
        header = compacted.header or new
        path = journal_path(output)
        self._journal = Journal(path, header)
        try:
            written = read_journal(path)
            _refuse_differences(path, written.header, campaign, new)
        except BaseException:
            self._journal.close()
            raise
        self._header = written.header or header
        self.setting, self.platform = self._header.setting, self._header.platform
        self.rows = [_without_samples(row) for row in written.rows]
        self.readings = written.readings
        costs = {**compacted.costs, **written.costs}
        self._records = replace(written, rows=[], costs=costs)
        known_ms = {**(usual_ms or {}), **self._medians_ms()}
        usual = [name for name in monitor.usual_costs if name in known_ms]
        self.usual = {name: (known_ms[name], KNOWN_READINGS) for name in usual}
        self.settled = [_without_samples(row) for row in self._lacking(compacted)]
        # Their ratios are turned back into readings, since the median moves with new ones.
        (reference_ms,) = compacted.costs.get(REFERENCE_COST, [math.nan])
        for row in self.settled:
            time_ms = row.reference_ratio * reference_ms
            if not math.isnan(time_ms) and not isinstance(row.subject, NetworkRef):
                self.readings.add(middle_of(row), time_ms)

    def _lacking(self, compacted: Records) -> list[Measurement]:
        """Return the dataset's rows that the journal lacks: those of an earlier, finished start."""
        journalled = {(row_identity(row), row.started_at) for row in self.rows}
        return [
            row
            for row in compacted.rows
            if (row_identity(row), row.started_at) not in journalled and not self._is_foreign(row)
        ]

    def _is_foreign(self, row: Measurement) -> bool:
        """Whether a row is of a network on another machine, which has nothing to do with this."""
        return isinstance(row.subject, NetworkRef) and bool(row.platform.differences(self.platform))

    def add_row(self, row: Measurement) -> None:
        """Add a row; when this returns, it survives a power cut."""
        if isinstance(row.subject, NetworkRef):
            for digest in filter(None, (row.subject.digest, row.subject.description)):
                if digest not in self._records.contents:
                    self._records.contents[digest] = self._known_contents[digest]
                    self._journal.add_content(self._known_contents[digest])
        self._journal.add_row(row)
        self.rows.append(_without_samples(row))

    def add_reading(self, reading: Reading) -> None:
        """Add a reading of the device."""
        self._journal.add_reading(reading)
        self._records.add_reading(reading)

    def add_costs(self, costs: dict[str, float]) -> None:
        """Add the machine's costs as they were measured this time."""
        self._journal.add_costs(costs)
        self._records.add_costs(costs)

    @property
    def costs(self) -> dict[str, float]:
        """The machine's costs: medians of what was measured."""
        usual_ms = {name: time_ms for name, (time_ms, _) in self.usual.items()}
        return self._medians_ms() | usual_ms

    def _medians_ms(self) -> dict[str, float]:
        return {name: median(values) for name, values in self._records.costs.items()}

    def best(self) -> list[Measurement]:
        """Return one row per subject and repeat, without samples."""
        # Rows of an earlier, finished start have lost the flags that were usual then.
        usual = usual_states(self.rows, self._states)
        return best_rows([*self.settled, *self.rows], self.readings, usual)

    def compact(self) -> None:
        """Write the dataset; the journal stays.

        Raises
        ------
        OutputError
            If it cannot be written; the old dataset and the journal are as they were.
        """
        if not self.rows and not self.settled:
            return
        # The samples of a long campaign are read when they are needed, not held for hours.
        there = _from_dataset(self.output, read_dataset if self.settled else read_networks)
        written = read_journal(journal_path(self.output)).rows
        rows = best_rows(
            [*self._lacking(there), *written], self.readings, usual_states(written, self._states)
        )
        rows += filter(self._is_foreign, there.rows)
        costs = self.costs
        if len(self.readings):
            costs[REFERENCE_COST] = self.readings.median_ms
        has_layers = any(not isinstance(row.subject, NetworkRef) for row in rows)
        info = DatasetInfo(
            setting=self.setting,
            platform=self.platform,
            campaign=self._campaign.to_json(),
            seed=self._header.seed,
            versions=self._header.versions,
            created=self._header.created,
            machine_costs=costs,
            quantities=PHASES if has_layers else (),
        )
        contents = {**there.contents, **self._records.contents}
        networks = [row.subject for row in rows if isinstance(row.subject, NetworkRef)]
        graphs = {one.digest: contents[one.digest] for one in networks if one.digest}
        described = {one.description for one in networks if one.description}
        descriptions = {digest: contents[digest] for digest in described}
        write_dataset(self.output, Dataset(info, tuple(rows), graphs, descriptions))

    def close(self, *, complete: bool) -> None:
        """Close the journal, and remove it where the dataset holds everything."""
        if complete:
            self._journal.remove()
        else:
            self._journal.close()


def _without_samples(row: Measurement) -> Measurement:
    """Return what the runner has to know of a row: a few hundred bytes."""
    return replace(row, samples={})


def _new_header(campaign: Campaign, setting: Setting, platform: Platform) -> Header:
    versions = {
        "resperf": __version__,
        "python": python_version(),
        "numpy": metadata.version("numpy"),
        setting.framework: setting.framework_version,
    }
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Header(setting, platform, campaign.to_json(), campaign.seed, versions, created)


def _from_dataset(output: Path, read: Callable[[Path], Dataset] = read_dataset) -> Records:
    """Read what an earlier start compacted."""
    if not output.exists():
        return Records()
    dataset = read(output)
    info = dataset.info
    header = Header(
        info.setting, info.platform, info.campaign, info.seed, info.versions, info.created
    )
    costs = {name: [cost_ms] for name, cost_ms in info.machine_costs.items()}
    return Records(
        header,
        list(dataset.measurements),
        costs=costs,
        contents={**dataset.graphs, **dataset.descriptions},
    )


def _refuse_differences(path: Path, header: Header | None, campaign: Campaign, new: Header) -> None:
    """Refuse to add rows to those of another machine, campaign or seed."""
    if header is None:
        return
    if differences := _differences(header, campaign, new):
        raise CampaignError(
            f"{path} holds rows that were measured otherwise ({'; '.join(differences)}); "
            "choose another output with -o, or the settings of that file"
        )


def _differences(header: Header, campaign: Campaign, new: Header) -> list[str]:
    differences = new.platform.differences(header.platform)
    differences += new.setting.differences(header.setting)
    differences += campaign.differences(header.campaign)
    if new.seed != header.seed:
        differences.append(f"seed: {new.seed} here, {header.seed} there")
    return differences
