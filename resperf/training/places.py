"""How and where training rows were measured: on one platform, or on several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from resperf.bundle import GoldenLayer
from resperf.dataset import KindTable
from resperf.errors import TrainingError
from resperf.platform import Platform
from resperf.predictors import methods_of, predictor_class
from resperf.quantities import Level
from resperf.settings import OPTIMIZER, PLAIN_PRECISIONS, Setting
from resperf.training.learning import Learning
from resperf.training.rows import LayerRows

_Value = TypeVar("_Value", Setting, Platform)


def of_main_platform(
    tables: Mapping[str, KindTable],
) -> tuple[dict[str, KindTable], Platform | None, dict[str, int]]:
    """Return only the rows of the platform that most measured rows are of.

    Returns
    -------
    tables : dict of str to KindTable
    platform : Platform or None
        None if it is not known.
    others : dict of str to int
        Device -> number of rows that are left out.
    """
    count: Counter[Platform] = Counter()
    for table in tables.values():
        for index, rows in Counter(table.machine[table.ok].tolist()).items():
            count.update({table.platforms[index]: rows} if table.platforms else {})
    if not count:
        return dict(tables), None, {}
    (main, _), *rest = count.most_common()
    others: Counter[str] = Counter()
    for platform, rows in rest:
        others[platform.device] += rows
    chosen = {
        name: table.select(np.array([other == main for other in table.platforms])[table.machine])
        for name, table in tables.items()
    }
    return {k: table for k, table in chosen.items() if len(table)}, main, dict(others)


def on_platforms(
    learning: Learning, tables: Mapping[str, KindTable], device: str | None
) -> dict[str, KindTable]:
    """Return the rows that the method learns from: of all platforms, or of that of most rows."""
    of_most, main, others = of_main_platform(tables)
    if main is None:
        return dict(tables)
    if device is not None and others:
        raise TrainingError(
            f"the rows are of {', '.join((main.device, *others))}, which one --device cannot "
            "name; leave it out"
        )
    named = main if device is None else replace(main, device=device)
    learning.info = replace(learning.info, platform=named)
    if not others:
        return {
            kind: replace(
                table, platforms=tuple(named if one == main else one for one in table.platforms)
            )
            for kind, table in of_most.items()
        }
    if predictor_class(learning.method).many_settings:
        return dict(tables)
    several = [name for name in methods_of(Level.LAYER) if predictor_class(name).many_settings]
    there = ", ".join(f"{rows} of {other}" for other, rows in others.items())
    learning.notes.append(
        f"{learning.method} learns one device, {main.device}: rows of others are left out, {there} "
        f"({', '.join(several)} learns several)"
    )
    return of_most


@dataclass(frozen=True)
class Places:
    """Settings without optimizers, and platforms, in the order in which the bundle has them."""

    settings: tuple[Setting, ...]
    platforms: tuple[Platform, ...]

    def golden(self, rows: LayerRows) -> list[GoldenLayer]:
        """Return rows as layers whose predictions a bundle stores."""
        places = (
            # A method of one setting has the first.
            [own.index(value) if value in own else 0 for value in values]
            * (len(rows) if len(values) == 1 else 1)
            for values, own in ((rows.settings, self.settings), (rows.platforms, self.platforms))
        )
        return [GoldenLayer(*row) for row in zip(rows.keys, *places, strict=True)]


def set_places(learning: Learning, train: Mapping[str, LayerRows]) -> Places:
    """Set how and where the training rows were measured; return where to find those of a row.

    The most frequent come first, but settings of plain precision before others: the first one
    answers where none is asked for.
    """
    settings = _by_rows((rows.settings, len(rows)) for rows in train.values())
    platforms = _by_rows((rows.platforms, len(rows)) for rows in train.values())
    if predictor_class(learning.method).many_settings:
        settings.sort(key=lambda setting: setting.precision not in PLAIN_PRECISIONS)
    else:
        learning.notes += [
            f"{kind}: measured otherwise than most layers ({'; '.join(differences)})"
            for kind, rows in train.items()
            if (differences := rows.settings[0].differences(settings[0]))
        ]
        settings = settings[:1]
    info = learning.info = replace(learning.info, platform=platforms[0])
    optimizers = {str(name) for r in train.values() for name in set(r.columns.get(OPTIMIZER, ()))}
    learning.how = [*settings, *(settings[0].with_optimizer(name) for name in sorted(optimizers))]
    learning.where = platforms
    if len(platforms) == 1:
        learning.where = [info.platform.with_machine_checks(info.machine_costs)]
    return Places(tuple(settings), tuple(platforms))


def _by_rows(parts: Iterable[tuple[Sequence[_Value], int]]) -> list[_Value]:
    """Return settings or platforms, one for all rows of a part or one per row, by their rows."""
    count: Counter[_Value] = Counter()
    for values, rows in parts:
        # Comparing identities is faster than comparing values.
        by_id = {id(value): value for value in values}
        for identity, times in Counter(map(id, values)).items():
            count[by_id[identity]] += rows if len(values) == 1 else times
    return [value for value, _ in count.most_common()]
