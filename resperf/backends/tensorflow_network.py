"""A whole ONNX network as one TensorFlow function, and its phases or those of its training step.

Images are in NHWC; all other tensors have the file's order of axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import tensorflow as tf

from resperf.backends._base import Built, Phase
from resperf.backends._values import Array, network_input
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_device import Device
from resperf.backends.tensorflow_operators import build
from resperf.backends.tensorflow_runs import Traced, resident, run_of
from resperf.backends.tensorflow_training import TensorFlowStep
from resperf.errors import UnsupportedError
from resperf.lowering._read import REMOVED_OPS
from resperf.lowering.tensorflow import without_removed
from resperf.network import Network
from resperf.timing import WallClock


def built(
    network: Network,
    weights: Mapping[str, Array],
    device: Device,
    optimizer: str,
) -> Built:
    """Build a network with resident inputs, or its training step; missing weights are made up.

    Raises
    ------
    UnsupportedError
        If it cannot be run.
    """
    network = without_removed(_computing_weights(network) if optimizer else network)
    for name in network.inputs:
        if network.tensors[name].dtype not in _MADE_UP:
            raise UnsupportedError(
                f"input {name!r} is {network.tensors[name].dtype}, which cannot be made up; inputs "
                f"may be {', '.join(sorted(_MADE_UP))}"
            )
    with device.here():
        builder = Builder(network, weights, training=bool(optimizer))
    arrays = [
        network_input(name, builder.stored_shape(name), network.tensors[name].dtype)
        for name in network.inputs
    ]
    inputs = resident(arrays, device)
    outputs = partial(builder.outputs, build)
    if optimizer:
        step = TensorFlowStep(outputs, inputs, builder.held, optimizer, device)
        builder.free_host_weights()
        return Built(step.phases(device.timed), device.timed(step.step), step.free)
    function = Traced(outputs, inputs, builder.held, device)
    builder.free_host_weights()
    run = device.finished(lambda: function(*inputs))
    timed = WallClock(run)
    return run_of(arrays, run(), Phase(timed), timed, [function], device)


@cache
def start(device: Device, training: bool) -> None:
    """Run something once: what TensorFlow loads for the first network is no network's memory."""
    with device.here():
        image, kernel = tf.ones((1, 8, 8, 4)), tf.Variable(tf.ones((3, 3, 4, 4)))
        weight = tf.Variable(tf.ones((256, 4)))

        def network() -> Any:
            return tf.reshape(tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "SAME")), (1, 256)) @ weight

        if training:
            step = TensorFlowStep(lambda: [network()], [], [kernel, weight], "adam", device)
            step.free()
        else:
            device.function(network)()


def _computing_weights(network: Network) -> Network:
    """Return a network that computes its weights from its constants in each run, as in training.

    Copies of a constant stay constants of their own, as in the network that was exported.
    """
    whole = network.with_weight_nodes()
    computing = [
        node
        for node in network.weight_nodes
        if node.op not in REMOVED_OPS and whole.tensors[node.outputs[0]].value is None
    ]
    computed = {name for node in computing for name in node.outputs}
    tensors = {
        name: replace(tensor, is_weight=False) if name in computed else tensor
        for name, tensor in whole.tensors.items()
    }
    return replace(whole, nodes=(*computing, *network.nodes), tensors=tensors)


_MADE_UP = frozenset({"float32", "float16", "bfloat16", "int64", "int32", "bool"})
