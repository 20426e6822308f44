"""Frozen values with named fields and units, checked once, and their canonical keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, TypeVar, dataclass_transform

from resperf.errors import LayerError, did_you_mean

FieldValue = int | bool | str
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
class Fields(ABC):
    """A frozen value with named fields, made from keywords only.

    Subclasses declare their fields as those of a dataclass, each by `number`, `pixels`, `flag` or
    `name`; no method is made for them, so that many kinds are imported fast.
    """

    # The cache is a slot, so that vars() holds the fields only.
    __slots__ = ("__dict__", "__weakref__", "_cache")
    _cache: dict[str, Any]

    kind: ClassVar[str]
    specs: ClassVar[Mapping[str, FieldSpec]] = {}
    """Name of each field -> its description, in canonical order."""
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Shorthands for several fields: ``{"kernel": ("kernel_height", "kernel_width")}``."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # As in a dataclass, a field that a subclass declares anew stays in its place.
        cls.specs = {
            name: spec
            for base in reversed(cls.__mro__)
            for name, spec in vars(base).items()
            if isinstance(spec, FieldSpec)
        }

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
            own[name] = self._checked(name, spec, given[name])
        self._check()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}; use replace")

    def __delattr__(self, name: str) -> NoReturn:
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

    def _checked(self, field_name: str, spec: FieldSpec, value: Any) -> FieldValue:
        if spec.unit == "bool":
            if value in (0, 1):
                return bool(value)
            expected = "true or false"
        elif spec.choices:
            if value in spec.choices:
                return str(value)
            expected = f"one of {', '.join(spec.choices)}"
        else:
            if not isinstance(value, bool) and int(value) == value and value >= spec.minimum:
                return int(value)
            expected = f"an integer of at least {spec.minimum}"
        raise LayerError(f"{self.kind}: {field_name}={value!r} must be {expected}")

    @abstractmethod
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
                fields[field_name] = text if spec is None else _parse(cls.kind, word, text, spec)
        return cls.from_fields(cls._expand(fields))

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


def _parse(kind: str, word: str, text: str, spec: FieldSpec) -> FieldValue:
    if spec.choices:
        return text.lower()
    if spec.unit == "bool":
        booleans = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if text.lower() not in booleans:
            raise LayerError(f"{kind}: {word}={text!r} must be true or false")
        return booleans[text.lower()]
    try:
        return int(text)
    except ValueError as error:
        raise LayerError(f"{kind}: {word}={text!r} must be an integer") from error
