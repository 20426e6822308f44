"""Networks that a campaign draws: their layers, that they are the same everywhere and run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from resperf.campaign import Bench, Campaign, plan_campaign, run_campaign
from resperf.campaign.families import FAMILIES, Draw, draw_networks
from resperf.campaign.laws import law
from resperf.campaign.spec import DrawnSpec
from resperf.dataset import NetworkDescription, read_dataset
from resperf.errors import CampaignError
from resperf.measurement import NetworkRef, Status
from resperf.targets import target

SIZES: dict[str, Any] = {
    "batch": 2, "channels": 3, "pixels": 80, "width_percent": 50, "depth": 50, "min_depth": 8,
    "endpoint": 18, "steps": 5, "features": 4, "layers": 2, "hidden": 8,
    "cells": 2, "filters": 16, "kernel": 3, "pool": True, "dropout": True, "dense_layers": 1,
    "units": 32,
}  # fmt: skip


def drawn(family: str, **sizes: Any) -> Any:
    laws = {word: law(value, word) for word, value in {**SIZES, **sizes}.items()}
    return FAMILIES[family](Draw(laws, "0"))


def table(**values: Any) -> DrawnSpec:
    lenets = {"families": ["lenet"], "count": 3, "batch": 2, "channels": [1, 3], "pixels": [16, 32]}
    return DrawnSpec.from_mapping({**lenets, "width_percent": 50, **values})


def made(**networks: Any) -> Campaign:
    return Campaign.from_mapping({"name": "drawn", "networks": {"seconds": 0.001, **networks}})


BENCH = Bench(target("torch"), settings={"optimizer": "sgd", "threads": 1})


@pytest.mark.parametrize(
    ("family", "sizes", "nodes"),
    [
        ("lenet", {}, 9),
        ("alexnet_v2", {}, 14),
        ("overfeat", {}, 14),
        ("vgg", {"depth": 11}, 19),
        ("vgg", {"depth": 16}, 24),
        ("vgg", {"depth": 19}, 27),
    ],
)
def test_chains_have_as_many_nodes_as_in_the_paper(
    family: str, sizes: dict[str, int], nodes: int
) -> None:
    """It counts layers of TF-Slim, in which a convolution contains its ReLU, and a loss."""
    ops = [node.op_type for node in drawn(family, **sizes).model("n").graph.node]
    assert len([op for op in ops if op != "Relu"]) + 1 == nodes
    assert "Dropout" in ops


@pytest.mark.parametrize(
    ("family", "sizes", "ops"),
    [
        # 16 blocks of three convolutions, four projections, the first and last; three blocks with a
        # stride, in which a pooling of one value halves the shortcut.
        ("resnet_v1", {}, {"Conv": 54, "Add": 16, "BatchNormalization": 53, "MaxPool": 1 + 3}),
        ("resnet_v2", {"depth": 200}, {"Conv": 204, "Add": 66, "MaxPool": 1 + 3}),
        ("inception_v3", {}, {"Conv": 95, "Concat": 11 + 4, "AveragePool": 9, "MaxPool": 4}),
        ("inception_v3", {"endpoint": 2}, {"Conv": 3, "Concat": 0}),
        ("gru", {"layers": 4}, {"GRU": 4, "Gemm": 1}),
        ("nas_chain", {}, {"Conv": 2, "MaxPool": 2, "Dropout": 2, "Gemm": 2}),
        ("nas_plain", {"pool": False}, {"Conv": 4, "BatchNormalization": 4, "MaxPool": 0}),
        # The first shortcut has other channels.
        ("nas_residual", {}, {"Conv": 4 + 1, "Add": 2}),
        ("nas_dense", {"dropout": False}, {"Conv": 4, "Concat": 4, "Dropout": 0}),
        ("nas_inception", {"dense_layers": 0}, {"Conv": 8, "Concat": 2, "MaxPool": 4, "Gemm": 1}),
        ("nas_separable", {}, {"Conv": 8, "Relu": 4 + 1}),
    ],
)
def test_layers_are_those_of_the_architecture(
    family: str, sizes: dict[str, int], ops: dict[str, int]
) -> None:
    counted = [node.op_type for node in drawn(family, **sizes).model("n").graph.node]
    assert {op: counted.count(op) for op in ops} == ops


@pytest.mark.parametrize(
    ("family", "sizes", "parameters"),
    [
        ("vgg", {"depth": 16}, 138_357_544),
        # As published, and mean and variance of its 26,560 normalised channels.
        ("resnet_v1", {"depth": 50}, 25_557_032 + 2 * 26_560),
    ],
)
def test_networks_have_the_published_number_of_parameters(
    family: str, sizes: dict[str, int], parameters: int
) -> None:
    assert drawn(family, pixels=224, **sizes).parameters == parameters


def test_the_same_table_draws_the_same_networks() -> None:
    """In every process, and on every machine: the digest was written with the test."""
    first = draw_networks(table(), "1 0")
    assert draw_networks(table(), "2 0") != first
    assert len({content for _, content in first}) == 3
    # A longer list begins as a shorter one.
    assert draw_networks(table(count=4), "1 0")[:3] == first
    digest = hashlib.sha256(b"".join(content for _, content in first)).hexdigest()
    assert digest[:16] == "a9f48370c90d089d"


def test_families_take_turns_and_are_in_the_rows(tmp_path: Path) -> None:
    cells = {"batch": 2, "layers": 1, "hidden": [4, 8], "steps": 3, "features": 4}
    lenets = {"batch": [1, 2], "channels": 1, "pixels": 16, "width_percent": 10}
    tables = [
        {"families": ["rnn", "lstm"], "count": 2, **cells},
        {"families": ["lenet"], "count": 1, **lenets},
        {"families": ["lenet"], "count": 1, **lenets, "channels": 2},
    ]
    campaign = made(drawn=tables, repeats=2, repeat_share=0.5)
    plan, _, _ = plan_campaign(campaign, BENCH)
    names = ["rnn-000", "lstm-000", "lenet-000", "rnn-001", "lstm-001", "lenet-001"]
    runs = [(item.run.network.name, item.repeat) for item in plan.networks if item.run]
    assert [name for name, repeat in runs if repeat == 0] == names
    repeated = [name for name, repeat in runs if repeat == 1]
    assert 0 < len(repeated) < 6
    assert [name for name, repeat in runs if repeat == 2] == repeated
    output = tmp_path / "a.h5"
    run_campaign(campaign, output, BENCH)
    rows = read_dataset(output)
    for row in rows.measurements:
        assert isinstance(row.subject, NetworkRef)
        assert row.status is Status.OK, row.detail
        assert {"forward_ms", "backward_ms", "update_ms", "step_ms"} <= set(row.samples)
        assert {"peak_memory_bytes", "process_memory_bytes"} <= set(row.samples)
        description = rows.descriptions[row.subject.description]
        family = NetworkDescription.from_bytes(description).family
        assert family == row.subject.name.partition("-")[0]
    assert run_campaign(campaign, output, BENCH).measured == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"families": ["lenot"]}, "no family 'lenot'; it is one of lenet"),
        ({"depth": 11}, "lenet have no size depth"),
        ({"families": ["vgg"]}, "have a size 'depth' too"),
        ({"count": 5}, "allow 4 networks of lenet, not 5"),
        ({"largest_macs": 1000}, "allow 0 networks of lenet"),
        ({"largest_parameters": 1000}, "allow 0 networks of lenet"),
        ({"pixels": {"law": "normal"}}, "networks.drawn.pixels: no law 'normal'"),
    ],
)
def test_wrong_tables_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CampaignError, match=message):
        draw_networks(table(**values), "1 0")
