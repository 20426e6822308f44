"""How accurate TensorRT's predicted latencies are on published ones of networks, cards and sources.

    python tools/benchmarks/export.py latencies build/latencies          # once; see there
    python tools/benchmarks/latencies.py build/latencies
    python tools/benchmarks/latencies.py build/latencies --dataset build/latencies.h5

Families, sources and cards are left out one after the other. Errors are those of a network on a
card, the mean over its settings: median / mean over networks and cards, and the share within 20%.
BERT stands apart. Errors by release of TensorRT follow, CNNs and transformers apart; and how well
kernels of single engines are ordered, by a fit without the families of these; and the networks of
ResPerfNet's paper on its cards. Beside `kernel-costs` stand the estimate by the data sheet that is
made without any latencies, the data sheet's roofline, and multiply-adds times one factor per card.
Nothing runs on a GPU here: latencies are those that the sources state, read from
$RESPERF_PUBLIC_DATA.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pages import dataset, parser_of, public_data
from scipy.stats import kendalltau, spearmanr

from resperf.campaign.networks import shipped_networks
from resperf.dataset.importing.engine_layers import is_view, typed_layer
from resperf.dataset.importing.trtexec import EngineLayer, read_exports
from resperf.devices import DeviceFacts, canonical_device, device_facts, known_facts
from resperf.devices.estimate import estimated_layer_ms
from resperf.devices.facts import ideal_ms
from resperf.errors import LayerError
from resperf.grouping import grouped
from resperf.layers import Layer, Operand, Operator, layer_of_operator
from resperf.lowering import LoweredNetwork, LoweredNode
from resperf.network import networks_at
from resperf.predictors.intervals import Intervals
from resperf.predictors.kernel_costs import (
    LOWERED_AS,
    Kept,
    Rows,
    SharedCosts,
    kernel_terms,
    network_terms,
    predicted_without,
    rows_of,
)
from resperf.settings import Setting
from resperf.splits import folds_of
from resperf.training.rows import network_examples

Array = npt.NDArray[np.float64]
MOST_BATCH = 32
"""Larger batches are learnt, and not judged."""
FEW = 5
"""Networks of a card that is otherwise left out."""
FEWEST_CARDS = 4
"""Cards that a setting needs for their order to be judged."""
SLOWEST = 5
"""Kernels of an engine that should be named as its slowest."""
OF_ENGINES = ("ResNet", "MobileNetV2")
"""Families of the engines whose kernels are judged."""
PAPERS_NETWORKS, BATCHES = ("lenet5", "alexnet", "vgg16"), (1, 8, 64)
PAPERS_CARDS = ("1080ti", "p1000", "p2000", "p5000")
FAR_APART = 1.5
"""Latencies of one setting that differ by more times than this are listed."""
GROUPS = {"fp16": ("fp16",), "fp32 and tf32": ("fp32", "tf32"), "int8": ("int8",)}


@dataclass(frozen=True)
class Judged:
    """Rows with what tells their settings apart, and predictions by method that need no fit.

    Attributes
    ----------
    rows : Rows
    precisions, names : array of str
        Names are those of networks with their sizes.
    batches : array of int
    releases : array of str
        First number of TensorRT's version.
    transformers : array of bool
        Whether most of its multiply-adds are outside convolutions.
    macs : array
        Multiply-adds.
    sheet : mapping of str to array
        Method -> times by data sheet.
    """

    rows: Rows
    precisions: npt.NDArray[np.str_]
    names: npt.NDArray[np.str_]
    batches: npt.NDArray[np.int64]
    releases: npt.NDArray[np.str_]
    transformers: npt.NDArray[np.bool_]
    macs: Array
    sheet: Mapping[str, Array]

    @property
    def is_bert(self) -> npt.NDArray[np.bool_]:
        return self.rows.families == "BERT"


def read(latencies: Path) -> Judged:
    """Read a dataset of latencies and lower its networks."""
    left_out: list[str] = []
    examples = network_examples(latencies, "execution_ms", left_out=left_out)
    print(*left_out, sep="\n")
    kept: Kept = {}
    rows = rows_of([examples], kept)
    precisions = [setting.precision for setting in examples.settings]
    lowered = [
        kept[id(network), LOWERED_AS.get(precision, precision)]
        for network, precision in zip(examples.networks, precisions, strict=True)
    ]
    layers = [[n.layer for n in network.nodes if n.layer is not None] for network in lowered]
    pairs = list(zip(layers, map(device_facts, rows.devices), strict=True))
    return Judged(
        rows,
        np.array(precisions),
        np.array([network.name for network in examples.networks]),
        np.array([setting.batch for setting in examples.settings]),
        np.array([setting.framework_version.partition(".")[0] for setting in examples.settings]),
        np.array([sum(n.macs * (1 - 2 * (n.kind == "conv")) for n in own) > 0 for own in layers]),
        np.array([sum(layer.macs for layer in own) for own in layers], dtype=float),
        {
            name: np.array([sum(ms_of(layer, facts) for layer in own) for own, facts in pairs])
            for name, ms_of in (("data sheet, today", sheet_ms), ("roofline", roofline_ms))
        },
    )


def sheet_ms(layer: Layer, facts: DeviceFacts) -> float:
    return estimated_layer_ms(layer, facts).ms


def roofline_ms(layer: Layer, facts: DeviceFacts) -> float:
    """Return the time at the peak or at the bandwidth of a data sheet, whichever is longer."""
    peak = facts.peak_of(getattr(layer, "dtype", "float32"))
    return float(np.fmax(ideal_ms(2 * layer.macs, peak), facts.moving_ms(layer.moved_bytes)))


def factor_per_card(judged: Judged, groups: Sequence[str]) -> Array:
    """Predict from multiply-adds times a factor per card and precision, fitted without a group."""
    rates = judged.rows.times_ms / judged.macs
    keys = np.char.add(judged.rows.devices, judged.precisions)
    predicted = np.full(len(rates), np.nan)
    for group in set(groups):
        own = np.asarray(groups) == group
        for key in np.unique(keys[own]):
            rest = (keys == key) & ~own
            if not rest.any():  # a card that is left out: by the peaks of the others
                rest = ~own & (judged.precisions == judged.precisions[keys == key][0])
            predicted[own & (keys == key)] = np.median(rates[rest]) if rest.any() else np.nan
    return predicted * judged.macs


def per_network(judged: Judged, values: Array, chosen: npt.NDArray[np.bool_]) -> Array:
    """Return the mean of values of each network on each card, over its settings."""
    usable, rows = chosen & np.isfinite(values), judged.rows
    keys = zip(rows.networks[usable], rows.devices[usable], judged.precisions[usable], strict=True)
    of_network = grouped(zip(keys, values[usable], strict=True))
    return np.array([np.mean(own) for own in of_network.values()])


def accuracy(errors: Array) -> str:
    if not len(errors):
        return "none"
    center = f"{np.median(errors):.0%} / {errors.mean():.0%}"
    return f"{center}, {np.mean(errors < 0.2):.0%} ({len(errors)})"


def table(judged: Judged, title: str, methods: Mapping[str, Array]) -> None:
    """Print the errors of methods by precision, BERT apart, on cards that have other families."""
    families = grouped(set(zip(judged.rows.devices, judged.rows.families, strict=True)))
    several = np.array([len(families[device]) > 1 for device in judged.rows.devices])
    usual = several & (judged.batches <= MOST_BATCH)
    print(f"\n{title}\n| | {' | '.join(methods)} |\n|---|{'---|' * len(methods)}")
    for name, precisions in GROUPS.items():
        for words, is_bert in (("", False), (", BERT", True)):
            chosen = usual & np.isin(judged.precisions, precisions) & (judged.is_bert == is_bert)
            if chosen.any():
                errors = [np.abs(p / judged.rows.times_ms - 1) for p in methods.values()]
                cells = [accuracy(per_network(judged, own, chosen)) for own in errors]
                print(f"| {name}{words} | {' | '.join(cells)} |")


def layer_of(kernel: EngineLayer) -> Layer:
    """Read a kernel in plain types; one that no kind of layer says all of moves its input."""
    image, *_ = kernel.inputs
    dtype = "float32" if image.dtype == "float32" else "float16"
    ends = [(replace(own, dtype=dtype, layout="linear"),) for own in (image, kernel.outputs[0])]
    parameters = {**kernel.parameters, "Weights": {}, "Activation": "RELU"}
    plain = replace(kernel, inputs=ends[0], outputs=ends[1], parameters=parameters)
    with suppress(LayerError):
        return typed_layer(plain)
    return layer_of_operator(Operator("Relu", {}, (Operand(image.shape, dtype),), (image.shape,)))


Timed: TypeAlias = "tuple[Layer, str, float]"
"""A kernel as a layer, its precision, and its time in ms."""


def exported_engines() -> Iterator[tuple[str, str, list[Timed]]]:
    """Yield name, card and kernels of the engines that trtexec exported."""
    for graph in sorted((public_data() / "trtexec").glob("*.graph.json.gz")):
        others = [str(graph).replace("graph", part) for part in ("profile", "profile.metadata")]
        engine = read_exports([graph, *map(Path, others)])
        runs = [own for own in engine.layers if own.ms > 0 and own.inputs and not is_view(own)]
        types = {"int8": "int8", "float16": "fp16"}
        kernels = [(layer_of(r), types.get(r.inputs[0].dtype, "tf32"), r.ms) for r in runs]
        yield engine.name, canonical_device(engine.device), kernels


def listed_engines() -> Iterator[tuple[str, str, list[Timed]]]:
    """Yield name, card and kernels of the engines in the table of layers."""
    with gzip.open(public_data() / "tensorrt" / "layers.csv.gz", "rt", encoding="utf-8") as file:
        runs = [row for row in csv.DictReader(file) if row["inputs"] and row["outputs"]]
    for (name, gpu), own in grouped(((run["network"], run["gpu"]), run) for run in runs).items():
        kernels = [(listed_layer(run), run["engine"], float(run["median_ms"])) for run in own]
        yield f"{name}, {own[0]['engine']}", canonical_device(gpu), kernels


def listed_layer(run: Mapping[str, str]) -> Layer:
    """Read a kernel of the table; what is neither convolution nor product moves its input."""
    image, *others = (
        tuple(map(int, tensor.split()[0].split("x"))) for tensor in run["inputs"].split("; ")
    )
    result = tuple(map(int, run["outputs"].split()[0].split("x")))
    operand = partial(Operand, dtype="float16")
    if run["kernel"]:
        sides, strides = json.loads(run["kernel"]), json.loads(run["stride"])
        groups, maps = int(float(run["groups"])), int(float(run["out_maps"]))
        sizes = zip(image[2:], result[2:], sides, strides, strict=True)
        pads = [max((out - 1) * step + side - n, 0) for n, out, side, step in sizes]
        around = [*(pad // 2 for pad in pads), *(pad - pad // 2 for pad in pads)]
        window = {"kernel_shape": sides, "strides": strides, "group": groups, "pads": around}
        weights = operand((maps, image[1] // groups, *sides), is_fixed=True)
        added = operand(others[0]) if others else None
        inputs = (operand(image), weights, None, added)
        return layer_of_operator(Operator("Conv", window, inputs, (result,)))
    if run["layer_type"] == "gemm":
        inputs = (operand(image), operand(others[0], is_fixed=True))
        return layer_of_operator(Operator("MatMul", {}, inputs, (result,)))
    return layer_of_operator(Operator("Relu", {}, (operand(image),), (image,)))


def engines(judged: Judged) -> None:
    """Print how well the kernels of engines are ordered by their predicted times."""
    costs = SharedCosts.fit(judged.rows.some(~np.isin(judged.rows.families, OF_ENGINES)))
    print("\n| kernels of | Spearman | slowest |\n|---|---|---|")
    times = [np.empty((2, 0))]
    for name, device, kernels in (*exported_engines(), *listed_engines()):
        own = []
        for layer, precision, ms in kernels:
            node = LoweredNode(layer.kind, layer.kind, layer, "execution")
            alone = LoweredNetwork((node,), (), (), "engine")
            terms = kernel_terms(alone, precision, device_facts(device))
            _, *parts = costs.parts_ms(terms, device).values()  # the first is the host's call
            own.append((sum(parts), ms))
        times.append(np.array(own).T)
        guessed, slowest = (set(order[-SLOWEST:]) for order in np.argsort(times[-1]))
        words = f"{spearmanr(*times[-1]).statistic:.2f} | {len(guessed & slowest)} of {SLOWEST}"
        print(f"| {name}, {device} | {words} |")
    print(f"| all | {spearmanr(*np.hstack(times)).statistic:.2f} | |")


def few_of_card(judged: Judged, seed: int) -> Array:
    """Predict each card's networks from the others and a few networks of its own."""
    rows, random = judged.rows, np.random.default_rng(seed)
    predicted = np.full(len(rows.times_ms), np.nan)
    for device in np.unique(rows.devices):
        own = rows.devices == device
        names = np.unique(rows.networks[own])
        if len(names) > FEW:
            few = own & np.isin(rows.networks, random.choice(names, FEW, replace=False))
            judge = own & ~few
            predicted[judge] = SharedCosts.fit(rows.some(~judge)).predict(rows.some(judge))
    return predicted


