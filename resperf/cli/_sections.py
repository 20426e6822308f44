"""Commands whose help shows options in titled sections, and groups of commands.

Each option says its section where it is declared.
"""

from __future__ import annotations

import re
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


NUMBERS, WORDS = "numbers", "words"
"""What may follow an option without its name being repeated."""
INTEGERS = re.compile(r"\d{1,18}(,\d{1,18})*")


class Option(click.Option):
    """An option that is shown in a section, and may take several `NUMBERS` or `WORDS`."""

    def __init__(self, *words: Any, section: str, spread: str = "", **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.section, self.spread = section, spread


def option(*words: str, section: str, **settings: Any) -> Callable[..., Any]:
    """Declare an option of a section; otherwise as `click.option`."""
    return click.option(*words, cls=Option, section=section, **settings)


class Command(click.Command):
    """A command whose help shows its options in sections, some of which take several values."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite ``--batch 1 8 32`` as ``--batch 1 --batch 8 --batch 32``, then parse as usual.

        Only numbers directly after the option (or ``--batch=1``) belong to it. A file name may
        follow them. To an option of words belong all up to the next option.
        """
        # Words before an argument may be the argument.
        taken = (NUMBERS, WORDS) if args and not args[0].startswith("-") else (NUMBERS,)
        for param in self.params:
            if not isinstance(param, Option) or param.spread not in taken:
                continue
            name, spread, following = param.opts[0], list[str](), 0
            for index, word in enumerate(args):
                if word == "--":
                    spread += args[index:]
                    break
                if word.startswith("-"):
                    following = 1 if word == name else 2 if word.startswith(f"{name}=") else 0
                    spread.append(word)
                elif following and (param.spread == WORDS or INTEGERS.fullmatch(word)):
                    # The option already precedes its first number.
                    spread += [word] if following == 1 else [name, word]
                    following = 2
                else:
                    following = 0
                    spread.append(word)
            args = spread
        return super().parse_args(ctx, args)

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
