"""`resperf doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, Command, option
from resperf.errors import ResperfError

if TYPE_CHECKING:
    from resperf.testing.backends import Conformance

EPILOG = """\b
Examples:
  resperf doctor
  resperf doctor --device cuda:0 --conformance torch/cuda
"""


@click.command("doctor", cls=Command, epilog=EPILOG)
@option(
    "--device",
    section=COMMON,
    metavar="D",
    help="Look at this local device only: cpu, cuda:0; all by default.",
)
@option(
    "--conformance",
    section=COMMON,
    metavar="TARGET",
    help="Check instead whether the backend of a target, such as onnxruntime/cpu, keeps its "
    "contract here: a small layer of each kind is built, run and freed.",
)
@options.JSON
def command(device: str | None, conformance: str | None, as_json: bool) -> None:
    """Say what this machine can measure, what is missing, and what you could improve.

    Nothing is changed.
    """
    from resperf.report.doctor import conformance_text, doctor_text
    from resperf.workflows.doctor import examine

    if conformance is not None:
        checked = _checked(conformance, options.run_settings(device))
        document = {**checked.to_json(), "conforms": checked.conforms}
        options.show(as_json, document, conformance_text(checked))
        return
    examined = examine(device)
    options.show(as_json, examined.to_json(), doctor_text(examined))


def _checked(name: str, settings: dict[str, Any]) -> Conformance:
    """Run the conformance suite, each finding on stderr."""
    from resperf.backends import backend
    from resperf.report.doctor import finding_line
    from resperf.targets import targets
    from resperf.testing.backends import check_backend

    row = next((target for target in targets() if target.name == name), None)
    if row is None:
        names = ", ".join(target.name for target in targets() if target.backend)
        raise ResperfError(f"no target {name!r}; those that can be checked: {names}")
    started = backend(row.framework, row.device_class, **settings)
    started.own_process()
    return check_backend(
        started, row, tell=lambda finding: print(finding_line(finding), file=sys.stderr, flush=True)
    )
