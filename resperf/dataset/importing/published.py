"""Published measurements, collected and written as a dataset."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from resperf._version import __version__
from resperf.dataset.hdf5 import group_of, quantities_of, write_dataset
from resperf.dataset.importing.mapping import Source
from resperf.dataset.importing.rows import Counted, CountedRows, ForeignFile
from resperf.dataset.records import Dataset, DatasetInfo, NetworkDescription, description_digest
from resperf.devices import DeviceFacts, canonical_device, device_class, device_facts, devices
from resperf.errors import DatasetError, LayerError
from resperf.layers import Layer
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason, Subject
from resperf.network import graph_digest, graph_parameters, weightless
from resperf.platform import Platform
from resperf.quantities import EXECUTION, Estimator
from resperf.settings import CONTAINS, MEASURED_BY, SESSION, Setting

_ROUNDED_PARAMETERS = 5001
"""By how much a number of parameters may differ that is published in hundredths of a million."""
_FIXED_FILTERS = 5e-4
"""Share of a network's weights that may be filters which are not learnt, such as blurs."""


class Untyped(NamedTuple):
    """A measured layer that no kind of layer describes: what the source calls it, and why."""

    name: str
    type: str
    ms: float
    reason: str


@dataclass(frozen=True)
class Imported:
    """Result of an import.

    Attributes
    ----------
    info : DatasetInfo
    rows : mapping of str to int
        Kind, as `resperf.measurement.written_kind` returns it, to number of rows.
    quantities : tuple of str
        Quantities of the rows, in the order of their table.
    repeats : int
        Number of repeated measurements of a layer or a network.
    call_ms : mapping of str to float
        Kind to the call that was subtracted from its times; empty if none was.
    left_out : tuple of Counted
        Invalid rows, by reason.
    marked : tuple of Counted
        Rows that were kept although something is wrong with them: flagged, without a time, ...
    networks, graphs : int
        Number of networks, and of those whose graph is known.
    untyped : tuple of Untyped
        Layers of an engine that have no row.
    """

    info: DatasetInfo
    rows: Mapping[str, int]
    quantities: tuple[str, ...]
    repeats: int
    call_ms: Mapping[str, float]
    left_out: tuple[Counted, ...]
    marked: tuple[Counted, ...] = ()
    networks: int = 0
    graphs: int = 0
    untyped: tuple[Untyped, ...] = ()


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
    by_device: dict[str, tuple[str, DeviceFacts]] = {}
    for file, name in ({"--device": given} if given else names).items():
        facts = device_facts(name)
        if facts is None:
            raise DatasetError(
                f"{file}: no device {name!r}; name it with --device, one of {', '.join(devices())}"
            )
        by_device.setdefault(facts.device, (file, facts))
    if len(by_device) > 1:
        (device, (file, _)), (other, (second, _)) = list(by_device.items())[:2]
        raise DatasetError(
            f"{file} is of {device}, {second} of {other}; import each device into a file of its own"
        )
    if not by_device:
        raise DatasetError("no file says which device it is of; name it with --device")
    ((_, facts),) = by_device.values()
    return facts


def published_platform(device: str) -> Platform:
    """Describe a machine by any name of its device."""
    device = canonical_device(device)
    facts = device_facts(device)
    return Platform(
        device=device,
        processor=facts.name if facts else device,
        memory_bytes=facts.memory_bytes if facts else 0,
    )


def sample(value: float, estimator: Estimator, taken: int = 1, warmups: int = 0) -> Samples:
    """Return a published value as the only sample."""
    return Samples((value,), taken, warmups, StopReason.BUDGET, estimator=estimator)


