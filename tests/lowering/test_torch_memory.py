"""What a training step allocates, by hand on small networks and against autograd by operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resperf.errors import UnsupportedError
from resperf.lowering._torch_memory import (
    CELLS,
    IN_PLACE,
    SAVED_BESIDES,
    SAVED_FACTORS,
    SAVED_INPUTS,
    SAVED_RESULTS,
    StepMemory,
    memory_of,
)
from resperf.lowering.torch import run_kernels, run_tensors
from resperf.network import Network, Node, Tensor, read_network
from resperf.settings import Setting

Shape = tuple[int, ...]
TYPES = {"i": "int64"}
IMAGE, ROWS, HEADS = (2, 8, 6, 6), (4, 10, 16), (2, 3, 10, 4)


def setting(optimizer: str = "sgd") -> Setting:
    return Setting("torch", "2.9.1").with_optimizer(optimizer)


def network_of(
    nodes: list[tuple[str, list[str], list[str], Mapping[str, Any]]],
    shapes: Mapping[str, Shape],
    values: Mapping[str, Any] | None = None,
) -> Network:
    """Nodes as (op, inputs, outputs, attributes); names that begin with w are weights, and i is of
    integers.
    """
    tensors = {
        name: Tensor(name, shape, TYPES.get(name, "float32"), is_weight=name.startswith("w"))
        for name, shape in shapes.items()
    }
    for name, value in (values or {}).items():
        array = np.asarray(value)
        tensors[name] = Tensor(name, array.shape, array.dtype.name, array, is_weight=True)
    computed = {name for _, _, outputs, _ in nodes for name in outputs}
    inputs = tuple(name for name in shapes if name not in computed and not name.startswith("w"))
    return Network(
        "net",
        tuple(
            Node(f"n{index}", op, "", tuple(inputs), tuple(outputs), attributes)
            for index, (op, inputs, outputs, attributes) in enumerate(nodes)
        ),
        tensors, inputs, (nodes[-1][2][0],), {"": 23}, 2,
    )  # fmt: skip


def memory_for(network: Network, setting: Setting, **how: bool) -> StepMemory:
    return memory_of(run_tensors(network, setting), setting, **how)


def kept_bytes(memory: StepMemory) -> int:
    return sum(size for what, size in memory.allocations if what.startswith("kept for"))


CASES: Mapping[str, tuple[str, list[Shape], Shape, Mapping[str, Any], Mapping[int, Any]]] = {
    **{
        name: (op, [ROWS], ROWS, {}, {})
        for name, op in (
            ("abs", "Abs"), ("cos", "Cos"), ("elu", "Elu"), ("erf", "Erf"), ("gelu", "Gelu"),
            ("hardsigmoid", "HardSigmoid"), ("hardswish", "HardSwish"),
            ("leaky_relu", "LeakyRelu"), ("log", "Log"), ("selu", "Selu"), ("silu", "Swish"),
            ("sin", "Sin"), ("softplus", "Softplus"), ("exp", "Exp"), ("sqrt", "Sqrt"),
            ("reciprocal", "Reciprocal"), ("relu", "Relu"), ("sigmoid", "Sigmoid"),
            ("tanh", "Tanh"), ("_softmax", "Softmax"), ("_log_softmax", "LogSoftmax"),
        )
    },
    "clamp": ("Clip", [ROWS], ROWS, {}, {1: np.float32(-0.3), 2: np.float32(0.3)}),
    "clamp_min": ("Clip", [ROWS], ROWS, {}, {1: np.float32(-0.3)}),
    "hardtanh": ("Clip", [ROWS], ROWS, {}, {1: np.float32(0), 2: np.float32(6)}),
    "pow": ("Pow", [ROWS], ROWS, {}, {1: np.float32(3)}),
    "prelu": ("PRelu", [IMAGE, (8, 1, 1)], IMAGE, {}, {}),
    "avg_pool2d": (
        "AveragePool", [IMAGE], (2, 8, 3, 3), {"kernel_shape": (2, 2), "strides": (2, 2)}, {},
    ),
    "max_pool2d_with_indices": (
        "MaxPool", [IMAGE], (2, 8, 3, 3), {"kernel_shape": (2, 2), "strides": (2, 2)}, {},
    ),
    "native_batch_norm": ("BatchNormalization", [IMAGE, (8,), (8,), (8,), (8,)], IMAGE, {}, {}),
    "native_group_norm": (
        "GroupNormalization", [IMAGE, (8,), (8,)], IMAGE, {"num_groups": 4}, {},
    ),
    "native_layer_norm": ("LayerNormalization", [ROWS, (16,), (16,)], ROWS, {"axis": -1}, {}),
    "amax": ("ReduceMax", [ROWS], (4, 1, 16), {}, {1: np.array([1])}),
    "amin": ("ReduceMin", [ROWS], (4, 1, 16), {}, {1: np.array([1])}),
    "linalg_vector_norm": ("ReduceL2", [ROWS], (4, 10, 1), {}, {1: np.array([2])}),
    "maximum": ("Max", [ROWS, ROWS], ROWS, {}, {}),
    "minimum": ("Min", [ROWS, ROWS], ROWS, {}, {}),
    "mul": ("Mul", [ROWS, (16,)], ROWS, {}, {}),
    "div": ("Div", [ROWS, ROWS], ROWS, {}, {}),
    "mm": ("MatMul", [ROWS, (16, 24)], (4, 10, 24), {}, {}),
    "addmm": ("Gemm", [(6, 16), (24, 16), (24,)], (6, 24), {"transB": 1}, {}),
    "bmm": ("MatMul", [(4, 10, 16), (4, 16, 12)], (4, 10, 12), {}, {}),
    "convolution": ("Conv", [IMAGE, (4, 8, 3, 3), (4,)], (2, 4, 4, 4), {}, {}),
    "prod": ("ReduceProd", [ROWS], (4, 1, 16), {}, {1: np.array([1])}),
    "sdpa": ("Attention", [HEADS, HEADS, HEADS], HEADS, {}, {}),
}  # fmt: skip
"""PyTorch's operator -> ONNX's; shapes of its inputs, of which the first is computed; constants."""


def case_network(name: str) -> Network:
    """The operator on a tensor that has a gradient: a weight was added to the network's input."""
    op, inputs, result, attributes, constants = CASES[name]
    both = {"bmm", "div", "maximum", "minimum", "sdpa"}
    count = len(inputs) if name in both else 1
    shapes: dict[str, Shape] = {}
    nodes = []
    for index, shape in enumerate(inputs[:count]):
        shapes |= {f"x{index}": shape, f"w{index}": shape[1:], f"y{index}": shape}
        nodes.append(("Add", [f"x{index}", f"w{index}"], [f"y{index}"], {}))
    given = [f"y{index}" for index in range(count)]
    for index, shape in enumerate(inputs[count:]):
        shapes[f"wo{index}"] = shape
        given.append(f"wo{index}")
    values = {f"c{place}": value for place, value in constants.items()}
    given += [f"c{place}" for place in constants]
    shapes["z"] = result
    nodes.append((op, given, ["z"], attributes))
    return network_of(nodes, shapes, values)


