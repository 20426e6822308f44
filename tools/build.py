"""Build what is shipped: reference networks, and the bundles of GPUs of published measurements.

    python tools/build.py networks                    # models/networks
    python tools/build.py networks --only lenet5 --output build/reference
    python tools/build.py dnnperf-unseen              # build/dnnperf-unseen, of the campaign
    python tools/build.py bundles                     # 10 minutes on 2 cores
    python tools/build.py bundles --only k80 gpus-torch gpus-torch-networks
    python tools/build.py methods                     # models/methods, 2 minutes

Networks are structure and shapes at batch 1. Weights are marked as external data in a file that is
never written, so that a network of half a gigabyte takes a few kilobytes.

Measurements are read from $RESPERF_PUBLIC_DATA (../shared/data by default). TensorFlow: one bundle
per card; convolutions and dense layers, forward and as training steps, are learnt from justus. What
it lacks (poolings, activations, copies, reshapes) is not fitted here but taken over from the
shipped bundle, whose `estimates` say from what it was fitted. PyTorch: one bundle of all cards, in
two parts, of NVIDIA's and of AMD's; layers of neusight (float32) and of vidur (float16) are learnt
together, each row on its own card. PyTorch, whole networks: costs of operator classes on GPUs, and
on two CPUs, are learnt from timm's times of whole networks. TensorRT: costs of kernels on all cards
are learnt from published latencies of networks, which tools/benchmarks/export.py writes first.

Methods are published ones that answer where `--method` names them: ConvMeter on timm's
convolutional networks, Gianniti's lines on justus. What libraries hold in training is learnt from
gpumemnet, with exports of timm's networks (batch normalisations not folded) in build/timm.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from onnx import TensorProto

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

from gpus import import_all
from pages import ROOT, dataset, parser_of, public_data, run
from published import TIMM_DEVICES, import_layers, import_networks

from resperf.bundle import Bundle, write_calibrated
from resperf.bundle._provenance import changed
from resperf.campaign.builder import Builder, weight
from resperf.campaign.families import VGG, Draw, draw_networks
from resperf.campaign.laws import law
from resperf.campaign.spec import DrawnSpec
from resperf.dataset import Dataset, read_dataset, read_info, write_dataset
from resperf.devices import device_class
from resperf.layers import kind_of_key
from resperf.lowering.torch import run_kernels
from resperf.measurement import Status
from resperf.predictors.network_totals import CONVOLUTIONS, counted
from resperf.settings import CONTAINS, HOST_DISPATCH
from resperf.training import train
from resperf.training.rows import network_examples, network_quantities


def lenet5() -> Builder:
    net = Builder(1, 28, 28).conv(6, 5, 1, 2).relu().pool(2, 2).conv(16, 5).relu().pool(2, 2)
    return net.flatten().dense(120).relu().dense(84).relu().dense(10)


def alexnet() -> Builder:
    net = Builder(3, 224, 224).conv(64, 11, 4, 2).relu().pool(3, 2)
    net.conv(192, 5, 1, 2).relu().pool(3, 2).conv(384, 3, 1, 1).relu()
    net.conv(256, 3, 1, 1).relu().conv(256, 3, 1, 1).relu().pool(3, 2)
    return net.flatten().dense(4096).relu().dense(4096).relu().dense(1000)


def zfnet() -> Builder:
    net = Builder(3, 224, 224).conv(96, 7, 2, 1).relu().pool(3, 2, 1)
    net.conv(256, 5, 2).relu().pool(3, 2, 1).conv(384, 3, 1, 1).relu()
    net.conv(384, 3, 1, 1).relu().conv(256, 3, 1, 1).relu().pool(3, 2)
    return net.flatten().dense(4096).relu().dense(4096).relu().dense(1000)


def vgg(*convolutions: int) -> Builder:
    net = Builder(3, 224, 224)
    for count, channels in zip(convolutions, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            net.conv(channels, 3, 1, 1).relu()
        net.pool(2, 2)
    return net.flatten().dense(4096).relu().dense(4096).relu().dense(1000)


def nin() -> Builder:
    net = Builder(3, 224, 224)
    for channels, kernel, stride, pad in ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1)):
        net.conv(channels, kernel, stride, pad).relu()
        net.conv(channels, 1).relu().conv(channels, 1).relu().pool(3, 2)
    return net.conv(1024, 3, 1, 1).relu().conv(1024, 1).relu().conv(1000, 1).relu().average()


def resnet(layers: Sequence[tuple[int, int]], depths: Sequence[int]) -> Builder:
    """Build a network of blocks whose layers have so many times a width, and a kernel."""
    net = Builder(3, 224, 224).conv_norm(64, 7, 2).relu().pool(3, 2, 1)
    for stage, depth in enumerate(depths):
        for index in range(depth):
            residual(net, 64 << stage, 2 if stage and not index else 1, layers)
    return net.average().flatten().dense(1000)


BASIC, BOTTLENECK = ((1, 3), (1, 3)), ((1, 1), (1, 3), (4, 1))


def residual(net: Builder, width: int, stride: int, layers: Sequence[tuple[int, int]]) -> Builder:
    """Add a block; its last layer but one has the stride."""
    shortcut = start = net.at
    for left, (times, kernel) in zip(reversed(range(len(layers))), layers, strict=True):
        net.conv_norm(times * width, kernel, stride if left == 1 else 1)
        end = (net.relu() if left else net).at
    if start[1] != end[1]:
        shortcut = net.go(start).conv_norm(end[1][0], 1, stride).at
    return net.go(end).add(shortcut).relu()


def mobilenet_v1() -> Builder:
    net = Builder(3, 224, 224).conv_norm(32, 3, 2).relu6()
    rows = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5]
    for channels, stride in [*rows, (1024, 2), (1024, 1)]:
        net.conv_norm(net.shape[0], 3, stride, net.shape[0]).relu6().conv_norm(channels, 1).relu6()
    return net.average().flatten().dense(1000)


# Expansion, channels, depth, stride of the first block, and kernel.
V2 = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3),
      (6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3))  # fmt: skip
V3 = ((1, 16, 1, 1, 3), (4, 24, 2, 2, 3), (3, 40, 3, 2, 5), (6, 80, 1, 2, 3),
      (3, 80, 3, 1, 3), (6, 112, 2, 1, 3), (6, 160, 3, 2, 5))  # fmt: skip
EFFICIENT = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
             (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip


def mobile(draw: Draw, rows: Sequence[Any], act: Callable[..., Builder], gate: str = "") -> Builder:
    """Build inverted residuals, which a gate weighs by channel."""
    net = act(draw.images().conv_norm(32, 3, 2))
    for expansion, width, depth, first_stride, kernel in rows:
        for index in range(depth):
            stride, start = 1 if index else first_stride, net.at
            if expansion > 1:
                act(net.conv_norm(expansion * start[1][0], 1))
            act(net.conv_norm(net.shape[0], kernel, stride, net.shape[0]))
            if gate:
                inner = net.at
                net.average().conv(max(1, inner[1][0] // 4), 1).relu().conv(inner[1][0], 1)
                net.same(gate).op("mul", "Mul", inner[1], reads=[inner[0], net.name])
            net.conv_norm(draw.scaled(width), 1)
            if net.shape == start[1]:
                net.add(start)
    return act(net.conv_norm(1280, 1)).average().flatten().dense(1000)


def squeezenet1_1() -> Builder:
    net = Builder(3, 224, 224).conv(64, 3, 2).relu().pool(3, 2, ceil=True)
    for index, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        if index in (2, 4):
            net.pool(3, 2, ceil=True)
        start = net.conv(squeeze, 1).relu().at
        branches = [net.go(start).conv(4 * squeeze, k, 1, k // 2).relu().at for k in (1, 3)]
        net.concat(branches)
    return net.conv(1000, 1).relu().average().flatten()


def googlenet() -> Builder:
    net = Builder(3, 224, 224).conv_norm(64, 7, 2).relu().pool(3, 2, ceil=True)
    net.conv_norm(64, 1).relu().conv_norm(192, 3).relu()
    stages = (
        ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
        ((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
         (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128)),
        ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
    )  # fmt: skip
    for kernel, stage in zip((3, 3, 2), stages, strict=True):
        net.pool(kernel, 2, ceil=True)
        for block in stage:
            inception(net, *block)
    return net.average().flatten().dense(1000)


def inception(net: Builder, one: int, in3: int, out3: int, in5: int, out5: int, pooled: int):
    start = net.at
    branches = [net.conv_norm(one, 1).relu().at]
    for inner, outer in ((in3, out3), (in5, out5)):
        branches.append(net.go(start).conv_norm(inner, 1).relu().conv_norm(outer, 3).relu().at)
    branches.append(net.go(start).pool(3, 1, 1, ceil=True).conv_norm(pooled, 1).relu().at)
    return net.concat(branches)


def densenet(draw: Draw) -> Builder:
    growth = draw("growth")
    net = draw.images().conv_norm(2 * growth, 7, 2).relu().pool(3, 2, 1)
    for stage, depth in enumerate((6, 12, 24, 16)):
        if stage:
            net.norm().relu().conv(net.shape[0] // 2, 1, bias=False)
            net.pool(2, 2, op="AveragePool")
        for _ in range(depth):
            start = net.at
            net.norm().relu().conv_norm(4 * growth, 1).relu().conv(growth, 3, 1, 1, bias=False)
            net.concat([start, net.at])
    return net.norm().relu().average().flatten().dense(1000)


def darknet19() -> Builder:
    net = Builder(3, 224, 224)
    for channels, depth in ((32, 1), (64, 1), (128, 3), (256, 3), (512, 5), (1024, 5)):
        if channels > 32:
            net.pool(2, 2)
        for index in range(depth):
            wide = index % 2 == 0
            net.conv_norm(channels if wide else channels // 2, 3 if wide else 1)
            net.op("leaky", "LeakyRelu", net.shape, alpha=0.1)
    return net.conv(1000, 1).average().flatten()


def unet(draw: Draw) -> Builder:
    net, skips, first = draw.images(), [], draw("filters")
    for level in range(5):
        width = first << level
        net.conv(width, 3, 1, 1).relu().conv(width, 3, 1, 1).relu()
        if level < 4:
            skips.append(net.at)
            net.pool(2, 2)
    for skip in reversed(skips):
        width = skip[1][0]
        net.concat([skip, net.up(width).at])
        net.conv(width, 3, 1, 1).relu().conv(width, 3, 1, 1).relu()
    return net.conv(2, 1)


def convnext(draw: Draw) -> Builder:
    net, first = draw.images(), draw("filters")
    for stage, depth in enumerate((3, 3, 9, 3)):
        width, kernel = first << stage, 2 if stage else 4
        net.conv(width, kernel, kernel)
        for _ in range(depth):
            start = net.at
            net.conv(width, 7, 1, 3, groups=width).transpose(2, 3, 1).layer_norm()
            net.linear(4 * width).gelu().linear(width).transpose(3, 1, 2).add(start)
    return net.average().flatten().dense(1000)


def attention(net: Builder, heads: int, causal: bool) -> Builder:
    start, (tokens, width), size = net.at, net.shape, net.shape[1] // heads

    def part(*axes: int) -> str:
        return net.go(start).linear(width).reshape(tokens, heads, size).transpose(*axes).name

    reads, shape = [part(2, 1, 3), part(2, 3, 1)], (heads, tokens, tokens)
    value = part(2, 1, 3)
    net.op("scores", "MatMul", shape, reads=reads).op("root", "Div", shape, {"root": size**0.5})
    if causal:  # takes as long as a mask
        net.op("causal", "Trilu", shape, upper=0)
    net.same("Softmax", axis=-1)
    net.op("mixture", "MatMul", (heads, tokens, size), reads=[net.name, value])
    return net.transpose(2, 1, 3).reshape(tokens, width).linear(width)


def transformer(draw: Draw, sort: str) -> Builder:
    """Build ViT (without a class token), BERT, which normalises behind its layers, or GPT-2."""
    heads = draw("heads")
    width, last = 64 * heads, sort == "bert"
    if sort == "vit":
        net = draw.images().conv(width, 8, 8)
        net.reshape(width, net.shape[1] * net.shape[2]).transpose(2, 1)
    else:
        net = Builder(draw("tokens"), batch=draw("batch"), dtype=TensorProto.INT64)
        net.weights.append(weight("words", (8000, width)))
        net.op("gather", "Gather", (*net.shape, width), reads=["words", net.name])
    net.op("positions", "Add", net.shape, {"positions": net.shape}).dropout(0.1)
    for step in range(2 * draw("depth")):
        start = net.at
        if not last:
            net.layer_norm()
        if step % 2:
            net.linear(4 * width).gelu().linear(width)
        else:
            attention(net, heads, sort == "gpt2")
        net.dropout(0.1).add(start)
        if last:
            net.layer_norm()
    if sort == "vit":
        return net.layer_norm().op("mean", "ReduceMean", (width,), axes=[1], keepdims=0).dense(1000)
    return (net if last else net.layer_norm()).linear(8000)


def fixed(**sizes: int) -> Draw:
    given = {"batch": 1, "channels": 3, "pixels": 224, **sizes}
    return Draw({word: law(value, word) for word, value in given.items()}, "")


NETWORKS: dict[str, Callable[[], Builder]] = {
    **{
        network.__name__: network
        for network in (
            lenet5, alexnet, zfnet, nin, mobilenet_v1, squeezenet1_1, googlenet, darknet19,
        )
    },
    "mobilenet_v2": lambda: mobile(fixed(width_percent=100), V2, Builder.relu6),
    "densenet121": lambda: densenet(fixed(growth=32)),
    "unet": lambda: unet(fixed(channels=1, pixels=256, filters=64)),
    **{f"vgg{depth}": partial(vgg, *counts) for depth, counts in VGG.items()},
    "resnet18": lambda: resnet(BASIC, (2, 2, 2, 2)),
    "resnet50": lambda: resnet(BOTTLENECK, (3, 4, 6, 3)),
}  # fmt: skip


def build_network(_work: Path, output: Path) -> None:
    """Write a network: structure and shapes, no weights."""
    model = NETWORKS[output.name]().model(output.name)
    data = model.SerializeToString(deterministic=True)
    output.with_name(f"{output.name}.onnx").write_bytes(data)
    print(f"{output.name:14} {len(model.graph.node):4} nodes {len(data) / 1024:7.1f} KiB")


# Families of microbench/dnnperf-unseen.toml, and the sizes of their networks.
IMAGES = {"batch": [2, 4, 8, 16], "channels": 3, "pixels": [64, 96, 128]}
WIDTHS = {**IMAGES, "width_percent": [35, 50, 75, 100, 140]}
TOKENS = {"batch": [1, 2, 4, 8], "heads": [1, 2, 3, 4, 6], "depth": [2, 4, 6, 8]}
UNSEEN: Mapping[str, tuple[Callable[..., Builder], Mapping[str, Any]]] = {
    "mobilenet_v2": (partial(mobile, rows=V2, act=Builder.relu6), WIDTHS),
    "mobilenet_v3": (partial(mobile, rows=V3, act=Builder.hard_swish, gate="HardSigmoid"), WIDTHS),
    "efficientnet": (partial(mobile, rows=EFFICIENT, act=Builder.silu, gate="Sigmoid"), WIDTHS),
    "densenet": (densenet, {**IMAGES, "growth": [12, 16, 24, 32]}),
    "convnext": (convnext, {**IMAGES, "filters": [24, 32, 48, 64, 96]}),
    "unet": (unet, {**IMAGES, "filters": [8, 12, 16, 24, 32]}),
    "vit": (partial(transformer, sort="vit"), {**IMAGES, **TOKENS}),
    **{name: (partial(transformer, sort=name), {**TOKENS, "tokens": [16, 32, 64, 128]})
       for name in ("bert", "gpt2")},
}  # fmt: skip


def build_unseen(_work: Path, output: Path) -> None:
    """Draw and write eleven networks of a family."""
    family, sizes = UNSEEN[output.name]
    table = {"families": [output.name], "count": 11, "largest_macs": 3 * 10**9, **sizes}
    networks = draw_networks(DrawnSpec.from_mapping(table), "unseen", {output.name: family})
    for number, (_, content) in enumerate(networks):
        output.with_name(f"{output.name}-{number:02}.onnx").write_bytes(content)


SHIPPED = ROOT / "models" / "bundles"
TREES = {"1080ti": 500, "k80": 500, "p100": 1200, "v100": 500}
"""Most trees of each kind of a card under TensorFlow: 3 MB. Convolutions of the P100 need more."""
MEASURED, FEWEST_ROWS, ESTIMATED = "*-torch-????.h5", 20, "resize"
"""Datasets of layers that we measured, a precision each; kinds with fewer rows there are left to
the data sheet, and so are resizes, whose planes may wait for one another."""
TORCH = "gpus-torch"
"""The bundle of all cards under PyTorch."""
TORCH_TREES = {"cuda": 800, "rocm": 200}
"""Its parts, that of most cards first: class of devices -> most trees of each kind, so that the
bundle stays below 10 MB."""
OPERATOR_COSTS = "gpus-torch-networks"
"""The bundle of what operators cost under PyTorch, learnt from whole networks."""
TENSORRT = "gpus-tensorrt"
"""The bundle of what kernels cost under TensorRT, learnt from whole networks."""
CONVOLUTIONAL = 0.9
"""Least share of the multiply-adds in convolutions: ConvMeter is of such networks."""


def build_tensorflow(work: Path, output: Path) -> None:
    """Train a card's bundle, and take over what its measurements lack."""
    device = output.name
    name = f"{device}-tensorflow"
    learnt = train(import_layers(f"justus-{device}", work), work / name, trees=TREES[device])
    write_estimated(learnt, Bundle.read_only_manifest(SHIPPED / name), output.with_name(name))


