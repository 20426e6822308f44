"""Which rows are training data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from resperf.dataset import Dataset, DatasetInfo, KindTable, write_dataset
from resperf.features import columns_of
from resperf.layers import Dense
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import graph_digest, weightless
from resperf.platform import this_platform
from resperf.quantities import PHASES
from resperf.settings import Setting
from resperf.training.rows import layer_rows, network_examples, network_quantities

LENET = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"


def table(rows: list[tuple[int, str, str, float]]) -> KindTable:
    """Make a table from (features_out, status, flags, execution time)."""
    layers = [Dense(batch=1, features_in=4, features_out=n) for n, *_ in rows]
    times_ms = np.array([row[3] for row in rows])
    return KindTable(
        kind="dense",
        columns=columns_of(layers),
        key=np.array([layer.key for layer in layers], dtype=object),
        status=np.array([row[1] for row in rows]),
        repeat=np.zeros(len(rows), dtype=np.int64),
        flags=np.array([row[2] for row in rows]),
        times_ms={
            "preprocess_ms": times_ms / 2, "execution_ms": times_ms, "postprocess_ms": times_ms * 0,
        },
        isolated_ms=times_ms,
        reference_ratio=np.ones(len(rows)),
        started_at=np.arange(len(rows), dtype=float),
        setting=np.zeros(len(rows), dtype=int),
        platform=np.zeros(len(rows), dtype=int),
    )  # fmt: skip


def test_one_row_per_layer_with_the_median_of_its_clean_repeats() -> None:
    rows = layer_rows(
        table(
            [
                (3, "ok", "", 1.0),
                (5, "ok", "busy", 9.0),
                (3, "ok", "busy,drift", 7.0),
                (3, "ok", "", 2.0),
                (3, "ok", "", 6.0),
                (8, "crashed", "", np.nan),
                (9, "ok", "", -0.5),
            ]
        )
    )
    by_width = dict(zip(rows.columns["features_out"], rows.times_ms["execution_ms"], strict=True))
    # Three clean rows of 1, 2 and 6 ms; layer 5 was never measured without a flag.
    assert by_width == {3: 2.0}
    assert rows.times_ms["preprocess_ms"].tolist() == [1.0]
    assert rows.measured.tolist() == [3]
    assert rows.left_out == {
        "not ok": 1, "flagged, measured again": 1, "flagged": 1, "repeats": 2, "too short": 1,
    }  # fmt: skip


def test_rows_taken_while_the_machine_was_off_its_speed_are_not_learnt_from() -> None:
    rows = table([(3, "ok", "", 1.0), (3, "ok", "", 1.7), (5, "ok", "", 9.0), (6, "ok", "", 2.0)])
    rows = replace(rows, reference_ratio=np.array([1.05, 1.6, 0.85, np.nan]))
    learnt = layer_rows(rows)
    assert learnt.times_ms["execution_ms"].tolist() == [1.0, 2.0]
    assert learnt.left_out == {"flagged, measured again": 1, "flagged": 1}


def test_flagged_rows_count_where_most_layers_have_no_other() -> None:
    rows = layer_rows(
        table(
            [
                (3, "ok", "", 1.0),
                (3, "ok", "busy", 5.0),
                (5, "ok", "busy", 9.0),
                (6, "ok", "drift", 8.0),
            ]
        )
    )
    assert rows.times_ms["execution_ms"].tolist() == [1.0, 9.0, 8.0]
    assert rows.left_out == {"flagged, measured again": 1}


def test_defective_rows_never_train() -> None:
    rows = layer_rows(
        table([(3, "ok", "", 1.0), (5, "ok", "throttled", 9.0), (6, "ok", "busy,throttled", 8.0)])
    )
    assert rows.times_ms["execution_ms"].tolist() == [1.0]
    assert rows.left_out == {"defective": 2}


def test_rows_under_another_setting_are_not_mixed_in() -> None:
    fp32, amp = Setting("torch", precision="fp32"), Setting("torch", precision="amp")
    source = replace(
        table([(3, "ok", "", 1.0), (3, "ok", "", 3.0), (5, "ok", "", 2.0), (6, "ok", "", 9.0)]),
        settings=(amp, fp32),
        setting=np.array([1, 0, 1, 1]),
    )
    info = DatasetInfo(amp, this_platform("cpu"), {"name": "toy"}, seed=1, versions={})
    rows = layer_rows(source, info=info)
    assert rows.times_ms["execution_ms"].tolist() == [1.0, 2.0, 9.0]
    assert rows.left_out == {"another setting": 1}
    assert rows.settings == (fp32,)


def test_steps_with_several_optimizers_are_learnt_together() -> None:
    settings = [Setting("torch").with_optimizer(each) for each in ("adam", "sgd")]
    source = replace(
        table([(3, "ok", "", 1.0), (5, "ok", "", 2.0)]),
        settings=tuple(settings),
        setting=np.array([0, 1]),
    )
    assert len(layer_rows(source)) == 2


def test_excluded_keys_never_train() -> None:
    source = table([(3, "ok", "", 1.0), (5, "ok", "", 2.0)])
    rows = layer_rows(source, {str(source.key[0])})
    assert rows.columns["features_out"].tolist() == [5]
    assert rows.left_out == {"excluded": 1}


def test_the_order_of_the_file_does_not_matter() -> None:
    source = table([(n, "ok", "", 1.0 * n) for n in range(3, 30)])
    forwards, backwards = layer_rows(source), layer_rows(source.select(np.arange(26, -1, -1)))
    assert forwards.keys == backwards.keys
    np.testing.assert_array_equal(
        forwards.times_ms["execution_ms"], backwards.times_ms["execution_ms"]
    )
    assert [layer.key for layer in forwards.layers()] == list(forwards.keys)


def test_nothing_usable_is_no_row() -> None:
    rows = layer_rows(table([(3, "timeout", "", np.nan)]))
    assert len(rows) == 0
    assert rows.layers() == []


def test_latency_of_measured_networks_is_the_sum_of_their_phases(tmp_path: Path) -> None:
    setting, platform = Setting("synthetic", "1"), this_platform("cpu")
    graph = weightless(LENET)
    network = NetworkRef("lenet5", graph_digest(graph))

    def row(batch: int, *times_ms: float) -> Measurement:
        samples = {
            name: Samples((each,), 1, 0, StopReason.BUDGET)
            for name, each in zip(PHASES, times_ms, strict=False)
        }
        return Measurement(
            network, Status.OK, samples, setting=replace(setting, batch=batch), platform=platform
        )

    path = tmp_path / "runs.h5"
    info = DatasetInfo(setting, platform, {}, 0, {}, "2026-01-02T03:04:05+00:00", {})
    # At batch 3 a part of the sum is missing.
    rows = (row(1, 0.25, 4.0, 0.5), row(2, 0.5, 7.0, 1.0), row(3, 0.5, 9.0))
    write_dataset(path, Dataset(info, rows, {network.digest: graph}))
    assert network_quantities(path) == (*PHASES, "latency_ms")
    examples = network_examples(path, "latency_ms")
    assert examples.values.tolist() == [4.75, 8.5]
    assert [each.batch for each in examples.settings] == [1, 2]
    assert network_examples(path, "execution_ms").values.tolist() == [4.0, 7.0, 9.0]
    # Neither rows with a defect nor networks without a graph are learnt from.
    rows = (
        rows[0],
        replace(rows[1], flags=("inconsistent",)),
        replace(rows[2], subject=NetworkRef("lenet5", "")),
    )
    write_dataset(path, Dataset(info, rows, {network.digest: graph}))
    assert network_examples(path, "execution_ms").values.tolist() == [4.0]
