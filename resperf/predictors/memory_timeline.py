"""Ours: the memory of a run or a training step, simulated from the graph and corrected per device.

What autograd keeps, gradients, optimizer state and the caching allocator follow from the graph
(`resperf.lowering._torch_memory`, `_allocator`). What libraries hold besides does not: the context
of the device, and workspaces of convolutions. It is fitted to rows of each device and setting, by
least absolute relative errors: published rows hold runs that failed half-way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from resperf.devices import device_class
from resperf.lowering._torch_memory import memory_of
from resperf.lowering.torch import run_tensors
from resperf.network import Network
from resperf.platform import Platform
from resperf.predictors._allocator import Peaks, peaks_of
from resperf.predictors.convmeter import LinearInGraph
from resperf.predictors.intervals import bounds_of
from resperf.predictors.linear import Robust
from resperf.quantities import PEAK_MEMORY, PROCESS_MEMORY, RESERVED_MEMORY
from resperf.settings import Setting
from resperf.targets import DEFAULT


class Simulated(NamedTuple):
    """Memory of a run or step without what libraries hold; the last two as in `StepMemory`."""

    peaks: Peaks
    convolved_bytes: int
    unknown: tuple[str, ...]


def simulated(network: Network, setting: Setting, device: str) -> Simulated:
    """Simulate runs or training steps of a network.

    Raises
    ------
    UnsupportedError
        If the memory that the optimizer needs is not known.
    """
    on_cpu = device_class(device, setting.framework) == DEFAULT.device_class
    tensors = run_tensors(network, setting)
    memory = memory_of(tensors, setting, on_cpu=on_cpu, in_place=not on_cpu)
    return Simulated(peaks_of(memory), memory.convolved_bytes, memory.unknown)


class MemoryTimeline(LinearInGraph):
    """Simulated bytes, a constant for the context, and bytes of convolutions for workspaces."""

    method = "memory-timeline"
    quantities = frozenset({PEAK_MEMORY, RESERVED_MEMORY, PROCESS_MEMORY})
    robust = Robust(rounds=5, least_error=0.02)

    def terms(
        self, network: Network, setting: Setting, platform: Platform
    ) -> tuple[dict[str, float], Sequence[str]]:
        """Return the simulated memory of a network, in bytes, and which operators it lacks."""
        step = simulated(network, setting, platform.device)
        return self._row(step), step.unknown

    def _row(self, step: Simulated) -> dict[str, float]:
        peaks = step.peaks
        allocated = self.quantity_ == PEAK_MEMORY
        return {
            "constant": 1.0,
            "simulated": float(peaks.allocated_bytes if allocated else peaks.reserved_bytes),
            "convolved": float(step.convolved_bytes),
        }

    def of_simulated(self, step: Simulated, *, like_rows: bool) -> tuple[float, float, float]:
        """Return the value of the fitted device, and its interval.

        Parameters
        ----------
        step : Simulated
        like_rows : bool
            Whether it is of that device and setting; the interval is wider if not.
        """
        (fit,) = self.fits_
        row = self._row(step)
        values = fit.predict([row]).values
        inside = np.array([like_rows and not fit.outside(row)])
        low, high = bounds_of(fit.intervals, values, inside)
        return float(values[0]), float(low[0]), float(high[0])