def write_estimated(learnt: Bundle, shipped: Bundle, output: Path) -> None:
    """Write a bundle with what the shipped one estimates and the dataset lacks."""
    old, new = shipped.part, learnt.part
    kinds = [kind for kind in old["predictors"] if f"{kind} execution" in old["estimates"]]
    golden = [layer for layer in old["golden"]["layers"] if kind_of_key(layer["key"]) in kinds]
    notes = [note for note in new["training"]["notes"] if "no transfer was measured" not in note]
    write_changed(
        learnt,
        output,
        "what was not measured is estimated as in the bundle before",
        predictors=new["predictors"] | {kind: old["predictors"][kind] for kind in kinds},
        ranges=new["ranges"] | {kind: old["ranges"][kind] for kind in kinds},
        golden=new["golden"] | {"layers": [*new["golden"]["layers"], *golden]},
        transfers=old["transfers"],
        costs=old["costs"] | new["costs"],
        training=new["training"] | {"notes": notes},
        estimates=old["estimates"],
    )


def write_changed(learnt: Bundle, output: Path, reason: str, **values: object) -> None:
    """Write a bundle with other values in its only part."""
    provenance = changed(learnt.manifest["provenance"], reason)
    manifest = learnt.manifest | {"parts": [learnt.part | values], "provenance": provenance}
    write_calibrated(Bundle(learnt.path, manifest), output)


