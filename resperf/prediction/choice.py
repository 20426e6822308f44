"""Which bundle answers for the device, framework and setting that a user asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resperf.bundle import (
    MANIFEST,
    Bundle,
    best_of,
    bundle_place,
    bundles_of,
    find_bundle,
    of_device,
)
from resperf.devices import DeviceFacts, add_device, device_facts, devices, read_device
from resperf.errors import DeviceError, UnsupportedError
from resperf.prediction.data_sheet import platform_of, sheet_bundle
from resperf.settings import HALF_TYPES, PEAK_NEEDED, PLAIN_PRECISIONS, Mode, Setting, same_way
from resperf.targets import DEFAULT, Target, targets

_COMPILED = "dynamo"
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
    """

    device: str | None = None
    framework: str | None = None
    bundle: str | Path | None = None
    precision: str | None = None
    compiled: bool = False
    method: str | None = None
    training: bool = False

    @property
    def _mode(self) -> Mode:
        return Mode.TRAINING if self.training else Mode.INFERENCE

    @property
    def words(self) -> str:
        """The setting in words."""
        named = ["training steps"] if self.training else []
        named += [f"precision {self.precision or PLAIN_PRECISIONS[1]}"]
        return ", ".join([*named, "compiled"] if self.compiled else named)

    @property
    def _precisions(self) -> tuple[str, ...]:
        plain = self.precision is None or self.precision in PLAIN_PRECISIONS
        return PLAIN_PRECISIONS if plain else (str(self.precision),)

    def _is_one_of(self, setting: Setting, precisions: tuple[str, ...]) -> bool:
        trains = setting.mode is Mode.TRAINING or not self.training
        return (
            setting.precision in precisions
            and trains
            and (setting.is_compiled or not self.compiled)
        )

    def fits(self, setting: Setting) -> bool:
        """Say whether times under a setting answer the question."""
        return self._is_one_of(setting, self._precisions)

    def setting_of(self, part: Bundle, *, fallback: bool = False) -> Setting | None:
        """Return the setting under which a part answers the question; None if it has none.

        Of several, one that is compiled only if that is asked for, of the framework's own layout,
        and of the latest version. Settings of training steps come last.

        Parameters
        ----------
        part : Bundle
        fallback : bool
            Also take rows of the precision that is a fallback for the one that is asked for.
        """
        wanted, known = self.precision or PLAIN_PRECISIONS[1], self._precisions
        if fallback and wanted in part.fallbacks:
            known = (part.fallbacks[wanted],)
        fitting = [each for each in part.settings if self._is_one_of(each, known)]
        if not fitting:
            return None
        found = min(fitting, key=self._unlikeness)
        return replace(found, precision=wanted) if fallback else found

    def _unlikeness(self, setting: Setting) -> tuple[Any, ...]:
        version = [-int(word) for word in setting.framework_version.split(".") if word.isdigit()]
        return (
            setting.mode is not self._mode,
            setting.is_compiled and not self.compiled,
            setting.layout not in _USUAL_LAYOUTS,
            version,
        )


@dataclass(frozen=True)
class Choice:
    """The bundle that answers, and notes on why this one."""

    bundle: Bundle
    notes: tuple[str, ...] = ()


def chosen_bundle(device: str | None, framework: str | None, bundle: str | Path | None) -> Bundle:
    """Find the bundle given by ``--device``, ``--framework`` and ``--bundle``.

    Raises
    ------
    DeviceError, BundleError
        If there is no such bundle, or it is damaged.
    """
    if device is not None and not device.strip():
        raise DeviceError("the device has an empty name; leave it out, or see: resperf devices")
    if bundle is None:
        return find_bundle(device or DEFAULT.device_class, framework)
    if Path(bundle).is_dir():
        return find_bundle(device, framework, Path(bundle))
    if device is not None:
        return find_bundle(device, framework, bundle_place(bundle, framework))
    # By a device's name, the part of that device is found, which may not be the folder's first.
    return find_bundle(str(bundle), framework)


def accelerator(device: str | None) -> DeviceFacts | None:
    """Return the facts of a device if it is a known accelerator."""
    facts = None if device is None else device_facts(device)
    return None if facts is None or facts.device_class == DEFAULT.device_class else facts


