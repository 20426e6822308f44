from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from resperf.campaign import Campaign
from resperf.campaign.sampler import Sampler
from resperf.errors import CampaignError
from resperf.files import shipped_files
from resperf.layers import Activation, Conv, Dense, Layer, Pool

SHIPPED = [path for path in shipped_files("microbench", "*.toml") if Campaign.from_toml(path).kinds]
STEM = Conv(
    batch=1, channels_in=3, channels_out=64, height=224, width=224, kernel_height=7,
    kernel_width=7, stride_height=2, stride_width=2, pad_top=3, pad_left=3, pad_bottom=3,
    pad_right=3, activation="relu", layout="nchwc16",
)  # fmt: skip
DEPTHWISE = Conv(
    batch=4, channels_in=32, channels_out=32, groups=32, height=56, width=56, kernel_height=3,
    kernel_width=3, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1, layout="nchwc16",
)  # fmt: skip
HARVESTED: list[Layer] = [
    STEM,
    DEPTHWISE,
    Dense(batch=1, features_in=25088, features_out=4096, activation="relu"),
    Pool(batch=1, channels_in=64, height=7, width=7, kernel_height=7, kernel_width=7,
         mode="average", whole_image=True, layout="nchwc16"),
]  # fmt: skip


def conv_campaign(**changes: Any) -> Campaign:
    table = {
        "batch": [1, 2], "channels_in": [8, 12], "channels_out": [8, 20], "size": [9, 10],
        "kernel": [1, 3], **changes.pop("conv", {}),
    }  # fmt: skip
    return Campaign.from_mapping({"name": "test", "kinds": {"conv": table}, **changes})


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_drawn_layer_meets_the_constraints(path: Path) -> None:
    campaign = Campaign.from_toml(path)
    limits = campaign.constraints
    for layer in Sampler(campaign, seed=5, harvested=HARVESTED).draw(400):
        assert layer.kind in campaign.kinds
        assert layer.input_bytes <= limits.largest_tensor_bytes
        assert layer.output_bytes <= limits.largest_tensor_bytes
        assert layer.weight_bytes <= limits.largest_weight_bytes
        assert layer.macs <= limits.largest_macs
        work_ms = 2 * layer.macs / limits.gflops / 1e6 + layer.moved_bytes / limits.gb_per_s / 1e6
        assert work_ms <= limits.largest_time_ms


def test_1x1_depthwise_convolutions_come_from_networks_only() -> None:
    campaign = conv_campaign(
        conv={"groups": ["depthwise"], "channels_out": [8], "kernel": [1, 3]},
        mixture={"from_networks": 0.5, "exact": 0.0},
    )
    layers = Sampler(campaign, seed=1, harvested=[DEPTHWISE]).draw(200)
    assert {layer.fields()["kernel_height"] for layer in layers} == {3}
    # A network contains one that was lowered from a normalisation.
    norm = DEPTHWISE.replace(
        **dict.fromkeys(("kernel_height", "kernel_width"), 1),
        pad_top=0,
        pad_left=0,
        pad_bottom=0,
        pad_right=0,
    )
    layers = Sampler(campaign, seed=1, harvested=[norm]).draw(200)
    assert {layer.fields()["kernel_height"] for layer in layers} == {1, 3}


def test_activations_of_networks_are_varied_in_size() -> None:
    campaign = Campaign.from_mapping({
        "name": "test", "mixture": {"from_networks": 1.0, "exact": 0.0},
        "kinds": {"activation": {"batch": [1, 8], "values": [10], "activation": ["relu"]}},
    })  # fmt: skip
    original = Activation(batch=1, values=1000, activation="sigmoid")
    layers = Sampler(campaign, seed=1, harvested=[original]).draw(100)
    assert {layer.kind for layer in layers} == {"activation"}
    assert len({layer.fields()["values"] for layer in layers}) > 10
    assert {layer.fields()["activation"] for layer in layers} == {"sigmoid", "relu"}


def test_the_same_seed_gives_the_same_layers() -> None:
    campaign = Campaign.from_toml(next(p for p in SHIPPED if p.stem == "demo"))
    first = Sampler(campaign, seed=5, harvested=HARVESTED).draw(50)
    assert Sampler(campaign, seed=5, harvested=HARVESTED).draw(80)[:50] == first
    assert Sampler(campaign, seed=6, harvested=HARVESTED).draw(50) != first


def test_draws_never_change_their_meaning() -> None:
    # Stored campaigns resume by these draws: a change of the sampler fails here first.
    campaign = Campaign.from_toml(next(p for p in SHIPPED if p.stem == "resperfnet-table3"))
    dense = [layer for layer in Sampler(campaign, seed=3).draw(20) if layer.kind == "dense"]
    assert dense[0].key == (
        "dense:batch=45,features_in=2670,features_out=3620,bias=1,activation=relu,dtype=float32"
    )


