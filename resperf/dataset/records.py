"""Content of a dataset file: its identity, measurements, columns and descriptions of networks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from resperf.errors import DatasetError
from resperf.measurement import DEFECTS, TOLERANCE, Measurement, Status, written_kind
from resperf.platform import Platform, alike
from resperf.quantities import PHASES
from resperf.records import parse_json
from resperf.settings import OPTIMIZER, Setting

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DatasetInfo:
    """Identity of a dataset: the attributes of its file.

    Attributes
    ----------
    setting : Setting
    platform : Platform
        How and where the rows were measured. Each row of networks, and of published measurements,
        has a setting and a platform of its own; these are then the first ones.
    campaign : mapping
        The campaign's specification as plain JSON values.
    seed : int
        Seed of the campaign.
    versions : mapping of str to str
        Versions of resperf, Python, NumPy and the framework that measured.
    created : str
        ISO 8601, UTC; now by default.
    machine_costs : mapping of str to float
        Costs of the machine other than layers, such as ``{"call_ms": 0.012}``.
    merged : tuple of mapping
        For a merged file: ``campaign``, ``seed``, ``versions``, ``created`` and number of ``rows``
        of each part, oldest first. Empty otherwise.
    quantities : tuple of str
        Quantities of the rows of layers (`resperf.quantities.QUANTITIES`): `PHASES` if measured by
        resperf; ``("execution_ms", "step_ms")`` or ``("whole_call_ms",)`` if imported; empty if all
        rows are of networks.
    source : mapping
        Origin of imported rows: ``format``, ``description``, ``files``, ``left_out`` and more
        (docs/importing.md). Empty if measured by resperf.
    """

    setting: Setting
    platform: Platform
    campaign: Mapping[str, Any]
    seed: int
    versions: Mapping[str, str]
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    machine_costs: Mapping[str, float] = field(default_factory=dict)
    merged: tuple[Mapping[str, Any], ...] = ()
    quantities: tuple[str, ...] = PHASES
    source: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """All measurements of one file, in the order in which they were started.

    Attributes
    ----------
    info : DatasetInfo
    measurements : tuple of Measurement
        Of layers and of whole networks.
    graphs : mapping of str to bytes
        Digest of a network -> its graph, as `resperf.network.weightless` returns it.
    descriptions : mapping of str to bytes
        Digest of a description -> its content (`resperf.dataset.NetworkDescription`).
    """

    info: DatasetInfo
    measurements: tuple[Measurement, ...]
    graphs: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    descriptions: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class KindTable:
    """The rows of one kind of layer in one mode as columns of length n, in the file's order.

    Attributes
    ----------
    kind : str
        Such as ``"conv"``; ``"networks"`` for rows of whole networks.
    columns : mapping of str to array (n,)
        The layer's fields: int64, bool or str; of training steps, the optimizer as well; of
        networks, the key of the ``"subject"``.
    key, status, flags : array of str (n,)
        Key (an object array), equal for repeats, `Status` value, and flags joined by commas.
    repeat : array of int64 (n,)
        0 for the first measurement of a key.
    times_ms : mapping of str to array of float64 (n,)
        Quantity to its value, for those that the file has; NaN if the row is not ok.
    isolated_ms, reference_ratio, started_at : array of float64 (n,)
        As in `resperf.measurement.Measurement`.
    setting, platform : array of int (n,)
        Place in the file's settings and platforms.
    copies : mapping of str to array of int (n,)
        Quantity to how many copies of the layer a run held, 0 if unknown.
    settings : tuple of Setting
    platforms : tuple of Platform
        Those of the file, which `setting` and `platform` count from 0.
    """

    kind: str
    columns: Mapping[str, Array]
    key: Array
    status: Array
    repeat: Array
    flags: Array
    times_ms: Mapping[str, Array] = field(repr=False)
    isolated_ms: Array
    reference_ratio: Array
    started_at: Array
    setting: Array
    platform: Array
    copies: Mapping[str, Array] = field(default_factory=dict, repr=False)
    settings: tuple[Setting, ...] = ()
    platforms: tuple[Platform, ...] = ()

    def __len__(self) -> int:
        return len(self.key)

    @property
    def name(self) -> str:
        """The kind, as `resperf.measurement.written_kind` returns it."""
        return written_kind(self.kind, OPTIMIZER in self.columns)

    @property
    def quantities(self) -> tuple[str, ...]:
        """Quantities that the rows have."""
        return tuple(self.times_ms)

    @property
    def ok(self) -> npt.NDArray[np.bool_]:
        """Which rows were measured, shape (n,)."""
        return np.asarray(self.status == Status.OK.value, dtype=np.bool_)

    @property
    def noisy(self) -> npt.NDArray[np.bool_]:
        """Rows with a flag, or taken while the machine was off its usual speed, shape (n,)."""
        off_speed = np.abs(self.reference_ratio - 1) > TOLERANCE
        return np.asarray((self.flags.astype(str) != "") | off_speed, dtype=np.bool_)

    @property
    def machine(self) -> npt.NDArray[np.int64]:
        """Place of the first of the platforms that does not differ from the row's own, (n,)."""
        return np.array(alike(self.platforms) or [0], dtype=np.int64)[self.platform]

    @property
    def defective(self) -> npt.NDArray[np.bool_]:
        """Rows that are never learnt from, shape (n,)."""
        flags = self.flags.astype(str)
        masks = [np.char.find(flags, defect) >= 0 for defect in DEFECTS]
        return np.asarray(np.any(masks, axis=0), dtype=np.bool_)

    def select(self, rows: Array) -> Self:
        """Return some of the rows, chosen by a mask (n,) or by indices."""

        def chosen(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[rows]
            if isinstance(value, Mapping):
                return {name: array[rows] for name, array in value.items()}
            return value

        names = [f.name for f in dataclasses.fields(self)]
        return type(self)(**{name: chosen(getattr(self, name)) for name in names})


class ListedTensor(NamedTuple):
    """A tensor of a listed operator: shape, type (empty if unknown), and whether it is a weight."""

    shape: tuple[int, ...]
    dtype: str = ""
    is_weight: bool = False


@dataclass(frozen=True)
class ListedOperator:
    """An operator in a published list, or several equal ones.

    Attributes
    ----------
    op : str
        As the source calls it: ``"aten.convolution"``, ``"Linear"``.
    inputs, outputs : tuple of ListedTensor
    attributes : Any
        JSON values of the source; None if it has none.
    count : int
        How often a network runs it.
    times_ms : mapping of str to float
        Quantity -> its time, once, if the source measured it in this network.
    """

    op: str
    inputs: tuple[ListedTensor, ...]
    outputs: tuple[ListedTensor, ...]
    attributes: Any = None
    count: int = 1
    times_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkDescription:
    """What a source says of a network.

    Attributes
    ----------
    name : str
        As in the rows of the network; a file of its graph has this name.
    architecture : str
        As the source calls it, without image size or length of the sequence.
    family : str
        Module or group of architectures that it belongs to; empty if unknown.
    image_size, sequence : int or None
        Side of a square image, or number of tokens.
    batch : int or None
        Batch size of the shapes in `operators`.
    parameters : int or None
        Number of parameters.
    reparameterised : bool
        Whether its branches were merged for inference.
    operators : tuple of ListedOperator
        Empty if the source has no list.
    """

    name: str
    architecture: str
    family: str = ""
    image_size: int | None = None
    sequence: int | None = None
    batch: int | None = None
    parameters: int | None = None
    reparameterised: bool = False
    operators: tuple[ListedOperator, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the JSON that a dataset stores."""
        # `dataclasses.asdict` copies everything, which takes longer than all else of an import.
        return json.dumps(vars(self), default=vars, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read what `to_bytes` returned.

        Raises
        ------
        DatasetError
            If it is damaged.
        """
        try:
            values = parse_json(content)
            operators = tuple(_operator(operator) for operator in values.pop("operators"))
            return cls(**values, operators=operators)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DatasetError(f"the description of a network is damaged ({error})") from error


def description_digest(content: bytes) -> str:
    """Return the name that a description is stored by: its SHA-256 (hex)."""
    return hashlib.sha256(content).hexdigest()


def _operator(values: Mapping[str, Any]) -> ListedOperator:
    tensors = {
        side: tuple(
            ListedTensor(tuple(shape), dtype, is_weight) for shape, dtype, is_weight in values[side]
        )
        for side in ("inputs", "outputs")
    }
    return ListedOperator(**{**values, **tensors})
