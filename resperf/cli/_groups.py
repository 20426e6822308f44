"""Groups of commands that name the nearest one if there is none of a name."""

from __future__ import annotations

import click

from resperf.cli._sections import Command
from resperf.errors import did_you_mean


class Group(click.Group):
    """A group of commands."""

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
