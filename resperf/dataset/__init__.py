"""Datasets: all measurements of one machine in one HDF5 file (layout: datasets/README.md)."""

from __future__ import annotations

from resperf.dataset._hdf5 import checksum, read_dataset, read_table, write_dataset
from resperf.dataset._records import Dataset, DatasetInfo, KindTable

__all__ = [
    "Dataset", "DatasetInfo", "KindTable", "checksum", "read_dataset", "read_table",
    "write_dataset",
]  # fmt: skip
