"""Does a framework run two operators as one kernel? Measured, with the noise in mind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from resperf.layers import Layer
from resperf.measurement import Measurement, Status
from resperf.timing import median_interval

if TYPE_CHECKING:
    from resperf.lowering.fusions import FusionRule

FEWEST_ROUNDS, MOST_ROUNDS = 7, 13
CONFIDENCE = 0.9
FUSED_SHARE = 1 / 3
"""Share of the follower's own time that must be saved for the two to count as one kernel."""

FINDINGS: Mapping[bool | None, str] = {
    True: "one kernel", False: "two kernels", None: "cannot be told",
}  # fmt: skip

Measure = Callable[[Layer, int], Measurement]
"""(layer, repeat) -> its row."""
Lower = Callable[[Sequence[Layer]], list[Layer]]


@dataclass(frozen=True)
class Saving:
    """What running two operators together saves at one shape.

    Attributes
    ----------
    layer : str
        Key of the layer of both.
    rounds : int
        How often all three were measured, one after the other.
    saved, low, high : float
        Median of what is saved as a share of the follower's own time, and its interval.
    """

    layer: str
    rounds: int
    saved: float
    low: float
    high: float

    @property
    def fused(self) -> bool | None:
        """Whether it is one kernel; None where the noise does not let anybody say."""
        if self.low > FUSED_SHARE:
            return True
        return False if self.high < FUSED_SHARE else None


@dataclass(frozen=True)
class CheckedFusion:
    """What was found of a rule.

    Attributes
    ----------
    rule : str
        Such as ``"conv + relu"``.
    claimed : bool
        Whether resperf's rules say that both are one kernel.
    savings : tuple of Saving
        One per shape that could be measured.
    """

    rule: str
    claimed: bool
    savings: tuple[Saving, ...]

    @property
    def fused(self) -> bool | None:
        """What most shapes say that say anything; None if as many say the one as the other."""
        votes = sum({True: 1, False: -1, None: 0}[saving.fused] for saving in self.savings)
        return None if votes == 0 else votes > 0

    @property
    def finding(self) -> str:
        """What was found, in words."""
        return FINDINGS[self.fused] if self.savings else "the framework runs no such layers"

    @property
    def warning(self) -> str:
        """One line where the rule does not hold here; empty where it does or nobody can say."""
        if self.fused is None or self.fused == self.claimed:
            return ""
        found = "one kernel" if self.fused else "two"
        believed = "one" if self.claimed else "two"
        shares = ", ".join(f"{saving.saved:.0%}" for saving in self.savings)
        return (
            f"{self.rule}: {found} on this machine, while resperf takes them for {believed} "
            f"(saves {shares} of what follows)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, what was concluded among them."""
        return {**asdict(self), "savings": [asdict(s) for s in self.savings], "fused": self.fused}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        savings = tuple(Saving(**saving) for saving in values["savings"])
        return cls(values["rule"], values["claimed"], savings)


def check_fusion(rule: FusionRule, lower: Lower, measure: Measure) -> CheckedFusion:
    """Measure a rule at several shapes.

    Parameters
    ----------
    rule : FusionRule
    lower : callable
        Turns layers into those that the framework runs.
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

    It is looked at after each round from `FEWEST_ROUNDS` on, so that it errs somewhat more often
    than its confidence says.
    """
    shares: list[float] = []
    low, high = -math.inf, math.inf
    for turn in range(MOST_ROUNDS):
        rows = [measure(layer, turn) for layer in layers]
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