def build_torch(work: Path, output: Path) -> None:
    """Import, merge and train the cards of each class, and join the two bundles."""
    datasets = [*import_all(work / "cards"), *measured(work)]
    for name, most in TORCH_TREES.items():
        of_class = [path for path in datasets
                    if device_class(read_info(path).platform.device) == name]  # fmt: skip
        merged = dataset(work / f"{name}.h5", "merge", *of_class)
        train(merged, work / name, method="roofline", trees=most)
    run("bundle", "merge", *(work / name for name in TORCH_TREES), "-o", output)


def measured(work: Path) -> Iterator[Path]:
    """Write our own rows like published ones, which say by themselves where they were measured."""
    for path in sorted((ROOT / "datasets").glob(MEASURED)):
        card = path.name.rpartition("-")[0]
        host_us = host_dispatch_us(path.with_name(f"{card}-networks-fp32.h5"))
        rows, of = read_dataset(path), ("execution_ms",)
        source = {"format": "resperf", "files": [path.name], "left_out": {}}
        info = replace(rows.info, machine_costs={}, quantities=of, source=source)
        options = {**info.setting.options, CONTAINS: "kernels", HOST_DISPATCH: f"{host_us:.1f}"}
        setting = replace(info.setting, threads=0, options=options)
        ok = [row for row in rows.measurements if row.status is Status.OK]
        counts = Counter(row.layer.kind for row in ok)
        del counts[ESTIMATED]
        cut = [
            replace(row, setting=setting, samples={name: row.samples[name] for name in of})
            for row in ok if counts[row.layer.kind] >= FEWEST_ROWS
        ]  # fmt: skip
        write_dataset(work / path.name, Dataset(replace(info, setting=setting), tuple(cut), {}, {}))
        yield work / path.name


