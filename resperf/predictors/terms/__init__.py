"""Terms of the physical baseline: what may cost time, one table per class of devices.

``work.py`` has, for each kind of layer, the terms of every class, and a `TermTable` what one class
adds. The targets of the class name its table (`resperf.targets.Target.terms`); a class without one
is fitted with the terms of all tables together. A term has the same meaning in all tables and is
never removed, since stored coefficients name their terms.

Terms relative to the device, whose coefficients several cards share, are in ``card.py``, of which
`resperf.predictors.roofline` makes predictors. They read the same quantities, and the facts of
`resperf.devices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import cast

import numpy as np
import numpy.typing as npt

from resperf.errors import TrainingError
from resperf.features import Array, Columns, quantities
from resperf.layers import kind_of
from resperf.measurement import layer_kind, written_kind
from resperf.predictors.terms.work import Term, TermTable
from resperf.settings import OPTIMIZER
from resperf.targets import UNKNOWN, Target, with_terms

_GROWING = frozenset({"constant scattered"})
"""Terms that are no constants despite their names, which stored bundles use."""


@cache
def _table(target: Target) -> TermTable:
    return cast(TermTable, target.load("terms"))


def terms_of(kind: str, device_class: str = UNKNOWN) -> Mapping[str, Term]:
    """Return the terms of a kind by name.

    Parameters
    ----------
    kind : str
        As `resperf.measurement.written_kind` returns it.
    device_class : str, optional
        A class without a table (or an unknown one) has the terms of all classes: a fit leaves out
        what does not help.
    """
    tables = [_table(target) for target in with_terms(device_class)]
    return {name: term for table in tables for name, term in table.terms_of(kind).items()}


def constant_terms(names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return which terms are constants, as an array of bool."""
    return np.array([name.startswith("constant") and name not in _GROWING for name in names])


def choices_of(kind: str, columns: Columns) -> Array | None:
    """Return the value of each layer's `Layer.FUNCTION`; None for kinds without one."""
    cls = kind_of(layer_kind(kind))
    field = (*cls.ENCODED, "")[0] if cls.FUNCTION is None else cls.FUNCTION
    return None if not field else np.asarray(columns[field]).astype(str)


def physical_terms(
    kind: str,
    columns: Columns,
    names: tuple[str, ...] | None = None,
    layer_quantities: Mapping[str, Array] | None = None,
    device_class: str = UNKNOWN,
) -> Array:
    """Return the terms of layers as a matrix of shape (rows, terms).

    Parameters
    ----------
    kind : str
        Layer kind.
    columns : mapping of str to array
        As `resperf.features.columns_of` returns them.
    names : tuple of str, optional
        All of the kind by default.
    layer_quantities : mapping of str to array, optional
        The result of `resperf.features.quantities`, where it was already computed.
    device_class : str, optional
        Its table is read beside those of all other classes.

    Raises
    ------
    TrainingError
        If there is no term of some name.
    """
    name = written_kind(kind, OPTIMIZER in columns)
    table = {**terms_of(name), **terms_of(name, device_class)}
    chosen = tuple(table) if names is None else names
    unknown = [name for name in chosen if name not in table]
    if unknown or not chosen:
        raise TrainingError(f"no physical terms {', '.join(unknown)} for kind {kind!r}")
    q = quantities(kind, columns) if layer_quantities is None else layer_quantities
    return np.stack([np.asarray(table[name](q), dtype=float) for name in chosen], axis=1)
