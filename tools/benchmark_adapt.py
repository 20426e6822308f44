#!/usr/bin/env python
"""What a minute of `resperf adapt` brings: errors on whole networks with nothing, and after it.

    python tools/benchmark_adapt.py cpu-onnxruntime-xeon --store adapted.json
    python tools/benchmark_adapt.py cpu-onnxruntime-xeon --stand-in cpu-onnxruntime --batch 1 8

In turns A B A: all networks (models/networks unless named) are measured, then the probes for each
bundle (and each of several --probe-seconds), then all networks again, each of the two --turns
times. Predictions of a network are compared with the median of its measurements; how far single
ones are from it is printed beside: on a shared host a measurement is a tenth off easily. Run it on
another machine than the bundles', with nothing else. Nothing is kept where predictions look; a
bundle that was made on this machine (resperf calibrate --adapt) is judged as it is. Of one that
knows this hardware (resperf adapt -o), both are judged: what a user gets here, and what hardware
gets that it does not know.

With --stand-in nothing is measured: what that bundle predicts for probes and networks is taken for
times of its machine, which shows how well the groups tell two machines apart, without noise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from resperf.backends import backend
from resperf.bundle import Adaptation, Bundle, find_bundle
from resperf.campaign.harvest import shipped_networks
from resperf.errors import ResperfError
from resperf.lowering import lower_layers
from resperf.network import read_network
from resperf.network.files import network_files, network_names
from resperf.platform import this_platform
from resperf.prediction import predict_network
from resperf.prediction.adapting import as_adapted
from resperf.workflows.adapt import (
    PROBES,
    SECONDS,
    ProbeRun,
    fitted,
    measured_probes,
    times_there,
)
from resperf.workflows.measure import measure_network, reference_monitor

Times = dict[str, float]
"""Network and batch size -> total in ms."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+", help="of other machines")
    parser.add_argument("--networks", type=Path, nargs="+", help="default: models/networks")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=1.0, help="per network and turn")
    parser.add_argument("--turns", type=int, default=1, help="over all networks, before and after")
    parser.add_argument(
        "--probe-seconds", type=float, nargs="+", default=[SECONDS], help="for each bundle"
    )
    parser.add_argument("--stand-in", help="a bundle whose predictions are taken for times")
    parser.add_argument("--store", type=Path, help="write measurements and adaptations here")
    words = parser.parse_args()
    bundles = {word: find_bundle(word) for word in words.bundles}
    paths = network_files(words.networks) if words.networks else shipped_networks(["*"])
    names = network_names(paths)
    runs = {f"{names[path]}@{batch}": (path, batch) for path in paths for batch in words.batch}
    threads = next(iter(bundles.values())).setting.threads
    other = None if words.stand_in is None else find_bundle(words.stand_in)

    def turn() -> Times:
        if other is not None:
            return stood_in(runs, other)
        return measured(runs, threads, words.seconds)

    turns = [turn() for _ in range(words.turns)]
    adaptations: dict[str, dict[str, Adaptation]] = {}
    for word, bundle in bundles.items():
        here = this_platform(bundle.platform.device)
        if other is not None:
            adaptations[word] = {"adapted": fitted(bundle, probes_of(other), anew=True)}
        elif not bundle.transferred or here.hardware_differences(bundle.platform):
            adaptations[word] = measured_adaptations(bundle, words.probe_seconds)
        for label, each in adaptations.get(word, {}).items():
            print(f"{word}, {label}: {each.summary()}", flush=True)
    turns += [turn() for _ in range(words.turns)]
    if words.store:
        kept: dict[str, Any] = {"turns": turns}
        kept["adaptations"] = {
            word: {label: each.to_json() for label, each in found.items()}
            for word, found in adaptations.items()
        }
        words.store.write_text(json.dumps(kept, indent=1))
    report(bundles, adaptations, runs, turns, here=other is None)


def measured_adaptations(bundle: Bundle, seconds: Sequence[float]) -> dict[str, Adaptation]:
    """Measure the probes for each of several times; a bundle that knows this hardware gives two."""
    found = {}
    for place, each in enumerate(seconds):
        run = measured_probes(bundle, seconds=each)
        label = f"adapted in {each:.0f} s (run {place + 1})"
        found[label] = fitted(bundle, run)
        unknown = fitted(bundle, run, anew=True)
        if unknown.correction != found[label].correction:
            found[f"{label}, as on hardware that it does not know"] = unknown
    return found


def stood_in(runs: Mapping[str, tuple[Path, int]], other: Bundle) -> Times:
    """Predict every network as another bundle does; what cannot be read is named."""
    found: Times = {}
    for key, (path, batch) in runs.items():
        try:
            found[key] = predict_network(read_network(path, batch=batch), other).total_ms
        except ResperfError as error:
            print(f"{key} is not predicted: {error}", flush=True)
    return found


