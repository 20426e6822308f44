"""The contract of a layer kind: fields, shapes, work, bytes, features, reading, kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

from resperf.errors import LayerError, did_you_mean
from resperf.layers._operator import split_at_axis
from resperf.layers.columns import THREADED_VALUES, Array, Columns, bytes_each

if TYPE_CHECKING:
    from resperf.layers._operator import Kernel, Operator

ACTIVATIONS = (
    "none", "relu", "tanh", "sigmoid", "leaky_relu", "clip", "hard_sigmoid", "elu", "softplus",
    "gelu", "silu", "hard_swish", "gelu_tanh", "selu", "softsign", "thresholded_relu",
    "celu",
)  # fmt: skip
# Distributions are written as campaign files write them (`resperf.campaign.laws`).
BATCHES = {"law": "choices", "values": [1, 2, 4, 8, 16, 32], "weights": [4, 3, 3, 3, 3, 1]}
"""Default distribution of the batch size."""


def log_uniform(low: int, high: int, *round_to: int) -> dict[str, Any]:
    """Return a log-uniform distribution."""
    law: dict[str, Any] = {"law": "log_uniform", "low": low, "high": high}
    return law | ({"round_to": list(round_to)} if round_to else {})


def choices(values: Sequence[Any], weights: Sequence[float]) -> dict[str, Any]:
    """Return a weighted choice."""
    return {"law": "choices", "values": list(values), "weights": list(weights)}


MOVED_DTYPES = choices(["float32", "int64", "bool", "uint8"], [16, 2, 1, 1])
"""Default distribution of the element types of kinds that only copy values."""


FieldValue = int | bool | str
AXES = ("depth", "height", "width")
"""Axes of images and volumes."""
_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
T = TypeVar("T")


class FieldSpec(NamedTuple):
    """Description of a field: enough to describe a column, check a value and draw one.

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
    default : int, bool, str or dataclasses.MISSING
        MISSING if a value must be given.
    """

    unit: str
    description: str
    minimum: int = 1
    choices: tuple[str, ...] = ()
    default: Any = MISSING


def number(description: str, *, unit: str = "1", minimum: int = 1, default: Any = MISSING) -> Any:
    """Declare an integer field."""
    return FieldSpec(unit, description, minimum, default=default)


def pixels(description: str, *, minimum: int = 1, default: Any = MISSING) -> Any:
    """Declare an integer field that is a length along an axis."""
    return number(description, unit="pixel", minimum=minimum, default=default)


def flag(description: str, *, default: Any = MISSING) -> Any:
    """Declare a yes/no field."""
    return FieldSpec("bool", description, 0, default=default)


def name(description: str, choices: tuple[str, ...], *, default: Any = MISSING) -> Any:
    """Declare a field that holds one of a few names."""
    return FieldSpec("name", description, 0, choices, default)


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(number, pixels, flag, name)
)
class Fields:
    """A frozen value with named fields, made from keywords only.

    Subclasses declare their fields as those of a dataclass, each by `number`, `pixels`, `flag` or
    `name`; no method is made for them, so that many kinds are imported fast.
    """

    # The cache is a slot, so that vars() holds the fields only.
    __slots__ = ("__dict__", "__weakref__", "_cache")
    _cache: dict[str, Any]

    kind: ClassVar[str]
    """Name of the module that declares it."""
    specs: ClassVar[Mapping[str, FieldSpec]] = {}
    """Name of each field -> its description, in canonical order."""
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Shorthands for several fields: ``{"kernel": ("kernel_height", "kernel_width")}``. Those of
    fields along `AXES` follow from their names; ``size`` are the axes themselves."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kind = cls.__module__.rpartition(".")[2]
        # As in a dataclass, a field that a subclass declares anew stays in its place.
        cls.specs = {
            name: spec
            for base in reversed(cls.__mro__)
            for name, spec in vars(base).items()
            if isinstance(spec, FieldSpec)
        }
        # Without a width, no field is along an axis of an image.
        axes = AXES if "width" in cls.specs else ()
        shorthands: dict[str, tuple[str, ...]] = {}
        for name in cls.specs:
            for axis in set(name.split("_")).intersection(axes):
                word = name.replace(axis, "size").replace("_size", "")
                shorthands[word] = (*shorthands.get(word, ()), name)
        if shorthands:
            cls.aliases = {**cls.aliases, **shorthands}

    def __init__(self, **values: Any) -> None:
        own, specs = vars(self), self.specs
        if unknown := sorted(values.keys() - specs.keys()):
            words = (*specs, *self.aliases)
            named = ", ".join(f"{word}{did_you_mean(word, words)}" for word in unknown)
            raise LayerError(f"{self.kind} has no field {named}; it has {', '.join(specs)}")
        given = {name: values.get(name, spec.default) for name, spec in specs.items()}
        if missing := [name for name, value in given.items() if value is MISSING]:
            raise LayerError(f"{self.kind} needs a value for {', '.join(missing)}")
        for name, spec in specs.items():
            value = given[name]
            read: Callable[[Any], FieldValue]
            if spec.unit == "bool":
                fits, expected, read = value in (0, 1), "true or false", bool
            elif spec.choices:
                fits, expected, read = value in spec.choices, "one of ", str
            else:
                fits = not isinstance(value, bool) and int(value) == value >= spec.minimum
                expected, read = f"an integer of at least {spec.minimum}", int
            if not fits:
                expected += ", ".join(spec.choices)
                raise LayerError(f"{self.kind}: {name}={value!r} must be {expected}")
            own[name] = read(value)
        self._check()

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}; use replace")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self) -> dict[str, FieldValue]:
        return vars(self)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def _check(self) -> None:
        """Raise LayerError if the fields contradict each other."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Make a layer from a mapping, such as a row of a dataset.

        Raises
        ------
        LayerError
            If a field is missing, unknown or out of range.
        """
        return cls(**fields)

    @classmethod
    def from_text(cls, words: Mapping[str, str]) -> Self:
        """Make a layer from typed text: ``{"batch": "8", "kernel": "3", ...}``.

        Shorthands of `aliases` and ``padding=same|valid`` are understood.

        Raises
        ------
        LayerError
            If a word is unknown or a value is not of its field's type.
        """
        fields: dict[str, Any] = {}
        specs, aliases = cls.specs, cls.aliases
        for word, text in words.items():
            for field_name in aliases.get(word, (word,)):
                spec = specs.get(field_name)
                if spec is None or spec.choices:
                    fields[field_name] = text if spec is None else text.lower()
                    continue
                is_flag = spec.unit == "bool"
                try:
                    fields[field_name] = _BOOLEANS[text.lower()] if is_flag else int(text)
                except (KeyError, ValueError) as error:
                    expected = "true or false" if is_flag else "an integer"
                    raise LayerError(f"{cls.kind}: {word}={text!r} must be {expected}") from error
        return cls(**cls._expand(fields))

    @classmethod
    def _expand(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Replace words that stand for several fields by those fields."""
        return fields

    def fields(self) -> dict[str, FieldValue]:
        """Return all fields in canonical order, ready for JSON."""
        return dict(vars(self))

    def replace(self, **changes: FieldValue) -> Self:
        """Return a copy with some fields changed."""
        return type(self)(**{**vars(self), **changes})

    @property
    def key(self) -> str:
        """Canonical name: equal for equal layers, the same in every version of resperf."""
        words = (f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in vars(self).items())
        return self._once("key", lambda: f"{self.kind}:{','.join(words)}")

    def _once(self, word: str, make: Callable[[], T]) -> T:
        """Return the cached result of `make`, called the first time only."""
        try:
            cache = self._cache
        except AttributeError:
            cache = {}
            object.__setattr__(self, "_cache", cache)
        if word not in cache:
            cache[word] = make()
        value: T = cache[word]
        return value


