"""How a layer's time is divided into groups of what costs time; each takes its group's factor.

A layer's time is divided into groups by the speeds of the machine that it was measured on: a part
that every node takes, reading and writing in memory, and in the caches. The rest is what the layer
computes: multiply-adds of convolutions or of matrix products, those of integers, whose sums are
requantised or not, activations, sums over rows (softmax, normalisations), or other functions of
values (pooling). Convolutions with groups have kernels of their own in blocks; the speed of
depthwise ones depends on how large their window is. Convolutions that are not in blocks are
products of matrices, for which rows of the image are copied, one for each place of the window
(im2col): that is a part of its own, and thin products and those in groups are groups of their own.
Of layers that only copy values, such as transposes, all but node and memory is one group, and of
re-layouts to and from blocks another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from resperf.copies import COLD_WEIGHTS_BYTES
from resperf.features import Array
from resperf.layers import BLOCKED_LAYOUTS, Conv, Layer, Move, Reorder
from resperf.records import Record

CONVOLUTIONS, PRODUCTS = "convolutions", "products"
THIN, PLAIN_GROUPED, UNFOLDING = "thin_convolutions", "plain_grouped", "unfolding"
BLOCKED, BLOCKED_GROUPED = "blocked_convolutions", "blocked_grouped"
DEPTHWISE, WIDE_DEPTHWISE = "depthwise", "wide_depthwise"
ACTIVATIONS, ROWS, FUNCTIONS = "activations", "rows", "functions"
INT8, INT8_DEPTHWISE = "int8", "int8_depthwise"
INT8_SUMS, INT8_CONV_SUMS = "int8_sums", "int8_conv_sums"
COPIES, SINGLE_VALUES, REORDERS = "copies", "single_values", "reorders"
MEMORY, CACHES, NODE = "memory", "caches", "node"
GROUPS = (
    CONVOLUTIONS, THIN, PLAIN_GROUPED, UNFOLDING, BLOCKED, BLOCKED_GROUPED, DEPTHWISE,
    WIDE_DEPTHWISE, PRODUCTS, ACTIVATIONS, ROWS, FUNCTIONS, INT8, INT8_SUMS, INT8_CONV_SUMS,
    INT8_DEPTHWISE, COPIES, SINGLE_VALUES, REORDERS, MEMORY, CACHES, NODE,
)  # fmt: skip
_OF_KINDS: Mapping[str, str] = {
    "activation": ACTIVATIONS, "softmax": ROWS, "norm": ROWS, "reduce": ROWS,
}  # fmt: skip
"""Kind of layer -> group of what it computes, if that is no sum of products."""
_SUMS = frozenset({"integer", "dynamic"})
"""Functions of int8 layers that do not requantise their sums: a processor with instructions for
matrices of integers gains most by these."""
_NARROW = 9
"""Largest number of values in the window of a depthwise convolution that is not wide."""
_THIN = 48
"""Most values that a sum of a thin convolution adds: products of matrices then write more than they
compute."""
CACHED_BYTES = 16e6
"""What a layer reads and writes beyond these comes from memory (as in the baseline's terms)."""


@dataclass(frozen=True)
class Speeds(Record):
    """Speeds of the machine that measured a bundle's layers, by which their time is divided.

    Attributes
    ----------
    shortest_ms : float
        Time of the shortest layer.
    cached_bytes_per_ms, memory_bytes_per_ms : float
        Fastest that layers read and write in the caches, and in memory.
    row_ms : float
        Shortest time in which convolutions with groups copy a row of an image for one place of
        their window; 0 if none told.
    """

    shortest_ms: float
    cached_bytes_per_ms: float
    memory_bytes_per_ms: float
    row_ms: float = 0.0

    def __post_init__(self) -> None:
        speeds = (self.shortest_ms, self.cached_bytes_per_ms, self.memory_bytes_per_ms)
        if not all(0 < value < math.inf for value in speeds) or not 0 <= self.row_ms < math.inf:
            raise ValueError("the speeds of a calibration are damaged")

    @classmethod
    def of(cls, layers: Sequence[Layer], times_ms: Sequence[float]) -> Speeds:
        """Read the speeds off layers, some of them tiny, some that copy.

        Parameters
        ----------
        layers : sequence of Layer
        times_ms : sequence of float (layers,)
            On the bundle's machine.
        """
        moved = [(*_moved_bytes(layer), ms) for layer, ms in zip(layers, times_ms, strict=True)]
        cached = max((near / ms for near, far, ms in moved if not far), default=math.nan)
        memory = max((far / ms for _, far, ms in moved if far), default=cached)
        rows_ms = [
            ms / rows
            for layer, ms in zip(layers, times_ms, strict=True)
            if _rest_of(layer) == PLAIN_GROUPED and (rows := _unfolded_rows(layer))
        ]
        cached = memory if math.isnan(cached) else cached
        return cls(min(times_ms), cached, memory, min(rows_ms, default=0.0))

    def shares(self, layers: Sequence[Layer], times_ms: Sequence[float] | Array) -> Array:
        """Divide layers' times among `GROUPS`.

        Parameters
        ----------
        layers : sequence of Layer
        times_ms : sequence of float (layers,)
            On the bundle's machine.

        Returns
        -------
        array of float64 (layers, groups)
            Each row adds up to 1.
        """
        shares = np.zeros((len(layers), len(GROUPS)))
        if not len(layers):
            return shares
        near, far, rows, rest = (
            np.array(column) for column in zip(*map(_parts, layers), strict=True)
        )
        given_ms = np.asarray(times_ms, dtype=float)
        left_ms = whole_ms = np.where(given_ms > 0, given_ms, self.shortest_ms)
        for group, least_ms in (
            (NODE, np.asarray(self.shortest_ms)),
            (MEMORY, far / self.memory_bytes_per_ms),
            (CACHES, near / self.cached_bytes_per_ms),
            (UNFOLDING, rows * self.row_ms),
        ):
            part_ms = np.minimum(least_ms, left_ms)
            shares[:, GROUPS.index(group)] = part_ms / whole_ms
            left_ms = left_ms - part_ms
        shares[np.arange(len(layers)), rest] += left_ms / whole_ms
        for group in (COPIES, SINGLE_VALUES, REORDERS):
            copies = rest == GROUPS.index(group)
            shares[copies, GROUPS.index(group)] += shares[copies, GROUPS.index(CACHES)]
            shares[copies, GROUPS.index(CACHES)] = 0.0
        return shares


@lru_cache(maxsize=1 << 16)
def _parts(layer: Layer) -> tuple[float, float, int, int]:
    """Return bytes in the caches and in memory, unfolded rows, and the index of the rest's group.

    Networks and searches repeat the same layers.
    """
    return (*_moved_bytes(layer), _unfolded_rows(layer), GROUPS.index(_rest_of(layer)))


def _unfolded_rows(layer: Layer) -> int:
    """Return how many rows a convolution copies to make a product of matrices of it (im2col)."""
    if not isinstance(layer, Conv) or layer.layout in BLOCKED_LAYOUTS:
        return 0
    rows = layer.output_shape[2]
    if rows == layer.output_shape[3] == 1 or (rows == layer.height and layer.taps == 1):
        return 0
    return layer.batch * layer.channels_in * layer.taps * rows


def _rest_of(layer: Layer) -> str:
    """Return the group of the time that moving bytes in their order does not explain."""
    if layer.kind == Reorder.kind:
        return REORDERS
    if (
        isinstance(layer, Move)
        and layer.inner == 1
        and (layer.function == "expand" or layer.step > 1)
    ):
        return SINGLE_VALUES
    if not layer.flops:
        return COPIES  # They wait for values that lie apart.
    if isinstance(layer, Conv):
        return _rest_of_conv(layer)
    if layer.macs and layer.kind.startswith("quantized"):
        if getattr(layer, "function", "") in _SUMS:
            return INT8_CONV_SUMS if "conv" in layer.kind else INT8_SUMS
        return INT8_DEPTHWISE if layer.own_quantities().get("depthwise") else INT8
    if 0 < 2 * layer.macs <= layer.flops:
        return CONVOLUTIONS if "conv" in layer.kind else PRODUCTS
    return _OF_KINDS.get(layer.kind, FUNCTIONS)


def _rest_of_conv(layer: Conv) -> str:
    """Return the group of a convolution by the kernel that runs it."""
    window = layer.taps
    moves_by_one = layer.stride_height == layer.stride_width == 1
    depthwise = window > 1 and 1 < layer.groups == layer.channels_in
    if layer.layout in BLOCKED_LAYOUTS:
        if depthwise:
            return WIDE_DEPTHWISE if window > _NARROW and moves_by_one else DEPTHWISE
        return BLOCKED if layer.groups == 1 or window == 1 else BLOCKED_GROUPED
    if layer.groups > 1:
        return PLAIN_GROUPED
    return THIN if layer.channels_in * window <= _THIN else CONVOLUTIONS


def _moved_bytes(layer: Layer) -> tuple[float, float]:
    """Return the bytes that a layer measured alone moves in the caches, and those in memory.

    Copies of a layer with large weights read them from memory.
    """
    weights = layer.weight_bytes if layer.weight_bytes > COLD_WEIGHTS_BYTES else 0
    others = layer.moved_bytes - weights
    cached = min(others, CACHED_BYTES)
    return cached, weights + others - cached
