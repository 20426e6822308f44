#!/usr/bin/env python
"""Linear methods on measured networks as ConvMeter judges them: Markdown tables.

The datasets are those of three campaigns, each on an otherwise idle machine:

    python tools/benchmarks/export.py convmeter build/convmeter
    python tools/benchmarks/export.py convmeter-torch build/convmeter-torch
    resperf bench convmeter-onnxruntime -o ort.h5
    resperf bench convmeter-torch --framework torch -o torch.h5
    resperf bench convmeter-torch-training --framework torch --training sgd -o training.h5
    python tools/benchmark_convmeter.py ort.h5 --bundle BUNDLE --json ort.json
    python tools/benchmark_convmeter.py training.h5

Rows of several processes that share a training step (``resperf bench convmeter-torch-scaling
--processes``, merged by ``resperf dataset merge``) get a table by number of processes: what a fit
without the network says of each number, and of how much faster several are than one.

Every prediction is by a fit without the network, at any batch or image size, and without any of its
blocks (networks whose names have a dash behind the ``@``). One set of coefficients predicts all
other networks, or all networks and blocks together. With ``--bundle``, the sum of that bundle's
layers is judged on the same rows, and on those of networks all of whose operators it predicts; it
learnt from layers alone.

The learning curve draws some networks, at all their sizes, and judges on all others: the mean error
of the draws, and that of the worst. Figures of the paper stand beside: of an Intel Xeon
Gold 5318Y on one core for inference (Table 1), and of an A100 for blocks and training steps
(Tables 2 and 3).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.bundle import Bundle
from resperf.errors import ResperfError, TrainingError
from resperf.features import Array
from resperf.prediction.sum_of_layers import SumOfLayers
from resperf.predictors import Examples, predictor_class
from resperf.predictors.metrics import errors, r_squared
from resperf.quantities import QUANTITIES
from resperf.report.markdown import markdown_table
from resperf.report.tables import UNKNOWN, percent_cell
from resperf.splits import architecture_of
from resperf.training import evaluate
from resperf.training.evaluate import EvaluatedNetwork
from resperf.training.rows import network_examples, network_quantities

METHODS = ("convmeter", "convmeter-relative", "convmeter-non-negative", "operator-totals")
COUNTS = (3, 5, 10, 15)
LAYERS = "sum of layers"
COMPLETE = "sum of layers, all known"
"""Of networks all of whose operators the bundle predicts."""
NETWORKS, BLOCKS, BOTH = "networks", "blocks", "networks and blocks"
PAPER: Mapping[str, Mapping[str, float]] = {
    "latency_ms": {
        "mobilenet_v2": 0.15, "resnet18": 0.21, "resnet50": 0.22, "resnext50_32x4d": 0.27,
        "wide_resnet50_2": 0.15, "vgg16": 0.18, "regnet_y_400mf": 0.62, "squeezenet1_0": 0.52,
        "vgg11": 0.21, "all": 0.25,
        "resnext50_32x4d Bottleneck1": 0.10, "resnet50 Bottleneck4": 0.10,
        "inception_v3 BasicConv2d3": 0.10, "resnet18 BasicBlock7": 0.16,
        "mobilenet_v3_large InvertedResidual2": 0.2, "regnet_x_8gf ResBottleneckBlock3": 0.09,
        "wide_resnet50_2 Bottleneck9": 0.14, "efficientnet_b0 MBConv2": 0.3,
        "mobilenet_v2 InvertedResidual3": 0.37, "all blocks": 0.16,
    },
    "step_ms": {
        "vgg16": 0.18, "efficientnet_b0": 0.15, "regnet_y_400mf": 0.13, "squeezenet1_0": 0.17,
        "alexnet": 0.22, "vgg11": 0.28, "resnet18": 0.15, "resnet50": 0.21, "all": 0.18,
    },
}  # fmt: skip
"""Quantity -> network, or network and block -> MAPE in ConvMeter's Tables 1 to 3. The paper numbers
blocks without saying from where; ours count from 1."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Judged:
    """One method on the networks, or the blocks, of one quantity.

    Attributes
    ----------
    quantity, method : str
    learnt, on : str
        What it learnt from, and what it is judged on.
    names : tuple of str
        Network of each row, with the block if it is one.
    measured, predicted : array (rows,)
        In ms.
    in_interval : float
        Share inside the 90% intervals; NaN without intervals.
    fit_s : float
        Mean seconds of a fit; NaN if there was none.
    runs : tuple of (str, int, int)
        Network, batch size of each device and number of devices, of each row; may be empty.
    """

    quantity: str
    method: str
    learnt: str
    on: str
    names: tuple[str, ...]
    measured: Array
    predicted: Array
    in_interval: float
    fit_s: float = math.nan
    runs: tuple[tuple[str, int, int], ...] = ()

    @property
    def devices(self) -> list[int]:
        """Numbers of devices that shared a run."""
        return sorted({devices for *_, devices in self.runs})

    def of_devices(self, devices: int) -> tuple[Array, Array]:
        """Return measured and predicted times on so many devices."""
        own = np.array([count == devices for *_, count in self.runs])
        return self.measured[own], self.predicted[own]

    def efficiencies(self, devices: int) -> tuple[Array, Array]:
        """Return the throughput of each device, measured and predicted, over that of one alone."""
        place = {run: row for row, run in enumerate(self.runs)}
        pairs = [
            (place[network, batch, 1], row)
            for (network, batch, count), row in place.items()
            if count == devices and (network, batch, 1) in place
        ]
        alone, several = np.array(pairs, dtype=int).reshape(-1, 2).T
        return self.measured[alone] / self.measured[several], (
            self.predicted[alone] / self.predicted[several]
        )

    @property
    def mape(self) -> float:
        return errors(self.measured, self.predicted).mape

    def mape_of(self, name: str) -> float:
        """Return the mean error of a network, or a block; NaN where it has no row."""
        own = np.array(self.names) == name
        return errors(self.measured[own], self.predicted[own]).mape if own.any() else math.nan

    def to_json(self) -> dict[str, Any]:
        found = errors(self.measured, self.predicted)
        return {
            "quantity": self.quantity, "method": self.method, "learnt": self.learnt,
            "on": self.on, **found.to_json(), "r2": r_squared(self.measured, self.predicted),
            "nrmse": found.rmse_ms / float(np.ptp(self.measured)),
            "in_interval": self.in_interval, "fit_s": self.fit_s,
            "devices": {count: errors(*self.of_devices(count)).to_json() for count in self.devices},
            "networks": {name: self.mape_of(name) for name in dict.fromkeys(self.names)},
        }  # fmt: skip


