"""A whole ONNX network as one TensorFlow function, and its phases or those of its training step.

Images are in the setting's layout; all other tensors have the file's order of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from resperf.backends._base import Built, Phase
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_device import Device
from resperf.backends.tensorflow_layers import Array
from resperf.backends.tensorflow_operators import build
from resperf.backends.tensorflow_runs import CPU, Host, Traced, resident, run_of
from resperf.backends.tensorflow_training import TensorFlowStep
from resperf.errors import UnsupportedError
from resperf.lowering._base import in_precision
from resperf.lowering.tensorflow import LAYOUT, without_removed
from resperf.network import Network, read_network
from resperf.network.weights import weights_of
from resperf.timing import WallClock


def network_run(
    path: Path,
    host: Host,
    *,
    batch: int | None,
    shapes: Mapping[str, Sequence[int]] | None,
    device: Device = CPU,
    layout: str = LAYOUT,
    precision: str = "",
    optimizer: str = "",
) -> Built:
    """Build the network of a file with resident inputs; with an optimizer, its training step.

    Raises
    ------
    NetworkError, UnsupportedError
        If the file cannot be read or run.
    """
    network = read_network(path, batch=batch, shapes=shapes)
    weights = weights_of(path, batch=batch, shapes=shapes)
    return built(in_precision(network, precision), weights, host, device, layout, optimizer)


def built(
    network: Network,
    weights: Mapping[str, Array],
    host: Host,
    device: Device = CPU,
    layout: str = LAYOUT,
    optimizer: str = "",
) -> Built:
    """Build a network with resident inputs; missing weights get dummy values.

    Raises
    ------
    UnsupportedError
        If it cannot be run.
    """
    network = without_removed(network)
    for name in network.inputs:
        if network.tensors[name].dtype not in _MADE_UP:
            raise UnsupportedError(
                f"input {name!r} is {network.tensors[name].dtype}, which cannot be made up; inputs "
                f"may be {', '.join(sorted(_MADE_UP))}"
            )
    before_bytes = device.held_bytes()
    with device.here():
        builder = Builder(network, weights, layout, training=bool(optimizer))
    arrays = [
        _input(host, builder.stored_shape(name), network.tensors[name].dtype)
        for name in network.inputs
    ]
    inputs = resident(arrays, device)
    outputs = partial(builder.outputs, build)
    if optimizer:
        step = TensorFlowStep(outputs, inputs, builder.held, optimizer, device)
        builder.free_host_weights()
        phases, isolated, free = step.phases(device.timed), device.timed(step.step), step.free
        run: Callable[[], Any] = step.step
    else:
        function = Traced(outputs, inputs, builder.held, device)
        builder.free_host_weights()
        run = device.finished(lambda: function(*inputs))
        timed = WallClock(run)
        inferred = run_of(arrays, run(), Phase(timed), timed, [function], device)
        phases, isolated, free = inferred.phases, inferred.isolated, inferred.free
    if before_bytes is not None:
        memory = Phase(device.peak_bytes(run, before_bytes), unit="bytes")
        phases = {**phases, "peak_memory_bytes": memory}
    return Built(phases, isolated, free)


_MADE_UP = frozenset({"float32", "float16", "bfloat16", "int64", "int32", "bool"})


def _input(host: Host, shape: Sequence[int], dtype: str) -> Array:
    """Make values of an input; 1 is valid as a token's number and in a mask."""
    return (
        np.ones(shape, dtype) if dtype in ("int64", "int32", "bool") else host.array(shape, dtype)
    )
