#!/usr/bin/env python
"""What whole networks tell of the operators in them: writes tables of docs/gpus.md.

    python tools/benchmarks/export.py language build/gpu_networks
    python tools/benchmarks/export.py operators.jsonl.gz build/gpu_networks
    for device in 3090 4090; do
        resperf dataset import ../shared/data/timm/*$device*.csv.gz \\
            ../shared/data/timm/operators.jsonl.gz --format timm -o build/timm-$device.h5
    done
    python tools/report_inferred.py build/gpu_networks build/timm-*.h5    # 5 minutes on one core
    python tools/report_inferred.py build/gpu_networks build/timm-*.h5 --only graphs

Three parts. ``classes``: `class-costs` fitted to the totals of NeuSight's networks on all cards
together, without any row of an operator, beside the operators' own times and beside `roofline`.
``layers``: two networks group by group on cards that were measured and on inferred ones.
``graphs``: the same timm network as ONNX graph and as published list of operators. NeuSight's files
are read from $RESPERF_PUBLIC_DATA (../shared/data by default). No measured row of them is written.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from report_accuracy import ROOT, public_data
from report_gpus import Rows, commit, default_work, fit, import_all, rows_of
from report_gpus import write as write_between
from report_timm import File, files_of

from resperf.dataset import NetworkDescription, read_networks
from resperf.devices import DeviceFacts, device_facts, estimated_layer_ms
from resperf.errors import ResperfError
from resperf.features import columns_of
from resperf.layers import Layer
from resperf.lowering.torch import lower
from resperf.measurement import DEFECTS, NetworkRef
from resperf.network import Network, read_graph, read_network
from resperf.platform import Platform
from resperf.predictors._base import Band
from resperf.predictors._fitted_classes import ClassFit, group_of
from resperf.predictors.class_costs import described
from resperf.predictors.operator_classes import (
    UPDATE,
    RunNetwork,
    Terms,
    class_terms,
    run_network,
)
from resperf.predictors.roofline import Roofline
from resperf.quantities import EXECUTION
from resperf.report.markdown import markdown_table
from resperf.settings import Setting

BEGIN, END = (
    "<!-- tools/report_inferred.py writes below -->",
    "<!-- tools/report_inferred.py wrote above -->",
)
HEADING = "## What whole networks tell of operators"
FORWARD = "forward_ms"
PRODUCTS, BATCHED, SOFTMAX, NORM, ELEMENTWISE, OTHER = GROUPS = (
    "products", "batched products", "softmax", "normalisation", "element-wise",
    "copies and others",
)  # fmt: skip
OF_LISTED: Mapping[str, str] = {
    "Linear": PRODUCTS, "addmm": PRODUCTS, "matmul": BATCHED, "softmax": SOFTMAX,
    "LayerNorm": NORM,
    **dict.fromkeys(
        ("add", "gelu", "mul", "pow", "sub", "tanh", "Tanh", "truediv", "where"), ELEMENTWISE
    ),
}  # fmt: skip
"""Operators as NeuSight's lists name them."""
OF_CLASSES: Mapping[str, str] = {
    "batched product": BATCHED, "product": PRODUCTS, "softmax": SOFTMAX, "layer norm": NORM,
    "pointwise": ELEMENTWISE, "gelu": ELEMENTWISE, "power": ELEMENTWISE,
}  # fmt: skip
"""How the names of classes begin."""
LEARNT_KINDS = ("conv", "matmul", "dense", "elementwise", "activation", "softmax", "norm")
SORTS: Mapping[str, tuple[str, ...]] = {
    "conv": ("kernel_height", "kernel_width", "stride_height", "stride_width"),
    "activation": ("activation",),
    **dict.fromkeys(("elementwise", "norm"), ("function",)),
}
"""Kind -> fields by which layers are of sorts that need rows of their own."""

MEASURED_CARD, OTHER_CARD = "v100-pcie", "h100"
INFERRED_SETTING = ("rtx4090", "2.4.0")
LAYER_BY_LAYER = {"resnet50-224": 64, "bert_large-512": 8}
"""Network -> batch size."""
LEAST_SHARE = 0.005
"""Of a network's time on every card, below which a class is not shown."""
SAME_NETWORK_ON = (("rtx4090", "2.4.0"), ("rtx3090", "2.4.0"))
SAME_BATCH, LISTED_BATCH = 256, 2
"""Batch size of the compared predictions, and that of the operators' shapes in timm's lists."""
FAR = 0.05
"""Relative difference of graph and list from which a network is named."""
NAMED_CLASSES = 3


