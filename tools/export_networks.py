#!/usr/bin/env python
"""Export published architectures as ONNX files without weights, to judge predictions on.

Architectures come with random weights from timm, torchvision and transformers' configurations,
none of which resperf depends on:

    pip install torch==2.13.0 torchvision timm transformers
    python tools/export_networks.py build/networks
    python tools/benchmark_networks.py --bundle B build/networks/*.onnx --batch 1 8

    python tools/export_networks.py build/convmeter --convmeter
    python tools/export_networks.py build/convmeter-torch --convmeter --unfolded
    resperf bench convmeter-onnxruntime        # and convmeter-torch, convmeter-torch-training

Nothing is downloaded. What cannot be exported is named at the end, with the reason.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from resperf.errors import first_line
from resperf.network import stripped_model

OPSET = 17
TIMM = (
    "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "seresnet50", "resnest14d",
    "densenet121", "dla34", "dpn68", "vovnet39a", "cspresnet50", "cspdarknet53", "hrnet_w18_small",
    "res2net50_26w_4s", "selecsls42b", "rexnet_100", "regnetx_016", "regnety_016",
    "mobilenetv2_100", "mobilenetv3_large_100", "mnasnet_100", "fbnetc_100", "spnasnet_100",
    "efficientnet_b0", "efficientnet_lite0", "tf_efficientnetv2_b0", "ghostnet_100",
    "lcnet_100", "mixnet_s", "hardcorenas_a", "tinynet_a", "repvgg_a0", "inception_v3",
    "xception41", "nf_resnet50", "vit_tiny_patch16_224", "deit_small_patch16_224",
    "swin_tiny_patch4_window7_224", "mixer_s32_224", "resmlp_12_224", "gmlp_s16_224",
    "convnext_tiny", "convmixer_768_32", "poolformer_s12", "mobilevit_s", "pit_ti_224",
    "levit_128s", "edgenext_small", "coat_tiny", "xcit_nano_12_p16_224",
)  # fmt: skip
CALIBRATION = (
    "resnet26", "resnet34", "regnetx_004", "regnety_004", "mobilenetv2_050",
    "mobilenetv3_small_100", "semnasnet_075", "efficientnet_b1", "efficientnet_lite1",
    "tf_efficientnetv2_b1", "ghostnet_130", "lcnet_050", "tinynet_c", "dla46_c",
    "hrnet_w18_small_v2", "vit_small_patch32_224", "deit_tiny_patch16_224", "swin_s3_tiny_224",
    "resmlp_24_224", "gmlp_ti16_224", "convnext_atto", "poolformerv2_s12", "mobilevit_xs",
    "pit_xs_224", "xcit_tiny_12_p16_224", "edgenext_x_small",
)  # fmt: skip
"""Relatives of those above, by which `resperf calibrate` may learn without having seen one."""
TORCHVISION = ("googlenet", "mnasnet1_0", "shufflenet_v2_x1_0", "squeezenet1_1", "vgg11_bn")
CONVMETER = (
    "alexnet", "vgg11", "vgg16", "resnet18", "resnet34", "resnet50", "resnext50_32x4d",
    "wide_resnet50_2", "squeezenet1_0", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large",
    "efficientnet_b0", "efficientnet_b1", "regnet_y_400mf", "regnet_x_400mf", "regnet_y_1_6gf",
    "regnet_x_8gf", "googlenet", "inception_v3", "densenet121", "mnasnet1_0",
    "shufflenet_v2_x1_0", "convnext_tiny",
)  # fmt: skip
"""Of torchvision: those of ConvMeter's tables, and others of their time, by which linear methods
are judged (`resperf evaluate --leave-out network`)."""
SIZES = (64, 128, 224)
"""Pixels of their images; files are called ``NETWORK@SIZE.onnx``."""
BLOCKS = (
    ("resnext50_32x4d", "Bottleneck", 1), ("resnet50", "Bottleneck", 4),
    ("inception_v3", "BasicConv2d", 3), ("resnet18", "BasicBlock", 7),
    ("mobilenet_v3_large", "InvertedResidual", 2), ("regnet_x_8gf", "ResBottleneckBlock", 3),
    ("wide_resnet50_2", "Bottleneck", 9), ("efficientnet_b0", "MBConv", 2),
    ("mobilenet_v2", "InvertedResidual", 3), ("resnet34", "BasicBlock", 5),
    ("regnet_y_1_6gf", "ResBottleneckBlock", 5), ("googlenet", "Inception", 3),
    ("inception_v3", "InceptionA", 2), ("densenet121", "_DenseBlock", 2),
    ("squeezenet1_0", "Fire", 3), ("shufflenet_v2_x1_0", "InvertedResidual", 6),
    ("mnasnet1_0", "_InvertedResidual", 4), ("convnext_tiny", "CNBlock", 4),
)  # fmt: skip
"""Network, class and number (from 1, in the order of the network) of its blocks that are networks
of their own: first those of ConvMeter's Table 2, which says the class and a number."""
BLOCK_SIZES = (128, 224)
"""Pixels of their networks' images; files are called ``NETWORK@SIZE-BLOCK.onnx``."""
SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calibration", action="store_true", help="others, to calibrate with")
    parser.add_argument(
        "--convmeter",
        action="store_true",
        help="networks of ConvMeter's tables at three sizes, and blocks of them",
    )
    parser.add_argument(
        "--unfolded",
        action="store_true",
        help="leave batch normalisations apart, as PyTorch runs and trains them",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some architectures by name")
    arguments = parser.parse_args()
    _kept = declare_operators()
    makers = _makers()
    sized = {
        f"{name}@{size}": lambda name=name, size=size: _torchvision(name, size)
        for name in CONVMETER
        for size in SIZES
    }
    for name, kind, number in BLOCKS:
        for size in BLOCK_SIZES:
            sized[f"{name}@{size}-{kind.strip('_')}{number}"] = (
                lambda name=name, size=size, kind=kind, number=number: _block(
                    name, size, kind, number
                )
            )
    chosen = sized if arguments.convmeter else CALIBRATION if arguments.calibration else makers
    names = arguments.only or list(chosen)
    makers |= sized | {name: lambda name=name: _timm(name) for name in CALIBRATION}
    folded = not arguments.unfolded
    return write_each(
        arguments.folder,
        ((name, lambda path, name=name: _export(makers[name], path, folded=folded))
         for name in names),
    )  # fmt: skip


Export = Callable[[Path], bytes]
"""Writes what it needs into a folder; returns an ONNX file."""


def write_each(folder: Path, exports: Iterable[tuple[str, Export]]) -> int:
    """Write each network that is not there yet; return the exit status.

    What cannot be exported is named at the end, with the reason.
    """
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
            failures[name] = f"{type(error).__name__}: {first_line(error)}"
        else:
            print(f"{name}: {target.stat().st_size / 1e3:.0f} kB", flush=True)
    for name, reason in failures.items():
        print(f"{name}: not exported: {reason}", file=sys.stderr)
    return bool(failures)


def declare_operators() -> Any:
    """Let torchvision be imported where its compiled operators do not fit CPU builds of torch.

    The declarations last as long as the returned object lives.
    """
    from torch import library

    operators = library.Library("torchvision", "DEF")
    for _ in range(40):
        try:
            import torchvision  # noqa: F401
        except RuntimeError as error:
            text = str(error)
            if "torchvision::" not in text:
                raise
            operator = text.split("torchvision::")[1].split()[0].strip(".,'\"")
            for module in [each for each in sys.modules if each.startswith("torchvision")]:
                del sys.modules[module]
            operators.define(f"{operator}(Tensor x) -> Tensor")
        else:
            break
    return operators


def _makers() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:
    """Name -> a call that makes (module, example inputs)."""
    makers: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {}
    for name in TIMM:
        makers[name] = lambda name=name: _timm(name)
    for name in TORCHVISION:
        makers[f"tv_{name}"] = lambda name=name: _torchvision(name, 224)
    for name in SEGMENTATION:
        makers[f"tv_{name}"] = lambda name=name: _segmentation(name)
    makers |= {"bert_base_128": _bert, "distilbert_128": _distilbert, "gpt2_64": _gpt2}
    return makers


def timm_module(name: str) -> Any:
    """Make an architecture of timm, with random weights."""
    import timm

    # Fused attention is exported in parts in any case; these are the parts.
    timm.layers.set_fused_attn(False)
    return timm.create_model(name, pretrained=False, exportable=True)


def _timm(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    model = timm_module(name)
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return model, (torch.zeros(1, *size),)


def _torchvision(name: str, size: int) -> tuple[Any, tuple[Any, ...]]:
    import torch

    return torchvision_module(name), (torch.zeros(1, 3, size, size),)


@lru_cache(maxsize=1)  # all sizes of a network follow each other
def torchvision_module(name: str) -> Any:
    """Make an architecture of torchvision, with random weights."""
    import torch
    import torchvision

    plain = {"aux_logits": False, "init_weights": False}
    extra = plain if name in ("googlenet", "inception_v3") else {}
    module = torchvision.models.get_model(name, weights=None, **extra)
    with torch.no_grad():
        # The exporter writes equal tensors once, and untrained biases and statistics are equal.
        for each in (*module.parameters(), *module.buffers()):
            if each.is_floating_point():
                each.uniform_(0.5, 1.5)
    return module


def _block(name: str, size: int, kind: str, number: int) -> tuple[Any, tuple[Any, ...]]:
    """Make a block of a network, with an input as the network gives it."""
    import torch

    model, images = _torchvision(name, size)
    model.eval()
    block = [each for each in model.modules() if type(each).__name__ == kind][number - 1]
    given: list[Any] = []
    hook = block.register_forward_pre_hook(lambda _, inputs: given.extend(inputs))
    with torch.no_grad():
        model(*images)
    hook.remove()
    return block, tuple(torch.zeros_like(each) for each in given)


def _segmentation(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch
    import torchvision

    model = torchvision.models.get_model(name, weights=None, weights_backbone=None)

    class Out(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x)["out"]

    return Out(), (torch.zeros(1, 3, 224, 224),)


def _bert() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(attn_implementation="eager"))
    return _tuples(model), (torch.ones(1, 128, dtype=torch.int64),)


def _distilbert() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from transformers import DistilBertConfig, DistilBertModel

    model = DistilBertModel(DistilBertConfig(attn_implementation="eager"))
    return _tuples(model), (torch.ones(1, 128, dtype=torch.int64),)


def _gpt2() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(attn_implementation="eager", use_cache=False, n_layer=6))
    return _tuples(model), (torch.ones(1, 64, dtype=torch.int64),)


def _tuples(model: Any) -> Any:
    """Let a model of transformers answer its last hidden state alone."""
    import torch

    class Hidden(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any) -> Any:
            mask = torch.ones_like(tokens)
            return self.model(input_ids=tokens, attention_mask=mask).last_hidden_state

    return Hidden()


def _export(
    make: Callable[[], tuple[Any, tuple[Any, ...]]], folder: Path, *, folded: bool
) -> bytes:
    """Export a module with a free batch size, then drop the weights' bytes.

    Not folded, each batch normalisation stays an operator of its own.
    """
    import torch

    module, inputs = make()
    module.eval()
    modes = torch.onnx.TrainingMode
    path = folder / "whole.onnx"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, inputs, str(path), opset_version=OPSET, dynamo=False,
            input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}},
            training=modes.EVAL if folded else modes.PRESERVE, do_constant_folding=folded,
        )  # fmt: skip
    return without_weights(path)


def without_weights(path: Path) -> bytes:
    """Return an ONNX file without its weights' bytes."""
    content: bytes = stripped_model(path).SerializeToString()
    return content


if __name__ == "__main__":
    sys.exit(main())
