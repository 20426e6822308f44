"""Where TensorFlow runs here: a CPU or one GPU, how it compiles, and when it has finished."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from resperf.errors import ResperfError
from resperf.targets import device_number
from resperf.timing import Sampler, WallClock

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_KIB = 1024


def resident_bytes() -> int | None:
    """Return what the process holds in memory, once freed memory is returned to the system.

    The peak so far is forgotten. None where Linux does not tell, or does not forget it.
    """
    try:
        _tidy()
        return _read("VmRSS")
    except OSError:
        return None


def peak_resident_bytes(run: Callable[[], object], before_bytes: int) -> Sampler:
    """Return the most memory that the process holds during a run beyond what it held before."""

    def peak() -> float:
        _tidy()
        run()
        return float(_read("VmHWM") - before_bytes)

    return peak


def _tidy() -> None:
    gc.collect()
    with suppress(AttributeError):  # of the C library of GNU only
        ctypes.CDLL(None).malloc_trim(0)
    _RESET.write_text(_RESET_PEAK)


def _read(name: str) -> int:
    match = re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text())
    if match is None:
        raise OSError(f"{_STATUS} has no {name}")
    return int(match[1]) * _KIB


_T = TypeVar("_T")
CPU_NAME, GPU_NAME = "/CPU:0", "/GPU:0"
XLA = "xla"


@dataclass(frozen=True)
class Device:
    """A device of TensorFlow's.

    Attributes
    ----------
    name : str
        TensorFlow's: ``"/CPU:0"``. Of several GPUs only the chosen one is visible: ``"/GPU:0"``.
    compiled : str
        ``"graph"``, or ``"xla"`` for functions that XLA compiles.
    """

    name: str = CPU_NAME
    compiled: str = "graph"

    @property
    def is_gpu(self) -> bool:
        """Whether work is queued on a stream instead of being done at once."""
        return self.name != CPU_NAME

    def here(self) -> AbstractContextManager[Any]:
        """Place what is made inside the ``with`` block on this device."""
        context: AbstractContextManager[Any] = tf.device(self.name)
        return context

    def function(self, body: Callable[..., Any]) -> Any:
        """Return a traceable function of this device."""
        return tf.function(body, autograph=False, jit_compile=self.compiled == XLA or None)

    def finished(self, work: Callable[[], _T]) -> Callable[[], _T]:
        """Return the same work, which ends when the device has done it."""
        if not self.is_gpu:
            return work

        def run() -> _T:
            result = work()
            with self.here():
                tf.raw_ops.SyncDevice()
            return result

        return run

    def timed(
        self, work: Callable[[], object], before: Callable[[], object] | None = None
    ) -> WallClock:
        """Time work until the device has done it; what runs before it is not timed."""
        prepare = None if before is None else self.finished(before)
        return WallClock(self.finished(work), before=prepare)

    def held_bytes(self) -> int | None:
        """Return the memory that is held now: the process's, or its share of the GPU's.

        None where nobody can tell.
        """
        if self.is_gpu:
            gc.collect()
            return int(tf.config.experimental.get_memory_info(self._allocator)["current"])
        return resident_bytes()

    def peak_bytes(self, work: Callable[[], object], before_bytes: int) -> Sampler:
        """Return the most memory that is held during work beyond what was held before."""
        if not self.is_gpu:
            return peak_resident_bytes(work, before_bytes)
        run = self.finished(work)

        def peak() -> float:
            tf.config.experimental.reset_memory_stats(self._allocator)
            run()
            peak_bytes = tf.config.experimental.get_memory_info(self._allocator)["peak"]
            return float(peak_bytes - before_bytes)

        return peak

    @property
    def _allocator(self) -> str:
        return self.name.lstrip("/")


def chosen_device(word: str, compiled: str) -> Device:
    """Return the device of a word of the command line, and keep TensorFlow to it.

    Of a GPU, memory is taken as it is needed.

    Parameters
    ----------
    word : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``. Anything else is the CPU's name in a dataset.
    compiled : str

    Raises
    ------
    ResperfError
        If there is no such GPU, or TensorFlow already runs on other devices in this process.
    """
    if word.casefold().partition(":")[0] != "cuda":
        return Device(CPU_NAME, compiled)
    number, gpus = device_number(word), tf.config.list_physical_devices("GPU")
    if number >= len(gpus):
        raise ResperfError(_absent(word, gpus))
    try:
        tf.config.set_visible_devices(gpus[number], "GPU")
        tf.config.experimental.set_memory_growth(gpus[number], True)
    except RuntimeError as error:
        if list(tf.config.get_visible_devices("GPU")) != [gpus[number]]:
            raise ResperfError(
                f"TensorFlow already runs on other devices in this process; start a new process "
                f"to measure on {word}"
            ) from error
    return Device(GPU_NAME, compiled)


def _absent(word: str, gpus: Sequence[Any]) -> str:
    """Say what there is instead of a GPU, and what to do."""
    if gpus:
        last = len(gpus) - 1
        return f"TensorFlow sees no device {word} here; it sees cuda:0" + (
            f" to cuda:{last}" if last else ""
        )
    if not tf.test.is_built_with_cuda():
        return (
            f"TensorFlow {tf.__version__} here is built for CPUs only, so that there is no {word}; "
            "replace it: pip uninstall -y tensorflow-cpu && pip install 'tensorflow[and-cuda]'"
        )
    return (
        f"TensorFlow {tf.__version__} sees no GPU here, so there is no {word}; nvidia-smi must "
        "list it, and its libraries come with: pip install 'tensorflow[and-cuda]'"
    )
