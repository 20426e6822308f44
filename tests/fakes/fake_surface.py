"""What a fake may have: the names and keywords that a real package was recorded with.

`tools/record_tensorrt_surface.py` writes the files in ``surfaces``. A fake that has a name or
keyword which the real package lacks cannot be imported; code that uses what only the real one has
is told that the fake lacks it, and code that uses what neither has gets the errors of the real one.
"""

from __future__ import annotations

import enum
import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

SURFACES = Path(__file__).parent / "surfaces"


def read(package: str, default: str) -> dict[str, Any]:
    """Read a recorded surface, of the version in the variable ``FAKE_TENSORRT``, ``FAKE_CUDA``."""
    version = os.environ.get(f"FAKE_{package.upper()}", default)
    found: dict[str, Any] = json.loads((SURFACES / f"{package}-{version}.json").read_text())
    return found


def enums(surface: Mapping[str, Any]) -> dict[str, Any]:
    """Make all enumerations, numbered in their order."""
    return {
        name: enum.IntEnum(name, {member: place for place, member in enumerate(members)})
        for name, members in surface["enums"].items()
    }


def check_functions(surface: Mapping[str, Any], module: Mapping[str, Any]) -> None:
    """Refuse functions, and keywords of them, that the real module does not have."""
    for name, value in module.items():
        if isinstance(value, FunctionType) and not name.startswith("_"):
            _check_keywords(name, value, surface["functions"].get(name))


def _check_keywords(name: str, function: Any, overloads: list[list[str]] | None) -> None:
    if overloads is None:
        raise AssertionError(f"the real package has no {name}")
    own = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    keywords = [p.name + "=" * (p.default is not p.empty) for p in own]
    if keywords not in overloads:
        raise AssertionError(f"the real {name} takes {overloads}, not {keywords}")


def real(surface: Mapping[str, Any], cls: type) -> type:
    """Return a fake class after a check: it has only names and keywords of the real one.

    Public attributes of its objects can be set only where the real one's properties can.
    """
    known = surface["classes"][cls.__name__]
    properties: Mapping[str, str] = known["properties"]
    for name, value in vars(cls).items():
        if isinstance(value, FunctionType) and (name == "__init__" or not name.startswith("_")):
            # Objects that only other objects make have a constructor that nobody may call.
            if name == "__init__" and known["methods"].get(name) == [["args", "kwargs"]]:
                continue
            _check_keywords(f"{cls.__name__}.{name}", value, known["methods"].get(name))
        elif (
            not name.startswith("_")
            and name not in properties
            and f"{cls.__name__}.{name}" not in surface["enums"]
        ):
            raise AssertionError(f"the real {cls.__name__} has no property {name}")

    def set_one(self: Any, name: str, value: object) -> None:
        if not name.startswith("_") and properties.get(name) != "rw":
            raise AttributeError(f"{cls.__name__}.{name} cannot be set")
        object.__setattr__(self, name, value)

    def get_missing(self: Any, name: str) -> Any:
        if name in known["methods"] or name in properties:
            raise NotImplementedError(f"the fake has no {cls.__name__}.{name}; the real one has")
        raise AttributeError(f"{cls.__name__} has no {name}")

    # Subclasses of the code under test have attributes of their own.
    if known["methods"].get("__init__") != [[]]:
        cls.__setattr__ = set_one  # type: ignore[method-assign, assignment]
    cls.__getattr__ = get_missing  # type: ignore[attr-defined]
    return cls
