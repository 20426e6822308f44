"""The target of a simulated device: closed-form times, a clock of its own, failures on demand.

It replaces hardware in tests and in dry runs of the whole chain. It runs every kind of layer
that an ONNX operator does the work of. At the default speeds `GFLOPS` and `GB_PER_S`:

    execution_ms   = 0.005 + 2 macs / (gflops 1e6) + moved_bytes / (gb_per_s 1e6)
    preprocess_ms  = 0.010 + input_bytes / (gb_per_s 1e6)
    postprocess_ms = 0.010 + output_bytes / (gb_per_s 1e6)
    isolated_ms    = call_ms + execution_ms
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from resperf.backends import Backend, Built, Phase, Shapes
from resperf.backends.monitors import Monitor
from resperf.backends.monitors.cpu import limit_private_memory
from resperf.errors import LayerError, ResperfError, UnsupportedError
from resperf.layers import Layer
from resperf.lowering import LoweredNetwork
from resperf.lowering import lower as lower_for_target
from resperf.lowering._base import answer
from resperf.lowering._ort_blocks import lower_layer
from resperf.lowering.onnxruntime import ask, installed, once
from resperf.network import Network, Tensor, read_network
from resperf.platform import Platform
from resperf.quantities import PHASES
from resperf.settings import Setting
from resperf.timing import WallClock
from resperf.units import MS_PER_S, NS_PER_MS, NS_PER_S

GFLOPS = 50.0
GB_PER_S = 5.0
SESSION_MS = 0.02
NODE_MS = 0.005
CALL_MS = 0.010
COPIES = 4
MEMORY_BYTES = 1 << 40
"""Layers that move more do not fit."""
VERSION = "1"


def lower(network: Network, _setting: Setting, _platform: Platform) -> LoweredNetwork:
    """Lower a network as ONNX Runtime does where it has no blocked layouts."""
    network = network.with_dead_nodes().with_unfolded_nodes()
    nodes = once(network, ("synthetic",), lambda: ask(network, 0))
    return answer(network, nodes, installed())


def lower_layers(layers: Sequence[Layer], _setting: Setting) -> list[Layer]:
    """Put each layer into plain NCHW."""
    return [lower_layer(layer, block=0) for layer in layers]


def closed_form_ms(
    layer: Layer, phase: str, gflops: float = GFLOPS, gb_per_s: float = GB_PER_S
) -> float:
    """Time of one phase of a layer by the formulas in this file's first lines."""
    if phase == "execution_ms":
        return NODE_MS + 2 * layer.macs / (gflops * 1e6) + layer.moved_bytes / (gb_per_s * 1e6)
    crossing = layer.input_bytes if phase == "preprocess_ms" else layer.output_bytes
    return CALL_MS + crossing / (gb_per_s * 1e6)


