"""Networks of PyTorch, Keras and transformers, exported to ONNX without their weights."""

from __future__ import annotations

import copy
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import is_zipfile

import numpy as np

from resperf.errors import NetworkError, first_line, require, silent_stderr
from resperf.network.model import stripped_model
from resperf.network.pt2 import load_program

if TYPE_CHECKING:
    from onnx import ModelProto

Shapes = Mapping[str, Sequence[int]]
Exports = tuple[Callable[[int | None], "ModelProto"], ...]
_INTEGERS = ("ids", "mask", "tokens", "indices", "positions", "labels")
"""How names of inputs end that are integers where only a shape is given."""
_MANY_WEIGHTS = 1_000_000_000
"""From here on the exporter that computes nothing is faster than the one that runs the module."""


class Source(NamedTuple):
    """A network of another framework.

    Attributes
    ----------
    name : str
    exports : tuple of callable
        Ways to export it, in the order to try them. Each takes a batch, or None for the network's
        own; returns the network in ONNX, with this batch or any.
    shapes : mapping of str to sequence of int
        Shapes that the exported network still has to be given.
    """

    name: str
    exports: Exports
    shapes: Shapes


def source(network: Any, inputs: Any, shapes: Shapes) -> Source | None:
    """Return how a network of another framework is exported; None if it is of none known here.

    Parameters
    ----------
    network : Path or object
        A .pt2 file, a .keras file, or config.json of transformers; `torch.nn.Module`,
        `torch.export.ExportedProgram`, `keras.Model` or a configuration of transformers.
    inputs : tensor or shape, or sequence or mapping of these
        Arguments of a module's call.
    shapes : mapping of str to sequence of int
        Shapes of inputs by name.

    Raises
    ------
    NetworkError
        If the file cannot be read, or a module lacks inputs.
    MissingExtraError
        If the framework is not installed.
    """
    names = [f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(network).__mro__]
    if isinstance(network, Path):
        names = [network.suffix] if network.is_file() else []
    read = next((_READERS[name] for name in names if name in _READERS), None)
    return None if read is None else read(network, inputs, shapes)


def _of_keras_file(path: Path, inputs: Any, shapes: Shapes) -> Source:
    if not is_zipfile(path):
        raise NetworkError(f"{path} is damaged, or not of Keras 3; write it again with model.save")
    with silent_stderr():  # TensorFlow logs while it is imported
        keras = require("keras", "keras")
    with _exporting(path):
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    return _of_keras(model, inputs, shapes)._replace(name=path.stem)


def _of_keras(model: Any, inputs: Any, shapes: Shapes) -> Source:
    if inputs is not None:
        raise NetworkError("inputs= is for PyTorch; a Keras model takes shapes=")
    require("tf2onnx", "keras")
    if not model.built:
        raise NetworkError(f"{model.name} does not know its input yet; call it with an example")
    with _exporting(model.name):
        # Keras exports a model once it was called, if with symbols. One of a class has no inputs.
        if given := getattr(model, "inputs", None):
            model(given if len(given) > 1 else given[0])

    def export(_batch: int | None) -> ModelProto:
        written = _written(model.name, partial(model.export, format="onnx", verbose=False))
        for node in written.graph.node:
            if node.op_type == "Erfc":  # Of gelu: ONNX has no such operator, and its time is Erf's.
                node.op_type = "Erf"
        return written

    return Source(model.name, (cache(export),), shapes)


def _of_config_file(path: Path, inputs: Any, shapes: Shapes) -> Source:
    transformers = require("transformers", "transformers")
    with _exporting(path):
        try:
            kind = str((values := json.loads(path.read_bytes()))["model_type"])
        except (ValueError, LookupError, TypeError):
            raise ValueError("it is no config.json of transformers with a model_type") from None
        if kind not in transformers.CONFIG_MAPPING:
            raise ValueError(f"transformers has no model type {kind!r}, and runs no code beside it")
        config = transformers.CONFIG_MAPPING[kind].from_dict(values)
    return _of_config(config, inputs, shapes)


_SIZES = {"pixel_values": "1,3,224,224", "input_features": "1,80,3000", "input_values": "1,16000"}
"""Input of a network of transformers that takes no tokens -> its usual shape."""
_DECODER = "--shape decoder_input_ids=1,1"


