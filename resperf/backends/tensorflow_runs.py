"""What is timed in TensorFlow: a layer's operator, copies of it in one function, and the phases."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from resperf.backends._base import Built, Phase, copies_for, median_ms
from resperf.backends._values import (
    Array,
    Typed,
    in_order,
    inputs_of_kernel,
    kernel_values,
    made_up,
    onnx_kernel,
    weights_of_kernel,
)
from resperf.backends.tensorflow_builder import Builder
from resperf.backends.tensorflow_device import XLA, Device
from resperf.backends.tensorflow_functions import ACTIVATION_FUNCTIONS
from resperf.backends.tensorflow_operators import build
from resperf.errors import UnsupportedError, first_line
from resperf.layers import Activation, Conv, Kernel, Layer, Pool
from resperf.lowering.tensorflow import LAYOUT, NO_OPERATOR
from resperf.network import Network, Node, Tensor
from resperf.timing import Sampler, WallClock

_OPSETS = {"": 17, "com.microsoft": 1}


@dataclass(frozen=True)
class Operator:
    """A layer as TensorFlow operations, ready to be added to a graph.

    Attributes
    ----------
    input_shape : tuple of int
        NHWC for images.
    apply : callable
        ``apply(x, weights, extras)`` adds the operations and returns the output.
    dtype : str
        Type of the input.
    weights : sequence of (tuple of int, str)
        Shape and type, in TensorFlow's order: filter or matrix, then bias.
    extras : callable
        Makes host arrays of all further inputs that a network would compute, such as a residual.
    positive : bool
        Whether inputs must be above zero, as for logarithms.
    """

    input_shape: tuple[int, ...]
    apply: Callable[[Any, Sequence[Any], Sequence[Any]], Any]
    dtype: str = "float32"
    weights: Sequence[Typed] = ()
    extras: Callable[[], list[Array]] = list
    positive: bool = False


def operator_of(layer: Layer) -> Operator:
    """Return the TensorFlow operations of a lowered layer.

    Parameters
    ----------
    layer : Layer
        Of any kind.

    Raises
    ------
    UnsupportedError
        If TensorFlow cannot run such a layer.
    """
    if isinstance(layer, Conv | Pool) and layer.layout != LAYOUT:
        raise UnsupportedError(
            f"{layer.kind}: TensorFlow stores images as {LAYOUT} here, not {layer.layout}; "
            "lower the layer first"
        )
    if isinstance(layer, Activation):
        function = ACTIVATION_FUNCTIONS[layer.activation]
        return Operator(layer.input_shape, lambda x, *_: function(x), dtype=layer.dtype)
    if layer.kind in NO_OPERATOR:
        raise UnsupportedError(f"TensorFlow has no {layer.kind} layer: {NO_OPERATOR[layer.kind]}")
    plain = layer.replace(layout="nchw") if "layout" in layer.fields() else layer
    kernel = onnx_kernel(plain, "TensorFlow")
    kernel = kernel.in_floats(str(layer.fields().get("dtype", kernel.dtype)))
    if not isinstance(layer, Conv):
        return _of_kernel(kernel)
    # ONNX adds a residual to a bias only; TensorFlow to anything.
    weights = kernel.weight_shapes[: 1 + layer.bias]
    convolution = replace(kernel, weight_shapes=weights, extra_shapes=())
    return _of_kernel(convolution, residual=layer.residual)


def _of_kernel(kernel: Kernel, *, residual: bool = False) -> Operator:
    """Return a kernel's operations: its operator, a residual, and the activation fused into it."""
    builder = Builder(_alone(kernel), None)
    activation = ACTIVATION_FUNCTIONS[kernel.activation]
    inputs = {
        name: (builder.stored_shape(name), dtype)
        for name, (_, dtype) in inputs_of_kernel(kernel).items()
    }

    def apply(x: Any, weights: Sequence[Any], extras: Sequence[Any]) -> Any:
        if residual:
            y = builder.outputs(build, x, weights=weights)[0]
            return activation(tf.raw_ops.AddV2(x=y, y=extras[0]))
        return activation(builder.outputs(build, x, *extras, weights=weights)[0])

    def extras() -> list[Array]:
        if residual:
            return [made_up(builder.stored_shape("y"), kernel.dtype)]
        _, *values = kernel_values(kernel, inputs).values()
        return values

    return Operator(
        input_shape=builder.stored_shape("x"),
        apply=apply,
        dtype=kernel.input_dtypes[0],
        weights=[(tuple(spec.shape), spec.dtype.name) for spec in builder.held],
        extras=extras,
        positive=kernel.positive,
    )


