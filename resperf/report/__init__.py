"""Reports: results as text for people and as JSON for machines. Nothing here prints."""

from __future__ import annotations

from resperf.report.comparison import ComparisonRow, comparison_table, mean_error
from resperf.report.devices import device_table
from resperf.report.documents import json_text
from resperf.report.network import everywhere_text, network_text
from resperf.report.side_by_side import side_by_side_text
from resperf.report.tables import Column, table

__all__ = [
    "Column", "ComparisonRow", "comparison_table", "device_table", "everywhere_text", "json_text",
    "mean_error", "network_text", "side_by_side_text", "table",
]  # fmt: skip
