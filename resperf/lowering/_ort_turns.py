"""Where ONNX Runtime moves transpositions: behind what does not care how its values are ordered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from resperf.lowering._rewriting import Rewriting
from resperf.network import Node, Tensor

_ORDERLESS = frozenset({"Add", "Sub", "Mul", "Div"})
"""Operators that do the same whatever the order of the axes."""
TOKEN_AXES = 3
_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"})
_LEADING = _ORDERLESS | _REDUCTIONS | {"Concat", "Slice", "Softmax", "Split", "Squeeze"}
"""Operators through which a transposition could move towards the next one."""


class Turns(Rewriting):
    """Moves transpositions to where they meet others."""

    def turn_later(self) -> None:
        """Move transpositions behind operators that lead to another one, where both can meet."""
        leading: set[str] = set()
        for node in reversed(self.nodes):
            if node.op == "Transpose":
                leading.add(node.inputs[0])
            elif node.op in _LEADING and leading & set(node.outputs):
                leading |= set(node.inputs)
        place = 0
        while place < len(self.nodes):
            node = self.nodes[place]
            if node.op == "Transpose":
                self._merge_turns(place, node)
            elif node.op in (*_ORDERLESS, "Softmax") and node.outputs[0] in leading:
                self._turn_behind(place, node)
            elif node.op == "Concat" and node.outputs[0] in leading:
                place += self._turn_parts(place, node)
                self._turn_behind(place, self.nodes[place])
            elif node.op == "Split" and (leading & set(node.outputs) or self._squeezed(node)):
                self._turn_pieces(place, node)
            elif node.op == "Squeeze":
                self._turn_narrower(place, node)
            elif node.op in _REDUCTIONS:
                self._turn_narrower(place, node, only_away=node.outputs[0] not in leading)
            elif node.op == "Reshape" and len(node.inputs) == 2:
                self._split_axes_before_turning(place, node, leads=node.outputs[0] in leading)
            place += 1
        while unread := {
            n.name for n in self.nodes if n.op == "Transpose" and not self._is_read(n)
        }:
            self.nodes = [node for node in self.nodes if node.name not in unread]
            self._index()

    def _squeezed(self, node: Node) -> bool:
        """Whether all pieces of a tensor lose an axis next, as queries, keys and values do."""
        readers = [self.readers.get(name, []) for name in node.outputs]
        return all(len(each) == 1 and each[0].op == "Squeeze" for each in readers)

    def _is_read(self, node: Node) -> bool:
        name = node.outputs[0]
        return bool(self.readers.get(name)) or name in self.network.outputs

    def _merge_turns(self, place: int, node: Node) -> None:
        """Make one of two transpositions, or none where the second undoes the first."""
        before = self._turning(node.inputs[0])
        if before is None:
            return
        first, second = (tuple(each.attributes["perm"]) for each in (before, node))
        order, source = tuple(first[axis] for axis in second), before.inputs[0]
        if order != tuple(sorted(order)):
            both = replace(node, inputs=(source,), attributes={"perm": order})
            self.nodes[place] = both
        elif node.outputs[0] not in self.network.outputs:
            self.nodes = [
                replace(n, inputs=tuple(source if x == node.outputs[0] else x for x in n.inputs))
                for n in self.nodes
            ]
        self._index()

    def _turn_behind(self, place: int, node: Node) -> None:
        """Let a node read what is not turned yet, and turn its result."""
        turns = [turn for name in node.inputs if (turn := self._turning(name))]
        orders = {tuple(turn.attributes["perm"]) for turn in turns}
        whole = self.tensors.get(turns[0].inputs[0]) if turns else None
        if len(orders) != 1 or whole is None:
            return
        order, result = orders.pop(), node.outputs[0]
        inputs = [self._turned_back(name, order) for name in node.inputs]
        if None in inputs:
            return
        shape, attributes = whole.shape, node.attributes
        axis = 0
        if node.op in ("Concat", "Softmax"):
            default = -1 if node.op == "Softmax" else 0
            axis = order[int(attributes.get("axis", default)) % len(order)]
            attributes = {**attributes, "axis": axis}
        if node.op == "Concat":
            parts = [self.tensors[name].shape[axis] for name in inputs if name in self.tensors]
            shape = (*shape[:axis], sum(parts), *shape[axis + 1 :])
        early = f"{result}/early"
        self.tensors[early] = Tensor(early, shape, whole.dtype)
        late = Node(f"{node.name}/turned", "Transpose", "", (early,), (result,), {"perm": order})
        # Where nothing else reads what was turned before, it is turned here instead.
        moved = [t for t in turns if len(self.readers[t.outputs[0]]) == 1]
        self.sources[late.name] = tuple(
            x for t in moved for x in self.sources.get(t.name, (t.name,))
        )
        self.nodes[place : place + 1] = [
            replace(
                node, inputs=tuple(filter(None, inputs)), outputs=(early,), attributes=attributes
            ),
            late,
        ]
        self._index()

    def _turn_pieces(self, place: int, node: Node) -> None:
        """Take a tensor apart before its axes change order, not after: each piece is turned."""
        turn = self._turning(node.inputs[0])
        pieces = [self.tensors.get(name) for name in node.outputs]
        if turn is None or None in pieces or len(self.readers[turn.outputs[0]]) > 1:
            return
        order = tuple(turn.attributes["perm"])
        axis = order[int(node.attributes.get("axis", 0)) % len(order)]
        new = []
        early = tuple(f"{name}/early" for name in node.outputs)
        for piece, name in zip(pieces, early, strict=True):
            assert piece is not None
            self.tensors[name] = replace(piece, name=name, shape=_before(piece.shape, order))
            late = f"{piece.name}/turned"
            new.append(Node(late, "Transpose", "", (name,), (piece.name,), {"perm": order}))
            self.sources[late] = ()
        inputs = (turn.inputs[0], *node.inputs[1:])
        split = replace(
            node, inputs=inputs, outputs=early, attributes={**node.attributes, "axis": axis}
        )
        own = self.sources.get(node.name, (node.name,))
        self.sources[node.name] = (*self.sources.get(turn.name, (turn.name,)), *own)
        self.nodes[place : place + 1] = [split, *new]
        self._index()

    def _turn_narrower(self, place: int, node: Node, *, only_away: bool = False) -> None:
        """Let an operator that takes axes away do so before the others change order.

        With `only_away`, only where the others then keep their order.
        """
        turn, result = self._turning(node.inputs[0]), self.tensors.get(node.outputs[0])
        axes = node.attributes.get("axes")
        if axes is None and len(node.inputs) > 1:
            axes = self._numbers(node.inputs[1])
        if turn is None or result is None or axes is None:
            return
        order = tuple(turn.attributes["perm"])
        gone = {axis % len(order) for axis in axes}
        rest = order
        if node.op == "Squeeze" or not node.attributes.get("keepdims", 1):
            kept = [axis for place, axis in enumerate(order) if place not in gone]
            rest = tuple(sorted(kept).index(axis) for axis in kept)
        stays = rest == tuple(sorted(rest))
        if only_away and not stays:
            return
        attributes = {**node.attributes, "axes": tuple(sorted(order[axis] for axis in gone))}
        early = result.name if stays else f"{result.name}/early"
        new = [replace(node, inputs=turn.inputs[:1], outputs=(early,), attributes=attributes)]
        own = self.sources.get(turn.name, (turn.name,))
        if len(self.readers[turn.outputs[0]]) > 1:
            own = ()
        if stays:
            self.sources[node.name] = (*own, *self.sources.get(node.name, (node.name,)))
        else:
            self.tensors[early] = replace(result, name=early, shape=_before(result.shape, rest))
            late = f"{node.name}/turned"
            new.append(Node(late, "Transpose", "", (early,), (result.name,), {"perm": rest}))
            self.sources[late] = own
        self.nodes[place : place + 1] = new
        self._index()

    def _turn_parts(self, place: int, node: Node) -> int:
        """Turn what is joined to turned tensors as well, where that is less than it saves.

        Returns how many nodes were put in front.
        """
        turns = [turn for name in node.inputs if (turn := self._turning(name))]
        orders = {tuple(turn.attributes["perm"]) for turn in turns}
        axis = int(node.attributes.get("axis", 0))
        if len(orders) != 1 or not 0 <= axis < len(order := orders.pop()):
            return 0
        others = [
            name for name in node.inputs if not self._turning(name) and not self._is_weight(name)
        ]
        saved = sum(self._lengths(turn.outputs[0]) for turn in turns)
        if sum(map(self._lengths, others)) >= saved:
            return 0
        back = tuple(order.index(each) for each in range(len(order)))
        extra = []
        for name in dict.fromkeys(others):
            tensor, early, again = self.tensors[name], f"{name}/back", f"{name}/again"
            shape = tuple(tensor.shape[each] for each in back)
            if early not in self.maker:
                self.tensors[early] = replace(tensor, name=early, shape=shape)
                extra.append(Node(early, "Transpose", "", (name,), (early,), {"perm": back}))
            if again not in self.maker:
                # It goes when the whole is turned.
                self.tensors[again] = replace(tensor, name=again)
                extra.append(Node(again, "Transpose", "", (early,), (again,), {"perm": order}))
        self.sources |= {new.name: () for new in extra}
        inputs = tuple(f"{name}/again" if name in others else name for name in node.inputs)
        self.nodes[place : place + 1] = [*extra, replace(node, inputs=inputs)]
        self._index()
        return len(extra)

    def _lengths(self, name: str) -> int:
        """Axes of a tensor that are longer than one; many where it is not known."""
        tensor = self.tensors.get(name)
        return 99 if tensor is None else sum(length > 1 for length in tensor.shape)

    def _split_axes_before_turning(self, place: int, node: Node, *, leads: bool) -> None:
        """Let a Reshape that only takes axes apart do so before they change order, not after.

        Such as tokens put into rows and columns, or an image cut into windows.
        """
        turn, result = self._turning(node.inputs[0]), self.tensors.get(node.outputs[0])
        turned = self.tensors.get(node.inputs[0])
        if turn is None or turned is None or result is None:
            return
        if self._sole_reader(turn, "Reshape") is not node:
            return
        order = tuple(turn.attributes["perm"])
        groups = _taken_apart(turned.shape, result.shape)
        if groups is None or not (leads or len(order) == TOKEN_AXES):
            return
        by_axis = dict(zip(order, groups, strict=True))
        early_places = [each for axis in range(len(order)) for each in by_axis[axis]]
        new_order = tuple(early_places.index(each) for each in range(len(result.shape)))
        early = f"{result.name}/early"
        shape = tuple(result.shape[each] for each in early_places)
        self.tensors[early] = Tensor(early, shape, result.dtype)
        late = Node(
            f"{turn.name}/late", "Transpose", "", (early,), (result.name,), {"perm": new_order}
        )
        self.sources[late.name] = self.sources.get(turn.name, (turn.name,))
        inputs = (turn.inputs[0], *node.inputs[1:])
        self.nodes[place : place + 1] = [replace(node, inputs=inputs, outputs=(early,)), late]
        self.nodes.remove(turn)
        self._index()

    def _turning(self, name: str) -> Node | None:
        """Return the transposition that makes a tensor, if one does."""
        maker = self.maker.get(name)
        return maker if maker is not None and maker.op == "Transpose" else None

    def _turned_back(self, name: str, order: Sequence[int]) -> str | None:
        """Return a tensor as it lies before a transposition; None for one that never lay so."""
        turn, tensor = self._turning(name), self.tensors.get(name)
        if turn is not None:
            return turn.inputs[0]
        if tensor is None or not tensor.is_weight:
            return None
        if math.prod(tensor.shape) == 1:
            return name
        shape = _before((1,) * (len(order) - len(tensor.shape)) + tensor.shape, order)
        turned = f"{name}/{'-'.join(map(str, order))}"
        self.tensors[turned] = replace(tensor, name=turned, shape=shape, value=None)
        return turned


def _before(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that a tensor of this shape had before its axes changed order."""
    lengths = dict(zip(order, shape, strict=True))
    return tuple(lengths[axis] for axis in range(len(order)))


def _taken_apart(shape: Sequence[int], result: Sequence[int]) -> list[list[int]] | None:
    """Say which axes of a result each axis became; None where axes were joined."""
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
