"""Training steps on several devices of published clusters, by composition and by baselines.

    resperf dataset import ../shared/data/pollux/*.gz --format pollux -o build/pollux.h5
    resperf dataset import ../shared/data/batchai/horovod.csv --format batchai -o build/batchai.h5
    resperf dataset import ../shared/data/gavel/p100.csv --format gavel -o build/gavel.h5
    python tools/benchmarks/distributed.py build/pollux.h5 build/batchai.h5 build/gavel.h5

A dataset that was measured has tables of PredictDDL's regressors, too (microbench/predictddl.toml).
``--clusters`` writes resperf/devices/clusters instead, each drawn to the others' coefficients.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from group_baselines import BASELINES, Rows
from pages import ROOT, TABLES, parser_of

from resperf.dataset import NetworkDescription, read_networks
from resperf.dataset.importing.distributed import PLACEMENT
from resperf.devices.cluster import Cluster, Link, Node
from resperf.devices.exchange import GRADIENT_BYTES, Exchange
from resperf.features import Array
from resperf.features.ghn2 import Embedding
from resperf.files import write_whole
from resperf.grouping import grouped
from resperf.predictors import Examples, predictor_class
from resperf.predictors.exchange_fit import (
    GroupStep,
    corrected_s,
    fit_exchange,
    pooled,
    residual,
    with_interval,
)
from resperf.predictors.network_totals import counted
from resperf.quantities import STEP
from resperf.report.markdown import markdown_table
from resperf.settings import SESSION
from resperf.splits import architecture_of
from resperf.training.learning import values_of
from resperf.training.rows import network_examples
from resperf.units import MS_PER_S

METHODS = ("predictddl", "predictddl-types", "predictddl-linear", "predictddl-full",
           "predictddl-log", "predictddl-svr", "predictddl-mlp", "operator-totals")  # fmt: skip
PAPER_GAINS = {2: 2.6, 4: 5.1, 6: 7.7, 8: 10.3}
"""Networks of a batch -> PredictDDL's Figure 13, as its text says."""
COMPOSED, RESIDUAL = "composed", "composed + residual"
FEWER, SEEDS, SHARES = 8, range(5), (0.5, 0.67, 0.8)
ODD = "yolov3"
"""Pollux' steps of it on one GPU are not monotone in the batch: printed apart."""
CONNECTED = {"IntelMPI": ("infiniband-mpi", "InfiniBand, Intel MPI"),
             "OpenMPI+NCCL": ("tcp-nccl", "TCP, NCCL"),
             "NCCL over Ethernet": ("g4dn", "50 Gbit/s Ethernet"),
             "consolidated": ("gavel", "Ethernet"),
             "unconsolidated": ("gavel", "Ethernet")}  # fmt: skip
"""What devices share -> end of the cluster's name, and words."""

SOURCES = {
    "gavel": "Gavel (Narayanan et al. 2020), MIT; consolidated workers taken as one node",
    "g4dn": "Pollux (Qiao et al. 2021), github.com/petuum/adaptdl",
    **dict.fromkeys(("infiniband-mpi", "tcp-nccl"), "Batch AI's Horovod benchmark, MIT"),
}


def clusters(path: Path) -> dict[str, list[GroupStep]]:
    """Return the steps whose step on one device is known, by cluster; and these steps once."""
    dataset = read_networks(path)
    described = {key: NetworkDescription.from_bytes(content)
                 for key, content in dataset.descriptions.items()}  # fmt: skip
    measured = []
    for row in dataset.measurements:
        network, options = described[row.subject.description], row.setting.options
        nodes = [int(count) for count in options[PLACEMENT].split("+")]
        setting = network, row.setting.batch, row.platform.device
        measured.append((setting, options[SESSION], nodes, row.samples["step_ms"].value / 1e3))
    alone = grouped((setting, step_s) for setting, shared, _, step_s in measured if not shared)
    by_name = grouped(
        (f"{setting[-1]}-{CONNECTED[shared][0]}", _step(setting, nodes, alone[setting], step_s))
        for setting, shared, nodes, step_s in measured
        if sum(nodes) > 1 and setting[0].parameters and setting in alone
    )
    return {name: [*rows, *_alone(rows)] for name, rows in by_name.items()}


