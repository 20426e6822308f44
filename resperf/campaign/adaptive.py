"""Adaptive campaigns: active learning chooses later batches by an acquisition score.

The first batch is drawn at random. Each later batch is chosen from many candidates: first how many
of each kind, then which layers. Chosen layers only train. Test and validation layers are the next
ones of the random draws, so that both splits stay fair samples.
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

from resperf.campaign.plan import Lowerer, Plan, Planned
from resperf.grouping import grouped
from resperf.layers import Layer, kind_of_key

Acquisition = Callable[[Path, Sequence[Layer]], Sequence[float]]
"""(dataset measured so far, layers) -> acquisition score of each layer: its expected error as a
share of its time, 0 or more. Scores are compared between kinds, and are assumed to fall with the
square root of a kind's rows."""


@dataclass(frozen=True)
class Batches:
    """What an adaptive campaign measures next, also after a resume.

    Parameters
    ----------
    plan : Plan
        All random draws, in their order.
    acquisition : Acquisition
    first : int
        Layers of the first batch.
    """

    plan: Plan
    acquisition: Acquisition
    first: int

    @property
    def wanted(self) -> int:
        """Number of distinct layers of the whole campaign."""
        return len(self.plan.layers)

    def first_items(self) -> tuple[Planned, ...]:
        """Return the measurements of the first batch."""
        return self.plan.stream.items(self.plan.layers[: self.first])

    def earlier_items(self, measured: Iterable[Layer]) -> tuple[Planned, ...]:
        """Return the measurements, with repeats, of layers that an earlier start had begun."""
        first = set(self.plan.layers[: self.first])
        return self.plan.stream.items([layer for layer in measured if layer not in first])

    def next_items(
        self, lowerer: Lowerer, dataset: Path, measured: Set[str]
    ) -> tuple[Planned, ...]:
        """Choose the next batch; empty once the campaign has all its layers.

        Parameters
        ----------
        lowerer : Lowerer
        dataset : Path
            What was measured so far.
        measured : set of str
            Keys of its layers, of any status.

        Returns
        -------
        tuple of Planned
            Random draws that test or validate and chosen layers that train, shuffled.
        """
        have = len(measured)
        if have >= self.wanted:
            return ()
        settings, stream = self.plan.stream.campaign.adaptive, self.plan.stream
        target, batch_number = self.first, 0
        while target <= have:
            grown = max(target + 1, math.ceil(target * (1 + settings.growth)))
            target, batch_number = min(self.wanted, grown), batch_number + 1
        held_out = self._held_out[: round(settings.held_out * (target - self.first))]
        drawn = [*self.plan.layers[: self.first], *held_out]
        plain = [layer for layer in drawn if layer.key not in measured]
        planned = measured | {layer.key for layer in plain}
        count = target - len(planned)
        batch = plain
        if count > 0:
            drawn = stream.candidates(lowerer, count * settings.candidates, batch_number, planned)
            candidates = [v for v, trains in zip(drawn, _train(drawn), strict=True) if trains]
            indices = choose_by_score(
                [layer.kind for layer in candidates],
                self.acquisition(dataset, candidates),
                weights=self._weights,
                learnt=Counter(map(kind_of_key, measured)),
                have=Counter(map(kind_of_key, planned)),
                count=count,
                source=random.Random(f"choice {stream.campaign.seed} {batch_number}"),
            )
            batch += [candidates[index] for index in indices]
        if not batch:
            # The ranges hold no further layers: measure the remaining random draws.
            batch = [v for v in self.plan.layers if v.key not in measured]
        random.Random(f"batch {stream.campaign.seed} {batch_number}").shuffle(batch)
        return stream.items(batch)

    @cached_property
    def _held_out(self) -> list[Layer]:
        """Random draws after the first batch that test or validate, in their order."""
        later = self.plan.layers[self.first :]
        return [v for v, trains in zip(later, _train(later), strict=True) if not trains]

    @cached_property
    def _weights(self) -> Mapping[str, float]:
        """Weight of each kind's error: its share of the random draws, to the power in the file."""
        power = self.plan.stream.campaign.adaptive.share_power
        return {kind: (count / self.wanted) ** power for kind, count in self.plan.counts.items()}


