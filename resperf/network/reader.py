"""ONNX model to `Network`: constants folded, shapes complete, batch set."""

from __future__ import annotations

import copy
import math
import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resperf.errors import NetworkError, ShapeError, printable
from resperf.network._base import Known, Network, Node, Tensor
from resperf.network.assumed import Assumed, Assumptions
from resperf.network.declared import DeclaredShapes
from resperf.network.fit import misfit
from resperf.network.folding import Unfolded, folded, is_constant
from resperf.network.graph import branch_nodes, captured, check_text, live_nodes, ordered_nodes
from resperf.network.inputs import Inputs, complete_inputs
from resperf.network.model import parse, stripped_file
from resperf.network.parameters import parameters_of
from resperf.network.protos import (
    attributes_of,
    check_size,
    data_type_of,
    sparse_weight,
    weight,
)
from resperf.network.rebatch import rebatched, shape_input
from resperf.network.sequences import SEQUENCE_OPS, Sequences
from resperf.network.shapes import ShapeFinder, shapes_at_batch
from resperf.network.wire import Stripped

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

_UNNAMED = "network"
_READINGS_KEPT, _MOST_NODES_KEPT = 8, 20_000
"""Models that a process keeps as they were read last, to read them at another batch size, and the
most nodes of one."""

_FLOATS = ("float32", "float16", "bfloat16")
_IR_WITH_DEFAULTS = 4
"""From this IR version on, weights that are also inputs are defaults that a run can override."""


def read_network(
    path: Path,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    assume: Assumed | None = None,
) -> Network:
    """Read an ONNX file's structure and shapes, never its weights.

    Parameters
    ----------
    path : Path
        The ONNX file. Its external data, if any, is not opened.
    batch : int or None
        First dimension of every input. None leaves what the file fixes.
    shapes : mapping of str to sequence of int
        Whole shapes by input name, or by a pattern of names such as ``past_*``; `batch` overrides
        the first dimension.
    assume : mapping of str to int
        How many ``boxes`` or ``values`` an operator finds whose output depends on the data
        (`resperf.network.assumed.COUNTED`).

    Returns
    -------
    Network
        Without nodes that only compute constants or whose outputs are unused.

    Raises
    ------
    NetworkError
        If the file is missing, damaged or not ONNX.
    ShapeError
        If a dimension is unknown or does not fit, or an assumption is about nothing in the network.
    """
    path = Path(path)
    return read_stripped(path, stripped_file(path), batch=batch, shapes=shapes, assume=assume)


def networks_at(path: Path, batches: Sequence[int]) -> Iterator[Network]:
    """Read a network at several batch sizes, to collect its layers.

    Sizes after the first are skipped where the network does not allow them: it may fix its batch.

    Raises
    ------
    NetworkError
        If the file is missing, damaged or not ONNX.
    ShapeError
        If it has other free dimensions than the batch.
    """
    first, *others = batches
    try:
        yield read_network(path, batch=first)
    except ShapeError as error:
        raise ShapeError(
            f"{error}; networks that only provide layers must have these dimensions in the file: "
            "export it with fixed ones, or leave the file out"
        ) from error
    for batch in others:
        with suppress(ShapeError):
            yield read_network(path, batch=batch)


def resolve(
    path: Path,
    model: ModelProto,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    assume: Assumed | None = None,
) -> Network:
    """Turn a parsed model into a `Network`; sets the same shapes and batch in the model.

    Raises
    ------
    NetworkError, ShapeError
        As `read_network`.
    """
    return _Reading(path, model, batch, shapes, assume).network()


def read_stripped(
    path: Path,
    stripped: Stripped,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    assume: Assumed | None = None,
    own_name: bool = False,
) -> Network:
    """Turn a model without its weights' bytes into a `Network`.

    At another batch size of one of the last models, only what depends on the batch is read again.
    `own_name` names the network as its graph, not as its file.

    Raises
    ------
    NetworkError, ShapeError
        As `read_network`.
    """
    given = tuple((name, tuple(shape)) for name, shape in sorted((shapes or {}).items()))
    key = (path, stripped.model, given)
    known = None if assume else _readings.get(key)
    reading = None if known is None else known.at(batch)
    if reading is None:
        reading = _Reading(path, parse(path, stripped), batch, shapes, assume)
    network = reading.network()
    if reading.repeatable and len(reading.seen.steps) <= _MOST_NODES_KEPT:
        with _keeping:
            _readings.pop(key, None)
            _readings[key] = reading
            while len(_readings) > _READINGS_KEPT:
                del _readings[next(iter(_readings))]
    if own_name:
        network = replace(network, name=printable(reading.graph.name) or _UNNAMED)
    return network


