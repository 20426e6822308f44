#!/usr/bin/env python
"""Build the bundles that are shipped: the GPUs of published measurements.

    python tools/build_bundles.py                     # 20 minutes on 2 cores
    python tools/build_bundles.py --only k80
    python tools/build_bundles.py --only gpus-torch
    python tools/build_bundles.py --only gpus-torch-networks

The measurements are read from $RESPERF_PUBLIC_DATA (../shared/data by default).

TensorFlow: one bundle per card. Convolutions and dense layers, forward and as training steps, are
learnt from justus; what it lacks is estimated from perfnet's whole calls on the 1080 Ti, and scaled
for the other devices (docs/importing.md). No row and no predictor of perfnet is in a bundle, only a
few coefficients.

PyTorch: one bundle of all cards, in two parts, of NVIDIA's and of AMD's. Layers of neusight
(float32) and of vidur (float16) are learnt together, each row on its own card.

PyTorch, whole networks: costs of operator classes on GPUs, and on two CPUs, are learnt from timm's
times of whole networks (docs/networks-on-gpus.md).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report_accuracy import ROOT, import_dataset, public_data, sources
from report_gpus import import_all

from resperf.dataset import read_info
from resperf.devices import device_class

FIRST = "1080ti"
"""The device with whole calls; the others' estimates are scaled from its bundle."""

DEVICES = (FIRST, "k80", "p100", "v100")
SCALING_JUDGED_BY = ("p5000", "p1000")
TREES = 500
"""Of each kind at most, so that a bundle stays below 6 MB; docs/gpus.md says what it costs."""

TORCH = "gpus-torch"
"""The bundle of all cards under PyTorch."""

TORCH_TREES = {"cuda": 800, "rocm": 200}
"""Its parts, that of most cards first: class of devices -> most trees of each kind, so that the
bundle stays below 10 MB; docs/gpus.md says what it costs."""


NETWORKS = "gpus-torch-networks"
"""The bundle of what operators cost under PyTorch, learnt from whole networks."""

NETWORK_PARTS = {"gpus": ("3090", "4090", "5090"), "cpus": ("i9_10940x", "i7_12700h")}
"""Its parts -> the devices in the names of timm's files."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=public_data(), help="published measurements")
    parser.add_argument("--output", type=Path, default=ROOT / "models" / "bundles")
    parser.add_argument(
        "--only", action="append", choices=(*DEVICES, TORCH, NETWORKS), metavar="NAME"
    )
    parser.add_argument("--trees", type=int, help="of each kind, instead of the bundles' own")
    given = parser.parse_args(words)
    first = given.output / f"{FIRST}-tensorflow"
    every = given.only or (*DEVICES, TORCH, NETWORKS)
    chosen = [name for name in every if name in DEVICES]
    if chosen and FIRST not in chosen and not first.exists():
        parser.error(f"{first} is not there, whose estimates the others scale; build it first")
    with tempfile.TemporaryDirectory() as folder:
        for device in sorted(chosen, key=DEVICES.index):
            sources_of_estimates = [first]
            if device == FIRST:
                sources_of_estimates = [
                    imported(f"perfnet-{each}", given.data, Path(folder))
                    for each in (FIRST, *SCALING_JUDGED_BY)
                ]
            dataset = imported(f"justus-{device}", given.data, Path(folder))
            words = ["--trees", given.trees or TREES, "-o", given.output / f"{device}-tensorflow"]
            for path in sources_of_estimates:
                words += ["--estimate-from", path]
            run("train", dataset, *words)
        if TORCH in every:
            build_torch(given.data, Path(folder), given.output / TORCH, given.trees)
        if NETWORKS in every:
            build_networks(given.data / "timm", Path(folder), given.output / NETWORKS)


def build_networks(data: Path, work: Path, output: Path) -> None:
    """Import, merge and train the devices of each part, and join the parts."""
    for part, devices in NETWORK_PARTS.items():
        datasets = []
        for device in devices:
            files = sorted(data.glob(f"benchmark-*{device}*.csv.gz"))
            datasets.append(work / f"timm-{device}.h5")
            words = (*files, data / "operators.jsonl.gz", "--format", "timm", "-o", datasets[-1])
            run("dataset", "import", *words)
        run("dataset", "merge", *datasets, "-o", work / f"{part}.h5")
        run("train", work / f"{part}.h5", "--method", "class-costs", "-o", work / part)
    run("bundle", "merge", *(work / part for part in NETWORK_PARTS), "-o", output)


def build_torch(data: Path, work: Path, output: Path, trees: int | None = None) -> None:
    """Import, merge and train the cards of each class, and join the two bundles."""
    datasets = import_all(data, work / "cards", only=("neusight", "vidur"))
    for name, most in TORCH_TREES.items():
        of_class = [path for path in datasets if class_of(path) == name]
        run("dataset", "merge", *of_class, "-o", work / f"{name}.h5")
        words = ["--method", "roofline", "--trees", trees or most, "-o", work / name]
        run("train", work / f"{name}.h5", *words)
    run("bundle", "merge", *(work / name for name in TORCH_TREES), "-o", output)


def class_of(dataset: Path) -> str:
    """Return the class of a dataset's device."""
    return device_class(read_info(dataset).platform.device)


def run(*words: object) -> None:
    """Run a command that users have."""
    command = [sys.executable, "-m", "resperf.cli.main", *map(str, words)]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"failed: resperf {' '.join(command[3:])}")


def imported(name: str, data: Path, work: Path) -> Path:
    """Import a published dataset such as ``justus-k80``."""
    target = work / f"{name}.h5"
    import_dataset(name, sources(data)[name], target)
    return target


if __name__ == "__main__":
    main()
