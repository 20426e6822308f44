#!/usr/bin/env python
"""Predicted beside measured time of whole networks: the figures that README and docs give.

Measures LeNet-5, AlexNet and VGG16 (or the networks named) at several batch sizes on this machine
and prints every bundle's prediction beside it. Train one bundle without the judged networks' layers
(`resperf train DATA.h5 --exclude ... -o A`) and one with them allowed (`... -o B`), then:

    python tools/benchmark_networks.py --bundle A --bundle B
    python tools/benchmark_networks.py --bundle A build/networks --batch 1 8 --store measured.json

All are measured in several sittings, one after the other, since a shared machine changes its speed
for minutes: a network's time is the median of its sittings, and the spread is printed beside it.
Sittings in which the machine never had its usual speed count only where there is no other.
Measurements are stored in --store, so that a stopped run resumes, and other bundles can be judged
by the same times. With --families each network is also predicted with an in-network correction
(`resperf calibrate`) fitted to the networks of all other families.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from resperf.backends import backend
from resperf.bundle import Bundle
from resperf.campaign.harvest import shipped_networks
from resperf.errors import ResperfError
from resperf.network import read_network
from resperf.network.files import network_files, network_names
from resperf.prediction import Prediction, predict_network
from resperf.report.comparison import ComparisonRow, comparison_table, mean_error
from resperf.splits import was_packed
from resperf.training.correction import Placed, fit_correction, total_ms
from resperf.workflows.calibrate import placed_network
from resperf.workflows.measure import measure_network, reference_monitor

NAMES = ("lenet5", "alexnet", "vgg16")
BATCHES = (1, 2, 4, 8, 16)
FAMILIES: Mapping[str, Sequence[str]] = {
    "resnet": ("resnet", "resnext", "wide_resnet", "seresnet", "resnest", "nf_resnet", "res2net",
               "fcn_resnet", "light_resnet", "selecsls"),
    "vgg": ("vgg", "light_vgg", "repvgg", "lenet", "alexnet", "zfnet", "light_bvlc_alexnet",
            "light_zfnet", "nin", "darknet19"),
    "inception": ("inception", "googlenet", "xception", "light_inception"),
    "densenet": ("densenet", "light_densenet", "vovnet", "hrnet", "dla", "dpn"),
    "csp": ("csp",),
    "regnet": ("regnet",),
    "mobile": ("mobilenet", "mnasnet", "fbnet", "spnasnet", "efficientnet", "tf_efficientnet",
               "lcnet", "mixnet", "hardcorenas", "tinynet", "rexnet", "ghostnet", "deeplabv3",
               "lraspp"),
    "shuffle": ("shufflenet", "squeezenet", "light_shufflenet", "light_squeezenet"),
    "vit": ("vit", "deit", "pit", "levit", "xcit", "coat"),
    "swin": ("swin",),
    "mixer": ("mixer", "resmlp", "gmlp"),
    "convnext": ("convnext", "convmixer", "poolformer", "edgenext"),
    "mobilevit": ("mobilevit",),
    "text": ("bert", "distilbert", "gpt2"),
    "unet": ("unet",),
}  # fmt: skip
"""Family -> how the names of its networks begin, torchvision's behind ``tv_``."""


