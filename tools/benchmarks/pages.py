"""What tools share: options, published measurements, stored results, pages in docs/tables."""

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

from resperf.bundle._provenance import source_commit
from resperf.files import write_whole
from resperf.grouping import grouped

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "docs" / "tables"


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help begins with what a tool's file says."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def page_parser(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every page."""
    parser = parser_of(doc)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / name, help="kept results")
    parser.add_argument("--output", type=Path, default=TABLES / f"{name}.md")
    parser.add_argument("--write", action="store_true", help="the page of what there is, no fits")
    return parser


def public_data() -> Path:
    """Return the folder of published measurements: $RESPERF_PUBLIC_DATA or ../shared/data."""
    folder = Path(os.environ.get("RESPERF_PUBLIC_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        raise SystemExit(f"no measurements in {folder}; set RESPERF_PUBLIC_DATA to their folder")
    return folder


def run(*words: object) -> None:
    """Run a command that users have."""
    command = [sys.executable, "-m", "resperf", *map(str, words)]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"failed: resperf {' '.join(command[3:])}")


def dataset(target: Path, *words: object) -> Path:
    """Write a dataset by words such as ``"merge", *FILES``, once."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        run("dataset", *words, "-o", target)
    return target


def stored(path: Path, made_with: Any = None) -> dict[str, Any] | None:
    """Return a result with the commit that it was computed at; None if it was made otherwise."""
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record if record["made_with"] == made_with else None


def load_or_make(path: Path, make: Callable[[], Any], made_with: Any = None) -> dict[str, Any]:
    """Return a stored result; make it if there is none."""
    if (record := stored(path, made_with)) is None:
        record = {"commit": source_commit(), "made_with": made_with, "result": make()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{json.dumps(record)}\n".encode())
        print(path.stem, file=sys.stderr, flush=True)
    return record


def write_page(output: Path, title: str, parts: Sequence[str]) -> None:
    """Write a page that begins with the command that wrote it."""
    command = f"python tools/benchmarks/{Path(sys.argv[0]).name}"
    head = f"Written by `{command}` on {datetime.now(UTC):%Y-%m-%d} at commit {source_commit()}."
    output.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join([head, f"# {title}", *filter(None, parts)])
    write_whole(output, f"{text}\n".encode())
    print(output)


def by_words(said: Mapping[str, str]) -> str:
    """List what is said of names, each thing in one line."""
    names = grouped((words, name) for name, words in said.items())
    return "\n".join(f"- {words}: {', '.join(own)}" for words, own in names.items())


def commits(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Say at which commit each result was computed."""
    return by_words({name: f"commit `{record['commit']}`" for name, record in results.items()})


def cell(value: float) -> str:
    """Write a number with one decimal; what is not known is empty."""
    return f"{value:.1f}" if math.isfinite(value) else ""
