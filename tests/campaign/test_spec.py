import math
from pathlib import Path
from typing import Any

import pytest

from resperf.campaign import Campaign
from resperf.errors import CampaignError, ResperfError
from resperf.files import shipped_files
from resperf.layers import Dense

DENSE: dict[str, Any] = {"batch": 1, "features_in": [8, 16], "features_out": 4}
SHIPPED = shipped_files("microbench", "*.toml")


def made(**changes: Any) -> Campaign:
    return Campaign.from_mapping({"name": "test", "kinds": {"dense": DENSE}, **changes})


def test_shipped_campaigns_are_found() -> None:
    assert {"demo", "cpu-45min", "cpu-overnight", "resperfnet-table3", "quick"} <= {
        p.stem for p in SHIPPED
    }


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_campaigns_are_valid(path: Path) -> None:
    campaign = Campaign.from_toml(path)
    assert campaign.name == path.stem
    assert {"conv", "pool", "dense"} <= set(campaign.kinds) or campaign.networks
    assert campaign.repeat_share > 0
    again = {"name": path.stem, **campaign.to_json()}
    assert Campaign.from_mapping(again, folder=path.parent) == campaign


def test_a_campaign_named_after_a_time_stops_after_it() -> None:
    named = {path.stem: Campaign.from_toml(path).run.time_limit(None) for path in SHIPPED}
    assert (named["cpu-45min"], named["cpu-90min"], named["cpu-overnight"]) == (0.75, 1.5, 8)
    assert named["gpu-overnight"] == 8
    assert named["quick"] is None
    limited = made(run={"hours": 0.75}).run
    assert limited.time_limit(2.0) == 2.0
    with pytest.raises(CampaignError, match="hours=-1 must be a number, and not negative"):
        made(run={"hours": -1})
    with pytest.raises(CampaignError, match="hours='1 h' must be of type float"):
        made(run={"hours": "1 h"})


def test_table_3_has_the_ranges_of_the_paper() -> None:
    campaign = Campaign.from_toml(next(p for p in SHIPPED if p.stem == "resperfnet-table3"))
    conv, dense = campaign.kinds["conv"].laws, campaign.kinds["dense"].laws
    ends = {
        word: (law.low, law.high, law.logarithmic)
        for word, law in [*conv.items(), *dense.items()]
        if hasattr(law, "low")
    }
    assert ends == {
        "batch": (1, 64, False),
        "height": (1, 512, False),
        "width": (1, 512, False),
        "kernel_height": (1, 7, False),
        "kernel_width": (1, 7, False),
        "channels_in": (1, 9999, False),
        "channels_out": (1, 9999, False),
        "stride_height": (1, 4, False),
        "stride_width": (1, 4, False),
        "features_in": (1, 4096, False),
        "features_out": (1, 4096, False),
    }


def test_constraints_predict_roughly() -> None:
    campaign = made(constraints={"gflops": 2.0, "gb_per_s": 4.0})
    layer = Dense(batch=1, features_in=1000, features_out=1000, bias=False)
    # 2 MFLOP at 2 GFLOP/s: 1 ms; 4,008,000 bytes at 4 GB/s: 1.002 ms.
    assert campaign.constraints.predicted_ms(layer) == pytest.approx(2.002)


def test_cases_inherit_the_distributions_that_they_do_not_change() -> None:
    table = {**DENSE, "case": [{"name": "wide", "share": 0.25, "features_out": 4096}]}
    base, wide = made(kinds={"dense": table}).kinds["dense"].cases
    assert (base.share, wide.share) == (0.75, 0.25)
    assert wide.laws["features_in"] == base.laws["features_in"]
    assert wide.laws["features_out"] != base.laws["features_out"]


