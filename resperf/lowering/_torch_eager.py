"""Eager PyTorch: one kernel per operator, none for views, copies where a view is not enough.

Which copies there are follows from the strides of every tensor, as PyTorch computes them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from resperf.errors import LayerError, Message, UnsupportedError
from resperf.layers import Layer, Move, Operand, Operator, layer_of_operator
from resperf.layers._operator import FLOATS
from resperf.layers.attention import Attention
from resperf.lowering._base import qualified_by_domain
from resperf.lowering._read import about_node
from resperf.lowering._torch_strides import Strided, contiguous, like
from resperf.network import MALFORMED, Network, Node, Tensor
from resperf.network.canonical import PASSING
from resperf.network.protos import data_type_of

CHANNELS_LAST = (0, 2, 3, 1)
"""Order of an image's axes (batch, channels, rows, columns) in memory, channels last."""
OWN_DOMAINS = frozenset({""})
_SHAPE_OPS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class TorchKernel:
    """One operator of PyTorch that runs on the device.

    Attributes
    ----------
    name : str
        Unique in the network.
    op : str
        PyTorch's name, such as ``"addmm"``; empty for an operator that is not known.
    operator : Operator
        The same as an ONNX operator, on the shapes that PyTorch passes.
    output_dtype : str
        Type of the first output.
    source : str
        Name of the node that it runs for; empty for a helper such as a copy.
    reads, writes : tuple of str
        Tensors, not their views. A helper writes none.
    operands, storages : tuple of str
        What its node reads, views included, and the tensors or copies (by the name of their
        kernel) in whose memory that lies.
    reason : str
        Why there is no operator; empty where there is one.
    channels_last : bool
        Whether the image that it reads has channels last in memory.
    """

    name: str
    op: str
    operator: Operator
    output_dtype: str = "float32"
    source: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    storages: tuple[str, ...] = ()
    reason: str = ""
    channels_last: bool = False

    def layer(self) -> Layer:
        """Return the layer of this kernel.

        Raises
        ------
        LayerError, UnsupportedError
            If no kind reads it.
        """
        if self.reason:
            raise UnsupportedError(self.reason)
        operator, dtype = self.operator, self.output_dtype
        if self.op in _PROMOTING and dtype in FLOATS:
            # Unlike operands are promoted to one type.
            inputs = tuple(
                replace(operand, dtype=dtype) if operand and operand.dtype in FLOATS else operand
                for operand in operator.inputs
            )
            operator = replace(operator, inputs=inputs)
        try:
            return _LAYERS.get(self.op, layer_of_operator)(operator)
        except MALFORMED as error:
            raise UnsupportedError(f"{self.name!r}: its attributes are malformed") from error


def eager_run(
    network: Network, *, channels_last: bool = False, training: bool = False
) -> tuple[list[TorchKernel], tuple[str, ...]]:
    """Return the kernels of a network in their order, and what its outputs lie in the memory of.

    Parameters
    ----------
    network : Network
        Canonical (`resperf.network.canonical`).
    channels_last : bool
        Whether its images lie in memory with channels last.
    training : bool
        Whether Dropout drops values.

    Returns
    -------
    kernels : list of TorchKernel
    ends : tuple of str
        Tensors or copies.
    """
    images = [network.tensors[name] for name in network.inputs] if channels_last else []
    views = {image.name: _last(image.shape) for image in images if len(image.shape) == 4}
    eager = _Eager(network, views, training)
    return eager.run(), tuple(eager.storage.get(name, name) for name in network.outputs)


def is_behind_transposition(node: Node, maker: Mapping[str, Node]) -> bool:
    """Whether a node reads views of a transposed tensor; `maker` has the node of each tensor."""
    before = maker.get(node.inputs[0])
    while before is not None and before.op in _SHAPE_OPS | {"Slice"}:
        before = maker.get(before.inputs[0])
    return before is not None and before.op == "Transpose"


def _last(shape: tuple[int, ...]) -> Strided:
    """Return an image of (batch, channels, rows, columns) with channels last in memory."""
    return contiguous(tuple(shape[axis] for axis in CHANNELS_LAST)).permuted((0, 3, 1, 2))


