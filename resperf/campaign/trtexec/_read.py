"""Rows of a campaign from what trtexec exported on another machine."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from resperf.backends.monitors import REFERENCE, Reading
from resperf.backends.monitors.cuda import POWER_CAP, SHARED, CudaMonitor
from resperf.campaign.journal import row_identity
from resperf.campaign.result import CampaignResult
from resperf.campaign.spec import Campaign
from resperf.campaign.trtexec._folder import (
    MANIFEST,
    REFERENCE_ID,
    digest_of,
    own_settings,
    read_manifest,
    run_name,
)
from resperf.dataset.importing.engine_layers import is_view
from resperf.dataset.importing.trtexec import Engine, EngineLayer, read_exports, version_of
from resperf.errors import CampaignError, DatasetError, UnsupportedError
from resperf.layers import Layer, kind_of
from resperf.measurement import MAX_SAMPLES, THROTTLED, Measurement, Samples, Status, StopReason
from resperf.nvml import REASONS, THROTTLING, GpuFacts
from resperf.platform import Platform
from resperf.settings import Setting
from resperf.timing import capped, drifts
from resperf.timing.statistics import relative_half_width

MISSING = "missing"
"""How a reading ends where layers have no results yet."""
TIMED_OUT, KILLED = 124, 137
_COPY = re.compile(r"\bcopy(\d+)\.")
_NO_MEMORY = re.compile(r"out ?of ?memory|could not be allocated|memoryallocation", re.IGNORECASE)
_NOT_SUPPORTED = re.compile(
    r"unsupported|not supported|no importer|no op parser|could not find any implementation"
    r"|failed to parse",
    re.IGNORECASE,
)
_ERROR = re.compile(r"\[E\] ?(.+)")


def read_results(
    campaign: Campaign,
    folder: Path,
    output: Path,
    *,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> CampaignResult:
    """Add what trtexec measured so far to a dataset; results that are there already are skipped.

    Parameters
    ----------
    campaign : Campaign
    folder : Path
        As `write_folder` wrote it, with the ``results`` of the other machine, or these alone.
    output : Path
        The dataset (HDF5).
    seed : int, optional
    settings : mapping, optional
        If given, must be those of the folder.

    Returns
    -------
    CampaignResult
        Its `reason` is ``"complete"``, or ``"missing"`` where layers have no results yet.

    Raises
    ------
    CampaignError
        If there are no results, or they are of another campaign.
    DatasetError
        If some results cannot be used; all others are in the dataset.
    """
    from resperf.campaign.store import Store

    results = _Results.of(folder)
    manifest = results.manifest
    own = own_settings(settings or {}) if settings else manifest["settings"]
    seed = manifest["seed"] if seed is None else seed
    if digest_of(campaign, seed, own) != manifest["digest"]:
        what = (
            "another campaign"
            if campaign.differences(manifest["campaign"])
            else ("another seed or precision")
        )
        raise CampaignError(
            f"{results.folder} is of {what} than {campaign.name} as it was asked for; name the "
            "campaign, seed and precision that the folder was written with"
        )
    platform, setting = results.platform, results.setting
    monitor = CudaMonitor()
    store = Store(output, campaign, seed=seed, setting=setting, platform=platform, monitor=monitor)
    complete = False
    try:
        known = {row_identity(row) for row in (*store.settled, *store.rows)}
        times = {at for at, _ in store.readings.readings}
        wrong: list[str] = []
        for reading in results.readings(wrong):
            if reading.at not in times:
                store.add_reading(reading)
        added = missing = 0
        for run in results.runs:
            if (run.layer.key, run.repeat) in known:
                continue
            try:
                row = results.row(run)
            except DatasetError as error:
                wrong.append(str(error))
                continue
            if row is None:
                missing += 1
            else:
                store.add_row(row)
                added += 1
        store.compact()
        complete = not missing and not wrong
    finally:
        store.close(complete=complete)
    if wrong:
        raise DatasetError(
            f"{len(wrong)} results cannot be used, the first: {wrong[0]} (all others are in "
            f"{output}); copy them again, or remove their .done files and run run.sh again, and "
            "repeat this command"
        )
    rows = store.best()
    failures = Counter(row.detail for row in rows if row.status is not Status.OK)
    return CampaignResult(
        path=output,
        reason="complete" if complete else MISSING,
        rows=len(rows),
        statuses=Counter(str(row.status) for row in rows),
        measured=added,
        again=0,
        noisy=sum(row.noisy for row in rows),
        elapsed_s=math.fsum(row.duration_s for row in rows),
        overhead_s=0.0,
        notes=(f"{missing} measurements have no results yet",) if missing else (),
        failure=failures.most_common(1)[0][0] if failures else "",
    )


@dataclass(frozen=True)
class _Run:
    """One measurement of the manifest."""

    name: str
    layer: Layer
    repeat: int
    copies: int
    refused: str = ""


@dataclass(frozen=True)
class _Results:
    """The results folder of a GPU machine."""

    folder: Path
    manifest: Mapping[str, Any]
    machine: Mapping[str, str]

    @classmethod
    def of(cls, given: Path) -> _Results:
        folder = given / "results" if (given / "results").is_dir() else given
        if folder == given and (given / "run.sh").exists():
            raise CampaignError(
                f"{given} has no results yet: run sh run.sh there on the GPU machine, and copy its "
                "folder results back"
            )
        manifest = read_manifest(folder)
        try:
            lines = (folder / "machine.txt").read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CampaignError(
                f"{folder} has no machine.txt, which run.sh writes; copy the whole folder again"
            ) from error
        machine = dict(line.split("=", 1) for line in lines if "=" in line)
        if machine.get("digest") != manifest["digest"]:
            raise CampaignError(
                f"{folder} mixes results of two campaigns: {MANIFEST} and machine.txt differ; "
                "copy them again"
            )
        return cls(folder, manifest, machine)

    @cached_property
    def runs(self) -> tuple[_Run, ...]:
        """All measurements, in the campaign's order."""
        made = [(kind_of(each["kind"]).from_fields(each["fields"]), each)
                for each in self.manifest["layers"]]  # fmt: skip
        of_key = {layer.key: (layer, each) for layer, each in made}
        found = []
        for key, repeat in self.manifest["runs"]:
            layer, each = of_key[key]
            name = run_name(each["id"], repeat)
            found.append(_Run(name, layer, repeat, each["copies"], each["refused"]))
        return tuple(found)

    @cached_property
    def setting(self) -> Setting:
        """As the backend in process would say it."""
        return Setting(
            framework="tensorrt",
            framework_version=version_of(self.machine.get("trtexec_version", "")),
            precision=self.manifest["settings"]["precision"],
            options={"optimization_level": "3", "workspace_mib": "all", "aux_streams": "0"},
        )

    @cached_property
    def platform(self) -> Platform:
        """The GPU machine."""
        known = self.machine
        facts = GpuFacts(
            number=0,
            name=known.get("name") or self._logged_device(),
            driver=known.get("driver_version"),
            compute_capability=known.get("compute_cap"),
            memory_bytes=_number(known.get("memory.total"), 1 << 20),
            clock_mhz=_number(known.get("clocks.max.sm")),
            memory_clock_mhz=_number(known.get("clocks.max.mem")),
            power_limit_w=_number(known.get("power.limit")),
        )
        return Platform(
            device=facts.device,
            processor=known.get("processor", ""),
            cores=_number(known.get("cores")) or 0,
            memory_bytes=round((_number(known.get("memory_kb")) or 0) / (1 << 20)) * (1 << 30),
            system=known.get("system", ""),
            accelerators=(facts.accelerator,),
        )

    def _logged_device(self) -> str:
        """Return the GPU that trtexec names, where there is no nvidia-smi."""
        for path in sorted(self.folder.glob("*-one.log")):
            found = re.search(r"Selected Device: *(.+)", path.read_text(errors="replace"))
            if found:
                return found[1].strip()
        raise CampaignError(
            f"{self.folder} does not say which GPU was measured; run run.sh until a layer is done"
        )

    def readings(self, wrong: list[str]) -> Iterator[Reading]:
        """Yield readings of the reference layer."""
        number = 1
        while (done := self.folder / f"reference-{number}.done").exists():
            run = _Run(done.stem, REFERENCE, 0, self.manifest["reference_copies"])
            try:
                row = self._measured(run, REFERENCE_ID)
                if row.status is Status.OK:
                    middle = row.started_at + row.duration_s / 2
                    yield Reading(middle, row.value("execution_ms"), self._numbers(run))
            except DatasetError as error:
                wrong.append(str(error))
            number += 1

    def row(self, run: _Run) -> Measurement | None:
        """Return the row of a measurement; None if it has no result yet.

        Raises
        ------
        DatasetError
            If its files are damaged or of another engine.
        """
        if run.refused:
            return self._empty(run, Status.UNSUPPORTED, run.refused)
        if (self.folder / f"{run.name}.done").exists():
            return self._measured(run, run.name.partition("r")[0])
        if (failed := self.folder / f"{run.name}.failed").exists():
            return self._failed(run, failed)
        return None

    def _empty(self, run: _Run, status: Status, detail: str) -> Measurement:
        return Measurement(
            subject=run.layer, status=status, detail=detail, repeat=run.repeat,
            setting=self.setting, platform=self.platform,
        )  # fmt: skip

    def _failed(self, run: _Run, path: Path) -> Measurement:
        first, _, log = path.read_text(errors="replace").partition("\n")
        try:
            began, ended, code, _ = first.split()
            times, status_code = (float(began), float(ended)), int(code)
        except ValueError as error:
            raise DatasetError(f"{path} is cut short") from error
        errors = _ERROR.findall(log)
        words = next(iter(errors), log.strip().splitlines()[-1] if log.strip() else "")
        if status_code == TIMED_OUT:
            status, words = Status.TIMEOUT, "trtexec took longer than TIMEOUT_S of run.sh"
        elif status_code == KILLED or any(map(_NO_MEMORY.search, errors)):
            status = Status.OUT_OF_MEMORY
        elif any(map(_NOT_SUPPORTED.search, errors)):
            status = Status.UNSUPPORTED
        else:
            status = Status.CRASHED
        detail = words[:300] or f"trtexec ended with status {status_code}"
        row = self._empty(run, status, detail)
        return replace(row, started_at=times[0], duration_s=times[1] - times[0])

    def _measured(self, run: _Run, layer_id: str) -> Measurement:
        done = self.folder / f"{run.name}.done"
        try:
            began, ended = map(float, done.read_text().split())
        except ValueError as error:
            raise DatasetError(f"{done} is cut short") from error
        one, many = (self._engine(run, layer_id, word) for word in ("one", "many"))
        row = replace(self._empty(run, Status.OK, ""), started_at=began, duration_s=ended - began)
        try:
            for engine, copies in ((one, 1), (many, run.copies)):
                check_copies(engine, copies)
            samples, isolated_ms = _phases(one, many, run.copies)
        except UnsupportedError as error:
            return replace(row, status=Status.UNSUPPORTED, detail=str(error))
        flags = self._flags(run)
        if samples["execution_ms"].drift:
            flags = ("drift", *flags)
        sampled_s = math.fsum((*one.compute_ms, *many.compute_ms)) / 1000
        return replace(
            row,
            samples=samples,
            isolated_ms=isolated_ms,
            session_ms=0.0,
            overhead_s=max(row.duration_s - sampled_s, 0.0),
            flags=flags,
        )

    def _engine(self, run: _Run, layer_id: str, word: str) -> Engine:
        """Read the exports of one engine, without the runs of the warm-up."""
        paths = []
        for what in ("layers", "profile", "times"):
            plain = self.folder / f"{run.name}-{word}.{what}.json"
            packed = plain.with_name(plain.name + ".gz")
            paths.append(packed if packed.exists() else plain)
        engine = read_exports(paths)
        name = f".{self.manifest['digest']}.{layer_id}"
        bound = [each for each in engine.bindings if _COPY.match(each) and each.endswith(name)]
        if not bound:
            raise DatasetError(
                f"{paths[0]} is of another engine: no input or output ends in {name}"
            )
        for column in (engine.h2d_ms, engine.compute_ms, engine.d2h_ms):
            if not column and (word == "one" or column is engine.compute_ms):
                raise DatasetError(f"{paths[2]} has no times of copies to and from the device")
        first = _warmups(paths[2], self.manifest["warmup_ms"])
        return replace(
            engine,
            h2d_ms=engine.h2d_ms[first:],
            compute_ms=engine.compute_ms[first:],
            d2h_ms=engine.d2h_ms[first:],
        )

    def _states(self, run: _Run) -> list[list[str]]:
        path = self.folder / f"{run.name}.state"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [[cell.strip() for cell in line.split(",")] for line in lines]

    def _flags(self, run: _Run) -> tuple[str, ...]:
        """Return the states of the GPU before or after a measurement."""
        found = set()
        for *_, reasons, others in self._states(run):
            bits = int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else 0
            if any(bits & REASONS[each] for each in THROTTLING):
                found.add(THROTTLED)
            if bits & REASONS[POWER_CAP]:
                found.add(POWER_CAP)
            if others.isdigit() and int(others):
                found.add(SHARED)
        return tuple(sorted(found))

    def _numbers(self, run: _Run) -> dict[str, float]:
        """Return clocks, heat and power right after a run."""
        names = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")
        cells = (self._states(run) or [[]])[-1]
        found = {}
        for name, cell in zip(names, cells, strict=False):
            if re.fullmatch(r"[\d.]+", cell):
                found[name] = float(cell)
        return found


