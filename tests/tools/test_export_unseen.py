"""What is judged once is in no other list of networks."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

SEEN = {
    ("second", "export_networks"): {"distilbert_128"},
    # docs/accuracy-measured.md names them: figures are without them.
    ("fourth", "export_networks"): {"resnext50_32x4d", "convnext_tiny"},
    ("second", "fourth"): {"tf_efficientnet_lite2"},  # it did not export
}
"""Pairs of lists -> what both have."""


def names(listed: Any) -> set[str]:
    groups = (listed.script, listed.dynamo, listed.torchvision, listed.converted, listed.others)
    return {name for group in groups for name in group}


def test_no_list_repeats_what_was_looked_at(load_tool: Callable[[str], ModuleType]) -> None:
    before, unseen = load_tool("export_networks"), load_tool("export_unseen")
    lists = {word: names(each) for word, each in unseen.LISTS.items()}
    assert before.__file__ is not None
    words = re.findall(r'"(\w+)"', Path(before.__file__).read_text(encoding="utf-8"))
    lists["export_networks"] = set(words)
    assert {"resnet50", "convnext_tiny", "distilbert_128"} <= lists["export_networks"]
    for (one, these), (other, those) in combinations(lists.items(), 2):
        assert these & those == SEEN.get((one, other), set()), (one, other)
