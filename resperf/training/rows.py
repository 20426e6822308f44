"""From a dataset to training data: one row per layer, without noisy measurements if possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from resperf.copies import StoredCopies
from resperf.dataset import (
    DatasetInfo,
    KindTable,
    ListedOperator,
    NetworkDescription,
    read_networks,
)
from resperf.errors import DatasetError, ResperfError
from resperf.features import Array, Columns, take
from resperf.layers import Layer, kind_of
from resperf.measurement import DEFECTS, Measurement, NetworkRef, Status, written_kind
from resperf.network import Network, read_graph
from resperf.platform import Platform
from resperf.predictors import Examples
from resperf.predictors.operator_classes import RunNetwork, RunOperator, RunTensor, plain_name
from resperf.quantities import QUANTITIES, layer_quantity
from resperf.settings import OPTIMIZER, Setting
from resperf.splits import architecture_of

_Value = TypeVar("_Value")

SHORTEST_MS = 1e-5
"""Times below 10 ns are noise around zero."""
OTHER_SETTING = "another setting"
"""Why rows are left out that were measured otherwise, or elsewhere, than most."""


@dataclass(frozen=True)
class LayerRows:
    """One row per layer, or per training step of a layer, ordered by key.

    If they are of several settings and platforms, there is one row per layer and each of these.

    Attributes
    ----------
    kind : str
    columns : mapping of str to array (rows,)
        The layers' fields, and the optimizer of training steps.
    keys : tuple of str
    times_ms : mapping of str to array (rows,)
        Phase to the median over the repeats used.
    measured : array (rows,)
        Number of repeats in that median.
    left_out : mapping of str to int
        Reason to number of rows of the dataset that are not used; also of rows selected from these.
    copies : array of int (rows,)
        Copies of the layer per run of its own quantity, the median over repeats; 0 if unknown.
    settings, platforms : tuple
        How (optimizers aside) and where rows were measured, one for all rows or one per row; empty
        if not known.

    The phases are those of the dataset; `layer_quantity` is the one with the layers' own times.
    """

    kind: str
    columns: Columns
    keys: tuple[str, ...]
    times_ms: Mapping[str, Array]
    measured: npt.NDArray[np.int64]
    left_out: Mapping[str, int]
    copies: npt.NDArray[np.int64] | None = None
    settings: tuple[Setting, ...] = ()
    platforms: tuple[Platform, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def name(self) -> str:
        """The kind, as `resperf.measurement.written_kind` returns it."""
        return written_kind(self.kind, OPTIMIZER in self.columns)

    @property
    def layer_quantity(self) -> str:
        """Phase of the layers' own times: execution, or the whole call if there is no execution."""
        return layer_quantity(self.times_ms)

    def select(self, chosen: npt.NDArray[Any]) -> LayerRows:
        """Return some rows, chosen by a mask or by positions."""
        return replace(
            self,
            columns=take(self.columns, chosen),
            keys=_chosen(self.keys, chosen),
            times_ms=take(self.times_ms, chosen),
            measured=self.measured[chosen],
            copies=None if self.copies is None else self.copies[chosen],
            settings=_chosen(self.settings, chosen) if len(self.settings) > 1 else self.settings,
            platforms=_chosen(self.platforms, chosen)
            if len(self.platforms) > 1
            else self.platforms,
        )

    def timed(self, phase: str) -> LayerRows:
        """Return the rows whose phase takes measurable time."""
        return self.select(np.flatnonzero(self.times_ms[phase] >= SHORTEST_MS))

    def examples(self, quantity: str) -> Examples:
        """Return one quantity as training data."""
        return Examples(
            self.columns, quantity, self.times_ms[quantity], self.settings, self.platforms
        )

    def layers(self) -> list[Layer]:
        """Return the rows as layers."""
        cls = kind_of(self.kind)
        return [
            cls.from_fields({name: self.columns[name][row].item() for name in cls.specs})
            for row in range(len(self))
        ]


def _chosen(values: tuple[_Value, ...], chosen: npt.NDArray[Any]) -> tuple[_Value, ...]:
    return tuple(np.fromiter(values, dtype=object, count=len(values))[chosen])


