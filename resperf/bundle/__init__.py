"""Bundles: everything that prediction needs for one device and framework, in one folder.

A folder holds ``bundle.json`` and one ONNX file per predictor, and neither code nor pickles.
Reading it needs only numpy and onnxruntime.
"""

from resperf.bundle._bundle import Bundle, Times
from resperf.bundle._calibration import (
    GROUPS,
    OVERHEAD_PER_LAYER,
    OVERHEAD_PER_MB,
    Calibration,
    LayerTimes,
    Source,
    Speeds,
    counting,
    group_of,
)
from resperf.bundle._manifest import NETWORK
from resperf.bundle._provenance import UNKNOWN, provenance
from resperf.bundle._ranges import ranges_of
from resperf.bundle._search import (
    best_of,
    bundle_folders,
    calibration_file,
    default_folder,
    find_bundles,
    is_bundle,
    is_shipped,
    load_calibration,
    machines_of,
    named_bundle,
    nearest_machine,
    platforms_of,
    save_calibration,
    user_folder,
)
from resperf.bundle._write import (
    GoldenLayer,
    golden_layers,
    golden_networks,
    merge_bundles,
    replaced_folder,
    write_calibrated,
    write_changed,
    write_manifest,
)

__all__ = [
    "GROUPS", "NETWORK", "OVERHEAD_PER_LAYER", "OVERHEAD_PER_MB", "UNKNOWN", "Bundle",
    "Calibration", "GoldenLayer", "LayerTimes", "Source", "Speeds", "Times", "best_of",
    "bundle_folders", "calibration_file", "counting", "default_folder", "find_bundles",
    "golden_layers", "golden_networks", "group_of", "is_bundle", "is_shipped", "load_calibration",
    "machines_of", "merge_bundles", "named_bundle", "nearest_machine", "platforms_of", "provenance",
    "ranges_of", "replaced_folder", "save_calibration", "user_folder", "write_calibrated",
    "write_changed", "write_manifest",
]  # fmt: skip
