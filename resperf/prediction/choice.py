"""Which bundle answers for the device, framework and setting that a user asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resperf.bundle import (
    MANIFEST,
    Bundle,
    Source,
    best_of,
    bundle_place,
    find_bundle,
    find_bundles,
    platforms_of,
)
from resperf.devices import DeviceFacts, add_device, devices, read_device, target_of
from resperf.errors import BundleError, DeviceError, Message, UnsupportedError
from resperf.network import Network
from resperf.prediction.offers import (
    Offer,
    RestsOn,
    accelerator,
    offers,
    own_offers,
)
from resperf.settings import (
    HALF_TYPES,
    PEAK_NEEDED,
    PLAIN_PRECISIONS,
    PRECISION_OF,
    Mode,
    Setting,
    same_settings,
)
from resperf.targets import DEFAULT

_TABLE = ".toml"
_USUAL_LAYOUTS = ("", "nchw")


@dataclass(frozen=True)
class Query:
    """A device, as asked for; None where the question leaves it open.

    Attributes
    ----------
    device : str or None
        A name, a bundle's name or folder, or a TOML file with the facts of a card.
    framework : str or None
    bundle : str or Path or None
        As ``--bundle``.
    precision : str or None
        ``"fp32"``, ``"amp"``, ``"fp16"`` or ``"bf16"``; None means the network's own types.
    compiled : bool
        Whether the framework compiles the network; if false, eager is preferred.
    method : str or None
        Method that the bundle was trained by.
    training : bool
        Whether training steps are asked for, not runs.
    threads : int or None
        Of several parts that were measured with different numbers of threads, that of the nearest.
    """

    device: str | None = None
    framework: str | None = None
    bundle: str | Path | None = None
    precision: str | None = None
    compiled: bool = False
    method: str | None = None
    training: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.device is not None:  # a TOML file's Path, a torch.device
            object.__setattr__(self, "device", str(self.device))

    @property
    def words(self) -> str:
        """The setting in words."""
        named = ["training steps"] if self.training else []
        named += [f"precision {self.precision or PLAIN_PRECISIONS[1]}"]
        return ", ".join([*named, "compiled"] if self.compiled else named)

    def fits(self, setting: Setting) -> bool:
        """Say whether times under a setting answer the question."""
        plain = self.precision in (None, "fp64", *PLAIN_PRECISIONS)
        return (
            setting.precision in (PLAIN_PRECISIONS if plain else (self.precision,))
            and (setting.mode is Mode.TRAINING or not self.training)
            and (setting.is_compiled or not self.compiled)
        )

    def fitting(self, candidates: Iterable[Offer]) -> list[Offer]:
        """Return the offers that answer the question: of each part and device, one.

        Of several settings, one that is compiled only if that is asked for, of the framework's own
        layout, and of the latest version. Settings of training steps come last.
        """
        groups: dict[tuple[int, str], list[Offer]] = {}
        for offer in candidates:
            fits = self.fits(offer.setting) and self._is_named(offer)
            if fits and (offer.has_steps or not self.training):
                groups.setdefault((id(offer.part), offer.device), []).append(offer)
        return [min(group, key=self._unlikeness) for group in groups.values()]

    def _is_named(self, offer: Offer) -> bool:
        """Whether the framework is that of the question, or what is meant where none is named.

        What whole networks tell of many cards in another framework than the usual one is not.
        """
        part = offer.part
        if self.framework is not None or part is None or not part.serves_unseen or part.kinds:
            return self.framework in (None, offer.framework)
        return target_of(offer.device, offer.framework).default_for_class

    def of_first_precision(self, candidates: Sequence[Offer]) -> list[Offer]:
        """Return the offers in the first precision that fits otherwise, if none is asked for."""
        if self.precision is not None:
            return []
        precisions = dict.fromkeys(offer.setting.precision for offer in candidates)
        fitting = (
            replace(self, precision=precision).fitting(candidates) for precision in precisions
        )
        return next(filter(None, fitting), [])

    def _unlikeness(self, offer: Offer) -> tuple[Any, ...]:
        setting = offer.setting
        version = [-int(word) for word in setting.framework_version.split(".") if word.isdigit()]
        return (
            (setting.mode is Mode.TRAINING) != self.training,
            setting.is_compiled and not self.compiled,
            setting.layout not in _USUAL_LAYOUTS,
            version,
        )


@dataclass(frozen=True)
class Choice:
    """The bundle that answers, and notes on why this one."""

    bundle: Bundle
    notes: tuple[str, ...] = ()


def choose(query: Query, *, compared: bool = False) -> Choice:
    """Choose what answers: a bundle of the device, one for unseen devices, or its data sheet.

    The first group of `resperf.prediction.offers.offers` that has the framework and the setting
    that are asked for, without a precision plain (float32) ones; of several bundles in it,
    `resperf.bundle.best_of` chooses. For what is no card, the setting is one of the bundle that
    `resperf.bundle.find_bundle` finds.

    A bundle that is named answers under its own setting if no precision is asked for.

    Parameters
    ----------
    query : Query
    compared : bool
        Whether all devices answer, so that no note names others that were measured.

    Raises
    ------
    DeviceError, BundleError
        If the device is not known and no bundle is its own, or if that is damaged.
    UnsupportedError
        If the device lacks the precision, or nothing answers for it.
    ResperfError
        If a TOML file does not describe a device.
    """
    if query.device is None and _is_without_bundle(query.bundle):
        query = replace(query, device=str(query.bundle), bundle=None)
    query = with_own_card(query)
    if query.bundle is not None and query.device is None:
        query = _as_calibrated(query)
    facts = accelerator(query.device)
    if query.method is not None:
        choice = _by_method(query, query.method)
    elif facts is not None and not _is_bundle(query.device):
        choice = _of_card(query, facts)
    else:
        named = find_bundle(query.device, query.framework, query.bundle)
        parts = sorted(named.parts, key=lambda part: part.part is not named.part)
        fitting = _fitting(query, list(own_offers(parts, named.device)))
        if (its_facts := accelerator(named.device)) is not None:
            _refuse_lacking(query, its_facts)
        choice = Choice(fitting[0].bundle)
    if query.bundle is not None and query.precision is None and not query.compiled:
        choice = _under_calibrated(choice)
    bundle, notes = choice.bundle, choice.notes
    of_threads = bundle.setting.threads > 0 and any(part.kinds for part in bundle.parts)
    if query.threads is not None and of_threads and bundle in bundle.parts:
        wanted = replace(bundle.setting, threads=query.threads)
        bundle = bundle.part_for(None, None, wanted, bundle.platform)
    if facts is not None and not compared and not _is_bundle(query.device):
        notes += _measured_alike(query, facts, bundle)
    return Choice(bundle, notes)


def in_own_type(query: Query, network: Network) -> Query:
    """Ask for the precision that a network's own values are of, unless it is one of float32.

    Autocast leaves float64 as it is; a bundle that is named has its own setting for halves.

    Raises
    ------
    UnsupportedError
        If another precision is asked for.
    """
    own = PRECISION_OF.get(network.float_type)
    if own is None or query.precision in (own, "amp" if own != "fp64" else own):
        return query
    if query.precision not in (None, "amp"):
        raise UnsupportedError(
            f"{network.name} has values of {network.float_type}, which --precision "
            f"{query.precision} does not change; leave it out, or convert the file"
        )
    return query if query.bundle and own != "fp64" else replace(query, precision=own)


def choose_for(query: Query, network: Network) -> Choice:
    """Choose what answers for a network in its own type, as for that type if it is asked for.

    Of halves that nothing was measured in, as on a CPU, their layers say the type.
    """
    asked = in_own_type(query, network)
    try:
        choice = choose(asked)
    except UnsupportedError:
        if HALF_TYPES.get(asked.precision or "") != network.float_type:
            raise
        choice = choose(replace(asked, precision=None))
    facts = accelerator(choice.bundle.device)
    if facts is not None and query.precision != "amp":
        _refuse_lacking(replace(query, precision=PRECISION_OF.get(network.float_type)), facts)
    return choice


def place_of(word: str | Path | None, framework: str | None = None) -> Path | None:
    """Return the folder given by ``--bundle``, or that of what answers for a card without one.

    Raises
    ------
    ResperfError
        As `choose`.
    """
    if _is_without_bundle(word):
        return choose(Query(str(word), framework)).bundle.path
    return bundle_place(word, framework)


def _is_without_bundle(word: str | Path | None) -> bool:
    """Say whether a value of ``--bundle`` is a card of which no bundle has times."""
    facts = None if word is None or Path(word).is_dir() else accelerator(str(word))
    return facts is not None and not any(own_offers(find_bundles()[0], facts.device))


def _by_method(query: Query, method: str) -> Choice:
    """Choose between the bundles of a device that were trained by one method.

    Raises
    ------
    DeviceError
        If there is none.
    UnsupportedError
        If none has times under the setting.
    """
    path, parts, _ = _searched(query)
    device = query.device or (None if _is_bundle(path) else DEFAULT.device_class)
    mine = list(own_offers([part for part in parts if part.method == method], device))
    if not mine:
        methods = sorted({part.method for part in parts if platforms_of(part, device)})
        others = {name for part in parts if part.method == method for name in platforms_of(part)}
        there = f"only by {', '.join(methods)}; " if methods else ""
        there += f"{', '.join(sorted(others))} have one; " if others else ""
        framework = f" with {query.framework}" if query.framework else ""
        raise DeviceError(
            f"no bundle of {device or path}{framework} was trained by {method}, {there}"
            f"train one: resperf train FILE.h5 --method {method}"
        )
    return Choice(_checked(best(_fitting(query, mine))))


def _fitting(query: Query, own: Sequence[Offer]) -> list[Offer]:
    """Return the offers of bundles that were named which fit, in any precision if none is asked.

    Raises
    ------
    UnsupportedError
        If none fits.
    """
    fitting = query.fitting(own) or query.of_first_precision(own)
    if not fitting:
        raise _no_times(query, own)
    return fitting


def best(fitting: Sequence[Offer]) -> Offer:
    """Choose between offers for one device (`resperf.bundle.best_of`)."""
    if len(fitting) == 1:
        return fitting[0]
    offer_of = {offer.bundle: offer for offer in fitting}
    return offer_of[best_of([*offer_of])]


def _searched(query: Query) -> tuple[Path | None, list[Bundle], dict[Path, BundleError]]:
    """Return the folder of ``--bundle``, the parts found with the framework, and damaged ones."""
    path = place_of(query.bundle, query.framework)
    parts, damaged = find_bundles(path, alone=True, methods=query.method is not None)
    return path, [part for part in parts if query.framework in (None, part.framework)], damaged


def _no_times(query: Query, own: Sequence[Offer]) -> UnsupportedError:
    words = [f"--precision {query.precision}"] if query.precision else []
    words += ["--train"] if query.training else []
    words += ["--compiled"] if query.compiled else []
    without = f"leave out {' and '.join(words)}, or " if words else ""
    return UnsupportedError(
        f"{own[0].path} has no times of {own[0].device} with {query.words}, only "
        f"{_listed(own)}; {without}name another bundle or device"
    )


def precisions_of(candidates: Sequence[Offer]) -> list[str]:
    """Return the precisions of offers, ``"fp32 compiled"`` where eager ones have none of it."""
    eager = {offer.setting.precision for offer in candidates if not offer.setting.is_compiled}
    words = (
        precision if precision in eager else f"{precision} compiled"
        for precision in (offer.setting.precision for offer in candidates)
    )
    return list(dict.fromkeys(filter(None, words)))


def _listed(candidates: Sequence[Offer]) -> str:
    """List frameworks and their precisions: ``"torch (fp32, amp), tensorflow (fp32)"``."""
    texts = []
    for name in dict.fromkeys(offer.framework for offer in candidates):
        precisions = precisions_of([offer for offer in candidates if offer.framework == name])
        texts.append(f"{name} ({', '.join(precisions) or PLAIN_PRECISIONS[1]})")
    return ", ".join(texts)


def with_own_card(query: Query) -> Query:
    """Return the question with the name of the card that a TOML file describes.

    Raises
    ------
    UnsupportedError
        If it is a processor without a bundle.
    ResperfError
        If the file does not describe a device.
    """
    if query.device is None or not query.device.casefold().endswith(_TABLE):
        return query
    facts = read_device(Path(query.device))
    own = own_offers(find_bundles()[0], facts.device)
    if facts.device_class == DEFAULT.device_class and not any(own):
        raise UnsupportedError(
            f"{query.device} describes a processor, and no bundle has times of {facts.device!r}; "
            "only accelerators are predicted from their facts: measure it with resperf bench"
        )
    return replace(query, device=add_device(facts).device)


def _as_calibrated(query: Query) -> Query:
    """Ask a bundle that was calibrated for one device for that, if no other is named."""
    path, parts, _ = _searched(query)
    calibrated = {
        calibration.platform.device
        for part in parts
        for calibration in part.calibrations
        if calibration.source is Source.RUNS
    }
    if not _is_bundle(path) or len(calibrated) != 1:
        return query
    return replace(query, device=calibrated.pop())


def _under_calibrated(choice: Choice) -> Choice:
    """Answer a question that names a bundle but no setting under the one that was calibrated."""
    device = choice.bundle.device
    bundles = [
        part.for_device(choice.bundle.platform, setting)
        for part in choice.bundle.parts
        for setting in part.settings
        if setting.mode is choice.bundle.setting.mode
        if any(calibration.is_of_runs(device, setting) for calibration in part.calibrations)
    ]
    ways = {tuple(same_settings(bundle.setting).items()) for bundle in bundles}
    return replace(choice, bundle=bundles[0]) if len(ways) == 1 else choice


def _of_card(query: Query, facts: DeviceFacts) -> Choice:
    """Choose what answers for a known accelerator."""
    _refuse_lacking(query, facts)
    path, parts, damaged = _searched(query)
    own = list(own_offers(parts, facts.device))
    named = _is_bundle(path)
    chosen = first_fitting(query, offers(parts, facts.device), own_precision=named)
    if named and (chosen is None or chosen.part is None):
        # Raises the error that the bundle is of other devices.
        find_bundle(facts.device, query.framework, path)
        raise _no_times(query, own)
    if chosen is None:
        raise _nothing_answers(query, facts)
    if chosen.part is None:
        notes = [f"not considered: {error}" for error in damaged.values()]
        notes += [f"{_lacking(query, own)}: every time is estimated from its data sheet"]
        return Choice(chosen.bundle, tuple(notes))
    answer = _checked(chosen)
    if chosen.unseen:
        return Choice(answer, (_inferring(query, own, answer),))
    return Choice(answer, (*inference_notes(query, chosen), *_others(answer, own)))


def first_fitting(
    query: Query, groups: Iterable[Sequence[Offer]], *, own_precision: bool = False
) -> Offer | None:
    """Return the best of the first group of offers for a device that has one that fits.

    Parameters
    ----------
    query : Query
    groups : iterable of sequence of Offer
        As `resperf.prediction.offers.offers` yields them for one device.
    own_precision : bool
        Whether any precision fits unless one is asked for.
    """
    for group in groups:
        fitting = query.fitting(group)
        if not fitting and own_precision:
            fitting = query.of_first_precision(group)
        if fitting:
            return best(fitting)
    return None


def _is_bundle(path: str | Path | None) -> bool:
    return path is not None and (Path(path) / MANIFEST).exists()


def _checked(offer: Offer) -> Bundle:
    """Check the files of a bundle that was read by its manifest only."""
    assert offer.part is not None
    offer.part.checked  # noqa: B018
    return offer.bundle


def _others(chosen: Bundle, own: Sequence[Offer]) -> tuple[str, ...]:
    """Name the bundles of a device that were not chosen."""
    parts = dict.fromkeys(offer.part for offer in own if offer.part is not None)
    others = {
        (part.path, part.framework, part.setting.precision, part.setting.compiled): part
        for part in parts
        if (part.path, part.settings) != (chosen.path, chosen.settings)
    }
    if not others:
        return ()
    named = "; ".join(_described(part) for part in others.values())
    return (
        f"{_described(chosen)} answers: of the bundles of a device, the one of plain precision "
        f"with most kinds of layers, then the newest; there is also {named} (choose by "
        "--framework, --precision, --compiled or --bundle)",
    )


def _described(part: Bundle) -> str:
    words = (part.framework, part.setting.precision, part.setting.compiled)
    return f"{part.path.name} ({', '.join(filter(None, words))})"


def _measured_alike(query: Query, facts: DeviceFacts, chosen: Bundle) -> tuple[str, ...]:
    """Name the cards of a device's series that were measured, if what answers does not know both.

    Cards of a series, such as a100, a100-40gb and a100-80gb, have names that begin alike.
    """
    _, parts, _ = _searched(query)
    knows = chosen.knows_device()
    cards = [
        f"{device} ({other.name}, {offer.framework})"
        for device, other in devices().items()
        if device != facts.device and _series(device) == _series(facts.device)
        for offer in query.fitting(own_offers(parts, device))
        if offer.rests_on is RestsOn.MEASURED and not (knows and offer.path == chosen.path)
    ]
    if not cards:
        return ()
    named = ", ".join(dict.fromkeys(cards))
    return (f"{facts.device} is {facts.name}; measured are also {named}: choose by --device",)


def _series(device: str) -> str:
    return device.partition("-")[0]


def inference_notes(query: Query, offer: Offer) -> tuple[str, ...]:
    """Say from which devices a part infers, if it has no rows of its own in this precision."""
    if offer.part is None or offer.rests_on is not RestsOn.INFERRED:
        return ()
    return (_inferring(query, list(own_offers([offer.part], offer.device)), offer.bundle),)


def _inferring(query: Query, own: Sequence[Offer], part: Bundle) -> str:
    platforms = [
        platform for platform in part.platforms if part.for_device(platform).knows_device()
    ]
    return (
        f"{_lacking(query, own)}: {part.path.name} infers them from those of "
        f"{', '.join(dict.fromkeys(platform.device for platform in platforms))} "
        "and the facts of all"
    )


def _lacking(query: Query, own: Sequence[Offer]) -> str:
    """Say that no bundle has times of a card under a setting, and in which precisions it has."""
    measured: dict[Bundle | None, dict[str, None]] = {}
    # Asking every setting of a precision would only take longer.
    for offer in {
        (id(candidate.part), candidate.setting.precision): candidate for candidate in own
    }.values():
        if offer.rests_on is RestsOn.MEASURED:
            measured.setdefault(offer.part, {})[offer.setting.precision] = None
    there = dict.fromkeys(
        f"{part.path.name} ({', '.join(filter(None, (part.framework, ' and '.join(precisions))))})"
        for part, precisions in measured.items()
        if part is not None
    )
    if not there:
        framework = f" with {query.framework}" if query.framework else ""
        return f"no bundle has times of this card{framework}"
    why = f"no bundle has times of this card with {query.words}, only {'; '.join(there)}"
    others = dict.fromkeys(
        precision for precisions in measured.values() for precision in precisions if precision
    )
    if query.precision is None and others:
        why += f" (for its measurements: --precision {' or '.join(others)})"
    return why


def _nothing_answers(query: Query, facts: DeviceFacts) -> UnsupportedError:
    _, parts, _ = _searched(replace(query, framework=None))
    wanted = f"{facts.device} with {query.framework}" if query.framework else facts.device
    if query.training:
        why = (
            f"no {query.words}, were measured, and a run does not tell what a step takes; leave "
            "out --train, or measure steps: resperf bench --training sgd"
        )
        return UnsupportedError(Message(f"no predictions for {wanted}: {why}", why))
    there = [
        offer
        for group in offers(parts, facts.device)
        for offer in group
        if not lacked_type(offer.setting.precision, facts)
    ]
    own = [offer for offer in there if offer.framework == query.framework]
    wanted += f" in {query.precision}" if query.precision else ""
    wanted += ", compiled" if query.compiled else ""
    why = f"it has {_listed(own or there)}"
    return UnsupportedError(Message(f"no predictions for {wanted}; {why}", why))


def lacked_type(precision: str | None, facts: DeviceFacts | None) -> str:
    """Return the type of values that a precision needs and a device's units lack, else nothing."""
    peak = PEAK_NEEDED.get(precision or "", "")
    return "" if facts is None or peak in facts.peaks_flops_per_s else peak


def _refuse_lacking(query: Query, facts: DeviceFacts) -> None:
    """Refuse a precision that a device's units do not have."""
    if lacked := lacked_type(query.precision, facts):
        why = f"no {lacked}, which precision {query.precision} needs"
        there = ", ".join(facts.peaks_flops_per_s)
        text = (
            f"{facts.device} ({facts.name}) has {why}: its peaks are of {there}; run it in fp32, "
            "or choose another device"
        )
        raise UnsupportedError(Message(text, why))
