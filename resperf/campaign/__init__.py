"""Campaigns: which layers to measure, and measuring them all without losing a row."""

from resperf.campaign.bench import Bench, plan_campaign
from resperf.campaign.measure import measure_layer
from resperf.campaign.plan import Plan
from resperf.campaign.runner import CampaignResult, run_campaign
from resperf.campaign.spec import Campaign

__all__ = [
    "Bench", "Campaign", "CampaignResult", "Plan", "measure_layer",
    "plan_campaign", "run_campaign",
]  # fmt: skip
