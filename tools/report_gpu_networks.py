#!/usr/bin/env python
"""How well `roofline` predicts published networks through ONNX: writes tables of docs/gpus.md.

    python tools/benchmarks/export.py language build/gpu_networks
    python tools/report_gpu_networks.py build/gpu_networks        # 5 minutes on one core
    python tools/report_gpu_networks.py build/gpu_networks --bundle gpus-torch

NeuSight's networks and operators are read from $RESPERF_PUBLIC_DATA (../shared/data by default) and
imported into the work folder once; a network whose graph is in the folder by name is read from it,
lowered and predicted, one without is named. Predictors learn from the operators that
tools/report_gpus.py learns from, never from networks; or they are those of a bundle. Each run also
lists its own operators with their times: what these add up to is the best that layers can say. No
measured row is written into the report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from report_accuracy import ROOT, public_data
from report_gpus import (
    KINDS,
    QUANTITY,
    cell,
    commit,
    default_work,
    fit,
    import_all,
    rows_of,
    write,
)
from report_inferred import import_networks

from resperf.bundle import COPIES_ASSUMED, Bundle
from resperf.dataset import ListedOperator, NetworkDescription, read_networks
from resperf.measurement import NetworkRef
from resperf.network import Network, read_graph
from resperf.platform import Platform
from resperf.prediction import Prediction
from resperf.prediction.network import predict_network
from resperf.predictors.roofline import Roofline
from resperf.report.markdown import markdown_table
from resperf.settings import Mode, Setting

PLACE = (
    "## Networks in PyTorch, through ONNX",
    "<!-- tools/report_gpu_networks.py writes below -->",
    "<!-- tools/report_gpu_networks.py wrote above -->",
)
"""Heading and marks of the tables."""
APART = ("p4", "a100-40gb")
"""The card that throttled, and the one whose networks ran in another state than its operators."""
AIM_ABOVE_SUM, AIM_LEFT_OUT = 1.5, 14.0
"""Points above the error of the sum of a run's own operators; percent."""
WITHOUT_KERNEL = frozenset({
    "Dropout", "dim", "expand", "float", "get_attr", "getattr", "getitem", "output", "permute",
    "placeholder", "size", "split", "to", "torch.finfo", "transpose", "type", "unsqueeze", "view",
})  # fmt: skip
"""Listed operators that only change how tensors are seen, in inference."""
COPYING = frozenset({"contiguous", "reshape"})
"""Listed operators that copy where their input does not lie in order."""
SORTS = {
    "linear layers": ({"Linear", "addmm"}, {"dense"}),
    "products of attention and copies": ({"matmul", "bmm", *COPYING}, {"matmul", "transpose"}),
    "softmax": ({"softmax"}, {"softmax"}),
    "normalisations": ({"LayerNorm"}, {"norm"}),
    "all others": (set(), set()),
}
"""Sort of operators -> names in published lists, kinds of layers."""


@dataclass(frozen=True)
class Run:
    """One measured network on a card.

    Attributes
    ----------
    network : Network or None
        None if there is no graph of its name.
    operators : tuple of ListedOperator
        Those that run a kernel.
    total_ms : float
    """

    name: str
    network: Network | None
    setting: Setting
    platform: Platform
    operators: tuple[ListedOperator, ...]
    total_ms: float

    @property
    def launch_ms(self) -> float:
        """Return the shortest time of the run's kernels, nearly all of which is launch."""
        return min(each.times_ms["forward_ms"] for each in self.operators)

    def sum_ms(self, launch_ms: float) -> float:
        """Add up the run's own operators without a launch each."""
        return sum(self.by_sort(launch_ms).values())

    def by_sort(self, launch_ms: float) -> dict[str, float]:
        """Add up each sort of operators."""
        found = dict.fromkeys(SORTS, 0.0)
        for each in self.operators:
            time_ms = max(each.times_ms["forward_ms"] - launch_ms, 0.0)
            found[sort_of(each.op, 0)] += time_ms * each.count
        return found


def sort_of(name: str, place: int) -> str:
    """Return the sort of a listed operator (place 0) or of a kind of layer (place 1)."""
    return next((sort for sort, names in SORTS.items() if name in names[place]), list(SORTS)[-1])