def probes_of(other: Bundle) -> ProbeRun:
    """Return the probes' times on a bundle's machine, as far as it knows them."""
    probes = lower_layers(PROBES, other.setting, other.platform)
    return ProbeRun(other.setting, other.platform, times_there(other, probes)[0])


def measured(runs: Mapping[str, tuple[Path, int]], threads: int, seconds: float) -> Times:
    """Measure every network once; what cannot run is named."""
    device = backend("onnxruntime", threads=threads)
    found: Times = {}
    with reference_monitor(device) as monitor:
        for key, (path, batch) in runs.items():
            try:
                result = measure_network(
                    path, device, batch=batch, seconds=seconds, layers=False, monitor=monitor
                )
            except (ResperfError, MemoryError) as error:
                print(f"{key} is not measured: {error}", flush=True)
                continue
            found[key] = result.total_ms
            print(
                f"{key}: {result.total_ms:.4g} ms, {result.steady_rounds} of {result.rounds} "
                f"rounds steady, reference {result.reference_ratio:.2f}",
                flush=True,
            )
    return found


def report(
    bundles: Mapping[str, Bundle],
    adaptations: Mapping[str, Mapping[str, Adaptation]],
    runs: Mapping[str, tuple[Path, int]],
    turns: Sequence[Times],
    *,
    here: bool,
) -> None:
    """Print errors and intervals of each bundle, with nothing and adapted.

    What a bundle knows of machines like this one counts where the times are from `here`.
    """
    keys = [key for key in runs if all(key in turn for turn in turns)]
    truths_ms = {key: median(turn[key] for turn in turns) for key in keys}
    print(f"\n{len(turns)} measurements of each of {len(keys)} runs, over their median:")
    for place, turn in enumerate(turns):
        off = [turn[key] / truths_ms[key] - 1 for key in keys]
        print(
            f"  turn {place + 1}: median {median(off):+.1%}, mean distance "
            f"{fmean(map(abs, off)):.1%}, {min(off):+.1%} to {max(off):+.1%}"
        )
    for word, bundle in bundles.items():
        print(f"\n{word} ({bundle.platform.machine})")
        if word not in adaptations:
            print(judged("made here", bundle, runs, truths_ms))
            continue
        print(judged("nothing", bundle, runs, truths_ms))
        shipped = as_adapted(bundle)
        if here and shipped.adapted is not None and shipped.adapted.from_bundle:
            print(judged("as on a similar machine that it knows", shipped, runs, truths_ms))
        for label, adaptation in adaptations[word].items():
            print(judged(label, bundle.adapted_to(adaptation), runs, truths_ms))


def judged(
    label: str,
    bundle: Bundle,
    runs: Mapping[str, tuple[Path, int]],
    truths_ms: Mapping[str, float],
) -> str:
    """Summarise how far off a bundle is, and how wide and right its intervals are, by precision."""
    found: dict[str, dict[str, Compared]] = {}
    for key, truth_ms in truths_ms.items():
        path, batch = runs[key]
        prediction = predict_network(read_network(path, batch=batch), bundle)
        found.setdefault(precision_of(path), {})[key] = Compared(
            error=prediction.total_ms / truth_ms - 1,
            inside=prediction.low_ms <= truth_ms <= prediction.high_ms,
            width=(prediction.high_ms - prediction.low_ms) / prediction.total_ms,
            complete=prediction.complete,
        )
    if len(found) > 1:
        found = {"all": {k: one for each in found.values() for k, one in each.items()}, **found}
    lines = [f"  {label}, {name}: {summary(list(each.values()))}" for name, each in found.items()]
    every = next(iter(found.values()))
    listed = ", ".join(f"{key} {one.error:+.0%}" for key, one in every.items())
    return "\n".join([*lines, f"    {listed}"])


@dataclass(frozen=True)
class Compared:
    """One run, predicted and measured."""

    error: float
    inside: bool
    width: float
    complete: bool


def precision_of(path: Path) -> str:
    """Tell a network's precision by its name, as tools/benchmarks/networks.toml gives them."""
    found = [each for each in ("fp16", "int8") if f"-{each}" in path.stem]
    return found[0] if found else "float32"


def summary(compared: Sequence[Compared]) -> str:
    """Say how far off runs are, and what their intervals hold."""
    off = [abs(each.error) for each in compared]
    lacking = sum(not each.complete for each in compared)
    return (
        f"{len(off)} runs: mean error {fmean(off):.1%}, median {median(off):.1%}, within 10% "
        f"{fmean(e <= 0.1 for e in off):.0%}, within 15% {fmean(e <= 0.15 for e in off):.0%}, "
        f"worst {max(off):.0%}, mean deviation {fmean(e.error for e in compared):+.1%}; in the 90% "
        f"interval {fmean(e.inside for e in compared):.0%}, median width "
        f"{median(e.width for e in compared):.2f}" + f"; {lacking} incomplete" * bool(lacking)
    )


if __name__ == "__main__":
    main()
