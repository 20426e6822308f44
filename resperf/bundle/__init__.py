"""Bundles: everything that prediction needs for one device and framework, in one folder.

A folder holds ``bundle.json`` and one ONNX file per predictor, and neither code nor pickles.
Reading it needs only numpy and onnxruntime.
"""

from __future__ import annotations

from resperf.bundle._adaptation import (
    GROUPS,
    OVERHEAD_PER_MB,
    Adaptation,
    ProbeTimes,
    Speeds,
    TransferredCalibration,
    counting,
)
from resperf.bundle._adapted import adaptation_file, bundle_id, load_adaptation, save_adaptation
from resperf.bundle._bundle import Bundle, Times
from resperf.bundle._correction import Calibration, Correction, group_of
from resperf.bundle._manifest import COPIES_ASSUMED, MANIFEST, NETWORK, SCHEMA_VERSION
from resperf.bundle._provenance import UNKNOWN, provenance
from resperf.bundle._ranges import ranges_of
from resperf.bundle._search import (
    best_of,
    bundle_folders,
    bundle_place,
    default_folder,
    find_bundle,
    find_bundles,
    is_shipped,
    named_target,
    platforms_of,
    user_folder,
)
from resperf.bundle._write import (
    GoldenLayer,
    golden_layers,
    golden_networks,
    merge_bundles,
    replaced_folder,
    write_manifest,
)

__all__ = [
    "COPIES_ASSUMED",
    "GROUPS",
    "MANIFEST",
    "NETWORK",
    "OVERHEAD_PER_MB",
    "SCHEMA_VERSION",
    "UNKNOWN",
    "Adaptation",
    "Bundle",
    "Calibration",
    "Correction",
    "GoldenLayer",
    "ProbeTimes",
    "Speeds",
    "Times",
    "TransferredCalibration",
    "adaptation_file",
    "best_of",
    "bundle_folders",
    "bundle_id",
    "bundle_place",
    "counting",
    "default_folder",
    "find_bundle",
    "find_bundles",
    "golden_layers",
    "golden_networks",
    "group_of",
    "is_shipped",
    "load_adaptation",
    "merge_bundles",
    "named_target",
    "platforms_of",
    "provenance",
    "ranges_of",
    "replaced_folder",
    "save_adaptation",
    "user_folder",
    "write_manifest",
]  # fmt: skip
