"""A graph of copies of one kernel, whose marginal time is that of a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from resperf.backends._ort_kernels import OPSETS
from resperf.backends._ort_runs import made_up
from resperf.copies import COLD_WEIGHTS_BYTES
from resperf.layers import Kernel, spread_indices
from resperf.units import DTYPE_BYTES

CHAIN_COPIES = 16
"""Copies that read each other's output, where a kernel writes over its input. Functions such as a
silu halve small values every time: behind some forty copies the numbers would be denormal, which
costs Intel's processors ten times the time."""

_Arrays = dict[str, npt.NDArray[Any]]


def copies_graph(kernel: Kernel, copies: int) -> tuple[ModelProto, _Arrays, _Arrays]:
    """Write a graph of copies of a kernel: independent, or chains of a few.

    Parameters
    ----------
    kernel : Kernel
    copies : int

    Returns
    -------
    model : ModelProto
        With one output, that of the last copy.
    weights, host : dict of str to array
        Of the model's initializers without values, different ones for each copy, and of its inputs.
    """
    types = kernel.input_dtypes
    weight_types = types[1 : 1 + len(kernel.weight_shapes)]
    inputs = {"x": (kernel.input_shape, types[0])} | {
        f"extra{i}": (shape, types[1 + len(weight_types) + i])
        for i, shape in enumerate(kernel.extra_shapes)
    }
    constants = ["" if each is None else f"constant{i}" for i, each in enumerate(kernel.constants)]
    nodes, initializers, weights = [], [], {}
    kernel_bytes = sum(
        math.prod(shape) * DTYPE_BYTES.get(dtype, 4)
        for shape, dtype in zip(kernel.weight_shapes, weight_types, strict=True)
    )
    for name, values in zip(constants, kernel.constants, strict=True):
        if values is not None:
            initializers.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
    for copy in range(copies):
        names = []
        for position, shape in enumerate(kernel.weight_shapes):
            name = f"w{copy}_{position}"
            names.append(name)
            weights[name] = made_up(shape, weight_types[position], zero_points=True)
            if kernel_bytes > COLD_WEIGHTS_BYTES and weights[name].ndim:
                # ONNX Runtime keeps one packed copy of equal weights: these must differ.
                weights[name].flat[0] = 1 + copy
            initializers.append(_absent(name, weights[name]))
        read = [
            f"y{copy - 1}" if kernel.in_place and copy % CHAIN_COPIES else "x",
            *names,
            *(f"extra{i}" for i in range(len(kernel.extra_shapes))),
        ]
        node = helper.make_node(
            kernel.op,
            [
                *(read[place] for place in kernel.order or range(len(read))),
                *constants,
            ],
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
    host = {name: made_up(shape, dtype) for name, (shape, dtype) in inputs.items()}
    if kernel.index_bound:
        places = spread_indices(host["extra0"].size, kernel.index_bound)
        host["extra0"] = places.reshape(host["extra0"].shape)
    if kernel.positive:
        for array in host.values():
            if array.dtype.kind == "f":
                np.abs(array, out=array)
                array += 0.5
    return model, weights, host


def _absent(name: str, values: npt.NDArray[Any]) -> Any:
    """Declare a weight whose bytes come with the session's options, not with the model."""
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
