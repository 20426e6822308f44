"""The doctor: what this machine can measure, what is missing, and what its user could improve.

Frameworks are loaded in processes of their own, so that a broken one costs a line, and this process
stays light. What cannot be found out is None, or said to be unknown.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from resperf import disk_cache, nvml
from resperf.backends._facts import FrameworkFacts
from resperf.bundle import user_folder
from resperf.errors import ResperfError, first_line
from resperf.platform import (
    available_bytes,
    clock_governors,
    container_cores,
    container_memory_bytes,
    this_platform,
)
from resperf.records import Record
from resperf.targets import Target, device_class, local_class, local_devices, targets, versions_of
from resperf.units import format_bytes

ASK_S = 90.0
"""Time that a framework may take to load and to say what it finds."""
_OF_TESTS = "synthetic"
"""Class of the device of `resperf.testing`, which no user has."""
MEASURING = {"h5py": "bench", "psutil": "bench", "tqdm": "bench"}
"""Module that every campaign needs -> the extra that installs it."""
LEAST_BYTES = 2 << 30
"""Memory and disk below which a warning is due."""
BUSY_SHARE = 0.25


class Answer(StrEnum):
    """Whether a target can be measured here."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Folder(Record):
    """A folder that resperf writes.

    Attributes
    ----------
    what, path : str
    free_bytes : int or None
    writable : bool
    """

    what: str
    path: str
    free_bytes: int | None
    writable: bool


@dataclass(frozen=True)
class Host(Record):
    """The machine without its accelerators; None is unknown.

    Attributes
    ----------
    processor : str
    cores, logical_cores : int
        Those that this process may use, and all.
    core_limit : float or None
        Cores' time that the container may use.
    memory_bytes : int
    available_bytes : int or None
        Memory that programs can still get.
    hypervisor : str
        Empty if this is no virtual machine.
    governors : tuple of str
        Of the clocks; empty if the system reports none.
    load : float or None
        Programs that ran or waited for a core, on average over the last minute.
    folders : tuple of Folder
    """

    processor: str
    cores: int
    logical_cores: int
    core_limit: float | None
    memory_bytes: int
    available_bytes: int | None
    hypervisor: str
    governors: tuple[str, ...]
    load: float | None
    folders: tuple[Folder, ...]


@dataclass(frozen=True)
class Gpu(Record):
    """A GPU of this machine: `resperf.nvml.GpuFacts` and `GpuState` by name, None if unknown.

    `cuda` is the newest version of CUDA that its driver supports; empty if unknown.
    """

    word: str
    device: str
    cuda: str
    facts: Mapping[str, Any]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Framework(Record):
    """A framework that targets name.

    Attributes
    ----------
    name : str
    packages : mapping of str to str
        Installed distributions and their versions.
    facts : FrameworkFacts or None
        What it says itself.
    problem : str
        Why it could not be asked.
    kernels : str
        Who says which kernels it makes, where another package does.
    """

    name: str
    packages: Mapping[str, str] = field(default_factory=dict)
    facts: FrameworkFacts | None = None
    problem: str = ""
    kernels: str = ""


@dataclass(frozen=True)
class TargetState(Record):
    """Whether a target can be measured here, why, and what ``pip install`` would need."""

    target: str
    measurable: Answer
    why: str
    install: str = ""


@dataclass(frozen=True)
class Examination(Record):
    """All that the doctor found.

    Attributes
    ----------
    host : Host
    gpus : tuple of Gpu
    no_gpu : str
        Why there is none; empty if there are some.
    frameworks : tuple of Framework
    targets : tuple of TargetState
    advice : tuple of str
        What the user could improve, one line each.
    """

    host: Host
    gpus: tuple[Gpu, ...]
    no_gpu: str
    frameworks: tuple[Framework, ...]
    targets: tuple[TargetState, ...]
    advice: tuple[str, ...]


