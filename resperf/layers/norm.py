"""Normalisations that are not folded into a convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, log_uniform, name, number
from resperf.layers._operator import CONTRIB, FLOATS, Kernel, Operator, dtype_of, split_rows
from resperf.layers.columns import either, is_in

_OPS: Mapping[str, str] = {
    "layer": "LayerNormalization", "rms": "SimplifiedLayerNormalization",
    "skip_layer": "SkipLayerNormalization", "instance": "InstanceNormalization",
    "batch": "BatchNormalization", "local_response": "LRN",
    "skip_rms": "SkipSimplifiedLayerNormalization",
}  # fmt: skip
FUNCTIONS = tuple(_OPS)
_FUNCTION_OF: Mapping[str, str] = {
    **{op: function for function, op in _OPS.items()}, "RMSNormalization": "rms",
}  # fmt: skip
_SKIPS = ("skip_layer", "skip_rms")
"""Functions that first add two tensors."""
_WEIGHTS = {
    "layer": 2, "rms": 1, "skip_layer": 2, "instance": 2, "batch": 4, "local_response": 0,
    "skip_rms": 1,
}  # fmt: skip
"""Weights per channel: scale, bias, and for a batch normalisation mean and variance."""
_BY_CHANNEL = ("instance", "batch", "local_response")
"""Normalisations of (batch, channels, pixels); the others are of (batch, pixels, channels)."""
_EMBEDDINGS = frozenset({"EmbedLayerNormalization", "QEmbedLayerNormalization"})


class Norm(Layer):
    """A normalisation of (batch, pixels, channels) or (batch, channels, pixels).

    ``layer`` and ``rms`` normalise along contiguous channels; ``skip_layer`` and ``skip_rms`` first
    add two tensors. ``instance`` normalises the pixels of each channel, ``batch`` scales every
    channel, ``local_response`` divides by a sum over the `window` neighbouring channels.
    """

    batch: int = number("first dimension")
    channels: int = number("channels, each with its own scale")
    pixels: int = number("values per channel")
    function: str = name("function that is computed", FUNCTIONS, default="layer")
    window: int = number("channels in the window of a local response", default=1)
    dtype: str = name("type of one value", FLOATS, default="float32")

    PLACED_BY = "function"
    PLAIN = ("threaded", "vector_rest", "window")
    LOG2 = ("batch", "channels", "pixels", "rows", "moved_bytes")
    ENCODED = ("function",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "channels": log_uniform(1, 4096, 1, 8, 16),
        "pixels": log_uniform(1, 16384),
        "function": choices(FUNCTIONS, [8, 2, 1, 2, 4, 4, 1]),
        "window": choices([3, 5], [1, 3]),
    }
    SCALED = ("channels", "pixels")
    OPERATORS = frozenset(_FUNCTION_OF) | _EMBEDDINGS

    def _check(self) -> None:
        if self.window > 1 and self.function != "local_response":
            raise LayerError(f"norm: only local_response has a window, not {self.function}")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random, /) -> dict[str, Any]:
        """Set the window of other functions to 1, and widen some draws to sizes of networks."""
        draw, function = dict(fields), fields["function"]
        if function != "local_response":
            draw["window"] = 1
        if function == "instance":
            # Channel groups of a large image, or all samples of an audio signal.
            draw["pixels"] *= source.choice((1, 1, 8, 64))
        if function == "batch" and source.random() < 0.3:
            # Tokens flattened to rows, as in LeViT and classifier heads.
            draw |= {"batch": int(draw["batch"]) * source.randint(1, 256), "pixels": 1}
        return draw

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, channels, pixels), or (batch, pixels, channels) if channels are contiguous."""
        by_channel = is_in(self.function, _BY_CHANNEL)
        sides = either(by_channel, self.channels, self.pixels)
        return (self.batch, sides, either(by_channel, self.pixels, self.channels))

    @property
    def input_bytes(self) -> int:
        """Bytes of the input; of two tensors if they are added first."""
        return (1 + is_in(self.function, _SKIPS)) * self.output_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of scale and bias, and of the statistics of a batch normalisation."""
        per_channel = sum(n * is_in(self.function, (f,)) for f, n in _WEIGHTS.items())
        return per_channel * self.channels * self.element_bytes

    @property
    def flops(self) -> int:
        """One operation per value and channel of its window."""
        return self.value_count * self.window

    def own_quantities(self) -> dict[str, Any]:
        """Rows that are normalised separately."""
        by_channel = is_in(self.function, _BY_CHANNEL)
        windowed = self.window * is_in(self.function, ("local_response",))
        return {
            "rows": self.batch * either(by_channel, self.channels, self.pixels),
            "windowed_bytes": self.output_bytes * windowed,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a normalisation.

        One that adds the rows of tables first, for tokens and their positions, reads and adds as
        much as a ``skip_layer``.
        """
        if operator.op in _EMBEDDINGS:
            batch, *tokens, channels = operator.result()
            return cls(
                batch=batch, channels=channels, pixels=math.prod(tokens), function="skip_layer"
            )
        dtype, shape = dtype_of(operator), operator.shape()
        function = _FUNCTION_OF[operator.op]
        if len(shape) < 2:
            raise LayerError(f"a normalisation of shape {shape} has no layer")
        window = int(operator.attributes["size"]) if function == "local_response" else 1
        if function in _BY_CHANNEL:
            batch, channels, pixels = shape[0], shape[1], math.prod(shape[2:])
        else:
            axis = operator.axis(-1)
            batch, pixels = split_rows(math.prod(shape[:axis]), shape[0])
            channels = math.prod(shape[axis:])
        return cls(
            batch=batch, channels=channels, pixels=pixels, function=function, window=window,
            dtype=dtype,
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return the operator with its scale, bias and statistics."""
        shape, op = self.input_shape, _OPS[self.function]
        weights = ((self.channels,),) * _WEIGHTS[self.function]
        if self.function == "local_response":
            image = (*shape, 1)
            return self._node(op, {"size": self.window}, input_shape=image, output_shape=image)
        if self.function in _SKIPS:
            # The second tensor comes before the scale.
            return self._node(op, domain=CONTRIB, extra_shapes=(shape, *weights))
        attributes = {} if self.function in _BY_CHANNEL else {"axis": -1}
        return self._node(op, attributes, weight_shapes=weights)
