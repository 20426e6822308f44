"""The page of the paper's tables: what is trained, and which figures stand in which row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("matplotlib", reason="the other report, whose fits it uses, has plots")
pytest.importorskip("keras", reason="the paper's networks are trained in Keras")


@pytest.fixture
def tool(load_tool: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load_tool("report_paper")
    monkeypatch.setattr(module, "PUBLIC", {"justus-1080ti": ("conv",)})
    monkeypatch.setattr(module, "METHODS", ("polynomial",))
    monkeypatch.setattr(module, "prepare", lambda *_, **__: {})
    # The other network is 20 times slower, and differs in nothing that is tested here.
    perfnet = {key: made for key, made in module.TRAINED.items() if key[0] == "perfnet"}
    monkeypatch.setattr(module, "TRAINED", perfnet)
    return module


@pytest.fixture
def work(toy_dataset: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("justus-1080ti", "perfnet-1080ti"):
        shutil.copy(toy_dataset, folder / f"{name}.h5")
    return folder


def test_the_page_holds_the_papers_figures_beside_ours(
    tool: ModuleType, work: Path, tmp_path: Path, toy_dataset: Path
) -> None:
    networks = tmp_path / "networks.json"
    row = {"name": "lenet5", "batch": 1, "measured_ms": 2.0}
    networks.write_text(
        json.dumps(
            {
                "out/resperfnet": [{**row, "predicted_ms": 1.0}],
                "out/ensemble": [{**row, "predicted_ms": 2.2}],
            }
        )
    )
    page = tmp_path / "paper.md"
    places = ["--accuracy", str(work), "--output", str(page), "--epochs", "2"]
    tool.main([*places, "--networks", f"onnxruntime={networks}"])
    text = page.read_text()
    (polynomial,) = (line for line in text.splitlines() if line.startswith("| polynomial |"))
    _, _, paper, justus, perfnet, tensorrt, _ = (cell.strip() for cell in polynomial.split("|"))
    assert (paper, perfnet, tensorrt) == ("63.57%", "not run", "316.50%")
    assert float(justus.rstrip("%")) > 0
    assert "| lenet5, batch 1 | 2 | -50.0% | +10.0% |" in text
    assert "| **mean absolute error** |  | 50.0% | 10.0% |" in text
    assert "| conv, execution | paper | 11.75% | 0.84 | 0.336 |  |" in text
    for name in ("perfnet with Box-Cox", "perfnet without Box-Cox"):
        assert text.count(f"| {name} |") == 2

    fit = work / "justus-1080ti" / "conv-polynomial-all.json"
    old = json.dumps(json.loads(fit.read_text()) | {"code": "before"})
    fit.write_text(old)
    tool.main([*places, "--missing"])
    assert fit.read_text() == old, "what is there is not fitted again"
    assert "**code changed since**: conv: polynomial" in page.read_text()


def test_the_page_says_why_rows_cannot_be_had(tool: ModuleType) -> None:
    text = (tool.ROOT / "docs" / "paper.md").read_text()
    reasons = text[text.index("## What cannot be had") :]
    assert [f"| {row} | {why} |" for row, why in tool.ABSENT] == reasons.splitlines()[4:]
    for each in ("Table 1", "Table 2 is", *(f"### Table {n}" for n in range(5, 10)), "Figure 2",
                 "Figure 3", "Figure 4"):  # fmt: skip
        assert each in text


def test_box_cox_is_what_differs_and_a_training_that_is_done_is_read(
    tool: ModuleType, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = work / "justus-1080ti.h5"
    found = list(tool.trainings(dataset, work / "figure-2", 0, 2, write=False))
    assert [len(each.curve) for each in found] == [2, 2]
    assert found[0].curve != found[1].curve
    monkeypatch.setattr(tool, "trained", lambda *_: pytest.fail("trained again"))
    assert list(tool.trainings(dataset, work / "figure-2", 0, 2, write=False)) == found
