"""A simulated GPU with NVML: the synthetic device, on a card that becomes hot, shared, full, lost.

Importing this file, as measuring processes do, puts the fake library where pynvml looks for the
driver's. While a file of the name in ``SYNTHETIC_GPU_LOST`` exists, the first card is lost.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pynvml
from fake_nvml import GIBIBYTE, FakeGpu, FakeNvml, install

from resperf.backends import Backend, Built
from resperf.backends.monitors.cuda import CudaMonitor
from resperf.layers import Layer
from resperf.platform import Platform, this_platform
from resperf.targets import Target
from resperf.testing.synthetic import COPIES, SyntheticBackend
from resperf.units import NS_PER_S

CLOCK_MHZ, HOT_CLOCK_MHZ, HOT = 2520, 1680, 1.5
SHARED = 1.3
LOST = "SYNTHETIC_GPU_LOST"

TARGET = Target(
    framework="synthgpu",
    device_class="cuda",
    lowering="resperf.testing.synthetic",
    backend="synthetic_gpu:SyntheticGpu",
    monitor="synthetic_gpu:SyntheticGpuMonitor",
)


class Card(FakeGpu):
    @property
    def is_lost(self) -> bool:
        return bool(os.environ.get(LOST)) and Path(os.environ[LOST]).exists()

    @is_lost.setter
    def is_lost(self, lost: bool) -> None:
        pass


CARD = Card(pids=[os.getpid()])
OTHER = FakeGpu("NVIDIA RTX 6000 Ada Generation", "GPU-2", memory_bytes=48 * GIBIBYTE)
LIBRARY = FakeNvml([CARD, OTHER])
install(LIBRARY)


class SyntheticGpu(SyntheticBackend):
    """The synthetic device as a GPU.

    Parameters
    ----------
    device : str
    hot, shared : (int, int)
        Of so many builds, the last so many are on a card that heat slows down, or on which another
        process runs.
    lost_at : int
        Build at which the card is lost.
    memory_bytes : int
        Memory at which allocations fail.
    **settings
        Of `SyntheticBackend`.
    """

    name = "synthgpu"

    def __init__(
        self,
        *,
        device: str = "cuda:0",
        hot: tuple[int, int] = (1, 0),
        shared: tuple[int, int] = (1, 0),
        lost_at: int = 0,
        memory_bytes: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._platform = this_platform(device)
        self._hot, self._shared = hot, shared
        self._lost_at, self._memory_bytes = lost_at, memory_bytes

    def platform(self) -> Platform:
        return self._platform

    def _begin(self, name: str) -> None:
        super()._begin(name)
        is_hot, is_shared = self._is_time(self._hot), self._is_time(self._shared)
        CARD.reasons = pynvml.nvmlClocksEventReasonSwThermalSlowdown if is_hot else 0
        CARD.clock_mhz = HOT_CLOCK_MHZ if is_hot else CLOCK_MHZ
        CARD.pids = [os.getpid(), *([1] if is_shared else [])]
        self.slowdown *= (HOT if is_hot else 1.0) * (SHARED if is_shared else 1.0)
        if self._built == self._lost_at:
            Path(os.environ[LOST]).touch()
        if CARD.is_lost:
            raise RuntimeError("CUDA error: unspecified launch failure")

    def _is_time(self, rhythm: tuple[int, int]) -> bool:
        period, length = rhythm
        return (self._built - 1) % period >= period - length

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        if 0 < self._memory_bytes < COPIES * layer.moved_bytes:
            raise MemoryError("CUDA out of memory")
        return super().layer(layer, budget_ms=budget_ms)


class SyntheticGpuMonitor(CudaMonitor):
    """The monitor of all CUDA targets, on the simulated clock."""

    def _prepare(self, backend: Backend) -> None:
        super()._prepare(backend)
        assert isinstance(backend, SyntheticGpu)
        started_at = time.time()
        self.clock = backend.clock
        self.now = lambda: started_at + self.clock() / NS_PER_S
