"""Tools are scripts, not modules of a package: they are loaded by their path."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from onnx.helper import make_node

from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import graph_digest, read_graph, weightless
from resperf.platform import Platform
from resperf.predictors.network_totals import counted
from resperf.settings import Mode, Setting

TOOLS = Path(__file__).parents[2] / "tools"
STEPS = Setting("torch", "2.13.0", threads=1, mode=Mode.TRAINING, optimizer="sgd")


@pytest.fixture
def load_tool(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Load a tool anew: ``load_tool("fuzz_networks")``, ``load_tool("benchmarks/gpus")``."""

    def load(name: str) -> ModuleType:
        path = TOOLS / f"{name}.py"
        monkeypatch.syspath_prepend(str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Its dataclasses look themselves up.
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def chain(network_file: Callable[..., Path]) -> Callable[..., Path]:
    """Write a file of convolutions behind each other."""
    return partial(_chain, network_file)


def _chain(
    network_file: Callable[..., Path], name: str, size: int, widths: list[int], kernels: list[int]
) -> Path:
    nodes, weights, last = [], {}, "x"
    for place, ((given, made), kernel) in enumerate(zip(pairwise(widths), kernels, strict=True)):
        weights[f"w{place}"] = np.zeros((made, given, kernel, kernel), np.float32)
        pads = [kernel // 2] * 4
        nodes.append(make_node("Conv", [last, f"w{place}"], [f"c{place}"], f"c{place}", pads=pads))
        last = f"c{place}"
    return network_file(name, nodes, {"x": ["n", widths[0], size, size]}, {last: None}, weights)


@pytest.fixture
def shared(chain: Callable[..., Path], tmp_path: Path) -> Path:
    """Training steps of networks on one device and two, which ConvMeter's form says exactly."""
    pytest.importorskip("h5py")
    random = np.random.default_rng(5)
    rows, graphs = [], {}
    for place in range(12):
        widths = [3, *(int(each) for each in random.integers(4, 40, 1 + place % 4))]
        kernels = [int(each) for each in random.choice([1, 3, 5], len(widths) - 1)]
        content = weightless(chain(f"net{place}.onnx", 16, widths, kernels))
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
