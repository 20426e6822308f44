#!/usr/bin/env python
"""Lower networks by ONNX Runtime and by stored rules: what has no layer, and where they differ.

    python tools/export_networks.py build/networks
    python tools/compare_lowerings.py build/networks/*.onnx

    python tools/compare_lowerings.py build/networks/*.onnx --batch 8 --ways-from 1

Without files, all of models/networks and the onnx wheel's light networks. With --ways-from, what
ONNX Runtime answers is compared with what is made of its graph of that batch size, and with its
graph without blocks, to which this machine's blocks are applied.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from statistics import median

from resperf.backends import backend
from resperf.errors import Message, ResperfError
from resperf.lowering import LoweredNetwork, LoweredNode, _ort_batches, _ort_graph, lower
from resperf.network import Network, read_network
from resperf.report.tables import table
from resperf.settings import Setting
from resperf.workflows.demo import light_networks

SHIPPED = Path(__file__).parents[1] / "models" / "networks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", type=Path, nargs="*")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--ways-from", type=int, metavar="BATCH")
    arguments = parser.parse_args()
    paths = arguments.networks or [*sorted(SHIPPED.glob("*.onnx")), *light_networks()]
    device = backend("onnxruntime")
    target = (device.setting(), device.platform())
    if arguments.ways_from:
        compare_ways(paths, arguments.ways_from, arguments.batch, target[0])
        return
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
        reasons.update(f"{node.op}: {Message.of(node.reason).general}" for node in unknown)
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


def compare_ways(paths: list[Path], first: int, second: int, setting: Setting) -> None:
    """Compare asking ONNX Runtime about the batch size `second` with the cheaper ways."""
    block = int(setting.options["nchwc_block"])

    def asked(network: Network) -> tuple[list[LoweredNode], float]:
        start = time.perf_counter()
        nodes = _ort_graph.ask(network, block, threads=setting.threads)
        return nodes, time.perf_counter() - start

    counts, ratios = Counter[str](), []
    for path in paths:
        before, now = (read_network(path, batch=batch) for batch in (first, second))
        _ort_batches.kept.clear()
        expected, _ = asked(now)
        _ort_batches.kept.clear()
        _, first_s = asked(before)
        again, second_s = asked(now)
        reused = len(_ort_batches.kept) == 1
        applied = _ort_graph.ask_for(now, block, threads=setting.threads)
        counts[f"graph of batch {first} {'reused' if reused else 'not reused'}"] += 1
        for way, nodes in ((f"after batch {first}", again), ("with blocks applied", applied)):
            alike = _kernels(nodes) == _kernels(expected)
            counts[f"{way}: {'the same' if alike else 'other'} layers"] += 1
            if not alike:
                print(f"{path.stem}: other layers {way}")
        ratios.append(second_s / first_s)
        print(f"{path.stem:<36} {first_s:6.3f} s, then {second_s:6.3f} s: {ratios[-1]:.2f}")
    for what, count in counts.items():
        print(f"{count:5} x {what}")
    print(f"lowering at batch {second} after {first}: {median(ratios):.2f} of the time (median), "
          f"{sum(each <= 0.2 for each in ratios)} of {len(ratios)} at most 0.2")  # fmt: skip


def _kernels(nodes: list[LoweredNode]) -> Counter[tuple[object, ...]]:
    found = [node for node in nodes if node.role != "view"]
    return Counter((node.role, node.layer or node.op) for node in found)


def _layers(lowered: LoweredNetwork) -> Counter[str]:
    return Counter(node.layer.key for node in lowered.nodes if node.layer is not None)


if __name__ == "__main__":
    main()
