#!/usr/bin/env python
"""Export the networks of published GPU times as weightless ONNX files, as PyTorch writes them.

The file is what `torch.onnx.export` writes by default, unoptimised: normalisations are not folded
into convolutions, the batch is free where the architecture allows it, and weights are declared as
data in a file that does not exist. Scaled-dot-product attention on other than four axes, which the
exporter refuses, is written in the parts as which PyTorch runs it. Nothing is downloaded; modules
are built without weights.

    pip install torch==2.13.0 timm transformers onnxscript
    python tools/export_gpu_networks.py build/gpu_networks --timm operators.jsonl.gz
    python tools/export_gpu_networks.py build/gpu_networks --language

``--timm`` takes a file of operator lists (``model``, ``size``, ``reparameterised`` per line):
each architecture is exported at its listed image size, with merged branches where the list says
so. What cannot be exported is named at the end, with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from export_networks import declare_operators

from resperf.errors import first_line

BATCH = 2
"""Of the example input; a batch of 1 would be read as a fixed dimension."""
ABSENT = "absent.bin"


@dataclass(frozen=True)
class Language:
    """Configuration of a language model: class names of transformers, sizes, tokens."""

    configuration: str
    model: str
    tokens: int
    sizes: dict[str, int]


def _gpt2(width: int, layers: int, heads: int, tokens: int) -> Language:
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": tokens}
    return Language("GPT2Config", "GPT2LMHeadModel", tokens, sizes)


LANGUAGE = {
    "bert_large-512": Language(
        "BertConfig", "BertForSequenceClassification", 512,
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
         "intermediate_size": 4096},
    ),
    "gpt2_large-1024": _gpt2(1280, 36, 20, 1024),
    "gpt3_xl-2048": _gpt2(3072, 24, 24, 2048),
    "gpt3_2.7b-2048": _gpt2(2560, 32, 32, 2048),
    "opt_1.3b-2048": Language(
        "OPTConfig", "OPTForCausalLM", 2048,
        {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
         "ffn_dim": 8192, "word_embed_proj_dim": 2048, "max_position_embeddings": 2048},
    ),
}  # fmt: skip
"""As in NeuSight's measurements; attention in parts, float32."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--timm", type=Path, metavar="FILE", help="operator lists of architectures")
    parser.add_argument("--language", action="store_true", help="language models")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of them by name")
    parser.add_argument("--most", type=int, help="stop after so many")
    arguments = parser.parse_args()
    if not (arguments.timm or arguments.language):
        parser.error("say what to export: --timm FILE, --language, or both")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    _kept = declare_operators()
    makers = _timm_makers(arguments.timm) if arguments.timm else {}
    if arguments.language:
        makers |= {name: lambda model=model: _language(model) for name, model in LANGUAGE.items()}
    names = [name for name in makers if _is_wanted(name, arguments.only)]
    for word in arguments.only or ():
        if not any(_is_wanted(name, [word]) for name in makers):
            near = (
                " or ".join(get_close_matches(word, makers)) or "one of the files given by --timm"
            )
            parser.error(f"no architecture is called {word!r}; did you mean {near}?")
    failures: dict[str, str] = {}
    for name in names[: arguments.most]:
        target = arguments.folder / f"{name}.onnx"
        if target.exists():
            continue
        started = time.monotonic()
        try:
            target.write_bytes(makers[name]())
        except Exception as error:  # whatever a framework says of an architecture it cannot export
            failures[name] = _reason(error)
            print(f"{name}: not exported: {failures[name]}", flush=True)
        else:
            kilobytes, seconds = target.stat().st_size / 1e3, time.monotonic() - started
            print(f"{name}: {kilobytes:.0f} kB, {seconds:.0f} s", flush=True)
    print(f"{len(names[: arguments.most]) - len(failures)} exported, {len(failures)} not")
    for name, reason in failures.items():
        print(f"{name}: not exported: {reason}", file=sys.stderr)
    return bool(failures)


def _reason(error: BaseException) -> str:
    """Name the first of the errors that led to one."""
    while before := error.__cause__ or error.__context__:
        error = before
    return f"{type(error).__name__}: {first_line(error)}"


