"""Views, copies and indices in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from resperf.backends._attributes import Function, Make, attribute, constant
from resperf.backends._torch_windows import apart
from resperf.errors import UnsupportedError
from resperf.layers import Operator


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
