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

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from resperf.errors import BundleError
from resperf.features import Array
from resperf.features.primitives import TYPES, UNKNOWN, PrimitiveGraph
from resperf.files import shipped_files

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
    weights : mapping of str to ndarray, or to torch.Tensor
        ``types`` (types, 32); of ``ghn2`` alone ``channels`` and ``kernels`` (entries, 8);
        ``mlp`` and ``mlp_sp``, each 32-16-32; ``gru``, gates in PyTorch's order; ``norm``.
    array : module
        numpy, or torch for training: what both have is all that is used.
    """

    weights: Mapping[str, Any]
    array: Any = np

    def embed(self, graph: PrimitiveGraph) -> Array:
        """Return the vector of a graph, (32,)."""
        return np.asarray(self.states(graph).mean(0))

    def states(self, graph: PrimitiveGraph) -> Any:
        """Return the states of the nodes after one traversal forwards and backwards, (nodes, 32).

        Graphs may be several side by side: what no path connects does not matter to each other.
        """
        w, rows = self.weights, codes(graph)
        is_known = self.array.asarray(rows[:, :1] < len(TYPES))
        states = w["types"][np.minimum(rows[:, 0], len(TYPES) - 1)] * is_known
        if "channels" in w:
            of_shape = [w["channels"][rows[:, side]] for side in (1, 2)]
            of_shape += [w["kernels"][rows[:, side]] for side in (3, 4)]
            states = states + self.array.concatenate(of_shape, 1)
        direct, virtual = graph.path_weights()
        order = range(len(rows))
        states = self._traversed(states, order, direct, virtual)
        states = self._traversed(states, order[::-1], direct.T, virtual.T)
        states = states - states.mean(1)[:, None]
        deviations = ((states**2).mean(1) + 1e-5) ** 0.5
        return states / deviations[:, None] * w["norm.weight"] + w["norm.bias"]

    def _traversed(self, states: Any, nodes: range, direct: Array, virtual: Array) -> Any:
        """Return the states after equation 4, node after node.

        Nodes that equally many others lead to do not read each other: they change at once.
        """
        levels = np.zeros(len(nodes), int)
        for node in nodes:
            levels[node] = max(1 + levels[direct[node] > 0], default=0)
        order = np.argsort(levels, kind="stable")
        states = states[order]
        direct, virtual = (
            self.array.asarray(matrix[np.ix_(order, order)], dtype=states.dtype)
            for matrix in (direct, virtual)
        )
        changed = near = far = states[:0]
        for start, end in pairwise([0, *np.cumsum(np.bincount(levels))]):
            message = direct[start:end, :start] @ near + virtual[start:end, :start] @ far
            new = self._gru(message, states[start:end])
            behind = new, self._mlp("mlp", new), self._mlp("mlp_sp", new)
            changed, near, far = map(
                self.array.concatenate, zip((changed, near, far), behind, strict=True)
            )
        return changed[np.argsort(order)]

    def linear(self, name: str, x: Any) -> Any:
        """Return x @ weight + bias, (rows, outputs)."""
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _mlp(self, name: str, x: Any) -> Any:
        for layer in (0, 1):
            x = self.linear(f"{name}.{layer}", x)
            x = x * (x > 0)
        return x

    def _gru(self, message: Any, states: Any) -> Any:
        read, held = self.linear("gru.read", message), self.linear("gru.held", states)
        gates = 1 / (1 + self.array.exp(-(read + held)[:, : 2 * SIZE]))
        reset, update = gates[:, :SIZE], gates[:, SIZE:]
        new = self.array.tanh(read[:, 2 * SIZE :] + reset * held[:, 2 * SIZE :])
        return (1 - update) * new + update * states


@dataclass(frozen=True)
class KnownNetwork:
    """A network, the vector of its folded graph, and its measured runs, if there are any."""

    name: str
    vector: Array
    runs: list[Mapping[str, Any]]


@dataclass(frozen=True)
class Embedding:
    """A trained graph network, which training it had, and known networks to compare others with.

    Attributes
    ----------
    ghn2 : GHN2
    training : mapping
        ``variant``, ``seed``, ``minutes``, ``steps``, and of random networks that were held out
        ``accuracy``, ``untrained`` (the same before training) and ``chance``.
    networks : sequence of KnownNetwork
    """

    ghn2: GHN2
    training: Mapping[str, Any]
    networks: Sequence[KnownNetwork]

    def nearest(self, graph: PrimitiveGraph, count: int = 5) -> list[tuple[float, KnownNetwork]]:
        """Return the known networks with the most similar vectors, by their cosine (III-E)."""
        vector = self.ghn2.embed(graph.folded())
        cosines = [
            float(vector @ one.vector / np.linalg.norm(vector) / np.linalg.norm(one.vector))
            for one in self.networks
        ]
        return [(cosines[i], self.networks[i]) for i in np.argsort(-np.array(cosines))[:count]]

    def to_bytes(self) -> bytes:
        """Return the content of a file: half-precision weights, and JSON; no pickle."""
        networks = [{"name": one.name, "runs": one.runs} for one in self.networks]
        content = io.BytesIO()
        np.savez_compressed(
            content, allow_pickle=False,
            about=np.array(json.dumps({"training": self.training, "networks": networks})),
            vectors=np.array([one.vector for one in self.networks], np.float32).reshape(-1, SIZE),
            **{name: np.asarray(weight, np.float16) for name, weight in self.ghn2.weights.items()},
        )  # fmt: skip
        return content.getvalue()

    @classmethod
    def load(cls, name: str) -> Embedding:
        """Read a file, or what is shipped under a name of `VARIANTS`.

        Raises
        ------
        BundleError
            If there is no such file, or it is damaged.
        """
        shipped = {path.stem: path for path in shipped_files("models/embeddings", "*.npz")}
        try:
            with np.load(shipped.get(name, Path(name)), allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                names = [key for key in file.files if key != "about"]
                arrays = {key: file[key].astype(float) for key in names}
            vectors = arrays.pop("vectors")
            networks = [
                KnownNetwork(one["name"], vector, one["runs"])
                for one, vector in zip(about["networks"], vectors, strict=True)
            ]
            return cls(GHN2(arrays), about["training"], networks)
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise BundleError(
                f"{name} is neither {' nor '.join(VARIANTS)} nor a readable file of "
                "`resperf train-embedding`; give one of these"
            ) from error
