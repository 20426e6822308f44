"""Quantities of networks from those of layers, as `resperf.quantities.QUANTITIES` defines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from resperf.errors import UnsupportedError
from resperf.quantities import Composition, quantity


def composable(name: str, layer_quantities: Collection[str]) -> bool:
    """Return whether a network's quantity follows from the known quantities of its layers."""
    row = quantity(name)
    if row.over_layers is Composition.DERIVED:
        return all(composable(part, layer_quantities) for part in row.parts)
    return row.over_layers is not Composition.NONE and name in layer_quantities


def composed(name: str, of_layers: Mapping[str, Sequence[float]]) -> float:
    """Compose a network's quantity.

    Parameters
    ----------
    name : str
        A name in the table of quantities.
    of_layers : mapping of str to sequence of float
        Quantity -> its value for each layer.

    Raises
    ------
    UnsupportedError
        If the quantity does not follow from those of layers.
    """
    row = quantity(name)
    if row.over_layers is Composition.SUM:
        return float(sum(of_layers[name]))
    if row.over_layers is Composition.MAXIMUM:
        return max(of_layers[name], default=0.0)
    if row.over_layers is Composition.ENDS:
        return 0.0  # Costs of a network's inputs and outputs are part of the three phases.
    if row.over_layers is Composition.DERIVED:
        return sum(composed(part, of_layers) for part in row.parts)
    raise UnsupportedError(
        f"{name} ({row.contains}) of a network does not follow from that of its layers; use a "
        "predictor trained on networks"
    )
