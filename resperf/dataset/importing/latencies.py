"""Published latencies of whole networks in TensorRT, one table of many sources and cards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from resperf.dataset.importing.mapping import Source
from resperf.dataset.importing.published import Imported, Published, sample
from resperf.dataset.importing.rows import has_columns, read_files
from resperf.dataset.records import NetworkDescription
from resperf.devices import canonical_device
from resperf.quantities import EXECUTION, Estimator
from resperf.settings import CONTAINS, MEASURED_BY, PRECISIONS, SESSION, Setting

TENSORRT = "tensorrt-latencies"
"""Name of the format."""
_SOURCE = Source(
    TENSORRT,
    "latencies of whole networks in TensorRT as their sources state them; the setting of each row "
    "names its source and what its time contains",
    "",
)
_COLUMNS = (
    "source", "network", "family", "build", "input", "batch", "precision", "gpu", "trt_version",
    "content", "statistic", "latency_ms",
)  # fmt: skip
_TF32 = "fp32/tf32"
"""Float32 as asked for, which TensorRT computes in TF32 on these cards."""
_GRAPH = re.compile(r"(?<!no )CUDA graph|useCudaGraph", re.IGNORECASE)
_REMARK = re.compile(r"\s*\((.*)\)")


def import_latencies(
    paths: Sequence[Path], output: Path, *, device: str | None = None, graphs: Path | None = None
) -> Imported:
    """Import tables of published latencies of TensorRT as a dataset of networks.

    Parameters
    ----------
    paths : sequence of Path
        CSV files, compressed or not, with the columns that docs/importing.md describes.
    output, graphs
        As in `import_timm`; `graph_name` says which file has the graph of a row.
    device : str, optional
        Replaces the cards that the rows name.

    Raises
    ------
    DatasetError, OutputError
        As in `import_timm`.
    """
    files = read_files(paths)
    published = Published(_SOURCE, device or "")
    for file in files:
        for location, cells in file.cells(has_columns(*_COLUMNS)):
            with published.reading(location):
                _add(published, cells, location, device)
    return published.write(output, files, graphs=graphs)


def graph_name(build: str, size: str) -> str:
    """Return the name of a network's graph: what builds it, as a file name, and its input size."""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', build).strip('-')}@{size}"


def _add(published: Published, cells: Mapping[str, str], location: str, device: str | None) -> None:
    name, size = graph_name(cells["build"], cells["input"]), cells["input"]
    time_ms, batch = float(cells["latency_ms"]), int(cells["batch"])
    precision = "tf32" if cells["precision"] == _TF32 else cells["precision"]
    if not 0 < time_ms < float("inf") or batch < 1 or precision not in PRECISIONS:
        raise ValueError(f"{time_ms:g} ms at batch {batch} in {precision}")
    card, remark = _REMARK.sub("", cells["gpu"]), _REMARK.search(cells["gpu"])
    if remark and "not stated" in remark[1]:
        reason = f"the source does not say which {card}; taken as {canonical_device(card)}"
        published.mark("of an unknown variant", reason, location)
    repository = ":".join(cells["source"].partition("@")[0].split(":")[:2])
    options = {MEASURED_BY: TENSORRT, SESSION: repository, CONTAINS: cells["content"]}
    setting = Setting(
        "tensorrt", cells["trt_version"], "cuda", precision=precision, batch=batch,
        cuda_graph=bool(_GRAPH.search(cells["content"])),
        options={**options, "source": cells["source"]},
    )  # fmt: skip
    is_text = size.startswith("seq")
    side = int(size.removeprefix("seq") if is_text else size.rpartition("x")[2])
    described = NetworkDescription(
        name,
        cells["network"],
        cells["family"],
        None if is_text else side,
        side if is_text else None,
    )
    estimator = Estimator.MEDIAN if "median" in cells["statistic"] else Estimator.THROUGHPUT_MEAN
    published.add(
        published.network(described), setting, {EXECUTION: sample(time_ms, estimator)},
        device=device or card,
    )  # fmt: skip
