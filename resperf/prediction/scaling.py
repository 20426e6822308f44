"""Time and throughput of a network over batch sizes and numbers of devices.

Beringer et al. 2024 ("Dissecting Convolutional Neural Networks for Runtime and Scalability
Prediction", ConvMeter), section 4.3 and Figures 8 and 9. Any predictor of whole networks answers
for one device; for several, one that learnt from runs on several. Where none did, a training step
is composed from one device's step and measured all-reduces (`resperf.devices.collectives`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from resperf.bundle import NETWORK, Bundle
from resperf.devices import device_facts
from resperf.devices.collectives import Topology, topology_of
from resperf.errors import UnsupportedError
from resperf.lowering import too_large
from resperf.network import Network
from resperf.prediction.result import QuantityPrediction
from resperf.prediction.whole_network import time_quantity
from resperf.quantities import EXECUTION, STEP, WHOLE_CALL
from resperf.records import Record
from resperf.settings import PASSES, Mode
from resperf.units import MS_PER_S

_TIMES = {Mode.TRAINING: (STEP,), Mode.INFERENCE: ("latency_ms", EXECUTION, WHOLE_CALL)}
"""Mode -> quantities that are the time of one run; the first that is known counts."""
LEAST_GAIN = 0.5
"""Share of one device's throughput that one more device should add."""
_GRADIENT_BYTES = 4
"""Of a weight: gradients are float32, also under autocast."""
_BUCKET_BYTES = 25 << 20


@dataclass(frozen=True)
class Scaled(Record):
    """One batch size on so many devices.

    Attributes
    ----------
    batch : int
        Of each device.
    devices : int
    time_ms, low_ms, high_ms : float
        Of one run or training step of all devices, with its 90% interval.
    samples_per_s : float
        Of all devices.
    epoch_s : float
        One pass over the data set (section 2); NaN if its size is not given.
    extrapolated : str
        Why it is outside what was measured; empty if it is inside.
    """

    batch: int
    devices: int
    time_ms: float
    low_ms: float
    high_ms: float
    samples_per_s: float
    epoch_s: float
    extrapolated: str


@dataclass(frozen=True)
class Scaling(Record):
    """A network over batch sizes and devices.

    Attributes
    ----------
    network, device, framework : str
    quantity, method : str
        What is predicted, and by which method.
    strong : bool
        Whether the devices share each batch (strong scaling), or each has one of its own.
    least_gain : float
        Share of one device's throughput that one more device should add.
    series : mapping of int to tuple of Scaled
        Batch size as asked for -> its points, by number of devices.
    composed_of : tuple of str
        Parts that times on several devices were put together from; empty if such runs were learnt.
    notes : tuple of str
    """

    network: str
    device: str
    framework: str
    quantity: str
    method: str
    strong: bool
    least_gain: float
    series: dict[int, tuple[Scaled, ...]]
    composed_of: tuple[str, ...]
    notes: tuple[str, ...]

    def turning_point(self, batch: int) -> int | None:
        """Return the devices beyond which one more adds less than `least_gain`; None if none do."""
        points = self.series[batch]
        alone = points[0].samples_per_s / points[0].devices
        for before, after in pairwise(points):
            gain = (after.samples_per_s - before.samples_per_s) / (after.devices - before.devices)
            if gain < self.least_gain * alone:
                return before.devices
        return None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        series = [
            {
                "batch": batch,
                "turning_point": self.turning_point(batch),
                "points": [point.to_json() for point in points],
            }
            for batch, points in self.series.items()
        ]
        return {**super().to_json(), "series": series}


