"""From a user's list of (network file, setting, time) to a dataset of networks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from resperf.dataset.importing.mapping import Source
from resperf.dataset.importing.published import Imported, Published, sample
from resperf.dataset.importing.rows import ForeignFile
from resperf.devices import canonical_device
from resperf.errors import DatasetError, ResperfError
from resperf.measurement import NetworkRef, Samples
from resperf.network import graph_digest, read_graph, weightless
from resperf.network.files import shipped_networks
from resperf.quantities import QUANTITIES, Estimator, Level, Quantity, quantity, quantity_name
from resperf.settings import Mode, Setting

LIST = "list"
"""Name of the format."""
_SOURCE = Source(LIST, "runs of networks from a user's list", citation="")
DEFAULT_QUANTITY = "latency_ms"


def _count(cell: str) -> int:
    if not cell.isdecimal() or int(cell) < 1:
        raise ValueError(f"{cell!r} is not an integer of at least 1")
    return int(cell)


def _boolean(cell: str) -> bool:
    booleans = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    if cell.casefold() not in booleans:
        raise ValueError(f"{cell!r} is neither yes nor no")
    return booleans[cell.casefold()]


def _shapes(cell: str) -> dict[str, tuple[int, ...]]:
    """Read ``x=1x3x224x224;mask=1x128``."""
    shapes = {}
    for part in cell.split(";"):
        name, equals, sizes = part.strip().rpartition("=")
        if not (name and equals and all(size.isdecimal() for size in sizes.split("x"))):
            raise ValueError(f"{part!r} is not a shape such as x=1x3x224x224")
        shapes[name] = tuple(map(int, sizes.split("x")))
    return shapes


SETTING_COLUMNS: Mapping[str, Callable[[str], object]] = {
    "framework": str,
    "framework_version": str,
    "provider": str,
    "threads": _count,
    "mode": Mode,
    "optimizer": str,
    "precision": str,
    "layout": str,
    "compiled": str,
    "cuda_graph": _boolean,
    "batch": _count,
    "shapes": _shapes,
}
"""Column -> parser of its cells, which gives a field of `Setting`; all columns are optional."""
COLUMNS = ("network", "time_ms", "value", "quantity", "estimator", "device", *SETTING_COLUMNS)


_Run = tuple[NetworkRef, Setting, str]


def import_list(paths: Sequence[Path], output: Path, *, device: str | None = None) -> Imported:
    """Read lists of measured networks and write them as one dataset.

    Each row names an ONNX file (relative to the list) and the time that one run of it took. The
    networks' graphs are stored without weights. Rows of the same network and setting become
    repeats, in the order of the lists.

    Parameters
    ----------
    paths : sequence of Path
        CSV files with the columns described in docs/importing.md.
    output : Path
    device : str, optional
        Device of the rows that name none.

    Raises
    ------
    DatasetError
        If a list cannot be read, lacks a column or has an unknown one, or no row is valid.
    OutputError
        If the output cannot be written.
    """
    published = Published(_SOURCE, device or "")
    graphs = _Graphs(published.graphs)
    files = [ForeignFile.read(path) for path in paths]
    taken: Counter[tuple[object, ...]] = Counter()
    runs: dict[tuple[*_Run, int], dict[str, Samples]] = {}
    for path, file in zip(paths, files, strict=True):
        for location, cells in file.cells(_check_header):
            try:
                run, name, value = _row(cells, path.parent, device, graphs)
            except (ResperfError, ValueError, OSError) as error:
                published.left_out.add(str(error), location)
                continue
            # Quantities of one run are a row; one that comes again is of a repeat.
            runs.setdefault((*run, taken[run, name]), {})[name] = value
            taken[run, name] += 1
    for (network, setting, on, _), samples in runs.items():
        published.add(network, setting, samples, device=on)
    return published.write(output, files)


class _Graphs:
    """Graphs without weights; each file is read once."""

    def __init__(self, by_digest: dict[str, bytes]) -> None:
        self.by_digest = by_digest
        self._digests: dict[Path, str] = {}
        self._checked: set[tuple[object, ...]] = set()

    def reference(self, path: Path, setting: Setting) -> NetworkRef:
        """Store a network's graph, and check that it can be read under a setting."""
        path = path.resolve()
        if path not in self._digests:
            content = weightless(path)
            self._digests[path] = graph_digest(content)
            self.by_digest[self._digests[path]] = content
        digest = self._digests[path]
        checked = (digest, setting.batch, *sorted(setting.shapes.items()))
        if checked not in self._checked:
            shapes = setting.shapes
            read_graph(self.by_digest[digest], path.stem, batch=setting.batch, shapes=shapes)
            self._checked.add(checked)
        return NetworkRef(path.stem, digest)


def _check_header(name: str, header: Sequence[str]) -> None:
    hint = f"its columns may be {', '.join(COLUMNS)}"
    twice = sorted({column for column in header if header.count(column) > 1})
    unknown = [column for column in header if column not in COLUMNS]
    if twice or unknown:
        which = f"two columns {twice[0]!r}" if twice else f"an unknown column {unknown[0]!r}"
        raise DatasetError(f"{name} has {which}; {hint}")
    if "network" not in header:
        raise DatasetError(f"{name} has no column 'network' with the paths of ONNX files; {hint}")
    if ("time_ms" in header) == ("value" in header):
        raise DatasetError(f"{name} needs either a column 'time_ms' or a column 'value'; {hint}")


def _row(
    cells: Mapping[str, str], folder: Path, device: str | None, graphs: _Graphs
) -> tuple[_Run, str, Samples]:
    """Read one row: network, setting and device; quantity; its value.

    Raises
    ------
    ValueError, ResperfError, OSError
        If it is invalid.
    """
    if "network" not in cells:
        raise ValueError("no network is named")
    setting = _setting(cells)
    measured = _quantity(cells)
    device = cells.get("device", device)
    if not device:
        raise ValueError("no device is named; fill in the column 'device' or give --device")
    value = _value(cells, measured)
    shipped = shipped_networks()
    estimator = Estimator(cells.get("estimator", Estimator.UNKNOWN))
    path = shipped.get(cells["network"], folder / cells["network"])
    run = (graphs.reference(path, setting), setting, canonical_device(device))
    return run, measured.name, sample(value, estimator)


def _setting(cells: Mapping[str, str]) -> Setting:
    values: dict[str, object] = {"framework": ""}
    for name, read in SETTING_COLUMNS.items():
        if name in cells:
            try:
                values[name] = read(cells[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
    return Setting(**values)  # type: ignore[arg-type]


def _quantity(cells: Mapping[str, str]) -> Quantity:
    row = quantity(quantity_name(cells.get("quantity", DEFAULT_QUANTITY)))
    if Level.NETWORK not in row.levels:
        names = [name for name, entry in QUANTITIES.items() if Level.NETWORK in entry.levels]
        raise ValueError(f"networks have no {row.name}; known: {', '.join(names)}")
    return row


def _value(cells: Mapping[str, str], measured: Quantity) -> float:
    column = "time_ms" if "time_ms" in cells else "value"
    if column == "time_ms" and measured.unit != "ms":
        raise ValueError(
            f"{measured.name} is in {measured.unit}; call the column 'value' instead of 'time_ms'"
        )
    cell = cells.get(column)
    if cell is None:
        raise ValueError(f"no {measured.name} is given")
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"{cell!r} is not a number") from None
    if not 0 < value < math.inf:
        raise ValueError(f"{measured.name} = {cell} is not above 0")
    return value