def orders(judged: Judged, predicted: Array) -> None:
    """Print Kendall's tau of cards for a setting of a network, and of networks on a card."""
    rows = judged.rows
    how = judged.batches.astype(str), judged.precisions
    settings, on_card = (
        [" ".join(key) for key in zip(of, *how, strict=True)] for of in (judged.names, rows.devices)
    )
    for words, keys, apart in (
        (f"cards for a network, {FEWEST_CARDS} cards or more", settings, rows.devices),
        ("networks on a card, 8 networks or more", on_card, judged.names),
    ):
        least, taus = FEWEST_CARDS if apart is rows.devices else 8, []
        for key in sorted(set(keys)):
            own = np.flatnonzero((np.array(keys) == key) & np.isfinite(predicted))
            if len(set(apart[own])) >= least:
                taus.append(kendalltau(predicted[own], rows.times_ms[own]).statistic)
        print(f"Kendall's tau, order of {words}: mean {np.mean(taus):.2f} of {len(taus)}")


def intervals(judged: Judged, families_out: Array, cards_out: Array) -> None:
    """Print coverage and width of 90% intervals that were made without the rows they are of."""
    rows = judged.rows
    ratios = np.log(rows.times_ms / cards_out)

    def of_families(rest: npt.NDArray[np.bool_]) -> Intervals | None:
        return Intervals.fit(rows.times_ms[rest], families_out[rest], rows.families[rest].tolist())

    def of_cards(rest: npt.NDArray[np.bool_]) -> Intervals | None:
        devices = np.unique(rows.devices[rest])
        return Intervals.of_groups([ratios[rows.devices == device] for device in devices])

    for words, predicted, groups, made_of in (
        ("families", families_out, folds_of(rows.families.tolist()), of_families),
        ("cards", cards_out, rows.devices.tolist(), of_cards),
    ):
        inside, widths = (np.full(len(predicted), np.nan) for _ in range(2))
        for name in set(groups):
            own = np.array(groups) == name
            if (calibrated := made_of(~own)) is not None:
                low, high = calibrated.bounds(predicted[own], np.ones(own.sum(), dtype=bool))
                inside[own] = (low <= rows.times_ms[own]) & (rows.times_ms[own] <= high)
                widths[own] = (high - low) / predicted[own]
        held, bert = (per_network(judged, inside, judged.is_bert == own).mean() for own in (0, 1))
        print(f"90% intervals, {words} left out: hold {held:.0%} (BERT {bert:.0%}), "
              f"median width {np.nanmedian(widths):.2f}")  # fmt: skip


