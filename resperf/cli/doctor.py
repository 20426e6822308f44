"""`resperf doctor`."""

from __future__ import annotations

import sys

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, Command, option
from resperf.errors import ResperfError

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
    from resperf.report.doctor import conformance_text, doctor_text, finding_line
    from resperf.targets import targets
    from resperf.workflows.doctor import examine

    if conformance is not None:
        from resperf.backends import backend
        from resperf.testing.backends import check_backend

        row = next((target for target in targets() if target.name == conformance), None)
        if row is None:
            names = ", ".join(target.name for target in targets() if target.backend)
            raise ResperfError(f"no target {conformance!r}; those that can be checked: {names}")
        started = backend(row.framework, row.device_class, **options.run_settings(device))
        started.own_process()
        checked = check_backend(
            started, row, tell=lambda x: print(finding_line(x), file=sys.stderr, flush=True)
        )
        document = {**checked.to_json(), "conforms": checked.conforms}
        options.show(as_json, document, conformance_text(checked))
        return
    examined = examine(device)
    options.show(as_json, examined.to_json(), doctor_text(examined))
