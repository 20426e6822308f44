"""Devices, frameworks and names of bundles mean the same to every command that takes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

LENET = str(Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx")
LAYER = ["dense", "batch=8", "features_in=300", "features_out=100"]
QUICK = ["--batch", "1", "--threads", "1", "--seconds", "0.05", "--no-layers"]


@pytest.fixture
def known(bundle: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make one bundle, named mine, of device cpu, trained on rows.h5."""
    shutil.copytree(bundle, home / "bundles" / "mine")
    shutil.copy(bundle.parent / "rows.h5", home)
    monkeypatch.chdir(home)
    return home / "bundles" / "mine"


@pytest.mark.parametrize(
    "words",
    [
        [], ["--device", "cpu"], ["--device", "mine"], ["--bundle", "mine"], ["--bundle", "cpu"],
        ["--device", "cpu", "--framework", "onnxruntime"], ["--device", "cpu", "--bundle", "mine"],
        ["--device", "bundles/mine"], ["--bundle", "bundles"],
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "command",
    [["predict", LENET, "--batch", "1"], ["predict-layer", *LAYER], ["evaluate", "rows.h5"]],
)
def test_every_way_to_name_a_bundle_is_taken(known, command, words, cli):
    if command[0] == "evaluate" and not words:
        words = ["--device", "cpu"]  # without any it would not know what to evaluate
    assert cli.json(*command, *words)


def test_a_device_names_its_part_of_a_merged_bundle(known, cli):
    v100 = Path(LENET).parents[1] / "bundles" / "v100-tensorflow"
    cli.text("bundle", "merge", known, v100, "-o", "bundles/both")
    cli.text("bundle", "merge", known.name, v100, "-o", "bundles/by_name")
    shutil.rmtree(known)
    words = (["--bundle", "v100"], ["--device", "v100"], ["--bundle", "both", "--device", "v100"])
    for each in words:
        assert cli.document("predict", LENET, "--batch", "1", *each)["device"] == "v100"
    assert cli.document("predict", LENET, "--batch", "1", "--bundle", "cpu")["device"] == "cpu"


def test_measuring_takes_them_too(known, cli):
    assert cli.document("measure", LENET, *QUICK, "--device", "mine")["device"] == "cpu"


@pytest.mark.parametrize(
    "command",
    [
        ["predict", LENET, "--device", "mars"], ["predict", LENET, "--bundle", "mars"],
        ["predict-layer", *LAYER, "--device", "mars"], ["evaluate", "rows.h5", "--bundle", "mars"],
        ["calibrate", "mars"], ["calibrate", "--device", "mars"],
        ["measure", LENET, "--device", "mars"],
        ["bench", "quick", "--device", "mars"],
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_line_that_lists_devices_and_bundles(known, command, cli):
    line = cli.error(*command)
    assert "'mars'" in line
    assert "devices: cpu (onnxruntime); bundles: mine" in line


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (
            ["--device", "rocm"],
            "target torch/rocm has no backend; targets with one: onnxruntime/cpu",
        ),
        (["--device", "rocm", "--framework", "onnxruntime"], "no target onnxruntime/rocm; "),
        (["--device", "cpu", "--framework", "synthetic"], "no target synthetic/cpu; "),
        (["--device", "mine", "--framework", "tensorflow"], "use --framework onnxruntime"),
    ],
)
@pytest.mark.parametrize("command", [["bench", "quick", "--dry-run"], ["measure", LENET]])
def test_targets_that_cannot_measure_are_said_to(known, command, words, part, cli):
    line = cli.error(*command, *words)
    assert part in line
