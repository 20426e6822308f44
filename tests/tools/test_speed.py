"""Candidates that are predicted many at once, and the ways to predict them that are compared."""

from __future__ import annotations

from types import ModuleType

import onnx
import pytest

from resperf.network import structure_digest
from resperf.prediction.reading import read


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("benchmarks/speed")


def test_candidates_are_networks_of_about_sixty_nodes_and_none_is_like_another(tool) -> None:
    models = [tool.candidate(seed) for seed in range(12)]
    for model in models:
        onnx.checker.check_model(model, full_check=True)
        assert 54 <= len(model.graph.node) <= 68
    networks = [read(model, None)[0] for model in models]
    assert len({structure_digest(each) for each in networks}) == len(models)
    assert all(not each.notes for each in networks)


def test_each_way_is_timed(tool, monkeypatch) -> None:
    monkeypatch.setattr(tool, "WARM", 1)
    found = tool.rates(2, "h100")
    assert list(found) == [
        "predict_many, never seen", "predict_many, seen before", "predict each, seen before",
    ]  # fmt: skip
    assert all(rate > 0 for rate in found.values())
