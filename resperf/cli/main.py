"""Entry of the command line: a table of commands, loaded when used, and one line per error."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence

import click

from resperf._version import __version__
from resperf.cli._sections import Group
from resperf.errors import ResperfError, error_line

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("resperf.cli.demo:command", "Measure, train, predict and compare on this machine."),
    "bench": ("resperf.cli.bench:command", "Run or resume a campaign: measure layers."),
    "dataset": ("resperf.cli.dataset:command", "Inspect, import, check, export or merge datasets."),
    "train": ("resperf.cli.train:command", "Train predictors on a dataset: makes a bundle."),
    "train-embedding": (
        "resperf.cli.similar:train_embedding",
        "Train the vectors of networks that `similar` compares.",
    ),
    "calibrate": (
        "resperf.cli.calibrate:command",
        "Scale a bundle to this machine in a minute, or correct it by runs.",
    ),
    "evaluate": ("resperf.cli.evaluate:command", "Evaluate a bundle, or methods, on unseen rows."),
    "predict": ("resperf.cli.predict:command", "Predict how long a network takes on a device."),
    "compare": (
        "resperf.cli.compare:command",
        "Show networks, devices, settings or runs side by side.",
    ),
    "predict-layer": (
        "resperf.cli.predict:predict_layer",
        "Predict a single layer, without a network file.",
    ),
    "similar": (
        "resperf.cli.similar:command",
        "Name the known networks that are most like a network, and their times.",
    ),
    "measure": (
        "resperf.cli.measure:command",
        "Run a network and measure what `predict` predicts.",
    ),
    "bundle": ("resperf.cli.bundle:command", "Merge bundles into one."),
    "fit-run": (
        "resperf.cli.fit_run:command",
        "Predict long runs from your own log of short ones.",
    ),
    "doctor": (
        "resperf.cli.doctor:command",
        "Say what this machine can measure, and what is missing.",
    ),
    "cluster": ("resperf.cli.cluster:command", "Show what the nodes of a cluster have."),
    "devices": ("resperf.cli.devices:command", "List devices and bundles that `predict` knows."),
    "serve": ("resperf.serve.command:command", "Open a page in the browser that predicts."),
}
"""Command -> (module:object, one line of help); a module is imported when its command is used."""

USER_ERROR = 2
INTERRUPTED = 130
_GC_THRESHOLD = 50_000
"""New objects between two runs of Python's garbage collector."""


class LazyGroup(Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order in which they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command; None if there is no such name."""
        if cmd_name not in COMMANDS:
            return None
        module_name, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module_name), attribute)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of commands without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: resperf predict resnet50 --device cpu --batch 1 8",
)
@click.version_option(__version__, prog_name="resperf")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def group() -> None:
    """Predict how long a neural network takes on a device, learnt from measurements."""


def run(arguments: list[str]) -> int:
    """Run one command; its errors are raised."""
    thresholds = gc.get_threshold()
    # Collecting garbage during imports takes a twentieth of a short command's time.
    gc.set_threshold(max(_GC_THRESHOLD, thresholds[0]), *thresholds[1:])
    try:
        with group.make_context("resperf", arguments, obj=(*arguments,)) as context:
            group.invoke(context)
    except click.exceptions.Exit as finished:
        return finished.exit_code
    finally:
        gc.set_threshold(*thresholds)
        # A closed pipe (`| head`) must raise here, not when Python shuts down.
        sys.stdout.flush()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Words after ``resperf``; those of the process by default.

    Returns
    -------
    int
        0 success, 2 an error that the user can fix (one line on stderr), 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names may have letters that the terminal's encoding lacks.
            stream.reconfigure(errors="backslashreplace")
    try:
        # click empties the list that it parses.
        return run(list(words))
    except click.UsageError as error:
        error.show()
        return USER_ERROR
    except (KeyboardInterrupt, click.Abort):
        print("resperf: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python's last flush must raise nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ResperfError, click.ClickException, MemoryError, OSError) as error:
        if "--debug" in words:
            traceback.print_exc()
        print(f"resperf: error: {error_line(error)}", file=sys.stderr)
        return USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
