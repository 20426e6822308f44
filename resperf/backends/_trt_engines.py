"""TensorRT engines in memory: build, look at the layers, run, profile."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from resperf.backends._trt_cuda import Cuda, Pinned
from resperf.errors import (
    MeasurementError,
    ResperfError,
    UnsupportedError,
    first_line,
    is_out_of_memory,
)

try:
    import tensorrt
except ModuleNotFoundError:
    raise
except ImportError as error:
    raise ResperfError(
        f"TensorRT's own library cannot be loaded ({first_line(error)}); install it in the version "
        "of the Python bindings, or add its folder to LD_LIBRARY_PATH"
    ) from error

VERSION: str = tensorrt.__version__
_COPY = re.compile(r"\bcopy(\d+)\.")
_SILENT_TYPES = ("NoOp", "Constant")
"""Types of layers that start no kernel."""


class _Log(tensorrt.ILogger):  # type: ignore[misc]
    """Keeps TensorRT's errors, which its functions do not raise, of the latest build or run."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def log(self, severity: Any, msg: str) -> None:
        """Keep an error; TensorRT calls this."""
        if severity in (tensorrt.ILogger.Severity.ERROR, tensorrt.ILogger.Severity.INTERNAL_ERROR):
            self.errors.append(msg)

    def raised(self, what: str) -> BaseException:
        """Return the error for what failed, with TensorRT's own words."""
        words = next(iter(self.errors), "TensorRT gives no reason").strip().splitlines()
        text = f"{what}: {words[0][:300] if words else ''}"
        if any(map(is_out_of_memory, self.errors)):
            return MemoryError(text)
        return UnsupportedError(text)


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine.

    Attributes
    ----------
    name, kind : str
        TensorRT's own: ``"copy0.Conv1 + copy0.Relu2"``, ``"CaskConvolution"``.
    copies : frozenset of int
        The copies whose nodes it computes.
    is_relayout : bool
        Whether TensorRT added it to change a tensor's format or type.
    """

    name: str
    kind: str
    copies: frozenset[int]
    is_relayout: bool

    @classmethod
    def from_json(cls, values: Any) -> EngineLayer:
        """Read what the engine inspector says of a layer.

        Raises
        ------
        UnsupportedError
            If it says the name only.
        """
        if not isinstance(values, dict):
            raise UnsupportedError("TensorRT's engine inspector gives names of layers only")
        name, kind = str(values.get("Name", "")), str(values.get("LayerType", ""))
        added = str(values.get("Origin", "REFORMAT")) == "REFORMAT"
        words = f"{name} {values.get('Metadata', '')}"
        is_relayout = kind == "Reformat" and added and name.startswith("Reformatting")
        return cls(name, kind, frozenset(map(int, _COPY.findall(words))), is_relayout)


class Builder:
    """Builds engines on one device.

    Parameters
    ----------
    cuda : Cuda
    tf32 : bool
        Whether float32 products may be computed in TF32.
    optimization_level : int
        From 0 to 5, TensorRT's ``builder_optimization_level``: how many kernels it tries.

    Raises
    ------
    ResperfError
        If TensorRT does not support the GPU or its driver.

    Attributes
    ----------
    timing_cache : bytes
        Times of the kernels that were tried so far, serialised. A layer that was timed before gets
        the kernel that it got then.
    """

    def __init__(self, cuda: Cuda, *, tf32: bool, optimization_level: int) -> None:
        self._cuda, self._tf32, self._optimization_level = cuda, tf32, optimization_level
        self.timing_cache = b""
        # TensorRT keeps the first logger of a process for messages that belong to no object.
        self._log = _Log()
        try:
            self._builder = tensorrt.Builder(self._log)
            self._runtime = tensorrt.Runtime(self._log)
        except (TypeError, RuntimeError) as error:
            words = next(iter(self._log.errors), first_line(error))
            raise ResperfError(
                f"TensorRT {VERSION} cannot start on this GPU: {words}; see which GPUs and drivers "
                "this version supports"
            ) from error

    def engine(
        self, model: bytes, name: str, *, plain_ends: bool = False, anew: bool = False
    ) -> Engine:
        """Build an engine from an ONNX model.

        Parameters
        ----------
        model : bytes
        name : str
            For messages.
        plain_ends : bool
            Whether inputs and outputs are row-major, as users keep them; else TensorRT chooses
            their formats, so that no re-layout is needed.
        anew : bool
            Time all kernels anew, and forget the times.

        Raises
        ------
        UnsupportedError
            If TensorRT cannot run the model.
        MemoryError
            If it does not fit.
        """
        log = self._log
        log.errors.clear()
        try:
            # Tensors keep the model's types, which is TensorRT 11's only way.
            flags = 1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
            network = self._builder.create_network(flags)
            parser = tensorrt.OnnxParser(network, log)
            if not parser.parse(model):
                raise UnsupportedError(f"TensorRT cannot read {name}: {_parse_errors(parser)}")
            if plain_ends:
                _use_linear_formats(network)
            config = self._config()
            cache = config.create_timing_cache(b"" if anew else self.timing_cache)
            config.set_timing_cache(cache, False)
            plan = self._builder.build_serialized_network(network, config)
            if plan is None:
                raise log.raised(f"TensorRT cannot build {name}")
            if not anew:
                self.timing_cache = bytes(memoryview(cache.serialize()))
            engine = self._runtime.deserialize_cuda_engine(plan)
        except (TypeError, RuntimeError) as error:
            raise log.raised(f"TensorRT fails at {name} ({first_line(error)})") from error
        if engine is None:
            raise log.raised(f"TensorRT cannot load {name}")
        return Engine(engine, log, self._cuda, name)

    def _config(self) -> Any:
        config = self._builder.create_builder_config()
        change = config.set_flag if self._tf32 else config.clear_flag
        change(tensorrt.BuilderFlag.TF32)
        config.builder_optimization_level = self._optimization_level
        config.max_aux_streams = 0
        config.profiling_verbosity = tensorrt.ProfilingVerbosity.DETAILED
        return config


def _use_linear_formats(network: Any) -> None:
    linear = 1 << int(tensorrt.TensorFormat.LINEAR)
    for index in range(network.num_inputs):
        network.get_input(index).allowed_formats = linear
    for index in range(network.num_outputs):
        network.get_output(index).allowed_formats = linear


def _parse_errors(parser: Any) -> str:
    errors = (parser.get_error(index) for index in range(parser.num_errors))
    words = [f"{error.node_operator()}: {error.desc()}" for error in errors]
    return first_line(ValueError(words[0])) if words else "its parser gives no reason"


class Engine:
    """An engine with its buffers, which runs on the stream of `Cuda`.

    Inputs and outputs whose names are equal after the copy's name (``copy3.x``) share a buffer:
    the input of a layer was just written in a network, and its output goes where another one was.
    """

    def __init__(self, engine: Any, log: _Log, cuda: Cuda, name: str) -> None:
        self._engine, self._log, self._cuda, self._name = engine, log, cuda, name
        self._buffers: dict[str, int] = {}
        self._host: dict[str, Pinned] = {}
        self._results: dict[str, Pinned] = {}
        self._context: Any = None
        self._profiled: Any = None
        self._profiler = _Profiler()
        self.layers = self._layers()
        if engine.num_aux_streams:
            raise UnsupportedError(
                f"TensorRT would run {name} on {engine.num_aux_streams + 1} streams at once, so "
                "that its layers have no times of their own"
            )

    def _layers(self) -> tuple[EngineLayer, ...]:
        inspector = self._engine.create_engine_inspector()
        text = inspector.get_engine_information(tensorrt.LayerInformationFormat.JSON)
        return tuple(map(EngineLayer.from_json, json.loads(text)["Layers"]))

    def check_copies(self, copies: int) -> None:
        """Check that every copy has kernels of its own.

        Raises
        ------
        UnsupportedError
            If copies were merged, or one is missing.
        """
        working = [v for v in self.layers if not v.is_relayout and v.kind not in _SILENT_TYPES]
        for layer in working:
            if len(layer.copies) > 1:
                raise UnsupportedError(
                    f"TensorRT merged copies {', '.join(map(str, sorted(layer.copies)))} of "
                    f"{self._name} into one kernel ({layer.name[:80]}), so that a copy has no time "
                    "of its own"
                )
        present = frozenset().union(*(layer.copies for layer in working))
        missing = sorted(set(range(copies)) - present)
        if missing:
            raise UnsupportedError(
                f"{len(missing)} of {copies} copies of {self._name} are not among the engine's "
                "layers: TensorRT computes them beforehand, or hides them in another layer"
            )

    def load(self, host: Mapping[str, npt.NDArray[Any]]) -> None:
        """Allocate all buffers, and fill the inputs.

        Parameters
        ----------
        host : mapping of str to array
            By the name of an input, without the copy's.

        Raises
        ------
        MemoryError
            If they do not fit.
        """
        engine = self._engine
        self._context = self._new_context()
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            stem = _stem(name)
            if stem in self._buffers:
                continue
            shape = tuple(engine.get_tensor_shape(name))
            if min(shape, default=1) < 0:
                raise UnsupportedError(
                    f"{self._name}: the shape of {name} depends on the values of its inputs"
                )
            item_bytes = engine.get_tensor_dtype(name).itemsize
            size_bytes = math.ceil(self._stored_values(name, shape) * item_bytes)
            self._buffers[stem] = self._cuda.allocate(size_bytes)
            if engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT:
                self._host[stem] = Pinned.of(host[stem])
            else:
                plain_bytes = math.ceil(math.prod(shape) * item_bytes)
                self._results[stem] = Pinned(plain_bytes)
        self._bind(self._context)
        self.preprocess()
        self._cuda.wait()

    def _stored_values(self, name: str, shape: tuple[int, ...]) -> int:
        """Count the values of a buffer in the format that TensorRT chose, padding included."""
        extents, axis = list(shape), self._engine.get_tensor_vectorized_dim(name)
        width = max(self._engine.get_tensor_components_per_element(name), 1) if axis >= 0 else 1
        if axis >= 0:
            extents[axis] = -(-extents[axis] // width)
        strides = self._context.get_tensor_strides(name)
        return width * max(map(operator.mul, extents, strides), default=1)

    def _new_context(self) -> Any:
        context = self._engine.create_execution_context()
        if context is None:
            raise self._log.raised(f"TensorRT has no memory for {self._name}")
        return context

    def _bind(self, context: Any) -> None:
        for index in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(index)
            context.set_tensor_address(name, self._buffers[_stem(name)])

    def preprocess(self) -> None:
        """Begin to copy the inputs of one copy, or of the network, to the device."""
        for stem, host in self._host.items():
            self._cuda.to_device(host, self._buffers[stem])

    def postprocess(self) -> None:
        """Begin to copy the output of one copy, or those of the network, to the host."""
        for stem, host in self._results.items():
            self._cuda.to_host(host, self._buffers[stem])

    def enqueue(self) -> None:
        """Begin a run."""
        self._enqueue(self._context)

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._cuda.stream):
            raise MeasurementError(str(self._log.raised(f"TensorRT cannot run {self._name}")))

    def profiled_ms(self) -> tuple[float, float]:
        """Run once with a profiler.

        Returns
        -------
        layers_ms, relayouts_ms : float
            Sums over the engine's layers, and over those that TensorRT added to change formats.
        """
        if self._profiled is None:
            # Of its own: a profiler would slow other runs down.
            self._profiled = self._new_context()
            self._profiled.profiler = self._profiler
            self._bind(self._profiled)
        times_ms = self._profiler.times_ms
        times_ms.clear()
        self._enqueue(self._profiled)
        self._cuda.wait()
        if not times_ms:
            raise MeasurementError("TensorRT's profiler reported no layer")
        added = {layer.name for layer in self.layers if layer.is_relayout}
        relayouts_ms = math.fsum(ms for name, ms in times_ms if name in added)
        return math.fsum(ms for _, ms in times_ms) - relayouts_ms, relayouts_ms

    def close(self) -> None:
        """Free the engine and all buffers."""
        if self._context is not None:
            self._cuda.wait()
        self._context = self._profiled = self._engine = None
        for pinned in (*self._host.values(), *self._results.values()):
            pinned.free()
        for address in self._buffers.values():
            self._cuda.free(address)
        self._host, self._results, self._buffers = {}, {}, {}


class _Profiler(tensorrt.IProfiler):  # type: ignore[misc]
    """Collects the times that TensorRT reports."""

    def __init__(self) -> None:
        super().__init__()
        self.times_ms: list[tuple[str, float]] = []

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Keep the time of one layer of a run; TensorRT calls this."""
        self.times_ms.append((layer_name, ms))


def _stem(name: str) -> str:
    """Return an input's or output's name without that of the copy."""
    return _COPY.sub("", name)
