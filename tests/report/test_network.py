"""A predicted network as text."""

from __future__ import annotations

from dataclasses import fields

from resperf.errors import Message
from resperf.layers import Conv
from resperf.prediction import (
    Failure,
    LayerPrediction,
    PhaseTimes,
    Prediction,
    QuantityPrediction,
    Skipped,
)
from resperf.prediction.result import Overheads, Parts, Remarks, Subject, Total
from resperf.prediction.rules import bound
from resperf.report.network import everywhere_text, layers_text, network_text, share_cell
from resperf.settings import Mode

KEY = Conv(
    batch=8, channels_in=64, height=56, width=56, kernel_height=3, kernel_width=3,
    pad_top=1, channels_out=64, bias=True, layout="nchwc16",
).key  # fmt: skip


def prediction(**changes) -> Prediction:
    layers = tuple(
        LayerPrediction(f"conv{i}", "conv", float(i), True, macs=i * 10**9) for i in range(1, 13)
    )
    given = {
        "network": "net", "device": "cpu", "framework": "onnxruntime", "batch": 8,
        "phases": PhaseTimes(1.0, 80.0, 2.0), "layers": layers, "call_ms": 2.0, **changes,
    }  # fmt: skip
    given["total_ms"] = given["phases"].total_ms

    def value(cls):
        names = [each.name for each in fields(cls) if each.name in given]
        return cls(**{name: given.pop(name) for name in names})

    subject, remarks, parts, costs, total = map(value, (Subject, Remarks, Parts, Overheads, Total))
    assert not given
    return Prediction(subject, parts, costs, total, bound(parts, costs, total), remarks)


def test_the_answer_is_the_first_line_and_its_phases_follow():
    sure = LayerPrediction("d", "conv", 80.0, True, low_ms=75.0, high_ms=90.0)
    lines = network_text(prediction(layers=(sure,))).splitlines()
    # 83 ms x 75 / 80 and x 90 / 80; 8 samples in 83 ms.
    assert lines[0] == (
        "net, batch 8, on cpu with onnxruntime: 83.00 ms (90% interval 77.81 to 93.38), "
        "96.4 samples/s"
    )
    assert lines[2].split()[:3] == ["execution", "80.00", "ms"]
    assert "per-run overhead 2.000" in lines[2]
    assert lines[4] == "rests on      100% measured"


def test_a_training_step_is_the_answer_where_no_run_is_predicted():
    step = QuantityPrediction("step_ms", 40.0, 30.0, 50.0, "class-costs", Mode.TRAINING)
    lost = PhaseTimes(float("nan"), float("nan"), float("nan"))
    result = prediction(phases=lost, layers=(), quantities=(step,), rule="whole_network")
    assert network_text(result).splitlines()[0] == (
        "net, batch 8, on cpu with onnxruntime, training step: 40.00 ms "
        "(90% interval 30.00 to 50.00), 200 samples/s"
    )


def of_hosts(**changes) -> Prediction:
    """12 launches of 10 us: 0.12 ms, of a device that needs 0.08 ms."""
    return prediction(
        phases=PhaseTimes(0.0, 0.12, 0.0), waiting_ms=0.04, call_ms=0.0,
        layers=(LayerPrediction("d", "conv", 0.08, False, reason="r", inferred=True),),
        host_dispatch_us=10.0, kernels=12, **changes,
    )  # fmt: skip


def test_times_of_device_and_host_stand_beside_each_other():
    lines = network_text(of_hosts(host_dispatch_source="layers")).splitlines()
    assert lines[2].endswith(
        "ms  (the longer of device and host; 33% of the total is waiting for the host)"
    )
    assert lines[3].split() == ["device", "0.0800", "ms"]
    # Half of it is as fast as 5 us each; 20 us each is twice as slow.
    assert " ".join(lines[4].split()) == (
        "host 0.1200 ms (0.0600 to 0.2400: 12 launches x 10 us on the hosts that measured, "
        "5 to 20 are usual; set yours with --host-dispatch-us)"
    )
    assert lines[6] == (
        "rests on      100% inferred from other devices; 100% outside the trained range"
    )
    given = network_text(of_hosts(host_dispatch_source="given")).splitlines()
    assert given[4].endswith("ms  (12 launches x 10 us)")


