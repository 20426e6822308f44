"""`resperf devices`."""

from __future__ import annotations

from typing import Any

import click

from resperf.cli._options import BUNDLE, JSON, show_json
from resperf.cli._sections import Command
from resperf.errors import BundleError


@click.command(cls=Command, epilog="Example: resperf devices --json")
@BUNDLE
@JSON
def command(bundle: str | None, as_json: bool) -> None:
    """List the devices that `resperf predict` knows, and the bundles that answer for them.

    --json names their folders, datasets, versions and changes, and whether each can be rebuilt.
    """
    from resperf.prediction.choice import cards_without
    from resperf.report.devices import device_table

    entries = _entries(bundle)
    if as_json:
        show_json(entries)
    elif entries:
        print(device_table(entries))
        known = {device for each in entries for device in each.get("devices", ())}
        cards = ", ".join(device for device, _ in cards_without(known))
        print(
            "\nof these GPUs only the data sheet is known; predict infers from measured ones, or "
            f"estimates: {cards}"
        )
    else:
        print("no bundles found; make one with: resperf bench CAMPAIGN, then resperf train FILE.h5")


def _entries(place: str | None) -> list[dict[str, Any]]:
    """Describe every bundle found; a damaged one has only a path and an error."""
    from resperf.bundle import Bundle, bundle_folders, bundle_place, devices_of

    entries: list[dict[str, Any]] = []
    for folder in bundle_folders(bundle_place(place)):
        try:
            parts = Bundle.load(folder).parts
        except BundleError as error:
            entries.append({"path": str(folder), "damaged": str(error)})
            continue
        entries += [
            {
                "device": bundle.device,
                "devices": list(devices_of(bundle)),
                "framework": bundle.framework,
                "machine": bundle.machine,
                "path": str(folder),
                "date": bundle.created,
                "quantity": bundle.layer_quantity,
                "validation_error": bundle.validation,
                "method": bundle.method,
                "kinds": list(bundle.kinds),
                "network_quantities": list(bundle.network_quantities),
                "estimates": list(bundle.estimates),
                "size_bytes": bundle.size_bytes,
                "settings": [each.to_json() for each in bundle.settings],
                "platforms": [each.to_json() for each in bundle.platforms],
                "provenance": bundle.provenance,
            }
            for bundle in parts
        ]
    return entries
