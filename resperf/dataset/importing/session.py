"""The per-run overhead that published times contain, estimated from the smallest layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from resperf.dataset.importing.mapping import SessionRule
from resperf.dataset.importing.rows import ForeignRow
from resperf.errors import DatasetError
from resperf.measurement import layer_kind


def session_costs(
    rows: Sequence[ForeignRow], rule: SessionRule, device: str
) -> Mapping[str, float]:
    """Estimate the cost of a call in the times of each kind, in ms.

    A call without a layer was not timed, so it is estimated from the smallest layers. A call takes
    no longer than the shortest of those forward passes that move the fewest bytes. A training step
    contains the same call as a forward pass of its layer. Kinds are estimated separately, because
    they were measured in separate campaigns.

    Parameters
    ----------
    rows : sequence of ForeignRow
    rule : SessionRule
    device : str
        Values in `rule` for this device are used instead of estimates.

    Returns
    -------
    mapping of str to float
        `ForeignRow.kind` -> cost in ms.

    Raises
    ------
    DatasetError
        If there are training steps of a kind, but neither forward passes nor a value in `rule`.
    """
    given_ms = rule.known_ms.get(device, {})
    forward: dict[str, list[ForeignRow]] = {}
    for row in rows:
        if not row.optimizer:
            forward.setdefault(row.kind, []).append(row)
    costs = {}
    for kind in dict.fromkeys(row.kind for row in rows):
        base = layer_kind(kind)
        if base in given_ms:
            costs[kind] = given_ms[base]
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
    return rule.share * min(row.median_ms for row in smallest)
