"""`resperf doctor`."""

from __future__ import annotations

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, Command, option

EPILOG = """\b
Examples:
  resperf doctor
  resperf doctor --device cuda:0
"""


@click.command("doctor", cls=Command, epilog=EPILOG)
@option(
    "--device",
    section=COMMON,
    metavar="D",
    help="Look at this local device only: cpu, cuda:0; all by default.",
)
@options.JSON
def command(device: str | None, as_json: bool) -> None:
    """Say what this machine can measure, what is missing, and what you could improve.

    Nothing is changed.
    """
    from resperf.report.doctor import doctor_text
    from resperf.workflows.doctor import examine

    examined = examine(device)
    options.show(as_json, examined.to_json(), doctor_text(examined))
