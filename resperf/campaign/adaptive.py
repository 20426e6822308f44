"""Campaigns that learn what they need: batches of the layers of which least is known so far.

After a first batch of plain draws, each later batch is chosen from many candidates by how much
measuring them would teach: first how many of each kind, then which. Chosen layers only ever train:
test and validation layers are the next ones of the plain draws, so that both stay fair samples.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean

from resperf.campaign.plan import Lowerer, Plan, PlannedLayer
from resperf.layers import Layer, kind_of_key

Doubt = Callable[[Path, Sequence[Layer]], Sequence[float]]
"""From the dataset measured so far: the error to be expected of each of some layers, as a share of
its time, 0 or more. It is compared between kinds, and taken to fall with the root of their rows."""


@dataclass(frozen=True)
class Batches:
    """What an adaptive campaign measures next, whatever an earlier start measured.

    Parameters
    ----------
    plan : Plan
        All plain draws, in their order.
    doubt : Doubt
    first : int
        Layers of the first batch.
    """

    plan: Plan
    doubt: Doubt
    first: int

    @property
    def wanted(self) -> int:
        """Distinct layers of the whole campaign."""
        return len(self.plan.layers)

    def first_items(self) -> tuple[PlannedLayer, ...]:
        """Return the measurements of the first batch."""
        return self.plan.stream.items(self.plan.layers[: self.first])

    def earlier_items(self, measured: Iterable[Layer]) -> tuple[PlannedLayer, ...]:
        """Return the measurements of layers that an earlier start began with, repeats included."""
        first = set(self.plan.layers[: self.first])
        return self.plan.stream.items([layer for layer in measured if layer not in first])

    def next_items(
        self, lowerer: Lowerer, dataset: Path, measured: Set[str]
    ) -> tuple[PlannedLayer, ...]:
        """Choose the next batch; nothing where the campaign has all its layers.

        Parameters
        ----------
        lowerer : Lowerer
        dataset : Path
            What was measured so far.
        measured : set of str
            Keys of its layers, whatever became of them.

        Returns
        -------
        tuple of PlannedLayer
            Plain draws that test or validate and chosen layers that train, mixed.
        """
        have = len(measured)
        if have >= self.wanted:
            return ()
        settings, stream = self.plan.stream.campaign.adaptive, self.plan.stream
        target, turn = self.first, 0
        while target <= have:
            grown = max(target + 1, math.ceil(target * (1 + settings.growth)))
            target, turn = min(self.wanted, grown), turn + 1
        held_out = self._held_out[: round(settings.held_out * (target - self.first))]
        drawn = [*self.plan.layers[: self.first], *held_out]
        plain = [layer for layer in drawn if layer.key not in measured]
        known = measured | {layer.key for layer in plain}
        count = target - len(known)
        chosen = self._chosen(lowerer, dataset, measured, known, count, turn) if count > 0 else []
        batch = [*plain, *chosen]
        if not batch:
            # The ranges hold nothing else: what is left of the plain draws is all there is.
            batch = [v for v in self.plan.layers if v.key not in measured]
        random.Random(f"batch {stream.seed} {turn}").shuffle(batch)
        return stream.items(batch)

    def _chosen(
        self,
        lowerer: Lowerer,
        dataset: Path,
        measured: Set[str],
        known: Set[str],
        count: int,
        turn: int,
    ) -> list[Layer]:
        """Choose layers that train, by what is measured, beside what will be known anyway."""
        stream = self.plan.stream
        drawn = stream.candidates(lowerer, count * stream.campaign.adaptive.candidates, turn, known)
        candidates = [v for v, trains in zip(drawn, _train(drawn), strict=True) if trains]
        places = most_telling(
            [layer.kind for layer in candidates],
            self.doubt(dataset, candidates),
            weights=self._weights,
            learnt=Counter(map(kind_of_key, measured)),
            have=Counter(map(kind_of_key, known)),
            count=count,
            source=random.Random(f"choice {stream.seed} {turn}"),
        )
        return [candidates[place] for place in places]

    @cached_property
    def _held_out(self) -> list[Layer]:
        """Plain draws after the first batch that test or validate, in their order."""
        later = self.plan.layers[self.first :]
        return [v for v, trains in zip(later, _train(later), strict=True) if not trains]

    @cached_property
    def _weights(self) -> Mapping[str, float]:
        """How much each kind's error counts: its share of the plain draws, to the file's power."""
        power = self.plan.stream.campaign.adaptive.share_power
        counts = self.plan.counts
        return {kind: (count / self.wanted) ** power for kind, count in counts.items()}


def most_telling(
    kinds: Sequence[str],
    doubts: Sequence[float],
    *,
    weights: Mapping[str, float],
    learnt: Mapping[str, int],
    have: Mapping[str, int],
    count: int,
    source: random.Random,
) -> list[int]:
    """Choose layers: how many of each kind, then which, by chances as their doubts.

    Of each kind so many as make the weighted sum of the kinds' errors least, if each kind's falls
    with the root of its rows and all rows cost alike: Neyman's optimal allocation (1934), for
    errors in place of variances. With powers of shares for weights it lies between what is best
    for the mean layer and for the mean kind, as Bankier's power allocation (1988).

    Parameters
    ----------
    kinds : sequence of str
        Of the candidates.
    doubts : sequence of float
        Of the candidates, as shares of their times, 0 or more.
    weights : mapping of str to float
        How much the error of each kind counts; kinds that are not there count as the least.
    learnt : mapping of str to int
        Layers of each kind that the doubts were learnt from.
    have : mapping of str to int
        Layers of each kind that will be measured anyway, those among them.
    count : int
    source : Random

    Returns
    -------
    list of int
        Places of the chosen ones; fewer than `count` where there are no more candidates.
    """
    places: dict[str, list[int]] = {}
    for place, kind in enumerate(kinds):
        places.setdefault(kind, []).append(place)
    if not any(doubts):
        doubts = [1.0] * len(doubts)
    least = min(weights.values())
    portions = {}
    for kind, own in places.items():
        doubt = mean(doubts[place] for place in own)
        scale = doubt * math.sqrt(1 + learnt.get(kind, 0))
        portions[kind] = (weights.get(kind, least) * scale) ** (2 / 3)
    slots = shared_out(
        count,
        portions,
        {kind: have.get(kind, 0) for kind in places},
        {kind: len(own) for kind, own in places.items()},
    )
    chosen: list[int] = []
    for kind, own in places.items():
        chosen += _drawn_by_weight(own, [doubts[place] for place in own], slots[kind], source)
    return chosen


def shared_out(
    count: int,
    portions: Mapping[str, float],
    have: Mapping[str, int],
    most: Mapping[str, int],
) -> dict[str, int]:
    """Share so many things out that all have as near as may be in proportion to their portions.

    What is measured cannot be taken back, and nobody gets more than there is. Errors that fall as
    scale / sqrt(rows) have the least weighted sum where rows are in proportion to
    (weight x scale)^(2/3): the derivative by each kind's rows is the same then.

    Parameters
    ----------
    count : int
    portions : mapping of str to float
        0 or more.
    have : mapping of str to int
        What each has already.
    most : mapping of str to int
        How many more there are for each.

    Returns
    -------
    dict of str to int
        They come to `count`, or to all there are.
    """
    count = min(count, sum(most.values()))
    least = max(portions.values(), default=0.0) * 1e-9 or 1.0
    portions = {name: max(portion, least) for name, portion in portions.items()}

    def given(level: float) -> dict[str, float]:
        return {
            name: min(max(level * portion - have[name], 0.0), most[name])
            for name, portion in portions.items()
        }

    enough = [(have[name] + most[name]) / portion for name, portion in portions.items()]
    low, high = 0.0, max(enough, default=0.0)
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if sum(given(level).values()) < count else (low, level)
    exact = given(high)
    slots = {name: math.floor(each) for name, each in exact.items()}
    rest = sorted(exact, key=lambda name: slots[name] - exact[name])
    for name in rest[: count - sum(slots.values())]:
        slots[name] += 1
    return slots


def _train(layers: Sequence[Layer]) -> list[bool]:
    """Say of each layer whether it is one that trains."""
    # numpy is for the process that plans, not for everybody who imports the campaign.
    from resperf.splits import split_of_keys

    return [bool(trains) for trains in split_of_keys([layer.key for layer in layers]).train]


def _drawn_by_weight(
    items: Sequence[int], weights: Sequence[float], count: int, source: random.Random
) -> list[int]:
    """Draw without putting back, with chances in proportion to the weights.

    By Efraimidis and Spirakis (2006): the largest of u^(1/weight), u uniform.
    """
    marks = [
        math.log(1.0 - source.random()) / weight if weight > 0 else -math.inf for weight in weights
    ]
    order = sorted(range(len(items)), key=lambda place: -marks[place])
    return [items[place] for place in order[:count]]


def first_batch(plan: Plan, hours: float | None) -> int:
    """Return how many layers are drawn plainly at first.

    A share of all; where the time will not suffice for all, a share of those it suffices for.
    """
    share = plan.stream.campaign.adaptive.first
    fitting = len(plan.layers)
    if hours is not None and plan.hours > hours:
        fitting = math.ceil(fitting * hours / plan.hours)
    return max(1, math.ceil(share * fitting))
