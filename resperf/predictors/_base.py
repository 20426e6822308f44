"""The interface of predictors of layers and of networks: fit, predict, export, load."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from resperf.devices import device_class
from resperf.errors import BundleError, TrainingError, UnsupportedError
from resperf.features import Array, Columns, take
from resperf.grouping import grouped
from resperf.quantities import Level, quantity
from resperf.settings import same_settings
from resperf.targets import UNKNOWN

if TYPE_CHECKING:
    from resperf.network import Network
    from resperf.platform import Platform
    from resperf.settings import Setting

_Value = TypeVar("_Value")

Progress = Callable[[int, int, float], None]
"""Called after each epoch: (epochs done, epochs in all, validation MAPE as a fraction)."""


WHOLE = "whole network"
"""Group of a method that does not say what a network's time consists of."""
FEWEST_EXAMPLES = 8
"""Fewest training rows."""


@dataclass(frozen=True)
class Examples:
    """Measured values of one quantity, of subjects of one kind.

    Attributes
    ----------
    subjects : mapping of str to array (rows,), or sequence of Network
        Layers of one kind as `resperf.features.columns_of` returns them, or networks.
    quantity : str
        A name of `resperf.quantities.QUANTITIES`.
    values : array (rows,)
        In the quantity's unit.
    settings, platforms : sequence, optional
        One per row, or one for all rows. Empty if not known.
    groups : sequence of str, optional
        Family of each row: rows of one family are left out together.
    """

    subjects: Columns | Sequence[Network]
    quantity: str
    values: Array
    settings: Sequence[Setting] = ()
    platforms: Sequence[Platform] = ()
    groups: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def level(self) -> Level:
        """Whether the subjects are layers or networks."""
        return Level.LAYER if isinstance(self.subjects, Mapping) else Level.NETWORK

    @property
    def device_class(self) -> str:
        """Class of the devices of all rows; `resperf.targets.UNKNOWN` if not known or several."""
        classes = {
            device_class(platform.device, setting.framework)
            for platform in set(self.platforms)
            for setting in set(self.settings)
        }
        return classes.pop() if len(classes) == 1 else UNKNOWN

    @property
    def columns(self) -> Columns:
        """The subjects of a layer predictor."""
        return cast(Columns, self.subjects)

    @property
    def networks(self) -> Sequence[Network]:
        """The subjects of a network predictor."""
        return cast("Sequence[Network]", self.subjects)

    def select(self, places: npt.NDArray[np.intp]) -> Examples:
        """Return the rows at these positions."""

        def chosen(values: Sequence[_Value]) -> list[_Value]:
            return [values[row] for row in places]

        is_layers = self.level is Level.LAYER
        return replace(
            self,
            subjects=take(self.columns, places) if is_layers else chosen(self.networks),
            values=self.values[places],
            settings=chosen(self.settings) if len(self.settings) > 1 else self.settings,
            platforms=chosen(self.platforms) if len(self.platforms) > 1 else self.platforms,
            groups=chosen(self.groups) if self.groups else (),
        )

    def on_one_device(self) -> Examples:
        """Return the rows of runs that several devices did not share; all if each was shared."""
        alone = [row for row, platform in enumerate(self.platforms) if platform.devices == 1]
        if len(self.platforms) != len(self) or len(alone) in (0, len(self)):
            return self
        return self.select(np.array(alone, dtype=np.intp))

    def per_row(self) -> list[tuple[Setting, Platform]]:
        """Return the setting and the platform of each row.

        Raises
        ------
        TrainingError
            If they are not known.
        """
        if not (self.settings and self.platforms):
            raise TrainingError(f"{self.quantity}: rows without setting and platform")
        rows = len(self)
        how = self.settings if len(self.settings) == rows else [self.settings[0]] * rows
        where = self.platforms if len(self.platforms) == rows else [self.platforms[0]] * rows
        return list(zip(how, where, strict=True))

    def by_setting(self) -> Iterator[tuple[Setting, Platform, npt.NDArray[np.intp]]]:
        """Yield each setting and platform with the places of its rows.

        Raises
        ------
        TrainingError
            If settings or platforms are not known.
        """
        rows = self.per_row()
        places = grouped((tuple(map(id, conditions)), row) for row, conditions in enumerate(rows))
        for indices in places.values():
            yield *rows[indices[0]], np.array(indices, dtype=np.intp)

    def check(self, label: str, *, at_least: int) -> None:
        """Refuse rows that are unusable as training data.

        Raises
        ------
        TrainingError
            If rows are too few, lengths differ, or a value is not finite and above zero.
        """
        rows = len(self.values)
        if rows < at_least:
            raise TrainingError(
                f"{label}: {rows} rows to learn from, at least {at_least} are needed; "
                "measure more with: resperf bench"
            )
        is_layers = self.level is Level.LAYER
        parts = self.columns.values() if is_layers else (self.networks,)
        lengths = {len(part) for part in parts} | {rows}
        if len(lengths) != 1:
            raise TrainingError(
                f"{label}: subjects and values have different lengths {sorted(lengths)}"
            )
        for name, given in (("settings", self.settings), ("platforms", self.platforms)):
            if len(given) not in (0, 1, rows):
                raise TrainingError(f"{label}: {len(given)} {name} for {rows} rows")
        bad = np.flatnonzero(~(np.isfinite(self.values) & (self.values > 0)))
        if len(bad):
            raise TrainingError(
                f"{label}: {self.quantity} of row {bad[0]} is {self.values[bad[0]]}; it must be "
                "above 0"
            )