@cache
def host_dispatch_us(networks: Path) -> float:
    """Return the median time per kernel of networks at batch 1, which wait for the host."""
    rows = network_examples(networks, "execution_ms")
    return 1e3 * median(
        time_ms / len(run_kernels(network, setting))
        for network, setting, time_ms in zip(rows.networks, rows.settings, rows.values, strict=True)
        if setting.batch == 1
    )


def build_operator_costs(work: Path, output: Path) -> None:
    """Import, merge and train the devices of each part, and join the parts."""
    for part in TIMM_DEVICES:
        run("train", import_networks(part, work), "--method", "class-costs", "-o", work / part)
    run("bundle", "merge", *(work / part for part in TIMM_DEVICES), "-o", output)


def build_tensorrt(work: Path, output: Path) -> None:
    """Train all cards together on published latencies, with graphs that `export.py` wrote."""
    graphs = ROOT / "build" / "latencies"
    if not graphs.is_dir():
        raise SystemExit(
            f"no graphs in {graphs}; run tools/benchmarks/export.py latencies {graphs}"
        )
    rows = public_data() / "tensorrt" / "rows.csv.gz"
    words = (rows, "--format", "tensorrt-latencies", "--graphs", graphs)
    table = dataset(work / "latencies.h5", "import", *words)
    without_names(train(table, work / TENSORRT, method="kernel-costs"), output)


