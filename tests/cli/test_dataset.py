from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from resperf.dataset import Dataset, read_dataset, write_dataset

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Rows of layers alone."""
    golden = read_dataset(Path(__file__).parents[1] / "golden" / "dataset.h5")
    write_dataset(tmp_path / "a.h5", Dataset(golden.info, golden.measurements[:7]))
    return tmp_path / "a.h5"


def test_info_fits_one_screen(file: Path, cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(file.parent)
    output = cli.text("dataset", "info", "a.h5")
    lines = output.splitlines()
    assert len(lines) <= 40
    assert "Example Processor 3000, 2 threads of 4 cores" in output
    assert "campaign   golden, seed 7" in output
    counts = next(line.split() for line in lines if line.startswith("dense "))
    assert counts == ["dense", "2", "2", "1", "1", "0"]  # rows, layers, ok, out_of_memory, flagged
    # conv was measured twice: 2.5 and 3.5 ms differ by 1/3, a third over sqrt(2) is 23.6%.
    assert any(line.split()[-2:] == ["23.6%", "1"] for line in lines)


def test_info_as_json(file: Path, cli) -> None:
    values = cli.json("dataset", "info", file)
    assert values["rows"] == 7
    assert values["schema_version"] == 1
    assert values["setting"]["threads"] == 2
    pool = values["kinds"]["pool"]
    assert (pool["rows"], pool["layers"], pool["flagged"]) == (2, 1, 1)
    execution = pool["quantities"]["execution_ms"]
    assert (execution["min"], execution["median"], execution["max"]) == (0.5, 1.0, 1.5)
    # The second measurement is flagged: no pair, and no number made up for it.
    assert execution["noise"] == {
        "pairs": 0, "median_difference": None, "mean_difference": None, "mape": None,
    }  # fmt: skip


def test_check_says_what_is_wrong(file: Path, cli) -> None:
    assert cli.text("dataset", "check", file) == f"{file}: no problems\n"
    file.write_bytes(file.read_bytes()[512:])  # without the seal
    with h5py.File(file, "r+") as opened:
        opened["conv/height"].attrs["unit"] = "\x1b[31minch"
    captured = cli.run("dataset", "check", file, code=2)
    assert r"conv: unit of height is \x1b[31minch, not pixel" in captured.out
    assert captured.err.startswith(f"resperf: error: {file} has 2 problems;")
    assert captured.err.count("\n") == 1
    assert len(json.loads(cli.run("dataset", "check", file, "--json", code=2).out)["problems"]) == 2


def test_check_warns_of_many_noisy_rows(noisy_dataset: Path, cli) -> None:
    captured = cli.run("dataset", "check", noisy_dataset, "--json")
    warning = "24 of 80 measured rows (30%) are noisy"
    assert captured.err.startswith(f"warning: {warning}")
    assert captured.err.count("\n") == 1
    (said,) = json.loads(captured.out)["warnings"]
    assert said.startswith(warning)


def test_export_and_merge_replace_only_with_force(file: Path, cli) -> None:
    out = file.with_name("out.pool.csv")
    export = ["dataset", "export", str(file), "-o", str(file.with_name("out.csv"))]
    assert str(out) in cli.text(*export).splitlines()
    out.write_text("mine")
    cli.error(*export)
    assert out.read_text() == "mine"
    cli.text(*export, "--force")
    assert out.read_text().startswith("batch,channels_in,")

    copy, both = shutil.copy(file, file.with_name("b.h5")), file.with_name("both.h5")
    merge = ["dataset", "merge", str(file), str(copy), "-o", str(both)]
    assert f"{both}: 7 rows from 2 files" in cli.text(*merge)
    both.write_text("mine")
    cli.error(*merge)
    assert both.read_text() == "mine"
    assert cli.json(*merge, "--force")["rows"] == 7


@pytest.mark.parametrize("content", [None, b"", b"no dataset", b"\x89HDF\r\n\x1a\n" + b"\0" * 99])
@pytest.mark.parametrize("words", [["info"], ["check"], ["export", "-o", "o.csv"]])
def test_bad_files_end_in_one_line(
    file: Path, cli, content: bytes | None, words: list[str]
) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    captured = cli.run("dataset", words[0], file, *words[1:], code=2)
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert str(file) in captured.err


def test_without_h5py_one_line_says_what_to_install(file: Path) -> None:
    code = (
        "import sys; sys.modules['h5py'] = None\n"
        "from resperf.cli.main import main\n"
        f"sys.exit(main(['dataset', 'info', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "h5py is not installed; install it with: pip install 'resperf[bench]'" in done.stderr
    assert "Traceback" not in done.stderr
