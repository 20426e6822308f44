"""Campaigns on GPU machines without Python: ONNX files and a script for trtexec, and back."""

from __future__ import annotations

from resperf.campaign.trtexec._folder import Written, write_folder
from resperf.campaign.trtexec._read import MISSING, read_results

__all__ = ["MISSING", "Written", "read_results", "write_folder"]
