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

FRAMEWORK, DEVICE_CLASS = "torch", "cuda"
"""What has a caching allocator, and a context beside it."""
_BUNDLE = "gpus-torch-memory"
_SHOWN_GROUPS = 3
_PLAIN = ("", "fp32", "tf32")


def with_memory(
    network: Network, prediction: Prediction, optimizer: str, *, training: bool, strict: bool
) -> Prediction:
    """Add the memory of a run or step to a prediction for PyTorch; of CPUs that of tensors alone.

    Raises
    ------
    UnsupportedError
        If `strict` and it is more than the device has, or the optimizer is not known.
    """
    subject, remarks, too_large = prediction.subject, prediction.remarks, ""
    facts = device_facts(subject.device)
    where = device_class(subject.device, FRAMEWORK)
    simulates = subject.framework == FRAMEWORK and subject.compiled in ("", "eager")
    on_card = facts is not None and where == DEVICE_CLASS
    simulates &= prediction.parts.quantity(PEAK_MEMORY) is None
    if not simulates or not (on_card or where == DEFAULT.device_class):
        return prediction
    mode = Mode.TRAINING if training else Mode.INFERENCE
    setting = Setting(
        FRAMEWORK, subject.framework_version, mode=mode, optimizer=optimizer,
        precision=subject.precision,
    )  # fmt: skip
    memory = simulated(network, setting, subject.device)
    peaks = {PEAK_MEMORY: memory.peaks.allocated_bytes}
    process: list[QuantityPrediction] = []
    groups = [*memory.peaks.groups.items()][:_SHOWN_GROUPS]
    alive = ", ".join(f"{format_bytes(size)} {what}" for what, size in groups)
    of_optimizer = f" ({optimizer})" if training else ""
    notes: tuple[str, ...] = (f"alive at the peak of memory{of_optimizer}: {alive}",)
    if facts is not None and on_card:
        peaks[RESERVED_MEMORY] = needed = memory.peaks.reserved_bytes
        if training:
            whole, fitted = _process_memory(memory, setting, subject.device)
            process, needed = [whole], whole.value
            notes += fitted
        share, there = needed / facts.memory_bytes, format_bytes(facts.memory_bytes)
        if share > 1:
            too_large = (
                f"a {'step' if training else 'run'} needs {format_bytes(needed)} and does not fit "
                f"into {there} of {subject.device}"
            )
        else:
            name = "process_memory" if training else "peak_reserved"
            notes = (f"{name} is {share:.0%} of the card's {there}", *notes)
    notes += memory.unknown
    if too_large and strict:
        raise UnsupportedError(f"{network.name}: {too_large}")
    quantities = [
        QuantityPrediction(name, value, math.nan, math.nan, MemoryTimeline.method, mode)
        for name, value in peaks.items()
    ]
    remarks = replace(
        remarks, notes=(*remarks.notes, *notes), too_large=too_large or remarks.too_large
    )
    parts = prediction.parts
    parts = replace(parts, quantities=(*parts.quantities, *quantities, *process))
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
    value, low, high = predictor.of_simulated(
        step, like_rows=device == part.device and setting.precision in _PLAIN
    )
    notes = (
        f"process_memory: what libraries hold beside tensors is that of {part.device} in fp32",
    ) * (device != part.device or setting.precision not in _PLAIN)
    name = predictor.method
    return QuantityPrediction(PROCESS_MEMORY, value, low, high, name, Mode.TRAINING), notes