def layer_rows(
    table: KindTable,
    exclude_keys: Set[str] = frozenset(),
    info: DatasetInfo | None = None,
    *,
    many: bool = False,
) -> LayerRows:
    """Select training data, measured as the table says, or else `info`.

    Left out are rows that are not ok, rows of excluded keys, noisy rows (drift, busy, taken while
    the machine was off its usual speed, ...), and layers whose execution (or whole call) is below
    `SHORTEST_MS`. Rows of one setting on one platform are selected, those that most rows have;
    optimizers do not count, since they are a feature. If most layers have only noisy rows, these
    are used: a machine that is always busy can still be learnt. Rows with a flag of `DEFECTS` are
    never used.

    With `many`, rows of all settings and platforms are selected. Repeats are those of a layer under
    one setting on one platform.
    """
    keys = table.key.astype(str)
    own = layer_quantity(table.times_ms)
    ok = np.asarray(table.ok) & np.isfinite(table.times_ms[own])
    excluded = ok & np.isin(keys, list(exclude_keys))
    defective = ok & ~excluded & table.defective
    usable = ok & ~excluded & ~defective
    plain = [setting.with_optimizer("") for setting in table.settings]
    how = table.setting
    if plain:
        how = np.array([plain.index(setting) for setting in plain])[table.setting]
    run = how * max(1, len(table.platforms)) + table.machine
    same = np.ones(len(table), dtype=bool)
    if not many:
        same = run == np.argmax(np.bincount(run[usable], minlength=1))
    candidate = usable & same
    flagged = candidate & table.noisy
    # Layers in the order of their keys, each once per setting and platform.
    layer = np.unique(keys, return_inverse=True)[1] * (1 + run.max(initial=0)) + run
    has_clean_row = np.isin(layer, np.unique(layer[candidate & ~flagged]))
    replaced = flagged & has_clean_row
    dropped = flagged & ~has_clean_row
    for run_id in np.unique(run[dropped]):
        clean = (run == run_id) & has_clean_row
        if len(np.unique(layer[clean])) < len(np.unique(layer[dropped & (run == run_id)])):
            dropped &= run != run_id
    used = np.flatnonzero(candidate & ~replaced & ~dropped)
    unique, first, inverse = np.unique(layer[used], return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    bounds = np.searchsorted(inverse[order], np.arange(1, len(unique)))
    groups = np.split(used[order], bounds) if len(unique) else []
    times_ms = {
        phase: np.array([np.median(table.times_ms[phase][group]) for group in groups], dtype=float)
        for phase in table.quantities
    }
    long_enough = times_ms[own] >= SHORTEST_MS
    counts = {
        "not ok": int(np.sum(~ok)),
        "excluded": int(excluded.sum()),
        "defective": int(defective.sum()),
        OTHER_SETTING: int(np.sum(usable & ~same)),
        "flagged, measured again": int(replaced.sum()),
        "flagged": int(dropped.sum()),
        "repeats": len(used) - len(unique),
        "too short": int(np.sum(~long_enough)),
    }
    rows = LayerRows(
        table.kind,
        take(table.columns, used[first]),
        tuple(keys[used[first]].tolist()),
        times_ms,
        np.array([len(group) for group in groups], dtype=np.int64),
        {},
        _copies(table.copies.get(own), groups),
        () if info is None else _of_rows(plain, how[used[first]], info.setting, many),
        ()
        if info is None
        else _of_rows(table.platforms, table.machine[used[first]], info.platform, many),
    ).select(np.flatnonzero(long_enough))
    left_out = {reason: count for reason, count in counts.items() if count}
    return replace(rows, left_out=left_out)


def _of_rows(
    values: Sequence[_Value], places: npt.NDArray[np.int64], otherwise: _Value, many: bool
) -> tuple[_Value, ...]:
    """Return the setting or platform of each row with `many`, else the one of all rows."""
    if not values or not len(places):
        return (otherwise,)
    return tuple(values[index] for index in (places if many else places[:1]))


def network_quantities(dataset: Path) -> tuple[str, ...]:
    """Return the quantities that a dataset's rows of whole networks have, or that follow from them.

    Raises
    ------
    DatasetError
        If it cannot be read.
    """
    rows = read_networks(dataset).measurements
    return tuple(
        name for name in QUANTITIES if any(not math.isnan(row.value(name)) for row in rows)
    )


def network_examples(
    dataset: Path, quantity: str, *, lists: bool = False, left_out: list[str] | None = None
) -> Examples:
    """Return one quantity of a dataset's whole networks, one row per graph, setting and platform.

    It is the median over repeats. Rows that are not ok or have a flag of `DEFECTS` are left out,
    noisy ones if there is a repeat that is not, and networks whose graph is not known.

    Parameters
    ----------
    dataset : Path
    quantity : str
    lists : bool
        Whether networks without a graph may be lists of their operators (`RunNetwork`).
    left_out : list of str, optional
        Gets the networks that cannot be read, each with the reason, instead of an error; and how
        many rows are not used because of their flags or status.

    Raises
    ------
    DatasetError, NetworkError, ShapeError
        If the file, or a graph in it, cannot be read, or it has neither graph nor, if asked for,
        list.
    """
    stored = read_networks(dataset)
    listed = _Listed(stored.descriptions, lists)
    if stored.measurements and not (stored.graphs or (lists and listed.contents)):
        raise DatasetError(
            f"{dataset} has no graphs of its networks; import its files again with --graphs FOLDER"
        )
    groups: dict[tuple[Any, ...], list[Measurement]] = {}
    first: dict[tuple[Any, ...], NetworkRef] = {}
    unusable: dict[str, list[str]] = {}
    for row in stored.measurements:
        if not isinstance(row.subject, NetworkRef):
            continue
        defects = [flag for flag in row.flags if flag in DEFECTS]
        defects += [row.status.value] if row.status is not Status.OK else []
        if defects:
            unusable.setdefault(defects[0], []).append(row.subject.name)
            continue
        if math.isnan(row.value(quantity)):
            unusable.setdefault(f"without {quantity}", []).append(row.subject.name)
            continue
        if row.subject.digest or listed.has_operators(row.subject.description):
            # Files of equal graphs are repeats, whatever their names.
            where = row.setting, row.platform
            subject = first.setdefault((row.subject.digest or row.subject, *where), row.subject)
            groups.setdefault((subject, *where), []).append(row)
        else:
            unusable.setdefault("without a graph", []).append(row.subject.name)
    if left_out is not None:
        left_out += [
            f"left out: {len(names)} {why}, first {names[0]}" for why, names in unusable.items()
        ]
    networks: list[Any] = []
    read: dict[tuple[object, ...], Network] = {}
    values, families = [], []
    for (subject, setting, platform), rows in list(groups.items()):
        batch, shapes = setting.batch, setting.shapes or None
        try:
            if subject.digest:
                # A network's rows on several cards share what is read.
                same = (subject, batch, *sorted((shapes or {}).items()))
                if same not in read:
                    graph = stored.graphs[subject.digest]
                    read[same] = read_graph(graph, subject.name, batch=batch, shapes=shapes)
                networks.append(read[same])
            else:
                networks.append(listed.network(subject.description, setting))
        except ResperfError as error:
            if left_out is None:
                raise
            left_out.append(f"{subject.name}: {error}")
            del groups[subject, setting, platform]
            continue
        families.append(listed.family(subject.description) or architecture_of(subject.name))
        clean = [row for row in rows if not row.noisy] or rows
        values.append(median(row.value(quantity) for row in clean))
    return Examples(
        networks,
        quantity,
        np.array(values, dtype=float),
        [setting for _, setting, _ in groups],
        [platform for _, _, platform in groups],
        groups=families,
    )


@dataclass
class _Listed:
    """Lists of operators in a dataset's descriptions, read when they are needed.

    Attributes
    ----------
    contents : mapping of str to bytes
        Digest of a description -> its content.
    lists : bool
        Whether operators are used, beside families.
    """

    contents: Mapping[str, bytes]
    lists: bool
    read: dict[str, tuple[NetworkDescription, RunNetwork]] = field(default_factory=dict)

    def _read(self, digest: str) -> tuple[NetworkDescription, RunNetwork]:
        if digest not in self.read:
            description = NetworkDescription.from_bytes(self.contents[digest])
            self.read[digest] = description, listed_network(description)
        return self.read[digest]

    def has_operators(self, digest: str) -> bool:
        return self.lists and digest in self.contents and bool(self._read(digest)[0].operators)

    def family(self, digest: str) -> str:
        return self._read(digest)[0].family if digest in self.contents else ""

    def network(self, digest: str, setting: Setting) -> RunNetwork:
        """Return a network at the batch size and in the precision of a setting."""
        description, network = self._read(digest)
        scale = (setting.batch or 1) / (description.batch or 1)
        network = replace(network, scale=scale, batch=setting.batch)
        network = network if setting.precision == "amp" else network.in_single_precision()
        return network.with_attention_of(setting)


def listed_network(description: NetworkDescription) -> RunNetwork:
    """Return the network of a published list of PyTorch's operators, at the list's batch size."""
    operators = tuple(
        _run_operator(operator)
        for operator in description.operators
        if operator.op.startswith("aten.") or operator.op == "sdpa"
    )
    return RunNetwork(
        description.name, operators, parameters=float(description.parameters or 0),
        architecture=description.architecture,
    )  # fmt: skip


def _run_operator(listed: ListedOperator) -> RunOperator:
    """Read an operator; a convolution's attributes begin with strides and end with groups."""
    groups = stride = 1
    if listed.op == "aten.convolution":
        groups, stride = int(listed.attributes[-1]), int(max(listed.attributes[0]))
    inputs, outputs = (
        tuple(RunTensor(tensor.shape, tensor.dtype, bool(tensor.is_weight)) for tensor in tensors)
        for tensors in (listed.inputs, listed.outputs)
    )
    return RunOperator(plain_name(listed.op), inputs, outputs, groups, stride, listed.count)


def _copies(
    copies: Array | None, groups: Sequence[npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64] | None:
    if copies is None:
        return None
    return np.array([int(np.median(copies[group])) for group in groups], dtype=np.int64)


def stored_copies(kinds: Mapping[str, LayerRows]) -> dict[str, Any]:
    """Return for a bundle's manifest how many copies of a layer runs of each kind held.

    Empty if no row says it; prediction then assumes what campaigns usually do.
    """
    copies = {
        kind: StoredCopies.of(
            rows.times_ms[rows.layer_quantity].tolist(),
            [layer.weight_bytes for layer in rows.layers()],
            rows.copies.tolist(),
        )
        for kind, rows in kinds.items()
        if rows.copies is not None and rows.copies.any()
    }
    return {kind: stored.to_json() for kind, stored in copies.items() if stored is not None}
