"""The page that shows answers: in one file of its own, or as the service sends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resperf.report.documents import json_text

PAGE = Path(__file__).with_name("page")
"""Folder of the page's HTML, script and style."""
_SCRIPT = '<script src="page/page.js" defer></script>'
_STYLE = '<link rel="stylesheet" href="page/page.css">'
_DATA = '<script type="application/json" id="data">{}</script>'


def served_page(networks: Sequence[str], precisions: Sequence[str], clusters: Sequence[str]) -> str:
    """Return the page with a form, which names what may be chosen; it loads script and style."""
    choices = {"networks": networks, "precisions": precisions, "clusters": clusters}
    return _with_data({"kind": "form", **choices})


def answer_page(kind: str, answer: Any, command: str, limits: Mapping[str, Any]) -> str:
    """Return a page of its own, which shows an answer and needs no other file.

    Parameters
    ----------
    kind : str
        Name of the command: ``predict``, ``measure``, ``compare``, ``evaluate`` or ``info``.
    answer : mapping or sequence of mapping
        What the command writes as JSON.
    command : str
        Command line that gave it.
    limits : mapping of str to mapping
        Device -> its `resperf.devices.DeviceFacts.limits`.
    """
    page = _with_data({"kind": kind, "answer": answer, "command": command, "limits": limits})
    page = page.replace(_STYLE, f"<style>{_read('.css')}</style>")
    return page.replace(_SCRIPT, f"<script>{_read('.js')}</script>")


def _with_data(data: Mapping[str, Any]) -> str:
    # A name in it may look like the end of the element.
    text = json_text(data).replace("<", "\\u003c")
    return _read(".html").replace(_DATA.format(""), _DATA.format(text))


def _read(suffix: str) -> str:
    return (PAGE / f"page{suffix}").read_text("utf-8")
