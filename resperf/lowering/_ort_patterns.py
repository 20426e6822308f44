"""Groups of ONNX operators that ONNX Runtime fuses before it lowers single operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from resperf.lowering._ort_transposes import FROM_GATHER, TransposeSinking
from resperf.lowering._rewriting import Rewriting, Rewritten, unchanged_if_malformed
from resperf.network import Node, Tensor
from resperf.network.folding import RANDOM_OPS

ROOT_2 = 1.4142135
ROOT_2_BY_PI = 0.7978846
_GELU: Mapping[str, str] = {"Erf": "Gelu", "Tanh": "FastGelu"}
"""Function inside a gelu -> ONNX Runtime's fused operator."""
_WINDOWS = ("Conv", "MaxPool", "AveragePool")
"""Operators that can pad their images themselves."""


def with_patterns(start: Rewritten) -> Rewritten:
    """Fuse what exporters decompose: gelu, padding, normalisation, and slices of one tensor.

    Equal operators are merged, and transpositions sink below operators that do not depend on the
    order of axes, to where they cancel or merge with others.
    """
    patterns = _Patterns(start.network, dict(start.sources))
    patterns.drop_casts()
    patterns.merge_equal()
    patterns.fuse_pads()
    patterns.fuse_gelu()
    patterns.fuse_norm()
    patterns.fuse_slices()
    fused = patterns.rewritten()
    sinking = TransposeSinking(fused.network, dict(fused.sources))
    sinking.sink()
    return sinking.rewritten()


