"""Parameters of a graph, beside its running statistics, masks and integers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from resperf.network import graph_parameters

FLOAT = TensorProto.FLOAT


def test_weights_behind_views_are_parameters_and_masks_may_be() -> None:
    shapes = {"w": (4, 8), "bias": (8,), "mask": (3, 8), "table": (50, 4)}
    weights = [numpy_helper.from_array(np.ones(each, np.float32), k) for k, each in shapes.items()]
    weights.append(numpy_helper.from_array(np.ones(2, np.int64), "steps"))
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "tokens"], ["x"]),
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("Transpose", ["t"], ["tt"], perm=[1, 0]),
            helper.make_node("Gemm", ["x", "tt", "bias"], ["g"]),
            helper.make_node("Add", ["g", "mask"], ["y"]),
            helper.make_node("MatMul", ["mask", "tt"], ["unused"]),
        ],
        "net",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", FLOAT, [3, 8])],
        weights,
    )
    content = helper.make_model(graph).SerializeToString()
    # 4 x 8 and 8 of the product; also 3 x 8 of the mask and 50 x 4 of the embedding.
    assert graph_parameters(content, "net") == (40, 264)
