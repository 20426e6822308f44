"""Made tests/golden/bundle-v1. Run it again for another set of features, or a new schema version.

Usage: python tests/golden/make_bundle_v1.py DATASET.h5 FOLDER, the dataset being what the fixture
``toy_dataset`` of tests/conftest.py writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from resperf.dataset import read_table
from resperf.predictors.residual import Residual
from resperf.training import train

if __name__ == "__main__":
    # Small networks, for a small file.
    Residual.__init__.__kwdefaults__.update(members=2, width=8)  # type: ignore[union-attr]
    dataset, folder = map(Path, sys.argv[1:])
    # Few poolings: that kind gets the baseline, so that the bundle holds two methods.
    many = frozenset(map(str, read_table(dataset)["pool"].key[30:70]))
    train(dataset, folder, method="residual", epochs=20, exclude_keys=many)
