"""Targets: frameworks on device classes. One row each, with names and import strings only.

Another package adds a target by an entry point of the group ``resperf.targets`` that refers to a
`Target`::

    [project.entry-points."resperf.targets"]
    "tensorrt/cuda" = "resperf_tensorrt:TARGET"
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from resperf.errors import MissingExtraError, ResperfError, did_you_mean, first_line, silent_stderr

UNKNOWN = "unknown"
"""Class of a device that is in no table."""
_GROUP = "resperf.targets"


@dataclass(frozen=True)
class Target:
    """A framework on a class of devices.

    Attributes
    ----------
    framework : str
        Word of ``--framework``.
    device_class : str
        Such as ``"cpu"`` or ``"cuda"``. As a value of ``--device`` it means the local device.
    lowering : str
        Module that lowers networks for this target (`resperf.lowering.Lowering`); empty if there
        is none yet.
    backend : str
        ``module:class`` that runs layers and networks (`resperf.backends.Backend`); empty if
        bundles are only trained on published times.
    monitor : str
        ``module:class`` that watches the device during measurements; may be empty.
    terms : str
        ``module:name`` of what may cost time on this class of devices
        (`resperf.predictors.terms.work.TermTable`); if no row of a class has one, predictors try
        the terms of all classes.
    packages : tuple of str
        Distributions of the framework, one of which is installed; used to look up its version
        without an import.
    install : str
        Argument of ``pip install`` for the backend.
    asked_package, asked_install : str
        Distribution that the lowering asks which kernels the framework makes, if it is another, and
        the argument of ``pip install`` for it.
    no_such_costs : tuple of str
        Costs of a network beside its layers that do not exist on this target, or that its layers'
        times contain: they are 0, not unknown.
    precisions : tuple of str
        Values of `resperf.settings.Setting.precision` that the lowering knows.
    default_for_class : bool
        Whether a device of this class is measured with this framework, and if it has no bundle is
        answered for it, if nobody names one.
    recycle_layers : int
        Layers after which a measuring process is replaced, since frameworks accumulate memory.
    compiled : tuple of str
        Values of `Setting.compiled`: not compiled, and compiled if it can be.
    build_s : float
        Seconds to build one layer to measure, beside copying its weights: what plans assume. Those
        of TensorRT are from build logs of version 10.
    """

    framework: str
    device_class: str
    lowering: str = ""
    backend: str = ""
    monitor: str = ""
    terms: str = ""
    packages: tuple[str, ...] = ()
    install: str = "resperf[bench]"
    asked_package: str = ""
    asked_install: str = ""
    no_such_costs: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    default_for_class: bool = False
    recycle_layers: int = 2500
    compiled: tuple[str, ...] = ("",)
    build_s: float = 0.06

    @property
    def name(self) -> str:
        """Such as ``"onnxruntime/cpu"``."""
        return f"{self.framework}/{self.device_class}"

    @property
    def on_gpus(self) -> bool:
        """Whether its devices are those that clusters count as GPUs."""
        return self.device_class == "cuda"

    @property
    def shares_steps(self) -> bool:
        """Whether several processes can share a training step."""
        return self.framework == "torch"

    def installed(self) -> dict[str, str]:
        """Return the versions of the `packages` that are installed, in their order."""
        return versions_of(self.packages)

    def load(self, field: str) -> Any:
        """Import the module or class of this row.

        Parameters
        ----------
        field : {"backend", "lowering", "monitor", "terms"}

        Raises
        ------
        ResperfError
            If the row names none.
        MissingExtraError
            If a package is not installed; the message has the ``pip`` line.
        """
        module, _, attribute = str(getattr(self, field)).partition(":")
        if not module:
            raise ResperfError(
                f"target {self.name} has no {field}; targets with one: {names_with(field)}"
            )
        try:
            with silent_stderr():  # TensorFlow logs while it is imported
                imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"{error.name} is not installed; install it with: pip install '{self.install}'"
            ) from error
        try:
            return getattr(imported, attribute) if attribute else imported
        except AttributeError as error:
            raise ResperfError(f"target {self.name}: {error}; fix its {field}") from error


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed, in their order."""
    # Loaded late: it takes long, and most predictions do not need it.
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


DEFAULT = Target(
    framework="onnxruntime",
    device_class="cpu",
    lowering="resperf.lowering.onnxruntime",
    backend="resperf.backends.onnxruntime:OnnxRuntimeBackend",
    monitor="resperf.backends.monitors.cpu:CpuMonitor",
    terms="resperf.predictors.terms.cpu:CPU",
    packages=("onnxruntime", "onnxruntime-gpu"),
)
"""The target if neither a device nor a framework is given."""

_CONTAINED = ("overhead_ms_per_layer", "overhead_ms_per_mb")
"""A GPU's layer alone is launched, and reads and writes the device's memory, as in a network."""
_TORCH_FREE = ("call_ms", "reshape_ms", *_CONTAINED)
"""PyTorch has no session, and its views run nothing on a GPU."""

