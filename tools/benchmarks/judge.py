"""Predicted beside measured time of whole networks, with a bundle as it is and calibrated here.

    python tools/benchmarks/judge.py cpu-onnxruntime                  # LeNet, AlexNet, VGG16, ...
    python tools/benchmarks/judge.py A B --networks build/networks --batch 1 8 --store judged.json
    python tools/benchmarks/judge.py cpu-onnxruntime-xeon --networks build/ninth --seconds 0.5 \\
        --calibrate-seconds 60 300

All networks are measured in turns, one after the other, since a shared machine changes its speed
for minutes: a network's time is the median of its turns, and how far single turns are from it is
printed as well, since no prediction can be better. Turns in which the machine never had its usual
speed count only where there is no other. With --calibrate-seconds, each bundle's calibration layers
are measured between two halves of the turns, and the bundle is judged with nothing and calibrated;
of one that knows this hardware, also as on hardware that it does not know. Measurements are stored
in --store as soon as they exist, so that a stopped run goes on, and other bundles can be judged by
the same times. Nothing is kept where predictions look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pages import parser_of

from resperf.backends import backend
from resperf.bundle import Bundle
from resperf.campaign.networks import shipped_networks
from resperf.errors import ResperfError
from resperf.files import write_whole
from resperf.network import read_network
from resperf.network.files import network_files, network_names
from resperf.prediction import Prediction, predict_network
from resperf.prediction.calibrated import calibrated_here
from resperf.prediction.choice import Query, choose
from resperf.report.engine_comparison import ComparisonRow, comparison_table
from resperf.splits import was_packed
from resperf.workflows.calibrate_layers import fitted, measure_layers
from resperf.workflows.measure import measure_network, reference_monitor

Turns = dict[str, list[dict[str, float]]]
"""Network and batch size -> its turns: total in ms, and how many rounds were steady."""
Runs = Mapping[str, tuple[Path, int]]


@dataclass(frozen=True)
class Judged:
    """A prediction of a run beside the median of its turns."""

    path: Path
    prediction: Prediction
    measured_ms: float

    @property
    def error(self) -> float:
        return self.prediction.total_ms / self.measured_ms - 1

    @property
    def precision(self) -> str:
        """The network's precision by its name, as networks.toml gives them."""
        named = (name for name in ("fp16", "int8") if f"-{name}" in self.path.stem)
        return next(named, "float32")

    def row(self, name: str) -> ComparisonRow:
        lacking = len(self.prediction.skipped)
        remark = f"without {lacking} operators" if lacking else ""
        batch = self.prediction.subject.batch
        return ComparisonRow(name, batch, self.prediction.total_ms, self.measured_ms, remark)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("bundles", nargs="+", help="names or folders")
    parser.add_argument("--networks", type=Path, nargs="+", help="default: models/networks")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--turns", type=int, default=3, help="over all networks")
    parser.add_argument("--seconds", type=float, default=1.0, help="per network and turn")
    parser.add_argument("--calibrate-seconds", type=float, nargs="+", default=[])
    parser.add_argument("--store", type=Path, help="store measurements here, and resume from them")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    words = parser.parse_args()
    bundles = {word: choose(Query(word)).bundle for word in words.bundles}
    paths = network_files(words.networks) if words.networks else shipped_networks(["*"])
    names = network_names(paths)
    runs = {f"{names[path]}@{batch}": (path, batch) for path in paths for batch in words.batch}
    is_stored = words.store and words.store.exists()
    turns: Turns = json.loads(words.store.read_text()) if is_stored else {}
    first = next(iter(bundles.values()))
    before = words.turns // 2 if words.calibrate_seconds else words.turns
    measure(runs, turns, before, first, words.seconds, words.store)
    ways = {word: versions(bundle, words.calibrate_seconds) for word, bundle in bundles.items()}
    measure(runs, turns, words.turns, first, words.seconds, words.store)
    runs = {key: run for key, run in runs.items() if turns.get(key)}
    print(noise([turns[key] for key in runs]))
    rows: dict[str, list[dict[str, Any]]] = {}
    for word, variants in ways.items():
        for label, bundle in variants.items():
            judged = judge(bundle, runs, turns)
            table = [judged[key].row(key.rpartition("@")[0]) for key in judged]
            print(f"\n{word}, {label}:\n{comparison_table(table)}\n{report(judged, bundle)}")
            rows[word if label == "nothing" else f"{word}, {label}"] = [vars(row) for row in table]
    if words.json:
        words.json.write_text(json.dumps(rows, indent=1))


