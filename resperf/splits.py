"""Which rows train, which choose the best epoch, and which only evaluation may read."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SPLIT_SEED = 0
"""Fixed, so that predictors of different training seeds are judged on the same rows."""

_TRAIN, _VALIDATION = 0.8, 0.9

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Split:
    """Masks of shape (rows,): each row belongs to exactly one part."""

    train: Mask
    validation: Mask
    test: Mask


def split_of_keys(keys: Sequence[str], seed: int = SPLIT_SEED) -> Split:
    """Split by the hash of each key: 80% train, 10% validation, 10% test.

    A key falls into the same part in every file and in any order, so that repeats of a layer never
    stand on two sides, and a dataset that grows keeps its test rows.
    """
    places = np.array([_place(key, seed) for key in keys], dtype=float)
    return Split(
        train=places < _TRAIN,
        validation=(places >= _TRAIN) & (places < _VALIDATION),
        test=places >= _VALIDATION,
    )


def _place(key: str, seed: int) -> float:
    """Return a number in [0, 1) that only key and seed decide."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def pack_keys(keys: Sequence[str]) -> str:
    """Return a compact text by which `was_packed` knows keys again: four bytes each, base64."""
    digests = np.array(sorted({_short(key) for key in keys}), dtype="<u4")
    return base64.b64encode(digests.tobytes()).decode("ascii")


def was_packed(keys: Sequence[str], packed: str) -> Mask:
    """Say for each key whether it was among the packed ones, shape (keys,).

    About one strange key in a million is taken for a known one, for every 4,000 packed keys.
    """
    known = np.frombuffer(base64.b64decode(packed), dtype="<u4")
    return np.isin(np.array([_short(key) for key in keys], dtype="<u4"), known)


def _short(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
