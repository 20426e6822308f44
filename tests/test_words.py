"""One word for each thing: names and phrases that were replaced do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXTS = sorted(
    [
        *(ROOT / "resperf").rglob("*.py"),
        *(ROOT / "tools").rglob("*.py"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "microbench").glob("*.toml"),
        *ROOT.glob("*.md"),
        ROOT / "datasets/README.md",
        ROOT / "tools/README.md",
    ]
)
EMPTY_NAMES = {"each", "found", "known", "made", "place"}
"""Names of variables that do not say what they hold."""
REPLACED = {
    r"\bAsked\b|\bAnswering\b|\banswering\(": "Query, Choice, choose(), part_for()",
    r"Bundle\.on\b|\b_under\b": "for_device, with_setting",
    r"inter[-_]layer|handover|\bnode_ms\b": "overhead between layers",
    r"session_ms|session call": "call_ms, per-run overhead",
    r"\bview_ms|shape-only operator": "reshape_ms, reshapes",
    r"(?<!mod)\bprobes?\b|\bProbes?\b|_probe|probe_": "calibration layers, machine checks",
    r"session of a published row": "measurement_run",
    r"stands? in for|stood in for|stand_ins?\b": "fallback",
    r"\bdoubts\b|\.doubt\(": "factor_ci, layer_ci, host_ci, sum_ci",
    r"\bPlaced\b|\bmark_of\b|\bsame_way\b|\bis_like\b": "TimedNetwork, bundle_id, same_hardware",
    r"\badapted\b|\badaptations?\b|\bAdaptation\b|resperf adapt": "calibrated, calibration",
    r"transferred_calibration|TransferredCalibration": "Calibration",
    r"device_shares|show-lowering|\.kernel\(\)": "gpu_busy_fraction, show-graph, as_onnx_node()",
    r"restless|nobody had looked|judged once": "noisy host, held-out networks",
}
"""Old names and phrases -> what they are called now."""


def _empty_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "arg", None)
        if name in EMPTY_NAMES and not isinstance(node, ast.keyword):
            yield name, node.lineno


@pytest.mark.parametrize("folder", ["resperf", "tools"])
def test_variables_say_what_they_hold(folder: str) -> None:
    uses = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in _empty_names(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert uses == []


@pytest.mark.parametrize("pattern", REPLACED)
def test_replaced_words_do_not_come_back(pattern: str) -> None:
    uses = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert uses == [], f"say instead: {REPLACED[pattern]}"


def test_old_words_are_noticed() -> None:
    """The test itself finds them: a variable, a parameter, but no attribute and no keyword."""
    source = "def f(known):\n    found = g(made=1).place\n    return [each for each in found]\n"
    assert [name for name, _ in _empty_names(ast.parse(source))].count("each") == 2
    assert {name for name, _ in _empty_names(ast.parse(source))} == {"known", "found", "each"}
