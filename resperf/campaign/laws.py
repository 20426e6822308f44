"""Laws: distributions from which the values of a layer's fields are drawn."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resperf.errors import CampaignError

Value = int | bool | str


@dataclass(frozen=True)
class Law:
    """Distribution of a value.

    Attributes
    ----------
    same_share : float
        Where a name stands for two fields (``size`` for height and width): the probability that
        both get the same value. Otherwise each is drawn independently.
    """

    same_share: float = 1.0

    def draw(self, source: random.Random) -> Value:
        """Draw one value."""
        raise NotImplementedError

    @property
    def listed(self) -> tuple[Value, ...]:
        """Values to validate: if these are valid, all values of the law are."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Law):
    """Always the same value."""

    value: Value = 0

    def draw(self, source: random.Random) -> Value:
        """Return the value."""
        del source
        return self.value

    @property
    def listed(self) -> tuple[Value, ...]:
        """The value."""
        return (self.value,)


@dataclass(frozen=True)
class Choices(Law):
    """One of a few values, each with a weight."""

    values: tuple[Value, ...] = ()
    bounds: tuple[float, ...] = ()
    """Running sums of the weights."""

    def draw(self, source: random.Random) -> Value:
        """Draw one of the values."""
        return self.values[bisect.bisect(self.bounds, source.random() * self.bounds[-1])]

    @property
    def listed(self) -> tuple[Value, ...]:
        """All values."""
        return self.values


@dataclass(frozen=True)
class Range(Law):
    """An integer between two bounds, both included.

    Attributes
    ----------
    low, high : int
    logarithmic : bool
        Uniform in the logarithm; otherwise uniform.
    round_to : tuple of int
        One of these is drawn and the number is rounded to a multiple of it: networks have 64
        channels far more often than 61.
    """

    low: int = 1
    high: int = 1
    logarithmic: bool = False
    round_to: tuple[int, ...] = (1,)

    @property
    def listed(self) -> tuple[Value, ...]:
        """Both bounds."""
        return (self.low, self.high)

    def draw(self, source: random.Random) -> Value:
        """Draw a number."""
        share = source.random()
        if self.logarithmic:
            exact = self.low * ((self.high + 1) / self.low) ** share
            value = min(int(exact), self.high)
        else:
            value = self.low + int(share * (self.high + 1 - self.low))
        multiple = self.round_to[0]
        if len(self.round_to) > 1:
            multiple = self.round_to[int(source.random() * len(self.round_to))]
        return value if multiple == 1 else self._rounded(value, multiple)

    def _rounded(self, value: int, multiple: int) -> int:
        """Nearest multiple within the bounds; the value itself where there is none."""
        nearest = max(1, round(value / multiple)) * multiple
        return nearest if self.low <= nearest <= self.high else value


_RANGES = {"uniform": False, "log_uniform": True}


def law(written: Any, where: str) -> Law:
    """Read a law as written in a campaign's file.

    ``3`` is always 3, ``[1, 2, 3]`` any of these, and a table gives the rest:
    ``{ law = "log_uniform", low = 1, high = 512, round_to = [1, 8] }`` or
    ``{ law = "choices", values = [1, 3, 5], weights = [4, 4, 1] }``.

    Raises
    ------
    CampaignError
        If it is not a law, or its bounds are swapped.
    """
    if isinstance(written, (int, str)):
        return Constant(value=written)
    if isinstance(written, list):
        written = {"law": "choices", "values": written}
    if not isinstance(written, Mapping):
        raise CampaignError(f"{where}: {written!r} is not a law; write a value, a list or a table")
    settings = dict(written)
    name = settings.pop("law", None)
    same_share = settings.pop("same_share", 1.0)
    if not isinstance(same_share, (int, float)) or not 0 <= same_share <= 1:
        raise CampaignError(f"{where}: same_share={same_share!r} must be between 0 and 1")
    if name == "choices":
        return _choices(settings, same_share, where)
    if name in _RANGES:
        return _range(settings, _RANGES[name], same_share, where)
    raise CampaignError(f"{where}: no law {name!r}; known laws: uniform, log_uniform, choices")


def _choices(settings: dict[str, Any], same_share: float, where: str) -> Choices:
    values = settings.pop("values", None)
    if not isinstance(values, list) or not values:
        raise CampaignError(f"{where}: choices need a list of values")
    weights = settings.pop("weights", [1] * len(values))
    _refuse_rest(settings, where, "values, weights, same_share")
    if len(weights) != len(values) or not all(
        isinstance(w, (int, float)) and math.isfinite(w) and w > 0 for w in weights
    ):
        raise CampaignError(f"{where}: weights={weights!r} must be one positive number per value")
    return Choices(same_share, tuple(values), tuple(itertools.accumulate(map(float, weights))))


def _range(settings: dict[str, Any], logarithmic: bool, same_share: float, where: str) -> Range:
    low, high = settings.pop("low", None), settings.pop("high", None)
    round_to = settings.pop("round_to", [1])
    _refuse_rest(settings, where, "low, high, round_to, same_share")
    for label, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise CampaignError(f"{where}: {label}={value!r} must be an integer")
    if low > high or low < (1 if logarithmic else 0):
        raise CampaignError(
            f"{where}: low={low} and high={high} are not a valid range for this law"
        )
    if (
        not isinstance(round_to, list)
        or not round_to
        or not all(isinstance(m, int) and m >= 1 for m in round_to)
    ):
        raise CampaignError(
            f"{where}: round_to={round_to!r} must be a list of integers of at least 1"
        )
    return Range(same_share, low, high, logarithmic, tuple(round_to))


def _refuse_rest(settings: Mapping[str, Any], where: str, known: str) -> None:
    if settings:
        raise CampaignError(f"{where}: unknown {', '.join(sorted(settings))}; known: {known}")
