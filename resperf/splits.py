"""Split rows into train, validation and test by the hash of their keys."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SPLIT_SEED = 0
"""Fixed, so that predictors of different training seeds are evaluated on the same rows."""

FOLDS = 4
"""Parts that groups are divided into unless more are asked for."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Split:
    """Masks of shape (rows,): each row belongs to exactly one part."""

    train: Mask
    validation: Mask
    test: Mask


def split_of_keys(
    keys: Sequence[str], seed: int = SPLIT_SEED, train: float = 0.8, validation: float = 0.1
) -> Split:
    """Split by the hash of each key: 80% train, 10% validation, 10% test, or other shares.

    A key is in the same part in every file and in any order. Repeats of a layer are therefore never
    in two parts, and the test rows of a growing dataset stay test rows.
    """
    fractions = _fractions(keys, str(seed))
    return Split(
        train=fractions < train,
        validation=(fractions >= train) & (fractions < train + validation),
        test=fractions >= train + validation,
    )


def first_of_keys(keys: Sequence[str], count: int, seed: int = 0) -> Mask:
    """Choose nested subsets of keys, for learning curves: a larger one contains all smaller ones.

    Parameters
    ----------
    keys : sequence of str
        All different.
    count : int
        How many to choose; all if there are fewer.
    seed : int
        Determines the order in which keys are chosen; their order in `keys` does not.

    Returns
    -------
    array of bool (keys,)
    """
    chosen = np.zeros(len(keys), dtype=bool)
    chosen[np.argsort(_fractions(keys, f"rows {seed}"), kind="stable")[:count]] = True
    return chosen


def fold_of_keys(keys: Sequence[str], folds: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Give each key the number of its fold, 0 to `folds` - 1, shape (keys,).

    By the hash of the key: repeats of a layer are never in two folds.
    """
    return np.asarray(_fractions(keys, f"folds {seed}") * folds, dtype=np.int64)


def _fractions(keys: Sequence[str], salt: str) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each key that depends only on key and salt."""
    digests = (hashlib.sha256(f"{salt}:{key}".encode()).digest()[:8] for key in keys)
    return np.array([int.from_bytes(digest, "big") / 2**64 for digest in digests], dtype=float)


def pack_keys(keys: Sequence[str]) -> str:
    """Return a compact text by which `was_packed` recognises keys: four bytes each, base64."""
    digests = np.array(sorted({_short(key) for key in keys}), dtype="<u4")
    return base64.b64encode(digests.tobytes()).decode("ascii")


def was_packed(keys: Sequence[str], packed: str) -> Mask:
    """Say for each key whether it was among the packed ones, shape (keys,).

    About one other key in a million is mistaken for a packed one, for every 4,000 packed keys.
    """
    hashes = np.frombuffer(base64.b64decode(packed), dtype="<u4")
    return np.isin(np.array([_short(key) for key in keys], dtype="<u4"), hashes)


def _short(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")


def architecture_of(name: str) -> str:
    """Return what the sizes of one network have in common: of ``resnet18@64``, ``resnet18``."""
    return name.partition("@")[0]


def folds_of(groups: Sequence[str], folds: int = FOLDS) -> list[str]:
    """Return a fold of each group, about equally many groups in each."""
    names = sorted(set(groups), key=lambda name: hashlib.sha256(name.encode()).digest())
    fold_of = {name: str(number % folds) for number, name in enumerate(names)}
    return [fold_of[name] for name in groups]
