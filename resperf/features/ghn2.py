"""GHN-2's vector of a network, as PredictDDL uses it (sections III-B and III-E).

A network is a graph of primitive operators; a gated graph network passes messages along its edges
and its shortest paths, forwards and backwards (equations 3 and 4); the mean over the nodes is the
vector. "Parameter Prediction for Unseen Deep Architectures" (NeurIPS 2021) says how the network is
trained: it writes weights of other networks (`resperf.training.embedding`).

What the paper leaves open is done as in the code of GHN-2: 32 numbers, one traversal (T = 1), paths
of at most 50 edges, each node reading what its neighbours became in the same traversal, a
LayerNorm, and the mean. Paths of one edge are left to the first sum, as equation 4 says.

The vector knows neither image size nor batch, and a mean forgets how many nodes there are:
`ghn2-paper` reads types of operators alone, so that ResNet-50 and Wide-ResNet-50-2 are the same;
`ghn2` also reads the shapes of the weights, as GHN-2's authors do and the paper does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from resperf.features import Array
from resperf.features.primitives import TYPES, UNKNOWN, PrimitiveGraph

CHANNELS = np.array([0, 1, 3, *range(8, 57, 8), *range(64, 4081, 16), *range(4096, 8193, 32)])
"""Channels that have a vector, GHN-2's; others get the nearest one's, no weight the first."""
KERNELS = np.array([0, 1, 3, 5, 7, 9, 11, 14, 16])
SIZE = 32
VARIANTS = ("ghn2", "ghn2-paper")


def codes(graph: PrimitiveGraph) -> npt.NDArray[np.int64]:
    """Return indices of type, output channels, input channels, height and width, (nodes, 5).

    The type of an unknown node is the number of types.
    """
    indices = {name: index for index, name in enumerate((*TYPES, UNKNOWN))}
    shapes = np.array([(*shape, *(0,) * (4 - len(shape))) for shape in graph.shapes])
    return np.column_stack([
        [indices[name] for name in graph.types],
        *(_nearest(CHANNELS, shapes[:, side]) for side in (0, 1)),
        *(_nearest(KERNELS, shapes[:, side]) for side in (2, 3)),
    ])  # fmt: skip


def _nearest(table: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> Any:
    """Return the index of the nearest entry; 0 stands for no weight and is nobody's nearest."""
    nearest = 1 + np.abs(table[1:] - values[:, None]).argmin(1)
    return np.where(values == 0, 0, nearest)


@dataclass(frozen=True)
class GHN2:
    """The graph network.

    Attributes
    ----------
    weights : mapping of str to ndarray
        ``types`` (types, 32); of ``ghn2`` alone ``channels`` and ``kernels`` (entries, 8);
        ``mlp`` and ``mlp_sp``, each 32-16-32; ``gru``, gates in PyTorch's order; ``norm``.
    """

    weights: Mapping[str, Array]

    def embed(self, graph: PrimitiveGraph) -> Array:
        """Return the vector of a graph, (32,)."""
        w = self.weights
        rows = codes(graph)
        states = np.vstack([w["types"], np.zeros(SIZE)])[rows[:, 0]]
        if "channels" in w:
            of_shape = [w["channels"][rows[:, side]] for side in (1, 2)]
            of_shape += [w["kernels"][rows[:, side]] for side in (3, 4)]
            states = states + np.hstack(of_shape)
        direct, virtual = graph.path_weights()
        order = range(len(states))
        self._traverse(states, order, direct, virtual)
        self._traverse(states, order[::-1], direct.T, virtual.T)
        centred = states - states.mean(1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return np.asarray((normed * w["norm.weight"] + w["norm.bias"]).mean(0))

    def _traverse(self, states: Array, order: Sequence[int], direct: Array, virtual: Array) -> None:
        """Change the states in place, node after node, as equation 4 says."""
        near, far = np.zeros_like(states), np.zeros_like(states)
        for node in order:
            message = direct[node] @ near + virtual[node] @ far
            states[node] = self._gru(message, states[node])
            near[node] = self._mlp("mlp", states[node])
            far[node] = self._mlp("mlp_sp", states[node])

    def _mlp(self, name: str, x: Array) -> Array:
        for layer in (0, 1):
            weight, bias = (self.weights[f"{name}.{layer}.{part}"] for part in ("weight", "bias"))
            x = np.maximum(weight @ x + bias, 0)
        return x

    def _gru(self, message: Array, state: Array) -> Array:
        w = self.weights
        read = w["gru.weight_ih"] @ message + w["gru.bias_ih"]
        held = w["gru.weight_hh"] @ state + w["gru.bias_hh"]
        reset, update = 1 / (1 + np.exp(-(read + held)[: 2 * SIZE].reshape(2, SIZE)))
        new = np.tanh(read[2 * SIZE :] + reset * held[2 * SIZE :])
        return np.asarray((1 - update) * new + update * state)