def scaling(
    read: Callable[[int], Network],
    bundle: Bundle,
    batches: Sequence[int],
    devices: Sequence[int],
    *,
    strong: bool = False,
    images: int | None = None,
    topology: str | None = None,
) -> Scaling:
    """Predict a network at batch sizes on numbers of devices.

    Parameters
    ----------
    read : callable
        Reads the network at a batch size.
    bundle : Bundle
        Under the setting that is asked for; its mode decides between runs and training steps.
    batches : sequence of int
        Of each device; with `strong`, of all devices together.
    devices : sequence of int
    strong : bool
        Whether the devices share each batch.
    images : int, optional
        Size of the data set, for the time of an epoch.
    topology : str, optional
        Name of what connects the devices, where their exchange is composed; that of the device by
        default.

    Raises
    ------
    ResperfError
        If there is no topology of that name.
    UnsupportedError
        If the bundle does not predict whole networks, or not on several devices and no exchange
        between them was measured, or if a batch cannot be shared by the devices.
    """
    names = [
        name
        for name in _TIMES[bundle.setting.mode]
        if any(name in part.network_quantities for part in bundle.parts)
    ]
    if not names:
        raise UnsupportedError(
            f"{bundle.path.name} predicts no whole networks, which several devices need; train a "
            "bundle on runs of networks: resperf train RUNS.h5 --method convmeter"
        )
    name, counts = names[0], sorted(set(devices))
    part = bundle.part_for(NETWORK, name, bundle.setting, bundle.platform)
    predictor = part.network_predictor(name)
    most = predictor.most_devices(bundle.setting, bundle.platform)
    connected = _connected(bundle, name, most, counts[-1], topology)
    # Loads what reads operators of PyTorch, which other predictions do without.
    from resperf.predictors.network_totals import counted

    series: dict[int, list[Scaled]] = {batch: [] for batch in batches}
    shared = {
        (batch, count): _share(batch, count) if strong else batch
        for count in counts
        for batch in series
    }
    read_once = cache(read)
    network = read_once(min(shared.values()))
    subjects = predictor.at_batches(read_once, list(dict.fromkeys(shared.values())))
    size_bytes = _GRADIENT_BYTES * counted(network).weights
    for count in counts:
        where = bundle.platform if connected else replace(bundle.platform, devices=count)
        own = [subjects[shared[batch, count]] for batch in series]
        times = time_quantity(own, name, part, bundle.setting, where)
        if connected is not None and count > 1:
            times = [_exchanging(time, size_bytes, connected, count) for time in times]
        for (batch, points), subject, time in zip(series.items(), own, times, strict=True):
            size = shared[batch, count]
            per_s = size * count / time.value * MS_PER_S
            account = predictor.account(subject, bundle.setting, where)
            points.append(
                Scaled(
                    size, count, time.value, time.low, time.high, per_s,
                    math.nan if images is None else images / per_s,
                    account.extrapolated if account is not None else "",
                )
            )  # fmt: skip
    notes = []
    if connected is None and counts[-1] > most:
        notes.append(f"runs on at most {most} devices were measured: more are extrapolated")
    facts, largest = device_facts(bundle.device), max(shared.values())
    if facts is not None and (
        why := too_large(read_once(largest), bundle.setting.precision, facts.memory_bytes)
    ):
        notes.append(f"batch {largest} is too large: {why} of {bundle.device}")
    return Scaling(
        network.name, bundle.device, bundle.framework, name, part.method_of(NETWORK, name), strong,
        LEAST_GAIN, {batch: tuple(points) for batch, points in series.items()},
        () if connected is None else _parts(connected, counts), tuple(notes),
    )  # fmt: skip


def _connected(
    bundle: Bundle, name: str, most: int, devices: int, topology: str | None
) -> Topology | None:
    """Return what connects devices whose exchange is added; None if the times contain it."""
    if devices > 1 and most == 1:
        connected = topology_of(bundle.device, topology)
        if connected is None or name != STEP:
            raise UnsupportedError(
                f"{bundle.path} learnt from runs on one device only, which say nothing about "
                f"{devices}; measure some on several, and train again"
            )
        return connected
    if topology is not None:
        raise UnsupportedError(
            f"{bundle.path} learnt from runs on {most} devices: their exchange is in its times; "
            "leave out the topology"
        )
    return None


def _share(batch: int, count: int) -> int:
    """Return the batch size of each device where they share one."""
    if batch % count:
        raise UnsupportedError(f"a batch of {batch} cannot be shared equally by {count} devices")
    return batch // count


def _exchanging(
    time: QuantityPrediction, size_bytes: float, connected: Topology, count: int
) -> QuantityPrediction:
    """Return the step on several devices from the step on one, with its interval.

    PyTorch's DistributedDataParallel sums gradients in buckets of 25 MiB while the backward pass,
    two thirds of a step, goes on; the last bucket waits for its end. What the backward pass does
    not hide is added. Below, all is hidden; above, nothing.
    """
    whole, _ = connected.all_reduce(count, size_bytes)
    last, _ = connected.all_reduce(count, min(size_bytes, _BUCKET_BYTES))
    hidden_ms = (PASSES - 1) / PASSES * time.value
    exposed_ms = max(last.ms, whole.ms - hidden_ms)
    return replace(time, value=time.value + exposed_ms, high=time.high + whole.high_ms)


def _parts(connected: Topology, counts: Sequence[int]) -> tuple[str, ...]:
    """Name the parts of times on several devices."""
    exchanges = [connected.all_reduce(count, 0.0)[1] for count in counts if count > 1]
    return ("a step on one device", *dict.fromkeys(exchanges))
