from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from resperf.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    golden = Path(__file__).parents[1] / "golden" / "dataset-v1.h5"
    return Path(shutil.copy(golden, tmp_path / "a.h5"))


def test_info_fits_one_screen(file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(file.parent)
    assert main(["dataset", "info", "a.h5"]) == 0
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert len(lines) <= 40
    assert "Example Processor 3000, 2 threads of 4 cores" in output
    assert "campaign   golden, seed 7" in output
    counts = next(line.split() for line in lines if line.startswith("dense "))
    assert counts == ["dense", "2", "2", "1", "1", "0"]  # rows, layers, ok, out_of_memory, flagged
    # conv was measured twice: 2.5 and 3.5 ms differ by 1/3, a third over sqrt(2) is 23.6%.
    assert any(line.split()[-2:] == ["23.6%", "1"] for line in lines)


def test_info_as_json(file: Path, capsys: Capture) -> None:
    assert main(["dataset", "info", str(file), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
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


def test_check_says_what_is_wrong(file: Path, capsys: Capture) -> None:
    assert main(["dataset", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: no problems\n"
    file.write_bytes(file.read_bytes()[512:])  # without the seal
    with h5py.File(file, "r+") as opened:
        opened["conv/height"].attrs["unit"] = "inch"
    assert main(["dataset", "check", str(file)]) == 2
    captured = capsys.readouterr()
    assert "conv: unit of height is inch, not pixel\n" in captured.out
    assert captured.err.startswith(f"resperf: error: {file} has 2 problems;")
    assert captured.err.count("\n") == 1
    assert main(["dataset", "check", str(file), "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2


def test_check_warns_of_many_noisy_rows(noisy_dataset: Path, capsys: Capture) -> None:
    assert main(["dataset", "check", str(noisy_dataset), "--json"]) == 0
    captured = capsys.readouterr()
    warning = "24 of 80 measured rows (30%) are noisy"
    assert captured.err.startswith(f"warning: {warning}")
    assert captured.err.count("\n") == 1
    (said,) = json.loads(captured.out)["warnings"]
    assert said.startswith(warning)


def test_export_and_merge_replace_only_with_force(file: Path, capsys: Capture) -> None:
    out = file.with_name("out.csv")
    export = ["dataset", "export", str(file), "-o", str(out), "--kind", "pool"]
    assert main([*export, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": [str(out)]}
    out.write_text("mine")
    assert main(export) == 2
    assert out.read_text() == "mine"
    assert main([*export, "--force"]) == 0
    assert out.read_text().startswith("batch,channels_in,")

    copy, both = shutil.copy(file, file.with_name("b.h5")), file.with_name("both.h5")
    merge = ["dataset", "merge", str(file), str(copy), "-o", str(both)]
    assert main(merge) == 0
    assert f"{both}: 7 rows from 2 files" in capsys.readouterr().out
    both.write_text("mine")
    assert main(merge) == 2
    assert both.read_text() == "mine"
    assert main([*merge, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 7


@pytest.mark.parametrize("content", [None, b"", b"no dataset", b"\x89HDF\r\n\x1a\n" + b"\0" * 99])
@pytest.mark.parametrize("words", [["info"], ["check"], ["export", "-o", "o.csv"]])
def test_bad_files_end_in_one_line(
    file: Path, capsys: Capture, content: bytes | None, words: list[str]
) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert main(["dataset", words[0], str(file), *words[1:]]) == 2
    captured = capsys.readouterr()
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
