"""Shapes that depend on the data, and what a user states of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from resperf.errors import ShapeError, listed, printable
from resperf.network._base import MALFORMED, PartialType, Tensor, TensorType
from resperf.network.constants import SIZED_BY_VALUES
from resperf.network.inputs import dims_words

if TYPE_CHECKING:
    from onnx import NodeProto

COUNTED: Mapping[str, str] = {
    "NonMaxSuppression": "boxes", "NonZero": "values", "Compress": "values", "Unique": "values",
}  # fmt: skip
"""Operator that returns as many as it finds -> what they are called."""
_INVERSE = 2
"""Output of Unique that has all values of its input."""
Assumed = Mapping[str, int]
"""What is counted (a word of `COUNTED`) -> how many a run finds."""
Values = Mapping[str, float | Sequence[float] | npt.NDArray[Any]]
"""Name of an input -> its values, which decide shapes; one number stands for all of them."""


class Sizes(TypedDict, total=False):
    """What a user states of a network's sizes, as `resperf.network.read_network` takes it."""

    batch: int | None
    shapes: Mapping[str, Sequence[int]] | None
    assume: Assumed | None
    values: Values | None


class Stated(NamedTuple):
    """The same as a key of caches: pairs of names and what is stated of them."""

    batch: int | None
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    assume: tuple[tuple[str, int], ...]
    values: tuple[tuple[str, tuple[float, ...]], ...]

    def sizes(self) -> Sizes:
        """Return the same as options of the readers."""
        shapes, assume, values = map(dict[str, Any], self[1:])
        return Sizes(batch=self.batch, shapes=shapes, assume=assume, values=values)


def stated(**sizes: Unpack[Sizes]) -> Stated:
    """Return what a user states, checked.

    Raises
    ------
    ShapeError
        If a word is unknown, a count is no positive whole number, or a value is no number.
    """
    counts: dict[str, int] = {}
    for word, count in (sizes.get("assume") or {}).items():
        if word not in COUNTED.values():
            words = ", ".join(dict.fromkeys(COUNTED.values()))
            raise ShapeError(f"no assumption {word!r}; known are: {words}")
        if not isinstance(count, int | np.integer) or count < 1:
            raise ShapeError(f"{word}={count!r} must be a whole number of at least 1")
        counts[word] = int(count)
    flat: dict[str, tuple[float, ...]] = {}
    for name, given in (sizes.get("values") or {}).items():
        numbers = np.asarray(given)
        if not numbers.size or numbers.dtype.kind not in "biuf" or not np.isfinite(numbers).all():
            raise ShapeError(f"values of {name!r} must be numbers, such as 1080,1920")
        flat[name] = tuple(numbers.ravel().tolist())
    shapes = tuple((name, tuple(shape)) for name, shape in (sizes.get("shapes") or {}).items())
    assume, values = tuple(sorted(counts.items())), tuple(sorted(flat.items()))
    return Stated(sizes.get("batch"), shapes, assume, values)


