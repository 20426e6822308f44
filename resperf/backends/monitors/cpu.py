"""CPUs: load of other programs, cores without a shared cache, contention for caches and memory.

Two checks show disturbances that do not affect the reference, a large convolution. Three further
figures, measured at intervals, describe the machine's speed (`CpuMonitor.costs`).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from resperf.backends._base import Backend, Built, median_of
from resperf.backends.monitors._base import Monitor, Reading
from resperf.errors import UnsupportedError, require
from resperf.layers import Activation, Dense, Layer, Pool
from resperf.timing import SLOW, MachineCheck, WallClock
from resperf.units import MS_PER_S

BUSY_CORES = 0.25
"""Cores that other processes may use before a measurement counts as disturbed."""
SLOW_CLOCK = 0.9
"""Share of the highest frequency seen below which the processor counts as throttled."""


@dataclass(frozen=True)
class Load:
    """Load between `LoadMeter.start` and `LoadMeter.stop`.

    Attributes
    ----------
    other_cores : float
        Cores that other processes (and other guests of the host) used on average.
    frequency_share : float
        Clock frequency over the highest seen by this meter; 1 where the system does not report it.
    """

    other_cores: float
    frequency_share: float

    @property
    def is_busy(self) -> bool:
        """Whether a timing in this interval is unreliable."""
        return self.other_cores > BUSY_CORES or self.frequency_share < SLOW_CLOCK


class LoadMeter:
    """Reads the load of the cores that this process may use, through psutil."""

    def __init__(self) -> None:
        self._source: Any = require("psutil", "bench")
        self._process = self._source.Process()
        affinity = getattr(os, "sched_getaffinity", None)
        self._cores = affinity(0) if affinity else set(range(os.cpu_count() or 1))
        self._highest_mhz = 0.0
        self._began_s = 0.0

    def start(self) -> None:
        """Begin an interval."""
        self._other_cores()
        self._began_s = time.monotonic()

    def stop(self) -> Load:
        """End the interval and return its load."""
        wall_s = time.monotonic() - self._began_s
        # The kernel counts in ticks of 10 ms: an interval of a few ticks is too short.
        other_cores = self._other_cores() if wall_s >= 0.1 else 0.0
        return Load(other_cores=other_cores, frequency_share=self._frequency_share())

    def _other_cores(self) -> float:
        """Return how many cores others used on average since this was last asked."""
        percents = self._source.cpu_percent(percpu=True)
        all_percent = sum(used for core, used in enumerate(percents) if core in self._cores)
        return float(max(0.0, all_percent - self._process.cpu_percent())) / 100

    def _frequency_share(self) -> float:
        frequency = self._source.cpu_freq() if hasattr(self._source, "cpu_freq") else None
        if frequency is None or not frequency.current:
            return 1.0
        self._highest_mhz = max(self._highest_mhz, frequency.current)
        return float(frequency.current / self._highest_mhz)


_POOLING = Pool(
    batch=1, channels_in=64, height=204, width=204, kernel_height=3, kernel_width=3,
    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1,
)  # fmt: skip
MEMORY = (_POOLING, Activation(batch=1, values=_POOLING.moved_bytes // 8, activation="relu"))
"""Layers that read and write 20 MB: the first that the framework runs at the speed of memory is the
machine check. PyTorch's max pooling takes a hundred times as long as reading its input."""
SHORT_LAYER_MS = 0.2
"""Longer layers spend their time computing, not waiting for other cores."""
MEMORY_BYTES, MEMORY_BYTES_PER_MS = 1e6, 5e6
"""Layers that move more bytes, and faster, are bound by memory beyond the nearest cache."""
SLOWEST_BYTES_PER_MS = 1e6
"""Work that moves 20 MB more slowly, on any machine, waits for something other than memory."""
SHORT_NETWORK_MS = 5.0
"""Longer networks depend on the speed of memory; shorter ones run in the caches."""
SLOW_FOR_NETWORKS: Mapping[str, float] = {"caches": 1.1, "memory": 2.0}
"""Threshold of a check for networks. On a virtual machine of two EPYC cores, networks take 1.5 to
2.3 times as long for some ten seconds at a time while the check of caches takes 1.14 times as long.
Networks spend little time waiting for memory: a pooling of 20 MB that takes 1.5 times as long costs
ResNet-18 a few percent."""
SETTLE_S = 0.06
"""Time after which a session's threads stop spinning for its next run."""
PRODUCT = Dense(batch=512, features_in=1024, features_out=1024)
CALL = Dense(batch=1, features_in=8, features_out=8)
# So many that a core's copy waits for memory, not for a cache.
COPIED_BYTES = 1 << 26
SPEED_SECONDS = 0.1
"""Time for measuring each figure of the machine's speed, after building it."""
_TRIES = 4
_SIDE = 512
_ROUNDS = 2


