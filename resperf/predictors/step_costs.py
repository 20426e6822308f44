"""Ours: a training step of eager PyTorch on a CPU as the sum of what its operators cost.

The terms are few and shared by all operators, so that networks of other kinds cost what theirs do:
operators that the host starts, FLOPs by how they are computed, bytes that are read, written, copied
and allocated (`resperf.lowering._torch_memory`). Their costs are fitted to measured networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from resperf.errors import LayerError, UnsupportedError
from resperf.lowering._torch_eager import TorchKernel
from resperf.lowering._torch_memory import (
    CELLS,
    WEIGHTS,
    copied_bytes,
    optimizer_of,
    training_memory,
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
_FEW_CHANNELS = 16
"""A convolution of fewer channels, as of an image, does not fill a vector with them."""
_MAPPED = 32 << 20
"""Larger blocks are mapped anew by glibc each time, and their pages are cleared."""
_PRODUCTS = frozenset({"addmm", "bmm", "mm", "mv", "sdpa"})
TERMS = (
    "constant", "operators", "products", "steps of LSTMs", "tensors updated", "MB updated",
    "MB allocated", "MB mapped", "MB copied", "MB of values", "MB of normalisations", "MB of pools",
    "MB of factors", "MB of cells", "GFLOP of windows", "GFLOP of places", "GFLOP of groups",
    "GFLOP of few channels", "GFLOP of products", "GFLOP of cells",
)  # fmt: skip
"""Convolutions are of windows, of single places, in groups, or read few channels."""
_MB, _GFLOP = 1e6, 1e9


class StepCosts(LinearInGraph):
    """Costs of operators, FLOPs and bytes of a training step, by least absolute relative errors."""

    method = "step-costs"
    quantities = frozenset({STEP})
    robust = Robust(rounds=8, least_error=0.02)

    def rows(
        self, networks: Sequence[Any], how: Sequence[tuple[Setting, Platform]]
    ) -> list[dict[str, float]]:
        """Return the terms of each network under its setting."""
        return [
            step_terms(network, setting)
            for network, (setting, _) in zip(networks, how, strict=True)
        ]

    def not_counted(self, network: Network, setting: Setting, platform: Platform) -> Sequence[str]:
        """Return why operators are not among the terms."""
        _, kernels, _ = run_tensors(network, setting)
        return tuple(dict.fromkeys(kernel.reason for kernel in kernels if kernel.reason))


def step_terms(network: Network, setting: Setting) -> dict[str, float]:
    """Return what a training step on a CPU costs in proportion to: MB, GFLOP and counts.

    Raises
    ------
    UnsupportedError
        If the memory that the optimizer needs is not known.
    """
    setting = setting.with_optimizer(setting.optimizer or "sgd")
    run, kernels, _ = run_tensors(network, setting)
    memory = training_memory(network, setting, on_cpu=True, in_place=False)
    weights = [a.size_bytes for a in memory.allocations[: memory.resident] if a.what == WEIGHTS]
    allocated = [memory.allocations[at].size_bytes for at in memory.events if at >= 0]
    allocated = allocated[memory.resident :]
    inputs, terms = set(run.inputs), dict.fromkeys(TERMS, 0.0)
    for kernel in kernels:
        if not kernel.reason:
            _add(terms, kernel, is_first={*kernel.storages[:1]} <= inputs)
    terms["constant"] = 1
    terms["tensors updated"] = len(weights)
    terms["MB updated"] = sum(weights) / _MB * optimizer_of(setting).moved
    terms["MB allocated"] = sum(allocated) / _MB
    terms["MB mapped"] = sum(size for size in allocated if size > _MAPPED) / _MB
    return terms


def _add(terms: dict[str, float], kernel: TorchKernel, *, is_first: bool) -> None:
    """Add an operator, whose first operand may be an input of the network, without gradient."""
    operator, op = kernel.operator, kernel.op
    width = DTYPE_BYTES.get(kernel.output_dtype, 8) / _MB
    shapes = [operand.shape for operand in operator.inputs if operand is not None]
    moved = width * sum(map(math.prod, [*shapes[:1], operator.result()]))
    terms["operators"] += _STARTED
    if op in CELLS:
        steps = shapes[0][0] * shapes[2][0]
        terms["operators"] += _STARTED_PER_STEP[op] * steps
        terms["products"] += _STARTED * steps * (op != "lstm")
        terms["steps of LSTMs"] += steps * (op == "lstm")
        terms["GFLOP of cells"] += _STARTED * _gflop(kernel)
        terms["MB of cells"] += width * steps * math.prod(shapes[2][1:])
    elif op == "convolution":
        weights = shapes[1]
        sort = "windows" if max(weights[2:]) > 1 else "places"
        if int(operator.attributes.get("group", 1)) > 1:
            sort = "groups"
        elif shapes[0][1] < _FEW_CHANNELS:
            sort = "few channels"
        gradients = 1 if is_first else 2
        terms[f"GFLOP of {sort}"] += (1 + gradients) * _gflop(kernel)
        terms["MB copied"] += sum(copied_bytes(kernel, gradients)) / _MB
    elif op in _PRODUCTS:
        terms["products"] += _STARTED
        terms["GFLOP of products"] += _STARTED * _gflop(kernel)
        terms["MB of factors"] += width * math.prod(shapes[1])
    else:
        terms["MB of values"] += 2 * moved
        terms["MB of normalisations"] += moved * op.endswith("norm")
        terms["MB of pools"] += moved * ("pool" in op)


def _gflop(kernel: TorchKernel) -> float:
    try:
        return kernel.layer().flops / _GFLOP
    except (LayerError, UnsupportedError):
        return 0.0
