"""Seal of a dataset file: a line of text with the SHA-256 of the HDF5 part that follows.

A damaged HDF5 file can crash the whole process, so the seal is checked before HDF5 opens the file.
It is in the file's user block, which HDF5 libraries skip.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

SEAL_BYTES = 512
"""Size of the user block; HDF5 requires a power of two of at least 512."""

_TEXT = "resperf dataset: HDF5 from byte {offset} on, SHA-256 of that part: {digest}\n"
_PATTERN = re.compile(rb"resperf dataset: HDF5 from byte (\d+) on, SHA-256 [^:]*: ([0-9a-f]{64})\n")


def seal(image: bytes) -> bytes:
    """Prepend the seal to a file's image, which HDF5 returns without user block."""
    text = _TEXT.format(offset=SEAL_BYTES, digest=hashlib.sha256(image).hexdigest()).encode()
    return text.ljust(SEAL_BYTES, b"\0") + image


def is_intact(path: Path) -> bool:
    """Return whether a file matches its seal; a file without one (of other tools) passes."""
    with path.open("rb") as file:
        match = _PATTERN.match(file.read(SEAL_BYTES))
        if match is None:
            return True
        file.seek(int(match[1]))
        return hashlib.file_digest(file, "sha256").hexdigest() == match[2].decode()
