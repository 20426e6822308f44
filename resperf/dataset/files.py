"""Atomic writing: a file is written beside the old one, which it then replaces."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from resperf.errors import OutputError


def refuse_to_replace(*paths: Path, unless: bool) -> None:
    """Refuse outputs that exist, unless the user allowed replacing them.

    Raises
    ------
    OutputError
        If one of them exists.
    """
    for path in paths:
        if path.exists() and not unless:
            raise OutputError(f"{path} exists; choose another output or add --force")


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Replace a file's content in one step; on any error the old file is unchanged.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written, or the disk is full.
    """
    # A link is not changed: the file it points to is replaced.
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
    """Make the renaming durable, if the file system supports that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