def choose(query: Query, *, compared: bool = False) -> Choice:
    """Choose what answers: a bundle of the device, one for unseen devices, or its data sheet.

    In this order, each with the framework and setting that are asked for; of several bundles,
    `resperf.bundle.best_of` chooses:

    1. bundles with times of the device; without a precision, plain (float32) ones
    2. bundles with times of the device that are a fallback for the precision that is asked for
    3. bundles whose predictors serve devices that no row came from; then likewise those with
       another precision
    4. the data sheet alone

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
    query = _as_calibrated(with_own_card(query))
    answer = _under_calibrated(query, _chosen_part(query))
    others = () if compared else _measured_alike(query, answer.bundle)
    return replace(answer, notes=(*answer.notes, *others))


def _chosen_part(query: Query) -> Choice:
    """Choose what answers a question that names the device, or whose bundle decides on it."""
    if query.method is not None:
        return _by_method(query, query.method)
    facts = accelerator(query.device)
    if facts is not None and not _is_bundle(query.device):
        return _of_card(query, facts)
    found = chosen_bundle(query.device, query.framework, query.bundle)
    alike = [part for part in found.parts if part.device == found.device]
    fitting = _under(query, [found, *alike]) or _under_own(query, [found])
    if not fitting:
        raise _no_times(query, found)
    _refuse_lacking(query, accelerator(found.device))
    return Choice(fitting[0])


def _by_method(query: Query, method: str) -> Choice:
    """Choose between the bundles of a device that were trained by one method.

    Raises
    ------
    DeviceError
        If there is none.
    UnsupportedError
        If none has times under the setting.
    """
    place = bundle_place(query.bundle, query.framework)
    device = query.device or (None if _is_bundle(place) else DEFAULT.device_class)
    parts, _ = bundles_of(device, query.framework, place)
    mine = [of_device(part, device) for part in parts if part.method == method]
    if not mine:
        known = sorted({part.method for part in parts})
        raise DeviceError(
            f"no bundle of {device or place} was trained by {method}, only by {', '.join(known)}; "
            f"train one: resperf train FILE.h5 --method {method}"
            if known
            else f"no bundle of {device or place}; see: resperf devices"
        )
    fitting = _under(query, mine) or _under_own(query, mine)
    if not fitting:
        raise _no_times(query, mine[0])
    return Choice(_checked(best_of(fitting)))


def _no_times(query: Query, part: Bundle) -> UnsupportedError:
    words = [f"--precision {query.precision}"] if query.precision else []
    words += ["--train"] if query.training else []
    words += ["--compiled"] if query.compiled else []
    without = f"leave out {' and '.join(words)}, or " if words else ""
    return UnsupportedError(
        f"{part.path} has no times of {part.device} with {query.words}; {without}name another "
        "bundle or device"
    )


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
    if facts.device_class == DEFAULT.device_class and not bundles_of(facts.device)[0]:
        raise UnsupportedError(
            f"{query.device} describes a processor, and no bundle has times of {facts.device!r}; "
            "only accelerators are predicted from their facts: measure it with resperf bench"
        )
    return replace(query, device=add_device(facts).device)


def _as_calibrated(query: Query) -> Query:
    """Ask a bundle that was calibrated for one device for that, if no other is named."""
    if query.bundle is None or query.device is not None:
        return query
    place = bundle_place(query.bundle, query.framework)
    if not _is_bundle(place):
        return query
    parts, _ = bundles_of(None, query.framework, place)
    found = [each for part in parts for each in part.calibrations]
    if len({each.device for each in found}) != 1:
        return query
    return replace(query, device=found[0].device)


def _under_calibrated(query: Query, answer: Choice) -> Choice:
    """Answer a question that names a bundle but no setting under the one that was calibrated."""
    if query.bundle is None or query.precision is not None or query.compiled:
        return answer
    device = answer.bundle.device
    found = [
        part.for_device(answer.bundle.platform, setting)
        for part in answer.bundle.parts
        for setting in part.settings
        if any(each.is_of(device, setting) for each in part.calibrations)
    ]
    ways = {tuple(same_way(each.setting).items()) for each in found}
    return replace(answer, bundle=found[0]) if len(ways) == 1 else answer


def _of_card(query: Query, facts: DeviceFacts) -> Choice:
    """Choose what answers for a known accelerator."""
    _refuse_lacking(query, facts)
    place = bundle_place(query.bundle, query.framework)
    own, damaged = bundles_of(facts.device, query.framework, place)
    mine = [of_device(part, facts.device) for part in own]
    fitting = _under(query, mine) or _under(query, mine, fallback=True)
    if not fitting and _is_bundle(place):
        fitting = _under_own(query, mine)
    if fitting:
        chosen = best_of(fitting)
        notes = (*inference_notes(query, chosen), *_others(chosen, own))
        return Choice(_checked(chosen), notes)
    if (unseen := _unseen(query, facts, place, mine)) is not None:
        return unseen
    if _is_bundle(place):
        # Raises the error that the bundle is of other devices.
        find_bundle(facts.device, query.framework, place)
        raise _no_times(query, mine[0])
    notes = tuple(f"not considered: {error}" for error in damaged)
    return _by_data_sheet(query, facts, mine, notes)


def _is_bundle(place: str | Path | None) -> bool:
    return place is not None and (Path(place) / MANIFEST).exists()


def _under(query: Query, parts: list[Bundle], *, fallback: bool = False) -> list[Bundle]:
    """Return the parts with a setting that fits, under that setting."""
    return [
        part if setting is part.setting else part.with_setting(setting)
        for part in parts
        if (setting := query.setting_of(part, fallback=fallback)) is not None
    ]


def _under_own(query: Query, parts: list[Bundle]) -> list[Bundle]:
    """Return parts under a setting of any precision if none is asked for."""
    if query.precision is not None:
        return []
    precisions = dict.fromkeys(each.precision for part in parts for each in part.settings)
    return [
        found
        for precision in precisions
        for found in _under(replace(query, precision=precision), parts)
    ][:1]


def _checked(part: Bundle) -> Bundle:
    """Check the files of a bundle that was read by its manifest only."""
    part.checked  # noqa: B018
    return part


def _others(chosen: Bundle, own: list[Bundle]) -> tuple[str, ...]:
    """Name the bundles of a device that were not chosen."""
    others = {
        (part.path, part.framework, part.setting.precision, part.setting.compiled): part
        for part in own
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


def _measured_alike(query: Query, answering: Bundle) -> tuple[str, ...]:
    """Name the cards of a device's series that were measured, if what answers does not know both.

    Cards of a series, such as a100, a100-40gb and a100-80gb, have names that begin alike.
    """
    facts = accelerator(query.device)
    if facts is None or _is_bundle(query.device):
        return ()
    place = bundle_place(query.bundle, query.framework)
    knows = _knows_device(answering)
    found = [
        f"{device} ({other.name}, {part.framework})"
        for device, other in devices().items()
        if device != facts.device and _series(device) == _series(facts.device)
        for part in _under(query, _on(device, bundles_of(device, query.framework, place)[0]))
        if _knows_device(part) and not (knows and part.path == answering.path)
    ]
    if not found:
        return ()
    named = ", ".join(dict.fromkeys(found))
    return (f"{facts.device} is {facts.name}; measured are also {named}: choose by --device",)


def _series(device: str) -> str:
    return device.partition("-")[0]


def _on(device: str, parts: list[Bundle]) -> list[Bundle]:
    return [of_device(part, device) for part in parts]


def _knows_device(part: Bundle) -> bool:
    """Say whether a part has rows of its device in its setting's precision."""
    return part.knows_device(HALF_TYPES.get(part.setting.precision, "float32"))