class _Patterns(Rewriting):
    """Fuses groups of nodes."""

    def drop_casts(self) -> None:
        """Remove casts to a tensor's own type, which some exporters write in normalisations."""
        stands_for: dict[str, str] = {}
        remaining = []
        for node in self.nodes:
            inputs = tuple(stands_for.get(name, name) for name in node.inputs)
            if self._is_same_type_cast(node):
                stands_for[node.outputs[0]] = inputs[0]
            else:
                remaining.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        if stands_for:
            self.nodes = remaining
            self._index_nodes()

    def _is_same_type_cast(self, node: Node) -> bool:
        if node.op != "Cast" or node.domain or not node.inputs:
            return False
        before, after = (self.tensors.get(name) for name in (node.inputs[0], node.outputs[0]))
        known = before is not None and after is not None and before.dtype == after.dtype
        return known and node.outputs[0] not in self.network.outputs

    def fuse_gelu(self) -> None:
        """Fuse x * 0.5 * (1 + erf(...) or tanh(...)) into one operator."""
        for node in self._present_nodes():
            if node.op in _GELU and not node.domain and node.inputs:
                self._fuse_gelu(node)

    @unchanged_if_malformed
    def _fuse_gelu(self, node: Node) -> None:
        inner = self._inside_gelu(node)
        found = None if inner is None else self._gelu(node, *inner)
        if inner is None or found is None:
            return
        last, op = found[-1], _GELU[node.op]
        if op == "FastGelu" and last.outputs[0] in self.network.outputs:
            # ONNX Runtime does not fuse these where the network ends with them.
            return
        name = f"{last.name}/{op}"
        self.sources[name] = tuple(part for each in found for part in self._sources_of(each))
        for part in found[:-1]:
            self._replace(part)
        self._replace(last, Node(name, op, "com.microsoft", (inner[0],), last.outputs, {}))

    def _inside_gelu(self, node: Node) -> tuple[str, list[Node]] | None:
        """Return x, and the nodes that compute the function's input from it."""
        if node.op == "Erf":
            divided = self.maker.get(node.inputs[0])
            if divided is None or divided.op != "Div" or len(divided.inputs) != 2:
                return None
            fits = self._sole_reader(divided, "Erf") is node
            fits = fits and self._is_constant(divided.inputs[1], ROOT_2)
            return (divided.inputs[0], [divided]) if fits else None
        if node.op != "Tanh":
            return None
        # sqrt(2 / pi) (x + 0.044715 x^3)
        added = self._times(node.inputs[0], ROOT_2_BY_PI, node)
        if added is None or added[1].op != "Add":
            return None
        for x, term in (added[1].inputs, added[1].inputs[::-1]):
            cube = self._times(term, 0.044715, added[1])
            if cube is None or cube[1].op != "Pow" or cube[1].inputs[0] != x:
                continue
            if self._is_constant(cube[1].inputs[1], 3.0):
                return x, [cube[1], cube[0], added[1], added[0]]
        return None

    def _times(self, name: str, factor: float, reader: Node) -> tuple[Node, Node] | None:
        """Return the product of a tensor with this factor, and the tensor's producer."""
        product = self.maker.get(name)
        if product is None or product.op != "Mul" or len(product.inputs) != 2:
            return None
        if self._sole_reader(product, reader.op) is not reader:
            return None
        for other, constant in (product.inputs, product.inputs[::-1]):
            maker = self.maker.get(other)
            if maker is None or not self._is_constant(constant, factor):
                continue
            if len(maker.inputs) == 2 and self._sole_reader(maker, "Mul") is product:
                return product, maker
        return None

    def _gelu(self, function: Node, x: str, inner: list[Node]) -> list[Node] | None:
        """Return all nodes of x / 2 * (1 + function(x)), the last one last."""
        added = self._sole_reader(function, "Add")
        if added is None or not self._is_constant(self._other(added, function.outputs[0]), 1.0):
            return None
        product = self._sole_reader(added, "Mul")
        if product is None:
            return None
        other = self._other(product, added.outputs[0])
        parts = [*inner, function, added, product]
        halved = self._sole_reader(product, "Mul")
        if other == x and halved is not None:
            fits = self._is_constant(self._other(halved, product.outputs[0]), 0.5)
            return [*parts, halved] if fits else None
        if self._is_constant(other, 0.5) and halved is not None:
            fits = self._other(halved, product.outputs[0]) == x
            return [*parts, halved] if fits else None
        half = self.maker.get(other)
        if half is None or half.op != "Mul" or self._sole_reader(half, "Mul") is not product:
            return None
        fits = self._is_constant(self._other(half, x), 0.5)
        return [*inner, function, added, half, product] if fits else None

    def fuse_norm(self) -> None:
        """Fuse a decomposed normalisation over the last axis into one operator.

        Exporters decompose LayerNormalization before operator set 17, and RMSNormalization before
        23.
        """
        for node in self._present_nodes():
            if node.op == "Sqrt" and not node.domain and node.inputs:
                self._fuse_norm(node)

    @unchanged_if_malformed
    def _fuse_norm(self, root: Node) -> None:
        found = self._deviation(root)
        if found is None:
            return
        centred, parts = found
        dividing = self._divided(root, centred)
        if not dividing:
            return
        scaled = self._sole_reader(dividing[-1], "Mul")
        if scaled is None:
            return
        scale = self._other(scaled, dividing[-1].outputs[0])
        if not self._is_vector(scale):
            return
        parts = [*parts, root, *dividing, scaled]
        inputs: tuple[str, ...]
        inverted = len(dividing) > 1
        before = None if inverted else self._mean_subtraction(centred, parts)
        shifted = None if before is None else self._sole_reader(scaled, "Add")
        bias = "" if shifted is None else self._other(shifted, scaled.outputs[0])
        if before is not None and shifted is not None and self._is_vector(bias):
            x, taking = before
            parts, inputs = [*taking, *parts, shifted], (x, scale, bias)
            op = "LayerNormalization"
        else:
            inputs, op = (centred, scale), "SimplifiedLayerNormalization"
        last = parts[-1]
        name = f"{last.name}/{op}"
        self.sources[name] = tuple(own for each in parts for own in self._sources_of(each))
        for part in parts[:-1]:
            self._replace(part)
        self._replace(last, Node(name, op, "", inputs, last.outputs, {"axis": -1}))

    def _divided(self, root: Node, x: str) -> list[Node]:
        """Return the nodes that divide x by a root, as x / root or x * (1 / root); else none.

        An inverse by ``Reciprocal`` is not fused, as in ONNX Runtime.
        """
        divided = self._sole_reader(root, "Div")
        if divided is None or divided.inputs[1] != root.outputs[0]:
            return []
        if divided.inputs[0] == x:
            return [divided]
        times = self._sole_reader(divided, "Mul")
        inverse = self._is_constant(divided.inputs[0], 1.0)
        if not inverse or times is None or self._other(times, divided.outputs[0]) != x:
            return []
        return [divided, times]

    def _deviation(self, root: Node) -> tuple[str, list[Node]] | None:
        """Return x, and the nodes of mean(x^2) + epsilon, which a root reads."""
        added = self.maker.get(root.inputs[0])
        if added is None or added.op != "Add" or self._sole_reader(added, "Sqrt") is not root:
            return None
        mean = next((each for name in added.inputs if (each := self.maker.get(name))), None)
        if mean is None or not self._is_last_mean(mean):
            return None
        epsilon = self.tensors.get(self._other(added, mean.outputs[0]))
        square = self.maker.get(mean.inputs[0])
        if epsilon is None or not epsilon.is_weight or math.prod(epsilon.shape) != 1:
            return None
        if square is None or self._sole_reader(square, "ReduceMean") is not mean:
            return None
        is_power = square.op == "Pow" and self._is_constant(square.inputs[1], 2.0)
        is_product = square.op == "Mul" and square.inputs[0] == square.inputs[1]
        if self._sole_reader(mean, "Add") is not added or not (is_power or is_product):
            return None
        return square.inputs[0], [square, mean, added]

    def _is_last_mean(self, node: Node) -> bool:
        """Whether a node is a mean over the last axis with keepdims."""
        tensor = self.tensors.get(node.inputs[0]) if node.inputs else None
        if node.op != "ReduceMean" or node.domain or tensor is None:
            return False
        axes = node.attributes.get("axes")
        if axes is None and len(node.inputs) > 1:
            axes = self._numbers(node.inputs[1])
        last = len(tensor.shape) - 1
        return bool(node.attributes.get("keepdims", 1)) and tuple(axes or ()) in ((-1,), (last,))

    def _mean_subtraction(
        self, centred: str, parts: Sequence[Node]
    ) -> tuple[str, list[Node]] | None:
        """Return x, and the nodes of x - mean(x), which only these parts may read."""
        taken = self.maker.get(centred)
        if taken is None or taken.op != "Sub" or centred in self.network.outputs:
            return None
        mean, (x, subtrahend) = self.maker.get(taken.inputs[1]), taken.inputs
        if mean is None or not self._is_last_mean(mean) or mean.inputs[0] != x:
            return None
        others = [each for each in self.readers[centred] if not any(each is p for p in parts)]
        if others or self._sole_reader(mean, "Sub") is not taken or mean.outputs[0] != subtrahend:
            return None
        return x, [mean, taken]

    def _is_vector(self, name: str) -> bool:
        """Whether a tensor is a constant of one axis."""
        tensor = self.tensors.get(name)
        return tensor is not None and tensor.is_weight and len(tensor.shape) == 1

    def merge_equal(self) -> None:
        """Merge equal operators with equal inputs (common subexpression elimination)."""
        found: dict[object, Node] = {}
        stands_for: dict[str, str] = {}
        merged: dict[str, list[str]] = {}
        remaining, outputs = [], set(self.network.outputs)
        for node in self.nodes:
            inputs = tuple(stands_for.get(name, name) for name in node.inputs)
            reading = node if inputs == node.inputs else replace(node, inputs=inputs)
            same = found.setdefault(_expression(node, inputs), reading)
            if same is not reading and not set(node.outputs) & outputs:
                stands_for |= dict(zip(node.outputs, same.outputs, strict=True))
                merged.setdefault(same.name, []).extend(self._sources_of(node))
            else:
                remaining.append(reading)
        for node in remaining:
            if node.name in merged:
                self.sources[node.name] = (*self._sources_of(node), *merged[node.name])
        if len(remaining) < len(self.nodes):
            self.nodes = remaining
            self._index_nodes()

    def fuse_pads(self) -> None:
        """Fuse zero padding into convolutions and poolings."""
        for node in self._present_nodes():
            if node.op == "Pad" and not node.domain and node.inputs:
                self._fuse_pad(node)

    @unchanged_if_malformed
    def _fuse_pad(self, pad: Node) -> None:
        added = self._padded_pixels(pad)
        window = next(filter(None, (self._sole_reader(pad, op) for op in _WINDOWS)), None)
        if window is None or added is None or window.inputs[0] != pad.outputs[0] or window.domain:
            return
        if len(window.outputs) > 1:
            return
        if str(window.attributes.get("auto_pad", "NOTSET")) != "NOTSET":
            return
        attributes = dict(window.attributes)
        own = tuple(attributes.get("pads", ())) or (0,) * len(added)
        if window.op == "AveragePool":
            if any(own) and not attributes.get("count_include_pad", 0):
                return
            attributes["count_include_pad"] = 1
        attributes["pads"] = tuple(first + second for first, second in zip(own, added, strict=True))
        inputs = (pad.inputs[0], *window.inputs[1:])
        self.sources[window.name] = (*self._sources_of(pad), *self._sources_of(window))
        self._replace(window, replace(window, inputs=inputs, attributes=attributes))
        self._replace(pad)

    def _padded_pixels(self, pad: Node) -> tuple[int, ...] | None:
        """Zero pixels before and after each axis of an image; None for any other padding."""
        if str(pad.attributes.get("mode", "constant")) != "constant":
            return None
        if len(pad.inputs) > 2 and pad.inputs[2] and not self._is_constant(pad.inputs[2], 0.0):
            return None
        if len(pad.inputs) > 1:
            counts = self._numbers(pad.inputs[1])
        else:
            # Before operator set 11 the pads are an attribute.
            counts = tuple(pad.attributes.get("pads", ()))
            if pad.attributes.get("value", 0.0):
                return None
        if counts is None or len(counts) < 6 or len(pad.inputs) > 3 or min(counts) < 0:
            return None
        before, after = counts[: len(counts) // 2], counts[len(counts) // 2 :]
        if any(before[:2]) or any(after[:2]):
            return None
        return (*before[2:], *after[2:])

    def fuse_slices(self) -> None:
        """Fuse Slice and Gather nodes that partition a tensor along an axis into one Split."""
        for name in list(self.readers):
            self._fuse_slices(name)

    @unchanged_if_malformed
    def _fuse_slices(self, name: str) -> None:
        found = self._slices(name)
        if found is None:
            return
        axis, ordered = found
        first = min((node for node, _, _ in ordered), key=self._position)
        whole = self.tensors[name]
        outputs, views = [], {}
        for node, start, end in ordered:
            result = node.outputs[0]
            if node.op != "Gather":
                outputs.append(result)
                continue
            part = f"{result}/part"
            shape = (*whole.shape[:axis], end - start, *whole.shape[axis + 1 :])
            self.tensors[part] = Tensor(part, shape, whole.dtype)
            views[node.name] = Node(
                f"{node.name}/Squeeze",
                "Squeeze",
                "",
                (part,),
                (result,),
                {"axes": (axis,), FROM_GATHER: 1},
            )
            outputs.append(part)
        split = Node(
            f"{first.name}/Split", "Split", "", (name,), tuple(outputs),
            {"axis": axis, "split": tuple(end - start for _, start, end in ordered)},
        )  # fmt: skip
        self.sources[split.name] = tuple(
            own for node, _, _ in ordered for own in self._sources_of(node)
        )
        self.sources |= {view.name: () for view in views.values()}
        for node, _, _ in ordered:
            view = [views[node.name]] if node.name in views else []
            self._replace(node, *([split] if node is first else []), *view)

    def _slices(self, name: str) -> tuple[int, list[tuple[Node, int, int]]] | None:
        """Return the axis along which readers partition a tensor, and the readers in order.

        Each reader comes with its start (inclusive) and end (exclusive).
        """
        whole = self.tensors.get(name)
        readers = [node for node in self.readers[name] if node.op in ("Gather", "Slice")]
        readers = [node for node in readers if node.inputs[0] == name]
        if whole is None or whole.is_weight or len(readers) < 2:
            return None
        found = [self._slice(node, whole) for node in readers]
        axes = {each[0] for each in found if each is not None}
        if None in found or len(axes) != 1:
            return None
        ordered = sorted(
            ((node, each[1], each[2]) for node, each in zip(readers, found, strict=True) if each),
            key=lambda piece: piece[1],
        )
        axis, bounds = axes.pop(), [start for _, start, _ in ordered]
        ends = [end for _, _, end in ordered]
        if not whole.shape[axis] or [*bounds, whole.shape[axis]] != [0, *ends]:
            return None
        return axis, ordered

    def _slice(self, node: Node, whole: Tensor) -> tuple[int, int, int] | None:
        """Return (axis, start, end) of a node that takes a constant slice along one axis."""
        rank = len(whole.shape)
        if node.op == "Gather":
            tensor = self.tensors.get(node.inputs[1]) if len(node.inputs) > 1 else None
            index = (self._numbers(node.inputs[1]) or (None,))[0]
            axis = int(node.attributes.get("axis", 0))
            if index is None or tensor is None or tensor.shape or not -rank <= axis < rank:
                return None
            if not whole.shape[axis % rank]:
                return None
            start = int(index) % whole.shape[axis % rank]
            return axis % rank, start, start + 1
        if len(node.inputs) < 4:
            return None
        numbers = [self._numbers(each) for each in node.inputs[1:5]]
        if any(found is None or len(found) != 1 for found in numbers):
            return None
        (start,), (end,), (axis,), *step = (found for found in numbers if found is not None)
        if (step and step[0] != (1,)) or not -rank <= axis < rank:
            return None
        length = whole.shape[axis % rank]
        start, end = (min(each + length if each < 0 else each, length) for each in (start, end))
        return (axis % rank, start, end) if 0 <= start < end else None


def _expression(node: Node, inputs: tuple[str, ...]) -> object:
    """Return a key that is equal for two nodes if and only if they compute the same."""
    values = []
    for name, value in sorted(node.attributes.items()):
        if isinstance(value, np.ndarray):
            value = (value.dtype.str, value.shape, value.tobytes())
        elif not isinstance(value, int | float | str | bytes | tuple):
            return object()
        values.append((name, repr(value)))
    named = tuple(bool(name) for name in node.outputs)
    if node.op in RANDOM_OPS or not node.inputs or not all(named):
        return object()
    return node.op, node.domain, inputs, tuple(values), len(named)
