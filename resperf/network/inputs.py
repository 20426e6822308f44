"""Shapes of a network's inputs: those of the file, completed by the user's batch and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING

from resperf.errors import NetworkError, ShapeError, listed
from resperf.network._base import Tensor
from resperf.network.protos import check_size, dtype_name

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

Dim = int | str | None
"""A fixed dimension, a named free one, or a free one without name."""
_NO_NAMES = ("", "?", "*", "-1", "None", "none", "unk", "unknown")
_NUMBERED = "unk__"
"""Begins tf2onnx's words for dimensions that it does not know."""
_NAMED = 12
"""Inputs that a message names: language models have a cache for each layer."""


@dataclass(frozen=True)
class Inputs:
    """Inputs with all dimensions known.

    Attributes
    ----------
    tensors : tuple of Tensor
    fixed_batch : int or None
        First dimension that the file fixes and that was overridden.
    batch : int or None
        The requested batch, if an input begins with it; else the first dimension of the inputs,
        if all that have dimensions agree on it.
    notes : tuple of str
    """

    tensors: tuple[Tensor, ...]
    fixed_batch: int | None
    batch: int | None
    notes: tuple[str, ...]


def complete_inputs(
    path: Path,
    declared: Sequence[ValueInfoProto],
    batch: int | None,
    shapes: Mapping[str, Sequence[int]],
    lengths: Mapping[str, int],
) -> Inputs:
    """Give every input its shape.

    Parameters
    ----------
    path : Path
        For messages.
    declared : sequence of ValueInfoProto
        The graph's inputs without its weights.
    batch : int or None
        First dimension of every input; also overrides that of `shapes`.
    shapes : mapping of str to sequence of int
        Whole shapes by input name, or by a pattern of names such as ``past_*``.
    lengths : mapping of str to int
        Of named dimensions.

    Raises
    ------
    ShapeError
        If a dimension stays unknown, or something given does not fit.
    """
    if batch is not None and batch < 1:
        raise ShapeError(f"batch {batch} is not a positive number; give one such as --batch 1")
    shapes = _by_name(path, [info.name for info in declared], shapes)
    dims = {info.name: declared_dims(path, info) for info in declared}
    wanted: dict[str, list[Dim] | None] = {}
    notes: list[str] = []
    bound = dict(lengths)
    batched = _batched(dims)
    for name, own in dims.items():
        new_batch = batch if name in batched else None
        wanted[name] = new = _wanted_dims(path, name, own, new_batch, shapes.get(name))
        if batch is not None and new_batch is None and own != []:
            notes.append(
                f"input {name!r} stays {dims_words(own or ())}: its first dimension is not a batch"
            )
        pairs = [*zip(own or (), new or (), strict=False)]
        for old_dim, new_dim in pairs:
            if not (isinstance(old_dim, str) and isinstance(new_dim, int)):
                continue
            if (length := bound.setdefault(old_dim, new_dim)) != new_dim:
                raise ShapeError(
                    f"{path}: dimension {old_dim!r} has two lengths, {length} and {new_dim} in "
                    f"input {name!r} = {dims_words(own or ())}; give it one by --batch and --shape"
                )
        if any(isinstance(old_dim, int) and old_dim != new_dim for old_dim, new_dim in pairs[1:]):
            before, after = dims_words(own or ()), dims_words(new or ())
            notes.append(f"input {name!r}: {before} in the file, {after} as requested")
    tensors = []
    for info in declared:
        shape = _resolved(path, info.name, wanted, bound)
        dtype = dtype_name(info.type.tensor_type.elem_type)
        check_size(path, info.name, shape)
        tensors.append(Tensor(info.name, shape, dtype))
    if tensors and all(0 in tensor.shape for tensor in tensors):
        raise ShapeError(
            f"{path}: every input is empty; only some may be, such as a cache of no tokens"
        )
    replaced = [
        own[0]
        for tensor in tensors
        if (own := dims[tensor.name]) and isinstance(own[0], int) and own[0] != tensor.shape[0]
    ]
    firsts = {
        tensor.shape[0]
        for tensor in tensors
        if tensor.shape and (batch is None or tensor.name in batched)
    }
    agreed = firsts.pop() if len(firsts) == 1 else None
    return Inputs(tuple(tensors), replaced[0] if replaced else None, agreed, tuple(notes))


def split_shapes(
    graph: GraphProto, declared: Sequence[ValueInfoProto], shapes: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Sequence[int]], dict[str, int], dict[str, Sequence[int]]]:
    """Split shapes into those of inputs, lengths of named dimensions, and those of other tensors.

    What has none of these names counts as an input.

    Raises
    ------
    ShapeError
        If a dimension is not positive.
    """
    for name, shape in shapes.items():
        if min(shape, default=0) < 0 or 0 in shape[:1]:
            raise ShapeError(
                f"--shape {name}={dims_words(shape)}: every dimension must be a positive number "
                "(0 only for what is still empty, such as a cache of no tokens)"
            )
    inputs = [info.name for info in declared]
    infos = (*declared, *graph.value_info, *graph.output)
    dims = {dim.dim_param for info in infos for dim in info.type.tensor_type.shape.dim}
    computed = {name for node in graph.node for name in node.output}
    others = {
        name: shape
        for name, shape in shapes.items()
        if not any(own == name or fnmatchcase(own, name) for own in inputs)
    }
    lengths = {name: shape[0] for name, shape in others.items() if name in dims and len(shape) == 1}
    tensors = {name: shape for name, shape in others.items() if name in computed}
    own = {k: shape for k, shape in shapes.items() if k not in lengths and k not in tensors}
    return own, lengths, tensors


