"""Where TensorFlow runs here: a CPU or one GPU, how it compiles, and when it has finished."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

from resperf.backends._process_memory import process_peak
from resperf.errors import ResperfError
from resperf.targets import device_number
from resperf.timing import Sampler, WallClock

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

    def memory(self) -> Callable[[Callable[[], object]], Mapping[str, Sampler]]:
        """Return what samples the memory of a run of what is built next, by quantity.

        Of a GPU its allocator's peak beyond what is given out now; of a CPU the process's.
        """
        if not self.is_gpu:
            process = process_peak()
            return lambda run: {} if process is None else {"process_memory_bytes": process(run)}
        gc.collect()
        before_bytes = self._allocated("current")

        def of_run(run: Callable[[], object]) -> Mapping[str, Sampler]:
            finished = self.finished(run)

            def peak() -> float:
                tf.config.experimental.reset_memory_stats(self._allocator)
                finished()
                return float(self._allocated("peak") - before_bytes)

            return {"peak_memory_bytes": peak}

        return of_run

    def _allocated(self, which: str) -> int:
        return int(tf.config.experimental.get_memory_info(self._allocator)[which])

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
