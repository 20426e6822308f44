"""What every layer kind says of itself: fields, shapes, work, bytes, features, reading, kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._fields import Fields, FieldSpec, FieldValue, flag, name, number
from resperf.layers._layouts import LAYOUTS
from resperf.layers.columns import THREADED_VALUES, Array, Columns, bytes_each

if TYPE_CHECKING:
    from resperf.layers._operator import Kernel, Operator

__all__ = ["ACTIVATIONS", "LAYOUTS", "FieldSpec", "FieldValue", "Layer", "flag", "name", "number"]

ACTIVATIONS = (
    "none", "relu", "tanh", "sigmoid", "leaky_relu", "clip", "hard_sigmoid", "elu", "softplus",
    "gelu", "silu", "hard_swish", "gelu_tanh", "selu", "softsign", "thresholded_relu",
    "celu",
)  # fmt: skip


class Layer(Fields):
    """A lowered layer: what a framework really runs for one operator and what it absorbed.

    A subclass in a file of its own, listed in `resperf.layers.KINDS`, is a kind. Unless it says
    otherwise it keeps its shape, multiplies nothing and has no weights. Shapes are given in NCHW
    order whatever the layout; `layout` says how the values lie in memory.

    Shapes, work and bytes are written once, for one layer and for many: in `over` the same
    properties are arrays. They use arithmetic, and `columns.is_in`, `columns.either` and
    `columns.smaller` where others would branch.
    """

    PLAIN: ClassVar[tuple[str, ...]] = ()
    """Quantities that are features as they are."""
    LOG2: ClassVar[tuple[str, ...]] = ()
    """Quantities whose log2 is a feature."""
    ENCODED: ClassVar[tuple[str, ...]] = ()
    """Fields of names that are features, one for each name, beside ``dtype``."""
    FUNCTION: ClassVar[str | None] = None
    """Field whose choices make one and the same work take more or less time; the first of `ENCODED`
    unless a kind says another, or ``""`` for none."""
    PLACED_BY: ClassVar[str] = ""
    """Field whose values share nothing of how they run inside networks, if there is one."""
    INDEPENDENT_FIELDS: ClassVar[bool] = False
    """Whether each field may change by itself, and equal work has equal fields. Fields then say
    what a predictor was trained on, and campaigns vary all of them. Kinds whose fields say the same
    work in several ways (rows as batch or as the rest) go by their quantities."""
    RANGES: ClassVar[Mapping[str, Any]] = {}
    """Laws that a campaign draws the fields by unless it says otherwise."""
    WORDS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Words that `fitting` understands beside fields and shorthands, and their values."""
    SCALED: ClassVar[tuple[str, ...]] = ()
    """Lengths that a campaign scales where it takes a layer from a network."""
    REDRAWN: ClassVar[tuple[str, ...]] = ()
    """Words that it draws anew now and then in such a layer."""
    OPERATORS: ClassVar[frozenset[str]] = frozenset()
    """ONNX operators (and fused ones of ONNX Runtime) that may become this layer."""
    FORWARD: ClassVar[str] = ""
    """The kind that does the forward pass alone; empty where it is this one."""

    def _check(self) -> None:
        if min(self.output_shape) < 1:
            raise LayerError(
                f"{self.kind}: the output would be empty ({self.output_shape}) for {self.key}; "
                "use a smaller kernel or more padding"
            )

    @classmethod
    def over(cls, columns: Columns) -> Self:
        """Return many layers as one whose fields are arrays of shape (rows,), numbers as float64.

        What is a number of one layer is then an array: `macs`, bytes, each length of a shape.
        """
        import numpy as np

        made = object.__new__(cls)
        for field_name, spec in cls.specs().items():
            dtype = None if spec.choices else np.float64
            vars(made)[field_name] = np.asarray(columns[field_name], dtype=dtype)
        return made

    @classmethod
    def function_field(cls) -> str:
        """Return the field that `FUNCTION` names."""
        return (*cls.ENCODED, "")[0] if cls.FUNCTION is None else cls.FUNCTION

    @property
    def element_bytes(self) -> int:
        """Bytes of one value."""
        return self._once("element_bytes", lambda: bytes_each(getattr(self, "dtype", "float32")))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the main input, in NCHW order."""
        raise NotImplementedError

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output, in NCHW order."""
        return self.input_shape

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations (comparisons and additions for pooling)."""
        return 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and bias."""
        return 0

    @property
    def input_bytes(self) -> int:
        """Bytes of all activations read."""
        return math.prod(self.input_shape) * self.element_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of all activations written."""
        return math.prod(self.output_shape) * self.element_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written if each value crosses the memory bus once."""
        return self.input_bytes + self.output_bytes + self.weight_bytes

    @classmethod
    def quantities(cls, columns: Columns) -> dict[str, Array]:
        """Return physical quantities of such layers, each of shape (rows,); bytes in bytes.

        At least those of `traffic`.
        """
        raise NotImplementedError

    def traffic(self, flops: Array | int, values: Array | int) -> dict[str, Array]:
        """Return what every kind tells of `over`'s bytes and work; `values` decide on threads."""
        import numpy as np

        values = np.asarray(values, dtype=np.float64)
        in_bytes, out_bytes = self.input_bytes, self.output_bytes
        told = {
            "in_bytes": in_bytes, "out_bytes": out_bytes,
            "moved_bytes": in_bytes + out_bytes + self.weight_bytes, "flops": flops,
            "threaded": values >= THREADED_VALUES, "vector_rest": values % 16,
        }  # fmt: skip
        return {name: np.asarray(each, dtype=np.float64) for name, each in told.items()}

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random) -> dict[str, Any]:
        """Make fields of which each was drawn by itself fit each other."""
        del source
        return dict(fields)

    def varied(self, **changes: Any) -> Self:
        """Change some fields, and with them those that hang on them."""
        return self.replace(**changes)

    def as_drawn(self) -> Self:
        """Return the layer as campaigns draw it, before any framework chose a layout."""
        return self

    @property
    def is_runnable(self) -> bool:
        """Whether frameworks agree that such a layer may exist."""
        return True

    @property
    def is_made_by_frameworks(self) -> bool:
        """Whether frameworks alone make such layers, so that only networks give them."""
        return False

    @classmethod
    def read(cls, operator: Operator) -> Layer:
        """Read an operator of `OPERATORS`; what does the work of another kind becomes one of that.

        Raises
        ------
        LayerError
            If it does not become such a layer, with the reason.
        """
        raise LayerError(f"{operator.op} is no layer of kind {cls.kind}")

    def kernel(self) -> Kernel:
        """Return the ONNX node that this layer stands for, in plain layouts.

        Raises
        ------
        LayerError
            If there is none.
        """
        raise LayerError(f"no ONNX operator does the work of a {self.kind} layer")
