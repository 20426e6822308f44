"""`resperf bundle`: merge bundles."""

from __future__ import annotations

from pathlib import Path

import click

_FOLDER = click.Path(path_type=Path)


@click.group(epilog="Example: resperf bundle merge cpu-1thread cpu-2threads -o cpu")
def command() -> None:
    """Merge bundles."""


@command.command(epilog="Example: resperf bundle merge cpu-1thread cpu-2threads -o cpu")
@click.argument("bundles", type=_FOLDER, nargs=-1, required=True)
@click.option(
    "-o", "--output", type=_FOLDER, required=True, help="The merged bundle.", metavar="OUT"
)
def merge(bundles: tuple[Path, ...], output: Path) -> None:
    """Merge BUNDLES into one, which predicts with the part nearest to a setting and machine.

    A bundle at OUT is replaced.
    """
    from resperf.bundle import merge_bundles

    merge_bundles(bundles, output)
    click.echo(f"{output}: merged from {len(bundles)} bundles")