def _batched(dims: Mapping[str, list[Dim] | None]) -> set[str]:
    """Name the inputs whose first dimension is the batch.

    If any first dimension is free, those inputs are batched; otherwise those that agree with the
    first input. The state of a recurrent network begins with its layers, and a scalar has no
    dimension.
    """
    firsts = {name: own[0] if own else None for name, own in dims.items() if own != []}
    free = {name for name, first in firsts.items() if not isinstance(first, int)}
    if free:
        return free
    return {name for name, first in firsts.items() if first == next(iter(firsts.values()))}


def _by_name(
    path: Path, names: Sequence[str], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[int]]:
    """Return shapes by the names of inputs; a whole name counts before a pattern.

    Raises
    ------
    ShapeError
        If nothing has such a name, or patterns contradict each other.
    """
    shape_of: dict[str, Sequence[int]] = {}
    by: dict[str, str] = {}
    # Patterns first, so that whole names replace them.
    for given in sorted(shapes, key=names.__contains__):
        shape = shapes[given]
        matching = [given] if given in names else [n for n in names if fnmatchcase(n, given)]
        if not matching:
            raise ShapeError(
                f"{path} has no input {given!r}, nor a dimension or tensor; its inputs are: "
                f"{listed(names, _NAMED)}"
            )
        for name in matching:
            if name in shape_of and given != name and tuple(shape_of[name]) != tuple(shape):
                raise ShapeError(
                    f"--shape {by[name]} and --shape {given} give input {name!r} two shapes; "
                    "write patterns that do not overlap"
                )
            shape_of[name], by[name] = shape, given
    return shape_of


def declared_dims(path: Path, info: ValueInfoProto) -> list[Dim] | None:
    """Dimensions in the file; None where it does not even give their number."""
    if info.type.WhichOneof("value") != "tensor_type":
        kind = (info.type.WhichOneof("value") or "untyped").removesuffix("_type")
        raise NetworkError(
            f"{path}: input {info.name!r} is not a tensor ({kind}); only tensors can be predicted"
        )
    return dims_of(info) if info.type.tensor_type.HasField("shape") else None


def dims_of(info: ValueInfoProto) -> list[Dim]:
    """Dimensions in the file; exporters write 0 or -1 for a free one too."""
    return [
        dim.dim_value if dim.dim_value > 0 else _name_of(dim.dim_param)
        for dim in info.type.tensor_type.shape.dim
    ]


def _name_of(param: str) -> str | None:
    """Return a free dimension's name; None for the words that exporters write where it has none.

    Two dimensions without a name may differ in length.
    """
    return None if param in _NO_NAMES or param.startswith(_NUMBERED) else param


def _wanted_dims(
    path: Path, name: str, own: list[Dim] | None, batch: int | None, given: Sequence[int] | None
) -> list[Dim] | None:
    if given is not None and own is not None and len(given) != len(own):
        raise ShapeError(
            f"--shape {name}={dims_words(given)} has {len(given)} dimensions, "
            f"but input {name!r} of {path} has {len(own)}: {dims_words(own)}"
        )
    if given is None and own is None:
        return None
    dims = [*(given if given is not None else own or ())]
    if batch is not None and dims:
        dims[0] = batch
    return dims


def _resolved(
    path: Path, name: str, wanted: Mapping[str, list[Dim] | None], bound: Mapping[str, int]
) -> tuple[int, ...]:
    dims = wanted[name]
    if dims is None:
        raise ShapeError(
            f"{path} does not say the shape of input {name!r}; give it: --shape {name}=1,3,224,224"
        )
    shape = []
    for index, dim in enumerate(dims):
        length = dim if isinstance(dim, int) else _sum(dim or "", bound)
        if length is None:
            raise ShapeError(_free_dim(path, name, wanted, index))
        shape.append(length)
    return tuple(shape)


def _sum(dim: str, bound: Mapping[str, int]) -> int | None:
    """Return the value of a named dimension or of a sum: ``past_length + 1``; None if unknown."""
    if dim in bound:
        return bound[dim]
    terms = [term.strip() for term in dim.split("+")]
    values = [int(term) if term.isdecimal() else bound.get(term) for term in terms]
    lengths = [value for value in values if value is not None]
    return sum(lengths) if len(lengths) == len(values) else None


def _free_dim(path: Path, name: str, wanted: Mapping[str, list[Dim] | None], index: int) -> str:
    dims = wanted[name] or []
    label = f" ({dims[index]!r})" if dims[index] else ""
    example = ",".join(str(dim) if isinstance(dim, int) else "N" for dim in dims)
    rest = any(not isinstance(dim, int) for dim in dims[1:])
    alike = [other for other, theirs in wanted.items() if theirs == dims]
    start = commonprefix(alike)  # noqa: RUF071  # Letter by letter.
    several = f"{start}*" if len(alike) > 1 else name
    given = f"'{several}={example}'" if several not in (name, "*") else f"{name}={example}"
    option = f"--shape {given} with numbers" if index or rest else "--batch 1"
    return (
        f"{path}: dimension {index}{label} of input {name!r} = {dims_words(dims)} is free; "
        f"give it: {option}"
    )


def dims_words(dims: Sequence[Dim]) -> str:
    """Write dimensions as options do; a question mark stands for an unknown one."""
    return ",".join("?" if dim is None else str(dim) for dim in dims)
