"""The functions of CUDA's bindings that resperf calls, on the fake GPU."""

from __future__ import annotations

from typing import Any

import fake_surface
from fake_gpu import BYTES_PER_MS, COPY_MS, gpu

_SURFACE = fake_surface.read("cuda", "13")
globals().update(fake_surface.enums(_SURFACE))
cudaError_t: Any = globals()["cudaError_t"]  # noqa: N816
cudaMemcpyKind: Any = globals()["cudaMemcpyKind"]  # noqa: N816
_OK = cudaError_t.cudaSuccess
_INVALID = cudaError_t.cudaErrorInvalidValue


class _Handle(int):
    """A stream, or an event with the moment at which it was recorded."""

    ms: float | None = None


def cudaGetDeviceCount() -> tuple[Any, int | None]:  # noqa: N802
    if not gpu.devices:
        return cudaError_t.cudaErrorNoDevice, None
    return _OK, gpu.devices


def cudaGetErrorString(error: Any) -> tuple[Any, bytes]:  # noqa: N802
    return _OK, f"text of {error.name}".encode()


def cudaSetDevice(device: int) -> tuple[Any]:  # noqa: N802
    return (_OK if device < gpu.devices else cudaError_t.cudaErrorInvalidDevice,)


def cudaStreamCreate() -> tuple[Any, _Handle]:  # noqa: N802
    return _OK, _Handle(7)


def cudaStreamSynchronize(stream: _Handle) -> tuple[Any]:  # noqa: N802
    return (_OK if stream == 7 else _INVALID,)


def cudaEventCreate() -> tuple[Any, _Handle]:  # noqa: N802
    return _OK, _Handle(9)


def cudaEventRecord(event: _Handle, stream: _Handle) -> tuple[Any]:  # noqa: N802
    event.ms = gpu.now_ms
    return (_OK if stream == 7 else _INVALID,)


def cudaEventSynchronize(event: _Handle) -> tuple[Any]:  # noqa: N802
    return (_OK if event.ms is not None else _INVALID,)


def cudaEventElapsedTime(start: _Handle, end: _Handle) -> tuple[Any, float | None]:  # noqa: N802
    if start.ms is None or end.ms is None:
        return cudaError_t.cudaErrorInvalidResourceHandle, None
    return _OK, end.ms - start.ms


def cudaMalloc(size: int) -> tuple[Any, int | None]:  # noqa: N802
    address = gpu.allocate(size)
    return (_OK if address else cudaError_t.cudaErrorMemoryAllocation), address


def cudaFree(devPtr: int) -> tuple[Any]:  # noqa: N802
    return (_OK if gpu.device.pop(devPtr, None) else _INVALID,)


def cudaMallocHost(size: int) -> tuple[Any, int]:  # noqa: N802
    return _OK, gpu.allocate_host(size)


def cudaFreeHost(ptr: int) -> tuple[Any]:  # noqa: N802
    return (_INVALID if gpu.host.pop(ptr, None) is None else _OK,)


def cudaMemcpyAsync(  # noqa: N802
    dst: int, src: int, count: int, kind: Any, stream: _Handle
) -> tuple[Any]:
    host, device = (dst, src) if kind == cudaMemcpyKind.cudaMemcpyDeviceToHost else (src, dst)
    if stream != 7 or len(gpu.host[host]) < count or gpu.device[device] < count:
        return (_INVALID,)
    gpu.now_ms += COPY_MS + count / BYTES_PER_MS
    return (_OK,)


fake_surface.check_functions(_SURFACE, globals())
