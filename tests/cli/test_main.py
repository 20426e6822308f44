"""The command line's entry: lazy commands, exit codes, one line per error."""

from __future__ import annotations

import errno
import subprocess
import sys

import click
import pytest

from resperf.cli import main as entry
from resperf.errors import LayerError


def fresh_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def failing(monkeypatch):
    """Let `resperf devices` raise what the test wants."""

    def install(error: BaseException) -> None:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(sys.modules[__name__], "raising", command, raising=False)
        monkeypatch.setitem(sys.modules, "resperf_test_raising", sys.modules[__name__])
        monkeypatch.setattr(entry, "COMMANDS", {"boom": ("resperf_test_raising:raising", "fails")})

    return install


def test_help_lists_every_command_and_loads_none_of_them():
    script = (
        "import sys\n"
        "from resperf.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'rich', 'h5py', 'tqdm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "loaded = [n for n in sys.modules if n.startswith('resperf.cli.')]\n"
        "assert sorted(loaded) == ['resperf.cli._groups', 'resperf.cli.main'], loaded\n"
    )
    done = fresh_python("-c", script)
    assert done.returncode == 0, done.stderr
    for name in entry.COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("name", list(entry.COMMANDS))
def test_every_command_has_help_with_an_example(name, capsys):
    assert entry.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: resperf {name}" in shown
    assert f"resperf {name}" in shown.split("Usage:")[1].partition("\n")[2], "no example"


def test_version(capsys):
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("resperf, version ")


@pytest.mark.parametrize("words", [["nonsense"], ["predict"], ["predict", "--nonsense"]])
def test_wrong_words_exit_2_with_usage_on_stderr(words, capsys):
    assert entry.main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Usage:" in shown.err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (LayerError("batch=0 must be\nat least 1"), "batch=0 must be at least 1"),
        (MemoryError(), "not enough memory; use a smaller batch or close other programs"),
        (
            OSError(errno.ENOSPC, "No space left on device", "out.h5"),
            "out.h5: No space left on device; free some space or write to another disk",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            "/x: Permission denied; choose a place where you may write, or change its permissions",
        ),
        (click.ClickException("no such thing"), "no such thing"),
    ],
)
def test_an_error_is_one_line_and_exit_2(error, line, failing, capsys):
    failing(error)
    assert entry.main(["boom"]) == 2
    assert capsys.readouterr().err == f"resperf: error: {line}\n"


def test_debug_shows_the_traceback_and_the_same_line(failing, capsys):
    failing(LayerError("batch=0"))
    assert entry.main(["--debug", "boom"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith("resperf: error: batch=0\n")


def test_ctrl_c_exits_130(failing, capsys):
    failing(KeyboardInterrupt())
    assert entry.main(["boom"]) == 130
    assert capsys.readouterr().err == "resperf: interrupted\n"


def test_a_bug_keeps_its_traceback(failing):
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        entry.main(["boom"])


def test_a_reader_that_has_gone_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m resperf.cli.main --help | true",
        shell=True, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["predct", "net.onnx"], "'predct' (did you mean predict or predict-layer?)"),
        (["mesure"], "'mesure' (did you mean measure?)"),
        (["dataset", "imprt"], "'imprt' (did you mean import?)"),
        (["bundle", "mrge"], "'mrge' (did you mean merge?)"),
        (["quux"], "'quux'."),
    ],
)
def test_a_misspelt_command_names_the_one_that_was_meant(words, meant, capsys):
    assert entry.main(words) == 2
    assert f"No such command {meant}" in capsys.readouterr().err
