"""Pages of tables in docs/tables, and the published measurements that they are made from."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resperf.files import write_whole
from resperf.report.markdown import markdown_table

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "docs" / "tables"


def parser_of(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every page."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / name, help="kept results")
    parser.add_argument("--output", type=Path, default=TABLES / f"{name}.md")
    parser.add_argument("--write", action="store_true", help="the page of what there is, no fits")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def public_data() -> Path:
    """Return the folder of published measurements: $RESPERF_PUBLIC_DATA or ../shared/data."""
    found = Path(os.environ.get("RESPERF_PUBLIC_DATA", ROOT.parent / "shared" / "data"))
    if not found.is_dir():
        raise SystemExit(f"no measurements in {found}; set RESPERF_PUBLIC_DATA to their folder")
    return found


def run(*words: object) -> None:
    """Run a command that users have."""
    command = [sys.executable, "-m", "resperf", *map(str, words)]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"failed: resperf {' '.join(command[3:])}")


def imported(target: Path, source: str, files: Sequence[Path], *words: object) -> Path:
    """Import published files, once."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        run("dataset", "import", *files, "--format", source, *words, "-o", target)
    return target


def commit() -> str:
    """Name the commit of the code."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def kept(path: Path, make: Callable[[], Any]) -> dict[str, Any]:
    """Return a stored result with the commit that it was computed at; make it if there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"commit": commit(), "result": make()})
        write_whole(path, f"{text}\n".encode())
        print(path.stem, file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_page(output: Path, title: str, parts: Sequence[str]) -> None:
    """Write a page that begins with the command that wrote it."""
    command = f"python tools/benchmarks/{Path(sys.argv[0]).name}"
    head = f"Written by `{command}` on {datetime.now(UTC):%Y-%m-%d} at commit {commit()}."
    output.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join([head, f"# {title}", *filter(None, parts)])
    write_whole(output, f"{text}\n".encode())
    print(output)


def commits(stored: Mapping[str, Mapping[str, Any]]) -> str:
    """Say at which commit each result was computed."""
    names: dict[str, list[str]] = {}
    for name, each in stored.items():
        names.setdefault(each["commit"], []).append(name)
    told = (f"`{commit}` ({', '.join(own)})" for commit, own in names.items())
    return f"Computed at commit {', '.join(told) or 'none: not run'}."


def filled_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table without the columns that are empty."""
    filled = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    cells = [[row[place] for place in filled] for row in rows]
    return markdown_table([headings[place] for place in filled], cells) if rows else ""


def cell(value: float) -> str:
    """Write a number with one decimal; what is not known is empty."""
    return f"{value:.1f}" if math.isfinite(value) else ""
