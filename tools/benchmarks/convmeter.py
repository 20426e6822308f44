"""Linear methods on measured networks as ConvMeter judges them: Markdown tables.

The datasets are those of campaigns, each on an otherwise idle machine:

    python tools/benchmarks/export.py convmeter build/convmeter
    python tools/benchmarks/export.py convmeter-torch build/convmeter-torch
    resperf bench convmeter-onnxruntime -o ort.h5
    resperf bench convmeter-torch --framework torch -o torch.h5
    resperf bench convmeter-torch-training --framework torch --training sgd -o training.h5
    python tools/benchmarks/convmeter.py ort.h5
    python tools/benchmarks/convmeter.py training.h5

Rows of several processes that share a training step (``resperf bench convmeter-torch-scaling
--processes``, merged by ``resperf dataset merge``) get a table by number of processes.

Every prediction is by a fit without the network, at any batch or image size, and without any of its
blocks (networks whose names have a dash behind the ``@``). One set of coefficients predicts all
other networks, or all networks and blocks together. `resperf evaluate ort.h5 --bundle BUNDLE`
judges the sum of a bundle's layers on the same rows.

The learning curve draws some networks, at all their sizes, and judges on all others: the mean error
of the draws, and that of the worst. Figures of the paper stand beside: of an Intel Xeon Gold 5318Y
on one core for inference (Table 1), and of an A100 for blocks and training steps (Tables 2 and 3).
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from resperf.errors import ResperfError, TrainingError
from resperf.features import Array
from resperf.predictors import Examples, predictor_class
from resperf.predictors.metrics import errors, r_squared
from resperf.quantities import QUANTITIES
from resperf.report.markdown import markdown_table
from resperf.report.tables import UNKNOWN, percent_cell
from resperf.splits import architecture_of
from resperf.training.rows import network_examples, network_quantities

METHODS = ("convmeter", "convmeter-relative", "convmeter-non-negative", "operator-totals")
COUNTS = (3, 5, 10, 15)
NETWORKS, BLOCKS, BOTH = "networks", "blocks", "networks and blocks"
PAPER: Mapping[str, Mapping[str, float]] = tomllib.loads(
    Path(__file__).with_name("convmeter.toml").read_text(encoding="utf-8")
)
"""Quantity -> network, or network and block -> MAPE in ConvMeter's Tables 1 to 3."""

Run = tuple[str, int, int]
"""Network, batch size of each device, and number of devices."""


@dataclass(frozen=True)
class Judged:
    """One method on the networks, or the blocks, of one quantity: times in ms by row.

    `learnt` is what it learnt from, `on` what it is judged on, `in_interval` the share inside the
    90% intervals, NaN without any.
    """

    quantity: str
    method: str
    learnt: str
    on: str
    runs: list[Run]
    measured: Array
    predicted: Array
    in_interval: float

    @property
    def names(self) -> list[str]:
        """Network of each row, with the block if it is one."""
        return [f"{architecture_of(each)} {block_of(each)}".strip() for each, *_ in self.runs]

    @property
    def devices(self) -> list[int]:
        return sorted({devices for *_, devices in self.runs})

    @property
    def mape(self) -> float:
        return errors(self.measured, self.predicted).mape

    def mape_of(self, name: str) -> float:
        """Return the mean error of a network, or a block; NaN where it has no row."""
        own = np.array(self.names) == name
        return errors(self.measured[own], self.predicted[own]).mape if own.any() else math.nan

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
        real, found = (each[alone] / each[several] for each in (self.measured, self.predicted))
        return real, found


@dataclass(frozen=True)
class Point:
    """Errors on all other networks of fits to some, of each draw that gave coefficients."""

    quantity: str
    method: str
    networks: int
    rows: float
    mapes: tuple[float, ...]


def block_of(name: str) -> str:
    """Return the block of a network's name; of ``resnet50@128-Bottleneck4``, ``Bottleneck4``."""
    return name.partition("@")[2].partition("-")[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="METHOD")
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, metavar="N",
                        help="numbers of networks of the learning curve")  # fmt: skip
    parser.add_argument("--draws", type=int, default=20, help="of networks, for each number")
    parser.add_argument("--seed", type=int, default=0, help="of the first draw")
    words = parser.parse_args()
    draws = range(words.seed, words.seed + words.draws)
    try:
        judged, curve = figures(words.dataset, words.methods, words.counts, draws)
    except ResperfError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report(words.dataset, judged, curve))
    return 0


