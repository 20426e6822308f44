"""Laws: distributions from which the values of a layer's fields are drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resperf.errors import CampaignError
from resperf.limits import POSITIVE, SHARE, Limited, limited

Value = int | bool | str


@dataclass(frozen=True)
class Law(Limited):
    """Distribution of a value.

    Attributes
    ----------
    same_share : float
        Where a name stands for two fields (``size`` for height and width): the probability that
        both get the same value. Otherwise each is drawn independently.
    """

    same_share: float = limited(1.0, SHARE)

    def draw(self, source: random.Random) -> Value:
        """Draw one value."""
        raise NotImplementedError

    @property
    def listed(self) -> tuple[Value, ...]:
        """Values to validate: if these are valid, all values of the law are."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Constant(Law):
    """Always the same value."""

    value: Value

    def draw(self, source: random.Random) -> Value:
        """Return the value."""
        del source
        return self.value

    @property
    def listed(self) -> tuple[Value, ...]:
        """The value."""
        return (self.value,)


@dataclass(frozen=True, kw_only=True)
class Choices(Law):
    """One of a few values; without weights all of them alike."""

    values: tuple[Any, ...] = ()
    weights: tuple[float, ...] = limited((), POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.values:
            raise CampaignError("choices need a list of values")
        if self.weights and len(self.weights) != len(self.values):
            raise CampaignError(f"weights={list(self.weights)} must be one number per value")

    def draw(self, source: random.Random) -> Value:
        """Draw one of the values."""
        drawn: Value = source.choices(self.values, self.weights or None)[0]
        return drawn

    @property
    def listed(self) -> tuple[Value, ...]:
        """All values."""
        return self.values


@dataclass(frozen=True, kw_only=True)
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

    low: int
    high: int
    logarithmic: bool
    round_to: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high or self.low < self.logarithmic:
            raise CampaignError(
                f"low={self.low} and high={self.high} are not a valid range for this law"
            )
        if not self.round_to:
            raise CampaignError("round_to=[] must hold a number")

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


_LAWS: Mapping[str, tuple[type[Law], Mapping[str, Any]]] = {
    "uniform": (Range, {"logarithmic": False}),
    "log_uniform": (Range, {"logarithmic": True}),
    "choices": (Choices, {}),
}


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
    if name not in _LAWS:
        raise CampaignError(f"{where}: no law {name!r}; known laws: {', '.join(_LAWS)}")
    law_class, fixed = _LAWS[name]
    return law_class.from_table(settings, where, **fixed)