def examine(device: str | None = None) -> Examination:
    """Look at this machine and ask its frameworks.

    Parameters
    ----------
    device : str, optional
        Word of a local device, such as ``"cuda:0"``: only its targets are examined.

    Raises
    ------
    ResperfError
        If `device` means no kind of local device.
    """
    device_classes = sorted({row.device_class for row in targets()} - {_OF_TESTS})
    if device is not None and not local_class(device):
        raise ResperfError(
            f"{device!r} is no device of this machine; use one of {', '.join(device_classes)}"
        )
    shown = device_classes if device is None else [device_class(device)]
    rows = [row for row in targets() if row.device_class in shown]
    host = examine_host()
    looks_up = any(local_devices(row.device_class) for row in rows)
    gpus, no_gpu = _gpus(device) if looks_up else ((), "")
    names = list(dict.fromkeys(row.framework for row in rows))
    with ThreadPoolExecutor(max_workers=max(1, host.cores)) as pool:
        frameworks = {framework.name: framework for framework in pool.map(examine_framework, names)}
    states = tuple(judge(row, frameworks[row.framework], gpus, no_gpu) for row in rows)
    return Examination(
        host,
        gpus,
        no_gpu,
        tuple(frameworks.values()),
        states,
        (*host_advice(host), *gpu_advice(gpus, list(frameworks.values()))),
    )


def examine_host(root: Path = Path("/")) -> Host:
    """Read the facts of this machine; `root` holds ``proc`` and ``sys``."""
    here = this_platform("")
    limit_bytes = container_memory_bytes(root)
    try:
        load: float | None = os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has no such figure
        load = None
    return Host(
        processor=here.processor,
        cores=here.cores,
        logical_cores=os.cpu_count() or here.cores,
        core_limit=container_cores(root),
        memory_bytes=min(filter(None, (here.memory_bytes, limit_bytes)), default=0),
        available_bytes=available_bytes(root),
        hypervisor=here.hypervisor,
        governors=clock_governors(root),
        load=load,
        folders=_folders(),
    )


def _folders() -> tuple[Folder, ...]:
    """Try the folders of datasets, caches, bundles and temporary files."""
    paths: Mapping[str, Callable[[], Path]] = {
        "datasets": lambda: Path("datasets") if Path("datasets").is_dir() else Path.cwd(),
        "caches": lambda: disk_cache.folder_of(""),
        "bundles": user_folder,
        "temporary files": lambda: Path(tempfile.gettempdir()),
    }
    folders = []
    for what, get_path in paths.items():
        try:
            path = get_path().absolute()
        except (OSError, ResperfError) as error:
            folders.append(Folder(what, first_line(error), None, writable=False))
            continue
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                writable = True
        except OSError:
            writable = False
        try:
            free_bytes: int | None = shutil.disk_usage(there).free
        except OSError:
            free_bytes = None
        folders.append(Folder(what, str(path), free_bytes, writable))
    return tuple(folders)


def _gpus(device: str | None) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that CUDA may use, or why there are none; one only if it is named."""
    try:
        numbers = [gpu.number for gpu in nvml.gpus()]
        words = [device] if device is not None and ":" in device else [f"cuda:{n}" for n in numbers]
        gpus = []
        for word in words:
            gpu = nvml.Gpu(word)
            facts = gpu.facts()
            state = {
                name: sorted(value) if isinstance(value, frozenset) else value
                for name, value in vars(gpu.state()).items()
            }
            own = {k: v if v or k == "number" else None for k, v in vars(facts).items()}
            gpus.append(Gpu(word, facts.device, facts.cuda, own, state))
    except ResperfError as error:
        return (), str(error)
    return tuple(gpus), "" if gpus else "this machine has no NVIDIA GPU that CUDA may use"


def examine_framework(name: str) -> Framework:
    """Look up a framework's packages, and ask it in a process of its own if there are any."""
    rows = [row for row in targets() if row.framework == name]
    packages = {name: version for row in rows for name, version in row.installed().items()}
    module = next(filter(None, map(facts_module, rows)), "")
    kernels = next((_kernels(row) for row in rows if row.asked_package), "")
    if not packages or not module:
        return Framework(name, packages, kernels=kernels)
    facts, problem = ask(module)
    return Framework(name, packages, facts, problem, kernels)


