"""Published measurements on one device, collected and written as a dataset."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resperf._version import __version__
from resperf.dataset.descriptions import NetworkDescription, description_digest
from resperf.dataset.hdf5 import write_dataset
from resperf.dataset.importing.importer import Imported, published_platform
from resperf.dataset.importing.rows import CountedRows, ForeignFile
from resperf.dataset.records import Dataset, DatasetInfo
from resperf.devices import DeviceFacts, device_facts, devices
from resperf.errors import DatasetError
from resperf.layers import Layer
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason, Subject
from resperf.network import graph_digest, weightless
from resperf.quantities import EXECUTION, QUANTITIES, Estimator
from resperf.settings import Setting

MEASURED_BY, SESSION, CONTAINS = "measured by", "session", "contains"
"""Options of a published row's setting: its source, its session there, and what its times contain.
Times of unlike sessions may differ although everything else is equal."""


@dataclass(frozen=True)
class Source:
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
    citation: str


def common_device(names: Mapping[str, str], given: str | None) -> DeviceFacts:
    """Return the device that all files are of.

    Parameters
    ----------
    names : mapping of str to str
        File -> its device's name.
    given : str, optional
        The user's name of the device, which replaces those of the files.

    Raises
    ------
    DatasetError
        If it is not in the table of devices, or files are of several.
    """
    found: dict[str, tuple[str, DeviceFacts]] = {}
    for file, name in ({"--device": given} if given else names).items():
        facts = device_facts(name)
        if facts is None:
            raise DatasetError(
                f"{file}: no device {name!r}; name it with --device, one of {', '.join(devices())}"
            )
        found.setdefault(facts.device, (file, facts))
    if len(found) > 1:
        (device, (file, _)), (other, (second, _)) = list(found.items())[:2]
        raise DatasetError(
            f"{file} is of {device}, {second} of {other}; import each device into a file of its own"
        )
    if not found:
        raise DatasetError("no file says which device it is of; name it with --device")
    ((_, facts),) = found.values()
    return facts


def sample(value: float, estimator: Estimator, taken: int = 1, warmups: int = 0) -> Samples:
    """Return a published value as the only sample."""
    return Samples((value,), taken, warmups, StopReason.BUDGET, estimator=estimator)


class Published:
    """Rows of one source and device, in the order in which they are added.

    Parameters
    ----------
    source : Source
    facts : DeviceFacts
        Of the device.
    """

    def __init__(self, source: Source, facts: DeviceFacts) -> None:
        self.left_out = CountedRows()
        self._source, self._platform = source, published_platform(facts.device)
        self._rows: list[Measurement] = []
        self._repeats: Counter[Any] = Counter()
        self._descriptions: dict[str, bytes] = {}
        self._marked: dict[str, CountedRows] = {}

    def network(self, description: NetworkDescription) -> NetworkRef:
        """Store what is known of a network; return it as a subject without a graph."""
        content = description.to_bytes()
        digest = description_digest(content)
        self._descriptions[digest] = content
        return NetworkRef(description.name, "", digest)

    def add(
        self,
        subject: Subject,
        setting: Setting,
        samples: Mapping[str, Samples],
        *,
        status: Status = Status.OK,
        flags: Sequence[str] = (),
        detail: str = "",
    ) -> None:
        """Add a row; rows of one subject become its repeats.

        Parameters
        ----------
        subject : Layer or NetworkRef
        setting : Setting
        samples : mapping of str to Samples
        status : Status
        flags : sequence of str
            Reasons not to learn from it.
        detail : str
            Why it failed, or has its flags.
        """
        row = Measurement(
            subject, status, samples, setting=setting, platform=self._platform,
            started_at=math.nan, duration_s=math.nan, overhead_s=math.nan,
            flags=tuple(flags), detail=detail,
        )  # fmt: skip
        if isinstance(subject, Layer):
            row = replace(row, isolated_ms=row.value(EXECUTION))
        self._rows.append(replace(row, repeat=self._repeats[row.identity]))
        self._repeats[row.identity] += 1

    def mark(self, what: str, reason: str, place: str, detail: str = "") -> None:
        """Count a row that is kept although something is wrong with it.

        Parameters
        ----------
        what : str
            Such as ``"flagged throttled"``.
        reason : str
            The rule.
        place, detail : str
            File and line, and what is found there.
        """
        self._marked.setdefault(what, CountedRows(what)).add(reason, place, detail)

    def write(self, output: Path, files: Sequence[ForeignFile], graphs: Path | None) -> Imported:
        """Write the dataset.

        Parameters
        ----------
        output : Path
        files : sequence of ForeignFile
            All that were read.
        graphs : Path, optional
            Folder of ONNX files, each with the name of a network.

        Raises
        ------
        DatasetError
            If there are no rows, or `graphs` is no folder.
        OutputError
            If it cannot be written.
        """
        if not self._rows:
            reasons = "; ".join(map(str, self.left_out.all())) or "the files hold no rows"
            raise DatasetError(f"nothing to import: {reasons}")
        by_digest = self._attach(graphs) if graphs is not None else {}
        marked = tuple(each for rows in self._marked.values() for each in rows.all())
        setting = self._rows[0].setting.without_batch()
        kinds = Counter(
            row.subject.kind if isinstance(row.subject, Layer) else "networks" for row in self._rows
        )
        of_layers = (EXECUTION,) if set(kinds) - {"networks"} else ()
        info = DatasetInfo(
            setting=setting,
            platform=self._platform,
            campaign={"name": f"import of {self._source.name}"},
            seed=0,
            versions={"resperf": __version__, setting.framework: setting.framework_version},
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine_costs={},
            quantities=of_layers,
            source={
                "format": self._source.name,
                "description": self._source.description,
                "citation": self._source.citation,
                "files": [{"name": file.name, "sha256": file.sha256} for file in files],
                "left_out": {each.reason: each.rows for each in self.left_out.all()},
                "marked": {f"{each.what}: {each.reason}": each.rows for each in marked},
            },
        )
        dataset = Dataset(info, tuple(self._rows), by_digest, self._descriptions)
        write_dataset(output, dataset)
        found = {name for row in self._rows for name in row.samples}
        return Imported(
            info=info,
            rows=dict(kinds),
            quantities=tuple(name for name in QUANTITIES if name in found),
            repeats=sum(row.repeat > 0 for row in self._rows),
            session_ms={},
            left_out=self.left_out.all(),
            marked=marked,
            networks=len(
                {row.subject.key for row in self._rows if not isinstance(row.subject, Layer)}
            ),
            graphs=len(by_digest),
        )

    def _attach(self, folder: Path) -> dict[str, bytes]:
        """Give networks the graphs that a folder has under their names."""
        if not folder.is_dir():
            raise DatasetError(f"--graphs {folder} is no folder")
        contents = {}
        digests: dict[str, str] = {}
        names = {row.subject.name for row in self._rows if isinstance(row.subject, NetworkRef)}
        for name in sorted(names):
            path = folder / f"{name}.onnx"
            if path.exists():
                content = weightless(path)
                digests[name] = graph_digest(content)
                contents[digests[name]] = content
        for place, row in enumerate(self._rows):
            if isinstance(row.subject, NetworkRef) and row.subject.name in digests:
                subject = replace(row.subject, digest=digests[row.subject.name])
                self._rows[place] = replace(row, subject=subject)
        return contents