@dataclass(frozen=True)
class Point:
    """Errors of fits to some networks on all others.

    Attributes
    ----------
    quantity, method : str
    networks : int
    rows : float
        Measurements of these networks, the mean of the draws.
    mapes : tuple of float
        Of each draw that determined the coefficients.
    """

    quantity: str
    method: str
    networks: int
    rows: float
    mapes: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Runs:
    """Rows of one quantity under one setting, with what they are of."""

    examples: Examples
    names: npt.NDArray[np.str_] = field(init=False)
    of_block: Mask = field(init=False)

    def __post_init__(self) -> None:
        found = [each.name for each in self.examples.networks]
        object.__setattr__(self, "names", np.array([architecture_of(each) for each in found]))
        object.__setattr__(self, "of_block", np.array([bool(block_of(each)) for each in found]))

    @property
    def labels(self) -> npt.NDArray[np.str_]:
        """Network of each row, with the block if it is one."""
        found = [each.name for each in self.examples.networks]
        return np.array([label_of(each) for each in found])

    @property
    def of_each(self) -> list[tuple[str, int, int]]:
        """Network, batch size of each device and number of devices, of each row."""
        return [
            (network.name, setting.batch or 0, platform.devices)
            for network, (setting, platform) in zip(
                self.examples.networks, self.examples.per_row(), strict=True
            )
        ]

    @property
    def whole_networks(self) -> list[str]:
        return sorted(set(self.names[~self.of_block].tolist()))

    def of(self, word: str) -> Mask:
        """Return the rows of networks, blocks, or both."""
        if word == BOTH:
            return np.ones(len(self.names), dtype=bool)
        return self.of_block if word == BLOCKS else ~self.of_block

    def prepared(self, method: str) -> Runs:
        """Count what a method reads of each graph once, for all of its fits."""
        counted = predictor_class(method)("network").prepared(self.examples.networks)
        return Runs(replace(self.examples, subjects=counted, groups=tuple(self.names.tolist())))


def block_of(name: str) -> str:
    """Return the block of a network's name; of ``resnet50@128-Bottleneck4``, ``Bottleneck4``."""
    return name.partition("@")[2].partition("-")[2]


