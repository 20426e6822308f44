"""Compare the predictions of environments with other versions of ONNX Runtime with this one's.

    python3.11 -m venv newest && newest/bin/pip install . "onnxruntime==1.32.*"
    python3.11 -m venv oldest && oldest/bin/pip install . "onnxruntime==1.21.*"
    python tools/benchmarks/runtimes.py newest/bin/python oldest/bin/python

Prints how the shipped networks (or FILES) were lowered, which predictions differ by more than
--tolerance, and the warnings that this environment does not give. Exits with 1 if totals of
networks with equal layers differ, or one was lowered by rules there and not here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BATCHES = ("1", "8")


def predicted(python: str, networks: list[Path]) -> dict[str, Any]:
    """Return the documents of an environment's predictions by network and batch size."""
    found = {}
    # The environment's own package: neither this folder nor PYTHONPATH is searched.
    around = {
        **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        "PYTHONSAFEPATH": "1",
    }
    environment = {**os.environ} if python == sys.executable else around
    for network in networks:
        words = [python, "-m", "resperf", "predict", str(network.resolve()), "--device", "cpu",
                 "--batch", *BATCHES, "--json"]  # fmt: skip
        answer = subprocess.run(words, capture_output=True, check=True, env=environment)
        for each in json.loads(answer.stdout):
            found[f"{network.stem}, batch {each['batch']}"] = each
    return found


def layers(document: dict[str, Any]) -> Counter[tuple[str, int, int]]:
    return Counter((each["kind"], each["macs"], each["moved_bytes"]) for each in document["layers"])


def compared(
    here: dict[str, Any], there: dict[str, Any], tolerance: float
) -> tuple[list[str], int]:
    """Say what differs, one line each, and how many of the differences should not be."""
    lines, wrong = [], 0
    for name, mine in here.items():
        theirs = there[name]
        alike = layers(mine) == layers(theirs)
        difference = theirs["total_ms"] / mine["total_ms"] - 1
        by_rules = theirs["lowering"] == "rules" != mine["lowering"]
        wrong += by_rules or (alike and abs(difference) > tolerance)
        if abs(difference) > tolerance or not alike or by_rules:
            lines.append(
                f"{name}: total {difference:+.1%}, {len(theirs['layers'])} layers instead of "
                f"{len(mine['layers'])}{'' if alike else ' (others)'}, by {theirs['lowering']}"
            )
        own = [each for each in theirs["warnings"] if each not in mine["warnings"]]
        lines += [f"{name}: warning: {each}" for each in own]
    return lines, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pythons", nargs="+", help="Python of each other environment")
    parser.add_argument("--networks", nargs="+", type=Path, metavar="FILES")
    parser.add_argument("--tolerance", type=float, default=0.02)
    given = parser.parse_args()
    networks = given.networks or sorted((ROOT / "models" / "networks").glob("*.onnx"))
    here, failed = predicted(sys.executable, networks), 0
    for python in given.pythons:
        there = predicted(python, networks)
        lines, wrong = compared(here, there, given.tolerance)
        lowered = Counter(each["lowering"] for each in there.values())
        counts = ", ".join(f"{count} by {how}" for how, count in lowered.most_common())
        print(f"{python}: {len(there)} predictions, {counts}", *lines, sep="\n  ")
        failed += wrong
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