def _step(
    setting: tuple[NetworkDescription, int, str], nodes: list[int], alone_s: list[float],
    step_s: float,
) -> GroupStep:  # fmt: skip
    network, batch, _ = setting
    family = re.sub(r"(?<=resnet)\d+", "", network.architecture)
    size_bytes = GRADIENT_BYTES * network.parameters
    return GroupStep(network.architecture, family, batch, size_bytes, sum(nodes), len(nodes),
                     max(nodes), float(np.median(alone_s)), step_s)  # fmt: skip


def _alone(rows: Rows) -> list[GroupStep]:
    """Return the steps on one device, one of each network and batch."""
    return [*{(row.network, row.batch): row._replace(devices=1, nodes=1, per_node=1,
                                                     time_s=row.alone_s)
              for row in rows}.values()]  # fmt: skip


def measured_runs(path: Path) -> tuple[list[GroupStep], Examples]:
    """Return the steps of processes of one machine, and the same rows with their networks."""
    runs = network_examples(path, STEP)
    settings = [
        (network, how.batch or 0, where.devices)
        for network, (how, where) in zip(runs.networks, runs.per_row(), strict=True)
    ]
    alone_s = {(network.name, batch): time_ms / MS_PER_S
               for (network, batch, devices), time_ms in zip(settings, runs.values, strict=True)
               if devices == 1}  # fmt: skip
    kept = [row for row, (network, batch, _) in enumerate(settings)
            if (network.name, batch) in alone_s]  # fmt: skip
    rows = []
    for row in kept:
        network, batch, devices = settings[row]
        rows.append(GroupStep(
            network.name, runs.groups[row], batch, GRADIENT_BYTES * counted(network).weights,
            devices, 1, devices, alone_s[network.name, batch], runs.values[row] / MS_PER_S,
        ))  # fmt: skip
    return rows, runs.select(np.array(kept))


def splits(rows: Rows) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yield the name of each table, a seed, and which rows are judged, in the order of printing."""
    for title, names in (("family out", [row.family for row in rows]),
                         ("network out", [architecture_of(row.network) for row in rows]),
                         ):  # fmt: skip
        if len(set(names)) > 1:
            for name in sorted(set(names)):
                yield title, 0, np.array([own == name for own in names])
    largest = max(row.devices for row in rows)
    fewer = FEWER if largest > FEWER else largest // 2
    if fewer > 1:
        yield f"fitted to {fewer} devices or fewer", 0, np.array([r.devices > fewer for r in rows])
    for share in SHARES:
        for seed in SEEDS:
            order = np.random.default_rng(seed).permutation(len(rows))
            yield f"rows {share:.0%}", seed, order >= round(share * len(rows))


def judged(rows: Rows, runs: Examples | None = None) -> Iterator[list[str]]:
    """Yield the lines of a cluster's tables; what is judged are steps on several devices."""
    errors: dict[tuple[str, str], list[tuple[str, float, float]]] = {}
    is_shared = np.array([row.devices > 1 for row in rows])
    for title, seed, held in splits(rows):
        seen = [row for row, out in zip(rows, held, strict=True) if not out]
        shared = [row for row in seen if row.devices > 1]
        asked = [row for row, out in zip(rows, held & is_shared, strict=True) if out]
        if not asked:
            continue
        fitted = fit_exchange(shared)
        gated, *_ = residual(shared, fitted)
        measured_s = np.array([row.time_s for row in asked])
        predicted_s = {COMPOSED: fitted.times_s(asked), RESIDUAL: corrected_s(asked, fitted, gated)}
        predicted_s |= {name: fit(seen, seed)(asked) for name, fit in BASELINES.items()}
        if runs is not None:
            predicted_s |= _of_methods(runs, np.flatnonzero(~held),
                                       np.flatnonzero(held & is_shared), seed)  # fmt: skip
        inside = np.full(len(asked), np.nan)
        if not title.startswith("rows"):
            ranged = with_interval(shared, fitted).exchange
            ranged = ranged.beyond() if title.startswith("fitted") else ranged
            ratios = measured_s / predicted_s[COMPOSED]
            inside = 1.0 * ((ratios >= ranged.low) & (ratios <= ranged.high))
        for name, times_s in predicted_s.items():
            off = np.abs(times_s / measured_s - 1)
            covered = inside if name == COMPOSED else np.full(len(asked), np.nan)
            names = [row.network for row in asked]
            errors.setdefault((title, name), []).extend(zip(names, off, covered, strict=True))
    for (title, name), own in errors.items():
        _, off, covered = (np.array(column) for column in zip(*own, strict=True))
        networks = grouped((network, error) for network, error, _ in own)
        means = {network: float(np.mean(errors_of)) for network, errors_of in networks.items()}
        usual = np.mean([mean for network, mean in means.items() if network != ODD])
        shown = (usual, off.mean(), np.median(off), covered.mean(), means.get(ODD, np.nan))
        yield [title, name, str(len(off)), *map(cell, shown)]


