"""The folder of a campaign for trtexec: ONNX files, the script, and a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from resperf._version import __version__
from resperf.backends.monitors import REFERENCE
from resperf.campaign.plan import Plan, Planned
from resperf.campaign.spec import Campaign
from resperf.campaign.trtexec._models import BLOCK_BYTES, MOST_COPIES, SharedWeights, copies_in
from resperf.devices.estimate import LAUNCH_MS
from resperf.errors import CampaignError, OutputError, UnsupportedError
from resperf.layers import Layer
from resperf.targets import device_number
from resperf.units import MS_PER_S

MANIFEST = "manifest.json"
VERSION = 1
REFERENCE_ID = "reference"
START_S = 2.5
"""Seconds that one call of trtexec takes to start: CUDA's context and TensorRT's libraries."""
WARMUP_MS = 50
ENOUGH = 1.5
"""The folder holds this many times what should fit, so that a faster machine has enough to do."""
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")
_RUN_MS, _FEWEST_RUNS, _MOST_RUNS = 200.0, 10, 200


@dataclass(frozen=True)
class Written:
    """What a folder holds.

    Attributes
    ----------
    folder : Path
    layers, runs : int
        Layers with models, and measurements of them (repeats included).
    refused : int
        Layers that TensorRT's parser has no operator for.
    hours : float
        Predicted duration of all runs.
    bytes, weight_bytes : int
        Size of the folder, and of the weights that the script makes beside it.
    """

    folder: Path
    layers: int
    runs: int
    refused: int
    hours: float
    bytes: int
    weight_bytes: int


def digest_of(campaign: Campaign, seed: int, settings: Mapping[str, Any]) -> str:
    """Return a short name of all that the results of a campaign depend on."""
    values = [campaign.identity(), seed, dict(settings)]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that trtexec has; the device's number is the script's affair.

    Raises
    ------
    CampaignError
        If there is another one.
    """
    known = {name: value for name, value in settings.items() if name != "device"}
    unknown = sorted(set(known) - {"precision"})
    precision = str(known.get("precision") or "fp32")
    if unknown or precision not in PRECISIONS:
        wrong = f"--{unknown[0]}" if unknown else f"--precision {precision}"
        raise CampaignError(
            f"the runner trtexec does not take {wrong}; it takes --precision "
            f"{', '.join(PRECISIONS)}"
        )
    return {"precision": precision}


def write_folder(
    campaign: Campaign,
    planned: Plan,
    folder: Path,
    *,
    seed: int,
    settings: Mapping[str, Any],
    hours: float | None,
) -> Written:
    """Write a campaign for trtexec; a folder of the same campaign gets what it lacks.

    Parameters
    ----------
    campaign : Campaign
    planned : Plan
        Of its layers.
    folder : Path
    seed : int
        That the layers were drawn with.
    settings : mapping
        Keywords as of the backend.
    hours : float, optional
        Time after which a start of the script stops.

    Raises
    ------
    CampaignError
        If the folder holds another campaign, or the campaign has networks.
    OutputError
        If it cannot be written.
    """
    if planned.networks:
        raise CampaignError(
            f"campaign {campaign.name} has networks, which --runner trtexec does not measure; "
            "leave out [networks], and import the exports of a network's engine with "
            "resperf dataset import --format trtexec"
        )
    own = own_settings(settings)
    digest = digest_of(campaign, seed, own)
    _refuse_others(folder, digest)
    items = _fitting(planned, hours)
    models = folder / "models"
    shared, layers = SharedWeights(), []
    try:
        models.mkdir(parents=True, exist_ok=True)
        for place, layer in enumerate(planned.layers[: _count(items)]):
            written = _write_pair(models, f"{place:05}", layer, shared, planned, own, digest)
            layers.append(written)
        _write_pair(models, REFERENCE_ID, REFERENCE, shared, planned, {}, digest)
        blocks = shared.write_blocks(models)
        number = device_number(str(settings.get("device", "")))
        _write_script(folder, campaign, own, digest, number, hours, blocks)
        runs = _write_runs(folder, items, layers, planned)
        manifest = {
            "trtexec_campaign": VERSION, "digest": digest, "campaign": campaign.to_json(),
            "seed": seed, "settings": own, "warmup_ms": WARMUP_MS, "resperf": __version__,
            "reference_copies": MOST_COPIES, "layers": layers,
            "runs": [[item.layer.key, item.repeat] for item in items],
        }  # fmt: skip
        (folder / MANIFEST).write_text(json.dumps(manifest))
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}; choose another -o") from error
    refused = sum(bool(layer["refused"]) for layer in layers)
    return Written(
        folder,
        len(layers) - refused,
        runs,
        refused,
        runs * seconds_per_run(planned) / 3600,
        sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        sum(blocks.values()) * BLOCK_BYTES,
    )