def choose_by_score(
    kinds: Sequence[str],
    scores: Sequence[float],
    *,
    weights: Mapping[str, float],
    learnt: Mapping[str, int],
    have: Mapping[str, int],
    count: int,
    source: random.Random,
) -> list[int]:
    """Choose layers: how many of each kind, then which, with probability proportional to score.

    The numbers per kind minimise the weighted sum of the kinds' errors, if each kind's error falls
    with the square root of its rows and all rows cost the same: Neyman's optimal allocation (1934),
    for errors instead of variances. Weights that are powers of shares give a compromise between the
    optimum for the mean layer and that for the mean kind: Bankier's power allocation (1988).

    Parameters
    ----------
    kinds : sequence of str
        Of the candidates.
    scores : sequence of float
        Acquisition scores of the candidates, as shares of their times, 0 or more.
    weights : mapping of str to float
        Weight of each kind's error; a kind without one gets the smallest weight.
    learnt : mapping of str to int
        Layers of each kind that the scores were learnt from.
    have : mapping of str to int
        Layers of each kind that will be measured anyway, including those.
    count : int
    source : Random

    Returns
    -------
    list of int
        Indices of the chosen candidates; fewer than `count` where there are no more.
    """
    indices = grouped((kind, index) for index, kind in enumerate(kinds))
    if not any(scores):
        scores = [1.0] * len(scores)
    least = min(weights.values())
    portions = {}
    for kind, own in indices.items():
        score = mean(scores[index] for index in own)
        scale = score * math.sqrt(1 + learnt.get(kind, 0))
        portions[kind] = (weights.get(kind, least) * scale) ** (2 / 3)
    slots = allocated(
        count,
        portions,
        {kind: have.get(kind, 0) for kind in indices},
        {kind: len(own) for kind, own in indices.items()},
    )
    chosen: list[int] = []
    for kind, own in indices.items():
        chosen += _drawn_by_weight(own, [scores[index] for index in own], slots[kind], source)
    return chosen


def allocated(
    count: int, portions: Mapping[str, float], have: Mapping[str, int], most: Mapping[str, int]
) -> dict[str, int]:
    """Allocate rows to kinds so that the totals are as close to proportional as possible.

    Measured rows count and cannot be taken away, and each kind has a limit. Errors that fall as
    scale / sqrt(rows) have the smallest weighted sum where rows are proportional to
    (weight x scale)^(2/3): the derivatives with respect to each kind's rows are then equal.

    Parameters
    ----------
    count : int
    portions : mapping of str to float
        0 or more.
    have : mapping of str to int
        Rows that each kind has already.
    most : mapping of str to int
        How many more rows each kind can get.

    Returns
    -------
    dict of str to int
        Rows to add to each kind. They sum to `count`, or to all there are.
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
    slots = {name: math.floor(rows) for name, rows in exact.items()}
    rest = sorted(exact, key=lambda name: slots[name] - exact[name])
    for name in rest[: count - sum(slots.values())]:
        slots[name] += 1
    return slots


def _train(layers: Sequence[Layer]) -> list[bool]:
    """Return for each layer whether it is in the training split."""
    # Imported late: only the process that plans needs numpy.
    from resperf.splits import split_of_keys

    return [bool(trains) for trains in split_of_keys([layer.key for layer in layers]).train]


def _drawn_by_weight(
    items: Sequence[int], weights: Sequence[float], count: int, source: random.Random
) -> list[int]:
    """Draw without replacement, with probabilities proportional to the weights.

    Efraimidis and Spirakis (2006): take the largest u^(1/weight), u uniform.
    """
    marks = [
        math.log(1.0 - source.random()) / weight if weight > 0 else -math.inf for weight in weights
    ]
    order = sorted(range(len(items)), key=lambda index: -marks[index])
    return [items[index] for index in order[:count]]


def first_batch(plan: Plan, hours: float | None) -> int:
    """Return how many layers the first, random batch has.

    A share of all layers, or of those that fit into the time where that is too short for all.
    """
    share = plan.stream.campaign.adaptive.first
    fitting = len(plan.layers)
    if hours is not None and plan.hours > hours:
        fitting = math.ceil(fitting * hours / plan.hours)
    return max(1, math.ceil(share * fitting))
