"""ConvMeter's protocol on runs that follow its form exactly, but for one network."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from onnx.helper import make_node

from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import graph_digest, read_graph, read_network, weightless
from resperf.platform import Platform
from resperf.predictors.network_totals import counted
from resperf.settings import Mode, Setting

pytest.importorskip("h5py")

STEPS = Setting("torch", "2.13.0", threads=1, mode=Mode.TRAINING, optimizer="sgd")

METHODS = ["convmeter", "convmeter-relative"]
ODD = "net3"
"""Each of its rows takes twice as long as the form says."""


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("benchmarks/convmeter")


@pytest.fixture
def runs(network_file, tmp_path, cli) -> Path:
    """Networks at two image sizes with a block each, at two batch sizes."""
    random = np.random.default_rng(5)
    lines = ["network,batch,time_ms,framework"]
    for place in range(8):
        widths = [3, *(int(each) for each in random.integers(4, 40, 3))]
        kernels = [int(each) for each in random.choice([1, 3, 5], 3)]
        for name, size, first in (("@8", 8, 0), ("@16", 16, 0), ("@16-Block2", 16, 1)):
            path = chain(network_file, f"net{place}{name}.onnx", size, widths[first:],
                         kernels[first:])  # fmt: skip
            for batch in (1, 4):
                totals = counted(read_network(path, batch=batch)).totals
                time_ms = 1e-6 * totals.flops + 2e-5 * totals.inputs + 4e-5 * totals.outputs + 0.25
                time_ms *= 2 if f"net{place}" == ODD else 1
                lines.append(f"{path},{batch},{time_ms!r},onnxruntime")
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    words = ("--format", "list", "--device", "cpu", "-o", tmp_path / "runs.h5")
    cli.text("dataset", "import", tmp_path / "runs.csv", *words)
    return tmp_path / "runs.h5"


def chain(network_file, name, size, widths, kernels) -> Path:
    nodes, weights, last = [], {}, "x"
    for place, ((given, made), kernel) in enumerate(zip(pairwise(widths), kernels, strict=True)):
        weights[f"w{place}"] = np.zeros((made, given, kernel, kernel), np.float32)
        pads = [kernel // 2] * 4
        nodes.append(make_node("Conv", [last, f"w{place}"], [f"c{place}"], f"c{place}", pads=pads))
        last = f"c{place}"
    return network_file(name, nodes, {"x": ["n", widths[0], size, size]}, {last: None}, weights)


def test_a_network_is_left_out_at_all_sizes_and_with_its_block(tool, runs):
    found, _ = tool.figures(runs, METHODS, (3, 8), range(4))
    judged = {(each.method, each.on, each.learnt): each for each in found}
    assert len(judged) == len(METHODS) * 2 * 3
    for on, rows in (("networks", 32), ("blocks", 16)):
        each = judged["convmeter", on, "networks and blocks"]
        assert len(each.measured) == rows
        # Had any of its rows taught the fit, it would not be off by half.
        name = ODD if on == "networks" else f"{ODD} Block2"
        assert each.mape_of(name) == pytest.approx(0.5, abs=1e-6)
    # The others suffer from the odd one, unlike in a fit to rows without it.
    assert judged["convmeter", "networks", "networks"].mape > 0.07


def test_the_learning_curve_judges_on_networks_that_were_not_drawn(tool, runs):
    _, curve = tool.figures(runs, METHODS, (3, 5, 8), range(6))
    assert [(each.method, each.networks) for each in curve] == [
        (method, count) for method in METHODS for count in (3, 5)
    ]
    for each in curve:
        assert each.rows == 4 * each.networks
        assert len(each.mapes) == 6
        # Where the odd one is not drawn, it alone is wrong, by half.
        alone = 0.5 / (8 - each.networks)
        assert any(mape == pytest.approx(alone, abs=1e-6) for mape in each.mapes)
        assert max(each.mapes) > alone + 0.01
    _, again = tool.figures(runs, METHODS, (3, 5), range(6))
    assert [each.mapes for each in again] == [each.mapes for each in curve]


def test_the_tables_show_methods_networks_and_the_curve(tool, runs, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tool", str(runs), "--methods", *METHODS, "--draws", "2"])
    assert tool.main() == 0
    text = capsys.readouterr().out
    assert "| blocks | networks | convmeter | 8 | 16 |" in text
    assert f"| {ODD} Block2 | 50.0% |" in text
    assert "| all but one | 32 |" in text
    monkeypatch.setattr(sys, "argv", ["tool", str(runs.with_name("absent.h5"))])
    assert tool.main() == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.fixture
def shared(network_file, tmp_path) -> Path:
    """Training steps of networks on one device and two, which ConvMeter's form says exactly."""
    random = np.random.default_rng(5)
    rows, graphs = [], {}
    for place in range(12):
        widths = [3, *(int(each) for each in random.integers(4, 40, 1 + place % 4))]
        kernels = [int(each) for each in random.choice([1, 3, 5], len(widths) - 1)]
        content = weightless(chain(network_file, f"net{place}.onnx", 16, widths, kernels))
        graphs[graph_digest(content)] = content
        for batch, count in itertools.product((4, 8), (1, 2)):
            totals = counted(read_graph(content, "n", batch=batch)).totals
            exchange_ms = (count > 1) * (2e-4 * totals.weights + 0.1)
            time_ms = 1e-6 * totals.flops + 20 + 0.1 * totals.layers + exchange_ms
            rows.append(Measurement(
                NetworkRef(f"net{place}@16", graph_digest(content)), Status.OK,
                {"step_ms": Samples((time_ms,), 1, 0, StopReason.BUDGET)},
                setting=replace(STEPS, batch=batch), platform=Platform("cpu", devices=count),
                started_at=1.0,
            ))  # fmt: skip
    info = DatasetInfo(
        STEPS, Platform("cpu"), {"name": "toy"}, 1, {}, "2026-01-02T03:04:05+00:00", {},
        quantities=("step_ms",),
    )  # fmt: skip
    write_dataset(tmp_path / "shared.h5", Dataset(info, tuple(rows), graphs))
    return tmp_path / "shared.h5"


def test_steps_on_several_devices_stand_beside_those_on_one(tool, shared, capsys, monkeypatch):
    ([judged], _) = tool.figures(shared, ["convmeter"], (), range(1))
    assert judged.devices == [1, 2]
    for count in (1, 2):
        measured, predicted = judged.of_devices(count)
        assert len(measured) == 24
        np.testing.assert_allclose(predicted, measured, rtol=1e-6)
    real, found = judged.efficiencies(2)
    np.testing.assert_allclose(found, real, rtol=1e-6)
    assert (real < 1).all()
    monkeypatch.setattr(sys, "argv", ["tool", str(shared), "--methods", "convmeter", "--counts"])
    assert tool.main() == 0
    text = capsys.readouterr().out
    assert "| networks | convmeter | 2 | 24 | 0.0% |" in text
