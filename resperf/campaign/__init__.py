"""Campaigns: which layers to measure, and measuring them all without losing a row."""

from __future__ import annotations

from resperf.campaign.measure import measure_layer

__all__ = ["measure_layer"]
