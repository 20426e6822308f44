"""The contract of a backend: build a layer or a network in one framework, and sample it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Protocol, Self

from resperf.errors import (
    MeasurementError,
    ResperfError,
    UnsupportedError,
    first_line,
    is_out_of_memory,
)
from resperf.layers import Layer
from resperf.platform import Platform, this_platform, usable_cores
from resperf.quantities import PHASES
from resperf.settings import Setting
from resperf.targets import DEFAULT
from resperf.timing import TIME_UNIT, Sampler, WallClock

Shapes = Mapping[str, Sequence[int]]
"""Input of a network -> its shape."""
ESTIMATES = 5
"""Runs of one copy, by the fastest of which the number of copies is chosen."""


def _nothing() -> None:
    """Free nothing."""


def _closed() -> float:
    raise MeasurementError("what was closed cannot be run; build it again")


@dataclass(frozen=True)
class Phase:
    """How one quantity of something that was built is sampled.

    Attributes
    ----------
    sampler : callable
        Runs it once, to its end, and returns the quantity's raw value: a `WallClock` around a
        callable, an event timer, an allocator's peak.
    unit : str
        Of the values; milliseconds of times.
    offset : float
        Part of the raw value that does not belong to the quantity, such as the call.
    copies : int
        How many copies of the layer one run holds: a sample is ``(value - offset) / copies``.
    """

    sampler: Sampler
    unit: str = TIME_UNIT
    offset: float = 0.0
    copies: int = 1


class Closing:
    """Base of what is closed on leaving its ``with`` block."""

    def close(self) -> None:
        """Free what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass
class Built(Closing):
    """A layer or a network, ready to run; frees its memory on leaving the ``with`` block.

    Attributes
    ----------
    phases : mapping of str to Phase
        Every quantity that it offers: those of `resperf.quantities.PHASES`, in that order, and
        others by their names, such as ``"peak_memory_bytes"``.
    isolated : callable
        Runs the layer alone, or the whole network, once, its input and output on the device, and
        returns that time in milliseconds.
    free : callable
        Frees what was built; nothing unless a backend says what.
    """

    phases: Mapping[str, Phase]
    isolated: Sampler
    free: Callable[[], object] = _nothing

    @classmethod
    def of_phases(
        cls,
        preprocess: Sampler,
        execution: Phase,
        postprocess: Sampler,
        isolated: Sampler,
        free: Callable[[], object] = _nothing,
        **others: Phase,
    ) -> Self:
        """Make one that offers the three phases, and others by their names."""
        phases = (Phase(preprocess), execution, Phase(postprocess))
        return cls(dict(zip(PHASES, phases, strict=True)) | others, isolated, free)

    def with_memory(self, samplers: Mapping[str, Sampler]) -> Self:
        """Offer quantities of memory too, in bytes."""
        memory = {name: Phase(sampler, unit="bytes") for name, sampler in samplers.items()}
        return replace(self, phases={**self.phases, **memory})

    def close(self) -> None:
        """Free what was built; a later run says that it is gone."""
        self.free()
        self.phases, self.isolated, self.free = {}, _closed, _nothing