def pieces() -> dict[str, Network]:
    """Operators that PyTorch runs for several nodes, or on weights and constants."""
    y = [("Add", ["x", "w"], ["y"], {})]
    square = dict.fromkeys(("x", "w", "y", "a", "z"), (16, 16))
    rows = np.arange(4)
    return {
        "gather": network_of(
            [
                *y,
                ("TopK", ["y", "c"], ["v", "i"], {"axis": 1}),
                ("GatherElements", ["y", "i"], ["z"], {"axis": 1}),
            ],
            {**square, "v": (16, 4), "i": (16, 4), "z": (16, 4)}, {"c": np.array([4])},
        ),
        "addcmul": network_of(
            [*y, ("Mul", ["w1", "y"], ["a"], {}), ("Add", ["w2", "a"], ["z"], {})],
            {**square, "w1": (16,), "w2": (16,)},
        ),
        "where": network_of(
            [*y, ("Where", ["c", "y", "x"], ["z"], {})], square, {"c": np.ones((16, 16), bool)}
        ),
        "index": network_of(
            [*y, ("Gather", ["y", "c"], ["z"], {})], {**square, "z": (4, 16)}, {"c": rows}
        ),
        "embedding": network_of(
            [("Gather", ["w", "c"], ["y"], {}), ("Add", ["y", "x"], ["z"], {})],
            {"w": (9, 16), "y": (4, 16), "x": (4, 16), "z": (4, 16)}, {"c": rows},
        ),
        "mv": network_of(
            [*y, ("MatMul", ["y", "w1"], ["z"], {})], {**square, "w1": (16,), "z": (16,)}
        ),
    }  # fmt: skip


