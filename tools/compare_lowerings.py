#!/usr/bin/env python
"""Lower networks by ONNX Runtime and by stored rules: what has no layer, and where they differ.

    python tools/export_networks.py build/networks
    python tools/compare_lowerings.py build/networks/*.onnx

Without files, all of models/networks and the onnx wheel's light networks.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from resperf.backends import backend
from resperf.errors import ResperfError
from resperf.lowering import LoweredNetwork, lower
from resperf.network import read_network
from resperf.report.tables import table
from resperf.workflows.demo import light_networks

SHIPPED = Path(__file__).parents[1] / "models" / "networks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", type=Path, nargs="*")
    parser.add_argument("--batch", type=int, default=1)
    arguments = parser.parse_args()
    paths = arguments.networks or [*sorted(SHIPPED.glob("*.onnx")), *light_networks()]
    device = backend("onnxruntime")
    target = (device.setting(), device.platform())
    rows, reasons, same, complete = [], Counter[str](), 0, 0
    for path in paths:
        network = read_network(path, batch=arguments.batch)
        by_rules = lower(network, *target, method="rules")
        try:
            asked = lower(network, *target, method="framework")
        except ResperfError as error:
            rows.append([path.stem, "", "", "", str(error)])
            continue
        unknown = [node for node in asked.nodes if node.role == "unknown"]
        reasons.update(f"{node.op}: {node.reason.partition(': ')[2]}" for node in unknown)
        missing, extra = _layers(asked) - _layers(by_rules), _layers(by_rules) - _layers(asked)
        differs = f"{missing.total()} layers of its own, {extra.total()} of the rules"
        same += not (missing or extra)
        complete += not unknown
        rows.append(
            [path.stem, str(len(asked.nodes)), str(_layers(asked).total()), str(len(unknown)),
             differs if missing or extra else ""]
        )  # fmt: skip
    differ = "ONNX Runtime and rules differ"
    headings = ("network", "nodes", "layers", "without a layer", differ)
    print(table(headings, rows, text=("network", differ)))
    print(f"\n{complete} of {len(paths)} networks have a layer for every operator, ", end="")
    print(f"{same} are lowered alike by the rules")
    for reason, count in reasons.most_common(20):
        print(f"{count:5} x {reason}")


def _layers(lowered: LoweredNetwork) -> Counter[str]:
    return Counter(node.layer.key for node in lowered.nodes if node.layer is not None)


if __name__ == "__main__":
    main()
