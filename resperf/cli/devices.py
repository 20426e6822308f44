"""`resperf devices`."""

from __future__ import annotations

from typing import Any

import click

from resperf.cli import _options as options
from resperf.cli._sections import Command


@click.command(cls=Command, epilog="Example: resperf devices --json")
@options.BUNDLE
@options.JSON
def command(bundle: str | None, as_json: bool) -> None:
    """List the devices that `resperf predict` knows, and what answers for them.

    With --bundle, --json also names its datasets, versions and changes, and whether it can be
    rebuilt.
    """
    from resperf.bundle import find_bundles
    from resperf.prediction.choice import place_of
    from resperf.prediction.known import device_rows
    from resperf.report.devices import device_table

    parts, damaged = find_bundles(place_of(bundle), checked=True)
    rows: list[dict[str, Any]] = device_rows(parts)
    rows += [
        {"bundle": {"name": folder.name, "path": str(folder)}, "damaged": str(error)}
        for folder, error in damaged.items()
    ]
    if as_json and bundle is None:
        rows = [{name: row[name] for name in row if name != "provenance"} for row in rows]
    lines = [device_table(rows)]
    if not parts:
        lines.append(
            "no bundles found; make one with: resperf bench CAMPAIGN, then resperf train FILE.h5"
        )
    options.show(as_json, rows, "\n".join(lines))
