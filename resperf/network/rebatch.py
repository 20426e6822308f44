"""Rewrite target shapes into which an exporter wrote a fixed batch, for another batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

SHAPE_INPUT: Mapping[str, int] = {"Reshape": 1, "Expand": 1, "Resize": 3}
"""Operator -> which input holds a shape whose first dimension may be the batch."""


def rebatched(
    op: str, target: Sequence[int], shape: Sequence[int], old: int, new: int
) -> tuple[int, ...] | None:
    """Return a target shape with the new batch instead of the old one.

    Parameters
    ----------
    op : str
        ``Reshape``, ``Expand`` or ``Resize``.
    target : sequence of int
        As in the file.
    shape : sequence of int
        Of the tensor that is reshaped, at the new batch.
    old, new : int
        Batch in the file, and as requested.

    Returns
    -------
    tuple of int or None
        None where the target holds no batch.
    """
    if not target or not shape:
        return None
    if op != "Reshape":
        replaced = target[0] == old and shape[0] == new and len(target) == len(shape)
        return (new, *target[1:]) if replaced else None
    dims = [shape[i] if dim == 0 and i < len(shape) else dim for i, dim in enumerate(target)]
    if -1 in dims:
        replaced = dims[0] == old and shape[0] == new
        rest = new * math.prod(dim for dim in dims[1:] if dim != -1)
        fits = rest > 0 and math.prod(shape) % rest == 0
        return (new, *target[1:]) if replaced and fits else None
    # The batch may be folded into a dimension with others, such as attention heads; it is the first
    # one, or comes behind tokens.
    first = 0
    while (
        shape[0] != new and first < min(len(dims), len(shape)) - 1 and dims[first] == shape[first]
    ):
        first += 1
    misfit = math.prod(dims) * new == math.prod(shape) * old
    if misfit and dims[first] > 0 and dims[first] % old == 0:
        return (*target[:first], dims[first] // old * new, *target[first + 1 :])
    return None
