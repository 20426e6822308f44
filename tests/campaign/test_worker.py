import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from resperf.backends import backend
from resperf.campaign.messages import plain
from resperf.campaign.worker import Worker, start
from resperf.layers import Conv, Dense, Layer, Pool
from resperf.timing import SamplingProtocol

SHORT = Dense(batch=1, features_in=4, features_out=4)
COPY = Pool(batch=4, channels_in=64, height=64, width=64, kernel_height=1, kernel_width=1)


class FakeProbe:
    """Is slow as it was told."""

    def __init__(self, answers: Iterator[bool]) -> None:
        self._answers = answers

    def is_slow(self) -> bool:
        return next(self._answers)


def worker_with(probes: Mapping[str, Any]) -> Worker:
    device: Any = backend("synthetic")
    return Worker(
        backend=device, protocol=SamplingProtocol(), load=None, reference=None, probes=probes,
        clock=device.clock, now=lambda: 0.0,
    )  # fmt: skip


def flags_of(layer: Layer, before: set[str], after: set[str]) -> list[str]:
    """Measure with probes of both kinds that are slow at these moments."""
    probes = {
        flag: FakeProbe(iter([flag in before, flag in after])) for flag in ("cores", "memory")
    }
    return list(worker_with(probes).measure(plain(layer), 0)["row"]["flags"])


def test_a_short_layer_is_flagged_when_cores_are_slow_before_or_after_it() -> None:
    both = {"cores", "memory"}
    assert flags_of(SHORT, set(), set()) == []
    assert flags_of(SHORT, {"cores"}, set()) == ["cores"]
    assert flags_of(SHORT, set(), {"cores"}) == ["cores"]
    # Its few bytes stay in the nearest cache.
    assert flags_of(SHORT, both, both) == ["cores"]


def test_a_layer_that_waits_for_memory_is_flagged_when_memory_is_slow() -> None:
    both = {"cores", "memory"}
    assert flags_of(COPY, both, both) == ["memory"]
    # A convolution of the same bytes spends its time on arithmetic.
    conv = Conv(batch=4, channels_in=64, height=64, width=64, kernel_height=7, kernel_width=7,
                channels_out=512)  # fmt: skip
    assert conv.moved_bytes > COPY.moved_bytes
    assert flags_of(conv, both, both) == []


def test_a_simulated_device_has_no_probes() -> None:
    settings = {"framework": "synthetic", "settings": {}, "protocol": {}, "reference_interval_s": 3}
    worker = start(settings)
    assert worker.probes == {}
    assert worker.measure(plain(SHORT), 0)["row"]["flags"] == ()


def test_a_real_framework_is_probed() -> None:
    settings = {
        "framework": "onnxruntime", "settings": {"threads": 1}, "reference_interval_s": 3,
        "protocol": {"budget_s": 0.01, "min_time_s": 0.0, "warmup_s": 0.0},
    }  # fmt: skip
    script = (
        "import json, sys\n"
        "from resperf.campaign.worker import start\n"
        "worker = start(json.loads(sys.argv[1]))\n"
        "row = worker.measure(json.loads(sys.argv[2]), 0)['row']\n"
        "print(json.dumps([sorted(worker.probes), row['status']]))"
    )
    assert output_of(script, settings, plain(SHORT)) == [["cores", "memory"], "ok"]


def output_of(script: str, *arguments: Any) -> Any:
    """Run it in a process of its own, since a worker changes its process, and read its JSON."""
    words = [json.dumps(argument) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)
