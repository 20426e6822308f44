#!/usr/bin/env python
"""Count the kernels that torch.compile generates beside those of the rules.

    pip install torch==2.13.0 timm onnxscript
    python tools/compare_torch_compiled.py build/gpu_networks/resnet50-224.onnx ...

Each network is a timm architecture as `tools/export_gpu_networks.py` exports it. Inductor plans its
kernels for a processor, in float32, and is stopped before it compiles any of them; neither a
compiler nor a GPU is needed. Plans for GPUs follow the same rules of fusion, but not in all parts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from export_gpu_networks import BATCH
from export_networks import declare_operators

from resperf.lowering._torch_compiled import fused_kernels
from resperf.lowering.torch import run_kernels
from resperf.network import read_network
from resperf.report.tables import table
from resperf.settings import Setting

LIBRARY = frozenset({"addmm", "bmm", "convolution", "mm", "sdpa"})
_NO_KERNELS = frozenset({"MultiOutput", "NopKernelSchedulerNode"})


class _PlannedError(Exception):
    """Inductor has planned its kernels."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", type=Path, nargs="+")
    arguments = parser.parse_args()
    _kept = declare_operators()
    rows = []
    for path in arguments.networks:
        counts = (*planned(path.stem), *by_rules(path))
        rows.append([path.stem, *map(str, counts)])
        print(*rows[-1], file=sys.stderr, flush=True)
    headings = ("network", "generated", "libraries", "rules: generated", "rules: libraries")
    print(table(headings, rows, text=("network",)))


def by_rules(path: Path) -> tuple[int, int]:
    """Return how many kernels the rules generate, and how many they call."""
    setting = Setting("torch", "2.13.0", compiled="dynamo")
    groups = fused_kernels(run_kernels(read_network(path, batch=BATCH), setting))
    called = sum(group[0].op in LIBRARY for group in groups)
    return len(groups) - called, called


def planned(name: str) -> tuple[int, int]:
    """Return how many kernels Inductor generates for an architecture, and how many it calls."""
    import timm
    import torch
    from torch._inductor import config, scheduler

    found: list[tuple[int, int]] = []

    def stop(self: Any, *_: Any) -> None:
        nodes = [each for each in self.nodes if type(each).__name__ not in _NO_KERNELS]
        called = [type(each.node).__name__ not in _NO_KERNELS for each in nodes if each.is_extern()]
        found.append((len(nodes) - len(called), sum(called)))
        raise _PlannedError

    scheduler.Scheduler.codegen = stop
    config.layout_optimization = False  # Copies to the layout that processors prefer.
    torch._dynamo.reset()
    architecture, _, size = name.rpartition("-")
    module = timm.create_model(architecture).eval()
    image = torch.zeros(BATCH, 3, int(size), int(size))
    try:
        with torch.no_grad():
            torch.compile(module, fullgraph=True)(image)
    except Exception:  # Inductor wraps what stops it.
        if not found:
            raise
    return found[0]


if __name__ == "__main__":
    main()