def runs_kernel(operator: ListedOperator) -> bool:
    """Say whether a listed operator is more than a view or a number of the host."""
    if operator.op in WITHOUT_KERNEL or operator.outputs[0].shape in ((), (1,)):
        return False
    in_order = bool(operator.attributes["contiguous"]) and operator.attributes["contiguous"][0]
    return operator.op not in COPYING or not in_order


def runs_of(path: Path) -> Iterator[Run]:
    """Read the inference runs of a dataset of networks."""
    dataset = read_networks(path)
    for row in dataset.measurements:
        if row.setting.mode is not Mode.INFERENCE or not isinstance(row.subject, NetworkRef):
            continue
        listed = NetworkDescription.from_bytes(dataset.descriptions[row.subject.description])
        content = dataset.graphs.get(row.subject.digest)
        network = None
        if content is not None:
            network = read_graph(content, listed.name, batch=row.setting.batch)
        yield Run(
            listed.name, network, row.setting, row.platform,
            tuple(filter(runs_kernel, listed.operators)), row.samples[QUANTITY].value,
        )  # fmt: skip


def fitted(work: Path, folder: Path, setting: Setting, without: str = "") -> Bundle:
    """Fit predictors of layers to the operators of all cards, or of all but one."""
    folder.mkdir(parents=True, exist_ok=True)
    predictors = {}
    devices: dict[str, Platform] = {}
    for kind in KINDS:
        if kind == "conv":  # none of these networks has any
            continue
        rows = rows_of(work, kind)
        mask = ~rows.of(without) if without else np.ones(len(rows.times_ms), dtype=bool)
        # Trees do not answer for cards that are left out.
        predictor = fit(rows, mask, trees=1 if without else None)
        values = predictor.export(folder, f"{kind}-{without or 'all'}")
        predictors[kind] = {QUANTITY: {"method": Roofline.method, **values}}
        devices |= {each.device: each for each in rows.platforms[mask]}
    platforms = list(devices.values())
    part = {
        "device": platforms[0].device, "framework": setting.framework, "method": Roofline.method,
        "costs": {}, "copies": COPIES_ASSUMED, "predictors": predictors, "errors": {},
        "transfers": {}, "golden": {"layers": [], "networks": []}, "ranges": {},
        "settings": ["0"], "platforms": list(map(str, range(len(platforms)))),
    }  # fmt: skip
    manifest = {
        "created": "", "provenance": {}, "parts": [part], "settings": {"0": setting.to_json()},
        "platforms": {str(place): each.to_json() for place, each in enumerate(platforms)},
    }  # fmt: skip
    return Bundle(folder, manifest)


def predicted(run: Run, bundle: Bundle) -> Prediction:
    """Predict a run as `resperf predict` does, without the copies from and to the host."""
    assert run.network is not None
    part = bundle.answering(None, None, run.setting, run.platform)
    return predict_network(
        run.network, part.on(run.setting.without_batch(), run.platform), whole=False
    )


def off(time_ms: float, run: Run) -> float:
    """Return an error in percent."""
    return 100 * (time_ms / run.total_ms - 1)


@dataclass(frozen=True)
class Judged:
    """A run with its predictions: from all cards, and from all others."""

    run: Run
    known: Prediction
    left_out: Prediction | None

    @property
    def device(self) -> str:
        return self.run.platform.device

    def errors(self) -> tuple[float, float, float, float]:
        """Return errors in percent: own operators, these without launch, ours, left out."""
        return (
            off(self.run.sum_ms(0.0), self.run),
            off(self.run.sum_ms(self.run.launch_ms), self.run),
            off(self.known.phases.execution_ms, self.run),
            off(self.left_out.phases.execution_ms, self.run) if self.left_out else np.nan,
        )


def by_run(found: Sequence[Judged]) -> str:
    """Lay out one row per run."""
    cells = []
    for each in found:
        shown = each.known
        estimated_ms = sum(layer.execution_ms for layer in shown.layers if layer.estimated)
        own = [f"{error:+.1f}" if np.isfinite(error) else "" for error in each.errors()]
        cells.append([
            f"{each.device}, {each.run.name}, batch {each.run.setting.batch}", *own,
            str(sum(node.role != "view" for node in shown.nodes)),
            str(sum(layer.estimated for layer in shown.layers)),
            f"{100 * estimated_ms / shown.phases.execution_ms:.1f}", str(len(shown.skipped)),
        ])  # fmt: skip
    headings = (
        "error of the total in %", "own operators", "without launch", "predicted",
        "card left out", "kernels", "estimated", "their share of the time in %", "left out",
    )  # fmt: skip
    return markdown_table(headings, cells)


