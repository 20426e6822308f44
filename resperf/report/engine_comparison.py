"""One network's prediction beside a TensorRT engine of it, layer by layer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from resperf.errors import DatasetError, printable
from resperf.network import Network
from resperf.prediction import LayerPrediction, Prediction
from resperf.prediction.result import EXECUTING
from resperf.quantities import PHASES, quantity
from resperf.report.engine_nodes import nodes_of_layers
from resperf.report.network import SHOWN_LAYERS, remarks_text, slowest_first
from resperf.report.tables import counted, ms_cell, percent_cell, table
from resperf.settings import PLAIN_PRECISIONS
from resperf.timing import rank_correlation
from resperf.units import format_ms, json_values

if TYPE_CHECKING:
    from resperf.dataset.importing import EngineLayer
    from resperf.dataset.importing.engine_rows import EngineRun

_OF_SETTING = ("framework", "framework_version", "precision")
_SHOWN_NAME = 72
"""Characters of a fused layer's name."""
SLOWEST, SEARCHED = 5, 7
"""How many of the slowest measured layers are looked up among how many of the slowest predicted."""


@dataclass(frozen=True)
class ComparisonRow:
    """A network, phase or layer with predicted and measured time.

    Attributes
    ----------
    name : str
    batch : int or None
    predicted_ms, measured_ms : float
        NaN if the time is missing.
    remark : str
        Shown at the end of the row.
    """

    name: str
    batch: int | None
    predicted_ms: float
    measured_ms: float
    remark: str = ""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured, a fraction; NaN if one is missing."""
        if not self.measured_ms > 0:
            return math.nan
        return (self.predicted_ms - self.measured_ms) / self.measured_ms

    @property
    def slower_ms(self) -> float:
        """The longer of both times; 0 if none is known."""
        return max(ms for ms in (self.predicted_ms, self.measured_ms, 0.0) if ms >= 0)


@dataclass(frozen=True)
class EngineComparison:
    """A prediction beside an engine.

    Attributes
    ----------
    prediction : Prediction
    run : EngineRun
    matched_by : str
        How the engine's layers were matched with the network's nodes.
    layers : tuple of ComparisonRow
        Layers that compute the same nodes, in the engine's order. A row may be several layers on
        either side: one fused layer of the engine is often several predicted ones.
    predicted_only : tuple of LayerPrediction
        Predicted layers whose nodes no layer of the engine names.
    engine_only : tuple of EngineLayer
        Layers of the engine that no predicted layer shares a node with.
    """

    prediction: Prediction
    run: EngineRun
    matched_by: str
    layers: tuple[ComparisonRow, ...]
    predicted_only: tuple[LayerPrediction, ...]
    engine_only: tuple[EngineLayer, ...]

    @property
    def totals(self) -> list[ComparisonRow]:
        """The whole network, its phases, and the sum of layers."""
        mine, theirs = self.prediction, self.run.phases
        lacking = [quantity(name).stem for name in PHASES if name not in theirs]
        remark = f"{', '.join(lacking)} not measured" if lacking else ""
        rows = [ComparisonRow("total", None, mine.total_ms, self.run.latency_ms, remark)]
        rows += [
            ComparisonRow(
                f"  {quantity(name).stem}", None, getattr(mine.phases, name),
                theirs.get(name, math.nan),
            )
            for name in PHASES
        ]  # fmt: skip
        remark = "profiled layers do not overlap, and each carries its launch"
        times_ms = [layer.execution_ms for layer in mine.layers if layer.phase == EXECUTING]
        layers_ms = sum(times_ms) if mine.layers else math.nan
        layers = ComparisonRow("    sum of layers", None, layers_ms, self.run.layers_ms, remark)
        return [*rows, layers]

    @property
    def differences(self) -> list[str]:
        """What is not the same on both sides, one phrase each."""
        mine, setting, device = self.prediction.subject, self.run.setting, self.run.platform.device
        phrases = []
        if mine.device != device:
            phrases.append(f"predicted for {mine.device}, the engine ran on {device}")
        if mine.framework != setting.framework:
            phrases.append(f"predicted for {mine.framework}, the engine is of {setting.framework}")
        if setting.precision not in ((mine.precision,) if mine.precision else PLAIN_PRECISIONS):
            own = mine.precision or "the network's own types"
            phrases.append(f"predicted with {own}, the engine ran with {setting.precision}")
        return phrases

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain JSON values, without the prediction."""
        setting = self.run.setting
        values = {
            "engine": self.run.name,
            "device": self.run.platform.device,
            **{name: getattr(setting, name) for name in _OF_SETTING},
            "batch": self.run.batch,
            "matched_by": self.matched_by,
            "phases": {name: self.run.phases.get(name) for name in PHASES},
            "layers_ms": self.run.layers_ms,
            "layers": [asdict(row) | {"error": row.error} for row in self.layers],
            "predicted_only": [layer.name for layer in self.predicted_only],
            "engine_only": [
                {"name": layer.name, "type": layer.type, "ms": layer.ms}
                for layer in self.engine_only
            ],
        }
        return {name: json_values(value) for name, value in values.items()}


