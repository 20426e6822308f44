"""Acquisition scores of layers that a campaign could measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from resperf.layers import Activation, Dense
from resperf.workflows.adaptive import UNLEARNT_SCORE, acquisition_scores


def test_kinds_without_rows_have_the_highest_score(toy_dataset: Path) -> None:
    known = [Dense(batch=2, features_in=w, features_out=64) for w in (20, 200, 900)]
    unknown = Activation(batch=1, values=500, activation="relu")
    found = np.array(acquisition_scores(toy_dataset, [known[0], unknown, *known[1:]]))
    assert found[1] == UNLEARNT_SCORE
    assert (found[[0, 2, 3]] > 0).all()
    assert (found[[0, 2, 3]] < UNLEARNT_SCORE / 2).all()
