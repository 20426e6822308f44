"""What transposed convolutions of images and volumes share: the window, axis by axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._grouped import GroupedLayer, with_groups
from resperf.layers._operator import Kernel, Operator, dtype_of, traffic
from resperf.layers.columns import Array, Columns, element_bytes, numbers
from resperf.layers.terms import CACHE_2, TRAFFIC_TERMS, Term, beyond, gflop, mb, millions

_WORDS = ("kernel", "stride", "dilation", "cut")


def shorthands(axes: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the aliases of such a kind's fields."""
    return {"size": tuple(axes), **{w: tuple(f"{w}_{axis}" for axis in axes) for w in _WORDS}}


class TransposedConv(GroupedLayer):
    """A transposed convolution over `AXES`; the fields are its kind's own."""

    AXES: ClassVar[tuple[str, ...]]

    PLAIN: ClassVar[tuple[str, ...]] = ("threaded", "vector_rest", "bias", "grouped", "overlap")
    LOG2: ClassVar[tuple[str, ...]] = (
        "batch", "channels_in", "channels_out", "groups", "pixels_in", "pixels_out", "taps",
        "flops", "columns_bytes", "in_bytes", "out_bytes", "weight_bytes",
    )  # fmt: skip
    ENCODED: ClassVar[tuple[str, ...]] = ()
    TERMS: ClassVar[Mapping[str, Term]] = {
        **TRAFFIC_TERMS,
        "weights": mb("weight_bytes"),
        "weights per image": mb("image_weight_bytes"),
        "flops": gflop("flops"),
        "flops grouped": gflop("flops", "grouped"),
        "columns": mb("columns_bytes"),
        "columns beyond cache 2": beyond("columns_bytes", CACHE_2),
        "products": millions("products"),
    }
    SCALED: ClassVar[tuple[str, ...]] = ("channels_in", "channels_out")

    batch: int
    bias: bool

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Let depthwise draws have as many channels out as in."""
        del source
        return with_groups(dict(fields))

    def _along(self, word: str) -> tuple[int, ...]:
        """Return sizes (``""``), kernels, strides, dilations or cuts along the axes."""
        return tuple(getattr(self, f"{word}_{axis}" if word else axis) for axis in self.AXES)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, channels_in, the axes)."""
        return (self.batch, self.channels_in, *self._along(""))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels_out, the axes as they are written)."""
        windows = zip(*(self._along(word) for word in ("", *_WORDS)), strict=True)
        return (self.batch, self.channels_out, *(_side(*each) for each in windows))

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations: each input pixel with each tap."""
        taps = math.prod(self._along("kernel"))
        return math.prod(self.input_shape) * self.channels_out // self.groups * taps

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and bias."""
        filters = self.channels_in * self.channels_out // self.groups
        taps = math.prod(self._along("kernel"))
        return (filters * taps + self.bias * self.channels_out) * self.element_bytes

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Bytes and FLOPs; ``columns_bytes`` are the windows before they are added up."""
        import numpy as np

        batch, channels_in, channels_out, groups, bias = numbers(
            columns, "batch", "channels_in", "channels_out", "groups", "bias"
        )
        pixels_in, pixels_out, taps, strides = (np.ones(len(batch)) for _ in range(4))
        for axis in cls.AXES:
            window = numbers(columns, axis, *(f"{word}_{axis}" for word in _WORDS))
            size, kernel, stride, *_ = window
            pixels_out = pixels_out * _side(*window)
            pixels_in, taps, strides = pixels_in * size, taps * kernel, strides * stride
        bytes_each = element_bytes(columns)
        flops = 2 * batch * channels_in * channels_out / groups * pixels_in * taps
        weights = (channels_in * channels_out / groups * taps + bias * channels_out) * bytes_each
        values = batch * channels_out * pixels_out
        return {
            **traffic(
                batch * channels_in * pixels_in * bytes_each, values * bytes_each, flops, values,
                weights,
            ),
            "batch": batch, "channels_in": channels_in, "channels_out": channels_out,
            "groups": groups, "grouped": (groups > 1).astype(float), "bias": bias,
            "pixels_in": pixels_in, "pixels_out": pixels_out, "taps": taps,
            "overlap": np.minimum(taps / strides, 10.0), "weight_bytes": weights,
            "image_weight_bytes": weights * batch, "products": batch * groups,
            "columns_bytes": batch * channels_out * taps * pixels_in * bytes_each,
        }  # fmt: skip

    @classmethod
    def _read_window(
        cls, operator: Operator, shape: Sequence[int], result: Sequence[int], kernel: Sequence[int]
    ) -> Self:
        """Read a ``ConvTranspose`` as one over `AXES`; the output says what is cut off.

        Strides and dilations that name fewer axes are of the last ones.
        """
        attributes = operator.attributes

        def along(word: str) -> tuple[int, ...]:
            given = tuple(attributes.get(word) or ())[-len(operator.shape()) + 2 :]
            return (1,) * (len(cls.AXES) - len(given)) + tuple(int(each) for each in given)

        strides, dilations = along("strides"), along("dilations")
        fields: dict[str, int] = {}
        for axis, size, side, taps, stride, dilation in zip(
            cls.AXES, shape[2:], result[2:], kernel, strides, dilations, strict=True
        ):
            # A row more than the filters reach is filled with the bias, which costs hardly
            # anything.
            cut = max(_side(size, taps, stride, dilation, 0) - side, 0)
            window = zip(_WORDS, (taps, stride, dilation, cut), strict=True)
            fields |= {axis: size, **{f"{word}_{axis}": value for word, value in window}}
        bias = len(operator.inputs) > 2 and operator.inputs[2] is not None
        return cls.from_fields({
            "batch": shape[0], "channels_in": shape[1], "channels_out": result[1], **fields,
            "groups": int(attributes.get("group", 1)), "bias": bias, "dtype": dtype_of(operator),
        })  # fmt: skip

    def kernel(self) -> Kernel:
        """Return a ``ConvTranspose``; what is cut off is cut at the end of each axis first."""
        cuts, taps = self._along("cut"), self._along("kernel")
        weights = (self.channels_in, self.channels_out // self.groups, *taps)
        return Kernel(
            "ConvTranspose",
            "",
            {
                "kernel_shape": list(taps),
                "strides": list(self._along("stride")),
                "dilations": list(self._along("dilation")),
                "pads": [*(cut // 2 for cut in cuts), *(cut - cut // 2 for cut in cuts)],
                "group": self.groups,
            },
            self.input_shape,
            self.output_shape,
            weight_shapes=(weights, *(((self.channels_out,),) if self.bias else ())),
        )


def _side(size: Any, kernel: Any, stride: Any, dilation: Any, cut: Any) -> Any:
    """Pixels that are written along an axis."""
    return (size - 1) * stride + dilation * (kernel - 1) + 1 - cut


def refuse(shape: Sequence[int]) -> LayerError:
    """Return the error for an input that no such kind reads."""
    return LayerError(f"a transposed convolution of shape {tuple(shape)} has no layer")