def figures(
    dataset: Path, methods: Sequence[str], counts: Sequence[int], draws: Sequence[int]
) -> tuple[list[Judged], list[Point]]:
    """Judge each method on each quantity that all of them learn, execution inside latency apart.

    Raises
    ------
    ResperfError
        If the dataset cannot be read, has no such quantity, or is of several settings or devices.
    """
    found = network_quantities(dataset)
    inside = {part for name in found for part in QUANTITIES[name].parts if name == "latency_ms"}
    learnt = [predictor_class(method).quantities for method in methods]
    chosen = [name for name in found if name not in inside
              and all(each is None or name in each for each in learnt)]  # fmt: skip
    if not chosen:
        raise TrainingError(
            f"{dataset} has no quantity of networks that {', '.join(methods)} learn; measure some "
            "with: resperf bench convmeter-onnxruntime"
        )
    judged: list[Judged] = []
    curve: list[Point] = []
    for name in chosen:
        notes: list[str] = []
        examples = network_examples(dataset, name, left_out=notes)
        ways = {(setting.without_batch(), each.device) for setting, each in examples.per_row()}
        if len(ways) > 1:
            raise TrainingError(
                f"{dataset} has networks under {len(ways)} settings or devices; "
                "give a dataset of one"
            )
        for note in notes:
            print(f"{name}: {note}", file=sys.stderr)
        for method in methods:
            # What a method reads of each graph is counted once, for all of its fits.
            counted = predictor_class(method)("network").prepared(examples.networks)
            groups = tuple(architecture_of(each.name) for each in examples.networks)
            ready = replace(examples, subjects=counted, groups=groups)
            judged += each_left_out(method, ready)
            curve += learning_curve(method, ready, counts, draws)
    return judged, curve


def predicted(method: str, rows: Examples, learnt: Array, judged: Array) -> Array:
    """Predict some rows by a fit to others; return values, lower and upper ends.

    Raises
    ------
    TrainingError
        If those do not determine its coefficients.
    """
    known = rows.select(np.flatnonzero(learnt))
    fitted = predictor_class(method)("network").fit(known, validation=known, seed=0)
    asked = rows.select(np.flatnonzero(judged))
    how = asked.per_row()
    every = np.full((3, len(how)), np.nan)
    counts = np.array([platform.devices for _, platform in how])
    for count in np.unique(counts):
        own = np.flatnonzero(counts == count)
        setting, platform = how[own[0]]
        networks = [asked.networks[place] for place in own]
        found = fitted.predict(networks, setting.without_batch(), platform)[asked.quantity]
        every[:, own] = found.values, found.low, found.high
    return every


def each_left_out(method: str, rows: Examples) -> Iterator[Judged]:
    """Predict each network, and each block, by fits without any row of its network."""
    names = np.array(rows.groups)
    of_block = np.array([bool(block_of(each.name)) for each in rows.networks])
    sets = {NETWORKS: ~of_block, BLOCKS: of_block, BOTH: np.ones(len(names), dtype=bool)}
    sets = sets if of_block.any() else {NETWORKS: sets[NETWORKS]}
    runs = [
        (network.name, setting.batch or 0, platform.devices)
        for network, (setting, platform) in zip(rows.networks, rows.per_row(), strict=True)
    ]
    for on in list(sets)[:2]:
        for learnt, mask in sets.items():
            found = np.full((3, len(names)), np.nan)
            for name in np.unique(names[sets[on]]):
                own = names == name
                found[:, sets[on] & own] = predicted(method, rows, mask & ~own, sets[on] & own)
            values, low, high = found[:, sets[on]]
            measured = rows.values[sets[on]]
            known = np.isfinite(low)
            inside = ((low <= measured) & (measured <= high))[known]
            yield Judged(
                rows.quantity, method, learnt, on,
                [run for run, chosen in zip(runs, sets[on], strict=True) if chosen], measured,
                values, float(inside.mean()) if known.any() else math.nan,
            )  # fmt: skip


def learning_curve(
    method: str, rows: Examples, counts: Sequence[int], draws: Sequence[int]
) -> Iterator[Point]:
    """Fit to all sizes of a few networks, drawn at random, and judge on all other networks."""
    groups = np.array(rows.groups)
    whole = np.array([not block_of(each.name) for each in rows.networks])
    names = sorted(set(groups[whole].tolist()))
    for count in (each for each in counts if each < len(names)):
        sizes, mapes = [], []
        for draw in draws:
            chosen = np.random.default_rng(draw).permutation(names)[:count]
            learnt = whole & np.isin(groups, chosen)
            judged = whole & ~learnt
            sizes.append(int(learnt.sum()))
            try:
                values, *_ = predicted(method, rows, learnt, judged)
            except TrainingError:
                continue
            mapes.append(errors(rows.values[judged], values).mape)
        yield Point(rows.quantity, method, count, float(np.mean(sizes)), tuple(mapes))