class Backend(Protocol):
    """One framework on one device. The constructor takes settings as keywords; all have defaults.

    Backends that derive from it inherit what they need not say.

    Importing a backend's module imports its framework; `resperf.backends.backend` does so on use.
    """

    name: str
    """Word of the command line, such as ``"onnxruntime"``."""
    word: str = DEFAULT.device_class
    """The device that was asked for: ``"cuda:0"`` is the first GPU."""
    values: Mapping[str, Sequence[float]] = MappingProxyType({})
    """Values of a network's inputs; others are made up."""
    takes_values: bool = False
    """Whether it uses `values`."""

    def own_process(self) -> None:
        """Make use of it that this process does nothing but measure with this backend."""

    def has_joined(self) -> bool:
        """Join the processes of another host, if that one is asked and not this one."""
        return False

    def setting(self) -> Setting:
        """How this framework runs layers and networks here."""
        ...

    def platform(self) -> Platform:
        """Where it runs them: this machine, and the device of `word`."""
        return this_platform(self.word)

    def costs(self) -> Mapping[str, float]:
        """Return what a call costs, in milliseconds; measured once, then kept.

        ``call_ms``: a call without layers. ``reshape_ms``: one reshape.
        ``dispatch_ms``: what the host needs to start one kernel, where layers' times do not
        contain it.
        """
        ...

    def overheads_between_layers(self) -> Mapping[str, float]:
        """Measure what a layer costs behind another one beyond its marginal time, now.

        ``overhead_ms_per_layer`` each, and ``overhead_ms_per_mb`` for what it reads
        (`bytes_between_layers`). It changes with how far apart the cores happen to be: ask now and
        then, and take the median. Also what weights cost by how far away they lie
        (`resperf.copies.weights_cost`), where a backend knows. Empty where it has no such costs.
        """
        return {}

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Turn layers as drawn into the lowered layers that the framework would run.

        Each answer has the same kind as its question and the framework's own `layout`; a layer
        that the framework cannot run stays as it is (building it raises UnsupportedError).
        """
        ...

    def without_layers(self) -> str:
        """Say why no layer's time in its setting can be measured; empty if it can.

        Even then `layer` builds some form of a layer, by which the machine is watched.
        """
        return ""

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        """Build one lowered layer.

        Parameters
        ----------
        layer : Layer
            As `lower` returned it.
        budget_ms : float
            Wall time that one run of the execution phase may take; bounds how many copies of the
            layer one run holds. A layer that takes longer is run in as few copies as the phase's
            definition allows.

        Raises
        ------
        UnsupportedError
            If this framework cannot run such a layer.
        MemoryError
            If it does not fit.
        """
        ...

    def network(self, path: Path, *, batch: int | None, shapes: Shapes | None = None) -> Built:
        """Build a whole network from an ONNX file; weights that are absent are made up.

        Raises
        ------
        NetworkError, UnsupportedError
            If the file cannot be read or run.
        """
        ...


def check_choices(framework: str, **chosen: tuple[str, Collection[str]]) -> None:
    """Refuse settings of a framework that are not among its choices, given as (value, choices).

    Raises
    ------
    ResperfError
    """
    for word, (value, choices) in chosen.items():
        if value not in choices:
            there = ", ".join(filter(None, choices))
            raise ResperfError(f"{word}={value} does not exist in {framework}; it has {there}")


def as_resperf_error(error: Exception, framework: str, what: str) -> Exception:
    """Turn what a framework raised into an error of ours, or a lack of memory into MemoryError."""
    text = first_line(error)
    if is_out_of_memory(f"{type(error).__name__}: {error}"):
        return MemoryError(f"{what} does not fit into memory: {text}")
    return UnsupportedError(f"{framework} cannot run {what}: {text}")


def usable_threads(threads: int | None) -> int:
    """Return the threads of a framework: those asked for, else one for each usable core.

    Raises
    ------
    ResperfError
        If that is none.
    """
    chosen = usable_cores() if threads is None else threads
    if chosen < 1:
        raise ResperfError(f"threads={threads} must be at least 1")
    return chosen


def copies_for(
    run_alone: Sampler, call_ms: float, weight_bytes: int, budget_ms: float, most: int | None = None
) -> int:
    """Choose how many copies of a layer one run holds.

    Parameters
    ----------
    run_alone : callable
        Times a run of one copy; the fastest of some counts.
    call_ms : float
        What of such a run is not the layer's.
    weight_bytes : int
        Of one copy.
    budget_ms : float
        Limit on the time of one run.
    most : int, optional
        Copies that the framework can hold, where fewer than usual.
    """
    # It loads NumPy, which a campaign's own process does without.
    from resperf.copies import SHORTEST_MS, copies_of

    best_ms = run_alone()
    for _ in range(ESTIMATES - 1):
        if best_ms > budget_ms:
            break
        best_ms = min(best_ms, run_alone())
    one_ms = max(best_ms - call_ms, SHORTEST_MS)
    copies = copies_of(one_ms, weight_bytes, budget_ms=budget_ms)
    return copies if most is None else min(copies, most)


def median_of(sampler: Sampler, seconds: float = 0.2, *, warmups: int = 20) -> float:
    """Median of repeated samples, for constants measured once per process."""
    samples: list[float] = []
    for _ in range(warmups):
        sampler()
    stop = time.perf_counter_ns() + seconds * 1e9
    while time.perf_counter_ns() < stop or len(samples) < 5:
        samples.append(sampler())
    return median(samples)


def median_ms(run: Callable[[], object], seconds: float = 0.2) -> float:
    """Median wall time of repeated runs."""
    return median_of(WallClock(run), seconds)