def network_name(row: dict[str, Any]) -> str:
    """Return the file name of an architecture, without suffix: ``resnet50-256``."""
    return f"{row['model']}-{row['size']}" + ("-reparameterised" if row["reparameterised"] else "")


def operator_lists(path: Path) -> dict[str, dict[str, Any]]:
    """Read a file of operator lists, by `network_name`."""
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return {network_name(row): row for row in rows if row["ok"]}


def _is_wanted(name: str, only: list[str] | None) -> bool:
    return not only or name in only or name.rpartition("-")[0] in only


def _timm_makers(path: Path) -> dict[str, Callable[[], bytes]]:
    rows = operator_lists(path)
    for row in rows.values():
        del row["ops"]  # Millions of objects, which would slow every collection of garbage.
    return {name: lambda row=row: _timm(row) for name, row in rows.items()}


def _timm(row: dict[str, Any]) -> bytes:
    """Export an architecture, without memory for its weights where that is possible."""
    # Some architectures read values of tensors, which "meta" tensors do not have.
    attempts = (("meta", True), ("cpu", True), ("meta", False))
    errors = []
    for device, fused_attention in attempts:
        try:
            return _exported(*_module(row, device, fused_attention=fused_attention))
        except Exception as error:
            errors.append(error)
    raise errors[0]


def _module(row: dict[str, Any], device: str, *, fused_attention: bool) -> tuple[Any, Any]:
    """Make an architecture and an image."""
    import timm
    import torch
    from timm.utils.model import reparameterize_model

    timm.layers.set_fused_attn(fused_attention)
    with torch.device(device):
        module = timm.create_model(row["model"], pretrained=False, **row["kw"]).eval()
        if row["reparameterised"]:
            module = reparameterize_model(module)
        channels = module.default_cfg.get("input_size", (3,))[0]
        return module, torch.zeros(BATCH, channels, row["size"], row["size"])


def _language(model: Language) -> bytes:
    import torch
    import transformers

    configuration = getattr(transformers, model.configuration)(
        **model.sizes, attn_implementation="eager", use_cache=False
    )
    with torch.device("meta"):
        inner = getattr(transformers, model.model)(configuration).eval()

    class Logits(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tokens: Any) -> Any:
            return self.inner(input_ids=tokens).logits

    tokens = torch.zeros(BATCH, model.tokens, dtype=torch.int64, device="meta")
    return _exported(Logits().eval(), tokens)


def _exported(module: Any, example: Any) -> bytes:
    """Return what PyTorch's default exporter writes, with a free batch where that is possible."""
    import torch

    def program(**more: Any) -> Any:
        with torch.no_grad():
            return torch.onnx.export(
                module, (example,), dynamo=True, optimize=False, verbose=False, **more
            )

    with warnings.catch_warnings(), _attention_on_any_axes():
        warnings.simplefilter("ignore")
        try:
            made = program(dynamic_shapes=({0: torch.export.Dim("batch")},))
        except Exception:  # an architecture that computes with its batch size
            made = program()
    return _without_weights(made.model)


@contextlib.contextmanager
def _attention_on_any_axes() -> Iterator[None]:
    """Write attention on other than four axes as PyTorch computes it without a fused kernel."""
    import torch

    functional = torch.nn.functional
    fused = functional.scaled_dot_product_attention

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> Any:
        if query.dim() == 4 or {name for name, each in more.items() if each} - {"dropout_p"}:
            return fused(query, key, value, attn_mask, **more)
        root = query.shape[-1] ** -0.25
        scores = (query * root) @ (key.transpose(-2, -1) * root)
        masked = scores if attn_mask is None else scores + attn_mask
        return masked.softmax(-1) @ value

    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = fused


def _without_weights(model: Any) -> bytes:
    """Serialise a model whose weights are declared in an absent file."""
    import onnx_ir

    for value in model.graph.initializers.values():
        value.const_value = onnx_ir.ExternalTensor(
            ABSENT, None, None, value.dtype, shape=value.shape, name=value.name
        )
    proto = onnx_ir.to_proto(model)
    for described in (*proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        described.ClearField("metadata_props")  # stack traces: most of the file
        described.ClearField("doc_string")
    return bytes(proto.SerializeToString())


if __name__ == "__main__":
    sys.exit(main())
