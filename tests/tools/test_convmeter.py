"""ConvMeter's protocol on runs that follow its form exactly, but for one network."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from resperf.network import read_network
from resperf.predictors.network_totals import counted
from resperf.training.rows import network_examples

pytest.importorskip("h5py")

METHODS = ["convmeter", "convmeter-relative"]
ODD = "net3"
"""Each of its rows takes twice as long as the form says."""


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("benchmarks/convmeter")


@pytest.fixture
def runs(chain, tmp_path, cli) -> Path:
    """Networks at two image sizes with a block each, at two batch sizes."""
    random = np.random.default_rng(5)
    lines = ["network,batch,time_ms,framework"]
    for place in range(8):
        widths = [3, *(int(each) for each in random.integers(4, 40, 3))]
        kernels = [int(each) for each in random.choice([1, 3, 5], 3)]
        for name, size, first in (("@8", 8, 0), ("@16", 16, 0), ("@16-Block2", 16, 1)):
            path = chain( f"net{place}{name}.onnx", size, widths[first:],
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


def test_a_network_is_left_out_at_all_sizes_and_with_its_block(tool, runs):
    examples = network_examples(runs, *tool.quantities_of(runs, METHODS))
    found, _ = tool.each_left_out(examples, METHODS)
    assert found.errors.rows == 48
    errors = {group.name: group.mape for group in found.families}
    # Had any of its rows taught the fit, it would not be off by half.
    assert errors[ODD] == pytest.approx(0.5, abs=1e-6)
    assert errors[f"{ODD} Block2"] == pytest.approx(0.5, abs=1e-6)
    # The others suffer from the odd one, unlike in a fit to rows without it.
    assert found.errors.mape > 0.07


def test_the_learning_curve_judges_on_networks_that_were_not_drawn(tool, runs):
    examples = network_examples(runs, *tool.quantities_of(runs, METHODS))
    groups = np.array([each.name.partition("@")[0] for each in examples.networks])
    for count in (3, 5):
        draws = [np.isin(groups, [f"net{(first + place) % 8}" for place in range(count)])
                 for first in range(8)]  # fmt: skip
        mapes = list(tool.errors_of_draws("convmeter", examples, draws))
        assert len(mapes) == 8
        # Where the odd one is not drawn, it alone is wrong, by half.
        alone = 0.5 / (8 - count)
        assert any(mape == pytest.approx(alone, abs=1e-6) for mape in mapes)
        assert max(mapes) > alone + 0.01


def test_the_tables_show_methods_networks_and_the_curve(tool, runs, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tool", str(runs), "--methods", *METHODS, "--draws", "2"])
    assert tool.main() == 0
    text = capsys.readouterr().out
    for part in ("networks, each", "blocks, each", "networks and blocks, each"):
        assert f"\n{part} network left out:\n" in text
    assert f"| {ODD} Block2 | 50.0% |" in text
    assert "\n| 3 | 12 |" in text
    monkeypatch.setattr(sys, "argv", ["tool", str(runs.with_name("absent.h5"))])
    assert tool.main() == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_steps_on_several_devices_stand_beside_those_on_one(tool, shared):
    rows = network_examples(shared, "step_ms")
    *_, one, two = tool.devices_table(rows, ["convmeter"]).splitlines()
    assert one == "| convmeter | 1 | 24 | 0.0% | 100.0% | 100.0% | 0.0% |"
    assert two.startswith("| convmeter | 2 | 24 | 0.0% | ")
    _, _, _, _, _, real, found, off, _ = (cell.strip() for cell in two.split("|"))
    assert real == found != "100.0%"
    assert off == "0.0%"
