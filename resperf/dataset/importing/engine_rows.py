"""From the exports of trtexec to a dataset, and back: an engine's layers, and its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from resperf.dataset.hdf5 import read_dataset
from resperf.dataset.importing.engine_layers import is_relayout, is_view, typed_layer
from resperf.dataset.importing.mapping import Source
from resperf.dataset.importing.published import Imported, Published, Untyped, sample
from resperf.dataset.importing.trtexec import Engine, EngineLayer, EngineTensor, read_exports
from resperf.dataset.records import Dataset, ListedOperator, ListedTensor, NetworkDescription
from resperf.errors import DatasetError, LayerError
from resperf.layers import Layer
from resperf.measurement import MAX_SAMPLES, NetworkRef, Samples, StopReason, capped
from resperf.platform import Platform
from resperf.quantities import EXECUTION, PHASES, Estimator
from resperf.settings import CONTAINS, MEASURED_BY, UNKNOWN, Setting

TRTEXEC = "trtexec"
"""Name of the format."""
_SOURCE = Source(TRTEXEC, "TensorRT engines: each layer between two events, whole runs of kernels")
_LAYER_CONTAINS = "one layer between two events, with its launch"
_RUN_CONTAINS = "all kernels of a run"
_OPTIONS = ("Precision", "Sparsity", "Streams", "Max batch", "Tactic sources")
"""Facts that may change times."""
_QUANTILES = MAX_SAMPLES - 1
"""An odd number, so that one of them is the median."""


def import_trtexec(
    paths: Sequence[Path], output: Path, *, device: str | None = None, graphs: Path | None = None
) -> Imported:
    """Read the exports of one engine and write them as a dataset.

    Layers of which a kind says all become rows; the others are counted, with the reason. Whole runs
    become the row of a network: their kernels are its execution, their copies its preprocess and
    postprocess where data transfers were enabled. Its description lists all layers of the engine,
    with names, nodes and times.

    Parameters
    ----------
    paths : sequence of Path
        Layer information, and a profile or times or both, in any order; logs and metadata.
    output : Path
    device : str, optional
        Any name of a device; by default what log or metadata say.
    graphs : Path, optional
        As in `resperf.dataset.importing.published.Published.write`; the engine has the name of its
        layer information's file.

    Raises
    ------
    DatasetError
        If a file cannot be read or is of another engine, there are no times, or no device is named.
    OutputError
        If the output cannot be written.
    """
    engine = read_exports(paths)
    if math.isnan(engine.layers_ms) and not engine.compute_ms:
        raise DatasetError(
            f"{engine.name} has no times: add what trtexec --exportProfile or --exportTimes wrote"
        )
    name = device or engine.device
    if not name:
        raise DatasetError(
            f"no file says on which device {engine.name} ran: add trtexec's log, or name it with "
            "--device"
        )
    published = Published(_SOURCE, name)
    setting = _setting(engine)
    typed = [_typed(layer) for layer in engine.layers]
    for layer, outcome in zip(engine.layers, typed, strict=True):
        where = f"layer {layer.name!r}"
        if math.isnan(layer.ms):
            published.mark("of the engine without a time", "the profile lacks them", where)
        elif isinstance(outcome, str):
            published.left_out.add(outcome, where, f"{layer.ms:g} ms")
        elif layer.ms == 0:
            published.left_out.add("a time of 0", where)
        else:
            estimator = Estimator.MEDIAN if layer.is_median else Estimator.THROUGHPUT_MEAN
            samples = sample(layer.ms, estimator, engine.profiled_runs)
            published.add(outcome, setting, {EXECUTION: samples})
    subject = published.network(_described(engine))
    if phases := _phases(engine):
        published.add(subject, _of_run(engine, setting), phases)
    sums = {**_sums(engine), "description": subject.description}
    imported = published.write(output, engine.files, graphs=graphs, source={"engines": [sums]})
    named = tuple(
        Untyped(layer.name, layer.type, layer.ms, outcome)
        for layer, outcome in zip(engine.layers, typed, strict=True)
        if isinstance(outcome, str) and not is_view(layer)
    )
    return replace(imported, untyped=named)


def _typed(layer: EngineLayer) -> Layer | str:
    """Return a layer's typed layer, or the reason why it has none."""
    if is_view(layer):
        return "views, which run nothing"
    try:
        return typed_layer(layer)
    except LayerError as error:
        return str(error)


def _precision(engine: Engine) -> str:
    """Name the narrowest type that convolutions and products read; TF32 by their kernels' names."""
    types = {
        tensor.dtype
        for layer in engine.layers
        if not is_view(layer) and not is_relayout(layer)
        for tensor in layer.inputs[:1]
    }
    for dtype, word in _PRECISIONS.items():
        if dtype in types:
            return word
    kernels = (str(layer.parameters.get("TacticName", "")) for layer in engine.layers)
    if "float32" not in types:
        return UNKNOWN
    return "tf32" if any("tf32" in kernel for kernel in kernels) else "fp32"


