"""The sampler: an endless, seeded stream of layers; any prefix of it is a fair sample."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from resperf.campaign.laws import Law
from resperf.campaign.spec import Campaign
from resperf.errors import CampaignError, LayerError
from resperf.layers import Layer, key_at_any_batch, kind_of

ATTEMPTS = 50_000
"""Consecutive rejected draws after which the campaign is refused."""
NETWORK_ATTEMPTS = 200
"""Rejected draws from networks after which the layer is drawn from the ranges."""


class Sampler:
    """Draws the layers of a campaign.

    Each draw chooses a kind by its share, then a source: the kind's ranges, or a perturbed layer of
    a reference network. The result depends only on the campaign, the seed and the harvested layers.

    Parameters
    ----------
    campaign : Campaign
    seed : int
    harvested : sequence of Layer
        Lowered layers of reference networks, at any batch size.
    skip_kinds : set of str
        Kinds that are not drawn.
    share_power : float
        Exponent of the shares of kinds; 0 draws all kinds equally often.
    """

    def __init__(
        self,
        campaign: Campaign,
        *,
        seed: int,
        harvested: Sequence[Layer] = (),
        skip_kinds: frozenset[str] = frozenset(),
        share_power: float = 1.0,
    ) -> None:
        self._campaign = campaign
        self._random = random.Random(f"resperf campaign {seed}")
        kinds = {k: spec for k, spec in campaign.kinds.items() if k not in skip_kinds}
        if not kinds:
            raise CampaignError("no kind of layer remains to draw; choose another framework")
        weights = [spec.share**share_power for spec in kinds.values()]
        self._kinds = list(kinds), list(itertools.accumulate(weights))
        self._cases = {
            kind: (spec.cases, list(itertools.accumulate(case.share for case in spec.cases)))
            for kind, spec in kinds.items()
        }
        self._harvested = {kind: _originals(harvested, kind) for kind in kinds}

    def draw(self, count: int) -> list[Layer]:
        """Draw the next layers, before lowering and with duplicates.

        Raises
        ------
        CampaignError
            If (almost) no layer of the ranges meets the constraints.
        """
        return [self._draw_one() for _ in range(count)]

    def _draw_one(self) -> Layer:
        kinds, weights = self._kinds
        (kind,) = self._random.choices(kinds, cum_weights=weights)
        own = self._campaign.kinds[kind].from_networks
        share = self._campaign.mixture.from_networks if own is None else own
        from_network = self._random.random() < share and self._harvested[kind]
        for attempt in range(ATTEMPTS):
            perturbed = from_network and attempt < NETWORK_ATTEMPTS
            layer = self._perturbed(kind) if perturbed else self._from_ranges(kind)
            if layer is not None and layer.is_runnable and self._campaign.constraints.allow(layer):
                return layer
        raise CampaignError(
            f"kinds.{kind}: {ATTEMPTS} draws in a row exceeded the constraints; "
            "narrow its ranges or raise the constraints"
        )

    def _from_ranges(self, kind: str) -> Layer | None:
        """Draw every field from its distribution; None if the fields contradict each other."""
        cases, weights = self._cases[kind]
        (case,) = self._random.choices(cases, cum_weights=weights)
        layer_type = kind_of(kind)
        words = draw_words(layer_type, case.laws, self._random)
        # Most draws of the paper's Table 3 have huge inputs: no layer is built to refuse them.
        elements = words["batch"] * words.get("channels_in", 1)
        elements *= words.get("height", 1) * words.get("width", 1)
        if 4 * elements > self._campaign.constraints.largest_tensor_bytes:
            return None
        try:
            layer = layer_type.from_fields(layer_type.fitting(words, self._random))
        except LayerError:
            return None
        return None if layer.is_made_by_frameworks else layer

    def _perturbed(self, kind: str) -> Layer | None:
        """Take a layer of a reference network and change some of its fields."""
        source = self._random
        original = self._harvested[kind][int(source.random() * len(self._harvested[kind]))]
        laws = self._campaign.kinds[kind].laws
        changes: dict[str, Any] = {}
        if "batch" in laws:
            # Tokens and windows are rows of one image: their number per image does not change.
            changes["batch"] = _batch(original) * laws["batch"].draw(source)
        exact = source.random() < self._campaign.mixture.exact
        try:
            if exact:
                return original.replace(**changes)
            if not original.INDEPENDENT_FIELDS:
                # A length of 1 stays 1.
                return original.varied(**changes, **self._scaled_fields(original, 0.6, above=1))
            changes |= self._scaled_fields(original, 0.7, above=0)
            changes |= self._switches(original, laws)
            changes |= _sizes(original, source)
            changes |= self._window(original, laws)
            layer = original.varied(**changes)
        except LayerError:
            return None
        unwanted = layer.is_made_by_frameworks and not original.is_made_by_frameworks
        return None if unwanted else layer

    def _scaled_fields(self, layer: Layer, share: float, *, above: int) -> dict[str, int]:
        """Scale about a share of the kind's `SCALED` fields that are above a value."""
        lengths = {name: int(layer.fields()[name]) for name in layer.SCALED}
        return {
            name: _scaled(length, self._random)
            for name, length in lengths.items()
            if length > above and self._random.random() < share
        }

    def _switches(self, layer: Layer, laws: Mapping[str, Law]) -> dict[str, Any]:
        """Sometimes redraw fields such as bias and activation from the campaign's distributions."""
        return {
            name: laws[name].draw(self._random)
            for name in layer.REDRAWN
            if name in laws and name in layer.specs and self._random.random() < 0.15
        }

    def _window(self, layer: Layer, laws: Mapping[str, Law]) -> dict[str, Any]:
        """Sometimes redraw kernel or stride, the same for both axes."""
        changes: dict[str, Any] = {}
        for word in layer.REDRAWN:
            names = layer.aliases.get(word)
            if names is None or self._random.random() >= 0.15 or layer.fields().get("whole_image"):
                continue
            law = laws.get(word) or laws.get(names[0])
            if law is not None:
                changes |= dict.fromkeys(names, law.draw(self._random))
        return changes


