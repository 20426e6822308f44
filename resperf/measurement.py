"""One layer on one machine: all samples of its phases, and how the measuring ended."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any, Self

from resperf.layers import Layer, kind_of

TOLERANCE = 0.1
"""A machine whose reference is off by more than this share of its median changed speed."""
PHASES = ("preprocess", "execution", "postprocess")
"""The phases of a layer or a network, in the order in which they run."""
WHOLE_CALL = "whole_call"
"""Times of others may hold all three phases and the session call in one number, unsplit."""
TIMED = (*PHASES, WHOLE_CALL)
"""Everything that a time may be of."""
MAX_SAMPLES = 64


def layer_phase(phases: Collection[str]) -> str:
    """Name the phase that holds a layer's own time: execution, else the whole call."""
    return "execution" if "execution" in phases else WHOLE_CALL


class Status(StrEnum):
    """How the measuring of one layer ended."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    UNSUPPORTED = "unsupported"


class StopReason(StrEnum):
    """Why sampling stopped."""

    PRECISE = "precise"
    BUDGET = "budget"


@dataclass(frozen=True)
class PhaseSamples:
    """Samples of one phase, in the order they were taken.

    Attributes
    ----------
    samples_ms : tuple of float
        At most `MAX_SAMPLES`; where more were taken, their quantiles in ascending order. Those of
        several builds stand one build after the other.
    taken : int
        How many samples were taken.
    warmups : int
        How many runs came before the first sample.
    stop_reason : StopReason
        Whether the median was precise or the time budget ended.
    drift : bool
        Whether the times moved steadily while they were taken.
    copies : int, optional
        How many copies of the subject one run held; None where it was not written down.
    divisor : float
        What a run's raw value was divided by to give a sample.
    offset : float
        What was subtracted from the raw value before dividing, in the samples' unit.
    """

    samples_ms: tuple[float, ...]
    taken: int
    warmups: int
    stop_reason: StopReason
    drift: bool = False
    copies: int | None = None
    divisor: float = 1.0
    offset: float = 0.0

    @property
    def median_ms(self) -> float:
        """Median of the samples."""
        return median(self.samples_ms)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(
            samples_ms=tuple(values["samples_ms"]),
            taken=values["taken"],
            warmups=values["warmups"],
            stop_reason=StopReason(values["stop_reason"]),
            drift=values["drift"],
            copies=values.get("copies"),
            divisor=values.get("divisor", 1.0),
            offset=values.get("offset", 0.0),
        )


@dataclass(frozen=True)
class Measurement:
    """What became of one layer in a campaign.

    Attributes
    ----------
    layer : Layer
        The lowered layer.
    status : Status
        ``ok`` means that every phase has samples.
    phases : mapping of str to PhaseSamples
        By the names of `PHASES`; empty unless ``ok``. Execution is the marginal time of one more
        such layer in a graph, each with weights of its own. Imported rows may lack phases, or have
        `WHOLE_CALL` alone.
    isolated_ms : float
        Median wall time of a run of this layer alone, the session call included; NaN unless ok.
    session_ms : float
        What a session call costs without any layer, already taken out of execution; NaN unless ok.
    started_at : float
        Seconds since 1970 (UTC); NaN where others measured and did not say.
    duration_s : float
        Wall time spent on the layer, building included.
    overhead_s : float
        The part of `duration_s` outside warm-up and samples.
    reference_ratio : float
        Time of the reference layer near this measurement over its median of the campaign:
        1.6 means that the whole machine was 1.6 times slower. NaN where unknown.
    flags : tuple of str
        ``"drift"``, ``"busy"``, ``"caches"`` or ``"memory"``: reasons to measure again.
    repeat : int
        0 the first time; higher where the layer was measured again on purpose.
    detail : str
        Message of a failure.
    """

    layer: Layer
    status: Status
    phases: Mapping[str, PhaseSamples] = field(default_factory=dict)
    isolated_ms: float = math.nan
    session_ms: float = math.nan
    started_at: float = 0.0
    duration_s: float = 0.0
    overhead_s: float = 0.0
    reference_ratio: float = math.nan
    flags: tuple[str, ...] = ()
    repeat: int = 0
    detail: str = ""

    def phase_ms(self, phase: str) -> float:
        """Median time of a phase; NaN where it was not measured."""
        samples = self.phases.get(phase)
        return math.nan if samples is None else samples.median_ms

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: one line of a campaign's journal. NaN is written as None."""
        values = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("layer", "phases")
        }
        for label, value in values.items():
            if isinstance(value, float) and math.isnan(value):
                values[label] = None
        return {
            "kind": self.layer.kind,
            "fields": self.layer.fields(),
            "phases": {name: samples.to_json() for name, samples in self.phases.items()},
            **values,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises
        ------
        LayerError
            If the layer's kind or fields are not known.
        """
        rest = {k: v for k, v in values.items() if k not in ("kind", "fields", "phases")}
        for label in ("isolated_ms", "session_ms", "reference_ratio"):
            if rest.get(label) is None:
                rest[label] = math.nan
        return cls(
            layer=kind_of(values["kind"]).from_fields(values["fields"]),
            phases={k: PhaseSamples.from_json(v) for k, v in values["phases"].items()},
            **{**rest, "status": Status(rest["status"]), "flags": tuple(rest["flags"])},
        )