def _kernels(row: Target) -> str:
    """Say who tells which kernels a target makes."""
    for package, version in versions_of((row.asked_package,)).items():
        return f"predicted by asking {package} {version}"
    return f"to predict it: pip install '{row.asked_install}'"


def facts_module(row: Target) -> str:
    """Return the module beside a target's backend that has ``facts``; empty if there is none."""
    backend = row.backend.partition(":")[0]
    name = f"{backend}_facts"
    try:
        return name if backend and importlib.util.find_spec(name) else ""
    except ModuleNotFoundError:
        return ""


def ask(module: str, *, timeout_s: float = ASK_S) -> tuple[FrameworkFacts | None, str]:
    """Run a module's ``facts``, which returns `FrameworkFacts`, in a process of its own.

    Returns
    -------
    tuple of (FrameworkFacts or None, str)
        The facts, or in one line why there are none.
    """
    code = (
        f"import json, sys; sys.path[:] = {sys.path!r}; from {module} import facts; "
        "sys.stdout.write('\\n' + json.dumps(facts().to_json()))"
    )
    environment = {**os.environ}
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, errors="replace", timeout=timeout_s, env=environment,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"it gave no answer within {timeout_s:g} s"
    if done.returncode:
        return None, _why(done.returncode, done.stderr)
    try:
        return FrameworkFacts.from_json(json.loads(done.stdout.splitlines()[-1])), ""
    except (ValueError, TypeError, IndexError, AttributeError):
        return None, "its answer could not be read"


def _why(status: int, stderr: str) -> str:
    """Say in one line how a process ended."""
    if status < 0:
        try:
            return f"loading it was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"loading it was ended by signal {-status}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f"it cannot be loaded: {lines[-1][:300]}" if lines else f"it exits with {status}"


def judge(
    row: Target, framework: Framework, gpus: Sequence[Gpu] = (), no_gpu: str = ""
) -> TargetState:
    """Say whether a target can be measured here, why, and what to install."""

    def state(measurable: Answer, why: str, install: str = "") -> TargetState:
        return TargetState(row.name, measurable, why, install and f"pip install '{install}'")

    if not row.backend:
        return state(Answer.NO, "resperf cannot measure it; predictions are of published times")
    if row.packages and not framework.packages:
        return state(Answer.NO, f"{' or '.join(row.packages)} is not installed", row.install)
    if framework.problem:
        installed = ", ".join(f"{name} {what}" for name, what in framework.packages.items())
        return state(Answer.NO, f"{installed}: {framework.problem}", row.install)
    lacking = [name for name in MEASURING if importlib.util.find_spec(name) is None]
    if lacking:
        extra = MEASURING[lacking[0]]
        return state(Answer.NO, f"{', '.join(lacking)} not installed", f"resperf[{extra}]")
    if local_devices(row.device_class) and not gpus:
        return state(Answer.NO, no_gpu)
    facts = framework.facts
    if facts is None:
        if row.packages:
            return state(Answer.UNKNOWN, "what it finds here cannot be asked")
        return state(Answer.YES, "it needs no package")
    if any(device_class(word) == row.device_class for word in facts.devices):
        return state(Answer.YES, f"{row.framework} {facts.version}")
    built = f"built for CUDA {facts.cuda}" if facts.cuda else "not built for it"
    why = f"{row.framework} {facts.version} finds no {row.device_class} device ({built})"
    return state(Answer.NO, "; ".join((why, *facts.notes)), row.install)


