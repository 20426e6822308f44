"""CPUs: other programs' load, cores that the host moves apart, caches and memory that others fill.

Two probes tell what a large convolution, as the reference is, does not notice; how fast the machine
is as such is told by three more figures, which are measured now and then (`CpuMonitor.costs`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from resperf.backends._base import Backend, Built, median_of
from resperf.backends.monitors._base import Monitor, Reading
from resperf.errors import UnsupportedError
from resperf.layers import Dense, Layer, Pool
from resperf.timing import SLOW, LoadMeter, Probe, WallClock
from resperf.units import MS_PER_S

MEMORY = Pool(
    batch=1, channels_in=64, height=204, width=204, kernel_height=3, kernel_width=3,
    pad_top=1, pad_left=1, pad_bottom=1, pad_right=1,
)  # fmt: skip
"""A layer that reads and writes 20 MB."""
SHORT_LAYER_MS = 0.2
"""A layer that takes longer spends its time in its work, not in waiting for other cores."""
MEMORY_BYTES, MEMORY_BYTES_PER_MS = 1e6, 5e6
"""What moves more, and faster, waits for memory beyond the nearest cache."""
SHORT_NETWORK_MS = 5.0
"""A network that takes longer feels how fast memory is, a shorter one lives in the caches."""
SLOW_FOR_NETWORKS: Mapping[str, float] = {"memory": 2.0}
"""A network spends little of its time waiting for memory beyond the caches: 1.5 times as long for
a pooling of 20 MB are a few hundredths for ResNet-18."""
SETTLE_S = 0.06
"""After which the threads of a session that has run no longer spin for its next run."""
PRODUCT = Dense(batch=512, features_in=1024, features_out=1024)
CALL = Dense(batch=1, features_in=8, features_out=8)
COPIED_BYTES = 1 << 26
SPEED_SECONDS = 0.1
"""For each figure of the machine's speed, besides building what shows it."""
_SIDE = 512
_ROUNDS = 2


