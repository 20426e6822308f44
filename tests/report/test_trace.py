"""Traces: what Perfetto draws adds up to the prediction."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

import resperf

LENET = ("predict", "lenet5", "--device", "cpu")


def of_track(events, process, track):
    return [e for e in events if (e["ph"], e["pid"], e["tid"]) == ("X", process, track)]


@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("resnet18", {"device": "cpu"}),
        ("resnet18", {"device": "h100"}),
        ("resnet18", {"device": "rtx4090", "precision": "amp"}),
        ("resnet18", {"device": "h100", "training": True}),
    ],
)
def test_the_parts_of_a_trace_add_up_to_the_time(cli, tmp_path, network, options):
    words = {"training": ["--train"], "device": ["--device"], "precision": ["--precision"]}
    line = [w for name, value in options.items() for w in (*words[name], value) if w is not True]
    cli.text("predict", network, *line, "--batch", "1", "8", "-o", tmp_path / "a.trace.json")
    trace = json.loads((tmp_path / "a.trace.json").read_text())
    events = trace["traceEvents"]
    for process, batch in enumerate((1, 8)):
        prediction = resperf.predict(network, batch=batch, **options)
        whole = of_track(events, process, 0)
        assert sum(x["dur"] for x in whole) == pytest.approx(1e3 * prediction.time_ms)
        running = next(x for x in whole if x["name"] in ("execution", "step"))
        end_us = running["ts"] + running["dur"]
        # Copies to the device and back have no layers.
        inside = [x for x in of_track(events, process, 1) if running["ts"] <= x["ts"] < end_us]
        assert sum(x["dur"] for x in inside) == pytest.approx(running["dur"])
        for track in (0, 1):
            own = of_track(events, process, track)
            for before, after in pairwise(own):
                assert after["ts"] >= before["ts"] + before["dur"] - 1e-6
        names = [event["name"] for event in of_track(events, process, 1)]
        layers = [layer.name for layer in prediction.layers if layer.execution_ms > 0]
        assert [name for name in names if name in {*layers}] == layers
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert titles == [str(resperf.predict(network, batch=b, **options)) for b in (1, 8)]


def test_only_one_device_has_a_trace_and_outputs_have_known_ends(cli, tmp_path):
    trace = tmp_path / "a.trace.json"
    assert "is of one device alone" in cli.error(
        "predict", "lenet5", "--device", "all", "-o", trace
    )
    assert not trace.exists()
    for words in (LENET, ("compare", "lenet5", "nin"), ("dataset", "info", "x.h5"),
                  ("evaluate", "x.h5", "--device", "cpu")):  # fmt: skip
        assert "must end in" in cli.error(*words, "-o", tmp_path / "a.txt")
