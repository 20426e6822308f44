"""2-D convolution with fused bias, residual and activation."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from resperf.errors import LayerError
from resperf.layers._base import ACTIVATIONS, Layer, choices, flag, log_uniform, name, number
from resperf.layers._operator import Kernel, Operator
from resperf.layers._sliding import GroupedLayer, WindowLayer, with_groups
from resperf.layers.activation import fused_activation
from resperf.layers.columns import block_of, evenness, is_blocked, padded

_FUSED = ("tanh", "sigmoid", "leaky_relu", "clip", "hard_sigmoid", "hard_swish")


class Conv(GroupedLayer, WindowLayer):
    """A 2-D convolution (ResPerfNet Table 3, scenario C; groups, dilation and pads added)."""

    channels_out: int = number("channels of the output")
    groups: int = number("groups of channels that are convolved separately", default=1)
    bias: bool = flag("whether a bias is added per output channel", default=True)
    residual: bool = flag("whether a second tensor of the output's shape is added", default=False)
    activation: str = name("fused activation", ACTIVATIONS, default="none")

    PLAIN = (
        "kernel_height", "kernel_width", "stride_height", "stride_width", "dilated", "bias",
        "residual", "pad_height", "pad_width", "padded", "pad_odd", "pad_uneven", "edge_share",
        "real", "column_waste", "channel_waste", "block_waste", "depthwise", "grouped", "pointwise",
        "direct", "direct_bare", "shallow", "in_aligned", "out_aligned", "in_evenness",
        "out_evenness", "strided", "threaded",
    )  # fmt: skip
    LOG2 = (
        "batch", "channels_in", "channels_out", "height", "width", "rows_out", "columns_out",
        "pixels_out", "taps", "groups", "m", "k", "n", "in_bytes", "out_bytes", "weight_bytes",
        "moved_bytes", "flops", "flops_block", "flops_real", "im2col_bytes",
        "units", "products", "intensity", "out_over_in",
    )  # fmt: skip
    ENCODED = ("layout", "activation")
    BACKWARD = ("flops_data", "flops_weights")
    FUNCTION = ""
    RANGES: ClassVar[Mapping[str, Any]] = {
        "channels_in": log_uniform(1, 1024, 1, 4, 16),
        "channels_out": log_uniform(4, 1024, 4, 16),
        "size": {**log_uniform(4, 224), "same_share": 0.9},
        "kernel": {**choices([1, 3, 5, 7], [5, 6, 1, 1]), "same_share": 0.95},
        "stride": {**choices([1, 2], [4, 1]), "same_share": 0.95},
        "dilation": choices([1, 2], [15, 1]),
        "groups": choices([1, "depthwise", 4], [8, 2, 1]),
        "padding": choices(["symmetric", "same", "valid", "explicit"], [6, 2, 2, 1]),
        "bias": choices([True, False], [3, 1]),
        "residual": choices([False, True], [5, 1]),
        "activation": choices(["none", "relu", *_FUSED], [4, 5, *(0.5,) * len(_FUSED)]),
    }
    REDRAWN = ("bias", "activation", "kernel", "stride")
    OPERATORS = frozenset({"Conv", "FusedConv"})

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, channels_out, rows, columns)."""
        return (self.batch, self.channels_out, *self._positions())

    @property
    def input_bytes(self) -> int:
        """Bytes of the image, and of the residual if there is one."""
        return super().input_bytes + self.residual * self.output_bytes

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random, /) -> dict[str, Any]:
        """Make channels multiples of the groups, and replace a named padding by pads."""
        return cls._padded(with_groups(fields), source)

    def own_quantities(self) -> dict[str, Any]:
        """Return what depends on windows, groups, layout and tiles.

        ``in_bytes`` excludes the residual. ``flops_real`` excludes taps on padding and counts
        channels in full blocks. As a matrix product, a convolution has ``m`` rows (output pixels of
        all images), a depth of ``k`` (inputs of one output value) and ``n`` columns (output
        channels of one group). ``flops_data`` and ``flops_weights`` are the work of the gradients
        of input and weights in full tiles of the GPUs' matrix kernels; that of the weights is a
        product of k rows and n columns over all m output pixels.
        """
        import numpy as np

        q = super().own_quantities()
        batch, cin, cout, groups = self.batch, self.channels_in, self.channels_out, self.groups
        m, k, n = batch * q["pixels_out"], q["taps"] * cin / groups, cout / groups
        residual_bytes = self.residual * self.output_bytes
        in_bytes = self.input_bytes - residual_bytes
        depthwise = (groups == cin) & (groups > 1)
        pointwise = q["taps"] == 1
        # A window as large as the image is one matrix product, whatever the stride.
        as_large = (self.kernel_height == self.height) & (self.kernel_width == self.width)
        whole = as_large & (1 - q["padded"]) & (1 - q["dilated"])
        direct = (pointwise & (1 - q["strided"])) | whole
        bare = (self.bias == 0) & (self.residual == 0) & (self.activation == "none")
        layouts = np.asarray(self.layout)
        block, blocked = block_of(layouts), is_blocked(layouts)
        waste_in = np.where((groups == 1) & (cin >= block), padded(cin, block) / cin, 1.0)
        waste = waste_in * padded(cout, block) / cout
        blocks = padded(cout, block) / block
        column_waste = padded(q["columns_out"], 6) / q["columns_out"]
        block_waste = padded(blocks, 4) / blocks
        units = batch * groups * np.ceil(n / 64) * q["rows_out"]
        real_flops = self.flops * q["real"] * waste
        columns_bytes = m * k * groups * self.element_bytes
        return q | {
            "in_bytes": in_bytes, "residual_bytes": residual_bytes, "m": m, "k": k, "n": n,
            "flops_real": real_flops,
            # Blocked kernels compute four blocks of output channels and six pixels at once.
            "flops_columns": real_flops * column_waste,
            "flops_block": real_flops * column_waste * padded(blocks, 4) / blocks,
            "column_waste": column_waste, "channel_waste": waste, "block_waste": block_waste,
            # Tiles of the GPUs' matrix kernels.
            "flops_tile": 2 * padded(m, 128) * k * groups * padded(n, 32),
            "flops_tile_k": 2 * padded(m, 128) * padded(k, 8) * groups * padded(n, 128),
            "flops_data": self.flops * padded(cin / groups, 32) / (cin / groups),
            "flops_weights": 2 * padded(k, 128) * padded(n, 32) * m * groups,
            "im2col_bytes": np.where(pointwise & (1 - q["strided"]), 0.0, columns_bytes),
            # A single unit of work runs on one thread; unblocked products are threaded from a
            # certain size on.
            "threaded": np.where(blocked == 1, units > 1, self.flops >= 2 * 65536),
            "blocked": blocked, "plain": 1 - blocked, "products": batch * groups,
            "units": units, "intensity": self.flops / self.moved_bytes,
            "out_over_in": self.output_bytes / in_bytes, "depthwise": depthwise,
            "grouped": (groups > 1) & (1 - depthwise), "pointwise": pointwise,
            "direct": direct, "direct_bare": direct & bare, "shallow": (cin < 16) & (groups == 1),
            "in_aligned": cin % 16 == 0, "out_aligned": cout % 16 == 0,
            "in_evenness": evenness(np.asarray(cin)), "out_evenness": evenness(np.asarray(cout)),
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Layer:
        """Read a 2-D convolution; a 1-D or 3-D one is read as `ConvNd`."""
        if len(operator.operand(0).shape) in (3, 5):
            from resperf.layers.conv_nd import ConvNd

            return ConvNd.read(operator)
        weight = operator.operand(1).shape
        if len(weight) != 4:
            raise LayerError(f"weights of shape {weight} are not 4-D")
        kernel = tuple(operator.attributes.get("kernel_shape", weight[2:]))
        return cls(
            **cls._read_image(operator, kernel), channels_out=weight[0],
            groups=int(operator.attributes.get("group", 1)), bias=operator.has_input(2),
            residual=operator.has_input(3), activation=fused_activation(operator),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return a ``Conv`` with its residual and activation."""
        # The residual is the fourth input and the bias the third: a residual needs a bias.
        bias = ((self.channels_out,),) * (self.bias or self.residual)
        return self._node(
            "Conv", self._window_attributes() | {"group": self.groups},
            weight_shapes=(self._filter_shape, *bias),
            extra_shapes=(self.output_shape,) * self.residual, activation=self.activation,
        )  # fmt: skip

    @property
    def is_made_by_frameworks(self) -> bool:
        """Whether it is a depthwise 1 x 1 convolution: a rewritten normalisation."""
        return 1 < self.groups == self.channels_in and self._along("kernel") == (1, 1)
