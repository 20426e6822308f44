"""The devices that `resperf.predict` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resperf.bundle import Bundle, find_bundles, is_bundle
from resperf.devices import device_facts
from resperf.grouping import grouped
from resperf.prediction.choice import Query, first_fitting, lacked_type, place_of
from resperf.prediction.offers import (
    Offer,
    RestsOn,
    accelerator,
    offers,
    own_offers,
    precisions_of,
    sheet_offers,
)


@dataclass(frozen=True)
class KnownDevice:
    """A device that `resperf.predict` takes.

    Attributes
    ----------
    name : str
        Value of `device`.
    frameworks : tuple of str
        Values of `framework`.
    bundles : tuple of str
        Names of the bundles with times of the device, which are values of `bundle` or `device` too.
        Empty if no bundle has any: `predict` then infers from other devices, or estimates from the
        data sheet.
    """

    name: str
    frameworks: tuple[str, ...]
    bundles: tuple[str, ...] = ()


def list_devices(bundle: str | Path | None = None) -> list[KnownDevice]:
    """List the devices that `resperf.predict` takes: those with bundles, then other known GPUs.

    Parameters
    ----------
    bundle : str or Path, optional
        Folder of a bundle, or of several, that is searched first; or the name of a bundle.

    Returns
    -------
    list of KnownDevice
        Damaged bundles are left out; the command `resperf devices` names them.

    Raises
    ------
    BundleError
        If `bundle` is no bundle.

    Examples
    --------
    >>> [device.name for device in resperf.list_devices() if device.bundles]  # doctest: +SKIP
    ['cpu', '1080ti', 'v100', ...]
    """
    path = place_of(bundle)
    parts, _ = find_bundles(path, alone=path is not None and is_bundle(path))
    return [
        KnownDevice(
            device,
            tuple(dict.fromkeys(offer.framework for offer in answers)),
            tuple(dict.fromkeys(o.part.path.name for o in answers if o.part and not o.unseen)),
        )
        for device, answers in _answers(parts).items()
    ]


def _answers(parts: Sequence[Bundle]) -> dict[str, list[Offer]]:
    """Return device -> offers of its own times, else of what answers if no more is asked for."""
    answers = grouped((offer.device, offer) for offer in own_offers(parts))
    for device in dict.fromkeys(offer.device for offer in sheet_offers()):
        answers[device] = answers.get(device) or _by_default(parts, device)
    return answers


def _by_default(parts: Sequence[Bundle], device: str) -> list[Offer]:
    groups = [group for group in offers(parts, device) if group]
    first = first_fitting(Query(), groups) or groups[0][0]
    group = next(group for group in groups if first in group)
    answers = (first.framework, first.part)
    return [offer for offer in group if (offer.framework, offer.part) == answers]


def device_rows(parts: Sequence[Bundle]) -> list[dict[str, Any]]:
    """Describe the devices that can be asked, and what answers for each.

    Parameters
    ----------
    parts : sequence of Bundle
        All parts of the bundles found, checked.

    Returns
    -------
    list of dict
        Of a device with times of its own, one row for each part of a bundle that has them, and for
        what precisions rest on if that differs; of another one, the row of what answers if nothing
        but the device is asked for.
    """
    groups = grouped(
        ((device, id(offer.part), offer.rests_on), offer)
        for device, answers in _answers(parts).items()
        for offer in answers
        if not lacked_type(offer.setting.precision, accelerator(device))
    )
    return [_row(group) for group in groups.values()]


def _row(group: Sequence[Offer]) -> dict[str, Any]:
    """Describe what answers for a device, by offers that differ in their settings."""
    first, part = group[0], group[0].part
    facts = device_facts(first.device)
    row = {
        "device": first.device,
        "framework": first.framework,
        "precisions": precisions_of(group),
        "rests_on": first.rests_on,
        "bundle": part and {"name": part.path.name, "path": str(part.path)},
        "limits": facts and facts.limits,
    }
    if part is None or first.rests_on is not RestsOn.MEASURED:
        return row
    return row | {
        "machine": first.bundle.machine,
        "date": part.created,
        "quantity": part.layer_quantity,
        "validation_error": part.validation,
        "method": part.method,
        "kinds": list(part.kinds),
        "network_quantities": list(part.network_quantities),
        "estimates": list(part.estimates),
        "size_bytes": part.size_bytes,
        "settings": [setting.to_json() for setting in part.settings],
        "platforms": [platform.to_json() for platform in part.platforms],
        "provenance": part.provenance,
    }
