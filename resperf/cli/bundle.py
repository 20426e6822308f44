"""`resperf bundle`: merge bundles."""

from __future__ import annotations

from pathlib import Path

import click

from resperf.cli import _options as options
from resperf.cli._sections import Group


@click.group(cls=Group, epilog="Example: resperf bundle merge cpu-1thread cpu-2threads -o cpu")
def command() -> None:
    """Merge bundles."""


@command.command(epilog="Example: resperf bundle merge cpu-1thread cpu-2threads -o cpu")
@click.argument("bundles", type=options.PATH, nargs=-1, required=True)
@options.output("OUT", "The merged bundle.", required=True)
def merge(bundles: tuple[Path, ...], output: Path) -> None:
    """Merge BUNDLES, folders or names, into one.

    It predicts with the part nearest to a setting and machine.

    A bundle at OUT is replaced.
    """
    from resperf.bundle import merge_bundles
    from resperf.prediction.choice import place_of

    merge_bundles([place_of(bundle) or bundle for bundle in bundles], output)
    click.echo(f"{output}: merged from {len(bundles)} bundles")
