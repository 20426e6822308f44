"""The published networks, and the inputs of the trees."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import pytest

from resperf.errors import MissingExtraError
from resperf.features import columns_of
from resperf.layers import Conv, Dense, Pool
from resperf.predictors import Examples, _fitting
from resperf.predictors._fitting import Architecture, Stage, fit_network, onnx_bytes
from resperf.predictors._paper import paper_features, unseen_notes
from resperf.predictors.boosted import informative
from resperf.predictors.resperfnet import PerfNet, ResPerfNet

pytest.importorskip("tensorflow")

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(40, 9))


def weights_of(architecture: Architecture) -> dict[str, np.ndarray]:
    return dict(
        fit_network(
            architecture, ROWS, np.abs(ROWS[:, 0]), epochs=1, validation_rows=ROWS,
            validation_error=lambda y: float(np.abs(y).mean()), seed=1,
        ).weights
    )  # fmt: skip


def count(weights: dict[str, np.ndarray]) -> int:
    return sum(values.size for values in weights.values())


def test_resperfnet_is_that_of_figure_1() -> None:
    weights = weights_of(ResPerfNet("conv").architecture(9))
    kernels = [name for name, values in weights.items() if values.ndim == 3]
    assert len(kernels) == 15  # convolutions: 3 heads and 6 blocks of 2
    heads = 3 * 128 + 128 + 3 * 128 * 64 + 64 + 2 * 64 * 32 + 32
    blocks = 4 * (128 * 128 + 128) + 4 * (64 * 64 + 64) + 4 * (32 * 32 + 32)
    dense = (9 * 32 * 128 + 128) + 2 * (128 * 128 + 128) + 128
    assert count(weights) == heads + blocks + dense == 186_336


def test_perfnet_is_a_perceptron_of_four_layers() -> None:
    weights = weights_of(PerfNet("conv").architecture(9))
    dense = (9 * 32 + 32) + (32 * 64 + 64) + (64 * 128 + 128) + (128 * 256 + 256) + 256
    assert count(weights) == dense


def test_the_onnx_file_computes_what_keras_does(tmp_path: Any) -> None:
    from resperf.predictors._onnx import OnnxNetwork

    architecture = Architecture(9, (Stage(8, 3, 1), Stage(4, 2, 2)), (16, 8))
    targets = 5 + ROWS[:, 0]
    fitted = fit_network(
        architecture, ROWS, targets, epochs=4, validation_rows=ROWS,
        validation_error=lambda y: float(np.abs(y[:, 0] - targets).mean()), seed=2,
    )  # fmt: skip
    (tmp_path / "n.onnx").write_bytes(onnx_bytes(architecture, fitted.weights))
    theirs = fitted.run(ROWS)
    assert theirs.shape == (40, 1)
    assert np.ptp(theirs) > 1e-3
    np.testing.assert_allclose(OnnxNetwork(tmp_path / "n.onnx")(ROWS), theirs, atol=1e-5)
    kept = onnx.load(tmp_path / "n.onnx").graph.initializer
    floats = {each.name for each in kept if each.data_type == onnx.TensorProto.FLOAT16}
    assert len(floats) == len(fitted.weights)  # half of float32's size


@pytest.mark.parametrize(("kind", "shortest_ms"), [("dense", 2e-4), ("pool", 6e-4)])
def test_layers_of_microseconds_do_not_end_in_an_output_of_zero(kind, shortest_ms) -> None:
    sizes = 1 + np.arange(40)
    layers = [
        Dense(batch=1, features_in=20 * int(n), features_out=10 * int(n))
        if kind == "dense"
        else Pool(
            batch=1, channels_in=8, height=4 + int(n), width=4 + int(n), kernel_height=2,
            kernel_width=2, mode="max",
        )
        for n in sizes
    ]  # fmt: skip
    times_ms = shortest_ms * sizes.astype(float) ** 3
    rows = Examples(columns_of(layers), "execution_ms", times_ms)
    fitted = ResPerfNet(kind, epochs=30).fit(rows, validation=rows, seed=0)
    assert fitted.target_scale_ > 10  # no start with the paper's factor lived
    assert (fitted.values(rows.columns) > 0).mean() > 0.9


def test_longer_times_are_scaled_as_in_the_paper() -> None:
    layers = [Dense(batch=1, features_in=20 * n, features_out=10 * n) for n in range(1, 41)]
    rows = Examples(columns_of(layers), "execution_ms", np.linspace(1.0, 3.0, 40))
    fitted = ResPerfNet("dense", epochs=30).fit(rows, validation=rows, seed=0)
    assert fitted.target_scale_ == 10


def test_table_3_by_hand() -> None:
    layer = Conv(
        batch=4, channels_in=3, channels_out=8, height=10, width=12, kernel_height=3,
        kernel_width=5, stride_height=2, stride_width=2, pad_right=1, activation="relu",
    )  # fmt: skip
    names, matrix = paper_features("conv", columns_of([layer]))
    assert dict(zip(names, matrix[0], strict=True)) == {
        "batch size": 4, "matrix size": 120, "kernel size": 15, "channel in": 3,
        "channel out": 8, "strides": 2, "padding": 1, "activate function": 1, "bias": 1,
    }  # fmt: skip


def test_properties_that_table_3_ignores_are_noted() -> None:
    plain = Conv(
        batch=4, channels_in=8, channels_out=8, height=10, width=12, kernel_height=3,
        kernel_width=3, stride_height=2, stride_width=2,
    )  # fmt: skip
    others = [plain.replace(stride_width=1), plain.replace(groups=8),
              plain.replace(groups=2, dilation_width=2)]  # fmt: skip
    columns = columns_of([plain, *others])
    _, matrix = paper_features("conv", columns)
    assert (matrix == matrix[0]).all()
    (note,) = unseen_notes("conv", columns)
    assert "of 4 training rows" in note
    assert "2 with groups, 1 with dilations, 1 with unequal strides" in note
    assert unseen_notes("conv", columns_of([plain])) == ()
    assert unseen_notes("dense", columns_of([Dense(batch=1, features_in=2, features_out=3)])) == ()


def test_redundant_columns_are_dropped() -> None:
    x = np.array([1.0, 2.0, 4.0, 7.0])
    matrix = np.column_stack([np.full(4, 0.1), x, 3 * x - 1, -x, x**2])
    assert informative(matrix) == [1, 4]


def test_without_keras_the_error_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    _fitting.keras.cache_clear()
    with pytest.raises(MissingExtraError, match=r"pip install 'resperf\[keras\]'"):
        _fitting.keras()
