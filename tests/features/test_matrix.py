"""Features agree with the layers themselves, and with numbers worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from resperf.errors import LayerError
from resperf.features import columns_of, feature_matrix, quantities
from resperf.layers import KINDS, Activation, Conv, Dense, Pool, Reorder
from resperf.layers.columns import evenness

CONV = Conv(
    batch=2, channels_in=3, channels_out=20, height=10, width=14, kernel_height=3, kernel_width=5,
    stride_height=2, stride_width=1, pad_top=1, pad_bottom=0, pad_left=2, pad_right=2,
    activation="relu",
)  # fmt: skip


def test_conv_quantities_by_hand() -> None:
    q = {name: value[0] for name, value in quantities("conv", columns_of([CONV])).items()}
    # A window of 3 over 11 rows by steps of 2 has 5 places, one of 5 over 18 columns has 14.
    assert (q["rows_out"], q["columns_out"]) == (5, 14)
    assert (q["m"], q["k"], q["n"]) == (2 * 70, 3 * 15, 20)
    assert q["flops"] == 2 * 140 * 45 * 20
    assert q["in_bytes"] == 2 * 3 * 140 * 4
    assert q["weight_bytes"] == 20 * (45 + 1) * 4
    # Three channels are not padded; 20 are padded to 32; 14 columns to 18; 2 blocks to 4.
    # Taps on real pixels: 2 + 4 x 3 of 15 down the rows, 3 + 4 + 10 x 5 + 4 + 3 of 70 across.
    assert q["channel_waste"] == pytest.approx(32 / 20)
    assert q["flops_real"] == pytest.approx(q["flops"] * 1.6 * (14 / 15) * (64 / 70))
    assert q["flops_block"] == pytest.approx(q["flops_real"] * 2 * 18 / 14)
    # One of five rows and four of fourteen columns touch padding.
    assert q["edge_share"] == pytest.approx(1 - (4 / 5) * (10 / 14))
    assert (q["pad_odd"], q["pad_uneven"], q["shallow"], q["depthwise"]) == (1, 1, 1, 0)


def test_a_large_window_on_one_pixel_has_one_real_tap() -> None:
    layer = Conv(
        batch=1, channels_in=16, channels_out=16, height=1, width=1, kernel_height=11,
        kernel_width=11, pad_top=5, pad_left=5, pad_bottom=5, pad_right=5, layout="nchwc8",
    )  # fmt: skip
    q = quantities("conv", columns_of([layer]))
    assert q["real"][0] == pytest.approx(1 / 121)
    assert q["flops_real"][0] == pytest.approx(2 * 16 * 16)
    assert (q["blocked"][0], q["plain"][0], q["threaded"][0]) == (1, 0, 0)


def test_a_huge_window_is_counted_quickly() -> None:
    """Of its twenty million rows of taps eight are real at most."""
    layer = Pool(
        batch=1, channels_in=1, height=8, width=1, kernel_height=20_000_000, kernel_width=1,
        pad_top=19_999_996,
    )  # fmt: skip
    ordinary = layer.replace(kernel_height=3, pad_top=1, pad_bottom=1)
    assert layer.output_shape == (1, 1, 5, 1)
    far, near = quantities("pool", columns_of([layer, ordinary]))["flops_real"]
    assert 0 < far < 1e6
    # 2 + 6 x 3 + 2 taps of eight windows, whichever layers are beside it.
    assert near == pytest.approx(quantities("pool", columns_of([ordinary]))["flops_real"][0])


def test_a_window_as_large_as_the_image_is_one_product() -> None:
    whole = Conv(
        batch=2, channels_in=12, channels_out=40, height=4, width=4, kernel_height=4,
        kernel_width=4, stride_height=4, stride_width=4, bias=False,
    )  # fmt: skip
    # One output pixel too, but a window that skips pixels is no product over the whole image.
    smaller = whole.replace(kernel_height=3, kernel_width=3)
    q = quantities("conv", columns_of([whole, smaller, whole.replace(bias=True)]))
    assert q["pixels_out"].tolist() == [1, 1, 1]
    assert q["direct"].tolist() == [1, 0, 1]
    # A fused bias keeps TensorFlow from using the direct product.
    assert q["direct_bare"].tolist() == [1, 0, 0]
    pointwise = whole.replace(kernel_height=1, kernel_width=1, stride_height=1, stride_width=1)
    q = quantities("conv", columns_of([pointwise, pointwise.replace(activation="relu")]))
    assert (q["direct"].tolist(), q["direct_bare"].tolist()) == ([1, 1], [1, 0])
    # 12 is three fours, 40 five eights.
    assert (q["in_evenness"][0], q["out_evenness"][0]) == (2, 3)


def test_evenness_counts_factors_of_two_up_to_32() -> None:
    counts = np.array([1, 2, 12, 35, 64, 96])
    assert evenness(counts).tolist() == [0, 1, 2, 0, 5, 5]


def test_blocks_follow_the_layout() -> None:
    layers = [CONV.replace(layout=layout) for layout in ("nchw", "nhwc", "nchwc8", "nchwc16")]
    q = quantities("conv", columns_of(layers))
    # 20 output channels are 24 in blocks of 8, 32 in blocks of 16.
    assert q["channel_waste"].tolist() == [1.6, 1.6, 1.2, 1.6]
    assert q["blocked"].tolist() == [0, 0, 1, 1]


def test_dense_and_reorder_quantities_by_hand() -> None:
    dense = quantities("dense", columns_of([Dense(batch=13, features_in=10, features_out=17)]))
    assert dense["flops_tile"][0] == 2 * 24 * 10 * 32
    assert dense["weight_bytes"][0] == 17 * 11 * 4
    reorder = quantities(
        "reorder", columns_of([Reorder(batch=1, channels_in=20, height=2, width=3)])
    )
    assert reorder["in_bytes"][0] == 20 * 6 * 4
    assert reorder["padded_bytes"][0] == 32 * 6 * 4
    assert (reorder["to_blocked"][0], reorder["from_blocked"][0]) == (1, 0)


def windows() -> list[dict[str, int]]:
    sizes = itertools.product((7, 12), (9, 16), (1, 3), (2, 5), (1, 2, 3), (1, 2), (0, 1), (0, 2))
    return [
        {
            "batch": 2, "channels_in": 8, "height": h, "width": w, "kernel_height": kh,
            "kernel_width": kw, "stride_height": s, "stride_width": 3, "dilation_height": d,
            "pad_top": top, "pad_right": right,
        }
        for h, w, kh, kw, s, d, top, right in sizes
    ]  # fmt: skip


def test_activation_quantities_by_hand() -> None:
    layer = Activation(batch=2, values=8199, activation="tanh")
    q = {name: value[0] for name, value in quantities("activation", columns_of([layer])).items()}
    assert (q["flops"], q["in_bytes"], q["out_bytes"]) == (16398, 65592, 65592)
    assert q["moved_bytes"] == layer.moved_bytes
    assert (q["threaded"], q["vector_rest"]) == (1, 14)


def test_conv_quantities_agree_with_layers() -> None:
    layers = [
        Conv(**window, channels_out=16, groups=groups, residual=residual)
        for window, groups, residual in zip(
            windows(), itertools.cycle((1, 2, 8)), itertools.cycle((True, False)), strict=False
        )
    ]
    q = quantities("conv", columns_of(layers))
    for name in ("output_bytes", "weight_bytes", "moved_bytes"):
        mine = q[name.replace("output", "out")]
        np.testing.assert_array_equal(mine, [getattr(layer, name) for layer in layers])
    np.testing.assert_array_equal(q["flops"], [2 * layer.macs for layer in layers])


def test_pool_quantities_agree_with_layers_in_ceil_mode_too() -> None:
    layers = [Pool(**window, ceil_mode=place % 2 == 0) for place, window in enumerate(windows())]
    q = quantities("pool", columns_of(layers))
    np.testing.assert_array_equal(q["out_bytes"], [layer.output_bytes for layer in layers])
    np.testing.assert_array_equal(q["flops"], [layer.macs for layer in layers])


def test_half_precision_halves_bytes() -> None:
    layers = [CONV, CONV.replace(dtype="float16")]
    q = quantities("conv", columns_of(layers))
    assert q["moved_bytes"][1] == q["moved_bytes"][0] / 2 == layers[1].moved_bytes


def test_every_kind_of_layer_has_features() -> None:
    assert all(cls.PLAIN or cls.LOG2 for cls in KINDS.values())


@pytest.mark.parametrize(
    "layer",
    [
        CONV,
        Pool(batch=1, channels_in=3, height=4, width=4, kernel_height=2, kernel_width=2),
        Dense(batch=1, features_in=3, features_out=2),
        Activation(batch=1, values=5, activation="gelu"),
        Reorder(batch=1, channels_in=3, height=4, width=4),
    ],
)
@pytest.mark.parametrize("optimizer", ["", "adam"])
def test_matrix_is_finite_named_and_does_not_depend_on_neighbours(
    layer: Conv, optimizer: str
) -> None:
    two = columns_of([layer, layer.replace(batch=7)], optimizer)
    names, matrix = feature_matrix(layer.kind, two)
    assert ("optimizer=adam" in names) == bool(optimizer)
    assert len(set(names)) == len(names) == matrix.shape[1]
    assert np.isfinite(matrix).all()
    alone = feature_matrix(layer.kind, columns_of([layer], optimizer))[1]
    np.testing.assert_array_equal(matrix[0], alone[0])
    assert (matrix[0] != matrix[1]).any()


def test_names_are_one_hot() -> None:
    names, matrix = feature_matrix("conv", columns_of([CONV]))
    row = dict(zip(names, matrix[0], strict=True))
    assert row["activation=relu"] == 1
    assert row["activation=none"] == 0
    assert row["log2 flops"] == pytest.approx(np.log2(2 * 140 * 45 * 20))


def test_mixed_and_no_layers_are_refused() -> None:
    with pytest.raises(LayerError, match="one kind, got conv, dense"):
        columns_of([CONV, Dense(batch=1, features_in=3, features_out=2)])
    with pytest.raises(LayerError, match="no layer"):
        columns_of([])
    with pytest.raises(LayerError, match="no layer kind 'lstm'"):
        feature_matrix("lstm", {})


def test_training_steps_count_their_gradients_by_hand() -> None:
    layer = Conv(
        batch=2, channels_in=40, height=8, width=8, kernel_height=3, kernel_width=3,
        pad_top=1, pad_left=1, pad_bottom=1, pad_right=1, channels_out=16,
    )  # fmt: skip
    q = quantities("conv", columns_of([layer] * 3, ("sgd", "momentum", "adam")))
    # 2 x 8 x 8 = 128 output pixels, 40 x 9 = 360 inputs of each, in tiles of 128 and 32.
    assert q["flops"][0] == 2 * 128 * 360 * 16
    assert q["flops_data"][0] == q["flops"][0] * 64 / 40
    assert q["flops_weights"][0] == 2 * 384 * 32 * 128
    assert q["kept_numbers"].tolist() == [0, 1, 2]
    dense = Dense(batch=40, features_in=100, features_out=10)
    q = quantities("dense", columns_of([dense], "adadelta"))
    assert q["flops_data"][0] == 2 * 64 * 10 * 128
    assert q["flops_weights"][0] == 2 * 128 * 32 * 40