HELD_BY_NETWORKS: dict[str, list[dict[str, Any]]] = {
    # Signed int8 in groups of channels; vocabularies and wide products; images of 640 pixels;
    # scores of 1,500 tokens and more.
    "quantized_conv": [{"groups": range(2, 65), "dtype": ["int8"], "function": ["linear"]}],
    "dense": [{"features_out": range(50_000, 260_001)},
              {"features_in": range(4097, 16_385), "features_out": range(4097, 16_385)}],
    "conv": [{"channels_in": [3], "height": range(512, 641), "width": range(512, 641)}],
    "matmul": [{"rows": range(1500, 8193), "columns": range(1500, 8193)}],
    "softmax": [{"values": range(1500, 8193), "outer": range(10_000, 65_537)}],
    "attention": [{"queries": range(1024, 2049)}],
    "quantized_dense": [{"features_out": range(30_000, 100_001)}, {"batch": range(1025, 4097)}],
    "quantize": [{"dtype": ["int32"], "function": ["dequantize"]}],
}  # fmt: skip


@pytest.mark.parametrize("kind", HELD_BY_NETWORKS)
def test_the_campaign_of_all_operators_draws_what_large_networks_hold(kind: str) -> None:
    campaign = Campaign.from_toml(next(p for p in SHIPPED if p.stem == "cpu-90min"))
    sampler = Sampler(campaign, seed=1, skip_kinds=frozenset(campaign.kinds) - {kind})
    layers = [layer.fields() for layer in sampler.draw(600)]
    for wanted in HELD_BY_NETWORKS[kind]:
        found = [all(layer[name] in values for name, values in wanted.items()) for layer in layers]
        assert sum(found) >= 2, wanted


def test_kinds_come_in_their_shares() -> None:
    campaign = Campaign.from_toml(next(p for p in SHIPPED if p.stem == "quick"))
    counts = Counter(layer.kind for layer in Sampler(campaign, seed=1).draw(2000))
    assert counts["conv"] / 2000 == pytest.approx(0.5, abs=0.04)
    assert counts["pool"] / 2000 == pytest.approx(0.25, abs=0.04)


def test_any_prefix_is_a_fair_sample() -> None:
    campaign = Campaign.from_toml(next(p for p in SHIPPED if p.stem == "quick"))
    counts = Counter(layer.kind for layer in Sampler(campaign, seed=1).draw(200))
    assert counts["conv"] / 200 == pytest.approx(0.5, abs=0.12)


def test_images_are_square_as_often_as_specified() -> None:
    law = {"law": "uniform", "low": 5, "high": 500, "same_share": 0.8}
    layers = Sampler(conv_campaign(conv={"size": law}), seed=1).draw(1000)
    square = sum(layer.height == layer.width for layer in layers)  # type: ignore[attr-defined]
    assert square / 1000 == pytest.approx(0.8, abs=0.04)


def test_groups_fit_the_channels() -> None:
    groups = {"law": "choices", "values": ["depthwise", 4], "weights": [1, 1]}
    seen = set()
    for layer in Sampler(conv_campaign(conv={"groups": groups}), seed=1).draw(50):
        assert isinstance(layer, Conv)
        if layer.groups != 4:
            assert layer.groups == layer.channels_in == layer.channels_out
        seen.add((layer.groups, layer.channels_in, layer.channels_out))
    assert {(8, 8, 8), (12, 12, 12), (4, 12, 20), (4, 8, 8)} <= seen


@pytest.mark.parametrize(
    ("padding", "pads"),
    # 9 or 10 rows, window 4, stride 2: SAME wants (5 - 1) * 2 + 4 - 9 = 3 or 2 rows more.
    [("valid", {(0, 0)}), ("same", {(1, 2), (1, 1)}), ("symmetric", {(1, 1)})],
)
def test_padding_by_name(padding: str, pads: set[tuple[int, int]]) -> None:
    campaign = conv_campaign(conv={"kernel": 4, "stride": 2, "padding": padding})
    layers = Sampler(campaign, seed=1).draw(40)
    assert {(layer.pad_top, layer.pad_bottom) for layer in layers} == pads  # type: ignore[attr-defined]


def test_explicit_padding_is_free_on_every_side() -> None:
    campaign = conv_campaign(conv={"kernel": 3, "padding": "explicit"})
    layers = Sampler(campaign, seed=1).draw(200)
    pads = {(v.pad_top, v.pad_left, v.pad_bottom, v.pad_right) for v in layers}  # type: ignore[attr-defined]
    assert len(pads) > 50
    assert max(max(p) for p in pads) == 2


