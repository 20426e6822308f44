"""Options in titled sections of a command's help; each option says its own where it is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

COMMON = "Common options"
WHAT = "What it is about"
WHERE = "Where it runs"
HOW = "How it runs"
SEVERAL = "Several devices"
OUTPUT = "Output and checks"
SECTIONS = (COMMON, WHAT, WHERE, HOW, SEVERAL, OUTPUT)
"""Titles in the order of the help; a command shows those that it has options of."""


class Option(click.Option):
    """An option that is shown in a section."""

    def __init__(self, *words: Any, section: str, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.section = section


def option(*words: str, section: str, **settings: Any) -> Callable[..., Any]:
    """Declare an option of a section; otherwise as `click.option`."""
    return click.option(*words, cls=Option, section=section, **settings)


class Command(click.Command):
    """A command whose help shows its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections; --help, which click adds, is in the last one."""
        for title in SECTIONS:
            shown = [
                row
                for param in self.get_params(ctx)
                if isinstance(param, click.Option)
                and getattr(param, "section", OUTPUT) == title
                and (row := param.get_help_record(ctx)) is not None
            ]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)
