"""Export published architectures as ONNX files without weights, to judge predictions on.

    pip install torch==2.13.0 torchvision timm transformers onnxscript
    pip install onnxconverter-common diffusers           # for the lists from first to ninth
    python tools/benchmarks/export.py default build/networks          # 61 networks
    python tools/benchmarks/export.py ninth build/ninth --only resnet50t seresnetaa50d-fp16

Lists, names and sizes are in networks.toml. Weights are random, nothing is downloaded, and files
that are there already stay. What cannot be exported is named at the end, with the reason: a list
of several frameworks, which do not fit into one environment, is exported by one command in each.

    pip install --no-deps spandrel einops                              # beside torch and the above
    pip install tensorflow-cpu kagglehub regex rich && pip install --no-deps tf2onnx keras-hub
    pip install paddlepaddle paddle2onnx faiss-cpu filelock opencv-python-headless prettytable \\
        scikit-learn sympy ujson visualdl && pip install --no-deps paddleclas paddleseg
    python tools/benchmarks/export.py heldout-exporters build/heldout          # in each of three

The list `latencies` has the networks of published latencies in TensorRT, as its table builds them.

    pip install --no-deps timm==1.0.31 torchvision ultralytics==8.4.190 ultralytics-thop \\
        opencv-python-headless matplotlib
    python tools/benchmarks/export.py latencies build/latencies
"""

from __future__ import annotations

import csv
import gzip
import importlib
import inspect
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pages import parser_of, public_data

from resperf.dataset.importing.latencies import graph_name
from resperf.errors import first_line
from resperf.network import stripped_model

DATA: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("networks.toml").read_text(encoding="utf-8")
)
LISTS: Mapping[str, Mapping[str, Any]] = DATA["lists"]
MODELS = {
    name: (sort, values) for sort, own in DATA["models"].items() for name, values in own.items()
}
SCRIPT_OPSET, KERAS_OPSET = 17, 15
BATCH = 2
"""Of the example input: torch.export would read a batch of 1 as a fixed dimension."""
PAST, PROMPT = 128, 64
SMALL = 224
"""Pixels of images below which AlexNet and VGG pool to more pixels than they have."""
ABSENT = "absent.bin"

Example = tuple[Any, tuple[Any, ...]]
"""Module and example inputs."""
Export = Callable[[Path], bytes]
"""Writes what it needs into a folder; returns an ONNX file."""


