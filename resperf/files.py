"""Files that resperf ships, and atomic writing: beside the old file, which is then replaced."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from resperf.errors import OutputError


def shipped_files(folder: str, pattern: str) -> list[Path]:
    """Return what resperf ships in a folder such as ``models/networks``, sorted by name."""
    package = Path(__file__).resolve().parent
    # A checkout has its files beside the package, an installed wheel inside it.
    places = (package.parent / folder, package / "data" / folder)
    return [path for root in places for path in sorted(root.glob(pattern))]


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
            draft.write_bytes(content)
            sync(draft)
            os.replace(draft, target)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
    except OSError as error:
        advice = "free some space" if target.parent.is_dir() else "make its folder"
        raise OutputError(
            f"{path} could not be written ({error.strerror or error}); nothing was changed: "
            f"{advice} or choose another output"
        ) from error
    sync_folder(target.parent)


def lock(descriptor: int) -> bool:
    """Lock an open file against other processes until it is closed; False if one has locked it.

    Where the system knows no such locks, it counts as locked.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sync(path: Path) -> None:
    """Make what was written to a file or a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut, if the file system supports that."""
    with contextlib.suppress(OSError):
        sync(folder)
