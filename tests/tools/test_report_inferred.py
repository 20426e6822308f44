"""The report on what whole networks tell of operators, on times by hand."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("h5py")

from resperf.dataset.descriptions import ListedOperator, NetworkDescription
from resperf.devices import device_facts
from resperf.layers import Activation, Dense
from resperf.predictors.class_costs import Band, ClassFit
from resperf.predictors.operator_classes import Cost


@pytest.fixture
def tool(load_tool) -> ModuleType:
    return load_tool("report_inferred")


def test_listed_times_are_without_the_launch_of_each_operator(tool: ModuleType) -> None:
    times_ms = {"view": (0.01, 10), "Linear": (1.01, 4), "matmul": (0.51, 2), "add": (0.11, 3)}
    operators = tuple(
        ListedOperator(op, (), (), count=count, times_ms={"forward_ms": ms})
        for op, (ms, count) in times_ms.items()
    )
    found = tool.listed_times_ms(NetworkDescription("net", "net", operators=operators))
    assert found["products"] == pytest.approx(4.0)
    assert found["batched products"] == pytest.approx(1.0)
    assert found["element-wise"] == pytest.approx(0.3)
    assert found["copies and others"] == 0.0


def test_classes_are_grouped_as_listed_operators_are(tool: ModuleType) -> None:
    assert tool.short_group("batched product float32") == "batched products"
    assert tool.short_group("product of weights") == "products"
    assert tool.short_group("pointwise repeated float32") == "element-wise"
    assert tool.short_group("cast of weights") == "copies and others"


def test_the_table_says_how_often_the_band_holds_the_measured_time(tool: ModuleType) -> None:
    nothing = dict.fromkeys(tool.GROUPS, 1.0)
    runs = [
        SimpleNamespace(total_ms=100.0, listed_ms={**nothing, "products": 80.0}),
        SimpleNamespace(total_ms=200.0, listed_ms={**nothing, "products": 120.0}),
    ]
    inferred = [{"products": Band(40.0, 30.0, 50.0)}, {"products": Band(120.0, 100.0, 140.0)}]
    table = tool.class_table(runs, inferred, [{"products": 88.0}, {"products": 108.0}])
    row = next(line for line in table.splitlines() if line.startswith("| products"))
    cells = [each.strip() for each in row.strip("|").split("|")]
    assert cells == [
        "products", "70.0%", "50.0%", "40.0% to 60.0%", "1 of 2", "0.75 (0.50 to 1.00)",
        "1.00 (0.90 to 1.10)",
    ]  # fmt: skip


@pytest.fixture
def learnt() -> ClassFit:
    """Costs learnt from networks whose products take 2 and copies 3 times the data sheet's."""
    random = np.random.default_rng(0)
    networks = [
        {Cost("product", "flops"): float(a), Cost("copy", "bytes"): float(b)}
        for a, b in random.uniform(1, 10, (30, 2))
    ]
    times_ms = np.array([
        2 * each[Cost("product", "flops")] + 3 * each[Cost("copy", "bytes")] for each in networks
    ])  # fmt: skip
    names = [str(number) for number in range(len(networks))]
    return ClassFit.fit(networks, times_ms, names, training=False)


def test_a_graph_and_a_list_differ_by_what_only_one_has(tool: ModuleType, learnt) -> None:
    listed = {Cost("product", "flops"): 5.0, Cost("copy", "bytes"): 1.0}
    graph = {**listed, Cost("copy", "bytes"): 2.0}
    found = tool.difference(learnt, graph, listed)
    assert found.ratio == pytest.approx(16 / 13, rel=0.02)
    assert found.by_class["copy"] == pytest.approx(3 / 13, rel=0.05)
    assert tool.difference(learnt, listed, listed).ratio == 1.0
    text = tool.difference_text(device_facts("v100"), "2", {"one": found}, [])
    assert "1 differ by more than 5%" in text
    assert "| one | +" in text


def test_groups_add_up_to_the_predicted_total(tool: ModuleType, learnt) -> None:
    terms = {Cost("product", "flops"): 5.0, Cost("copy", "bytes"): 1.0}
    groups = tool.attributed_groups(learnt, terms)
    assert set(groups) == {"products", "copies and others"}
    total_ms = sum(each.value for each in groups.values())
    assert total_ms == pytest.approx(float(learnt.predict([terms]).values[0]))


def test_layers_count_as_measured_where_a_device_has_rows_of_their_sort(tool: ModuleType) -> None:
    rows = SimpleNamespace(
        kind="activation", columns={"activation": np.array(["relu", "gelu"])},
        of=lambda device: np.array([device == "t4", False]),
    )  # fmt: skip
    taught = tool.sorts_of(rows, "t4")
    assert tool.sort_of(Activation(batch=1, values=8, activation="relu")) in taught
    assert tool.sort_of(Activation(batch=1, values=8, activation="gelu")) not in taught
    assert tool.sorts_of(rows, "h100") == set()
    dense = SimpleNamespace(kind="dense", columns={}, of=lambda _: np.array([True]))
    assert tool.sort_of(Dense(batch=1, features_in=2, features_out=2)) in tool.sorts_of(dense, "t4")


def test_classes_stand_under_their_groups(tool: ModuleType) -> None:
    columns = {
        "A": {"convolution": Band(3.0, 2.0, 5.0), "relu": Band(1.0, 1.0, 1.0)},
        "B": {"convolution": Band(1.0, 1.0, 1.0), "copy": Band(1.0, 1.0, 1.0)},
    }
    lines = tool.layer_table(columns).splitlines()[2:]
    assert lines[0] == "| **all** | 4.00 (3.00 to 6.00), 100% | 2.00, 100% |"
    group = "convolutions with normalisation and activation"
    assert f"| **{group}** | 4.00 (3.00 to 6.00), 100% | 1.00, 50% |" in lines
    assert "| relu | 1.00, 25% |  |" in lines
    assert "| copy |  | 1.00, 50% |" in lines
