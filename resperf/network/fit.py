"""Whether a node can take its inputs, as far as ONNX's shape inference does not check it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import le, lt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from resperf.errors import NetworkError, ShapeError
from resperf.layers._operator import CONTRIB
from resperf.network._base import Tensor
from resperf.network.inputs import dims_words
from resperf.network.rebatch import SHAPE_INPUT
from resperf.network.shapes import schema_of

if TYPE_CHECKING:
    from onnx import NodeProto

Shapes = Sequence[tuple[int, ...]]
Sizes = tuple[int, int]

_NUMPY_BROADCASTING = 7
"""Version of ONNX since which operators broadcast as numpy does."""
_MOST_INPUTS = 9
"""Of the operators that are checked."""


def check_inputs(
    path: Path,
    node: NodeProto,
    opsets: Mapping[str, int],
    tensors: Mapping[str, Tensor],
    attributes: Mapping[str, Any],
) -> None:
    """Refuse a node that cannot take its inputs.

    Parameters
    ----------
    path : Path
        For messages.
    node : NodeProto
    opsets : mapping of str to int
        Version of each domain.
    tensors : mapping of str to Tensor
        Those before the node.
    attributes : mapping of str to Any

    Raises
    ------
    NetworkError
        If there are too few or too many, or of types that may not differ.
    ShapeError
        If their shapes do not fit the node's weights.
    """
    schema = schema_of(node.op_type, opsets.get(node.domain) or 1, node.domain)
    label = f"node {node.name or node.output[0]!r} ({node.op_type})"
    given = len(node.input)
    if schema is not None and not (least := schema.min_input) <= given <= schema.max_input:
        limit = f"needs {least}" if given < least else f"takes {schema.max_input}"
        raise NetworkError(f"{path} is damaged: {label} has {given} inputs and {limit}")
    first: dict[str, Tensor] = {}
    formals = () if schema is None else schema.inputs
    for index, name in enumerate(node.input if formals else ()):
        formal, tensor = formals[min(index, len(formals) - 1)], tensors.get(name)
        if tensor is None or not formal.is_homogeneous:
            continue
        other = first.setdefault(formal.type_str, tensor)
        if other.dtype != tensor.dtype:  # Converters to float16 leave such files.
            raise NetworkError(
                f"{path}: {label} is given {other.dtype} ({other.name}) and {tensor.dtype} "
                f"({tensor.name}), which must be of one type; no framework runs this file: "
                "export or convert it again"
            )
    inputs = [tensors.get(name) for name in node.input]
    unknown = any(name and name not in tensors for name in node.input)
    is_old = node.op_type == "PRelu" and opsets.get("", 0) < _NUMPY_BROADCASTING
    if is_old or unknown or node.domain not in ("", CONTRIB):
        return
    if why := _misfit(node.op_type, inputs, attributes):
        raise ShapeError(
            f"{path}: {label} {why}; check --batch and --shape, or export with these sizes"
        )


def _misfit(op: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> str:
    """Say why weights, a window or a target do not fit an input; empty if they do.

    Also empty if no rule checks it. A wrong input size shows here first: a dense layer after a
    flattened image takes one size.
    """
    shapes = [() if tensor is None else tensor.shape for tensor in inputs]
    shapes += [()] * (_MOST_INPUTS - len(shapes))
    index, name = _VALUES.get(op, (0, ""))
    stated = inputs[index] if name and index < len(inputs) else None
    if stated is not None and stated.value is not None:
        attributes = {**attributes, name: tuple(stated.value.ravel().tolist())}
    if op in _OPERANDS:
        shapes = [shapes[index] for index in _OPERANDS[op]]
    try:
        given, wanted = _RULES[op](shapes, attributes) if op in _RULES else (0, 0)
        if given != wanted:
            return f"is given {given} features, but its weights take {wanted}"
        own = inputs[SHAPE_INPUT.get(op, 1) :]
        value = own[0].value if own and own[0] else attributes.get("shape")
        if op in ("Reshape", "Resize") and value is not None:
            return _misses(op, value, shapes[0], attributes)
        if op in _INDEXED and value is not None and value.size:
            for row, rows in _last_rows(op, value, shapes[0], attributes):
                if row >= rows:
                    return f"{_INDEXED[op]} row {row} of {rows}"
        if op in _WINDOWS and (why := _too_wide(shapes, attributes)):
            return why
        if op not in _FITS or _FITS[op](shapes, attributes):
            return ""
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        pass
    sizes = {name: value for name, value in attributes.items() if isinstance(value, int | tuple)}
    words = [f"{k} {v if isinstance(v, int) else dims_words(v)}" for k, v in sizes.items()]
    given_shapes = " and ".join(map(dims_words, filter(None, shapes)))
    return f"cannot take the shapes {given_shapes}" + f" with {', '.join(words)}" * bool(words)


def _last_rows(
    op: str, indices: npt.NDArray[Any], shape: Sequence[int], attributes: Mapping[str, Any]
) -> Iterable[Sizes]:
    """Return, by axis, the last row that constant indices name, and how many rows there are."""
    rows = np.maximum(indices, -1 - indices)  # Those below zero count from the end.
    if not op.endswith("ND"):
        return [(rows.max(), shape[attributes.get("axis", 0)])]
    columns = rows.reshape(-1, rows.shape[-1]).max(axis=0)
    return zip(columns, shape[attributes.get("batch_dims", 0) :], strict=False)


def _misses(
    op: str, target: Iterable[int], shape: Sequence[int], attributes: Mapping[str, Any]
) -> str:
    """Say that a target has another number of values, or of images to resize; else empty."""
    copies = op == "Reshape" and not attributes.get("allowzero")
    dims = [shape[i] if dim == 0 and copies else int(dim) for i, dim in enumerate(target)]
    fits = -1 in dims or math.prod(dims) == math.prod(shape)
    if op == "Resize":
        fits = 0 not in dims and (len(dims) < 3 or "axes" in attributes or dims[0] == shape[0])
    return "" if fits else f"cannot make {dims_words(dims)} of its input {dims_words(shape)}"


def _too_wide(shapes: Shapes, attributes: Mapping[str, Any]) -> str:
    """Say that a window is larger than the image with its padding; empty if it is not."""
    size, ones = shapes[0][2:], (1,) * len(shapes[0])
    window = attributes.get("kernel_shape") or shapes[1][2:]
    pads = attributes.get("pads", (0, 0) * len(size))
    strides, spans = attributes.get("strides", ones), _spans(window, attributes)
    # Rounded up, the last window may end outside.
    more = [stride - 1 if attributes.get("ceil_mode") else 0 for stride in strides]
    room = [length + pads[i] + pads[i + len(size)] + more[i] for i, length in enumerate(size)]
    same = str(attributes.get("auto_pad", "")).startswith("SAME")
    if same or 0 in shapes[0] or all(map(le, spans, room)):
        return ""
    return (
        f"has a window of {dims_words(spans)}, larger than its input of {dims_words(size)}"
        + f" with pads {dims_words(pads)}" * any(pads)
    )


def _spans(window: Sequence[int], attributes: Mapping[str, Any]) -> list[int]:
    """Return the lengths of a window with what lies between its taps."""
    dilations = attributes.get("dilations", (1,) * len(window))
    return [1 + (taps - 1) * step for taps, step in zip(window, dilations, strict=False)]


def _conv(shapes: Shapes, attributes: Mapping[str, Any]) -> Sizes:
    return shapes[0][1], shapes[1][1] * int(attributes.get("group", 1))


def _gemm(shapes: Shapes, attributes: Mapping[str, Any]) -> Sizes:
    (m, k), (k_b, n) = shapes[0], shapes[1]
    return m if attributes.get("transA") else k, n if attributes.get("transB") else k_b


def _recurrent_fits(gates: int, shapes: Shapes, attributes: Mapping[str, Any]) -> bool:
    # (directions, gates x hidden, features or hidden); the bias holds two.
    directions, rows, hidden = shapes[2]
    batch, state = 0 if attributes.get("layout") else 1, shapes[5]
    fits = shapes[1][:2] == (directions, gates * hidden) and rows == gates * hidden
    fits = fits and hidden == attributes.get("hidden_size", hidden)
    fits = fits and directions == 1 + (attributes.get("direction") == "bidirectional")
    fits = fits and shapes[4] in ((), shapes[0][batch : batch + 1])
    biases = ((), (directions, 2 * rows))
    return fits and shapes[3] in biases and (not state or state[batch] == shapes[0][batch])


def _spreads(shapes: Shapes, _: Mapping[str, Any]) -> bool:
    """Whether all others can be broadcast to the first."""
    return all(
        len(shape) <= len(shapes[0])
        and all(a in (1, b) for a, b in zip(shape[::-1], shapes[0][::-1], strict=False))
        for shape in shapes[1:]
    )


def _conv_fits(shapes: Shapes, attributes: Mapping[str, Any], turned: bool = False) -> bool:
    weights, group = shapes[1], attributes.get("group", 1)
    outputs = weights[1] * group if turned else weights[0]
    fits = attributes.get("kernel_shape", weights[2:]) == weights[2:]
    fits = fits and 0 not in attributes.get("output_shape", ())
    return fits and not weights[0] % group and shapes[2] in ((), (outputs,))


def _gemm_fits(shapes: Shapes, attributes: Mapping[str, Any]) -> bool:
    rows, columns = bool(attributes.get("transA")), not attributes.get("transB")
    return _spreads([(shapes[0][rows], shapes[1][columns]), shapes[2]], {})


def _channels_fit(shapes: Shapes, attributes: Mapping[str, Any]) -> bool:
    channels, groups = shapes[0][1], attributes.get("num_groups", shapes[0][1])
    return not channels % groups and all(s in ((), (channels,), (groups,)) for s in shapes[1:])


def _einsum_fits(shapes: Shapes, attributes: Mapping[str, Any]) -> bool:
    terms = str(attributes["equation"]).replace(" ", "").partition("->")[0].split(",")
    pairs = [pair for term, shape in zip(terms, shapes, strict=False) if "." not in term
             for pair in zip(term, shape, strict=True)]  # fmt: skip
    lengths = {letter: length for letter, length in pairs if length > 1}
    return all(length in (1, lengths[letter]) for letter, length in pairs if letter in lengths)


def _along_axis_fits(shapes: Shapes, attributes: Mapping[str, Any]) -> bool:
    data, indices, updates = shapes[:3]
    fits = [*map(le, indices, data)]
    fits[attributes.get("axis", 0)] = True
    return len(data) == len(indices) and all(fits) and updates in ((), indices)


def _gather_nd_fits(shapes: Shapes, attributes: Mapping[str, Any]) -> bool:
    (data, indices), same = shapes[:2], attributes.get("batch_dims", 0)
    return same + indices[-1] <= len(data) and data[:same] == indices[:same]


def _scatter_nd_fits(shapes: Shapes, _: Mapping[str, Any]) -> bool:
    data, indices, updates = shapes[:3]
    return indices[-1] <= len(data) and updates == indices[:-1] + data[indices[-1] :]


def _scales_fit(shapes: Shapes, attributes: Mapping[str, Any]) -> bool:
    scales, zero_points = shapes[1:3]
    per_channel = len(scales) == 1 and scales != (1,)
    fits = not per_channel or scales[0] == shapes[0][attributes.get("axis", 1)]
    return fits and (not zero_points or math.prod(zero_points) == math.prod(scales))


def _attention_fits(shapes: Shapes, attributes: Mapping[str, Any]) -> bool:
    # (batch, tokens, heads x size); keys may be packed, or of fewer heads.
    queries, keys = shapes[:2]
    if (heads := attributes.get("num_heads")) is None:  # ONNX's own
        by_head, heads = len(queries) == 4, attributes.get("q_num_heads", 1)
        rest = keys[3] - queries[3] if by_head else queries[2] % heads
        return len(keys) < 3 or (not rest and keys[-2] == shapes[2][-2])
    if len(keys) == 2:  # The weights of a projection.
        return queries[2] == keys[0] and not keys[1] % heads
    groups = attributes.get("kv_num_heads", heads)
    packed = len(queries) != 3 or len(keys) != 3
    fits = packed or (not queries[2] % heads and queries[2] * groups == keys[2] * heads)
    return fits and not heads % groups


_RULES: Mapping[str, Callable[[Shapes, Mapping[str, Any]], Sizes]] = {
    **dict.fromkeys(
        ("BatchNormalization", "ConvTranspose", "InstanceNormalization"),
        lambda shapes, _: (shapes[0][1], shapes[1][0]),
    ),
    **dict.fromkeys(("Conv", "ConvInteger", "FusedConv", "QLinearConv"), _conv),
    "Gemm": _gemm,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), lambda shapes, _: (shapes[0][2], shapes[1][2])),
}
_VALUES = {
    "AffineGrid": (1, "size"), "CumSum": (1, "axis"), "Pad": (1, "pads"), "Range": (2, "delta"),
    "Resize": (-1, "scales"), "TopK": (1, "k"), "Upsample": (1, "scales"),
}  # fmt: skip
"""An input whose values have to fit, and what it holds."""
_INDEXED = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), "reads"),
    **dict.fromkeys(("ScatterElements", "ScatterND"), "writes"),
}
_OPERANDS = {"Conv": (0, 1, 2), "ConvInteger": (0, 1, -1), "QLinearConv": (0, 3, 8)}
"""Image, weights and bias among the inputs."""
_FITS: Mapping[str, Callable[[Shapes, Mapping[str, Any]], bool]] = {
    **dict.fromkeys(_OPERANDS, _conv_fits),
    "ConvTranspose": partial(_conv_fits, turned=True),
    **dict.fromkeys(("FusedGemm", "Gemm"), _gemm_fits),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _channels_fit),
    **dict.fromkeys(
        ("BiasGelu", "FastGelu", "PRelu", "SkipLayerNormalization",
         "SkipSimplifiedLayerNormalization"),
        _spreads,
    ),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"),
        lambda s, a: -len(s[0]) <= a.get("axis", -1) < len(s[0]) and _spreads(s, a),
    ),
    **dict.fromkeys(
        ("AveragePool", "LpPool", "MaxPool"),
        lambda _, a: all(map(lt, a.get("pads", ()), _spans(a["kernel_shape"], a) * 2)),
    ),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), lambda s, _: len(s[0]) > 2),
    **dict.fromkeys(("Resize", "Upsample"), lambda _, a: all(n > 0 for n in a.get("scales", ()))),
    "TopK": lambda s, a: np.max(a.get("k", 0)) <= s[0][a.get("axis", -1)],
    "Range": lambda _, a: a.get("delta") != (0,),
    **{op: partial(_recurrent_fits, n) for op, n in (("GRU", 3), ("LSTM", 4), ("RNN", 1))},
    "Einsum": _einsum_fits,
    "GatherND": _gather_nd_fits,
    "ScatterND": _scatter_nd_fits,
    **dict.fromkeys(("GatherElements", "Scatter", "ScatterElements"), _along_axis_fits),
    "CumSum": lambda s, a: -len(s[0]) <= a.get("axis", (0,))[0] < len(s[0]),
    "LpNormalization": lambda s, a: -len(s[0]) <= a.get("axis", -1) < len(s[0]),
    # What is reflected is longer than its pads; where axes are named, that is not checked.
    "Pad": lambda s, a: (
        s[3] != () or a.get("mode") != "reflect" or all(map(lt, a.get("pads", ()), s[0] * 2))),
    "MaxRoiPool": lambda shapes, _: shapes[1][1] == 5,
    "RoiAlign": lambda shapes, _: shapes[1] == (*shapes[2], 4),
    "MaxUnpool": lambda shapes, _: shapes[0] == shapes[1],
    "NonMaxSuppression": lambda s, _: (*s[0][:2], 4) == (s[1][0], s[1][2], s[0][2]),
    "ReverseSequence": lambda s, a: s[1] == (s[0][a.get("batch_axis", 1)],),
    "AffineGrid": lambda s, a: s[0][0] == a.get("size", s[0])[0] and s[0][1] + 1 == s[0][2],
    "DeformConv": lambda s, a: s[2][1] == 2 * math.prod(s[1][2:]) * a.get("offset_group", 1),
    "MatMulNBits": lambda s, a: 8 * math.prod(s[1]) == math.prod(
        (a["N"], -(-a["K"] // a["block_size"]), a["block_size"], a.get("bits", 4))),
    "Transpose": lambda shapes, a: len(a.get("perm", shapes[0])) == len(shapes[0]),
    "DepthToSpace": lambda shapes, a: not shapes[0][1] % a["blocksize"] ** 2,
    "SpaceToDepth": lambda shapes, a: not any(n % a["blocksize"] for n in shapes[0][2:]),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _scales_fit),
    **dict.fromkeys(("Attention", "GroupQueryAttention", "MultiHeadAttention"), _attention_fits),
}  # fmt: skip
"""Whether sizes that ONNX Runtime compares when it runs an operator fit each other."""
_WINDOWS = {"AveragePool", "LpPool", "MaxPool", *(op for op in _RULES if _RULES[op] is _conv)}