def compare_with_engine(
    prediction: Prediction, network: Network, run: EngineRun
) -> EngineComparison:
    """Match the layers of a prediction with those of an engine through the network's nodes.

    Raises
    ------
    DatasetError
        If the engine has another batch size.
    """
    if run.batch is not None and prediction.subject.batch not in (None, run.batch):
        raise DatasetError(
            f"{run.name} ran with batch {run.batch}, the prediction is of batch "
            f"{prediction.subject.batch}; give --batch {run.batch}"
        )
    nodes, matched_by = nodes_of_layers(run.layers, network)
    groups = _groups([frozenset(layer.sources) for layer in prediction.layers], nodes)
    rows = []
    for group in groups:
        own = [prediction.layers[index] for index in sorted(group.mine)]
        others = [run.layers[index] for index in sorted(group.theirs)]
        counts = Counter(layer.kind for layer in own)
        rows.append(ComparisonRow(
            " | ".join(_short(layer.name) for layer in others), None,
            sum(layer.execution_ms for layer in own), sum(layer.ms for layer in others),
            ", ".join(f"{n} {kind}" if n > 1 else kind for kind, n in counts.items()),
        ))  # fmt: skip
    mine = {index for group in groups for index in group.mine}
    theirs = {index for group in groups for index in group.theirs}
    return EngineComparison(
        prediction, run, matched_by, tuple(rows),
        tuple(layer for index, layer in enumerate(prediction.layers) if index not in mine),
        tuple(layer for index, layer in enumerate(run.layers) if index not in theirs),
    )  # fmt: skip


@dataclass
class _Group:
    """Layers of both sides, by their places, that share nodes."""

    nodes: set[str] = field(default_factory=set)
    mine: list[int] = field(default_factory=list)
    theirs: list[int] = field(default_factory=list)


def _groups(mine: Sequence[frozenset[str]], theirs: Sequence[frozenset[str]]) -> list[_Group]:
    """Join what shares nodes; return what both sides have, in the order of the second."""
    of_node: dict[str, _Group] = {}
    alone = [_Group(set(nodes), mine=[index]) for index, nodes in enumerate(mine)]
    alone += [_Group(set(nodes), theirs=[index]) for index, nodes in enumerate(theirs)]
    for group in alone:
        touched = {id(of_node[name]): of_node[name] for name in group.nodes if name in of_node}
        for other in touched.values():
            group.nodes |= other.nodes
            group.mine += other.mine
            group.theirs += other.theirs
        of_node |= dict.fromkeys(group.nodes, group)
    matched = {id(group): group for group in of_node.values() if group.mine and group.theirs}
    return sorted(matched.values(), key=lambda group: min(group.theirs))


def _short(name: str) -> str:
    name = printable(name)
    if len(name) <= _SHOWN_NAME:
        return name
    half = (_SHOWN_NAME - 3) // 2
    return f"{name[:half]}...{name[-half:]}"


