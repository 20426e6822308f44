"""Quantities: the numbers that are measured and predicted, their contents and composition.

A new quantity is one row of `QUANTITIES`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from resperf.errors import ResperfError


class Level(StrEnum):
    """Level of a quantity, measurement or predictor."""

    LAYER = "layer"
    NETWORK = "network"


class Composition(StrEnum):
    """How a quantity of a network follows from those of its layers.

    ``ends`` counts once, at the network's inputs or outputs (ResPerfNet, equation 3).
    """

    SUM = "sum"
    MAXIMUM = "maximum"
    ENDS = "ends"
    DERIVED = "derived"
    NONE = "none"


class Estimator(StrEnum):
    """How a value was computed from samples."""

    MEDIAN = "median"
    MEAN_OF_BEST_FIVE = "mean of the best five"
    THROUGHPUT_MEAN = "mean of a throughput run"
    MAXIMUM = "maximum"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Quantity:
    """One row of the table.

    Attributes
    ----------
    name : str
        Ends in its unit: ``"execution_ms"``.
    contains : str
        Description of its contents.
    over_layers : Composition
    levels : frozenset of Level
        Levels of subjects that have it.
    parts : tuple of str
        Quantities that a derived one is the sum of.
    """

    name: str
    contains: str
    over_layers: Composition = Composition.NONE
    levels: frozenset[Level] = frozenset(Level)
    parts: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """``"ms"``, ``"s"`` or ``"bytes"``."""
        return self.name.rpartition("_")[2]

    @property
    def stem(self) -> str:
        """The name without its unit: ``"execution"``."""
        return self.name.rpartition("_")[0]

    @property
    def is_time(self) -> bool:
        """Whether it is a duration."""
        return self.unit in ("ms", "s")


_NETWORK = frozenset({Level.NETWORK})

_ROWS = (
    Quantity("preprocess_ms", "from the host's arrays to values on the device", Composition.ENDS),
    Quantity(
        "execution_ms",
        "of a layer: how much longer a run takes with one more of it; of a network: all layers, "
        "reshapes and the call",
        Composition.SUM,
    ),
    Quantity("postprocess_ms", "from values on the device to the host's arrays", Composition.ENDS),
    Quantity(
        "whole_call_ms",
        "one call as others timed it: per-run overhead and copies included, not split",
    ),
    Quantity(
        "latency_ms", "one run of a network: its three phases", Composition.DERIVED, _NETWORK,
        ("preprocess_ms", "execution_ms", "postprocess_ms"),
    ),
    Quantity(
        "profiled_ms",
        "the kernels, as the framework's own profiler reports them; re-layouts apart",
    ),
    Quantity(
        "relayout_ms",
        "changes of memory layout or type that the framework added, by its own profiler",
    ),
    Quantity("forward_ms", "forward pass of a training step", Composition.SUM),
    Quantity("backward_ms", "backward pass of a training step", Composition.SUM),
    Quantity("update_ms", "the optimizer's update of all weights", Composition.SUM),
    Quantity(
        "step_ms", "one training step", Composition.DERIVED,
        parts=("forward_ms", "backward_ms", "update_ms"),
    ),
    Quantity(
        "allreduce_ms",
        "the exchange of all gradients between devices, apart from the backward pass that hides "
        "some of it",
        levels=_NETWORK,
    ),
    Quantity("epoch_s", "one pass over a data set", levels=_NETWORK),
    Quantity("device_step_ms", "one training step, without waiting for the host", levels=_NETWORK),
    Quantity("peak_memory_bytes", "most memory that was allocated at once"),
    Quantity("peak_reserved_bytes", "most memory that the allocator held at once", levels=_NETWORK),
    Quantity(
        "process_memory_bytes", "most memory that the process held at once, libraries included",
        levels=_NETWORK,
    ),
)  # fmt: skip

QUANTITIES: Mapping[str, Quantity] = {row.name: row for row in _ROWS}
"""Name -> row."""


EXECUTION, WHOLE_CALL, STEP = "execution_ms", "whole_call_ms", "step_ms"
LATENCY = "latency_ms"
PEAK_MEMORY, RESERVED_MEMORY, PROCESS_MEMORY = (
    "peak_memory_bytes", "peak_reserved_bytes", "process_memory_bytes",
)  # fmt: skip
PHASES = QUANTITIES[LATENCY].parts
"""The phases of a layer or a network, in the order in which they run."""
_PARTS = frozenset(part for row in _ROWS for part in row.parts)


def layer_quantity(names: Collection[str]) -> str:
    """Return the main quantity of a layer among `names`: execution, the whole call, or a step.

    Without these, it is the first quantity that does not only count at a network's ends.
    """
    others = (name for name, row in QUANTITIES.items() if row.over_layers is not Composition.ENDS)
    ranked = (EXECUTION, WHOLE_CALL, STEP, *others)
    return next((name for name in ranked if name in names), WHOLE_CALL)


def learnt_quantities(names: Collection[str]) -> tuple[str, ...]:
    """Return what predictors of layers learn of `names`: the main quantity first.

    The others are those that a network's value follows from, unless they are parts of a time.
    """
    own = layer_quantity(names)
    composed = (Composition.SUM, Composition.MAXIMUM)
    others = (
        name
        for name, row in QUANTITIES.items()
        if name in names and name not in _PARTS and row.over_layers in composed
    )
    return tuple(dict.fromkeys((own, *others)))


def quantity_name(word: str) -> str:
    """Return the name of the quantity with this name or stem: ``"execution"``.

    An unknown word is returned unchanged.
    """
    return next((row.name for row in QUANTITIES.values() if word in (row.name, row.stem)), word)


def quantity(name: str) -> Quantity:
    """Return a row of the table.

    Raises
    ------
    ResperfError
        If there is no such quantity.
    """
    try:
        return QUANTITIES[name]
    except KeyError:
        raise ResperfError(
            f"no quantity {name!r}; known quantities: {', '.join(QUANTITIES)}"
        ) from None
