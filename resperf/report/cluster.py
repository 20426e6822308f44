"""Text on a cluster: its nodes, what they have together, and what is not known."""

from __future__ import annotations

import dataclasses
from typing import Any

from resperf.devices.cluster import Cluster
from resperf.report.tables import table
from resperf.units import format_bytes

_COLUMNS = ("count", "devices", "sockets", "cores", "cores_available", "ram_bytes",
            "ram_available_bytes", "gpu_memory_bytes", "disk_bytes_per_s", "flops_per_s",
            "load")  # fmt: skip


def cluster_json(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as plain JSON values, with its totals; unknown facts are null."""
    totals = cluster.totals().items()
    of_all = {name: None if total is None else vars(total) for name, total in totals}
    return {**dataclasses.asdict(cluster), "totals": of_all}


def cluster_text(cluster: Cluster) -> str:
    """Show a line per node, the totals by equations 1-2 of PredictDDL, and the links."""
    of_node = [
        (node.name, node.device or "cpu", {**vars(node), "flops_per_s": node.peak_flops_per_s()})
        for node in cluster.nodes
    ]
    totals = {name: total for name, total in cluster.totals().items() if total is not None}
    of_all = [(name, "", {column: getattr(total, word) for column, total in totals.items()})
              for word, name in (("sum", "available in all"), ("minimum", "least of a node"))
              ]  # fmt: skip
    rows = [[name, device, *(_cell(column, facts.get(column)) for column in _COLUMNS)]
            for name, device, facts in (*of_node, *of_all)]  # fmt: skip
    headings = ("node", "device", *(column.split("_bytes")[0].replace("_", " ")
                                    for column in _COLUMNS))  # fmt: skip
    lines = [f"{cluster.name}: {cluster.servers} nodes, {cluster.devices} devices",
             table(headings, rows, text=("node", "device"))]  # fmt: skip
    for words, link in (("inside a node", cluster.inside), ("between nodes", cluster.between)):
        described = link and (f"{link.name}, {link.latency_s * 1e6:.3g} us, "
                          f"{link.bandwidth_bytes_per_s / 1e9:.3g} GB/s")  # fmt: skip
        lines.append(f"{words}: {described or 'not known'}")
    lines += [f"not known of {node.name}: {', '.join(node.unknown)}"
              for node in cluster.nodes if node.unknown]  # fmt: skip
    return "\n".join(lines)


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return ""
    return format_bytes(value) if "bytes" in column else f"{value:.4g}"
