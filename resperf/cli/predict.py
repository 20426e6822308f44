"""`resperf predict` and `resperf predict-layer`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resperf.cli._options import (
    ALL,
    ASSUME,
    BATCH,
    BUNDLE,
    COUNT,
    CUSTOM,
    DEVICE,
    FRAMEWORK,
    JSON,
    NETWORK,
    PATH,
    POSITIVE,
    PRECISION,
    SHAPE,
    BatchCommand,
    positive_integers,
    show_json,
    threads,
)
from resperf.cli._sections import HOW, OUTPUT, SEVERAL, WHAT, WHERE, Command, option
from resperf.errors import LayerError, UnsupportedError, require

if TYPE_CHECKING:
    from resperf.layers import Layer

EVERY_DEVICE = "all"


class PredictCommand(BatchCommand):
    """A command that also takes several ``--devices``."""

    spread_options = ("--batch", "--devices")


@click.command(
    cls=PredictCommand,
    epilog="\b\nExamples:\n  resperf predict resnet50 --device h100  (a shipped network)\n"
    "  resperf predict models/networks/vgg16.onnx --device cpu --batch 1 8\n"
    "  resperf predict models/networks/vgg16.onnx --device cpu-onnxruntime-xeon\n"
    "  resperf predict models/networks/vgg16.onnx --device h100 --precision amp\n"
    "  resperf predict models/networks/vgg16.onnx --device mycard.toml --host-dispatch-us 8\n"
    "  resperf predict resnet18.onnx --device a100-80gb --against engine.h5\n"
    "  resperf predict decoder.onnx --shape input_ids=1x1 --shape 'past_*=1x12x128x64'\n"
    "  resperf predict resnet50.onnx --bundle runs-convmeter --train --batch 32 "
    "--devices 1 2 4 8\n"
    "  resperf predict detector.onnx --assume boxes=100 --custom my.domain.MyOp=0.5ms",
)
@NETWORK
@DEVICE
@FRAMEWORK
@BUNDLE
@BATCH
@SHAPE
@ASSUME
@CUSTOM
@threads("Number of threads to predict for; warns if the bundle was measured with another.")
@PRECISION
@option("--compiled", section=HOW, is_flag=True, help="The framework compiles the network.")
@option(
    "--host-dispatch-us",
    section=HOW,
    type=POSITIVE,
    default=math.nan,
    metavar="US",
    help="Time that the host needs to start one kernel (5 to 20 with eager PyTorch): execution "
    "takes at least that for each.",
)
@option(
    "--against",
    section=OUTPUT,
    type=PATH,
    metavar="ENGINE.h5",
    help="Show the prediction beside a TensorRT engine of this network, layer by layer: a dataset "
    "that `resperf dataset import --format trtexec` made. Its batch size is predicted by default.",
)
@ALL
@option(
    "--method",
    section=WHERE,
    metavar="M",
    help="Predict by a bundle trained by this method. Shipped are convmeter (rtx3090, rtx4090, "
    "rtx5090) and gianniti (1080ti, k80, p100, v100).",
)
@option(
    "--train",
    "training",
    section=HOW,
    is_flag=True,
    help="Predict training steps, if the bundle learnt them.",
)
@option(
    "--block",
    section=WHAT,
    metavar="FROM:TO",
    help="Predict the operators from one to another alone, or those between two tensors, by their "
    "names in the file.",
)
@option(
    "--devices",
    section=SEVERAL,
    multiple=True,
    callback=positive_integers,
    metavar="N...",
    help="Numbers of devices that share a run: prints times and throughput for each, with --batch "
    "samples on every device.",
)
@option(
    "--strong",
    section=SEVERAL,
    is_flag=True,
    help="With --devices: they share each batch (strong scaling).",
)
@option(
    "--images",
    section=SEVERAL,
    type=COUNT,
    metavar="N",
    help="With --devices: size of the data set, for the time of an epoch.",
)
@option(
    "--topology",
    section=SEVERAL,
    metavar="T",
    help="With --devices, where no run on several taught the bundle: what connects them "
    "(a100-dgx, a100-pairwise-nvlink, h100-dgx, h100-pairwise-nvlink).",
)
@option("--strict", section=OUTPUT, is_flag=True, help="Fail if an operator has no predictor.")
@option(
    "--strict-range",
    section=OUTPUT,
    is_flag=True,
    help="As --strict; also fail if a layer or copy is outside the trained range.",
)
@option(
    "--show-graph",
    section=OUTPUT,
    is_flag=True,
    help="Print which nodes of the file became which layer, in the order they run.",
)
@JSON
def command(
    network: Path,
    device: str | None,
    batches: tuple[int, ...],
    every: bool,
    strict: bool,
    strict_range: bool,
    show_graph: bool,
    against: Path | None,
    devices: tuple[int, ...],
    strong: bool,
    images: int | None,
    topology: str | None,
    as_json: bool,
    **question: Any,
) -> None:
    """Predict how long a network takes on a device, without running it.

    Prints the total, its three phases, the layers (slowest first) and what was skipped.
    `--device all` compares all bundles and all known GPUs, the fastest first.

    GPUs that nobody measured are inferred from others, and operators that no bundle knows are
    estimated from the device's limits; the text says how much of the time is which.
    """
    from resperf.prediction import predict
    from resperf.report.network import batches_text, lowering_text, network_text

    if devices:
        shown = {"strong": strong, "images": images, "topology": topology}
        _scaled(network, batches, devices, {**shown, **question, "device": device}, as_json)
        return
    if strong or images is not None or topology is not None:
        raise click.UsageError("--strong, --images and --topology are about --devices")
    if show_graph and (as_json or device == EVERY_DEVICE):
        raise click.UsageError(
            "--show-graph is text about one device; with --json, `sources` of each layer say it"
        )
    if question["block"] and (device == EVERY_DEVICE or against is not None):
        raise click.UsageError("--block is about one device, and no engine is of a block")
    if question["custom_ms"] and device == EVERY_DEVICE:
        raise click.UsageError("--custom is a time on one device; leave out --device all")
    if question["method"] and device == EVERY_DEVICE:
        raise click.UsageError("--method is for one device; leave out --method or --device all")
    if every and device == EVERY_DEVICE:
        raise click.UsageError("--all is about the layers of one device; leave it out")
    if against is not None and (show_graph or device == EVERY_DEVICE or len(batches) > 1):
        raise click.UsageError(
            "--against compares one device and batch size, and not with --show-graph"
        )
    question |= {
        "batch": batches if len(batches) > 1 else next(iter(batches), None),
        "strict": "range" if strict_range else strict,
    }
    if against is not None:
        _beside(network, against, {**question, "device": device}, every, as_json)
        return
    if device == EVERY_DEVICE:
        _everywhere(network, question, as_json)
        return
    answer = predict(network, device=device, **question)
    predictions = answer if isinstance(answer, list) else [answer]
    for line in dict.fromkeys(
        filter(None, (prediction.remarks.advice for prediction in predictions))
    ):
        click.echo(f"resperf: {line}", err=True)
    if as_json:
        show_json([prediction.to_json() for prediction in predictions])
        return
    texts = [network_text(prediction, every=every) for prediction in predictions]
    if show_graph:
        texts = [
            f"{text}\n\n{lowering_text(p, every=every)}"
            for text, p in zip(texts, predictions, strict=True)
        ]
    if len(predictions) > 1:
        texts.append(batches_text(predictions))
    print("\n\n".join(texts))


def _scaled(
    network: Path, batches: tuple[int, ...], devices: tuple[int, ...], question: dict[str, Any],
    as_json: bool,
) -> None:  # fmt: skip
    """Predict over batch sizes and numbers of devices."""
    from resperf.prediction.api import predict_scaling
    from resperf.report.scaling import scaling_text

    for name in ("threads", "custom_ms", "host_dispatch_us", "strict"):
        question.pop(name, None)
    scaling = predict_scaling(network, batch=batches or (1,), devices=devices, **question)
    if as_json:
        show_json(scaling.to_json())
    else:
        print(scaling_text(scaling))


def _beside(
    path: Path, against: Path, question: dict[str, Any], every: bool, as_json: bool
) -> None:
    """Compare with an engine of a dataset."""
    from resperf.prediction import predict
    from resperf.prediction.reading import read

    require("h5py", "bench")
    from resperf.dataset import read_engine_run
    from resperf.report.engine_comparison import compare_with_engine, engine_comparison_text

    run = read_engine_run(against, question["batch"])
    question["batch"] = question["batch"] or run.batch
    prediction = predict(path, **question)
    assert not isinstance(prediction, list)
    (network,) = read(path, question["batch"], question["shapes"], question["assume"])
    comparison = compare_with_engine(prediction, network, run)
    if as_json:
        show_json([{**prediction.to_json(), "against": comparison.to_json()}])
    else:
        print(engine_comparison_text(comparison, every=every))


def _everywhere(network: Path, question: dict[str, Any], as_json: bool) -> None:
    """Compare all bundles found."""
    from resperf.prediction import predict_everywhere
    from resperf.report.network import everywhere_text

    for name in ("custom_ms", "block", "method", "training"):
        del question[name]

    predictions, failures = predict_everywhere(network, **question)
    if as_json:
        failed = [dataclasses.asdict(failure) for failure in failures]
        show_json([*(prediction.to_json() for prediction in predictions), *failed])
    else:
        print(everywhere_text(predictions, failures))
    if not predictions:
        raise UnsupportedError(
            f"none of the bundles found predicts {network}; see the reasons above"
        )


@click.command(
    cls=Command,
    name="predict-layer",
    epilog="Example: resperf predict-layer conv batch=8 channels_in=64 size=56 kernel=3 "
    "channels_out=64 padding=same --device cpu",
)
@click.argument("kind")
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@DEVICE
@FRAMEWORK
@BUNDLE
@JSON
def predict_layer(
    kind: str,
    fields: tuple[str, ...],
    as_json: bool,
    device: str | None,
    framework: str | None,
    bundle: str | None,
) -> None:
    """Predict the execution time of a single layer, without a network file.

    A layer is a kind (conv, dense, matmul, ...) and its fields; `size`, `kernel`,
    `stride`, `dilation` and `pad` set both axes, and padding=same or valid sets the pads.
    conv_step and dense_step are training steps of a conv and a dense layer, with the optimizer
    as a field: optimizer=adam.
    """
    from resperf.prediction import predict_layers
    from resperf.prediction.calibrated import calibrated_here
    from resperf.prediction.choice import Query, choose
    from resperf.prediction.host import bundle_warnings
    from resperf.report.network import layers_text, notes_text, warnings_text

    layer, optimizer = _typed_layer(kind, fields)
    answer = choose(Query(device, framework, bundle))
    calibrated = calibrated_here(answer.bundle)
    predictions = predict_layers([layer], calibrated, [optimizer])
    if as_json:
        show_json([prediction.to_json() for prediction in predictions])
    else:
        print(layers_text(predictions))
    if answer.notes:
        click.echo(notes_text(answer.notes), err=as_json)
    if warnings := bundle_warnings(calibrated):
        click.echo(warnings_text(warnings), err=as_json)


def _typed_layer(kind: str, words: tuple[str, ...]) -> tuple[Layer, str]:
    from resperf.measurement import written_layer

    fields: dict[str, str] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator:
            raise LayerError(f"{word!r} must look like field=value, such as batch=8")
        if name in fields:
            raise LayerError(f"{name} is given twice ({fields[name]} and {value}); leave one out")
        fields[name] = value
    return written_layer(kind, fields, typed=True)
