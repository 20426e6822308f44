"""Record the public names of TensorRT's Python bindings, or of CUDA's, into a JSON file.

    python tools/record_tensorrt_surface.py tensorrt tests/fakes/surfaces/tensorrt-10.json
    python tools/record_tensorrt_surface.py cuda.bindings.runtime tests/fakes/surfaces/cuda-12.json

A file that exists is written anew with the same choice of names (``--only``). It holds classes with
their methods, keywords and properties, enumerations with their members, and functions with their
keywords; no texts. The fakes in `tests/fakes` have what it says and nothing else. No GPU is needed:
the modules only have to be importable.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
from enum import EnumMeta
from pathlib import Path
from types import ModuleType
from typing import Any

GROUPS = ("enums", "classes", "functions")
_OVERLOAD = re.compile(r"^\d+\. ")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the names of a module.")
    parser.add_argument("module", help="such as tensorrt, or cuda.bindings.runtime")
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", help="regular expression of the names to record; default: all")
    words = parser.parse_args()
    only = words.only or (
        json.loads(words.file.read_text())["only"] if words.file.exists() else ".*"
    )
    recorded = surface(importlib.import_module(words.module), only)
    words.file.write_text(as_text(recorded), encoding="utf-8")
    counts = (f"{len(recorded[group])} {group}" for group in GROUPS)
    print(f"{words.file}: {', '.join(counts)}")


def surface(module: ModuleType, only: str = ".*") -> dict[str, Any]:
    """Return the public names of a module: enumerations, classes and functions."""
    recorded: dict[str, Any] = {"version": _version(module), "only": only}
    recorded |= {group: {} for group in GROUPS}
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or isinstance(value, ModuleType) or not re.fullmatch(only, name):
            continue
        if isinstance(value, type):
            members, own = enum_members(value), _class(value)
            if members is not None:
                recorded["enums"][name] = members
                more = sorted(own["properties"].keys() - {"name", "value"})
                own = {"methods": {}, "properties": dict.fromkeys(more, "ro")}
            if members is None or own["properties"]:
                recorded["classes"][name] = own
            for inner, nested in vars(value).items():
                if isinstance(nested, type) and (inside := enum_members(nested)) is not None:
                    recorded["enums"][f"{name}.{inner}"] = inside
        elif callable(value) and enum_members(type(value)) is None:
            recorded["functions"][name] = signatures(name, value)
    return recorded


def enum_members(cls: type) -> list[str] | None:
    """Return the names of an enumeration's members; None for other classes."""
    members = getattr(cls, "__members__", None)
    if not isinstance(cls, EnumMeta) and not (members and hasattr(cls, "__entries")):
        return None
    return list(members or ())


def _class(cls: type) -> dict[str, Any]:
    """Return keywords of the methods, and which properties can be set, those of bases included."""
    methods: dict[str, list[list[str]]] = {}
    properties: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name, value in vars(base).items():
            if (name.startswith("_") and name != "__init__") or isinstance(value, type):
                continue
            if isinstance(value, property) or inspect.isgetsetdescriptor(value):
                properties[name] = "rw" if getattr(value, "fset", None) else "ro"
            elif callable(value) or isinstance(value, staticmethod | classmethod):
                methods[name] = signatures(name, getattr(cls, name))
    own: dict[str, dict[str, Any]] = {"methods": methods, "properties": properties}
    return {group: dict(sorted(rows.items())) for group, rows in own.items()}


def signatures(name: str, function: Any) -> list[list[str]]:
    """Return the keywords of every overload, ``"name="`` where there is a default."""
    overloads = []
    for line in (inspect.getdoc(function) or "").splitlines():
        text = _OVERLOAD.sub("", line.strip())
        parameters = _parameters(text[len(name) + 1 :]) if text.startswith(f"{name}(") else []
        if parameters and "*args" not in map(str.strip, parameters):
            overloads.append([word for word in map(_keyword, parameters) if word])
    return overloads or _inspected(function)


def _inspected(function: Any) -> list[list[str]]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return []
    return [[p.name + "=" * (p.default is not p.empty) for p in parameters if p.name != "self"]]


def _parameters(text: str) -> list[str]:
    """Return what stands between the commas of a text, up to the bracket that ends it."""
    parts, depth = [""], 1
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if not depth:
            return parts
        if letter == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += letter
    return []


def _keyword(parameter: str) -> str:
    """Return ``"flags="`` of ``"flags: int = 0"``, and ``"count"`` of ``"size_t count"``."""
    declared, equals, _ = parameter.partition("=")
    words = declared.partition(":")[0].split()
    name = words[-1] if words else "self"
    return "" if name in ("self", "/") or name.startswith("*") else name + "=" * bool(equals)


def as_text(recorded: dict[str, Any]) -> str:
    """Return JSON with one line per class, enumeration and function, which shows what changed."""
    head = {name: value for name, value in recorded.items() if name not in GROUPS}
    lines = [json.dumps(head)[:-1]]
    for group in GROUPS:
        rows = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in recorded[group].items()]
        lines.append(f'"{group}": {{\n' + ",\n".join(rows) + "\n}")
    return ",\n".join(lines) + "}\n"


def _version(module: ModuleType) -> str:
    parent = importlib.import_module(module.__name__.rpartition(".")[0] or module.__name__)
    return str(getattr(module, "__version__", getattr(parent, "__version__", "")))


if __name__ == "__main__":
    main()
