"""The synthetic device, which logs what it measures, and says what its process inherited."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from resperf.backends import Built
from resperf.campaign.process import conditions_here
from resperf.layers import Layer
from resperf.settings import Setting
from resperf.targets import Target
from resperf.testing.synthetic import SyntheticBackend

TARGET = Target(
    framework="counted",
    device_class="counted",
    lowering="resperf.testing.synthetic",
    backend="counted_target:Counted",
    monitor="resperf.testing.synthetic:SyntheticMonitor",
)


class Counted(SyntheticBackend):
    """Writes a line per measured layer into `log`; the `fatal` one ends its parent."""

    name = word = "counted"

    def __init__(self, *, log: str = "", fatal: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self._log, self._fatal = log, fatal

    def setting(self) -> Setting:
        setting, (nice, omp) = super().setting(), conditions_here()
        oom = Path("/proc/self/oom_score_adj").read_text().strip()
        options = {"nice": str(nice), "omp": str(omp), "oom": oom}
        return replace(setting, options={**setting.options, **options})

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        # Plans try layers with a budget of 1 ms; the reference is a convolution.
        if self._log and budget_ms != 1.0 and layer.kind == "dense":
            with Path(self._log).open("a") as log:
                log.write(f"{os.getpid()} {layer.key}\n")
        if self._fatal == layer.key and budget_ms != 1.0:
            os.kill(os.getppid(), signal.SIGKILL)
        return super().layer(layer, budget_ms=budget_ms)
