"""The part of TensorRT's bindings that resperf calls, on the fake GPU.

Engines are built by a few of TensorRT's rules: activations, residuals and (de)quantisations are
computed by the kernel before or after them, convolutions that read one tensor are merged if they
are alike, and what makes no output is dropped. A layer takes a time of closed form (`layer_ms`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fake_surface
import onnx
from fake_gpu import ENQUEUE_MS, RELAYOUT_MS, TRANSIENT_BYTES, gpu
from onnx import helper, shape_inference

_SURFACE = fake_surface.read("tensorrt", "11")
__version__: str = _SURFACE["version"]
_ENUMS = fake_surface.enums(_SURFACE)
globals().update({name: value for name, value in _ENUMS.items() if "." not in name})

VALUES_PER_MS, WEIGHTS_PER_MS = 1e6, 1e7
_SPEEDS = {"float16": 2.0, "bfloat16": 2.0, "int8": 4.0}
"""How much faster than float32 a type is; TF32 is as fast as float16."""
_FUSED = frozenset({
    "Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Add", "Mul", "Div", "Erf",
    "QuantizeLinear",
})  # fmt: skip
_KERNELS = frozenset({
    "Conv", "Gemm", "MatMul", "MaxPool", "AveragePool", "GlobalAveragePool", "Softmax",
    "Transpose", "Concat", "Flatten", "Reshape", "LayerNormalization", "Cast", "DequantizeLinear",
})  # fmt: skip
_SILENT = frozenset({"Flatten", "Reshape"})
_DTYPES = {
    "float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int8": "INT8", "int32": "INT32",
    "int64": "INT64", "bool": "BOOL", "uint8": "UINT8",
}  # fmt: skip
_BYTES = {
    "FLOAT": 4,
    "HALF": 2,
    "BF16": 2,
    "INT8": 1,
    "INT32": 4,
    "INT64": 8,
    "BOOL": 1,
    "UINT8": 1,
}
_WIDE = 32
"""Channels per vector of int8 tensors whose format TensorRT may choose."""


def _real(cls: type) -> Any:
    return fake_surface.real(_SURFACE, cls)


class _DataType(int):
    """A type with its size, which the real enumeration's members have too."""

    def __new__(cls, member: Any) -> _DataType:
        made = super().__new__(cls, int(member))
        made.name = member.name  # type: ignore[attr-defined]
        return made

    @property
    def itemsize(self) -> int:
        return _BYTES[self.name]  # type: ignore[attr-defined, no-any-return]


assert _SURFACE["classes"]["DataType"]["properties"] == {"itemsize": "ro"}


@_real
class ILogger:
    Severity = _ENUMS["ILogger.Severity"]

    def __init__(self) -> None: ...

    def log(self, severity: Any, msg: str) -> None: ...


@_real
class IProfiler:
    def __init__(self) -> None: ...

    def report_layer_time(self, layer_name: str, ms: float) -> None: ...


@_real
class IHostMemory(bytes):
    @property
    def nbytes(self) -> int:
        return len(self)


@_real
class ParserError:
    def __init__(self, operator: str, text: str) -> None:
        self._operator, self._text = operator, text

    def desc(self) -> str:
        return self._text

    def node_operator(self) -> str:
        return self._operator


@_real
class ITensor:
    def __init__(self, name: str, shape: Sequence[int], dtype: str) -> None:
        self._name, self._shape, self._dtype = name, tuple(shape), dtype
        self._formats = (1 << len(_ENUMS["TensorFormat"])) - 1

    @property
    def allowed_formats(self) -> int:
        return self._formats

    @allowed_formats.setter
    def allowed_formats(self, value: int) -> None:
        self._formats = value


@_real
class INetworkDefinition:
    def __init__(self) -> None:
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._model: Any = None

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_input(self, index: int) -> Any:
        return self._inputs[index]

    def get_output(self, index: int) -> Any:
        return self._outputs[index]


@_real
class OnnxParser:
    def __init__(self, network: Any, logger: ILogger) -> None:
        self._network, self._errors = network, []

    def parse(self, model: bytes, path: str | None = None) -> bool:
        read = onnx.load_from_string(model)
        for node in read.graph.node:
            if node.domain or node.op_type not in _FUSED | _KERNELS:
                self._errors.append(ParserError(node.op_type, f"no importer for {node.op_type}"))
        if self._errors:
            return False
        network = self._network
        for value in read.graph.output:
            value.type.tensor_type.ClearField("shape")
        network._model = shape_inference.infer_shapes(read)
        network._inputs = [_tensor(value) for value in read.graph.input]
        network._outputs = [_tensor(value) for value in network._model.graph.output]
        return True

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[index]


