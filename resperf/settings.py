"""The setting: how a subject is run, as one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from resperf.records import Record, hash_of_fields

UNKNOWN = ""
"""Value of an unknown setting."""


class Mode(StrEnum):
    """What a run does."""

    INFERENCE = "inference"
    TRAINING = "training"


MEASURED_BY, SESSION, CONTAINS = "measured by", "session", "contains"
"""Options of a published row's setting: its source, the sitting, and what its time contains."""
HOST_DISPATCH = "host dispatch us"
"""Option of layers whose times are of kernels alone: what their host needs to start a kernel."""
NCHWC_BLOCK = "nchwc_block"
"""Option of ONNX Runtime's setting: channels per block of its blocked layouts; 0 without them."""
OPTIMIZER = "optimizer"
"""Column of training steps beside the fields of their layers."""
OPTIMIZERS: Mapping[str, int] = {
    "sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 2, "adam": 2, "adadelta": 2,
}  # fmt: skip
"""Optimizer -> values of state per weight, which every step reads and writes."""
PLAIN_PRECISIONS = (UNKNOWN, "fp32")
"""Precisions of which nobody asks for: the subject's own types, and float32."""
PRECISIONS = ("fp32", "tf32", "amp", "fp16", "bf16", "int8")
"""Values of `Setting.precision`; which of them a target has, its row and its backend say."""
HALF_TYPES: Mapping[str, str] = {"fp16": "float16", "bf16": "bfloat16"}
"""Precision -> type of all floating-point values."""
PRECISION_OF = {"float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}
"""Type of a network's own values, if it is not float32 -> the precision that it is run in."""
PEAK_NEEDED = {"amp": "fp16", "fp16": "fp16", "bf16": "bf16", "fp64": "fp64", "tf32": "tf32"}
"""Precision -> peak (`resperf.devices.facts.Peaks`) that a device must have for it."""
PEAKS_OF: Mapping[str, tuple[str, ...]] = {
    "float32": ("fp32_matrix", "tf32"),
    **{dtype: (name,) for dtype, name in PRECISION_OF.items()},
    **dict.fromkeys(("int8", "uint8"), ("int8", "fp16", "bf16", "tf32", "fp32_matrix")),
}
"""Type of values -> peaks at which devices may multiply them: the first is that which frameworks
use without being asked to, and takes the place of fp32 where a device has it."""
LAYOUTS = ("nchw", "nhwc")
"""Values of `Setting.layout`."""
COMPILED = ("eager", "graph", "dynamo", "inductor", "xla")
"""Values of `Setting.compiled`; all but the first compile the network before it runs."""
COMPILED_WORDS = dict.fromkeys(("dynamo", "inductor"), "compiled")
"""PyTorch's of these in the word that users ask by; others are words of users."""
PASSES = 3
"""Products of a layer's size in a training step: forward pass, gradients of input and weights. Loss
and update are not counted."""


@dataclass(frozen=True)
class Setting(Record):
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

    __hash__ = hash_of_fields

    @property
    def is_compiled(self) -> bool:
        """Whether the framework compiles the network before it runs it."""
        return self.compiled in COMPILED[1:]

    def with_optimizer(self, optimizer: str) -> Setting:
        """Return the setting of training steps with an optimizer, of inference if it is empty."""
        mode = Mode.TRAINING if optimizer else Mode.INFERENCE
        return dataclasses.replace(self, mode=mode, optimizer=optimizer)

    def without_batch(self) -> Setting:
        """Return the setting without batch and shapes, which each row of a network has itself."""
        return dataclasses.replace(self, batch=None, shapes={})

    def without_session(self) -> Setting:
        """Return the setting without the published session that a row was measured in."""
        options = {name: value for name, value in self.options.items() if name != SESSION}
        return dataclasses.replace(self, options=options)

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


def same_settings(setting: Setting) -> dict[str, str]:
    """Return what must agree between runs and what a bundle answers, in words."""
    plain_layouts, plain_modes = ("", "nchw"), ("", "eager", "graph")
    return {
        "framework": setting.framework,
        "mode": setting.mode.value,
        "precision": PLAIN_PRECISIONS[1]
        if setting.precision in PLAIN_PRECISIONS
        else setting.precision,
        "layout": "" if setting.layout in plain_layouts else setting.layout,
        "compiled": "" if setting.compiled in plain_modes else setting.compiled,
    }
