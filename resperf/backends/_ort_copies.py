"""A graph of copies of one kernel: the marginal time of a copy is the time of the layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from resperf.backends._ort_kernels import OPSETS
from resperf.backends._values import (
    in_order,
    inputs_of_kernel,
    kernel_values,
    made_up,
    weights_of_kernel,
)
from resperf.copies import COLD_WEIGHTS_BYTES
from resperf.layers import Kernel
from resperf.units import DTYPE_BYTES

CHAIN_COPIES = 16
"""Length of a chain of in-place copies. Functions such as silu halve small values each time: after
some forty copies they would be denormal, which is ten times slower on Intel processors."""

_Arrays = dict[str, npt.NDArray[Any]]


def copies_graph(kernel: Kernel, copies: int) -> tuple[ModelProto, _Arrays, _Arrays]:
    """Build a graph of copies of a kernel: independent ones, or short chains of in-place kernels.

    Parameters
    ----------
    kernel : Kernel
    copies : int

    Returns
    -------
    model : ModelProto
        Its output is that of the last copy.
    weights, host : dict of str to array
        Values of the model's external initializers, different for each copy, and of its inputs.
    """
    inputs, kernel_weights = inputs_of_kernel(kernel), weights_of_kernel(kernel)
    constants = ["" if ints is None else f"constant{i}" for i, ints in enumerate(kernel.constants)]
    nodes, initializers, weights = [], [], {}
    kernel_bytes = sum(
        math.prod(shape) * DTYPE_BYTES.get(dtype, 4) for shape, dtype in kernel_weights
    )
    for name, values in zip(constants, kernel.constants, strict=True):
        if values is not None:
            initializers.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
    for copy in range(copies):
        names = []
        for position, (shape, dtype) in enumerate(kernel_weights):
            name = f"w{copy}_{position}"
            names.append(name)
            weights[name] = made_up(shape, dtype, zero_points=True)
            if kernel_bytes > COLD_WEIGHTS_BYTES and weights[name].ndim:
                # ONNX Runtime packs equal weights once, so these must differ.
                weights[name].flat[0] = 1 + copy
            initializers.append(_absent(name, weights[name]))
        first, *extras = inputs
        if kernel.in_place and copy % CHAIN_COPIES:
            first = f"y{copy - 1}"
        node = helper.make_node(
            kernel.op,
            [*in_order(kernel, [first, *names, *extras], ""), *constants],
            [f"y{copy}", *(f"more{copy}_{i}" for i in range(kernel.more_outputs))],
            f"copy{copy}",
            domain=kernel.domain,
            **kernel.attributes,
        )
        nodes.append(node)
    last, output_type = f"y{copies - 1}", kernel.output_dtype or kernel.dtype
    graph = helper.make_graph(
        nodes,
        "copies",
        [_info(name, shape, dtype) for name, (shape, dtype) in inputs.items()],
        [_info(last, kernel.output_shape, output_type)],
        initializers,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, weights, kernel_values(kernel, inputs)


def _absent(name: str, values: npt.NDArray[Any]) -> Any:
    """Declare an external weight; the session's options hold its bytes."""
    proto = TensorProto(
        name=name,
        data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
        dims=values.shape,
        data_location=TensorProto.EXTERNAL,
    )
    proto.external_data.add(key="location", value="absent.bin")
    return proto


def _info(name: str, shape: Sequence[int], dtype: str) -> Any:
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element_type, shape)
