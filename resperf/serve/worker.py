"""The process that reads a client's network and predicts it, under limits.

It runs the command `resperf predict` on words that the service made, so that an answer is what the
command prints. Of a client's file it takes the structure alone: ONNX Runtime and TensorRT are asked
on a graph that `resperf.lowering` writes. On stdin it gets a line of JSON for each question, the
words; on stdout it writes for each answer a line with its status and its bytes, then the answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from typing import BinaryIO

import click

from resperf.errors import DeviceError, NetworkError, ResperfError, ShapeError, error_line

MEMORY_BYTES = 2 << 30
"""Address space of the process. VGG-16, whose ONNX graph has the largest weights of the shipped
ones, takes 0.5 GB."""
SECONDS = 20
"""For one question, on the clock and of processor time."""
_STATUSES = ((DeviceError, 404), (ShapeError, 422), (NetworkError, 400), (OSError, 503))
"""Whose fault an error is: the first that fits counts, 422 if none does."""
_WARM_UP = ("predict", "lenet5", "--device=cpu", "--json")
"""Loads ONNX, ONNX Runtime and a bundle, so that the first question need not wait for them."""


def main() -> None:
    """Answer questions until stdin ends."""
    # What libraries print must not become part of an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    limit_memory()
    _write(answers, *ask(_WARM_UP))
    for line in sys.stdin.buffer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + 1 + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        _write(answers, *ask(json.loads(line)))


def limit_memory() -> None:
    """Let larger allocations fail, and write no core files."""
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))


def ask(words: Sequence[str]) -> tuple[int, str]:
    """Run a command of resperf.

    Parameters
    ----------
    words : sequence of str
        Of the command line, behind ``resperf``.

    Returns
    -------
    status : int
        Of HTTP.
    text : str
        What the command prints, or a document ``{"error": ...}`` with the line of its error.
    """
    from resperf.cli.main import run

    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            run([*words])
        return 200, out.getvalue()
    except (ResperfError, click.ClickException, MemoryError, OSError) as error:
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 422)
        return status, json.dumps({"error": error_line(error)})
    except Exception as error:  # a defect of resperf, on a file that may be made to cause it
        traceback.print_exc()
        line = (
            f"resperf failed on this network ({error_line(error)}); please report it and the file"
        )
        return 422, json.dumps({"error": line})


def _write(answers: BinaryIO, status: int, text: str) -> None:
    content = text.encode()
    answers.write(b"%d %d\n%b" % (status, len(content), content))
    answers.flush()
