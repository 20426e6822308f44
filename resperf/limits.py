"""Settings with limits: frozen dataclasses that read tables of TOML files."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

from resperf.errors import CampaignError, ResperfError, first_line


@dataclass(frozen=True)
class Limit:
    """Numbers that a setting may have, in words and as a test."""

    words: str
    allows: Callable[[float], bool]


NOT_NEGATIVE = Limit("a number, and not negative", lambda value: value >= 0)
POSITIVE = Limit("a number above 0", lambda value: value > 0)
AT_LEAST_1 = Limit("a number of at least 1", lambda value: value >= 1)
BETWEEN_0_AND_1 = Limit("between 0 and 1", lambda value: 0 < value < 1)
SHARE = Limit("a share: between 0 and 1", lambda value: 0 <= value <= 1)
FIRST_SHARE = Limit("a share: above 0, at most 1", lambda value: 0 < value <= 1)
_TYPES: Mapping[Any, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,)}
_LISTS = {int: "integers of at least 1", float: "numbers above 0", str: "words", Any: "values"}


def read_toml(path: Path, error_class: type[ResperfError]) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    ResperfError
        Of the given class, if it cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise error_class(f"{path} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise error_class(f"{path} is not a TOML file: {first_line(error)}") from error


def limited(default: Any, limit: Limit) -> Any:
    """Return a field of `Limited` with another limit than `NOT_NEGATIVE`."""
    return dataclasses.field(default=default, metadata={"limit": limit})


@dataclass(frozen=True)
class Limited:
    """Base of frozen dataclasses of settings, which are checked where they are made.

    Numbers are finite and within their field's limit. Tuples hold words, or numbers above 0.

    Raises
    ------
    CampaignError
        If a setting is of the wrong type or out of range.
    """

    def __post_init__(self) -> None:
        settings: Any = type(self)
        for name, (hint, limit) in _rules(settings).items():
            value = getattr(self, name)
            # A default may be beyond the limit: NaN where nothing is given.
            if value is not getattr(settings, name, MISSING):
                _check(name, value, hint, limit)

    @classmethod
    def from_table(cls, values: Any, where: str, needed: Iterable[str] = (), **more: Any) -> Self:
        """Read a table of settings; those that are `Limited` themselves are tables in it.

        Parameters
        ----------
        values : mapping
            Plain values.
        where : str
            Name of the table, for messages.
        needed : iterable of str
            What it must give beside the fields without a default.
        **more
            Fields that are not in the table.

        Raises
        ------
        CampaignError
            If a setting is unknown, missing, of the wrong type or out of range.
        """
        if not isinstance(values, Mapping):
            raise CampaignError(f"{where}={values!r} must be a table")
        settings: Any = cls
        types = {word: hint for word, (hint, _) in _rules(settings).items() if word not in more}
        if unknown := sorted(set(values) - set(types)):
            raise CampaignError(
                f"{where} has no {', '.join(unknown)}; it has {', '.join(sorted(types))}"
            )
        own = {
            field.name
            for field in dataclasses.fields(cls)
            if field.default is MISSING and field.default_factory is MISSING
        }
        if missing := sorted({*own, *needed} - set(values) - set(more)):
            raise CampaignError(f"{where}: {', '.join(missing)} must be given")
        given = {word: _read(types[word], value, word) for word, value in values.items()}
        try:
            return cls(**given, **more)
        except ResperfError as error:
            raise type(error)(f"{where}: {error}") from error


def _plain(hint: Any) -> Any:
    """Return a type without None."""
    parts = get_args(hint)
    return parts[0] if NoneType in parts else hint


@cache
def _rules(settings: type[Any]) -> Mapping[str, tuple[Any, Limit]]:
    """Return type and limit of each field."""
    types = get_type_hints(settings)
    fields = dataclasses.fields(settings)
    return {f.name: (types[f.name], f.metadata.get("limit", NOT_NEGATIVE)) for f in fields}


def _read(hint: Any, value: Any, word: str) -> Any:
    """Turn a table into settings, and lists into tuples."""
    hint = _plain(hint)
    if isinstance(hint, type) and issubclass(hint, Limited):
        return hint.from_table(value, word)
    if get_origin(hint) is Mapping and isinstance(value, Mapping):
        return {name: _read(get_args(hint)[1], item, name) for name, item in value.items()}
    return tuple(value) if get_origin(hint) is tuple and isinstance(value, list) else value


def _check(name: str, value: Any, hint: Any, limit: Limit) -> None:
    """Refuse a value of another type, or beyond the limit."""
    hint = _plain(hint)
    if get_origin(hint) is Mapping:
        if not isinstance(value, Mapping):
            raise CampaignError(f"{name}={value!r} must be a table")
        for word, item in value.items():
            _check(f"{name}.{word}", item, get_args(hint)[1], limit)
    elif get_origin(hint) is tuple:
        item_type = get_args(hint)[0]
        if not isinstance(value, tuple) or not all(_is_item(item, item_type) for item in value):
            shown = list(value) if isinstance(value, tuple) else value
            raise CampaignError(
                f"{name}={shown!r} must be a list of {_LISTS.get(item_type, 'values')}"
            )
    elif hint in _TYPES:
        if not _is(value, hint):
            raise CampaignError(f"{name}={value!r} must be of type {hint.__name__}")
        if hint is not str and not (abs(value) <= sys.float_info.max and limit.allows(value)):
            raise CampaignError(f"{name}={value!r} must be {limit.words}")


def _is(value: Any, value_type: Any) -> bool:
    return isinstance(value, _TYPES[value_type]) and not isinstance(value, bool)


def _is_item(value: Any, hint: Any) -> bool:
    if hint not in _TYPES:
        return True
    return is_positive(value, hint) if hint is not str else isinstance(value, str) and value != ""


def is_positive(value: Any, number_type: type = float) -> bool:
    """Whether a value is a finite number above 0, and no boolean."""
    return _is(value, number_type) and 0 < value <= sys.float_info.max
