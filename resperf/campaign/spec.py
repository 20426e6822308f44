"""The definition of a campaign, read from a TOML file of ``microbench/`` and checked."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Self

from resperf.campaign.laws import Law, law
from resperf.errors import CampaignError, ResperfError
from resperf.layers import Layer, kind_of
from resperf.limits import (
    AT_LEAST_1,
    FIRST_SHARE,
    POSITIVE,
    SHARE,
    Limited,
    is_positive,
    limited,
    read_toml,
)
from resperf.timing import SamplingProtocol

DEPTHWISE = "depthwise"
"""Value of ``groups`` for as many groups as channels."""


@dataclass(frozen=True)
class Case:
    """A part of a kind's draws with some different distributions.

    Attributes
    ----------
    share : float
        Share of the kind's draws from ranges.
    laws : mapping of str to Law
        The kind's distributions, with those of this case in place of the kind's.
    """

    share: float
    laws: Mapping[str, Law]


@dataclass(frozen=True)
class KindSpec:
    """How layers of one kind are drawn.

    Attributes
    ----------
    share : float
        Weight among the campaign's kinds.
    cases : tuple of Case
    from_networks : float or None
        Share of layers made from networks' layers; None for the mixture's share.
    """

    share: float
    cases: tuple[Case, ...]
    from_networks: float | None = None

    @property
    def laws(self) -> Mapping[str, Law]:
        """The kind's own distributions, those of its first case."""
        return self.cases[0].laws


@dataclass(frozen=True)
class Constraints(Limited):
    """Limits of a layer; a draw beyond them is drawn again.

    Attributes
    ----------
    largest_tensor_bytes, largest_weight_bytes, largest_macs : int
        Limits of the input or output, of the weights, and of the work of one layer.
    largest_time_ms : float
        Limit of the execution, roughly predicted as ``2 macs / gflops + moved bytes / gb_per_s``.
    gflops, gb_per_s : float
        The machine's approximate speeds, for this prediction and for the duration of a campaign.
    """

    largest_tensor_bytes: int = 1 << 28
    largest_weight_bytes: int = 1 << 29
    largest_macs: int = 20_000_000_000
    largest_time_ms: float = 200.0
    gflops: float = 60.0
    gb_per_s: float = 6.0

    def predicted_ms(self, layer: Layer) -> float:
        """Predict a layer's execution roughly (ms)."""
        return 2 * layer.macs / (self.gflops * 1e6) + layer.moved_bytes / (self.gb_per_s * 1e6)

    def allow(self, layer: Layer) -> bool:
        """Whether a layer is within all limits."""
        return (
            max(layer.input_bytes, layer.output_bytes) <= self.largest_tensor_bytes
            and layer.weight_bytes <= self.largest_weight_bytes
            and layer.macs <= self.largest_macs
            and self.predicted_ms(layer) <= self.largest_time_ms
        )


@dataclass(frozen=True)
class Mixture(Limited):
    """Where layers come from.

    Attributes
    ----------
    from_networks : float
        Share of layers made from layers of reference networks; the rest is drawn from ranges.
    exact : float
        Share of these in which only the batch size changes; the others are perturbed.
    networks : tuple of str
        Names of reference networks; ``"*"`` for all that are shipped.
    """

    from_networks: float = limited(0.0, SHARE)
    exact: float = limited(0.2, SHARE)
    networks: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunSettings(Limited):
    """Settings of the runner; none of them changes a measured time.

    Attributes
    ----------
    hours : float
        Time after which each start stops, like ``--hours``; 0 for no limit.
    timeout_s : float
        A layer that takes longer fails, and its process is killed; networks have their own limit.
    memory_share : float
        Share of the machine's memory that the measuring process may allocate.
    recycle_layers : int
        Layers after which that process is replaced; 0 for the framework's default.
    reference_interval_s : float
        Time between two readings of the reference layer.
    compact_interval_s : float
        Time between two writes of the dataset while the campaign runs.
    retry_wait_s : float
        Minimum time before a noisy row is measured again.
    retries : int
        Maximum number of such repetitions per row.
    retry_share : float
        Maximum of all repetitions over the planned measurements.
    """

    hours: float = 0.0
    timeout_s: float = limited(60.0, POSITIVE)
    memory_share: float = limited(0.8, FIRST_SHARE)
    recycle_layers: int = 0
    reference_interval_s: float = 3.0
    compact_interval_s: float = 240.0
    retry_wait_s: float = 45.0
    retries: int = 2
    retry_share: float = 0.2

    def time_limit(self, asked: float | None) -> float | None:
        """Return the hours after which a start stops: `asked`, else the campaign's own limit."""
        return asked if asked is not None else self.hours or None