_CUDA_MONITOR = "resperf.backends.monitors.cuda:CudaMonitor"
_CUDA_TERMS = "resperf.predictors.terms.cuda:CUDA"
_TORCH_BACKEND = "resperf.backends.torch:TorchBackend"
_TORCH_PRECISIONS = ("fp32", "amp", "fp16", "bf16")
_torch = partial(
    Target,
    framework="torch",
    compiled=("eager", "dynamo"),
    lowering="resperf.lowering.torch",
    packages=("torch",),
)
_tensorflow = partial(
    Target,
    framework="tensorflow",
    compiled=("", "xla"),
    lowering="resperf.lowering.tensorflow",
    backend="resperf.backends.tensorflow:TensorFlowBackend",
    recycle_layers=1000,
)

_ROWS = (
    DEFAULT,
    _tensorflow(
        device_class="cpu",
        monitor=DEFAULT.monitor,
        terms=DEFAULT.terms,
        packages=("tensorflow-cpu", "tensorflow"),
        install="resperf[tensorflow]",
        precisions=("fp32", "fp16", "bf16"),
    ),
    # The shipped bundles of GPUs are trained on published times (tools/build.py).
    _tensorflow(
        device_class="cuda",
        monitor=_CUDA_MONITOR,
        terms=_CUDA_TERMS,
        packages=("tensorflow",),
        install="tensorflow[and-cuda]",
        no_such_costs=_CONTAINED,
        precisions=("fp32", "tf32", "fp16", "bf16"),
        build_s=0.5,
    ),
    # Published times only. ROCm has other kernels than CUDA, so that it is a class of its own.
    _torch(
        device_class="cuda",
        backend=_TORCH_BACKEND,
        monitor=_CUDA_MONITOR,
        terms=_CUDA_TERMS,
        install="resperf[torch,cuda]",
        no_such_costs=_TORCH_FREE,
        precisions=(*_TORCH_PRECISIONS, "tf32"),
        default_for_class=True,
    ),
    # The same operators; only their kernels are others.
    _torch(device_class="rocm", no_such_costs=_TORCH_FREE, precisions=_TORCH_PRECISIONS),
    _torch(
        device_class="cpu",
        backend=_TORCH_BACKEND,
        monitor=DEFAULT.monitor,
        terms=DEFAULT.terms,
        install="resperf[torch]",
        precisions=_TORCH_PRECISIONS,
        recycle_layers=1000,
    ),
    Target(
        framework="onnxruntime",
        device_class="cuda",
        lowering="resperf.lowering.onnxruntime_cuda",
        backend="resperf.backends.onnxruntime_cuda:OnnxRuntimeCudaBackend",
        monitor=_CUDA_MONITOR,
        terms=_CUDA_TERMS,
        packages=("onnxruntime-gpu",),
        install="resperf[onnxruntime-gpu]",
        no_such_costs=_CONTAINED,
        precisions=("fp32", "tf32", "fp16"),
    ),
    Target(
        framework="tensorrt",
        device_class="cuda",
        lowering="resperf.lowering.tensorrt",
        backend="resperf.backends.tensorrt:TensorRTBackend",
        monitor=_CUDA_MONITOR,
        terms=_CUDA_TERMS,
        packages=("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        install="resperf[tensorrt]",
        asked_package="tensorrt-rtx-cu13-bindings",
        asked_install="resperf[tensorrt-rtx]",
        # One call enqueues all layers of an engine; its views are no layers, or empty ones.
        no_such_costs=_TORCH_FREE,
        precisions=("fp32", "tf32", "fp16", "bf16", "int8"),
        build_s=4.0,
    ),
    Target(
        framework="synthetic",
        device_class="synthetic",
        lowering="resperf.testing.synthetic",
        backend="resperf.testing.synthetic:SyntheticBackend",
        monitor="resperf.testing.synthetic:SyntheticMonitor",
    ),
)
_LOCAL: Mapping[str, str] = {"cuda": "resperf.nvml:local_device"}
"""Device class -> what looks up a device of this machine by its word: its name and facts."""
_PREFIXES: Mapping[str, str] = {"nvidia-": "cuda"}
"""How names of measured cards begin that are in no table of devices -> their device class."""
_table: dict[tuple[str, str], Target] = {(row.framework, row.device_class): row for row in _ROWS}


def register(row: Target) -> Target:
    """Add a target to this process and to the measuring processes that it starts.

    Raises
    ------
    ResperfError
        If there is another one for this framework and device class.
    """
    registered = _table.setdefault((row.framework, row.device_class), row)
    if registered != row:
        raise ResperfError(f"there is another target {row.name}; only one of both can be installed")
    return row


@cache
def _add_installed() -> None:
    """Add the targets of other installed packages, once."""
    from importlib.metadata import entry_points

    for point in entry_points(group=_GROUP):
        try:
            row = point.load()
        except Exception as error:
            raise ResperfError(
                f"target {point.name} cannot be loaded from {point.value} ({first_line(error)}); "
                "fix or remove the package that provides it"
            ) from error
        register(row)


def targets() -> tuple[Target, ...]:
    """Return all targets, the default first."""
    _add_installed()
    return tuple(_table.values())


def with_terms(device_class: str) -> tuple[Target, ...]:
    """Return the targets that say what costs time on a class; of all classes if none does."""
    if device_class != UNKNOWN and all(row.device_class != device_class for row in _table.values()):
        _add_installed()
    rows = [row for row in _table.values() if row.terms]
    return tuple(row for row in rows if row.device_class == device_class) or tuple(rows)


def frameworks() -> tuple[str, ...]:
    """Return the frameworks of all targets."""
    return tuple(dict.fromkeys(row.framework for row in targets()))


def target(framework: str | None = None, device_class: str | None = None) -> Target:
    """Choose the target to measure with.

    Parameters
    ----------
    framework, device_class : str, optional
        If one is omitted, a matching row with a backend is chosen: of a CPU if there is one, else
        that with `Target.default_for_class`, else the first.

    Raises
    ------
    ResperfError
        If there is no such target; the message lists all targets.
    """
    key = (framework or "", device_class or "")
    if key in _table:
        return _table[key]
    fitting = [row for row in _rows_of(framework) if device_class in (None, row.device_class)]
    if not fitting:
        wanted = f"{framework}/{device_class}" if framework else f"for {device_class!r}"
        raise ResperfError(
            f"no target {wanted}; targets that can be measured: {names_with('backend')}"
        )
    measured = [row for row in fitting if row.backend] or fitting[:1]
    cpu = DEFAULT.device_class
    return min(measured, key=lambda row: (row.device_class != cpu, not row.default_for_class))


def _rows_of(framework: str | None) -> list[Target]:
    rows = [row for row in targets() if framework in (None, row.framework)]
    if not rows:
        raise ResperfError(
            f"no framework {framework!r}{did_you_mean(str(framework), frameworks())}; known "
            f"frameworks: {', '.join(frameworks())}"
        )
    return rows


def fallback_target(framework: str, device_class: str) -> Target:
    """Return the row of a bundle or dataset; if its class has none, the framework's first row.

    Published times may be of devices that resperf cannot measure.

    Raises
    ------
    ResperfError
        If the framework has no row.
    """
    key = (framework, device_class)
    if key not in _table:
        _add_installed()
    return _table[key] if key in _table else _rows_of(framework)[0]


def device_class(word: str, framework: str | None = None) -> str:
    """Return the class in a device's name, such as ``"cuda"`` of ``"cuda:0"``.

    Other names have the class of the framework's only row, of the `DEFAULT` target for its
    framework, else `UNKNOWN`.
    `resperf.devices.device_class` also knows the names of GPUs.
    """
    if local := local_class(word):
        return local
    for prefix, name in _PREFIXES.items():
        if word.casefold().startswith(prefix):
            return name
    if framework == DEFAULT.framework:
        return DEFAULT.device_class
    classes = {row.device_class for row in _table.values() if row.framework == framework}
    return classes.pop() if len(classes) == 1 else UNKNOWN


def local_class(word: str) -> str:
    """Return the class whose local device a name means: ``"cuda"`` of ``"CUDA:0"``; else ``""``.

    Raises
    ------
    ResperfError
        If something else than a number follows it, as in ``"cuda:x"``.
    """
    name = word.casefold().partition(":")[0]
    if all(row.device_class != name for row in _table.values()):
        _add_installed()
    if all(row.device_class != name for row in _table.values()):
        return ""
    device_number(word)
    return name


def local_devices(word: str) -> Callable[[str], tuple[str, Any]] | None:
    """Return what looks up the device of this machine that a word means.

    Returns
    -------
    callable or None
        Turns the word into the device's usual name and its `resperf.platform.Accelerator`. None if
        the word means no accelerator of this machine, or one whose backend describes it itself.
    """
    device_class = word.casefold().partition(":")[0]
    module, _, attribute = _LOCAL.get(device_class, "").partition(":")
    if not module:
        return None
    look_up: Callable[[str], tuple[str, Any]] = getattr(importlib.import_module(module), attribute)
    return look_up


def device_number(word: str) -> int:
    """Return the number in a local device's name: 1 of ``"cuda:1"``, 0 of ``"cuda"``.

    Raises
    ------
    ResperfError
        If something else follows the colon.
    """
    name, colon, number = word.partition(":")
    if colon and not number.isdecimal():
        raise ResperfError(f"device {word!r} must be written like {name}:1")
    return int(number or 0)


def names_with(field: str) -> str:
    """List the targets that have a backend, a lowering or a monitor."""
    return ", ".join(row.name for row in targets() if getattr(row, field))
