"""The memory of a run or a training step of PyTorch, beside its time."""

from __future__ import annotations

import math
from dataclasses import replace

from resperf.bundle import find_bundles, named_bundle
from resperf.devices import device_class, device_facts
from resperf.errors import UnsupportedError
from resperf.network import Network
from resperf.prediction.result import Prediction, QuantityPrediction
from resperf.predictors.memory_timeline import MemoryTimeline, Simulated, simulated
from resperf.quantities import PEAK_MEMORY, PROCESS_MEMORY, RESERVED_MEMORY
from resperf.settings import Mode, Setting
from resperf.targets import DEFAULT
from resperf.units import format_bytes

DEVICE_CLASS = "cuda"
"""What has a caching allocator, and a context beside it."""
_BUNDLE = "gpus-torch-memory"
_SHOWN_GROUPS = 3
_SINGLE = ("", "fp32")
_PLAIN = (*_SINGLE, "tf32")
_LACKS_WORKSPACE = (
    "peak_memory lacks what cuDNN takes for float32 convolutions: 0 to 2 GB on an H200"
)


def with_memory(
    network: Network, prediction: Prediction, setting: Setting, *, strict: bool
) -> Prediction:
    """Add the memory of a run or a training step of PyTorch, of CPUs that of tensors alone.

    Raises
    ------
    UnsupportedError
        If `strict` and it is more than the device has, or the optimizer is not known.
    """
    subject, remarks, too_large = prediction.subject, prediction.remarks, ""
    where, optimizer = device_class(subject.device, setting.framework), setting.optimizer
    facts = device_facts(subject.device) if where == DEVICE_CLASS else None
    simulates = facts is not None or where == DEFAULT.device_class
    simulates &= subject.compiled in ("", "eager")
    if not simulates or prediction.parts.quantity(PEAK_MEMORY) is not None:
        return prediction
    setting = replace(setting, precision=subject.precision)
    memory = simulated(network, setting, subject.device)

    def simulated_bytes(name: str, value: int) -> QuantityPrediction:
        method = MemoryTimeline.method
        return QuantityPrediction(name, value, math.nan, math.nan, method, setting.mode)

    quantities = [simulated_bytes(PEAK_MEMORY, memory.peaks.allocated_bytes)]
    notes: tuple[str, ...] = ()
    if optimizer:
        groups = [*memory.peaks.groups.items()][:_SHOWN_GROUPS]
        alive = ", ".join(f"{format_bytes(size)} {what}" for what, size in groups)
        notes = (f"alive at the peak of memory ({optimizer}): {alive}",)
    if facts is not None:
        if memory.convolved_bytes and setting.precision in _SINGLE:
            notes = (*notes, _LACKS_WORKSPACE)
        quantities.append(simulated_bytes(RESERVED_MEMORY, memory.peaks.reserved_bytes))
        there = format_bytes(facts.memory_bytes)
        if optimizer:
            whole, fitted = _process_memory(memory, setting, subject.device)
            quantities.append(whole)
            share = (
                f"process_memory is {whole.value / facts.memory_bytes:.0%} of the card's {there}"
            )
            notes = (share, *notes, *fitted)
        needed = quantities[-1].value
        if needed > facts.memory_bytes:
            what = f"a {'step' if optimizer else 'run'} needs {format_bytes(needed)}"
            too_large = f"{what} and does not fit into {there} of {subject.device}"
    if too_large and strict:
        raise UnsupportedError(f"{network.name}: {too_large}")
    notes = (*remarks.notes, *notes, *memory.unknown)
    remarks = replace(remarks, notes=notes, too_large=too_large or remarks.too_large)
    parts = prediction.parts
    parts = replace(parts, quantities=(*parts.quantities, *quantities))
    return replace(prediction, parts=parts, remarks=remarks)


def _process_memory(
    step: Simulated, setting: Setting, device: str
) -> tuple[QuantityPrediction, tuple[str, ...]]:
    """Add what libraries hold, as fitted on the only card with measurements."""
    path = named_bundle(_BUNDLE)
    assert path is not None, f"{_BUNDLE} is shipped"
    (part,), _ = find_bundles(path, alone=True)
    predictor = part.network_predictor(PROCESS_MEMORY)
    assert isinstance(predictor, MemoryTimeline)
    like_rows = device == part.device and setting.precision in _PLAIN
    ends = predictor.of_simulated(step, like_rows=like_rows)
    note = f"process_memory: what libraries hold beside tensors is that of {part.device} in fp32"
    whole = QuantityPrediction(PROCESS_MEMORY, *ends, predictor.method, Mode.TRAINING)
    return whole, () if like_rows else (note,)
