"""Methods compared on the same rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from resperf.dataset import Dataset, DatasetInfo, KindTable, write_dataset
from resperf.errors import DatasetError, TrainingError
from resperf.layers import Dense
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.platform import Platform
from resperf.predictors import METHODS, LayerPredictor
from resperf.quantities import PHASES
from resperf.settings import Setting
from resperf.splits import split_of_keys
from resperf.training import ComparisonSettings, compare
from resperf.training.compare import TIMED_LAYERS

WIDTHS = range(1, 301)


def time_ms(width: int) -> float:
    return 0.01 * width


class Spy(LayerPredictor):
    """Returns the true times plus 5%, and records its training data."""

    method = "spy"
    shown: ClassVar[list[tuple[set[int], set[int]]]] = []
    asked: ClassVar[list[int]] = []

    def _learn(self, task: Any) -> None:
        expected_ms = 0.01 * task.examples.columns["features_out"]
        np.testing.assert_allclose(task.examples.values, expected_ms, rtol=0.03)
        self.shown.append((widths(task.examples.columns), widths(task.validation.columns)))

    def values(self, columns: Any) -> Any:
        self.asked.append(len(columns["features_out"]))
        return 1.05 * 0.01 * columns["features_out"]

    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        return {}

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        pass


class Other(Spy):
    method = "other"


class BadlyStored(Spy):
    """Predicts 5% too much when trained, and twice the time when loaded."""

    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        self.values = lambda columns: 2 * 0.01 * columns["features_out"]  # type: ignore[method-assign]


class Failing(Spy):
    def _learn(self, task: Any) -> None:
        raise TrainingError("a dead start")


def widths(columns: Any) -> set[int]:
    return set(columns["features_out"].tolist())


@pytest.fixture(autouse=True)
def spies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "resperf_test_spies", sys.modules[__name__])
    classes = {"spy": Spy, "other": Other, "badly": BadlyStored, "failing": Failing}
    for name, cls in classes.items():
        monkeypatch.setitem(METHODS, name, f"resperf_test_spies:{cls.__name__}")
    yield
    Spy.shown.clear()
    Spy.asked.clear()


def make(path: Path, chosen: range, *, device: str = "toy", twice: int = 0) -> Path:
    """Write dense layers, the first `twice` of them measured again and 4% slower."""

    setting = Setting(threads=2, framework="synthetic", framework_version="1", provider="none")
    platform = Platform(
        device=device,
        processor="P",
        instruction_set="avx2",
        cores=2,
        memory_bytes=8 << 30,
        system="Linux",
    )

    def row(width: int, repeat: int, factor: float) -> Measurement:
        phases = {
            phase: Samples((time_ms(width) * factor,) * 3, 3, 1, StopReason.PRECISE)
            for phase in PHASES
        }
        layer = Dense(batch=1, features_in=4, features_out=width)
        return Measurement(
            layer, Status.OK, phases, setting=setting, platform=platform, repeat=repeat,
            started_at=width,
        )  # fmt: skip

    info = DatasetInfo(
        setting, platform, {"name": "by hand"}, 1, {}, "2026-01-02T03:04:05+00:00", {}
    )
    rows = [row(width, 0, 1.0) for width in chosen]
    rows += [row(width, 1, 1.04) for width in chosen[:twice]]
    write_dataset(path, Dataset(info, tuple(rows)))
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return make(tmp_path / "own.h5", WIDTHS)


def judged_widths() -> set[int]:
    keys = [Dense(batch=1, features_in=4, features_out=width).key for width in WIDTHS]
    return {width for width, test in zip(WIDTHS, split_of_keys(keys).test, strict=True) if test}


TEST = judged_widths()
SEEN = set(WIDTHS) - TEST


def test_every_method_sees_the_same_rows_and_none_sees_the_test_split(dataset: Path) -> None:
    found = []
    comparison = compare(dataset, ComparisonSettings(("spy", "other")), on_result=found.append)
    first, second = Spy.shown
    assert first == second
    train, validation = first
    assert train | validation == SEEN
    assert not train & validation
    assert [row.method for row in comparison.rows] == ["spy", "other"]
    assert comparison.rows == tuple(found)
    assert comparison.notes == ()
    for row in comparison.rows:
        assert row.rows_trained == len(WIDTHS) - len(TEST)
        assert row.rows_validation == len(validation)
        assert set(np.round(row.measured_ms * 100).astype(int)) == TEST


def test_errors_are_those_of_predictions_that_are_5_percent_high(dataset: Path) -> None:
    (row,) = compare(dataset, ComparisonSettings(("spy",))).rows
    assert (row.kind, row.phase) == ("dense", "execution_ms")
    assert row.errors.rows == len(TEST)
    assert row.errors.mape == pytest.approx(0.05)
    assert row.errors.within_10 == 1.0
    times_ms = np.array([time_ms(width) for width in TEST])
    assert row.errors.mae_ms == pytest.approx(0.05 * times_ms.mean())
    spread = np.sum((times_ms - times_ms.mean()) ** 2)
    assert row.r2 == pytest.approx(1 - np.sum((0.05 * times_ms) ** 2) / spread)
    assert sum(each.rows for each in row.bins) == len(TEST)
    # 0.01 to 3 ms: bins from 0.01, 0.03, 0.1, 0.3 and 1 ms on, and 3 ms itself.
    assert {each.from_ms for each in row.bins} <= {0.01, 0.03, 0.1, 0.3, 1.0, 3.0}
    assert np.isnan(row.noise_floor)
    assert row.to_json()["noise_floor"] is None


def test_what_a_bundle_would_store_is_evaluated(dataset: Path) -> None:
    (row,) = compare(dataset, ComparisonSettings(("badly",))).rows
    assert row.errors.mape == pytest.approx(1.0)


def test_times_are_of_many_layers_in_one_call(dataset: Path) -> None:
    (row,) = compare(dataset, ComparisonSettings(("spy",))).rows
    assert Spy.asked[0] == len(TEST)
    assert set(Spy.asked[1:]) == {TIMED_LAYERS}
    # A call that only multiplies takes microseconds for a thousand layers.
    assert 0 < row.predict_us < 1000
    assert 0 <= row.fit_s < 60


def test_the_noise_floor_is_that_of_the_repeats(tmp_path: Path) -> None:
    path = make(tmp_path / "twice.h5", WIDTHS, twice=100)
    (row,) = compare(path, ComparisonSettings(("spy",))).rows
    # |1 - 1.04| / 1.02 / sqrt(2), and 1 / sqrt(2) of it where the time is a mean of two.
    again = [width <= 100 for width in TEST]
    shares = np.where(again, np.sqrt(0.5), 1.0)
    assert any(again)
    assert row.noise_floor == pytest.approx(0.04 / 1.02 / np.sqrt(2) * shares.mean(), rel=1e-4)
    assert row.to_json()["noise_floor"] == row.noise_floor


def test_a_learning_curve_is_nested_and_evaluated_on_the_same_rows(dataset: Path) -> None:
    comparison = compare(dataset, ComparisonSettings(("spy", "other"), rows=(200, 40)))
    assert [(row.method, row.rows_trained) for row in comparison.rows] == [
        ("spy", 40), ("other", 40), ("spy", 200), ("other", 200),
    ]  # fmt: skip
    few, _, many, _ = Spy.shown
    assert few[0] <= many[0]
    assert few[1] <= many[1]
    assert {row.errors.rows for row in comparison.rows} == {len(TEST)}


def test_folds_do_not_use_the_test_split(dataset: Path) -> None:
    (row,) = compare(dataset, ComparisonSettings(("spy",), folds=3)).rows
    assert len(Spy.shown) == len(row.fold_mapes) == 3
    assert not set.union(*(part for parts in Spy.shown for part in parts)) & TEST
    tested = np.round(row.measured_ms * 100).astype(int)
    assert sorted(tested) == sorted(SEEN)
    assert row.fold_mapes == pytest.approx((0.05,) * 3)
    # Each fold learns from two thirds of the rows.
    assert row.rows_trained == round(2 / 3 * len(tested))


def test_all_rows_of_another_file_are_tested_on(dataset: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other.h5", range(281, 401))
    comparison = compare(dataset, ComparisonSettings(("spy",)), test=other)
    (row,) = comparison.rows
    assert row.errors.rows == 120
    ((train, validation),) = Spy.shown
    assert train | validation == set(range(1, 281))
    assert comparison.notes == (
        f"dense: 20 layers of {dataset} are also in {other} and not trained on",
    )  # fmt: skip


def test_layers_of_another_device_may_be_in_both_files(dataset: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other.h5", range(281, 401), device="another")
    comparison = compare(dataset, ComparisonSettings(("spy",)), test=other)
    assert comparison.rows[0].rows_trained == len(WIDTHS)
    (note,) = comparison.notes
    assert "device: another here, toy there" in note


def test_times_of_other_phases_are_refused(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make(tmp_path / "other.h5", range(281, 401))
    module = sys.modules["resperf.training.compare"]
    real = module.read_table

    def whole_calls(path: Path) -> dict[str, KindTable]:
        if path != other:
            return real(path)
        return {
            kind: replace(table, times_ms={"whole_call_ms": table.times_ms["execution_ms"]})
            for kind, table in real(path).items()
        }

    monkeypatch.setattr(module, "read_table", whole_calls)
    with pytest.raises(
        TrainingError, match=r"other.h5 has no execution_ms times; it has: whole_call_ms"
    ):
        compare(dataset, ComparisonSettings(("spy",)), test=other)
    assert Spy.shown == []


def test_a_method_that_fails_is_noted_and_the_others_go_on(dataset: Path) -> None:
    comparison = compare(dataset, ComparisonSettings(("failing", "spy")))
    assert [row.method for row in comparison.rows] == ["spy"]
    assert comparison.notes == ("dense execution_ms: failing skipped: a dead start",)
    with pytest.raises(TrainingError, match=r"nothing could be compared \(.*a dead start"):
        compare(dataset, ComparisonSettings(("failing",)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ()}, "no method to compare"),
        ({"methods": ("magic",)}, "no method 'magic'; known methods"),
        ({"methods": ("spy", "spy")}, "named twice"),
        ({"methods": ("spy",), "folds": 1}, "1 folds"),
        ({"methods": ("spy",), "rows": (5, 0)}, "rows=0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        ComparisonSettings(**settings)


def test_what_cannot_be_compared_is_one_clear_line(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no layer of kind pool; it has: dense"):
        compare(dataset, ComparisonSettings(("spy",), kinds=("pool",)))
    with pytest.raises(
        TrainingError, match="has no lunch times; it has: preprocess_ms, execution_ms"
    ):
        compare(dataset, ComparisonSettings(("spy",), phases=("lunch",)))
    with pytest.raises(TrainingError, match="give either folds or a test dataset"):
        compare(dataset, ComparisonSettings(("spy",), folds=3), test=dataset)
    with pytest.raises(DatasetError):
        compare(tmp_path / "absent.h5", ComparisonSettings(("spy",)))
    alone = make(tmp_path / "one.h5", range(min(SEEN), min(SEEN) + 1))
    with pytest.raises(TrainingError, match="no rows to evaluate on"):
        compare(alone, ComparisonSettings(("spy",)))


@pytest.mark.parametrize("phase", PHASES)
def test_any_phase_may_be_compared(dataset: Path, phase: str) -> None:
    (row,) = compare(dataset, ComparisonSettings(("spy",), phases=(phase,))).rows
    assert row.phase == phase
    assert row.errors.mape == pytest.approx(0.05)


def test_a_real_method_comes_near_closed_form_times(toy_dataset: Path) -> None:
    comparison = compare(toy_dataset, ComparisonSettings(("baseline",), kinds=("conv", "dense")))
    assert [row.kind for row in comparison.rows] == ["conv", "dense"]
    for row in comparison.rows:
        # 1% noise; one in ten of 80 rows.
        assert row.errors.mape < 0.05
        assert 0.0099 < row.noise_floor < 0.0141
