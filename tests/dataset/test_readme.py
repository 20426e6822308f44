"""The lines that datasets/README.md shows must run as they stand."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "datasets" / "README.md"


def _lines(title: str) -> str:
    """Code of the block under a heading."""
    section = README.read_text(encoding="utf-8").split(f"## {title}\n")[1]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def in_folder(tmp_path: Path, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "datasets").mkdir()
    shutil.copy(golden, tmp_path / "datasets" / "demo.h5")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_folder")
def test_three_lines_open_it_in_pandas() -> None:
    code = _lines("pandas")
    assert len(code.strip().splitlines()) == 3
    names: dict[str, Any] = {}
    exec(code, names)
    table = names["conv"]
    assert len(table) == 2
    assert table["activation"].tolist() == ["relu", "relu"]
    assert table["execution_ms"].tolist() == [2.5, 3.5]
    assert table["status"].tolist() == ["ok", "ok"]


@pytest.mark.usefixtures("in_folder")
def test_the_h5py_lines_run() -> None:
    names: dict[str, Any] = {}
    exec(_lines("h5py"), names)
    assert names["samples_ms"].tolist() == [1.0, 2.5, 4.0]
    assert names["threads"] == 2


@pytest.mark.usefixtures("in_folder")
def test_the_resperf_lines_run() -> None:
    names: dict[str, Any] = {}
    exec(_lines("resperf"), names)
    assert names["execution_ms"].tolist() == [2.5, 3.5]
    assert [(row.subject.name, row.value("latency_ms")) for row in names["runs"][:1]] == [
        ("net", 2.5)
    ]