def test_the_slowest_layers_are_shown_and_all_on_demand():
    text = network_text(prediction())
    names = [line.split()[0] for line in text.splitlines() if line.startswith("conv")]
    assert names == [f"conv{i}" for i in range(12, 4, -1)]
    assert "8 of 12, --all shows every one" in text
    assert "14.5%" in text  # conv12 takes 12 of 83 ms
    text = network_text(prediction(), every=True)
    assert sum(line.startswith("conv") for line in text.splitlines()) == 12
    assert "--all" not in text


def test_what_is_left_out_is_said_before_the_total_and_listed():
    # 78 G of 104 G multiply-adds: 12 of 1 to 12 G are known, two of 13 G are not in the total.
    skipped = tuple(
        Skipped(f"lrn{i}", "LRN", "no layer kind", 13e9 * (i < 2), 0.0) for i in range(12)
    )
    lines = network_text(prediction(skipped=skipped)).splitlines()
    assert lines[1].startswith("INCOMPLETE: the total covers 75% of the network's multiply-adds")
    assert lines[2] == "the total does not include 12 operators, listed below"
    assert lines[0].endswith(": 83.00 ms, incomplete")
    assert "12 x LRN: no layer kind (lrn0, lrn1, lrn2, lrn3 and 8 more)" in lines
    assert "--all names every one" in lines[-2]
    assert network_text(prediction(skipped=skipped), every=True).endswith("lrn10, lrn11)")
    complete = network_text(prediction())
    assert "does not include" not in complete
    assert "INCOMPLETE" not in complete


def test_skipped_operators_are_grouped_by_what_they_lack():
    unusual = Message("its shapes are unusual")
    shapes = [Skipped(f"c{i}", "Conv", unusual.about(f"Conv 'c{i}': ")) for i in range(48)]
    general = "the shape of its input is not known"
    following = [
        Skipped(
            f"d{i}", "Conv", Message(f"Conv 'd{i}': the shape of its input 't{i}' ...", general)
        )
        for i in range(2)
    ]
    wrong = Message("dense: dtype='float64' must be float32")
    dtypes = [Skipped("m", "MatMul", wrong.about("MatMul 'm': "))]
    text = network_text(prediction(skipped=(*following, *shapes, *dtypes)))
    assert text.splitlines()[-4:] == [
        "not in the total: 51 operators; --all names every one",
        "48 x Conv: its shapes are unusual (c0, c1, c2, c3 and 44 more)",
        "2 x Conv: the shape of its input is not known (d0, d1)",
        "1 x MatMul: dense: dtype='float64' must be float32 (m)",
    ]
    # Their multiply-adds are not known: all of the others tells nothing.
    assert (
        "INCOMPLETE: the total covers an unknown share of the network's work; the size of 51 "
        "operators is not known"
    ) in text.splitlines()


def test_an_unknown_phase_and_an_unknown_cost_are_no_zero():
    lost = PhaseTimes(1.0, 80.0, float("nan"))
    cost = Skipped("overhead_ms_per_layer", "cost", "not measured", 0.0, 0.0)
    lines = network_text(prediction(phases=lost, missing_costs=(cost,))).splitlines()
    # Their bytes are not known.
    assert lines[1] == "INCOMPLETE: the total covers 100% of the network's multiply-adds"
    assert lines[2].endswith("overhead between layers: not measured")
    assert ": 81.00 ms" in lines[0]
    assert lines[5].split() == ["postprocess", "unknown"]


