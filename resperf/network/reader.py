"""ONNX model to `Network`: constants folded, shapes complete, batch set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from resperf.errors import ShapeError, listed, printable
from resperf.layers._operator import FLOATS
from resperf.network._base import Network, Node, Tensor, TensorType
from resperf.network.assumed import COUNTED, Assumptions, Sizes, Stated, how_to_give, stated
from resperf.network.constants import Unfolded, folded, is_constant
from resperf.network.fit import check_inputs
from resperf.network.graph import branch_nodes, captured, check_text, live_nodes, ordered_nodes
from resperf.network.inputs import Inputs, complete_inputs, dims_of, split_shapes
from resperf.network.loops import unrolled
from resperf.network.model import stripped_model
from resperf.network.parameters import sizes_of_parameters
from resperf.network.protos import attributes_of, check_size, data_type_of, weight, weights_of
from resperf.network.rebatch import SHAPE_INPUT, rebatched
from resperf.network.sequences import Sequences
from resperf.network.shapes import (
    DATA_ELEMENTS,
    complete_only,
    declared_outputs,
    model_outputs,
    node_outputs,
)

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_TRACED_BATCH = 1
"""What a shape holds that a tracer fixed in a file whose batch is free."""
_IR_WITH_DEFAULTS = 4
"""From this IR version on, weights that are also inputs are defaults that a run can override."""

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
"""Operators whose fifth input says how long the sequences are."""


def read_network(path: Path, **sizes: Unpack[Sizes]) -> Network:
    """Read an ONNX file's structure and shapes, never its weights.

    Parameters
    ----------
    path : Path
        The ONNX file. Its external data, if any, is not opened.
    batch : int or None
        First dimension of every input. None leaves what the file fixes.
    shapes : mapping of str to sequence of int
        Whole shapes by input name, or by a pattern of names such as ``past_*``; `batch` overrides
        the first dimension. Also lengths of named dimensions, and shapes of other tensors that
        depend on the data, or their only unknown length.
    assume : mapping of str to int
        How many ``boxes`` or ``values`` an operator finds whose output depends on the data
        (`resperf.network.assumed.COUNTED`).
    values : mapping of str to number or sequence of numbers
        Values of inputs, which decide shapes; one number stands for all values of an input.

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
    return resolve(path, stripped_model(path), stated(**sizes))


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


def resolve(path: Path, model: ModelProto, given: Stated) -> Network:
    """Turn a parsed model into a `Network`; sets the same shapes and batch in the model.

    Raises
    ------
    NetworkError, ShapeError
        As `read_network`.
    """
    written = model.SerializeToString() if given.batch is not None or given.shapes else b""
    try:
        return _Reading(path, model, given).network()
    except ShapeError:
        if written:
            model.ParseFromString(written)  # Reading changed it.
            with suppress(ShapeError):
                return _Reading(path, model, given, traced=_TRACED_BATCH).network()
        raise


