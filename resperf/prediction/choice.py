"""Which bundle answers for the device, framework and setting that a user asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from resperf.bundle import (
    Bundle,
    Source,
    best_of,
    bundle_folders,
    find_bundles,
    is_bundle,
    named_bundle,
    platforms_of,
)
from resperf.devices import (
    DeviceFacts,
    add_device,
    canonical_device,
    device_class,
    device_facts,
    devices,
    names_like,
    read_device,
    target_of,
)
from resperf.errors import (
    BundleError,
    DeviceError,
    Message,
    UnsupportedError,
    did_you_mean,
    listed,
    words_like,
)
from resperf.grouping import grouped
from resperf.network import Network
from resperf.prediction.offers import Offer, RestsOn, accelerator, in_words, offers, own_offers
from resperf.settings import (
    COMPILED_WORDS,
    HALF_TYPES,
    PEAK_NEEDED,
    PLAIN_PRECISIONS,
    PRECISION_OF,
    Mode,
    Setting,
    same_settings,
)
from resperf.targets import DEFAULT, UNKNOWN, Target, names_with, target

_TABLE = ".toml"
COMPOSING = "torch"
"""Framework whose training steps are composed of single operators."""
_OF_STEPS = "step-costs"
"""Method that answers for training steps on processors."""
_COMPOSED = (
    "no training steps were measured: forward, backward and update by {0} are added up from "
    "operators of runs; measure steps: resperf bench --training {0}"
)
_USUAL_LAYOUTS = ("", "nchw")
_ANY_GPU = ("gpu", "cuda", "rocm", "mps")
_OTHER_CARD = "for another GPU write mycard.toml (docs/importing.md)"


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
    optimizer : str
        Of training steps: whose memory they need, and whose update if none were measured.
    """

    device: str | None = None
    framework: str | None = None
    bundle: str | Path | None = None
    precision: str | None = None
    compiled: bool = False
    method: str | None = None
    training: bool = False
    threads: int | None = None
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        if self.device is not None:  # a TOML file's Path, a torch.device
            object.__setattr__(self, "device", str(self.device))

    @property
    def words(self) -> str:
        """The setting in words."""
        named = ["training steps"] if self.training else []
        named += [f"precision {self.precision or PLAIN_PRECISIONS[1]}"]
        return ", ".join([*named, "compiled"] if self.compiled else named)

    @property
    def may_sum_up(self) -> bool:
        """Whether steps are asked for that PyTorch's costs on processors answer."""
        names_none = self.bundle is None and self.method is None
        return self.training and names_none and self.framework in (None, COMPOSING)

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
        groups = grouped(
            ((id(offer.part), offer.device), offer)
            for offer in candidates
            if self.fits(offer.setting) and self._is_named(offer)
            if not self.training or offer.has_steps
        )
        return [
            min(
                group,
                key=lambda offer: (
                    (offer.setting.mode is Mode.TRAINING) != self.training,
                    offer.setting.is_compiled and not self.compiled,
                    offer.setting.layout not in _USUAL_LAYOUTS,
                    [-int(x) for x in offer.setting.framework_version.split(".") if x.isdigit()],
                ),
            )
            for group in groups.values()
        ]

    def _is_named(self, offer: Offer) -> bool:
        """Whether the framework is that of the question, or what is meant where none is named.

        What whole networks tell of many cards in another framework than the usual one is not.
        """
        if self.framework is not None or offer.part is None:
            return self.framework in (None, offer.framework)
        of_cards = offer.part.serves_unseen and accelerator(offer.device) is not None
        if offer.part.kinds or not of_cards:
            return True
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


@dataclass(frozen=True)
class Choice:
    """The bundle that answers, and notes on why this one.

    With `composes_steps`, an optimizer, its steps are asked for and only runs were measured.
    """

    bundle: Bundle
    notes: tuple[str, ...] = ()
    composes_steps: str = ""


