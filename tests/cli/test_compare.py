"""`resperf compare`: networks, settings and runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resperf.report.columns import columns_text

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
LENET, ALEXNET = (str(NETWORKS / f"{name}.onnx") for name in ("lenet5", "alexnet"))


@pytest.fixture
def own(bundle, home) -> None:
    """Make the small bundle that of --device cpu."""
    (home / "bundles").mkdir()
    (home / "bundles" / "cpu-onnxruntime").symlink_to(bundle)


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the cells of each kind's row."""
    table = text.split("\n\n")[1].splitlines()
    width = table[1].index(" ")
    return {line[:width].strip(): line[width:].split() for line in table[2:]}


@pytest.mark.usefixtures("own")
def test_batches_are_side_by_side_and_their_kinds_add_up_to_the_difference(cli):
    words = ["compare", LENET, "--device", "cpu", "--batch", "1", "8"]
    first, second = cli.json(*words)
    text = cli.text(*words)
    assert text.splitlines()[:2] == [f"A: {first['summary']}", f"B: {second['summary']}"]
    rows = rows_of(text)
    assert next(iter(rows)) == "total"
    for name, document in zip("AB", (first, second), strict=True):
        for kind in document["kinds"]:
            assert float(rows[kind["kind"]]["AB".index(name)]) == pytest.approx(
                kind["ms"], rel=0.01
            )
    total, *others = (float(cells[2]) for cells in rows.values())
    assert total == pytest.approx(second["total_ms"] - first["total_ms"], rel=0.01)
    assert sum(others) == pytest.approx(total, rel=0.01)
    assert [abs(x) for x in others] == sorted((abs(x) for x in others), reverse=True)


def test_what_differs_by_rounding_alone_does_not_differ():
    kinds = [[{"kind": "copies", "ms": ms}] for ms in (0.1 + 0.2, 0.3)]
    documents = [{"summary": "net", "batch": 1, "kinds": own} for own in kinds]
    assert rows_of(columns_text(documents))["copies"] == ["0.3000", "0.3000", "0", "+0.0%"]


@pytest.mark.usefixtures("own")
def test_networks_and_precisions_each_have_a_column(cli):
    text = cli.text("compare", LENET, ALEXNET, "--device", "cpu", "l4", "--batch", "2")
    titles = [line.split(":")[1] for line in text.splitlines()[:4]]
    assert titles == [
        " lenet5, batch 2, on cpu with onnxruntime", " alexnet, batch 2, on cpu with onnxruntime",
        " lenet5, batch 2, on l4 with torch, fp32, eager",
        " alexnet, batch 2, on l4 with torch, fp32, eager",
    ]  # fmt: skip
    assert "change" not in text  # Of four columns.
    plain, amp = cli.json("compare", LENET, "--device", "l4", "--precision", "fp32", "amp")
    assert (plain["precision"], amp["precision"]) == ("fp32", "amp")
    # An option before the networks has one value.
    assert len(cli.json("compare", "--device", "l4", LENET, ALEXNET)) == 2


@pytest.mark.usefixtures("own")
def test_saved_predictions_and_measurements_are_runs(tmp_path, cli):
    saved, measured, rows = (tmp_path / name for name in ("a.json", "b.json", "c.h5"))
    cli.text("predict", LENET, "--device", "cpu", "-o", saved)
    run = cli.json("measure", LENET, "--seconds", "0.2", "-o", rows)
    measured.write_text(json.dumps(run))
    text = cli.text("compare", saved, measured, rows)
    cells = rows_of(text)
    assert f"B: {run[0]['summary']}\n" in text
    assert run[0]["summary"].endswith(" ms, measured")
    assert float(cells["total"][1]) == pytest.approx(run[0]["total_ms"], rel=0.01)
    assert float(cells["total"][2]) == pytest.approx(run[0]["total_ms"], rel=0.01)
    conv_ms = sum(x["execution_ms"] for x in run[0]["layers"] if x["kind"] == "conv")
    assert float(cells["conv"][1]) == pytest.approx(conv_ms, rel=0.01)
    assert cells["conv"][2:] == ["0", "2/2/0"]  # The dataset has no layers.
    text = cli.text("compare", measured, LENET, "--device", "cpu")
    measured_ms, predicted_ms, _, change, count = rows_of(text)["conv"]
    error = (float(predicted_ms) - float(measured_ms)) / float(measured_ms)
    assert float(change.rstrip("%")) == pytest.approx(100 * error, rel=0.02, abs=0.5)
    assert count == "2"
    assert "remainder" in rows_of(text)


def test_one_line_says_what_cannot_be_compared(tmp_path, cli):
    assert "one answer alone" in cli.error("compare", LENET, "--device", "l4")
    for content in ("{", "[]", '{"a": 1}', '[{"error": "x"}]', "3", "[" * 100_000):
        (tmp_path / "x.json").write_text(content)
        assert "holds no networks" in cli.error("compare", tmp_path / "x.json", LENET)
    assert "absent.json" in cli.error("compare", tmp_path / "absent.json", LENET)


@pytest.mark.parametrize(
    "damage",
    [
        {"kinds": 5}, {"kinds": None}, {"kinds": {"conv": 1}}, {"kinds": [1]},
        {"kinds": [{"ms": 1}]}, {"kinds": [{"kind": "conv"}]},
        {"kinds": [{"kind": "conv", "ms": "1"}]}, {"kinds": [{"kind": "conv", "ms": True}]},
        {"kinds": [{"kind": "conv", "ms": 10**400}]}, {"kinds": [{"kind": ["conv"], "ms": 1}]},
        {"summary": 3}, {"batch": "1"}, {"warnings": 5}, {"warnings": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_run_is_one_line_that_names_the_file(tmp_path, cli, damage):
    run = {"summary": "a", "batch": 1, "kinds": [{"kind": "conv", "ms": 1.0}], "warnings": ["b"]}
    path = tmp_path / "x.json"
    path.write_text(json.dumps([run, run]))
    assert "B - A" in cli.text("compare", path)
    path.write_text(json.dumps([run, run | damage]))
    error = cli.error("compare", path)
    assert "x.json holds no networks that can be read (" in error
    assert error.count("\n") == 1


def test_names_in_saved_runs_cannot_change_the_terminal(tmp_path, cli):
    run = {"summary": "\x1b[31ma", "batch": 1, "kinds": [], "warnings": ["\x1b[31mb"]}
    path = tmp_path / "x.json"
    path.write_text(json.dumps([run, run]))
    text = cli.text("compare", path)
    assert "\x1b" not in text
    assert text.count("x1b[31ma") == 2
