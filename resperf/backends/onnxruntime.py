"""ONNX Runtime on the CPU: how each phase is obtained, and what it contains.

preprocess
    A numpy array becomes a device value and is bound to the session. On the CPU that shares the
    memory: about 2 us whatever the size.
execution
    Of a layer: the marginal time of its lowered node in a graph that holds several copies of it,
    each with weights of its own, run with optimisation off and its input already in the layer's
    own layout; the call is taken out (`Phase.offset`). ONNX Runtime frees the output of
    a copy at once, so that the next one writes to the same memory, as in a network. Of a network:
    one bound run, the call included.
postprocess
    The output value becomes a numpy array; on the CPU that is a view.

Re-layouts (ReorderInput, ReorderOutput) are nodes of the lowered graph and are measured as layers
of the kind `reorder`; a prediction adds those at the network's edges to preprocess and postprocess
(ResPerfNet equations 4 to 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from resperf.backends._base import (
    Backend,
    Built,
    Phase,
    Shapes,
    as_resperf_error,
    copies_for,
    median_ms,
    usable_threads,
)
from resperf.backends._chain import overheads_between_layers, weights_costs
from resperf.backends._ort_kernels import copies_graph, kernel_of
from resperf.backends._values import network_input
from resperf.copies import MAX_COPIES
from resperf.errors import ResperfError
from resperf.layers import Kernel, Layer
from resperf.lowering import lower_layers, skeleton
from resperf.lowering.onnxruntime import add_weights, block_size, session_options, share_threads
from resperf.network import Network
from resperf.settings import NCHWC_BLOCK, Setting
from resperf.timing import WallClock

MANY_WARMUPS, MANY_RUNS = 2, 9
"""Runs of many copies, before they are timed and timed."""

onnxruntime.set_default_logger_severity(4)


@dataclass(frozen=True)
class Device:
    """Where values are: in the host's memory, or in a GPU's.

    Attributes
    ----------
    kind : str
        ONNX Runtime's word: ``"cpu"`` or ``"cuda"``.
    number : int
    """

    kind: str = "cpu"
    number: int = 0

    @property
    def is_host(self) -> bool:
        """Whether host arrays need no copy."""
        return self.kind == "cpu"

    def value(self, array: npt.NDArray[Any]) -> Any:
        """Make a value of a host array: shared on the host, copied to a GPU."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, self.kind, self.number)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Make a value without content."""
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            shape, np.dtype(dtype), self.kind, self.number
        )


HOST = Device()


class BoundSession:
    """A session whose inputs and outputs are bound; it ran once, so that what cannot run says so.

    Parameters
    ----------
    session : InferenceSession
    host : mapping of str to array
        Values of the inputs.
    name : str
        For messages.
    device : Device
    output : tuple of (shape, dtype), optional
        Of the only output, which is then written to the same memory by each run. Else ONNX Runtime
        allocates outputs: on a GPU once, since a CUDA graph writes to the memory of its first run.
    """

    def __init__(
        self,
        session: Any,
        host: Mapping[str, npt.NDArray[Any]],
        name: str,
        device: Device = HOST,
        output: tuple[Sequence[int], str] | None = None,
    ) -> None:
        self._session, self._host, self._device = session, host, device
        self._binding = session.io_binding()
        self._values: dict[str, Any] = {}
        for input_name, array in host.items():
            self._bind(input_name, array)
        outputs = [value.name for value in session.get_outputs()]
        for output_name in outputs:
            if output is None:
                self._binding.bind_output(output_name, device.kind, device.number)
            else:
                self._binding.bind_ortvalue_output(output_name, device.empty(*output))
        try:
            self.run()
        except Exception as error:  # onnxruntime's errors have no common root of their own
            raise as_resperf_error(error, "ONNX Runtime", name) from error
        if not device.is_host:
            for output_name, value in zip(outputs, self._binding.get_outputs(), strict=True):
                self._binding.bind_ortvalue_output(output_name, value)

    def _bind(self, name: str, array: npt.NDArray[Any]) -> None:
        self._values[name] = self._device.value(array)
        self._binding.bind_ortvalue_input(name, self._values[name])

    def run(self) -> None:
        """Run the session to its end."""
        self._session.run_with_iobinding(self._binding)
        if not self._device.is_host:
            self._binding.synchronize_outputs()

    def preprocess(self, names: Sequence[str] | None = None) -> None:
        """Give the host's arrays to the session again: into the same memory of a GPU, to its end.

        Parameters
        ----------
        names : sequence of str, optional
            Of the inputs; all by default.
        """
        for name in self._host if names is None else names:
            if self._device.is_host:
                self._bind(name, self._host[name])
            else:
                self._values[name].update_inplace(self._host[name])
        if not self._device.is_host:
            self._binding.synchronize_inputs()

    def postprocess(self) -> list[npt.NDArray[Any]]:
        """Make host arrays of the outputs' device values."""
        return [value.numpy() for value in self._binding.get_outputs()]


def filled_input(value: Any, given: Mapping[str, Sequence[float]]) -> npt.NDArray[Any]:
    """Make values of a session's input, or repeat those that are given."""
    word = value.type.removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(word, word)
    values = network_input(value.name, value.shape, dtype, value.type)
    return np.resize(np.asarray(given.get(value.name, values), values.dtype), values.shape)