@dataclass(frozen=True)
class _Search:
    """What a question is answered from.

    Attributes
    ----------
    query : Query
    device : str
    path : Path or None
        Folder of the bundle that is named, or of several that are searched first.
    all_parts : list of Bundle
        All parts, best place first.
    parts : list of Bundle
        Those of the framework and method that are asked for.
    damaged : mapping of Path to BundleError
    """

    query: Query
    device: str
    path: Path | None
    all_parts: list[Bundle]
    parts: list[Bundle]
    damaged: dict[Path, BundleError]


def choose(query: Query, *, compared: bool = False, adding: bool = False) -> Choice:
    """Choose what answers: a bundle of the device, one for unseen devices, or its data sheet.

    The first group of `resperf.prediction.offers.offers` that has the framework and the setting
    that are asked for, without a precision plain (float32) ones; of several bundles in it,
    `resperf.bundle.best_of` chooses. For what is no card, it chooses before the setting counts: a
    processor is not answered by the times of another one because they are of the precision.

    A bundle that is named answers under its own setting if no precision is asked for. If only one
    framework has the setting, as TensorRT has int8, it answers without being named.

    Parameters
    ----------
    query : Query
    compared : bool
        Whether all devices answer, so that no note names others that were measured.
    adding : bool
        Whether only what adds up layers may answer.

    Raises
    ------
    DeviceError, BundleError
        If the device is not known and no bundle is its own, or if that is damaged.
    UnsupportedError
        If the device lacks the precision, or nothing answers for it.
    ResperfError
        If a TOML file does not describe a device.
    """
    search = _searched(query)
    facts = accelerator(search.device)
    if facts is not None:
        _refuse_lacking(query, facts)
    own = list(own_offers(search.parts, search.device))
    groups = [own] if query.method else offers(search.parts, search.device)
    if adding:
        groups = ([one for one in group if one.bundle.adds_up_layers] for group in groups)
    # A data sheet answers only for a card, where neither a bundle nor a method is named.
    of_bundle = not facts or bool(query.method) or bool(search.path and is_bundle(search.path))
    chosen = first_fitting(query, groups, own_precision=of_bundle)
    if chosen is not None and chosen.part is None and of_bundle:
        chosen = None
    if chosen is None and query.framework is None:
        only = _in_other_frameworks(search, of_bundle=of_bundle)
        if len(only) == 1:
            return choose(only[0], compared=compared)
    if chosen is None and search.device == DEFAULT.device_class and query.may_sum_up:
        return choose(replace(query, framework=COMPOSING, method=_OF_STEPS), compared=compared)
    if chosen is None:
        composes = query.training and not query.method and facts is not None
        composes &= query.framework in (None, COMPOSING)
        if composes and any(part.framework == COMPOSING for part in search.parts):
            return _composing(query, compared)
        if facts is not None and not of_bundle:
            raise _nothing_answers(search, facts)
        raise _no_times(query, own) if own else _not_there(search)
    if chosen.part is not None:
        chosen.part.checked  # noqa: B018
    bundle = chosen.bundle
    notes = () if facts is None or query.method else _notes(search, own, chosen, bundle)
    if search.path is not None and query.precision is None and not query.compiled:
        bundle = _under_calibrated(bundle)
    of_threads = bundle.setting.threads > 0 and any(part.kinds for part in bundle.parts)
    if query.threads is not None and of_threads and bundle in bundle.parts:
        wanted = replace(bundle.setting, threads=query.threads)
        bundle = bundle.part_for(None, None, wanted, bundle.platform)
    if facts is not None and not compared:
        notes += _measured_alike(search, facts, bundle)
    return Choice(bundle, notes)


def _composing(query: Query, compared: bool) -> Choice:
    """Choose what adds up the operators of a training step from those of runs."""
    run = replace(query, training=False, framework=COMPOSING)
    answer = choose(run, compared=compared, adding=True)
    notes = (*answer.notes, _COMPOSED.format(query.optimizer))
    return replace(answer, notes=notes, composes_steps=query.optimizer)


