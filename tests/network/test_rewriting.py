"""Replacing nodes in a network, on graphs with nothing else in them."""

from __future__ import annotations

import numpy as np
import pytest

from resperf.network import Network, Node, Tensor
from resperf.network.rewriting import Rewriting


def graph(*nodes: tuple[str, str, str], outputs: tuple[str, ...] = ("d",)) -> Rewriting:
    """Nodes as (name, output, input)."""
    made = tuple(Node(name, "Abs", "", (read,), (out,), {}) for name, out, read in nodes)
    return Rewriting(Network("net", made, {}, ("x",), outputs, {}, 1))


def chain(outputs: tuple[str, ...] = ("d",)) -> Rewriting:
    """Four nodes of which each reads the one before."""
    return graph(
        ("A", "a", "x"), ("B", "b", "a"), ("C", "c", "b"), ("D", "d", "c"), outputs=outputs
    )


def names(rewriting: Rewriting) -> list[str]:
    return [node.name for node in rewriting.walk()]


def test_walk_goes_through_the_further_nodes_that_replace_one() -> None:
    rewriting, seen = chain(), []
    for node in rewriting.walk():
        seen.append(node.name)
        if node.name == "B":
            new = [Node(name, "Abs", "", ("a",), (name,), {}) for name in ("B1", "B2", "b")]
            rewriting.replace(node, *new)
            rewriting.replace(rewriting.maker["c"])
    assert seen == ["A", "B", "B2", "b", "D"]
    assert names(rewriting) == ["A", "B1", "B2", "b", "D"]
    assert [node.name for node in rewriting.readers("a")] == ["B1", "B2", "b"]
    assert "c" not in rewriting.maker
    assert rewriting.maker["b"].name == "b"


def test_a_joined_node_is_where_the_last_was_and_names_its_sources_in_order() -> None:
    rewriting = chain()
    _, second, third, last = rewriting.walk()
    assert rewriting.join([second], third, Node("C", "Neg", "", ("a",), ("c",), {}))
    assert rewriting.sources == {"C": ("B", "C")}
    joined = rewriting.maker["c"]
    assert rewriting.join([joined], last, Node("whole", "Neg", "", ("a",), ("d",), {}))
    assert names(rewriting) == ["A", "whole"]
    assert rewriting.rewritten().sources["whole"] == ("B", "C", "D")
    assert [node.name for node in rewriting.readers("a")] == ["whole"]


@pytest.mark.parametrize(
    "rewriting",
    [
        chain(outputs=("d", "c")),
        graph(("B", "b", "x"), ("C", "c", "b"), ("D", "d", "c"), ("E", "e", "c")),
    ],
    ids=["output of the network", "read elsewhere"],
)
def test_what_is_needed_elsewhere_is_not_joined(rewriting: Rewriting) -> None:
    before, maker = names(rewriting), rewriting.maker
    whole = Node("D", "Neg", "", ("b",), ("d",), {})
    assert not rewriting.join([maker["c"]], maker["d"], whole)
    assert names(rewriting) == before
    assert not rewriting.sources


def test_a_new_node_may_have_the_name_of_another() -> None:
    rewriting = chain()
    rewriting.replace(rewriting.maker["a"], Node("B", "Neg", "", ("x",), ("a",), {}))
    rewriting.replace(rewriting.maker["b"])
    assert [(node.name, node.op) for node in rewriting.walk()] == [
        ("B", "Neg"), ("C", "Abs"), ("D", "Abs"),
    ]  # fmt: skip
    assert not rewriting.readers("a")
    assert rewriting.readers("x")[0].op == "Neg"


@pytest.mark.parametrize(("number", "is_near"), [(0.5004, True), (0.501, False), (0.0, False)])
def test_numbers_are_compared_within_a_thousandth(number: float, is_near: bool) -> None:
    tensor = Tensor("x", (1,), "float32", np.array([number], np.float32), is_weight=True)
    rewriting = Rewriting(Network("net", (), {"x": tensor}, (), (), {}, 1))
    assert rewriting.is_near("x", 0.044715, 0.5) is is_near
