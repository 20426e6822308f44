"""Broken networks: predicted or refused in one line, whatever is wrong with them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "fuzz_networks.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_networks", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_broken_networks_are_predicted_or_refused_in_one_line(
    tool: ModuleType, tmp_path: Path
) -> None:
    answers = set()
    # Each way of breaking comes up three times.
    for seed in range(3 * (len(tool.CHANGES) + 3)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (tmp_path / tool.OUTSIDE).write_bytes(b"\0" * 4096)
        done, path = tool.broken_file(seed, folder)
        answer = tool.outcome(path, None)
        assert not answer.startswith("wrong"), f"seed {seed}: {done}: {answer}"
        answers.add(answer)
    assert {"refused, refused", "predicted, lowered"} <= answers