def _searched(query: Query) -> _Search:
    """Search the bundles for those of a question's device; of a processor, in one bundle.

    The name of a bundle stands for its device, and that of a device, as a bundle's, for itself.

    Raises
    ------
    BundleError
        If that would replace a damaged one of its name.
    DeviceError
        If the name of the device is empty.
    """
    word, device = query.bundle, with_own_card(query).device
    if device is None and word is not None and not Path(word).is_dir() and not named_bundle(word):
        word, device = None, str(word)
    if device is not None and not device.strip():
        raise DeviceError("the device has an empty name; leave it out, or see: resperf devices")
    path = None if word is None else place_of(word, query.framework)
    if device is not None and not (path is not None and is_bundle(path)):
        is_card = accelerator(device) is not None and not is_bundle(device)
        if not is_card and (named := named_bundle(device, path)) is not None:
            path, device = named, None
    alone = path is not None and (device is None or is_bundle(path))
    all_parts, damaged = find_bundles(path, alone=alone, methods=query.method is not None)
    if alone and damaged and not all_parts:
        raise next(iter(damaged.values()))
    parts = [
        part
        for part in all_parts
        if query.framework in (None, part.framework) and query.method in (None, part.method)
    ]
    search = _Search(query, device or DEFAULT.device_class, path, all_parts, parts, damaged)
    if device is None and path is not None:
        search = replace(search, device=_device_of(search, path))
    if accelerator(search.device) is not None:
        return search
    own = [part for part in parts if platforms_of(part, search.device)]
    best = best_of(own).path if own else None
    for folder in takewhile(best.__ne__, bundle_folders(path) if damaged and best else ()):
        if best is not None and folder.name == best.name and folder in damaged:
            raise damaged[folder]
    return replace(search, parts=[part for part in own if part.path == best])


def _in_other_frameworks(search: _Search, *, of_bundle: bool) -> list[Query]:
    """Return the question with the name of each framework that whole networks answer it in."""
    queries = (
        replace(search.query, framework=name)
        for name in dict.fromkeys(part.framework for part in search.parts)
    )
    groups = list(offers(search.parts, search.device))
    fitting = ((one, first_fitting(one, groups, own_precision=of_bundle)) for one in queries)
    return [one for one, offer in fitting if offer and (offer.part or not of_bundle)]


def _device_of(search: _Search, path: Path) -> str:
    """Choose a device of the bundles in a folder if none is named.

    Raises
    ------
    DeviceError
        If there is none, or several and none of them is calibrated or the default one.
    """
    calibrated = {
        calibration.platform.device
        for part in search.parts
        for calibration in part.calibrations
        if calibration.source is Source.RUNS
    }
    if is_bundle(path) and len(calibrated) == 1:
        return calibrated.pop()
    names = {
        canonical_device(device).casefold(): device
        for part in search.parts
        for device in platforms_of(part)
    }
    if len(names) == 1 or DEFAULT.device_class in names:
        return names.get(DEFAULT.device_class) or next(iter(names.values()))
    if not names:
        raise _not_there(replace(search, device=""))
    raise DeviceError(
        f"which device of {path}? There is {', '.join(sorted(names.values()))}; name one by "
        "--device"
    )


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
    """Return the folder given by ``--bundle``, or that of what answers for a device's name.

    Raises
    ------
    ResperfError
        As `choose`.
    """
    if word is None or Path(word).is_dir():
        return None if word is None else Path(word)
    return named_bundle(word) or choose(Query(str(word), framework)).bundle.path


def named_target(device: str | None, framework: str | None = None) -> Target:
    """Choose the target to measure with by ``--device`` and ``--framework``.

    Parameters
    ----------
    device : str, optional
        As for `choose`, or a class of devices.
    framework : str, optional

    Raises
    ------
    ResperfError
        If there is no such target.
    DeviceError
        If there is no such device; lists the bundles.
    """
    if device is None:
        return target(framework)
    if named_bundle(device) is None and (meant := device_class(device)) != UNKNOWN:
        return target(framework, meant)
    try:
        bundle = choose(Query(device, framework)).bundle
    except DeviceError as error:
        there = f"targets that can be measured: {names_with('backend')}"
        raise DeviceError(f"{error}; {there}") from error
    meant = device_class(bundle.device, bundle.framework)
    return target(bundle.framework, None if meant == UNKNOWN else meant)


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


