"""Timings that others published, as datasets of ours (docs/importing.md)."""

from __future__ import annotations

from resperf.dataset.importing.importer import Imported, import_dataset
from resperf.dataset.importing.mapping import FORMATS, SourceMapping, read_mapping, shipped_mapping

__all__ = ["FORMATS", "Imported", "SourceMapping", "import_dataset", "read_mapping",
           "shipped_mapping"]  # fmt: skip
