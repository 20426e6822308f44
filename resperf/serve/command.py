"""`resperf serve`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from urllib.parse import quote

import click

from resperf.cli._sections import COMMON, Command, option
from resperf.errors import require


@click.command(
    cls=Command,
    epilog="\b\nExamples:\n  resperf serve\n  resperf serve --host 0.0.0.0 --token SECRET\n"
    "  curl --data-binary @net.onnx 'http://127.0.0.1:8421/v1/predictions?device=h100&batch=8'",
)
@option(
    "--host", section=COMMON, default="127.0.0.1", show_default=True, metavar="H",
    help="Address to listen on; one that other machines reach needs --token.",
)  # fmt: skip
@option(
    "--port", section=COMMON, type=click.IntRange(0, 65535), default=8421, show_default=True,
    metavar="N", help="0 takes a free one.",
)  # fmt: skip
@option(
    "--token", section=COMMON, default="", metavar="T",
    help="Word that every request must bring; the printed address has it for the page.",
)  # fmt: skip
@option(
    "--allow-training", section=COMMON, is_flag=True,
    help="Let clients train bundles on datasets of datasets/, else of this folder, one at a time.",
)  # fmt: skip
def command(host: str, port: int, token: str, *, allow_training: bool) -> None:
    """Open a page in the browser: drop a network, see its time on a device.

    Predictions are also answered over HTTP: POST an ONNX file to /v1/predictions?device=h100 for
    the JSON of `resperf predict --json`. Nothing leaves this machine. /openapi.json has the
    parameters. Files are read under limits: 256 MB, 2 GiB of memory, 20 s.
    """
    uvicorn = require("uvicorn", "serve")
    require("fastapi", "serve")
    from resperf.serve.app import create_app
    from resperf.serve.guard import Guard, is_loopback

    if not is_loopback(host) and not token:
        raise click.UsageError(f"--host {host} lets other machines ask; add --token WORD")
    listening = socket.create_server((host, port))
    address = f"http://{host}:{listening.getsockname()[1]}/" + f"#{quote(token)}" * bool(token)
    click.echo(f"resperf serves {address} (Ctrl-C stops it)")
    folder = Path("datasets" * Path("datasets").is_dir()).absolute()
    # h11 stops reading while the service does not, which keeps large files out of memory.
    config = uvicorn.Config(
        Guard(create_app(datasets=folder if allow_training else None), host, token),
        http="h11", ws="none", log_level="warning", server_header=False,
    )  # fmt: skip
    # Over SSH it would open on the wrong machine, or in this terminal.
    if sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ:
        click.launch(address)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))
