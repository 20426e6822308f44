"""TensorRT engines, read from the files that trtexec exports.

``--exportLayerInfo`` writes the engine's layers (their names alone unless it was built with
``--profilingVerbosity=detailed``), ``--exportProfile`` the time of each, ``--exportTimes`` those of
whole runs. TensorRT's version and the device are in trtexec's log alone; the metadata files of
TensorRT Engine Explorer are that log as JSON. Files of TensorRT 8 to 11 differ in what they leave
out, not in the meaning of what they have.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any

from resperf.dataset.importing.rows import ForeignFile, read_files
from resperf.errors import DatasetError, printable
from resperf.network import MALFORMED
from resperf.records import parse_json

DETAILED = "--profilingVerbosity=detailed"
"""Option of trtexec with which an engine keeps what its layers are."""

Facts = Mapping[str, str]
MOST = 1 << 31
"""More than any size or number of runs."""
_DTYPES: Mapping[str, str] = {
    "fp32": "float32", "float": "float32", "tf32": "float32", "fp16": "float16", "half": "float16",
    "bf16": "bfloat16", "bfloat16": "bfloat16", "int8": "int8", "uint8": "uint8", "int32": "int32",
    "int64": "int64", "bool": "bool", "fp8": "float8", "int4": "int4", "fp4": "float4",
}  # fmt: skip
"""TensorRT's word -> type of one value."""
_WIDTHS: Mapping[str, int] = {"two": 2, "four": 4, "sixteen": 16, "thirty-two": 32}


@dataclass(frozen=True)
class EngineTensor:
    """An input or output of an engine's layer.

    Attributes
    ----------
    name : str
    shape : tuple of int
        In the network's order of axes, however it is stored; -1 for a size that is not fixed.
    dtype : str
        Such as ``"float16"``; empty if the file does not say.
    layout : str
        TensorRT's name of the format, in lower case: ``"linear"`` (NCHW), ``"hwc"`` and ``"hwc8"``
        (channels last, padded to eights), ``"chw4"`` (NCHW in blocks of four channels); empty if
        the file does not say.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str

    @property
    def values(self) -> int:
        """Number of values, without padding."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class EngineLayer:
    """A layer of an engine, in the order of execution.

    Attributes
    ----------
    name : str
    type : str
        TensorRT's ``LayerType``: ``"CaskConvolution"``, ``"Reformat"``, ``"NoOp"``.
    inputs, outputs : tuple of EngineTensor
    nodes : tuple of str
        Names of the network's nodes that it computes. In older files, where they are taken from the
        layer's name, names of weights may be among them.
    spans : bool
        Whether `nodes` are only the first and the last of a part that TensorRT compiled as a whole.
    parameters : mapping of str to object
        All else that the file says: kernel, stride, activation, tactic.
    ms : float
        Of one run: median, else mean; NaN if it was not profiled.
    is_median : bool
        Whether `ms` is a median.
    """

    name: str
    type: str
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    nodes: tuple[str, ...]
    spans: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ms: float = math.nan
    is_median: bool = False


@dataclass(frozen=True)
class Engine:
    """A TensorRT engine and its times.

    Attributes
    ----------
    name : str
        Of the file with its layers, without endings; of the network's file, if log or metadata name
        it, where that is only ``"graph"`` or the like.
    layers : tuple of EngineLayer
    bindings : tuple of str
        Names of the network's inputs and outputs.
    profiled_runs : int
        Runs over which the layers' times were taken; 0 without a profile.
    h2d_ms, compute_ms, d2h_ms : tuple of float
        Copies to the device, kernels and copies back, of each run after the warm-up, as trtexec's
        own summary counts them; empty if not measured. Runs without data transfers have zeros in
        the file, which are no times.
    warmups : int
        Runs of the warm-up, which the file has as well: those that begin within the time that the
        log gives, or trtexec's usual 200 ms.
    version : str
        Of TensorRT: ``"8.4.12"``; empty if no file says it.
    device : str
        Name of the GPU; empty if no file says it.
    facts : mapping of str to str
        What log and metadata files say besides, such as ``"Precision": "FP32+FP16"``.
    files : tuple of ForeignFile
        All that were read.
    """

    name: str
    layers: tuple[EngineLayer, ...]
    bindings: tuple[str, ...] = ()
    profiled_runs: int = 0
    h2d_ms: tuple[float, ...] = ()
    compute_ms: tuple[float, ...] = ()
    d2h_ms: tuple[float, ...] = ()
    warmups: int = 0
    version: str = ""
    device: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    files: tuple[ForeignFile, ...] = ()

    @property
    def layers_ms(self) -> float:
        """Sum of the layers' times; NaN without a profile."""
        times_ms = [layer.ms for layer in self.layers if not math.isnan(layer.ms)]
        return math.fsum(times_ms) if times_ms else math.nan

    @property
    def inputs(self) -> tuple[EngineTensor, ...]:
        """The bindings that no layer computes; without bindings, all such tensors."""
        computed = {tensor.name for layer in self.layers for tensor in layer.outputs}
        read = {
            tensor.name: tensor
            for layer in self.layers
            for tensor in layer.inputs
            if tensor.name not in computed and (tensor.name in self.bindings or not self.bindings)
        }
        return tuple(read.values())


