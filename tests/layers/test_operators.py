"""Operators as networks hold them, and by hand the layers that they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resperf.errors import LayerError
from resperf.layers import Operand, Operator, layer_of_operator, spread_indices

Shape = tuple[int, ...]


def node(op: str, inputs: list[Any], *outputs: Shape, domain: str = "", **more: Any) -> Operator:
    """Write an operator; an input is a shape, integers in a list, or None."""
    operands = [
        None if each is None
        else Operand((len(each),), "int64", np.array(each)) if isinstance(each, list)
        else Operand((), "float32", np.array(each)) if isinstance(each, float)
        else each if isinstance(each, Operand)
        else Operand(each)
        for each in inputs
    ]  # fmt: skip
    block, opset = more.pop("block", 1), more.pop("opset", 17)
    return Operator(op, more, tuple(operands), outputs, domain, block, opset)


IMAGE, TOKENS = (2, 64, 14, 12), (2, 197, 192)
QUANTISED_IMAGE = Operand((2, 14, 12, 16), "uint8")


def eight(*shape: int) -> Operand:
    return Operand(shape, "uint8")


NO_ZERO = Operand((), "uint8", np.array(0, np.uint8))
BOOLEANS, INTEGERS = Operand((1, 1, 64, 64), "bool"), Operand((2, 128), "int64")

READ: list[tuple[Operator, dict[str, Any]]] = [
    # Elementwise: which axes the second operand has.
    (node("Add", [IMAGE, IMAGE], IMAGE), {"second": "same", "batch": 2, "inner": 64 * 168}),
    (node("Mul", [IMAGE, (2, 64, 1, 1)], IMAGE), {"second": "outer", "outer": 64, "inner": 168}),
    (node("Add", [IMAGE, (1, 64, 1, 1)], IMAGE), {"second": "middle", "batch": 2, "middle": 64}),
    (node("Add", [IMAGE, (64, 1, 1)], IMAGE), {"second": "middle", "outer": 1, "inner": 168}),
    (node("Add", [TOKENS, (192,)], TOKENS), {"second": "inner", "outer": 197, "inner": 192}),
    (node("Add", [(192,), TOKENS], TOKENS), {"second": "inner", "outer": 197, "inner": 192}),
    (node("Div", [TOKENS, ()], TOKENS), {"second": "scalar", "outer": 1, "inner": 197 * 192}),
    (node("Sub", [TOKENS, (2, 197, 1)], TOKENS), {"second": "outer", "outer": 197}),
    (
        node("Add", [(2, 3, 49, 49), (2, 1, 49, 49)], (2, 3, 49, 49)),
        {"second": "sides", "batch": 2, "outer": 1, "middle": 3, "inner": 2401},
    ),
    (
        node("Mul", [(1, 3, 224, 224), (8, 1, 1, 1)], (8, 3, 224, 224)),
        {"second": "both", "batch": 8, "inner": 150528},
    ),
    (node("Add", [(1, 512), (64, 1)], (64, 512)), {"second": "both", "batch": 64, "inner": 512}),
    (node("Pow", [TOKENS, 2.0], TOKENS), {"function": "square", "second": "none"}),
    (node("Pow", [TOKENS, 3.0], TOKENS), {"function": "cube"}),
    (node("Pow", [TOKENS, 0.5], TOKENS), {"function": "pow", "second": "scalar"}),
    (node("Sqrt", [()], ()), {"function": "sqrt", "batch": 1, "inner": 1}),
    (node("PRelu", [IMAGE, (64, 1, 1)], IMAGE), {"function": "prelu", "second": "middle"}),
    (node("Mul", [(1, 20, 5, 5), (1, 20, 1, 1)], (1, 20, 5, 5), block=16),
     {"second": "outer", "outer": 32, "inner": 25}),
    # Before operator set 13, a softmax spans its axis and all later ones.
    (node("Softmax", [(8, 12, 197, 197)], (8, 12, 197, 197)),
     {"batch": 8, "outer": 12 * 197, "values": 197, "inner": 1}),
    (node("Softmax", [(1, 1000, 1, 1)], (1, 1000, 1, 1), opset=9), {"outer": 1, "values": 1000}),
    (node("Softmax", [(8, 10, 9)], (8, 10, 9), axis=1), {"values": 10, "inner": 9}),
    (node("LogSoftmax", [(8, 10, 9)], (8, 10, 9), axis=-1), {"values": 9, "outer": 10}),
    # Reductions.
    (node("ReduceMean", [IMAGE], (2, 64, 1, 1), axes=(2, 3)),
     {"outer": 64, "values": 168, "inner": 1}),
    (node("ReduceMean", [IMAGE], (2, 64, 1, 1), axes=(-2, -1)), {"outer": 64, "values": 168}),
    (node("ReduceSum", [TOKENS, [1]], (2, 192)), {"outer": 1, "values": 197, "inner": 192}),
    (node("ReduceMax", [TOKENS], ()), {"batch": 1, "values": 2 * 197 * 192}),
    (node("ReduceMean", [(1, 64, 1, 1)], (1, 64), axes=(2, 3)), {"outer": 64, "values": 1}),
    # Matrix products.
    (node("MatMul", [(2, 3, 197, 64), (2, 3, 64, 197)], (2, 3, 197, 197)),
     {"batch": 2, "outer": 3, "rows": 197, "depth": 64, "columns": 197}),
    (node("FusedMatMul", [(2, 3, 5, 64), (2, 3, 7, 64)], (2, 3, 5, 7), transB=1,
          domain="com.microsoft"), {"depth": 64, "columns": 7, "transposed": True}),
    (node("FusedMatMul", [(2, 64, 5), (2, 64, 7)], (2, 5, 7), transA=1, domain="com.microsoft"),
     {"rows": 5, "depth": 64, "columns": 7, "transposed_first": True}),
    # The first axis may be the last but one of the matrices.
    (node("FusedMatMul", [(7, 2, 3, 4), (2, 3, 4, 5)], (2, 3, 7, 5), transBatchA=1),
     {"batch": 2, "outer": 3, "rows": 7, "depth": 4, "columns": 5}),
    (node("FusedMatMul", [(4, 3, 7), (5, 3, 4)], (3, 7, 5), transBatchA=1, transA=1,
          transBatchB=1, transB=1),
     {"batch": 3, "outer": 1, "rows": 7, "depth": 4, "columns": 5, "transposed": True}),
    (node("MatMul", [(8, 50, 64), (64,)], (8, 50)),
     {"batch": 1, "outer": 1, "rows": 400, "depth": 64, "columns": 1}),
    (node("MatMul", [(64,), (8, 64, 50)], (8, 50)),
     {"batch": 8, "outer": 1, "rows": 1, "depth": 64, "columns": 50}),
    (node("MatMul", [(2, 3, 197, 64), (64, 10)], (2, 3, 197, 10)),
     {"batch": 1, "outer": 1, "rows": 2 * 3 * 197}),
    # Normalisations.
    (node("LayerNormalization", [TOKENS, (192,), (192,)], TOKENS, axis=-1),
     {"batch": 2, "pixels": 197, "channels": 192, "function": "layer"}),
    (node("LayerNormalization", [(4, 8), (4, 8)], (4, 8), axis=0),
     {"batch": 1, "pixels": 1, "channels": 32}),
    (node("InstanceNormalization", [IMAGE, (64,), (64,)], IMAGE), {"channels": 64, "pixels": 168}),
    (node("LRN", [IMAGE], IMAGE, size=5), {"function": "local_response", "window": 5}),
    (node("SkipSimplifiedLayerNormalization", [TOKENS, TOKENS, (192,)], TOKENS,
          domain="com.microsoft"), {"function": "skip_rms", "channels": 192}),
    # Axes that are not adjacent: those between them count as inner.
    (node("ReduceMean", [(2, 14, 12, 8, 4)], (2, 1, 1, 8, 1), axes=(1, 2, 4)),
     {"batch": 2, "outer": 1, "values": 14 * 12 * 4, "inner": 8}),
    # Data movement.
    (node("Concat", [(2, 3, 5), (2, 0, 5), (2, 4, 5)], (2, 7, 5), axis=1),
     {"parts": 2, "inner": 35, "outer": 1}),
    (node("Concat", [(2, 3, 5), (2, 3, 4)], (2, 3, 9), axis=-1), {"outer": 3, "inner": 9}),
    (node("Concat", [(1, 20, 2, 2), (1, 12, 2, 2)], (1, 32, 2, 2), axis=1, block=16),
     {"inner": 128}),
    (node("Transpose", [(2, 3, 4, 5)], (2, 4, 3, 5), perm=(0, 2, 1, 3)),
     {"batch": 2, "dim1": 3, "dim2": 4, "dim3": 5, "order": "213"}),
    (node("Transpose", [(2, 3, 4, 5)], (2, 4, 5, 3), perm=(0, 2, 3, 1)),
     {"dim1": 3, "dim2": 20, "order": "21"}),
    # ONNX Runtime's fast kernel is not used if an axis of length one moves as well.
    (node("Transpose", [(8, 196, 1, 4, 32)], (1, 8, 4, 32, 196), perm=(2, 0, 3, 4, 1)),
     {"batch": 8, "dim1": 196, "dim2": 128, "order": "21s"}),
    (node("Transpose", [(8, 196, 4, 32)], (8, 4, 32, 196), perm=(0, 2, 3, 1)),
     {"batch": 8, "dim1": 196, "dim2": 128, "order": "21"}),
    (node("Softmax", [(1, 785, 8, 19)], (1, 785, 8, 19), axis=1),
     {"values": 785, "inner": 152, "function": "softmax_across"}),
    (node("Softmax", [(1, 785, 152)], (1, 785, 152), axis=1),
     {"values": 785, "inner": 152, "function": "softmax"}),
    (node("Transpose", [(64, 49, 1, 3, 32)], (1, 64, 3, 49, 32), perm=(2, 0, 3, 1, 4)),
     {"batch": 64, "dim1": 49, "dim2": 3, "dim3": 32, "order": "213s"}),
    (node("Transpose", [(6, 5)], (5, 6)), {"batch": 1, "dim1": 6, "dim2": 5, "order": "21"}),
    (node("Transpose", [(1, 6, 1, 5)], (1, 1, 6, 5), perm=(0, 2, 1, 3)), {"order": "1"}),
    (node("Transpose", [(3, 2, 4, 5)], (4, 3, 2, 5), perm=(2, 0, 1, 3)),
     {"batch": 1, "dim1": 6, "dim2": 4, "dim3": 5, "order": "213"}),
    (node("Slice", [TOKENS, [0], [1], [1]], (2, 1, 192)),
     {"function": "slice", "length": 197, "length_out": 1, "inner": 192, "step": 1}),
    (node("Slice", [(1, 8, 8, 3), [0, 1], [8, 2**31 - 1], [1, 2], [2, 1]], (1, 4, 7, 3)),
     {"outer": 4, "length": 8, "length_out": 7, "step": 1}),
    (node("Slice", [(4, 9), [0], [9], [1], [2]], (4, 5)),
     {"length": 9, "length_out": 5, "step": 2}),
    (node("Split", [(2, 9, 5), [3, 6]], (2, 3, 5), (2, 6, 5), axis=1),
     {"function": "split", "parts": 2, "length": 9}),
    (node("Gather", [(30522, 768), (1, 128)], (1, 128, 768)),
     {"function": "gather", "batch": 1, "length": 30522, "length_out": 128, "inner": 768}),
    (node("Gather", [TOKENS, ()], (2, 192), axis=1), {"length": 197, "length_out": 1}),
    (node("Pad", [IMAGE, [0, 0, 1, 1, 0, 0, 1, 1]], (2, 64, 16, 14)),
     {"function": "pad", "outer": 64 * 16, "length": 12, "length_out": 14}),
    (node("Expand", [(1, 1, 192), [2, 1, 192]], (2, 1, 192)),
     {"function": "expand", "batch": 1, "length_out": 2, "inner": 192}),
    (node("Expand", [(2, 64, 1, 1), [2, 64, 7, 8]], (2, 64, 7, 8)),
     {"function": "expand", "batch": 2, "outer": 64, "length": 1, "length_out": 56, "inner": 1}),
    (node("Expand", [(1, 1, 8), [4, 5, 6, 8]], (4, 5, 6, 8)),
     {"function": "expand", "batch": 1, "outer": 1, "length_out": 120, "inner": 8}),
    (node("Expand", [(1, 3, 1), [4, 3, 5]], (4, 3, 5)),
     {"function": "expand", "batch": 4, "outer": 3, "length_out": 5, "inner": 1}),
    (node("Tile", [(2, 3, 4), [1, 5, 1]], (2, 15, 4)),
     {"function": "expand", "length": 1, "length_out": 5, "inner": 12}),
    # A negative step becomes a gather, and negative padding a slice.
    (node("Slice", [(1, 8, 8, 3), [-1], [-(2**31)], [3], [-1]], (1, 8, 8, 3)),
     {"function": "gather", "outer": 64, "length": 3, "length_out": 3, "inner": 1, "step": 1}),
    (node("Slice", [(2, 9, 5), [8, 0], [0, 4], [1, 2], [-2, 1]], (2, 4, 4)),
     {"function": "gather", "outer": 1, "length": 9, "length_out": 4, "inner": 4}),
    (node("Pad", [(1, 64, 64, 60), [0, 0, -4, -3, 0, 0, -4, -3]], (1, 64, 56, 54)),
     {"function": "slice", "length": 60, "length_out": 54, "step": 1}),
    # An unchanged shape is a copy.
    (node("Resize", [IMAGE, None, None, [2, 64, 14, 12]], IMAGE, mode="linear"),
     {"function": "copy", "batch": 2, "inner": 64 * 168}),
    (node("Slice", [IMAGE, [0], [99], [1]], IMAGE), {"function": "copy", "inner": 64 * 168}),
    (node("Pad", [TOKENS, [0] * 6], TOKENS), {"function": "copy", "batch": 2}),
    (node("Concat", [(2, 3)], (2, 3), axis=0), {"parts": 1, "inner": 6}),
    # Booleans and integers.
    (node("Where", [BOOLEANS, (1, 12, 64, 64), ()], (1, 12, 64, 64)),
     {"second": "inner", "tensors": 1, "outer": 12, "inner": 4096, "dtype": "float32"}),
    (node("Where", [Operand((2, 9), "bool"), (2, 9), (2, 9)], (2, 9)),
     {"second": "same", "tensors": 2}),
    (node("Where", [Operand((2, 9), "bool"), (), ()], (2, 9)), {"second": "same", "tensors": 0}),
    (node("Equal", [INTEGERS, Operand((), "int64")], (2, 128)),
     {"function": "equal", "second": "scalar", "dtype": "int64"}),
    (node("Not", [Operand((2, 128), "bool")], (2, 128)), {"function": "not", "dtype": "bool"}),
    (node("ArgMax", [TOKENS], (2, 197, 1), axis=-1), {"function": "arg_max", "values": 192}),
    (node("ArgMax", [INTEGERS], (2,), axis=1, keepdims=0), {"outer": 1, "dtype": "int64"}),
    (node("Cast", [TOKENS], TOKENS, to=10),
     {"batch": 2, "values": 197 * 192, "dtype": "float32", "dtype_out": "float16"}),
    (node("Cast", [TOKENS], TOKENS, to=1), {"function": "copy", "batch": 2, "inner": 197 * 192}),
    # Signals and volumes.
    (node("Conv", [(1, 80, 3000), (384, 80, 3), (384,)], (1, 384, 3000), pads=(1, 1)),
     {"rank": 1, "depth": 1, "width": 3000, "kernel_width": 3, "pad_width": 2, "bias": True}),
    (node("FusedConv", [(1, 3, 16, 56, 56), (64, 3, 3, 7, 7)], (1, 64, 16, 28, 28),
          strides=(1, 2, 2), pads=(1, 3, 3, 1, 3, 3), activation="Relu", domain="com.microsoft"),
     {"rank": 3, "depth": 16, "stride_height": 2, "pad_width": 6, "activation": "relu"}),
    (node("Conv", [(1, 8, 10), (8, 8, 3)], (1, 8, 5), strides=(2,), auto_pad="SAME_UPPER"),
     {"pad_width": 1, "stride_width": 2, "kernel_width": 3}),
    (node("MaxPool", [(1, 64, 8, 28, 28)], (1, 64, 4, 14, 14), kernel_shape=(2, 2, 2),
          strides=(2, 2, 2)), {"rank": 3, "kernel_depth": 2, "mode": "max"}),
    (node("MaxPool", [(1, 4, 8)], (1, 4, 4), (1, 4, 4), kernel_shape=(2,), strides=(2,)),
     {"mode": "max_places", "rank": 1, "width": 8}),
    (node("MaxPool", [IMAGE], (2, 64, 7, 6), (2, 64, 7, 6), kernel_shape=(2, 2), strides=(2, 2)),
     {"mode": "max_places", "rank": 2, "height": 14, "width": 12}),
    (node("LpPool", [IMAGE], (2, 64, 13, 11), kernel_shape=(2, 2)), {"mode": "lp", "rank": 2}),
    (node("GlobalLpPool", [IMAGE], (2, 64, 1, 1)), {"mode": "global_lp", "kernel_width": 12}),
    (node("GlobalAveragePool", [(1, 64, 50)], (1, 64, 1)),
     {"mode": "global_average", "kernel_width": 50}),
    # Sequences.
    (node("Attention", [(2, 128, 768), (768, 2304), (2304,)], (2, 128, 768), num_heads=12,
          domain="com.microsoft"),
     {"queries": 128, "keys": 128, "heads": 12, "head_size": 64, "features": 768}),
    (node("MultiHeadAttention", [(2, 64, 256), (2, 100, 256), (2, 100, 256)], (2, 64, 256),
          num_heads=8, domain="com.microsoft"),
     {"queries": 64, "keys": 100, "head_size": 32, "value_size": 32, "features": 0}),
    (node("LSTM", [(35, 2, 8), (2, 64, 8), (2, 64, 16)], (35, 2, 2, 16), hidden_size=16),
     {"batch": 2, "steps": 35, "hidden": 16, "directions": 2, "cell": "lstm"}),
    (node("GRU", [(35, 2, 8), (1, 48, 8), (1, 48, 16)], (35, 1, 2, 16), hidden_size=16),
     {"hidden": 16, "directions": 1, "cell": "gru"}),
    (node("LSTM", [(3, 2, 8), (1, 64, 8), (1, 64, 16), None, [3, 3]], (3, 1, 2, 16),
          hidden_size=16), {"steps": 3, "hidden": 16, "cell": "lstm"}),
    # Int8.
    (node("QuantizeLinear", [TOKENS, (), Operand((), "int8")], TOKENS),
     {"function": "quantize", "dtype": "int8", "values": 197 * 192}),
    (node("QuantizeLinear", [TOKENS, ()], TOKENS), {"function": "quantize", "dtype": "uint8"}),
    (node("QuantizeLinear", [TOKENS, ()], TOKENS, output_dtype=3), {"dtype": "int8"}),
    (node("DequantizeLinear", [Operand((2, 9), "uint8"), ()], (2, 9)),
     {"function": "dequantize", "dtype": "uint8", "values": 9}),
    (node("QLinearConv", [QUANTISED_IMAGE, (), (), Operand((32, 16, 3, 3), "int8"), (), (), (), (),
                          Operand((32,), "int32")], (2, 7, 6, 32), channels_last=1,
          strides=(2, 2), pads=(1, 1, 1, 1), domain="com.microsoft"),
     {"layout": "nhwc", "rank": 2, "channels_in": 16, "height": 14, "width": 12, "bias": True,
      "channels_out": 32, "stride_width": 2, "pad_height": 2, "depth": 1}),
    (node("ConvInteger", [Operand((1, 3, 8, 8), "uint8"), Operand((4, 3, 3, 3), "uint8")],
          (1, 4, 6, 6)),
     {"function": "integer", "layout": "nchw", "bias": False, "dtype": "uint8"}),
    # Its images are uint8; signed weights, the default of dynamic quantisation, take longer.
    (node("ConvInteger", [Operand((1, 3, 8, 8), "uint8"), Operand((4, 3, 3, 3), "int8")],
          (1, 4, 6, 6)), {"function": "integer", "dtype": "int8"}),
    (node("MatMulInteger", [Operand((2, 9, 16), "uint8"), Operand((16, 5), "int8")], (2, 9, 5)),
     {"batch": 18, "features_in": 16, "features_out": 5, "function": "integer"}),
    (node("DequantizeLinear", [Operand((64,), "int32"), ()], (64,)),
     {"function": "dequantize", "dtype": "int32", "values": 1}),
    (node("QuantizeLinear", [TOKENS, (), Operand((), "uint16")], TOKENS, domain="com.microsoft"),
     {"function": "quantize", "dtype": "uint16"}),
    (node("DequantizeLinear", [Operand(TOKENS, "int16"), ()], TOKENS), {"dtype": "int16"}),
    # The last window of ceil_mode reaches one value beyond the input.
    (node("NhwcMaxPool", [eight(1, 9, 9, 16)], (1, 5, 5, 16), kernel_shape=(2, 2), strides=(2, 2),
          ceil_mode=1), {"height": 9, "pad_height": 1, "pad_width": 1}),
    (node("MaxPool", [(1, 4, 9)], (1, 4, 5), kernel_shape=(2,), strides=(2,), ceil_mode=1),
     {"rank": 1, "pad_width": 1}),
    (node("MaxPool", [eight(1, 16, 8, 8)], (1, 16, 4, 4), kernel_shape=(2, 2), strides=(2, 2)),
     {"mode": "max", "layout": "nchw", "dtype": "uint8", "channels_in": 16, "height": 8}),
    (node("QGemm", [eight(2, 64), (), (), Operand((64, 10), "int8"), (), (),
                    Operand((10,), "int32"), ()], (2, 10)),
     {"function": "to_float", "features_out": 10}),
    (node("QGemm", [eight(2, 64), (), (), Operand((64, 10), "int8"), (), (),
                    Operand((10,), "int32"), (), NO_ZERO], (2, 10)),
     {"function": "gemm", "features_out": 10}),
    (node("DynamicQuantizeMatMul", [(2, 9, 16), Operand((16, 5), "int8"), ()], (2, 9, 5),
          domain="com.microsoft"), {"function": "dynamic", "batch": 18}),
    (node("QLinearMatMul", [Operand((2, 12, 9, 16), "uint8"), (), (),
                            Operand((2, 12, 16, 5), "uint8"), (), (), (), ()], (2, 12, 9, 5)),
     {"batch": 2, "outer": 12, "rows": 9, "depth": 16, "columns": 5, "function": "linear"}),
    (node("MatMulInteger", [Operand((1, 12, 9, 16), "uint8"), Operand((1, 12, 16, 5), "uint8")],
          (1, 12, 9, 5)), {"outer": 12, "columns": 5, "function": "integer"}),
    # Einsum: attention scores, positions along two axes, and a plain product.
    (node("Einsum", [(2, 4, 50, 16), (2, 4, 60, 16)], (2, 4, 50, 60), equation="bhid,bhjd->bhij"),
     {"batch": 2, "outer": 4, "rows": 50, "depth": 16, "columns": 60, "first": "bmk",
      "second": "bnk", "result": "bmn"}),
    (node("Einsum", [(8, 14, 12, 64), (14, 9, 64)], (8, 14, 12, 9), equation="bhwc,hkc->bhwk"),
     {"outer": 14, "rows": 96, "depth": 64, "columns": 9}),
    (node("Einsum", [(1, 50, 4, 16), (1, 60, 4, 16)], (1, 4, 50, 60),
          equation="b i h d , b j h d -> b h i j"),
     {"outer": 4, "rows": 50, "first": "mbk", "second": "nbk", "result": "bmn"}),
    (node("Einsum", [(2, 4, 50, 16), (2, 4, 16, 60)], (2, 4, 50, 60),
          equation="...ij, ...jk -> ...ik"),
     {"batch": 2, "outer": 4, "rows": 50, "depth": 16, "columns": 60, "result": "bmn"}),
    (node("Einsum", [(4, 50, 16), (2, 4, 16, 60)], (2, 4, 50, 60), equation="...ij,...jk"),
     {"rows": 50, "depth": 16, "columns": 120}),
    (node("Einsum", [(7, 9), (9, 5)], (7, 5), equation="ij,jk"),
     {"rows": 7, "depth": 9, "columns": 5}),
    (node("Einsum", [(7, 8, 9), (9, 5)], (7, 8, 5), equation="abc,cd->abd"),
     {"batch": 1, "outer": 1, "rows": 56, "depth": 9, "columns": 5, "first": "bmk"}),
    # One operand whose axes change their order, as patches are put together again.
    (node("Einsum", [(2, 4, 5, 6)], (2, 5, 4, 6), equation="nhwc -> nwhc"),
     {"batch": 2, "dim1": 4, "dim2": 5, "dim3": 6, "order": "213"}),
    # At computed indices.
    (node("TopK", [(2, 100, 7), [5]], (2, 5, 7), (2, 5, 7), axis=1),
     {"batch": 2, "values": 100, "inner": 7, "kept": 5}),
    (node("CumSum", [INTEGERS, [1]], (2, 128)), {"batch": 2, "values": 128, "dtype": "int64"}),
    (node("GatherElements", [(3, 10, 4), Operand((3, 6, 4), "int64")], (3, 6, 4), axis=1),
     {"batch": 3, "places": 6, "length": 10, "inner": 4, "function": "gather_elements"}),
    (node("GatherND", [(10, 12, 64), Operand((5, 2), "int64")], (5, 64)),
     {"batch": 1, "places": 5, "length": 120, "inner": 64, "function": "gather_nd"}),
    (node("GatherND", [(4, 10, 64), Operand((4, 7, 1), "int64")], (4, 7, 64), batch_dims=1),
     {"batch": 4, "places": 7, "length": 10, "inner": 64}),
    (node("ScatterND", [(4, 20, 8), Operand((30, 2), "int64"), (30, 8)], (4, 20, 8)),
     {"batch": 1, "places": 30, "length": 80, "inner": 8, "function": "scatter_nd"}),
    (node("GridSample", [IMAGE, (2, 9, 7, 2)], (2, 64, 9, 7), mode="bilinear"),
     {"channels": 64, "height": 14, "height_out": 9, "width_out": 7, "mode": "linear"}),
    # Images.
    (node("DepthToSpace", [(1, 36, 24, 20)], (1, 4, 72, 60), blocksize=3, mode="CRD"),
     {"channels": 4, "height": 24, "side": 3, "function": "depth_to_space_crd"}),
    (node("SpaceToDepth", [(1, 3, 8, 8)], (1, 12, 4, 4), blocksize=2),
     {"channels": 3, "height": 4, "function": "space_to_depth"}),
    (node("Resize", [IMAGE, None, [1, 1, 2, 2]], (2, 64, 28, 24), mode="nearest"),
     {"height_out": 28, "width_out": 24, "layout": "nchw", "mode": "nearest_rounded"}),
    (node("Resize", [IMAGE, [1, 1, 2, 2]], (2, 64, 28, 24), opset=10), {"mode": "nearest"}),
    (node("Resize", [IMAGE, None, [1, 1, 2, 2]], (2, 64, 28, 24), mode="nearest",
          coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
     {"height_out": 28, "mode": "nearest"}),
    (node("Resize", [Operand((1, 8, 10), "uint8"), None, [1, 1, 2]], (1, 8, 20), mode="linear"),
     {"channels": 1, "depth": 1, "height": 8, "height_out": 8, "width_out": 20, "dtype": "uint8"}),
    (node("Resize", [(1, 8, 10), None, [1, 1, 2]], (1, 8, 20), mode="nearest"),
     {"channels": 8, "height": 1, "height_out": 1, "width_out": 20}),
    (node("Resize", [(2, 3, 4, 5, 6), None, [1, 1, 2, 2, 1]], (2, 3, 8, 10, 6), mode="linear"),
     {"batch": 2, "channels": 3, "depth_out": 8, "height_out": 10, "width": 6, "width_out": 6}),
    (node("QLinearConcat", [0.1, NO_ZERO, eight(2, 3, 7), 0.1, NO_ZERO, eight(2, 5, 7), 0.1,
                            NO_ZERO], (2, 8, 7), axis=1, domain="com.microsoft"),
     {"batch": 2, "outer": 1, "parts": 2, "inner": 56, "rescaled": False}),
    (node("QLinearConcat", [0.1, NO_ZERO, eight(2, 3, 7), 0.1, NO_ZERO, eight(2, 3, 9), 0.2,
                            NO_ZERO], (2, 3, 16), axis=-1, domain="com.microsoft"),
     {"batch": 2, "outer": 3, "parts": 2, "inner": 16, "rescaled": True}),
    (node("QLinearConcat", [0.1, NO_ZERO, eight(2, 3), 0.1, Operand((), "uint8", np.array(7))],
          (2, 3), axis=1, domain="com.microsoft"), {"parts": 1, "rescaled": True}),
    (node("QLinearConcat", [0.1, NO_ZERO, eight(2, 3), (), NO_ZERO], (2, 3), axis=1,
          domain="com.microsoft"), {"rescaled": True}),
    (node("QLinearSoftmax", [Operand((8, 12, 197), "int8")], (8, 12, 197), axis=-1, opset=13,
          domain="com.microsoft"),
     {"outer": 12, "values": 197, "inner": 1, "across": False, "dtype": "int8"}),
    (node("QLinearSoftmax", [Operand((1, 21, 65, 60), "uint8")], (1, 21, 65, 60), axis=1,
          domain="com.microsoft"), {"values": 21, "inner": 3900, "across": True}),
    (node("Upsample", [(1, 20, 7, 7)], (1, 20, 14, 14), block=16, domain="com.microsoft.nchwc",
          mode="nearest"), {"channels": 32, "layout": "nchwc16"}),
    (node("MaxPool", [(1, 4, 8)], (1, 4, 4), kernel_shape=(2,), strides=(2,), ceil_mode=1),
     {"width": 8, "kernel_width": 2, "stride_width": 2}),
    (node("Conv", [(1, 4, 9), (8, 4, 1)], (1, 8, 11), kernel_shape=(1,), pads=(1, 1)),
     {"kernel_width": 1, "pad_width": 2}),
    (node("ConvTranspose", [IMAGE, (64, 32, 2, 2), (32,)], (2, 32, 28, 24), strides=(2, 2)),
     {"channels_out": 32, "kernel_height": 2, "stride_width": 2, "cut_height": 0, "bias": True}),
    (node("ConvTranspose", [(1, 512, 100), (512, 256, 16)], (1, 256, 800), strides=(8,),
          pads=(4, 4)),
     {"height": 1, "kernel_height": 1, "kernel_width": 16, "stride_width": 8, "stride_height": 1,
      "cut_height": 0, "cut_width": 8}),
    (node("ConvTranspose", [(1, 4, 5, 6, 7), (4, 9, 2, 3, 4)], (1, 9, 10, 6, 9), strides=(2, 1, 1),
          pads=(0, 1, 0, 0, 1, 1)),
     {"channels_out": 9, "depth": 5, "kernel_depth": 2, "stride_depth": 2, "cut_depth": 0,
      "kernel_height": 3, "stride_height": 1, "cut_height": 2, "kernel_width": 4, "cut_width": 1,
      "bias": False}),
    (node("ConvTranspose", [IMAGE, (64, 8, 3, 3)], (2, 8, 30, 26), strides=(2, 2),
          output_padding=(1, 1)), {"cut_height": 0, "cut_width": 0}),
    (node("ConvTranspose", [IMAGE, (64, 1, 4, 4)], (2, 64, 28, 24), strides=(2, 2), group=64,
          pads=(1, 1, 1, 1)), {"groups": 64, "cut_height": 2, "cut_width": 2, "bias": False}),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "fields"), READ, ids=lambda x: getattr(x, "op", ""))
def test_an_operator_is_read_as_its_layer(operator: Operator, fields: dict[str, Any]) -> None:
    layer = layer_of_operator(operator)
    assert {name: layer.fields()[name] for name in fields} == fields


REFUSED: list[tuple[Operator, str]] = [
    (node("ConvTranspose", [(2, 4), (4, 9)], (2, 9)), "of shape"),
    (
        node("Resize", [(2, 3, 4, 5, 6), None, [1, 1, 2, 2, 2]], (2, 3, 8, 10, 12), mode="cubic"),
        "cubic",
    ),
    (node("Resize", [(2, 3, 4), None, [2, 1, 2]], (4, 3, 8), mode="linear"), "has no layer"),
    (node("Add", [(2, 3), (3,)], (2, 3), axis=1), "before operator set 7"),
    (node("Sum", [(2, 3)] * 3, (2, 3)), "of 3 tensors"),
    (node("ReduceSum", [TOKENS], TOKENS, noop_with_empty_axes=1), "reduces nothing"),
    (node("ReduceSum", [()], ()), "reduces nothing"),
    (node("ReduceMean", [(0, 8)], (0, 1), axes=(1,)), "at least 1"),
    (node("MatMul", [(0, 3, 4), (0, 4, 5)], (0, 3, 5)), "at least 1"),
    (node("Resize", [IMAGE, None, [1, 1, 2, 2]], (2, 64, 28, 24), antialias=1), "antialiasing"),
    (
        node("Resize", [(1, 8, 9), None, [1, 1, 2]], (1, 8, 18), mode="linear", antialias=1),
        "antialiasing",
    ),
    (node("Softmax", [(2, 3)], (2, 3), axis=2), "axis=2 does not exist"),
    (node("Transpose", [(2, 3, 4, 5, 6, 7, 8)], (8, 7, 6, 5, 4, 3, 2)), "more than 5 axes"),
    (node("Concat", [(2, 0), None], (2, 0), axis=1), "parts=0"),
    (node("Where", [(0, 3), (), ()], (0, 3)), "at least 1"),
    (node("Cast", [(2, 3)], (2, 3), to=8), "ONNX's type 8"),
    (node("And", [(2, 3), (2, 3)], (2, 3)), "and takes bool"),
    (node("DepthToSpace", [(8, 4, 4)], (2, 8, 8), blocksize=2), "has no layer"),
    (node("Conv", [(1, 4, 9), (8, 4, 3)], (1, 8, 7), activation="Elu"), "activation='elu' must be"),
    (node("Conv", [(1, 4, 9), (8, 4, 3), None, (1, 8, 7)], (1, 8, 7)), "a residual"),
    (node("Conv", [(1, 4, 3, 3, 3, 3), (8, 4, 1, 1)], (1, 8, 3, 3)), "not a 2-D image"),
    (
        node(
            "AveragePool",
            [(1, 4, 9)],
            (1, 4, 5),
            kernel_shape=(2,),
            strides=(2,),
            ceil_mode=1,
            count_include_pad=1,
        ),
        "partly empty",
    ),
    (node("LpPool", [IMAGE], (2, 64, 12, 10), kernel_shape=(2, 2), dilations=(2, 2)), "dilated"),
    (node("Einsum", [(2, 3, 4, 5), (3, 4)], (2, 4), equation="abc,bc->ac"), "fit shape"),
    (node("Einsum", [(2, 3, 4), (4, 3, 5)], (2, 5), equation="abc,cbd->ad"), "in different orders"),
    (node("Einsum", [(2, 3), (3, 4), (4, 5)], (2, 5), equation="ab,bc,cd->ad"), "has no layer"),
    (node("Einsum", [(2, 3), (4, 5)], (2, 5), equation="ab,cd->ad"), "an axis of one operand"),
    (node("Einsum", [(2, 3)], (2,), equation="ab->a"), "has no layer"),
    (node("Einsum", [(2, 2)], (2, 2), equation="aa->aa"), "has no layer"),
    (node("CumSum", [INTEGERS, [7]], (2, 128)), "does not exist"),
    (node("QuantizeLinear", [TOKENS, ()], TOKENS, output_dtype=5), "type 5"),
    (node("TopK", [(2, 100), Operand((1,), "int64")], (2, 5), (2, 5)), "computed by the network"),
    (node("GridSample", [(1, 2, 3, 4, 5), (1, 3, 4, 5, 3)], (1, 2, 3, 4, 5)), "has no layer"),
    (node("Attention", [TOKENS, TOKENS, TOKENS], TOKENS), "of ONNX itself"),
    (
        node("LSTM", [(2, 9, 8), (1, 64, 8), (1, 64, 16)], (2, 9, 1, 16), hidden_size=16, layout=1),
        "batch first",
    ),
]


@pytest.mark.parametrize(("operator", "reason"), REFUSED, ids=lambda x: getattr(x, "op", ""))
def test_an_unsupported_operator_is_refused_with_the_reason(
    operator: Operator, reason: str
) -> None:
    with pytest.raises(LayerError, match=reason):
        layer_of_operator(operator)


@pytest.mark.parametrize(("lengths", "steps"), [(Operand((2,), "int32"), 9), ([4, 7], 7)])
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_sequences_are_as_long_as_the_longest_may_be(
    op: str, gates: int, lengths: Any, steps: int
) -> None:
    weights = [(1, 16 * gates, 8), (1, 16 * gates, 16)]
    layer = layer_of_operator(node(op, [(9, 2, 8), *weights, None, lengths], (9, 1, 2, 16)))
    assert layer.fields()["steps"] == steps


def test_a_quantised_softmax_before_opset_13_spans_its_axis_and_all_later_ones() -> None:
    operator = Operator(
        "QLinearSoftmax", {"axis": 1, "opset": 11}, (eight(8, 12, 20),), ((8, 12, 20),),
        "com.microsoft",
    )  # fmt: skip
    fields = layer_of_operator(operator).fields()
    assert (fields["batch"], fields["outer"], fields["values"], fields["inner"]) == (8, 1, 240, 1)


@pytest.mark.parametrize("below", [5, 10, 7 * 11, 30522])
def test_indices_are_equally_frequent_and_never_neighbours_in_a_row(below: int) -> None:
    indices = spread_indices(3 * below, below)
    assert np.bincount(indices).tolist() == [3] * below
    assert (np.abs(np.diff(indices)) > 1).all()


def test_indices_cover_the_whole_table() -> None:
    layer = layer_of_operator(node("GatherND", [(4, 100, 8), Operand((4, 9, 1), "int64")],
                                   (4, 9, 8), batch_dims=1))  # fmt: skip
    assert layer.as_onnx_node().index_bound == 400
