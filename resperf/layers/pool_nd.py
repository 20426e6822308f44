"""1-D and 3-D pooling, and 2-D pooling that has no blocked kernel."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Self

from resperf.errors import LayerError
from resperf.layers._base import choices, log_uniform, name
from resperf.layers._operator import Kernel, Operator, dtype_of
from resperf.layers._volume import VolumePool
from resperf.layers.columns import is_in

MODES = ("max", "average", "global_max", "global_average", "max_places", "lp", "global_lp")
_OPS: Mapping[str, str] = {
    "max": "MaxPool", "average": "AveragePool", "global_max": "GlobalMaxPool",
    "global_average": "GlobalAveragePool", "max_places": "MaxPool", "lp": "LpPool",
    "global_lp": "GlobalLpPool",
}  # fmt: skip
_MODE_OF: Mapping[str, str] = {op: mode for mode, op in _OPS.items() if mode != "max_places"}
_OF_IMAGES: Mapping[str, str] = {
    "max": "max_places", "average": "lp", "global_max": "global_lp", "global_average": "global_lp",
}  # fmt: skip
"""Mode that replaces a drawn mode for images, where max and average are layers of kind `pool`."""
_UNDILATED = ("average", "lp")


class PoolNd(VolumePool):
    """Max or average pooling along one axis or three.

    ``max_places`` also returns the indices of the maxima, ``lp`` is the root of the sum of squares;
    both also along two axes.
    """

    RANKS = (1, 2, 3)

    mode: str = name("pooling function", MODES, default="max")

    PLAIN = ("threaded", "vector_rest", "whole", "mean")
    LOG2 = ("rank", "planes", "taps", "windows", "flops", "in_bytes", "out_bytes")
    ENCODED = ("mode",)
    RANGES: ClassVar[Mapping[str, Any]] = {
        "rank": choices([1, 2, 3], [2, 1, 1]),
        "channels_in": log_uniform(2, 512, 1, 8, 16),
        "size": {**log_uniform(4, 64), "same_share": 0.7},
        "kernel": {**choices([2, 3, 5], [6, 5, 1]), "same_share": 0.9},
        "stride": {**choices([1, 2], [1, 4]), "same_share": 0.9},
        "pad": {**choices([0, 1], [3, 1]), "same_share": 1.0},
        "mode": choices(MODES, [5, 3, 1, 2, 0.5, 0.3, 0.2]),
    }
    SCALED = ("channels_in", "width")
    OPERATORS = frozenset({"LpPool", "GlobalLpPool"})

    def _check(self) -> None:
        if self.rank == 2 and self.mode in _OF_IMAGES:
            raise LayerError(f"pool_nd: {self.mode} of an image is a layer of kind pool")
        super()._check()

    @classmethod
    def fitting(cls, fields: Mapping[str, Any], source: Random, /) -> dict[str, Any]:
        """Replace modes of drawn images that belong to kind `pool`."""
        draw = dict(fields)
        if draw["rank"] == 2:
            draw["mode"] = _OF_IMAGES.get(draw["mode"], draw["mode"])
        return super().fitting(draw, source)

    def own_quantities(self) -> dict[str, Any]:
        """Windows, their sizes and what is done with them."""
        return super().own_quantities() | {
            "places": is_in(self.mode, ("max_places",)),
            "powers": is_in(self.mode, ("lp", "global_lp")),
        }

    @classmethod
    def read(cls, operator: Operator) -> Self:
        """Read a 1-D or 3-D pooling, or one with indices or of mode ``lp``."""
        mode, attributes = _MODE_OF[operator.op], operator.attributes
        if len(operator.outputs) > 1:
            mode = "max_places"
        if mode in _UNDILATED and max(attributes.get("dilations") or (1,)) > 1:
            raise LayerError(f"a dilated {operator.op} has no layer")
        windows, dtype = operator.result()[2:], dtype_of(operator)
        return cls._read_pool(operator, mode, operator.shape(), windows, dtype=dtype)

    def as_onnx_node(self) -> Kernel:
        """Return the pooling operator."""
        attributes: dict[str, Any] = {}
        if not self.mode.startswith("global"):
            attributes = self._onnx_window()
            if self.mode in _UNDILATED:
                del attributes["dilations"]
        return self._node(_OPS[self.mode], attributes, more_outputs=int(self.mode == "max_places"))
