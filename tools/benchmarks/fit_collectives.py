#!/usr/bin/env python
"""Fit latency and bandwidth of all-reduces to the published times of Vidur and aiconfigurator.

Writes resperf/devices/collectives.toml, and prints the errors on the sizes that were not fitted
(every second one, by size):

    python tools/benchmarks/fit_collectives.py --data ../shared/data
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from markdown_tables import markdown_table, percent
from pages import ROOT

from resperf.files import write_whole
from resperf.grouping import grouped
from resperf.predictors.intervals import SHARE
from resperf.predictors.linear import fit_coefficients

OUTPUT = ROOT / "resperf" / "devices" / "collectives.toml"
SOURCE = "Vidur (Agrawal et al. 2024), github.com/microsoft/vidur, MIT; fit_collectives.py"
TOPOLOGIES = {
    "a100-dgx": ("a100", "A100 SXM in DGX nodes of 8, NVLink inside a node"),
    "a100-pairwise-nvlink": ("a100-80gb", "4 A100 PCIe in a node, NVLink between pairs"),
    "h100-dgx": ("h100", "8 H100 SXM in a DGX node, NVLink"),
    "h100-pairwise-nvlink": ("", "4 H100 in a node, NVLink between pairs"),
}
"""Topology -> device, and words."""
AI_SOURCE = "NVIDIA's aiconfigurator-core 0.12, Apache-2.0; fit_collectives.py"
AI_TOPOLOGIES = {
    "a100-nccl": ("a100", "a100_sxm"), "h100-nccl": ("h100", "h100_sxm"),
    "h200-nccl": ("h200", "h200_sxm"), "b200-nccl": ("b200", "b200_sxm"),
    "b300-nccl": ("", "b300_sxm"), "gb200-nccl": ("", "gb200"),
    "l40s-nccl": ("l40s", "l40s"),
}  # fmt: skip
"""Topology of one node -> device, and folder."""
AI_BYTES = {"half": 2, "int8": 1}
LARGE_BYTES = 1e6


def times(path: Path) -> dict[tuple[int, int], np.ndarray]:
    """Return sizes in bytes and times in ms, by devices and devices per node."""
    names = ("num_workers", "devices_per_node", "size", "time_stats.all_reduce.median")
    with gzip.open(path, "rt") as file:
        cells = [[float(row[name]) for name in names] for row in csv.DictReader(file)]
    points = grouped(((int(n), int(per_node)), rest) for n, per_node, *rest in cells)
    return {key: np.array(sorted(rows)) for key, rows in sorted(points.items())}


def nccl_times(folder: Path) -> dict[tuple[int, int], np.ndarray]:
    """Return the same of aiconfigurator's newest NCCL of a card; sizes there are in elements."""
    with gzip.open(max(folder.glob("nccl__nccl__*.csv.gz")), "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["op_name"] == "all_reduce"]
    points = grouped(
        ((int(row["num_gpus"]),) * 2,
         [int(row["message_size"]) * AI_BYTES[row["nccl_dtype"]], float(row["latency"])])
        for row in rows
    )  # fmt: skip
    return {key: np.array(sorted(cells)) for key, cells in sorted(points.items())}


def fitted(rows: np.ndarray) -> tuple[dict[str, float], list[str]]:
    """Return the figures of one number of devices, and its errors as cells."""
    sizes, times_ms = rows.T
    matrix = np.column_stack([np.ones(len(sizes)), sizes])
    held = np.arange(len(sizes)) % 2 == 1
    latency_ms, ms_per_byte = fit_coefficients(matrix[~held], times_ms[~held])
    ratios = (times_ms / (latency_ms + ms_per_byte * sizes))[held]
    off = np.abs(1 / ratios - 1)
    large = sizes[held] >= LARGE_BYTES
    outer = (1 - SHARE) / 2
    low, high = np.quantile(ratios, (outer, 1 - outer))
    values = {
        "latency_us": latency_ms * 1e3,
        "bandwidth_gb_s": 1e-6 / ms_per_byte,
        "low": min(float(low), 1.0),
        "high": max(float(high), 1.0),
        "largest_bytes": sizes.max(),
    }
    return values, [percent(error) for error in (off.mean(), np.median(off), off[large].mean())]


def lines(data: Path, errors: list[list[str]]) -> Iterator[str]:
    """Yield the lines of the table, and add the errors."""
    yield "# All-reduces between accelerators: written by tools/benchmarks/fit_collectives.py."
    yield "# time = latency + bytes of each device / bandwidth; low and high: 90% of the measured"
    yield "# times over that. Bandwidths in 10^9 bytes per second."
    for name, (device, words) in TOPOLOGIES.items():
        path = data / "vidur" / f"network__{name.replace('-', '_')}__all_reduce.csv.gz"
        yield from table(name, device, words, SOURCE, times(path), errors)
    for name, (device, folder) in AI_TOPOLOGIES.items():
        points = nccl_times(data / "aiconfigurator" / folder)
        words = f"{max(points)[0]} {folder.partition('_')[0].upper()} in a node, NCCL"
        yield from table(name, device, words, AI_SOURCE, points, errors)


def table(
    name: str, device: str, words: str, source: str, points: dict[tuple[int, int], np.ndarray],
    errors: list[list[str]],
) -> Iterator[str]:  # fmt: skip
    """Yield the lines of a topology."""
    yield f'\n[{name}]\ndevice = "{device}"\nwords = "{words}"\nsource = "{source}"'
    yield "all_reduce = ["
    for (devices, per_node), rows in points.items():
        values, cells = fitted(rows)
        bus = values["bandwidth_gb_s"] * 2 * (devices - 1) / devices
        errors.append([name, str(devices), str(per_node), f"{values['latency_us']:.1f}",
                       f"{bus:.1f}", *cells])  # fmt: skip
        numbers = {"devices": devices, "per_node": per_node, **values}
        shown = ", ".join(f"{key} = {value:.4g}" for key, value in numbers.items())
        yield f"    {{ {shown} }},"
    yield "]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    words = parser.parse_args()
    errors: list[list[str]] = []
    text = "\n".join(lines(words.data, errors)) + "\n"
    write_whole(OUTPUT, text.encode())
    headings = "topology", "devices", "per node", "us", "bus GB/s", "MAPE", "median", "from 1 MB"
    print(markdown_table(headings, errors))


if __name__ == "__main__":
    main()
