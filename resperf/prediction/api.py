"""The public Python API: functions with the options of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from resperf.bundle import Bundle, bundle_place, find_bundle, find_bundles
from resperf.errors import DeviceError, ResperfError
from resperf.network import NETWORKS_CACHED, Network, read_network_once
from resperf.prediction.network import Strict, predict_network
from resperf.prediction.result import Prediction
from resperf.targets import DEFAULT

Batches = int | Sequence[int] | None
Shapes = Mapping[str, Sequence[int]] | None


def read_batches(path: Path, batch: Batches, shapes: Shapes = None) -> list[Network]:
    """Read a network once per batch size; None means the file's own.

    Networks are cached until the file changes.

    Raises
    ------
    NetworkError
        If the file cannot be read as a network.
    ShapeError
        If a dimension is not known or does not fit.
    """
    batches = list(batch) if isinstance(batch, Sequence) else [batch]
    try:
        state = path.stat()
    except OSError:
        # Reading it raises the error.
        return [read_network_once(path, batch=each, shapes=shapes) for each in batches]
    given = tuple((name, tuple(shape)) for name, shape in sorted((shapes or {}).items()))
    seen = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
    return [_read(path, seen, each, given) for each in batches]


@lru_cache(maxsize=NETWORKS_CACHED)
def _read(
    path: Path,
    _seen: tuple[int, ...],
    batch: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
) -> Network:
    return read_network_once(path, batch=batch, shapes=dict(shapes))


def chosen_bundle(device: str | None, framework: str | None, bundle: str | Path | None) -> Bundle:
    """Find the bundle given by ``--device``, ``--framework`` and ``--bundle``.

    Raises
    ------
    DeviceError, BundleError
        If there is no such bundle, or it is damaged.
    """
    if bundle is None:
        return find_bundle(device or DEFAULT.device_class, framework)
    if Path(bundle).is_dir():
        return find_bundle(device, framework, Path(bundle))
    named = find_bundle(str(bundle), framework)
    # By a device's name, the part of that device was found, which may not be the folder's first.
    return named if device is None else find_bundle(device, framework, named.path)


def predict(
    path: str | Path,
    *,
    device: str | None = None,
    framework: str | None = None,
    batch: Batches = None,
    shapes: Shapes = None,
    bundle: str | Path | None = None,
    threads: int | None = None,
    strict: Strict = False,
) -> Prediction | list[Prediction]:
    """Predict how long a network takes on a device.

    Parameters
    ----------
    path : str or Path
        ONNX file; its weights may be missing.
    device : str, optional
        Device or name of a bundle, as ``resperf devices`` lists them; by default that of
        `bundle`, else ``"cpu"``.
    framework : str, optional
        Framework of the bundle, if the device has several.
    batch : int or sequence of int, optional
        First dimension of the network's inputs; the file's own by default.
    shapes : mapping of str to sequence of int, optional
        Shapes of inputs with other free dimensions, by name.
    bundle : str or Path, optional
        Folder of a bundle, or of several, that is searched first; or the name of a bundle.
    threads : int, optional
        Number of threads to predict for; warns if the bundle was measured with another.
    strict : bool or "range"
        Refuse networks with operators or copies that have no predictor; ``"range"`` also those
        with layers or copies outside the trained range.

    Returns
    -------
    Prediction or list of Prediction
        A list if `batch` is a sequence.

    Raises
    ------
    NetworkError, ShapeError
        If the network cannot be read.
    DeviceError, BundleError
        If there is no such bundle, or it is damaged.
    UnsupportedError
        If `strict` and an operator has no predictor, or (``"range"``) is out of range.

    Examples
    --------
    >>> prediction = resperf.predict("vgg16.onnx", device="cpu", batch=8)  # doctest: +SKIP
    >>> prediction.total_ms, prediction.phases.execution_ms  # doctest: +SKIP
    (412.7, 411.9)
    """
    found = _for_threads(chosen_bundle(device, framework, bundle), threads)
    predictions = [
        predict_network(network, found, strict=strict, threads=threads)
        for network in read_batches(Path(path), batch, shapes)
    ]
    return predictions if isinstance(batch, Sequence) else predictions[0]


def _for_threads(bundle: Bundle, threads: int | None) -> Bundle:
    """Return the part of a bundle for this number of threads, or the nearest."""
    if threads is None or not any(part.kinds for part in bundle.parts):
        return bundle
    return bundle.answering(None, None, replace(bundle.setting, threads=threads), bundle.platform)


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
    path: str | Path,
    *,
    framework: str | None = None,
    batch: Batches = None,
    shapes: Shapes = None,
    bundle: str | Path | None = None,
    threads: int | None = None,
    strict: Strict = False,
) -> tuple[list[Prediction], list[Failure]]:
    """Predict a network with every bundle found.

    Parameters
    ----------
    path, framework, batch, shapes, bundle, threads, strict
        As in `predict`; `framework` restricts the bundles.

    Returns
    -------
    predictions : list of Prediction
        By bundle, then by batch.
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
    networks = read_batches(Path(path), batch, shapes)
    predictions: list[Prediction] = []
    found, damaged = find_bundles(bundle_place(bundle, framework))
    wanted = [each for each in found if framework is None or each.framework == framework]
    if framework is not None and found and not wanted:
        known = ", ".join(sorted({each.framework for each in found}))
        raise DeviceError(f"no bundle for framework {framework!r}; known: {known}")
    failures = [Failure(str(folder), "", "", str(error)) for folder, error in damaged]
    for each in wanted:
        try:
            predictions += [
                predict_network(network, each, strict=strict, threads=threads)
                for network in networks
            ]
        except ResperfError as error:
            failures.append(Failure(str(each.path), each.device, each.framework, str(error)))
    return predictions, failures