def _alone(kernel: Kernel) -> Network:
    """Return a network of a kernel alone; its weights are constants, its extras are inputs."""
    inputs = inputs_of_kernel(kernel)
    weights = {f"w{index}": typed for index, typed in enumerate(weights_of_kernel(kernel))}
    tensors = {
        name: Tensor(name, shape, dtype, is_weight=name in weights)
        for name, (shape, dtype) in (inputs | weights).items()
    }
    first, *extras = inputs
    read = in_order(kernel, [first, *weights, *extras], "")
    for index, values in enumerate(kernel.constants):
        read.append("" if values is None else f"constant{index}")
        if values is not None:
            array = np.array(values, np.int64)
            tensors[read[-1]] = Tensor(read[-1], array.shape, "int64", array, is_weight=True)
    y = Tensor("y", kernel.output_shape, kernel.output_dtype or kernel.dtype)
    written = ("y", *(f"more{i}" for i in range(kernel.more_outputs)))
    node = Node("layer", kernel.op, kernel.domain, tuple(read), written, kernel.attributes)
    return Network(
        "layer", (node,), {**tensors, "y": y}, tuple(inputs), ("y",), _OPSETS, batch=None
    )


MAX_COPIES_PER_RUN = 16
"""Tracing and optimising takes about 2 ms per copy: more copies would cost more than they gain."""
_WEIGHT_VALUE = 0.01  # small, but not denormal, which would be slow
_FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})
CPU = Device()
_TRACED_CYCLES = 50
_freed = itertools.count(1)
_ROUND_SECONDS = 0.02


class Traced:
    """A concrete function with captured weights that can be freed."""

    def __init__(
        self,
        body: Callable[..., Any],
        inputs: Sequence[Any],
        weights: list[Any],
        device: Device = CPU,
    ) -> None:
        self._weights = weights
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]

        def placed(*values: Any) -> Any:
            with device.here():
                return body(*values)

        self._function: Any = device.function(placed).get_concrete_function(*specs)

    def __call__(self, *inputs: Any) -> Any:
        """Run the function."""
        return self._function(*inputs)

    def release(self) -> None:
        """Free the weights, which reference cycles of the traced graph would keep alive."""
        self._weights.clear()
        if self._function is not None:
            captures = self._function.graph._function_captures
            self._function.set_external_captures([])
            # This second list has no public interface; reading its pairs drops the cached ones.
            captures.clear()
            captures.by_val_capture_tuples  # noqa: B018
        self._function = None


def chain(
    operator: Operator, x: Any, weights: Sequence[Sequence[Any]], extras: Sequence[Any]
) -> Any:
    """Build copies of a layer that run one after the other, with different weights, all on `x`.

    An assertion that always holds marks the end of a copy. It is stateful, so that it is neither
    pruned nor merged. It reads the output as data, since a control edge would prevent fusion. The
    next copy waits for it, so that each output is freed before the next one is allocated.
    """
    y = operator.apply(x, weights[0], extras)
    for own in weights[1:]:
        with tf.control_dependencies([tf.raw_ops.Assert(condition=True, data=[y])]):
            waiting = tf.raw_ops.Identity(input=x)
        y = operator.apply(waiting, own, extras)
    return y


def queued_chain(
    operator: Operator, x: Any, weights: Sequence[Sequence[Any]], extras: Sequence[Any]
) -> tuple[Any, Any]:
    """Build the copies of `chain` for a GPU, where an assertion would copy outputs to the host.

    One value of each output is returned as well, so that none is pruned; the next copy waits for
    it to be queued.
    """
    marks: list[Any] = []
    y = None
    for own in weights:
        with tf.control_dependencies(marks[-1:]):
            waiting = tf.raw_ops.Identity(input=x)
        y = operator.apply(waiting, own, extras)
        rank = len(y.shape)
        first = tf.raw_ops.Slice(input=y, begin=[0] * rank, size=[1] * rank)
        marks.append(tf.reshape(first, ()))
    return y, tf.stack(marks)


def traced_copies(
    operator: Operator,
    x: Any,
    weights: list[list[Any]],
    extras: Sequence[Any],
    device: Device = CPU,
) -> Traced:
    """Trace a function of `x` that runs one copy per set of weights."""
    held: list[Any] = [weights, extras]
    build = queued_chain if device.is_gpu and len(weights) > 1 else chain
    return Traced(lambda image: build(operator, image, held[0], held[1]), [x], held, device)


def dummy_weights(operator: Operator) -> list[Any]:
    """Allocate and fill the weights of one copy."""
    return [
        tf.fill(shape, tf.constant(_WEIGHT_VALUE if dtype in _FLOATS else 1, dtype))
        for shape, dtype in operator.weights
    ]