def _unseen(
    query: Query, facts: DeviceFacts, place: Path | None, own: list[Bundle]
) -> Choice | None:
    """Choose a bundle whose predictors answer for any device of this class, if there is one."""
    parts, _ = bundles_of(None, query.framework, place)
    able = [
        part for part in parts if part.serves_unseen and facts.device_class in _classes_of(part)
    ]
    serving = _under(query, able) or _under(query, able, fallback=True)
    if not serving and _is_bundle(place):
        serving = _under_own(query, able)
    if not serving:
        return None
    chosen = best_of(serving)
    answer = _checked(chosen).for_device(platform_of(facts))
    return Choice(answer, (_inferring(query, own, chosen),))


def inference_notes(query: Query, part: Bundle) -> tuple[str, ...]:
    """Say from which devices a part infers, if it has no rows of its own in this precision."""
    return () if _knows_device(part) else (_inferring(query, [part], part),)


def _inferring(query: Query, own: list[Bundle], part: Bundle) -> str:
    known = [each for each in part.platforms if _knows_device(part.for_device(each))]
    return (
        f"{_lacking(query, own)}: {part.path.name} infers them from those of "
        f"{', '.join(dict.fromkeys(each.device for each in known))} and the facts of all"
    )


def _lacking(query: Query, own: list[Bundle]) -> str:
    """Say that no bundle has times of a card under a setting, and in which precisions it has."""
    precisions = {part: _precisions_of(part) for part in own}
    there = dict.fromkeys(
        f"{part.path.name} ({', '.join(filter(None, (part.framework, ' and '.join(known))))})"
        for part, known in precisions.items()
        if known
    )
    if not there:
        framework = f" with {query.framework}" if query.framework else ""
        return f"no bundle has times of this card{framework}"
    why = f"no bundle has times of this card with {query.words}, only {'; '.join(there)}"
    others = dict.fromkeys(each for known in precisions.values() for each in known if each)
    if query.precision is None and others:
        why += f" (for its measurements: --precision {' or '.join(others)})"
    return why


