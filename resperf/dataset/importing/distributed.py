"""Published steps of distributed training: Pollux, Batch AI's Horovod benchmark, Gavel.

The files name networks only; parameters are those of the public definitions. Steps of one device
are rows like the others. The option `PLACEMENT` holds the devices of each node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from resperf.dataset.importing.mapping import Source
from resperf.dataset.importing.published import Imported, Published, published_platform, sample
from resperf.dataset.importing.rows import has_columns, read_files
from resperf.dataset.records import NetworkDescription
from resperf.quantities import STEP, Estimator
from resperf.settings import CONTAINS, MEASURED_BY, SESSION, Mode, Setting
from resperf.units import MS_PER_S

PLACEMENT = "placement"
"""Option of a setting: devices of each node, such as ``"4+2"``."""
_NETWORKS = {
    # Pollux. DeepSpeech2: two convolutions and five bidirectional GRUs of 800 on 161 frequencies,
    # the usual form; the files do not say which cell. NeuMF: MovieLens-1M, 32 factors.
    "bert": NetworkDescription("bert-base-384", "bert-base", "bert", None, 384, None, 108_893_186),
    "cifar10": NetworkDescription("resnet18-32", "resnet18", "resnet", 32, None, None, 11_173_962),
    "deepspeech2": NetworkDescription("deepspeech2", "deepspeech2", parameters=41_300_000),
    "imagenet": NetworkDescription("resnet50-224", "resnet50", "resnet", 224, None, None,
                                   25_557_032),
    "ncf": NetworkDescription("neumf", "neumf", parameters=1_602_657),
    "yolov3": NetworkDescription("yolov3", "yolov3", "yolo", parameters=61_949_149),
    # Gavel. Its Transformer and language model are of repositories that the files do not name.
    "ResNet-18": NetworkDescription("resnet18-32", "resnet18", "resnet", 32, None, None,
                                    11_173_962),
    "ResNet-50": NetworkDescription("resnet50-224", "resnet50", "resnet", 224, None, None,
                                    25_557_032),
    # Batch AI; the second version moves normalisations and leaves the numbers as they are.
    **{
        f"{name}{version}": NetworkDescription(
            f"{name}{version}-224", f"{name}{version}", "resnet", 224, None, None, parameters
        )
        for name, parameters in (
            ("resnet50", 25_557_032), ("resnet101", 44_549_160), ("resnet152", 60_192_808),
        )
        for version in ("", "_v2")
    },
}  # fmt: skip
_POLLUX_FILE = re.compile(r"(\w+)\.(placements|scalability)\.csv(\.gz)?")
_GAVEL_JOB = re.compile(r"(.+?)(?: \(batch size (\d+)\))?")
_PER_NODE = 4
"""GPUs of a virtual machine of Batch AI, and of a g4dn.12xlarge."""
_BATCH_AI_BATCH = 64


class _Row(NamedTuple):
    """A step; `shared` is what connects devices, empty for one alone."""

    network: str
    batch: int | None
    placement: tuple[int, ...]
    step_s: float
    device: str
    shared: str = ""


_Reader = Callable[[Mapping[str, str]], _Row | None]
_Columns = tuple[str, ...]


def _import(
    source: Source, framework: str, columns: tuple[_Columns, ...], read: _Reader,
    paths: Sequence[Path], output: Path, *, device: str | None = None, graphs: Path | None = None,
) -> Imported:  # fmt: skip
    """Import files of one of the sources as a dataset of training steps.

    Parameters
    ----------
    source, framework, columns, read
        What the format is.
    paths : sequence of Path
        CSV files, compressed or not.
    output : Path
    device : str, optional
        Replaces the cards that the files are of.
    graphs : Path, optional
        Folder of ONNX files, each with a network's name, such as ``resnet50-224.onnx``.

    Raises
    ------
    DatasetError, OutputError
        As in `import_neusight`.
    """
    files = read_files(paths)
    published = Published(source, device or "")

    def check(name: str, header: Sequence[str]) -> None:
        needed = next((names for names in columns if set(names) <= set(header)), columns[0])
        has_columns(*needed)(name, header)

    for file in files:
        for location, cells in file.cells(check):
            with published.reading(location):
                row = read({**cells, "file": file.name})
                if row is None:
                    published.left_out.add("one device, which other rows have", location)
                else:
                    _add(published, row, framework, source.name, device)
    return published.write(output, files, graphs=graphs)


def _add(published: Published, row: _Row, framework: str, source: str, device: str | None) -> None:
    described = _NETWORKS.get(row.network, NetworkDescription(row.network, row.network))
    devices = sum(row.placement)
    if not 0 < row.step_s < float("inf") or min(row.placement) < 1 or (row.batch or 1) < 1:
        raise ValueError(f"{row.step_s:g} s on {devices} devices at batch {row.batch}")
    options = {
        MEASURED_BY: source, SESSION: row.shared, PLACEMENT: "+".join(map(str, row.placement)),
        CONTAINS: "forward, backward, exchange and update, with the input",
    }  # fmt: skip
    setting = Setting(
        framework, "", "cuda", mode=Mode.TRAINING, batch=row.batch, options=options,
    )  # fmt: skip
    nodes = len(row.placement)
    platform = replace(
        published_platform(device or row.device),
        devices=devices,
        interconnect=f"{row.shared} on {nodes} host{'s' * (nodes > 1)}" if devices > 1 else "",
    )
    steps = sample(row.step_s * MS_PER_S, Estimator.THROUGHPUT_MEAN)
    published.add(published.network(described), setting, {STEP: steps}, platform=platform)


def _pollux(cells: Mapping[str, str]) -> _Row:
    """Read a row of Pollux; `sync_time` is what of the step the backward pass did not hide.

    Rows of ``placements`` say the devices of each node as digits; those of ``scalability`` only how
    many nodes there are: spread evenly.
    """
    match = _POLLUX_FILE.fullmatch(cells["file"])
    if match is None:
        raise ValueError(f"{cells['file']} is no file of Pollux, such as bert.placements.csv.gz")
    if match[2] == "placements":
        placement = tuple(map(int, cells["placement"]))
    else:
        nodes, devices = int(cells["num_nodes"]), int(cells["num_replicas"])
        placement = tuple(devices // nodes + (node < devices % nodes) for node in range(nodes))
    return _Row(
        match[1], int(cells["local_bsz"]), placement, float(cells["step_time"]), "t4",
        "NCCL over Ethernet" * (sum(placement) > 1),
    )  # fmt: skip


def _batchai(cells: Mapping[str, str]) -> _Row:
    """Read a row of Batch AI: images per second of all GPUs, four in a virtual machine."""
    devices = int(cells["gpus"])
    full, rest = divmod(devices, _PER_NODE)
    step_s = _BATCH_AI_BATCH * devices / float(cells["images_per_s"])
    library = "" if cells["library"] == "Single GPU" else cells["library"]
    placement = (_PER_NODE,) * full + (rest,) * bool(rest)
    return _Row(cells["network"], _BATCH_AI_BATCH, placement, step_s, cells["gpu"], library)


def _gavel(cells: Mapping[str, str]) -> _Row | None:
    """Read a row of Gavel: its steps per second are added up over the workers.

    One worker is in the file twice, with the same rate.
    """
    match = _GAVEL_JOB.fullmatch(cells["job"])
    assert match is not None  # any text is a job
    workers, together = int(cells["workers"]), cells["placement"] == "consolidated"
    if workers == 1 and not together:
        return None
    batch = None if match[2] is None else int(match[2])
    placement = (workers,) if together else (1,) * workers
    shared = cells["placement"] * (workers > 1)
    return _Row(
        match[1], batch, placement, workers / float(cells["steps_per_s"]), cells["gpu"], shared
    )


POLLUX, BATCHAI, GAVEL = "pollux", "batchai", "gavel"
"""Names of the formats."""
import_pollux = partial(
    _import,
    Source(POLLUX, "steps of PyTorch on 1 to 64 T4, four in a node",
           "Qiao et al. 2021; github.com/petuum/adaptdl"),
    "torch",
    (("placement", "local_bsz", "step_time"),
     ("num_nodes", "num_replicas", "local_bsz", "step_time")),
    _pollux,
)  # fmt: skip
import_batchai = partial(
    _import,
    Source(BATCHAI, "rates of TensorFlow with Horovod on 1 to 32 GPUs, four in a node",
           "Batch AI's Horovod benchmark, MIT"),
    "tensorflow",
    (("gpu", "network", "gpus", "library", "images_per_s"),),
    _batchai,
)  # fmt: skip
import_gavel = partial(
    _import,
    Source(GAVEL, "rates of PyTorch on 1 to 8 P100, together or each in a node of its own",
           "Narayanan et al. 2020; Gavel, MIT"),
    "torch",
    (("gpu", "placement", "job", "workers", "steps_per_s"),),
    _gavel,
)  # fmt: skip
