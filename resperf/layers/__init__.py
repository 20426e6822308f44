"""Layers: one file per kind, and the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resperf.errors import LayerError
from resperf.layers._base import ACTIVATIONS, LAYOUTS, FieldSpec, FieldValue, Layer
from resperf.layers.activation import Activation
from resperf.layers.conv import Conv
from resperf.layers.dense import Dense
from resperf.layers.pool import Pool
from resperf.layers.reorder import Reorder
from resperf.layers.step import OPTIMIZERS, ConvStep, DenseStep

__all__ = [
    "ACTIVATIONS", "KINDS", "LAYOUTS", "OPTIMIZERS", "Activation", "Conv", "ConvStep", "Dense",
    "DenseStep", "FieldSpec", "FieldValue", "Layer", "Pool", "Reorder", "handed_over_bytes",
    "kind_of", "layer_from_key",
]  # fmt: skip

KINDS: Mapping[str, type[Layer]] = {
    cls.kind: cls for cls in (Conv, Pool, Dense, Activation, Reorder, ConvStep, DenseStep)
}


def kind_of(kind: str) -> type[Layer]:
    """Return the class of a layer kind.

    Raises
    ------
    LayerError
        If there is no such kind.
    """
    try:
        return KINDS[kind]
    except KeyError as error:
        raise LayerError(f"no layer kind {kind!r}; known kinds: {', '.join(KINDS)}") from error


def handed_over_bytes(layers: Sequence[Layer]) -> int:
    """Bytes that layers of one network read from others: the inputs of all but the first."""
    return sum(layer.input_bytes for layer in layers[1:])


def layer_from_key(key: str) -> Layer:
    """Make the layer that a canonical key names: the inverse of `Layer.key`.

    Raises
    ------
    LayerError
        If the key is malformed.
    """
    kind, _, rest = key.partition(":")
    try:
        words = dict(item.split("=", 1) for item in rest.split(","))
    except ValueError as error:
        raise LayerError(f"{key!r} is not a layer key") from error
    return kind_of(kind).from_text(words)
