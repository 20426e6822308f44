import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from resperf.backends import backend
from resperf.campaign import Bench, Campaign, plan_campaign
from resperf.campaign.networks import harvest, shipped_networks
from resperf.errors import CampaignError
from resperf.layers import Conv, Dense

HEAVY = ("h5py", "onnx", "onnxruntime", "tensorflow", "keras", "scipy", "numpy")


def test_lenet_is_harvested_at_every_batch() -> None:
    device = backend("onnxruntime", threads=1)
    layers = harvest(shipped_networks(["lenet5"]), device.setting(), device.platform(), [1, 4])
    assert len({layer.key for layer in layers}) == len(layers)
    dense = [layer for layer in layers if isinstance(layer, Dense)]
    # LeNet-5 ends in 400 or 256 -> 120 -> 84 -> 10.
    assert {(v.batch, v.features_out) for v in dense} == {
        (b, width) for b in (1, 4) for width in (120, 84, 10)
    }
    convs = {(v.batch, v.channels_out, v.kernel_height) for v in layers if isinstance(v, Conv)}
    assert {(1, 6, 5), (1, 16, 5), (4, 6, 5), (4, 16, 5)} <= convs


def test_unknown_networks_are_named() -> None:
    with pytest.raises(CampaignError, match=r"no reference network 'lenet99'.*vgg16"):
        shipped_networks(["lenet99"])
    assert len(shipped_networks(["*"])) > 3


def test_excluded_networks_leave_no_layer_in_the_plan() -> None:
    (lenet,) = shipped_networks(["lenet5"])
    table = {
        "batch": [1, 2, 4, 8, 16], "features_in": [400, 256, 120, 84],
        "features_out": [120, 84, 10], "activation": ["relu", "tanh", "none", "sigmoid"],
    }  # fmt: skip
    campaign = Campaign.from_mapping({
        "name": "t", "samples": 500, "kinds": {"dense": table}, "repeat_share": 0.0,
        "mixture": {"from_networks": 0.5, "exact": 1.0, "networks": ["lenet5"]},
    })  # fmt: skip
    bench = Bench(settings={"threads": 1})
    free, *where = plan_campaign(campaign, bench)
    kept, *_ = plan_campaign(campaign, replace(bench, exclude=[lenet]))
    judged = {layer.key for layer in harvest([lenet], *where, [1, 2, 4, 8, 16])}
    assert judged & {item.layer.key for item in free.items}
    assert not judged & {item.layer.key for item in kept.items}


@pytest.mark.parametrize("module", ["resperf.campaign", "resperf.campaign.process"])
def test_the_campaign_itself_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip() == "[]"