class Part(NamedTuple):
    """A kernel's class, its time, and whether rows of its device taught that."""

    of: str
    ms: float
    measured: bool


@dataclass(frozen=True)
class Run:
    """One network on one card under one setting, times in ms.

    Attributes
    ----------
    network : Network
    setting : Setting
    platform : Platform
    facts : DeviceFacts
    total_ms : float
    listed_ms : mapping of str to float
        Group -> sum over the operators of the same run.
    """

    network: Network
    setting: Setting
    platform: Platform
    facts: DeviceFacts
    total_ms: float
    listed_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.network.name}, batch {self.setting.batch}, {self.facts.device}"

    @property
    def terms(self) -> Terms:
        return class_terms(run_network(self.network, self.setting), self.facts)


def import_networks(graphs: Path, work: Path) -> list[Path]:
    """Import NeuSight's networks with their graphs, one dataset per card, once."""
    found = []
    for folder in sorted((public_data() / "neusight" / "networks").iterdir()):
        target = work / f"networks-{folder.name}.h5"
        if not target.exists():
            files = [str(path) for path in sorted(folder.glob("*.csv.gz"))]
            words = ["dataset", "import", *files, "--format", "neusight", "--graphs", str(graphs)]
            command = [sys.executable, "-m", "resperf.cli.main", *words, "-o", str(target)]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(f"{folder.name} could not be imported")
        found.append(target)
    return found


def runs_of(dataset: Path) -> Iterator[Run]:
    """Yield inferences of networks that have a graph and no defect."""
    found = read_networks(dataset)
    for row in found.measurements:
        subject = row.subject
        if not isinstance(subject, NetworkRef) or set(row.flags) & set(DEFECTS):
            continue
        if math.isnan(row.value(EXECUTION)) or not subject.digest:
            continue
        facts = device_facts(row.platform.device)
        if facts is None:
            raise SystemExit(f"{dataset}: the data sheet of its device is not known")
        content = found.graphs[subject.digest]
        description = NetworkDescription.from_bytes(found.descriptions[subject.description])
        yield Run(
            read_graph(content, subject.name, batch=row.setting.batch), row.setting, row.platform,
            facts, row.value(EXECUTION), listed_times_ms(description),
        )  # fmt: skip


def listed_times_ms(description: NetworkDescription) -> dict[str, float]:
    """Add up the operators' times by group, without the launch that each of them contains."""
    times = [(each, each.times_ms[FORWARD]) for each in description.operators]
    launch_ms = min(time_ms for _, time_ms in times if time_ms > 0)
    found = dict.fromkeys(GROUPS, 0.0)
    for each, time_ms in times:
        found[OF_LISTED.get(each.op, OTHER)] += each.count * max(time_ms - launch_ms, 0.0)
    return found


def short_group(name: str) -> str:
    """Return the group of a class in the comparison with measured operators."""
    return next((group for start, group in OF_CLASSES.items() if name.startswith(start)), OTHER)


@dataclass
class Operators:
    """`roofline`, learnt from the single operators of all cards."""

    work: Path
    _known: dict[str, tuple[Roofline, Rows]] = field(default_factory=dict)

    def of(self, kind: str) -> tuple[Roofline, Rows]:
        """Return what predicts a kind, learnt when it is first needed, and its rows."""
        if kind not in self._known:
            rows = rows_of(self.work, kind)
            learnt = fit(rows, np.ones(len(rows.times_ms), dtype=bool))
            self._known[kind] = learnt, rows
        return self._known[kind]

    def parts(
        self, network: Network, setting: Setting, platform: Platform, facts: DeviceFacts
    ) -> list[Part]:
        """Predict the kernels of a network; by the data sheet where there is no predictor."""
        run = run_network(network, setting)
        nodes = [node for node in lower(network, setting, platform).nodes if node.op != "unknown"]
        if len(nodes) != len(run.operators):
            raise SystemExit(f"{network.name}: {len(nodes)} kernels, {len(run.operators)} listed")
        names = [class_of(RunNetwork(run.name, (each,)), facts) for each in run.operators]
        times: dict[int, tuple[float, bool]] = {}
        places: dict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(nodes):
            if node.layer is not None:
                places[node.layer.kind].append(place)
        for kind, chosen in places.items():
            layers: list[Layer] = [nodes[place].layer for place in chosen]
            sheet = [estimated_layer_ms(each, facts).ms for each in layers]
            if kind not in LEARNT_KINDS:
                times |= {place: (ms, False) for place, ms in zip(chosen, sheet, strict=True)}
                continue
            predictor, rows = self.of(kind)
            values = predictor.predict(columns_of(layers), setting, platform)[EXECUTION].values
            taught = sorts_of(rows, facts.device)
            times |= {
                place: (sheet_ms, False)
                if math.isnan(ms)
                else (float(ms), sort_of(layer) in taught)
                for place, layer, ms, sheet_ms in zip(chosen, layers, values, sheet, strict=True)
            }
        return [Part(name, *times[place]) for place, name in enumerate(names) if place in times]


