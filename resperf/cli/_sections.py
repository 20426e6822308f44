"""Commands whose help shows options in titled sections, and groups of commands.

Each option says its section where it is declared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from resperf.errors import did_you_mean

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


class Group(click.Group):
    """A group of commands, which names the nearest one if there is none of a name."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command by its name.

        Raises
        ------
        click.UsageError
            If there is none.
        """
        commands, word = self.list_commands(ctx), args[0]
        if word not in commands and not word.startswith("-"):
            ctx.fail(f"No such command {word!r}{did_you_mean(word, commands)}.")
        return super().resolve_command(ctx, args)