def kept_by_torch(network: Network) -> int:
    """Sum what autograd keeps beside weights, constants and the network's inputs."""
    torch = pytest.importorskip("torch")
    from resperf.backends._torch_modules import TorchNetwork
    from resperf.lowering.torch import as_run

    values = {name: tensor.value for name, tensor in network.tensors.items()}
    given = {name: value for name, value in values.items() if value is not None}
    module = TorchNetwork(as_run(network, setting()), given, torch.device("cpu"), training=True)
    images = [torch.rand(network.tensors[name].shape) + 0.5 for name in network.inputs]
    there = [*module.parameters(), *module.buffers(), *images, *module._values]
    fixed = {t.untyped_storage().data_ptr() for t in there if isinstance(t, torch.Tensor)}
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in fixed and tensor.numel() > 1:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = module(*images)
    assert results[0].requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("name", CASES)
def test_an_operator_keeps_what_autograd_keeps(name: str) -> None:
    network = case_network(name)
    assert run_kernels(network, setting())[-1].op == name
    memory = memory_for(network, setting(), in_place=False)
    assert kept_bytes(memory) == kept_by_torch(network)


@pytest.mark.parametrize("name", pieces())
def test_operators_of_several_nodes_keep_what_autograd_keeps(name: str) -> None:
    network = pieces()[name]
    assert name in {kernel.op for kernel in run_kernels(network, setting())}
    memory = memory_for(network, setting(), in_place=False)
    assert kept_bytes(memory) == kept_by_torch(network)


def test_every_operator_of_the_tables_is_compared() -> None:
    tables = {*SAVED_INPUTS, *SAVED_FACTORS, *SAVED_RESULTS, *SAVED_BESIDES, *IN_PLACE} - CELLS
    assert tables == tables & {*CASES, *pieces(), "rsqrt", "native_dropout"}


def test_the_reciprocal_of_a_root_keeps_its_result_alone() -> None:
    shapes = dict.fromkeys(("x", "w", "y", "a", "z"), (16, 16))
    nodes = [
        ("Add", ["x", "w"], ["y"], {}),
        ("Sqrt", ["y"], ["a"], {}),
        ("Reciprocal", ["a"], ["z"], {}),
    ]
    assert kept_bytes(memory_for(network_of(nodes, shapes), setting())) == 16 * 16 * 4


def test_a_bias_behind_a_transposed_product_is_added_in_place() -> None:
    """As in mixers: the product's result is GELU's input, and not the input's memory."""
    shapes = {"x": (2, 8, 6), "w": (8, 6), "y": (2, 8, 6), "t": (2, 6, 8), "w1": (8, 24)}
    shapes |= {"wb": (24,), "m": (2, 6, 24), "a": (2, 6, 24), "z": (2, 6, 24)}
    nodes = [
        ("Add", ["x", "w"], ["y"], {}),
        ("Transpose", ["y"], ["t"], {"perm": (0, 2, 1)}),
        ("MatMul", ["t", "w1"], ["m"], {}),
        ("Add", ["m", "wb"], ["a"], {}),
        ("Gelu", ["a"], ["z"], {}),
    ]
    network = network_of(nodes, shapes)
    assert [kernel.op for kernel in run_kernels(network, setting())] == [
        "add",
        "bmm",
        "add",
        "gelu",
    ]
    memory = memory_for(network, setting())
    assert kept_bytes(memory) == 4 * 2 * 6 * (8 + 24)


