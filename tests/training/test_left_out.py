"""Networks and families left out: what is fitted to, what chooses, what is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.errors import TrainingError
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import graph_digest, weightless
from resperf.platform import this_platform
from resperf.predictors.convmeter import ConvMeter
from resperf.settings import Setting
from resperf.training import leave_out
from resperf.training.rows import network_examples

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
BATCHES = range(1, 21)
NAMES = ("vgg11", "resnet18", "mobilenet_v1", "squeezenet1_1", "nin", "zfnet", "lenet5")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write made-up times of seven networks at twenty batch sizes; LeNet has two files."""
    return write_runs(tmp_path / "runs.h5", {})


def write_runs(path: Path, optimizers: dict[str, str]) -> Path:
    platform = this_platform("cpu")
    graphs = {name: weightless(NETWORKS / f"{name}.onnx") for name in NAMES}
    files = {**{name: name for name in NAMES}, "lenet5b": "lenet5"}
    rows = tuple(
        Measurement(
            NetworkRef(name, graph_digest(graphs[graph])),
            Status.OK,
            {"execution_ms": Samples((float(batch * (2 + index)),), 1, 0, StopReason.BUDGET)},
            setting=Setting("synthetic", "1", batch=batch, optimizer=optimizers.get(name, "sgd")),
            platform=platform,
        )
        for index, (name, graph) in enumerate(files.items())
        for batch in BATCHES
    )
    info = DatasetInfo(
        Setting("synthetic", "1"), platform, {}, 0, {}, "2026-01-02T03:04:05+00:00", {}
    )
    contents = {graph_digest(graph): graph for graph in graphs.values()}
    write_dataset(path, Dataset(info, rows, contents))
    return path


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Fits of ConvMeter: their rows for learning, and for validation."""
    made: list[tuple[Any, Any]] = []
    fit = ConvMeter.fit

    def noting(self: ConvMeter, examples: Any, *, validation: Any, seed: int) -> ConvMeter:
        made.append((examples, validation))
        return fit(self, examples, validation=validation, seed=seed)

    monkeypatch.setattr(ConvMeter, "fit", noting)
    return made


def runs_of(examples: Any) -> set[tuple[str, int | None]]:
    settings = [setting for setting, _ in examples.per_row()]
    return {
        (family, setting.batch) for family, setting in zip(examples.groups, settings, strict=True)
    }


def test_files_of_one_graph_are_repeats(runs: Path) -> None:
    examples = network_examples(runs, "execution_ms")
    assert {network.name for network in examples.networks} == set(NAMES)
    lenet_ms = [
        value for network, value in zip(examples.networks, examples.values, strict=True)
        if network.name == "lenet5"
    ]  # fmt: skip
    # The median of both.
    assert lenet_ms == [batch * 8.5 for batch in BATCHES]


@pytest.mark.parametrize("uses_validation", [True, False])
def test_what_chooses_is_not_what_is_learnt(
    uses_validation: bool, runs: Path, fits: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConvMeter, "uses_validation", uses_validation)
    leave_out(runs, ["convmeter"], by="family")
    assert len(fits) == len(NAMES)
    for learnt, validation in fits:
        if not uses_validation:
            assert len(learnt) == len(validation) == 6 * len(BATCHES)
            continue
        # One family of the six that are not left out.
        assert len(set(validation.groups)) == 1
        assert len(set(learnt.groups)) == 5
        assert not set(validation.groups) & set(learnt.groups)


def test_unseen_families_are_judged_beside_a_fifth_of_the_others(
    runs: Path, fits: list[Any]
) -> None:
    (result,) = leave_out(runs, ["convmeter"], unseen=["nin", "vgg11"])
    ((learnt, validation),) = fits
    assert not {"nin", "vgg11"} & {*learnt.groups, *validation.groups}
    assert not runs_of(learnt) & runs_of(validation)
    seen_rows = 5 * len(BATCHES)
    judged = {group.name: group.rows for group in result.groups}
    assert judged["unseen families"] == 2 * len(BATCHES)
    assert judged["seen families"] == seen_rows - len(learnt) - len(validation)
    assert result.learnt == len(learnt)
    assert result.errors.rows == sum(judged.values())
    assert (result.by, result.fits) == ("part", 1)
    # Of 100 runs, give or take three standard deviations.
    assert len(learnt) == pytest.approx(70, abs=14)
    assert len(validation) == pytest.approx(10, abs=9)
    with pytest.raises(TrainingError, match=r"nothing can be left out of lenet5, mobilenet_v1"):
        leave_out(runs, ["convmeter"], unseen=["vgg"])


def test_an_optimizer_that_unseen_families_alone_have_is_judged_by_rows_of_others(
    tmp_path: Path, fits: list[Any]
) -> None:
    runs = write_runs(tmp_path / "runs.h5", {"nin": "adam"})
    of_adam, of_sgd = leave_out(runs, ["convmeter"], unseen=["nin", "vgg11"])[::-1]
    assert (of_adam.setting, of_sgd.setting) == (
        "synthetic, 1, inference, adam",
        "synthetic, 1, inference, sgd",
    )
    for result in (of_adam, of_sgd):
        unseen = next(group for group in result.groups if group.name == "unseen families")
        assert unseen.rows == len(BATCHES)
    for learnt, _ in fits:
        assert {setting.optimizer for setting, _ in learnt.per_row()} == {"sgd"}


def test_a_learning_curve_is_judged_by_the_same_rows(runs: Path, fits: list[Any]) -> None:
    few, more = leave_out(runs, ["convmeter"], unseen=["nin", "vgg11"], counts=[8, 12])
    assert [few.learnt, more.learnt] == [8, 12]
    assert [len(learnt) for learnt, _ in fits] == [8, 12]
    assert runs_of(fits[0][0]) < runs_of(fits[1][0])
    assert [group.rows for group in few.groups] == [group.rows for group in more.groups]