def _precisions_of(part: Bundle) -> list[str]:
    """Return the precisions in which a part has rows of its device."""
    return [
        precision
        for precision, setting in {each.precision: each for each in part.settings}.items()
        if _knows_device(part.with_setting(setting))
    ]


def _classes_of(part: Bundle) -> set[str]:
    known = (accelerator(platform.device) for platform in part.platforms)
    return {facts.device_class for facts in known if facts is not None}


def _by_data_sheet(
    query: Query, facts: DeviceFacts, own: list[Bundle], notes: tuple[str, ...]
) -> Choice:
    """Answer without any bundle."""
    row = sheet_target(facts, query.framework, query.precision)
    setting = Setting(
        framework=row.framework,
        precision=query.precision or PLAIN_PRECISIONS[1],
        compiled=_COMPILED if query.compiled else "eager",
    )
    note = f"{_lacking(query, own)}: every time is estimated from its data sheet"
    return Choice(sheet_bundle(facts, setting), (*notes, note))


def cards_without(
    known: Collection[str], framework: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield device and framework of the accelerators that only their data sheet answers for.

    Parameters
    ----------
    known : collection of str
        Devices that have bundles.
    framework : str, optional
        Only those for which networks can be lowered for it.
    """
    for device in devices():
        facts = accelerator(device)
        if facts is None or device in known:
            continue
        with suppress(UnsupportedError):
            yield device, sheet_target(facts, framework).framework


def sheet_target(facts: DeviceFacts, framework: str | None, precision: str | None = None) -> Target:
    """Return the target for which networks are lowered if there is no bundle.

    Raises
    ------
    UnsupportedError
        If none fits.
    """
    rows = [
        row
        for row in targets()
        if row.device_class == facts.device_class
        and row.lowering
        and framework in (None, row.framework)
        and (precision is None or precision in _estimated(row))
    ]
    if not rows:
        wanted = f" with {framework}" if framework else ""
        wanted += f" in {precision}" if precision else ""
        known = ", ".join(
            f"{row.framework} ({', '.join(_estimated(row))})"
            for row in targets()
            if row.device_class == facts.device_class and row.lowering
        )
        raise UnsupportedError(
            f"nothing answers for {facts.device}{wanted}: it has no bundle, and what can be "
            f"estimated is {known or 'nothing of this class of devices'}"
        )
    usual = (row for row in rows if row.usual)
    return next(usual, max(rows, key=lambda row: len(_estimated(row))))


def _estimated(row: Target) -> tuple[str, ...]:
    """Return the precisions of a target in which the types of layers tell what a data sheet asks.

    They do not for TF32, which is a way to multiply float32, and for int8, which no layer tells.
    """
    return tuple(each for each in row.precisions if each in (PLAIN_PRECISIONS[1], *PEAK_NEEDED))


def lacked_type(precision: str | None, facts: DeviceFacts | None) -> str:
    """Return the type of values that a precision needs and a device's units lack, else nothing."""
    peak = PEAK_NEEDED.get(precision or "", "")
    return "" if facts is None or peak in facts.peaks_flops_per_s else peak


def _refuse_lacking(query: Query, facts: DeviceFacts | None) -> None:
    """Refuse a precision that a device's units do not have."""
    lacked = lacked_type(query.precision, facts)
    if facts is None or not lacked:
        return
    there = ", ".join(facts.peaks_flops_per_s)
    raise UnsupportedError(
        f"{facts.device} ({facts.name}) has no {lacked}, which precision {query.precision} needs: "
        f"its peaks are of {there}; use --precision fp32, or another device"
    )
