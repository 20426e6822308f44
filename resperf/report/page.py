"""The page that shows answers: in one file of its own, or as the service sends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from resperf.report.documents import json_text

MEDIA_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
"""Suffix of the page's files -> their media type."""
_SCRIPT = '<script src="page.js" defer></script>'
_STYLE = '<link rel="stylesheet" href="page.css">'
_DATA = '<script type="application/json" id="data">{}</script>'
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">"
)
"""Of a page of its own, whose script and style are inside; it asks nobody for anything."""


@cache
def page_file(suffix: str) -> str:
    """Return the page's HTML, script or style."""
    return Path(__file__).with_name("page").joinpath(f"page{suffix}").read_text("utf-8")


def served_page(networks: Sequence[str], precisions: Sequence[str]) -> str:
    """Return the page with a form; it loads script and style from where it is.

    Parameters
    ----------
    networks : sequence of str
        Names of shipped networks.
    precisions : sequence of str
        That may be asked for.
    """
    return _with_data({"kind": "form", "networks": [*networks], "precisions": [*precisions]})


def answer_page(kind: str, answer: Any, *, command: str = "", **more: Any) -> str:
    """Return a page of its own, which shows an answer and needs no other file.

    Parameters
    ----------
    kind : str
        ``predictions``, ``scaling``, ``compare``, ``evaluate`` or ``dataset``.
    answer : mapping or sequence of mapping
        The JSON document of the command, or several.
    command : str
        Command line that gave it.
    **more
        What the page shows beside it.
    """
    page = _with_data({"kind": kind, "answer": answer, "command": command, **more})
    page = page.replace(_STYLE, f"{_POLICY}<style>{page_file('.css')}</style>")
    return page.replace(_SCRIPT, f"<script>{page_file('.js')}</script>")


def _with_data(data: Mapping[str, Any]) -> str:
    # A name in it may look like the end of the element.
    text = json_text(data).replace("<", "\\u003c")
    return page_file(".html").replace(_DATA.format(""), _DATA.format(text))