@dataclass
class _Eager:
    network: Network
    views: dict[str, Strided] = field(default_factory=dict)
    training: bool = False
    kernels: list[TorchKernel] = field(default_factory=list)
    maker: dict[str, Node] = field(default_factory=dict)
    memory: dict[str, str] = field(default_factory=dict)
    """View -> the tensor that it is a view of."""
    storage: dict[str, str] = field(default_factory=dict)
    """View -> the tensor or copy in whose memory it lies."""
    copies: dict[str, str] = field(default_factory=dict)
    """Tensor -> its copy that the current node reads."""
    read: Counter[str] = field(default_factory=Counter)
    """Tensor -> how often nodes read it, or the network returns it."""
    copied: int = 0

    def run(self) -> list[TorchKernel]:
        self.maker = {name: node for node in self.network.nodes for name in node.outputs if name}
        self.read = Counter(name for node in self.network.nodes for name in node.inputs)
        self.read.update(self.network.outputs)
        for node in self.network.nodes:
            node = qualified_by_domain(node, OWN_DOMAINS)
            start, self.copies = len(self.kernels), {}
            try:
                _RULES.get(node.op, _Eager._plain)(self, node)
                if not self._is_last(node):  # It runs no kernel: its outputs are views.
                    first = self.memory.get(node.inputs[0], node.inputs[0])
                    self.memory.update(dict.fromkeys(node.outputs, first))
                # Equal weights are written once and copied, though each is one of its own.
                own = node.op == "Identity" and self.tensor(node.inputs[0]).is_weight
                # One more: its kernel may have taken the place of the one before.
                kernels = self.kernels[max(start - 1, 0) :]
                if not (own or any(kernel.source == node.name for kernel in kernels)):
                    self.storage.update(dict.fromkeys(node.outputs, self.lies_in(node.inputs[0])))
            except (LayerError, UnsupportedError) as error:
                del self.kernels[start:]
                self._unknown(node, Message.of(error))
            except MALFORMED as error:
                del self.kernels[start:]
                self._unknown(node, Message(f"its shapes or attributes are malformed ({error!r})"))
        return self.kernels

    def _unknown(self, node: Node, why: Message) -> None:
        reason = about_node(node, why)
        nothing = Operator(node.op, node.attributes, (), (), node.domain)
        self.kernels.append(TorchKernel(node.name, "", nothing, source=node.name, reason=reason))

    def tensor(self, name: str) -> Tensor:
        """Return a tensor.

        Raises
        ------
        UnsupportedError
            If its shape is unknown.
        """
        if name not in self.network.tensors:
            raise UnsupportedError(f"the shape of {name!r} is not known")
        return self.network.tensors[name]

    def view(self, name: str) -> Strided:
        """Return how a tensor lies in memory."""
        return self.views.get(name) or contiguous(self.tensor(name).shape)

    def lies_in(self, name: str) -> str:
        """Return the tensor or copy in whose memory a tensor lies."""
        return self.copies.get(name) or self.storage.get(name, name)

    def operand(self, name: str, shape: tuple[int, ...] | None = None) -> Operand:
        tensor = self.tensor(name)
        value = tensor.value if shape in (None, tensor.shape) else None
        shape = tensor.shape if shape is None else shape
        return Operand(shape, tensor.dtype, value, tensor.is_weight)

    def emit(
        self,
        node: Node,
        op: str,
        inputs: Sequence[Operand | None],
        output: tuple[int, ...] | None = None,
        *,
        onnx_op: str = "",
        attributes: Mapping[str, object] | None = None,
        suffix: str = "",
    ) -> None:
        """Add a kernel; with a suffix, a helper of a node's own kernel."""
        results = [self.network.tensors.get(name) for name in node.outputs if name]
        shapes = tuple(None if result is None else result.shape for result in results)
        operator = Operator(
            onnx_op or node.op,
            node.attributes if attributes is None else attributes,
            tuple(inputs),
            shapes if output is None else (output,),
            opset=self.network.opsets.get("", 1),
        )
        dtype = results[0].dtype if results and results[0] else "float32"
        source = "" if suffix else node.name
        name = f"{node.name}/{suffix}" if suffix else node.name
        reads = tuple(self.memory.get(name, name) for name in node.inputs)
        writes = () if suffix else node.outputs
        storages = tuple(map(self.lies_in, node.inputs))
        self.kernels.append(
            TorchKernel(name, op, operator, dtype, source, reads, writes, node.inputs, storages)
        )

    def copy(self, node: Node, name: str, view: Strided) -> Strided:
        """Copy a view of a tensor into memory of its own, in order."""
        dtype = self.tensor(name).dtype
        order = view.order
        base = tuple(view.shape[axis] for axis in order)
        perm = tuple(order.index(axis) for axis in range(len(order)))
        operand = Operand(base, dtype, is_fixed=self.tensor(name).is_weight)
        self.copied += 1
        operator = Operator("Transpose", {"perm": perm}, (operand,), (view.shape,))
        reads, storages = (self.memory.get(name, name),), (self.lies_in(name),)
        helper = f"{node.name}/copy_{self.copied}"
        self.kernels.append(
            TorchKernel(
                helper, "clone", operator, dtype, reads=reads, operands=(name,), storages=storages
            )
        )
        self.copies[name] = helper
        return contiguous(view.shape)

    def reshaped(self, node: Node, name: str, view: Strided, shape: tuple[int, ...]) -> Strided:
        """Return a view in another shape, of a copy where there is none of the tensor itself."""
        result = view.viewed(shape)
        if result is None:
            result = self.copy(node, name, view).viewed(shape)
        return result or contiguous(shape)

    # Views

    def _reshape(self, node: Node) -> None:
        data, shape = node.inputs[0], self.tensor(node.outputs[0]).shape
        self.views[node.outputs[0]] = self.reshaped(node, data, self.view(data), shape)

    def _transpose(self, node: Node) -> None:
        view = self.view(node.inputs[0])
        perm = node.attributes.get("perm") or tuple(reversed(range(len(view.shape))))
        self.views[node.outputs[0]] = view.permuted(perm)

    def _identity(self, node: Node) -> None:
        """Pass a tensor on; behind a transposition, an exporter writes ``contiguous()`` so."""
        view = self.view(node.inputs[0])
        if is_behind_transposition(node, self.maker) and not view.is_contiguous:
            view = self.copy(node, node.inputs[0], view)
        self.views[node.outputs[0]] = view

    def _dropout(self, node: Node) -> None:
        if self.training:
            self._pointwise(replace(node, inputs=node.inputs[:1]), "native_dropout")
        else:
            self._identity(node)

    def _expand(self, node: Node) -> None:
        shape = self.tensor(node.outputs[0]).shape
        self.views[node.outputs[0]] = self.view(node.inputs[0]).expanded(shape)

    def _slice(self, node: Node) -> None:
        view, shape = self.view(node.inputs[0]), self.tensor(node.outputs[0]).shape
        operator = Operator(node.op, node.attributes, self._operands(node), (shape,))
        steps = operator.numbers("steps", 4) or ()
        axes = operator.numbers("axes", 3) or tuple(range(len(shape)))
        if any(step < 0 for step in steps):
            self._plain(node, "flip")
            return
        by_axis = {axis % len(shape): step for axis, step in zip(axes, steps, strict=False)}
        every = [by_axis.get(axis, 1) for axis in range(len(shape))]
        self.views[node.outputs[0]] = view.sliced(shape, every)

    def _split(self, node: Node) -> None:
        view = self.view(node.inputs[0])
        for name in node.outputs:
            shape = self.tensor(name).shape
            self.views[name] = view.sliced(shape, (1,) * len(shape))

    def _gather(self, node: Node) -> None:
        data, indices = self.tensor(node.inputs[0]), self.tensor(node.inputs[1])
        axis = int(node.attributes.get("axis", 0)) % max(len(data.shape), 1)
        if indices.shape or indices.value is None:
            self._plain(node, "embedding" if data.is_weight else "index")
            return
        view = self.view(node.inputs[0])
        kept = [dim for dim in range(len(data.shape)) if dim != axis]
        self.views[node.outputs[0]] = view.permuted(kept)

    # Kernels

    def _operands(self, node: Node) -> tuple[Operand | None, ...]:
        return tuple(self.operand(name) if name else None for name in node.inputs)

    def _is_last(self, node: Node) -> bool:
        """Whether the last kernel is a node's own, so that it can become part of the next one."""
        return bool(self.kernels) and self.kernels[-1].source == node.name

    def _absorb(self, node: Node, operand: str) -> None:
        """Drop the kernel of a node, which becomes part of the next one on one of its operands."""
        self.kernels.pop()
        self.storage[node.outputs[0]] = self.lies_in(operand)

    def _plain(self, node: Node, op: str = "") -> None:
        """Run an operator on its inputs as they are; the result is contiguous."""
        self.emit(node, op or node.op.lower(), self._operands(node))

    def _recurrent(self, node: Node) -> None:
        """Run a recurrent layer, which copies an input that is not in order."""
        view = self.view(node.inputs[0])
        if not view.is_contiguous:
            self.copy(node, node.inputs[0], view)
        self._plain(node)

    def _pointwise(self, node: Node, op: str) -> None:
        """Run an operator value by value: the result lies in memory like its operands."""
        self.emit(node, op, self._operands(node))
        views = [self.view(name) for name in node.inputs if name and name in self.network.tensors]
        self.views[node.outputs[0]] = like(self.tensor(node.outputs[0]).shape, views)

    def _image(self, node: Node, op: str) -> None:
        """Run an operator on images: channels stay last in memory if they were."""
        self.emit(node, op, self._operands(node))
        view, shape = self.view(node.inputs[0]), self.tensor(node.outputs[0]).shape
        if len(shape) == 4 and view.order == CHANNELS_LAST and view.is_dense:
            self.kernels[-1] = replace(self.kernels[-1], channels_last=True)
            self.views[node.outputs[0]] = _last(shape)

    def _cast(self, node: Node) -> None:
        """Change a type; where it is the right one already, nothing runs."""
        before, after = self.tensor(node.inputs[0]), self.tensor(node.outputs[0])
        if before.dtype == after.dtype:
            self.views[after.name] = self.view(before.name)
            return
        self.emit(
            node, "_to_copy", [self.operand(before.name)], onnx_op="Cast",
            attributes={"to": data_type_of(after.dtype)},
        )  # fmt: skip
        self.views[after.name] = like(after.shape, [self.view(before.name)])

    def _clip(self, node: Node) -> None:
        bounds = [self.network.tensors.get(name) for name in node.inputs[1:3]]
        low, high = (*bounds, None, None)[:2]
        if low is not None and high is None:
            self._pointwise(node, "clamp_min")
            return
        ends = [None if end is None or end.value is None else end.value.item() for end in bounds]
        self._pointwise(node, "hardtanh" if ends in ([0, 6], [-1, 1]) else "clamp")

    def _add(self, node: Node) -> None:
        """Add two tensors; ``addcmul`` adds a weight to a weight times a tensor, in this order."""
        product = self.maker.get(node.inputs[1])
        if product and product.op == "Mul" and self._is_last(product):
            names = (node.inputs[0], *product.inputs)
            weights = [self.tensor(name) for name in names[:2]]
            if all(weight.is_weight and weight.shape for weight in weights):
                self._absorb(product, names[2])
                self.emit(node, "addcmul", [self.operand(name) for name in names])
                self.views[node.outputs[0]] = self.view(names[2])
                return
        self._pointwise(node, "add")

    def _reciprocal(self, node: Node) -> None:
        """Compute reciprocals; ``rsqrt`` is one kernel, which exporters write as two."""
        name = node.inputs[0]
        root = self.maker.get(name)
        if root and root.op == "Sqrt" and self.read[name] == 1 and self._is_last(root):
            self._absorb(root, root.inputs[0])
            self.emit(node, "rsqrt", [self.operand(root.inputs[0])])
            self.views[node.outputs[0]] = self.view(name)
            return
        self._pointwise(node, "reciprocal")

    def _linear(self, node: Node) -> None:
        """Run a product with one matrix and its bias, together if the rows lie in order."""
        data, matrix = self.tensor(node.inputs[0]), self.tensor(node.inputs[1])
        if node.attributes.get("transA") or len(data.shape) < 2:
            self._plain(node, "addmm")
            return
        if node.attributes.get("transB"):
            matrix = replace(matrix, shape=matrix.shape[::-1], value=None)
        view, bias = self.view(data.name), tuple(filter(None, node.inputs[2:3]))
        result = self.tensor(node.outputs[0])
        together = bool(bias) and (len(data.shape) == 2 or view.is_contiguous)
        if together or view.has_rows:
            rows = (math.prod(data.shape[:-1]), data.shape[-1])
            operands: list[Operand | None] = [self.operand(data.name, rows), _operand(matrix)]
            operands += [self.operand(name) for name in bias if together]
            output: tuple[int, ...] = (rows[0], matrix.shape[1])
            op, onnx_op = ("addmm" if together else "mm"), "Gemm"
        else:
            operands, output = self._batched(
                node, result.shape[:-2], (data.name, view), (matrix.name, contiguous(matrix.shape))
            )
            op, onnx_op = "bmm", "MatMul"
        self.emit(node, op, operands, output, onnx_op=onnx_op, attributes={})
        if bias and not together:
            self.emit(
                node, "add", [_operand(result), *map(self.operand, bias)], result.shape,
                onnx_op="Add", attributes={}, suffix="bias",
            )  # fmt: skip

    def _product(self, node: Node) -> None:
        """Run a product: of rows with one matrix, or of a batch of matrices."""
        first, second = (self.tensor(name).shape for name in node.inputs[:2])
        if len(second) == 2 and len(first) >= 2:
            self._linear(node)
            return
        if len(first) < 2 or len(second) < 2:
            self._plain(node, "mv")
            return
        batch = self.tensor(node.outputs[0]).shape[:-2]
        given = [(name, self.view(name)) for name in node.inputs[:2]]
        operands, output = self._batched(node, batch, *given)
        self.emit(node, "bmm", operands, output, onnx_op="MatMul", attributes={})

    def _batched(
        self, node: Node, batch: tuple[int, ...], *given: tuple[str, Strided]
    ) -> tuple[list[Operand | None], tuple[int, ...]]:
        """Return the operands of a batched product, copied where need be, and its result."""
        operands: list[Operand | None] = []
        for name, view in given:
            flat = (math.prod(batch), *view.shape[-2:])
            self.reshaped(node, name, view.expanded((*batch, *view.shape[-2:])), flat)
            operands.append(self.operand(name, flat))
        first, second = (view.shape for _, view in given)
        return operands, (math.prod(batch), first[-2], second[-1])

    def _einsum(self, node: Node) -> None:
        """Run a contraction of two tensors as products in batches, of axes in another order."""
        terms, _, output = str(node.attributes["equation"]).replace(" ", "").partition("->")
        letters = terms.split(",")
        if len(letters) != 2 or "." in terms or not output:
            self._plain(node, "einsum")
            return
        first, second = letters
        shapes = [self.tensor(name).shape for name in node.inputs[:2]]
        sizes = dict(zip(first, shapes[0], strict=True)) | dict(zip(second, shapes[1], strict=True))
        both = [axis for axis in output if axis in first and axis in second]
        left = [axis for axis in output if axis not in second]
        right = [axis for axis in output if axis not in first]
        summed = [axis for axis in first if axis in second and axis not in output]
        if len(both) + len(left) + len(summed) != len(first) or not summed:
            self._plain(node, "einsum")
            return

        def size(axes: Sequence[str]) -> int:
            return math.prod(sizes[axis] for axis in axes)

        batch, depth = size(both), size(summed)
        orders = ((both, left, summed), (both, summed, right))
        flats = ((batch, size(left), depth), (batch, depth, size(right)))
        for name, term, order, flat in zip(node.inputs, letters, orders, flats, strict=True):
            axes = [term.index(axis) for part in order for axis in part]
            self.reshaped(node, name, self.view(name).permuted(axes), flat)
        operands = [self.operand(name, flat) for name, flat in zip(node.inputs, flats, strict=True)]
        result = (batch, size(left), size(right))
        self.emit(node, "bmm", operands, result, onnx_op="MatMul", attributes={})
        computed = [*both, *left, *right]
        view = contiguous(tuple(sizes[axis] for axis in computed))
        self.views[node.outputs[0]] = view.permuted([computed.index(axis) for axis in output])

    def _concat(self, node: Node) -> None:
        """Join tensors; an exporter writes ``stack`` and ``roll`` like this too."""
        makers = [self.maker.get(name) for name in node.inputs]
        if all(maker is not None and maker.op == "Unsqueeze" for maker in makers):
            names = [maker.inputs[0] for maker in makers if maker]
            self.emit(node, "stack", [self.operand(name) for name in names])
        elif rolled := self._rolled(node):
            self._roll(node, rolled)
        else:
            self._image(node, "cat")

    def _rolled(self, node: Node) -> str:
        """Return the tensor whose two halves along an axis a node joins the other way round."""
        makers = [self.maker.get(name) for name in node.inputs]
        if len(makers) != 2 or any(maker is None or maker.op != "Slice" for maker in makers):
            return ""
        whole = {maker.inputs[0] for maker in makers if maker}
        name = whole.pop()
        same = self.tensor(name).shape == self.tensor(node.outputs[0]).shape
        return name if not whole and same else ""

    def _roll(self, node: Node, name: str) -> None:
        """Roll along one more axis; PyTorch rolls along all of them at once."""
        before = self.maker.get(name)
        if before and self._is_last(before) and self.kernels[-1].op == "roll":
            name = self._rolled(before)
            self._absorb(before, name)
        self.emit(node, "roll", [self.operand(name)], onnx_op="Identity", attributes={})
        # Not the halves: what they are views of may be a roll that this one took the place of.
        reads, storages = (self.memory.get(name, name),), (self.lies_in(name),)
        rolled = replace(self.kernels.pop(), reads=reads, operands=(name,), storages=storages)
        self.kernels.append(rolled)