def test_global_pooling_has_a_window_as_large_as_the_image() -> None:
    table = {
        "batch": 1, "channels_in": 4, "size": {"law": "uniform", "low": 2, "high": 30,
        "same_share": 0.5}, "kernel": 2, "stride": 2, "whole_image": True, "padding": "same",
        "ceil_mode": True,
    }  # fmt: skip
    campaign = Campaign.from_mapping({"name": "test", "kinds": {"pool": table}})
    for layer in Sampler(campaign, seed=1).draw(50):
        assert layer.output_shape[2:] == (1, 1)
        assert isinstance(layer, Pool)
        assert (layer.pad_top, layer.pad_left, layer.pad_bottom, layer.pad_right) == (0, 0, 0, 0)
        assert not layer.ceil_mode


def test_pooling_windows_overlap_the_image() -> None:
    campaign = Campaign.from_toml(next(p for p in SHIPPED if p.stem == "cpu-overnight"))
    pools = [x for x in Sampler(campaign, seed=2).draw(1500) if isinstance(x, Pool)]
    assert pools
    for layer in pools:
        assert max(layer.pad_top, layer.pad_bottom) < layer.kernel_height
        assert max(layer.pad_left, layer.pad_right) < layer.kernel_width


def test_exact_layers_of_networks_change_only_their_batch() -> None:
    campaign = conv_campaign(
        conv={"batch": [1, 2, 4]}, mixture={"from_networks": 1.0, "exact": 1.0}
    )
    layers = Sampler(campaign, seed=1, harvested=HARVESTED).draw(60)
    plain = [layer.replace(layout="nchw") for layer in (STEM, DEPTHWISE)]
    expected = {layer.replace(batch=b) for layer in plain for b in (1, 2, 4)}
    assert set(layers) == expected


def test_the_number_of_rows_per_image_does_not_change() -> None:
    tokens = Dense(batch=197, features_in=192, features_out=64)
    campaign = Campaign.from_mapping(
        {
            "name": "test",
            "mixture": {"from_networks": 0.0, "exact": 1.0},
            "kinds": {"dense": {"batch": [1, 2, 4], "from_networks": 1.0}},
        }
    )
    layers = Sampler(campaign, seed=1, harvested=[tokens.replace(batch=8 * 197), tokens]).draw(40)
    assert {layer.batch for layer in layers} == {197, 2 * 197, 4 * 197}
    assert {layer.replace(batch=197) for layer in layers} == {tokens}


def test_perturbed_depthwise_layers_stay_depthwise() -> None:
    campaign = conv_campaign(mixture={"from_networks": 1.0, "exact": 0.0})
    layers = Sampler(campaign, seed=1, harvested=[DEPTHWISE]).draw(200)
    widths = set()
    for layer in layers:
        assert isinstance(layer, Conv)
        assert layer.groups == layer.channels_in == layer.channels_out
        widths.add(layer.groups)
    assert len(widths) > 10


def test_the_mixture_has_its_share() -> None:
    campaign = conv_campaign(
        conv={"kernel": [1, 3], "activation": "tanh"}, mixture={"from_networks": 0.4, "exact": 1.0}
    )
    layers = Sampler(campaign, seed=1, harvested=HARVESTED).draw(1000)
    from_networks = sum(layer.activation != "tanh" for layer in layers)  # type: ignore[attr-defined]
    assert from_networks / 1000 == pytest.approx(0.4, abs=0.05)


def test_a_changed_window_has_the_same_style_of_padding() -> None:
    half = STEM.varied(kernel_height=5, kernel_width=5, height=100).fields()
    assert [half[f"pad_{s}"] for s in ("top", "left", "bottom", "right")] == [2, 2, 2, 2]
    same = STEM.replace(
        pad_top=2, pad_left=2, pad_bottom=3, pad_right=3, kernel_height=7, kernel_width=7
    )
    # 225 rows, window 7, stride 2: (113 - 1) * 2 + 7 - 225 = 6 rows more.
    fields = same.varied(height=225, width=224).fields()
    assert (fields["pad_top"], fields["pad_bottom"]) == (3, 3)
    assert (fields["pad_left"], fields["pad_right"]) == (2, 3)


def test_impossible_constraints_are_named() -> None:
    campaign = conv_campaign(constraints={"largest_macs": 1})
    with pytest.raises(CampaignError, match=r"kinds\.conv.*exceeded the constraints"):
        Sampler(campaign, seed=1).draw(1)


def test_ranges_replace_networks_that_exceed_the_constraints() -> None:
    campaign = conv_campaign(
        mixture={"from_networks": 1.0, "exact": 1.0}, constraints={"largest_tensor_bytes": 100_000}
    )
    (layer,) = Sampler(campaign, seed=1, harvested=[STEM]).draw(1)
    assert layer.input_bytes <= 100_000
