"""Costs of TensorRT's kernels: terms worked out by hand, and fits that find what made the times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from resperf.devices import device_facts, known_facts
from resperf.layers import Conv, Dense, Elementwise, Layer, MatMul, Softmax, Transpose
from resperf.layers.attention import Attention
from resperf.lowering import LoweredNetwork, LoweredNode
from resperf.network import Network, Tensor
from resperf.predictors.kernel_costs import (
    BYTES,
    CALL,
    KERNELS,
    Rows,
    SharedCosts,
    kernel_terms,
    network_terms,
    predicted_without,
    with_attention,
)
from resperf.predictors.operator_classes import Cost
from resperf.settings import CONTAINS, Setting

CONV = Conv(batch=8, channels_in=64, height=56, width=56, channels_out=64, kernel_height=1,
            kernel_width=1, dtype="float16")  # fmt: skip
ADD = Elementwise(batch=8, inner=100_000, dtype="float16")


def lowered(*layers: Layer) -> LoweredNetwork:
    nodes = [LoweredNode(str(i), "", layer, "execution") for i, layer in enumerate(layers)]
    return LoweredNetwork((*nodes, LoweredNode("view", "", None, "view")), (), (), "rules")


def test_terms_are_starts_bytes_and_work_by_the_data_sheet() -> None:
    facts = device_facts("t4")
    terms = kernel_terms(lowered(CONV, CONV, ADD), "fp16", facts)
    # 5 us at 1500 MHz are 7,500 cycles.
    assert terms[Cost("convolution 1x1", KERNELS)] == pytest.approx(2 * 7500 / 1590e3)
    assert terms[Cost("pointwise", KERNELS)] == pytest.approx(7500 / 1590e3)
    assert terms[Cost("pointwise", BYTES)] == pytest.approx(ADD.moved_bytes / 320e6)
    assert terms[Cost("convolution 1x1", BYTES)] == pytest.approx(2 * CONV.moved_bytes / 320e6)
    # The work, at 65 TFLOP/s, is hidden by its bytes in part: more than these, not the sum.
    moving, both = (terms[Cost("convolution 1x1", term)] for term in (BYTES, "fp16"))
    flops_ms = 2 * 2 * CONV.macs / 65e9
    assert np.cbrt(moving**3 + flops_ms**3) <= both < np.cbrt(moving**3 + (3 * flops_ms) ** 3)
    assert Cost("pointwise", "fp16") not in terms
    assert terms[Cost(CALL, CALL)] == 0.05


@pytest.mark.parametrize(
    ("contains", "device", "term", "copied_ms"),
    [
        ("Paddle Inference + TensorRT", "v100", "copies if any", 2 * 3072 * 4 / 15.75e6),
        ("copy of the input to the GPU inside", "rtx3060", "copies", 2 * 3072 * 4 / 31.5e6),
        ("copy of the input to the GPU inside", "agx-xavier", "copies", 2 * 3072 * 4 / 15.75e6),
        ("copies outside", "v100", "", 0.0),
        ("inference stage of the Python loop, no NMS", "v100", "inference stage", 0.5),
        ("", "v100", "", 0.0),  # what users ask for
    ],
)
def test_what_times_contain_besides_is_learnt_as_such(
    contains: str, device: str, term: str, copied_ms: float
) -> None:
    image = Tensor("x", (2, 3, 32, 32), "float32")
    network = Network("net", (), {"x": image}, ("x",), ("x",), {"": 20}, 2)
    setting = Setting("tensorrt", "", "cuda", precision="fp16", options={CONTAINS: contains})
    known = {(id(network), "fp16"): replace(lowered(CONV), inputs=(image,))}
    terms = network_terms(network, setting, known_facts(device).platform, known)
    copies = {cost.term: ms for cost, ms in terms.items() if cost.of == CALL and cost.term != CALL}
    assert copies == ({term: pytest.approx(copied_ms)} if term else {})


def test_kernels_start_slowly_on_jetsons_before_orin() -> None:
    # 7,500 cycles, three times on slow host cores: AGX Xavier 1377 MHz, AGX Orin 1300 MHz.
    for device, starts_ms in (("agx-xavier", 3 * 7500 / 1377e3), ("agx-orin", 7500 / 1300e3)):
        terms = kernel_terms(lowered(ADD), "fp16", device_facts(device))
        assert terms[Cost("pointwise", KERNELS)] == pytest.approx(starts_ms)


def test_products_in_int8_move_half_of_the_bytes() -> None:
    half, whole = (
        kernel_terms(lowered(CONV, ADD), precision, device_facts("t4"))
        for precision in ("int8", "fp16")
    )
    cost = Cost("convolution 1x1", BYTES)
    assert half[cost] == pytest.approx(whole[cost] / 2)
    assert half[Cost("pointwise", BYTES)] == whole[Cost("pointwise", BYTES)]


@pytest.mark.parametrize(("dtype", "fused"), [("float16", True), ("float32", False)])
def test_attention_in_half_precision_is_one_kernel(dtype: str, fused: bool) -> None:
    # 8 heads of 32 values, 400 tokens, in 4 areas of an image, as YOLO12 has them.
    sizes = {"batch": 4, "outer": 8, "columns": 400, "dtype": dtype}
    scores = MatMul(**sizes, rows=400, depth=32)
    softmax = Softmax(batch=4, outer=3200, values=400, dtype=dtype)
    turned = Transpose(batch=4, dim1=8, dim2=400, dim3=400, order="132", dtype=dtype)
    result = MatMul(**sizes, rows=32, depth=400)
    parts = [ADD, scores, softmax, turned, result, ADD]
    attention = Attention(batch=4, queries=400, keys=400, heads=8, head_size=32, value_size=32,
                          features=0, dtype=dtype)  # fmt: skip
    assert with_attention(parts) == ([ADD, attention, ADD] if fused else parts)
    assert attention.macs == scores.macs + result.macs
    # Queries, keys, values and results of 8 x 32 for each of 1600 tokens, without the scores.
    assert attention.moved_bytes == 4 * 1600 * 256 * (2 if fused else 4)
    # Two products without a softmax of their size stay.
    assert with_attention([scores, softmax.replace(values=399), result])[0] == scores


def test_depthwise_convolutions_are_work_of_the_plain_cores() -> None:
    layer = CONV.replace(groups=64, kernel_height=3, kernel_width=3)
    terms = kernel_terms(lowered(layer), "fp16", known_facts("t4"))
    # 2 FLOPs of each of the 9 weights, at twice the 8.1 TFLOP/s of float32.
    work_ms, moved_ms = 2 * layer.macs / 16.2e9, terms[Cost("depthwise", BYTES)]
    expected_ms = np.cbrt(work_ms**3 + moved_ms**3)
    assert terms[Cost("depthwise", "fp16")] == pytest.approx(expected_ms, rel=1e-3)


def test_classifiers_of_images_are_not_quantised() -> None:
    image = Tensor("x", (8, 3, 224, 224), "float16")
    classifier = Dense(batch=8, features_in=25088, features_out=4096, dtype="float16")
    of_tokens = classifier.replace(batch=8 * 197)
    for layer, halved in ((classifier, 1), (of_tokens, 2)):
        whole, quantised = (
            kernel_terms(replace(lowered(layer), inputs=(image,)), precision, known_facts("t4"))
            for precision in ("fp16", "int8")
        )
        cost = Cost("dense", BYTES)
        assert quantised[cost] == pytest.approx(whole[cost] / halved)
        assert quantised[cost._replace(term="int8")] == pytest.approx(
            whole[cost._replace(term="fp16")] / halved, rel=0.1
        )


def test_float16_sums_of_geforce_cards_run_at_half_of_int8() -> None:
    large = CONV.replace(channels_in=2048, channels_out=2048)
    facts = device_facts("rtx3090")
    (work,) = (
        time_ms for cost, time_ms in kernel_terms(lowered(large), "fp16", facts).items()
        if cost.term == "fp16"
    )  # fmt: skip
    assert work * 285e9 / 2 > 2 * large.macs  # never above the peak
    assert work * 71.2e9 < 1.4 * 2 * large.macs  # but above that of sums in float32


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"groups": 64}, "depthwise"),
        ({"groups": 4}, "grouped convolution"),
        ({"channels_in": 3}, "convolution of images"),
        ({"kernel_height": 3, "kernel_width": 3}, "convolution"),
    ],
)
def test_classes_of_convolutions(changes: dict[str, int], name: str) -> None:
    terms = kernel_terms(lowered(CONV.replace(**changes)), "fp16", device_facts("t4"))
    assert {cost.of for cost in terms} == {name, CALL}


def test_grouped_convolutions_in_float32_are_a_class_of_their_own() -> None:
    grouped = lowered(CONV.replace(groups=4, dtype="float32"))
    terms = kernel_terms(grouped, "fp32", device_facts("t4"))
    assert {cost.of for cost in terms} == {"grouped convolution in float32", CALL}


def synthetic_rows(noise: float = 0.02) -> Rows:
    """Latencies of 24 networks on four cards, of which the second is 1.5 times slower."""
    random = np.random.default_rng(1)
    terms, times, devices, networks, families = [], [], [], [], []
    slower = {"t4": 1.0, "v100": 1.5, "a30": 1.0, "rtx3090": 1.0}
    for number in range(24):
        shares = random.uniform(0.2, 2.0, 4)
        own = {
            Cost("convolution", "fp16"): shares[0],
            Cost("convolution", KERNELS): shares[1],
            Cost("pointwise", BYTES): shares[2],
            Cost("dense", "fp16"): shares[3],
        }
        made_ms = own[Cost("convolution", "fp16")] * 1.2 + shares[1] * 0.5 + shares[2] * 1.5
        made_ms += shares[3] * 0.8
        for device, factor in slower.items():
            terms.append(own)
            times.append(made_ms * factor * np.exp(random.normal(0, noise)))
            devices.append(device)
            networks.append(f"net{number}")
            families.append(f"family{number % 8}")
    names = (devices, ["lab"] * len(times), networks, families)
    return Rows(terms, np.array(times), *map(np.array, names))


def test_a_fit_finds_the_costs_and_the_slower_card() -> None:
    rows = synthetic_rows()
    costs = SharedCosts.fit(rows)
    assert np.abs(np.log(costs.predict(rows) / rows.times_ms)).mean() < 0.05
    ratio = [
        costs.parts_ms(rows.terms[0], device)[Cost("convolution", "fp16")]
        for device in ("v100", "t4")
    ]
    assert 1.3 < ratio[0] / ratio[1] < 1.7
    # Its times are those of a card that no row came from.
    assert costs.parts_ms(rows.terms[0], "h100").keys() == rows.terms[0].keys()


def test_left_out_families_and_classes_that_no_network_had() -> None:
    rows = synthetic_rows()
    left_out = predicted_without(rows, rows.families.tolist())
    assert np.abs(left_out / rows.times_ms - 1).mean() < 0.1
    costs = SharedCosts.fit(rows)
    unseen = Cost("grouped convolution", "fp16")
    (pooled,) = costs.parts_ms({unseen: 1.0}, "h100").values()
    assert pooled == costs.coefficients[Cost("products", "fp16")]
    # Grouped convolutions start as other products do, but in float32: half the data sheet's time.
    start_ms = {
        of: sum(costs.parts_ms({Cost(of, KERNELS): 1.0}, "h100").values())
        for of in ("grouped convolution", "grouped convolution in float32")
    }
    pooled_ms = costs.coefficients[Cost("products", KERNELS)]
    assert start_ms == {"grouped convolution": pooled_ms, "grouped convolution in float32": 0.5}
    assert pooled_ms != 0.5


def test_a_source_that_measures_longer_has_a_factor_and_cards_keep_their_mean() -> None:
    rows = synthetic_rows(noise=0.0)
    is_slow = np.arange(len(rows.times_ms)) // 4 % 2 == 1
    sources = np.where(is_slow, "slow", "fast")
    slow = replace(rows, times_ms=rows.times_ms * np.where(is_slow, 1.4, 1.0), sources=sources)
    costs = SharedCosts.fit(slow)
    factors = [costs.sources[f"{name} on t4"] for name in ("slow", "fast")]
    assert 1.2 < factors[0] / factors[1] < 1.41
    assert np.log(factors).sum() == pytest.approx(0, abs=1e-9)  # 12 networks each


def test_quantities_and_json() -> None:
    costs = SharedCosts.fit(synthetic_rows())
    again = SharedCosts.from_json(costs.to_json())
    assert again.coefficients == pytest.approx(costs.coefficients, rel=1e-4)
    assert again.sources == pytest.approx(costs.sources, rel=1e-4)
    assert again.factors.keys() == costs.factors.keys()
