"""CUDA for the TensorRT backend: one stream, events, device memory and pinned host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from cuda.bindings import runtime

from resperf.errors import MeasurementError, ResperfError
from resperf.targets import device_number

_NO_DEVICE = ("cudaErrorNoDevice", "cudaErrorInsufficientDriver", "cudaErrorInitializationError")
"""What CUDA says where no GPU can be used: none is there, or its driver is missing or too old."""
_EMPTY_BYTES = 256
"""Allocated for empty tensors, which need an address too."""


class Cuda:
    """One GPU of this machine and one stream on it, on which everything runs in order.

    Parameters
    ----------
    device : str
        Such as ``"cuda:0"``.

    Raises
    ------
    ResperfError
        If there is no such GPU, or the driver is older than the CUDA runtime.
    """

    def __init__(self, device: str) -> None:
        number = device_number(device)
        count = _count()
        if number >= count:
            have = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0 only"
            raise ResperfError(f"there is no device {device}; this machine has {have}")
        checked(runtime.cudaSetDevice(number))
        stream = checked(runtime.cudaStreamCreate())
        self._stream = stream
        self.stream = int(stream)
        self._start, self._end = (checked(runtime.cudaEventCreate()) for _ in range(2))

    def allocate(self, size_bytes: int) -> int:
        """Return the address of device memory.

        Raises
        ------
        MemoryError
            If there is not enough.
        """
        return int(checked(runtime.cudaMalloc(max(size_bytes, _EMPTY_BYTES))))

    def free(self, address: int) -> None:
        """Free device memory."""
        checked(runtime.cudaFree(address))

    def to_device(self, host: Pinned, address: int) -> None:
        """Begin to copy pinned memory to the device."""
        self._copy(address, host.address, host.size_bytes, "cudaMemcpyHostToDevice")

    def to_host(self, host: Pinned, address: int) -> None:
        """Begin to copy device memory into pinned memory, as much as that holds."""
        self._copy(host.address, address, host.size_bytes, "cudaMemcpyDeviceToHost")

    def _copy(self, to: int, source: int, size_bytes: int, kind: str) -> None:
        word = getattr(runtime.cudaMemcpyKind, kind)
        checked(runtime.cudaMemcpyAsync(to, source, size_bytes, word, self._stream))

    def wait(self) -> None:
        """Wait until the stream is empty."""
        checked(runtime.cudaStreamSynchronize(self._stream))

    def timed(self, enqueue: Callable[[], object]) -> Callable[[], float]:
        """Make a sampler: milliseconds between two events around what is enqueued."""

        def sample() -> float:
            checked(runtime.cudaEventRecord(self._start, self._stream))
            enqueue()
            checked(runtime.cudaEventRecord(self._end, self._stream))
            checked(runtime.cudaEventSynchronize(self._end))
            return float(checked(runtime.cudaEventElapsedTime(self._start, self._end)))

        return sample


class Pinned:
    """Pinned host memory, which the GPU reads and writes without the CPU.

    Parameters
    ----------
    size_bytes : int

    Raises
    ------
    MemoryError
        If there is not enough.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.address = int(checked(runtime.cudaMallocHost(max(size_bytes, 1))))

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Self:
        """Make one with the bytes of an array."""
        buffer = cls(values.nbytes)
        ctypes.memmove(buffer.address, np.ascontiguousarray(values).ctypes.data, values.nbytes)
        return buffer

    def free(self) -> None:
        """Free it."""
        checked(runtime.cudaFreeHost(self.address))


def checked(answer: Sequence[Any]) -> Any:
    """Return what a function of CUDA returned beside its status.

    Raises
    ------
    MemoryError
        If it found too little memory.
    MeasurementError
        At any other error. After most of them the process cannot use the GPU any more.
    """
    status, *values = answer
    if status != runtime.cudaError_t.cudaSuccess:
        text = f"{status.name} ({_words(status)})"
        if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
            raise MemoryError(f"the GPU, or its pinned host memory, is full: {text}")
        raise MeasurementError(f"CUDA failed: {text}; see the driver's log (dmesg), and try again")
    return values[0] if values else None


def _words(status: Any) -> str:
    text = runtime.cudaGetErrorString(status)[1]
    return text.decode() if isinstance(text, bytes) else str(text)


def _count() -> int:
    status, count = runtime.cudaGetDeviceCount()
    if status.name in _NO_DEVICE:
        raise ResperfError(
            f"no GPU can be used: {_words(status)}; install or update NVIDIA's driver, and see "
            "what nvidia-smi says"
        )
    return int(checked((status, count)))