def measure(
    runs: Runs, turns: Turns, count: int, bundle: Bundle, seconds: float, store: Path | None
) -> None:
    """Measure every network until it has so many turns; what cannot run is named."""
    device = backend(bundle.framework, threads=bundle.setting.threads)
    with reference_monitor(device, bundle=bundle) as monitor:
        for turn in range(count):
            for key, (path, batch) in runs.items():
                if len(turns.get(key, ())) > turn:
                    continue
                try:
                    measured = measure_network(
                        path, device, batch=batch, seconds=seconds, layers=False, monitor=monitor
                    )
                except (ResperfError, MemoryError) as error:
                    print(f"{key} is not measured: {error}", flush=True)
                    continue
                timed = measured.timed
                values = {"total_ms": measured.total_ms, "steady_rounds": timed.steady_rounds}
                turns.setdefault(key, []).append(values)
                if store is not None:
                    write_whole(store, json.dumps(turns, indent=1).encode())
                print(f"turn {turn + 1}: {key}: {measured.total_ms:.4g} ms, "
                      f"{timed.steady_rounds} of {timed.rounds} rounds steady, "
                      f"reference {timed.reference_ratio:.2f}",
                      flush=True)  # fmt: skip


def versions(bundle: Bundle, seconds: Sequence[float]) -> dict[str, Bundle]:
    """Return a bundle as it is, and calibrated for each of several times."""
    bundles = {"nothing": bundle}
    shipped = calibrated_here(bundle)
    if shipped.calibrated_by is not None and shipped.calibrated_by.from_bundle:
        bundles["as on a similar machine that it knows"] = shipped
    for duration_s in seconds:
        label = f"calibrated in {duration_s:.0f} s"
        try:
            run = measure_layers(bundle, seconds=duration_s)
            here, unknown = fitted(bundle, run), fitted(bundle, run, anew=True)
        except ResperfError as error:
            print(f"{label}: not judged: {error}", flush=True)
            continue
        print(f"{label}: {here.summary()}", flush=True)
        bundles[label] = bundle.for_machine(here)
        if (unknown.factors, unknown.others) != (here.factors, here.others):
            bundles[f"{label}, as on unknown hardware"] = bundle.for_machine(unknown)
    return bundles


def counted_ms(turns: Sequence[Mapping[str, float]]) -> list[float]:
    """Return times of the turns with a steady round; of all where none had one."""
    steady = [turn["total_ms"] for turn in turns if turn["steady_rounds"]]
    return steady or [turn["total_ms"] for turn in turns]


def noise(turns: Sequence[Sequence[Mapping[str, float]]]) -> str:
    """Say how much the turns of one network differ: no prediction can be better."""
    several = [times for times in map(counted_ms, turns) if len(times) > 1]
    if not several:
        return "measured once: how much repeats differ is not known"
    apart = [max(times) / min(times) - 1 for times in several]
    off = [fmean(abs(ms / median(times) - 1) for ms in times) for times in several]
    return (f"repeats differ by {median(apart):.1%} (median) and are {fmean(off):.1%} off their "
            f"median (mean), {len(turns) - len(several)} networks have none")  # fmt: skip


def judge(bundle: Bundle, runs: Runs, turns: Turns) -> dict[str, Judged]:
    """Predict every run; what cannot be predicted is named and left out."""
    judged = {}
    for key, (path, batch) in runs.items():
        try:
            prediction = predict_network(read_network(path, batch=batch), bundle)
        except ResperfError as error:
            print(f"{key} is not predicted: {error}", flush=True)
            continue
        judged[key] = Judged(path, prediction, median(counted_ms(turns[key])))
    return judged


def report(judged: Mapping[str, Judged], bundle: Bundle) -> str:
    """Summarise errors and intervals by precision, and what the bundle had learnt from."""
    every = list(judged.values())
    groups = {name: [run for run in every if run.precision == name]
              for name in sorted({run.precision for run in every})}  # fmt: skip
    groups = {"all": every, **(groups if len(groups) > 1 else {})}
    keys = sorted({layer.key for run in every for layer in run.prediction.layers})
    lines = [f"  {name}: {summary(own)}" for name, own in groups.items() if own]
    if "training" in bundle.part:
        seen = was_packed(keys, bundle.part["training"]["seen"])
        lines.append(f"  {int(seen.sum())} of {len(keys)} judged layers were learnt from")
    return "\n".join(lines)


def summary(judged: Sequence[Judged]) -> str:
    """Say how far off runs are, and what their intervals hold."""
    off = [abs(run.error) for run in judged]
    shown = [run.prediction for run in judged]
    inside = [run.prediction.low_ms <= run.measured_ms <= run.prediction.high_ms for run in judged]
    width = median((run.high_ms - run.low_ms) / run.total_ms for run in shown)
    lacking = sum(not prediction.complete for prediction in shown)
    return (
        f"{len(off)} runs: mean error {fmean(off):.1%}, median {median(off):.1%}, within 10% "
        f"{fmean(e <= 0.1 for e in off):.0%}, within 15% {fmean(e <= 0.15 for e in off):.0%}, "
        f"worst {max(off):.0%}, mean deviation {fmean(e.error for e in judged):+.1%}; in the 90% "
        f"interval {fmean(inside):.0%}, median width {width:.2f}; {lacking} incomplete"
    )


if __name__ == "__main__":
    main()
