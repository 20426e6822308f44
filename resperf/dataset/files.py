"""Files that are whole or not there: written beside the old one, then put in its place."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from resperf.errors import OutputError


def refuse_to_replace(*paths: Path, unless: bool) -> None:
    """Refuse outputs that are there, unless the user said that they may go.

    Raises
    ------
    OutputError
        If one of them exists.
    """
    for path in paths:
        if path.exists() and not unless:
            raise OutputError(f"{path} exists; choose another output or add --force")


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Replace a file's content in one step; whatever goes wrong, the old file stays as it was.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written, or the disk is full.
    """
    # A link keeps pointing where it did: the file behind it is replaced.
    target = Path(os.path.realpath(path))
    draft = target.with_name(target.name + ".tmp")
    try:
        if target.is_dir():
            raise IsADirectoryError("it is a folder")
        try:
            _write_and_sync(draft, content)
            os.replace(draft, target)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
    except OSError as error:
        raise OutputError(
            f"{path} could not be written ({error.strerror or error}); nothing was changed: "
            "free some space or choose another output"
        ) from error
    _sync_folder(target.parent)


def _write_and_sync(path: Path, content: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the renaming durable, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
