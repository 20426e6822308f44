"""Time and throughput of a network over batch sizes and numbers of devices.

Beringer et al. 2024 ("Dissecting Convolutional Neural Networks for Runtime and Scalability
Prediction", ConvMeter), section 4.3 and Figures 8 and 9. Any predictor of whole networks answers
for one device; for several, one that learnt from runs on several. Where none did, a training step
is composed from one device's step and the exchange of gradients over a cluster
(`resperf.devices.exchange`) or over measured all-reduces (`resperf.devices.collectives`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from resperf.bundle import NETWORK, Bundle
from resperf.devices import canonical_device, device_facts
from resperf.devices.cluster import Cluster, cluster_of, named_clusters
from resperf.devices.collectives import Topology, topologies, topology_of
from resperf.devices.exchange import GRADIENT_BYTES, Exchanged
from resperf.errors import ResperfError, UnsupportedError, did_you_mean
from resperf.lowering import too_large
from resperf.network import Network
from resperf.prediction.result import QuantityPrediction
from resperf.prediction.whole_network import time_quantity
from resperf.quantities import EXECUTION, STEP, WHOLE_CALL
from resperf.records import Record
from resperf.settings import Mode
from resperf.units import MS_PER_S

_TIMES = {Mode.TRAINING: (STEP,), Mode.INFERENCE: ("latency_ms", EXECUTION, WHOLE_CALL)}
"""Mode -> quantities that are the time of one run; the first that is known counts."""
LEAST_GAIN = 0.5
"""Share of one device's throughput that one more device should add."""


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
    samples_per_s, low_samples_per_s, high_samples_per_s : float
        Of all devices.
    epoch_s, low_epoch_s, high_epoch_s : float
        One pass over the data set, the last step of which may be smaller but takes as long; NaN if
        its size is not given.
    training_s, low_training_s, high_training_s : float
        All epochs; NaN if their number is not given.
    extrapolated : str
        Why it is outside what was measured; empty if it is inside.
    """

    batch: int
    devices: int
    time_ms: float
    low_ms: float
    high_ms: float
    samples_per_s: float
    low_samples_per_s: float
    high_samples_per_s: float
    epoch_s: float
    low_epoch_s: float
    high_epoch_s: float
    training_s: float
    low_training_s: float
    high_training_s: float
    extrapolated: str

    @classmethod
    def of(
        cls, batch: int, devices: int, time: QuantityPrediction, images: int | None,
        epochs: int | None, extrapolated: str,
    ) -> Scaled:  # fmt: skip
        """Return a point from the time of one step."""
        samples = batch * devices * MS_PER_S
        epoch = (math.nan if images is None else math.ceil(images / (batch * devices))) / MS_PER_S
        training = math.nan if epochs is None else epochs * epoch
        return cls(
            batch, devices, time.value, time.low, time.high,
            samples / time.value, samples / time.high, samples / time.low,
            epoch * time.value, epoch * time.low, epoch * time.high,
            training * time.value, training * time.low, training * time.high, extrapolated,
        )  # fmt: skip


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
        least = self.least_gain * points[0].samples_per_s / points[0].devices
        for index, before in enumerate(points[:-1]):
            # Not the next number alone: a second node may add nothing, and a third much.
            if all(
                after.samples_per_s - before.samples_per_s
                < least * (after.devices - before.devices)
                for after in points[index + 1 :]
            ):
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
    epochs: int | None = None,
    cluster: str | Path | Cluster | None = None,
    alone: Callable[[int], QuantityPrediction] | None = None,
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
    epochs : int, optional
        How often it is passed, for the time of the whole training.
    cluster : str, Path or Cluster, optional
        Cluster, its file or name, or the name of a topology, where the exchange of gradients is
        composed; the topology of the device by default.
    alone : callable, optional
        Predicts the training step of one device at a batch size, where no predictor of whole
        networks does.

    Raises
    ------
    ResperfError
        If there is no cluster or topology of that name, or it has fewer devices.
    UnsupportedError
        If nothing predicts whole networks, or not on several devices and no exchange
        between them was measured, or if a batch cannot be shared by the devices.
    """
    counts = sorted(set(devices))
    shared = {
        (batch, count): _share(batch, count) if strong else batch
        for count in counts
        for batch in batches
    }
    read_once = cache(read)
    if alone is None:
        learnt = _Learnt(bundle, read_once, list(dict.fromkeys(shared.values())))
        name, method, most = learnt.name, learnt.method, learnt.most_devices
    else:
        alone = cache(alone)
        name, method, most = STEP, alone(min(shared.values())).method, 1
    connected = _connected(bundle, name, most, counts[-1], cluster)
    # Loads what reads operators of PyTorch, which other predictions do without.
    from resperf.predictors.network_totals import counted

    network = read_once(min(shared.values()))
    size_bytes = GRADIENT_BYTES * counted(network).weights
    series: dict[int, list[Scaled]] = {batch: [] for batch in batches}
    composed_of: dict[str, None] = {}
    for count in counts:
        own = [shared[batch, count] for batch in series]
        if alone is None:
            times, reasons = learnt.times(own, 1 if connected else count)
        else:
            times, reasons = [alone(size) for size in own], [""] * len(own)
        if connected is not None and count > 1:
            exchanged = connected.exchange_of(count, size_bytes)
            composed_of[exchanged.how] = None
            times = [_exchanging(time, exchanged) for time in times]
            reasons = ["; ".join(filter(None, (reason, exchanged.beyond))) for reason in reasons]
        for points, size, time, why in zip(series.values(), own, times, reasons, strict=True):
            points.append(Scaled.of(size, count, time, images, epochs, why))
    notes = []
    if connected is None and counts[-1] > most:
        notes.append(f"runs on at most {most} devices were measured: more are extrapolated")
    if isinstance(connected, Cluster):
        notes += _differing(connected, bundle.device)
    facts, largest = device_facts(bundle.device), max(shared.values())
    if facts is not None and (
        why := too_large(read_once(largest), bundle.setting.precision, facts.memory_bytes)
    ):
        notes.append(f"batch {largest} is too large: {why} of {bundle.device}")
    return Scaling(
        network.name, bundle.device, bundle.framework, name, method, strong, LEAST_GAIN,
        {batch: tuple(points) for batch, points in series.items()},
        ("a step on one device", *composed_of) if connected else (), tuple(notes),
    )  # fmt: skip


