#!/usr/bin/env python
"""Build the bundles that are shipped: TensorFlow on the GPUs of published measurements.

    python tools/build_bundles.py                     # about an hour on 2 cores
    python tools/build_bundles.py --only k80

The measurements are read from $RESPERF_PUBLIC_DATA (../shared/data by default). Convolutions and
dense layers, forward and as training steps, are learnt from justus; what that lacks is estimated
from perfnet's whole calls on the 1080 Ti, and scaled for the other devices (docs/importing.md). No
row and no predictor of perfnet is in a bundle, only a handful of coefficients.
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

FIRST = "1080ti"
"""The device with whole calls; the others' estimates are scaled from its bundle."""

DEVICES = (FIRST, "k80", "p100", "v100")
SCALING_JUDGED_BY = ("p5000", "p1000")
TREES = 800
"""Of each kind, so that a bundle stays below 6 MB; docs/accuracy.md says what it costs."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=public_data(), help="published measurements")
    parser.add_argument("--output", type=Path, default=ROOT / "models" / "bundles")
    parser.add_argument("--only", action="append", choices=DEVICES, metavar="DEVICE")
    parser.add_argument("--method", default="ensemble")
    parser.add_argument("--trees", type=int, default=TREES)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        for device in given.only or DEVICES:
            options = ["--method", given.method]
            if given.method in ("ensemble", "boosted"):
                options += ["--trees", str(given.trees)]
            build(device, given.data, Path(folder), given.output, options)


def build(device: str, data: Path, work: Path, output: Path, options: Sequence[str]) -> None:
    """Train one device's bundle, and replace the shipped one when it is complete."""
    estimate_from = [output / f"{FIRST}-tensorflow"]
    if device == FIRST:
        estimate_from = [
            imported(f"perfnet-{each}", data, work) for each in (FIRST, *SCALING_JUDGED_BY)
        ]
    command = [sys.executable, "-m", "resperf.cli.main", "train"]
    command += [str(imported(f"justus-{device}", data, work)), *options]
    for path in estimate_from:
        command += ["--estimate-from", str(path)]
    target = work / f"{device}-tensorflow"
    if subprocess.run([*command, "-o", str(target)], check=False).returncode:
        raise SystemExit(f"{device} could not be trained")
    final = output / target.name
    shutil.rmtree(final, ignore_errors=True)
    shutil.copytree(target, final)


def imported(name: str, data: Path, work: Path) -> Path:
    """Import a published dataset such as ``justus-k80``."""
    target = work / f"{name}.h5"
    import_dataset(name, sources(data)[name], target)
    return target


if __name__ == "__main__":
    main()
