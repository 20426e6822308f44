"""GPUMemNet's measurements: the most memory that training runs of timm's networks held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from resperf.dataset.importing.mapping import Source
from resperf.dataset.importing.published import Imported, Published, common_device, sample
from resperf.dataset.importing.rows import has_columns, read_files
from resperf.dataset.records import NetworkDescription
from resperf.measurement import Status
from resperf.quantities import PROCESS_MEMORY, Estimator
from resperf.settings import Mode

GPUMEMNET = "gpumemnet"
"""Name of the format."""
_SOURCE = Source(
    GPUMEMNET,
    "training runs of timm's networks in PyTorch, float32: the most memory that nvidia-smi showed; "
    "the optimizer is not said: SGD with momentum fits",
    "GPUMemNet; github.com/itu-rad/GPUMemNet, without a licence",
)
_DEVICE = "a100-40gb"
_OK = "ok"
_MIB = 1 << 20


def import_gpumemnet(
    paths: Sequence[Path], output: Path, *, device: str | None = None, graphs: Path | None = None
) -> Imported:
    """Import tables of networks, batch sizes and memory as a dataset.

    Parameters
    ----------
    paths : sequence of Path
        CSV files with the columns ``model``, ``batch``, ``max_gpu_memory_mib`` and ``status``. Rows
        of another status than ``ok`` failed, or were limited by the card's memory.
    output, device, graphs
        As in `import_neusight`; a graph is named like ``resnet50.onnx``.

    Raises
    ------
    DatasetError, OutputError
        As in `import_neusight`.
    """
    files = read_files(paths)
    facts = common_device({file.name: _DEVICE for file in files}, device)
    published = Published(_SOURCE, facts.device)
    setting = published.setting(
        "", "the whole process", mode=Mode.TRAINING, optimizer="momentum", precision="fp32"
    )
    header = has_columns("model", "batch", "max_gpu_memory_mib", "status")
    for location, cells in (cell for file in files for cell in file.cells(header)):
        with published.reading(location):
            name, batch = cells["model"], int(cells["batch"])
            memory_bytes = float(cells["max_gpu_memory_mib"]) * _MIB
            if batch < 1 or not memory_bytes > 0:
                raise ValueError("a figure is not above 0")
            network = published.network(NetworkDescription(name, name))
            values = {PROCESS_MEMORY: sample(memory_bytes, Estimator.MAXIMUM)}
            own = replace(setting, batch=batch)
            if (status := cells.get("status", "")) == _OK:
                published.add(network, own, values)
            else:
                published.mark(f"status {status}", "is not used", location, name)
                published.add(network, own, {}, status=Status.CRASHED, detail=status)
    return published.write(output, files, graphs=graphs)