def sort_of(layer: Layer) -> tuple[Any, ...]:
    """Return what tells sorts of layers of one kind apart: function, or window and stride."""
    return tuple(getattr(layer, name) for name in SORTS.get(layer.kind, ()))


def sorts_of(rows: Rows, device: str) -> set[tuple[Any, ...]]:
    """Return the sorts of layers of which a device has rows."""
    own = rows.of(device)
    if not np.any(own):
        return set()
    names = SORTS.get(rows.kind, ())
    columns = [rows.columns[name][own].tolist() for name in names]
    return set(zip(*columns, strict=True)) if names else {()}


def class_of(network: RunNetwork, facts: DeviceFacts) -> str:
    """Return the class of a network's only operator."""
    return next(cost.of for cost in class_terms(network, facts) if cost != UPDATE)


def sums_ms(parts: Sequence[Part], name_of: Callable[[str], str]) -> dict[str, float]:
    """Add up times by name."""
    found: dict[str, float] = defaultdict(float)
    for part in parts:
        found[name_of(part.of)] += part.ms
    return found


def classes(given: Given) -> str:
    """Compare inferred classes of operators with measured ones."""
    runs = [run for path in import_networks(given.graphs, given.work) for run in runs_of(path)]
    learnt = inferred_from_totals(runs)
    total_ms = np.array([run.total_ms for run in runs])
    errors = 100 * np.abs(learnt.predict([run.terms for run in runs]).values / total_ms - 1)
    by_roofline = [
        sums_ms(given.operators.parts(run.network, run.setting, run.platform, run.facts),
                short_group)
        for run in runs
    ]  # fmt: skip
    sums = 100 * np.abs(
        np.array([[sum(own.values()) for own in by_roofline],
                  [sum(run.listed_ms.values()) for run in runs]]) / total_ms - 1
    )  # fmt: skip
    return "\n\n".join([
        f"`class-costs` fitted to the totals of {len(runs)} runs of "
        f"{len({run.network.name for run in runs})} networks on "
        f"{len({run.facts.device for run in runs})} cards together, no row of an operator used: "
        f"{described('all cards', learnt, len(runs)).partition(': ')[2]}.",
        f"Errors of the same totals, MAPE: fitted {errors.mean():.1f}%, sum of the operators that "
        f"`roofline` predicts {sums[0].mean():.1f}%, sum of the operators measured in the run "
        f"{sums[1].mean():.1f}%.",
        "Of each group: its share of the measured total (mean over runs); the share that is "
        "inferred, and the band of equally good fits; in how many runs the measured time is inside "
        "the band; and inferred over measured, and predicted from single operators over measured "
        "(median, lowest and highest run).",
        class_table(runs, [attributed_groups(learnt, run.terms) for run in runs], by_roofline),
    ])  # fmt: skip


def inferred_from_totals(runs: Sequence[Run]) -> ClassFit:
    """Fit costs of classes, relative to data sheets, to the totals of all cards together."""
    return ClassFit.fit(
        [run.terms for run in runs], np.array([run.total_ms for run in runs]),
        [run.network.name for run in runs], training=False,
    )  # fmt: skip


def attributed_groups(learnt: ClassFit, terms: Terms) -> dict[str, Band]:
    """Add up what is attributed to classes, by group; bands as if all were off together."""
    found = {}
    for name, band in learnt.attributed(terms).items():
        group = short_group(name)
        sums = zip(band, found.get(group, (0.0, 0.0, 0.0)), strict=True)
        found[group] = Band(*map(sum, sums))
    return found


def class_table(
    runs: Sequence[Run],
    inferred: Sequence[Mapping[str, Band]],
    by_roofline: Sequence[Mapping[str, float]],
) -> str:
    """Lay out one row per group."""
    cells = []
    for group in GROUPS:
        measured_ms = np.array([run.listed_ms[group] for run in runs])
        bands = np.array([own.get(group, Band(0.0, 0.0, 0.0)) for own in inferred])
        predicted_ms = np.array([own.get(group, 0.0) for own in by_roofline])
        shares = bands / np.array([run.total_ms for run in runs])[:, None]
        value, low, high = shares.mean(axis=0)
        inside = np.sum((measured_ms >= bands[:, 1]) & (measured_ms <= bands[:, 2]))
        share = np.mean(measured_ms / [run.total_ms for run in runs])
        cells.append([
            group, f"{share:.1%}", f"{value:.1%}", f"{low:.1%} to {high:.1%}",
            f"{inside} of {len(runs)}", ratio_cell(bands[:, 0] / measured_ms),
            ratio_cell(predicted_ms / measured_ms),
        ])  # fmt: skip
    headings = ("group", "measured", "inferred", "band", "inside", "inferred / measured",
                "from operators / measured")  # fmt: skip
    return markdown_table(headings, cells)


