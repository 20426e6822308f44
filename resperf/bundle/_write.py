"""Writing a bundle so that the folder is either the whole new one or untouched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resperf.bundle._manifest import (
    MANIFEST,
    SCHEMA_CARRIED,
    SCHEMA_IN_PLACE,
    SCHEMA_VERSION,
)
from resperf.errors import OutputError
from resperf.features import FEATURE_SET_VERSION, columns_of, feature_matrix
from resperf.layers import Layer
from resperf.predictors import LayerPredictor

CANNED_LAYERS = 10


@contextmanager
def replaced_folder(output: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `output` when the block ends without error.

    It lies beside `output`, under a name with a dot in front that nobody gives a bundle.

    Raises
    ------
    OutputError
        If it cannot be written, or if `output` exists and is no bundle, or holds other files
        beside the bundle's own.
    """
    output = output.resolve()
    new, old = (output.with_name(f".{output.name}.resperf-{word}") for word in ("new", "old"))
    try:
        _prepare(output, new, old)
        yield new
        for file in (*new.iterdir(), new):
            _sync(file)
        if output.exists():
            # Minutes may have passed since the first look.
            _refuse_foreign(output)
            output.rename(old)
        new.rename(output)
    except OSError as error:
        if not output.exists() and old.exists():
            old.rename(output)
        raise OutputError(
            f"{output} cannot be written ({error.strerror or error}); what was there is unchanged"
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _prepare(output: Path, new: Path, old: Path) -> None:
    if output.exists() and not (output / MANIFEST).exists() and not _is_empty(output):
        raise OutputError(f"{output} exists and is no bundle; choose another output")
    if old.exists() and not output.exists():
        # An earlier run was killed between its two renames.
        old.rename(output)
    _refuse_foreign(output)
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    new.mkdir(parents=True)


def _refuse_foreign(bundle: Path) -> None:
    """Refuse to replace a folder that holds what is not part of the bundle.

    Raises
    ------
    OutputError
        If it does.
    """
    if not bundle.is_dir():
        return
    try:
        own = set(json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, TypeError, KeyError):
        # A damaged bundle may be replaced, with all networks that may have been its own.
        own = {file.name for file in bundle.glob("*.onnx")}
    foreign = sorted({entry.name for entry in bundle.iterdir()} - own - {MANIFEST})
    if foreign:
        raise OutputError(
            f"{bundle} holds {foreign[0]!r} beside the bundle, which would be lost with it; move "
            "that away or choose another output"
        )


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
    """Write ``bundle.json`` with versions and the checksum of every other file of the folder."""
    files = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
    }
    version = SCHEMA_IN_PLACE if "in_place" in values else SCHEMA_VERSION
    manifest = {
        **values,
        "schema_version": SCHEMA_CARRIED if "carried" in values else version,
        "feature_set_version": FEATURE_SET_VERSION,
        "files": files,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def canned_layers(
    layers: Mapping[str, Sequence[Layer]], predictors: Mapping[str, Mapping[str, LayerPredictor]]
) -> list[dict[str, Any]]:
    """Describe ten layers with their features and predictions, spread over the kinds.

    Parameters
    ----------
    layers : mapping of kind to layers
        Candidates, at least one per kind; the first ones are taken.
    predictors : mapping of kind to mapping of phase to LayerPredictor

    Returns
    -------
    list of dict
        ``key``, ``features`` (those of `feature_matrix`) and ``ms`` by phase. At least one layer
        per kind, so more than ten where there are more kinds.
    """
    per_kind = max(1, -(-CANNED_LAYERS // max(1, len(layers))))
    entries = []
    for kind, candidates in layers.items():
        chosen = list(candidates[:per_kind])
        columns = columns_of(chosen)
        _, matrix = feature_matrix(kind, columns)
        times = {phase: each.values(columns) for phase, each in predictors[kind].items()}
        for row, layer in enumerate(chosen):
            entries.append(
                {
                    "key": layer.key,
                    "features": matrix[row].tolist(),
                    "ms": {phase: float(values[row]) for phase, values in times.items()},
                }
            )
    return entries
