"""Mixed precision as PyTorch's CUDA autocast runs it: a pass that inserts casts into a network.

Products run in half precision, and their operands are cast before each of them; a weight is cast
once. Operators that lose too much (norms, powers, exponentials) run in single precision; softmax
and sums compute in it without a cast of their own. All others take the widest type given.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from resperf.layers._operator import FLOATS
from resperf.network import Network, Node, Tensor
from resperf.network.protos import data_type_of, dtype_name

HALF, SINGLE = "float16", "float32"
_HALF_OPS = frozenset(
    {"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "PRelu"}
)
_SINGLE_OPS = frozenset({
    "CosineSimilarity", "Exp", "GroupNormalization", "LayerNormalization", "Log", "Pow",
    "Reciprocal", "Resize", "Softplus", "Upsample",
})  # fmt: skip
_SINGLE_RESULT = frozenset({
    "CumSum", "LogSoftmax", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceProd", "ReduceSum",
    "Softmax",
})  # fmt: skip
_WIDEST_CAST = frozenset({"GridSample", "ScatterElements", "ScatterND"})
_VIEWS = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators by which exporters give a weight another shape before it is used."""
_KEEPS_FIRST = frozenset({"BatchNormalization", "InstanceNormalization", "Gather", "Pad", "Clip"})
"""Operators whose result has the type of their first input, whatever the others are."""


def autocast(network: Network, half: str = HALF) -> Network:
    """Insert the casts of autocast and give every tensor the type that it then has.

    Parameters
    ----------
    network : Network
        Canonical (`resperf.network.canonical`), in single precision.
    half : str
        Type of the products.
    """
    return _Casting(network, half).cast()


@dataclass
class _Casting:
    network: Network
    half: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    computed: set[str] = field(default_factory=set)
    nodes: list[Node] = field(default_factory=list)
    cached: dict[str, str] = field(default_factory=dict)
    """Weight -> its copy in half precision."""

    def cast(self) -> Network:
        self.tensors = dict(self.network.tensors)
        self.computed = {
            name for node in self.network.nodes if node.op not in _VIEWS for name in node.outputs
        }
        for node in self.network.nodes:
            self._visit(node)
        return replace(self.network, nodes=tuple(self.nodes), tensors=self.tensors)

    def _visit(self, node: Node) -> None:
        given = {name: self.tensors[name].dtype for name in node.inputs if name in self.tensors}
        floats = {name for name, dtype in given.items() if dtype in FLOATS}
        if node.op in _HALF_OPS:
            target = self.half
        elif node.op in _SINGLE_OPS:
            target = SINGLE
        elif node.op in _WIDEST_CAST:
            target = self._widest(floats)
        else:
            self.nodes.append(node)
            self._set_result(node, self._result(node, floats))
            return
        renamed = {
            name: self._as(node, position, name, target)
            for position, name in enumerate(node.inputs)
            if name in floats and given[name] != target
        }
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        self.nodes.append(replace(node, inputs=inputs))
        self._set_result(node, target)

    def _result(self, node: Node, floats: set[str]) -> str:
        if node.op == "CastLike":
            return self.tensors[node.inputs[1]].dtype
        if node.op == "Cast":
            dtype = dtype_name(int(node.attributes.get("to", 0)))
            return dtype if dtype in FLOATS else ""
        if node.op in _SINGLE_RESULT:
            return SINGLE
        if node.op in _KEEPS_FIRST:
            floats = floats & {node.inputs[0]}
        return self._widest(floats)

    def _widest(self, names: set[str]) -> str:
        """Return the type that tensors are promoted to; constant numbers do not count."""
        tensors = [self.tensors[name] for name in names]
        types = {tensor.dtype for tensor in tensors if tensor.shape or not tensor.is_weight}
        return SINGLE if SINGLE in types else self.half if types else SINGLE

    def _as(self, node: Node, position: int, name: str, dtype: str) -> str:
        """Return the name of a tensor in another type, and the node that casts it."""
        tensor = self.tensors[name]
        if name in self.cached and dtype == self.half:
            return self.cached[name]
        cast_name = f"{name}/{dtype}/{node.name}/{position}"
        self.tensors[cast_name] = replace(tensor, name=cast_name, dtype=dtype, value=None)
        attributes = {"to": data_type_of(dtype)}
        self.nodes.append(
            Node(f"{node.name}/cast_{position}", "Cast", "", (name,), (cast_name,), attributes)
        )
        if tensor.is_weight and name not in self.computed:
            self.cached[name] = cast_name
        return cast_name

    def _set_result(self, node: Node, dtype: str) -> None:
        for name in node.outputs:
            tensor = self.tensors.get(name)
            if dtype and tensor is not None and tensor.dtype in FLOATS:
                self.tensors[name] = replace(tensor, dtype=dtype)