def _tensor(value: Any) -> Any:
    kind = value.type.tensor_type
    return ITensor(value.name, [d.dim_value for d in kind.shape.dim], _word(kind.elem_type))


def _word(data_type: int) -> str:
    name = onnx.TensorProto.DataType.Name(data_type).lower()
    return "float32" if name == "float" else name


@_real
class ITimingCache:
    def __init__(self, known: Mapping[str, float]) -> None:
        self._known = dict(known)

    def serialize(self) -> Any:
        return IHostMemory(json.dumps(self._known).encode())


@_real
class IBuilderConfig:
    def __init__(self) -> None:
        self._flags = {_ENUMS["BuilderFlag"].TF32}
        self._cache = ITimingCache({})
        self._level, self._streams, self._verbosity = 3, 7, None
        self._pools: dict[Any, int] = {}

    def set_flag(self, flag: Any) -> None:
        self._flags.add(flag)

    def clear_flag(self, flag: Any) -> None:
        self._flags.discard(flag)

    def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
        return ITimingCache(json.loads(serialized_timing_cache or b"{}"))

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return True

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        self._pools[pool] = pool_size

    @property
    def builder_optimization_level(self) -> int:
        return self._level

    @builder_optimization_level.setter
    def builder_optimization_level(self, value: int) -> None:
        self._level = value

    @property
    def max_aux_streams(self) -> int:
        return self._streams

    @max_aux_streams.setter
    def max_aux_streams(self, value: int) -> None:
        self._streams = value

    @property
    def profiling_verbosity(self) -> Any:
        return self._verbosity

    @profiling_verbosity.setter
    def profiling_verbosity(self, value: Any) -> None:
        self._verbosity = value


@_real
class Builder:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger
        if gpu.refusal:
            self._log(gpu.refusal)
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def create_network(self, flags: int = 0) -> Any:
        if flags != 1 << int(_ENUMS["NetworkDefinitionCreationFlag"].STRONGLY_TYPED):
            raise AssertionError("the network is not typed strongly")
        return INetworkDefinition()

    def create_builder_config(self) -> Any:
        return IBuilderConfig()

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        gpu.builds += 1
        graph = _Graph(network._model.graph)
        if graph.weight_bytes > gpu.memory_bytes - gpu.used_bytes:
            self._log(f"Error Code 2: OutOfMemory (requested {graph.weight_bytes} bytes)")
            return None
        has_names_only = config._verbosity != _ENUMS["ProfilingVerbosity"].DETAILED
        ends = [
            {"name": each._name, "shape": each._shape, "dtype": each._dtype, "input": is_input,
             "wide": each._formats != 1 and each._dtype == "int8" and len(each._shape) == 4}
            for is_input, group in ((True, network._inputs), (False, network._outputs))
            for each in group
        ]  # fmt: skip
        is_plain = any(each._formats == 1 for each in network._inputs)
        tf32 = _ENUMS["BuilderFlag"].TF32 in config._flags
        layers = list(graph.layers(config._cache._known, tf32=tf32, is_plain=is_plain))
        if has_names_only:
            layers = [layer["Name"] for layer in layers]
        streams = gpu.aux_streams or min(config._streams, 1)
        plan = {"layers": layers, "ends": ends, "streams": streams, "bytes": graph.weight_bytes}
        return IHostMemory(json.dumps(plan).encode())

    def _log(self, text: str) -> None:
        self._logger.log(ILogger.Severity.ERROR, text)


@dataclass
class _Group:
    """Nodes that one kernel computes."""

    nodes: list[Any]
    reads: list[str] = field(default_factory=list)