class OnnxRuntimeBackend(Backend):
    """ONNX Runtime with its CPU execution provider.

    Parameters
    ----------
    threads : int, optional
        Threads within an operator; by default one per usable core.
    """

    name = "onnxruntime"
    half_precision = False
    takes_values = True
    device = HOST

    def __init__(self, threads: int | None = None) -> None:
        self.threads = usable_threads(threads or None)
        self._block = block_size()

    def own_process(self) -> None:
        """Make all sessions share one pool of threads."""
        share_threads(self.threads)

    def setting(self) -> Setting:
        """How ONNX Runtime runs layers and networks here."""
        return Setting(
            framework=self.name,
            framework_version=onnxruntime.__version__,
            provider="CPUExecutionProvider",
            threads=self.threads,
            options={
                NCHWC_BLOCK: str(self._block),
                "execution_mode": "sequential",
                "inter_op_threads": "1",
                "spinning": "on",
                "memory_arena": "on",
            },
        )

    @cached_property
    def _call_ms(self) -> float:
        """Cost of a bound run of a graph without layers: intercept over copies of a tiny node."""
        one, many = (self._tiny_ms(copies) for copies in (1, MAX_COPIES))
        return max(one - (many - one) / (MAX_COPIES - 1), 0.0)

    @cached_property
    def _reshape_ms(self) -> float:
        view = Kernel("Flatten", "", {"axis": 1}, (1, 64, 4, 4), (1, 1024))
        many_ms = median_ms(self._copies(view, MAX_COPIES).run)
        return max((many_ms - self._call_ms) / MAX_COPIES, 0.0)

    def costs(self) -> Mapping[str, float]:
        """Measure what a call and a reshape cost; once, then kept."""
        return {"call_ms": self._call_ms, "reshape_ms": self._reshape_ms}

    def overheads_between_layers(self) -> Mapping[str, float]:
        """Measure what layers cost behind each other, and by where their weights lie, now."""
        return {**overheads_between_layers(self, self._built), **weights_costs(self._many_ms)}

    def _built(self, network: Network) -> Built:
        model = skeleton(network)
        return self._network_run(model.model, model.weights, network.name)

    def _network_run(self, model: Any, weights: Mapping[str, Any], name: str) -> Built:
        """Build a whole network as users run it: with ONNX Runtime's own optimisation."""
        session = self._session(
            model, weights, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, name
        )
        feeds = {value.name: filled_input(value, self.values) for value in session.get_inputs()}
        bound = BoundSession(session, feeds, "the network", self.device)
        run = WallClock(bound.run)
        return Built.of_phases(
            WallClock(bound.preprocess), Phase(run), WallClock(bound.postprocess), run
        )

    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        """Give each layer the layout that ONNX Runtime would choose for it on this machine."""
        return lower_layers(layers, self.setting(), self.platform())

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        """Build one lowered layer: alone, and in as many copies as give a precise marginal time.

        Raises
        ------
        UnsupportedError
            If no kernel runs it, or ONNX Runtime refuses it.
        MemoryError
            If it does not fit.
        """
        kernel = self._kernel(layer)
        alone = self._copies(kernel, 1)
        copies = copies_for(WallClock(alone.run), self._call_ms, layer.weight_bytes, budget_ms)
        marginal = alone if copies == 1 else self._copies(kernel, copies)
        execution = Phase(WallClock(marginal.run), offset=self._call_ms, copies=copies)
        return Built.of_phases(
            WallClock(partial(alone.preprocess, ("x",))),
            execution,
            WallClock(alone.postprocess),
            WallClock(alone.run),
        )

    def network(self, path: Path, *, batch: int | None, shapes: Shapes | None = None) -> Built:
        """Build a whole network with ONNX Runtime's own optimisation; absent weights are made up.

        Raises
        ------
        NetworkError, UnsupportedError
            If the file cannot be read or run.
        """
        from resperf.network.weights import materialise

        model, weights = materialise(
            path, overridable=True, batch=batch, shapes=shapes, values=self.values
        )
        return self._network_run(model, weights, path.name)

    def _tiny_ms(self, copies: int) -> float:
        return median_ms(self._copies(Kernel("Relu", "", {}, (1, 16), (1, 16)), copies).run)

    def _many_ms(self, layer: Layer, copies: int) -> float:
        (lowered,) = self.lower([layer])
        timed = WallClock(self._copies(self._kernel(lowered), copies).run)
        taken_ms = [timed() for _ in range(MANY_WARMUPS + MANY_RUNS)]
        return max(median(taken_ms[MANY_WARMUPS:]) - self._call_ms, 0.0)

    def _kernel(self, layer: Layer) -> Kernel:
        return kernel_of(layer, self._block, half_precision=self.half_precision)

    def _copies(self, kernel: Kernel, copies: int) -> BoundSession:
        """Build a session of copies of a kernel, each with weights of its own."""
        model, weights, host = copies_graph(kernel, copies)
        session = self._session(
            model,
            weights,
            onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
            f"{kernel.domain}:{kernel.op}",
        )
        output = kernel.output_shape, kernel.output_dtype or kernel.dtype
        return BoundSession(session, host, model.graph.output[0].name, self.device, output)

    def _session(self, model: Any, weights: Mapping[str, Any], level: Any, name: str) -> Any:
        options = session_options(self.threads)
        options.graph_optimization_level = level
        if weights:
            add_weights(options, model, weights)
        try:
            return self._started(model.SerializeToString(), options)
        except ResperfError:
            raise
        except Exception as error:  # onnxruntime's errors have no common root of their own
            raise as_resperf_error(error, "ONNX Runtime", name) from error

    def _started(self, model: bytes, options: Any) -> Any:
        """Start a session with this backend's provider."""
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
