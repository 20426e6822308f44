"""`resperf dataset import` from the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

Capture = pytest.CaptureFixture[str]
MAPPING = """
name = "mine"
description = "one run each"
framework = "onnxruntime"
[times]
unit = "us"
execution = { median = "time" }
[kinds.dense]
columns = { batch = "n", features_in = "in", features_out = "out" }
"""


def test_import_then_info_check_train_and_evaluate(
    justus_csv: Path, tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file, bundle = str(tmp_path / "j.h5"), str(tmp_path / "card-tensorflow")
    words = ["dataset", "import", str(justus_csv), "--format", "justus", "--device", "my card"]
    lines = cli.text(*words, "-o", file).splitlines()
    assert lines[0] == f"{file}: 400 rows of execution_ms, step_ms"
    assert lines[1].startswith("  conv: 200 rows, minus a call of 0.09")
    assert lines[2].startswith("  conv_step: 200 rows, minus a call of 0.09")
    assert len(lines) == 3
    shown = cli.text("dataset", "info", file)
    assert "imported   justus: toy_convolution.csv" in shown
    assert "contains   execution_ms, step_ms: single layers" in shown
    assert "device     my card: my card" in shown
    assert "preprocess_ms" not in shown
    cli.text("dataset", "check", file)
    shown = cli.text("train", file, "-o", bundle, "--method", "baseline")
    assert re.search("conv_step +step_ms +baseline", shown)
    rows = cli.json("evaluate", file, "--bundle", bundle)
    assert [(row["kind"], row["phase"]) for row in rows] == [
        ("conv", "execution_ms"), ("conv_step", "step_ms"),
    ]  # fmt: skip
    words = ["conv_step", "batch=4", "channels_in=8", "size=16", "kernel=3", "channels_out=8",
             "padding=same", "activation=relu", "optimizer=adam", "--bundle", bundle]  # fmt: skip
    (layer,) = cli.json("predict-layer", *words)
    assert layer["in_range"] is True
    assert layer["key"].startswith("conv_step:batch=4,")
    assert layer["execution_ms"] > 0


def test_what_was_left_out_is_printed_and_in_the_json(tmp_path: Path, cli) -> None:
    (tmp_path / "map.toml").write_text(MAPPING)
    (tmp_path / "d.csv").write_text("n,in,out,time\n1,8,4,1500\n1,8,4,1700\n0,8,4,9\n1,8,4,-3\n")
    output = tmp_path / "d.h5"
    words = [
        "dataset", "import", str(tmp_path / "d.csv"), "--format", str(tmp_path / "map.toml"),
        "--device", "cpu", "-o", str(output),
    ]  # fmt: skip
    assert cli.text(*words).splitlines() == [
        f"{output}: 2 rows of execution_ms",
        "  dense: 2 rows",
        "1 row repeats a layer or network",
        "1 row left out: not a possible layer (first: d.csv line 4: dense: batch=0 must be an "
        "integer of at least 1)",
        "1 row left out: a time that is not above 0 (first: d.csv line 5: time=-3)",
    ]
    assert "exists; choose another output or add --force" in cli.error(*words)
    document = cli.json(*words, "--force")
    assert document["rows"] == {"dense": 2}
    assert document["contains"] == ["execution_ms"]
    assert [each["rows"] for each in document["left_out"]] == [1, 1]
    cli.text("dataset", "check", output)


LINEAR = "OPName,Latency,Device,Kernel Name,B,M,N,K\n" + 10 * "linear,{},{},k,1,2048,2048,2048\n"


def test_flagged_rows_and_networks_are_printed(tmp_path: Path, cli) -> None:
    output, file = tmp_path / "a.h5", tmp_path / "train_linear.csv"
    file.write_text(LINEAR.format(*(10 * [40.0, "NVIDIA L4"])))
    words = ["dataset", "import", str(file), "--format", "neusight", "-o", str(output)]
    lines = cli.text(*words).splitlines()
    assert lines[:3] == [
        f"{output}: 10 rows of execution_ms", "  dense: 10 rows",
        "9 rows repeat a layer or network",
    ]  # fmt: skip
    assert lines[3].startswith("10 rows flagged throttled: large products reach less than 25%")
    assert lines[3].endswith("(first: train_linear.csv line 2: large products at 1% of the peak)")
    document = cli.json(*words, "--force")
    assert [(each["what"], each["rows"]) for each in document["marked"]] == [
        ("flagged throttled", 10)
    ]
    assert "flagged throttled" in cli.text("dataset", "info", output)
    cli.text("dataset", "check", output)
    test = tmp_path / "test_linear.csv"
    test.write_text(LINEAR.format(*(10 * [4.0, "NVIDIA L4"])))
    cli.text("dataset", "import", test, *words[2:], "--force")
    shown = [line.split() for line in cli.text("dataset", "info", output).splitlines()]
    place = shown.index(["session", "rows"])
    assert shown[place + 2 : place + 4] == [["test", "10"], ["train", "10"]]
    net = tmp_path / "benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv"
    net.write_text("model,infer_img_size,infer_step_time,infer_batch_size,param_count\nn,9,1,2,3\n")
    words = ["dataset", "import", str(net), "--format", "timm", "-o", str(tmp_path / "t.h5")]
    assert cli.text(*words).splitlines()[-1] == "1 network, 0 with a graph"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["CSV", "--format", "neusight"], "is no file of neusight: names are train_OP.csv"),
        (["CSV", "--format", "timm"], "is no file of timm: names say mode, precision"),
        (["CSV", "--format", "vidur"], "is no file of vidur: names are compute__DEVICE__MODEL"),
        (
            ["CSV", "--format", "vidur", "--graphs", "g"],
            "--graphs is for --format gpumemnet or neusight",
        ),
        (["CSV", "--device", "d"], "Missing option '--format'"),
        (["CSV", "--format", "justus"], "--device"),
        (
            ["CSV", "--format", "caffe", "--device", "d"],
            "describe other files with --format MAP.toml",
        ),
        (["CSV", "--format", "absent.toml", "--device", "d"], "absent.toml cannot be read"),
        (["absent.csv", "--format", "justus", "--device", "d"], "absent.csv cannot be read"),
        (["CSV", "--format", "perfnet", "--device", "d"], "has no column 'time_min'"),
    ],
)
def test_mistakes_end_with_2_and_write_nothing(
    justus_csv: Path, tmp_path: Path, cli, words: list[str], message: str
) -> None:
    given = [str(justus_csv) if word == "CSV" else word for word in words]
    captured = cli.run("dataset", "import", *given, "-o", tmp_path / "x.h5", code=2)
    assert message in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_network_of_whole_calls_is_refused_in_one_line(
    perfnet_csv: Path, tmp_path: Path, cli
) -> None:
    file, bundle = str(tmp_path / "p.h5"), str(tmp_path / "i3-tensorflow")
    words = ["dataset", "import", str(perfnet_csv), "--format", "perfnet", "--device", "i3"]
    assert cli.json(*words, "-o", file)["contains"] == ["whole_call_ms"]
    assert "whole_call_ms" in cli.text("train", file, "-o", bundle, "--method", "baseline")
    assert "(whole calls)" in cli.text("devices", "--bundle", bundle)
    network = str(Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx")
    error = cli.error("predict", network, "--bundle", bundle)
    assert "which a network pays once and not per layer" in error
    words = ["dense", "batch=1", "features_in=8", "features_out=8", "--bundle", bundle]
    assert "ms, whole call" in cli.text("predict-layer", *words)
