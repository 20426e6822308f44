#!/usr/bin/env python
"""Build the bundles that are shipped: TensorFlow on the GPUs of published measurements.

    python tools/build_bundles.py                     # 4 minutes on 2 cores
    python tools/build_bundles.py --only k80

The measurements are read from $RESPERF_PUBLIC_DATA (../shared/data by default). Convolutions and
dense layers, forward and as training steps, are learnt from justus; what it lacks is estimated
from perfnet's whole calls on the 1080 Ti, and scaled for the other devices (docs/importing.md). No
row and no predictor of perfnet is in a bundle, only a few coefficients.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report_accuracy import ROOT, import_dataset, public_data, sources

FIRST = "1080ti"
"""The device with whole calls; the others' estimates are scaled from its bundle."""

DEVICES = (FIRST, "k80", "p100", "v100")
SCALING_JUDGED_BY = ("p5000", "p1000")
TREES = 500
"""Of each kind at most, so that a bundle stays below 6 MB; docs/gpus.md says what it costs."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=public_data(), help="published measurements")
    parser.add_argument("--output", type=Path, default=ROOT / "models" / "bundles")
    parser.add_argument("--only", action="append", choices=DEVICES, metavar="DEVICE")
    parser.add_argument("--trees", type=int, default=TREES)
    given = parser.parse_args(words)
    first = given.output / f"{FIRST}-tensorflow"
    chosen = given.only or DEVICES
    if FIRST not in chosen and not first.exists():
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
            train(dataset, sources_of_estimates, given.output, device, given.trees)


def train(
    dataset: Path, estimate_from: Sequence[Path], output: Path, device: str, trees: int
) -> None:
    """Train one device's bundle with the command that users have."""
    words = [str(dataset), "--trees", str(trees), "-o", str(output / f"{device}-tensorflow")]
    for path in estimate_from:
        words += ["--estimate-from", str(path)]
    command = [sys.executable, "-m", "resperf.cli.main", "train", *words]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"{device} could not be trained")


def imported(name: str, data: Path, work: Path) -> Path:
    """Import a published dataset such as ``justus-k80``."""
    target = work / f"{name}.h5"
    import_dataset(name, sources(data)[name], target)
    return target


if __name__ == "__main__":
    main()