def resident(arrays: Sequence[Array], device: Device = CPU) -> list[Any]:
    """Copy host arrays into tensors of the device."""
    with device.here():
        return [tf.constant(array) for array in arrays]


def run_of(
    host_inputs: Sequence[Array],
    outputs: Sequence[Any],
    execution: Phase,
    isolated: Sampler,
    functions: Sequence[Traced],
    device: Device = CPU,
) -> Built:
    """Make the phases of a layer or a network.

    ``preprocess`` copies host arrays into tensors of the device, ``execution`` runs the function on
    resident tensors, ``postprocess`` copies the outputs to host arrays.
    """

    def free() -> None:
        for function in functions:
            function.release()
        # Reference cycles of the graphs hold kernels; automatic collection is too rare.
        if next(_freed) % _TRACED_CYCLES == 0:
            gc.collect()

    return Built.of_phases(
        device.timed(lambda: resident(host_inputs, device)),
        execution,
        WallClock(lambda: [output.numpy() for output in outputs]),
        isolated,
        free,
    )


def layer_run(
    operator: Operator, costs_ms: Mapping[str, float], budget_ms: float, device: Device = CPU
) -> Built:
    """Build a layer: a single copy, and as many copies as its time requires.

    XLA would fuse copies with each other, so that it gets a single one.

    Parameters
    ----------
    operator : Operator
    costs_ms : mapping of str to float
        As of `call_costs_ms`: calls and separators of copies are subtracted from execution.
    budget_ms : float
        Limit on the time of one run of the execution phase.
    device : Device
    """
    image = made_up(operator.input_shape, operator.dtype, positive=operator.positive)
    (x,) = resident([image], device)
    with device.here():
        extras = [tf.constant(array) for array in operator.extras()]
        first = dummy_weights(operator)
    alone = traced_copies(operator, x, [first], extras, device)
    run_alone = device.finished(lambda: alone(x))
    output = run_alone()
    weight_bytes = sum(
        math.prod(shape) * tf.as_dtype(dtype).size for shape, dtype in operator.weights
    )
    copies, call_ms = 1, costs_ms["call_ms"]
    if device.compiled != XLA:
        copies = copies_for(
            WallClock(run_alone), call_ms, weight_bytes, budget_ms, MAX_COPIES_PER_RUN
        )
    functions = [alone]
    if copies > 1:
        with device.here():
            more = [dummy_weights(operator) for _ in range(copies - 1)]
        functions.append(traced_copies(operator, x, [first, *more], extras, device))
    timed = functions[-1]
    offset_ms = call_ms + (copies - 1) * costs_ms["link_ms"]
    execution = Phase(device.timed(lambda: timed(x)), offset=offset_ms, copies=copies)
    return run_of([image], [output], execution, WallClock(run_alone), functions, device)


def call_costs_ms(device: Device = CPU) -> dict[str, float]:
    """Measure the cost of a call, of the separator of two copies, and of a Reshape.

    Returns
    -------
    dict
        ``call_ms``, ``link_ms``, ``reshape_ms``: an empty call, one separator of copies, one
        reshape. XLA has neither of the latter: they are 0.
    """
    (x,) = resident([np.ones((1, 4), np.float32)], device)
    copies = 1 if device.compiled == XLA else 64
    nothing = Operator((1, 4), lambda y, *_: y)
    view = Operator((1, 4), lambda y, *_: tf.raw_ops.Reshape(tensor=y, shape=[2, 2]))
    call, links, views = (
        traced_copies(operator, x, [[] for _ in range(count)], [], device)
        for operator, count in ((nothing, 1), (nothing, copies), (view, copies))
    )
    times: dict[Traced, list[float]] = {call: [], links: [], views: []}
    for _ in range(5):  # alternating, so that a slow moment affects all of them
        for traced, times_ms in times.items():
            times_ms.append(median_ms(device.finished(partial(traced, x)), _ROUND_SECONDS))
    call_ms, links_ms, reshapes_ms = (float(np.median(times_ms)) for times_ms in times.values())
    if copies == 1:
        return {"call_ms": call_ms, "link_ms": 0.0, "reshape_ms": 0.0}
    return {
        "call_ms": call_ms,
        "link_ms": max(0.0, (links_ms - call_ms) / (copies - 1)),
        "reshape_ms": max(0.0, (reshapes_ms - links_ms) / copies),
    }


def refused(error: Exception) -> Exception:
    """Convert TensorFlow's error into one of resperf's."""
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return MemoryError(str(error).splitlines()[0])
    return UnsupportedError(f"TensorFlow refuses: {first_line(error)[:200]}")
