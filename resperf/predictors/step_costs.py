"""Ours: a training step of eager PyTorch on a CPU as the sum of what its operators cost.

The terms are few and shared by all operators, so that networks of other kinds cost what theirs do:
operators that the host starts, FLOPs by how they are computed, bytes that are read, written, copied
and allocated (`resperf.lowering._torch_memory`). Their costs are fitted to measured networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

from resperf.errors import LayerError, UnsupportedError
from resperf.lowering._torch_eager import POINTWISE_KERNELS, TorchKernel
from resperf.lowering._torch_memory import (
    BLOCK,
    CELLS,
    WEIGHTS,
    copied_bytes,
    memory_of,
    optimizer_of,
)
from resperf.lowering.torch import run_tensors
from resperf.network import Network
from resperf.platform import Platform
from resperf.predictors.convmeter import LinearInGraph
from resperf.predictors.linear import Robust
from resperf.quantities import STEP
from resperf.settings import Setting
from resperf.units import DTYPE_BYTES

_STARTED = 3
"""Operators for one of the forward pass: it, and one for the gradient of each of two operands."""
_STARTED_PER_STEP = {"gru": 16 + 19 - _STARTED, "rnn": 4 + 8 - _STARTED, "lstm": 0}
"""Operators besides products and views that PyTorch's profiler counts for a step of a cell."""
_GRAIN = 32768
"""Values that one thread computes (``at::internal::GRAIN_SIZE``). More of them, and all operators
but those that compute value by value, are shared by all threads, which wait for each other."""
_SHARED_COPY = 1 / 3
"""What a copy of a convolution costs of that: the threads are together already."""
_MAPPED = 32 << 20
"""Larger blocks are mapped anew by glibc each time, and their pages are cleared."""
_PRODUCTS = frozenset({"addmm", "bmm", "mm", "mv", "sdpa"})
_PARTS: Mapping[str, tuple[str, ...]] = {
    "GFLOP": ("few channels", "groups", "products", "cells"),
    "MB": ("copied", "normalisations", "pools", "cells", "updated"),
}
"""Total -> what costs more than the others: a term of its own, drawn to no extra cost."""
PARTS = {f"{total} of {part}": total for total, parts in _PARTS.items() for part in parts}
TERMS = (
    "constant", "operators", "shared operators", "steps of LSTMs", "MB allocated", "MB mapped",
    *_PARTS, *PARTS,
)  # fmt: skip
_MB, _GFLOP = 1e6, 1e9


class StepCosts(LinearInGraph):
    """Costs of operators, FLOPs and bytes of a training step, by least absolute relative errors."""

    method = "step-costs"
    quantities = frozenset({STEP})
    counts_optimizers = True
    parts = PARTS
    robust = Robust(rounds=8, least_error=0.02)

    def terms(
        self, network: Network, setting: Setting, platform: Platform
    ) -> tuple[dict[str, float], Sequence[str]]:
        """Return the terms of a network, and why operators are not among them."""
        return step_terms(network, setting)


def step_terms(network: Network, setting: Setting) -> tuple[dict[str, float], Sequence[str]]:
    """Return what a training step on a CPU costs in proportion to: MB, GFLOP and counts.

    Beside it, why operators are not among them.

    Raises
    ------
    UnsupportedError
        If the memory that the optimizer needs is not known.
    """
    setting = setting.with_optimizer(setting.optimizer or "sgd")
    run, kernels, ends = run_tensors(network, setting)
    memory = memory_of((run, kernels, ends), setting, on_cpu=True, in_place=False)
    weights = [a.size_bytes for a in memory.allocations[: memory.resident] if a.what == WEIGHTS]
    allocated = [memory.allocations[at].size_bytes for at in memory.events if at >= 0]
    allocated = allocated[memory.resident :]
    inputs, terms = set(run.inputs), dict.fromkeys(TERMS, 0.0)
    for kernel in kernels:
        if not kernel.reason:
            is_first = {*kernel.storages[:1]} <= inputs
            _add(terms, kernel, is_first=is_first, threads=setting.threads or 1)
    terms["constant"] = 1
    terms["MB allocated"] = sum(allocated) / _MB
    terms["MB mapped"] = sum(size for size in allocated if size > _MAPPED) / _MB
    _count(terms, "MB", "updated", sum(weights) / _MB * optimizer_of(setting).moved)
    return terms, tuple(dict.fromkeys(kernel.reason for kernel in kernels if kernel.reason))


def _add(terms: dict[str, float], kernel: TorchKernel, *, is_first: bool, threads: int) -> None:
    """Add an operator, whose first operand may be an input of the network, without gradient."""
    operator, op = kernel.operator, kernel.op
    width = DTYPE_BYTES.get(kernel.output_dtype, 8) / _MB
    shapes = [operand.shape for operand in operator.inputs if operand is not None]
    is_shared = op not in POINTWISE_KERNELS or math.prod(operator.result()) > _GRAIN
    terms["shared operators" if is_shared else "operators"] += _STARTED
    gflop = 0.0
    with suppress(LayerError, UnsupportedError):
        gflop = _STARTED * kernel.layer().flops / _GFLOP
    if op in CELLS:
        steps = shapes[0][0] * shapes[2][0]
        terms["operators"] += _STARTED_PER_STEP[op] * steps
        terms["shared operators"] += _STARTED * steps * (op != "lstm")
        terms["steps of LSTMs"] += steps * (op == "lstm")
        _count(terms, "GFLOP", "cells", gflop)
        _count(terms, "MB", "cells", width * steps * math.prod(shapes[2][1:]))
    elif op == "convolution":
        is_grouped = int(operator.attributes.get("group", 1)) > 1
        sort = "few channels" if shapes[0][1] < BLOCK else "groups" * is_grouped
        gradients = 1 if is_first else 2
        _count(terms, "GFLOP", sort, gflop * (1 + gradients) / _STARTED)
        copies = list(filter(None, copied_bytes(kernel, gradients, threads)))
        terms["shared operators"] += _SHARED_COPY * len(copies)
        _count(terms, "MB", "copied", sum(copies) / _MB)
    elif op in _PRODUCTS:
        _count(terms, "GFLOP", "products", gflop)
        terms["MB"] += _STARTED * width * math.prod(shapes[1])
    else:
        sort = "normalisations" if op.endswith("norm") else "pools" * ("pool" in op)
        _count(terms, "MB", sort, 2 * width * sum(map(math.prod, [*shapes[:1], operator.result()])))


def _count(terms: dict[str, float], total: str, part: str, value: float) -> None:
    """Add to a total, and to a part of it if there is one."""
    terms[total] += value
    if part:
        terms[f"{total} of {part}"] += value
