"""How a network's quantity follows from its layers', as `resperf.quantities.QUANTITIES` says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from resperf.errors import UnsupportedError
from resperf.quantities import Composition, quantity


def composable(name: str, known: Collection[str]) -> bool:
    """Say whether a quantity of a network follows from those that are known of its layers."""
    row = quantity(name)
    if row.over_layers is Composition.DERIVED:
        return all(composable(part, known) for part in row.parts)
    return row.over_layers is not Composition.NONE and name in known


def composed(
    name: str, of_layers: Callable[[str], Sequence[float]], of_ends: Callable[[str], float]
) -> float:
    """Compose a network's quantity.

    Parameters
    ----------
    name : str
        Of the table of quantities.
    of_layers : callable
        Quantity -> its value of each layer.
    of_ends : callable
        Quantity -> what the network's inputs, or its outputs, come to.

    Raises
    ------
    UnsupportedError
        If the quantity does not follow from those of layers.
    """
    row = quantity(name)
    if row.over_layers is Composition.SUM:
        return float(sum(of_layers(name)))
    if row.over_layers is Composition.MAXIMUM:
        return max(of_layers(name), default=0.0)
    if row.over_layers is Composition.ENDS:
        return of_ends(name)
    if row.over_layers is Composition.DERIVED:
        return sum(composed(part, of_layers, of_ends) for part in row.parts)
    raise UnsupportedError(
        f"{name} ({row.contains}) of a network does not follow from that of its layers; use a "
        "predictor that learnt of networks"
    )