class _Role(StrEnum):
    """What a file is, in words for messages."""

    GRAPH = "layer information (--exportLayerInfo)"
    PROFILE = "a profile (--exportProfile)"
    TIMES = "times of runs (--exportTimes)"
    FACTS = "a log or metadata"


def read_exports(paths: Sequence[Path]) -> Engine:
    """Read the exports of one engine.

    Parameters
    ----------
    paths : sequence of Path
        What ``--exportLayerInfo``, ``--exportProfile`` and ``--exportTimes`` wrote, logs of
        trtexec, and metadata files of TensorRT Engine Explorer, in any order, compressed with gzip
        or not; each is recognised by its content.

    Raises
    ------
    DatasetError
        If a file cannot be read, is cut short, none of trtexec's or of another engine; if there is
        no layer information.
    """
    files = read_files(paths)
    exports: dict[_Role, tuple[ForeignFile, Any]] = {}
    facts: dict[str, str] = {}
    for file in files:
        role, content = _recognised(file)
        if role is _Role.FACTS:
            _refuse_other_facts(file, facts, content)
            facts |= content
        elif role in exports:
            raise DatasetError(
                f"{exports[role][0].name} and {file.name} are both {role}; read one engine at a "
                "time"
            )
        else:
            exports[role] = (file, content)
    if _Role.GRAPH not in exports:
        raise DatasetError(
            f"no file with layer information among {', '.join(file.name for file in files)}; "
            f"export one with trtexec --exportLayerInfo=graph.json {DETAILED}"
        )
    engine = _graph(*exports[_Role.GRAPH])
    if _Role.PROFILE in exports:
        engine = _with_profile(engine, *exports[_Role.PROFILE])
    else:
        engine = _of_shapes(engine, "")
    if _Role.TIMES in exports:
        engine = _with_times(engine, *exports[_Role.TIMES], _warm_up_ms(facts))
    engine = _with_inputs(engine, facts)
    _refuse_other_times(engine, facts.pop(_SUMMARY, ""))
    device = facts.pop(_DEVICE, "")
    version = facts.pop("TensorRT version", "")
    if facts.get("Model") and engine.name.lower() in _NO_NAMES:
        engine = replace(engine, name=_stem(facts["Model"]))
    return replace(engine, version=version, device=device, facts=facts, files=tuple(files))


def _recognised(file: ForeignFile) -> tuple[_Role, Any]:
    """Say what a file is; return its parsed content, as facts if it is a log or metadata."""
    if facts := _log_facts(file.text):
        return _Role.FACTS, facts
    try:
        # Names of layers may hold control characters, which separate them in TensorRT 10.
        content = parse_json(file.text.rstrip("\0"), strict=False)
    except ValueError as error:
        raise DatasetError(
            f"{file.name} is cut short or not an export of trtexec ({error}); export it again"
        ) from error
    match content:
        case {"Layers": list()}:
            return _Role.GRAPH, content
        case [{"count": _}, *_]:
            return _Role.PROFILE, content
        case [{"computeMs": _}, *_]:
            return _Role.TIMES, content
        case dict() if not _SECTIONS.isdisjoint(content):
            return _Role.FACTS, dict(_flat(content))
        case [{"Name": _, "ComputeCapability": _}]:
            return _Role.FACTS, {_DEVICE: str(content[0]["Name"])}
    raise DatasetError(
        f"{file.name} is no export of trtexec: expected layer information, a profile, times, a log "
        "or metadata"
    )