def test_what_is_not_counted_is_named() -> None:
    shapes = dict.fromkeys(("x", "w", "y", "z", "r"), (2, 8, 16, 16))
    shapes = {**shapes, "g": (2, 4, 4, 2), "s": (2, 8, 4, 4), "t": (2, 8, 4, 4)}
    nodes = [
        ("Add", ["x", "w"], ["y"], {}),
        ("GridSample", ["y", "g"], ["s"], {}),
        ("Strange", ["s"], ["q"], {}),
        ("Relu", ["q"], ["u"], {}),
        ("Relu", ["s"], ["t"], {}),
    ]
    memory = memory_for(network_of(nodes, shapes), setting())
    unknown = " ".join(memory.unknown)
    assert "what gridsample keeps for its backward pass is not counted" in unknown
    assert "the shape of 'q' is not known" in unknown


def test_functions_work_in_place_unless_their_input_is_needed() -> None:
    """As in a block behind a normalisation, which keeps its own input only."""
    shapes = dict.fromkeys(("x", "w", "y", "n", "z"), (2, 8, 6, 6))
    shapes = {**shapes, "ws": (8,), "wb": (8,), "wm": (8,), "wv": (8,)}
    nodes = [
        ("Add", ["x", "w"], ["y"], {}),
        ("BatchNormalization", ["y", "ws", "wb", "wm", "wv"], ["n"], {}),
        ("LeakyRelu", ["n"], ["z"], {}),
    ]
    size, statistics = 2 * 8 * 6 * 6 * 4, 2 * 8 * 4
    network = network_of(nodes, shapes)
    assert kept_bytes(memory_for(network, setting())) == 2 * size + statistics
    together = memory_for(network, setting()).allocations
    apart = memory_for(network, setting(), in_place=False).allocations
    assert sum(b for _, b in apart) - sum(b for _, b in together) == size


def test_a_step_by_hand() -> None:
    """y = relu(x w1), z = y w2, of 64 rows with 32, 16 and 8 values of 4 bytes."""
    network = network_of(
        [
            ("MatMul", ["x", "w1"], ["p"], {}),
            ("Relu", ["p"], ["y"], {}),
            ("MatMul", ["y", "w2"], ["z"], {}),
        ],
        {
            "x": (64, 32), "w1": (32, 16), "p": (64, 16), "y": (64, 16), "w2": (16, 8),
            "z": (64, 8),
        },
    )  # fmt: skip
    memory = memory_for(network, setting("adam"), in_place=False)
    w1, w2, x, y, z = 2048, 512, 8192, 4096, 2048
    there = [memory.allocations[number] for number in range(memory.resident)]
    # With Adam's two states, and the given gradient of the network's output.
    assert sum(size for _, size in there) == 3 * (w1 + w2) + x + z
    changes = [
        memory.allocations[event].size_bytes
        if event >= 0
        else -memory.allocations[~event].size_bytes
        for event in memory.events[memory.resident :]
    ]
    forward = [y, y, -y, z]  # the product is freed, its ReLU kept
    second = [w2, y, -y]  # gradients of w2 and y; y is freed, z is there until the end
    first = [y, -y, w1, -y]  # through the ReLU; the input of the network has none
    update = [w1, w2, -w1, -w2, -w2, -w1]  # Adam's roots of all weights at once
    assert sum(changes) == 0
    assert sorted(changes) == sorted([*forward, *second, *first, -z, *update])
    assert changes[:4] == forward


