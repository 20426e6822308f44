"""Text on a cluster: its nodes, what they have together, and what is not known."""

from __future__ import annotations

import dataclasses
from typing import Any

from resperf.devices.cluster import Cluster, Link
from resperf.report.tables import table
from resperf.units import format_bytes

_BYTES = ("ram_bytes", "ram_available_bytes", "gpu_memory_bytes")


def cluster_json(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as plain JSON values, with its totals; unknown facts are null."""
    totals = cluster.totals().items()
    of_all = {name: None if total is None else vars(total) for name, total in totals}
    return {**dataclasses.asdict(cluster), "totals": of_all}


def cluster_text(cluster: Cluster) -> str:
    """Show a line per node, the totals by equations 1-2 of PredictDDL, and the links."""
    rows = [
        [
            node.name, str(node.count), node.device or "cpu", str(node.devices),
            _cell("sockets", node.sockets), _cell("cores", node.cores),
            _cell("cores", node.cores_available), *(_cell(name, getattr(node, name))
            for name in _BYTES), _cell("flops_per_s", node.peak_flops_per_s()),
            "" if node.load is None else f"{node.load:.0%}",
        ]
        for node in cluster.nodes
    ]  # fmt: skip
    headings = ("node", "count", "device", "devices", "sockets", "cores", "available", "memory",
                "free", "GPU memory", "TFLOP/s", "load")  # fmt: skip
    title = f"{cluster.name}: {cluster.servers} nodes, {cluster.devices} devices"
    lines = [title, table(headings, rows, text=("node", "device")), ""]
    totals = {name: total for name, total in cluster.totals().items() if total is not None}
    sums = [
        [name.replace("_", " "), _cell(name, total.sum), _cell(name, total.minimum),
         f"{total.spread:.0%}"]
        for name, total in totals.items()
    ]  # fmt: skip
    columns = ("available", "sum", "least of a node", "spread")
    lines += [table(columns, sums, text=("available",)), ""]
    lines += [_link(word, getattr(cluster, word)) for word in ("inside", "between")]
    for names, nodes in _by_unknown(cluster).items():
        lines.append(f"not known of {', '.join(nodes)}: {', '.join(names)}")
    return "\n".join(lines)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "flops_per_s":
        return f"{value / 1e12:.3g}"
    return format_bytes(value) if "bytes" in name else f"{value:g}"


def _link(word: str, link: Link | None) -> str:
    words = "inside a node" if word == "inside" else "between nodes"
    if link is None:
        return f"{words}: not known"
    latency_us, gb_per_s = link.latency_s * 1e6, link.bandwidth_bytes_per_s / 1e9
    return f"{words}: {link.name}, {latency_us:.3g} us, {gb_per_s:.3g} GB/s"


def _by_unknown(cluster: Cluster) -> dict[tuple[str, ...], list[str]]:
    nodes: dict[tuple[str, ...], list[str]] = {}
    for node in cluster.nodes:
        if node.unknown:
            nodes.setdefault(node.unknown, []).append(node.name)
    return nodes