def draw_words(
    layer_type: type[Layer], laws: Mapping[str, Law], source: random.Random
) -> dict[str, Any]:
    """Draw a value for every word; a field's own distribution overrides its shorthand's."""
    words: dict[str, Any] = {}
    for word, law in sorted(laws.items(), key=lambda item: item[0] not in layer_type.aliases):
        value = law.draw(source)
        fields = layer_type.aliases.get(word, (word,))
        same = law.same_share >= 1 or source.random() < law.same_share
        for index, field in enumerate(fields):
            words[field] = value if same or index == 0 else law.draw(source)
    return words


def _originals(harvested: Sequence[Layer], kind: str) -> tuple[Layer, ...]:
    """Return the layers of a kind at their smallest batch sizes, in the layout before lowering."""
    unique: dict[str, Layer] = {}
    for layer in harvested:
        if layer.kind == kind:
            plain = layer.as_drawn()
            key = key_at_any_batch(plain.key)
            if key not in unique or _batch(plain) < _batch(unique[key]):
                unique[key] = plain
    return tuple(unique.values())


def _batch(layer: Layer) -> int:
    return int(layer.fields()["batch"])


def _scaled(width: int, source: random.Random) -> int:
    """Scale by 0.5, 1, 2 or a random factor, rounded like widths in networks."""
    if source.random() < 0.4:
        return max(1, int(width * (0.5, 1, 2)[int(source.random() * 3)]))
    value = width * 2 ** source.uniform(-1.5, 1.5)
    multiple = (1, 8, 16)[int(source.random() * 3)]
    return max(multiple if width >= multiple else 1, round(value / multiple) * multiple)


def _sizes(layer: Layer, source: random.Random) -> dict[str, int]:
    """Scale the image; square images mostly stay square."""
    fields = layer.fields()
    if "height" not in fields or source.random() < 0.3:
        return {}
    height, width = int(fields["height"]), int(fields["width"])
    if source.random() < 0.4:
        factors = [(0.5, 2.0)[int(source.random() * 2)]] * 2
    else:
        factors = [2 ** source.uniform(-1, 1)] * 2
        if source.random() < 0.2:
            factors[1] = 2 ** source.uniform(-1, 1)
    return {
        "height": max(1, round(height * factors[0])),
        "width": max(1, round(width * factors[1])),
    }
