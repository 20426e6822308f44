"""The command line's entry: lazy commands, exit codes, one line per error."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import click
import pytest

from resperf.cli import main as entry
from resperf.cli._options import show
from resperf.cli._sections import COMMON, SECTIONS
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
        "light = ['_sections', 'main']\n"
        "assert sorted(loaded) == [f'resperf.cli.{name}' for name in light], loaded\n"
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


def commands(found: click.Command, name: str = "resperf") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(found, click.Group):
        yield name, found
        return
    context = click.Context(found)
    for word in found.list_commands(context):
        each = found.get_command(context, word)
        assert each is not None
        yield from commands(each, f"{name} {word}")


@pytest.mark.parametrize(("name", "command"), list(commands(entry.group)))
def test_every_option_is_in_a_section_of_its_commands_help(name, command):
    sections = Counter(each.section for each in command.params if isinstance(each, click.Option))
    assert set(sections) <= set(SECTIONS)
    assert 0 < sections[COMMON] <= 6, name
    text = command.get_help(click.Context(command, info_name=name))
    shown = [title for title in SECTIONS if f"\n{title}:\n" in text]
    assert set(sections) <= set(shown)
    assert shown[0] == COMMON
    assert "\nOptions:\n" not in text


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_letters_that_the_terminal_lacks_are_escaped(encoding, monkeypatch, tmp_path):
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    runs = tmp_path / "l\u00e4ufe_\u7f51.csv"
    runs.write_text("network,seconds", encoding="utf-8")
    assert entry.main(["fit-run", str(runs)]) == 2
    sys.stdout.write("\u7f51\n")
    show(True, {"name": "\u7f51\U0001f642"}, "")
    out.flush()
    err.flush()
    assert b"ufe_\\u7f51.csv has no column batch" in err.buffer.getvalue()
    first, _, document = out.buffer.getvalue().decode(encoding).partition("\n")
    assert first == "\\u7f51"
    assert json.loads(document)["name"] == "\u7f51\U0001f642"