_SECTIONS = frozenset({"device_information", "inference_options", "build_options", "model_options"})
"""Of metadata files."""


def _flat(sections: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts of all sections, and of the summary of performance the median run."""
    for section, values in sections.items():
        match section, values:
            case "performance_summary", {"GPU Compute Time": [_, _, _, float(median_ms), *_]}:
                yield _SUMMARY, str(median_ms)
            case "performance_summary", _:
                pass
            case _, Mapping():
                yield from (_fact(str(name), str(value)) for name, value in values.items())


def _fact(name: str, value: str) -> tuple[str, str]:
    """Return a fact; a path without the folders of whoever ran it."""
    return name, re.split(r"[/\\]", value)[-1] if name == "Model" else value


_DEVICE, _SUMMARY = "Selected Device", "GPU Compute Time"
_OF_ENGINE = (_DEVICE, "Model")
"""Facts that are the same in all files of an engine that have them."""


def _refuse_other_facts(file: ForeignFile, facts: Facts, new_facts: Facts) -> None:
    for name in _OF_ENGINE:
        one, other = facts.get(name), new_facts.get(name)
        if one and other and one != other:
            raise DatasetError(
                f"{file.name} is of another engine: its {name} is {printable(other)}, that of the "
                f"other files {printable(one)}; name the files of one engine"
            )


_LOG_VERSION = re.compile(r"\[TensorRT v(\d+)\]")
_LOG_SECTION = re.compile(r"=== (Model|Build|Inference|Device) (?:Options|Information) ===")
_LOG_FACT = re.compile(r"\[I\] ([^:=]+): ?(.*)")
_SHAPES = ("Input inference shape", "Input inference shapes")
_LOG_SUMMARY = re.compile(r"\[I\] GPU Compute Time: .*median = (\d+\.?\d*) ms")


def _log_facts(text: str) -> dict[str, str]:
    """Return what trtexec's log says of build, run and device; empty if it is none."""
    if text.lstrip()[:1] in ("{", "[") and "[I]" not in text[:4096]:
        return {}
    facts: dict[str, str] = {}
    in_section = False
    for line in text.splitlines():
        if "===" in line:
            in_section = _LOG_SECTION.search(line) is not None
        fact = _LOG_FACT.search(line)
        # Lists of all devices have their serial numbers.
        if fact and (in_section or fact[1] == "TensorRT version") and "UUID" not in line:
            name, value = _fact(fact[1].strip(), fact[2].strip())
            if name in _SHAPES and name in facts:  # a line for each input
                facts[name] += f",{value}"
            facts.setdefault(name, value)
        if summary := _LOG_SUMMARY.search(line):
            facts[_SUMMARY] = summary[1]
    version = _LOG_VERSION.search(text)
    if version and "TensorRT version" not in facts:
        facts["TensorRT version"] = version_of(version[1])
    return facts


def version_of(digits: str) -> str:
    """Write the version of a log's first line: 8412 is 8.4.12, 101303 is 10.13.3."""
    if len(digits) < 6:
        return ".".join(filter(None, (digits[:1], digits[1:2], digits[2:].lstrip("0") or "0")))
    return f"{int(digits[:-4])}.{int(digits[-4:-2])}.{int(digits[-2:])}"


@contextmanager
def _reading(file: ForeignFile, what: str) -> Iterator[None]:
    """Name the file of which a part is malformed."""
    try:
        yield
    except MALFORMED as error:
        raise DatasetError(
            f"{file.name} has {what} that cannot be read ({type(error).__name__}: {error}); "
            "export it again"
        ) from error


def _graph(file: ForeignFile, content: Mapping[str, Any]) -> Engine:
    layers = content["Layers"]
    if not layers:
        raise DatasetError(f"{file.name} holds no layers; build the engine with trtexec {DETAILED}")
    with _reading(file, "a layer"):
        read = tuple(map(_layer, layers))
        bindings = tuple(map(str, content.get("Bindings") or ()))
    return Engine(_stem(file.name), read, bindings)


_NO_NAMES = ("graph", "layer", "layers", "layerinfo", "layer_info", "engine", "engine_info")
_ENDINGS = re.compile(r"(\.(gz|json|graph|layers?|engine|plan|onnx))+$")


def _stem(name: str) -> str:
    return _ENDINGS.sub("", name) or name


_OF_LAYER = frozenset({"Name", "LayerType", "Inputs", "Outputs", "Metadata"})


def _layer(values: Mapping[str, Any] | str) -> EngineLayer:
    if isinstance(values, str):
        values = {"Name": values}
    name = str(values["Name"])
    nodes, spans = _nodes(name, str(values.get("Metadata") or ""))
    return EngineLayer(
        name,
        str(values.get("LayerType") or ""),
        tuple(map(_tensor, values.get("Inputs") or ())),
        tuple(map(_tensor, values.get("Outputs") or ())),
        nodes,
        spans,
        {key: value for key, value in values.items() if key not in _OF_LAYER},
    )


def _tensor(values: Mapping[str, Any]) -> EngineTensor:
    written = values.get("Format/Datatype")
    if written is None:
        written = f"{values.get('Format', '')} {values.get('Datatype', '')}"
    shape = tuple(map(int, values.get("Dimensions") or ()))
    if not all(-1 <= size < MOST for size in shape):
        raise ValueError(f"sizes {printable(str(values['Dimensions']))}")
    return EngineTensor(str(values["Name"]), shape, *_type_and_layout(str(written)))


_SHORT_LAYOUT = re.compile(r"\b(c?d?hwc\d*|chw\d+|cdhw\d+|linear)\b")
_BLOCKS = re.compile(r"(\S+) wide channel")
_PADDED_TO = re.compile(r"channel % (\d+) == 0")


def _type_and_layout(written: str) -> tuple[str, str]:
    """Read ``Channel major FP16 format where channel % 8 == 0``, ``Half`` or ``HWC8 | FP16``."""
    words = written.lower()
    dtype = next((_DTYPES[word] for word in re.findall(r"[a-z]+\d*", words) if word in _DTYPES), "")
    volume = "3 spatial" in words
    if short := _SHORT_LAYOUT.search(words):
        return dtype, short[1]
    if blocks := _BLOCKS.search(words):
        return dtype, f"{'cd' * volume or 'c'}hw{_WIDTHS.get(blocks[1], blocks[1])}"
    if "channel major" in words:
        padded = _PADDED_TO.search(words)
        return dtype, f"{'d' * volume}hwc{padded[1] if padded else ''}"
    return dtype, "linear" if "row major" in words else ""


_METADATA_NODE = re.compile(r"\[ONNX Layer: ([^\]\x1e\x1f]*)\]")
_FOREIGN = re.compile(r"\{ForeignNode\[(.*)\]\}", re.DOTALL)
_OWN = re.compile(
    r"^Reformatting CopyNode |^copied_|^__myl_|^\[|\(Unnamed Layer\*|^squeeze_|^unsqueeze_"
)
"""Names that TensorRT made up, which are of no node."""


def _nodes(name: str, metadata: str) -> tuple[tuple[str, ...], bool]:
    """Return the nodes of a layer, and whether they are only the ends of a compiled part.

    TensorRT 10 lists them in the metadata. Before, names of layers were those of the nodes joined:
    ``Conv_5 + Add_6 + Relu_7``, ``A || B`` side by side, ``PWN(A, B)`` pointwise.
    """
    if listed := _METADATA_NODE.findall(metadata):
        return tuple(dict.fromkeys(listed)), False
    if foreign := _FOREIGN.search(name):
        first, _, last = foreign[1].partition("...")
        return tuple(filter(None, (first, last))), True
    if name.startswith("Reformatting CopyNode "):
        return (), False
    own = name.removesuffix(_shapes_of(name))
    parts = re.split(r" \+ | \|\| |, ", own.replace("PWN(", "("))
    trimmed = (part.lstrip("(") if "Unnamed" not in part else part for part in parts)
    names = (part.rstrip(")") if part.count("(") < part.count(")") else part for part in trimmed)
    return tuple(dict.fromkeys(node for node in names if node and not _OWN.search(node))), False


_OF_SHAPES = re.compile(r" \[profile \d+\]$")
"""Ends names of layers and bindings of all optimization profiles but the first."""


def _shapes_of(name: str) -> str:
    match = _OF_SHAPES.search(name)
    return match[0] if match else ""


def _of_shapes(engine: Engine, ending: str) -> Engine:
    """Keep what is of one optimization profile (a range of shapes), by how its names end.

    Tensors get the network's names, as the log has them.
    """

    def plain(tensors: tuple[EngineTensor, ...]) -> tuple[EngineTensor, ...]:
        return tuple(replace(tensor, name=tensor.name.removesuffix(ending)) for tensor in tensors)

    layers = tuple(
        replace(layer, inputs=plain(layer.inputs), outputs=plain(layer.outputs))
        for layer in engine.layers
        if _shapes_of(layer.name) == ending
    )
    bindings = tuple(
        name.removesuffix(ending) for name in engine.bindings if _shapes_of(name) == ending
    )
    return replace(engine, layers=layers, bindings=bindings) if layers else engine


VIEWS = ("NoOp", "Constant")
"""Types of layers that run nothing."""
_NOT_PROFILED = (*VIEWS, "signal", "wait", "shape_call")
_MOST_UNTIMED = 0.25
"""Share of the other layers that a profile of the same engine may lack."""


def _with_profile(engine: Engine, file: ForeignFile, content: Sequence[Any]) -> Engine:
    """Give layers their times, by name; of equal names, by order."""
    with _reading(file, "an entry"):
        runs = int(content[0]["count"])
        if not 0 < runs < MOST:
            raise ValueError(f"{runs} runs")
        waiting: dict[str, deque[tuple[float, bool]]] = defaultdict(deque)
        names = [str(entry["name"]) for entry in content[1:]]
        for name, entry in zip(_profiled_layers(engine, names), content[1:], strict=True):
            waiting[name].append(_time_ms(entry, runs))
    if not waiting:
        raise DatasetError(f"{file.name} has no times of layers; export it again")
    engine = _of_shapes(engine, next(filter(None, map(_shapes_of, waiting)), ""))
    left = Counter(layer.name for layer in engine.layers)
    timed = []
    for layer in engine.layers:
        left[layer.name] -= 1
        mine = waiting[layer.name]
        # What runs several times in a run, such as the body of a loop, has as many entries.
        count = min(1, len(mine)) if left[layer.name] else len(mine)
        if entries := [mine.popleft() for _ in range(count)]:
            ms = math.fsum(ms for ms, _ in entries)
            layer = replace(layer, ms=ms, is_median=entries[0][1])
        timed.append(layer)
    for name, rest in waiting.items():
        if rest and not name.startswith("["):  # copies and shapes, which some versions leave out
            raise _other_engine(file, engine, f"which has no layer {printable(name)!r}")
        timed += [
            EngineLayer(name, "", (), (), (), ms=ms, is_median=is_median) for ms, is_median in rest
        ]
    times_ms = [layer.ms for layer in timed if layer.type not in _NOT_PROFILED]
    untimed = sum(map(math.isnan, times_ms))
    if untimed > _MOST_UNTIMED * len(times_ms):
        raise _other_engine(file, engine, f"of which it lacks {untimed} of {len(times_ms)} layers")
    return replace(engine, layers=tuple(timed), profiled_runs=runs)


_DLA_COPY = re.compile(r"(.+) (to nvm|from nvm|copy finish)", re.DOTALL)
"""Entries of a profile that are copies of a tensor to and from the memory of a DLA."""


def _profiled_layers(engine: Engine, names: list[str]) -> Iterator[str]:
    """Yield the layer of each entry of a profile: its own name, or the DLA node that copies.

    A DLA reports its time in part under these copies. They are named by tensors; where only names
    of layers are exported, a node's copies stand beside it.
    """
    own = {layer.name for layer in engine.layers}
    nodes = {
        layer.name: {tensor.name for tensor in (*layer.inputs, *layer.outputs)}
        for layer in engine.layers
        if layer.type.upper() == "DLA" or (not layer.type and layer.name.startswith("{"))
    }
    for index, name in enumerate(names):
        copy = None if name in own else _DLA_COPY.fullmatch(name)
        if copy is None or not nodes:
            yield name
            continue
        after, before = names[index:], names[index::-1]
        beside = after + before if copy[2].startswith("to") else before + after
        copying = [node for node, tensors in nodes.items() if copy[1] in tensors] or [*nodes]
        yield next((node for node in beside if node in copying), copying[0])


def _other_engine(file: ForeignFile, engine: Engine, why: str) -> DatasetError:
    return DatasetError(
        f"{file.name} is a profile of another engine than {engine.name}, {why}; export both in one "
        "run of trtexec"
    )


def _time_ms(entry: Mapping[str, Any], runs: int) -> tuple[float, bool]:
    """Return the time of one run, and whether it is a median; old profiles have the sum only."""
    if "medianMs" in entry:
        return _not_negative(entry["medianMs"]), True
    if "averageMs" in entry:
        return _not_negative(entry["averageMs"]), False
    return _not_negative(entry["timeMs"]) / runs, False


def _not_negative(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value} is no time")
    return number


_WARM_UP = re.compile(r"(\d+\.?\d*) ?ms warm up")
# Default of trtexec's ``--warmUp``.
_USUAL_WARM_UP_MS = 200.0


def _warm_up_ms(facts: Mapping[str, str]) -> float:
    written = _WARM_UP.search(facts.get("Duration", ""))
    return float(written[1]) if written else _USUAL_WARM_UP_MS


_COLUMNS = (("h2dMs", "inMs"), ("computeMs",), ("d2hMs", "outMs"))
"""Names of each phase, by version."""


def _phase_ms(run: Mapping[str, Any], names: tuple[str, ...]) -> float:
    return _not_negative(run[next((name for name in names if name in run), names[0])])


def _with_times(
    engine: Engine, file: ForeignFile, content: Sequence[Any], warm_up_ms: float
) -> Engine:
    with _reading(file, "a run"):
        # Runs may all be shorter than the warm-up where trtexec was told to do so few.
        later = [
            run for run in content if float(run.get("startComputeMs", math.inf)) >= warm_up_ms
        ] or content
        h2d_ms, compute_ms, d2h_ms = (
            tuple(_phase_ms(run, names) for run in later) for names in _COLUMNS
        )
    if not any(compute_ms):
        raise DatasetError(f"{file.name} has no run that took time; export it again")
    return replace(
        engine,
        compute_ms=compute_ms,
        h2d_ms=h2d_ms if any(h2d_ms) else (),
        d2h_ms=d2h_ms if any(d2h_ms) else (),
        warmups=len(content) - len(later),
    )


_OTHER_RUN, _IMPOSSIBLE = 1.1, 20.0
"""How many times as long, or as short, the runs of one engine are not."""


def _refuse_other_times(engine: Engine, summary_ms: str) -> None:
    """Refuse times of runs that are not those of the summary, or of such layers.

    Raises
    ------
    DatasetError
        If the times are of another engine; they name none.
    """
    if not engine.compute_ms:
        return
    run_ms = median(engine.compute_ms)
    others = (
        ("the summary in log or metadata says", float(summary_ms or "nan"), _OTHER_RUN),
        ("its layers add up to", engine.layers_ms, _IMPOSSIBLE),
    )
    for words, ms, most in others:
        if max(ms, run_ms) > most * min(ms, run_ms):  # never if it is not a number
            raise DatasetError(
                f"times of another engine than {engine.name}: a run takes {run_ms:g} ms, {words} "
                f"{ms:g} ms; name the files of one run of trtexec"
            )


_INPUT_SHAPE = re.compile(r"([^,]+)=(\d+(?:x\d+)*)(?:,|$)")


def _with_inputs(engine: Engine, facts: Mapping[str, str]) -> Engine:
    """Give inputs the sizes of the run where the engine leaves them open.

    Raises
    ------
    DatasetError
        If log or metadata are of a run with other inputs than the engine's.
    """
    written = next((facts[key] for key in _SHAPES if key in facts), "")
    shapes = {tensor.name: tensor.shape for tensor in engine.inputs}
    ran = {}
    for name, sizes in _INPUT_SHAPE.findall(written):
        if name not in shapes and name in engine.bindings:
            continue  # no layer reads it: its values are shapes
        shape = tuple(map(int, sizes.split("x")))
        if shapes and not _may_be(shapes.get(name, ()), shape):
            has = ", ".join(
                f"{input_name}={'x'.join(map(str, s))}" for input_name, s in shapes.items()
            )
            raise DatasetError(
                f"log or metadata of a run of another engine: its input is {name}={sizes}, that of "
                f"{engine.name} {has}; name the files of one engine"
            )
        ran[name] = shape
    layers = (
        replace(
            layer, inputs=tuple(replace(x, shape=ran.get(x.name, x.shape)) for x in layer.inputs)
        )
        for layer in engine.layers
    )
    return replace(engine, layers=tuple(layers))


def _may_be(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether shapes are equal where their sizes are fixed."""
    return len(shape) == len(other) and all(
        one in (-1, size) for one, size in zip(shape, other, strict=True)
    )
