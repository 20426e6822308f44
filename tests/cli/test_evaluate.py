"""`resperf evaluate --methods` from the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from resperf.bundle import (
    Bundle,
    Calibration,
    Source,
    merge_bundles,
    replaced_folder,
    write_changed,
)
from resperf.dataset import Dataset, read_dataset, write_dataset
from resperf.prediction.api import predict
from resperf.training import train

ANSWERS = {
    "kind", "phase", "method", "rows_trained", "rows_validation", "rows", "mape", "rmse_ms",
    "median_ape", "mae_ms", "within_10", "r2", "bins", "fold_mapes", "fit_s", "predict_us",
    "noise_floor",
}  # fmt: skip


def test_a_table_of_methods(toy_dataset: Path, cli) -> None:
    shown = cli.run("evaluate", "--methods", "baseline", "--rows", 40, 50, toy_dataset)
    lines = [line.split() for line in shown.out.splitlines()]
    found = [line[:4] for line in lines if line[:3] == ["conv", "execution_ms", "baseline"]]
    assert found == [
        ["conv", "execution_ms", "baseline", "40"],
        ["conv", "execution_ms", "baseline", "50"],
    ]
    assert "conv execution_ms: MAPE by measured time" in shown.out
    assert shown.err == ""


def test_the_same_as_json(toy_dataset: Path, cli) -> None:
    rows = cli.json("evaluate", toy_dataset, "--methods", "baseline", "--folds", 3)
    assert [row["kind"] for row in rows] == ["conv", "dense", "pool"]
    for row in rows:
        assert set(row) == {"schema_version", *ANSWERS}
        assert 0 <= row["mape"] < 0.2  # a fraction, not a percentage
        assert len(row["fold_mapes"]) == 3
        assert sum(each["rows"] for each in row["bins"]) == row["rows"]


def test_another_file_judges(toy_dataset: Path, cli) -> None:
    # All layers are in both files, so there is no training data.
    assert "80 layers of" in cli.error(
        "evaluate", toy_dataset, "--methods", "baseline", "--test", toy_dataset
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "magic"], "no method 'magic'"),
        (["--methods", ","], "give either --bundle B (or --device D) or --methods A,B"),
        (["--methods", "baseline", "--bundle", "B"], "give either"),
        (["--methods", "baseline", "--split", "all"], "--split needs --bundle"),
        (["--bundle", "B", "--rows", "500"], "--rows needs --methods"),
        (["--bundle", "B", "--seed", "0"], "--seed needs --methods"),
        (["--methods", "baseline", "--folds", "1"], "--folds"),
        (["--methods", "baseline", "--rows", "0"], "must be an integer"),
        (["--methods", "baseline", "--test", "absent.h5"], "no dataset absent.h5"),
        (
            ["--methods", "baseline", "--test", "T", "--folds", "3"],
            "give either folds or a test dataset",
        ),
    ],
)
def test_mistakes_exit_2(toy_dataset: Path, cli, words: list[str], message: str) -> None:
    shown = cli.run("evaluate", toy_dataset, *words, code=2)
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_what_was_finished_before_ctrl_c_is_shown(
    toy_dataset: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resperf import training

    real = training.compare

    def interrupted(*arguments, **settings):
        real(*arguments, **settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "compare", interrupted)
    shown = cli.run("evaluate", toy_dataset, "--methods", "baseline", "--json", code=130)
    assert [row["kind"] for row in json.loads(shown.out)] == ["conv", "dense", "pool"]


NETWORKS = Path(__file__).parents[2] / "models" / "networks"
ListFactory = Callable[..., Path]


@pytest.fixture
def listed(cli, tmp_path: Path) -> ListFactory:
    """Make a dataset of whole networks from the rows of a list."""

    def make(*rows: str, device: str = "cpu", more: str = "") -> Path:
        shutil.copy(NETWORKS / "lenet5.onnx", tmp_path)
        text = "\n".join([f"network,batch,time_ms,framework{more}", *rows])
        (tmp_path / "list.csv").write_text(text + "\n", encoding="utf-8")
        words = ["--format", "list", "--device", device, "-o", str(tmp_path / "list.h5"), "--force"]
        cli.text("dataset", "import", tmp_path / "list.csv", *words)
        return tmp_path / "list.h5"

    return make


def test_totals_of_a_bundle_are_evaluated_on_rows_of_networks(
    bundle: Path, listed: ListFactory, cli
) -> None:
    predicted = predict(NETWORKS / "lenet5.onnx", bundle=bundle, batch=[1, 8])
    assert isinstance(predicted, list)
    one_ms, eight_ms = (each.total_ms for each in predicted)
    # 5% above the first measured time, and 20% below the second.
    path = listed(
        f"lenet5.onnx,1,{one_ms / 1.05!r},onnxruntime", f"lenet5.onnx,8,{eight_ms / 0.8!r},"
    )
    [row] = cli.json("evaluate", path, "--bundle", bundle)
    assert (row["kind"], row["phase"], row["method"]) == ("network", "latency_ms", "sum_of_layers")
    assert (row["rows"], row["within_10"]) == (2, 0.5)
    assert row["mape"] == pytest.approx(0.125)
    assert row["median_ape"] == pytest.approx(0.125)
    assert [(each["network"], each["batch"]) for each in row["networks"]] == [
        ("lenet5", 1), ("lenet5", 8),
    ]  # fmt: skip
    assert [each["predicted"] for each in row["networks"]] == pytest.approx([one_ms, eight_ms])
    assert [each["error"] for each in row["networks"]] == pytest.approx([0.05, -0.2])
    inside = [each["low"] <= each["measured"] <= each["high"] for each in row["networks"]]
    assert row["in_interval"] == sum(inside) / 2
    lines = [line.split() for line in cli.text("evaluate", path, "--bundle", bundle).splitlines()]
    [first] = [line for line in lines if line[:2] == ["lenet5", "1"]]
    assert "+5.0%" in first
    assert first[-5:][2] == "to"


def test_networks_are_shown_with_what_differs_between_their_settings(
    bundle: Path, listed: ListFactory, cli
) -> None:
    rows = [f"lenet5.onnx,1,1,onnxruntime,{threads},fp32" for threads in ("1", "2", "")]
    path = listed(*rows, more=",threads,precision")
    [row] = cli.json("evaluate", path, "--bundle", bundle)
    found = [(each["device"], each["setting"]["threads"]) for each in row["networks"]]
    assert found == [("cpu", 1), ("cpu", 2), ("cpu", 0)]
    lines = [line.split() for line in cli.text("evaluate", path, "--bundle", bundle).splitlines()]
    [headings] = [line for line in lines if line[:1] == ["network"] and "batch" in line]
    assert headings[:4] == ["network", "threads", "batch", "measured"]
    cells = [line[1] for line in lines if line[:1] == ["lenet5"]]
    assert cells == ["1", "2", "-"]


def test_an_incomplete_total_is_noted(
    bundle: Path, listed: ListFactory, tmp_path: Path, cli
) -> None:
    shutil.copy(NETWORKS / "alexnet.onnx", tmp_path)
    path = listed("lenet5.onnx,1,2,onnxruntime", "alexnet.onnx,1,20,onnxruntime")
    predicted = [
        predict(NETWORKS / f"{name}.onnx", bundle=bundle, batch=1) for name in ("lenet5", "alexnet")
    ]
    incomplete = [each for each in predicted if not isinstance(each, list) and not each.complete]
    assert "alexnet" in {each.subject.network for each in incomplete}
    error = cli.run("evaluate", path, "--bundle", bundle).err
    for each in incomplete:
        assert (
            f"{each.subject.network}: its total leaves out {len(each.skipped)} operators and "
            in error
        )
    assert error.count("its total leaves out") == len(incomplete)


def test_networks_that_the_correction_was_fitted_to_are_left_out(
    bundle: Path, listed: ListFactory, tmp_path: Path, cli
) -> None:
    loaded = Bundle.load(bundle)
    learnt = Calibration(
        Source.NETWORKS, loaded.setting, loaded.platform,
        costs={"overhead_ms_per_layer": 0.0, "overhead_ms_per_mb": 0.0}, log_width=0.1,
        evidence={"networks": [{"network": "lenet5"}]},
    )  # fmt: skip
    with replaced_folder(tmp_path / "fitted") as folder:
        write_changed(loaded.with_calibrations([learnt], "by hand"), folder)
    assert "to which the in-network correction was fitted are left out" in cli.error(
        "evaluate", listed("lenet5.onnx,1,2,onnxruntime"), "--bundle", tmp_path / "fitted"
    )


@pytest.mark.parametrize(
    ("row", "device", "message"),
    [
        ("lenet5.onnx,1,2,tensorflow", "cpu", "measured with tensorflow, inference, on cpu; "),
        ("lenet5.onnx,1,2,onnxruntime", "1080ti", "with onnxruntime, inference, on 1080ti; "),
    ],
)
def test_a_dataset_of_another_framework_or_device_class_is_refused(
    bundle: Path,
    listed: ListFactory,
    cli,
    row: str,
    device: str,
    message: str,
) -> None:
    path = listed(row, device=device)
    error = cli.error("evaluate", path, "--bundle", bundle)
    assert message in error
    assert "predicts onnxruntime on cpu: choose a bundle of that framework" in error


def test_the_part_of_the_datasets_setting_is_evaluated(
    toy_dataset: Path, tmp_path: Path, cli
) -> None:
    """Layers with four threads take half the time, and the part of two threads is the first."""
    two = train(toy_dataset, tmp_path / "two", method="baseline")
    of_two = read_dataset(toy_dataset)
    setting = replace(of_two.info.setting, threads=4)
    rows = tuple(
        replace(
            row,
            setting=setting,
            samples={
                name: replace(each, values=tuple(value / 2 for value in each.values))
                for name, each in row.samples.items()
            },
        )
        for row in of_two.measurements
    )
    file = tmp_path / "four.h5"
    write_dataset(file, Dataset(replace(of_two.info, setting=setting), rows))
    four = train(file, tmp_path / "four", method="baseline")
    merge_bundles([two.path, four.path], tmp_path / "both")
    alone = cli.run("evaluate", file, "--bundle", four.path, "--json")
    both = cli.run("evaluate", file, "--bundle", tmp_path / "both", "--json")
    assert json.loads(both.out) == json.loads(alone.out)
    assert "threads: 4 here, 2 there" not in both.err


def test_a_framework_alone_means_its_default_device(
    bundle: Path, home: Path, listed: ListFactory, cli
) -> None:
    shutil.copytree(bundle, home / "bundles" / "cpu-onnxruntime")
    path = listed("lenet5.onnx,1,2,onnxruntime")
    [row] = cli.json("evaluate", path, "--framework", "onnxruntime")
    assert row["method"] == "sum_of_layers"


def test_methods_for_layers_refuse_a_dataset_of_networks(
    listed: ListFactory, tmp_path: Path, cli
) -> None:
    path = listed("lenet5.onnx,1,2,onnxruntime")
    error = cli.error("train", path, "-o", tmp_path / "b", "--method", "baseline")
    assert "holds rows of whole networks only and baseline learns from layers" in error
    assert not (tmp_path / "b").exists()


@pytest.fixture
def rows_of_l4(tmp_path: Path, cli) -> Path:
    """Import products on a card that no shipped bundle has rows of; those of one run throttled."""
    heading = "OPName,Latency,Device,Kernel Name,B,M,N,K\n"
    for session, op, time_ms, batch in (("train", "linear", 40.0, 1), ("test", "bmm", 1.0, 2)):
        row = f"{op},{time_ms},NVIDIA L4,k,{batch},2050,2049,2051\n"
        (tmp_path / f"{session}_{op}.csv").write_text(heading + 10 * row)
    output = tmp_path / "l4.h5"
    cli.text(
        "dataset", "import", *sorted(tmp_path.glob("*.csv")), "--format", "neusight", "-o", output
    )
    return output


@pytest.mark.parametrize("words", [("--device", "l4"), ("--bundle", "L4")])
def test_a_card_without_rows_is_judged_by_what_predict_chooses(
    rows_of_l4: Path, cli, words
) -> None:
    [row] = cli.json("evaluate", rows_of_l4, *words, "--split", "all")
    fields = ("batch=2", "rows=2050", "depth=2051", "columns=2049")
    [layer] = cli.json("predict-layer", "matmul", *fields, *words)
    assert (row["kind"], row["rows"]) == ("matmul", 1)
    assert row["mape"] == pytest.approx(abs(layer["execution_ms"] - 1))


def test_throttled_rows_are_counted_with_their_error(rows_of_l4: Path, cli) -> None:
    fields = ("batch=2050", "features_in=2051", "features_out=2049")
    [layer] = cli.json("predict-layer", "dense", *fields, "--device", "l4")
    off = 1 - layer["execution_ms"] / 40
    assert off > 0.8
    shown = cli.run("evaluate", rows_of_l4, "--device", "l4", "--split", "all")
    assert (
        "note: dense: 10 rows flagged throttled or inconsistent are left out; the MAPE of these is "
        f"execution_ms {off:.1%}\n" in shown.err
    )
