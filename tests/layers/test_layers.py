"""Shapes, work, bytes and keys of layers, worked out by hand."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest

from resperf.errors import LayerError
from resperf.features import columns_of, quantities
from resperf.layers import (
    KINDS,
    Conv,
    Dense,
    Layer,
    Pool,
    Reorder,
    kind_of,
    layer_from_key,
)


def conv(**words: str) -> Conv:
    base = {"batch": "1", "channels_in": "3", "size": "224", "kernel": "3", "channels_out": "64"}
    return Conv.from_text({**base, **words})


def pool(**words: str) -> Pool:
    base = {"batch": "2", "channels_in": "8", "size": "7", "kernel": "3", "stride": "2"}
    return Pool.from_text({**base, **words})


EXAMPLES: list[Layer] = [
    conv(),
    pool(),
    Dense(batch=4, features_in=10, features_out=3),
    Reorder(batch=1, channels_in=16, height=4, width=4),
]


def test_first_layer_of_vgg16_by_hand() -> None:
    layer = conv(padding="same", activation="relu")
    assert layer.output_shape == (1, 64, 224, 224)
    assert layer.macs == 64 * 224 * 224 * 27
    assert layer.weight_bytes == (64 * 27 + 64) * 4
    assert layer.input_bytes == 3 * 224 * 224 * 4
    assert layer.output_bytes == 64 * 224 * 224 * 4
    assert layer.moved_bytes == layer.input_bytes + layer.output_bytes + layer.weight_bytes


def test_grouped_strided_dilated_conv_by_hand() -> None:
    layer = Conv(
        batch=2, channels_in=8, height=11, width=9, kernel_height=3, kernel_width=2,
        stride_height=2, dilation_height=2, pad_top=1, pad_right=1, channels_out=4, groups=2,
        bias=False, residual=True,
    )  # fmt: skip
    # Rows: a window spans 5 of 12 pixels, every second start, so 4; columns: 2 of 10, so 9.
    assert layer.output_shape == (2, 4, 4, 9)
    assert layer.macs == 2 * 4 * 4 * 9 * (3 * 2 * 4)
    assert layer.weight_bytes == 4 * (3 * 2 * 4) * 4
    assert layer.input_bytes == (2 * 8 * 11 * 9 + 2 * 4 * 4 * 9) * 4


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads", "output"),
    [(224, 7, 2, (2, 3), 112), (5, 2, 1, (0, 1), 5), (7, 1, 3, (0, 0), 3), (8, 3, 2, (0, 1), 4)],
)
def test_same_padding_puts_the_extra_pixel_last(
    size: int, kernel: int, stride: int, pads: tuple[int, int], output: int
) -> None:
    layer = conv(size=str(size), kernel=str(kernel), stride=str(stride), padding="same")
    assert (layer.pad_top, layer.pad_bottom) == pads
    assert (layer.pad_left, layer.pad_right) == pads
    assert layer.output_shape[2:] == (output, output)
    assert layer.same_padding(layer.fields()) == {
        "pad_top": pads[0], "pad_left": pads[0], "pad_bottom": pads[1], "pad_right": pads[1],
    }  # fmt: skip


def test_ceil_mode_counts_a_partly_empty_window() -> None:
    assert pool(size="8").output_shape == (2, 8, 3, 3)
    assert pool(size="8", ceil_mode="true").output_shape == (2, 8, 4, 4)
    # The fourth window would start after the image and its left padding: it is dropped.
    assert pool(size="6", kernel="1", stride="2", pad="1").output_shape[2] == 4
    assert pool(size="5", kernel="2", stride="3", pad="1", ceil_mode="true").output_shape[2] == 2
    dropped = pool(size="4", kernel="1", stride="3", pad="1", ceil_mode="true")
    assert dropped.output_shape[2] == 2


def test_dense_and_reorder_by_hand() -> None:
    dense = Dense(batch=4, features_in=10, features_out=3)
    assert (dense.macs, dense.weight_bytes, dense.output_shape) == (120, 33 * 4, (4, 3))
    reorder = Reorder(batch=2, channels_in=3, height=4, width=5)
    assert (reorder.macs, reorder.weight_bytes, reorder.moved_bytes) == (0, 0, 2 * 120 * 4)
    half = dense.replace(dtype="float16")
    assert half.moved_bytes * 2 == dense.moved_bytes


@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: layer.kind)
def test_key_names_every_field_and_can_be_read_back(layer: Layer) -> None:
    assert layer_from_key(layer.key) == layer
    assert type(layer).from_fields(layer.fields()) == layer
    for name in type(layer).specs:
        assert f"{name}=" in layer.key


def test_keys_never_change_their_meaning() -> None:
    # Existing datasets hold these keys: only ever add to this list.
    assert Dense(batch=4, features_in=10, features_out=3).key == (
        "dense:batch=4,features_in=10,features_out=3,bias=1,activation=none,dtype=float32"
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_field_has_a_description(kind: str) -> None:
    cls = kind_of(kind)
    assert cls.kind == kind
    for name, spec in cls.specs.items():
        assert spec.description, name
        assert spec.unit in ("1", "pixel", "bool", "name"), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kernel": "225"}, "output would be empty"),
        ({"groups": "2"}, "channels_in=3 is not a multiple of groups=2"),
        ({"kernel": "three"}, "'three' must be an integer"),
        ({"activation": "swoosh"}, "must be one of"),
        ({"bias": "perhaps"}, "must be true or false"),
        ({"padding": "full"}, "same or valid"),
        ({"batch": "0"}, "at least 1"),
        ({"colour": "red"}, "has no field colour"),
    ],
)
def test_impossible_layers_are_refused(words: dict[str, str], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        conv(**words)


def test_missing_fields_and_unknown_kinds_are_named() -> None:
    with pytest.raises(LayerError, match="needs a value for features_in, features_out"):
        Dense.from_fields({"batch": 1})
    with pytest.raises(LayerError, match="known kinds: conv, pool, dense, activation"):
        kind_of("convolution")
    with pytest.raises(LayerError, match="not a layer key"):
        layer_from_key("conv:batch")
    with pytest.raises(LayerError, match="layout and layout_out are both"):
        Reorder(batch=1, channels_in=1, height=1, width=1, layout_out="nchw")


def test_layers_are_frozen_and_picklable() -> None:
    dense = Dense(batch=4, features_in=10, features_out=3)
    same = Dense(features_out=3, features_in=10, batch=4)
    assert dense.key == same.key
    # A cached key makes no difference.
    fresh = Dense(batch=4, features_in=10, features_out=3)
    for other in (same, fresh, copy.deepcopy(dense), pickle.loads(pickle.dumps(dense))):
        assert other == dense
        assert hash(other) == hash(dense)
        assert other.key == dense.key
    assert dense != dense.replace(batch=5)
    assert dense != dense.key
    assert repr(dense) == (
        "Dense(batch=4, features_in=10, features_out=3, bias=True, activation='none', "
        "dtype='float32')"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        dense.batch = 5  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del dense.batch
    dense.fields()["batch"] = 5
    assert dense.batch == 4
    with pytest.raises(LayerError, match="dense needs a value for features_out"):
        Dense(batch=4, features_in=10)  # type: ignore[call-arg]
    numpys = Dense(batch=np.int64(4), features_in=np.uint8(10), features_out=np.int32(3))
    plain = Dense(batch=4, features_in=10, features_out=3)
    assert numpys == plain
    assert {type(value) for value in numpys.fields().values()} == {int, bool, str}
    assert numpys.key == plain.key
    with pytest.raises(LayerError, match="dense has no field colour; it has batch"):
        Dense(batch=4, features_in=10, features_out=3, colour=1)  # type: ignore[call-arg]


def test_int8_convolutions_in_groups_by_hand() -> None:
    image = "quantized_conv:batch=2,rank=2,channels_in=32,channels_out=64,size=8,kernel=3,pad=2"
    words = ["groups=1", "groups=4", "groups=32", "groups=16,dtype=int8",
             "groups=32,bias=0,function=integer,layout=nchw"]  # fmt: skip
    layers = [layer_from_key(f"{image},{each}") for each in words]
    q = quantities("quantized_conv", columns_of(layers))
    # 64 windows of two images, for each group; nine taps each.
    assert q["group_pieces"].tolist() == [9 * 128 * groups for groups in (1, 4, 32, 16, 32)]
    # A depthwise convolution is no group of products, but for ConvInteger.
    assert q["grouped_products"].tolist() == [0, 1, 0, 1, 0]
    # The summed values of a group in fours, its filters in sixteens.
    tiles = [128 * 288 * 64, 512 * 72 * 16, 0, 2048 * 20 * 16, 4096 * 12 * 16]
    assert q["flops_tile"].tolist() == [2 * each for each in tiles]
    assert q["dtype=int8"].tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("word", "meant"),
    [("chanels_in", "channels_in"), ("kernal", "kernel"), ("bach", "batch")],
)
def test_a_misspelt_field_names_the_one_that_was_meant(word: str, meant: str) -> None:
    with pytest.raises(LayerError, match=rf"conv has no field {word} \(did you mean {meant}.*\?\)"):
        conv(**{word: "3"})
    with pytest.raises(LayerError, match=r"no layer kind 'cnv' \(did you mean conv"):
        kind_of("cnv")


def test_a_kind_is_imported_when_a_layer_of_it_is_made() -> None:
    code = (
        "import sys; from resperf.layers import KINDS, layer_from_key; "
        "imported = lambda: [k for k in KINDS if f'resperf.layers.{k}' in sys.modules]; "
        "print(*imported()); "
        "[layer_from_key(key) for key in ('softmax:batch=2,values=8', "
        "'conv:batch=1,channels_in=3,size=8,kernel=3,channels_out=4', "
        "'dense:batch=1,features_in=4,features_out=2', "
        "'pool:batch=1,channels_in=3,size=8,kernel=3')]; print(*imported())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["activation", "conv pool dense activation softmax"]


def test_a_name_that_is_no_kind_is_no_attribute() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Convolution'"):
        exec("from resperf.layers import Convolution")
