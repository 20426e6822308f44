"""The public Python API: functions with the options of the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from resperf.bundle import find_bundles, platforms_of
from resperf.devices import device_facts
from resperf.devices.cluster import Cluster
from resperf.errors import DeviceError, Message, NetworkError, ResperfError, UnsupportedError
from resperf.grouping import grouped
from resperf.network import Network
from resperf.network.assumed import Assumed, Values
from resperf.prediction.calibrated import advice, calibrated_here
from resperf.prediction.choice import (
    COMPOSING,
    Choice,
    Query,
    choose,
    choose_for,
    in_own_type,
    inference_notes,
    lacked_type,
    place_of,
)
from resperf.prediction.network import Run, Strict, predict_networks
from resperf.prediction.offers import Offer, accelerator, own_offers, sheet_offers
from resperf.prediction.reading import (
    Batch,
    Batches,
    Given,
    Integers,
    Shapes,
    integer,
    is_several,
    read,
)
from resperf.prediction.result import Prediction, QuantityPrediction
from resperf.prediction.scaling import Scaling, scaling
from resperf.quantities import PEAK_MEMORY, STEP
from resperf.settings import Mode
from resperf.units import TIME_WORDS, parse_ms

if TYPE_CHECKING:
    from onnx import ModelProto


LARGEST_BATCH = 65536
"""`predict_within` tries no larger one."""


KEYWORDS = {
    "--batch": "batch=1", "--shape": "shapes={'NAME': (1, 128)}", "--value": "values={'NAME': 1}",
    "--assume": "assume={'boxes': 100}", "--custom": "custom_ms={'DOMAIN.OP': 0.5}",
    "--device": "device='h100'", "--framework": "framework='torch'", "--bundle": "bundle='NAME'",
    "--precision": "precision='fp16'", "--compiled": "compiled=True", "--train": "training=True",
    "--method": "method='convmeter'", "--strict-range": "strict='range'",
}  # fmt: skip
"""Option that an error may name -> what Python takes for it."""


@contextmanager
def _with_keywords() -> Iterator[None]:
    """Add a note to errors that name options: what they are in Python."""
    try:
        yield
    except ResperfError as error:
        # Behind `resperf train` and the like, options are those of that command.
        options = dict.fromkeys(re.findall(r"--[a-z-]+", str(error).partition("resperf ")[0]))
        words = [f"{option} is {KEYWORDS[option]}" for option in options if option in KEYWORDS]
        if words and not hasattr(error, "__notes__"):
            error.add_note(f"in Python, {', '.join(words)}")
        raise


class Options(Run, total=False):
    """What `predict` takes besides a network and batch sizes."""

    device: str | None
    framework: str | None
    shapes: Shapes
    inputs: Any
    bundle: str | Path | None
    precision: str | None
    compiled: bool
    assume: Assumed | None
    values: Values | None
    method: str | None
    training: bool
    optimizer: str
    block: str | None


@overload
def predict(
    network: Given | ModelProto, *, batch: Batch = None, **options: Unpack[Options]
) -> Prediction: ...


@overload
def predict(
    network: Given | ModelProto, *, batch: Integers, **options: Unpack[Options]
) -> list[Prediction]: ...


@_with_keywords()
def predict(
    network: Given | ModelProto,
    *,
    device: str | None = None,
    framework: str | None = None,
    batch: Batches = None,
    shapes: Shapes = None,
    inputs: Any = None,
    bundle: str | Path | None = None,
    threads: int | None = None,
    strict: Strict = False,
    precision: str | None = None,
    compiled: bool = False,
    host_dispatch_us: float = math.nan,
    assume: Assumed | None = None,
    values: Values | None = None,
    custom_ms: Mapping[str, float] | None = None,
    method: str | None = None,
    training: bool = False,
    optimizer: str = "sgd",
    block: str | None = None,
) -> Prediction | list[Prediction]:
    """Predict how long a network takes on a device.

    Parameters
    ----------
    network : str, path, bytes, onnx.ModelProto, torch.nn.Module or keras.Model
        ONNX, .pt2 or .keras file, config.json of transformers, or the name of a shipped network;
        an ONNX file's content; or a model in memory. Weights may be missing.
    device : str, optional
        Device or name of a bundle, as ``resperf devices`` lists them, or a TOML file with the
        facts of a card; by default that of `bundle`, else ``"cpu"``. A card without a bundle is
        answered by one whose predictors serve any card, else from its data sheet.
    framework : str, optional
        Framework of the bundle, if the device has several.
    batch : int, or sequence or array of int, optional
        First dimension of the network's inputs; the file's own by default.
    shapes : mapping of str to sequence of int, optional
        Shapes of inputs with other free dimensions, by name or by a pattern such as ``past_*``;
        lengths of named dimensions, and of tensors that depend on the data: ``{"frames": (400,)}``.
    inputs : tensor or shape, or sequence or mapping of these, optional
        Arguments of a `torch.nn.Module`'s call: ``(1, 3, 224, 224)`` stands for a float tensor.
    bundle : str or Path, optional
        Folder of a bundle, or of several, that is searched first; or the name of a bundle.
    threads : int, optional
        Number of threads to predict for; warns if the bundle was measured with another.
    strict : bool or "range"
        Refuse networks with operators or copies that have no predictor, or too large for the
        device's memory; ``"range"`` also layers or copies outside the trained range.
    precision : {"fp32", "amp", "fp16", "bf16"}, optional
        Precision of the run; the network's own types (float32) by default.
    compiled : bool
        Whether the framework compiles the network.
    host_dispatch_us : float
        Time that the host needs to start one kernel; the execution phase takes at least as long
        as the host needs for all.
    assume : mapping of str to int, optional
        How many ``boxes`` (NonMaxSuppression) or ``values`` (NonZero, Compress, Unique) are found
        where the output of an operator depends on the data. `Remarks.assumed` states it.
    values : mapping of str to numbers, optional
        Values of inputs that decide shapes: ``{"orig_im_size": (1080, 1920)}``. One number stands
        for all values of an input. `Remarks.assumed` states them.
    custom_ms : mapping of str to float, optional
        Times of one run of operators that have no layer, in ms, by domain and operator:
        ``{"my.domain.MyOp": 0.5}``. `Remarks.assumed` states them.
    method : str, optional
        Method that the bundle was trained by, such as ``"convmeter"``; any by default.
    training : bool
        Whether to predict training steps, not runs.
    optimizer : str
        Of training steps: its memory and, where no steps were measured, its update are predicted.
    block : str, optional
        ``"FROM:TO"``, names of operators or tensors between which the network is predicted, as a
        network of its own (`resperf.network.block_of`).

    Returns
    -------
    Prediction or list of Prediction
        A list if `batch` is a sequence or an array.

    Raises
    ------
    NetworkError, ShapeError
        If the network cannot be read.
    DeviceError, BundleError
        If there is no such bundle, or it is damaged.
    UnsupportedError
        If the device lacks the precision, or if `strict` refuses.

    Examples
    --------
    >>> prediction = resperf.predict("vgg16.onnx", device="cpu", batch=8)  # doctest: +SKIP
    >>> prediction.total_ms, prediction.phases.execution_ms  # doctest: +SKIP
    (412.7, 411.9)
    """
    threads = None if threads is None else integer(threads, "threads", ResperfError)
    query = Query(
        device, framework, bundle, precision, compiled, method, training, threads, optimizer
    )
    networks = read(network, batch, shapes, assume, block, values, inputs)
    run = Run(
        strict=strict, threads=threads, host_dispatch_us=host_dispatch_us, custom_ms=custom_ms
    )
    predictions = _in_own_types(networks, query, run)
    return predictions if is_several(batch) else predictions[0]


@_with_keywords()
def predict_many(
    networks: Iterable[Given | ModelProto],
    *,
    device: str | None = None,
    framework: str | None = None,
    batch: Batch = None,
    shapes: Shapes = None,
    inputs: Any = None,
    bundle: str | Path | None = None,
    threads: int | None = None,
    strict: Strict = False,
    precision: str | None = None,
    compiled: bool = False,
    host_dispatch_us: float = math.nan,
    assume: Assumed | None = None,
    values: Values | None = None,
    custom_ms: Mapping[str, float] | None = None,
    method: str | None = None,
    training: bool = False,
    optimizer: str = "sgd",
) -> list[Prediction]:
    """Predict many networks on one device, such as the candidates of a search.

    Each prediction is that of `predict`; the predictors are asked once for the layers of all
    networks, which is several times as fast.

    Parameters
    ----------
    networks : iterable
        Each as in `predict`.
    batch : int, optional
        First dimension of the inputs of all networks; their own by default.
    device, framework, shapes, inputs, bundle, threads, strict, precision, compiled, \
    host_dispatch_us, assume, values, custom_ms, method, training, optimizer
        As in `predict`.

    Returns
    -------
    list of Prediction
        In the order of the networks.

    Raises
    ------
    NetworkError
        If a network cannot be read; the message begins with its place among the networks, from 0.
    ShapeError, DeviceError, BundleError, UnsupportedError
        As `predict`.

    Examples
    --------
    >>> predictions = resperf.predict_many(candidates, device="cpu")  # doctest: +SKIP
    >>> fastest = min(predictions, key=lambda prediction: prediction.total_ms)  # doctest: +SKIP
    """
    threads = None if threads is None else integer(threads, "threads", ResperfError)
    query = Query(
        device, framework, bundle, precision, compiled, method, training, threads, optimizer
    )
    candidates: list[Network] = []
    for index, network in enumerate(networks):
        try:
            candidates += read(network, batch, shapes, assume, values=values, inputs=inputs)
        except NetworkError as error:
            raise type(error)(f"network {index}: {error}") from error
    run = Run(
        strict=strict, threads=threads, host_dispatch_us=host_dispatch_us, custom_ms=custom_ms
    )
    return _in_own_types(candidates, query, run)


@_with_keywords()
def predict_scaling(
    network: Given | ModelProto,
    *,
    devices: Integers,
    batch: Integers,
    device: str | None = None,
    framework: str | None = None,
    shapes: Shapes = None,
    bundle: str | Path | None = None,
    precision: str | None = None,
    compiled: bool = False,
    assume: Assumed | None = None,
    values: Values | None = None,
    method: str | None = None,
    training: bool = False,
    optimizer: str = "sgd",
    strong: bool = False,
    images: int | None = None,
    epochs: int | None = None,
    cluster: str | Path | Cluster | None = None,
    block: str | None = None,
) -> Scaling:
    """Predict time and throughput of a network over batch sizes and numbers of devices.

    Parameters
    ----------
    network, device, framework, shapes, bundle, precision, compiled, assume, values, method, \
    training, optimizer, block
        As in `predict`; the bundle must predict whole networks, or training steps.
    devices : sequence of int
        Numbers of devices that share a run.
    batch : sequence of int
        Batch sizes of each device; with `strong`, of all together.
    strong, images, epochs, cluster
        As in `resperf.prediction.scaling.scaling`.

    Returns
    -------
    Scaling

    Raises
    ------
    NetworkError, ShapeError, DeviceError, BundleError
        As `predict`.
    UnsupportedError
        If nothing predicts whole networks, or training steps, on so many devices.
    """
    query = Query(device, framework, bundle, precision, compiled, method, training, None, optimizer)

    def at_batch(size: int) -> Network:
        (one,) = read(network, size, shapes, assume, block, values)
        return one

    counts = [integer(count, "devices", ResperfError) for count in devices]
    sizes = [integer(size, "batch") for size in batch]
    choice = _chosen(query, list(map(at_batch, sizes[:1])))
    notes = dict.fromkeys(choice.notes)

    def alone(size: int) -> QuantityPrediction:
        (prediction,) = _predictions([at_batch(size)], choice, Run())
        notes.update(dict.fromkeys(prediction.remarks.notes))
        if (step := prediction.parts.quantity(STEP)) is None or math.isnan(step.value):
            raise UnsupportedError(f"the training step of {prediction.subject.title} is not known")
        return step

    result = scaling(
        at_batch, choice.bundle, sizes, counts, strong=strong, images=images, epochs=epochs,
        cluster=cluster, alone=alone if choice.composes_steps else None,
    )  # fmt: skip
    return replace(result, notes=(*notes, *result.notes))


def _in_own_types(networks: Sequence[Network], query: Query, run: Run) -> list[Prediction]:
    """Predict networks by what answers for their types of values, all of one type at once."""
    if not networks:
        choose(query)
    types = [network.float_type for network in networks]
    groups = grouped(zip(types, networks, strict=True))
    predictions = {dtype: iter(_answers(alike, query, run)) for dtype, alike in groups.items()}
    return [next(predictions[dtype]) for dtype in types]


def _answers(networks: Sequence[Network], query: Query, run: Run) -> list[Prediction]:
    """Predict runs or training steps, of PyTorch's with the memory that they need."""
    choice = _chosen(query, networks)
    predictions = _predictions(networks, choice, run)
    if query.method or choice.bundle.framework != COMPOSING:
        return predictions
    # Others need no memory timeline: it is not loaded for them.
    from resperf.prediction.memory import with_memory

    setting = choice.bundle.setting.with_optimizer(query.optimizer * query.training)
    strict, pairs = bool(run.get("strict")), zip(networks, predictions, strict=True)
    return [with_memory(*pair, setting, strict=strict) for pair in pairs]


