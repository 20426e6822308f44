"""`resperf serve`."""

from __future__ import annotations

import asyncio
import socket
import sys
import webbrowser

import click

from resperf.cli._sections import COMMON, Command, option
from resperf.errors import require

_PORT = 8421


@click.command(
    cls=Command,
    epilog="\b\nExamples:\n  resperf serve\n  resperf serve --host 0.0.0.0 --token SECRET\n"
    "  curl --data-binary @net.onnx 'http://127.0.0.1:8421/v1/predictions?device=h100&batch=8'",
)
@option(
    "--host",
    section=COMMON,
    default="127.0.0.1",
    show_default=True,
    metavar="H",
    help="Address to listen on; one that other machines reach needs --token.",
)
@option(
    "--port",
    section=COMMON,
    type=click.IntRange(0, 65535),
    default=_PORT,
    show_default=True,
    metavar="N",
    help="0 takes a free one.",
)
@option(
    "--token",
    section=COMMON,
    metavar="T",
    help="Word that every request must bring; the printed address has it for the page.",
)
def command(host: str, port: int, token: str | None) -> None:
    """Open a page in the browser: drop a network, see its time on a device.

    Predictions are also answered over HTTP: POST an ONNX file to /v1/predictions?device=h100 for
    the JSON of `resperf predict --json`. Nothing leaves this machine. /openapi.json has the
    parameters. Files are read under limits: 256 MB, 100,000 nodes, 2 GiB of memory, 20 s.
    """
    uvicorn = require("uvicorn", "serve")
    require("fastapi", "serve")
    from resperf.serve.app import create_app
    from resperf.serve.guard import Guard, is_loopback

    if not is_loopback(host) and not token:
        raise click.UsageError(f"--host {host} lets other machines ask; add --token WORD")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/" + f"#{token}" * bool(token)
    click.echo(f"resperf serves {address} (Ctrl-C stops it)")
    app = Guard(create_app(), host, token or "")
    # h11 stops reading while the service does not, which keeps large files out of memory.
    config = uvicorn.Config(app, http="h11", ws="none", log_level="warning", server_header=False)
    _open_browser(address)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


def _open_browser(address: str) -> None:
    """Open a window of a browser, where this is a terminal of somebody who has one."""
    if not sys.stdout.isatty():
        return
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    # One that runs in this terminal would take it.
    if type(browser) is not webbrowser.GenericBrowser:
        browser.open(address)
