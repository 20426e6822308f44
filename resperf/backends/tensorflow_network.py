"""A whole ONNX network as one TensorFlow function, and its phases.

Tensors of rank 4 are images in NHWC; all other tensors have the file's layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import tensorflow as tf

from resperf.backends._base import Built, Phase
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_layers import Array, nhwc
from resperf.backends.tensorflow_operators import build
from resperf.backends.tensorflow_runs import Host, Traced, run_of
from resperf.errors import UnsupportedError
from resperf.lowering.tensorflow import without_removed
from resperf.network import Network, read_network
from resperf.network.weights import weights_of
from resperf.timing import WallClock


def network_run(
    path: Path,
    host: Host,
    *,
    batch: int | None,
    shapes: Mapping[str, Sequence[int]] | None,
) -> Built:
    """Build the network of a file with resident inputs.

    Raises
    ------
    NetworkError, UnsupportedError
        If the file cannot be read or run.
    """
    network = read_network(path, batch=batch, shapes=shapes)
    return built(network, weights_of(path, batch=batch, shapes=shapes), host)


def built(network: Network, weights: Mapping[str, Array], host: Host) -> Built:
    """Build a network with resident inputs; missing weights get dummy values.

    Raises
    ------
    UnsupportedError
        If it cannot be run.
    """
    network = without_removed(network)
    for name in network.inputs:
        if network.tensors[name].dtype != "float32":
            raise UnsupportedError(
                f"input {name!r} is {network.tensors[name].dtype}; only float32 inputs are "
                "measured in TensorFlow"
            )
    builder = Builder(network, weights)
    images = [host.array(nhwc(network.tensors[name].shape)) for name in network.inputs]
    resident = [tf.constant(image) for image in images]
    function = Traced(partial(builder.outputs, build), resident, builder.held)
    builder.free_host_weights()
    run = WallClock(lambda: function(*resident))
    return run_of(images, function(*resident), Phase(run), run, [function])
