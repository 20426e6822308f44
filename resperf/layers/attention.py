"""Fused attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import Layer, choices, flag, log_uniform, name, number
from resperf.layers._operator import CONTRIB, FLOATS, Kernel, Operator, dtype_of
from resperf.layers.columns import either


class Attention(Layer):
    """Multi-head attention: softmax(queries x keys) x values.

    If `features` is above 0, queries, keys and values are first projected from tokens of that size
    (ONNX Runtime's ``Attention``); its mask says which keys count. Otherwise they are three inputs
    of shape (batch, tokens, heads x head_size) (``MultiHeadAttention``); its mask is added to the
    scores: (heads, queries, keys), the same for all sequences.
    """

    batch: int = number("sequences in one run")
    queries: int = number("tokens of the queries")
    keys: int = number("tokens of the keys and values")
    heads: int = number("heads")
    head_size: int = number("size of a query and key of one head")
    value_size: int = number("size of a value of one head")
    features: int = number(
        "features of a token before the projections; 0 without projections", minimum=0
    )
    causal: bool = flag("whether tokens attend to earlier ones only", default=False)
    masked: bool = flag("whether there is a mask", default=False)
    dtype: str = name("type of one value", FLOATS, default="float32")

    PLAIN = ("threaded", "packed", "causal", "masked")
    LOG2 = (
        "products", "queries", "keys", "heads", "head_size", "flops", "score_bytes",
        "projection_flops", "in_bytes", "out_bytes",
    )  # fmt: skip
    RANGES: ClassVar[Mapping[str, Any]] = {
        "queries": log_uniform(8, 512),
        "keys": log_uniform(8, 512),
        "heads": choices([1, 2, 3, 4, 6, 8, 12, 16], [1, 1, 2, 2, 2, 3, 5, 1]),
        "head_size": choices([16, 24, 32, 48, 64, 96], [1, 1, 3, 1, 6, 1]),
        "features": choices([0, 192, 384, 512, 768], [4, 1, 1, 1, 2]),
        "causal": choices([False, True], [5, 1]),
        "masked": choices([False, True], [3, 1]),
    }
    SCALED = ("queries", "heads")
    OPERATORS = frozenset({"Attention", "MultiHeadAttention"})

    def _check(self) -> None:
        if self.features and self.queries != self.keys:
            raise LayerError("attention: with projections, queries and keys must be equal")
        if self.features == 0 and self.causal:
            raise LayerError("attention: without projections, causal must be false")

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], _: Random, /) -> dict[str, Any]:
        """Give self-attention (with projections) as many keys as queries."""
        draw = {**fields, "value_size": fields["head_size"]}
        if draw["features"]:
            return draw | {"keys": draw["queries"]}
        return draw | {"causal": False, "masked": False}

    def varied(self, **changes: Any) -> Self:
        """Change some fields; self-attention keeps as many keys as queries."""
        if self.features:
            changes |= {"keys": changes.get("queries", self.queries)}
        return self.replace(**changes)

    @property
    def _width(self) -> int:
        """Size of the query, key and value of a token together."""
        return self.heads * (2 * self.head_size + self.value_size)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(batch, queries, features), or (batch, queries, heads x head_size)."""
        own = self.heads * self.head_size
        return (self.batch, self.queries, either(self.features > 0, self.features, own))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(batch, queries, heads x value_size)."""
        return (self.batch, self.queries, self.heads * self.value_size)

    @property
    def input_bytes(self) -> int:
        """Bytes of the tokens, or of projected queries, keys and values and a mask of scores."""
        others = self.batch * self.keys * self.heads * (self.head_size + self.value_size)
        others += self.masked * self.heads * self.queries * self.keys
        values = math.prod(self.input_shape) + either(self.features > 0, 0, others)
        return values * self.element_bytes

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations of projections and heads."""
        return self._projection_macs + self._scores * (self.head_size + self.value_size)

    @property
    def _projection_macs(self) -> int:
        return self.batch * self.queries * self.features * self._width

    @property
    def _scores(self) -> int:
        return self.batch * self.heads * self.queries * self.keys

    @property
    def weight_bytes(self) -> int:
        """Bytes of the projections' weights and biases."""
        return either(self.features > 0, (self.features + 1) * self._width, 0) * self.element_bytes

    def own_quantities(self) -> dict[str, Any]:
        """Work of projections and heads, and bytes of the scores."""
        projections = 2 * self._projection_macs
        return {
            "packed": self.features > 0, "products": self.batch * self.heads,
            "score_bytes": self._scores * self.element_bytes, "projection_flops": projections,
            "head_flops": self.flops - projections,
        }  # fmt: skip

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read ONNX Runtime's ``Attention`` or ``MultiHeadAttention``, without a KV cache."""
        if operator.domain != CONTRIB:
            raise LayerError(f"{operator.op} of ONNX itself has no layer yet")
        packed, heads = operator.op == "Attention", int(operator.attributes["num_heads"])
        shape, result = operator.shape(), operator.result()
        present = [operand is not None for operand in operator.inputs] + [False] * 8
        if len(shape) != 3 or (not packed and len(operator.shape(1)) != 3):
            raise LayerError(f"{operator.op} of shape {shape} has no layer")
        if any(present[4:]) or len(operator.outputs) > 1 or (present[3] and not packed):
            raise LayerError(f"{operator.op} with a KV cache, bias or score mask has no layer")
        batch, queries, width = shape
        keys = queries if packed else operator.shape(1)[1]
        sizes = operator.attributes.get("qkv_hidden_sizes") or (operator.shape(1)[1] // 3,)
        query_width = int(sizes[0]) if packed else width
        return cls(
            batch=batch, queries=queries, keys=keys, heads=heads, head_size=query_width // heads,
            value_size=result[-1] // heads, features=width if packed else 0,
            causal=bool(operator.attributes.get("unidirectional", 0)),
            masked=present[3], dtype=dtype_of(operator),
        )  # fmt: skip

    def as_onnx_node(self) -> Kernel:
        """Return ``Attention`` or ``MultiHeadAttention``, without a KV cache."""
        attributes: dict[str, Any] = {"num_heads": self.heads}
        if self.features:
            attributes["unidirectional"] = int(self.causal)
            key_mask = ((self.batch, self.keys),) if self.masked else ()
            queries = self.heads * self.head_size
            attributes["qkv_hidden_sizes"] = [queries, queries, self.heads * self.value_size]
            return self._node(
                "Attention", attributes, domain=CONTRIB,
                weight_shapes=((self.features, self._width), (self._width,)), extra_shapes=key_mask,
                dtypes=("float32",) * 3 + ("int32",) * self.masked,
            )  # fmt: skip
        others = tuple(
            (self.batch, self.keys, self.heads * size) for size in (self.head_size, self.value_size)
        )
        mask = ((1, self.heads, self.queries, self.keys),) if self.masked else ()
        return self._node(
            "MultiHeadAttention", attributes, domain=CONTRIB, extra_shapes=(*others, *mask),
            order=(0, 1, 2, -1, -1, 3) if self.masked else (),
        )  # fmt: skip