@dataclass
class _Seen:
    """What the walk over the nodes has found so far."""

    tensors: dict[str, Tensor]
    nodes: list[Node] = field(default_factory=list)
    inner: dict[str, set[str]] = field(default_factory=dict)
    """Name of a node with subgraphs -> what these read."""
    stale: set[str] = field(default_factory=set)  # whole-model inference is wrong about these
    rebatched: list[str] = field(default_factory=list)
    unsized: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Tensor of unknown shape -> which option gives it, and whether that is ``--value``."""
    undecided: str = ""
    declared: list[str] = field(default_factory=list)  # nodes of which only the file says the shape
    of_weights: set[str] = field(default_factory=set)
    """Weights and positions, and what nodes compute with them alone."""
    weight_nodes: list[Node] = field(default_factory=list)
    unfolded: Unfolded = field(default_factory=Unfolded)
    stated: set[str] = field(default_factory=set)
    """Inputs with stated values, and what nodes compute with them."""
    stated_only: list[str] = field(default_factory=list)
    """Nodes without a time, since all that they read is stated or constant."""
    run: list[Node] = field(default_factory=list)
    """What ONNX Runtime runs on a CPU: `nodes`, and the constants that it does not fold."""


class _Reading:
    """One reading of a model."""

    def __init__(
        self, path: Path, model: ModelProto, sizes: Stated, *, traced: int | None = None
    ) -> None:
        self.path, self.model, self.graph = path, model, model.graph
        check_text(path, model)
        self.weights = weights_of(path, self.graph)
        declared = [info for info in self.graph.input if info.name not in self.weights]
        own, lengths, others = split_shapes(self.graph, declared, dict(sizes.shapes))
        self.assumptions = Assumptions(path, dict(sizes.assume), dict(sizes.values), others)
        self.inputs: Inputs = complete_inputs(path, declared, sizes.batch, own, lengths)
        self.inputs = replace(self.inputs, fixed_batch=self.inputs.fixed_batch or traced)
        self.traced = traced
        firsts = {dim for info in declared for dim in dims_of(info)[:1] if isinstance(dim, str)}
        self.batched = {x.name for x in self.graph.output if firsts.intersection(dims_of(x)[:1])}
        """Outputs whose first dimension has the name of an input's."""
        self.declared = declared_outputs(self.graph, declared, self.inputs, lengths)
        given = {tensor.name for tensor in self.inputs.tensors}
        nodes = ordered_nodes(path, self.graph, self.weights.keys() | given)
        self.overridable = tuple(
            info.name
            for info in self.graph.input
            if info.name in self.weights and model.ir_version >= _IR_WITH_DEFAULTS
        )
        self.notes = [*self.inputs.notes]
        if self.overridable:
            self.notes.append(
                f"{len(self.overridable)} weights are also inputs of the network: ONNX Runtime "
                "does not fold them and is slower; export it without keep_initializers_as_inputs"
            )
        _set_shapes(model, declared, self.inputs.tensors, nodes)
        self.inferred = model_outputs(model)
        self.sized = given | complete_only(self.inferred).keys()
        self.names: dict[str, int] = {}
        self.seen = _Seen(
            {**self.weights, **self.assumptions.with_values(self.inputs.tensors)},
            # Exporters store the numbers of a formula as weights too.
            of_weights={tensor.name for tensor in self.weights.values()
                        if tensor.dtype in FLOATS and math.prod(tensor.shape) > 1},
        )  # fmt: skip
        self.seen.stated |= {name for name in given if self.seen.tensors[name].value is not None}
        self.of_input = {
            tensor.name: tensor
            for tensor in self.inputs.tensors
            if math.prod(tensor.shape) <= DATA_ELEMENTS
        }
        """Small tensor that is computed of a small input -> that input."""
        self.opsets = {opset.domain: opset.version for opset in model.opset_import}
        self.sequences = Sequences(self.graph, self.opsets.get("", 1))

    def network(self) -> Network:
        """Walk the nodes."""
        for node in self.graph.node:
            self._visit(node)
        outputs = tuple(info.name for info in self.graph.output)
        seen = self.seen

        def names(nodes: Iterable[Node]) -> Iterator[str]:
            for node in nodes:
                yield from (*node.inputs, *node.outputs, *seen.inner.get(node.name, ()))

        nodes = live_nodes(seen.nodes, outputs, seen.inner)
        inputs = tuple(tensor.name for tensor in self.inputs.tensors)
        used = {*inputs, *outputs, *filter(None, names(nodes))}
        tensors = {name: tensor for name, tensor in seen.tensors.items() if name in used}
        weight_nodes = live_nodes(seen.weight_nodes, used, {})
        unfolded_nodes = []  # What ONNX Runtime runs besides.
        if seen.unfolded.values and not seen.inner:
            own = {node.name for node in nodes}
            runs = live_nodes(seen.run, outputs, {})
            unfolded_nodes = [node for node in runs if node.name not in own]
        alive = {*names((*nodes, *weight_nodes, *unfolded_nodes))}
        dead_nodes = [node for node in seen.nodes if alive.isdisjoint(node.outputs)]
        beside = dict.fromkeys(names((*weight_nodes, *unfolded_nodes, *dead_nodes)))
        closing, missing = self._closing_notes(nodes, tensors, outputs), self.assumptions.missing()
        notes = [*self.notes, *closing, *missing]
        if dead_nodes:
            listed = _listed([f"{node.name} ({node.op})" for node in dead_nodes])
            notes.append(
                f"no output needs {listed}: ONNX Runtime and eager PyTorch run such operators, "
                "others leave them out; remove them from the file, or make what they write outputs"
            )
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
            dead_nodes=tuple(dead_nodes),
            overridable=self.overridable,
            weight_tensors={x: seen.tensors[x] for x in beside if x in seen.tensors},
            parameters=sum(sizes_of_parameters(self.graph).values()),
            assumed=self.assumptions.statements(),
            undecided=seen.undecided,
        )

    def _visit(self, node: NodeProto) -> None:
        if not any(node.output):
            return
        tensors = self.seen.tensors
        rewrite = _INSTEAD.get(node.op_type) if node.input and not node.domain else None
        if rewrite and (instead := rewrite(self, node)):
            nodes, constants = instead
            tensors.update({constant.name: constant for constant in constants})
            for inner in nodes:
                self._visit(inner)
            return
        attributes = attributes_of(self.path, node)
        if node.op_type in SHAPE_INPUT and (target := self._target_at_batch(node, attributes)):
            self._set_target(node, *target)
            attributes = attributes_of(self.path, node)
            self.seen.stale.update(node.output)
        if not self.seen.stale.isdisjoint(node.input):
            self.seen.stale.update(node.output)
        self._record(node, attributes)

    def _record(self, node: NodeProto, attributes: Mapping[str, Any]) -> None:
        """Record what a node computes, and whether it is part of the network or its constants."""
        seen = self.seen
        values = folded(node, attributes, seen.tensors)
        if values is not None:
            tensors = [
                Tensor.constant(name, value)
                for name, value in zip(node.output, values, strict=True)
                if name
            ]
            runs = self._marks_weights(node)
        else:
            check_inputs(self.path, node, self.opsets, seen.tensors, attributes)
            constant = is_constant(node, seen.tensors)
            outputs = self._outputs(node, attributes)
            tensors = [
                Tensor(name, shape, dtype, is_weight=constant)
                for name, (dtype, shape) in outputs.items()
            ]
            complete = len(outputs) == sum(map(bool, node.output))
            runs = not constant or not complete or self._marks_weights(node)
            source = next((self.of_input[n] for n in node.input if n in self.of_input), None)
            if source is not None and all(math.prod(t.shape) <= DATA_ELEMENTS for t in tensors):
                self.of_input |= dict.fromkeys(filter(None, node.output), source)
        if not seen.stated.isdisjoint(node.input):
            seen.stated.update(node.output)
            if not runs and any(math.prod(tensor.shape) > DATA_ELEMENTS for tensor in tensors):
                seen.stated_only.append(f"{node.name or node.output[0]} ({node.op_type})")
        is_unfolded = runs and bool(tensors) and tensors[0].is_weight
        if runs:
            running = self._running_node(node, attributes)
            seen.nodes.append(running)
            seen.run.append(running)
        else:
            if weight_node := self._weight_node(node, attributes, tensors):
                seen.weight_nodes.append(weight_node)
            read = map(seen.tensors.get, node.input)
            if is_unfolded := seen.unfolded.includes(node, (*read, *tensors)):
                seen.run.append(self._running_node(node, attributes))
        seen.tensors.update((tensor.name, tensor) for tensor in tensors)
        if is_unfolded:
            seen.unfolded.values.update(filter(None, node.output))
        if seen.unfolded.values:
            seen.unfolded.follow(node)

    def _marks_weights(self, node: NodeProto) -> bool:
        """Whether it is a DequantizeLinear of weights: frameworks may compute with integers."""
        if node.op_type != "DequantizeLinear":
            return False
        data = node.input[0]
        return data not in self.seen.unfolded.values or data in self.seen.of_weights

    def _running_node(self, node: NodeProto, attributes: Mapping[str, Any]) -> Node:
        """Give a node a unique, printable name, and note what its subgraphs read."""
        base = node.name or f"{node.op_type}_{next(filter(None, node.output))}"
        name = base = printable(base)
        while name in self.names:
            self.names[base] += 1
            name = f"{base}_{self.names[base]}"
        self.names[name] = 1
        if names := captured(node):
            self.seen.inner[name] = names
        inputs, outputs = tuple(node.input), tuple(node.output)
        return Node(name, node.op_type, node.domain, inputs, outputs, attributes)

    def _weight_node(
        self, node: NodeProto, attributes: Mapping[str, Any], tensors: Sequence[Tensor]
    ) -> Node | None:
        """Return a folded node that computes with weights or positions, not with shapes."""
        op, inputs, outputs = node.op_type, tuple(node.input), tuple(node.output)
        of_weights = self.seen.of_weights
        if op == "Range":
            of_weights.update(outputs)
            return None
        if op in ("Shape", "Size") or of_weights.isdisjoint(inputs):
            return None
        of_weights.update(filter(None, outputs))
        first = next((tensor for tensor in tensors if tensor.name == outputs[0]), None)
        if first is None or first.dtype not in FLOATS:
            return None  # Indices: exporters compute them where frameworks do not.
        name = printable(f"{outputs[0]}/of_weights")
        if op == "CastLike":  # Of the other tensor only the type counts.
            op, inputs, attributes = "Cast", inputs[:1], {"to": data_type_of(first.dtype)}
        return Node(name, op, node.domain, inputs, outputs, attributes)

    def _chosen_branch(self, node: NodeProto) -> tuple[list[NodeProto], list[Tensor]] | None:
        """Return nodes and weights of the branch that an ``If`` with a known condition runs.

        PyTorch exports one for every squeeze of an axis of unknown length.
        """
        condition = self.seen.tensors.get(node.input[0])
        if condition is None or condition.value is None or condition.value.size != 1:
            return None
        name = "then_branch" if condition.value.item() else "else_branch"
        branch = next((attribute.g for attribute in node.attribute if attribute.name == name), None)
        if branch is None or branch.input or len(branch.output) != len(node.output):
            return None
        if branch.sparse_initializer:
            return None
        own, nodes = branch_nodes(branch, tuple(node.output))
        weights = (weight(self.path, proto) for proto in branch.initializer)
        return nodes, [replace(tensor, name=own[tensor.name]) for tensor in weights]

    def _outputs(self, node: NodeProto, attributes: Mapping[str, Any]) -> dict[str, TensorType]:
        names = [name for name in node.output if name]
        parts = {
            name: self.inferred[name]
            for name in names
            if name not in self.seen.stale and name in self.inferred
        }
        outputs = complete_only(parts)
        read = [self.seen.tensors[name] for name in node.input if name in self.seen.tensors]
        # What was not known before the walk may contradict what follows from the rest.
        is_new = any(not t.is_weight and t.name not in self.sized for t in read)
        if is_new or len(outputs) < len(names):
            parts |= node_outputs(self.path, node, self.opsets, self.seen.tensors, attributes)
            outputs = {**complete_only(parts), **outputs}
        if len(outputs) < len(names):
            outputs = {**self.assumptions.outputs(node, self.seen.tensors, parts), **outputs}
        parts |= outputs
        for name in names:
            part = parts.get(name, ("float32", None))
            if shaped := self.assumptions.shaped(name, part):
                outputs[name] = shaped
            if name not in outputs and (tensor_type := self.declared.get(name)):
                outputs[name] = tensor_type
                self.seen.declared.append(node.name or name)
            if name not in outputs and node.op_type not in COUNTED:
                self.seen.unsized[name] = how_to_give(node, name, part, self.of_input)
        for name, (_, shape) in outputs.items():
            check_size(self.path, name, shape)
        return {name: outputs[name] for name in names if name in outputs}

    def _target_at_batch(
        self, node: NodeProto, attributes: Mapping[str, Any]
    ) -> tuple[int | None, tuple[int, ...]] | None:
        """Return the place and the value of a target shape that holds the batch of the file.

        None if the node has none; the place is None if the target is an attribute.
        """
        old, batch = self.inputs.fixed_batch, self.inputs.batch
        if old is None or batch is None or node.domain or not node.input:
            return None
        index, data = SHAPE_INPUT[node.op_type], self.seen.tensors.get(node.input[0])
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
        """Replace a batch that the exporter fixed in a target shape; changes the model."""
        from onnx import numpy_helper

        self.seen.rebatched.append(node.name or node.output[0])
        if index is None:
            attribute = next(a for a in node.attribute if a.name == "shape")
            attribute.ints[:] = dims
            return
        name = f"{node.output[0]}__shape_at_batch"
        value = np.array(dims, np.int64)
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        self.seen.tensors[name] = Tensor.constant(name, value)
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
        if self.seen.stated_only:
            notes.append(
                f"the time of {_listed(self.seen.stated_only)} is left out: they read nothing but "
                "stated values and constants"
            )
        read = {name for node in nodes for name in node.inputs} | set(outputs)
        unknown = {
            name: f"{node.name} ({node.op})"
            for node in nodes
            for name in node.outputs
            if name in read and name not in tensors
        }
        if unknown:
            unsized = _listed([*dict.fromkeys(unknown.values())])
            notes.append(f"output shapes are unknown from {unsized}")
            first, by_values = self.seen.unsized.get(next(iter(unknown)), ("", False))
            notes += [first] if first else []
            self.seen.undecided = first if by_values else ""
        lengths = {node.name: tensors.get("".join(node.inputs[4:5]))
                   for node in nodes if node.op in RECURRENT}  # fmt: skip
        varying = [name for name, given in lengths.items() if given and given.value is None]
        if varying:
            notes.append(f"sequences of {_listed(varying)} are taken to have full length")
        strays = [
            name
            for name in outputs
            if ((old and not self.traced) or name in self.batched)
            and (tensor := tensors.get(name))
            and tensor.shape[:1] not in ((), (batch,))
        ]
        if strays and batch:
            notes.append(
                f"batch {batch} does not reach output {_listed(strays)}, whose shape the file "
                "fixes; export with a free batch dimension if it should"
            )
        return notes


_INSTEAD: Mapping[
    str, Callable[[_Reading, NodeProto], tuple[list[NodeProto], list[Tensor]] | None]
] = {
    "If": _Reading._chosen_branch,
    "Loop": lambda self, node: unrolled(self.path, node, self.opsets, self.seen.tensors),
    "SplitToSequence": lambda self, node: self.sequences.split(node, self.seen.tensors),
    "SequenceAt": lambda self, node: self.sequences.piece(node, self.seen.tensors),
}
"""Operator -> what reads it as other nodes and constants; None where it stays."""


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
    return listed(list(map(printable, names)))
