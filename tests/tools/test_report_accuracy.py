"""The report on published measurements: what it plans, keeps and writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("matplotlib", reason="the report has plots")

Write = Callable[..., tuple[str, str]]


@pytest.fixture
def tool(load_tool, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load_tool("report_accuracy")
    # One quick method, and another that cannot be fitted.
    monkeypatch.setattr(module, "METHODS", {"baseline": module.METHODS["baseline"]})
    monkeypatch.setattr(module, "CURVE_ROWS", (40, 55))
    return module


@pytest.fixture
def data(tool: ModuleType, toy_dataset: Path, tmp_path: Path, monkeypatch) -> Path:
    """Published files that are imported as the toy dataset."""
    for name in ("perfnet/1080ti_convolution", "perfnet/i3_dense", "justus/k80_dense"):
        file = tmp_path / "data" / f"{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    monkeypatch.setattr(
        tool, "import_dataset", lambda name, files, target: shutil.copy(toy_dataset, target)
    )
    return tmp_path / "data"


@pytest.fixture
def write(tool: ModuleType, data: Path, tmp_path: Path, capsys) -> Write:
    """Run the tool with some options; return what it prints, and the report."""
    report = tmp_path / "accuracy-public.md"
    places = ["--data", str(data), "--work", str(tmp_path / "work"), "--output", str(report)]

    def run(*words: str) -> tuple[str, str]:
        tool.main([*places, *words])
        return capsys.readouterr().out, report.read_text()

    return run


def test_published_files_are_found_by_source_and_device(tool: ModuleType, data: Path) -> None:
    assert list(tool.sources(data)) == ["perfnet-1080ti", "perfnet-i3", "justus-k80"]
    with pytest.raises(SystemExit, match="RESPERF_PUBLIC_DATA"):
        tool.sources(data / "absent")


def test_the_public_data_is_found(tool: ModuleType) -> None:
    default = tool.ROOT.parent / "shared" / "data"
    public = Path(os.environ.get("RESPERF_PUBLIC_DATA", default))
    if not public.is_dir():
        pytest.skip("the public measurements are absent; set RESPERF_PUBLIC_DATA")
    found = tool.sources(public)
    assert {name for name in found if name.startswith("perfnet")} == {
        "perfnet-1080ti", "perfnet-i3", "perfnet-p1000", "perfnet-p5000",
    }  # fmt: skip
    assert len(found["perfnet-i3"]) == 3
    assert len(found["justus-v100"]) == 2


def test_slow_methods_run_last_and_on_two_devices_alone(tool: ModuleType) -> None:
    kinds = {"perfnet-i3": ["conv"], "perfnet-1080ti": ["conv", "dense"], "justus-1080ti": ["conv"]}
    units = list(tool.plan(kinds, ["resperfnet", "boosted", "ensemble", "new"]))
    places = {unit: place for place, unit in enumerate(units)}
    assert len(places) == len(units)
    slow = [unit for unit in units if unit.method in ("resperfnet", "new")]
    assert {unit.dataset for unit in slow} == {"perfnet-1080ti", "justus-1080ti"}
    quick = [unit for unit in units if unit.method not in ("resperfnet", "new")]
    assert max(map(places.get, quick)) < min(map(places.get, slow))
    assert {unit.dataset for unit in quick} == set(kinds)
    curve = [unit.rows for unit in units if unit.rows and unit.method == "boosted"]
    assert curve == list(tool.CURVE_ROWS)


def test_a_second_run_goes_on_where_the_first_one_ended(
    tool: ModuleType, write: Write, monkeypatch
) -> None:
    monkeypatch.setattr(tool, "PLOTTED", ())  # plots take time, and are tested below
    assert "5 fits, 0 of them done" in write("--only", "perfnet-1080ti")[0]
    fitted = []
    real = tool.run
    monkeypatch.setattr(tool, "run", lambda *a: fitted.append(a[0].dataset) or real(*a))
    assert "11 fits, 5 of them done" in write()[0]
    assert fitted == ["perfnet-i3"] * 3 + ["justus-k80"] * 3
    # Other features are other results, and so are another seed and another dataset.
    with monkeypatch.context() as changed:
        changed.setattr(tool, "FEATURE_SET_VERSION", 0)
        assert "3 fits, 0 of them done" in write("--only", "justus-k80")[0]
    assert "3 fits, 0 of them done" in write("--only", "justus-k80", "--seed", "1")[0]


def test_the_report_has_every_result_its_plots_and_what_is_missing(
    tool: ModuleType, write: Write, tmp_path: Path, monkeypatch
) -> None:
    from resperf.errors import TrainingError

    real = tool.run

    def failing(unit, store):
        if unit.kind == "pool":
            raise TrainingError("not today")
        return real(unit, store)

    monkeypatch.setattr(tool, "run", failing)
    monkeypatch.setattr(tool, "CHOSEN", "baseline")
    _, text = write()
    for part in ("## perfnet-1080ti", "## perfnet-i3", "## justus-k80", "| baseline |"):
        assert part in text
    assert "- perfnet-i3: pool: baseline: not today\n" in text
    assert "## What was asked for, with `baseline`" in text
    # The toy is far easier than 7%; other figures have no results.
    (dense,) = (line for line in text.split("\n") if "perfnet 1080ti dense" in line)
    assert dense.startswith("| perfnet 1080ti dense, whole call | 7.00% | ")
    assert dense.endswith("| yes |")
    (pool,) = (line for line in text.split("\n") if "perfnet 1080ti pool" in line)
    assert pool.endswith("| 2.50% | - | not run |")
    assert "conv, MAPE by rows trained:" in text
    named = [line.split("(")[1].rstrip(")") for line in text.split("\n") if line.startswith("![")]
    assert "accuracy-public/perfnet-1080ti/by-rows-conv-execution.png" in named
    for name in named:
        assert 0 < (tmp_path / name).stat().st_size < 100_000


def test_figures_name_their_commit_and_are_made_again_where_their_code_changed(
    tool: ModuleType, write: Write, monkeypatch
) -> None:
    monkeypatch.setattr(tool, "source_commit", lambda: "first")
    _, text = write("--only", "justus-k80")
    assert "- computed at `first`: conv: baseline; dense: baseline; pool: baseline" in text
    # Another commit with the same code makes nothing again.
    monkeypatch.setattr(tool, "source_commit", lambda: "second")
    told, text = write("--only", "justus-k80")
    assert "3 fits, 3 of them done" in told
    assert "computed at `first`: " in text
    # Without training, what is out of date is shown as such.
    monkeypatch.setattr(tool, "code_digest", lambda method: f"other {method}")
    _, text = write("--only", "justus-k80", "--write")
    assert "- computed at `first`, **code changed since**: conv: baseline" in text
    assert "| baseline |" in text
    told, text = write("--only", "justus-k80")
    assert "3 fits, 0 of them done" in told
    assert "computed at `second`: conv" in text


def test_a_figure_depends_on_the_code_that_its_method_imports(
    tool: ModuleType, tmp_path: Path, monkeypatch
) -> None:
    files = {
        "training/compare.py": "from resperf.features import matrix\n",
        "features/__init__.py": "",
        "features/matrix.py": "A = 1\n",
        "predictors/baseline.py": "import resperf.units\n",
        "predictors/svr.py": "B = 1\n",
        "units.py": "C = 1\n",
    }
    monkeypatch.setattr(tool, "ROOT", tmp_path)

    def digest(**changes: str) -> str:
        written = files | {name.replace("__", "/") + ".py": text for name, text in changes.items()}
        for name, text in written.items():
            file = tmp_path / "resperf" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        tool.code_digest.cache_clear()
        return tool.code_digest("baseline")

    before = digest()
    assert digest(predictors__svr="B = 2\n") == before
    assert digest(units='"""Says more."""\nC = 1  # why\n') == before
    assert digest(units="C = 2\n") != before
    assert digest(features__matrix="A = 2\n") != before
    assert digest() == before
    tool.code_digest.cache_clear()


def test_results_are_read_back_as_they_were(tool: ModuleType, data: Path, tmp_path: Path) -> None:
    store = tool.Store(tmp_path, seed=0)
    unit = tool.Unit("perfnet-i3", "conv", "baseline", None)
    tool.prepare(data, tmp_path, ["perfnet-i3"], importing=True)
    result = tool.run(unit, store)
    assert not store.has(unit)
    store.save(unit, result)
    assert store.has(unit)
    assert store.load(unit) == result
    # A file of the draft alone is no result.
    (tmp_path / "perfnet-i3" / "conv-baseline-all.json").unlink()
    assert not store.has(unit)
