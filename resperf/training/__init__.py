"""Training bundles on datasets, and evaluating bundles and methods on unseen rows."""

from resperf.training.compare import Compared, Comparison, ComparisonSettings, compare
from resperf.training.evaluate import Evaluated, Evaluation, evaluate
from resperf.training.fit import keys_of_networks, train
from resperf.training.learning import TrainingProgress, progress_bar
from resperf.training.left_out import LeftOut, leave_out

__all__ = [
    "Compared", "Comparison", "ComparisonSettings", "Evaluated", "Evaluation", "LeftOut",
    "TrainingProgress", "compare", "evaluate", "keys_of_networks", "leave_out", "progress_bar",
    "train",
]  # fmt: skip
