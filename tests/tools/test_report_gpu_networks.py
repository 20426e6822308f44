"""The report on networks on GPUs: which listed operators run a kernel, and what they add up to."""

from __future__ import annotations

from types import ModuleType

import pytest

pytest.importorskip("h5py")

from resperf.dataset import ListedOperator, ListedTensor
from resperf.platform import Platform
from resperf.settings import Setting

VALUES = ListedTensor((8, 512, 1024), "float32")


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("report_gpu_networks")


def listed(op: str, time_ms: float, count: int = 1, *, in_order: bool = True, output=VALUES):
    attributes = {"name": "", "contiguous": [in_order]}
    return ListedOperator(op, (VALUES,), (output,), attributes, count, {"forward_ms": time_ms})


def test_views_and_numbers_of_the_host_run_no_kernel(tool: ModuleType) -> None:
    assert tool.runs_kernel(listed("Linear", 1.0))
    assert tool.runs_kernel(listed("contiguous", 1.0, in_order=False))
    assert not tool.runs_kernel(listed("contiguous", 0.01))
    assert not tool.runs_kernel(listed("permute", 0.01))
    assert not tool.runs_kernel(listed("add", 0.01, output=ListedTensor((1,))))


def test_operators_add_up_without_a_launch_each(tool: ModuleType) -> None:
    operators = (
        listed("Linear", 2.02, 3), listed("matmul", 0.52, 2), listed("add", 0.02),
        listed("contiguous", 0.12, in_order=False),
    )  # fmt: skip
    run = tool.Run("net", None, Setting("torch"), Platform("t4"), operators, 8.0)
    assert run.launch_ms == 0.02
    assert run.sum_ms(0.0) == pytest.approx(6.06 + 1.04 + 0.02 + 0.12)
    found = run.by_sort(run.launch_ms)
    assert found["linear layers"] == pytest.approx(6.0)
    assert found["products of attention and copies"] == pytest.approx(1.1)
    assert found["all others"] == pytest.approx(0.0)
    assert tool.off(run.sum_ms(run.launch_ms), run) == pytest.approx(-11.25)