class Layer(Fields):
    """A lowered layer: what a framework really runs for one operator and those fused into it.

    Each kind is a subclass in its own file, listed in `resperf.layers.KINDS`. By default the output
    has the shape of the input, and there are no multiply-adds and no weights. Shapes are always in
    NCHW order; `layout` says how the values are stored in memory.

    Shapes, work and bytes are written once, for one layer and for many: on the result of `over`,
    the same properties are arrays. They use arithmetic only; `columns.is_in`, `columns.either` and
    `columns.smaller` replace branches.
    """

    INPUT: ClassVar[tuple[str, ...]] = ()
    """Fields that are the lengths of the main input, in NCHW order."""
    OUTPUT: ClassVar[tuple[str, ...]] = ()
    """Fields that are the lengths of the output, if they are not those of the input."""
    PLAIN: ClassVar[tuple[str, ...]] = ()
    """Quantities that are used as features unchanged."""
    LOG2: ClassVar[tuple[str, ...]] = ()
    """Quantities whose log2 is a feature."""
    ENCODED: ClassVar[tuple[str, ...]] = ()
    """Fields that are one-hot encoded as features, besides ``dtype``."""
    FUNCTION: ClassVar[str | None] = None
    """Field whose value scales the time of otherwise equal work. By default the first of `ENCODED`;
    ``""`` for none."""
    PLACED_BY: ClassVar[str] = ""
    """Field whose values each get their own in-network correction; ``""`` for none."""
    INDEPENDENT_FIELDS: ClassVar[bool] = False
    """Whether fields vary independently and equal work has equal fields. If so, trained ranges are
    ranges of fields, and campaigns vary all fields. Otherwise the same work can be written in
    several ways (rows as `batch` or as `outer`), and trained ranges are ranges of quantities."""
    RANGED: ClassVar[tuple[str, ...]] = ()
    """Quantities that say which kernel runs and are no features; trained ranges hold them too."""
    RANGES: ClassVar[Mapping[str, Any]] = {}
    """Default distributions that a campaign draws the fields from, of `batch` where they are not
    `BATCHES`."""
    WORDS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Words that `fitting` understands besides fields and shorthands, and their values."""
    SCALED: ClassVar[tuple[str, ...]] = ()
    """Lengths that a campaign scales when it perturbs a layer of a network."""
    REDRAWN: ClassVar[tuple[str, ...]] = ()
    """Words that it sometimes redraws in such a layer."""
    FLOPS_PER_MAC: ClassVar[int] = 2
    """1 for kinds whose `macs` are comparisons or additions."""
    FLOPS_PER_VALUE: ClassVar[int] = 0
    """Operations per value of kinds without multiply-adds."""
    OPERATORS: ClassVar[frozenset[str]] = frozenset()
    """ONNX operators (and fused operators of ONNX Runtime) that this kind reads."""
    BACKWARD: ClassVar[tuple[str, ...]] = ()
    """Quantities of the backward pass; their log2 are features of training steps."""

    def _check(self) -> None:
        if min(self.output_shape) < 1:
            raise LayerError(
                f"{self.kind}: the output would be empty ({self.output_shape}) for {self.key}; "
                "use a smaller kernel or more padding"
            )

    @classmethod
    def over(cls, columns: Columns) -> Self:
        """Return many layers as one object whose fields are arrays of shape (rows,).

        Numbers are float64. Every number that a layer has becomes an array too: `macs`, bytes, each
        length of a shape.
        """
        import numpy as np

        layers = object.__new__(cls)
        for field_name, spec in cls.specs.items():
            dtype = None if spec.choices else np.float64
            vars(layers)[field_name] = np.asarray(columns[field_name], dtype=dtype)
        return layers

    @property
    def element_bytes(self) -> int:
        """Bytes of one value."""
        return self._once("element_bytes", lambda: bytes_each(getattr(self, "dtype", "float32")))

    @property
    def step_work(self) -> tuple[int, int]:
        """Kernels of a GPU, one after the other, and bytes that they move beyond `moved_bytes`."""
        return 1, 0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the main input, in NCHW order."""
        return tuple([getattr(self, length) for length in self.INPUT])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output, in NCHW order."""
        return tuple([getattr(self, length) for length in self.OUTPUT]) or self.input_shape

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations (comparisons and additions for pooling)."""
        return 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and bias."""
        return 0

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

    @property
    def flops(self) -> int:
        """Operations: two per multiply-add, unless the kind says else."""
        return self.FLOPS_PER_MAC * self.macs + self.FLOPS_PER_VALUE * self.value_count

    @property
    def value_count(self) -> int:
        """Values of the output, or those that decide whether frameworks use several threads."""
        return math.prod(self.output_shape)

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Return physical quantities of layers of this kind, each of shape (rows,).

        These are all fields that are numbers, bytes, work and threading, 1 or 0 for each choice of
        `ENCODED` and ``dtype``, and what `own_quantities` adds.
        """
        import numpy as np

        many = cls.over(columns)
        quantities: dict[str, Any] = {
            "in_bytes": many.input_bytes, "out_bytes": many.output_bytes,
            "weight_bytes": many.weight_bytes, "moved_bytes": many.moved_bytes,
            "flops": many.flops, "value_count": many.value_count,
            "threaded": many.value_count >= THREADED_VALUES, "vector_rest": many.value_count % 16,
        }  # fmt: skip
        for field_name, spec in cls.specs.items():
            value = vars(many)[field_name]
            if not spec.choices:
                quantities[field_name] = value
            elif field_name in (*cls.ENCODED, "dtype"):
                quantities |= {f"{field_name}={choice}": value == choice for choice in spec.choices}
        quantities |= many.own_quantities()
        rows = np.shape(many.input_bytes)
        return {
            name: np.full(rows, quantity, dtype=np.float64) for name, quantity in quantities.items()
        }

    def own_quantities(self) -> dict[str, Any]:
        """Return what else may cost time or be a feature; called on the result of `over`."""
        return {}

    @classmethod
    def ranges(cls) -> Mapping[str, Any]:
        """Return the default distributions of all fields that a campaign draws."""
        return {"batch": BATCHES, **cls.RANGES}

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Make independently drawn fields consistent with each other."""
        return dict(fields)

    def varied(self, **changes: Any) -> Self:
        """Change some fields, and the fields that depend on them."""
        return self.replace(**changes)

    def as_drawn(self) -> Self:
        """Return the layer as campaigns draw it: in the layout before lowering."""
        return self

    @property
    def is_runnable(self) -> bool:
        """Whether frameworks accept such a layer."""
        return True

    @property
    def is_made_by_frameworks(self) -> bool:
        """Whether only graph optimisers create such layers, so that campaigns do not draw them."""
        return False

    @classmethod
    def read(cls, operator: Operator) -> Layer:
        """Read an operator of `OPERATORS`; may return a layer of another kind that does its work.

        Raises
        ------
        LayerError
            If the operator is not supported, with the reason.
        """
        raise LayerError(f"{operator.op} is no layer of kind {cls.kind}")

    def _node(
        self, op: str, attributes: Mapping[str, Any] | None = None, *, domain: str = "", **more: Any
    ) -> Kernel:
        """Return an ONNX node of the layer's shapes; `more` are other fields of a `Kernel`."""
        from resperf.layers._operator import Kernel

        shapes = {"input_shape": self.input_shape, "output_shape": self.output_shape}
        return Kernel(op, domain, attributes or {}, **{**shapes, **more})

    def as_onnx_node(self) -> Kernel:
        """Return the ONNX node that runs this layer, in NCHW.

        Raises
        ------
        LayerError
            If there is none.
        """
        raise LayerError(f"no ONNX operator does the work of a {self.kind} layer")


