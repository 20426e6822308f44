"""Content of mapping files, and errors about mistakes in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from resperf.dataset.importing import (
    FORMATS,
    read_mapping,
    shipped_mapping,
)
from resperf.dataset.importing.mapping import mapping_of
from resperf.errors import DatasetError

SMALL = """
name = "mine"
description = "one run each"
framework = "onnxruntime"

[times]
unit = "us"
[times.execution]
median = "time"

[kinds.dense]
columns = { batch = "n", features_in = "in", features_out = "out" }
"""


def test_a_small_mapping_is_enough() -> None:
    mapping = mapping_of(tomllib.loads(SMALL), "here")
    assert (mapping.name, mapping.unit, set(mapping.times)) == ("mine", "us", {"execution_ms"})
    assert (mapping.samples, mapping.warmups, mapping.session) == (1, 0, None)
    (kind,) = mapping.kinds
    assert kind.needed == {"n", "in", "out"}


def test_the_mapping_of_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "importing.md").read_text(encoding="utf-8")
    found = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert found
    mapping = mapping_of(tomllib.loads(found[1]), "docs")
    assert [kind.kind for kind in mapping.kinds] == ["conv", "conv_step"]
    assert mapping.kinds[1].columns == {**mapping.kinds[0].columns, "optimizer": "opt"}
    assert mapping.session is not None
    assert mapping.session.known_ms == {"phone": {"conv": 0.03}}


@pytest.mark.parametrize("name", FORMATS)
def test_the_shipped_formats_say_what_their_times_contain(name: str) -> None:
    mapping = shipped_mapping(name)
    whole = "whole_call_ms" if name == "perfnet" else "execution_ms"
    assert set(mapping.times) == {whole}
    assert (mapping.session is not None) == (name == "justus")
    assert mapping.description
    assert mapping.citation


def test_training_steps_of_justus_take_over_the_columns_of_their_layer() -> None:
    kinds = {kind.kind: kind for kind in shipped_mapping("justus").kinds}
    conv, step = kinds["conv"], kinds["conv_step"]
    assert step.columns == {**conv.columns, "optimizer": "optimizer"}
    assert step.constants == conv.constants == {"layout": "nhwc"}
    assert not set(step.where["optimizer"]) & set(conv.where["optimizer"])


def changed(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set or, with None, delete the value at a dotted path."""
    *tables, last = path.split(".")
    table = values
    for name in tables:
        table = table.setdefault(name, {})
    if value is None:
        del table[last]
    else:
        table[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("name", None, "the mapping: name must be given"),
        ("name", 3, "name=3 must be of type str"),
        ("nmae", "x", "the mapping has no nmae; it has citation, delimiter"),
        ("delimiter", ";;", "must be one character"),
        ("times.unit", None, "times: unit must be given"),
        ("times.unit", "h", "times: unit='h' must be one of ns, us, ms, s"),
        ("times.execution", None, "columns of execution or whole_call"),
        ("times.execution.min", "low", "times.execution: min and max come together"),
        ("times.execution.mean", "m", "times.execution has no mean; it has max, median, min"),
        ("times.whole_call", {"median": "t"}, "remove the other phases"),
        ("times.exe", {"median": "t"}, "times: no quantity 'exe' of layers; known: .*execution"),
        ("times.samples", 0, "times: samples=0 must be a number of at least 1"),
        ("kinds", None, "no kinds"),
        ("kinds.lstm", {}, "no layer kind 'lstm'"),
        ("kinds.dense.columns.width", "w", "'width' is no field; it has activation, batch"),
        ("kinds.dense.like", "conv", "kinds.dense: like='conv' is no kind above it"),
        ("kinds.dense.like", ["conv"], "kinds.dense: like=.'conv'. is no kind above it"),
        ("kinds.dense.where", {"op": [1]}, "must list texts"),
        ("kinds.dense.colums", {}, "kinds.dense has no colums; it has columns, constants, where"),
        (
            "kinds.dense.constants",
            {"bias": True},
            "kinds.dense: constants.bias=True must be of type str",
        ),
        ("values", {"bias": "yes"}, "values.bias='yes' must be a table"),
        ("session", {"smallest": 0.1, "share": 1.5}, "session: share=1.5 must be a share: above 0"),
        (
            "session",
            {"smallest": 0.1},
            "session: share must be given",
        ),
    ],
)
def test_mistakes_are_named_with_their_place(path: str, value: Any, message: str) -> None:
    values = changed(tomllib.loads(SMALL), path, value)
    with pytest.raises(DatasetError, match=message) as caught:
        mapping_of(values, "here")
    assert str(caught.value).startswith("here: ")
    assert str(caught.value).endswith("; see docs/importing.md")


def test_a_session_call_is_taken_out_of_execution_alone() -> None:
    values = tomllib.loads(SMALL)
    values["times"]["whole_call"] = values["times"].pop("execution")
    values["session"] = {"smallest": 0.1, "share": 0.9}
    with pytest.raises(DatasetError, match="subtracted from execution"):
        mapping_of(values, "here")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), (b"name = ", "not a TOML file"), (b"\xff\xfe", "not a TOML file")],
)
def test_files_that_are_no_mapping(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "map.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        read_mapping(path)


def test_unknown_formats_name_the_known_ones() -> None:
    with pytest.raises(
        DatasetError, match="no format 'caffe' with a mapping; known: justus, perfnet"
    ):
        shipped_mapping("caffe")