def without_names(learnt: Bundle, output: Path) -> Path:
    """Write a bundle without the names of its training rows, and with one golden layer per kind."""
    part = learnt.part
    layers = {kind_of_key(layer["key"]): layer for layer in part["golden"]["layers"]}
    reason = "names of training rows are left out, and all but one golden layer per kind"
    golden = part["golden"] | {"layers": [*layers.values()]}
    training = part["training"] | {"seen": ""}
    write_changed(learnt, output, reason, training=training, golden=golden)
    return output


def build_convmeter(work: Path, output: Path) -> None:
    """Train ConvMeter on timm's convolutional networks on GPUs, in PyTorch's own layout."""
    networks = import_networks("gpus", work / "nchw", "nchw")
    others = set()
    for quantity in network_quantities(networks):
        for network in network_examples(networks, quantity, lists=True).networks:
            operations = counted(network).operations
            macs = sum(one.macs for one in operations if one.sort in CONVOLUTIONS)
            if macs < CONVOLUTIONAL * sum(one.macs for one in operations):
                others.add(network.name)
    learnt = train(networks, work / output.name, method="convmeter", excluded=sorted(others))
    without_names(learnt, output)


def build_gianniti(work: Path, output: Path) -> None:
    """Train lines for each card of justus, with what the shipped bundles estimate."""
    cards = []
    for device in TREES:
        layers = import_layers(f"justus-{device}", work)
        learnt = train(layers, work / f"{device}-learnt", method="gianniti")
        shipped = Bundle.read_only_manifest(SHIPPED / f"{device}-tensorflow")
        write_estimated(learnt, shipped, work / f"{device}-whole")
        whole = Bundle.read_only_manifest(work / f"{device}-whole")
        cards.append(without_names(whole, work / f"{device}-gianniti"))
    run("bundle", "merge", *cards, "-o", output)