def _under_calibrated(bundle: Bundle) -> Bundle:
    """Answer a question that names a bundle but no setting under the one that was calibrated."""
    bundles = [
        part.for_device(bundle.platform, setting)
        for part in bundle.parts
        for setting in part.settings
        if setting.mode is bundle.setting.mode
        if any(calibration.is_of_runs(bundle.device, setting) for calibration in part.calibrations)
    ]
    ways = {tuple(same_settings(calibrated.setting).items()) for calibrated in bundles}
    return bundles[0] if len(ways) == 1 else bundle


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
            offer_of = {offer.bundle: offer for offer in fitting}
            return offer_of[best_of([*offer_of])] if len(fitting) > 1 else fitting[0]
    return None


def _notes(search: _Search, own: Sequence[Offer], chosen: Offer, bundle: Bundle) -> tuple[str, ...]:
    """Say of a card why this answers, and what else there is."""
    query = search.query
    if chosen.part is None:
        unread = [f"not considered: {error}" for error in search.damaged.values()]
        lacking = _lacking(query, own, bundle)
        return (*unread, f"{lacking}: every time is estimated from its data sheet")
    if chosen.unseen:
        return (_inferring(query, own, bundle),)
    return (*inference_notes(query, chosen), *_others(bundle, own))


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
    compiled = COMPILED_WORDS.get(part.setting.compiled, part.setting.compiled)
    words = (part.framework, part.setting.precision, compiled)
    return f"{part.path.name} ({', '.join(filter(None, words))})"


def _measured_alike(search: _Search, facts: DeviceFacts, chosen: Bundle) -> tuple[str, ...]:
    """Name the cards of a device's series that were measured, if what answers does not know both.

    Cards of a series, such as a100, a100-40gb and a100-80gb, have names that begin alike.
    """
    knows = chosen.knows_device()
    cards = [
        f"{device} ({other.name}, {offer.framework})"
        for device, other in devices().items()
        if device != facts.device and _series(device) == _series(facts.device)
        for offer in search.query.fitting(own_offers(search.parts, device))
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
        f"{_lacking(query, own, part)}: {part.path.name} infers them from those of "
        f"{', '.join(dict.fromkeys(platform.device for platform in platforms))} "
        "and the facts of all"
    )


def _lacking(query: Query, own: Sequence[Offer], answering: Bundle) -> str:
    """Say that no bundle has times of a card under a setting, and under which ones it has."""
    # Asking every setting of a precision would only take longer.
    once = {(id(offer.part), offer.setting.precision): offer for offer in own}
    measured = grouped(
        (offer.part, offer.setting.precision)
        for offer in once.values()
        if offer.part is not None and offer.rests_on is RestsOn.MEASURED
    )
    there = dict.fromkeys(
        f"{part.path.name} ({', '.join(filter(None, (part.framework, ' and '.join(precisions))))})"
        for part, precisions in measured.items()
    )
    if not there:
        framework = f" with {query.framework}" if query.framework else ""
        return f"no bundle has times of this card{framework}"
    options, words = dict[str, None](), query.words
    for part, precisions in measured.items():
        in_others = f"--framework {part.framework}" * (part.framework != answering.framework)
        if in_others and (query.precision or PLAIN_PRECISIONS[1]) in precisions:
            options[in_others] = None
            words = f"{answering.framework}, {query.words}"
        elif query.precision is None and any(precisions):
            others = f"--precision {' or '.join(filter(None, precisions))}"
            options[f"{in_others} {others}".strip()] = None
    hint = f" (for its measurements: {' or '.join(options)})" if options else ""
    return f"no bundle has times of this card with {words}, only {'; '.join(there)}{hint}"


