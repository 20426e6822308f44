"""Groups of ONNX operators that ONNX Runtime fuses before it lowers single operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from resperf.lowering._ort_transposes import FROM_GATHER, TransposeSinking
from resperf.network import Node, Rewritten, Tensor
from resperf.network.folding import RANDOM_OPS
from resperf.network.rewriting import Rewriting, unchanged_if_malformed


@dataclass(frozen=True)
class _Op:
    """An operator, and what its first inputs are; factors and terms may be in any order."""

    op: str
    inputs: tuple[_Pattern, ...]


_Pattern: TypeAlias = "_Op | str | float"
"""An operator's result, any tensor by a name of its own, or a constant."""


@dataclass(frozen=True)
class _Fusion:
    """A group of operators, and the operator of ONNX Runtime that replaces it."""

    op: str
    pattern: _Op
    inputs: tuple[str, ...]
    domain: str = ""
    attributes: Mapping[str, int] = field(default_factory=dict)
    ends_networks: bool = True
    """Whether it is also fused where the network ends with it."""


_X, _EPSILON = "x", "epsilon"
_ERF = _Op("Erf", (_Op("Div", (_X, 1.4142135)),))
_CUBED = _Op("Add", (_X, _Op("Mul", (0.044715, _Op("Pow", (_X, 3.0))))))
_TANH = _Op("Tanh", (_Op("Mul", (0.7978846, _CUBED)),))


def _gelus(op: str, function: _Op, *, ends_networks: bool) -> list[_Fusion]:
    """Return x / 2 * (1 + function(x)), with its factors in any order."""
    added = _Op("Add", (function, 1.0))
    return [
        _Fusion(op, _Op("Mul", (_Op("Mul", (a, b)), c)), (_X,), "com.microsoft", {}, ends_networks)
        for a, b, c in ((_X, added, 0.5), (added, 0.5, _X), (_X, 0.5, added))
    ]


GELUS = (
    *_gelus("Gelu", _ERF, ends_networks=True), *_gelus("FastGelu", _TANH, ends_networks=False),
)  # fmt: skip


def _norms(op: str, x: _Pattern, *inputs: str, inverted: bool = False) -> list[_Fusion]:
    """Return scale * x / sqrt(mean(x^2) + epsilon), plus bias if that is an input.

    With `inverted` it is x * (1 / sqrt(...)).
    """
    fusions = []
    for square in (_Op("Pow", (x, 2.0)), _Op("Mul", (x, x))):
        root = _Op("Sqrt", (_Op("Add", (_Op("ReduceMean", (square,)), _EPSILON)),))
        normal = _Op("Mul", (x, _Op("Div", (1.0, root)))) if inverted else _Op("Div", (x, root))
        whole = _Op("Mul", (normal, "scale"))
        if "bias" in inputs:
            whole = _Op("Add", (whole, "bias"))
        fusions.append(_Fusion(op, whole, inputs, attributes={"axis": -1}))
    return fusions


_CENTRED = _Op("Sub", (_X, _Op("ReduceMean", (_X,))))
LAYER_NORMS = _norms("LayerNormalization", _CENTRED, _X, "scale", "bias")
"""Exporters decompose LayerNormalization before operator set 17."""
RMS_NORMS = [
    fusion
    for inverted in (False, True)
    for fusion in _norms("SimplifiedLayerNormalization", _X, _X, "scale", inverted=inverted)
]
"""Exporters decompose RMSNormalization before operator set 23. An inverse by ``Reciprocal`` is not
fused, as in ONNX Runtime."""
_WINDOWS = ("Conv", "MaxPool", "AveragePool")
"""Operators that can pad their images themselves."""


