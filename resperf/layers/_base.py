"""What every layer kind shares: fields with units, a canonical key, shapes, work and bytes."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.units import DTYPE_BYTES

FieldValue = int | bool | str

ACTIVATIONS = (
    "none", "relu", "tanh", "sigmoid", "leaky_relu", "clip", "hard_sigmoid", "elu", "softplus",
    "gelu", "silu", "hard_swish", "gelu_tanh", "selu", "softsign", "thresholded_relu",
    "celu",
)  # fmt: skip
LAYOUTS = ("nchw", "nhwc", "nchwc4", "nchwc8", "nchwc16", "nchwc32")


@dataclass(frozen=True)
class FieldSpec:
    """What a field means: enough to describe a column, check a value and draw one.

    Attributes
    ----------
    unit : str
        ``"1"`` for counts, ``"pixel"``, ``"bool"`` or ``"name"``.
    description : str
        One line for people; stored beside the column in a dataset.
    minimum : int
        Smallest allowed value of a number.
    choices : tuple of str
        Allowed values of a name; empty for numbers.
    """

    unit: str
    description: str
    minimum: int = 1
    choices: tuple[str, ...] = ()


def number(description: str, *, unit: str = "1", minimum: int = 1, default: Any = MISSING) -> Any:
    """Declare a whole-number field."""
    return dataclasses.field(
        default=default, metadata={"spec": FieldSpec(unit, description, minimum)}
    )


def flag(description: str, *, default: Any = MISSING) -> Any:
    """Declare a yes/no field."""
    return dataclasses.field(default=default, metadata={"spec": FieldSpec("bool", description, 0)})


def name(description: str, choices: tuple[str, ...], *, default: Any = MISSING) -> Any:
    """Declare a field that holds one of a few names."""
    return dataclasses.field(
        default=default, metadata={"spec": FieldSpec("name", description, 0, choices)}
    )


@dataclass(frozen=True, kw_only=True)
class Layer(ABC):
    """A lowered layer: what a framework really runs for one operator and what it absorbed.

    Subclasses are frozen dataclasses whose fields are all `number`, `flag` or `name`. Shapes are
    given in NCHW order whatever the layout; `layout` says how the values lie in memory.
    """

    kind: ClassVar[str]
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Shorthands people may write: ``{"kernel": ("kernel_height", "kernel_width")}``."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, self._checked(field.name))
        self._check()

    def _checked(self, field_name: str) -> FieldValue:
        spec = self.specs()[field_name]
        value = getattr(self, field_name)
        where = f"{self.kind}: {field_name}={value!r}"
        if spec.unit == "bool":
            if value not in (0, 1):
                raise LayerError(f"{where} must be true or false")
            return bool(value)
        if spec.choices:
            if value not in spec.choices:
                raise LayerError(f"{where} must be one of {', '.join(spec.choices)}")
            return str(value)
        if isinstance(value, bool) or int(value) != value or value < spec.minimum:
            raise LayerError(f"{where} must be a whole number of at least {spec.minimum}")
        return int(value)

    def _check(self) -> None:
        """Refuse fields that do not fit together; raises LayerError."""
        if min(self.output_shape) < 1:
            raise LayerError(
                f"{self.kind}: the output would be empty ({self.output_shape}) for {self.key}; "
                "use a smaller kernel or more padding"
            )

    @classmethod
    def specs(cls) -> Mapping[str, FieldSpec]:
        """Map each field's name to its meaning, in canonical order."""
        cached = cls.__dict__.get("_specs")
        if cached is None:
            cached = {f.name: f.metadata["spec"] for f in dataclasses.fields(cls)}
            cls._specs = cached  # type: ignore[attr-defined]
        return cached

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Make a layer from a mapping, such as a row of a dataset.

        Raises
        ------
        LayerError
            If a field is missing, unknown or impossible.
        """
        unknown = sorted(set(fields) - set(cls.specs()))
        if unknown:
            raise LayerError(
                f"{cls.kind} has no field {', '.join(unknown)}; it has {', '.join(cls.specs())}"
            )
        missing = [
            f.name for f in dataclasses.fields(cls) if f.default is MISSING and f.name not in fields
        ]
        if missing:
            raise LayerError(f"{cls.kind} needs a value for {', '.join(missing)}")
        return cls(**fields)

    @classmethod
    def from_text(cls, words: Mapping[str, str]) -> Self:
        """Make a layer from what a person types: ``{"batch": "8", "kernel": "3", ...}``.

        Shorthands of `aliases` and ``padding=same|valid`` are understood.

        Raises
        ------
        LayerError
            If a word is unknown or a value is not of its field's type.
        """
        fields: dict[str, Any] = {}
        for word, text in words.items():
            for field_name in cls.aliases.get(word, (word,)):
                spec = cls.specs().get(field_name)
                fields[field_name] = text if spec is None else _parse(cls.kind, word, text, spec)
        return cls.from_fields(cls._expand(fields))

    @classmethod
    def _expand(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Turn words that stand for several fields into those fields."""
        return fields

    def fields(self) -> dict[str, FieldValue]:
        """Return all fields in canonical order, ready for JSON."""
        return {field_name: getattr(self, field_name) for field_name in self.specs()}

    def replace(self, **changes: FieldValue) -> Self:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @property
    def key(self) -> str:
        """Canonical name: equal for equal layers, the same in every version of resperf."""
        return f"{self.kind}:" + ",".join(
            f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in self.fields().items()
        )

    @property
    def element_bytes(self) -> int:
        """Bytes of one value."""
        return DTYPE_BYTES[str(getattr(self, "dtype", "float32"))]

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the main input, in NCHW order."""

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output, in NCHW order."""

    @property
    @abstractmethod
    def macs(self) -> int:
        """Multiply-accumulate operations (comparisons and additions for pooling)."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of weights and bias."""

    @property
    def input_bytes(self) -> int:
        """Bytes of all activations read."""
        return math.prod(self.input_shape) * self.element_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of all activations written."""
        return math.prod(self.output_shape) * self.element_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written if each value crosses the memory bus once."""
        return self.input_bytes + self.output_bytes + self.weight_bytes


class PlainLayer(Layer):
    """Keeps its shape, multiplies nothing and has no weights, unless its kind says otherwise."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """That of the input."""
        return self.input_shape

    @property
    def macs(self) -> int:
        """Nothing is multiplied and accumulated."""
        return 0

    @property
    def weight_bytes(self) -> int:
        """There are no weights."""
        return 0


def _parse(kind: str, word: str, text: str, spec: FieldSpec) -> FieldValue:
    if spec.choices:
        return text.lower()
    if spec.unit == "bool":
        truth = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if text.lower() not in truth:
            raise LayerError(f"{kind}: {word}={text!r} must be true or false")
        return truth[text.lower()]
    try:
        return int(text)
    except ValueError as error:
        raise LayerError(f"{kind}: {word}={text!r} must be a whole number") from error


def window_length(size: int, kernel: int, stride: int, dilation: int, pads: int, ceil: bool) -> int:
    """Count the positions of a sliding window along one axis.

    Parameters
    ----------
    size, kernel, stride, dilation : int
        Of this axis.
    pads : int
        Padding of both ends together, in pixels.
    ceil : bool
        Count a last window that only partly lies on the input (ONNX ``ceil_mode``).
    """
    span = size + pads - dilation * (kernel - 1) - 1
    if span < 0:
        return 0
    return (-(-span // stride) if ceil else span // stride) + 1


def same_pads(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the pads (before, after) of SAME padding: output = ceil(size / stride).

    An odd pixel goes to the end.
    """
    total = max((-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2