@dataclass(frozen=True)
class AdaptiveSettings(Limited):
    """Settings of an adaptive campaign (see `campaign.adaptive`).

    Attributes
    ----------
    first : float
        Share of the layers that are drawn at random before the first training.
    growth : float
        Size of each later batch over the layers measured so far.
    held_out : float
        Share of test and validation layers in the later batches, taken from the random draws (of
        which they are a fifth).
    candidates : int
        Candidates per chosen layer.
    share_power : float
        Exponent of a kind's share as the weight of its error: 1 minimises the error of the mean
        layer, 0 that of the mean kind.
    """

    first: float = limited(0.25, FIRST_SHARE)
    growth: float = limited(0.35, POSITIVE)
    held_out: float = limited(0.1, SHARE)
    candidates: int = limited(20, AT_LEAST_1)
    share_power: float = limited(0.5, SHARE)


@dataclass(frozen=True)
class DrawnSpec(Limited):
    """Networks whose sizes are drawn (`campaign.drawn`).

    Attributes
    ----------
    families : tuple of str
    count : int
        Different networks of each family.
    largest_macs, largest_parameters : int
        Limits of the multiply-adds of a batch and of the weights; a draw beyond is drawn again.
    laws : mapping of str to Law
        Sizes of the families by their distributions: every other word.
    """

    families: tuple[str, ...]
    laws: Mapping[str, Law]
    count: int = limited(100, AT_LEAST_1)
    largest_macs: int = 10**13
    largest_parameters: int = 10**9

    @classmethod
    def from_mapping(cls, values: Any) -> Self:
        """Check one ``[[networks.drawn]]`` and make it."""
        where = "networks.drawn"
        if not isinstance(values, Mapping):
            raise CampaignError(f"{where}={values!r} must be a table")
        words = {entry.name for entry in dataclasses.fields(cls)} - {"laws"}
        laws = {k: law(v, f"{where}.{k}") for k, v in values.items() if k not in words}
        own = {word: value for word, value in values.items() if word in words}
        return cls.from_table(own, where, laws=laws)


