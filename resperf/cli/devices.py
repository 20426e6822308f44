"""`resperf devices`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from resperf.cli._options import BUNDLE, JSON
from resperf.errors import BundleError


@click.command(epilog="Example: resperf devices --json")
@BUNDLE
@JSON
def command(bundle: Path | None, as_json: bool) -> None:
    """List the bundles that `resperf predict` can find: device, framework, machine and error."""
    from resperf.report.devices import device_table
    from resperf.report.documents import json_text

    entries = _entries(bundle)
    if as_json:
        print(json_text(entries))
    elif entries:
        print(device_table(entries))
    else:
        print("no bundles found; make one with: resperf bench CAMPAIGN, then resperf train FILE.h5")


def _entries(place: Path | None) -> list[dict[str, Any]]:
    """Describe every bundle that can be found; a damaged one is said to be so."""
    from resperf.bundle import Bundle, bundle_folders

    entries: list[dict[str, Any]] = []
    for folder in bundle_folders(place):
        try:
            bundle = Bundle.load(folder)
        except BundleError as error:
            entries.append({"path": str(folder), "damaged": str(error)})
            continue
        entries.append(
            {
                "device": bundle.device,
                "framework": bundle.framework,
                "machine": bundle.machine,
                "path": str(folder),
                "date": bundle.created,
                "quantity": bundle.layer_quantity,
                "validation_error": bundle.validation,
                "method": bundle.method,
                "kinds": list(bundle.kinds),
                "estimates": list(bundle.estimates),
                "size_bytes": bundle.size_bytes,
            }
        )
    return entries