@dataclass(frozen=True)
class _Step:
    """A node as it was read.

    Attributes
    ----------
    inputs, outputs : tuple of str
    read : tuple of Tensor or None
        Of its inputs.
    made : tuple of Tensor
        Those of its outputs that are known.
    runs : bool
        Whether it is part of the network: it is not if it computes constants.
    built : Node or None
        As the network has it, among its nodes or its weight nodes.
    unfolded : Node or None
        As the network has it among its unfolded nodes.
    """

    node: NodeProto
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    read: tuple[Tensor | None, ...]
    made: tuple[Tensor, ...]
    runs: bool
    built: Node | None = None
    unfolded: Node | None = None

    def at(self, read: tuple[Tensor | None, ...], made: tuple[Tensor, ...]) -> _Step:
        """Return the same step with tensors of other lengths."""
        return _Step(
            self.node, self.attributes, self.inputs, self.outputs, read, made, self.runs,
            self.built, self.unfolded,
        )  # fmt: skip


@dataclass
class _Seen:
    """What the walk over the nodes has found so far."""

    tensors: dict[str, Tensor]
    notes: list[str]
    nodes: list[Node] = field(default_factory=list)
    inner: dict[str, set[str]] = field(default_factory=dict)
    """Name of a node with subgraphs -> what these read."""
    stale: set[str] = field(default_factory=set)  # whole-model inference is wrong about these
    rebatched: list[str] = field(default_factory=list)
    declared: list[str] = field(default_factory=list)  # nodes of which only the file says the shape
    of_weights: set[str] = field(default_factory=set)
    """Weights and positions, and what nodes compute with them alone."""
    weight_nodes: list[Node] = field(default_factory=list)
    unfolded: Unfolded = field(default_factory=Unfolded)
    steps: list[_Step] = field(default_factory=list)