def ratio_cell(ratios: Any) -> str:
    """Write a median with the lowest and the highest value."""
    return f"{np.median(ratios):.2f} ({np.min(ratios):.2f} to {np.max(ratios):.2f})"


def layers(given: Given) -> str:
    """Show two networks by class of operators on measured and on inferred cards."""
    learnt, facts = fit_of(given.datasets, *INFERRED_SETTING)
    texts = []
    for name, batch in LAYER_BY_LAYER.items():
        network = read_network(given.graphs / f"{name}.onnx", batch=batch)
        columns: dict[str, Mapping[str, Band]] = {}
        for device in (MEASURED_CARD, OTHER_CARD):
            card = device_facts(device)
            assert card is not None  # Both are in the table of devices.
            setting = Setting("torch", "2.1.0", "cuda", 0, batch=batch, precision="fp32")
            parts = given.operators.parts(network, setting, Platform(device), card)
            known = sum(part.ms for part in parts if part.measured) / sum(p.ms for p in parts)
            columns[f"{card.name}, float32, {known:.0%} from rows of its own"] = {
                of: Band(ms, ms, ms) for of, ms in sums_ms(parts, plain_class).items()
            }
        setting = Setting("torch", "2.4.0", "cuda", 0, batch=batch, precision="amp")
        terms = class_terms(run_network(network, setting), facts)
        columns[f"{facts.name}, amp, inferred from networks"] = {
            plain_class(of): band for of, band in learnt.attributed(terms).items()
        }
        texts += [f"`{name}`, batch {batch}, ms:", layer_table(columns)]
    return "\n\n".join(texts)


def plain_class(name: str) -> str:
    """Return a class without the type of its values."""
    return name.removesuffix(" float32")


def layer_table(columns: Mapping[str, Mapping[str, Band]]) -> str:
    """Lay out classes under their groups, a time and its share in one column per card."""
    totals = [sum(band.value for band in column.values()) for column in columns.values()]

    def row(name: str, chosen: Callable[[str], bool]) -> list[str] | None:
        cells, shares = [name], []
        for column, total in zip(columns.values(), totals, strict=True):
            own = [band for of, band in column.items() if chosen(of)]
            value, low, high = (math.fsum(each) for each in zip(*own, strict=True)) if own else (
                0.0, 0.0, 0.0
            )  # fmt: skip
            shares.append(value / total)
            band = f" ({low:.2f} to {high:.2f})" if high > low else ""
            cells.append(f"{value:.2f}{band}, {value / total:.0%}" if own else "")
        return cells if max(shares) >= LEAST_SHARE else None

    names = {of: group_of(of) for column in columns.values() for of in column}
    rows = [row("**all**", lambda _: True)]
    for group in dict.fromkeys(names.values()):
        rows.append(row(f"**{group}**", lambda of, group=group: names[of] == group))
        rows += [
            row(each, lambda of, each=each: of == each)
            for each in sorted(names) if names[each] == group
        ]  # fmt: skip
    return markdown_table(("", *columns), [each for each in rows if each is not None])


def fit_of(datasets: Sequence[Path], device: str, version: str) -> tuple[ClassFit, DeviceFacts]:
    """Fit class costs to the eager inferences in NCHW of a card and version."""
    file = file_of(tuple(datasets), device, version)
    learnt = ClassFit.fit(
        file.terms, file.times_ms, file.families, training=False, similar=file.same
    )
    return learnt, file.facts


@cache
def file_of(datasets: tuple[Path, ...], device: str, version: str) -> File:
    """Find the file of a card's eager inferences with autocast."""
    for path in datasets:
        for file in files_of(path):
            own = file.setting
            if (file.facts.device, own.framework_version, file.sort, own.layout) == (
                device, version, "eager", "nchw",
            ):  # fmt: skip
                return file
    raise SystemExit(f"none of the datasets has eager inferences of {device} with torch {version}")


