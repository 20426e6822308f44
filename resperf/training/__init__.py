"""Training: a dataset becomes a bundle, and a bundle is judged on rows that it never saw."""

from __future__ import annotations

from resperf.training.evaluate import Evaluation, Judged, evaluate
from resperf.training.exclude import keys_of_networks
from resperf.training.fit import train
from resperf.training.progress import TrainingProgress, progress_bar

__all__ = [
    "Evaluation", "Judged", "TrainingProgress", "evaluate", "keys_of_networks", "progress_bar",
    "train",
]  # fmt: skip