def share_of_measured(network: Network, optimizer: str = "sgd") -> float:
    """Return the simulated peak of a step over the one that PyTorch's allocator reports.

    Without an optimizer, that of a run.
    """
    torch = pytest.importorskip("torch")
    from resperf.backends._torch_devices import Cpu
    from resperf.backends._torch_modules import TorchNetwork
    from resperf.backends.torch import TorchStep
    from resperf.lowering.torch import as_run

    torch.set_num_threads(2)  # One thread convolves single pixels by a product, without oneDNN.
    run = as_run(network, setting(optimizer))
    module = TorchNetwork(run, {}, torch.device("cpu"), training=bool(optimizer))
    image = torch.rand(network.tensors[network.inputs[0]].shape)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    step = TorchStep(lambda: module(image), [], weights, optimizer or "sgd")

    def infer() -> None:
        with torch.inference_mode():
            module(image)

    measured = Cpu().peak_bytes(step.step if optimizer else infer, lambda: 0)()
    threads = replace(setting(optimizer), threads=2)
    memory = memory_for(network, threads, on_cpu=True, in_place=False)
    resident = sum(memory.allocations[number].size_bytes for number in range(memory.resident))
    return (peak_bytes(memory) - resident) / measured


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adadelta", ""])
def test_a_whole_step_is_what_the_allocator_of_a_cpu_serves(optimizer: str) -> None:
    assert share_of_measured(attention_block(), optimizer) == pytest.approx(1, rel=0.001)


def test_convolutions_on_a_cpu_are_copied_and_dropout_keeps_its_factors() -> None:
    network = network_of(
        [
            ("Conv", ["x", "w1"], ["a"], {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}),
            ("Dropout", ["a"], ["d"], {}),
            ("Conv", ["d", "w2"], ["y"], {"kernel_shape": (5, 5)}),
        ],
        {
            "x": (2, 16, 20, 20), "w1": (64, 16, 3, 3), "a": (2, 64, 20, 20), "d": (2, 64, 20, 20),
            "w2": (96, 64, 5, 5), "y": (2, 96, 16, 16),
        },
    )  # fmt: skip
    assert share_of_measured(network) == pytest.approx(1, rel=0.01)


def test_a_run_holds_what_is_still_read_and_what_an_operator_computes_besides() -> None:
    """Two branches that are added, behind a pool, which computes positions."""
    nodes = [
        ("Conv", ["x", "w1"], ["a"], {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}),
        ("Relu", ["a"], ["r"], {}),
        ("MaxPool", ["r"], ["p"], {"kernel_shape": (2, 2), "strides": (2, 2)}),
        ("Conv", ["p", "w2"], ["b"], {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}),
        ("Conv", ["p", "w3"], ["c"], {"kernel_shape": (1, 1)}),
        ("Add", ["b", "c"], ["y"], {}),
    ]
    large, small = (4, 32, 40, 40), (4, 32, 20, 20)
    shapes = {
        "x": (4, 3, 40, 40), "w1": (32, 3, 3, 3), "a": large, "r": large, "p": small,
        "w2": (32, 32, 3, 3), "b": small, "w3": (32, 32, 1, 1), "c": small, "y": small,
    }  # fmt: skip
    network = network_of(nodes, shapes)
    assert share_of_measured(network, "") == pytest.approx(1, rel=0.01)
    modules = memory_for(network, setting(""))  # Their ReLU overwrites its input.
    assert max(size for _, size in modules.allocations) == 4 * 32 * 40 * 40 * 4
    assert modules.allocations[modules.resident + 1].what == "outputs in use"
    assert modules.allocations[modules.resident + 2].what == "copies within operators"