def label_of(name: str) -> str:
    """Return the network of a name, with its block if it is one."""
    return f"{architecture_of(name)} {block_of(name)}".strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--bundle", type=Path, help="also judge the sum of its layers")
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="METHOD")
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, metavar="N",
                        help="numbers of networks of the learning curve")  # fmt: skip
    parser.add_argument("--draws", type=int, default=20, help="of networks, for each number")
    parser.add_argument("--seed", type=int, default=0, help="of the first draw")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    words = parser.parse_args()
    try:
        found = figures(
            words.dataset, words.methods, words.counts, words.draws, words.seed, words.bundle
        )
    except ResperfError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if words.json:
        words.json.write_text(json.dumps(
            {key: [each.to_json() for each in rows] for key, rows in found.items()}, indent=1
        ))  # fmt: skip
    print(report(words.dataset, found["judged"], found["curve"], words.bundle))
    return 0


def figures(
    dataset: Path,
    methods: Sequence[str],
    counts: Sequence[int],
    draws: int,
    seed: int,
    bundle: Path | None,
) -> dict[str, list[Any]]:
    """Return what the tables show: `Judged` and `Point`.

    Raises
    ------
    ResperfError
        If the dataset cannot be read, or is of several settings or devices.
    """
    found: list[Judged] = []
    curve: list[Point] = []
    for name in quantities_of(dataset, methods):
        notes: list[str] = []
        runs = Runs(network_examples(dataset, name, left_out=notes))
        _check_one_setting(dataset, runs.examples)
        for note in notes:
            print(f"{name}: {note}", file=sys.stderr)
        sets = (NETWORKS, BLOCKS, BOTH) if runs.of_block.any() else (NETWORKS,)
        for method in methods:
            ready = runs.prepared(method)
            found += [
                each_left_out(method, ready, learnt, on)
                for on in sets[:2]
                for learnt in sets
            ]  # fmt: skip
            curve += list(learning_curve(method, ready, counts, draws, seed))
    if bundle is not None:
        found += list(sums_of_layers(dataset, bundle))
    return {"judged": found, "curve": curve}


def quantities_of(dataset: Path, methods: Sequence[str]) -> list[str]:
    """Return the quantities that all methods learn, execution within the latency left out.

    Raises
    ------
    TrainingError
        If there is none.
    """
    learnt = [predictor_class(method).quantities for method in methods]
    found = network_quantities(dataset)
    inside = {part for name in found for part in QUANTITIES[name].parts if name == "latency_ms"}
    chosen = [
        name
        for name in found
        if name not in inside and all(each is None or name in each for each in learnt)
    ]
    if not chosen:
        raise TrainingError(
            f"{dataset} has no quantity of networks that {', '.join(methods)} learn; measure some "
            "with: resperf bench convmeter-onnxruntime"
        )
    return chosen


def _check_one_setting(dataset: Path, examples: Examples) -> None:
    ways = {(s.without_batch(), p.device) for s, p in examples.per_row()}
    if len(ways) > 1:
        raise TrainingError(
            f"{dataset} has networks under {len(ways)} settings or devices; give a dataset of one"
        )


def predicted(method: str, runs: Runs, learnt: Mask, judged: Mask) -> tuple[Array, Array, Array]:
    """Predict some rows, with their intervals, by a fit to others.

    Raises
    ------
    TrainingError
        If those do not determine its coefficients.
    """
    rows = runs.examples.select(np.flatnonzero(learnt))
    fitted = predictor_class(method)("network").fit(rows, validation=rows, seed=0)
    places = np.flatnonzero(judged)
    asked = runs.examples.select(places)
    how = asked.per_row()
    every = np.full((3, len(places)), np.nan)
    counts = np.array([platform.devices for _, platform in how])
    for count in np.unique(counts):
        own = np.flatnonzero(counts == count)
        setting, platform = how[own[0]]
        found = fitted.predict(
            [asked.networks[place] for place in own], setting.without_batch(), platform
        )[asked.quantity]
        every[:, own] = found.values, found.low, found.high
    values, low, high = every
    return values, low, high


def each_left_out(method: str, runs: Runs, learnt: str, on: str) -> Judged:
    """Predict each network, or each block, by a fit without any row of its network."""
    judged = runs.of(on)
    values, low, high = (np.full(len(judged), np.nan) for _ in range(3))
    seconds = []
    for name in np.unique(runs.names[judged]):
        own = runs.names == name
        asked = judged & own
        started = time.perf_counter()
        values[asked], low[asked], high[asked] = predicted(
            method, runs, runs.of(learnt) & ~own, asked
        )
        seconds.append(time.perf_counter() - started)
    measured = runs.examples.values
    inside = ((low <= measured) & (measured <= high))[judged & np.isfinite(low + high)]
    return Judged(
        runs.examples.quantity, method, learnt, on, tuple(runs.labels[judged].tolist()),
        measured[judged], values[judged], float(inside.mean()) if len(inside) else math.nan,
        float(np.mean(seconds)), tuple(itertools.compress(runs.of_each, judged)),
    )  # fmt: skip