def _of_config(config: Any, inputs: Any, shapes: Shapes) -> Source:
    transformers, name = require("transformers", "transformers"), type(config).__name__
    with _exporting(name), require("torch", "torch").device("meta"):
        model = getattr(transformers, str(next(iter(config.architectures or ()), "")), None)
        if not (isinstance(model, type) and issubclass(model, transformers.PreTrainedModel)):
            model = transformers.AutoModel.from_config
        config.use_cache = config.use_pretrained_backbone = False  # nothing is downloaded
        config._attn_implementation = "eager"
        module = model(config)
    if inputs is None and not shapes:
        main = module.main_input_name
        decoder = f" {_DECODER}" * config.is_encoder_decoder
        raise NetworkError(
            f"{name} has no input shapes; give them: --shape {main}={_SIZES.get(main, '1,128')}"
            f"{decoder}"
        )
    return _of_module(module, inputs, shapes)


def _of_program_file(path: Path, inputs: Any, shapes: Shapes) -> Source:
    return _of_program(load_program(path), inputs, shapes)._replace(name=path.stem)


def _of_program(program: Any, inputs: Any, shapes: Shapes) -> Source:
    # Guards are code of the file.
    guarded = "check_guards" in inspect.signature(program.module).parameters
    module = program.module(check_guards=False) if guarded else program.module()
    if inputs is not None or program.example_inputs is None:
        return _of_module(module, inputs, shapes)
    exports = _of_torch(module, program.example_inputs, program.graph_signature.user_inputs, shapes)
    return Source("program", tuple(partial(_at_batch, export) for export in exports), {})


def _at_batch(export: Callable[[int | None], ModelProto], batch: int | None) -> ModelProto:
    """Export a program at a batch that may not be the one it is fixed to."""
    try:
        return export(batch)
    except NetworkError as error:
        how = "with dynamic_shapes=({0: torch.export.Dim('batch')},), from an example of batch 2"
        fixed = f"if its batch is fixed, export the program {how} or more"
        raise NetworkError(str(error) if batch is None else f"{error}; {fixed}") from error


def _of_module(module: Any, inputs: Any, shapes: Shapes) -> Source:
    torch = require("torch", "torch")
    if isinstance(module, torch.jit.ScriptModule):
        raise NetworkError("a TorchScript module cannot be exported; give the one it was made of")
    if inputs is None and not shapes:
        raise NetworkError(
            "a PyTorch module needs inputs, as tensors or shapes: inputs=(1, 3, 224, 224), "
            "inputs=(ids, mask) or shapes={'input_ids': (1, 128)}"
        )
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    floats = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
    dtype = next(floats, torch.float32)

    def tensor(value: Any, name: str = "") -> Any:
        if _is_shape(value):
            kind = torch.int64 if name.endswith(_INTEGERS) else dtype
            return torch.zeros(tuple(value), dtype=kind)
        if isinstance(value, list | tuple):
            return tuple(map(tensor, value))
        return torch.as_tensor(value) if hasattr(value, "dtype") else value

    given: Any = shapes if inputs is None else inputs
    by_name = given.items() if isinstance(given, Mapping) else ()
    named = {name: tensor(value, name) for name, value in by_name}
    values = given if isinstance(given, list | tuple) and not _is_shape(given) else [given]
    names = chain(inspect.signature(module.forward).parameters, repeat(""))
    example = ((), named) if named else (tuple(map(tensor, values, names)), {})
    return Source(type(module).__name__, _of_torch(module, example, [*named], {}), {})


def _is_shape(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(dim, int) for dim in value)


def _of_torch(module: Any, example: Any, names: Sequence[str], shapes: Shapes) -> Exports:
    """Return PyTorch's exporters: the older one runs the module once, the newer one does not."""
    from torch.utils import _pytree as tree

    torch = require("torch", "torch")
    if unknown := shapes.keys() - {*names}:
        raise NetworkError(f"no input {min(unknown)!r}; inputs: {', '.join(names)}")
    leaves, spec = tree.tree_flatten(example)
    where = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    names = [*names, *(f"input{index}" for index in range(len(names), len(where)))][: len(where)]
    whole = torch.nn.Module()  # with tensors by position as its inputs and outputs
    whole.module, with_data = _runnable(torch, module)
    whole.training = False

    def forward(*tensors: Any) -> Any:
        filled = dict(enumerate(leaves)) | dict(zip(where, tensors, strict=True))
        args, named = tree.tree_unflatten([*filled.values()], spec)
        answer = tree.tree_leaves(whole.module(*args, **named))
        return tuple(leaf for leaf in answer if isinstance(leaf, torch.Tensor))

    whole.forward = forward
    device = next((weight.device for weight in whole.parameters()), "cpu")
    tensors = {
        name: with_data(leaves[at]).to(device) for name, at in zip(names, where, strict=True)
    }
    tensors |= {name: tensors[name].new_zeros(shape) for name, shape in shapes.items()}
    first = next((x.shape[:1] for x in tensors.values() if x.dim()), None)
    batched = [name for name, tensor in tensors.items() if tensor.shape[:1] == first]

    @cache
    def by_script(free: bool) -> ModelProto:
        # Batch normalisation stays an operator, as PyTorch runs it.
        return _by_torch(
            torch, whole, tensors, dynamo=False, training=torch.onnx.TrainingMode.PRESERVE,
            dynamic_axes={name: {0: "batch"} for name in batched if free},
            do_constant_folding=False,
        )  # fmt: skip

    def by_program(batch: int | None) -> ModelProto:
        sized = {name: tensors[name] for name in batched if batch is not None}
        sized = {name: x[:1].expand(batch, *x.shape[1:]) for name, x in sized.items()}
        return _by_torch(torch, whole, tensors | sized, dynamo=True, optimize=False)

    exports: Exports = (lambda batch: by_script(batch is not None), by_program)
    if find_spec("onnxscript") is None:
        return exports[:1]
    many = sum(weight.numel() for weight in whole.parameters()) > _MANY_WEIGHTS
    return exports[::-1] if many else exports