def test_almost_all_is_not_all_and_almost_nothing_not_nothing():
    cells = [share_cell(share) for share in (1.0, 0.9999, 0.004, 0.0)]
    assert cells == ["100%", "99%", "less than 1%", "0%"]


def test_a_network_of_which_nothing_is_known_has_an_unknown_share():
    loop = Skipped("n", "Loop", "no layer kind")
    text = network_text(prediction(layers=(), skipped=(loop,)))
    assert text.splitlines()[1] == (
        "INCOMPLETE: the total covers an unknown share of the network's work; "
        "the size of 1 operator is not known"
    )


def test_warnings_and_layers_out_of_range_are_shown():
    far = LayerPrediction("c", "conv", 1.0, False, reason="height=900 above 512", estimated=True)
    alone = LayerPrediction(
        "p", "pool", 1.0, False, reason="no predictor for pool", estimated=True, from_limits=True
    )
    result = prediction(layers=(far, alone), warnings=("be careful",))
    text = network_text(result)
    assert "  out of range; estimated" in text
    assert "out of range: height=900 above 512; estimated" in network_text(result, every=True)
    assert "  no predictor for pool; estimated" in text
    assert "from_limits" not in alone.to_json()
    assert text.endswith("warning: be careful")


def test_what_is_estimated_and_what_the_device_cannot_do_is_said_where_it_stands():
    layers = (
        LayerPrediction("p", "pool", 3.0, True, estimated=True, lower_bound_ms=1.0),
        LayerPrediction("c", "conv", 4.0, True, lower_bound_ms=5.0),
    )
    result = prediction(layers=layers, estimated_phases=("preprocess",))
    lines = network_text(result).splitlines()
    assert lines[1].endswith("ms  (estimated)")
    assert "estimated" not in lines[2] + lines[3]
    # One ms of preprocess and the pooling are 4 of 83 ms; both bounds together.
    assert lines[4].endswith("95% measured, 5% estimated; at least 6.000 ms at the device's peak")
    assert next(line for line in lines if line.startswith("p ")).endswith("estimated")
    assert next(line for line in lines if line.startswith("c ")).endswith(
        "the device needs at least 5.000 ms"
    )
    alone = LayerPrediction("c", "conv", 4.0, True, key=KEY, estimated=True, lower_bound_ms=5.0)
    assert "  estimated; the device needs at least 5.000 ms" in layers_text([alone])


def test_bundles_are_compared_in_one_table():
    far = LayerPrediction("c", "conv", 1.0, False, reason="r", estimated=True)
    sure = LayerPrediction("d", "conv", 80.0, True, low_ms=75.0, high_ms=90.0)
    text = everywhere_text(
        [prediction(layers=(sure,)), prediction(device="1080ti", layers=(far,), batch=None)],
        [Failure("there/p1000", "p1000", "tensorrt", "no lowering"),
         Failure("there/p2000", "p2000", "tensorrt", "no lowering"),
         Failure("there/x", "", "", "there/x is damaged")],
    )  # fmt: skip
    rows = [line.split() for line in text.splitlines()]
    # As wide as the layer: 83 ms x 75 / 80 and x 90 / 80.
    assert rows[3][:5] == ["cpu", "onnxruntime", "8", "83.00", "77.81-93.38"]
    assert rows[3][-3:] == ["measured", "layers", "0"]
    assert rows[4][-4:] == ["83.00", "measured", "layers", "1"]
    assert "not predicted for p1000, p2000 with tensorrt: no lowering\n" in text
    assert "damaged: there/x is damaged" in text


