"""ConvMeter on the command line: trained on a list of runs, judged on networks left out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from resperf.network import read_network
from resperf.predictors.network_totals import counted

BATCHES = (1, 4, 16)


def time_ms(path: Path, batch: int) -> float:
    totals = counted(read_network(path, batch=batch)).totals
    return 1e-6 * totals.flops + 2e-5 * totals.inputs + 4e-5 * totals.outputs + 0.25


@pytest.fixture
def chain(network_file):
    """Write a network of convolutions, alike but for the numbers of channels."""

    def write(name: str, seed: int) -> Path:
        random = np.random.default_rng(seed)
        widths = [3, *(int(each) for each in random.integers(4, 40, int(random.integers(2, 6))))]
        nodes, weights, last = [], {}, "x"
        for place, (given, made) in enumerate(pairwise(widths)):
            size = int(random.choice([1, 3, 5]))
            weights[f"w{place}"] = np.zeros((made, given, size, size), np.float32)
            pads = [size // 2] * 4
            nodes += [
                make_node("Conv", [last, f"w{place}"], [f"c{place}"], f"c{place}", pads=pads),
                make_node("Relu", [f"c{place}"], [f"r{place}"], f"r{place}"),
            ]
            last = f"r{place}"
        return network_file(name, nodes, {"x": ["n", 3, 16, 16]}, {last: None}, weights)

    return write


@pytest.fixture
def networks(chain) -> list[Path]:
    return [chain(f"net{place}.onnx", place) for place in range(12)]


@pytest.fixture
def runs(networks, tmp_path, cli) -> Path:
    """Import the runs of all networks, exactly as the published form says."""
    lines = ["network,batch,time_ms,framework"]
    lines += [f"{p},{b},{time_ms(p, b)!r},onnxruntime" for p in networks for b in BATCHES]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    words = ("--format", "list", "--device", "cpu", "-o", tmp_path / "runs.h5")
    cli.text("dataset", "import", path, *words)
    return tmp_path / "runs.h5"


def test_runs_teach_a_bundle_that_predicts_other_networks(runs, chain, tmp_path, cli):
    found = cli.json("train", runs, "--method", "convmeter", "-o", tmp_path / "b")
    assert found["method"] == "convmeter"
    assert found["size_bytes"] < 20_000
    new = chain("new.onnx", 77)
    document = cli.document("predict", new, "--bundle", tmp_path / "b", "--batch", "8")
    [value] = [each["value"] for each in document["quantities"].values()]
    assert value == pytest.approx(time_ms(new, 8), rel=1e-4)


def test_each_network_is_judged_by_a_fit_without_it(runs, cli):
    words = ("evaluate", runs, "--methods", "convmeter,operator-totals", "--leave-out", "network")
    exact, ours = cli.json(*words)
    assert (exact["method"], ours["method"]) == ("convmeter", "operator-totals")
    assert (exact["rows"], exact["fits"], len(exact["groups"])) == (36, 12, 12)
    assert exact["mape"] < 1e-6
    assert exact["r2"] == pytest.approx(1.0)
    assert exact["nrmse"] < 1e-6
    # Multiply-adds and bytes say almost as much.
    assert 1e-4 < ours["mape"] < 0.2
    assert 0.8 <= ours["in_interval"] <= 1
    assert {each["name"] for each in ours["groups"]} == {f"net{place}" for place in range(12)}
    folds = cli.json(*words, "--folds", "3")
    assert [each["fits"] for each in folds] == [3, 3]
    text = cli.text(*words)
    assert "NRMSE" in text
    assert "each network" in text
    unseen = (*words[:-1], "net0,net3")
    results = cli.json(*unseen)
    assert [result["fits"] for result in results] == [1, 1]
    assert "unseen families" in cli.text(*unseen)
    assert "--folds needs --leave-out network or family" in cli.error(*unseen, "--folds", "3")


def test_what_cannot_be_left_out_is_one_line(runs, toy_dataset, cli):
    words = ("evaluate", runs, "--leave-out", "network", "--methods")
    assert "baseline is for layers" in cli.error(*words, "baseline")
    assert "--rows needs" in cli.error(*words, "convmeter", "--rows", "10")
    of_layers = ("evaluate", toy_dataset, "--leave-out", "network", "--methods", "convmeter")
    assert "no networks that convmeter can learn from" in cli.error(*of_layers)
