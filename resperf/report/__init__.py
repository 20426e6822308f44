"""Reports: results as text for people and as JSON for machines. Nothing here prints.

Networks, devices and comparisons with measurements have separate modules, so that a command loads
only what it shows.
"""

from __future__ import annotations

from resperf.report.comparison import ComparisonRow, comparison_table, mean_error
from resperf.report.documents import json_text
from resperf.report.tables import table

__all__ = ["ComparisonRow", "comparison_table", "json_text", "mean_error", "table"]
