"""Bundles: everything that prediction needs for one device and framework, in one folder.

A folder holds ``bundle.json`` and one ONNX file per predictor. Nothing in it is code or a pickle,
and reading one needs numpy and onnxruntime alone.
"""

from __future__ import annotations

from resperf.bundle._bundle import Bundle, Times
from resperf.bundle._in_place import Carried, InPlace, group_of
from resperf.bundle._manifest import MANIFEST, SCHEMA_VERSION
from resperf.bundle._ranges import ranges_of
from resperf.bundle._search import (
    bundle_folders,
    bundle_place,
    default_folder,
    find_bundle,
    find_bundles,
    named_target,
    user_folder,
)
from resperf.bundle._write import canned_layers, replaced_folder, write_manifest

__all__ = [
    "MANIFEST", "SCHEMA_VERSION", "Bundle", "Carried", "InPlace", "Times", "bundle_folders",
    "bundle_place", "canned_layers", "default_folder", "find_bundle", "find_bundles", "group_of",
    "named_target", "ranges_of", "replaced_folder", "user_folder", "write_manifest",
]  # fmt: skip
