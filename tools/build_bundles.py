#!/usr/bin/env python
"""Build the bundles that are shipped: the GPUs of published measurements.

    python tools/build_bundles.py                     # 20 minutes on 2 cores
    python tools/build_bundles.py --only k80
    python tools/build_bundles.py --only gpus-torch
    python tools/build_bundles.py --only gpus-torch-networks

The measurements are read from $RESPERF_PUBLIC_DATA (../shared/data by default).

TensorFlow: one bundle per card. Convolutions and dense layers, forward and as training steps, are
learnt from justus. What it lacks (poolings, activations, copies, shape-only operators) is not
fitted here but taken over from the shipped bundle, whose `estimates` say from what it was fitted.

PyTorch: one bundle of all cards, in two parts, of NVIDIA's and of AMD's. Layers of neusight
(float32) and of vidur (float16) are learnt together, each row on its own card.

PyTorch, whole networks: costs of operator classes on GPUs, and on two CPUs, are learnt from timm's
times of whole networks (docs/networks-on-gpus.md).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report_accuracy import ROOT, import_dataset, public_data, sources
from report_gpus import import_all

from resperf.bundle import Bundle, replaced_folder, write_manifest
from resperf.dataset import read_info
from resperf.devices import device_class
from resperf.layers import kind_of_key
from resperf.training import train

DEVICES = ("1080ti", "k80", "p100", "v100")
SHIPPED = ROOT / "models" / "bundles"
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
    parser.add_argument("--output", type=Path, default=SHIPPED)
    parser.add_argument(
        "--only", action="append", choices=(*DEVICES, TORCH, NETWORKS), metavar="NAME"
    )
    parser.add_argument("--trees", type=int, help="of each kind, instead of the bundles' own")
    given = parser.parse_args(words)
    every = given.only or (*DEVICES, TORCH, NETWORKS)
    with tempfile.TemporaryDirectory() as folder:
        for device in (name for name in DEVICES if name in every):
            dataset = imported(f"justus-{device}", given.data, Path(folder))
            name = f"{device}-tensorflow"
            learnt = Path(folder) / name
            found = train(dataset, learnt, trees=given.trees or TREES)
            write_estimated(found, Bundle.load(SHIPPED / name), given.output / name)
        if TORCH in every:
            build_torch(given.data, Path(folder), given.output / TORCH, given.trees)
        if NETWORKS in every:
            build_networks(given.data / "timm", Path(folder), given.output / NETWORKS)


def write_estimated(learnt: Bundle, shipped: Bundle, output: Path) -> None:
    """Write a bundle with what the shipped one estimates and the dataset lacks."""
    old, new = shipped.part, learnt.part
    kinds = [kind for kind in old["predictors"] if f"{kind} execution" in old["estimates"]]
    golden = [each for each in old["golden"]["layers"] if kind_of_key(each["key"]) in kinds]
    notes = [note for note in new["training"]["notes"] if "no transfer was measured" not in note]
    made = learnt.changed(
        "what was not measured is estimated as in the bundle before",
        predictors=new["predictors"] | {kind: old["predictors"][kind] for kind in kinds},
        ranges=new["ranges"] | {kind: old["ranges"][kind] for kind in kinds},
        golden=new["golden"] | {"layers": [*new["golden"]["layers"], *golden]},
        transfers=old["transfers"],
        costs=old["costs"] | new["costs"],
        training=new["training"] | {"notes": notes},
        estimates=old["estimates"],
    )
    with replaced_folder(output) as folder:
        skipped = shutil.ignore_patterns("bundle.json")
        shutil.copytree(learnt.path, folder, dirs_exist_ok=True, ignore=skipped)
        write_manifest(folder, made.manifest)


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
        train(work / f"{name}.h5", work / name, method="roofline", trees=trees or most)
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