def build_memory(work: Path, output: Path) -> None:
    """Train what libraries hold beside the tensors of a training step."""
    tables = sorted((public_data() / "gpumemnet").glob("*.csv"))
    words = ("import", *tables, "--format", "gpumemnet", "--graphs", ROOT / "build" / "timm")
    rows = dataset(work / "memory.h5", *words)
    without_names(train(rows, work / output.name, method="memory-timeline"), output)


BUILDERS: Mapping[str, Mapping[str, Callable[[Path, Path], None]]] = {
    "networks": dict.fromkeys(NETWORKS, build_network),
    "dnnperf-unseen": dict.fromkeys(UNSEEN, build_unseen),
    "bundles": {
        **dict.fromkeys(TREES, build_tensorflow), TORCH: build_torch,
        OPERATOR_COSTS: build_operator_costs, TENSORRT: build_tensorrt,
    },
    "methods": {
        "gpus-torch-convmeter": build_convmeter, "gpus-tensorflow-gianniti": build_gianniti,
        "gpus-torch-memory": build_memory,
    },
}  # fmt: skip
"""What is built -> name -> function of a folder for intermediate files and the output."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for what, builders in BUILDERS.items():
        command = commands.add_parser(what)
        command.add_argument(
            "--only", nargs="+", choices=builders, metavar="NAME", default=[*builders]
        )
        output = ROOT / ("build" if what == "dnnperf-unseen" else "models") / what
        command.add_argument("--output", type=Path, default=output)
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            BUILDERS[options.what][name](Path(folder), options.output / name)


if __name__ == "__main__":
    main()