class SyntheticBackend(Backend):
    """The simulated device. All settings are keywords and part of `setting`.

    Parameters
    ----------
    threads : int
        Only recorded.
    gflops, gb_per_s : float
        Speeds of the closed-form times.
    noise : float
        Standard deviation of the times as a share of them; drawn from `seed`.
    seed : int
        Of the noise.
    fail : mapping of str to str, optional
        Failure -> part of a layer's key, or of a network's name, that brings it about. Failures:
        ``crash`` (the process dies of a segmentation fault), ``kill`` (as the kernel kills what
        takes too much memory), ``hang``, ``memory`` (MemoryError), ``unsupported``, ``error`` (an
        unforeseen exception).
    slow : (int, int, float)
        First, last and factor: while these layers or networks are measured, counted from 0 as they
        are built, the whole machine is slower.
    real_ms : float
        Time that each build really sleeps; the simulated times never pass for real.

    Attributes
    ----------
    slowdown : float
        Factor on all times at this moment.
    """

    name = word = "synthetic"

    def __init__(
        self,
        *,
        threads: int = 1,
        gflops: float = GFLOPS,
        gb_per_s: float = GB_PER_S,
        noise: float = 0.0,
        seed: int = 0,
        fail: Mapping[str, str] | None = None,
        slow: tuple[int, int, float] = (0, -1, 1.0),
        real_ms: float = 0.0,
    ) -> None:
        unknown = sorted(set(fail or {}) - set(_FAILURES))
        if unknown:
            raise ResperfError(
                f"synthetic: no failure {', '.join(unknown)}; it has {', '.join(_FAILURES)}"
            )
        self.slowdown = 1.0
        self._threads = threads
        self._gflops = gflops
        self._gb_per_s = gb_per_s
        self._noise = noise
        self._seed = seed
        self._fail = dict(fail or {})
        self._slow = (int(slow[0]), int(slow[1]), float(slow[2]))
        self._real_ms = real_ms
        self._random = random.Random(seed)
        self._now_ns = 0
        self._built = 0

    def clock(self) -> int:
        """Nanoseconds on the simulated device's clock, which only its own work moves."""
        return self._now_ns

    def spend(self, time_ms: float) -> None:
        """Let simulated time pass, with noise and the present slow-down."""
        noise = 1 + self._noise * self._random.gauss(0, 1) if self._noise else 1.0
        self._now_ns += round(time_ms * max(noise, 0.1) * self.slowdown * NS_PER_MS)

    def setting(self) -> Setting:
        """All settings of the simulated device."""
        return Setting(
            framework=self.name,
            framework_version=VERSION,
            provider="closed-form",
            threads=self._threads,
            options={
                "gflops": f"{self._gflops:g}",
                "gb_per_s": f"{self._gb_per_s:g}",
                "noise": f"{self._noise:g}",
                "seed": str(self._seed),
            },
        )

    def costs(self) -> Mapping[str, float]:
        """Return constants; reshapes are free."""
        return {"call_ms": SESSION_MS, "reshape_ms": 0.0}

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Return the layers as they are: the simulated device fuses and re-lays nothing."""
        return list(layers)

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        """Build a layer: one run of execution holds `COPIES` of it, or one where it is slow.

        Raises
        ------
        UnsupportedError, MemoryError
            On demand; for layers without a kernel, and for those beyond `MEMORY_BYTES`.
        """
        self._begin(layer.key)
        try:
            layer.as_onnx_node()
        except LayerError as error:
            raise UnsupportedError(f"synthetic: {error}") from error
        if layer.moved_bytes > MEMORY_BYTES:
            raise MemoryError(f"synthetic: {layer.moved_bytes} bytes do not fit")
        preprocess_ms, execution_ms, postprocess_ms = (
            self._closed_form_ms(layer, name) for name in PHASES
        )
        copies = COPIES if execution_ms * COPIES <= budget_ms else 1
        return self._ready(preprocess_ms, execution_ms, postprocess_ms, copies)

    def _begin(self, name: str) -> None:
        """Begin a build: let the machine be as slow as was asked for, and fail on demand."""
        number, self._built = self._built, self._built + 1
        first, last, factor = self._slow
        self.slowdown = factor if first <= number <= last else 1.0
        time.sleep(self._real_ms / MS_PER_S)
        for failure, part in self._fail.items():
            if part in name:
                _fail(failure)

    def network(self, path: Path, *, batch: int | None, shapes: Shapes | None = None) -> Built:
        """Build a network: the sum of its layers; operators that are no layer take no time.

        Raises
        ------
        NetworkError, UnsupportedError
            If the file cannot be read or lowered, or on demand.
        MemoryError
            On demand.
        """
        self._begin(path.stem)
        lowered = lower_for_target(
            read_network(path, batch=batch, shapes=shapes), self.setting(), self.platform()
        )
        layers = [node.layer for node in lowered.nodes if node.layer is not None]

        def crossing_ms(tensors: Sequence[Tensor]) -> float:
            sizes_bytes = [4 * math.prod(tensor.shape) for tensor in tensors]
            return sum(CALL_MS + size_bytes / (self._gb_per_s * 1e6) for size_bytes in sizes_bytes)

        return self._ready(
            crossing_ms(lowered.inputs),
            sum(self._closed_form_ms(layer, "execution_ms") for layer in layers),
            crossing_ms(lowered.outputs),
        )

    def _closed_form_ms(self, layer: Layer, phase: str) -> float:
        return closed_form_ms(layer, phase, self._gflops, self._gb_per_s)

    def _ready(
        self, preprocess_ms: float, execution_ms: float, postprocess_ms: float, copies: int = 1
    ) -> Built:
        """Wrap closed-form times as phases."""
        execution = Phase(
            self.timer(SESSION_MS + copies * execution_ms), offset=SESSION_MS, copies=copies
        )
        return Built.of_phases(
            self.timer(preprocess_ms),
            execution,
            self.timer(postprocess_ms),
            self.timer(SESSION_MS + execution_ms),
        )

    def timer(self, time_ms: float) -> WallClock:
        """Return a sampler of work that takes so long."""
        return WallClock(lambda: self.spend(time_ms), self.clock)


class SyntheticMonitor(Monitor):
    """Times the reference layer on the simulated clock."""

    def limit_memory(self, limit_bytes: int) -> None:
        """Limit the private memory of this process."""
        limit_private_memory(limit_bytes)

    def _prepare(self, backend: Backend) -> None:
        """Use the backend's clock, also for the time since 1970."""
        started_at, clock = time.time(), cast(SyntheticBackend, backend).clock
        self.clock = clock
        self.now = lambda: started_at + clock() / NS_PER_S


def _fail(failure: str) -> None:
    if failure in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[failure])
    while failure == "hang":
        time.sleep(1)
    raise _ERRORS[failure]


_SIGNALS: Mapping[str, signal.Signals] = {"crash": signal.SIGSEGV, "kill": signal.SIGKILL}
_ERRORS: Mapping[str, Exception] = {
    "memory": MemoryError("synthetic: out of memory on demand"),
    "unsupported": UnsupportedError("synthetic: unsupported on demand"),
    "error": RuntimeError("synthetic: an unforeseen error on demand"),
}
_FAILURES = (*_SIGNALS, "hang", *_ERRORS)
