"""Datasets: all measurements of one machine in one HDF5 file (layout: datasets/README.md)."""

from resperf.errors import require

require("h5py", "bench")  # one line that says what to install, instead of a traceback

from resperf.dataset.check import check_dataset  # noqa: E402
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
from resperf.dataset.merge import append_networks, merge_datasets, refuse_to_append  # noqa: E402
from resperf.dataset.records import (  # noqa: E402
    Dataset,
    DatasetInfo,
    KindTable,
    ListedOperator,
    ListedTensor,
    NetworkDescription,
    description_digest,
)
from resperf.dataset.schema import NETWORKS  # noqa: E402
from resperf.dataset.summary import Summary, floor_of_medians, noise_floor, noise_warning, summarize  # noqa: E402

__all__ = [
    "NETWORKS", "Dataset", "DatasetInfo", "KindTable", "ListedOperator", "ListedTensor",
    "NetworkDescription", "Summary", "append_networks", "check_dataset", "checksum",
    "description_digest", "export_dataset", "floor_of_medians", "merge_datasets", "noise_floor",
    "noise_warning", "read_dataset", "read_info", "read_networks", "read_platforms", "read_table",
    "refuse_to_append", "summarize", "write_dataset",
]  # fmt: skip