@dataclass(frozen=True)
class NetworkSpec(Limited):
    """Which whole networks are measured, and how.

    Attributes
    ----------
    files : tuple of str
        Patterns of ONNX files, and folders of them, relative to `folder`.
    drawn : tuple of DrawnSpec
        Networks without files.
    families : mapping of str to tuple of str
        Family -> patterns of its networks' names: ``{"vgg": ("vgg*",)}``.
    batches : tuple of int
        Each network is run at each of them; empty for the batch size of its file.
    shapes : mapping of str to tuple of int
        Shapes of inputs that have other free dimensions.
    seconds : float
        For each run; see `resperf.campaign.measure.guarded_runs`.
    timeout_s : float
        A run that takes longer is ended, and its row is a timeout.
    repeats : int
        How many times more each run is measured, after all others.
    repeat_share : float
        Share of the runs that are repeated.
    settings : mapping of str to tuple
        Settings of the target by the backend's keywords, such as ``threads``: every network is run
        under each combination of their values.
    folder : Path
        Of the campaign's file.
    """

    files: tuple[str, ...] = ()
    drawn: tuple[DrawnSpec, ...] = ()
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    batches: tuple[int, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seconds: float = limited(3.0, POSITIVE)
    timeout_s: float = limited(1800.0, POSITIVE)
    repeats: int = 0
    repeat_share: float = limited(1.0, SHARE)
    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    folder: Path = Path()

    def family_of(self, name: str) -> str:
        """Return the family of a network; empty if it is in none."""
        fits = partial(fnmatchcase, name)
        return next((key for key, words in self.families.items() if any(map(fits, words))), "")

    @property
    def combinations(self) -> list[dict[str, Any]]:
        """Keywords of the backend, one for each combination of settings; one without any."""
        return [
            dict(zip(self.settings, values, strict=True))
            for values in itertools.product(*self.settings.values())
        ]

    @classmethod
    def from_mapping(cls, values: Any, folder: Path) -> Self:
        """Check ``[networks]`` and make it.

        Raises
        ------
        CampaignError
            If a value is of the wrong type or out of range, or there is no network.
        """
        if not isinstance(values, Mapping):
            raise CampaignError(f"networks={values!r} must be a table")
        words = {entry.name for entry in dataclasses.fields(cls)} - {"settings", "folder"}
        own = {word: value for word, value in values.items() if word in words - {"drawn"}}
        drawn = tuple(map(DrawnSpec.from_mapping, values.get("drawn", ())))
        settings = {
            word: tuple(value) if isinstance(value, list) else (value,)
            for word, value in values.items()
            if word not in words
        }
        for word, choices in settings.items():
            if not choices or not all(isinstance(choice, (str, int, float)) for choice in choices):
                raise CampaignError(
                    f"networks: {word}={values[word]!r} is no setting of a framework, which is a "
                    f"value or a list of values; its own words are {', '.join(sorted(words))}"
                )
        spec = cls.from_table(own, "networks", settings=settings, folder=folder, drawn=drawn)
        if not (spec.files or drawn):
            raise CampaignError("networks: none are named; add files, or [[networks.drawn]]")
        return spec


@dataclass(frozen=True)
class Campaign(Limited):
    """A campaign, as defined by its file.

    Attributes
    ----------
    name, description : str
    samples : int
        Distinct layers to measure.
    seed : int
        Default seed.
    repeat_share : float
        Share of layers measured again later, to record the noise floor.
    test_repeats : int
        How often layers of the test split are measured again later: test data should be more exact
        than training data.
    kinds : mapping of str to KindSpec
        Of the layers to measure; empty where only networks are.
    networks : NetworkSpec, optional
        Whole networks to measure.
    constraints, mixture, adaptive, protocol, run
        See their classes.
    source : mapping
        The file's content as plain JSON values: what is stored with the data.
    """

    name: str
    kinds: Mapping[str, KindSpec]
    description: str = ""
    samples: int = limited(1000, AT_LEAST_1)
    seed: int = 0
    repeat_share: float = limited(0.02, SHARE)
    test_repeats: int = 0
    networks: NetworkSpec | None = None
    constraints: Constraints = field(default_factory=Constraints)
    mixture: Mixture = field(default_factory=Mixture)
    adaptive: AdaptiveSettings = field(default_factory=AdaptiveSettings)
    protocol: SamplingProtocol = field(default_factory=SamplingProtocol)
    run: RunSettings = field(default_factory=RunSettings)
    source: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read a campaign file.

        Raises
        ------
        CampaignError
            If it cannot be read or is invalid; the message names the place.
        """
        values = read_toml(path, CampaignError)
        try:
            return cls.from_mapping({"name": path.stem, **values}, folder=path.parent)
        except ResperfError as error:
            raise CampaignError(f"campaign {path}: {error}") from error

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, folder: Path = Path()) -> Self:
        """Make a campaign from checked values.

        Parameters
        ----------
        values : mapping
        folder : Path
            What the networks' files are relative to.

        Raises
        ------
        CampaignError
            If a word is unknown, or a value has the wrong type or is out of range.
        """
        kinds, networks = values.get("kinds", {}), values.get("networks")
        if not isinstance(kinds, Mapping) or not (kinds or networks is not None):
            raise CampaignError(
                "no kinds and no networks: add a table such as [kinds.conv] or [networks]"
            )
        specs = {kind: _kind_spec(kind, table) for kind, table in kinds.items()}
        # All distributions that layers were drawn from, including the kind's defaults.
        drawn = {kind: {**_ranges(kind, table), **table} for kind, table in kinds.items()}
        campaign = cls.from_table(
            {word: value for word, value in values.items() if word not in ("kinds", "networks")},
            "campaign",
            kinds=specs,
            networks=None if networks is None else NetworkSpec.from_mapping(networks, folder),
            source={**values, "kinds": drawn} if kinds else dict(values),
        )
        if not campaign.name:
            raise CampaignError("name='' must not be empty")
        return campaign

    def to_json(self) -> dict[str, Any]:
        """Return what `from_mapping` reads."""
        return dict(self.source)

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Return the differences from a stored campaign that affect the data.

        The number of samples, networks, description, seed, runner and adaptive settings may differ.
        """
        free = {"samples", "networks", "description", "run", "seed", "adaptive"}
        mine = self.to_json()
        return [
            f"campaign's {word} changed"
            for word in sorted((set(mine) | set(other)) - free)
            if mine.get(word) != other.get(word)
        ]


def _ranges(kind: str, words: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the kind's default distributions; none if `words` cover all fields without default."""
    layer_type = kind_of(kind)
    drawn = {field for word in words for field in layer_type.aliases.get(word, (word,))}
    needed = {name for name, field in layer_type.specs.items() if field.default is MISSING}
    return {} if needed <= drawn else layer_type.ranges()


def _kind_spec(kind: str, table: Any) -> KindSpec:
    """Read ``[kinds.KIND]``: its share, its distributions and its cases."""
    where = f"kinds.{kind}"
    if not isinstance(table, Mapping):
        raise CampaignError(f"{where}={table!r} must be a table")
    words = dict(table)
    share, written = words.pop("share", 1.0), words.pop("case", [])
    if not is_positive(share):
        raise CampaignError(f"{where}: share={share!r} must be a number above 0")
    if not isinstance(written, list):
        raise CampaignError(f"{where}: case={written!r} must be a list of tables")
    from_networks = words.pop("from_networks", None)
    if from_networks is not None:
        Mixture.from_table({"from_networks": from_networks}, where)
    base = _laws(kind, {**_ranges(kind, words), **words}, where)
    cases = [_case(kind, base, own, f"{where}.case") for own in written]
    rest = 1.0 - sum(case.share for case in cases)
    if rest < 0:
        raise CampaignError(f"{where}: the shares of its cases add up to {1 - rest:g}, above 1")
    return KindSpec(share, (Case(rest, base), *cases), from_networks)


def _case(kind: str, base: Mapping[str, Law], written: Any, where: str) -> Case:
    """Read one ``[[kinds.KIND.case]]``."""
    share = written.get("share") if isinstance(written, Mapping) else None
    if not is_positive(share):
        raise CampaignError(f"{where}: a case is a table with a share above 0; got {written!r}")
    # Its name is for readers of the file.
    words = {k: v for k, v in written.items() if k not in ("name", "share")}
    own = _laws(kind, words, where)
    hidden = {field for word in own for field in kind_of(kind).aliases.get(word, ())}
    inherited = {word: law for word, law in base.items() if word not in hidden}
    return Case(written["share"], {**inherited, **own})


def _laws(kind: str, words: Mapping[str, Any], where: str) -> dict[str, Law]:
    """Read distributions by word; refuse words that the kind does not have."""
    layer_type = kind_of(kind)
    allowed = {*layer_type.specs, *layer_type.aliases, *layer_type.WORDS}
    unknown = sorted(set(words) - allowed)
    if unknown:
        raise CampaignError(
            f"{where}: no field {', '.join(unknown)}; known: {', '.join(sorted(allowed))}"
        )
    laws = {word: law(written, f"{where}.{word}") for word, written in words.items()}
    for word, distribution in laws.items():
        for value in distribution.listed:
            _refuse_impossible(kind, word, value, f"{where}.{word}")
    return laws


def _refuse_impossible(kind: str, word: str, value: Any, where: str) -> None:
    """Refuse a value that no layer of the kind can have: it would silently never be drawn."""
    layer_type = kind_of(kind)
    possible = layer_type.WORDS.get(word)
    fields = layer_type.aliases.get(word, (word,))
    specs = [layer_type.specs[name] for name in fields if name in layer_type.specs]
    if possible is None and specs and all(spec.choices for spec in specs):
        possible = specs[0].choices
    if possible is not None:
        wrong, right = value not in possible, f"one of {', '.join(possible)}"
    elif specs and specs[0].unit == "bool":
        wrong, right = value not in (False, True), "true or false"
    elif word == "groups" and value == DEPTHWISE:
        return
    else:
        least = max((spec.minimum for spec in specs), default=0)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        wrong, right = not is_integer or value < least, f"an integer of at least {least}"
    if wrong:
        raise CampaignError(f"{where}: {value!r} must be {right}")