def seconds_per_run(planned: Plan) -> float:
    """Predict how long both calls of trtexec take; the second finds its kernels timed."""
    return 2 * START_S + planned.target.build_s + 4 * (WARMUP_MS + _RUN_MS) / MS_PER_S


def _fitting(planned: Plan, hours: float | None) -> Sequence[Planned]:
    if hours is None:
        return planned.items
    return planned.items[: max(10, int(ENOUGH * hours * 3600 / seconds_per_run(planned)))]


def _count(items: Sequence[Planned]) -> int:
    return sum(item.repeat == 0 for item in items)


def _refuse_others(folder: Path, digest: str) -> None:
    path = folder / MANIFEST
    if path.exists():
        known = read_manifest(folder)["digest"]
        if known != digest:
            raise CampaignError(
                f"{folder} holds another campaign, seed or precision; choose another -o, or "
                "remove that folder"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty; choose another -o, or remove that folder")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a folder.

    Raises
    ------
    CampaignError
        If there is none, or it is damaged.
    """
    path = folder / MANIFEST
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if found["trtexec_campaign"] != VERSION:
            raise ValueError(f"version {found['trtexec_campaign']!r}")
    except FileNotFoundError as error:
        raise CampaignError(
            f"{folder} holds no campaign for trtexec: {path.name} is missing; write one with "
            "resperf bench CAMPAIGN --runner trtexec -o FILE.h5, or name the folder that it wrote"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CampaignError(
            f"{path} is damaged ({error}); copy it again from where resperf wrote it"
        ) from error
    return found


def _write_pair(
    folder: Path,
    name: str,
    layer: Layer,
    shared: SharedWeights,
    planned: Plan,
    own: Mapping[str, Any],
    digest: str,
) -> dict[str, Any]:
    """Write both models of a layer, or why there are none."""
    copies = MOST_COPIES if name == REFERENCE_ID else copies_in(layer, _one_ms(planned, layer))
    found = {"id": name, "kind": layer.kind, "fields": layer.fields(), "copies": copies}
    int8 = own.get("precision") == "int8"
    try:
        for word, count in (("one", 1), ("many", copies)):
            model = shared.model(layer, count, f"{digest}.{name}", int8=int8)
            (folder / f"{name}-{word}.onnx").write_bytes(model.SerializeToString())
    except UnsupportedError as error:
        return {**found, "refused": str(error)}
    return {**found, "refused": ""}


def _one_ms(planned: Plan, layer: Layer) -> float:
    return LAUNCH_MS + planned.layer_ms(layer)


def _write_runs(
    folder: Path, items: Sequence[Planned], layers: Sequence[Mapping[str, Any]], planned: Plan
) -> int:
    """Write the list of runs: name, model, and runs of one and of several copies."""
    of_key = {layer.key: place for place, layer in enumerate(planned.layers[: len(layers)])}
    lines = []
    for item in items:
        written = layers[of_key[item.layer.key]]
        if not written["refused"]:
            one_ms = _one_ms(planned, item.layer)
            counts = [_iterations(one_ms), _iterations(one_ms * written["copies"])]
            name = run_name(written["id"], item.repeat)
            lines.append(f"{name} {written['id']} {counts[0]} {counts[1]}\n")
    (folder / "runs.txt").write_text("".join(lines))
    return len(lines)


def _iterations(run_ms: float) -> int:
    return max(_FEWEST_RUNS, min(round(_RUN_MS / run_ms), _MOST_RUNS))


def run_name(layer: str, repeat: int) -> str:
    """Return the name of the files of a measurement."""
    return f"{layer}r{repeat}" if repeat else layer


def _write_script(
    folder: Path,
    campaign: Campaign,
    own: Mapping[str, Any],
    digest: str,
    number: int,
    hours: float | None,
    blocks: Mapping[str, int],
) -> None:
    text = resources.files("resperf.campaign.trtexec").joinpath("run.sh").read_text()
    words = {
        "NAME": campaign.name,
        "DIGEST": digest,
        "HOURS": f"{hours or 0:g}",
        "DEVICE": str(number),
        "PRECISION": str(own["precision"]),
        "TIMEOUT_S": f"{campaign.run.timeout_s:.0f}",
        "WARMUP_MS": str(WARMUP_MS),
        "WEIGHTS": " ".join(f"{file}={count}" for file, count in sorted(blocks.items())),
    }
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    script = folder / "run.sh"
    script.write_text(text)
    script.chmod(0o755)
