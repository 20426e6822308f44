"""Measurements: all samples of one subject under one setting on one platform, and a status."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, median, quantiles
from typing import Any, Self

from resperf.errors import LayerError
from resperf.layers import Layer, kind_of, parsed_key
from resperf.platform import Platform
from resperf.quantities import EXECUTION, QUANTITIES, STEP, Estimator
from resperf.records import Record, read_fields
from resperf.settings import OPTIMIZER, OPTIMIZERS, Setting
from resperf.units import json_values

TOLERANCE = 0.1
"""Deviation of the reference layer from its median above which a machine's speed has changed."""
MAX_SAMPLES = 64
THROTTLED, INCONSISTENT = "throttled", "inconsistent"
DEFECTS = (THROTTLED, INCONSISTENT)
"""Flags of rows that are never learnt from, even if there are no others."""


class Status(StrEnum):
    """Status of a measurement."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    UNSUPPORTED = "unsupported"


class StopReason(StrEnum):
    """Why sampling stopped."""

    PRECISE = "precise"
    BUDGET = "budget"


_ESTIMATES: Mapping[Estimator, Callable[[Sequence[float]], float]] = {
    Estimator.MEDIAN: median,
    Estimator.MEAN_OF_BEST_FIVE: lambda values: fmean(sorted(values)[:5]),
    Estimator.THROUGHPUT_MEAN: fmean,
    Estimator.MAXIMUM: max,
    Estimator.UNKNOWN: median,
}


def capped(samples: Sequence[float], limit: int) -> tuple[float, ...]:
    """Return at most `limit` values: all samples, or their evenly spaced quantiles.

    Parameters
    ----------
    samples : sequence of float
    limit : int
        At least 2.

    Returns
    -------
    tuple of float
        The samples in their order where they fit; else quantiles 0, 1/(limit-1), ..., 1,
        ascending and linearly interpolated.
    """
    if len(samples) <= limit:
        return tuple(samples)
    between = quantiles(samples, n=limit - 1, method="inclusive") if limit > 2 else []
    return (min(samples), *between, max(samples))


@dataclass(frozen=True)
class Samples(Record):
    """Samples of one quantity, in its unit and in the order in which they were taken.

    Attributes
    ----------
    values : tuple of float
        At most `MAX_SAMPLES`; if more were taken, their quantiles in ascending order. Samples of
        several builds follow each other.
    taken : int
        Number of samples taken.
    warmups : int
        Number of runs before the first sample.
    stop_reason : StopReason
        Why sampling stopped: the median was precise, or the time budget was used up.
    drift : bool
        Whether the values changed steadily during sampling.
    copies : int, optional
        Copies of the subject per run; None if not recorded.
    divisor : float
        Divisor of a run's raw value.
    offset : float
        Subtracted from the raw value before dividing, in the samples' unit.
    estimator : Estimator
        How the samples give one value.
    """

    values: tuple[float, ...]
    taken: int
    warmups: int
    stop_reason: StopReason
    drift: bool = False
    copies: int | None = None
    divisor: float = 1.0
    offset: float = 0.0
    estimator: Estimator = Estimator.MEDIAN

    @property
    def value(self) -> float:
        """The samples' one value, by the estimator."""
        return _ESTIMATES[self.estimator](self.values)


@dataclass(frozen=True)
class NetworkRef(Record):
    """A network as the subject of a measurement.

    Attributes
    ----------
    name : str
        For people: ``"resnet18"``.
    digest : str
        SHA-256 (hex) of its graph without weights; a dataset stores the graph under this name.
        Empty if the graph is not known, as for networks that others measured.
    description : str
        SHA-256 (hex) of what else is known of it (`resperf.dataset.NetworkDescription`), stored in
        the same way; empty if there is none.
    """

    name: str
    digest: str
    description: str = ""

    @property
    def key(self) -> str:
        """Identifies the subject: equal for equal graphs, and without them for equal names."""
        return f"network(digest={self.digest})" if self.digest else f"network(name={self.name})"


Subject = Layer | NetworkRef

_STEP = "_step"


def written_kind(kind: str, optimizer: object) -> str:
    """Return the name of a kind's layers in keys and files: ``conv``; of steps ``conv_step``."""
    return f"{kind}{_STEP}" if optimizer else kind


def layer_kind(name: str) -> str:
    """Return the kind of layers that `written_kind` names."""
    return name.removesuffix(_STEP)


def quantity_of(name: str, quantity: str) -> str:
    """Return the quantity of layers of `written_kind` that a file calls `quantity`.

    Published files call the time of a training step its execution.
    """
    return STEP if name != layer_kind(name) and quantity == EXECUTION else quantity


def written_layer(
    name: str, fields: Mapping[str, Any], *, typed: bool = False
) -> tuple[Layer, str]:
    """Return a layer from its kind and fields as written, and the optimizer of a training step.

    Parameters
    ----------
    name : str
        As `written_kind` returns it.
    fields : mapping
        The layer's own, and ``optimizer`` of a training step.
    typed : bool
        Whether they are text, with the shorthands of `Layer.from_text`.

    Raises
    ------
    LayerError
        If there is no such kind, a field is wrong, or a training step has no known optimizer.
    """
    cls, own = kind_of(layer_kind(name)), dict(fields)
    optimizer = "" if name == cls.kind else str(own.pop(OPTIMIZER, "")).lower()
    if name != cls.kind and optimizer not in OPTIMIZERS:
        raise LayerError(f"{name}: optimizer={optimizer!r} must be one of {', '.join(OPTIMIZERS)}")
    return cls.from_text(own) if typed else cls.from_fields(own), optimizer