def classics(judged: Judged) -> None:
    """Print the paper's networks on its cards, which no row is of: by data sheet alone."""
    costs = SharedCosts.fit(judged.rows)
    print(f"\nExecution in float32 at batch {', '.join(map(str, BATCHES))} in ms; ResPerfNet's own "
          f"mean error on the measured 1080 Ti is 17% (its section 6.2), none was measured here\n"
          f"| | {' | '.join(PAPERS_CARDS)} |\n|---|{'---|' * len(PAPERS_CARDS)}")  # fmt: skip
    for path in shipped_networks(PAPERS_NETWORKS):
        networks = list(networks_at(path, BATCHES))
        cells = []
        for device in PAPERS_CARDS:
            platform, times = known_facts(device).platform, []
            for network in networks:
                setting = Setting("tensorrt", "", "cuda", batch=network.batch)
                parts = costs.parts_ms(network_terms(network, setting, platform), device)
                times.append(f"{sum(parts.values()):.2f}")
            cells.append(", ".join(times))
        print(f"| {path.stem} | {' | '.join(cells)} |")


def contradictions(judged: Judged) -> None:
    """List latencies of one setting on one card that differ much, with their sources."""
    of = judged.names, judged.rows.devices, judged.precisions, judged.batches.astype(str)
    keys = map(", ".join, zip(*of, strict=True))
    times = zip(judged.rows.times_ms, judged.rows.sources, strict=True)
    for name, said in grouped(zip(keys, times, strict=True)).items():
        if max(said)[0] > FAR_APART * min(said)[0]:
            print(f"- {name}: {'; '.join(f'{source} {ms:g} ms' for ms, source in said)}")


