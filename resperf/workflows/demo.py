"""The main job from end to end on this machine: campaign, training, predictions, measurements."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resperf.backends import Backend, backend
from resperf.bundle import Bundle
from resperf.campaign import Bench, Campaign, CampaignResult, run_campaign
from resperf.campaign.measure import ROUNDS
from resperf.campaign.networks import shipped_networks
from resperf.dataset import checksum
from resperf.errors import BundleError, TrainingError, require
from resperf.lowering import LoweredNetwork, lower, work_of
from resperf.network import Network, read_network
from resperf.prediction import Prediction, predict_network
from resperf.predictors import DEFAULT_METHOD
from resperf.targets import DEFAULT
from resperf.workflows.measure import (
    MeasuredNetwork,
    append_runs,
    measure_network,
    reference_monitor,
)

SHIPPED = ("lenet5", "alexnet", "vgg16")
BATCHES = (1, 8)
LARGEST_UNKNOWN_SHARE = 0.01
"""Other networks are judged where operators of kinds that are not measured move less than this."""
NETWORK_SECONDS = 3.0
"""Time for the whole runs of each network."""
RUNS = "networks.h5"
"""Dataset of the runs of whole networks, beside that of the layers."""
PAPERS_METHOD = "resperfnet"
"""Shown beside the default method."""
TIMES_AGAIN = 3
"""How often a network is measured again at most, while the reference layer is off its speed."""
ENOUGH_S = 10.0
"""A campaign that lacks less than this is not started again."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class DemoRow:
    """A network that none of the measured layers is of.

    Attributes
    ----------
    predictions : mapping of str to Prediction
        By method, the default one first.
    measured : MeasuredNetwork
        The last of its measurements.
    """

    predictions: Mapping[str, Prediction]
    measured: MeasuredNetwork

    def error(self, method: str) -> float:
        """Return (predicted - measured) / measured."""
        return self.predictions[method].total_ms / self.measured.total_ms - 1

    @property
    def is_spoilt(self) -> bool:
        """Whether the machine was off its speed in most rounds, by the reference layer alone."""
        return self.measured.timed.reference_rounds < ROUNDS


@dataclass(frozen=True)
class DemoResult:
    """What a demo leaves behind.

    Attributes
    ----------
    dataset : Path
    campaign : CampaignResult or None
        None where an earlier demo's dataset was enough.
    bundles : mapping of str to Bundle
        By method, the default one first; it is alone where Keras is not installed.
    rows : tuple of DemoRow
    """

    dataset: Path
    campaign: CampaignResult | None
    bundles: Mapping[str, Bundle]
    rows: tuple[DemoRow, ...]


def run_demo(campaign: Campaign, folder: Path, *, minutes: float, tell: Tell) -> DemoResult:
    """Measure layers, train, and judge the predictions of networks by running these.

    Everything is written to `folder`, and a later call goes on from what is there; the runs of
    whole networks are added to `RUNS`.

    Parameters
    ----------
    campaign : Campaign
    folder : Path
        Made where it is not there.
    minutes : float
        Time for the campaign, that of earlier calls included.
    tell : callable
        Told what happens, one line each.

    Raises
    ------
    KeyboardInterrupt
        If the campaign was interrupted; finished work is not lost.
    ResperfError
        Whatever a part raises.
    """
    # What would be missed after minutes of measuring is missed before.
    require("lightgbm", "train")
    folder.mkdir(parents=True, exist_ok=True)
    dataset = folder / "demo.h5"
    bundle_path = folder / f"{DEFAULT.device_class}-{DEFAULT.framework}"
    device = backend(DEFAULT.framework)
    judged = list(_judged_networks(device, campaign.kinds))
    tell(f"[1/5] campaign: {minutes:g} minutes of layers into {dataset}")
    measured = _collect(campaign, dataset, minutes, [path for path, _ in judged], tell)
    tell(f"[2/5] training on {dataset} into {bundle_path}")
    bundles = {DEFAULT_METHOD: _trained(dataset, bundle_path, DEFAULT_METHOD, tell)}
    tell(f"[3/5] training {PAPERS_METHOD}, the paper's network, on the same layers")
    bundles |= _of_the_paper(dataset, folder / f"{bundle_path.name}-{PAPERS_METHOD}", tell)
    tell(f"[4/5] predicting and running {len(judged)} networks, {NETWORK_SECONDS:g} s or more each")
    with reference_monitor(device, bundle=bundles[DEFAULT_METHOD]) as monitor:

        def run(path: Path, batch: int | None) -> DemoRow:
            network = read_network(path, batch=batch)
            tell(f"      {path.stem}, batch {network.batch}")
            return DemoRow(
                {method: predict_network(network, bundle) for method, bundle in bundles.items()},
                measure_network(
                    path, device, batch=batch, seconds=NETWORK_SECONDS, layers=False,
                    monitor=monitor,
                ),
            )  # fmt: skip

        rows = [run(path, batch) for path, batch in judged]
        for _ in range(TIMES_AGAIN):
            spoilt = [index for index, row in enumerate(rows) if row.is_spoilt]
            if not spoilt:
                break
            tell(f"[5/5] again, as the machine's speed had changed: {len(spoilt)} networks")
            for index in spoilt:
                rows[index] = run(*judged[index])
    append_runs(
        folder / RUNS, [(path, row.measured) for (path, _), row in zip(judged, rows, strict=True)]
    )
    return DemoResult(dataset, measured, bundles, tuple(rows))