def host_advice(host: Host) -> list[str]:
    """Say what disturbs measurements on this machine and can be changed, one line each."""
    advice = []
    if host.governors and set(host.governors) != {"performance"}:
        advice.append(
            f"clock governor {', '.join(host.governors)}: clocks rise late under load; choose "
            "another one with: sudo cpupower frequency-set -g performance"
        )
    if min(host.cores, host.core_limit or host.cores) < 2:
        advice.append("fewer than two cores: whatever else runs disturbs what is measured")
    if host.core_limit is not None and host.core_limit < host.cores:
        advice.append(
            f"the container may use {host.core_limit:g} cores' time, but sees {host.cores}: use "
            f"--threads {max(1, int(host.core_limit))}, or a larger limit"
        )
    if host.load is not None and host.load > BUSY_SHARE * host.cores:
        advice.append(
            f"load {host.load:.1f} on {host.cores} core(s) in the last minute; close other programs"
        )
    if host.available_bytes is not None and host.available_bytes < LEAST_BYTES:
        advice.append(
            f"only {format_bytes(host.available_bytes)} of memory are free; close other programs"
        )
    if host.hypervisor:
        advice.append(
            f"virtual machine ({host.hypervisor}): neighbours may change its speed; rows measured "
            "meanwhile are repeated"
        )
    for folder in host.folders:
        if not folder.writable:
            advice.append(f"{folder.what}: {folder.path} cannot be written; {_ELSEWHERE}")
        elif folder.free_bytes is not None and folder.free_bytes < LEAST_BYTES:
            free = format_bytes(folder.free_bytes)
            advice.append(f"{folder.what}: only {free} are free in {folder.path}")
    return advice


_ELSEWHERE = (
    "change its permissions, or set another place (XDG_CACHE_HOME, RESPERF_HOME, TMPDIR, -o)"
)


def gpu_advice(gpus: Sequence[Gpu], frameworks: Sequence[Framework]) -> list[str]:
    """Say what disturbs measurements on GPUs and can be changed, one line each."""
    advice = []
    for gpu in gpus:
        advice += [f"{gpu.word}: {line}" for line in _of_gpu(gpu)]
        for framework in frameworks:
            built = framework.facts.cuda if framework.facts else ""
            if _major(built) > _major(gpu.cuda) > 0:
                advice.append(
                    f"{gpu.word}: driver {gpu.facts.get('driver')} supports CUDA {gpu.cuda}, but "
                    f"{framework.name} was built for {built}: install a newer driver, or "
                    f"{framework.name} for CUDA {_major(gpu.cuda)}"
                )
    return advice


def _of_gpu(gpu: Gpu) -> list[str]:
    facts, state = gpu.facts, gpu.state
    advice = []
    if facts.get("persistence") == "off":
        advice.append(
            "persistence mode is off: after a pause, the first call loads the driver's state anew; "
            "sudo nvidia-smi -pm 1"
        )
    if state.get("other_processes"):
        advice.append(f"{state['other_processes']} other processes use it; end them or wait")
    reasons = sorted(set(state.get("reasons") or ()) & nvml.THROTTLING)
    if reasons:
        advice.append(f"it is throttled ({', '.join(reasons)}); look at cooling and power supply")
    if facts.get("mig") == "on":
        advice.append("MIG is on: times are those of the instance, not of the whole card")
    clock_mhz = facts.get("clock_mhz")
    advice.append(
        "whether its clocks are locked is unknown; times vary less if they are: "
        f"sudo nvidia-smi --lock-gpu-clocks=MHZ (at most {clock_mhz or 'unknown'}), undone by "
        "--reset-gpu-clocks; resperf never changes them"
    )
    return advice


def _major(cuda: str) -> int:
    """Return the first number of a version; 0 if it is unknown. Minor versions are compatible."""
    first = cuda.partition(".")[0]
    return int(first) if first.isdecimal() else 0