IMAGES = (4, 32, 20, 20)
CONVOLUTIONS: Mapping[str, tuple[Shape, Shape, Shape, Mapping[str, Any]]] = {
    # image, filters, result, attributes
    "of 3 channels": ((4, 3, 40, 40), (16, 3, 3, 3), (4, 16, 38, 38), {}),
    "of 8 channels": ((4, 8, 20, 20), (16, 8, 3, 3), (4, 16, 18, 18), {}),
    "of 24 channels": ((4, 24, 20, 20), (40, 24, 1, 1), (4, 40, 20, 20), {}),
    "of patches": ((2, 3, 96, 96), (64, 3, 32, 32), (2, 64, 3, 3), {"strides": (32, 32)}),
    "beyond the image": (
        IMAGES,
        (32, 32, 3, 3),
        IMAGES,
        {"dilations": (12, 12), "pads": (12,) * 4},
    ),
    "of every second pixel": (IMAGES, (64, 32, 1, 1), (4, 64, 10, 10), {"strides": (2, 2)}),
    "depthwise": (IMAGES, (32, 1, 3, 3), IMAGES, {"group": 32, "pads": (1,) * 4}),
    "depthwise of a large window": (IMAGES, (32, 1, 7, 7), IMAGES, {"group": 32, "pads": (3,) * 4}),
    "groups of 8": (IMAGES, (32, 8, 3, 3), IMAGES, {"group": 4, "pads": (1,) * 4}),
    "groups of 4": (IMAGES, (32, 4, 3, 3), IMAGES, {"group": 8, "pads": (1,) * 4}),
}


@pytest.mark.parametrize("optimizer", ["sgd", ""])
@pytest.mark.parametrize(
    ("name", "last"),
    [*((name, False) for name in CONVOLUTIONS), ("depthwise of a large window", True)],
)
def test_convolutions_take_what_their_kernel_in_onednn_takes(
    name: str, last: bool, optimizer: str
) -> None:
    """The second of two, whose input has a gradient and may have channels last in memory."""
    torch = pytest.importorskip("torch")
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("oneDNN has other kernels, and blocks, on CPUs without AVX-512")
    image, filters, result, attributes = CONVOLUTIONS[name]
    given = tuple(image[axis] for axis in (0, 2, 3, 1)) if last else image
    attributes = {"kernel_shape": filters[2:], **attributes}
    before = (
        ("Transpose", ["x"], ["t"], {"perm": (0, 3, 1, 2)}) if last else ("Abs", ["x"], ["t"], {})
    )
    nodes = [before, ("Mul", ["t", "w0"], ["m"], {}), ("Conv", ["m", "w1"], ["y"], attributes)]
    shapes = {"x": given, "t": image, "w0": image[1:], "m": image, "w1": filters, "y": result}
    assert share_of_measured(network_of(nodes, shapes), optimizer) == pytest.approx(1, rel=0.07)


def test_gradients_of_what_is_concatenated_twice_are_added_up() -> None:
    """As in DenseNets: the gradient of a part is as large as the part."""
    part, pair, three = (4, 16, 20, 20), (4, 32, 20, 20), (4, 48, 20, 20)
    nodes = [
        ("Mul", ["x", "w0"], ["a"], {}),
        ("Sigmoid", ["a"], ["b"], {}),
        ("Concat", ["a", "b"], ["c"], {"axis": 1}),
        ("Conv", ["c", "w1"], ["d"], {"kernel_shape": (1, 1)}),
        ("Concat", ["a", "b", "d"], ["e"], {"axis": 1}),
        ("Conv", ["e", "w2"], ["y"], {"kernel_shape": (1, 1)}),
    ]
    shapes = {
        "x": part, "w0": part[1:], "a": part, "b": part, "c": pair, "w1": (16, 32, 1, 1), "d": part,
        "e": three, "w2": (16, 48, 1, 1), "y": part,
    }  # fmt: skip
    assert share_of_measured(network_of(nodes, shapes)) == pytest.approx(1, rel=0.01)


def test_weights_that_are_written_once_and_copied_are_weights_of_their_own() -> None:
    nodes = [
        ("Identity", ["w1"], ["w2"], {}),
        ("MatMul", ["x", "w1"], ["a"], {}),
        ("MatMul", ["a", "w2"], ["y"], {}),
    ]
    shapes = {"x": (4, 256), "w1": (256, 256), "w2": (256, 256), "a": (4, 256), "y": (4, 256)}
    assert share_of_measured(network_of(nodes, shapes)) == pytest.approx(1, rel=0.01)