_PRECISIONS: Mapping[str, str] = {
    "float4": "fp4", "int4": "int4", "float8": "fp8", "int8": "int8", "bfloat16": "bf16",
    "float16": "fp16",
}  # fmt: skip
"""Type -> precision, the narrowest first."""


def _setting(engine: Engine) -> Setting:
    """Return the setting of the profiled layers, which run one by one, without a CUDA graph."""
    options = {name: engine.facts[name] for name in _OPTIONS if name in engine.facts}
    return Setting(
        framework="tensorrt",
        framework_version=engine.version,
        provider="cuda",
        precision=_precision(engine),
        options={MEASURED_BY: TRTEXEC, CONTAINS: _LAYER_CONTAINS, **options},
    )


def _of_run(engine: Engine, setting: Setting) -> Setting:
    shapes = {
        tensor.name: tensor.shape for tensor in engine.inputs if min(tensor.shape, default=0) > 0
    }
    return replace(
        setting,
        cuda_graph=engine.facts.get("CUDA Graph", "") == "Enabled",
        batch=_batch(engine),
        shapes=shapes,
        options={**setting.options, CONTAINS: _RUN_CONTAINS},
    )


def _batch(engine: Engine) -> int | None:
    """Return the first size of all inputs, if they have the same."""
    sizes = {tensor.shape[0] if tensor.shape else 0 for tensor in engine.inputs}
    first = min(sizes, default=0)
    return first if len(sizes) == 1 and first > 0 else None


def _phases(engine: Engine) -> dict[str, Samples]:
    """Return the phases that were measured; a missing one is absent."""
    taken = zip(PHASES, (engine.h2d_ms, engine.compute_ms, engine.d2h_ms), strict=True)
    return {
        name: Samples(
            capped(times_ms, _QUANTILES), len(times_ms), engine.warmups, StopReason.BUDGET
        )
        for name, times_ms in taken
        if times_ms
    }


def _described(engine: Engine) -> NetworkDescription:
    """Describe the network by the engine's layers, in the order of execution."""
    operators = tuple(
        ListedOperator(
            layer.type,
            tuple(map(_listed, layer.inputs)),
            tuple(map(_listed, layer.outputs)),
            {
                "name": layer.name,
                "nodes": list(layer.nodes),
                "spans": layer.spans,
                "parameters": dict(layer.parameters),
            },
            times_ms={} if math.isnan(layer.ms) else {EXECUTION: layer.ms},
        )
        for layer in engine.layers
    )
    return NetworkDescription(engine.name, engine.name, batch=_batch(engine), operators=operators)


def _listed(tensor: EngineTensor) -> ListedTensor:
    return ListedTensor(tensor.shape, tensor.dtype)


def _sums(engine: Engine) -> dict[str, Any]:
    """Return what an engine's layers add up to, as plain JSON values; None is not measured.

    Keys: ``name``, ``layers`` and how many of them are ``views`` and ``relayouts``; ``layers_ms``
    and ``relayouts_ms`` are sums of the profile, ``whole_ms`` is the median run, ``facts`` are what
    log and metadata say.
    """
    relayouts = [layer for layer in engine.layers if is_relayout(layer)]
    timed = [layer.ms for layer in relayouts if not math.isnan(layer.ms)]
    return {
        "name": engine.name,
        "layers": len(engine.layers),
        "views": sum(map(is_view, engine.layers)),
        "relayouts": len(relayouts),
        "layers_ms": None if math.isnan(engine.layers_ms) else engine.layers_ms,
        "relayouts_ms": math.fsum(timed) if engine.profiled_runs else None,
        "whole_ms": median(engine.compute_ms) if engine.compute_ms else None,
        "copies": bool(engine.h2d_ms and engine.d2h_ms),
        "facts": dict(engine.facts),
    }


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
        tuple(map(_layer_of, description.operators)),
        {name: samples.value for name, samples in row.samples.items()} if row else {},
    )


def _layer_of(listed: ListedOperator) -> EngineLayer:
    said = listed.attributes
    return EngineLayer(
        said["name"],
        listed.op,
        tuple(map(_tensor_of, listed.inputs)),
        tuple(map(_tensor_of, listed.outputs)),
        tuple(said["nodes"]),
        said["spans"],
        said["parameters"],
        listed.times_ms.get(EXECUTION, math.nan),
    )


def _tensor_of(listed: ListedTensor) -> EngineTensor:
    """Return a tensor, of which a dataset knows neither name nor format."""
    return EngineTensor("", listed.shape, listed.dtype, "")
