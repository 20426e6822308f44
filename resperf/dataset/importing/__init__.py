"""Published timings, imported as datasets (docs/importing.md)."""

from __future__ import annotations

from resperf.dataset.importing.importer import Imported, import_dataset
from resperf.dataset.importing.mapping import FORMATS, SourceMapping, read_mapping, shipped_mapping
from resperf.dataset.importing.network_list import LIST, import_list

__all__ = ["FORMATS", "LIST", "Imported", "SourceMapping", "import_dataset", "import_list",
           "read_mapping", "shipped_mapping"]  # fmt: skip