@dataclass(frozen=True)
class Task:
    """What `Predictor.fit` was given; the rows have been checked."""

    examples: Examples
    validation: Examples
    seed: int
    progress: Progress | None


@dataclass(frozen=True)
class Estimate:
    """Predicted values of one quantity, with intervals.

    Attributes
    ----------
    values : array (subjects,)
        In the quantity's unit; NaN if not known.
    low, high : array (subjects,)
        90% interval of measured values; NaN if not known.
    """

    values: Array
    low: Array
    high: Array

    @classmethod
    def without_bounds(cls, values: Array) -> Self:
        """Return an estimate without interval."""
        unknown = np.full(len(values), np.nan)
        return cls(values, unknown, unknown)


Predicted = Mapping[str, Estimate]
"""Quantity -> its estimate, one entry per subject."""


class Band(NamedTuple):
    """A time attributed to a part of a network, with the band of equally good fits, in ms."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Account:
    """What a predictor says on one network beside its value.

    Attributes
    ----------
    inferred_from : str
        Whose measurements the times of its operators were inferred from, such as ``"whole
        networks on this device"``.
    groups, classes : mapping of str to Band
        Attributed times of groups of operators, and of single classes of them; empty if the
        predictor tells none apart.
    extrapolated : str
        Why the network is outside what was measured; empty if it is inside.
    left_out : tuple of str
        Why operators are not in the value.
    notes : tuple of str
        Why the value may be off.
    """

    inferred_from: str
    groups: Mapping[str, Band]
    classes: Mapping[str, Band]
    extrapolated: str = ""
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Predictor(ABC):
    """Predicts quantities of layers of one kind, or of networks.

    The constructor stores settings, `fit` returns self, learned values end in ``_``. A loaded
    predictor needs only numpy and onnxruntime.

    Parameters
    ----------
    kind : str
        Layer kind, or ``"network"``.
    epochs : int, optional
        Passes over the training rows; the method's own choice by default. Methods that are not
        trained in passes ignore it.

    Attributes
    ----------
    quantity_ : str
        The quantity it was fitted to.
    """

    method: ClassVar[str]
    """Name on the command line and in a bundle."""
    level: ClassVar[Level]
    quantities: ClassVar[frozenset[str] | None] = None
    """Quantities that it can learn; None for any."""
    fewest: ClassVar[int] = FEWEST_EXAMPLES
    reads_lists: ClassVar[bool] = False
    """Whether its networks may be lists of operators (`operator_classes.RunNetwork`)."""
    many_settings: ClassVar[bool] = False
    """Whether its layers may be of several settings and platforms, each row of its own. Networks
    always may."""
    all_phases: ClassVar[bool] = False
    """Whether it learns every measured phase; else the layers' own times (`learnt_quantities`)."""
    unseen_devices: ClassVar[bool] = False
    """Whether it answers for devices that no row came from, from their facts."""
    counts_optimizers: ClassVar[bool] = False
    """Whether steps by other optimizers than the measured one are predicted."""
    uses_validation: ClassVar[bool] = True
    """Whether `fit` chooses anything by its validation rows."""
    fallbacks: ClassVar[Mapping[str, str]] = {}
    """Precision that it answers without rows -> the precision of the rows that it takes then."""
    notes_: tuple[str, ...] = ()
    """Remarks for the user on the fit, or on predicted totals; set by `fit` or `predict`."""

    def __init__(self, kind: str, *, epochs: int | None = None) -> None:
        if epochs is not None and epochs < 1:
            raise TrainingError(f"epochs={epochs} must be at least 1")
        self.kind = kind
        self.epochs = epochs

    def fit(
        self,
        examples: Examples,
        *,
        validation: Examples,
        seed: int,
        progress: Progress | None = None,
    ) -> Self:
        """Fit one quantity.

        Parameters
        ----------
        examples : Examples
        validation : Examples
            Rows that choose the best epoch; not training data.
        seed : int
            Decides everything random.
        progress : callable, optional
            Called after each epoch.

        Raises
        ------
        TrainingError
            If the rows are unusable, or the method cannot learn this quantity.
        MissingExtraError
            If a library needed for training is not installed.
        """
        self._refuse_other(examples)
        self.quantity_ = examples.quantity
        if not self.depends_on_devices:
            examples, validation = examples.on_one_device(), validation.on_one_device()
        examples.check(self.kind, at_least=self.fewest)
        validation.check(self.kind, at_least=1)
        self._learn(Task(examples, validation, seed, progress))
        return self

    @property
    def depends_on_devices(self) -> bool:
        """Whether what it learns depends on how many devices share a run."""
        return False

    def _refuse_other(self, examples: Examples) -> None:
        name = examples.quantity
        if examples.level is not self.level:
            raise TrainingError(
                f"{self.method} is for {self.level}s, not for {examples.level}s; choose another "
                "--method"
            )
        if self.level not in quantity(name).levels:
            raise TrainingError(f"{name} is no quantity of a {self.level}")
        if self.quantities is not None and name not in self.quantities:
            raise TrainingError(
                f"{self.method} learns {', '.join(sorted(self.quantities))}, not {name}; choose "
                "another --method"
            )

    @abstractmethod
    def _learn(self, task: Task) -> None:
        """Set everything that `predict` and `export` need."""

    @abstractmethod
    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict quantities of subjects under one setting on one platform."""

    def has_rows_of(
        self, platform: Platform, setting: Setting | None = None, dtype: str = ""
    ) -> bool:
        """Say whether rows of the platform's device taught it, or only those of others.

        Parameters
        ----------
        platform : Platform
        setting : Setting, optional
        dtype : str, optional
            Type of the layer's values, such as ``"float16"``, of which rows must be; any if empty.
        """
        return True

    def no_rows_error(
        self, measured: Iterable[str], setting: Setting, platform: Platform
    ) -> UnsupportedError:
        """Return the error that no network was measured so on this device, but `measured` ones."""
        how = ", ".join(filter(None, same_settings(setting).values()))
        return UnsupportedError(
            f"{self.method} learnt from networks on {'; '.join(sorted(measured))}: measure some on "
            f"{platform.device} ({how})"
        )

    def prepared(self, networks: Sequence[Any]) -> Sequence[Any]:
        """Return what stands for networks in `Examples` and `predict`, for many fits and questions.

        By default the networks themselves.
        """
        return networks

    def at_batches(
        self, read: Callable[[int], Network], batches: Sequence[int]
    ) -> Mapping[int, Any]:
        """Return what stands for a network in `predict` at each of several batch sizes.

        Parameters
        ----------
        read : callable
            Reads the network at a batch size.
        batches : sequence of int
        """
        return {batch: read(batch) for batch in batches}

    def network_shares(
        self, networks: Sequence[Network], setting: Setting, platform: Platform
    ) -> Sequence[Mapping[str, float]]:
        """Return the shares of each network's predicted value by group of its operators.

        What runs of networks teach of a group serves others with that group. By default a network
        is one group.
        """
        return [{WHOLE: 1.0} for _ in networks]

    def account(self, network: Network, setting: Setting, platform: Platform) -> Account | None:
        """Say more about the prediction of a network; None if there is no more to say."""
        return None

    def most_devices(self, setting: Setting, platform: Platform) -> int:
        """Return how many devices shared one run at most, of those that it learnt from."""
        return 1

    def dispatch_ms(self, setting: Setting, platform: Platform) -> float:
        """Return the time that the host needs to start one kernel; NaN if that was not learnt."""
        return math.nan

    def export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Write ``STEM.onnx`` if the method has a network; return the rest as plain JSON values.

        The values name the file, if any, under ``"network"``.
        """
        return {"kind": self.kind, "quantity": self.quantity_, **self._export(folder, stem)}

    @abstractmethod
    def _export(self, folder: Path, stem: str) -> dict[str, Any]:
        """Do the work of `export`, which adds the kind and the quantity."""

    @classmethod
    def load(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """Make a predictor from what `export` returned and wrote; it cannot be fitted again.

        Raises
        ------
        BundleError
            If values are missing or do not fit.
        """
        self = cls(str(stored(values, "kind")))
        self.quantity_ = str(stored(values, "quantity"))
        self._load(values, folder)
        return self

    @abstractmethod
    def _load(self, values: Mapping[str, Any], folder: Path) -> None:
        """Set what `predict` needs from what `_export` returned and wrote."""


class LayerPredictor(Predictor):
    """Predicts one quantity of layers of one kind from their columns only.

    All its examples are of one setting and platform, and so are its predictions, unless it says
    `many_settings`.
    """

    level = Level.LAYER
    kinds: ClassVar[frozenset[str] | None] = None
    """Kinds of layers that it supports; None for all that have features."""

    def ranged(self, columns: Columns) -> Columns | None:
        """Return what decides whether layers are like those it learnt from, each (rows,).

        Returns
        -------
        mapping of str to array, or None
            None for the fields of the kind, or its quantities.
        """
        return None

    @abstractmethod
    def values(self, columns: Columns) -> Array:
        """Return the learnt quantity of each layer, shape (rows,)."""

    def gpu_busy_fraction(self, columns: Columns, setting: Setting, platform: Platform) -> Array:
        """Return the share of each predicted time in which the device works, shape (rows,).

        Times of single layers may contain the host's dispatch. In a network the host starts
        kernels while the device works on earlier ones, and only this share adds up.
        """
        return np.ones(len(next(iter(columns.values()))))

    def predict(
        self, subjects: Columns | Sequence[Network], setting: Setting, platform: Platform
    ) -> Predicted:
        """Predict the learnt quantity; the bundle adds intervals from validation rows."""
        return {self.quantity_: Estimate.without_bounds(self.values(cast(Columns, subjects)))}


def stored(values: Mapping[str, Any], name: str, kind: type = object) -> Any:
    """Return a stored value of a type.

    Raises
    ------
    BundleError
        If there is no such value.
    """
    if name not in values or not isinstance(values[name], kind):
        raise BundleError(f"the bundle lacks {name!r} of a predictor; train it again")
    return values[name]
