"""Times of operators that the user states, because no layer kind describes them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from resperf.errors import UnsupportedError, listed, printable
from resperf.lowering import LoweredNode
from resperf.network import Network
from resperf.prediction.result import LayerPrediction
from resperf.units import US_PER_MS

_NAMED = 8
"""Operators that an error names."""


class CustomTimes:
    """Gives operators without a layer the times that the user states, and counts them.

    Parameters
    ----------
    network : Network
    times_ms : mapping of str to float
        By domain and operator.

    Raises
    ------
    UnsupportedError
        If a time is not above 0, or the network has no such operator.
    """

    def __init__(self, network: Network, times_ms: Mapping[str, float]) -> None:
        self._times_ms = dict(times_ms)
        self._network = network
        self._names = {
            node.name: f"{node.domain}.{node.op}" if node.domain else node.op
            for node in network.nodes
        }
        self._used: Counter[str] = Counter()
        there = dict.fromkeys(self._names.values())
        for name, time_ms in self._times_ms.items():
            if not 0 < time_ms < math.inf:
                raise UnsupportedError(f"{name}: {time_ms} ms is not a time above 0")
            if name not in there:
                others = [op for op in there if "." in op] or list(there)
                named = listed(list(map(printable, others)), _NAMED)
                raise UnsupportedError(
                    f"{network.name} has no operator {name!r} to give a time; it has: {named}"
                )

    def layer(self, node: LoweredNode) -> LayerPrediction | None:
        """Return a node with its stated time; None if it has none."""
        # PyTorch's kernels have names of their own, in lower case, where their shapes are known.
        kernel = node.op.casefold()
        name = next(
            (
                op
                for op in dict.fromkeys(filter(None, map(self._names.get, node.sources)))
                if op in self._times_ms
                and kernel in (op.casefold(), op.rpartition(".")[2].casefold(), "unknown")
            ),
            "",
        )
        if not name:
            return None
        self._used[name] += 1
        time_ms = self._times_ms[name]
        return LayerPrediction(
            name=node.name, kind=node.op, execution_ms=time_ms, in_range=True,
            sources=node.sources, low_ms=time_ms, high_ms=time_ms, given=True,
        )  # fmt: skip

    def statements(self) -> tuple[str, ...]:
        """Say which operators have which stated times.

        Raises
        ------
        UnsupportedError
            If there are times of operators that are predicted without them.
        """
        for name in self._times_ms:
            if name not in self._used:
                raise UnsupportedError(
                    f"{name} of {self._network.name} is predicted by layers, or runs nothing: "
                    f"leave out --custom {name}"
                )
        return tuple(
            f"{count} x {name} takes {_duration(self._times_ms[name])} each (--custom)"
            if count > 1
            else f"{name} takes {_duration(self._times_ms[name])} (--custom)"
            for name, count in self._used.items()
        )


def _duration(time_ms: float) -> str:
    return f"{time_ms:g} ms" if time_ms >= 0.01 else f"{time_ms * US_PER_MS:g} us"