def _of_methods(runs: Examples, seen: np.ndarray, asked: np.ndarray, seed: int) -> dict[str, Array]:
    """Return the steps in seconds by methods that read networks, fitted to rows of any devices."""
    times_s = {}
    for method in METHODS:
        unfitted = predictor_class(method)("network")
        ready = replace(runs, subjects=unfitted.prepared(runs.networks))
        learnt = ready.select(seen)
        fitted = unfitted.fit(learnt, validation=learnt, seed=seed)
        times_s[method] = values_of(fitted, ready.select(asked)) / MS_PER_S
    return times_s


def batch_costs(path: Path, rows: Rows, runs: Examples) -> Iterator[list[str]]:
    """Yield how many times as long Ernest takes for several networks that are new (Figure 13).

    It measures and fits each; PredictDDL measures and fits others once.
    """
    started = sorted(row.started_at for row in read_networks(path).measurements)
    row_s = float(np.median(np.diff(started)))
    names = np.array([architecture_of(row.network) for row in rows])
    order = np.random.default_rng(0).permutation(np.unique(names))
    for count, paper in PAPER_GAINS.items():
        is_new = np.isin(names, order[:count])
        own = [row for row, new in zip(rows, is_new, strict=True) if new]
        method, at = predictor_class("predictddl")("network"), [time.perf_counter()]
        BASELINES["ernest"](own, 0)(own)
        at.append(time.perf_counter())
        ready = replace(runs, subjects=method.prepared(runs.networks))
        seen, asked = (ready.select(np.flatnonzero(mask)) for mask in (~is_new, is_new))
        at.append(time.perf_counter())
        values_of(method.fit(seen, validation=seen, seed=0), asked)
        ernest_s, embedded_s, fitted_s = np.diff([*at, time.perf_counter()])
        whole_s = fitted_s + embedded_s + 60 * Embedding.load("ghn2").training["minutes"]
        measured_s, ours_s = row_s * len(asked), row_s * len(seen)
        gains = (ernest_s / fitted_s, ernest_s / whole_s,
                 (ernest_s + measured_s) / (whole_s + ours_s))  # fmt: skip
        yield [str(count), f"{paper}", *(f"{gain:.2g}" for gain in gains)]


def cell(share: float) -> str:
    """Return a share in percent; empty if no row has it."""
    return "" if np.isnan(share) else f"{share:.1%}"