def _chosen(query: Query, networks: Sequence[Network]) -> Choice:
    """Choose what answers for networks; for another optimizer than was measured, say so."""
    if query.training:
        from resperf.lowering.torch_training import require_trainable

        for network in networks:
            require_trainable(network)
    choice = choose_for(query, networks[0]) if networks else choose(query)
    bundle, measured, optimizer = choice.bundle, choice.bundle.setting.optimizer, query.optimizer
    if not query.training or measured in ("", optimizer):
        return choice
    bundle = bundle.check()
    note = f"the time is that of a step by {measured}, not by {optimizer}"
    if STEP in bundle.network_quantities and bundle.network_predictor(STEP).counts_optimizers:
        bundle = bundle.for_device(bundle.platform, bundle.setting.with_optimizer(optimizer))
        note = f"steps by {measured} were measured; {optimizer} is added by the bytes that it moves"
    return replace(choice, bundle=bundle, notes=(*choice.notes, note))


@_with_keywords()
def predict_within(
    network: Given | ModelProto, within_ms: float | str, **options: Unpack[Options]
) -> Prediction:
    """Predict the largest batch that takes at most a given time and fits into memory.

    Larger batches are taken to last longer.

    Parameters
    ----------
    network, options
        As in `predict`.
    within_ms : float or str
        In milliseconds, or a text such as ``"10ms"``; `math.inf` if memory alone decides.

    Returns
    -------
    Prediction
        Of that batch, `LARGEST_BATCH` at most; of batch 1 if even that takes longer or is too
        large. A note names a batch that does not fit into the device's memory.

    Raises
    ------
    ResperfError
        As `predict`, if `within_ms` is no time, if the time of batch 1 is not known, and if memory
        alone decides but the device's is not known.

    Examples
    --------
    >>> prediction = resperf.predict_within("resnet18", 50, device="cpu")  # doctest: +SKIP
    >>> prediction.subject.batch, prediction.samples_per_s  # doctest: +SKIP
    (3, 68.3)
    """
    try:
        limit_ms = float(within_ms) if within_ms == math.inf else parse_ms(
            within_ms if isinstance(within_ms, str) else f"{within_ms}ms"
        )  # fmt: skip
    except ValueError as error:
        raise ResperfError(f"within_ms={within_ms!r} must be {TIME_WORDS}: 10 or '10ms'") from error
    best = predict(network, batch=1, **options)
    if math.isnan(best.time_ms):
        raise UnsupportedError(f"{best.subject.title}: the time of batch 1 is not known")
    if limit_ms == math.inf:
        _require_memory(best)
    low, high = 1, LARGEST_BATCH + 1 if best.time_ms <= limit_ms else 2
    limit: tuple[str, ...] = ()
    while high - low > 1:
        # Doubled until one takes too long; then between the two.
        size = min(2 * low, (low + high) // 2)
        try:
            tried = predict(network, batch=size, **options)
        except UnsupportedError as error:
            if not options.get("strict"):
                raise
            high, limit = size, (f"batch {size} is refused: {error}",)
            continue
        if tried.time_ms <= limit_ms and not tried.remarks.too_large:
            low, best = size, tried
        else:
            high = size
            too_large = tried.remarks.too_large if tried.time_ms <= limit_ms else ""
            limit = (f"batch {size} is too large: {too_large}",) if too_large else ()
    return replace(best, remarks=replace(best.remarks, notes=(*best.remarks.notes, *limit)))


def _require_memory(prediction: Prediction) -> None:
    """Refuse to find the largest batch where not all of its memory is known."""
    device = prediction.subject.device
    is_step = prediction.asked.mode is Mode.TRAINING
    if device_facts(device) is None:
        raise UnsupportedError(f"the memory of {device} is not known; give --batch N")
    if is_step and prediction.parts.quantity(PEAK_MEMORY) is None:
        raise UnsupportedError(
            f"the memory of training steps on {device} is not known, only of PyTorch's on NVIDIA's "
            "cards, not compiled; give --batch N"
        )


def _predictions(networks: Sequence[Network], choice: Choice, run: Run) -> list[Prediction]:
    bundle = calibrated_here(choice.bundle)
    return predict_networks(
        networks, bundle, notes=choice.notes, advice=advice(bundle), as_step=choice.composes_steps,
        **run,
    )  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """A bundle that cannot predict a network.

    Attributes
    ----------
    bundle : str
        Its folder.
    device, framework : str
        Empty for a damaged bundle.
    error : str
        Why.
    """

    bundle: str
    device: str
    framework: str
    error: str


def predict_everywhere(
    network: Given | ModelProto,
    *,
    framework: str | None = None,
    batch: Batches = None,
    shapes: Shapes = None,
    bundle: str | Path | None = None,
    threads: int | None = None,
    strict: Strict = False,
    precision: str | None = None,
    compiled: bool = False,
    host_dispatch_us: float = math.nan,
    assume: Assumed | None = None,
    values: Values | None = None,
    method: str | None = None,
    training: bool = False,
) -> tuple[list[Prediction], list[Failure]]:
    """Predict a network with every bundle found, and for every known accelerator without one.

    Parameters
    ----------
    network, batch, shapes, bundle, threads, strict, host_dispatch_us, assume, values
        As in `predict`.
    framework, precision, compiled, method, training
        As in `predict`; they restrict the bundles.

    Returns
    -------
    predictions : list of Prediction
        By batch, the fastest first (`Prediction.sorting_ms`).
    failures : list of Failure
        Bundles that cannot predict this network.

    Raises
    ------
    NetworkError, ShapeError
        If the network cannot be read.
    BundleError
        If `bundle` is no bundle or a damaged one.
    DeviceError
        If there is no bundle for `framework`.
    """
    networks = read(network, batch, shapes, assume, values=values)
    predictions: list[Prediction] = []
    path = place_of(bundle, framework)
    parts, damaged = find_bundles(path, checked=True, methods=method is not None)
    if path is not None and path.resolve() in damaged:
        raise damaged[path.resolve()]
    frameworks = {offer.framework for offer in (*own_offers(parts), *sheet_offers())}
    if framework is not None and parts and framework not in frameworks:
        raise DeviceError(
            f"no bundle for framework {framework!r}; known: {', '.join(sorted(frameworks))}"
        )
    run = Run(strict=strict, threads=threads, host_dispatch_us=host_dispatch_us)
    failures = [Failure(str(folder), "", "", str(error)) for folder, error in damaged.items()]
    plain = Query(None, framework, bundle, precision, compiled, method, training)
    query = in_own_type(plain, networks[0])
    wanted = [
        part
        for part in parts
        if framework in (None, part.framework) and method in (None, part.method)
    ]
    # Where times are equal, the last of a bundle's devices is the first.
    fitting: list[Offer] = []
    for part in wanted:
        # A CPU runs halves in float32; a method has times in the precisions it was learnt in.
        asked, own = query if accelerator(part.device) else plain, [*own_offers([part])]
        offers = asked.fitting(own) or (asked.of_first_precision(own) if method else [])
        fitting += [
            offer
            for offer in reversed(offers)
            if not lacked_type(query.precision, accelerator(offer.device))
        ]
    for offer in fitting:
        try:
            answer = Choice(offer.bundle, inference_notes(query, offer))
            predictions += _predictions(networks, answer, run)
        except ResperfError as error:
            failures.append(Failure(str(offer.path), offer.device, offer.framework, str(error)))
    # Without a bundle all is estimated, which `strict` refuses.
    measured, others = {offer.device for offer in fitting}, dict[str, str]()
    failures += [
        Failure(str(part.path), device, part.framework, f"no times with {query.words}")
        for part in wanted
        for device in platforms_of(part)
        if device not in measured and accelerator(device) is None
    ]
    for offer in () if strict or method else sheet_offers():
        if framework in (None, offer.framework) and offer.device not in measured:
            others.setdefault(offer.device, offer.framework)
    for device, its_framework in others.items():
        try:
            answer = choose(replace(query, device=device, bundle=None), compared=True)
            predictions += _predictions(networks, answer, run)
        except ResperfError as error:
            failures.append(Failure("", device, its_framework, Message.of(error).general))
    by_time = sorted(predictions, key=lambda one: (math.isnan(one.sorting_ms), one.sorting_ms))
    return sorted(by_time, key=lambda one: one.subject.batch or 0), failures
