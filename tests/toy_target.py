"""A target with a device class of its own: everything that such a package would bring.

Its device is a card that computes 1e6 multiply-accumulates in a millisecond, times its kernels
between two events on its own stream, and tells its clock through a library like NVML. None of it is
real, so no time depends on the machine that runs the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resperf.backends import Built, Phase
from resperf.backends.monitors import Monitor, Reading
from resperf.layers import Layer
from resperf.lowering import LoweredNetwork
from resperf.lowering import lower as lower_network
from resperf.network import Network, read_network
from resperf.platform import Accelerator, Platform, this_platform, usable_cores
from resperf.settings import Setting
from resperf.targets import Target
from resperf.testing import synthetic

MACS_PER_MS = 1e6
CALL_MS = 0.01
IN_NETWORKS = 1.2
"""How many times as long layers take inside networks as alone."""
BYTES_PER_MS = 1e7
"""Between host and card."""
HOT_FROM, HOT_TO = 20, 22
"""Layers that are built while the card is hot, and computes half as fast."""

TARGET = Target(
    framework="toyrt",
    device_class="toygpu",
    lowering="toy_target",
    backend="toy_target:ToyBackend",
    monitor="toy_target:ToyMonitor",
    install="resperf-toy",
)


def lower(network: Network, setting: Setting, platform: Platform) -> LoweredNetwork:
    return synthetic.lower(network, setting, platform)


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    return synthetic.lower_layers(layers, setting)


@dataclass
class Card:
    """The device: its stream's time, and how many layers it was given."""

    stream_ns: int = 0
    layers: int = 0

    @property
    def is_hot(self) -> bool:
        return HOT_FROM <= self.layers < HOT_TO

    def compute(self, macs: float, factor: float = 1.0) -> None:
        self.work(CALL_MS + factor * macs / MACS_PER_MS * (1 + self.is_hot))

    def work(self, time_ms: float) -> None:
        self.stream_ns += round(1e6 * time_ms)


@dataclass(frozen=True)
class Events:
    """A sampler: the time between an event before and an event behind the work on the stream."""

    card: Card
    work: Callable[[], None]

    def __call__(self) -> float:
        before_ns = self.card.stream_ns
        self.work()
        return (self.card.stream_ns - before_ns) / 1e6


class FakeNvml:
    def __init__(self, card: Card) -> None:
        self._card = card

    def clock_mhz(self) -> float:
        return 700.0 if self._card.is_hot else 1400.0


class ToyMonitor(Monitor):
    device_states = ("throttled",)

    def memory_bytes(self) -> int:
        return 16 << 30

    def _prepare(self, backend: Any) -> None:
        self._nvml = FakeNvml(backend.card)
        self.clock = lambda: int(backend.card.stream_ns)

    def reading(self, *, force: bool = False) -> Reading | None:
        found = super().reading(force=force)
        facts = {"sm_clock_mhz": self._nvml.clock_mhz()}
        return found and Reading(found.at, found.reference_ms, facts)

    def active_flags(self, *, record: bool = True) -> set[str]:
        return {"throttled"} if self._nvml.clock_mhz() < 1400 else set()


@dataclass
class ToyBackend:
    name = "toyrt"
    threads: int | None = None
    card: Card = field(default_factory=Card)

    def own_process(self) -> None:
        pass

    def setting(self) -> Setting:
        return Setting(self.name, "1", "stream", self.threads or usable_cores())

    def platform(self) -> Platform:
        return replace(this_platform("toy9000"), accelerators=(Accelerator("Toy 9000", 16 << 30),))

    def costs(self) -> Mapping[str, float]:
        return {"call_ms": CALL_MS, "reshape_ms": 0.0}

    def overheads_between_layers(self) -> Mapping[str, float]:
        return {"overhead_ms_per_layer": 0.0, "overhead_ms_per_mb": 0.0}

    def without_layers(self) -> str:
        return ""

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        return lower_layers(layers, self.setting())

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        self.card.layers += 1
        return self._built(layer.macs, layer.input_bytes, layer.output_bytes, CALL_MS)

    def network(
        self, path: Path, *, batch: int | None, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> Built:
        network = read_network(path, batch=batch, shapes=shapes)
        nodes = lower_network(network, self.setting(), self.platform()).nodes
        layers = [node.layer for node in nodes if node.layer is not None]
        macs = sum(layer.macs for layer in layers)
        built = self._built(
            macs, layers[0].input_bytes, layers[-1].output_bytes, 0.0, factor=IN_NETWORKS
        )
        # Its allocator holds one tensor at a time.
        peak = max(max(layer.input_bytes, layer.output_bytes) for layer in layers)
        allocator = Phase(lambda: float(2 * peak), unit="bytes")
        return replace(built, phases={**built.phases, "peak_memory_bytes": allocator})

    def _built(
        self,
        macs: float,
        input_bytes: int,
        output_bytes: int,
        offset_ms: float,
        *,
        factor: float = 1.0,
    ) -> Built:
        def run() -> None:
            self.card.compute(macs, factor)

        def copied(size: int) -> Events:
            return Events(self.card, lambda: self.card.work(size / BYTES_PER_MS))

        events = Events(self.card, run)
        return Built.of_phases(
            copied(input_bytes), Phase(events, offset=offset_ms), copied(output_bytes), events
        )