def test_the_table_says_what_each_answer_rests_on_and_how_long_the_host_takes():
    guess = LayerPrediction("d", "conv", 80.0, True, estimated=True)
    results = [
        of_hosts(host_dispatch_source="layers"),
        prediction(layers=(guess,), device="l4"),
        prediction(layers=(), device="rtx4090", inferred_from="whole networks on this device"),
    ]
    rows = [line.split() for line in everywhere_text(results, []).splitlines()[3:6]]
    assert rows[0][3:] == ["0.1200", "0.0800", "0.1200", "other", "devices", "1"]
    assert rows[1][3:] == ["83.00", "data", "sheet", "0"]
    assert rows[2][3:] == ["83.00", "measured", "networks", "0"]
    assert "sorted by the device's time" in everywhere_text(results, [])
    known = everywhere_text([of_hosts(host_dispatch_source="given")], [])
    assert "sorted by the device's time" not in known


def test_an_incomplete_total_is_marked_in_the_table():
    skipped = (Skipped("n", "LRN", "no layer kind", 26e9, 0.0),)
    text = everywhere_text([prediction(), prediction(device="v100", skipped=skipped)], [])
    rows = [line.split() for line in text.splitlines()]
    assert rows[3][:4] == ["cpu", "onnxruntime", "8", "83.00"]
    assert rows[4][:5] == ["v100", "onnxruntime", "8", "INCOMPLETE", "83.00"]
    assert "\nv100: INCOMPLETE: the total covers 75% of the network's" in text


def test_bundles_of_one_device_are_told_apart_by_the_shortest_name_that_does():
    text = everywhere_text(
        [prediction(bundle="there/cpu-red", warnings=("hot",)),
         prediction(bundle="there/blue"),
         prediction(bundle="there/cpu-green"),
         prediction(bundle="here/cpu-green"),
         prediction(bundle="there/blue", batch=16),
         prediction(device="v100", bundle="there/d"),
         prediction(device="v100", bundle="there/d", batch=16)],
        [],
    )  # fmt: skip
    rows = text.splitlines()[3:10]
    assert [row.split("  ")[0] for row in rows] == [
        "cpu-red", "cpu (blue)", "cpu (there/cpu-green)", "cpu (here/cpu-green)", "cpu (blue)",
        "v100", "v100",
    ]  # fmt: skip
    assert "warning: cpu-red: hot" in text


def test_what_is_said_of_several_devices_alike_is_said_once():
    counted = "2 of 12 layers are outside the trained range"
    results = [
        prediction(
            device=f"card{i}",
            warnings=("hot", Message(f"{counted}, first conv1 (kernel={i})", counted)),
        )
        for i in range(6)
    ]
    other = prediction(device="card0", framework="torch", warnings=("hot",), notes=("n",))
    text = everywhere_text([*results, other], [])
    assert text.split("\n\n")[1:] == [
        "note: card0 with torch: n",
        "warning: card0 with onnxruntime, card1, card2, card3 and 3 more: hot\n"
        "warning: card0 with onnxruntime, card1, card2, card3 and 2 more: "
        "2 of 12 layers are outside the trained range",
    ]


def test_a_table_of_devices_fits_120_columns(monkeypatch):
    monkeypatch.setattr("resperf.report.tables.WIDTH_IN_FILES", 120)
    sure = LayerPrediction("d", "conv", 80.0, True, low_ms=75.0, high_ms=90.0)
    results = [
        prediction(layers=(sure,), bundle=f"a/cpu-onnxruntime-{name}", phases=PhaseTimes(0, 1e4, 0))
        for name in ("epyc-vnni", "xeon")
    ]
    lines = everywhere_text(results, []).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= 120
    assert lines[-2].split()[0] == "cpu-onnxruntime-epyc-vnni"


def test_a_layer_without_predictor_is_not_zero():
    layer = LayerPrediction("conv_0", "conv", float("nan"), False, key=KEY)
    row = layers_text([layer]).splitlines()[2].split()
    assert row[:3] == ["-", "0.000", "conv"]
    assert row[3:] == [
        "batch=8", "channels_in=64", "height=56", "width=56", "kernel_height=3", "kernel_width=3",
        "pad_top=1", "layout=nchwc16", "channels_out=64", "no", "predictor",
    ]  # fmt: skip