def layer_key(layer: Layer, optimizer: str) -> str:
    """Return the canonical name of a layer, or of its training step with an optimizer.

    Such as ``dense:batch=1,...`` and ``dense_step:batch=1,...,optimizer=adam``.
    """
    if not optimizer:
        return layer.key
    fields = layer.key.partition(":")[2]
    return f"{written_kind(layer.kind, optimizer)}:{fields},{OPTIMIZER}={optimizer}"


def layer_and_optimizer(key: str) -> tuple[Layer, str]:
    """Parse what `layer_key` returned.

    Raises
    ------
    LayerError
        If the key is malformed.
    """
    return written_layer(*parsed_key(key), typed=True)


@dataclass(frozen=True)
class Measurement:
    """The measurement of one subject in a campaign.

    Rows of a journal or dataset share settings and platforms, which are written once.

    Attributes
    ----------
    subject : Layer or NetworkRef
        A lowered layer, or a network.
    status : Status
        ``ok`` means that every quantity has samples.
    samples : mapping of str to Samples
        By names of `resperf.quantities.QUANTITIES`; empty unless ``ok``. A layer's execution is
        its marginal time: that of one more copy, with its own weights, in a graph. Imported rows
        may lack phases, or have only the whole call.
    setting : Setting
    platform : Platform
        How and where it was measured.
    isolated_ms : float
        Median wall time of a run of this layer in isolation, including the call; NaN unless
        ok.
    call_ms : float
        Cost of a call without any layer, already subtracted from execution; NaN unless ok.
    started_at : float
        Seconds since 1970 (UTC); NaN if not known, as in imported rows.
    duration_s : float
        Wall time spent on the subject, including its building.
    overhead_s : float
        The part of `duration_s` outside warm-up and samples.
    reference_ratio : float
        Time of the reference layer near this measurement over its median of the campaign:
        1.6 means that the whole machine was 1.6 times slower. NaN if unknown.
    flags : tuple of str
        ``"drift"``, ``"busy"``, ``"caches"`` or ``"memory"``: reasons to measure again; of imported
        rows ``"throttled"`` or ``"inconsistent"``.
    repeat : int
        0 the first time; higher if the subject was measured repeatedly on purpose.
    detail : str
        Message of a failure, or why an imported row has its flags.
    """

    subject: Subject
    status: Status
    samples: Mapping[str, Samples] = field(default_factory=dict)
    _: dataclasses.KW_ONLY
    setting: Setting
    platform: Platform
    isolated_ms: float = math.nan
    call_ms: float = math.nan
    started_at: float = 0.0
    duration_s: float = 0.0
    overhead_s: float = 0.0
    reference_ratio: float = math.nan
    flags: tuple[str, ...] = ()
    repeat: int = 0
    detail: str = ""

    @property
    def layer(self) -> Layer:
        """The subject, if it is a layer.

        Raises
        ------
        TypeError
            If it is a network.
        """
        if isinstance(self.subject, NetworkRef):
            raise TypeError(f"{self.subject.name} is a network, not a layer")
        return self.subject

    @property
    def key(self) -> str:
        """Canonical name of the subject; that of a layer's training step has its optimizer."""
        if isinstance(self.subject, NetworkRef):
            return self.subject.key
        return layer_key(self.subject, self.setting.optimizer)

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Equal for repeated measurements, which `repeat` numbers.

        All layers of a file have one setting, but for the optimizer of training steps, which the
        key has; a network may be run under several.
        """
        return (self.key, self.setting) if isinstance(self.subject, NetworkRef) else (self.key,)

    @property
    def noisy(self) -> bool:
        """Whether it has a flag, or was taken while the machine was off its usual speed."""
        return bool(self.flags) or abs(self.reference_ratio - 1) > TOLERANCE

    def value(self, quantity: str) -> float:
        """Return the value of a quantity's samples; NaN if it was not measured.

        A derived quantity that was not measured itself is the sum of its parts.
        """
        if quantity in self.samples:
            return self.samples[quantity].value
        row = QUANTITIES.get(quantity)
        return sum(map(self.value, row.parts)) if row is not None and row.parts else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values without setting and platform; NaN is written as None."""
        apart = ("subject", "setting", "platform")
        values = {name: value for name, value in vars(self).items() if name not in apart}
        subject: dict[str, Any]
        if isinstance(self.subject, NetworkRef):
            subject = {"network": self.subject.to_json()}
        else:
            subject = {"kind": self.subject.kind, "fields": self.subject.fields()}
        return {**subject, **json_values(values)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], setting: Setting, platform: Platform) -> Self:
        """Read what `to_json` wrote.

        Raises
        ------
        LayerError
            If the layer's kind or fields are not known.
        """
        if "network" in values:
            subject: Subject = NetworkRef.from_json(values["network"])
        else:
            subject = kind_of(values["kind"]).from_fields(values["fields"])
        given = read_fields(cls, values)
        return cls(**{**given, "subject": subject, "setting": setting, "platform": platform})