def report(dataset: Path, judged: Sequence[Judged], curve: Sequence[Point]) -> str:
    """Return all tables as Markdown."""
    parts = [f"# {dataset.name}"]
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
                      devices_table(shared)]  # fmt: skip
        points = [each for each in curve if each.quantity == quantity]
        if points:
            parts += ["MAPE on all other networks by the number of networks measured, mean of the "
                      "draws (worst):", curve_table(points, own)]  # fmt: skip
    return "\n\n".join(parts)


def errors_table(judged: Sequence[Judged]) -> str:
    """Show the errors of each method, with what it learnt from and is judged on."""
    headings = (
        "judged on", "learnt from", "method", "networks", "rows", "MAPE", "median", "within 10%",
        "R2", "RMSE ms", "NRMSE", "in 90% interval", "paper's MAPE",
    )  # fmt: skip
    rows = []
    for each in judged:
        found = errors(each.measured, each.predicted)
        aim = PAPER.get(each.quantity, {}).get("all blocks" if each.on == BLOCKS else "all", "")
        rows.append([
            each.on, each.learnt, each.method, str(len(set(each.names))), str(found.rows),
            percent_cell(found.mape), percent_cell(found.median_ape),
            percent_cell(found.within_10), f"{r_squared(each.measured, each.predicted):.3f}",
            f"{found.rmse_ms:.3g}", f"{found.rmse_ms / float(np.ptp(each.measured)):.3f}",
            percent_cell(each.in_interval), f"{aim:.0%}" if aim else UNKNOWN,
        ])  # fmt: skip
    return markdown_table(headings, rows)


def devices_table(judged: Sequence[Judged]) -> str:
    """Show the errors of each method by number of devices, and those of the efficiency."""
    rows = []
    for each in judged:
        for count in each.devices:
            measured, predicted = each.of_devices(count)
            shares = np.array(each.efficiencies(count))
            means = [percent_cell(float(share.mean())) if len(share) else UNKNOWN
                     for share in shares]  # fmt: skip
            off = np.abs(shares[1] / shares[0] - 1)
            mape = percent_cell(errors(measured, predicted).mape)
            rows.append([
                each.on, each.method, str(count), str(len(measured)), mape, *means,
                percent_cell(float(off.mean())) if count > 1 and len(off) else UNKNOWN,
            ])  # fmt: skip
    headings = ("judged on", "method", "devices", "rows", "MAPE", "mean efficiency measured",
                "predicted", "MAPE of the efficiency")  # fmt: skip
    return markdown_table(headings, rows)


def names_table(judged: Sequence[Judged]) -> str:
    """Show the error of each network or block, by fits to the most rows, beside the paper's."""
    most = {each.method: each for each in judged}
    aims = PAPER.get(judged[0].quantity, {})
    rows = [
        [name, *(percent_cell(each.mape_of(name)) for each in most.values()),
         f"{aims[name]:.0%}" if name in aims else UNKNOWN]
        for name in sorted({name for each in most.values() for name in each.names})
    ]  # fmt: skip
    return markdown_table(("network", *most, "paper's"), rows)


def curve_table(points: Sequence[Point], judged: Sequence[Judged]) -> str:
    """Show the learning curve; its end is a fit to all networks but the judged one."""
    methods = list(dict.fromkeys(each.method for each in points))
    ends = {each.method: each for each in judged if each.on == each.learnt == NETWORKS}
    rows = []
    for count in dict.fromkeys(each.networks for each in points):
        own = {each.method: each for each in points if each.networks == count}
        cells = []
        for mapes in (own[name].mapes for name in methods):
            mean = percent_cell(float(np.mean(mapes))) if mapes else UNKNOWN
            cells.append(f"{mean} ({percent_cell(max(mapes, default=math.nan))})")
        rows.append([str(count), f"{own[methods[0]].rows:.0f}", *cells])
    every = str(len(ends[methods[0]].measured))
    rows.append(["all but one", every, *(percent_cell(ends[name].mape) for name in methods)])
    return markdown_table(("networks", "measurements", *methods), rows)


if __name__ == "__main__":
    sys.exit(main())