def _number(text: str | None, unit: int = 1) -> int | None:
    """Return a number that nvidia-smi or the system wrote; None for ``[N/A]``."""
    try:
        return round(float(text) * unit) if text else None
    except ValueError:
        return None


def _warmups(path: Path, warmup_ms: float) -> int:
    """Count the first runs of a trace that began during the warm-up: some versions export them."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    trace = json.loads(text)
    early = sum(float(each.get("startComputeMs", math.inf)) < warmup_ms for each in trace)
    return early if early < len(trace) else 0


def check_copies(engine: Engine, copies: int) -> None:
    """Check in an engine's layers that every copy runs by itself.

    Raises
    ------
    UnsupportedError
        If copies were merged, one is missing, or they run on several streams.
    """
    working = [layer for layer in engine.layers if not is_view(layer) and not _is_added(layer)]
    found: set[int] = set()
    for layer in working:
        names = (*layer.nodes, *(each.name for each in (*layer.inputs, *layer.outputs)))
        mine = {int(number) for name in names for number in _COPY.findall(name)}
        if len(mine) > 1:
            raise UnsupportedError(
                f"TensorRT merged copies {', '.join(map(str, sorted(mine)))} into one layer "
                f"({layer.name[:80]}), so that a copy has no time of its own"
            )
        found |= mine
    missing = set(range(copies)) - found
    if missing:
        raise UnsupportedError(
            f"{len(missing)} of {copies} copies are not among the engine's layers: TensorRT "
            "computes them beforehand, or hides them in another layer"
        )
    streams = {str(layer.parameters.get("StreamId", 0)) for layer in working}
    if len(streams) > 1:
        raise UnsupportedError(f"TensorRT ran the copies on {len(streams)} streams at once")


def _is_added(layer: EngineLayer) -> bool:
    """Whether TensorRT added a layer to change the format of a tensor."""
    return layer.type == "Reformat" and not layer.nodes


def _phases(one: Engine, many: Engine, copies: int) -> tuple[dict[str, Samples], float]:
    """Return all quantities of a layer, and the time of one copy alone.

    Execution is the slope between both engines, without the share of it that the profile has for
    the formats which TensorRT changes at the engine's ends: trtexec fixes them to row-major.
    """
    alone_ms, together_ms = median(one.compute_ms), median(many.compute_ms)
    slope_ms = (together_ms - alone_ms) / (copies - 1)
    added_ms = math.fsum(v.ms for v in many.layers if _is_added(v) and not math.isnan(v.ms))
    share = added_ms / many.layers_ms if added_ms else 0.0
    offset_ms = alone_ms + (copies - 1) * share * slope_ms
    if slope_ms <= 0 or share >= 1:
        raise UnsupportedError(
            f"{copies} copies take no longer than one ({together_ms:g} and {alone_ms:g} ms), so "
            "that a copy has no time of its own"
        )
    own_ms = (many.layers_ms - added_ms) / copies
    return {
        "preprocess_ms": _samples(one.h2d_ms),
        "execution_ms": _samples(
            many.compute_ms, offset=offset_ms, divisor=copies - 1, copies=copies
        ),
        "postprocess_ms": _samples(one.d2h_ms),
        "profiled_ms": _samples((own_ms,), copies=copies),
        "relayout_ms": _samples((added_ms / copies,), copies=copies),
    }, alone_ms


def _samples(
    values: Sequence[float], *, offset: float = 0.0, divisor: float = 1.0, copies: int = 1
) -> Samples:
    scaled = [(value - offset) / divisor for value in values]
    precise = relative_half_width(scaled, 0.95) < 0.02
    return Samples(
        values=capped(scaled, MAX_SAMPLES),
        taken=len(scaled),
        warmups=0,
        stop_reason=StopReason.PRECISE if precise else StopReason.BUDGET,
        drift=drifts(scaled),
        copies=copies,
        divisor=divisor,
        offset=offset,
    )
