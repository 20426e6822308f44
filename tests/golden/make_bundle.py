"""Made tests/golden/bundle. Run it again for another set of features, or another layout.

Usage: python tests/golden/make_bundle.py DATASET.h5 FOLDER, the dataset being what the fixture
``toy_dataset`` of tests/conftest.py writes. It has two parts: layers of one device, and one kind
of layer of another device.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

from resperf.bundle import Bundle, merge_bundles, replaced_folder, write_manifest
from resperf.dataset import read_table
from resperf.training import train

if __name__ == "__main__":
    dataset, target = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as work:
        layers = train(dataset, Path(work) / "layers", method="boosted", trees=5)
        others = frozenset(map(str, (key for kind in ("conv", "pool")
                                     for key in read_table(dataset)[kind].key)))  # fmt: skip
        other = train(dataset, Path(work) / "other", method="gianniti", device="fast",
                      exclude_keys=others)  # fmt: skip
        platform = dataclasses.replace(other.platform, processor="Q", cores=4)
        changed = other.with_calibrations((), "made of another machine, for the tests").manifest
        changed["platforms"] = dict.fromkeys(other.part["platforms"], platform.to_json())
        with replaced_folder(Path(work) / "changed") as folder:
            write_manifest(folder, changed)
        merge_bundles([layers.path, Bundle.load(Path(work) / "changed").path], target)