def by_card(found: Sequence[Judged]) -> str:
    """Lay out mean errors, one row per card, those apart last."""
    devices = sorted({each.device for each in found}, key=lambda name: (name in APART, name))

    def mean(names: Sequence[str]) -> list[str]:
        errors = [np.abs([each.errors() for each in found if each.device == name]).mean(axis=0)
                  for name in names]  # fmt: skip
        return list(map(cell, np.mean(errors, axis=0)))

    cells = [[name, *mean([name])] for name in devices if name not in APART]
    steady = [name for name in devices if name not in APART]
    if steady:
        cells.append(["mean", *mean(steady)])
        most = np.mean([np.abs([each.errors()[1] for each in found if each.device == name]).mean()
                        for name in steady]) + AIM_ABOVE_SUM  # fmt: skip
        cells.append(["aim", "", "", cell(float(most)), cell(AIM_LEFT_OUT)])
    cells += [[f"{name}, apart", *mean([name])] for name in devices if name in APART]
    headings = (
        "mean error of totals in %", "own operators", "without launch", "predicted", "card left out"
    )  # fmt: skip
    return markdown_table(headings, cells)


def by_sort(found: Sequence[Judged]) -> str:
    """Lay out predicted over measured times of each sort of operators, of cards not apart."""
    steady = [each for each in found if each.device not in APART]
    own, ours = [], []
    for each in steady:
        own.append(each.run.by_sort(each.run.launch_ms))
        added = dict.fromkeys(SORTS, 0.0)
        for layer in each.known.layers:
            added[sort_of(layer.kind, 1)] += layer.execution_ms
        ours.append(added)
    cells = []
    for sort in SORTS:
        shares = [100 * one[sort] / sum(one.values()) for one in own]
        ratios = [two[sort] / one[sort] for one, two in zip(own, ours, strict=True) if one[sort]]
        cells.append([
            sort, f"{np.mean(shares):.0f}", f"{np.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        ])  # fmt: skip
    headings = ("sort of operators", "share of the time in %", "predicted / own, median", "range")
    return markdown_table(headings, cells)


def report(found: Sequence[Judged], source: str) -> str:
    """Write the tables."""
    names = ", ".join(dict.fromkeys(each.run.name for each in found))
    return "\n\n".join([
        f"Written by `python tools/report_gpu_networks.py` at commit `{commit()}`: {names}, from "
        f"{source}.",
        by_card(found), by_run(found), by_sort(found),
    ])  # fmt: skip


def main() -> None:
    """Import, fit, predict, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("graphs", type=Path, help="folder of exported networks")
    parser.add_argument("--work", type=Path, default=default_work())
    parser.add_argument("--bundle", type=Path, help="a trained bundle instead of own fits")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "gpus.md")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.bundle is None:
        import_all(public_data(), given.work)
    runs = [run for path in import_networks(given.graphs, given.work) for run in runs_of(path)]
    for name in sorted({run.name for run in runs if run.network is None}):
        print(f"{name}: no graph in {given.graphs}, left out", file=sys.stderr)
    runs = [run for run in runs if run.network is not None]
    found = list(judge(runs, given.work, given.bundle))
    source = "the operators that the tables above learn from"
    if given.bundle is not None:
        source = f"the bundle `{given.bundle.name}`, which no card can be left out of"
    write(report(found, source), given.output, PLACE)


def judge(runs: Sequence[Run], work: Path, bundle: Path | None) -> Iterator[Judged]:
    """Predict the runs from all cards, and each from the others."""
    folder = work / "predictors"
    known = Bundle.load(bundle) if bundle else fitted(work, folder, runs[0].setting.without_batch())

    @cache
    def others(device: str) -> Bundle:
        return fitted(work, folder, runs[0].setting.without_batch(), without=device)

    for run in runs:
        left_out = None if bundle else predicted(run, others(run.platform.device))
        yield Judged(run, predicted(run, known), left_out)


if __name__ == "__main__":
    main()
