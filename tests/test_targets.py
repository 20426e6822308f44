"""The table of targets, and a target of another package that goes through every command."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from resperf import devices, targets
from resperf.dataset import read_dataset
from resperf.errors import MissingExtraError, ResperfError
from resperf.predictors import METHODS
from resperf.targets import Target, device_class, fallback_target, register, target

ROOT = Path(__file__).parents[1]
TOY = Target(
    "toyrt", "toygpu", lowering="toy_target", backend="toy_target:ToyBackend",
    monitor="toy_target:ToyMonitor",
)  # fmt: skip


@pytest.fixture
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the targets that a test registers."""
    monkeypatch.setattr(targets, "_table", dict(targets._table))


@pytest.fixture
def toy(own_table: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the toy in this process only, which sends it to measuring processes."""
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
    register(TOY)


def test_an_omitted_word_means_the_first_row_with_a_backend() -> None:
    assert target().name == "onnxruntime/cpu"
    assert target("tensorflow").name == "tensorflow/cpu"
    assert target(device_class="synthetic").name == "synthetic/synthetic"
    # A row without a backend is chosen only if no other matches.
    assert target(device_class="rocm").name == "torch/rocm"
    assert target("torch").name == "torch/cpu"
    assert target("tensorrt").name == "tensorrt/cuda"


def test_an_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(ResperfError, match=r"no target onnxruntime/rocm; .*: onnxruntime/cpu, "):
        target("onnxruntime", "rocm")
    with pytest.raises(ResperfError, match=r"no framework 'abacus'; known .*tensorflow"):
        target("abacus")
    with pytest.raises(ResperfError, match="torch/rocm has no backend; targets with one: onnxrunt"):
        target("torch", "rocm").load("backend")


def test_a_missing_package_is_named_with_its_pip_line() -> None:
    row = Target("f", "d", lowering="no_such_module", install="resperf-f")
    with pytest.raises(MissingExtraError, match=r"no_such_module .* pip install 'resperf-f'"):
        row.load("lowering")
    row = Target("f", "d", lowering="resperf.targets:Nothing")
    with pytest.raises(ResperfError, match=r"target f/d: .*Nothing.*; fix its lowering"):
        row.load("lowering")


@pytest.mark.parametrize(
    ("word", "framework", "expected"),
    [
        ("cpu", None, "cpu"), ("CPU", "tensorflow", "cpu"), ("cuda:0", None, "cuda"),
        ("GeForce GTX 1080 Ti", None, "cuda"), ("i3", None, "cpu"), ("V100", None, "cuda"),
        ("synthetic", None, "synthetic"), ("mine", "onnxruntime", "cpu"),
        ("mine", "tensorflow", "unknown"), ("mine", None, "unknown"),
    ],
)  # fmt: skip
def test_the_class_of_a_device(word: str, framework: str | None, expected: str) -> None:
    assert devices.device_class(word, framework) == expected


def test_device_classes_are_local_devices_and_cards_are_not() -> None:
    assert [devices.is_at_hand(name) for name in ("cpu", "cuda:1", "1080ti", "mine")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_published_times_of_another_class_are_lowered_by_the_first_row() -> None:
    assert fallback_target("onnxruntime", "rocm").name == "onnxruntime/cpu"
    assert devices.target_of("1080ti", "tensorflow").name == "tensorflow/cuda"
    assert devices.target_of("mine", "tensorflow").name == "tensorflow/cpu"


def test_a_target_is_registered_once(own_table: None) -> None:
    assert register(TOY) is register(TOY) is target("toyrt")
    assert device_class("toygpu") == "toygpu"
    with pytest.raises(ResperfError, match="another target toyrt/toygpu"):
        register(Target("toyrt", "toygpu", lowering="other"))


def test_rows_of_other_packages_are_loaded_if_the_table_has_none(
    own_table: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Target("onnxruntime", "npu", lowering="l", backend="b")
    monkeypatch.setattr(targets, "_add_installed", lambda: register(row))
    assert fallback_target("onnxruntime", "cpu").name == "onnxruntime/cpu"
    assert "npu" not in {device_class for _, device_class in targets._table}
    assert fallback_target("onnxruntime", "npu") is row
    assert devices.is_at_hand("npu:0")
    assert target("onnxruntime", "npu") is target(device_class="npu") is row


TOML = """
samples = 40
seed = 1
[protocol]
min_samples = 3
min_time_s = 0.0
budget_s = 0.005
warmup_s = 0.0
[kinds.dense]
batch = [1, 2, 4]
features_in = { law = "uniform", low = 50, high = 2000 }
features_out = { law = "uniform", low = 50, high = 2000 }
"""


def test_a_target_of_another_package_goes_through_every_command(
    toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, perceptron, cli
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path / "home"))
    Path("tiny.toml").write_text(TOML)
    network = perceptron("mlp.onnx", 400, 900, 700)
    result = cli.json("bench", "tiny.toml", "--device", "toygpu")
    assert result["dataset"] == "tiny-toygpu-toyrt.h5"
    assert result["statuses"] == {"ok": result["rows"]}
    # What was measured is the card's time, 1e6 multiply-accumulates in a millisecond; the two rows
    # of its hot moment were measured again, and the one that began while it was still hot.
    dataset = read_dataset(Path(result["dataset"]))
    for row in dataset.measurements:
        assert row.value("execution_ms") == pytest.approx(row.layer.macs / 1e6, rel=1e-3, abs=2e-6)
    assert (result["again"], result["doubtful"]) == (3, 0)
    assert {row.flags for row in dataset.measurements} == {()}
    assert dataset.info.machine_costs["sm_clock_mhz"] == 1400.0
    trained = cli.json("train", result["dataset"], "--method", "baseline")
    assert Path(trained["path"]) == tmp_path / "home" / "bundles" / "toy9000-toyrt"
    for word in ("toy9000", "toy9000-toyrt", trained["path"]):
        predicted = cli.document("predict", network, "--device", word, "--batch", 2)
        assert (predicted["device"], predicted["framework"]) == ("toy9000", "toyrt")
        assert {layer["kind"] for layer in predicted["layers"]} == {"dense"}
    ways = ("--device toygpu", "--framework toyrt", "--device toy9000-toyrt", "--device toy9000")
    for words in map(str.split, ways):
        measured = cli.document("measure", network, *words, "--batch", 2, "--seconds", 0.01)
        assert measured["device"] == "toy9000"
        # A call, and 2 x (400 x 900 + 900 x 700) multiply-accumulates, a fifth longer.
        assert measured["phases"]["execution_ms"] == pytest.approx(0.01 + 1.2 * 1.98, rel=1e-3)
    assert cli.json("evaluate", result["dataset"], "--device", "toy9000", "--split", "test")
    for size in range(12):
        perceptron(f"networks/mlp{size}.onnx", 64 + 90 * size, 300, 90 + size)
    learnt = cli.json(
        "calibrate", "toy9000", "--networks", "networks", "--batch", 2, "--seconds", 0.05
    )
    assert learnt["path"] == trained["path"]
    # A part of it may also be overhead between layers.
    assert learnt["factors"] == pytest.approx({"dense": 1.2}, rel=0.06)
    # Networks as a campaign: what the card's allocator said is learnt too, and predicted.
    Path("nets.toml").write_text(
        '[networks]\nfiles = ["networks"]\nbatches = [1, 4]\nseconds = 0.05\n'
    )
    runs = cli.json("bench", "nets.toml", "--device", "toygpu", "-o", "runs.h5")
    assert (runs["networks"], runs["statuses"]) == (24, {"ok": 24})
    monkeypatch.setitem(METHODS, "toy-peak-memory", "toy_peak_memory:ToyPeakMemory")
    cli.json("train", "runs.h5", "--method", "toy-peak-memory", "-o", "peak")
    found = cli.document("predict", network, "--bundle", "peak", "--batch", 4)
    # Two bytes for each of the largest activation: 4 x 900 values of four bytes.
    peak = found["quantities"]["peak_memory_bytes"]["value"]
    assert peak == pytest.approx(2 * 4 * 4 * 900)


def test_a_target_of_an_installed_package_is_found(tmp_path: Path) -> None:
    """Its distribution is on the path, and names the row as an entry point."""
    package = tmp_path / "toy-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    points = package / "entry_points.txt"
    points.write_text("[resperf.targets]\ntoyrt/toygpu = toy_target:TARGET\n")
    (tmp_path / "tiny.toml").write_text(TOML)
    paths = [str(ROOT), str(tmp_path), str(Path(__file__).parent)]
    words = ["bench", str(tmp_path / "tiny.toml"), "--framework", "toyrt", "--dry-run", "--json"]
    command = [sys.executable, "-m", "resperf.cli.main", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["framework"] == "toyrt"
    points.write_text("[resperf.targets]\ntoyrt/toygpu = toy_target:NOTHING\n")
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "target toyrt/toygpu cannot be loaded from toy_target:NOTHING" in done.stderr
    assert done.stderr.count("\n") == 1


NAMES = frozenset(
    name for row in targets._ROWS for name in (row.framework, row.device_class, row.name)
)
OWN = ("resperf/targets.py", "resperf/backends/", "resperf/lowering/")
"""The table, and what may hold files of one framework; there only these files may name it."""

ASKING = ("get", "startswith", "endswith", "removeprefix", "index")


def _is_own(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    of_one = path.stem.startswith(("_ort_", *(row.framework for row in targets._ROWS)))
    return name == OWN[0] or (name.startswith(OWN[1:]) and of_one)


def _asked(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the strings of decisions: comparisons, patterns, keys of tables, prefixes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue | ast.Subscript):
            yield node
        elif isinstance(node, ast.Dict):
            yield from (key for key in node.keys if key is not None)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ASKING:
            yield from node.args


def names_asked(text: str) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.value)
        for asked in _asked(ast.parse(text))
        for node in ast.walk(asked)
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]


@pytest.mark.parametrize(
    "line",
    [
        'if framework == "onnxruntime": pass', 'x = 1 if device in ("cpu", "gpu") else 2',
        'TABLE = {"tensorflow": 1000}', 'name = table.get("synthetic", 0)',
        'match device:\n    case "cuda": pass', 'device.startswith("cuda")',
    ],
)  # fmt: skip
def test_comparisons_with_a_name_are_detected(line: str) -> None:
    assert names_asked(line)


def test_only_the_table_compares_frameworks_or_devices() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "resperf").rglob("*.py"))
        if not _is_own(path)
        for line, name in names_asked(path.read_text(encoding="utf-8"))
    ]
    assert found == []
