"""Times estimated from a device's limits alone, for what nobody measured on it.

The limits are not reached: kernels take longer than the larger of operations over peak and bytes
over bandwidth by the factors below. Those of `CARDS`, whose data sheets state the limits, are
medians over published times of nine cards and the operators products, convolutions,
normalisations, softmax and element-wise ones (NeuSight, rows above four times the shortest);
`tools/benchmarks/gpus.py --only withheld` prints errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from resperf.devices.facts import DeviceFacts, ideal_ms
from resperf.layers import Layer
from resperf.layers.resize_nd import ResizedLayer
from resperf.settings import PEAKS_OF
from resperf.targets import DEFAULT


class TimesLonger(NamedTuple):
    """How much longer kernels of unknown speed take than the limits of their device say."""

    compute: float
    """Measured time over that at the peak, where operations decide."""
    memory: float
    """Measured time over that at the full bandwidth, where bytes decide."""
    low: float
    high: float
    """Measured over estimated time in nine of ten cases."""


CARDS = TimesLonger(1.6, 1.4, 0.5, 3.0)
PROCESSORS = TimesLonger(6.0, 6.0, 0.15, 8.0)
"""Of operators that bundles of CPUs may lack (sorting, sampling and resizing, products of many
axes): many run on one core, value by value. Medians of eleven such kinds of layers in ONNX Runtime
are 1.6 to 16 times the time of the same bytes or operations at their fastest."""
_OF_OPERATORS: Mapping[str, TimesLonger] = {
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), TimesLonger(0.7, 1.0, 0.25, 4.0)),
    **dict.fromkeys(("DFT", "STFT", "RoiAlign", "MaxRoiPool", "GridSample"),
                    TimesLonger(40.0, 6.0, 0.15, 6.0)),
    **dict.fromkeys(("DeformConv", "Einsum", "MoE"), TimesLonger(2.5, 6.0, 0.2, 6.0)),
    "ReverseSequence": TimesLonger(6.0, 1.2, 0.15, 6.0),
    "outer Einsum": TimesLonger(800.0, 6.0, 0.15, 6.0),
    # On a younger EPYC, times the ratio of both in Relu; regular strides meet in the cache.
    **dict.fromkeys(
        ("Acosh", "Cast", "Cosh", "Det", "Multinomial", "NonZero", "RandomNormalLike",
         "RandomUniformLike", "Shrink", "Sinh", "Tan", "slow Hardmax", "slow LogSoftmax",
         "slow LpNormalization", "slow ReduceLogSumExp"), TimesLonger(6.0, 48.0, 0.25, 3.0)
    ),
    **dict.fromkeys(
        ("slow ArgMax", "slow ArgMin", "slow DequantizeLinear", "slow GatherElements",
         "slow ReduceL1", "slow ScatterElements"), TimesLonger(6.0, 9.0, 0.2, 4.0)
    ),
    "Bernoulli": TimesLonger(6.0, 24.0, 0.25, 3.0),
    "slow CumSum": TimesLonger(6.0, 17.0, 0.25, 3.0),
    "slow Div": TimesLonger(6.0, 4.5, 0.25, 3.0),
    "slow QuantizeLinear": TimesLonger(6.0, 200.0, 0.5, 2.0),
    "NonMaxSuppression": TimesLonger(110.0, 6.0, 0.03, 2.0),
    "Unique": TimesLonger(6.0, 500.0, 0.15, 6.0),
    "unpacked MatMulNBits": TimesLonger(0.7, 400.0, 0.15, 6.0),
}  # fmt: skip
"""Those of a CPU whose kernels in ONNX Runtime are products of packed weights, or run on one core,
value by value; minima of three to eight sizes each on an EPYC."""
OTHER_PRODUCTS = TimesLonger(1.0, 1.0, 0.4, 2.5)
"""Of products on CPUs in types with a peak of their own, which products of float32 tell."""
_TAP_MS = 45e-6
"""Of one input pixel of an output pixel: PyTorch's cubic resize (16 input pixels) from 16 x 16 to
6 x 6 takes 0.7 us for each of 64 to 1,152 planes, and 1 us up to 74 x 74 (B200; PyTorch's pull
request 174578). Linear ones were not measured."""
LAUNCH_MS = 0.005
"""From one kernel of a stream to the next; the smallest activations of the V100 take 4.8 us."""


class DataSheetTime(NamedTuple):
    """A time in milliseconds with its 90% interval; NaN if the work is not known."""

    ms: float
    low_ms: float
    high_ms: float


def estimated_ms(
    flops: float,
    moved_bytes: float,
    facts: DeviceFacts,
    dtype: str = "float32",
    op: str = "",
    kernels: int = 1,
) -> DataSheetTime:
    """Estimate a time: operations or bytes, whichever take longer, and a launch of each kernel.

    Parameters
    ----------
    flops, moved_bytes : float
        Operations, a multiply-accumulate counting as two, and bytes read and written.
    facts : DeviceFacts
    dtype : str
        Type of its values, which decides the peak; without one, the time is NaN.
    op : str
        The operator, of which CPUs may have kernels of another speed.
    kernels : int
        How many run one after the other.
    """
    longer = CARDS
    if facts.device_class == DEFAULT.device_class:
        longer = _OF_OPERATORS.get(op, PROCESSORS if dtype == "float32" else OTHER_PRODUCTS)
    compute_ms = ideal_ms(longer.compute * flops, facts.peak_of(dtype))
    memory_ms = facts.moving_ms(longer.memory * moved_bytes)
    # Of a number and NaN, `max` may return either.
    is_known = not math.isnan(compute_ms + memory_ms)
    ms = kernels * LAUNCH_MS + max(compute_ms, memory_ms) if is_known else math.nan
    return DataSheetTime(ms, longer.low * ms, longer.high * ms)


def estimated_layer_ms(layer: Layer, facts: DeviceFacts, by_plane: bool = False) -> DataSheetTime:
    """Estimate the execution of a layer in inference.

    `by_plane`: each thread of a resize computes one pixel, of one plane after the other.
    """
    dtype = getattr(layer, "dtype", "float32")
    if not layer.macs and (dtype not in PEAKS_OF or facts.device_class == DEFAULT.device_class):
        # Integers are added as fast as float32; on a CPU memory decides.
        dtype = "float32"
    kernels, more_bytes = layer.step_work
    sheet = estimated_ms(layer.flops, layer.moved_bytes + more_bytes, facts, dtype, kernels=kernels)
    if not by_plane or not isinstance(layer, ResizedLayer) or layer.flops == layer.value_count:
        return sheet  # Of the nearest pixel, planes are computed together.
    ms = LAUNCH_MS + _TAP_MS * layer.flops / math.prod(layer.output_shape[2:])
    return DataSheetTime(max(sheet.ms, ms), sheet.low_ms, max(sheet.high_ms, CARDS.high * ms))


def lower_bound_ms(layer: Layer, facts: DeviceFacts, passes: int = 1) -> float:
    """Return a lower bound of a layer's time on a device, in milliseconds.

    The larger of two times. Memory: each value is moved once, except those that the last-level
    cache may still hold. Compute: the operations at the peak of the layer's type, on the fastest
    units that a framework may use for it. Fast convolutions (Winograd, FFT) save at most a factor
    of the number of pixels in the window, so the operations are divided by it.
    A training step has several `passes` (`resperf.settings.PASSES`).
    """
    taps = getattr(layer, "kernel_height", 1) * getattr(layer, "kernel_width", 1)
    strides = getattr(layer, "stride_height", 1) * getattr(layer, "stride_width", 1)
    skipped_bytes = layer.input_bytes * max(0.0, 1 - taps / strides)
    memory_ms = facts.least_moving_ms(layer.moved_bytes - skipped_bytes)
    peak = facts.largest_peak_of(getattr(layer, "dtype", "float32"))
    return max(memory_ms, ideal_ms(2 * passes * layer.macs / taps, peak))
