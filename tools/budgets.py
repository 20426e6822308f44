"""Print how large the project is, and fail where it is larger than its budget.

    python tools/budgets.py

Code lines are neither blank, comment nor docstring. Words of docs/ leave out docs/tables, which
tools write. Options are those of all commands, as click counts them.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
_NO_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
)  # fmt: skip


BUDGETS = {
    "code lines in resperf/": 48_420,
    "code lines in the largest file": 500,
    "options of all commands": 145,
    "code lines in tools/": 3_760,
    "words in docs/": 15_000,
    "lines of README.md": 95,
    "MB in models/": 26,
}
"""What may not be exceeded."""


def code_lines(path: Path) -> int:
    """Count the lines of a file that hold code."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Attributes of classes have docstrings as well.
            body = node.body if isinstance(node, ast.ClassDef) else node.body[:1]
            for statement in body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    lines -= {*range(statement.lineno, (statement.end_lineno or 0) + 1)}
    return len(lines)


def options(command: click.Command) -> Iterator[click.Option]:
    """Yield the options of a command and of those below it."""
    yield from (parameter for parameter in command.params if isinstance(parameter, click.Option))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below)


def sizes() -> dict[str, float]:
    """Measure what `BUDGETS` names."""
    from resperf.cli.main import group

    of_files = {path: code_lines(path) for path in (ROOT / "resperf").rglob("*.py")}
    docs = [path for path in (ROOT / "docs").rglob("*.md") if "tables" not in path.parts]
    models = [path for path in (ROOT / "models").rglob("*") if path.is_file()]
    return {
        "code lines in resperf/": sum(of_files.values()),
        "code lines in the largest file": max(of_files.values()),
        "options of all commands": len([*options(group)]),
        "code lines in tools/": sum(map(code_lines, (ROOT / "tools").rglob("*.py"))),
        "words in docs/": sum(len(path.read_text("utf-8").split()) for path in docs),
        "lines of README.md": len((ROOT / "README.md").read_text("utf-8").splitlines()),
        "MB in models/": sum(path.stat().st_size for path in models) / 1e6,
    }


def main() -> int:
    above = 0
    for name, size in sizes().items():
        is_above = size > BUDGETS[name]
        above += is_above
        print(f"{name}: {size:,.0f} of {BUDGETS[name]:,}{' TOO LARGE' * is_above}")
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
