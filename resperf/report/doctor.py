"""What `resperf doctor` found, as text."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent
from typing import Any

from resperf.report.tables import counted, table
from resperf.units import format_bytes
from resperf.workflows.doctor import Examination, Framework, Gpu, Host

UNKNOWN = "unknown"


def doctor_text(examination: Examination) -> str:
    """Lay out an examination: devices, frameworks, targets, advice."""
    frameworks = [
        f"{framework.name}: {_framework(framework)}" for framework in examination.frameworks
    ]
    parts = ["devices", _devices(examination), "frameworks", "\n".join(frameworks), "targets"]
    headings = ("target", "can be measured", "why", "what to install")
    rows = [
        [target.target, target.measurable, target.why, target.install]
        for target in examination.targets
    ]
    parts.append(table(headings, rows, text=headings))
    parts += ["what you could improve", "\n".join(examination.advice) or "nothing was found"]
    titled = zip(parts[::2], parts[1::2], strict=True)
    return "\n\n".join(f"{title}\n{indent(text, '  ')}" for title, text in titled)


def _devices(examination: Examination) -> str:
    lines = [f"cpu: {_host(examination.host)}"]
    lines += [f"{gpu.word}: {_gpu(gpu)}" for gpu in examination.gpus]
    if examination.no_gpu:
        lines.append(f"cuda: {examination.no_gpu}")
    for folder in examination.host.folders:
        free = UNKNOWN if folder.free_bytes is None else format_bytes(folder.free_bytes)
        state = f"{free} free" if folder.writable else "cannot be written"
        lines.append(f"{folder.what}: {folder.path} ({state})")
    return "\n".join(lines)


def _host(host: Host) -> str:
    cores = counted(host.cores, "usable core")
    if host.logical_cores != host.cores:
        cores += f" of {host.logical_cores}"
    if host.core_limit is not None:
        cores += f", container limit {host.core_limit:g}"
    free = UNKNOWN if host.available_bytes is None else format_bytes(host.available_bytes)
    machine = f"virtual machine ({host.hypervisor})" if host.hypervisor else "no virtual machine"
    return (
        f"{host.processor or UNKNOWN}, {cores}, {format_bytes(host.memory_bytes)} of memory "
        f"({free} free), {machine}, clock governor {', '.join(host.governors) or UNKNOWN}"
    )


def _gpu(gpu: Gpu) -> str:
    facts: Mapping[str, Any] = {k: UNKNOWN if v is None else v for k, v in gpu.facts.items()}
    size = gpu.facts.get("memory_bytes")
    used, processes = gpu.state.get("used_memory_bytes"), gpu.state.get("other_processes")
    return (
        f"{facts['name']} (predict calls it {gpu.device}), driver {facts['driver']}, CUDA up to "
        f"{gpu.cuda or UNKNOWN}, {UNKNOWN if size is None else format_bytes(size)} of memory "
        f"({UNKNOWN if used is None else format_bytes(used)} used), MIG {facts['mig']}, ECC "
        f"{facts['ecc']}, persistence mode {facts['persistence']}, other processes "
        f"{UNKNOWN if processes is None else processes}"
    )


def _framework(framework: Framework) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in framework.packages.items())
    if framework.facts is None:
        own = (framework.problem and f"{packages}: {framework.problem}") or packages
        return "; ".join(filter(None, (own or "no package to measure it", framework.kernels)))
    says = [f"devices {', '.join(framework.facts.devices) or 'none'}"]
    says += [f"built for CUDA {framework.facts.cuda}"] * bool(framework.facts.cuda)
    return "; ".join(filter(None, (packages, *says, *framework.facts.notes, framework.kernels)))