def _collect(
    campaign: Campaign, dataset: Path, minutes: float, judged: Sequence[Path], tell: Tell
) -> CampaignResult | None:
    """Run the campaign for the time that earlier demos left of it."""
    spent_s = _spent_s(dataset)
    left_s = minutes * 60 - spent_s
    if spent_s and left_s < ENOUGH_S:
        tell(f"      {dataset} holds {spent_s / 60:.1f} minutes of layers already: used as it is")
        return None
    if spent_s:
        tell(f"      going on with {dataset}: {spent_s / 60:.1f} minutes are done")
    result = run_campaign(
        campaign, dataset, Bench(exclude=list(dict.fromkeys(judged))), hours=left_s / 3600
    )
    for note in result.notes:
        tell(f"      {note}")
    if result.reason == "interrupted":
        raise KeyboardInterrupt
    statuses = ", ".join(f"{count} {status}" for status, count in result.statuses.items())
    tell(f"      {result.rows} rows: {statuses}; {result.again} measured again")
    return result


def _spent_s(dataset: Path) -> float:
    """Return the measuring time that a dataset holds; 0 where there is none."""
    if not dataset.exists():
        return 0.0
    from resperf.dataset import read_dataset

    return sum(row.duration_s for row in read_dataset(dataset).measurements)


def _trained(dataset: Path, path: Path, method: str, tell: Tell) -> Bundle:
    """Load the bundle of an earlier demo where the data is the same, else train one."""
    if path.exists():
        try:
            bundle = Bundle.load(path)
        except BundleError as error:
            tell(f"      the earlier bundle cannot be used ({error})")
        else:
            learnt_from = [source.get("checksum") for source in bundle.provenance["datasets"]]
            if learnt_from == [checksum(dataset)]:
                tell(f"      {path} was trained on the same data: used as it is")
                return bundle
    from resperf.training import progress_bar, train

    with progress_bar() as progress:
        return train(
            dataset, path, method=method, device=DEFAULT.device_class, own_times_only=True,
            progress=progress,
        )  # fmt: skip


def _of_the_paper(dataset: Path, path: Path, tell: Tell) -> dict[str, Bundle]:
    """Train the paper's method where Keras is installed."""
    missing = [name for name in ("keras", "tensorflow") if importlib.util.find_spec(name) is None]
    if missing:
        tell(
            f"      {missing[0]} is not installed, so {DEFAULT_METHOD} is shown alone; install it "
            "with: pip install 'resperf[keras]'"
        )
        return {}
    try:
        bundle = _trained(dataset, path, PAPERS_METHOD, tell)
    except TrainingError as error:  # very few layers
        tell(f"      {error}")
        return {}
    for note in bundle.part["training"]["notes"]:
        tell(f"      {note}")
    return {PAPERS_METHOD: bundle}


def _judged_networks(device: Backend, kinds: Collection[str]) -> Iterator[tuple[Path, int | None]]:
    """Give LeNet, AlexNet and VGG16 at each batch size, then the onnx wheel's that fit."""
    for path in shipped_networks(SHIPPED):
        for batch in BATCHES:
            yield path, batch
    for path in light_networks():
        network = read_network(path)
        share = unknown_share(network, lower(network, device.setting(), device.platform()), kinds)
        if share < LARGEST_UNKNOWN_SHARE:
            yield path, None


def light_networks() -> list[Path]:
    """Find the real networks that the onnx package has for its tests; it is not loaded."""
    spec = importlib.util.find_spec("onnx")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / "backend" / "test" / "data" / "light"
    return sorted(folder.glob("*.onnx"))


def unknown_share(network: Network, lowered: LoweredNetwork, kinds: Collection[str]) -> float:
    """Return the share of the moved bytes that operators without a predicted kind move.

    Parameters
    ----------
    network : Network
    lowered : LoweredNetwork
        Of this network.
    kinds : collection of str
        Kinds of layers that are predicted.

    Returns
    -------
    float
        Between 0 and 1; 1 where the bytes of an operator are not known.
    """
    layers = [node.layer for node in lowered.nodes if node.layer is not None]
    known_bytes = sum(layer.moved_bytes for layer in layers if layer.kind in kinds)
    unknown_bytes: float = sum(layer.moved_bytes for layer in layers if layer.kind not in kinds)
    for node in lowered.nodes:
        if node.role != "unknown":
            continue
        moved_bytes = work_of(network, node.sources).moved_bytes
        if not node.sources or math.isnan(moved_bytes):
            return 1.0
        unknown_bytes += moved_bytes
    total = known_bytes + unknown_bytes
    return unknown_bytes / total if total else math.nan