def _operand(tensor: Tensor) -> Operand:
    return Operand(tensor.shape, tensor.dtype, is_fixed=tensor.is_weight)


def _clone_layer(operator: Operator) -> Layer:
    """Return a copy: a transposition where the order of axes changes."""
    perm = tuple(operator.attributes["perm"])
    is_plain = perm == tuple(range(len(perm)))
    return Move.copied(operator) if is_plain else layer_of_operator(operator)


def _attention_layer(operator: Operator) -> Layer:
    """Return attention on (batch, heads, tokens, size).

    A mask that all heads share is much smaller than one for each: it is left out.
    """
    query, key, value = (operator.operand(position).shape for position in range(3))
    if len(query) != 4:
        raise LayerError(f"attention of shape {query} has no layer")
    mask = operator.inputs[3] if len(operator.inputs) > 3 else None
    heads = math.prod(mask.shape[:-2]) if mask is not None else 0
    return Attention(
        batch=query[0], queries=query[2], keys=key[2], heads=query[1], head_size=query[3],
        value_size=value[3], features=0, masked=heads >= query[1],
        dtype=operator.operand(0).dtype,
    )  # fmt: skip


def _stack_layer(operator: Operator) -> Layer:
    """Return a concatenation along a new axis."""
    axis = operator.attributes.get("axis", 0) % len(operator.result())
    wide = tuple(
        replace(operand, shape=(*operand.shape[:axis], 1, *operand.shape[axis:]), value=None)
        for operand in operator.inputs
        if operand is not None
    )
    return layer_of_operator(replace(operator, inputs=wide))


