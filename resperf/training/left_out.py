"""Methods for whole networks judged on networks, or families of them, that they did not see."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from resperf.errors import TrainingError
from resperf.features import Array
from resperf.network import Network
from resperf.predictors import Examples, predictor_class
from resperf.predictors.metrics import Errors, errors, r_squared
from resperf.predictors.operator_classes import RunNetwork
from resperf.quantities import Level
from resperf.records import Record
from resperf.splits import Mask, architecture_of, folds_of, split_of_keys
from resperf.training.rows import network_examples, network_quantities

By = Literal["network", "family"]
_TENTHS = 10
_SEEN = "seen families", "unseen families"
_SEEN_SHARES = 0.7, 0.1
"""Shares of the runs of seen families for training and validation (DNNPerf, section IV)."""


_Rows = npt.NDArray[np.intp]
_Part = tuple[_Rows, _Rows, _Rows]
"""Positions of the rows that one fit learns from, chooses by, and is judged by."""


@dataclass(frozen=True)
class LeftOutGroup(Record):
    """Errors on one network, or family, by fits without its networks.

    Attributes
    ----------
    name : str
    rows : int
    mape : float
        A fraction.
    rmse : float
        In the quantity's unit.
    nrmse : float
        `rmse` over the range of this group's measured values (ConvMeter, section 4); NaN for one
        value.
    """

    name: str
    rows: int
    mape: float
    rmse: float
    nrmse: float


@dataclass(frozen=True)
class LeftOut(Record):
    """One method on one quantity, device and setting, each group left out of the fit once.

    Attributes
    ----------
    quantity, method : str
    device, setting : str
        In words.
    by : str
        ``"network"`` or ``"family"``; ``"part"`` where families are seen and unseen.
    fits, learnt : int
        How many were made, one for each group or fold of them; rows that each learnt from.
    errors : Errors
        Of all rows.
    r2, nrmse : float
        Over all rows.
    in_interval : float
        Share of the rows inside their 90% intervals; NaN without intervals.
    width : float
        Median of (high - low) / predicted; NaN without intervals.
    fit_s : float
        Mean seconds of a fit.
    groups : tuple of LeftOutGroup
    families : tuple of LeftOutGroup
        The same errors by family, if networks were left out and families are known.
    """

    quantity: str
    method: str
    device: str
    setting: str
    by: str
    fits: int
    learnt: int
    errors: Errors
    r2: float
    nrmse: float
    in_interval: float
    width: float
    fit_s: float
    groups: tuple[LeftOutGroup, ...]
    families: tuple[LeftOutGroup, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = super().to_json()
        return {**values, **values.pop("errors")}


def leave_out(
    dataset: Path,
    methods: Sequence[str],
    *,
    by: By = "network",
    unseen: Sequence[str] = (),
    counts: Sequence[int] = (),
    folds: int | None = None,
    seed: int = 0,
    notes: list[str] | None = None,
) -> list[LeftOut]:
    """Judge methods for networks by leaving networks or families out.

    Each quantity, device and setting of the dataset is judged by itself.

    Parameters
    ----------
    dataset : Path
    methods : sequence of str
    by : str
        What is left out: one network at all its batch and image sizes (those of one name before
        an ``@``, ``resnet18@64`` and ``resnet18@224``, and those whose published list names one
        architecture), or one family.
    unseen : sequence of str
        Judge these families instead, and a fifth of the runs of the others, by one fit to 70% of
        them; a tenth chooses the best epoch (DNNPerf, section IV). An optimizer that only they
        were measured with is predicted from rows of others.
    counts : sequence of int, optional
        With `unseen`, fit to that many rows instead, once for each number.
    folds : int, optional
        Leave out so many parts of about equally many groups, not each group by itself.
    seed : int
    notes : list of str, optional
        Gets what was left out, and why.

    Raises
    ------
    DatasetError
        If the dataset cannot be read.
    TrainingError
        If a method is for layers, or the dataset has too few networks.
    """
    remarks = [] if notes is None else notes
    judged = []
    for method in methods:
        cls = predictor_class(method)
        if cls.level is not Level.NETWORK:
            raise TrainingError(f"{method} is for layers, which cannot be left out as networks")
        for name in network_quantities(dataset):
            if name not in (cls.quantities or {name}):
                continue
            examples = network_examples(dataset, name, lists=cls.reads_lists, left_out=remarks)
            for setting, platform, rows in _by_way(examples, unseen):
                groups = rows.groups
                if unseen:
                    groups = [_SEEN[family in unseen] for family in rows.groups]
                elif by == "network":
                    groups = [_architecture(network) for network in rows.networks]
                if len(set(groups)) < 2:
                    there = ", ".join(sorted(set(rows.groups)))
                    remarks.append(f"{platform}: nothing can be left out of {there}")
                    continue
                if not unseen:
                    parts = _left_out_parts(groups, folds, cls.uses_validation)
                    judged.append(_judged(method, rows, groups, parts, by, seed, platform, setting))
                    continue
                part = _unseen_part(rows, np.array(groups) == _SEEN[True], seed)
                for parts in _fewer(part, counts, seed):
                    what = "part"
                    judged.append(
                        _judged(method, rows, groups, parts, what, seed, platform, setting)
                    )
    if not judged:
        raise TrainingError(
            f"{dataset} has no networks that {', '.join(methods)} can learn from"
            f"{'; '.join(['', *remarks[-1:]])}; measure some with: resperf bench networks-cpu"
        )
    return judged


def _left_out_parts(groups: Sequence[str], folds: int | None, uses_validation: bool) -> list[_Part]:
    """Judge each group, or fold of them, by the others, of which a tenth may be for validation."""
    names = np.array(groups)
    folded = names if folds is None else np.array(folds_of(list(groups), folds))
    parts = []
    for part in np.unique(folded):
        others = learnt = validation = np.flatnonzero(folded != part)
        tenth = np.array(folds_of(names[others].tolist(), _TENTHS)) == "0"
        if uses_validation and not tenth.all():
            learnt, validation = others[~tenth], others[tenth]
        parts.append((learnt, validation, np.flatnonzero(folded == part)))
    return parts


def _unseen_part(rows: Examples, is_unseen: Mask, seed: int) -> _Part:
    """Learn from most runs of seen families; judge the rest, and those of unseen ones."""
    settings = [setting for setting, _ in rows.per_row()]
    keys = [
        f"{network.name} {setting.batch} {setting.shapes}"
        for network, setting in zip(rows.networks, settings, strict=True)
    ]
    split = split_of_keys(keys, seed, *_SEEN_SHARES)
    masks = split.train & ~is_unseen, split.validation & ~is_unseen, split.test | is_unseen
    learnt, validation, judged = map(np.flatnonzero, masks)
    return learnt, validation, judged


def _fewer(part: _Part, counts: Sequence[int], seed: int) -> list[list[_Part]]:
    """Return a part with so many rows to learn from, for each number; as it is without any."""
    learnt, validation, judged = part
    order = np.random.default_rng(seed).permutation(learnt)
    return [[(order[:count], validation, judged)] for count in counts] or [[part]]


def _architecture(network: Network | RunNetwork) -> str:
    listed = network.architecture if isinstance(network, RunNetwork) else ""
    return listed or architecture_of(network.name)


def _by_way(examples: Examples, unseen: Sequence[str] = ()) -> list[tuple[str, str, Examples]]:
    """Split rows by setting and device, named in words.

    An optimizer that unseen families alone have is judged by rows of others.
    """
    places: dict[tuple[str, str, str], list[int]] = {}
    for row, (setting, platform) in enumerate(examples.per_row()):
        how = setting.without_batch()
        words = (how.framework, how.framework_version, how.mode.value, how.precision, how.layout,
                 how.compiled, *how.options.values())  # fmt: skip
        threads = f"{how.threads} threads" if how.threads else ""
        key = (", ".join(filter(None, (*words, threads))), platform.device, how.optimizer)
        places.setdefault(key, []).append(row)
    ways = []
    for (way, device, optimizer), own in places.items():
        rows = own
        if unseen and all(examples.groups[row] in unseen for row in own):
            alike = [other for key, other in places.items() if key[:2] == (way, device)]
            seen = [row for other in alike for row in other if examples.groups[row] not in unseen]
            rows = [*own, *seen]
        setting_words = ", ".join(filter(None, (way, optimizer)))
        ways.append((setting_words, device, examples.select(np.array(rows))))
    return ways


def _judged(
    method: str, rows: Examples, groups: Sequence[str], parts: Sequence[_Part], by: str, seed: int,
    device: str, setting: str,
) -> LeftOut:  # fmt: skip
    networks = predictor_class(method)("network").prepared(rows.networks)
    ready = replace(rows, subjects=networks, groups=rows.groups or tuple(groups))
    values, low, high = (np.zeros(len(rows)) for _ in range(3))
    seconds = []
    for *fitting, own in parts:
        learnt, validation = map(ready.select, fitting)
        started = time.perf_counter()
        fitted = predictor_class(method)("network").fit(learnt, validation=validation, seed=seed)
        seconds.append(time.perf_counter() - started)
        for row in own.tolist():
            how, where = ready.select(np.array([row])).per_row()[0]
            estimate = fitted.predict([networks[row]], how.without_batch(), where)[rows.quantity]
            values[row], low[row], high[row] = (
                array[0] for array in (estimate.values, estimate.low, estimate.high)
            )
    judged = np.sort(np.concatenate([own for *_, own in parts]))
    measured, values, low, high = rows.values[judged], values[judged], low[judged], high[judged]
    names, families = ([of[row] for row in judged] for of in (groups, ready.groups))
    bounded = np.isfinite(low) & np.isfinite(high)
    inside = ((low <= measured) & (measured <= high))[bounded]
    wide = ((high - low) / np.maximum(values, 1e-12))[bounded]
    rows_learnt = sum(len(own) for own, *_ in parts) // len(parts)
    return LeftOut(
        rows.quantity, method, device, setting, by, len(parts), rows_learnt,
        errors(measured, values),
        r_squared(measured, values), _nrmse(measured, values),
        float(inside.mean()) if len(inside) else math.nan,
        float(np.median(wide)) if len(wide) else math.nan,
        float(np.mean(seconds)),
        _by_group(names, measured, values),
        _by_group(families, measured, values) if families != names else (),
    )  # fmt: skip


def _by_group(
    groups: Sequence[str], measured: Array, values: Array
) -> tuple[LeftOutGroup, ...]:  # fmt: skip
    names, judged = np.array(groups), []
    for name in np.unique(names):
        own_ms, predicted_ms = measured[names == name], values[names == name]
        own, nrmse = errors(own_ms, predicted_ms), _nrmse(own_ms, predicted_ms)
        judged.append(LeftOutGroup(str(name), own.rows, own.mape, own.rmse_ms, nrmse))
    return tuple(judged)


def _nrmse(measured: Array, predicted: Array) -> float:
    """Return the root mean square error over the range of the measured values."""
    spread = float(np.ptp(measured))
    return errors(measured, predicted).rmse_ms / spread if spread else math.nan
