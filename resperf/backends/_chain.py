"""What layers cost in a network beyond their marginal time: behind each other, and by weights.

The overhead between layers is that of a chain of different layers over the same in isolation.

Copies of one kernel find instructions, threads and input in the caches. In a network, a different
kernel ran before, and its output is in other cores' caches. The same chain at two batch sizes
separates the cost per node from the cost per byte passed between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from statistics import median

import numpy as np

from resperf.backends._base import Backend, Built, median_of
from resperf.copies import FOOTPRINTS_MB, weights_cost
from resperf.layers import OPERATOR_OF, Conv, Dense, Layer, Pool, bytes_between_layers
from resperf.lowering import lower
from resperf.network import Network, Node, Tensor

# So far apart that the cost per layer dominates at one, the cost per byte at the other.
CHAIN_BATCHES = (1, 256)
# Few and short, since campaigns measure these costs every 100 s and take medians.
CHAIN_ROUNDS, CHAIN_SECONDS = 3, 0.02
CHAIN_BUDGET_MS = 1.0
"""Limit on the time of one run of a layer's copies."""


WEIGHTED_LAYERS: tuple[Layer, ...] = (
    Dense(batch=1, features_in=512, features_out=512),
    Conv(batch=1, channels_in=512, channels_out=512, height=7, width=7, kernel_height=1,
         kernel_width=1),
)  # fmt: skip
"""Layers of about 1 MB of weights: one bound by reading them, one bound by computing."""


def chained(layers: Sequence[Layer]) -> Network:
    """Build a network of layers in sequence; images are flattened before a dense layer.

    Each layer's input must be as large as the output of the previous layer.
    """
    image = Tensor("x", layers[0].input_shape, "float32")
    tensors: dict[str, Tensor] = {image.name: image}
    nodes: list[Node] = []

    def add(op: str, shape: tuple[int, ...], weights: Sequence[str], **attributes: object) -> None:
        before, name = nodes[-1].outputs[0] if nodes else image.name, f"{op.lower()}{len(nodes)}"
        nodes.append(Node(name, op, "", (before, *weights), (f"{name}_out",), attributes))
        tensors[f"{name}_out"] = Tensor(f"{name}_out", shape, "float32")

    for index, layer in enumerate(layers):
        kernel = layer.as_onnx_node()
        if nodes and len(tensors[nodes[-1].outputs[0]].shape) > len(kernel.input_shape):
            add("Flatten", kernel.input_shape, (), axis=1)
        weights = [f"w{index}_{i}" for i in range(len(kernel.weight_shapes))]
        for name, shape in zip(weights, kernel.weight_shapes, strict=True):
            tensors[name] = Tensor(name, shape, "float32", is_weight=True)
        add(kernel.op, kernel.output_shape, weights, **kernel.attributes)
        if kernel.activation != "none":
            add(OPERATOR_OF[kernel.activation], kernel.output_shape, ())
    return Network(
        name="chain",
        nodes=tuple(nodes),
        tensors=tensors,
        inputs=(image.name,),
        outputs=nodes[-1].outputs,
        opsets={"": 17},
        batch=image.shape[0],
    )


def overheads_between_layers(
    backend: Backend, build: Callable[[Network], Built]
) -> dict[str, float]:
    """Measure what a layer costs after another one, beyond its marginal time.

    Parameters
    ----------
    backend : Backend
        Lowers and builds single layers, and measures the call.
    build : callable
        Builds a network of float32 images with dummy weights.

    Returns
    -------
    dict
        ``overhead_ms_per_layer`` and ``overhead_ms_per_mb``, at least 0
        (`Backend.overheads_between_layers`).
    """
    costs = backend.costs()
    chains = [chained(mixed_layers(batch)) for batch in CHAIN_BATCHES]
    lowered = [lower(chain, backend.setting(), backend.platform()).nodes for chain in chains]
    layers = [[node.layer for node in nodes if node.layer is not None] for nodes in lowered]
    passed_mb = [bytes_between_layers(chain_layers) / 1e6 for chain_layers in layers]
    excess_ms = [
        _excess_ms(backend, build, chain, chain_layers)
        - costs["call_ms"]
        - costs["reshape_ms"] * (len(nodes) - len(chain_layers))
        for chain, nodes, chain_layers in zip(chains, lowered, layers, strict=True)
    ]
    per_mb = max((excess_ms[1] - excess_ms[0]) / (passed_mb[1] - passed_mb[0]), 0.0)
    overhead_ms_per_layer = max((excess_ms[0] - per_mb * passed_mb[0]) / len(layers[0]), 0.0)
    return {"overhead_ms_per_layer": overhead_ms_per_layer, "overhead_ms_per_mb": per_mb}


def weights_costs(copies_ms: Callable[[Layer, int], float]) -> Mapping[str, float]:
    """Measure layers in as many copies as fill each footprint.

    Parameters
    ----------
    copies_ms : callable
        Time in ms of one run of a number of copies of a layer, each with different weights.

    Returns
    -------
    mapping
        Cost in ms per MB for each of `FOOTPRINTS_MB`, under the names of `weights_cost`; 0 for the
        smallest. Single readings are noisy: repeat them and take the median.
    """
    costs = np.zeros(len(FOOTPRINTS_MB))
    for layer in WEIGHTED_LAYERS:
        megabytes = layer.weight_bytes / 1e6
        counts = [round(total / megabytes) for total in FOOTPRINTS_MB]
        per_mb = [copies_ms(layer, count) / (count * megabytes) for count in counts]
        costs += (np.array(per_mb) - per_mb[0]) / len(WEIGHTED_LAYERS)
    return {
        weights_cost(total): max(float(cost), 0.0)
        for total, cost in zip(FOOTPRINTS_MB, costs, strict=True)
    }


def _excess_ms(
    backend: Backend, build: Callable[[Network], Built], network: Network, layers: Sequence[Layer]
) -> float:
    """Return the time of a network minus the marginal times of its layers, measured alternately."""
    with ExitStack() as stack:
        whole = stack.enter_context(build(network))
        parts = [
            stack.enter_context(backend.layer(layer, budget_ms=CHAIN_BUDGET_MS)).phases[
                "execution_ms"
            ]
            for layer in layers
        ]
        return median(
            median_of(whole.isolated, CHAIN_SECONDS)
            - sum(
                (median_of(part.sampler, CHAIN_SECONDS) - part.offset) / part.copies
                for part in parts
            )
            for _ in range(CHAIN_ROUNDS)
        )


def mixed_layers(batch: int) -> tuple[Layer, ...]:
    """Return small layers of several kinds in sequence, as in tiny networks."""
    return (
        Conv(batch=batch, channels_in=1, height=26, width=26, kernel_height=5, kernel_width=5,
             channels_out=10, activation="relu"),
        Pool(batch=batch, channels_in=10, height=22, width=22, kernel_height=2, kernel_width=2,
             stride_height=2, stride_width=2),
        Conv(batch=batch, channels_in=10, height=11, width=11, kernel_height=3, kernel_width=3,
             channels_out=24, activation="relu"),
        Pool(batch=batch, channels_in=24, height=9, width=9, kernel_height=3, kernel_width=3,
             stride_height=3, stride_width=3),
        Dense(batch=batch, features_in=216, features_out=64, activation="relu"),
        Dense(batch=batch, features_in=64, features_out=32, activation="tanh"),
        Dense(batch=batch, features_in=32, features_out=10),
    )  # fmt: skip