def _col2im_layer(operator: Operator) -> Layer:
    """Return the sum of blocks that overlap: each result is a sum of about equally many values."""
    data, result = operator.operand(0), operator.result()
    overlap = round(math.prod(data.shape) / math.prod(result))
    if overlap <= 1:
        return Move.copied(operator)
    size = math.prod(data.shape[1:]) // overlap
    blocks = replace(data, shape=(data.shape[0], overlap, size), value=None)
    return layer_of_operator(
        replace(
            operator, op="ReduceSum", inputs=(blocks,), outputs=((data.shape[0], size),),
            attributes={"axes": (1,), "keepdims": 0},
        )
    )  # fmt: skip


def _addcmul_layer(operator: Operator) -> Layer:
    """Return an addition of the larger tensor and a weight; the other weight is as small."""
    first, _, last = operator.inputs
    return layer_of_operator(replace(operator, inputs=(last, first)))


def _group_norm_layer(operator: Operator) -> Layer:
    """Return a normalisation of groups: each is normalised like one channel."""
    groups = operator.attributes.get("num_groups")
    if groups is None:
        return layer_of_operator(operator)
    data = operator.operand(0)
    shape = (data.shape[0], int(groups), math.prod(data.shape[1:]) // int(groups))
    inputs = (replace(data, shape=shape, value=None), *operator.inputs[1:])
    grouped = replace(operator, op="InstanceNormalization", inputs=inputs, outputs=(shape,))
    return layer_of_operator(grouped)


_LAYERS: Mapping[str, Callable[[Operator], Layer]] = {
    "native_group_norm": _group_norm_layer,
    "addcmul": _addcmul_layer,
    "clone": _clone_layer,
    "col2im": _col2im_layer,
    # A product with the mask.
    "native_dropout": lambda operator: layer_of_operator(
        replace(operator, op="Mul", inputs=operator.inputs * 2)
    ),
    "roll": Move.copied,
    "sdpa": _attention_layer,
    "stack": _stack_layer,
}
"""Kernels that are not read as the ONNX operator that they are."""

_POINTWISE: Mapping[str, str] = {
    **{op: op.lower() for op in (
        "Abs", "Ceil", "Cos", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "Log", "Mul",
        "Neg", "Pow", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub",
        "Tanh", "Mod",
    )},
    "And": "logical_and", "Or": "logical_or", "Not": "logical_not", "Equal": "eq",
    "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le",
    "HardSigmoid": "hardsigmoid", "HardSwish": "hardswish", "LeakyRelu": "leaky_relu",
    "Max": "maximum", "Min": "minimum", "PRelu": "prelu", "Swish": "silu", "Where": "where",
}  # fmt: skip
POINTWISE_KERNELS = frozenset({
    *_POINTWISE.values(), "_to_copy", "add", "addcmul", "clamp", "clamp_min", "hardtanh",
    "native_dropout", "reciprocal", "rsqrt",
})  # fmt: skip
"""Kernels that compute value by value."""
_PROMOTING = POINTWISE_KERNELS - {"_to_copy"} | {"cat", "stack"}
"""Kernels that compute with the widest type of their operands."""
_IMAGE: Mapping[str, str] = {
    "AveragePool": "avg_pool2d", "BatchNormalization": "native_batch_norm", "Conv": "convolution",
    "ConvTranspose": "convolution", "MaxPool": "max_pool2d_with_indices", "Resize": "upsample",
    "Pad": "constant_pad_nd", "DepthToSpace": "pixel_shuffle",
}  # fmt: skip
_PLAIN: Mapping[str, str] = {
    "Attention": "sdpa", "Col2Im": "col2im", "CumSum": "cumsum", "GatherElements": "gather",
    "GatherND": "index",
    "GlobalAveragePool": "mean", "GlobalMaxPool": "amax", "GroupNormalization": "native_group_norm",
    "InstanceNormalization": "native_group_norm", "LayerNormalization": "native_layer_norm",
    "LogSoftmax": "_log_softmax", "ReduceL2": "linalg_vector_norm", "ReduceMax": "amax",
    "ReduceMean": "mean", "ReduceMin": "amin", "ReduceProd": "prod", "ReduceSum": "sum",
    "ScatterND": "copy", "Softmax": "_softmax", "Tile": "repeat", "TopK": "topk",
}  # fmt: skip
_RULES: Mapping[str, Callable[[_Eager, Node], None]] = {
    **{op: partial(_Eager._pointwise, op=name) for op, name in _POINTWISE.items()},
    **{op: partial(_Eager._image, op=name) for op, name in _IMAGE.items()},
    **{op: partial(_Eager._plain, op=name) for op, name in _PLAIN.items()},
    **dict.fromkeys(PASSING, _Eager._identity),
    "Dropout": _Eager._dropout,
    **dict.fromkeys(_SHAPE_OPS, _Eager._reshape),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _Eager._recurrent),
    "Add": _Eager._add,
    "Cast": _Eager._cast,
    "CastLike": _Eager._cast,
    "Clip": _Eager._clip,
    "Concat": _Eager._concat,
    "Einsum": _Eager._einsum,
    "Expand": _Eager._expand,
    "Gather": _Eager._gather,
    "Gemm": _Eager._linear,
    "MatMul": _Eager._product,
    "Reciprocal": _Eager._reciprocal,
    "Slice": _Eager._slice,
    "Split": _Eager._split,
    "Transpose": _Eager._transpose,
}