class Published:
    """Rows of one source, in the order in which they are added.

    Parameters
    ----------
    source : Source
    device : str
        Any name of the device of those rows that are added without one.

    Attributes
    ----------
    left_out : CountedRows
        Invalid rows.
    graphs : dict of str to bytes
        Graphs of networks, by digest.
    """

    def __init__(self, source: Source, device: str = "") -> None:
        self.left_out = CountedRows()
        self.graphs: dict[str, bytes] = {}
        self._source, self._device = source, device
        # Rows share platforms: comparing equal ones takes longer than reading the rows.
        self._platform = cache(published_platform)
        self._rows: list[Measurement] = []
        self._repeats: Counter[Any] = Counter()
        self._descriptions: dict[str, bytes] = {}
        self._marked: dict[str, CountedRows] = {}

    def setting(
        self, session: str, contains: str, options: Mapping[str, str] | None = None, **values: Any
    ) -> Setting:
        """Return a setting of PyTorch, eager unless `values` say otherwise.

        Parameters
        ----------
        session : str
            Of the source: times of unlike sessions may differ although all else is equal.
        contains : str
            What the times contain.
        options : mapping of str to str, optional
            More options.
        **values
            Fields of the `Setting`.
        """
        own = {MEASURED_BY: self._source.name, SESSION: session, CONTAINS: contains}
        return Setting(
            framework="torch",
            provider=device_class(self._device),
            options={**own, **(options or {})},
            **{"compiled": "eager", **values},
        )

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
        device: str = "",
        **values: Any,
    ) -> None:
        """Add a row; rows of one subject become its repeats.

        Parameters
        ----------
        subject : Layer or NetworkRef
        setting : Setting
        samples : mapping of str to Samples
        device : str
            If not that of all rows.
        **values
            What else is known of the `Measurement`, such as its status if it failed, or its
            platform.
        """
        if isinstance(subject, Layer) and "isolated_ms" not in values:
            values["isolated_ms"] = samples[EXECUTION].value
        row = Measurement(
            subject, values.pop("status", Status.OK), samples, setting=setting,
            platform=values.pop("platform", None) or self._platform(device or self._device),
            started_at=math.nan, duration_s=math.nan, overhead_s=math.nan, **values,
        )  # fmt: skip
        where = row.platform
        same = (row.identity, where.device, where.devices, where.interconnect)
        self._rows.append(replace(row, repeat=self._repeats[same]))
        self._repeats[same] += 1

    @contextmanager
    def reading(
        self, location: str, reason: str = "a figure that cannot be read"
    ) -> Iterator[None]:
        """Leave a row out if it lacks a value, or has an impossible one."""
        try:
            yield
        except KeyError as error:
            self.left_out.add(f"no value in {error.args[0]}", location)
        except (ValueError, ArithmeticError, LayerError) as error:
            self.left_out.add(reason, location, str(error))

    def mark(self, what: str, reason: str, location: str, detail: str = "") -> None:
        """Count a row that is kept although something is wrong with it.

        Parameters
        ----------
        what : str
            Such as ``"flagged throttled"``.
        reason : str
            The rule.
        location, detail : str
            File and line, and what is found there.
        """
        self._marked.setdefault(what, CountedRows(what)).add(reason, location, detail)

    def write(
        self,
        output: Path,
        files: Sequence[ForeignFile],
        *,
        graphs: Path | None = None,
        call_ms: Mapping[str, float] | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> Imported:
        """Write the dataset.

        Parameters
        ----------
        output : Path
        files : sequence of ForeignFile
            All that were read.
        graphs : Path, optional
            Folder of ONNX files, each with the name of a network. One whose number of parameters
            differs from the published one is not used.
        call_ms : mapping of str to float, optional
            Kind to the call that was subtracted from its times.
        source : mapping, optional
            What the file says of its source besides.

        Raises
        ------
        DatasetError
            If there are no rows, or `graphs` is no folder or has no file of a network's name.
        OutputError
            If it cannot be written.
        """
        left_out = self.left_out.all()
        if not self._rows:
            reasons = "; ".join(map(str, left_out[:3])) or "the files hold no rows"
            raise DatasetError(f"nothing to import: {reasons}")
        if graphs is not None:
            self._attach(graphs)
        marked = tuple(counted for rows in self._marked.values() for counted in rows.all())
        costs = dict(call_ms or {})
        settings = [row.setting for row in self._rows]
        frameworks = {
            setting.framework: setting.framework_version for setting in reversed(settings)
        }
        setting = settings[0].without_batch()
        of_layers = [row for row in self._rows if isinstance(row.subject, Layer)]
        info = DatasetInfo(
            # Training steps of layers differ from this one by their optimizers.
            setting=setting.with_optimizer("") if of_layers else setting,
            platform=self._rows[0].platform,
            campaign={"name": f"import of {self._source.name}"},
            seed=0,
            versions={"resperf": __version__, **{k: v for k, v in frameworks.items() if k and v}},
            machine_costs={"call_ms": min(costs.values())} if costs else {},
            quantities=quantities_of(of_layers),
            source={
                "format": self._source.name,
                "description": self._source.description,
                "citation": self._source.citation,
                "files": [{"name": file.name, "sha256": file.sha256} for file in files],
                "call_ms": costs,
                "left_out": {counted.reason: counted.rows for counted in left_out},
                "marked": {f"{counted.what}: {counted.reason}": counted.rows for counted in marked},
                **(source or {}),
            },
        )
        write_dataset(output, Dataset(info, tuple(self._rows), self.graphs, self._descriptions))
        return Imported(
            info=info,
            rows=dict(Counter(map(group_of, self._rows))),
            quantities=quantities_of(self._rows),
            repeats=sum(row.repeat > 0 for row in self._rows),
            call_ms=costs,
            left_out=left_out,
            marked=marked,
            networks=len({row.key for row in self._rows if isinstance(row.subject, NetworkRef)}),
            graphs=len(self.graphs),
        )

    def _attach(self, folder: Path) -> None:
        """Give networks the graphs that a folder has under their names, where these fit."""
        if not folder.is_dir():
            raise DatasetError(f"--graphs {folder} is no folder")
        subjects = {row.subject for row in self._rows if isinstance(row.subject, NetworkRef)}
        attached: dict[Subject, NetworkRef] = {}
        misfits: dict[Subject, str] = {}
        for subject in sorted(subjects, key=lambda network: (network.name, network.description)):
            path = folder / f"{subject.name}.onnx"
            if not path.exists():
                continue
            content = weightless(path)
            if misfit := self._misfit(subject, content):
                misfits[subject] = misfit
                continue
            digest = graph_digest(content)
            self.graphs[digest] = content
            attached[subject] = replace(subject, digest=digest)
        if subjects and not attached and not misfits:
            first = min(network.name for network in subjects)
            raise DatasetError(
                f"--graphs {folder} has no file with the name of a network, such as {first}.onnx; "
                "tools/benchmarks/export.py writes them, or leave the option out"
            )
        for index, row in enumerate(self._rows):
            if row.subject in attached:
                self._rows[index] = replace(row, subject=attached[row.subject])
            elif isinstance(row.subject, NetworkRef) and row.subject in misfits:
                file = f"{row.subject.name}.onnx"
                reason = "the graph has another number of parameters"
                self.mark("without the graph of their name", reason, file, misfits[row.subject])

    def _misfit(self, subject: NetworkRef, content: bytes) -> str:
        """Return why a graph is not that of a network; empty if it may be."""
        description = NetworkDescription.from_bytes(self._descriptions[subject.description])
        if description.parameters is None:
            return ""
        least, most = graph_parameters(content, subject.name)
        # Lists have exact numbers; without one, a table's number is rounded.
        rounding = 0 if description.operators else _ROUNDED_PARAMETERS
        if least * (1 - _FIXED_FILTERS) - rounding <= description.parameters <= most + rounding:
            return ""
        return f"{most:,} in the graph, {description.parameters:,} measured"
