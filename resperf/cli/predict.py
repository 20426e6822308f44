"""`resperf predict` and `resperf predict-layer`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resperf.cli import _options as options
from resperf.cli._sections import COMMON, HOW, OUTPUT, SEVERAL, WHAT, WHERE, Command, option
from resperf.errors import LayerError, UnsupportedError, require
from resperf.files import write_whole
from resperf.records import csv_of_rows
from resperf.settings import OPTIMIZERS

if TYPE_CHECKING:
    from resperf.prediction import Prediction

EVERY_DEVICE, KIND, NODE = "all", "kind", "node"
_APART = (
    *product(("--device all",), ("--by", "--all", "--block", "--custom", "--against", "--within")),
    *product(("--against",), ("--by", "--block", "several --batch", "--within")),
    *product(
        ("--devices",), ("--device all", "--by", "--all", "--against", "--within", "--strict")
    ),
    ("--within", "--batch"),
)
"""Options that are about different things."""
_TRACE = ".trace.json"
_LARGEST = (0,)
"""Stands for ``--batch max``."""


def _batches(
    context: click.Context, parameter: click.Parameter, words: tuple[str, ...]
) -> tuple[int, ...]:
    """Parse batch sizes, or ``max``."""
    largest = words == ("max",)
    return _LARGEST if largest else options.positive_integers(context, parameter, words)


@click.command(
    cls=Command,
    epilog="\b\nExamples:\n  resperf predict resnet50 --device h100  (a shipped network)\n"
    "  resperf predict net.onnx --device cpu --batch 1 8\n"
    "  resperf predict net.pt2 --device h100 --batch 1 8  (or net.keras)\n"
    "  resperf predict config.json --device h100 --shape input_ids=1,128  (of transformers)\n"
    "  resperf predict resnet50 --device a100 --precision amp --within 10ms\n"
    "  resperf predict vgg16 --device h100 --precision amp\n"
    "  resperf predict net.onnx --device mycard.toml --host-dispatch-us 8\n"
    "  resperf predict resnet18.onnx --device a100-80gb --against engine.h5\n"
    "  resperf predict decoder.onnx --shape input_ids=1x1 --shape 'past_*=1x12x128x64'\n"
    "  resperf predict resnet50.onnx --bundle runs-convmeter --train --batch 32 "
    "--devices 1 2 4 8\n"
    "  resperf predict resnet50 --device t4 --train --batch 32 --devices 1 4 16 --cluster t4-g4dn "
    "--images 1281167 --epochs 90\n"
    "  resperf predict detector.onnx --assume boxes=100 --custom my.domain.MyOp=0.5ms",
)
@options.NETWORK
@options.DEVICE
@options.FRAMEWORK
@options.BUNDLE
@options.numbers(
    "--batch",
    "batches",
    section=COMMON,
    callback=_batches,
    help=f"{options.BATCH_HELP} `max`: the largest that fits into memory.",
)
@options.SHAPE
@options.VALUE
@options.ASSUME
@options.CUSTOM
@options.threads("Number of threads to predict for; warns if the bundle was measured with another.")
@options.PRECISION
@option("--compiled", section=HOW, is_flag=True, help="The framework compiles the network.")
@option(
    "--host-dispatch-us",
    section=HOW,
    type=options.POSITIVE,
    default=math.nan,
    metavar="US",
    help="Time that the host needs to start one kernel (5 to 20 with eager PyTorch): execution "
    "takes at least that for each.",
)
@option(
    "--against",
    section=OUTPUT,
    type=options.PATH,
    metavar="ENGINE.h5",
    help="Show the prediction beside a TensorRT engine of this network, layer by layer: a dataset "
    "that `resperf dataset import --format trtexec` made. Its batch size is predicted by default.",
)
@options.ALL
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
    help="Predict training steps: time, of PyTorch on GPUs also without measured ones, and memory.",
)
@option(
    "--optimizer",
    section=HOW,
    type=click.Choice([*OPTIMIZERS]),
    help="With --train: the optimizer, sgd by default.",
)
@option(
    "--block",
    section=WHAT,
    metavar="FROM:TO",
    help="Predict the operators from one to another alone, or those between two tensors, by their "
    "names in the file.",
)
@options.numbers(
    "--devices",
    section=SEVERAL,
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
    type=options.COUNT,
    metavar="N",
    help="With --devices: size of the data set, for the time of an epoch.",
)
@option(
    "--epochs",
    section=SEVERAL,
    type=options.COUNT,
    metavar="E",
    help="With --images: how often it is passed, for the time of the whole training.",
)
@option(
    "--cluster",
    section=SEVERAL,
    metavar="C",
    help="With --devices --train, where no run on several taught the bundle: what connects them, a "
    "TOML file, ray (the cluster that runs here) or a name such as t4-g4dn (an unknown name "
    "lists them).",
)
@option("--strict", section=OUTPUT, is_flag=True, help="Refuse estimates and what is too large.")
@option(
    "--strict-range",
    section=OUTPUT,
    is_flag=True,
    help="As --strict; also fail if a layer or copy is outside the trained range.",
)
@option(
    "--by",
    section=OUTPUT,
    type=click.Choice((KIND, NODE)),
    help="kind: sum the time up by kinds of layers and costs. node: list which nodes of the file "
    "became which layer, in the order they run.",
)
@option(
    "--within",
    "within_ms",
    section=OUTPUT,
    callback=options.latency_ms,
    metavar="TIME",
    help="Find the largest batch that takes at most this time (10ms, 0.5s) and fits into memory.",
)
@options.output(
    "FILE.csv|json|html",
    "Also write the layers (--by kind: the kinds, --device all: the devices) as CSV, all as JSON, "
    "a page for a browser, or FILE.trace.json, which Perfetto opens.",
    section=OUTPUT,
    callback=options.require_suffix,
)
@options.JSON
def command(
    network: Path,
    device: str | None,
    batches: tuple[int, ...],
    every: bool,
    strict: bool,
    strict_range: bool,
    by: str | None,
    within_ms: float | None,
    against: Path | None,
    devices: tuple[int, ...],
    strong: bool,
    images: int | None,
    epochs: int | None,
    cluster: str | None,
    output: Path | None,
    as_json: bool,
    **question: Any,
) -> None:
    """Predict how long a network takes on a device, without running it.

    NETWORK is an ONNX, .pt2 or .keras file, config.json of transformers, or a shipped name.

    Prints the time and throughput, what they rest on, the slowest layers and what was skipped.
    `--device all` compares all bundles and all known GPUs, the fastest first.

    GPUs that nobody measured are inferred from others, and operators that no bundle knows are
    estimated from the device's limits; the text says how much of the time is which.
    """
    given = {
        "--devices": devices, "--against": against, "--within": within_ms,
        "--device all": device == EVERY_DEVICE, "--by": by, "--all": every,
        "--block": question["block"], "--custom": question["custom_ms"],
        "--batch": batches, "several --batch": len(batches) > 1, "--strict": strict or strict_range,
    }  # fmt: skip
    for first, other in _APART:
        if given[first] and given[other]:
            raise click.UsageError(f"{other} does not go with {first}; leave one out")
    if by == NODE and as_json:
        raise click.UsageError("--by node is text; with --json, `sources` of each layer say it")
    if batches == _LARGEST:
        if devices or against or device == EVERY_DEVICE:
            raise click.UsageError("--batch max is about one network on one device")
        batches, within_ms = (), math.inf
    show = partial(_show, as_json=as_json, output=output)
    question["device"] = device
    if (optimizer := question.pop("optimizer")) is not None:
        if not question["training"] or device == EVERY_DEVICE:
            raise click.UsageError("--optimizer goes with --train on a device")
        question["optimizer"] = optimizer
    if devices:
        if epochs is not None and images is None:
            raise click.UsageError("--epochs needs --images, the size of the data set")
        shown: dict[str, Any] = {
            "strong": strong, "images": images, "epochs": epochs, "cluster": cluster,
        }  # fmt: skip
        if cluster == "ray":
            require("ray", "ray")
            from resperf.workflows.cluster import survey

            shown["cluster"] = survey("auto")
        _scaled(network, batches, devices, {**shown, **question}, show)
        return
    if strong or any(given is not None for given in (images, epochs, cluster)):
        raise click.UsageError("--strong, --images, --epochs and --cluster are about --devices")
    question |= {
        "batch": batches if len(batches) > 1 else next(iter(batches), None),
        "strict": "range" if strict_range else strict,
    }
    if against is not None:
        _beside(network, against, question, every, show)
    elif device == EVERY_DEVICE:
        _everywhere(network, question, show)
    else:
        _predicted(network, question, every, by, within_ms, show)


def _show(
    documents: Callable[[], Mapping[str, Any] | Sequence[Mapping[str, Any]]],
    text: str,
    rows: Callable[[], Sequence[Mapping[str, Any]]],
    *,
    as_json: bool,
    output: Path | None,
    trace: Callable[[], str] | None = None,
) -> None:
    """Write an answer to a file, and print it as JSON or as text."""
    if output is not None and output.suffix == ".html":
        options.write_page(output, documents())
    elif output is not None:
        if output.name.endswith(_TRACE):
            if trace is None:
                raise click.UsageError(f"a {_TRACE} is of one device alone; write .json or .html")
            content = trace()
        else:
            is_csv = output.suffix == ".csv"
            content = csv_of_rows(rows()) if is_csv else options.json_of(documents())
        write_whole(output, content.encode())
    options.show(as_json, documents() if as_json else (), text)


def _predicted(
    path: Path, question: dict[str, Any], every: bool, by: str | None, within_ms: float | None,
    show: Callable[..., None],
) -> None:  # fmt: skip
    """Predict for one device."""
    from resperf.prediction import predict, predict_within
    from resperf.report.network import batches_text, lowering_text, network_text, within_text
    from resperf.report.trace import trace_text

    texts = []
    if within_ms is not None:
        del question["batch"]
        answer: Prediction | list[Prediction] = predict_within(path, within_ms, **question)
    else:
        answer = predict(path, **question)
    predictions = answer if isinstance(answer, list) else [answer]
    if within_ms is not None:
        texts.append(within_text(predictions[0], within_ms))
    for line in dict.fromkeys(one.remarks.advice for one in predictions if one.remarks.advice):
        click.echo(f"resperf: {line}", err=True)
    said: set[str] = set()
    for prediction in predictions:
        texts.append(network_text(prediction, every=every, by_kind=by == KIND, said=said))
        said |= {*prediction.remarks.notes, *prediction.remarks.warnings}
        if by == NODE:
            texts.append(lowering_text(prediction, every=every))
    if len(predictions) > 1:
        texts.append(batches_text(predictions))
    show(
        lambda: [prediction.to_json() for prediction in predictions],
        "\n\n".join(texts),
        lambda: [row for one in predictions for row in one.to_rows(kinds=by == KIND)],
        trace=lambda: trace_text(predictions),
    )


def _scaled(
    network: Path, batches: tuple[int, ...], devices: tuple[int, ...], question: dict[str, Any],
    show: Callable[..., None],
) -> None:  # fmt: skip
    """Predict over batch sizes and numbers of devices."""
    from resperf.prediction.api import predict_scaling
    from resperf.report.scaling import scaling_text

    for name, given in (("--threads", question.pop("threads") is not None),
                        ("--custom", question.pop("custom_ms")),
                        ("--host-dispatch-us", question.pop("host_dispatch_us") > 0)):  # fmt: skip
        if given:
            raise click.UsageError(f"{name} is not about --devices; leave it out")
    scaling = predict_scaling(network, batch=batches or (1,), devices=devices, **question)
    points = [point for series in scaling.series.values() for point in series]
    show(scaling.to_json, scaling_text(scaling), lambda: [point.to_json() for point in points])


def _beside(
    path: Path, against: Path, question: dict[str, Any], every: bool, show: Callable[..., None]
) -> None:
    """Compare with an engine of a dataset."""
    from resperf.prediction import predict
    from resperf.prediction.reading import read

    require("h5py", "bench")
    from resperf.dataset.importing.engine_rows import read_engine_run
    from resperf.report.engine_comparison import compare_with_engine, engine_comparison_text

    run = read_engine_run(against, question["batch"])
    question["batch"] = question["batch"] or run.batch
    prediction = predict(path, **question)
    assert not isinstance(prediction, list)
    shapes, assume, values = (question[name] for name in ("shapes", "assume", "values"))
    (network,) = read(path, question["batch"], shapes, assume, values=values)
    comparison = compare_with_engine(prediction, network, run)
    beside = comparison.to_json()
    text = engine_comparison_text(comparison, every=every)
    show(lambda: [{**prediction.to_json(), "against": beside}], text, lambda: beside["layers"])


def _everywhere(network: Path, question: dict[str, Any], show: Callable[..., None]) -> None:
    """Compare all bundles found."""
    from resperf.prediction import predict_everywhere
    from resperf.report.network import everywhere_text

    for name in ("device", "custom_ms", "block"):
        del question[name]

    predictions, failures = predict_everywhere(network, **question)
    documents = [prediction.to_json() for prediction in predictions]
    documents += [dataclasses.asdict(failure) for failure in failures]
    rows = [
        {name: value for name, value in document.items() if not isinstance(value, list | dict)}
        for document in documents
    ]
    show(lambda: documents, everywhere_text(predictions, failures), lambda: rows)
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
@options.DEVICE
@options.FRAMEWORK
@options.BUNDLE
@options.JSON
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
    from resperf.measurement import written_layer
    from resperf.prediction import predict_layers
    from resperf.prediction.calibrated import calibrated_here
    from resperf.prediction.choice import Query, choose
    from resperf.prediction.host import bundle_warnings
    from resperf.report.network import layers_text, remarks_text

    typed: dict[str, str] = {}
    for word in fields:
        name, separator, value = word.partition("=")
        if not separator:
            raise LayerError(f"{word!r} must look like field=value, such as batch=8")
        if name in typed:
            raise LayerError(f"{name} is given twice ({typed[name]} and {value}); leave one out")
        typed[name] = value
    layer, optimizer = written_layer(kind, typed, typed=True)
    answer = choose(Query(device, framework, bundle))
    calibrated = calibrated_here(answer.bundle)
    predictions = predict_layers([layer], calibrated, [optimizer])
    documents = [prediction.to_json() for prediction in predictions]
    options.show(as_json, documents, layers_text(predictions))
    if remarks := remarks_text(answer.notes, bundle_warnings(calibrated)):
        click.echo(remarks, err=as_json)
