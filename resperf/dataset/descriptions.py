"""What is known of a published network besides its graph: family, parameters, list of operators."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from resperf.errors import DatasetError


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
        text = json.dumps(vars(self), default=vars, sort_keys=True, separators=(",", ":"))
        return text.encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read what `to_bytes` returned.

        Raises
        ------
        DatasetError
            If it is damaged.
        """
        try:
            values = json.loads(content)
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
