#!/usr/bin/env python
"""Break datasets, bundles, campaigns, cards and trtexec's exports; check how commands react.

    python tools/fuzz_files.py --count 2000
    python tools/fuzz_files.py --seed 417 --keep broken        # one case again, stored

A broken file may be read or refused with one line and exit code 2. What may not happen is what
`fuzz_networks.py` says, and predicted times that are no times.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import random
import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
from fuzz_networks import OUTSIDE, RAW, broken_bytes, main

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "dataset": ("tests/golden", "dataset.h5", "dataset info {}", "dataset check {}",
                "dataset export {} -o out", "evaluate {} --device cpu --split all",
                "train {} --method baseline -o out"),
    "bundle": ("models/bundles/[!g]*", "*", "predict lenet5 --bundle {} --json",
               "devices --bundle {}"),
    "campaign": ("microbench", "[dnq]*.toml", "bench {} --dry-run"),
    "card": ("resperf/devices", "devices.toml", "predict lenet5 --device {} --json"),
    "exports": ("tests/dataset/importing/trtexec", "small.*",
                "dataset import {} --format trtexec -o out.h5 --force"),
}  # fmt: skip
"""Kind -> folder and names of its files, and commands to run with the folder or the files."""
NUMBERS = (0, -1, 1e308, -1e308, 1e-320, math.nan, math.inf, 1 << 31, 1 << 70)
WORDS = ("", "x" * 10_000, "\x1b[31mred\nline", "\u7f51", "\x00", f"../{OUTSIDE}", "nan", "1")
VALUES = (*NUMBERS, *WORDS, True, [], [math.nan] * 3, [[]], {}, {"a": 1}, None)


def broken_files(seed: int, folder: Path) -> tuple[str, Path]:
    """Write files of one kind, one of which is broken, into a folder named after the kind."""
    source = random.Random(seed)
    kind = [*KINDS][seed % len(KINDS)]
    origin = source.choice(sorted(ROOT.glob(KINDS[kind][0])))
    originals = sorted(origin.glob(KINDS[kind][1]))
    several = kind in ("bundle", "exports")
    folder /= kind
    folder.mkdir()
    for original in originals if several else [source.choice(originals)]:
        shutil.copy(original, folder)
    path = source.choice(sorted(folder.iterdir()))
    if kind == "bundle" and source.random() < 0.7:
        path = folder / "bundle.json"
    if kind == "card":
        path.write_text(source.choice(path.read_text().split("\n\n")[1:]))
    change = {".h5": _hdf5, ".json": _json, ".toml": _toml}.get(path.suffix)
    how = source.choice([*["values"] * 6 * bool(change), *RAW, *["absent"] * several])
    if how == "absent":
        path.unlink()
    elif change is None or how in RAW:
        path.write_bytes(broken_bytes(path.read_bytes(), how, source))
    else:
        change(path, source)
        if kind == "dataset":
            # Without its seal, as other programs write it.
            path.write_bytes(bytes(512) + path.read_bytes()[512:])
    if path.suffix in (".onnx", ".npz") and path.exists() and source.random() < 0.7:
        manifest = json.loads((folder / "bundle.json").read_text())
        manifest["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        (folder / "bundle.json").write_text(json.dumps(manifest))
    return f"{how} in {origin.name}, {path.name}", folder


def _json(path: Path, source: random.Random) -> None:
    inner = document = json.loads(path.read_text())
    while True:
        key = source.choice([*(inner if isinstance(inner, dict) else range(len(inner)))])
        if not (isinstance(inner[key], dict | list) and inner[key]) or source.random() < 0.1:
            break
        inner = inner[key]
    inner[key] = source.choice(VALUES)
    if source.random() < 0.25:
        del inner[key]
    path.write_text(json.dumps(document))


def _toml(path: Path, source: random.Random) -> None:
    lines = path.read_text().splitlines()
    index = source.choice([n for n, line in enumerate(lines) if "=" in line or "[" in line])
    words = [*map(str, NUMBERS), *map(json.dumps, WORDS), "true", "[]", "[-1]", "{}", "1979-05-27"]
    name = lines[index].partition("=")[0]
    lines[index] = source.choice(["", f"{name} = {source.choice(words)}", 2 * lines[index]])
    path.write_text("\n".join(lines))


def _hdf5(path: Path, source: random.Random) -> None:
    with h5py.File(path, "r+") as file, contextlib.suppress(TypeError, ValueError, OverflowError):
        names: list[str] = []
        file.visit(names.append)
        name, value = source.choice(names), source.choice(VALUES[:-3])
        item = file[name]
        if len(item.attrs) and source.random() < 0.6:
            item.attrs[source.choice([*item.attrs])] = source.choice([value, json.dumps(value)])
            return
        rows = np.array(item) if isinstance(item, h5py.Dataset) else np.zeros(3)
        del file[name]
        shapes = {"shape": (1 << 40,), "dtype": "f8", "chunks": (1 << 16,)}
        rows[: len(rows) // 2] = value
        contents = ({"data": value}, shapes, {"data": rows}, {"data": rows[:1]})
        file.create_dataset(name, **source.choice(contents))


def outcome(folder: Path) -> str:
    """Run the commands of a kind; name the outcome."""
    from resperf.cli.main import main as resperf

    files = [folder] if folder.name == "bundle" else sorted(folder.iterdir())
    words = []
    for command in KINDS[folder.name][2:]:
        arguments = command.replace("{}", "\n".join(map(str, files))).replace(" ", "\n").split("\n")
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(folder.parent),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = resperf(arguments)
        shown, said = out.getvalue(), err.getvalue()
        last = said.strip().rpartition("\n")[2]
        is_ours = code != 2 or (last.startswith("resperf: error: ") and len(last) < 2000)
        if "\x1b" in shown + said or not is_ours:
            return f"wrong: {command}: {len(last)} letters, {said[-300:]!r}"
        if code == 0 and "--json" in command:
            times_ms = [document["total_ms"] for document in json.loads(shown)]
            if not all(time_ms is None or 0 < time_ms < 1e12 for time_ms in times_ms):
                return f"wrong: {command}: {times_ms} ms"
        words.append({0: "read", 2: "refused"}.get(code, f"exit {code}"))
    return f"{folder.name}: {', '.join(words)}"


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], broken_files, outcome))
