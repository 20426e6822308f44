"""Operators in PyTorch that slide windows, resize, or move values to another shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from resperf.backends._attributes import Function, Make, attribute, constant
from resperf.errors import UnsupportedError
from resperf.layers import Operator
from resperf.layers._sliding import same_pads


def _window(operator: Operator, kernel: Sequence[int]) -> tuple[Any, Any, list[tuple[int, int]]]:
    """Return strides, dilations, and the pads of each axis."""
    rank = len(kernel)
    attributes = operator.attributes
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    auto = attribute(operator, "auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        axes = zip(operator.operand(0).shape[2:], kernel, strides, dilations, strict=True)
        pads = [same_pads(*axis) for axis in axes]
        upper = auto == "SAME_UPPER"
        return strides, dilations, pads if upper else [(last, first) for first, last in pads]
    given = tuple(attributes.get("pads") or (0,) * 2 * rank)
    return strides, dilations, list(zip(given[:rank], given[rank:], strict=True))


def apart(pads: Sequence[tuple[int, int]]) -> list[int]:
    """Return pads as `F.pad` takes them: of the last axis first."""
    return [pad for pair in reversed(pads) for pad in pair]


def _conv(operator: Operator) -> Function:
    kernel = operator.operand(1).shape[2:]
    strides, dilations, pads = _window(operator, kernel)
    groups = int(attribute(operator, "group", 1))
    run = _by_rank("conv", len(kernel))
    if all(low == high for low, high in pads):
        padding = tuple(low for low, _ in pads)
        return lambda x, w, b=None: run(x, w, b, strides, padding, dilations, groups)
    margins = apart(pads)
    return lambda x, w, b=None: run(F.pad(x, margins), w, b, strides, 0, dilations, groups)


def _conv_transpose(operator: Operator) -> Function:
    kernel = operator.operand(1).shape[2:]
    rank = len(kernel)
    strides, dilations, pads = _window(operator, kernel)
    groups = int(attribute(operator, "group", 1))
    sizes, result = operator.operand(0).shape[2:], operator.result()[2:]
    full = [
        (size - 1) * s + (k - 1) * d + 1
        for size, s, k, d in zip(sizes, strides, kernel, dilations, strict=True)
    ]
    lows = [low for low, _ in pads]
    # PyTorch cuts both ends by the same padding and adds to the far end.
    more = [r - f + 2 * low for r, f, low in zip(result, full, lows, strict=True)]
    run = _by_rank("conv_transpose", rank)
    possible = all(0 <= m < max(s, d) for m, s, d in zip(more, strides, dilations, strict=True))
    if possible:
        padding, added = tuple(lows), tuple(more)
        return lambda x, w, b=None: run(x, w, b, strides, padding, added, groups, dilations)
    cut = (..., *(slice(low, low + r) for low, r in zip(lows, result, strict=True)))
    if any(low + r > f for low, r, f in zip(lows, result, full, strict=True)):
        raise UnsupportedError("ConvTranspose: PyTorch adds no such output padding")
    return lambda x, w, b=None: run(x, w, b, strides, 0, 0, groups, dilations)[cut]


def _by_rank(name: str, rank: int) -> Function:
    if rank not in (1, 2, 3):
        raise UnsupportedError(f"{name} along {rank} axes does not exist in PyTorch")
    function: Function = getattr(F, f"{name}{rank}d")
    return function


def _max_pool(operator: Operator) -> Function:
    kernel = tuple(operator.attributes["kernel_shape"])
    strides, dilations, pads = _window(operator, kernel)
    ceil = bool(attribute(operator, "ceil_mode", 0))
    places = len(operator.outputs) > 1
    run = partial(_by_rank("max_pool", len(kernel)), return_indices=places)
    fits = all(low == high <= k // 2 for (low, high), k in zip(pads, kernel, strict=True))
    if fits:
        padding = tuple(low for low, _ in pads)
        return lambda x: run(x, kernel, strides, padding, dilations, ceil)
    margins = apart(pads)
    return lambda x: run(F.pad(x, margins, value=-math.inf), kernel, strides, 0, dilations, ceil)


def _average_pool(operator: Operator) -> Function:
    kernel = tuple(operator.attributes["kernel_shape"])
    strides, dilations, pads = _window(operator, kernel)
    ceil = bool(attribute(operator, "ceil_mode", 0))
    counts = bool(attribute(operator, "count_include_pad", 0))
    if max(dilations) > 1:
        raise UnsupportedError("AveragePool with dilations does not exist in PyTorch")
    run = _by_rank("avg_pool", len(kernel))
    if all(low == high <= k // 2 for (low, high), k in zip(pads, kernel, strict=True)):
        padding = tuple(low for low, _ in pads)
        return lambda x: run(x, kernel, strides, padding, ceil, counts)
    beyond = [
        -(-(size - k) // stride) + 1
        for size, k, stride in zip(operator.operand(0).shape[2:], kernel, strides, strict=True)
    ]
    if not counts and tuple(beyond) == operator.result()[2:] and not any(low for low, _ in pads):
        # Windows that reach beyond the far ends, as with ceil_mode.
        return lambda x: run(x, kernel, strides, 0, ceil_mode=True)
    if not counts:
        raise UnsupportedError(
            f"AveragePool over pads {pads} that do not count does not exist in PyTorch"
        )
    margins = apart(pads)
    return lambda x: run(F.pad(x, margins), kernel, strides, 0, ceil)


def _lp_pool(operator: Operator) -> Function:
    kernel = tuple(operator.attributes["kernel_shape"])
    strides, dilations, pads = _window(operator, kernel)
    norm = float(attribute(operator, "p", 2))
    if max(dilations) > 1:
        raise UnsupportedError("LpPool with dilations does not exist in PyTorch")
    run, margins = _by_rank("lp_pool", len(kernel)), apart(pads)
    ceil = bool(attribute(operator, "ceil_mode", 0))
    if any(margins):
        return lambda x: run(F.pad(x, margins), norm, kernel, strides, ceil)
    return lambda x: run(x, norm, kernel, strides, ceil)


def _whole_image(function: Function) -> Make:
    def make(operator: Operator) -> Function:
        axes = tuple(range(2, len(operator.operand(0).shape)))
        return lambda x: function(x, axes, keepdim=True)

    return make


def _global_lp(operator: Operator) -> Function:
    axes = tuple(range(2, len(operator.operand(0).shape)))
    norm = float(attribute(operator, "p", 2))
    return lambda x: torch.linalg.vector_norm(x, norm, axes, keepdim=True)


_INTERPOLATIONS: Mapping[tuple[str, int], str] = {
    ("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear",
    ("cubic", 2): "bicubic",
}  # fmt: skip


def _resize(operator: Operator) -> Function:
    sizes = operator.result()[2:]
    mode = str(attribute(operator, "mode", "nearest"))
    where = str(attribute(operator, "coordinate_transformation_mode", "half_pixel"))
    word = _INTERPOLATIONS.get((mode, len(sizes)), "")
    if operator.result()[:2] != operator.operand(0).shape[:2]:
        raise UnsupportedError("Resize of batch or channels is no operator of PyTorch")
    if mode == "nearest":
        return lambda x, *_: F.interpolate(x, sizes, mode="nearest")
    if not word:
        raise UnsupportedError(f"Resize of mode {mode} along {len(sizes)} axes is not PyTorch's")
    aligned = where == "align_corners"
    return lambda x, *_: F.interpolate(x, sizes, mode=word, align_corners=aligned)


def _grid_sample(operator: Operator) -> Function:
    mode = str(attribute(operator, "mode", "bilinear"))
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    padding = str(attribute(operator, "padding_mode", "zeros"))
    aligned = bool(attribute(operator, "align_corners", 0))
    return lambda x, grid: F.grid_sample(x, grid, mode, padding, aligned)


def _col2im(operator: Operator) -> Function:
    size, kernel = tuple(constant(operator, 1)), tuple(constant(operator, 2))
    strides, dilations, pads = _window(operator, kernel)
    if any(low != high for low, high in pads):
        raise UnsupportedError("Col2Im with unequal pads is no operator of PyTorch")
    padding = tuple(low for low, _ in pads)
    return lambda x, *_: F.fold(x, size, kernel, dilations, padding, strides)


WINDOWS: Mapping[str, Make] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool,
    "AveragePool": _average_pool, "LpPool": _lp_pool, "GlobalLpPool": _global_lp,
    "GlobalAveragePool": _whole_image(torch.mean), "GlobalMaxPool": _whole_image(torch.amax),
    "Resize": _resize, "Upsample": _resize, "GridSample": _grid_sample, "Col2Im": _col2im,
}  # fmt: skip
"""ONNX operator -> what makes its function."""


def _reshape(operator: Operator) -> Function:
    shape = operator.result()
    return lambda x, *_: x.reshape(shape)


def _permute(operator: Operator) -> Function:
    rank = len(operator.operand(0).shape)
    order = tuple(operator.attributes.get("perm") or reversed(range(rank)))
    return lambda x: x.permute(order)


def _expand(operator: Operator) -> Function:
    shape = operator.result()
    return lambda x, *_: x.expand(shape)


def _tile(operator: Operator) -> Function:
    times = operator.numbers("repeats", 1) or ()
    return lambda x, *_: x.repeat(times)


def _sliced(operator: Operator) -> Function:
    shape = operator.operand(0).shape
    starts, ends = operator.numbers("starts", 1) or (), operator.numbers("ends", 2) or ()
    axes = operator.numbers("axes", 3) or tuple(range(len(starts)))
    steps = operator.numbers("steps", 4) or (1,) * len(starts)
    index: list[slice] = [slice(None)] * len(shape)
    backwards = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= len(shape)
        places = range(*slice(start, end, step).indices(shape[axis]))
        if step < 0 and len(places):
            backwards.append(axis)
            index[axis] = slice(places[-1], places[0] + 1, -step)
        else:
            index[axis] = slice(places.start, max(places.stop, places.start), step)
    window = tuple(index)
    if backwards:
        return lambda x, *_: torch.flip(x[window], backwards)
    return lambda x, *_: x[window]


def _split(operator: Operator) -> Function:
    axis = operator.axis(0)
    lengths = [shape[axis] for shape in operator.outputs if shape is not None]
    return lambda x, *_: torch.split(x, lengths, axis)


def _concat(operator: Operator) -> Function:
    axis = operator.axis(1)
    return lambda *parts: torch.cat(parts, axis)


def _pad(operator: Operator) -> Function:
    rank = len(operator.operand(0).shape)
    given = operator.numbers("pads", 1) or ()
    axes = operator.numbers("axes", 3) or tuple(range(rank))
    pairs = [(0, 0)] * rank
    for index, axis in enumerate(axes):
        pairs[axis % rank] = (int(given[index]), int(given[index + len(axes)]))
    mode = {"edge": "replicate", "wrap": "circular"}.get(
        word := str(attribute(operator, "mode", "constant")), word
    )
    if mode == "constant":
        margins = apart(pairs)
        value = constant(operator, 2, attribute(operator, "value", 0.0))
        return lambda x, *_: F.pad(x, margins, mode, value)
    while len(pairs) > 2 and pairs[0] == (0, 0) and len(pairs) > rank - 2:
        pairs = pairs[1:]
    margins = apart(pairs)
    return lambda x, *_: F.pad(x, margins, mode)


def _gather(operator: Operator) -> Function:
    axis, indices = operator.axis(0), operator.operand(1)
    if not indices.shape and indices.value is not None:
        index = int(indices.value)
        return lambda x, _: x.select(axis, index)
    if axis == 0 and operator.operand(0).is_fixed and len(operator.operand(0).shape) == 2:
        return lambda table, rows: F.embedding(rows, table)
    before = (slice(None),) * axis
    return lambda x, rows: x[(*before, rows)]


def _gather_elements(operator: Operator) -> Function:
    axis = operator.axis(0)
    return lambda x, places: torch.gather(x, axis, places)


def _gather_nd(operator: Operator) -> Function:
    if attribute(operator, "batch_dims", 0):
        raise UnsupportedError("GatherND with batch_dims is no operator of PyTorch")
    return lambda x, places: x[places.unbind(-1)]


def _scatter_elements(operator: Operator) -> Function:
    axis, how = operator.axis(0), str(attribute(operator, "reduction", "none"))
    if how != "none":
        word = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[how]
        return lambda x, places, new: torch.scatter_reduce(x, axis, places, new, word)
    return lambda x, places, new: torch.scatter(x, axis, places, new)


def _scatter_nd(operator: Operator) -> Function:
    how = str(attribute(operator, "reduction", "none"))
    if how not in ("none", "add"):
        raise UnsupportedError(f"ScatterND with reduction {how} is no operator of PyTorch")
    adds = how == "add"
    return lambda x, places, new: torch.index_put(x, places.unbind(-1), new, accumulate=adds)


def _triangle(operator: Operator) -> Function:
    function = torch.triu if attribute(operator, "upper", 1) else torch.tril
    diagonal = int(constant(operator, 1, 0))
    return lambda x, *_: function(x, diagonal)


def _depth_to_space(operator: Operator) -> Function:
    side = int(operator.attributes["blocksize"])
    if attribute(operator, "mode", "DCR") == "CRD":
        return lambda x: F.pixel_shuffle(x, side)
    batch, channels, height, width = operator.operand(0).shape
    blocks = (batch, side, side, channels // side**2, height, width)
    result = operator.result()
    return lambda x: x.reshape(blocks).permute(0, 3, 4, 1, 5, 2).reshape(result)


def _space_to_depth(operator: Operator) -> Function:
    side = int(operator.attributes["blocksize"])
    batch, channels, height, width = operator.operand(0).shape
    blocks = (batch, channels, height // side, side, width // side, side)
    result = operator.result()
    return lambda x: x.reshape(blocks).permute(0, 3, 5, 1, 2, 4).reshape(result)


SHAPES: Mapping[str, Make] = {
    "Concat": _concat, "Split": _split, "Slice": _sliced, "Pad": _pad, "Transpose": _permute,
    "Expand": _expand, "Tile": _tile, "Gather": _gather, "GatherElements": _gather_elements,
    "GatherND": _gather_nd, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
    "Trilu": _triangle, "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
}  # fmt: skip
"""ONNX operator -> what makes its function."""