def test_a_kind_has_default_distributions() -> None:
    laws = made(kinds={"dense": {"features_in": 8, "features_out": 8}}).kinds["dense"].laws
    assert {"batch", "bias", "activation"} <= set(laws)
    assert laws["features_in"].listed == (8,)
    # If a campaign draws every field without a default, the other fields have their default.
    assert set(made(kinds={"dense": DENSE}).kinds["dense"].laws) == set(DENSE)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"sample": 3}, "has no sample"),
        ({"samples": 0}, "samples=0"),
        ({"samples": "many"}, "samples='many'"),
        ({"repeat_share": 1.5}, "repeat_share=1.5"),
        ({"test_repeats": -1}, "test_repeats=-1"),
        ({"kinds": {}}, "no kinds"),
        ({"kinds": {"lstm": {}}}, "no layer kind 'lstm'"),
        ({"kinds": {"dense": {**DENSE, "hight": 3}}}, "no field hight"),
        ({"kinds": {"dense": {**DENSE, "share": 0}}}, "share=0"),
        ({"kinds": {"dense": {**DENSE, "share": math.nan}}}, "share=nan"),
        ({"kinds": {"dense": {**DENSE, "share": math.inf}}}, "share=inf"),
        ({"kinds": {"dense": {**DENSE, "share": True}}}, "share=True"),
        ({"kinds": {"dense": {**DENSE, "case": 3}}}, "case=3 must be a list of tables"),
        ({"kinds": {"dense": {**DENSE, "case": [{"share": math.nan}]}}}, "share above 0"),
        ({"kinds": {"dense": {**DENSE, "from_networks": True}}}, "from_networks=True must be"),
        ({"kinds": {"dense": {**DENSE, "from_networks": 2}}}, "from_networks=2 must be a share"),
        ({"kinds": {"dense": {**DENSE, "case": [{"name": "a"}]}}}, "a table with a share"),
        (
            {"kinds": {"dense": {**DENSE, "case": [{"share": 0.7}, {"share": 0.6}]}}},
            "add up to 1.3",
        ),
        (
            {"kinds": {"dense": {**DENSE, "activation": ["none", "swish"]}}},
            "'swish' must be one of",
        ),
        ({"kinds": {"dense": {**DENSE, "features_in": [8, 8.5]}}}, "8.5 must be an integer"),
        ({"kinds": {"dense": {**DENSE, "bias": "yes"}}}, "'yes' must be true or false"),
        ({"kinds": {"dense": {**DENSE, "case": [{"share": -0.2}]}}}, "share above 0"),
        ({"kinds": {"conv": {"batch": 1, "padding": "Same"}}}, "'Same' must be one of same, "),
        (
            {"kinds": {"conv": {"batch": 1, "groups": "depthwize"}}},
            "'depthwize' must be an integer",
        ),
        ({"kinds": {"reorder": {"batch": 1, "relayout": "nchw>nchw"}}}, "must be one of nchw>"),
        ({"mixture": {"from_networks": 70}}, "from_networks=70 must be a share"),
        ({"run": {"memory_share": 8}}, "memory_share=8 must be a share"),
        ({"constraints": {"largest": 3}}, "constraints has no largest"),
        ({"constraints": {"gflops": "fast"}}, "gflops='fast'"),
        ({"run": {"timeout_s": -1.0}}, "timeout_s=-1.0"),
        ({"run": {"timeout_s": 0}}, "timeout_s=0 must be a number above 0"),
        ({"run": {"memory_share": 0}}, "memory_share=0 must be a share: above 0"),
        ({"protocol": {"precision": 2.0}}, "precision=2.0"),
        ({"mixture": {"networks": "all"}}, "networks='all'"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(ResperfError, match=part):
        made(**changes)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="cannot be read"):
        Campaign.from_toml(tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("samples = = 3")
    with pytest.raises(CampaignError, match=r"bad\.toml is not a TOML file"):
        Campaign.from_toml(bad)
    bad.write_text("[kinds.dense]\nbatch = 0.5\n")
    with pytest.raises(CampaignError, match=r"bad\.toml: kinds\.dense\.batch: 0\.5 is not a law"):
        Campaign.from_toml(bad)


def test_only_settings_that_change_the_data_are_differences() -> None:
    stored = made(samples=10, run={"timeout_s": 5.0}).to_json()
    assert made(samples=99).differences(stored) == []
    assert made(protocol={"budget_s": 1.0}).differences(stored) == ["campaign's protocol changed"]
