"""Compare the predictions of two versions of resperf: shipped bundles, networks, batch sizes.

    python tools/compare_predictions.py --write before.json     # with the old code
    python tools/compare_predictions.py --against before.json   # with the new code

Compares each pair's total and each of its layers. Exits with 1 if more pairs than --allowed differ
by more than --tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import resperf
from resperf.errors import ResperfError

ROOT = Path(__file__).resolve().parents[1]
BATCHES = (1, 8)


def predicted(bundles: list[Path], networks: list[Path]) -> dict[str, Any]:
    """Return the JSON form of each prediction, or the error, by bundle, network and batch."""
    found: dict[str, Any] = {}
    for bundle in bundles:
        for network in networks:
            for batch in BATCHES:
                label = f"{bundle.name} {network.stem} {batch}"
                try:
                    each = resperf.predict(network, bundle=bundle, batch=batch)
                except ResperfError as error:
                    found[label] = {"error": str(error)}
                    continue
                values = each.to_json()
                found[label] = {
                    "total_ms": values["total_ms"],
                    "layers": {layer["name"]: layer["execution_ms"] for layer in values["layers"]},
                    "skipped": len(values["skipped"]),
                }
    return found


def differing(before: dict[str, Any], now: dict[str, Any], tolerance: float) -> list[str]:
    """Say which pairs differ, and by how much."""
    lines = []
    for label, old in before.items():
        new = now.get(label)
        if new is None or ("error" in old) != ("error" in new):
            was, is_now = (
                "absent" if each is None else each.get("error", "a total") for each in (old, new)
            )
            lines.append(f"{label}: {was} before, {is_now} now")
            continue
        if "error" in old:
            continue
        ratio = new["total_ms"] / old["total_ms"] if old["total_ms"] else float("nan")
        others = [
            name
            for name, time_ms in old["layers"].items()
            if name not in new["layers"]
            or abs(new["layers"][name] - time_ms) > tolerance * abs(time_ms)
        ]
        same = abs(ratio - 1) <= tolerance and old["skipped"] == new["skipped"]
        if not same or others or len(old["layers"]) != len(new["layers"]):
            lines.append(f"{label}: total {ratio - 1:+.3%}, {len(others)} of {len(old['layers'])} "
                         f"layers, skipped {old['skipped']} -> {new['skipped']}")  # fmt: skip
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--bundles", type=Path, default=ROOT / "models" / "bundles")
    parser.add_argument("--networks", type=Path, default=ROOT / "models" / "networks")
    parser.add_argument("--tolerance", type=float, default=0.001)
    parser.add_argument("--allowed", type=float, default=0.02, help="share of pairs")
    given = parser.parse_args()
    now = predicted(
        sorted(path.parent for path in given.bundles.glob("*/bundle.json")),
        sorted(given.networks.glob("*.onnx")),
    )
    if given.write:
        given.write.write_text(json.dumps(now))
        print(f"{len(now)} pairs in {given.write}")
    if not given.against:
        return 0
    lines = differing(json.loads(given.against.read_text()), now, given.tolerance)
    print("\n".join(lines))
    print(f"{len(lines)} of {len(now)} pairs differ by more than {given.tolerance:.1%}")
    return int(len(lines) > given.allowed * len(now))


if __name__ == "__main__":
    sys.exit(main())