def _by_torch(torch: Any, whole: Any, tensors: Mapping[str, Any], **how: Any) -> ModelProto:
    """Export with weights as inputs, of which weights without data are made."""
    write = partial(
        torch.onnx.export, whole, (*tensors.values(),), input_names=[*tensors], verbose=False,
        export_params=False, keep_initializers_as_inputs=True, **how,
    )  # fmt: skip
    decodes = getattr(getattr(whole.module, "config", None), "is_encoder_decoder", False)
    lacks = decodes and not any("decoder" in name for name in tensors)
    hint = f"; if it needs the decoder's input, add {_DECODER}" if lacks else ""
    if isinstance(getattr(whole.module, "model", None), torch.nn.Module):  # as YOLO of ultralytics
        hint += "; if it wraps a network, give that, its .model"
    model = _written(type(whole.module).__name__, write, hint)
    for info in [info for info in model.graph.input if info.name not in tensors]:
        model.graph.input.remove(info)
        kind = info.type.tensor_type
        dims = [dim.dim_value for dim in kind.shape.dim]
        model.graph.initializer.add(name=info.name, data_type=kind.elem_type, dims=dims)
    return model


def _runnable(torch: Any, module: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Copy a module for inference, with the same weights; those without data become zeros.

    Returns
    -------
    module : torch.nn.Module
    with_data : callable
        What makes zeros of a tensor without data. They take no memory until they are written.
    """
    from torch._subclasses import FakeTensor

    def with_data(tensor: Any) -> Any:
        if not (tensor.is_meta or isinstance(tensor, FakeTensor)):
            return tensor
        content = np.zeros(tensor.numel() * tensor.element_size(), np.uint8)
        return torch.from_numpy(content).view(tensor.dtype).view(tensor.shape)

    owners = [own for x in module.modules() for own in (x._parameters, x._buffers, vars(x))]
    held = [value for own in owners for value in own.values() if isinstance(value, torch.Tensor)]
    with _exporting(type(module).__name__):
        copied = copy.deepcopy(module, {id(tensor): with_data(tensor) for tensor in held})
    for part in copied.modules():
        part.training = False
    return copied, with_data


def _written(what: str, write: Callable[[str], Any], hint: str = "") -> ModelProto:
    """Return what an exporter writes, without weights."""
    with _exporting(what, hint), TemporaryDirectory() as folder:
        path = Path(folder, "network.onnx")
        write(str(path))
        return stripped_model(path)


@contextmanager
def _exporting(what: object, hint: str = "") -> Iterator[None]:
    """Silence a framework; report its error and a hint, with the node if it names one."""
    try:
        with silent_stderr(1), silent_stderr(), warnings.catch_warnings(action="ignore"):
            yield
    except Exception as error:  # whatever the framework or the network raises
        reason, node = error, ""
        while isinstance(reason.__cause__, Exception):
            reason = reason.__cause__
            if match := re.search(r"node (%\w+)", str(reason)):
                node = f" (node {match[1]})"
        why = f"{first_line(reason)}{node}"
        raise NetworkError(f"{what} cannot be exported to ONNX: {why}{hint}") from error


_READERS: Mapping[str, Callable[[Any, Any, Shapes], Source]] = {
    ".keras": _of_keras_file, ".pt2": _of_program_file, ".json": _of_config_file,
    "keras.Model": _of_keras, "torch.Module": _of_module, "torch.ExportedProgram": _of_program,
    "transformers.PretrainedConfig": _of_config, "transformers.PreTrainedConfig": _of_config,
}  # fmt: skip
"""Suffix of a file, or package and class of an object (the first that fits) -> what reads it."""
