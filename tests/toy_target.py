"""A target with a device class of its own: everything that such a package would bring.

Its device is a card that computes 1e9 multiply-accumulates in a millisecond. A run waits for the
stream to be empty, as `Phase.run` asks, so that its wall time is the device's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resperf.backends import Built, Phase
from resperf.layers import Layer
from resperf.lowering import LoweredNetwork, synthetic
from resperf.lowering import lower as lower_network
from resperf.network import Network, read_network
from resperf.platform import Platform, this_platform, usable_cores
from resperf.settings import Setting
from resperf.targets import Target

MACS_PER_MS = 1e9
CALL_MS = 0.01

TARGET = Target(
    framework="toyrt",
    device_class="toygpu",
    lowering="toy_target",
    backend="toy_target:ToyBackend",
    install="resperf-toy",
)


def lower(
    network: Network, setting: Setting, platform: Platform, *, method: str = "auto"
) -> LoweredNetwork:
    return synthetic.lower(network, setting, platform, method=method)


def lower_layers(layers: Sequence[Layer], setting: Setting) -> list[Layer]:
    return synthetic.lower_layers(layers, setting)


@dataclass(frozen=True)
class ToyBuilt(Built):
    phases: Mapping[str, Phase]
    isolated: Callable[[], object]


class ToyBackend:
    name = "toyrt"

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = usable_cores() if threads is None else threads

    def own_process(self) -> None:
        pass

    def setting(self) -> Setting:
        return Setting(self.name, "1", "stream", self.threads)

    def platform(self) -> Platform:
        return this_platform("toy9000")

    def session_ms(self) -> float:
        return CALL_MS

    def costs(self) -> Mapping[str, float]:
        return {"session_ms": CALL_MS, "view_ms": 0.0}

    def handover(self) -> Mapping[str, float]:
        return {}

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        return lower_layers(layers, self.setting())

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        return _built(layer.macs)

    def network(
        self, path: Path, *, batch: int | None, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> Built:
        network = read_network(path, batch=batch, shapes=shapes)
        nodes = lower_network(network, self.setting(), self.platform()).nodes
        return _built(sum(node.layer.macs for node in nodes if node.layer is not None))


def _built(macs: float) -> ToyBuilt:
    def run() -> None:
        end_ns = time.perf_counter_ns() + 1e6 * (CALL_MS + macs / MACS_PER_MS)
        while time.perf_counter_ns() < end_ns:
            pass

    copy = Phase(lambda: None)
    return ToyBuilt({"preprocess": copy, "execution": Phase(run), "postprocess": copy}, run)
