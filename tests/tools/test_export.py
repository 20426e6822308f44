"""Lists of networks: what each holds, and that a held-out list repeats no other."""

from __future__ import annotations

import gzip
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest

SEEN = {
    ("default", "second"): {"distilbert_128"},
    ("convmeter", "fourth"): {"resnext50_32x4d", "convnext_tiny"},
    ("default", "fourth"): {"resnext50_32x4d", "convnext_tiny"},
    ("second", "fourth"): {"tf_efficientnet_lite2"},
    ("sixth", "first-keras"): {"densenet169"},
}
"""Pairs of lists -> what both have."""
OWN = ("default", "calibration", "convmeter", "first", "second", "third", "fourth", "fifth",
       "sixth", "seventh", "eighth", "ninth", "first-keras", "heldout-exporters")  # fmt: skip


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("benchmarks/export")


def test_lists_have_the_names_of_files(tool: ModuleType, load_tool) -> None:
    found = {name: list(tool.exports(name)) for name in tool.LISTS if name != "latencies"}
    assert len(found["default"]) == 61
    assert {"resnet50", "tv_googlenet", "tv_fcn_resnet50", "bert_base_128"} <= {*found["default"]}
    assert {"resnet18@64", "resnet50@224-Bottleneck4"} <= {*found["convmeter"]}
    assert found["convmeter-torch"] == found["convmeter"]
    assert {"unet_short-fp16", "gemma_token", "resnetaa50-int8-qdq"} <= {*found["ninth"]}
    assert "keras_xception" in found["first-keras"]
    assert found["compared"] == list(load_tool("compare_predictions").EXPORTS)


def test_no_list_repeats_another(tool: ModuleType) -> None:
    lists = {}
    for name in OWN:
        listed = tool.LISTS[name]
        both = [*listed.get("sized", ()), *listed.get("dynamo", ()), *listed.get("converted", ())]
        more = [*listed.get("keras", ()), *listed.get("paddle", ())]
        own = {*listed.get("script", ()), *both, *more}
        lists[name] = {each.removeprefix("tv_").removeprefix("hub_").casefold() for each in own}
    for (one, these), (other, those) in combinations(lists.items(), 2):
        if (one, other) not in (("default", "convmeter"), ("calibration", "convmeter")):
            assert these & those == SEEN.get((one, other), set()), (one, other)


def test_the_frozen_list_has_fifteen_networks_of_each_exporter(tool: ModuleType) -> None:
    listed = tool.LISTS["heldout-exporters"]
    by_script = len(listed["script"]) + len(listed["converted"])
    assert (by_script, len(listed["dynamo"])) == (15, 15)
    assert (len(listed["keras"]), len(listed["paddle"])) == (15, 15)
    assert len(tool.exports("heldout-exporters")) == 60


def test_every_model_of_a_list_has_sizes(tool: ModuleType) -> None:
    decoders = {f"{stem}_{form}" for stem in tool.DATA["decoders"] for form in ("prompt", "token")}
    for listed in tool.LISTS.values():
        for name in (*listed.get("script", ()), *listed.get("dynamo", ())):
            if name.endswith(("_prompt", "_token")):
                assert name in decoders
            if name.endswith("_1s"):
                assert name in tool.MODELS
        hub = [name for name in listed.get("keras", ()) if name.startswith("hub_")]
        assert {*hub, *listed.get("paddle", ())} <= {*tool.MODELS}


def test_an_unknown_name_is_answered_with_one_that_is_near(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(sys, "argv", ["export", "default", str(tmp_path), "--only", "resnet5"])
    with pytest.raises(SystemExit):
        tool.main()
    assert "default has no 'resnet5'; did you mean resnet50" in capsys.readouterr().err


def test_the_list_of_latencies_has_the_networks_of_their_table(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tensorrt").mkdir()
    with gzip.open(tmp_path / "tensorrt" / "rows.csv.gz", "wt", encoding="utf-8") as file:
        file.write("build,input\nnets.net(),3x64x64\nnets.net(),3x64x64\nnets.net(a='b'),seq128\n")
    monkeypatch.setenv("RESPERF_PUBLIC_DATA", str(tmp_path))
    assert list(tool.exports("latencies")) == ["nets.net@3x64x64", "nets.net-a-b@seq128"]
