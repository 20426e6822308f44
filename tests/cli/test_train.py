"""`resperf train` and `resperf evaluate` from the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_train_then_evaluate(toy_dataset: Path, tmp_path: Path, cli) -> None:
    bundle = tmp_path / "toy-bundle"
    arguments = [str(toy_dataset), "-o", str(bundle), "--method", "baseline"]
    shown = cli.run("train", *arguments)
    assert "conv" in shown.out
    assert "validation MAPE" in shown.out
    assert f"next: resperf evaluate {toy_dataset} --bundle {bundle}" in shown.out
    assert shown.err == ""

    rows = cli.json("evaluate", toy_dataset, "--bundle", bundle)
    assert {(row["kind"], row["phase"]) for row in rows} >= {("conv", "execution_ms")}
    for row in rows:
        assert 0 <= row["mape"] < 0.1  # a fraction, not a percentage
        assert 0 <= row["within_10"] <= 1

    assert "noise floor" in cli.text("evaluate", toy_dataset, "--bundle", bundle, "--split", "all")


def test_training_on_many_noisy_rows_says_so(noisy_dataset: Path, tmp_path: Path, cli) -> None:
    words = ["train", str(noisy_dataset), "-o", str(tmp_path / "b"), "--method", "baseline"]
    notes = [line for line in cli.run(*words).err.splitlines() if "noisy" in line]
    assert len(notes) == 1
    assert notes[0].startswith("note: 24 of 80 measured rows (30%) are noisy")


def test_train_as_json_and_by_default_where_predict_looks(
    toy_dataset: Path, own_folders: Path, cli
) -> None:
    words = ["train", str(toy_dataset), "--method", "baseline"]
    document = cli.json(*words)
    expected = own_folders / "data" / "resperf" / "bundles" / "toy-synthetic"
    assert document["path"] == str(expected)
    assert (document["device"], document["method"]) == ("toy", "baseline")
    assert document["errors"]["validation"]["conv"]["execution_ms"]["rows"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "DATA", "-o", "OUT", "--method", "magic"], "no method 'magic'"),
        (["train", "absent.h5", "-o", "OUT"], "absent.h5"),
        (["train", "DATA", "-o", "DATA"], "exists and is no bundle"),
        (["train", "DATA", "-o", "OUT", "--exclude", "absent.onnx"], "absent.onnx"),
        (["evaluate", "DATA", "--bundle", "OUT"], "no device or bundle '"),
        (["evaluate", "DATA"], "--bundle"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    toy_dataset: Path,
    tmp_path: Path,
    cli,
    words: list[str],
    message: str,
) -> None:
    places = {"DATA": str(toy_dataset), "OUT": str(tmp_path / "out")}
    assert message in cli.error(*(places.get(word, word) for word in words))
    assert not (tmp_path / "out").exists()


def test_excluding_a_network(toy_dataset: Path, tmp_path: Path, cli) -> None:
    from resperf.training import keys_of_networks

    assert keys_of_networks([toy_dataset], []) == frozenset()
    assert "--exclude" in cli.text("train", "--help")


def test_help_names_every_method(cli) -> None:
    from resperf.predictors import METHODS

    text = re.sub(r"-\n\s+", "-", cli.text("train", "--help"))
    words = text.replace(",", " ").replace(".", " ").split()
    assert set(METHODS) <= set(words)


def test_the_command_trains_what_the_library_trains_by_default() -> None:
    from resperf.cli.train import command
    from resperf.predictors import DEFAULT_METHOD

    [method] = [param for param in command.params if param.name == "method"]
    assert method.default == DEFAULT_METHOD