def learning_curve(
    method: str, runs: Runs, counts: Sequence[int], draws: int, seed: int
) -> Iterator[Point]:
    """Fit to some networks, at all their sizes, and judge on all others."""
    names = runs.whole_networks
    whole = runs.of(NETWORKS)
    for count in counts:
        if count >= len(names):
            continue
        rows, mapes = [], []
        for draw in range(draws):
            chosen = np.random.default_rng(seed + draw).permutation(names)[:count]
            learnt = whole & np.isin(runs.names, chosen)
            judged = whole & ~learnt
            rows.append(int(learnt.sum()))
            try:
                values, *_ = predicted(method, runs, learnt, judged)
            except TrainingError:
                continue
            mapes.append(errors(runs.examples.values[judged], values).mape)
        yield Point(runs.examples.quantity, method, count, float(np.mean(rows)), tuple(mapes))


def sums_of_layers(dataset: Path, path: Path) -> Iterator[Judged]:
    """Predict networks and blocks by the layers of a bundle; again those alone that it knows whole.

    Raises
    ------
    ResperfError
        If the bundle cannot be read, or is of another framework or mode.
    """
    bundle = Bundle.load(path)
    evaluation = evaluate(dataset, bundle, "all", SumOfLayers(bundle))
    for note in evaluation.notes:
        print(f"{LAYERS}: {note}", file=sys.stderr)
    lacking = {note.split(":")[0] for note in evaluation.notes if "its total leaves out" in note}
    rows = sum(
        parts["train"] + parts["validation"]
        for part in bundle.parts
        for kind, parts in part.part["training"]["rows"].items()
        if kind in part.kinds
    )
    for found in evaluation.rows:
        if found.method != SumOfLayers.method:
            continue
        for on in (NETWORKS, BLOCKS):
            own = [row for row in found.networks if bool(block_of(row.network)) == (on == BLOCKS)]
            whole = [row for row in own if row.network not in lacking]
            for method, some in ((LAYERS, own), (COMPLETE, whole)):
                if some and (method == LAYERS or len(some) < len(own)):
                    yield _judged_sums(found.phase, method, f"{rows} layers", on, some)


def _judged_sums(
    quantity: str, method: str, learnt: str, on: str, rows: Sequence[EvaluatedNetwork]
) -> Judged:
    inside = [row.low <= row.measured <= row.high for row in rows if math.isfinite(row.low)]
    return Judged(
        quantity, method, learnt, on, tuple(label_of(row.network) for row in rows),
        np.array([row.measured for row in rows]), np.array([row.predicted for row in rows]),
        float(np.mean(inside)) if inside else math.nan,
    )  # fmt: skip


def report(
    dataset: Path, judged: Sequence[Judged], curve: Sequence[Point], bundle: Path | None
) -> str:
    """Return all tables as Markdown."""
    parts = [f"# {dataset.name}"]
    if bundle is not None:
        parts.append(f"Sums of layers are those of `{bundle.name}`.")
    for quantity in dict.fromkeys(each.quantity for each in judged):
        own = [each for each in judged if each.quantity == quantity]
        parts += [f"## {quantity}", errors_table(own)]
        for on in dict.fromkeys(each.on for each in own):
            parts += [f"MAPE of each of the {on}, learnt from all that there is:",
                      names_table([each for each in own if each.on == on])]  # fmt: skip
        shared = [each for each in own if len(each.devices) > 1 and each.on == each.learnt]
        if shared:
            parts += ["By the number of devices that share a run, each with a batch of its own; "
                      "efficiency is a device's throughput over that of one alone:",
                      devices_table(shared), f"Each run, predicted by {shared[0].method}:",
                      scaling_table(shared[0])]  # fmt: skip
        points = [each for each in curve if each.quantity == quantity]
        if points:
            parts += ["MAPE on all other networks by the number of networks measured, mean of the "
                      "draws (worst):", curve_table(points, own)]  # fmt: skip
    return "\n\n".join(parts)