def _not_there(search: _Search) -> DeviceError:
    """Say which devices and bundles there are, as none is that of the question."""
    query, path, device, parts = search.query, search.path, search.device, search.all_parts
    if query.method is not None:
        return _not_by_method(search, query.method)
    if path is not None and (is_bundle(path) or not device):
        there = ", and ".join(
            f"device {' or '.join(platforms_of(part))} and framework {part.framework}"
            for part in parts
        )
        own = next((part for part in parts if platforms_of(part, device or None)), parts[0])
        hint = "" if platforms_of(own, device or None) else f"--device {own.device} "
        return DeviceError(
            f"{path} is for {there}, not for {device or 'any device'} and "
            f"{query.framework or 'any framework'}; use {hint}--framework {own.framework}"
        )
    if device.casefold().partition(":")[0] in _ANY_GPU:
        return DeviceError(f"{device} is no model of a GPU; name one that `resperf devices` lists")
    return _unknown(search)


def _not_by_method(search: _Search, method: str) -> DeviceError:
    framework, device = search.query.framework, search.device or None
    parts = [part for part in search.all_parts if framework in (None, part.framework)]
    methods = sorted({part.method for part in parts if platforms_of(part, device)})
    others = {name for part in parts if part.method == method for name in platforms_of(part)}
    there = f"only by {', '.join(methods)}; " if methods else ""
    there += f"{', '.join(sorted(others))} have one; " if others else ""
    with_framework = f" with {framework}" if framework else ""
    return DeviceError(
        f"no bundle of {device or search.path}{with_framework} was trained by {method}, {there}"
        f"train one: resperf train FILE.h5 --method {method}"
    )


def _unknown(search: _Search) -> DeviceError:
    """Name what is spelt alike, else list what there is."""
    device, framework = search.device, search.query.framework
    problem = f"no device or bundle {device!r}"
    problem += f" with framework {framework!r}" if framework else ""
    parts = search.all_parts
    bundles = dict.fromkeys(part.path.name for part in parts)
    there = dict.fromkeys((name, part.framework) for part in parts for name in platforms_of(part))
    names = {*bundles, *(name for name, _ in there)}
    damaged = "".join(f"; damaged: {error}" for error in list(search.damaged.values())[:1])
    is_new = device not in names and device_facts(device) is None
    if near := is_new and (names_like(device) or words_like(device, names)):
        return DeviceError(
            f"{problem}; did you mean {', '.join(near)}? See: resperf devices; "
            f"{_OTHER_CARD}{damaged}"
        )
    frameworks = {part.framework for part in parts}
    if framework and framework not in frameworks:
        problem += did_you_mean(framework, frameworks)
    labels = [f"{name} ({its_framework})" for name, its_framework in there]
    return DeviceError(
        f"{problem}; devices: {listed(labels) or 'none'}; bundles: "
        f"{listed([*bundles]) or 'none'}{damaged}; see: resperf devices; {_OTHER_CARD}"
    )


def _no_times(query: Query, own: Sequence[Offer]) -> UnsupportedError:
    words = [f"--precision {query.precision}"] if query.precision else []
    words += ["--train"] if query.training else []
    words += ["--compiled"] if query.compiled else []
    without = f"leave out {' and '.join(words)}, or " if words else ""
    return UnsupportedError(
        f"{own[0].bundle.path.name} has no times of {own[0].device} with {query.words}, only "
        f"{in_words(own)}; {without}name another bundle or device"
    )


def _nothing_answers(search: _Search, facts: DeviceFacts) -> UnsupportedError:
    query = search.query
    wanted = f"{facts.device} with {query.framework}" if query.framework else facts.device
    if query.training:
        why = (
            f"no {query.words}, were measured, and a run does not tell what a step takes; leave "
            "out --train, or measure steps: resperf bench --training sgd"
        )
        return UnsupportedError(Message(f"no predictions for {wanted}: {why}", why))
    there = [
        offer
        for group in offers(search.all_parts, facts.device)
        for offer in group
        if not lacked_type(offer.setting.precision, facts)
    ]
    own = [offer for offer in there if offer.framework == query.framework]
    wanted += f" in {query.precision}" if query.precision else ""
    wanted += ", compiled" if query.compiled else ""
    why = f"it has {in_words(own or there)}"
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
