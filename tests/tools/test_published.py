"""Pages on published measurements of layers: what is planned, kept and written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("h5py")
Write = Callable[..., tuple[str, str]]


@pytest.fixture
def tool(load_tool, monkeypatch: pytest.MonkeyPatch, toy_dataset: Path) -> ModuleType:
    module = load_tool("benchmarks/published")
    names = ("perfnet-1080ti", "perfnet-i3", "justus-k80")
    monkeypatch.setattr(module.pages, "public_data", Path)
    monkeypatch.setattr(module, "sources", lambda _: {name: [] for name in names})
    # One quick method.
    monkeypatch.setattr(module, "METHODS", {"baseline": module.METHODS["baseline"]})
    monkeypatch.setattr(module, "CURVE_ROWS", (40, 55))

    def imported(target: Path, *_: object) -> Path:
        target.parent.mkdir(exist_ok=True)
        return Path(shutil.copy(toy_dataset, target))

    monkeypatch.setattr(module.pages, "dataset", imported)
    return module


@pytest.fixture
def write(tool: ModuleType, tmp_path: Path, capsys) -> Write:
    """Run the tool with some options; return what it prints, and the page."""
    page = tmp_path / "published.md"

    def run(*words: str) -> tuple[str, str]:
        tool.main(["--work", str(tmp_path / "work"), "--output", str(page), *words])
        return capsys.readouterr().out, page.read_text()

    return run


def test_slow_methods_run_last_and_on_two_devices_alone(tool: ModuleType) -> None:
    kinds = {"perfnet-i3": ["conv"], "perfnet-1080ti": ["conv", "dense"], "justus-1080ti": ["conv"]}
    units = list(tool.plan(kinds, ["resperfnet", "boosted", "xgboost"]))
    assert len(set(units)) == len(units)
    places = {unit: place for place, unit in enumerate(units)}
    slow = [unit for unit in units if unit.method == "resperfnet"]
    assert {unit.dataset for unit in slow} == {"perfnet-1080ti", "justus-1080ti"}
    quick = [unit for unit in units if unit.method != "resperfnet" and not unit.rows]
    assert max(map(places.get, quick)) < min(map(places.get, slow))
    assert {unit.dataset for unit in quick} == set(kinds)
    curve = [unit.rows for unit in units if unit.rows and unit.method == "boosted"]
    assert curve == list(tool.CURVE_ROWS)


def test_a_second_run_goes_on_and_the_page_says_what_is_missing(
    tool: ModuleType, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resperf.errors import TrainingError

    told, text = write("--only", "perfnet-1080ti")
    assert "5 fits, 0 of them done" in told
    assert text.startswith("Written by `python tools/benchmarks/")
    assert "conv, MAPE by rows trained:" in text
    fit = tool.Store.fit

    def failing(store: object, unit: object) -> object:
        if unit.kind == "pool":
            raise TrainingError("not today")
        return fit(store, unit)

    monkeypatch.setattr(tool.Store, "fit", failing)
    told, text = write()
    assert "11 fits, 5 of them done" in told
    for part in ("## perfnet-1080ti", "## perfnet-i3", "## justus-k80", "| baseline |"):
        assert part in text
    assert "- not today: perfnet-i3: pool, baseline, all rows, " in text
    # Other features are other results, and so are another seed and another dataset.
    with monkeypatch.context() as changed:
        changed.setattr(tool, "FEATURE_SET_VERSION", 0)
        assert "3 fits, 0 of them done" in write("--only", "justus-k80")[0]
    assert "3 fits, 0 of them done" in write("--only", "justus-k80", "--seed", "1")[0]


def test_the_papers_page_holds_its_figures_beside_ours(
    load_tool, toy_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("keras", reason="the paper's networks are trained in Keras")
    paper = load_tool("benchmarks/paper")
    work = tmp_path / "work"
    work.mkdir()
    for name in paper.ON_1080TI:
        shutil.copy(toy_dataset, work / f"{name}.h5")
    monkeypatch.setitem(paper.PAPER, "public", {"justus-1080ti": ["conv"]})
    monkeypatch.setattr(paper, "METHODS", ("polynomial",))
    monkeypatch.setattr(paper, "import_layers", lambda *_: None)
    # The other network is 20 times slower, and differs in nothing that is tested here.
    perfnet = {key: each for key, each in paper.TRAINED.items() if key.startswith("perfnet")}
    monkeypatch.setattr(paper, "TRAINED", perfnet)
    quick = partialmethod(paper.PerfNet.__init__, epochs=2)
    monkeypatch.setattr(paper.PerfNet, "__init__", quick)
    page = tmp_path / "paper.md"
    paper.main(["--work", str(work), "--output", str(page)])
    text = page.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("| polynomial |"))
    _, _, of_paper, justus, other, tensorrt, _ = (cell.strip() for cell in line.split("|"))
    assert (of_paper, other, tensorrt) == ("63.57%", "not run", "316.50%")
    assert float(justus.rstrip("%")) > 0
    assert "| conv, execution | paper | 11.75% | 0.84 | 0.336 |  |" in text
    with_it, without = (
        paper.pages.stored(work / "figure-2" / f"justus-1080ti-{name}.json", 0)["result"]["curve"]
        for name in perfnet.values()
    )
    assert len(with_it) == len(without) == 2
    assert with_it != without
    assert "| perfnet without Box-Cox | " in text
