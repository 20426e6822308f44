"""What there is to choose from: every device, and what answers for it under which setting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from resperf.bundle import Bundle, platforms_of
from resperf.devices import DeviceFacts, device_facts, devices
from resperf.errors import UnsupportedError
from resperf.platform import Platform
from resperf.prediction.data_sheet import sheet_bundle
from resperf.quantities import EXECUTION, LATENCY, STEP
from resperf.settings import PEAK_NEEDED, PLAIN_PRECISIONS, Mode, Setting
from resperf.targets import DEFAULT, Target, targets


class RestsOn(StrEnum):
    """What the times of an offer rest on."""

    MEASURED = "measured"
    FALLBACK = "fallback precision"
    INFERRED = "inferred from other devices"
    ESTIMATED = "estimated from the data sheet"


@dataclass(frozen=True)
class Offer:
    """A device under a setting, and what answers for it.

    Attributes
    ----------
    device : str
    setting : Setting
        With the precision that is answered; the rows may be of its fallback.
    platform : Platform
    part : Bundle or None
        The part of a bundle that answers; None is the data sheet alone.
    unseen : bool
        Whether no row of the part is of the device.
    fallback : bool
        Whether the rows are of the precision that is a fallback for that of the setting.
    """

    device: str
    setting: Setting
    platform: Platform
    part: Bundle | None = None
    unseen: bool = False
    fallback: bool = False

    @property
    def framework(self) -> str:
        """Word of ``--framework``."""
        return self.setting.framework if self.part is None else self.part.framework

    @property
    def path(self) -> Path | None:
        """Folder of the bundle."""
        return None if self.part is None else self.part.path

    @property
    def bundle(self) -> Bundle:
        """What answers; its files may not be checked yet."""
        if self.part is None:
            facts = device_facts(self.device)
            assert facts is not None
            return sheet_bundle(facts, self.setting)
        if self.setting is self.part.setting and self.platform is self.part.platform:
            return self.part
        return self.part.for_device(self.platform, self.setting)

    @property
    def has_steps(self) -> bool:
        """Whether training steps of networks, not of layers alone, taught it under its setting.

        If none of the device did, those of several others must have: the predictor says so.
        """
        names = self.part.network_quantities if self.part else ()
        if self.setting.mode is not Mode.TRAINING or not {*names} - {EXECUTION, LATENCY}:
            return False
        if STEP not in names:
            return True
        with suppress(UnsupportedError):
            return STEP in self.bundle.checked.predict_networks([], quantity=STEP)
        return False

    @property
    def rests_on(self) -> RestsOn:
        """What its times rest on; loads the predictors of a bundle, which say what taught them."""
        if self.part is None:
            return RestsOn.ESTIMATED
        if not self.bundle.knows_device():
            return RestsOn.INFERRED
        return RestsOn.FALLBACK if self.fallback else RestsOn.MEASURED


def offers(parts: Sequence[Bundle], device: str | None = None) -> Iterator[list[Offer]]:
    """Yield everything that can be asked, the best first.

    In these groups, some of which may be empty; the next is made when it is asked for:

    1. times of the device
    2. times of the device that are a fallback for another precision
    3. what predictors infer for devices that no row came from
    4. likewise their fallbacks
    5. the data sheet alone

    Parameters
    ----------
    parts : sequence of Bundle
        All parts of the bundles found, best place first.
    device : str, optional
        Of this device alone, or of the first one of a bundle with this name.
    """
    for of_bundles in (own_offers, _of_unseen):
        group = list(of_bundles(parts, device))
        yield group
        yield list(_fallbacks(group))
    yield list(sheet_offers(device))


def own_offers(parts: Iterable[Bundle], device: str | None = None) -> Iterator[Offer]:
    """Yield the first group of `offers` alone: times of the devices themselves."""
    for part in parts:
        for name, platform in platforms_of(part, device).items():
            for setting in part.settings:
                yield Offer(name, setting, platform, part)


def _fallbacks(group: Iterable[Offer]) -> Iterator[Offer]:
    for offer in group:
        assert offer.part is not None
        for precision, taken in offer.part.fallbacks.items():
            # Few kinds of layers do not stand for networks in mixed precision.
            if offer.setting.precision == taken and offer.bundle.knows_most_kinds():
                setting = replace(offer.setting, precision=precision)
                yield replace(offer, setting=setting, fallback=True)


def _of_unseen(parts: Iterable[Bundle], device: str | None) -> Iterator[Offer]:
    """Yield what bundles infer for accelerators of their classes that no row came from."""
    for part in parts:
        if not part.serves_unseen:
            continue
        platforms = [accelerator(platform.device) for platform in part.platforms]
        classes = {facts.device_class for facts in platforms if facts is not None}
        for facts in accelerators(device):
            if facts.device_class in classes and facts not in platforms:
                platform = facts.platform
                for setting in part.settings:
                    yield Offer(facts.device, setting, platform, part, unseen=True)


def sheet_offers(device: str | None = None) -> Iterator[Offer]:
    """Yield the last group of `offers` alone: what is estimated for accelerators."""
    for facts in accelerators(device):
        platform = facts.platform
        rows = [row for row in targets() if row.device_class == facts.device_class and row.lowering]
        by_use = sorted(
            rows, key=lambda row: (not row.default_for_class, -len(estimated_precisions(row)))
        )
        for row in by_use:
            for precision in estimated_precisions(row):
                for compiled in row.compiled:
                    setting = Setting(row.framework, precision=precision, compiled=compiled)
                    yield Offer(facts.device, setting, platform)


def estimated_precisions(row: Target) -> tuple[str, ...]:
    """Return the precisions of a target in which the types of layers tell what a data sheet asks.

    They do not for TF32, which is a way to multiply float32, and for int8, which no layer tells.
    """
    told = {PLAIN_PRECISIONS[1], *PEAK_NEEDED} - {"tf32"}
    return tuple(precision for precision in row.precisions if precision in told)


def accelerator(device: str | None) -> DeviceFacts | None:
    """Return the facts of a device if it is a known accelerator."""
    facts = None if device is None else device_facts(device)
    return None if facts is None or facts.device_class == DEFAULT.device_class else facts


def accelerators(device: str | None = None) -> list[DeviceFacts]:
    """Return the facts of all known accelerators, or of one."""
    all_facts = map(accelerator, devices() if device is None else (device,))
    return [facts for facts in all_facts if facts is not None]


def precisions_of(candidates: Sequence[Offer]) -> list[str]:
    """Return the precisions of offers, ``"fp32 compiled"`` where eager ones have none of it.

    A framework's own is float32.
    """
    eager = {offer.setting.precision for offer in candidates if not offer.setting.is_compiled}
    words = (
        (precision or PLAIN_PRECISIONS[1]) + " compiled" * (precision not in eager)
        for precision in (offer.setting.precision for offer in candidates)
    )
    return list(dict.fromkeys(words))


def in_words(candidates: Sequence[Offer]) -> str:
    """List frameworks and their precisions: ``"torch (fp32, amp), tensorflow (fp32)"``."""
    texts = []
    for name in dict.fromkeys(offer.framework for offer in candidates):
        precisions = precisions_of([offer for offer in candidates if offer.framework == name])
        texts.append(f"{name} ({', '.join(precisions)})")
    return ", ".join(texts)
