"""Networks that `tools/build.py` writes: the shipped ones, and those of dnnperf-unseen."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from resperf.campaign import Campaign
from resperf.network import read_network

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("build")


def test_shipped_networks_are_what_is_built(tmp_path: Path, tool: ModuleType) -> None:
    for name in tool.NETWORKS:
        tool.build_network(tmp_path, tmp_path / name)
        shipped = ROOT / "models" / "networks" / f"{name}.onnx"
        assert (tmp_path / shipped.name).read_bytes() == shipped.read_bytes(), name


def test_networks_of_the_campaign_are_read_and_have_their_family(
    tmp_path: Path, tool: ModuleType
) -> None:
    networks = Campaign.from_toml(ROOT / "microbench" / "dnnperf-unseen.toml").networks
    assert networks is not None
    assert networks.families.keys() == tool.UNSEEN.keys()
    for family in tool.UNSEEN:
        tool.build_unseen(tmp_path, tmp_path / family)
        paths = sorted(tmp_path.glob(f"{family}-*.onnx"))
        assert len(paths) == 11
        assert {networks.family_of(path.stem) for path in paths} == {family}
        read = read_network(paths[0])
        assert read.batch
        # The writer counts shapes itself; ONNX infers the same.
        assert read.tensors["output"].shape[0] == read.batch


def test_transformers_have_their_parameters(tool: ModuleType) -> None:
    """By hand: 12 w^2 + 13 w in a block, positions, and the last layer; words are beside them."""
    draw = tool.fixed(heads=2, depth=2, tokens=16)
    block = 12 * 128**2 + 13 * 128
    bert = tool.transformer(draw, "bert")
    assert bert.parameters == 16 * 128 + 2 * block + 128 * 8000 + 8000
    gpt2 = tool.transformer(draw, "gpt2")
    assert gpt2.parameters - bert.parameters == 2 * 128