def errors_table(judged: Sequence[Judged]) -> str:
    """Show the errors of each method, with what it learnt from and is judged on."""
    headings = (
        "judged on", "learnt from", "method", "networks", "rows", "MAPE", "median", "within 10%",
        "R2", "RMSE ms", "NRMSE", "in 90% interval", "fit s", "paper's MAPE",
    )  # fmt: skip
    rows = []
    for each in judged:
        found = errors(each.measured, each.predicted)
        word = "all blocks" if each.on == BLOCKS else "all"
        aim = PAPER.get(each.quantity, {}).get(word, math.nan)
        rows.append([
            each.on, each.learnt, each.method, str(len(set(each.names))), str(found.rows),
            percent_cell(found.mape), percent_cell(found.median_ape),
            percent_cell(found.within_10), f"{r_squared(each.measured, each.predicted):.3f}",
            f"{found.rmse_ms:.3g}", f"{found.rmse_ms / float(np.ptp(each.measured)):.3f}",
            percent_cell(each.in_interval), _number(each.fit_s), _whole_percent(aim),
        ])  # fmt: skip
    return markdown_table(headings, rows)


def devices_table(judged: Sequence[Judged]) -> str:
    """Show the errors of each method by number of devices, and those of the efficiency."""
    rows = []
    for each in judged:
        for count in each.devices:
            measured, predicted = each.of_devices(count)
            real, found = each.efficiencies(count)
            off = float(np.abs(found / real - 1).mean()) if len(real) else math.nan
            rows.append([
                each.on, each.method, str(count), str(len(measured)),
                percent_cell(errors(measured, predicted).mape), _percent_of_mean(real),
                _percent_of_mean(found), percent_cell(off) if count > 1 else UNKNOWN,
            ])  # fmt: skip
    headings = ("judged on", "method", "devices", "rows", "MAPE", "mean efficiency measured",
                "predicted", "MAPE of the efficiency")  # fmt: skip
    return markdown_table(headings, rows)


def _percent_of_mean(shares: Array) -> str:
    return percent_cell(float(shares.mean())) if len(shares) else UNKNOWN


def scaling_table(judged: Judged) -> str:
    """Show each run on each number of devices, measured and predicted."""
    found = dict(zip(judged.runs, zip(judged.measured, judged.predicted, strict=True), strict=True))
    headings = ["network", "batch of each"]
    for count in judged.devices:
        headings += [f"measured on {count}, ms", f"predicted on {count}, ms"]
    rows = []
    for network, batch in dict.fromkeys((network, batch) for network, batch, _ in judged.runs):
        cells = [network, str(batch)]
        for count in judged.devices:
            pair = found.get((network, batch, count), (math.nan, math.nan))
            cells += [UNKNOWN if math.isnan(value) else f"{value:.1f}" for value in pair]
        rows.append(cells)
    return markdown_table(headings, rows)


def names_table(judged: Sequence[Judged]) -> str:
    """Show the error of each network or block, by fits to the most rows, beside the paper's."""
    most = {each.method: each for each in judged}
    aims = PAPER.get(judged[0].quantity, {})
    names = sorted({name for each in most.values() for name in each.names})
    rows = [
        [name, *(percent_cell(each.mape_of(name)) for each in most.values()),
         _whole_percent(aims.get(name, math.nan))]
        for name in names
    ]  # fmt: skip
    return markdown_table(("network", *most, "paper's"), rows)


def curve_table(points: Sequence[Point], judged: Sequence[Judged]) -> str:
    """Show the learning curve; its ends are no network at all, and all but the judged one."""
    methods = list(dict.fromkeys(each.method for each in points))
    on_networks = [each for each in judged if each.on == NETWORKS]
    layers = [each for each in on_networks if each.method == LAYERS]
    ends = {each.method: each for each in on_networks if each.learnt == NETWORKS}
    every = len(ends[methods[0]].measured)
    rows = [(f"0, but {each.learnt}", "0", {LAYERS: percent_cell(each.mape)}) for each in layers]
    for count in dict.fromkeys(each.networks for each in points):
        own = {each.method: each for each in points if each.networks == count}
        cells = {name: _curve_cell(each) for name, each in own.items()}
        rows.append((str(count), f"{own[methods[0]].rows:.0f}", cells))
    cells = {name: percent_cell(each.mape) for name, each in ends.items()}
    rows.append(("all but one", str(every), cells))
    columns = [*methods, *([LAYERS] if layers else [])]
    return markdown_table(
        ("networks", "measurements", *columns),
        [[first, second, *(found.get(name, UNKNOWN) for name in columns)]
         for first, second, found in rows],
    )  # fmt: skip


def _curve_cell(point: Point) -> str:
    if not point.mapes:
        return UNKNOWN
    return f"{percent_cell(float(np.mean(point.mapes)))} ({percent_cell(max(point.mapes))})"


def _number(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else UNKNOWN


def _whole_percent(share: float) -> str:
    return f"{share:.0%}" if math.isfinite(share) else UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