def write_clusters(by_name: dict[str, list[GroupStep]]) -> None:
    """Fit and write the clusters that ship, and print how far off each is from the others' mean."""
    own = {name: fit_exchange(rows) for name, rows in by_name.items()}
    for name, rows in by_name.items():
        prior = pooled([fit for other, fit in own.items() if other != name])
        fit = with_interval(rows, fit_exchange(rows, prior), prior)
        device, _, network = name.partition("-")
        words = next(words for end, words in CONNECTED.values() if end == network)
        inside, between = (
            Link(name=link, latency_s=short(pair[0]), bandwidth_bytes_per_s=short(pair[1]))
            for link, pair in (("inside a node", fit.inside), (words, fit.between))
        )
        per_node = max(row.per_node for row in rows)
        # As many as four times the nodes that were measured: beyond that nothing speaks for it.
        nodes = 4 * max(row.nodes for row in rows)
        coefficients = {word: short(value) for word, value in vars(fit.exchange).items()}
        cluster = Cluster(
            name=name, source=f"{SOURCES[network]}; tools/benchmarks/distributed.py --clusters",
            nodes=(Node(name="worker", count=nodes, device=device, devices=per_node),),
            inside=inside, between=between, exchange=Exchange(**coefficients),
        )  # fmt: skip
        path = ROOT / "resperf" / "devices" / "clusters" / f"{name}.toml"
        write_whole(path, cluster.to_toml().encode())
        ratios = np.array([row.time_s for row in rows]) / prior.times_s(rows)
        print(
            name, "steps / those by the mean of other clusters:", np.quantile(ratios, (0.05, 0.95))
        )
    print("mean of all:", vars(pooled(list(own.values())).exchange))


def short(value: float | None) -> float | None:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--clusters", action="store_true", help="write the clusters that ship")
    parser.add_argument("--output", type=Path, default=TABLES / "distributed.md")
    args = parser.parse_args(arguments)
    by_name: dict[str, tuple[list[GroupStep], Examples | None]] = {}
    for file in args.files:
        if read_networks(file).graphs:
            by_name[file.stem] = measured_runs(file)
        else:
            by_name |= {name: (rows, None) for name, rows in clusters(file).items()}
    if args.clusters:
        write_clusters({name: [row for row in rows if row.devices > 1]
                        for name, (rows, _) in by_name.items()})  # fmt: skip
        return
    headings = ("table", "method", "rows", f"mean of networks, without {ODD}", "mean of rows",
                "median of rows", "inside 90%", ODD)  # fmt: skip
    lines = ["# Training steps on several devices", "", (__doc__ or "").split("\n\n")[1], "",
             HOW]  # fmt: skip
    for name, given in sorted(by_name.items()):
        lines += ["", f"## {name}", "", markdown_table(headings, list(judged(*given)))]
    for file in args.files:
        if (given := by_name.get(file.stem)) is not None:
            table = markdown_table(GAIN_HEADINGS, list(batch_costs(file, *given)))
            lines += ["", GAINS.format(file.stem), "", table]
    write_whole(args.output, ("\n".join(lines) + "\n").encode())


GAIN_HEADINGS = ("new networks", "PredictDDL's Figure 13", "fit and predict",
                 "and embeddings, GHN-2 trained", "and all that is measured")  # fmt: skip
GAINS = """How many times as long Ernest takes for networks of {} that are new: it is fitted to runs
of each, PredictDDL once to runs of the others."""
HOW = """Mean |predicted / measured - 1|. `composed`, `one device` and `nearest` are
given each network's step on one device; the others learn those of fitted networks. Intervals are
those of networks left out among the rows that were fitted, wider beyond the devices that were.
`identity` has a random vector for each
network: where it is good, the split proves nothing about other networks. The form of `composed` was
chosen while "network out" of t4-g4dn and the Batch AI clusters was seen: a development set."""


if __name__ == "__main__":
    main()
