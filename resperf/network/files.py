"""Find network files and name the networks in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from resperf.errors import NetworkError


def network_files(paths: Sequence[Path]) -> list[Path]:
    """Return the ONNX files at these paths; those of a folder are sorted by name.

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


def network_names(paths: Sequence[Path]) -> Mapping[Path, str]:
    """Name each network after its file, with the folder where two files have the same name."""
    counts = Counter(path.stem for path in paths)
    return {
        path: path.stem if counts[path.stem] == 1 else str(path.with_suffix("")) for path in paths
    }