def engine_comparison_text(comparison: EngineComparison, *, every: bool = False) -> str:
    """Show a prediction beside an engine.

    Parameters
    ----------
    comparison : EngineComparison
    every : bool
        Show all layers, not only the slowest ones.
    """
    setting, run = comparison.run.setting, comparison.run
    version = " ".join(filter(None, (setting.framework, setting.framework_version)))
    batch = "" if run.batch is None else f", batch {run.batch}"
    words = ", ".join(filter(None, (version, setting.precision)))
    title = (
        f"{comparison.prediction.subject.title}: predicted\n"
        f"beside the engine {run.name}{batch}, on {run.platform.device} with {words}: measured"
    )
    parts = [
        f"{title}\n{comparison_table(comparison.totals, title='')}",
        remarks_text(notes=comparison.differences),
        _layers_text(comparison, every),
        order_agreement(comparison.layers),
        _only_text("predicted, without a layer of the engine",
                   [(layer.execution_ms, f"{layer.name} ({layer.kind})")
                    for layer in comparison.predicted_only], every),
        _only_text("in the engine only",
                   [(layer.ms, f"{_short(layer.name)} ({layer.type or 'unknown'})")
                    for layer in comparison.engine_only], every),
        remarks_text(warnings=comparison.prediction.remarks.warnings),
    ]  # fmt: skip
    return "\n\n".join(filter(None, parts))


def _layers_text(comparison: EngineComparison, every: bool) -> str:
    shown, title = slowest_first(comparison.layers, lambda row: row.slower_ms, every)
    if not comparison.prediction.layers:
        return "the network was predicted as a whole: no layers to compare"
    if not shown:
        return "no layer of the engine computes a node of this network: is it the engine's network?"
    compared = comparison_table(shown, title="layer of the engine")
    return f"layers matched by {comparison.matched_by}, {title}\n{compared}"


def _only_text(title: str, layers: Sequence[tuple[float, str]], every: bool) -> str:
    """List the layers of one side, the slowest first; those without time are counted."""
    timed = sorted((layer for layer in layers if layer[0] > 0), reverse=True)
    idle = len(layers) - len(timed)
    if not layers:
        return ""
    total = format_ms(math.fsum(ms for ms, _ in timed)) if timed else "0"
    lines = [f"{title}: {counted(len(layers), 'layer')}, {total} ms"]
    shown = timed if every else timed[:SHOWN_LAYERS]
    lines += [f"  {format_ms(ms)} ms  {name}" for ms, name in shown]
    if len(timed) > len(shown):
        lines.append(f"  and {len(timed) - len(shown)} more, --all shows all")
    if idle:
        lines.append(f"  {idle} without a time (views, or not profiled)")
    return "\n".join(lines)


def comparison_table(rows: Sequence[ComparisonRow], *, title: str = "network") -> str:
    """Show predicted and measured times side by side.

    Parameters
    ----------
    rows : sequence of ComparisonRow
    title : str
        Heading of the first column.
    """
    cells = [
        [
            row.name,
            "" if row.batch is None else str(row.batch),
            ms_cell(row.predicted_ms),
            ms_cell(row.measured_ms),
            percent_cell(row.error, signed=True),
            row.remark,
        ]
        for row in rows
    ]
    headings = (title, "batch", "predicted ms", "measured ms", "error", "remark")
    return table(headings, cells, text=(title, "remark"))


def order_agreement(rows: Sequence[ComparisonRow]) -> str:
    """Say how well predicted and measured times agree in the order of layers.

    Spearman's rank correlation (ties have their mean rank), and how many of the slowest measured
    layers are among the slowest predicted. Empty if fewer than `SLOWEST` layers have both times.
    """
    timed = [row for row in rows if row.predicted_ms >= 0 and row.measured_ms >= 0]
    if len(timed) < SLOWEST:
        return ""
    predicted_ms = [row.predicted_ms for row in timed]
    measured_ms = [row.measured_ms for row in timed]
    slowest, searched = (
        set(sorted(range(len(timed)), key=lambda index: -times_ms[index])[:count])
        for times_ms, count in ((measured_ms, SLOWEST), (predicted_ms, SEARCHED))
    )
    return (
        f"order of {len(timed)} layers: rank correlation "
        f"{rank_correlation(predicted_ms, measured_ms):.3f}; "
        f"{len(slowest & searched)} of the {SLOWEST} slowest are among the first {SEARCHED} "
        "predicted"
    )
