"""Measure whether a framework fuses two operators into one kernel, given the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from resperf.layers import Layer
from resperf.measurement import Measurement, Status
from resperf.records import Record
from resperf.timing import median_interval

if TYPE_CHECKING:
    from resperf.lowering.fusions import FusionRule

FEWEST_ROUNDS, MOST_ROUNDS = 7, 13
CONFIDENCE = 0.9
FUSED_SHARE = 1 / 3
"""Share of the follower's own time that must be saved for the two to count as fused."""

FINDINGS: Mapping[bool | None, str] = {
    True: "one kernel", False: "two kernels", None: "undecided",
}  # fmt: skip

Measure = Callable[[Layer, int], Measurement]
"""(layer, repeat) -> its measurement."""
Lower = Callable[[Sequence[Layer]], list[Layer]]


@dataclass(frozen=True)
class Saving(Record):
    """Time saved by running two operators together, at one shape.

    Attributes
    ----------
    layer : str
        Key of the fused layer.
    rounds : int
        How often all three layers were measured, one after the other.
    saved, low, high : float
        Median of the saved time as a share of the follower's own time, and its interval.
    """

    layer: str
    rounds: int
    saved: float
    low: float
    high: float

    @property
    def fused(self) -> bool | None:
        """Whether it is one kernel; None where the noise is too large to decide."""
        if self.low > FUSED_SHARE:
            return True
        return False if self.high < FUSED_SHARE else None


@dataclass(frozen=True)
class CheckedFusion(Record):
    """Result of checking a fusion rule.

    Attributes
    ----------
    rule : str
        Such as ``"conv + relu"``.
    claimed : bool
        Whether resperf's rules fuse them.
    savings : tuple of Saving
        One per shape that could be measured.
    """

    rule: str
    claimed: bool
    savings: tuple[Saving, ...]

    @property
    def fused(self) -> bool | None:
        """Majority of the decided shapes; None if they are balanced."""
        votes = sum({True: 1, False: -1, None: 0}[saving.fused] for saving in self.savings)
        return None if votes == 0 else votes > 0

    @property
    def finding(self) -> str:
        """The result in words."""
        return FINDINGS[self.fused] if self.savings else "the framework runs no such layers"

    @property
    def warning(self) -> str:
        """One line where the rule does not hold here; empty where it does or is undecided."""
        if self.fused is None or self.fused == self.claimed:
            return ""
        found = "one kernel" if self.fused else "two"
        believed = "one" if self.claimed else "two"
        shares = ", ".join(f"{saving.saved:.0%}" for saving in self.savings)
        return (
            f"{self.rule}: {found} on this machine, while resperf assumes {believed} "
            f"(fusing saves {shares} of the follower's time)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with the conclusion."""
        return {**super().to_json(), "fused": self.fused}


def check_fusion(rule: FusionRule, lower: Lower, measure: Measure) -> CheckedFusion:
    """Measure a rule at several shapes.

    Parameters
    ----------
    rule : FusionRule
    lower : callable
        Lowers layers to those that the framework runs.
    measure : callable

    Returns
    -------
    CheckedFusion
        Without savings where the framework runs none of the layers.
    """
    from resperf.lowering.fusions import fusion_pairs

    savings = []
    for pair in fusion_pairs(rule):
        saving = _saving(lower([pair.alone, pair.follower, pair.both]), measure)
        if saving is not None:
            savings.append(saving)
    return CheckedFusion(rule.name, rule.fused, tuple(savings))


def _saving(layers: Sequence[Layer], measure: Measure) -> Saving | None:
    """Measure a layer, its follower and both in rounds until the interval decides.

    The interval is tested after each round from `FEWEST_ROUNDS` on, so that the error rate is
    somewhat above that of a single test.
    """
    shares: list[float] = []
    low, high = -math.inf, math.inf
    for round_number in range(MOST_ROUNDS):
        rows = [measure(layer, round_number) for layer in layers]
        if any(row.status is not Status.OK for row in rows):
            return None
        alone_ms, follower_ms, both_ms = (row.value("execution_ms") for row in rows)
        if follower_ms > 0 and math.isfinite(alone_ms + both_ms):
            shares.append((alone_ms + follower_ms - both_ms) / follower_ms)
        if len(shares) < FEWEST_ROUNDS:
            continue
        low, high = median_interval(shares, CONFIDENCE)
        if not low <= FUSED_SHARE <= high:
            break
    if len(shares) < FEWEST_ROUNDS:
        return None
    return Saving(layers[-1].key, len(shares), median(shares), low, high)