class _Reading:
    """One reading of a model.

    Attributes
    ----------
    repeatable : bool
        Whether `at` may read the model at another batch size: it is nodes and their shapes alone.
    """

    def __init__(
        self,
        path: Path,
        model: ModelProto,
        batch: int | None,
        shapes: Mapping[str, Sequence[int]] | None,
        assume: Assumed | None,
    ) -> None:
        self.path, self.model, self.graph, self.shapes = path, model, model.graph, shapes
        check_text(path, model)
        self.assumptions = Assumptions(assume)
        self.weights = self._weights()
        declared = [info for info in self.graph.input if info.name not in self.weights]
        self.as_declared = [_copied(info) for info in declared]
        self.inputs: Inputs = complete_inputs(path, declared, batch, shapes)
        self.declared = DeclaredShapes(self.graph, declared, self.inputs)
        given = {tensor.name for tensor in self.inputs.tensors}
        nodes = ordered_nodes(path, self.graph, self.weights.keys() | given)
        self.overridable = self._overridable(self.weights)
        _set_shapes(model, declared, self.inputs.tensors, nodes)
        self.finder = ShapeFinder(path, model)
        self.repeatable = not assume
        self._start()
        self.opsets = {opset.domain: opset.version for opset in model.opset_import}
        self.sequences = Sequences(self.graph, self.opsets.get("", 1))

    def _start(self) -> None:
        """Forget all nodes; the inputs have their sizes."""
        given = {tensor.name: tensor for tensor in self.inputs.tensors}
        self.seen = _Seen({**self.weights, **given}, [*self.inputs.notes, *self.overridable])
        self.seen.of_weights = {each.name for each in self.weights.values() if _is_parameter(each)}
        self.names = _NodeNames()

    def at(self, batch: int | None) -> _Reading | None:
        """Read the model at another batch size; None if it has to be read anew.

        It has to where the batch does not fit, so that the error is that of a first reading.
        """
        new = copy.copy(self)
        with suppress(NetworkError):
            new.inputs = complete_inputs(self.path, self.as_declared, batch, self.shapes)
            was = {tensor.name: tensor for tensor in self.inputs.tensors}
            kept = tuple(_kept(was[each.name], each) for each in new.inputs.tensors)
            new.inputs = replace(new.inputs, tensors=kept)
            new._start()
            new.seen.of_weights = self.seen.of_weights
            return new if all(map(new._repeat, self.seen.steps)) else None
        return None

    def _repeat(self, step: _Step) -> bool:
        """Take a node as it was read before; what it computes of other sizes is computed anew.

        Returns whether all that was known is known again.
        """
        if self._target_at_batch(step.node, step.attributes) is not None:
            return False
        read = tuple(map(self.seen.tensors.get, step.inputs))
        made: tuple[Tensor, ...] | None = step.made
        if not all(map(operator.is_, read, step.read)):
            made = self._scaled(step, read)
        if made is None:
            new = self._step(step.node, step.attributes, inferred=False)
            names = [[each.name for each in these.made] for these in (step, new)]
            if names[0] != names[1] or step.runs != new.runs:
                return False
            made = tuple(map(_kept, step.made, new.made))
        self._keep(step.at(read, made))
        return True

    def _scaled(self, step: _Step, read: Sequence[Tensor | None]) -> tuple[Tensor, ...] | None:
        """Return what a node makes of other lengths; None if no rule tells, or it is constant."""
        if not step.made or any(each.is_weight for each in step.made):
            return None
        if len(step.made) < sum(map(bool, step.outputs)):
            return None
        node, made = step.node, [each.shape for each in step.made]
        shapes = shapes_at_batch(
            node.op_type, node.domain, self.opsets, step.attributes, step.read, read, made
        )
        if shapes is None:
            return None
        found = []
        for each, shape in zip(step.made, shapes, strict=True):
            check_size(self.path, each.name, shape)
            found.append(Tensor(each.name, shape, each.dtype))
        return tuple(found)

    def _overridable(self, weights: Mapping[str, Tensor]) -> list[str]:
        """Note the weights that a run could override; the network reads them as constants."""
        count = sum(info.name in weights for info in self.graph.input)
        if not count or self.model.ir_version < _IR_WITH_DEFAULTS:
            return []
        return [
            f"{count} weights are also inputs of the network, so a framework may not treat them as "
            "constants; the prediction does: export it without keep_initializers_as_inputs"
        ]

    def network(self) -> Network:
        """Walk the nodes, unless `at` has."""
        if not self.seen.steps:
            for node in self.graph.node:
                self._visit(node)
        outputs = tuple(info.name for info in self.graph.output)
        seen = self.seen
        nodes = live_nodes(seen.nodes, outputs, seen.inner)
        used = {name for node in nodes for name in (*node.inputs, *node.outputs) if name}
        inputs = tuple(tensor.name for tensor in self.inputs.tensors)
        used.update(inputs, outputs)
        used.update(name for node in nodes for name in seen.inner.get(node.name, ()))
        tensors = {name: tensor for name, tensor in seen.tensors.items() if name in used}
        weight_nodes = live_nodes(seen.weight_nodes, used, {})
        unfolded_nodes = self._unfolded_nodes(outputs, nodes)
        beside = dict.fromkeys(
            name
            for node in (*weight_nodes, *unfolded_nodes)
            for name in (*node.inputs, *node.outputs)
            if name
        )
        missing = self.assumptions.missing()
        if (unused := self.assumptions.unused()) and not missing:
            raise ShapeError(
                f"{self.path}: no operator's output depends on how many {unused[0]} there are; "
                f"leave out --assume {unused[0]}"
            )
        self.repeatable = self.repeatable and not seen.inner and not seen.declared and not missing
        notes = [*seen.notes, *self._closing_notes(nodes, tensors, outputs), *missing]
        return Network(
            name=self.path.stem,
            nodes=tuple(nodes),
            tensors=tensors,
            inputs=inputs,
            outputs=outputs,
            opsets=self.opsets,
            batch=self.inputs.batch,
            notes=tuple(notes),
            weight_nodes=tuple(weight_nodes),
            unfolded_nodes=tuple(unfolded_nodes),
            weight_tensors={name: seen.tensors[name] for name in beside},
            parameters=self._parameters,
            assumed=self.assumptions.statements(),
        )

    def _unfolded_nodes(self, outputs: Sequence[str], nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that ONNX Runtime runs besides `nodes`."""
        steps = self.seen.steps
        if self.seen.inner or not any(step.unfolded for step in steps):
            return []
        run = [step.built if step.runs else step.unfolded for step in steps]
        own = {node.name for node in nodes}
        live = live_nodes([node for node in run if node], outputs, self.seen.inner)
        return [node for node in live if node.name not in own]

    @cached_property
    def _parameters(self) -> int | None:
        return parameters_of(self.graph).most

    def _weights(self) -> dict[str, Tensor]:
        weights = [weight(self.path, proto) for proto in self.graph.initializer]
        weights += [sparse_weight(self.path, proto) for proto in self.graph.sparse_initializer]
        by_name = {tensor.name: tensor for tensor in weights}
        inputs = {info.name for info in self.graph.input}
        if len(by_name) < len(weights) or len(inputs) < len(self.graph.input):
            raise NetworkError(f"{self.path} is damaged: two inputs or weights have the same name")
        return by_name

    def _visit(self, node: NodeProto) -> None:
        if not any(node.output):
            return
        chosen = self._chosen_branch(node)
        if chosen is not None:
            self.repeatable = False
            for inner in chosen:
                self._visit(inner)
            return
        if node.op_type in SEQUENCE_OPS:
            self.repeatable = False
        if split := self.sequences.as_tensors(node, self.seen.tensors):
            nodes, constants = split
            self.seen.tensors.update({each.name: each for each in constants})
            for inner in nodes:
                self._visit(inner)
            return
        attributes = attributes_of(self.path, node)
        if self._rebatch(node, attributes):
            attributes = attributes_of(self.path, node)
            self.seen.stale.update(node.output)
        if not self.seen.stale.isdisjoint(node.input):
            self.seen.stale.update(node.output)
        self._take(self._step(node, attributes))

    def _step(
        self, node: NodeProto, attributes: Mapping[str, Any], *, inferred: bool = True
    ) -> _Step:
        """Read a node by what it reads, and by what is `inferred` of the whole model."""
        tensors = self.seen.tensors
        inputs, outputs = tuple(node.input), tuple(node.output)
        read = tuple(map(tensors.get, inputs))
        values = folded(node, attributes, tensors)
        if values is not None:
            folds = tuple(
                Tensor(name, value.shape, _name_of(value.dtype), value, is_weight=True)
                for name, value in zip(outputs, values, strict=True)
                if name
            )
            runs = self._marks_weights(node)
            return _Step(node, attributes, inputs, outputs, read, folds, runs)
        self._check_fit(node, attributes)
        constant = is_constant(node, tensors)
        known = self._outputs(node, attributes, inferred=inferred)
        made = tuple(
            Tensor(name, shape, dtype, is_weight=constant) for name, (dtype, shape) in known.items()
        )
        runs = not constant or len(known) < sum(map(bool, outputs)) or self._marks_weights(node)
        return _Step(node, attributes, inputs, outputs, read, made, runs)

    def _marks_weights(self, node: NodeProto) -> bool:
        """Whether it is a DequantizeLinear of weights: frameworks may compute with integers."""
        if node.op_type != "DequantizeLinear":
            return False
        data = node.input[0]
        return data not in self.seen.unfolded.values or data in self.seen.of_weights

    def _take(self, step: _Step) -> None:
        """Take a node that is read for the first time."""
        if step.runs:
            step = replace(step, built=self._running_node(step))
        else:
            unfolded = self.seen.unfolded.includes(step.node, (*step.read, *step.made))
            step = replace(
                step,
                built=self._weight_node(step),
                unfolded=self._running_node(step) if unfolded else None,
            )
        self._keep(step)

    def _keep(self, step: _Step) -> None:
        seen = self.seen
        seen.steps.append(step)
        seen.tensors.update((each.name, each) for each in step.made)
        if step.built is not None:
            (seen.nodes if step.runs else seen.weight_nodes).append(step.built)
        if step.unfolded is not None or (step.runs and step.made and step.made[0].is_weight):
            seen.unfolded.add(step.node)
        if seen.unfolded.values:
            seen.unfolded.follow(step.node)

    def _running_node(self, step: _Step) -> Node:
        node = step.node
        name = self.names.unique(node)
        if names := captured(node):
            self.seen.inner[name] = names
        return Node(name, node.op_type, node.domain, step.inputs, step.outputs, step.attributes)

    def _weight_node(self, step: _Step) -> Node | None:
        """Return a folded node that computes with weights or positions, not with shapes."""
        op, inputs, outputs = step.node.op_type, step.inputs, step.outputs
        of_weights = self.seen.of_weights
        if op == "Range":
            of_weights.update(outputs)
            return None
        if op in ("Shape", "Size") or of_weights.isdisjoint(inputs):
            return None
        of_weights.update(filter(None, outputs))
        made = next((each for each in step.made if each.name == outputs[0]), None)
        if made is None or made.dtype not in _FLOATS:
            return None  # Indices: exporters compute them where frameworks do not.
        name = printable(f"{outputs[0]}/of_weights")
        attributes = step.attributes
        if op == "CastLike":  # Of the other tensor only the type counts.
            op, inputs, attributes = "Cast", inputs[:1], {"to": data_type_of(made.dtype)}
        return Node(name, op, step.node.domain, inputs, outputs, attributes)

    def _chosen_branch(self, node: NodeProto) -> list[NodeProto] | None:
        """Return the nodes of the branch that an ``If`` with a known condition runs, renamed.

        PyTorch exports one for every squeeze of an axis of unknown length.
        """
        condition = self.seen.tensors.get(node.input[0]) if node.input else None
        if node.op_type != "If" or node.domain or condition is None:
            return None
        if condition.value is None or condition.value.size != 1:
            return None
        name = "then_branch" if condition.value.item() else "else_branch"
        branch = next((each.g for each in node.attribute if each.name == name), None)
        if branch is None or branch.input or len(branch.output) != len(node.output):
            return None
        if branch.sparse_initializer:
            return None
        own, nodes = branch_nodes(branch, tuple(node.output))
        for proto in branch.initializer:
            tensor = replace(weight(self.path, proto), name=own[proto.name])
            self.seen.tensors[tensor.name] = tensor
        return nodes

    def _check_fit(self, node: NodeProto, attributes: Mapping[str, Any]) -> None:
        names = [name for name in node.input if name]
        if len(node.input) < (fewest := self.finder.fewest_inputs(node)):
            raise NetworkError(
                f"{self.path} is damaged: node {node.name or node.output[0]!r} ({node.op_type}) "
                f"has {len(node.input)} inputs and needs {fewest}"
            )
        if unequal := self.finder.unequal_types(node, self.seen.tensors):
            raise NetworkError(
                f"{self.path}: node {node.name or node.output[0]!r} ({node.op_type}) is given "
                f"{unequal}, which must be of one type; no framework runs this file: export or "
                "convert it again"
            )
        if not node.domain and all(name in self.seen.tensors for name in names):
            inputs = [self.seen.tensors[name] for name in names]
            if why := misfit(node.op_type, inputs, attributes):
                raise ShapeError(
                    f"{self.path}: node {node.name or node.output[0]!r} ({node.op_type}) {why}; "
                    "check --batch and --shape"
                )

    def _outputs(
        self, node: NodeProto, attributes: Mapping[str, Any], *, inferred: bool
    ) -> dict[str, Known]:
        names = [name for name in node.output if name]
        found = {
            name: known
            for name in names
            if inferred and name not in self.seen.stale and (known := self.finder.whole(name))
        }
        if len(found) < len(names):
            found = {**self.finder.node(node, self.seen.tensors, attributes), **found}
        if inferred:
            if len(found) < len(names):
                found = {**self.assumptions.outputs(node, self.seen.tensors), **found}
            for name in names:
                if name not in found and (known := self.declared.get(name)):
                    found[name] = known
                    self.seen.declared.append(node.name or name)
        for name, (_, shape) in found.items():
            check_size(self.path, name, shape)
        return {name: found[name] for name in names if name in found}

    def _rebatch(self, node: NodeProto, attributes: Mapping[str, Any]) -> bool:
        """Replace a batch that the exporter fixed in a target shape; changes the model."""
        found = self._target_at_batch(node, attributes)
        if found is None:
            return False
        self.repeatable = False
        self._set_target(node, *found)
        self.seen.rebatched.append(node.name or node.output[0])
        return True

    def _target_at_batch(
        self, node: NodeProto, attributes: Mapping[str, Any]
    ) -> tuple[int | None, tuple[int, ...]] | None:
        """Return the place and the value of a target shape that holds the batch of the file.

        None if the node has none; the place is None if the target is an attribute.
        """
        old, batch = self.inputs.fixed_batch, self.inputs.batch
        if old is None or batch is None or node.domain or not node.input:
            return None
        if (index := shape_input(node.op_type)) is None:
            return None
        data = self.seen.tensors.get(node.input[0])
        if data is None or data.is_weight:
            return None
        target = self.seen.tensors.get(node.input[index]) if len(node.input) > index else None
        value = np.asarray(attributes.get("shape") if target is None else target.value)
        if value.ndim != 1 or value.dtype.kind != "i":
            return None
        dims = tuple(int(dim) for dim in value)
        new = rebatched(node.op_type, dims, data.shape, old, batch)
        return None if new is None else (None if target is None else index, new)

    def _set_target(self, node: NodeProto, index: int | None, dims: tuple[int, ...]) -> None:
        from onnx import numpy_helper

        if index is None:
            attribute = next(a for a in node.attribute if a.name == "shape")
            attribute.ints[:] = dims
            return
        name = f"{node.output[0]}__shape_at_batch"
        value = np.array(dims, np.int64)
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        self.seen.tensors[name] = Tensor(name, value.shape, "int64", value, is_weight=True)
        node.input[index] = name

    def _closing_notes(
        self, nodes: Sequence[Node], tensors: Mapping[str, Tensor], outputs: Sequence[str]
    ) -> list[str]:
        notes = []
        old, batch = self.inputs.fixed_batch, self.inputs.batch
        if self.seen.rebatched:
            notes.append(
                f"batch {old} was fixed in the shapes of {_listed(self.seen.rebatched)}; "
                f"read as {batch}"
            )
        if self.seen.declared:
            listed = _listed([*dict.fromkeys(self.seen.declared)])
            notes.append(f"output shapes of {listed} are those that the file states")
        read = {name for node in nodes for name in node.inputs} | set(outputs)
        unknown = [
            f"{node.name} ({node.op})"
            for node in nodes
            if any(name in read and name not in tensors for name in node.outputs)
        ]
        if unknown:
            notes.append(f"output shapes are unknown from {_listed(unknown)}")
        strays = [
            name
            for name in outputs
            if (tensor := tensors.get(name)) and old and tensor.shape[:1] not in ((), (batch,))
        ]
        if strays and batch:
            notes.append(
                f"batch {batch} does not reach output {_listed(strays)}; "
                "export with a free batch dimension if it should"
            )
        return notes


def _copied(info: ValueInfoProto) -> ValueInfoProto:
    made = type(info)()
    made.CopyFrom(info)
    return made


def _kept(old: Tensor, new: Tensor) -> Tensor:
    """Return the old tensor if the new one is equal, so that all that read it find it the same."""
    kinds = [(each.name, each.shape, each.dtype, each.is_weight) for each in (old, new)]
    if kinds[0] != kinds[1]:
        return new
    if old.value is None or new.value is None:
        return old if old.value is new.value else new
    return old if np.array_equal(old.value, new.value) else new


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of an element type, which numpy puts together at each call."""
    return dtype.name


def _is_parameter(weight: Tensor) -> bool:
    """Whether a weight may be learnt: exporters store the numbers of a formula as weights too."""
    return weight.dtype in _FLOATS and math.prod(weight.shape) > 1


_readings: dict[tuple[Any, ...], _Reading] = {}
"""What tells a model and the shapes that were given -> its last reading; the latest comes last."""
_keeping = threading.Lock()


class _NodeNames:
    """Node names: unique, printable, never empty."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def unique(self, node: NodeProto) -> str:
        base = node.name or f"{node.op_type}_{next(filter(None, node.output))}"
        name = base = printable(base)
        while name in self._count:
            self._count[base] += 1
            name = f"{base}_{self._count[base]}"
        self._count[name] = 1
        return name


def _set_shapes(
    model: ModelProto, declared: Sequence[Any], inputs: Sequence[Tensor], nodes: list[NodeProto]
) -> None:
    """Set the inputs' shapes in the model, sort its nodes, drop shapes that may be stale."""
    graph = model.graph
    for info, tensor in zip(declared, inputs, strict=True):
        shape = info.type.tensor_type.shape
        del shape.dim[:]
        shape.SetInParent()
        for dim in tensor.shape:
            shape.dim.add().dim_value = dim
    # From IR 4 on a weight need not be an input too; as an input it would not be constant.
    model.ir_version = max(model.ir_version, 8)
    inputs_only = list(declared)
    if len(inputs_only) < len(graph.input):
        del graph.input[:]
        graph.input.extend(inputs_only)
    if any(a is not b for a, b in zip(nodes, graph.node, strict=True)):
        del graph.node[:]
        graph.node.extend(nodes)
    del graph.value_info[:]
    for info in graph.output:
        info.type.tensor_type.ClearField("shape")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(printable(name) for name in names[:3]) + more
