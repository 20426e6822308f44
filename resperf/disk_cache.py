"""A cache of JSON values on disk, shared between processes.

Errors of reading and writing are ignored: the value then counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Hashable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MAX_BYTES = 200_000_000
"""Of the files of a folder; beyond it, the older half is deleted."""


def folder_of(what: str) -> Path:
    """Return the folder ``$XDG_CACHE_HOME/resperf/WHAT``, by default in ~/.cache.

    Raises
    ------
    OSError
        If this user has no home folder.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "resperf" / what
    except RuntimeError as error:
        raise OSError(str(error)) from error


@cache
def code_state(*packages: str) -> str:
    """Return a string that changes with the code of packages of resperf and the installed onnx.

    Parameters
    ----------
    *packages : str
        Names below ``resperf``.
    """
    here = Path(__file__).parent
    modules: list[tuple[object, ...]] = []
    # Looking up its version would load a mail parser, a tenth of a short prediction's time.
    if (onnx := find_spec("onnx")) is not None and onnx.origin is not None:
        at = Path(onnx.origin).stat()
        modules.append((onnx.origin, at.st_size, at.st_mtime_ns))
    with contextlib.suppress(OSError):
        for package in packages:
            with os.scandir(here / package) as entries:
                states = [(file.name, file.stat()) for file in entries if file.name.endswith(".py")]
            modules += [(package, name, at.st_size, at.st_mtime_ns) for name, at in states]
    return repr(sorted(modules, key=repr))


def name_of(*key: Hashable) -> str:
    """Return the file name of a key; equal for keys of equal `repr`."""
    return f"{hashlib.sha256(repr(key).encode()).hexdigest()}.json"


def load(what: str, name: str, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the JSON value of a file, or None; `object_hook` as in `json.loads`."""
    try:
        text = (folder_of(what) / name).read_text(encoding="utf-8")
        return json.loads(text, object_hook=object_hook)
    except (OSError, ValueError, RecursionError):
        return None


def store(what: str, name: str, value: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Store a JSON value atomically; `default` as in `json.dumps`."""
    with contextlib.suppress(OSError):
        target = folder_of(what) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not a temporary folder: making and deleting one takes ten times as long.
        partial = target.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            partial.write_text(json.dumps(value, default=default), encoding="utf-8")
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        with os.scandir(target.parent) as entries:
            files = [(file.stat(), file.path) for file in entries if file.name.endswith(".json")]
        if sum(state.st_size for state, _ in files) <= MAX_BYTES:
            return
        files.sort(key=lambda file: file[0].st_mtime_ns)
        for _, path in files[: len(files) // 2]:
            # Another process may have deleted the file.
            with contextlib.suppress(OSError):
                Path(path).unlink()