class _Learnt:
    """What a bundle's predictor of whole networks says about batch sizes and devices."""

    def __init__(self, bundle: Bundle, read: Callable[[int], Network], sizes: list[int]) -> None:
        names = [
            name
            for name in _TIMES[bundle.setting.mode]
            if any(name in part.network_quantities for part in bundle.parts)
        ]
        if not names:
            raise UnsupportedError(
                f"{bundle.path.name} predicts no whole networks, which several devices need; ask "
                "for training steps (--train), or train a bundle on runs of networks: resperf "
                "train RUNS.h5 --method convmeter"
            )
        self.name, self._bundle = names[0], bundle
        self._part = bundle.part_for(NETWORK, self.name, bundle.setting, bundle.platform)
        self.method = self._part.method_of(NETWORK, self.name)
        self._predictor = self._part.network_predictor(self.name)
        self.most_devices = self._predictor.most_devices(bundle.setting, bundle.platform)
        self._subjects = self._predictor.at_batches(read, sizes)

    def times(self, sizes: list[int], devices: int) -> tuple[list[QuantityPrediction], list[str]]:
        """Return the time at each batch size, and why it is extrapolated."""
        where, setting = replace(self._bundle.platform, devices=devices), self._bundle.setting
        subjects = [self._subjects[size] for size in sizes]
        accounts = [self._predictor.account(subject, setting, where) for subject in subjects]
        reasons = [account.extrapolated if account is not None else "" for account in accounts]
        return time_quantity(subjects, self.name, self._part, setting, where), reasons


def _connected(
    bundle: Bundle, name: str, most: int, devices: int, cluster: str | Path | Cluster | None
) -> Cluster | Topology | None:
    """Return what connects devices whose exchange is added; None if the times contain it."""
    if most > 1:
        if cluster is None:
            return None
        raise UnsupportedError(
            f"{bundle.path} learnt from runs on {most} devices: their exchange is in its times; "
            "leave out the cluster"
        )
    if cluster is not None and name != STEP:
        raise UnsupportedError(
            "only training steps exchange something between devices; add --train"
        )
    if cluster is not None:
        return _of_word(cluster)
    if devices == 1:
        return None
    connected = topology_of(bundle.device)
    if connected is None or name != STEP:
        raise UnsupportedError(
            f"{bundle.path} learnt from runs on one device only, which say nothing about "
            f"{devices}; say what connects them: --train --cluster with a TOML file or a name "
            f"(such as {next(iter(named_clusters()))}; an unknown one lists all)"
        )
    return connected


def _of_word(cluster: str | Path | Cluster) -> Cluster | Topology:
    """Return a cluster or topology by its name, or a cluster by its file."""
    if isinstance(cluster, Cluster):
        return cluster
    word = str(cluster)
    if word in topologies():
        return topologies()[word]
    names = (*named_clusters(), *topologies())
    if word not in names and not Path(word).is_file():
        raise ResperfError(
            f"no cluster {word!r}{did_you_mean(word, names)}: neither a file nor one of: "
            f"{', '.join(names)}"
        )
    return cluster_of(word)


def _differing(cluster: Cluster, device: str) -> list[str]:
    """Say so if a cluster's devices are not those that the step is of."""
    others = sorted({node.device for node in cluster.nodes if node.device} - {
        canonical_device(device)
    })  # fmt: skip
    if not others:
        return []
    return [f"{cluster.name} has {', '.join(others)}; the step on one device is that of {device}"]


def _share(batch: int, count: int) -> int:
    """Return the batch size of each device where they share one."""
    if batch % count:
        raise UnsupportedError(f"a batch of {batch} cannot be shared equally by {count} devices")
    return batch // count


def _exchanging(time: QuantityPrediction, exchanged: Exchanged) -> QuantityPrediction:
    """Return the step on several devices from the step on one, with its interval."""
    alone_ms = time.value, time.low, time.high
    value, low, high = exchanged.exchange.step_ms(alone_ms, exchanged.sums_ms)
    return replace(time, value=value, low=low, high=high)
