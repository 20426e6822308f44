"""Time and throughput of a network over batch sizes and numbers of devices.

Beringer et al. 2024 ("Dissecting Convolutional Neural Networks for Runtime and Scalability
Prediction", ConvMeter), section 4.3 and Figures 8 and 9. Any predictor of whole networks answers
for one device; for several, one that learnt from runs on several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from resperf.bundle import NETWORK, Bundle
from resperf.errors import UnsupportedError
from resperf.network import Network
from resperf.quantities import EXECUTION, STEP, WHOLE_CALL
from resperf.records import Record
from resperf.settings import Mode
from resperf.units import MS_PER_S

_TIMES = {
    Mode.TRAINING: (STEP,),
    Mode.INFERENCE: ("latency_ms", EXECUTION, WHOLE_CALL),
}
"""Mode -> quantities that are the time of one run; the first that is known counts."""


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
    images_per_s : float
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
    images_per_s: float
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
    notes: tuple[str, ...]

    def turning_point(self, batch: int) -> int | None:
        """Return the devices beyond which one more adds less than `least_gain`; None if none do."""
        points = self.series[batch]
        alone = points[0].images_per_s / points[0].devices
        for before, after in pairwise(points):
            gain = (after.images_per_s - before.images_per_s) / (after.devices - before.devices)
            if gain < self.least_gain * alone:
                return before.devices
        return None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {**vars(self)}
        series = values.pop("series")
        return {
            **values,
            "notes": list(self.notes),
            "series": [
                {
                    "batch": batch,
                    "turning_point": self.turning_point(batch),
                    "points": [each.to_json() for each in points],
                }
                for batch, points in series.items()
            ],
        }


def scaling(
    read: Callable[[int], Network],
    bundle: Bundle,
    batches: Sequence[int],
    devices: Sequence[int],
    *,
    strong: bool = False,
    images: int | None = None,
    least_gain: float = 0.5,
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
    least_gain : float
        See `Scaling`.

    Raises
    ------
    UnsupportedError
        If the bundle does not predict whole networks, or not on several devices, or if a batch
        cannot be shared by the devices.
    """
    names = [
        name
        for name in _TIMES[bundle.setting.mode]
        if any(name in part.network_quantities for part in bundle.parts)
    ]
    if not names:
        raise UnsupportedError(
            f"{bundle.path} predicts no {' or '.join(_TIMES[bundle.setting.mode])} of whole "
            "networks; train one on runs of networks: resperf train RUNS.h5 --method convmeter"
        )
    name, counts = names[0], sorted(set(devices))
    part = bundle.answering(NETWORK, name, bundle.setting, bundle.platform)
    most = part.most_devices(name, bundle.setting, bundle.platform)
    if counts[-1] > 1 and most == 1:
        raise UnsupportedError(
            f"{bundle.path} learnt from runs on one device only, which say nothing about "
            f"{counts[-1]}; measure some on several, and train again"
        )
    read_once = cache(read)
    series = {}
    for batch in dict.fromkeys(batches):
        points = []
        for count in counts:
            if strong and batch % count:
                raise UnsupportedError(
                    f"a batch of {batch} cannot be shared equally by {count} devices"
                )
            each = batch // count if strong else batch
            points.append(_point(read_once(each), part, bundle, name, each, count, images))
        series[batch] = tuple(points)
    notes = []
    if counts[-1] > most:
        notes.append(f"runs on at most {most} devices were measured: more are extrapolated")
    return Scaling(
        read_once(next(iter(series.values()))[0].batch).name, bundle.device, bundle.framework, name,
        part.method_of(NETWORK, name), strong, least_gain, series, tuple(notes),
    )  # fmt: skip


def _point(
    network: Network, part: Bundle, bundle: Bundle, name: str, batch: int, count: int,
    images: int | None,
) -> Scaled:  # fmt: skip
    where = replace(bundle.platform, devices=count)
    found = part.predict_networks([network], bundle.setting, where, name)[name]
    account = part.account(network, name, bundle.setting, where)
    time_ms, low_ms, high_ms = (float(v[0]) for v in (found.values, found.low, found.high))
    per_s = batch * count / time_ms * MS_PER_S
    return Scaled(
        batch, count, time_ms, low_ms, high_ms, per_s,
        math.nan if images is None else images / per_s,
        account.extrapolated if account is not None else "",
    )  # fmt: skip