@dataclass
class Judged:
    """A network at one batch size: every bundle's prediction, and every sitting's measurement."""

    path: Path
    name: str
    batch: int
    predicted: dict[str, Prediction]
    sittings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Name in the store."""
        return f"{self.name}@{self.batch}"

    @property
    def family(self) -> str:
        """The first family whose names begin like this one; a network of its own otherwise."""
        name = self.path.stem.removeprefix("tv_")
        fitting = [f for f, starts in FAMILIES.items() if name.startswith(tuple(starts))]
        return fitting[0] if fitting else name

    @property
    def counted_ms(self) -> list[float]:
        """Times of the sittings with a steady round; of all where none had one."""
        steady = [each["total_ms"] for each in self.sittings if each["steady_rounds"]]
        return steady or [each["total_ms"] for each in self.sittings]

    def row(self, bundle: str) -> ComparisonRow:
        """Compare one bundle with the median of the sittings."""
        counted, prediction = self.counted_ms, self.predicted[bundle]
        remark = f"{min(counted):.4g} to {max(counted):.4g} ms in {len(counted)} sittings"
        if not any(each["steady_rounds"] for each in self.sittings):
            remark += ", none steady"
        if prediction.skipped:
            remark += f"; without {len(prediction.skipped)} operators"
        return ComparisonRow(self.name, self.batch, prediction.total_ms, median(counted), remark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", type=Path, nargs="*", help="default: LeNet, AlexNet, VGG16")
    parser.add_argument("--bundle", type=Path, action="append", required=True)
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--sittings", type=int, default=5, help="how often each is measured")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="per network, batch size and sitting"
    )
    parser.add_argument("--store", type=Path, help="store measurements here, and resume from them")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--families", action="store_true", help="leave one family out at a time")
    words = parser.parse_args()
    bundles = {str(path): Bundle.load(path) for path in words.bundle}
    paths = network_files(words.networks) if words.networks else shipped_networks(NAMES)
    judged = [
        each
        for path, name in network_names(paths).items()
        for each in predicted(path, name, words.batch, bundles)
    ]
    measure(judged, bundles[str(words.bundle[0])], words.sittings, words.seconds, words.store)
    judged = [each for each in judged if each.sittings]
    rows = {name: [each.row(name) for each in judged] for name in bundles}
    for name, compared in rows.items():
        print(f"\n{name}: mean absolute error {mean_error(compared):.1%}")
        print(comparison_table(compared))
        print(summary(name, judged, compared))
        if words.families:
            print(left_out_families(bundles[name], judged))
    if words.json:
        words.json.write_text(
            json.dumps({n: [vars(row) for row in r] for n, r in rows.items()}, indent=1)
        )


def predicted(
    path: Path, name: str, batches: Sequence[int], bundles: Mapping[str, Bundle]
) -> list[Judged]:
    """Predict a network at every batch size; what cannot be predicted is named and skipped."""
    found = []
    for batch in batches:
        try:
            network = read_network(path, batch=batch)
            predictions = {key: predict_network(network, each) for key, each in bundles.items()}
        except ResperfError as error:
            print(f"{name} at batch {batch} is skipped: {error}", flush=True)
            continue
        found.append(Judged(path, name, batch, predictions))
    return found


def summary(name: str, judged: Sequence[Judged], rows: Sequence[ComparisonRow]) -> str:
    """Say how the errors spread, how noisy the measurements are, and how many intervals hold."""
    errors = [abs(row.error) for row in rows]
    within = [
        each.predicted[name].low_ms <= median(each.counted_ms) <= each.predicted[name].high_ms
        for each in judged
    ]
    lacking = sum(bool(each.predicted[name].skipped) for each in judged)
    ten = mean(error <= 0.1 for error in errors)
    return (
        f"{len(rows)} runs of {len({each.path for each in judged})} networks: mean "
        f"{mean(errors):.1%}, median {median(errors):.1%}, within 10% {ten:.0%}, worst "
        f"{max(errors):.0%}; in the 90% interval {mean(within):.0%}; {lacking} lack operators; "
        + repeat_noise(judged)
        + f"; {trained_on(judged, name)}"
    )


def repeat_noise(judged: Sequence[Judged]) -> str:
    """Say how much the sittings of one network differ: no prediction can be better."""
    several = [each.counted_ms for each in judged if len(each.counted_ms) > 1]
    if not several:
        return "measured once: how much repeats differ is not known"
    apart = [max(times_ms) / min(times_ms) - 1 for times_ms in several]
    off = [mean(abs(ms / median(times_ms) - 1) for ms in times_ms) for times_ms in several]
    return (
        f"repeats differ by {median(apart):.1%} (median) and are {mean(off):.1%} off their median "
        f"(mean), {len(judged) - len(several)} networks have none"
    )


def trained_on(judged: Sequence[Judged], name: str) -> str:
    """Say how many of the judged layers the bundle was trained on."""
    keys = sorted({layer.key for each in judged for layer in each.predicted[name].layers})
    seen = was_packed(keys, Bundle.load(Path(name)).part["training"]["seen"])
    return f"{int(seen.sum())} of {len(keys)} judged layers were learnt from"


def left_out_families(bundle: Bundle, judged: Sequence[Judged]) -> str:
    """Predict every network with the in-network correction of other families' networks."""
    alone = bundle.without_correction()
    placed: dict[str, Placed] = {}
    for each in judged:
        if each.predicted[str(bundle.path)].skipped:
            continue
        network = read_network(each.path, batch=each.batch)
        placed[each.key] = placed_network(alone, network, each.name, median(each.counted_ms))
    errors: dict[str, list[float]] = {}
    for family in sorted({each.family for each in judged if each.key in placed}):
        inside = {each.key for each in judged if each.family == family}
        learnt = fit_correction([p for k, p in placed.items() if k not in inside], bundle.costs)
        for key in inside & placed.keys():
            error = total_ms(placed[key], learnt) / placed[key].measured_ms - 1
            errors.setdefault(family, []).append(error)
    every = [abs(error) for found in errors.values() for error in found]
    lines = [
        f"  {family}: {mean(map(abs, found)):.1%} ({min(found):+.0%} to {max(found):+.0%}, "
        f"{len(found)} runs)"
        for family, found in errors.items()
    ]
    head = f"one family left out at a time: mean absolute error {mean(every):.1%}, within 10% "
    return "\n".join([f"{head}{mean(e <= 0.1 for e in every):.0%}", *lines])