class _Graph:
    """A model as groups of nodes, one for each kernel."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._constants = {proto.name: proto for proto in graph.initializer}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, str] = {}
        for value in (*graph.input, *graph.output, *graph.value_info):
            kind = value.type.tensor_type
            self._shapes[value.name] = tuple(d.dim_value for d in kind.shape.dim)
            self._types[value.name] = _word(kind.elem_type)
        self._inputs = {value.name for value in graph.input}

    @property
    def weight_bytes(self) -> int:
        return sum(len(proto.raw_data) for proto in self._graph.initializer)

    def _groups(self) -> list[_Group]:
        makers: dict[str, _Group] = {}
        uses: dict[str, int] = {}
        groups: list[_Group] = []
        for node in self._graph.node:
            for name in node.input:
                uses[name] = uses.get(name, 0) + 1
        for node in self._graph.node:
            if node.op_type in gpu.hides:
                continue
            read = [name for name in node.input if name and name not in self._constants]
            before = [makers[name] for name in read if name in makers]
            waiting = [g for g in before if all(n.op_type == "DequantizeLinear" for n in g.nodes)]
            if node.op_type in _FUSED:
                waiting += [makers[name] for name in read if name in makers and uses[name] == 1]
            group = waiting[0] if waiting else None
            if group is None:
                group = _Group([])
                groups.append(group)
            for other in {id(each): each for each in waiting if each is not group}.values():
                if all(each.op_type == "DequantizeLinear" for each in other.nodes):
                    group.nodes += other.nodes
                    group.reads += other.reads
                    groups.remove(other)
            group.nodes.append(node)
            group.reads += [name for name in read if makers.get(name) is not group]
            for name in node.output:
                makers[name] = group
        return self._merged(self._needed(groups))

    def _needed(self, groups: list[_Group]) -> list[_Group]:
        """Drop what makes no output."""
        needed = {value.name for value in self._graph.output}
        kept = []
        for group in reversed(groups):
            if needed & {name for node in group.nodes for name in node.output}:
                needed |= {name for node in group.nodes for name in node.input}
                kept.append(group)
        return kept[::-1]

    def _merged(self, groups: list[_Group]) -> list[_Group]:
        """Merge convolutions and products of one tensor that are alike."""
        found: dict[Any, _Group] = {}
        kept = []
        for group in groups:
            lead = group.nodes[0]
            same = (*lead.input[:1], self._signature(group))
            if lead.op_type in ("Conv", "Gemm") and same in found:
                found[same].nodes += group.nodes
                continue
            found[same] = group
            kept.append(group)
        return kept

    def _signature(self, group: _Group) -> str:
        """Equal for layers whose kernels need not be timed again."""
        nodes = [
            (node.op_type, [str(helper.get_attribute_value(a)) for a in node.attribute],
             [list(self._constants[i].dims) for i in node.input if i in self._constants],
             [self._shapes.get(i) for i in node.input if i and i not in self._constants])
            for node in group.nodes
        ]  # fmt: skip
        return json.dumps(nodes)

    def layers(self, known: dict[str, float], *, tf32: bool, is_plain: bool) -> Any:
        """Yield what the engine inspector says of each layer, and ``ms``."""
        for group in self._groups():
            name = " + ".join(node.name for node in group.nodes)
            ops = {node.op_type for node in group.nodes}
            half = self._type(group) in ("float16", "bfloat16")
            if "Conv" in ops and (gpu.relayouts or (is_plain and half)):
                yield {
                    "Name": f"Reformatting CopyNode for Input Tensor 0 to {name}",
                    "LayerType": "Reformat", "Origin": "REFORMAT", "ms": RELAYOUT_MS,
                }  # fmt: skip
            silent = ops <= _SILENT
            yield {
                "Name": name,
                "LayerType": "NoOp" if silent else "CaskConvolution" if "Conv" in ops else "kgen",
                "Metadata": "\x1e".join(f"[ONNX Layer: {node.name}]" for node in group.nodes),
                "ms": 0.0 if silent else self._ms(group, known, tf32=tf32),
            }

    def _type(self, group: _Group) -> str:
        return next((self._types[name] for name in group.reads if name in self._types), "float32")

    def _ms(self, group: _Group, known: dict[str, float], *, tf32: bool) -> float:
        same = self._signature(group)
        if same not in known:
            gpu.tries += 1
            known[same] = 1 + gpu.noise * (gpu.tries % 7)
        dtype = self._type(group)
        speed = 2.0 if tf32 and dtype == "float32" else _SPEEDS.get(dtype, 1.0)
        outputs = {name for node in group.nodes for name in node.output}
        inner = {name for node in group.nodes for name in node.input}
        values = sum(math.prod(self._shapes.get(name, (0,))) for name in outputs - inner)
        weights = sum(
            math.prod(self._constants[i].dims)
            for node in group.nodes for i in node.input if i in self._constants
            and len(self._constants[i].dims) > 1
        )  # fmt: skip
        return layer_ms(values, weights, speed) * known[same]


def layer_ms(values: int, weights: int, speed: float = 1.0) -> float:
    """Return the time of a layer with this many values in its output, and in its weights."""
    return (values / VALUES_PER_MS + weights / WEIGHTS_PER_MS) / speed


@_real
class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        return ICudaEngine(json.loads(bytes(serialized_engine)), self._logger)


@_real
class EngineInspector:
    def __init__(self, layers: list[Any]) -> None:
        self._layers = layers

    def get_engine_information(self, format: Any) -> str:  # noqa: A002 -- the real name
        assert format == _ENUMS["LayerInformationFormat"].JSON
        shown = [
            {k: v for k, v in layer.items() if k != "ms"} if isinstance(layer, dict) else layer
            for layer in self._layers
        ]
        return json.dumps({"Layers": shown, "Bindings": []})


@_real
class ICudaEngine:
    def __init__(self, plan: Mapping[str, Any], logger: Any) -> None:
        self._plan, self._logger = plan, logger
        self._ends = {end["name"]: end for end in plan["ends"]}
        self._weights = gpu.allocate(plan["bytes"]) if plan["bytes"] else None

    def __del__(self) -> None:
        gpu.device.pop(self._weights, None)

    @property
    def num_aux_streams(self) -> int:
        return int(self._plan["streams"])

    @property
    def num_io_tensors(self) -> int:
        return len(self._ends)

    def get_tensor_name(self, index: int) -> str:
        return list(self._ends)[index]

    def get_tensor_mode(self, name: str) -> Any:
        modes = _ENUMS["TensorIOMode"]
        return modes.INPUT if self._ends[name]["input"] else modes.OUTPUT

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._ends[name]["shape"])

    def get_tensor_dtype(self, name: str) -> _DataType:
        return _DataType(_ENUMS["DataType"][_DTYPES[self._ends[name]["dtype"]]])

    def get_tensor_vectorized_dim(self, name: str) -> int:
        return 1 if self._ends[name]["wide"] else -1

    def get_tensor_components_per_element(self, name: str) -> int:
        return _WIDE if self._ends[name]["wide"] else -1

    def create_engine_inspector(self) -> Any:
        return EngineInspector(self._plan["layers"])

    def create_execution_context(self, strategy: Any = None) -> Any:
        if gpu.used_bytes + TRANSIENT_BYTES > gpu.memory_bytes:
            self._logger.log(ILogger.Severity.ERROR, "Cuda Runtime (out of memory)")
            return None
        return IExecutionContext(self)


@_real
class IExecutionContext:
    def __init__(self, engine: Any) -> None:
        self._engine, self._addresses = engine, {}
        self._profiler: Any = None
        gpu.contexts += 1

    def __del__(self) -> None:
        gpu.contexts -= 1

    @property
    def profiler(self) -> Any:
        return self._profiler

    @profiler.setter
    def profiler(self, value: Any) -> None:
        assert isinstance(value, IProfiler)
        self._profiler = value

    def get_tensor_strides(self, name: str) -> tuple[int, ...]:
        shape = list(self._engine.get_tensor_shape(name))
        if self._engine._ends[name]["wide"]:
            shape[1] = -(-shape[1] // _WIDE)
        return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return name in self._engine._ends

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine = self._engine
        for name in engine._ends:
            values = math.prod(engine.get_tensor_shape(name))
            if engine._ends[name]["wide"]:
                batch, channels, *area = engine.get_tensor_shape(name)
                values = batch * -(-channels // _WIDE) * _WIDE * math.prod(area)
            needed = values * engine.get_tensor_dtype(name).itemsize
            if gpu.device.get(self._addresses.get(name, 0), 0) < needed:
                engine._logger.log(ILogger.Severity.ERROR, f"the buffer of {name} is too small")
                return False
        layers = engine._plan["layers"]
        gpu.now_ms += ENQUEUE_MS + math.fsum(layer["ms"] for layer in layers)
        for layer in layers if self._profiler is not None else ():
            self._profiler.report_layer_time(layer["Name"], layer["ms"])
        return stream_handle == 7