class FlatLayer(Layer):
    """Fields and shape that such kinds share: every value is computed by itself."""

    batch: int = number("images or rows in one run")
    values: int = number("values of one image or row")

    INPUT = ("batch", "values")
    SCALED = ("values",)
    FLOPS_PER_VALUE = 1


class AlongAxis(Layer):
    """Fields, shape and rows that such kinds share."""

    batch: int = number("first dimension")
    outer: int = number("rows per batch entry", default=1)
    values: int = number("values along the axis")
    inner: int = number("product of the axes after this one", default=1)

    LOG2: ClassVar[tuple[str, ...]] = ("rows", "values", "inner", "moved_bytes")
    SCALED: ClassVar[tuple[str, ...]] = ("outer", "values")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch x outer, values, inner)."""
        return (self.batch * self.outer, self.values, self.inner)

    @staticmethod
    def fields_at(shape: Sequence[int], axis: int) -> dict[str, int]:
        """Return these fields of a tensor, split at an axis."""
        return dict(
            zip(("batch", "outer", "values", "inner"), split_at_axis(shape, axis), strict=True)
        )

    def own_quantities(self) -> dict[str, Any]:
        """Rows; ``apart`` is 1 where the values of a row are strided."""
        return {"rows": self.batch * self.outer * self.inner, "apart": self.inner > 1}
