"""NeuSight's measurements: single operators, and whole networks with their lists of operators."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from resperf.dataset.importing.mapping import SourceMapping, shipped_mapping
from resperf.dataset.importing.published import Imported, Published, common_device, sample
from resperf.dataset.importing.rows import ForeignFile, ForeignRow, has_columns, read_files
from resperf.dataset.records import ListedOperator, ListedTensor, NetworkDescription
from resperf.devices import DeviceFacts
from resperf.errors import DatasetError, first_line
from resperf.measurement import INCONSISTENT, THROTTLED
from resperf.quantities import EXECUTION, Estimator
from resperf.records import parse_json
from resperf.settings import Mode, Setting

NEUSIGHT = "neusight"
"""Name of the format."""
# NeuSight publishes the mean of the five fastest of so many runs.
_SAMPLES = 25
_OPERATORS = re.compile(r"(train|test)_\w+\.csv(\.gz)?")
_NETWORK = re.compile(
    r"(?P<name>.+)-(?P<mode>inf|train)-(?P<sequence>\d+)-(?P<batch>\d+)\.csv(\.gz)?"
)
_DEVICE_COLUMN, _VERSION_COLUMN = "Device", "Torch Version"
_UNNAMED_VERSION, _NETWORKS_VERSION = "2.4.1", "2.1.0"
"""Versions of PyTorch: of files of operators without that column (AMD's), and of networks."""

LARGE_FLOPS = 1e10
"""Products above this are limited by the device's peak."""
FEWEST_LARGE = 10
THROTTLED_SHARE = 0.25
"""Share of its peak that a steady device exceeds in most large products of a session."""
THROTTLED_LINEAR_SHARE = 0.5
"""The same for all linear layers of a network together."""
STEADY_RATIO = (0.8, 1.25)
"""Total of a network over the sum of its own operators, if both were measured in one state."""

_THROTTLED = (
    f"large products reach less than {THROTTLED_SHARE:.0%} of the device's peak (single "
    f"operators: the median; a network's linear layers: less than {THROTTLED_LINEAR_SHARE:.0%})"
)
_INCONSISTENT = (
    f"the total is not within {STEADY_RATIO[0]:g} to {STEADY_RATIO[1]:g} of the sum of the "
    "network's own operators: the device's speed changed, or the total contains something else"
)
_NEEDED = (
    "op", "target", "meta", "input_shapes", "input_contiguous", "output_shape", "dtype",
    "fw_latency", "bw_latency", "acc_latency", "Name",
)  # fmt: skip


def import_neusight(
    paths: Sequence[Path], output: Path, *, device: str | None = None, graphs: Path | None = None
) -> Imported:
    """Import NeuSight's files of one device as a dataset.

    Parameters
    ----------
    paths : sequence of Path
        Files ``train_OP.csv`` and ``test_OP.csv`` of single operators, which are two sessions;
        files ``NAME-MODE-SEQUENCE-BATCH.csv`` of whole networks, beside each of which there is a
        ``.json`` of the same name, in a folder with the name of the device. Compressed or not.
    output : Path
    device : str, optional
        Name of the device, if the files' own is not to be used.
    graphs : Path, optional
        Folder of ONNX files, each with the name of a network (``bert_large-512.onnx``).

    Raises
    ------
    DatasetError
        If a file is of another format, of an unknown device, or of another device than the others.
    OutputError
        If the output cannot be written.
    """
    given = [path for path in paths if not re.search(r"\.json(\.gz)?$", path.name)]
    files = read_files(given)
    networks = {file.name: path for file, path in zip(files, given, strict=True)
                if _NETWORK.fullmatch(file.name)}  # fmt: skip
    mapping = shipped_mapping(NEUSIGHT)
    names = {}
    for path, file in zip(given, files, strict=True):
        if file.name in networks:
            names[str(path)] = path.resolve().parent.name
        elif _OPERATORS.fullmatch(file.name):
            cells = _first_cells(file)
            has_columns(_DEVICE_COLUMN)(file.name, list(cells))
            names[str(path)] = cells[_DEVICE_COLUMN]
        else:
            raise DatasetError(
                f"{path} is no file of neusight: names are train_OP.csv, test_OP.csv, or "
                "NAME-MODE-SEQUENCE-BATCH.csv such as bert_large-inf-512-8.csv"
            )
    facts = common_device(names, device)
    published = Published(mapping, facts.device)
    read = []
    for path, file in zip(given, files, strict=True):
        read.append(file)
        if file.name in networks:
            totals = _beside(path)
            read.append(totals)
            _add_network(published, file, totals, facts)
        else:
            _add_operators(published, file, mapping, facts)
    return published.write(output, read, graphs=graphs)


def _first_cells(file: ForeignFile) -> dict[str, str]:
    """Return the cells of a file's first row; none if it has no rows."""
    return next((cells for _, cells in file.cells()), {})


def _setting(published: Published, session: str, version: str, **values: Any) -> Setting:
    version = version.removeprefix("p")
    return published.setting(
        session, "kernels and dispatch", framework_version=version, precision="fp32", **values
    )


def _add_operators(
    published: Published, file: ForeignFile, mapping: SourceMapping, facts: DeviceFacts
) -> None:
    """Add the rows of single operators; those of a throttled session are flagged."""
    rows = list(file.rows(mapping, published.left_out))
    version = _first_cells(file).get(_VERSION_COLUMN, _UNNAMED_VERSION)
    setting = _setting(published, file.name.partition("_")[0], version)
    share = _share_of_peak(rows, facts)
    throttled = share < THROTTLED_SHARE
    detail = f"large products at {share:.0%} of the peak" if throttled else ""
    for row in rows:
        best = sample(row.median_ms, Estimator.MEAN_OF_BEST_FIVE, _SAMPLES)
        flags = (THROTTLED,) if throttled else ()
        published.add(row.layer, setting, {EXECUTION: best}, flags=flags, detail=detail)
        if throttled:
            published.mark(f"flagged {THROTTLED}", _THROTTLED, row.location, detail)


def _share_of_peak(rows: Sequence[ForeignRow], facts: DeviceFacts) -> float:
    """Return the median share of the peak that large products reach; infinite if there are few."""
    shares = [
        2e3 * row.layer.macs / row.median_ms / facts.peak_of("float32")
        for row in rows
        if row.layer.kind in ("matmul", "dense") and 2 * row.layer.macs >= LARGE_FLOPS
    ]
    return median(shares) if len(shares) >= FEWEST_LARGE else math.inf


def _beside(path: Path) -> ForeignFile:
    """Read the file of totals that is beside a network's list of operators."""
    stem = re.sub(r"\.csv(\.gz)?$", "", path.name)
    for name in (f"{stem}.json.gz", f"{stem}.json"):
        if path.with_name(name).exists():
            return ForeignFile.read(path.with_name(name))
    raise DatasetError(f"{path} needs {stem}.json with the network's totals beside it")


def _totals(file: ForeignFile) -> tuple[int, float, float]:
    """Return how often a network repeats its block, and its times forward and backward in ms."""
    try:
        values = parse_json(file.text)
        forward_ms, backward_ms = float(values["fw_latency"]), float(values["bwall_latency"])
        layers = int(values["num_layer"])
    except (ValueError, TypeError, KeyError) as error:
        raise DatasetError(
            f"{file.name} needs num_layer, fw_latency and bwall_latency ({first_line(error)})"
        ) from error
    if layers < 1 or not 0 < forward_ms < math.inf or not backward_ms >= 0:
        raise DatasetError(f"{file.name}: num_layer and times must be above 0")
    return layers, forward_ms, backward_ms


def _add_network(
    published: Published, file: ForeignFile, totals: ForeignFile, facts: DeviceFacts
) -> None:
    """Add the row of a network: its totals, and the list of its operators with their times."""
    words = _NETWORK.fullmatch(file.name)
    assert words is not None
    layers, forward_ms, backward_ms = _totals(totals)
    batch, sequence = int(words["batch"]), int(words["sequence"])
    training = words["mode"] == "train"
    operators = tuple(_operators(file, layers))
    description = NetworkDescription(
        name=f"{words['name']}-{sequence}",
        architecture=words["name"],
        family=re.split(r"[_\d]", words["name"])[0],
        sequence=sequence,
        batch=batch,
        operators=operators,
    )
    measured = {"forward_ms": forward_ms}
    if training:
        measured["backward_ms"] = backward_ms
    flags, details = [], []
    share = _linear_share(operators, facts)
    if share < THROTTLED_LINEAR_SHARE:
        flags.append(THROTTLED)
        details.append(f"linear layers at {share:.0%} of the peak")
        published.mark(f"flagged {THROTTLED}", _THROTTLED, file.name, details[-1])
    ratios = {
        name: value / (_sum_ms(operators, name) or math.nan) for name, value in measured.items()
    }
    wrong = [f"{name} is {ratio:.2f} of the operators" for name, ratio in ratios.items()
             if not STEADY_RATIO[0] <= ratio <= STEADY_RATIO[1]]  # fmt: skip
    if wrong:
        flags.append(INCONSISTENT)
        details += wrong
        published.mark(f"flagged {INCONSISTENT}", _INCONSISTENT, file.name, "; ".join(wrong))
    if not training:
        measured = {EXECUTION: forward_ms}
    published.add(
        published.network(description),
        _setting(
            published,
            "networks",
            _NETWORKS_VERSION,
            batch=batch,
            mode=Mode.TRAINING if training else Mode.INFERENCE,
        ),
        {name: sample(value, Estimator.UNKNOWN) for name, value in measured.items()},
        flags=flags,
        detail="; ".join(details),
    )


def _operators(file: ForeignFile, layers: int) -> Iterator[ListedOperator]:
    """Read a list of operators. It holds one of the equal blocks, which is counted `layers` times.

    Raises
    ------
    DatasetError
        If a row cannot be read, or there is none.
    """
    count = 0
    for location, cells in file.cells(has_columns(*_NEEDED)):
        try:
            yield _operator(cells, layers)
        except (ValueError, TypeError, LookupError, SyntaxError) as error:
            raise DatasetError(f"{location} is no operator of a network ({error})") from error
        count += 1
    if not count:
        raise DatasetError(f"{file.name} lists no operators")


def _operator(cells: Mapping[str, str], layers: int) -> ListedOperator:
    in_block = re.search(r"\w\.0['.]", cells.get("meta", "")) is not None
    shape = ast.literal_eval(cells["output_shape"])
    return ListedOperator(
        op=_operator_name(cells),
        inputs=tuple(ListedTensor(tuple(sizes)) for sizes in parse_json(cells["input_shapes"])),
        outputs=(ListedTensor(tuple(shape), cells.get("dtype", "").removeprefix("torch.")),),
        attributes={
            "name": cells["Name"],
            "contiguous": [flag.strip() == "True"
                           for flag in cells["input_contiguous"].strip("[]").split(",") if flag],
        },
        count=layers if in_block else 1,
        times_ms={
            "forward_ms": float(cells["fw_latency"]),
            "backward_ms": float(cells["bw_latency"]),
            "accumulate_ms": float(cells["acc_latency"]),
        },
    )  # fmt: skip


def _operator_name(cells: Mapping[str, str]) -> str:
    """Name an operator: the class of a module, or a function without its address."""
    if cells["op"] == "call_module":
        return str(re.findall(r"<class '(?:[\w.]+\.)?(\w+)'>", cells["meta"])[-1])
    if cells["op"] != "call_function":
        return cells["target"] if cells["op"] == "call_method" else cells["op"]
    match = re.match(r"<(?:built-in )?(?:method|function|class) '?([\w.]+)", cells["target"])
    return match[1] if match else cells["target"]


def _sum_ms(operators: Sequence[ListedOperator], name: str) -> float:
    """Add up a network's operators without the launch that each of their times contains."""
    times_ms = [(operator.times_ms[name], operator.count) for operator in operators]
    launch_ms = min((time_ms for time_ms, _ in times_ms if time_ms > 0), default=math.nan)
    return sum(max(time_ms - launch_ms, 0.0) * count for time_ms, count in times_ms)


def _linear_share(operators: Sequence[ListedOperator], facts: DeviceFacts) -> float:
    """Return the share of the peak at which the linear layers run; infinite if they are small."""
    flops = time_ms = 0.0
    for operator in operators:
        if operator.op in ("Linear", "addmm"):
            depth = operator.inputs[0 if operator.op == "Linear" else 1].shape[-1]
            flops += 2.0 * operator.count * depth * math.prod(operator.outputs[0].shape)
            time_ms += operator.count * operator.times_ms["forward_ms"]
    large = flops >= LARGE_FLOPS and time_ms > 0
    return flops / (time_ms / 1e3) / facts.peak_of("float32") if large else math.inf
