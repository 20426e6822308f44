"""Find network files, shipped ones by their names, and name the networks in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from resperf.errors import NetworkError, did_you_mean
from resperf.files import shipped_files


def shipped_networks() -> Mapping[str, Path]:
    """Return the shipped reference networks by name."""
    return {path.stem: path for path in shipped_files("models/networks", "*.onnx")}


def network_file(path: Path) -> Path:
    """Return a network's file, or that of the shipped network of this name: ``resnet50``.

    A file in the current folder comes first.

    Raises
    ------
    NetworkError
        If a name without folder is neither; names the shipped ones that are spelt alike.
    """
    if path.exists() or path.parent != Path():
        return path
    shipped = shipped_networks()
    if path.name in shipped:
        return shipped[path.name]
    raise NetworkError(
        f"no file {path}{did_you_mean(path.stem, shipped)}; give the path of an ONNX file, or the "
        f"name of a shipped network: {', '.join(sorted(shipped))}"
    )


def network_files(paths: Sequence[Path]) -> list[Path]:
    """Return the ONNX files at these paths; those of a folder are sorted by name.

    Raises
    ------
    NetworkError
        If a path does not exist or a folder holds none.
    """
    onnx_files: list[Path] = []
    for path in paths:
        files = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
        if not files or not files[0].exists():
            raise NetworkError(f"no ONNX file at {path}; give a file or a folder of them")
        onnx_files += files
    return onnx_files


def network_names(paths: Sequence[Path]) -> Mapping[Path, str]:
    """Name each network after its file, with the folder where two files have the same name."""
    counts = Counter(path.stem for path in paths)
    return {
        path: path.stem if counts[path.stem] == 1 else str(path.with_suffix("")) for path in paths
    }