def exports(name: str) -> dict[str, Export]:
    """Return the networks of a list by file name, without suffix."""
    listed = LISTS[name]
    batch = listed.get("batch", BATCH)
    more = LISTS[listed["same_as"]] if "same_as" in listed else listed
    writers: dict[str, Export] = {}

    def add(
        name: str, write: Callable[..., None], make: Callable[..., Example], *given: Any
    ) -> None:
        writers[name] = lambda folder: _stripped(make(*given), folder, write)

    by_script = script if listed.get("folded", True) else partial(script, folded=False)
    for model in listed.get("script", ()):
        add(model, by_script, example, model, batch)
    for model in more.get("sized", ()):
        for size in more.get("sizes_of", {}).get(model, more["sizes"]):
            add(f"{model}@{size}", by_script, torchvision_network, model, batch, size)
    for model, kind, number in more.get("blocks", ()):
        for size in more["block_sizes"]:
            name = f"{model}@{size}-{kind.strip('_')}{number}"
            add(name, by_script, block, model, size, kind, number)
    for model in listed.get("dynamo", ()):
        add(model, dynamo, example, model, batch)
    for model, form in listed.get("converted", {}).items():
        writers[f"{model}-{form}"] = lambda folder, model=model, form=form: converted(
            example(model, batch), form, folder
        )
    for key, prefix, export in OF_LIBRARIES:
        for model in listed.get(key, ()):
            writers[f"{prefix}{model.casefold()}"] = partial(export, model)
    for build, size in published_networks(listed.get("latencies")):
        add(graph_name(build, size), script, built, build, size)
    return writers


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("list", choices=LISTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some by name")
    arguments = parser.parse_args()
    writers = exports(arguments.list)
    chosen = arguments.only or writers
    for word in chosen:
        if word not in writers:
            near = " or ".join(get_close_matches(word, writers)) or f"one of {len(writers)} others"
            parser.error(f"{arguments.list} has no {word!r}; did you mean {near}?")
    warnings.simplefilter("ignore")
    if find_spec("torchvision"):
        declare_operators()
    return write_each(arguments.folder, ((name, writers[name]) for name in chosen))


def write_each(folder: Path, exports: Iterable[tuple[str, Export]]) -> int:
    """Write each network that is not there yet; return the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    failures = {}
    for name, export in exports:
        target = folder / f"{name}.onnx"
        if target.exists():
            continue
        try:
            with TemporaryDirectory() as scratch:
                target.write_bytes(export(Path(scratch)))
        except Exception as error:  # whatever a framework says of an architecture it cannot export
            failures[name] = reason(error)
        else:
            print(f"{name}: {target.stat().st_size / 1e3:.0f} kB", flush=True)
    for name, why in failures.items():
        print(f"{name}: not exported: {why}", file=sys.stderr)
    return bool(failures)


def reason(error: BaseException) -> str:
    """Name the first of the errors that led to one."""
    while before := error.__cause__ or error.__context__:
        error = before
    return f"{type(error).__name__}: {first_line(error)}"


def declare_operators() -> None:
    """Let torchvision be imported where its compiled operators do not fit CPU builds of torch."""
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for module in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[module]
        for name in ("nms", "qnms"):  # it describes them, whether they are there or not
            torch.library.define(f"torchvision::{name}", "(Tensor x) -> Tensor")


# What is exported: module and example inputs


def example(name: str, batch: int) -> Example:
    """Make a network of a list by its name."""
    import torch

    stem, _, form = name.rpartition("_")
    if name == "detr_encoder":  # over the 400 places of a detector's image
        layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        return encoder, (torch.randn(batch, 400, 256),)
    if name in MODELS:
        return library_model(name, batch)
    if form in ("prompt", "token") and stem in DATA["decoders"]:
        return decoder(DATA["decoders"][stem], batch, *{"prompt": (PROMPT, 0)}.get(form, (1, PAST)))
    if name.startswith("tv_"):
        return torchvision_network(name.removeprefix("tv_"), batch, 224)
    import timm

    # Fused attention is exported in parts in any case; these are the parts.
    timm.layers.set_fused_attn(False)
    module = timm.create_model(name, pretrained=False, exportable=True)
    return module, (torch.randn(batch, *module.default_cfg.get("input_size", (3, 224, 224))),)


def torchvision_network(name: str, batch: int, size: int) -> Example:
    """Make an architecture of torchvision; a segmentation answers its map alone."""
    import torch
    import torchvision

    if name == "mc3_18":  # of videos
        clip = torch.randn(batch, 3, 8, 112, 112)
        return torchvision.models.get_model(name, weights=None), (clip,)
    image = torch.randn(batch, 3, size, size)
    if f"tv_{name}" not in DATA["segmentation"]:
        model = torchvision_module(name)
        if pooled := {"alexnet": 6, "vgg": 7}.get(name.rstrip("0123456789")):
            # ONNX has no pooling to more pixels than there are.
            resize = torch.nn.Upsample if size < SMALL else torch.nn.AdaptiveAvgPool2d
            model.avgpool = resize(pooled)
        return model, (image,)
    model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
    return as_module(model, lambda x: model(x)["out"]), (image,)


@lru_cache(maxsize=1)  # all sizes of a network follow each other
def torchvision_module(name: str) -> Any:
    import torchvision

    plain = {"aux_logits": False, "init_weights": False}
    extra = plain if name in ("googlenet", "inception_v3") else {}
    return with_unlike_weights(torchvision.models.get_model(name, weights=None, **extra))


def with_unlike_weights(module: Any) -> Any:
    """Draw all weights: the exporter writes equal tensors once, as untrained biases are."""
    import torch

    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    return module


def block(name: str, size: int, kind: str, number: int) -> Example:
    """Make a block of a network, with an input as the network gives it."""
    import torch

    model, images = torchvision_network(name, 1, size)
    model.eval()
    part = [module for module in model.modules() if type(module).__name__ == kind][number - 1]
    given: list[Any] = []
    hook = part.register_forward_pre_hook(lambda _, inputs: given.extend(inputs))
    with torch.no_grad():
        model(*images)
    hook.remove()
    return part, tuple(torch.zeros_like(tensor) for tensor in given)


def as_module(model: Any, answer: Callable[..., Any]) -> Any:
    """Make a module of a model and of how it answers; inputs come by position."""
    import torch

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return answer(*inputs)

    return Module()


def configured(values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Make a model of transformers or diffusers; return it with its sizes."""
    own = {
        "library", "of", "model", "part", "method", "inputs", "integers", "masked", "plain", "base",
    }  # fmt: skip
    sizes = {
        **DATA["bases"].get(values.get("base"), {}),
        **{key: value for key, value in values.items() if key not in own},
    }
    library = import_module(values.get("library", "transformers"))
    if "library" in values:
        return getattr(library, values["of"])(**sizes), sizes
    configuration = getattr(library, f"{values['of']}Config")(**sizes)
    configuration._attn_implementation = "eager"
    return getattr(library, values["of"] + values.get("model", "Model"))(configuration), sizes


def library_model(name: str, batch: int) -> Example:
    """Make a model that answers its first tensor."""
    import torch

    sort, values = MODELS[name]
    shapes = values.get("inputs") or DATA["inputs"][sort]
    whole = {"input_ids", *values.get("integers", ())}
    inputs = tuple(
        torch.ones(batch, *shape, dtype=torch.int64) if key in whole else torch.randn(batch, *shape)
        for key, shape in shapes.items()
    )
    model, _ = configured(values)
    model = getattr(model, values["part"]) if "part" in values else model
    if values.get("plain"):  # answers a tensor
        return model, inputs
    call = getattr(model, values["method"]) if "method" in values else model

    def answer(*given: Any) -> Any:
        named = dict(zip(shapes, given, strict=True))
        if values.get("masked"):
            named["attention_mask"] = torch.ones_like(given[0])
        return call(**named, return_dict=False)[0]

    return as_module(model, answer), inputs


def decoder(values: Mapping[str, Any], batch: int, tokens: int, past: int) -> Example:
    """Make a decoder for a number of tokens behind a cache of others, which it returns extended."""
    import torch
    from transformers import DynamicCache

    model, sizes = configured({"model": "ForCausalLM", **values})
    heads = sizes.get("num_key_value_heads", sizes["num_attention_heads"])
    width = sizes["hidden_size"] // sizes["num_attention_heads"]
    layers = sizes["num_hidden_layers"]

    def answer(ids: Any, *cache: Any) -> Any:
        if not cache:
            return model(input_ids=ids, use_cache=False, return_dict=False)[0]
        pairs = [(cache[2 * i], cache[2 * i + 1]) for i in range(layers)]
        mask = torch.ones(ids.shape[0], past + tokens, dtype=torch.int64)
        outputs = model(
            input_ids=ids, attention_mask=mask, past_key_values=DynamicCache(pairs), use_cache=True
        )
        extended = outputs.past_key_values.layers
        return (outputs.logits, *(x for layer in extended for x in (layer.keys, layer.values)))

    ids = torch.ones(batch, tokens, dtype=torch.int64)
    cache = [torch.zeros(batch, heads, past, width) for _ in range(2 * layers)] if past else []
    return as_module(model, answer), (ids, *cache)


def published_networks(table: str | None) -> list[tuple[str, str]]:
    """Return expression and input size of the networks of a table of published latencies."""
    if table is None:
        return []
    with gzip.open(public_data() / table, "rt", encoding="utf-8") as file:
        return list(dict.fromkeys((row["build"], row["input"]) for row in csv.DictReader(file)))


def built(build: str, size: str) -> Example:
    """Make a network by an expression, for images such as 3x224x224 or sequences such as seq128."""
    import torch

    names = ("timm", "torchvision", "transformers", "ultralytics")
    libraries = {name: importlib.import_module(name) for name in names if name in build}
    if "timm" in libraries:
        # Fused attention is exported in parts in any case; these are the parts.
        libraries["timm"].layers.set_fused_attn(False)
        libraries["timm"].layers.set_exportable(True)
    model = with_unlike_weights(eval(build, libraries))  # an expression of the table
    if size.startswith("seq"):
        model.config._attn_implementation = "eager"
        ids = torch.ones(BATCH, int(size.removeprefix("seq")), dtype=torch.int64)

        def first_outputs(ids: Any, mask: Any, types: Any) -> Any:
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
            return model(**given, return_dict=False)[:2]

        return as_module(model, first_outputs), (ids, torch.ones_like(ids), torch.zeros_like(ids))
    if "ultralytics" in libraries:
        model.float().fuse(verbose=False)
        for module in model.modules():
            if hasattr(module, "export"):  # boxes alone, of a fixed size of images
                module.export, module.format = True, "onnx"
    return model, (torch.zeros(BATCH, *map(int, size.split("x"))),)


# How it is exported


def _stripped(model: Example, folder: Path, write: Callable[..., None]) -> bytes:
    path = folder / "whole.onnx"
    write(*model, path)
    return bytes(stripped_model(path).SerializeToString())


def script(module: Any, inputs: tuple[Any, ...], path: Path, *, folded: bool = True) -> None:
    """Export by TorchScript; not folded, batch normalisations stay apart, and Dropout stays."""
    import torch

    modes = torch.onnx.TrainingMode
    for part in module.eval().modules():
        part.training = isinstance(part, torch.nn.modules.dropout._DropoutNd) and not folded
    names = [f"x{index}" for index, _ in enumerate(inputs)] if len(inputs) > 1 else ["x"]
    with torch.no_grad():
        torch.onnx.export(
            module, inputs, str(path), opset_version=SCRIPT_OPSET, dynamo=False,
            input_names=names, output_names=["y"],
            dynamic_axes={name: {0: "batch"} for name in names},
            training=modes.EVAL if folded else modes.PRESERVE, do_constant_folding=folded,
        )  # fmt: skip


def dynamo(module: Any, inputs: tuple[Any, ...], path: Path) -> None:
    """Export by torch.export, optimised."""
    import torch

    auto: list[Any] = [{0: torch.export.Dim.AUTO} for _ in inputs]
    given = inspect.signature(module.forward).parameters.values()
    if [parameter.kind for parameter in given] == [inspect.Parameter.VAR_POSITIONAL]:
        auto = [tuple(auto)]
    with torch.no_grad():
        torch.onnx.export(
            module.eval(), inputs, str(path), dynamo=True, dynamic_shapes=tuple(auto),
            verbose=False, external_data=False,
        )  # fmt: skip


def keras(name: str, folder: Path) -> bytes:
    """Export an application of Keras, or a model of keras-hub, by tf2onnx."""
    import tensorflow as tf
    import tf2onnx

    shapes: Mapping[str, Any] = {}
    if name in MODELS:
        values = MODELS[name][1]
        network, shapes = configured(values)[0], values.get("inputs", {})
    else:
        network = getattr(tf.keras.applications, name)(weights=None)
    several = isinstance(network.input, dict)
    tensors = network.input if several else {"x": network.input}

    def call(*given: Any) -> Any:
        inputs = dict(zip(tensors, given, strict=True)) if several else given[0]
        return network(inputs, training=False)

    signature = [
        tf.TensorSpec((None, *shapes.get(key, tensor.shape[1:])), tensor.dtype, name=key)
        for key, tensor in tensors.items()
    ]
    path = folder / "whole.onnx"
    tf2onnx.convert.from_function(
        tf.function(call), input_signature=signature, opset=KERAS_OPSET, output_path=str(path)
    )
    return bytes(stripped_model(path).SerializeToString())


def paddle(name: str, folder: Path) -> bytes:
    """Export a network of Paddle by paddle2onnx."""
    import paddle

    sort, values = MODELS[name]
    network, _ = configured(values)
    specs = [
        paddle.static.InputSpec([None, *shape], "float32", key)
        for key, shape in (values.get("inputs") or DATA["inputs"][sort]).items()
    ]
    path = folder / "whole"
    paddle.onnx.export(network.eval(), str(path), input_spec=specs, opset_version=SCRIPT_OPSET)
    return bytes(stripped_model(path.with_suffix(".onnx")).SerializeToString())


def converted(model: Example, form: str, folder: Path) -> bytes:
    """Export by TorchScript and convert; weights stay, since their values decide the conversion."""
    whole, target = folder / "whole.onnx", folder / "converted.onnx"
    script(*model, whole)
    (to_float16 if form.startswith("fp16") else to_int8)(whole, target, form, model[1])
    return target.read_bytes()


def to_float16(whole: Path, target: Path, form: str, _inputs: tuple[Any, ...]) -> None:
    import onnx

    package = "onnxconverter_common" if form == "fp16" else "onnxruntime.transformers"
    convert = import_module(f"{package}.float16").convert_float_to_float16
    onnx.save(convert(onnx.load(whole), keep_io_types=form != "fp16"), target)


def to_int8(whole: Path, target: Path, form: str, inputs: tuple[Any, ...]) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready = whole.with_name("ready.onnx")
    quant_pre_process(str(whole), str(ready), skip_symbolic_shape=True)
    weights = quantization.QuantType.QInt8
    if form == "int8-dynamic":
        quantization.quantize_dynamic(str(ready), str(target), weight_type=weights)
        return

    class Images(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [{"x": inputs[0].numpy()}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    formats = quantization.QuantFormat
    quantization.quantize_static(
        str(ready), str(target), Images(), per_channel=form == "int8-qdq", weight_type=weights,
        quant_format=formats.QDQ if form == "int8-qdq" else formats.QOperator,
        activation_type=quantization.QuantType.QUInt8,
    )  # fmt: skip


# Language models of published GPU times: unoptimised, without memory for weights


def traced(name: str, _folder: Path) -> bytes:
    """Return what PyTorch's default exporter writes; its weights are in an absent file."""
    import onnx_ir
    import torch

    with torch.device("meta"):
        module, inputs = library_model(name, BATCH)
    with torch.no_grad():
        program = torch.onnx.export(
            module.eval(), inputs, dynamo=True, optimize=False, verbose=False,
            dynamic_shapes=(({0: torch.export.Dim("batch")},),),
        )  # fmt: skip
    for value in program.model.graph.initializers.values():
        value.const_value = onnx_ir.ExternalTensor(
            ABSENT, None, None, value.dtype, shape=value.shape, name=value.name
        )
    proto = onnx_ir.to_proto(program.model)
    for described in (*proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        described.ClearField("metadata_props")  # stack traces: most of the file
        described.ClearField("doc_string")
    return bytes(proto.SerializeToString())


OF_LIBRARIES = (("keras", "keras_", keras), ("paddle", "paddle_", paddle), ("traced", "", traced))
"""Key in a list, beginning of the files' names, and export."""

if __name__ == "__main__":
    sys.exit(main())
