"""Which network files somebody means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from resperf.errors import NetworkError


def network_files(paths: Sequence[Path]) -> list[Path]:
    """Return ONNX files, those of folders included, by name.

    Raises
    ------
    NetworkError
        If a path does not exist or a folder holds none.
    """
    found: list[Path] = []
    for path in paths:
        files = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
        if not files or not files[0].exists():
            raise NetworkError(f"no ONNX file at {path}; give a file or a folder of them")
        found += files
    return found
