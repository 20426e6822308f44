"""The setting: how a subject is run, as one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

UNKNOWN = ""
"""Value of an unknown setting."""


class Mode(StrEnum):
    """What a run does."""

    INFERENCE = "inference"
    TRAINING = "training"


_JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str, "int": int, "bool": bool, "int | None": (int, type(None)),
}  # fmt: skip
"""Annotation of a field -> what JSON gives for it; mappings are objects."""


def known_fields(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of JSON values that a dataclass has as fields.

    Raises
    ------
    TypeError
        If one has the wrong type.
    """
    given = {}
    for f in dataclasses.fields(cls):
        if f.name not in values:
            continue
        value = given[f.name] = values[f.name]
        annotation = str(f.type)
        expected = (
            Mapping if annotation.startswith("Mapping") else _JSON_TYPES.get(annotation, object)
        )
        if not isinstance(value, expected):
            raise TypeError(f"{f.name}={value!r}")
    return given


@dataclass(frozen=True)
class Setting:
    """How a layer or a network is run. A layer's own fields (batch, dtype) are not part of it.

    Attributes
    ----------
    framework, framework_version : str
        Such as ``"onnxruntime"``, ``"1.31.1"``.
    provider : str
        Execution provider: ``"CPUExecutionProvider"``.
    threads : int
        Compute threads of the framework; 0 if unknown.
    mode : Mode
    optimizer : str
        Of a training step: ``"sgd"``; empty in inference.
    precision : str
        ``"fp32"``, ``"tf32"``, ``"amp"``, ``"fp16"``, ``"bf16"``, ``"int8"``; empty for the
        subject's own types.
    layout : str
        Memory format of a network's images: ``"nchw"``, ``"nhwc"``; empty for the framework's
        choice.
    compiled : str
        ``"eager"``, ``"graph"``, ``"dynamo"``, ``"xla"``; empty for the framework's default.
    cuda_graph : bool
        Whether launches are replayed from a CUDA graph.
    batch : int or None
        Batch size of a network; None for a layer, which has a field for it.
    shapes : mapping of str to tuple of int
        Shapes of a network's inputs, where the batch size alone does not determine them.
    options : mapping of str to str
        Other options that affect times, by the framework's own names.
    """

    framework: str
    framework_version: str = UNKNOWN
    provider: str = UNKNOWN
    threads: int = 0
    mode: Mode = Mode.INFERENCE
    optimizer: str = UNKNOWN
    precision: str = UNKNOWN
    layout: str = UNKNOWN
    compiled: str = UNKNOWN
    cuda_graph: bool = False
    batch: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash all fields; mappings by their items."""
        values = (getattr(self, f.name) for f in dataclasses.fields(self))
        return hash(
            tuple(tuple(sorted(v.items())) if isinstance(v, Mapping) else v for v in values)
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**dataclasses.asdict(self), "mode": self.mode.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; unknown fields of newer versions are ignored.

        Raises
        ------
        TypeError, ValueError
            If a field is missing or damaged.
        """
        given = known_fields(cls, values)
        given["mode"] = Mode(given.get("mode", Mode.INFERENCE))
        given["shapes"] = {k: tuple(v) for k, v in given.get("shapes", {}).items()}
        return cls(**given)

    def differences(self, other: Setting) -> list[str]:
        """Return the differences, one short phrase each; empty if there are none."""
        phrases = []
        for f in dataclasses.fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, Mapping):
                phrases += [
                    f"{name}: {mine.get(name, 'unset')} here, {theirs.get(name, 'unset')} there"
                    for name in sorted(set(mine) | set(theirs))
                    if mine.get(name) != theirs.get(name)
                ]
            elif mine != theirs:
                phrases.append(f"{f.name}: {mine} here, {theirs} there")
        return phrases