def limit_private_memory(limit_bytes: int) -> None:
    """Make allocations fail before the machine runs out of memory; 0 is no limit.

    The limit is on private data, since frameworks reserve far more address space than they use.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        if limit_bytes > 0:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def is_memory_bound(layer: Layer, execution_ms: float) -> bool:
    """Whether a layer is bound by memory rather than by arithmetic."""
    moved_bytes = layer.moved_bytes
    return moved_bytes > MEMORY_BYTES and moved_bytes > MEMORY_BYTES_PER_MS * execution_ms


def _built_memory(backend: Backend) -> Built:
    for layer in MEMORY:
        built = backend.layer(backend.lower([layer])[0], budget_ms=1.0)
        if min(built.isolated() for _ in range(_TRIES)) < layer.moved_bytes / SLOWEST_BYTES_PER_MS:
            return built
        built.close()
    raise UnsupportedError(
        "no layer runs at the speed of memory: a machine check of memory means nothing"
    )


def _built_caches(backend: Backend) -> Built:
    """Build a network that moves megabytes from one core to the other and back.

    ONNX Runtime runs a Relu on all cores and a Concat on one. A run takes 0.09 ms while the host
    places both cores under one last-level cache. Under two caches it takes 0.17 ms, and a network
    of small layers takes 1.8 times its usual time. Repeated runs of a single layer do not show
    this: each core reads what it wrote itself.
    """
    from onnx import TensorProto, helper, save

    nodes = []
    for i in range(_ROUNDS):
        nodes += [
            helper.make_node("Relu", [f"x{i}"], [f"relu{i}"]),
            helper.make_node("Concat", [f"relu{i}", "x0"], [f"x{i + 1}"], axis=1),
        ]
    widths = {"x0": _SIDE, f"x{_ROUNDS}": (_ROUNDS + 1) * _SIDE}
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [_SIDE, width])
        for name, width in widths.items()
    ]
    graph = helper.make_graph(nodes, "caches", ends[:1], ends[1:])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "caches.onnx"
        opsets = [helper.make_opsetid("", 17)]
        save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return backend.network(path, batch=None)


MACHINE_CHECKS: Mapping[str, Callable[[Backend], Built]] = {
    "caches": _built_caches,
    "memory": _built_memory,
}
"""Flag -> check, in the order of timing. Cores under different caches have more bandwidth to
memory, so that the second machine check means nothing while the first is slow."""


def check_cost(name: str) -> str:
    """Return the name of a machine check's usual time in a dataset's machine costs."""
    return f"{name}_check_ms"


class CpuMonitor(Monitor):
    """Watches the cores that this process may use."""

    device_states = tuple(MACHINE_CHECKS)
    usual_costs = tuple(map(check_cost, MACHINE_CHECKS))
    waits_for = frozenset({"caches"})

    def __init__(self) -> None:
        super().__init__()
        self.load: LoadMeter | None = None
        self._backend: Backend | None = None

    def limit_memory(self, limit_bytes: int) -> None:
        """Limit the private memory of this process."""
        limit_private_memory(limit_bytes)

    def _prepare(self, backend: Backend) -> None:
        self._backend = backend
        if not self._networks:
            self.load = LoadMeter()

    def _machine_checks(self, backend: Backend) -> Mapping[str, MachineCheck]:
        machine_checks = {}
        slow = SLOW_FOR_NETWORKS if self._networks else {}
        for name, build in MACHINE_CHECKS.items():
            try:
                built = build(backend)
            except UnsupportedError:
                continue
            usual_ms, readings = self._usual_before.get(check_cost(name), (None, 0))
            machine_checks[name] = MachineCheck(
                # A single run: the number of copies in the execution phase may change.
                self._built.enter_context(built).isolated,
                clock=self.clock,
                slow=slow.get(name, SLOW),
                usual_ms=usual_ms,
                readings=readings,
            )
        return machine_checks

    def _settle(self) -> None:
        if self._networks:
            time.sleep(SETTLE_S)

    def usual_times(self) -> dict[str, tuple[float, int]]:
        """Return the machine checks' usual times."""
        return {
            check_cost(name): (check.usual_ms, check.readings)
            for name, check in self.machine_checks.items()
            if math.isfinite(check.usual_ms)
        }

    def before(self) -> Reading | None:
        """Read reference and machine checks, then watch the load."""
        reading = super().before()
        if self.load is not None:
            self.load.start()
        return reading

    def after(self, layer: Layer, time_ms: float) -> tuple[str, ...]:
        """Flag the row ``busy`` under load of others, and with each slow check that affects it."""
        busy = self.load is not None and self.load.stop().is_busy
        return (*(("busy",) if busy else ()), *super().after(layer, time_ms))

    def felt_by_layer(self, layer: Layer, time_ms: float) -> frozenset[str]:
        """Return the machine checks whose slowness can affect a layer of this time."""
        if is_memory_bound(layer, time_ms):
            return frozenset({"caches", "memory"})
        return frozenset({"caches"}) if time_ms < SHORT_LAYER_MS else frozenset()

    def felt_by_network(self, time_ms: float) -> frozenset[str]:
        """Return the machine checks whose slowness affects a network of this time."""
        return frozenset({"caches"} if time_ms < SHORT_NETWORK_MS else {"caches", "memory"})

    def depends_on_place(self, layer: Layer, time_ms: float) -> bool:
        """Whether a layer's time depends on the addresses of its input and output.

        Layers with weights are run in copies, whose weights have different addresses already.
        """
        return not layer.weight_bytes and is_memory_bound(layer, time_ms)

    def costs(self) -> Mapping[str, float]:
        """Measure this processor's speed with the backend's threads, in about 0.5 s.

        Returns
        -------
        dict
            ``check_product_gflops``: a float32 matrix product. ``check_copy_gb_per_s``: bytes read
            and written by one core that copies 64 MB. ``check_call_us``: a call of one small layer.
            Figures that the framework cannot run are absent.
        """
        import numpy as np

        figures = {}
        source = np.ones(COPIED_BYTES // 8)
        target = np.empty_like(source)
        copy_ms = median_of(WallClock(lambda: np.copyto(target, source)), SPEED_SECONDS, warmups=1)
        figures["check_copy_gb_per_s"] = 2 * COPIED_BYTES / 1e6 / copy_ms
        if (product_ms := self._alone_ms(PRODUCT)) is not None:
            figures["check_product_gflops"] = 2 * PRODUCT.macs / 1e6 / product_ms
        if (call_ms := self._alone_ms(CALL)) is not None:
            figures["check_call_us"] = call_ms * MS_PER_S
        return figures

    def _alone_ms(self, layer: Layer) -> float | None:
        if self._backend is None:
            return None
        try:
            built = self._backend.layer(self._backend.lower([layer])[0], budget_ms=1.0)
        except UnsupportedError:
            return None
        with built:
            return median_of(built.isolated, SPEED_SECONDS, warmups=3)
