"""Transpose sinking as ONNX Runtime does it: transpositions move down until they meet others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from resperf.lowering._base import CONTROL_FLOW
from resperf.network import Node, Tensor
from resperf.network.rewriting import Rewriting, unchanged_if_malformed

_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div"})
"""Operators that do not depend on the order of axes."""
_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"})
_SINKABLE = _ELEMENTWISE | _REDUCTIONS | {"Concat", "Slice", "Softmax", "Split", "Squeeze"}
"""Operators below which a transposition can sink towards the next one."""
FROM_GATHER = "from_gather"
"""Attribute of a Squeeze that replaced a Gather: ONNX Runtime sinks below the Gather."""
TOKEN_AXES = 3
SOFTMAX_OF_ONE_AXIS = 13
"""From this operator set on, a softmax is along one axis, not along all axes from its axis on."""


class TransposeSinking(Rewriting):
    """Sinks transpositions to where they merge with others."""

    def sink(self) -> None:
        """Sink transpositions below operators that lead to another transposition."""
        if any(node.op in CONTROL_FLOW for node in self.nodes):
            # Subgraphs may read a transposed tensor by its name.
            return
        # Tensors from which only sinkable operators lead to another transposition.
        self.leads_to_transpose: set[str] = set()
        for node in reversed(self.nodes):
            if node.op == "Transpose":
                self.leads_to_transpose |= set(node.inputs[:1])
            elif node.op in _SINKABLE and self.leads_to_transpose & set(node.outputs):
                self.leads_to_transpose |= set(node.inputs)
        steps: Mapping[str, Callable[[Node], None]] = {
            "Transpose": self._merge_transposes,
            **dict.fromkeys((*_ELEMENTWISE, "Softmax"), self._sink_below),
            "Concat": self._sink_below_concat,
            "Split": self._sink_below_split,
            **dict.fromkeys((*_REDUCTIONS, "Squeeze"), self._sink_below_reduction),
            "Reshape": self._sink_below_reshape,
        }
        for node in self.walk():
            if node.op in steps and not node.domain and node.inputs and node.outputs:
                steps[node.op](node)
        self._drop_unread()

    def _drop_unread(self) -> None:
        """Remove transpositions that nothing reads any more, and those that only these read."""
        for node in reversed(self.nodes):
            name = node.outputs[0] if node.outputs else ""
            if node.op != "Transpose" or node.domain or name in self.network.outputs:
                continue
            if not self.readers(name):
                self.replace(node)

    def _perm(self, node: Node) -> tuple[int, ...] | None:
        return transpose_perm(node, self.tensors)

    def _transpose_of(self, name: str) -> tuple[Node, tuple[int, ...]] | None:
        """Return the transposition that produces a tensor and its permutation, if one does."""
        maker = self.maker.get(name)
        order = None if maker is None else self._perm(maker)
        return None if maker is None or order is None else (maker, order)

    def _transposed_later(
        self, result: Tensor, order: Sequence[int], name: str, sources: tuple[str, ...] = ()
    ) -> tuple[str, Node]:
        """Return the name of a result before its transposition, and the transposition to it."""
        early = replace(
            result, name=f"{result.name}/early", shape=_shape_before(result.shape, order)
        )
        self.tensors[early.name], self.sources[name] = early, sources
        perm = {"perm": tuple(order)}
        return early.name, Node(name, "Transpose", "", (early.name,), (result.name,), perm)

    def _axis(self, node: Node, default: int, rank: int) -> int:
        axis = int(node.attributes.get("axis", default))
        if not -rank <= axis < rank:
            raise ValueError(axis)
        return axis % rank

    @unchanged_if_malformed
    def _merge_transposes(self, node: Node) -> None:
        """Merge two transpositions into one, or into none where they cancel."""
        found, second = self._transpose_of(node.inputs[0]), self._perm(node)
        if found is None or second is None or len(found[1]) != len(second):
            return
        before, first = found
        order, source = tuple(first[axis] for axis in second), before.inputs[0]
        own = self.sources_of(node)
        if self.is_read_once(before):
            own = (*self.sources_of(before), *own)
        if order != tuple(sorted(order)):
            self.sources[node.name] = own
            self.replace(node, replace(node, inputs=(source,), attributes={"perm": order}))
        elif node.outputs[0] not in self.network.outputs:
            readers = self.readers(node.outputs[0])
            for reader in readers:
                names = (source if name == node.outputs[0] else name for name in reader.inputs)
                self.replace(reader, replace(reader, inputs=tuple(names)))
            if readers:
                # Both transpositions are gone: their sources go to the first reader.
                self.sources[readers[0].name] = (*own, *self.sources_of(readers[0]))

    @unchanged_if_malformed
    def _sink_below(self, node: Node) -> None:
        """Let a node read the untransposed tensors, and transpose its result."""
        result = self.tensors.get(node.outputs[0])
        found = [each for name in node.inputs if (each := self._transpose_of(name))]
        orders = {order for _, order in found}
        if node.outputs[0] not in self.leads_to_transpose or len(orders) != 1 or result is None:
            return
        order = orders.pop()
        if len(result.shape) != len(order):
            return
        attributes = node.attributes
        if node.op == "Softmax":
            if self.network.opsets.get("", 1) < SOFTMAX_OF_ONE_AXIS:
                return
            attributes = {**attributes, "axis": order[self._axis(node, -1, len(order))]}
        if node.op == "Concat":
            attributes = {**attributes, "axis": order[self._axis(node, 0, len(order))]}
        inputs = tuple(self._untransposed(name, order) for name in node.inputs)
        # A transposition that nothing else reads is gone: its sources move to the new one.
        gone = [transpose for transpose, _ in found if self.is_read_once(transpose)]
        sources = tuple(name for transpose in gone for name in self.sources_of(transpose))
        early, late = self._transposed_later(result, order, f"{node.name}/transposed", sources)
        sunk = replace(node, inputs=inputs, outputs=(early,), attributes=attributes)
        self.replace(node, sunk, late)

    @unchanged_if_malformed
    def _sink_below_concat(self, node: Node) -> None:
        """Sink below a Concat; transpose its other inputs first, if that costs less."""
        if node.outputs[0] in self.leads_to_transpose:
            self._sink_below(self._with_all_inputs_transposed(node))

    def _with_all_inputs_transposed(self, node: Node) -> Node:
        """Transpose the other inputs of a Concat too, where that costs less than it saves."""
        found = [each for name in node.inputs if (each := self._transpose_of(name))]
        orders = {order for _, order in found}
        others = [
            name
            for name in node.inputs
            if not self._transpose_of(name) and not self.is_weight(name)
        ]
        order = orders.pop() if len(orders) == 1 else None
        if not others or order is None:
            return node
        saved = sum(_long_axes(self.tensors[transpose.outputs[0]]) for transpose, _ in found)
        if sum(_long_axes(self.tensors[name]) for name in others) >= saved:
            return node
        back = tuple(order.index(axis) for axis in range(len(order)))
        extra = []
        for name in dict.fromkeys(others):
            tensor, early, again = self.tensors[name], f"{name}/back", f"{name}/again"
            shape = tuple(tensor.shape[axis] for axis in back)
            if early not in self.maker:
                self.tensors[early] = replace(tensor, name=early, shape=shape)
                extra.append(Node(early, "Transpose", "", (name,), (early,), {"perm": back}))
            if again not in self.maker:
                # Merged away when the transposition sinks below the Concat.
                self.tensors[again] = replace(tensor, name=again)
                extra.append(Node(again, "Transpose", "", (early,), (again,), {"perm": order}))
        self.sources |= {new.name: () for new in extra}
        inputs = tuple(f"{name}/again" if name in others else name for name in node.inputs)
        concat = replace(node, inputs=inputs)
        self.replace(node, *extra, concat)
        return concat

    @unchanged_if_malformed
    def _sink_below_split(self, node: Node) -> None:
        """Split a tensor before its transposition: each output is transposed instead."""
        found = self._transpose_of(node.inputs[0])
        if found is None or not self.is_read_once(found[0]):
            return
        transpose, order = found
        if not (self.leads_to_transpose & set(node.outputs) or self._is_squeezed_next(node)):
            return
        axis = order[self._axis(node, 0, len(order))]
        parts = [self.tensors[name] for name in node.outputs]
        early, late = zip(
            *(self._transposed_later(part, order, f"{part.name}/transposed") for part in parts),
            strict=True,
        )
        split = replace(
            node, inputs=(transpose.inputs[0], *node.inputs[1:]), outputs=early,
            attributes={**node.attributes, "axis": axis},
        )  # fmt: skip
        self.sources[node.name] = (*self.sources_of(transpose), *self.sources_of(node))
        self.replace(node, split, *late)

    def _is_squeezed_next(self, node: Node) -> bool:
        """Whether all outputs of a Split are squeezed next, as queries, keys and values are."""
        readers = [self.readers(name) for name in node.outputs]
        return all(len(each) == 1 and each[0].op == "Squeeze" for each in readers)

    @unchanged_if_malformed
    def _sink_below_reduction(self, node: Node) -> None:
        """Sink below a reduction or Squeeze.

        A reduction that leads to no other transposition does so only where the remaining axes are
        in order. A Squeeze with several readers, or that leads to no transposition, does not.
        """
        found, result = self._transpose_of(node.inputs[0]), self.tensors.get(node.outputs[0])
        axes = self.axes(node)
        if found is None or result is None or not axes:
            return
        transpose, order = found
        gone = {range(len(order))[axis] for axis in axes}
        rest = order
        if node.op == "Squeeze" or not node.attributes.get("keepdims", 1):
            remaining = [axis for position, axis in enumerate(order) if position not in gone]
            rest = tuple(sorted(remaining).index(axis) for axis in remaining)
        stays = rest == tuple(sorted(rest))
        leads = node.outputs[0] in self.leads_to_transpose
        if node.op == "Squeeze":
            leads = (leads and self.is_read_once(node)) or FROM_GATHER in node.attributes
            stays &= leads
        if not leads and not stays:
            return
        attributes = {**node.attributes, "axes": tuple(sorted(order[axis] for axis in gone))}
        own = self.sources_of(transpose) if self.is_read_once(transpose) else ()
        if stays:
            self.sources[node.name] = (*own, *self.sources_of(node))
            self.replace(node, replace(node, inputs=transpose.inputs, attributes=attributes))
            return
        early, late = self._transposed_later(result, rest, f"{node.name}/transposed", own)
        reduced = replace(node, inputs=transpose.inputs, outputs=(early,), attributes=attributes)
        self.replace(node, reduced, late)

    @unchanged_if_malformed
    def _sink_below_reshape(self, node: Node) -> None:
        """Sink below a Reshape that only splits axes.

        Such as tokens arranged as rows and columns, or an image cut into windows.
        """
        found, result = self._transpose_of(node.inputs[0]), self.tensors.get(node.outputs[0])
        transposed = self.tensors.get(node.inputs[0])
        if found is None or transposed is None or result is None:
            return
        transpose, order = found
        groups = _split_axes(transposed.shape, result.shape)
        meets = node.outputs[0] in self.leads_to_transpose or len(order) == TOKEN_AXES
        if groups is None or not meets or not self.is_read_once(transpose):
            return
        by_axis = dict(zip(order, groups, strict=True))
        before = [each for axis in range(len(order)) for each in by_axis[axis]]
        new_order = tuple(before.index(each) for each in range(len(result.shape)))
        sources = self.sources_of(transpose)
        early, late = self._transposed_later(result, new_order, f"{transpose.name}/late", sources)
        inputs = (transpose.inputs[0], *node.inputs[1:])
        self.replace(node, replace(node, inputs=inputs, outputs=(early,)), late)

    def _untransposed(self, name: str, order: Sequence[int]) -> str:
        """Return the name of a tensor in the order of axes before a transposition.

        Raises
        ------
        ValueError
            If it is neither transposed nor a constant.
        """
        found, tensor = self._transpose_of(name), self.tensors.get(name)
        if found is not None:
            return found[0].inputs[0]
        if tensor is None or not tensor.is_weight or len(tensor.shape) > len(order):
            raise ValueError(name)
        if math.prod(tensor.shape) == 1:
            return name
        shape = _shape_before((1,) * (len(order) - len(tensor.shape)) + tensor.shape, order)
        transposed = f"{name}/{'-'.join(map(str, order))}"
        self.tensors[transposed] = replace(tensor, name=transposed, shape=shape, value=None)
        return transposed


def _long_axes(tensor: Tensor) -> int:
    """Count the axes of another length than 1: what transposing a tensor costs."""
    return sum(length != 1 for length in tensor.shape)


def _shape_before(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that a tensor of this shape had before its transposition."""
    lengths = dict(zip(order, shape, strict=True))
    return tuple(lengths[axis] for axis in range(len(order)))


def _split_axes(shape: Sequence[int], result: Sequence[int]) -> list[list[int]] | None:
    """Return the axes of the result that each axis was split into; None where axes were merged."""
    groups: list[list[int]] = []
    place = 0
    for length in shape:
        group: list[int] = []
        rest = length
        while place < len(result) and (not group or rest > 1):
            if result[place] < 1 or rest % result[place]:
                return None
            rest //= result[place]
            group.append(place)
            place += 1
        if rest != 1:
            return None
        groups.append(group)
    return groups if place == len(result) and all(groups) else None


def transpose_perm(node: Node, tensors: Mapping[str, Tensor]) -> tuple[int, ...] | None:
    """Return the permutation of a Transpose; None for any other or malformed node."""
    if node.op != "Transpose" or node.domain or len(node.inputs) != 1:
        return None
    tensor = tensors.get(node.inputs[0])
    order = node.attributes.get("perm")
    if order is None and tensor is not None:
        order = tuple(reversed(range(len(tensor.shape))))
    if not isinstance(order, Sequence) or isinstance(order, str):
        return None
    order = tuple(order)
    if sorted(map(repr, order)) != sorted(map(repr, range(len(order)))):
        return None
    return order if tensor is None or len(tensor.shape) == len(order) else None