def with_patterns(start: Rewritten) -> Rewritten:
    """Fuse what exporters decompose: gelu, padding, normalisation, and slices of one tensor.

    Equal operators are merged, and transpositions sink below operators that do not depend on the
    order of axes, to where they cancel or merge with others.
    """
    patterns = _Patterns(start.network, start.sources)
    patterns.drop_casts()
    patterns.merge_equal()
    patterns.fuse_pads()
    patterns.fuse((*GELUS, *LAYER_NORMS))
    patterns.fuse(RMS_NORMS)
    patterns.fuse_slices()
    fused = patterns.rewritten()
    sinking = TransposeSinking(fused.network, fused.sources)
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
            self.set_nodes(remaining)

    def _is_same_type_cast(self, node: Node) -> bool:
        if node.op != "Cast" or node.domain or not node.inputs:
            return False
        before, after = (self.tensors.get(name) for name in (node.inputs[0], node.outputs[0]))
        known = before is not None and after is not None and before.dtype == after.dtype
        return known and node.outputs[0] not in self.network.outputs

    def fuse(self, fusions: Sequence[_Fusion]) -> None:
        """Replace groups of operators by the operators that these fusions name."""
        for node in self.walk():
            for fusion in fusions if not node.domain else ():
                if node.op == fusion.pattern.op and self._fuse(node, fusion):
                    break

    @unchanged_if_malformed
    def _fuse(self, last: Node, fusion: _Fusion) -> bool:
        """Replace a group that ends with a node, if there is one; say whether there is."""
        if not fusion.ends_networks and last.outputs[0] in self.network.outputs:
            return False
        name = f"{last.name}/{fusion.op}"
        for found in self._matches(last.outputs[0], fusion.pattern, {}):
            parts = [self.maker[each] for part, each in found.items() if isinstance(part, _Op)]
            inputs = tuple(found[each] for each in fusion.inputs)
            whole = Node(name, fusion.op, fusion.domain, inputs, last.outputs, fusion.attributes)
            if self.join(parts, last, whole):
                return True
        return False

    def _matches(
        self, name: str, pattern: _Pattern, found: Mapping[_Pattern, str]
    ) -> Iterator[Mapping[_Pattern, str]]:
        """Yield each way in which a tensor is what the pattern says: the tensor of every part.

        `found` are the tensors of earlier parts: equal parts are the same tensor.
        """
        if pattern in found:
            if found[pattern] == name:
                yield found
        elif isinstance(pattern, float):
            if self.is_near(name, pattern):
                yield found
        elif isinstance(pattern, str):
            is_right = self.is_number if pattern == _EPSILON else self.is_vector
            if pattern == _X or is_right(name):
                yield {**found, pattern: name}
        else:
            node = self.maker.get(name)
            if node is None or node.op != pattern.op or len(node.inputs) < len(pattern.inputs):
                return
            if node.op == "ReduceMean" and not self.is_last_mean(node):
                return
            given = node.inputs[: len(pattern.inputs)]
            for inputs in (given, given[::-1]) if node.op in ("Add", "Mul") else (given,):
                ways: list[Mapping[_Pattern, str]] = [{**found, pattern: name}]
                for each, part in zip(inputs, pattern.inputs, strict=True):
                    ways = [more for way in ways for more in self._matches(each, part, way)]
                yield from ways

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
                merged.setdefault(same.name, []).extend(self.sources_of(node))
            else:
                remaining.append(reading)
        for node in remaining:
            if node.name in merged:
                self.sources[node.name] = (*self.sources_of(node), *merged[node.name])
        if len(remaining) < len(self.nodes):
            self.set_nodes(remaining)

    def fuse_pads(self) -> None:
        """Fuse zero padding into convolutions and poolings."""
        for node in self.walk():
            if node.op == "Pad" and not node.domain and node.inputs:
                self._fuse_pad(node)

    @unchanged_if_malformed
    def _fuse_pad(self, pad: Node) -> None:
        added = self._padded_pixels(pad)
        window = self.readers(pad.outputs[0])[0] if self.is_read_once(pad) else None
        if window is None or added is None or window.op not in _WINDOWS or window.domain:
            return
        if window.inputs[0] != pad.outputs[0]:
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
        self.sources[window.name] = (*self.sources_of(pad), *self.sources_of(window))
        self.replace(window, replace(window, inputs=inputs, attributes=attributes))
        self.replace(pad)

    def _padded_pixels(self, pad: Node) -> tuple[int, ...] | None:
        """Zero pixels before and after each axis of an image; None for any other padding."""
        if str(pad.attributes.get("mode", "constant")) != "constant":
            return None
        if len(pad.inputs) > 2 and pad.inputs[2] and not self.is_near(pad.inputs[2], 0.0):
            return None
        if len(pad.inputs) > 1:
            counts = self.numbers(pad.inputs[1])
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
        for name in self.read_tensors():
            self._fuse_slices(name)

    @unchanged_if_malformed
    def _fuse_slices(self, name: str) -> None:
        found = self._slices(name)
        if found is None:
            return
        axis, ordered = found
        first = min((node for node, _, _ in ordered), key=self.place)
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
            own for node, _, _ in ordered for own in self.sources_of(node)
        )
        self.sources |= {view.name: () for view in views.values()}
        for node, _, _ in ordered:
            view = [views[node.name]] if node.name in views else []
            self.replace(node, *([split] if node is first else []), *view)

    def _slices(self, name: str) -> tuple[int, list[tuple[Node, int, int]]] | None:
        """Return the axis along which readers partition a tensor, and the readers in order.

        Each reader comes with its start (inclusive) and end (exclusive).
        """
        whole = self.tensors.get(name)
        readers = [node for node in self.readers(name) if node.op in ("Gather", "Slice")]
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
            index = (self.numbers(node.inputs[1]) or (None,))[0]
            axis = int(node.attributes.get("axis", 0))
            if index is None or tensor is None or tensor.shape or not -rank <= axis < rank:
                return None
            if not whole.shape[axis % rank]:
                return None
            start = int(index) % whole.shape[axis % rank]
            return axis % rank, start, start + 1
        if len(node.inputs) < 4:
            return None
        numbers = [self.numbers(each) for each in node.inputs[1:5]]
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
