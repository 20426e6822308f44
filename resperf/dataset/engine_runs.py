"""Runs of TensorRT engines, read back from the datasets that `import_trtexec` wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resperf.dataset.hdf5 import read_dataset
from resperf.dataset.importing import EngineLayer, EngineTensor
from resperf.dataset.records import Dataset, ListedOperator, ListedTensor, NetworkDescription
from resperf.errors import DatasetError
from resperf.measurement import NetworkRef
from resperf.platform import Platform
from resperf.quantities import EXECUTION, PHASES
from resperf.settings import Setting


@dataclass(frozen=True)
class EngineRun:
    """An engine, its layers' times and its runs.

    Attributes
    ----------
    name : str
    batch : int or None
    setting : Setting
    platform : Platform
    layers : tuple of EngineLayer
        In the order of execution.
    phases : mapping of str to float
        Quantity -> its median; only those that were measured.
    """

    name: str
    batch: int | None
    setting: Setting
    platform: Platform
    layers: tuple[EngineLayer, ...]
    phases: Mapping[str, float]

    @property
    def layers_ms(self) -> float:
        """Sum of the layers' times; NaN if none was profiled."""
        times_ms = [layer.ms for layer in self.layers if not math.isnan(layer.ms)]
        return math.fsum(times_ms) if times_ms else math.nan

    @property
    def latency_ms(self) -> float:
        """All three phases; NaN unless each of them was measured."""
        return math.fsum(self.phases.get(name, math.nan) for name in PHASES)


def read_engine_run(path: Path, batch: int | None = None) -> EngineRun:
    """Read the engine of a dataset.

    Parameters
    ----------
    path : Path
    batch : int, optional
        Which of several engines is meant.

    Raises
    ------
    DatasetError
        If it cannot be read, or has no engine or several of this batch size.
    """
    if path.suffix in (".json", ".gz"):
        raise DatasetError(
            f"{path} is no dataset; make one of trtexec's exports: "
            f"resperf dataset import {path} ... --format trtexec -o engine.h5"
        )
    dataset = read_dataset(path)
    entries = dataset.info.source.get("engines", ())
    runs = [_run(dataset, entry["description"]) for entry in entries]
    if not runs:
        raise DatasetError(
            f"{path} holds no engine; make it with resperf dataset import --format trtexec"
        )
    fitting = [run for run in runs if batch in (None, run.batch)] or runs
    if len(fitting) > 1:
        names = ", ".join(f"{run.name} (batch {run.batch})" for run in fitting)
        raise DatasetError(f"{path} holds several engines: {names}; import each into its own file")
    return fitting[0]


def _run(dataset: Dataset, digest: str) -> EngineRun:
    description = NetworkDescription.from_bytes(dataset.descriptions[digest])
    rows = [
        row
        for row in dataset.measurements
        if isinstance(row.subject, NetworkRef) and row.subject.description == digest
    ]
    row = rows[0] if rows else None
    return EngineRun(
        description.name,
        description.batch,
        row.setting if row else dataset.info.setting,
        row.platform if row else dataset.info.platform,
        tuple(map(_layer, description.operators)),
        {name: samples.value for name, samples in row.samples.items()} if row else {},
    )


def _layer(listed: ListedOperator) -> EngineLayer:
    said = listed.attributes
    return EngineLayer(
        said["name"],
        listed.op,
        tuple(map(_tensor, listed.inputs)),
        tuple(map(_tensor, listed.outputs)),
        tuple(said["nodes"]),
        said["spans"],
        said["parameters"],
        listed.times_ms.get(EXECUTION, math.nan),
    )


def _tensor(listed: ListedTensor) -> EngineTensor:
    """Return a tensor, of which a dataset knows neither name nor format."""
    return EngineTensor("", listed.shape, listed.dtype, "")
