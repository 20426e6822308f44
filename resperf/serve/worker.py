"""The process that reads a client's network and predicts it, under limits.

It runs the command `resperf predict` on words that the service made, so that an answer is what the
command prints. Of a client's file it takes the structure alone: ONNX Runtime and TensorRT are asked
on a graph that `resperf.lowering` writes. On stdin it gets one line of JSON for each question; on
stdout it writes answers as `frame` does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
import traceback
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

import click

from resperf.errors import DeviceError, NetworkError, ResperfError, ShapeError, error_line
from resperf.network.model import open_buffer
from resperf.network.wire import count_nodes

UPLOAD = "network.onnx"
"""Name of a client's file in this process's own folder; clients' names are never paths."""
MEMORY_BYTES = 2 << 30
"""Address space of the process. VGG-16, whose ONNX graph has the largest weights of the shipped
ones, takes 0.5 GB."""
SECONDS = 20
"""For one question, on the clock and of processor time."""
MAX_NODES = 100_000
_WARM_UP = ("predict", "lenet5", "--device=cpu", "--json")
"""Loads ONNX, ONNX Runtime and a bundle, so that the first question need not wait for them."""


def frame(status: int, body: str) -> bytes:
    """Return an answer as bytes: its length (8, big-endian), its status (3 digits), its text."""
    content = f"{status}{body}".encode()
    return len(content).to_bytes(8, "big") + content


def main() -> None:
    """Answer questions until stdin ends."""
    # What libraries print must not become part of an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory()
    ask(_WARM_UP, "")
    _write(answers, HTTPStatus.OK, "")
    for line in sys.stdin.buffer:
        question = json.loads(line)
        _limit_seconds()
        _write(answers, *ask(question["words"], question["name"]))


def ask(words: tuple[str, ...] | list[str], name: str) -> tuple[int, str]:
    """Run a command of resperf.

    Parameters
    ----------
    words : sequence of str
        Of the command line, behind ``resperf``.
    name : str
        Name of the client's network, which replaces that of `UPLOAD`; empty for others.

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
            if UPLOAD in words:
                _refuse_too_many_nodes()
            run([*words])
        return HTTPStatus.OK, _renamed(out.getvalue(), name) if name else out.getvalue()
    except (ResperfError, click.ClickException, MemoryError, OSError) as error:
        return _status(error), error_text(error_line(error))
    except Exception as error:  # a defect of resperf, on a file that may be made to cause it
        traceback.print_exc()
        return HTTPStatus.UNPROCESSABLE_ENTITY, error_text(
            f"resperf failed on this network ({error_line(error) or type(error).__name__}); please "
            "report it with the file"
        )


def error_text(line: str) -> str:
    """Return the body of an answer that is an error."""
    return json.dumps({"error": line})


def _write(answers: BinaryIO, status: int, body: str) -> None:
    answers.write(frame(status, body))
    answers.flush()


def _status(error: BaseException) -> HTTPStatus:
    """Return the status of an error: whose fault it is."""
    if isinstance(error, DeviceError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, NetworkError) and not isinstance(error, ShapeError):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, OSError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.UNPROCESSABLE_ENTITY


def _refuse_too_many_nodes() -> None:
    nodes = 0
    # Reading says better why a file is no network.
    with contextlib.suppress(NetworkError), open_buffer(Path(UPLOAD)) as buffer:
        nodes = count_nodes(buffer)
    if nodes > MAX_NODES:
        raise NetworkError(
            f"{UPLOAD} has {nodes} nodes; the service takes {MAX_NODES}: use resperf predict"
        )


def _renamed(text: str, name: str) -> str:
    """Call the network by the client's name in documents of predictions or of scaling."""
    from resperf.report.documents import json_text

    answer: Any = json.loads(text)
    for document in answer if isinstance(answer, list) else [answer]:
        was, document["network"] = document["network"], name
        if "summary" in document:
            document["summary"] = name + document["summary"].removeprefix(was)
    return json_text(answer) + "\n"


def _limit_memory() -> None:
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))


def _limit_seconds() -> None:
    """Let the kernel end this process if the next question takes too much processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