def limit_private_memory(limit_bytes: int) -> None:
    """Let allocations fail before the machine runs out of memory; 0 is no limit.

    The limit is on private data: frameworks reserve far more address space than they use.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        if limit_bytes > 0:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def is_memory_bound(layer: Layer, execution_ms: float) -> bool:
    """Say whether a layer waits for memory rather than for arithmetic."""
    moved_bytes = layer.moved_bytes
    return moved_bytes > MEMORY_BYTES and moved_bytes > MEMORY_BYTES_PER_MS * execution_ms


def _built_memory(backend: Backend) -> Built:
    return backend.layer(backend.lower([MEMORY])[0], budget_ms=1.0)


def _built_caches(backend: Backend) -> Built:
    """Build a network through which megabytes go from one core to the other and back.

    ONNX Runtime shares a Relu among all cores, and leaves Concat to one of them. While the host
    keeps two cores under one last cache, a run takes 0.09 ms; while it keeps them under two,
    0.17 ms, and a whole network of small layers 1.8 times its usual time. No layer that is run
    alone, again and again, shows that: each core finds what it wrote itself.
    """
    from onnx import TensorProto, helper, save

    nodes = []
    for turn in range(_ROUNDS):
        nodes += [
            helper.make_node("Relu", [f"x{turn}"], [f"relu{turn}"]),
            helper.make_node("Concat", [f"relu{turn}", "x0"], [f"x{turn + 1}"], axis=1),
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


PROBES: Mapping[str, Callable[[Backend], Built]] = {
    "caches": _built_caches,
    "memory": _built_memory,
}
"""What is slow -> what shows it, in the order in which they are timed: cores that are far apart
have more bandwidth to memory, so that the second tells nothing while the first is slow."""


def probe_cost(name: str) -> str:
    """Return the word under which a dataset's machine costs hold a probe's usual time."""
    return f"{name}_probe_ms"


class CpuMonitor(Monitor):
    """Watches the cores that this process may use."""

    device_states = tuple(PROBES)
    usual_costs = tuple(map(probe_cost, PROBES))
    waits_for = frozenset({"caches"})

    def __init__(self) -> None:
        super().__init__()
        self.load: LoadMeter | None = None
        self._backend: Backend | None = None

    def limit_memory(self, limit_bytes: int) -> None:
        """Limit the private memory of this process."""
        limit_private_memory(limit_bytes)

    def start(
        self,
        backend: Backend,
        *,
        interval_s: float = 3.0,
        usual: Mapping[str, tuple[float, int]] | None = None,
        networks: bool = False,
    ) -> Self:
        """Watch the processor that a backend runs on."""
        self._backend = backend
        if not networks:
            self.load = LoadMeter()
        return super().start(backend, interval_s=interval_s, usual=usual, networks=networks)

    def _probes(
        self, backend: Backend, usual: Mapping[str, tuple[float, int]]
    ) -> Mapping[str, Probe]:
        probes = {}
        slow = SLOW_FOR_NETWORKS if self._networks else {}
        for name, build in PROBES.items():
            try:
                built = build(backend)
            except UnsupportedError:
                continue
            usual_ms, readings = usual.get(probe_cost(name), (None, 0))
            probes[name] = Probe(
                # One run: what the execution phase holds several copies of may hold others later.
                self._built.enter_context(built).isolated,
                clock=self.clock,
                slow=slow.get(name, SLOW),
                usual_ms=usual_ms,
                readings=readings,
            )
        return probes

    def _settle(self) -> Callable[[], None] | None:
        return partial(time.sleep, SETTLE_S) if self._networks else None

    def usual_times(self) -> dict[str, tuple[float, int]]:
        """Return the probes' usual times."""
        found = {} if self.reference is None else self.reference.usual_probes
        return {probe_cost(name): usual for name, usual in found.items()}

    def before(self) -> Reading | None:
        """Read reference and probes, then watch the load."""
        reading = super().before()
        if self.load is not None:
            self.load.start()
        return reading

    def after(self, layer: Layer, time_ms: float) -> tuple[str, ...]:
        """Flag the row ``busy`` under load of others, and with each probe that it could feel."""
        busy = self.load is not None and self.load.stop().is_busy
        return (*(("busy",) if busy else ()), *super().after(layer, time_ms))

    def felt_by_layer(self, layer: Layer, time_ms: float) -> frozenset[str]:
        """Return the probes whose slowness the layer's own time could show."""
        if is_memory_bound(layer, time_ms):
            return frozenset({"caches", "memory"})
        return frozenset({"caches"}) if time_ms < SHORT_LAYER_MS else frozenset()

    def felt_by_network(self, time_ms: float) -> frozenset[str]:
        """Return the probes whose slowness a network feels."""
        return frozenset({"caches"} if time_ms < SHORT_NETWORK_MS else {"caches", "memory"})

    def depends_on_place(self, layer: Layer, time_ms: float) -> bool:
        """Say whether a layer's time depends on where its input and output lie in memory.

        One with weights is run in copies whose weights lie in several places already.
        """
        return not layer.weight_bytes and is_memory_bound(layer, time_ms)

    def costs(self) -> Mapping[str, float]:
        """Measure how fast this processor is, under its backend's threads, in about 0.5 s.

        Returns
        -------
        dict
            ``probe_product_gflops``: a product of float32 matrices. ``probe_copy_gb_per_s``: bytes
            that one core reads and writes while it copies 64 MB. ``probe_call_us``: a call of one
            small layer. What the framework cannot run is absent.
        """
        import numpy as np

        found = {}
        source = np.ones(COPIED_BYTES // 8)
        target = np.empty_like(source)
        copy_ms = median_of(WallClock(lambda: np.copyto(target, source)), SPEED_SECONDS, warmups=1)
        found["probe_copy_gb_per_s"] = 2 * COPIED_BYTES / 1e6 / copy_ms
        if (product_ms := self._alone_ms(PRODUCT)) is not None:
            found["probe_product_gflops"] = 2 * PRODUCT.macs / 1e6 / product_ms
        if (call_ms := self._alone_ms(CALL)) is not None:
            found["probe_call_us"] = call_ms * MS_PER_S
        return found

    def _alone_ms(self, layer: Layer) -> float | None:
        if self._backend is None:
            return None
        try:
            built = self._backend.layer(self._backend.lower([layer])[0], budget_ms=1.0)
        except UnsupportedError:
            return None
        with built:
            return median_of(built.isolated, SPEED_SECONDS, warmups=3)
