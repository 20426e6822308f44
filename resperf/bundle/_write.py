"""Writing a bundle so that the folder is either complete or unchanged."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resperf.bundle._bundle import Bundle
from resperf.bundle._manifest import MANIFEST, SCHEMA_VERSION
from resperf.bundle._provenance import merged as merged_provenance
from resperf.errors import OutputError
from resperf.features import FEATURE_SET_VERSION, columns_of_keys, feature_matrix
from resperf.files import sync
from resperf.measurement import layer_kind
from resperf.network import Network, structure_digest
from resperf.platform import Platform
from resperf.predictors import LayerPredictor, Predictor
from resperf.settings import Setting

GOLDEN_LAYERS = 10
_OF_PREDICTORS = (".onnx", ".npz")


@contextmanager
def replaced_folder(output: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `output` when the block ends without error.

    It is created beside `output`, under a hidden name.

    Raises
    ------
    OutputError
        If it cannot be written, or if `output` exists and is no bundle, or contains files that do
        not belong to the bundle.
    """
    output = output.resolve()
    new, old = (output.with_name(f".{output.name}.resperf-{word}") for word in ("new", "old"))
    try:
        _prepare(output, new, old)
        yield new
        for file in (*new.iterdir(), new):
            sync(file)
        if output.exists():
            # Minutes may have passed since the first check.
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
    is_empty = output.is_dir() and not any(output.iterdir())
    if output.exists() and not (output / MANIFEST).exists() and not is_empty:
        raise OutputError(f"{output} exists and is no bundle; choose another output")
    if old.exists() and not output.exists():
        # An earlier run was killed between its two renames.
        old.rename(output)
    _refuse_foreign(output)
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    new.mkdir(parents=True)


def _refuse_foreign(bundle: Path) -> None:
    """Refuse to replace a folder with files that do not belong to the bundle.

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
        # A damaged bundle may be replaced, with all files of its predictors.
        own = {file.name for file in bundle.iterdir() if file.suffix in _OF_PREDICTORS}
    foreign = sorted({entry.name for entry in bundle.iterdir()} - own - {MANIFEST})
    if foreign:
        raise OutputError(
            f"{bundle} contains {foreign[0]!r}, which is not part of the bundle and would be lost; "
            "move it away or choose another output"
        )


def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
    """Write ``bundle.json``, with versions and the checksum of every other file."""
    files = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
    }
    manifest = {
        **values,
        "schema_version": SCHEMA_VERSION,
        "feature_set_version": FEATURE_SET_VERSION,
        "files": files,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def write_calibrated(bundle: Bundle, output: Path) -> Bundle:
    """Write a bundle of which only the manifest has changed, and return its part as written."""
    output = output.resolve()
    with replaced_folder(output) as folder:
        write_changed(bundle, folder)
    return Bundle.load(output).parts[bundle.parts.index(bundle)]


def write_changed(bundle: Bundle, folder: Path) -> None:
    """Write a bundle of which only the manifest has changed."""
    for name in bundle.manifest["files"]:
        shutil.copy(bundle.path / name, folder / name)
    write_manifest(folder, bundle.manifest)


@dataclass(frozen=True)
class GoldenLayer:
    """A layer whose prediction a bundle stores.

    Attributes
    ----------
    key : str
        `resperf.measurement.layer_key`.
    setting, platform : int
        Indices in the settings and platforms of the bundle's part under which it is predicted.
    """

    key: str
    setting: int = 0
    platform: int = 0


def golden_layers(
    layers: Mapping[str, Sequence[GoldenLayer]],
    predictors: Mapping[str, Mapping[str, LayerPredictor]],
    settings: Sequence[Setting] = (),
    platforms: Sequence[Platform] = (),
) -> list[dict[str, Any]]:
    """Describe ten layers with their features and predictions, spread over the kinds.

    Parameters
    ----------
    layers : mapping of kind to sequence of GoldenLayer
        Candidates, at least one per kind as written; the first ones are used.
    predictors : mapping of kind to mapping of quantity to LayerPredictor
    settings, platforms : sequence
        Those of the bundle's part; predictors that do not take several need none.

    Returns
    -------
    list of dict
        ``key``, ``features`` (those of `feature_matrix`) and ``values`` by quantity; ``setting``
        and ``platform`` where they are not the first. At least one layer per kind, so more than ten
        if there are more kinds.
    """
    per_kind = max(1, -(-GOLDEN_LAYERS // max(1, len(layers))))
    entries = []
    for kind, candidates in layers.items():
        for layer in candidates[:per_kind]:
            columns = columns_of_keys([layer.key])
            _, matrix = feature_matrix(layer_kind(kind), columns)
            indices = {"setting": layer.setting, "platform": layer.platform}
            values = {
                name: predictor.predict(
                    columns, settings[layer.setting], platforms[layer.platform]
                )[name].values
                if predictor.many_settings
                else predictor.values(columns)
                for name, predictor in predictors[kind].items()
            }
            entries.append(
                {
                    "key": layer.key,
                    **{name: index for name, index in indices.items() if index},
                    "features": matrix[0].tolist(),
                    "values": {name: float(value) for name, (value,) in values.items()},
                }
            )
    return entries


def golden_networks(
    networks: Sequence[Network],
    predictors: Mapping[str, Predictor],
    setting: Setting,
    platform: Platform,
) -> list[dict[str, Any]]:
    """Describe networks by digest and batch, with their predictions by quantity."""
    predicted = {
        name: predictor.predict(networks, setting, platform)[name].values
        for name, predictor in predictors.items()
    }
    return [
        {
            "name": network.name,
            "digest": structure_digest(network),
            "batch": network.batch,
            "values": {name: float(values[row]) for name, values in predicted.items()},
        }
        for row, network in enumerate(networks)
    ]


def merge_bundles(bundles: Sequence[Path], output: Path) -> None:
    """Merge bundles into one with the settings and platforms of all.

    Parameters
    ----------
    bundles : sequence of Path
        At least one. Parts do not change; their files are renamed.
    output : Path
        Folder; an existing bundle is replaced once the new one is complete.

    Raises
    ------
    BundleError
        If one cannot be read.
    OutputError
        If it cannot be written.
    """
    manifests = [Bundle.load(folder).manifest for folder in bundles]
    merged: dict[str, Any] = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {}, "platforms": {}, "parts": [],
    }  # fmt: skip
    with replaced_folder(output) as target:
        for index, (source, manifest) in enumerate(zip(bundles, manifests, strict=True)):
            for name in manifest["files"]:
                shutil.copy(source / name, target / f"{index}-{name}")
            for part in manifest["parts"]:
                renamed = {**part, "predictors": _with_files(part["predictors"], f"{index}-")}
                for name in ("settings", "platforms"):
                    renamed[name] = [f"{index}-{mark}" for mark in part[name]]
                    merged[name] |= {f"{index}-{m}": manifest[name][m] for m in part[name]}
                merged["parts"].append(renamed)
        merged["provenance"] = merged_provenance([manifest["provenance"] for manifest in manifests])
        write_manifest(target, merged)


def _with_files(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Prefix all file names in predictors."""
    return {
        name: prefix + value if name == "network" and isinstance(value, str)
        else _with_files(value, prefix) if isinstance(value, dict) else value
        for name, value in values.items()
    }  # fmt: skip