def test_outputs_and_their_gradients_are_there_through_the_backward_pass() -> None:
    """As in language models, whose outputs are larger than all else."""
    shapes = {"x": (8, 32), "w1": (32, 64), "a": (8, 64), "w2": (64, 4000), "y": (8, 4000)}
    nodes = [("MatMul", ["x", "w1"], ["a"], {}), ("MatMul", ["a", "w2"], ["y"], {})]
    assert share_of_measured(network_of(nodes, shapes)) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_on_a_cpu_keep_their_gates(op: str, gates: int) -> None:
    """Two layers, the second behind a first whose input is transposed (batch first)."""
    attributes = {"hidden_size": 96} | ({"linear_before_reset": 1} if op == "GRU" else {})
    shapes = {"x": (8, 24, 64), "t": (24, 8, 64)}
    nodes: list[Any] = [("Transpose", ["x"], ["t"], {"perm": (1, 0, 2)})]
    before, width = "t", 64
    for name in "ab":
        shapes |= {f"w{name}": (1, gates * 96, width), f"wr{name}": (1, gates * 96, 96)}
        shapes |= {f"wb{name}": (1, 2 * gates * 96)}
        shapes |= {name: (24, 1, 8, 96), f"s{name}": (24, 8, 96)}
        nodes += [
            (op, [before, f"w{name}", f"wr{name}", f"wb{name}"], [name], attributes),
            ("Squeeze", [name, "axes"], [f"s{name}"], {}),
        ]
        before, width = f"s{name}", 96
    network = network_of(nodes, shapes, {"axes": np.array([1])})
    assert share_of_measured(network) == pytest.approx(1, rel=0.05)
    assert share_of_measured(network, "") == pytest.approx(1, rel=0.05)
    memory = memory_for(network, setting())
    assert f"what {op.lower()} keeps" in " ".join(memory.unknown)  # Not measured on GPUs.


def peak_bytes(memory: StepMemory) -> int:
    live = most = 0
    for event in memory.events:
        number = event if event >= 0 else ~event
        size = memory.allocations[number].size_bytes
        live += size if event >= 0 else -size
        most = max(most, live)
    return most


def attention_block() -> Network:
    """Layer norm, attention of 4 heads, its output added to the input; GELU, mean."""
    rows, heads, wide = (2, 64, 32), (2, 4, 64, 8), (2, 64, 128)
    shapes: dict[str, Shape] = {"x": rows, "w0": rows[1:], "e": rows, "ws": (32,), "wb": (32,)}
    shapes["n"] = rows
    nodes: list[Any] = [
        ("Add", ["x", "w0"], ["e"], {}),
        ("LayerNormalization", ["e", "ws", "wb"], ["n"], {"axis": -1}),
    ]
    for name in "qkv":
        shapes |= {f"w{name}": (32, 32), name: rows, f"{name}4": (2, 64, 4, 8), f"{name}h": heads}
        nodes += [
            ("MatMul", ["n", f"w{name}"], [name], {}),
            ("Reshape", [name, "split"], [f"{name}4"], {}),
            ("Transpose", [f"{name}4"], [f"{name}h"], {"perm": (0, 2, 1, 3)}),
        ]
    shapes |= {"kt": (2, 4, 8, 64), "s": (2, 4, 64, 64), "p": (2, 4, 64, 64), "o": heads}
    shapes |= {"ot": (2, 64, 4, 8), "or": rows, "a": rows, "w1": (32, 128), "h": wide, "g": wide}
    shapes |= {"m": (2, 128), "w2": (128, 10), "z": (2, 10)}
    nodes += [
        ("Transpose", ["kh"], ["kt"], {"perm": (0, 1, 3, 2)}),
        ("MatMul", ["qh", "kt"], ["s"], {}),
        ("Softmax", ["s"], ["p"], {"axis": -1}),
        ("MatMul", ["p", "vh"], ["o"], {}),
        ("Transpose", ["o"], ["ot"], {"perm": (0, 2, 1, 3)}),
        ("Reshape", ["ot", "join"], ["or"], {}),
        ("Add", ["or", "e"], ["a"], {}),
        ("MatMul", ["a", "w1"], ["h"], {}),
        ("Gelu", ["h"], ["g"], {}),
        ("ReduceMean", ["g", "axes"], ["m"], {"keepdims": 0}),
        ("MatMul", ["m", "w2"], ["z"], {}),
    ]
    values = {
        "split": np.array([2, 64, 4, 8]), "join": np.array([2, 64, 32]), "axes": np.array([1]),
    }  # fmt: skip
    return network_of(nodes, shapes, values)