def report(judged: Judged, seed: int) -> None:
    """Print all tables."""
    rows = judged.rows
    families, sources = rows.families.tolist(), rows.sources.tolist()
    print(f"{len(rows.times_ms)} latencies of {len(set(rows.networks))} networks, "
          f"{len(set(families))} families, {len(set(rows.devices))} cards")  # fmt: skip
    families_out = predicted_without(rows, families)
    table(judged, "Families left out", {
        "kernel-costs": families_out, **judged.sheet,
        "factor per card": factor_per_card(judged, families),
    })  # fmt: skip
    table(judged, "Families left out, by release of TensorRT", {
        f"{release}, {'transformers' if own else 'CNNs'}": np.where(
            (judged.releases == release) & (judged.transformers == own), families_out, np.nan
        )
        for release in ("8", "10") for own in (False, True)
    })  # fmt: skip
    engines(judged)
    table(judged, "A source left out", {
        "kernel-costs": predicted_without(rows, sources),
        "factor per card": factor_per_card(judged, sources),
    })  # fmt: skip
    cards = rows.devices.tolist()
    cards_out = predicted_without(rows, cards)
    table(judged, "A card left out", {
        "kernel-costs": cards_out, f"with {FEW} networks of it": few_of_card(judged, seed),
        **judged.sheet, "factor of other cards": factor_per_card(judged, cards),
    })  # fmt: skip
    print()
    orders(judged, families_out)
    intervals(judged, families_out, cards_out)
    classics(judged)
    contradictions(judged)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("graphs", type=Path, help="folder of exported networks")
    parser.add_argument("--dataset", type=Path, help="imported latencies; kept if not there")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = public_data() / "tensorrt" / "rows.csv.gz"
    words = ("import", rows, "--format", "tensorrt-latencies", "--graphs", given.graphs)
    report(read(dataset(given.dataset or given.graphs.with_suffix(".h5"), *words)), given.seed)


if __name__ == "__main__":
    main()
