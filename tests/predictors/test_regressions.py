"""The paper's Table 1 baselines and the line over operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resperf.features import Columns, columns_of
from resperf.layers import Dense, Pool, Reorder
from resperf.predictors import Examples, layer_predictor_class
from resperf.predictors._onnx import OnnxNetwork
from resperf.predictors._paper import paper_features
from resperf.predictors.gianniti import Gianniti
from resperf.predictors.regressions import PaperRegression, Polynomial, factors_of

pytest.importorskip("sklearn")
pytest.importorskip("xgboost")


def examples(columns: Columns, times_ms: Any) -> Examples:
    return Examples(columns, "execution_ms", times_ms)


RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(300, 4)).astype(np.float32)
WIDE = np.exp(RANDOM.uniform(np.log(0.002), np.log(500), 300))


def learnt(method: str, targets: np.ndarray, folder: Path) -> tuple[Any, Any]:
    """Return the predictions of the library, and those of its file."""
    regression = layer_predictor_class(method)("dense")
    assert isinstance(regression, PaperRegression)
    run, content = regression.regress(ROWS, targets, 0)
    (folder / "r.onnx").write_bytes(content)
    return run, OnnxNetwork(folder / "r.onnx", regression.rows_at_once)


@pytest.mark.parametrize("method", ["polynomial", "svr", "xgboost", "xgboost-log"])
def test_the_file_predicts_what_the_library_does(method: str, tmp_path: Path) -> None:
    """Times over five orders of magnitude, so that float32 sums lose the short ones."""
    theirs, ours = learnt(method, WIDE, tmp_path)
    rows = np.concatenate([ROWS, RANDOM.normal(size=(700, 4)).astype(np.float32)])
    expected = theirs(rows)
    assert expected.shape == (1000, 1)
    # 1e-4 of 1 us, or of the time.
    allowed = 1e-4 * np.maximum(np.abs(expected), 1e-3)
    assert (np.abs(ours(rows) - expected) <= allowed).all()


def test_a_cubic_is_learnt_exactly(tmp_path: Path) -> None:
    x = ROWS.astype(float)
    expected = 3 + x[:, 0] - 2 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2 * x[:, 0] - x[:, 1] ** 3
    _, ours = learnt("polynomial", expected, tmp_path)
    np.testing.assert_allclose(ours(ROWS)[:, 0], expected, atol=1e-6)


def test_factors_by_hand() -> None:
    # 1, a, b, a b, b^3 as positions in (1, a, b).
    powers = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [0, 3]])
    np.testing.assert_array_equal(
        factors_of(powers), [[0, 1, 2, 1, 2], [0, 0, 0, 2, 2], [0, 0, 0, 0, 2]]
    )


def test_times_within_a_tenth_of_a_millisecond_are_one_to_svr(tmp_path: Path) -> None:
    wave = np.sin(np.arange(300.0))
    _, ours = learnt("svr", 0.1 + 0.099 * wave, tmp_path)  # no support vector at all
    np.testing.assert_allclose(ours(ROWS), ours(ROWS)[0, 0], atol=1e-12)
    assert 0.09 < ours(ROWS)[0, 0] < 0.11
    _, ours = learnt("svr", 0.1 + 0.11 * wave, tmp_path)
    assert np.ptp(ours(ROWS)) > 1e-3


def dense(**fields: int) -> Columns:
    return columns_of([Dense(**{"batch": 1, "features_in": 10, "features_out": 10} | fields)])


@pytest.mark.parametrize("method", ["polynomial", "svr", "gianniti", "xgboost"])
def test_no_time_is_negative(method: str, toy_rows: Any) -> None:
    """Times with a steep rise, before which fits are negative."""
    layers, _ = toy_rows("dense", 60)
    columns = columns_of(layers)
    sizes = np.array([layer.macs for layer in layers], dtype=float)
    times_ms = 1e-4 + np.maximum(sizes / np.median(sizes) - 1, 0)
    fitted = layer_predictor_class(method)("dense")
    fitted.fit(examples(columns, times_ms), validation=examples(columns, times_ms), seed=0)
    found = fitted.values(columns)
    assert (found >= 0).all()
    if method != "svr":
        assert (found == 0).any()


def test_xgboost_on_logarithms_fits_short_layers(toy_rows: Any) -> None:
    def error(method: str) -> float:
        layers, times_ms = toy_rows("dense", 300, seed=1)
        columns = columns_of(layers)
        others, other_ms = toy_rows("dense", 100, seed=2)
        fitted = layer_predictor_class(method)("dense")
        fitted.fit(examples(columns, times_ms), validation=examples(columns, times_ms), seed=0)
        return float(np.mean(np.abs(fitted.values(columns_of(others)) / other_ms - 1)))

    assert error("xgboost-log") < error("xgboost")


def test_the_line_over_operations_by_hand() -> None:
    # 2 x batch x 1000 x 1000 operations: 0.002 giga per image; 1 ms + 500 ms per giga.
    layers = [Dense(batch=batch, features_in=1000, features_out=1000) for batch in range(1, 9)]
    columns, times_ms = columns_of(layers), 1.0 + np.arange(1.0, 9.0)
    fitted = Gianniti("dense").fit(
        examples(columns, times_ms), validation=examples(columns, times_ms), seed=0
    )
    assert fitted.constant_ms_ == pytest.approx(1)
    assert fitted.ms_per_giga_ == pytest.approx(500)
    twice = columns_of([Dense(batch=16, features_in=1000, features_out=1000)])
    assert fitted.values(twice)[0] == pytest.approx(17)


def test_layers_of_equal_work_have_the_mean_time() -> None:
    layers = [Dense(batch=1, features_in=2**k, features_out=2 ** (20 - k)) for k in range(2, 12)]
    columns, times_ms = columns_of(layers), np.arange(1.0, 11.0)
    fitted = Gianniti("dense").fit(
        examples(columns, times_ms), validation=examples(columns, times_ms), seed=0
    )
    np.testing.assert_allclose(fitted.values(columns), 5.5)


def test_operations_of_other_kinds_by_hand() -> None:
    from resperf.predictors.gianniti import _giga_operations

    pool = Pool(batch=2, channels_in=3, height=4, width=4, kernel_height=2, kernel_width=2,
                stride_height=2, stride_width=2)  # fmt: skip
    assert _giga_operations("pool", columns_of([pool]))[0] == pytest.approx(2 * 3 * 4 * 4 / 1e9)
    reorder = Reorder(batch=2, channels_in=16, height=4, width=5, layout="nchw",
                      layout_out="nchwc16")  # fmt: skip
    assert _giga_operations("reorder", columns_of([reorder]))[0] == pytest.approx(640 / 1e9)


def test_features_are_those_of_table_3() -> None:
    names, _ = paper_features("dense", dense())
    layers = [Dense(batch=b, features_in=10, features_out=10) for b in range(1, 20)]
    columns, times_ms = columns_of(layers), np.arange(1.0, 20.0)
    fitted = Polynomial("dense").fit(
        examples(columns, times_ms), validation=examples(columns, times_ms), seed=0
    )
    assert fitted.features_ == names
    np.testing.assert_allclose(fitted.values(columns), times_ms)