def test_dropout_keeps_a_byte_for_each_value() -> None:
    """As on GPUs; on CPUs a module keeps what it multiplies by."""
    torch = pytest.importorskip("torch")
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.nbytes) or t, lambda t: t
    ):
        torch.native_dropout(torch.ones(4, 16, requires_grad=True), 0.5, True)
    assert saved == [4 * 16]
    nodes = [
        ("MatMul", ["x", "w1"], ["h"], {}),
        ("Dropout", ["h"], ["d"], {}),
        ("MatMul", ["d", "w2"], ["y"], {}),
    ]
    shapes = {"x": (4, 8), "w1": (8, 16), "h": (4, 16), "d": (4, 16), "w2": (16, 4), "y": (4, 4)}
    memory = memory_for(network_of(nodes, shapes), setting())
    kept = [one.size_bytes for one in memory.allocations if one.what == "kept for native_dropout"]
    assert kept == [4 * 16]
    with pytest.raises(UnsupportedError, match="'lion' is not known; known: sgd"):
        memory_for(network_of(nodes, shapes), setting("lion"))


def test_group_norms_scale_all_channels_by_one_number_too() -> None:
    shape = (4, 16, 12, 12)
    nodes = [
        ("Mul", ["x", "w0"], ["m"], {}),
        ("GroupNormalization", ["m", "ws", "wb"], ["y"], {"num_groups": 1}),
    ]
    shapes = {"x": shape, "w0": shape[1:], "m": shape, "ws": (16,), "wb": (1,), "y": shape}
    assert share_of_measured(network_of(nodes, shapes)) == pytest.approx(1, rel=0.05)


def test_statistics_of_weights_that_a_network_computes_have_no_gradient() -> None:
    """As networks without normalisers scale their filters."""
    nodes = [
        ("ReduceMean", ["w0", "axes"], ["mean"], {"keepdims": 0}),
        ("Mul", ["w0", "w0"], ["squares"], {}),
        ("ReduceMean", ["squares", "axes"], ["variance"], {"keepdims": 0}),
        ("BatchNormalization", ["w0", "ws", "wb", "mean", "variance"], ["scaled"], {}),
        ("Reshape", ["scaled", "to"], ["filters"], {}),
        ("Conv", ["x", "filters"], ["y"], {"kernel_shape": (3, 3)}),
    ]
    shapes = {
        "w0": (1, 16, 36), "mean": (16,), "squares": (1, 16, 36), "variance": (16,), "ws": (16,),
        "wb": (16,), "scaled": (1, 16, 36), "filters": (16, 4, 3, 3), "x": (2, 4, 10, 10),
        "y": (2, 16, 8, 8),
    }  # fmt: skip
    values = {"axes": np.array([0, 2]), "to": np.array([16, 4, 3, 3])}
    assert share_of_measured(network_of(nodes, shapes, values)) == pytest.approx(1, rel=0.5)


SHIPPED = Path(__file__).parents[2] / "models" / "networks"


@pytest.mark.parametrize("optimizer", ["sgd", ""])
@pytest.mark.parametrize(
    "name", ["alexnet", "densenet121", "googlenet", "mobilenet_v2", "resnet18", "unet"]
)
def test_shipped_networks_take_what_the_allocator_of_a_cpu_serves(
    name: str, optimizer: str
) -> None:
    torch = pytest.importorskip("torch")
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("oneDNN has other kernels, and blocks, on CPUs without AVX-512")
    network = read_network(SHIPPED / f"{name}.onnx", batch=2)
    assert share_of_measured(network, optimizer) == pytest.approx(1, rel=0.02)