def measure(
    judged: list[Judged], bundle: Bundle, sittings: int, seconds: float, store: Path | None
) -> None:
    """Measure everything once per sitting, on the framework and threads of a bundle."""
    kept = json.loads(store.read_text()) if store is not None and store.exists() else {}
    for each in judged:
        each.sittings = list(kept.get(each.key, []))
    if all(len(each.sittings) >= sittings for each in judged):
        return
    device = backend(bundle.framework, threads=bundle.setting.threads)
    with reference_monitor(device, bundle=bundle) as monitor:
        for sitting in range(sittings):
            for each in judged:
                if len(each.sittings) > sitting:
                    continue
                try:
                    measured = measure_network(
                        each.path, device, batch=each.batch, seconds=seconds, layers=False,
                        monitor=monitor,
                    )  # fmt: skip
                except (ResperfError, MemoryError) as error:
                    print(f"{each.key} is not measured: {error}", flush=True)
                    continue
                each.sittings.append(
                    {"total_ms": measured.total_ms, "steady_rounds": measured.steady_rounds}
                )
                if store is not None:
                    _keep(store, {**kept, **{j.key: j.sittings for j in judged}})
                errors = [p.total_ms / measured.total_ms - 1 for p in each.predicted.values()]
                print(
                    f"sitting {sitting + 1}: {measured.network} batch {each.batch}: "
                    f"{measured.total_ms:.4g} ms in {measured.runs} runs, "
                    f"{measured.steady_rounds} of {measured.rounds} rounds steady, reference "
                    f"{measured.reference_ratio:.2f}; predictions off by "
                    + ", ".join(f"{error:+.1%}" for error in errors),
                    flush=True,
                )


def _keep(store: Path, values: Mapping[str, Any]) -> None:
    partial = store.with_suffix(".tmp")
    partial.write_text(json.dumps(values, indent=1))
    os.replace(partial, store)


if __name__ == "__main__":
    main()