def graphs(given: Given) -> str:
    """Compare predictions through ONNX graphs with those from published lists."""
    texts = []
    for device, version in SAME_NETWORK_ON:
        learnt, facts = fit_of(given.datasets, device, version)
        setting = Setting("torch", version, "cuda", 0, precision="amp", layout="nchw")
        file = file_of(tuple(given.datasets), device, version)
        listed = {each.name: replace(each, scale=SAME_BATCH / LISTED_BATCH)
                  for each in file.networks}  # fmt: skip
        found, unread = {}, []
        for path in sorted(given.graphs.glob("*.onnx")):
            if path.stem not in listed:
                continue
            try:
                graph = graph_run(path, setting)
            except ResperfError as error:
                unread.append(f"{path.stem} ({error})")
                continue
            both = graph, listed[path.stem]
            found[path.stem] = difference(learnt, *(class_terms(each, facts) for each in both))
        texts.append(difference_text(facts, version, found, unread))
    return "\n\n".join(texts)


def graph_run(path: Path, setting: Setting) -> RunNetwork:
    """Read the operators of a graph, with the shapes that lists have."""
    run = run_network(read_network(path, batch=LISTED_BATCH), setting)
    return replace(run, scale=SAME_BATCH / LISTED_BATCH)


class Difference(NamedTuple):
    """Prediction through a graph over that from a list, and the classes that differ most.

    `by_class` has differences of attributed time as shares of the list's time.
    """

    ratio: float
    by_class: Mapping[str, float]


def difference(learnt: ClassFit, graph: Terms, listed: Terms) -> Difference:
    """Compare the two predictions of a network."""
    ours, theirs = (learnt.attributed(each) for each in (graph, listed))
    nothing = Band(0.0, 0.0, 0.0)
    total_ms, of_list_ms = (float(learnt.predict([each]).values[0]) for each in (graph, listed))
    return Difference(
        total_ms / of_list_ms,
        {of: (ours.get(of, nothing).value - theirs.get(of, nothing).value) / of_list_ms
         for of in {*ours, *theirs}},
    )  # fmt: skip


def difference_text(
    facts: DeviceFacts, version: str, found: Mapping[str, Difference], unread: Sequence[str]
) -> str:
    """Say how far graphs and lists differ, and name networks that differ much."""
    off = np.abs([each.ratio - 1 for each in found.values()])
    far = {name: each for name, each in found.items() if abs(each.ratio - 1) > FAR}
    told = [
        f"{facts.name}, torch {version}: of {len(found)} networks, the median difference is "
        f"{np.median(off):.2%}, 90% are below {np.quantile(off, 0.9):.1%}, the largest is "
        f"{off.max():.1%}; {len(far)} differ by more than {FAR:.0%}."
    ]
    if unread:
        told.append(f"Not lowered: {'; '.join(unread)}.")
    cells = [
        [name, f"{each.ratio - 1:+.1%}", ", ".join(
            f"{of} {share:+.1%}"
            for of, share in sorted(each.by_class.items(), key=lambda item: -abs(item[1]))
            [:NAMED_CLASSES]
        )]
        for name, each in sorted(far.items(), key=lambda item: -abs(item[1].ratio - 1))
    ]  # fmt: skip
    return "\n\n".join([
        *told, markdown_table(("network", "graph against list", "classes"), cells)
    ])  # fmt: skip


@dataclass(frozen=True)
class Given:
    """What the parts read."""

    graphs: Path
    datasets: Sequence[Path]
    work: Path
    operators: Operators


PARTS: Mapping[str, tuple[str, Callable[[Given], str]]] = {
    "classes": ("### Inferred against measured", classes),
    "layers": ("### Two networks, class by class", layers),
    "graphs": ("### ONNX graph against list of operators", graphs),
}


def main() -> None:
    """Make the parts that are asked for, and write all that there are."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("graphs", type=Path, help="folder of exported networks")
    parser.add_argument("datasets", type=Path, nargs="+", help="of timm, imported")
    parser.add_argument("--work", type=Path, default=default_work())
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "gpus.md")
    words = parser.parse_args()
    import_all(public_data(), words.work)
    given = Given(words.graphs, words.datasets, words.work, Operators(words.work))
    for name in words.only.split(","):
        start = time.process_time()
        result = {"commit": commit(), "text": PARTS[name][1](given)}
        (words.work / f"inferred-{name}.json").write_text(json.dumps(result) + "\n")
        print(f"{name}: {time.process_time() - start:.0f} s", flush=True)
    texts = []
    for name, (heading, _) in PARTS.items():
        path = words.work / f"inferred-{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            texts += [heading, f"Computed at commit `{result['commit']}`.", result["text"]]
    write_between("\n\n".join(texts), words.output, (HEADING, BEGIN, END))


if __name__ == "__main__":
    main()
