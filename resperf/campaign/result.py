"""How a start of a campaign ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CampaignResult:
    """How a campaign's start ended.

    Attributes
    ----------
    path : Path
        The dataset.
    reason : str
        ``"complete"``, ``"hours"`` (time was up) or ``"interrupted"``.
    rows : int
        Rows in the dataset.
    networks : int
        Those of them that are of whole networks.
    statuses : mapping of str to int
        Rows per status.
    measured : int
        Measurements that this start took, those taken again included.
    again : int
        Those taken again because they were noisy.
    noisy : int
        Rows of the dataset that still are.
    elapsed_s : float
        Wall time of the measuring, plan excluded.
    overhead_s : float
        Median over layers of the wall time outside warm-up and samples, journal included.
    notes : tuple of str
        What the plan left out, and why.
    choosing_s : float
        Wall time that an adaptive campaign took to choose layers, of `elapsed_s`.
    failure : str
        First line of the most frequent message of failed rows; empty if none failed.
    """

    path: Path
    reason: str
    rows: int
    statuses: Mapping[str, int]
    measured: int
    again: int
    noisy: int
    elapsed_s: float
    overhead_s: float
    notes: tuple[str, ...] = ()
    choosing_s: float = 0.0
    networks: int = 0
    failure: str = ""
