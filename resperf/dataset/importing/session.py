"""The session call that others' times contain, estimated from the smallest layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from resperf.dataset.importing.mapping import SessionRule
from resperf.dataset.importing.rows import ForeignRow
from resperf.errors import DatasetError
from resperf.layers import kind_of
from resperf.quantities import EXECUTION


def forward_kind(kind: str) -> str:
    """Name the kind whose forward passes tell the session call of a kind's times."""
    return kind_of(kind).FORWARD or kind


def session_costs(
    rows: Sequence[ForeignRow], rule: SessionRule, device: str
) -> Mapping[str, float]:
    """Estimate what a session call costs in the times of each kind, in ms.

    A call without a layer was not timed. The smallest layers come closest: among those forward
    passes of a kind that move the fewest bytes, no call takes longer than the shortest. A training
    step contains the same call as a forward pass of its layer. Kinds are kept apart, because
    others measured them in campaigns of their own.

    Parameters
    ----------
    rows : sequence of ForeignRow
    rule : SessionRule
    device : str
        What `rule` knows of this device is taken as it is.

    Returns
    -------
    mapping of str to float
        Kind of each row -> cost in ms.

    Raises
    ------
    DatasetError
        If there are training steps of a kind, but no forward pass of it and nothing known.
    """
    known = rule.known_ms.get(device, {})
    forward: dict[str, list[ForeignRow]] = {}
    for row in rows:
        if row.layer.kind == forward_kind(row.layer.kind):
            forward.setdefault(row.layer.kind, []).append(row)
    costs = {}
    for kind in dict.fromkeys(row.layer.kind for row in rows):
        base = forward_kind(kind)
        if base in known:
            costs[kind] = known[base]
        elif base in forward:
            costs[kind] = _estimate_ms(forward[base], rule)
        else:
            raise DatasetError(
                f"training steps of {base} layers, but no forward pass to estimate the session "
                f"call from; import the rows of forward passes in the same command"
            )
    return costs


def _estimate_ms(rows: Sequence[ForeignRow], rule: SessionRule) -> float:
    by_size = sorted(rows, key=lambda row: row.layer.moved_bytes)
    smallest = by_size[: math.ceil(rule.smallest * len(rows))]
    return rule.share * min(row.median_ms(EXECUTION) for row in smallest)