@dataclass
class Assumptions:
    """Gives tensors whose shape depends on the data one, and remembers which ones.

    Attributes
    ----------
    path : Path
        For messages.
    given : mapping of str to int
        What is counted -> how many a run finds.
    values : mapping of str to sequence of float
        Those of inputs.
    shapes : mapping of str to sequence of int
        Those of tensors, or their only unknown length.
    """

    path: Path
    given: Mapping[str, int]
    values: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]
    _used: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    _lacking: dict[str, list[str]] = field(default_factory=dict)
    _shaped: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def with_values(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return inputs by name, with the values that are given.

        Raises
        ------
        ShapeError
            If values are given of what is no input of numbers, or not as many as it has.
        """
        tensors = {tensor.name: tensor for tensor in inputs}
        for name, given in self.values.items():
            if (tensor := tensors.get(name)) is None:
                raise ShapeError(
                    f"{self.path} has no input {name!r} to give values; its inputs are: "
                    f"{listed(list(tensors))}"
                )
            if len(given) not in (1, math.prod(tensor.shape)):
                raise ShapeError(
                    f"{self.path}: --value {name} gives {len(given)} numbers, but its shape is "
                    f"{dims_words(tensor.shape)}"
                )
            # Types that numpy lacks are of no sizes.
            dtype = tensor.dtype if hasattr(np, tensor.dtype) else "float32"
            value = np.resize(np.asarray(given).astype(dtype), tensor.shape)
            tensors[name] = replace(tensor, value=value)
        return tensors

    def outputs(
        self, node: NodeProto, inputs: Mapping[str, Tensor], parts: Mapping[str, PartialType]
    ) -> dict[str, TensorType]:
        """Return types and shapes of the outputs of a node, if an assumption decides them.

        `parts` is what is known of them without.
        """
        word = COUNTED.get(node.op_type, "")
        if not word or node.domain or not self.shapes.keys().isdisjoint(node.output):
            return {}
        if word not in self.given:
            name = printable(node.name or node.output[0])
            self._lacking.setdefault(word, []).append(f"{node.op_type} {name!r}")
            return {}
        try:
            most = _most(node, [inputs.get(name) for name in node.input])
        except MALFORMED:
            return {}
        count = max(0, min(self.given[word], most))
        self._used[node.op_type, word, count] += 1
        outputs: dict[str, TensorType] = {}
        for index, name in enumerate(node.output):
            dtype, dims = parts.get(name, ("int64", None))
            length = most if index == _INVERSE else count
            # (boxes, 3): image, class and box; old operator sets do not say so.
            shape = tuple(length if dim is None else dim for dim in dims or (None, 3))
            outputs[name] = dtype, shape
        return {name: output for name, output in outputs.items() if name}

    def shaped(self, name: str, part: PartialType) -> TensorType | None:
        """Return a tensor's type and shape if its shape is given.

        Raises
        ------
        ShapeError
            If what is known of it is another one.
        """
        if name not in self.shapes:
            return None
        shape, (dtype, dims) = tuple(self.shapes[name]), part
        if len(shape) == 1 and dims is not None and dims.count(None) == 1:
            shape = tuple(shape[0] if dim is None else dim for dim in dims)
        dims = shape if dims is None else dims
        fits = (dim in (None, length) for dim, length in zip(dims, shape, strict=False))
        if len(shape) != len(dims) or not all(fits):
            raise ShapeError(
                f"{self.path}: --shape {name}={dims_words(self.shapes[name])} does not fit: the "
                f"shape of this tensor is {dims_words(dims) or 'that of one number'}"
            )
        self._shaped[name] = shape
        return dtype, shape

    def statements(self) -> tuple[str, ...]:
        """Say what was assumed: ``"NonMaxSuppression returns 100 boxes (--assume boxes=100)"``."""
        counts = (
            (f"{times} x {op} return {count} {word} each" if times > 1
             else f"{op} returns {count} {word}")
            + ("" if count == self.given[word] else " at most")
            + f" (--assume {word}={self.given[word]})"
            for (op, word, count), times in self._used.items()
        )  # fmt: skip
        values = (f"{k} is {dims_words(v)} (--value)" for k, v in self.values.items())
        shapes = (f"{k} has the shape {dims_words(v)} (--shape)" for k, v in self._shaped.items())
        return *counts, *values, *shapes

    def missing(self) -> list[str]:
        """Say what depends on the data and has no assumption.

        Raises
        ------
        ShapeError
            If nothing is missing, and no operator of the network needs an assumption.
        """
        if constant := [name for name in self.shapes if name not in self._shaped]:
            raise ShapeError(f"{self.path}: {constant[0]} is constant; leave out its --shape")
        used = {word for _, word, _ in self._used}
        unused = [word for word in self.given if word not in used]
        if unused and not self._lacking:
            operators = " or ".join(op for op, word in COUNTED.items() if word == unused[0])
            raise ShapeError(
                f"{self.path}: no operator's output depends on how many {unused[0]} {operators} "
                f"finds; leave out --assume {unused[0]}, or give another tensor's length: "
                "--shape TENSOR=N"
            )
        return [
            f"how many {word} these return depends on the data, so that nothing behind them is "
            f"predicted: {listed(names)}; assume a number: --assume {word}=100"
            for word, names in self._lacking.items()
        ]


def how_to_give(
    node: NodeProto, name: str, part: PartialType, of_input: Mapping[str, Tensor]
) -> tuple[str, bool]:
    """Say which option gives the unknown shape of a tensor, and whether it is values of an input.

    Parameters
    ----------
    node : NodeProto
        What computes it.
    name : str
    part : PartialType
        What is known of it.
    of_input : mapping of str to Tensor
        Small tensor -> the small input that it is computed of.
    """
    sizes = node.input[SIZED_BY_VALUES.get(node.op_type, len(node.input)) :]
    sources = {of_input[size].name: of_input[size] for size in sizes if size in of_input}
    unknown = f"the shape of {printable(name)!r} ({node.op_type})"
    if sources:
        options = " ".join(
            f"--value {name}={','.join('N' * math.prod(tensor.shape))}"
            for name, tensor in sources.items()
        )
        inputs = listed(list(sources))
        return f"{unknown} depends on input {inputs}; give its values: {options}", True
    lengths = ["N" if dim is None else str(dim) for dim in part[1] or (None, "...")]
    example = "N" if part[1] and lengths.count("N") == 1 else ",".join(lengths)
    return f"{unknown} is not known; give it: --shape {name}={example}", False


def _most(node: NodeProto, inputs: Sequence[Tensor | None]) -> int:
    """Return how many an operator finds at most; raises one of `MALFORMED`."""
    shapes = [() if tensor is None else tensor.shape for tensor in inputs]
    if node.op_type == "NonMaxSuppression":
        (batch, boxes, _), (_, classes, _) = shapes[:2]
        kept = inputs[2] if len(inputs) > 2 else None
        limit = boxes if kept is None or kept.value is None else int(kept.value.item())
        return batch * classes * min(boxes, limit)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)
    return math.prod(shapes[0]) if axis is None else shapes[0][axis]
