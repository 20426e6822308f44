"""What PyTorch says of itself: its CUDA, and the GPUs that it can use here."""

from __future__ import annotations

import warnings

import torch

from resperf.backends._facts import FrameworkFacts
from resperf.errors import first_line


def facts() -> FrameworkFacts:
    """Ask for CUDA; PyTorch warns if the driver is too old or a card is not supported."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
        cards = range(torch.cuda.device_count() if usable else 0)
        names = [torch.cuda.get_device_name(card) for card in cards]
    notes = [f"cuda:{card} is {name}" for card, name in enumerate(names)]
    notes += [first_line(entry.message) for entry in warned if isinstance(entry.message, Warning)]
    hip = getattr(torch.version, "hip", None)
    family = "rocm" if hip else "cuda"
    return FrameworkFacts(
        version=str(torch.__version__),
        devices=("cpu", *(f"{family}:{card}" for card in cards)),
        cuda=torch.version.cuda or "",
        notes=(*notes, *([f"built for ROCm {hip}"] if hip else [])),
    )
