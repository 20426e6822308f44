"""`resperf devices`."""

from __future__ import annotations

from pathlib import Path

import click

from resperf.cli._options import BUNDLE, JSON


@click.command(epilog="Example: resperf devices --json")
@BUNDLE
@JSON
def command(bundle: Path | None, as_json: bool) -> None:
    """List the bundles that `resperf predict` can find: device, framework, age and error."""
    from resperf.report.devices import device_table
    from resperf.report.documents import json_text

    entries = _entries(bundle)
    if as_json:
        print(json_text(entries))
    elif entries:
        print(device_table(entries))
    else:
        print("no bundles found; make one with: resperf demo, or resperf train FILE.h5 -o BUNDLE")
