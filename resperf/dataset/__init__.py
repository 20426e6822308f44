"""Datasets: all measurements of one machine in one HDF5 file (layout: datasets/README.md)."""

from __future__ import annotations

from resperf.errors import require

require("h5py", "bench")  # one line that says what to install, instead of a traceback

from resperf.dataset.check import check_dataset  # noqa: E402
from resperf.dataset.engine_runs import read_engine_run  # noqa: E402
from resperf.dataset.export import export_dataset  # noqa: E402
from resperf.dataset.hdf5 import (  # noqa: E402
    checksum,
    read_dataset,
    read_info,
    read_networks,
    read_platforms,
    read_table,
    write_dataset,
)
from resperf.dataset.importing import (  # noqa: E402
    FORMATS,
    LIST,
    PUBLISHED,
    Imported,
    import_dataset,
    import_latencies,
    import_list,
    import_neusight,
    import_timm,
    import_trtexec,
    import_vidur,
    read_mapping,
    shipped_mapping,
)
from resperf.dataset.merge import append_networks, merge_datasets, refuse_to_append  # noqa: E402
from resperf.dataset.records import (  # noqa: E402  # noqa: E402
    Dataset,
    DatasetInfo,
    KindTable,
    ListedOperator,
    ListedTensor,
    NetworkDescription,
    description_digest,
)
from resperf.dataset.schema import NETWORKS  # noqa: E402
from resperf.dataset.summary import Summary, floor_of_medians, noise_floor, noise_warning, summarize  # noqa: E402  # noqa: E402

__all__ = [
    "FORMATS", "LIST", "NETWORKS", "PUBLISHED", "Dataset", "DatasetInfo", "Imported",
    "KindTable", "ListedOperator", "ListedTensor", "NetworkDescription",
    "Summary", "append_networks", "check_dataset", "checksum",
    "description_digest", "export_dataset", "floor_of_medians", "import_dataset",
    "import_latencies", "import_list", "import_neusight", "import_timm", "import_trtexec",
    "import_vidur", "merge_datasets", "noise_floor", "noise_warning", "read_dataset",
    "read_engine_run", "read_info", "read_mapping", "read_networks", "read_platforms", "read_table",
    "refuse_to_append", "shipped_mapping", "summarize", "write_dataset",
]  # fmt: skip
