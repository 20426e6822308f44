"""TensorFlow on a CPU.

Preprocess is ``tf.constant`` of a host array; postprocess is ``numpy()`` of the output. Both copy.
Execution is the marginal time of a copy of the layer inside one function, on a resident input:
several copies with different weights run one after the other, and the time of the call is
subtracted. The graph optimiser runs as usual, so that bias, residual and activation are fused as in
a network. Weights are captured tensors, like variables: constants would be re-laid out beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

# TensorFlow reads this while it is imported; otherwise it logs its build to stderr.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from resperf.backends._base import Backend, Built
from resperf.backends._chain import inter_layer_costs
from resperf.backends.tensorflow_layers import operator_of
from resperf.backends.tensorflow_network import built, network_run
from resperf.backends.tensorflow_runs import Host, call_costs_ms, layer_run, refused
from resperf.errors import ResperfError, silent_stderr
from resperf.layers import Layer
from resperf.lowering.tensorflow import lower_layers
from resperf.platform import Platform, this_platform, usable_cores
from resperf.settings import Setting

_REFUSALS = (tf.errors.OpError, ValueError, TypeError)


class TensorFlowBackend(Backend):
    """TensorFlow on a CPU.

    Parameters
    ----------
    threads : int, optional
        Threads within an operation; all usable cores by default. Operations run one at a time.
    device : str
        Name of the platform.

    Raises
    ------
    ResperfError
        If TensorFlow already runs with other threads in this process.
    """

    name = "tensorflow"

    def __init__(self, *, threads: int | None = None, device: str = "cpu") -> None:
        self.threads = usable_cores() if threads is None else threads
        self._device = device
        if self.threads < 1:
            raise ResperfError(f"threads={threads} must be at least 1")
        _set_threads(self.threads)
        with silent_stderr():
            # The first operation starts TensorFlow's runtime, which logs to stderr.
            tf.constant(0.0)
        self._host = Host()

    def platform(self) -> Platform:
        """Describe this machine."""
        return this_platform(self._device)

    def setting(self) -> Setting:
        """How TensorFlow runs layers and networks here."""
        return Setting(
            framework=self.name,
            framework_version=tf.__version__,
            provider="CPU",
            threads=self.threads,
            options={
                "inter_op_threads": "1",
                "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
            },
        )

    @cached_property
    def _call_costs_ms(self) -> dict[str, float]:
        return call_costs_ms()

    def costs(self) -> Mapping[str, float]:
        """Measure what a call and a shape-only node cost; cached."""
        return {name: self._call_costs_ms[name] for name in ("session_ms", "view_ms")}

    def handover(self) -> Mapping[str, float]:
        """Measure the inter-layer overhead, now."""
        return inter_layer_costs(self, lambda chain: built(chain, {}, self._host))

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Give images TensorFlow's layout on a CPU."""
        return lower_layers(layers, self.setting())

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        """Build one lowered layer.

        Raises
        ------
        UnsupportedError
            If TensorFlow on a CPU cannot run such a layer.
        MemoryError
            If it does not fit.
        """
        operator = operator_of(layer)
        try:
            return layer_run(
                operator,
                self._host,
                budget_ms=budget_ms,
                session_ms=self._call_costs_ms["session_ms"],
                link_ms=self._call_costs_ms["link_ms"],
            )
        except _REFUSALS as error:
            raise refused(error) from error

    def network(
        self, path: Path, *, batch: int | None, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> Built:
        """Build a whole network from an ONNX file as one function of resident NHWC images.

        Images are flattened in NHWC order, as in a TensorFlow network: results then differ from the
        file's unless it flattens single pixels. Missing weights are replaced by dummy values.

        Raises
        ------
        NetworkError, UnsupportedError
            If the file cannot be read or run.
        MemoryError
            If it does not fit.
        """
        try:
            return network_run(path, self._host, batch=batch, shapes=shapes)
        except _REFUSALS as error:
            raise refused(error) from error


def _set_threads(threads: int) -> None:
    """Set TensorFlow's threads, which is only possible before its first operation."""
    threading = tf.config.threading
    try:
        threading.set_inter_op_parallelism_threads(1)
        threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError as error:
        present = threading.get_intra_op_parallelism_threads()
        between = threading.get_inter_op_parallelism_threads()
        if (present, between) != (threads, 1):
            raise ResperfError(
                f"TensorFlow already runs with {present or 'default'} threads inside and "
                f"{between or 'default'} between operations in this process; start a new process "
                f"to measure with {threads} and 1"
            ) from error
