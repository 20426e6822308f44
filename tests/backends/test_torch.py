"""PyTorch: what every kind of layer runs, training steps, networks; CUDA against a fake stream."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedInOrt

from resperf.backends import Backend, _chain, backend
from resperf.backends import torch as module
from resperf.backends._base import as_resperf_error
from resperf.backends._ort_kernels import copies_graph
from resperf.backends._torch_devices import Cpu, EventTimer, Filler
from resperf.backends._torch_functions import prepared
from resperf.backends._torch_modules import TorchNetwork, host_inputs, layer_of_torch
from resperf.campaign.sampler import Sampler
from resperf.campaign.spec import Campaign
from resperf.errors import ResperfError, UnsupportedError
from resperf.layers import KINDS, Conv, Dense, Kernel, Layer, Pool, Recurrent, layer_from_key
from resperf.lowering import lower
from resperf.lowering.torch import as_run
from resperf.network import read_network
from resperf.network.weights import materialise, weights_of
from resperf.quantities import PHASES

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
REFUSED = {"reorder", *(kind for kind in KINDS if kind.startswith("quanti"))}
CONV = Conv(batch=2, channels_in=8, channels_out=16, height=9, width=9, kernel_height=3,
            kernel_width=3, activation="relu")  # fmt: skip


@pytest.fixture(scope="module")
def eager() -> Backend:
    return backend("torch", "cpu", threads=1)


@pytest.fixture(scope="module")
def trained() -> Backend:
    return backend("torch", "cpu", threads=1, optimizer="momentum")


def drawn(kind: str, count: int = 8) -> list[Layer]:
    """Draw small layers from the kind's own ranges."""
    campaign = Campaign.from_mapping({
        "name": "test", "kinds": {kind: {}},
        "constraints": {"largest_tensor_bytes": 100_000, "largest_macs": 1_000_000},
    })  # fmt: skip
    return Sampler(campaign, seed=5).draw(count)


def result_of(found: Any) -> Any:
    place = torch.device("cpu")
    made = found.function(found.first_input(place), *found.others(place, found.extras(place)))
    return made[0] if isinstance(made, (tuple, list)) else made


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
def test_every_kind_is_built_and_has_the_output_that_it_says(kind: str, eager: Backend) -> None:
    lowered = eager.lower(drawn(kind))
    refused = []
    for layer in lowered:
        try:
            with eager.layer(layer, budget_ms=0.01) as built:
                assert tuple(built.phases) == PHASES
                assert all(phase.sampler() >= 0 for phase in built.phases.values())
        except UnsupportedError as error:
            refused.append(str(error))
            continue
        found = layer_of_torch(layer)
        made = result_of(found)
        assert made.numel() == math.prod(layer.output_shape)
        if layer.kind != "attention":  # Heads stay an axis of their own.
            assert tuple(made.shape) == found.kernel.output_shape
    assert len(refused) <= len(lowered) * 3 / 4
    assert all("PyTorch" in reason for reason in refused)


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_what_has_no_operator_of_pytorch_is_refused_with_a_reason(kind, eager) -> None:
    with pytest.raises(UnsupportedError, match=r"PyTorch (has|runs) no"):
        eager.layer(eager.lower(drawn(kind, 1))[0], budget_ms=0.2)


COMPARED = (
    "conv", "conv_nd", "conv_transpose", "conv_transpose_nd", "pool", "pool_nd", "dense", "matmul",
    "elementwise", "softmax", "norm", "reduce", "concat", "transpose", "resize", "select",
    "depth_to_space", "einsum", "cumulate", "recurrent", "grid_sample", "activation", "top_k",
    "indexed",
)  # fmt: skip


def by_onnxruntime(kernel: Kernel) -> tuple[Any, dict[str, Any]]:
    """Run a kernel in ONNX Runtime; return its result and all its inputs by name."""
    model, weights, host = copies_graph(kernel, 1)
    for proto in list(model.graph.initializer):
        if proto.name in weights:
            model.graph.initializer.remove(proto)
    given = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    model.graph.initializer.extend(given)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, host)[0], {**weights, **host}


@pytest.mark.parametrize("kind", COMPARED)
def test_results_agree_with_onnx_runtime(kind: str, eager: Backend) -> None:
    compared = 0
    for layer in eager.lower(drawn(kind, 12)):
        try:
            found = layer_of_torch(layer)
            expected, values = by_onnxruntime(found.kernel)
        except (UnsupportedError, NotImplementedInOrt):  # bool, int64: not every kernel has them
            continue
        names = ["x", *(f"w0_{i}" for i in range(len(found.kernel.weight_shapes)))]
        names += [f"extra{i}" for i in range(len(found.kernel.extra_shapes))]
        tensors = {name: torch.from_numpy(np.array(values[name])) for name in names}
        made = _with_values(found, [tensors[name] for name in names])
        # Interpolated integers are rounded in one, cut in the other.
        atol = 1 if kind == "resize" and expected.dtype.kind in "iu" else 2e-5
        np.testing.assert_allclose(made.numpy(), expected, rtol=2e-4, atol=atol, err_msg=layer.key)
        compared += 1
    assert compared >= 3


def _with_values(found: Any, given: list[Any]) -> Any:
    """Run a layer on given tensors in place of made-up ones."""
    rest = [given[place] if 0 <= place < len(given) else None for place in found.order[1:]]
    while rest and rest[-1] is None:
        rest.pop()
    made = found.function(given[0], *(prepared(found.operator, rest) if rest else []))
    return made[0] if isinstance(made, (tuple, list)) else made


def test_activations_and_residuals_are_operators_of_their_own(eager: Backend) -> None:
    residual = CONV.replace(residual=True)
    for layer in eager.lower([CONV, residual]):
        assert layer == CONV.replace(activation="none")
    with pytest.raises(UnsupportedError, match="lower the layer first"):
        eager.layer(CONV, budget_ms=0.2)


def test_a_run_holds_copies_with_weights_of_their_own(eager: Backend, monkeypatch) -> None:
    layer = Dense(batch=1, features_in=512, features_out=512)
    with eager.layer(layer, budget_ms=10.0) as built:
        phase = built.phases["execution_ms"]
        # 1 MB each: more than the caches hold, as far as the budget allows.
        assert phase.copies >= 8
        assert phase.offset == eager.costs()["call_ms"] < 0.1
        marginal_ms = (phase.sampler() - phase.offset) / phase.copies
        assert 0 < marginal_ms < 50


def test_copies_between_host_and_device_are_forced(eager: Backend) -> None:
    """20 MB cannot be copied in 0.1 ms, which a view takes."""
    layer = Pool(batch=1, channels_in=64, height=280, width=280, kernel_height=1, kernel_width=1)
    with eager.layer(layer, budget_ms=1.0) as built:
        assert all(
            built.phases[f"{name}_ms"].sampler() > 0.1 for name in ("preprocess", "postprocess")
        )


def test_channels_last_is_a_setting_of_layers_and_networks() -> None:
    last = backend("torch", "cpu", threads=1, layout="nhwc")
    assert last.setting().layout == "nhwc"
    (layer,) = last.lower([CONV])
    assert layer.layout == "nhwc"
    made = result_of(layer_of_torch(layer))
    assert made.is_contiguous(memory_format=torch.channels_last)
    lowered = lower(read_network(NETWORKS / "alexnet.onnx"), last.setting(), last.platform())
    layers = [node.layer for node in lowered.nodes if node.layer is not None]
    assert {each.layout for each in layers if each.kind in ("conv", "pool")} == {"nhwc"}
    # The classifier reads rows in another order than channels last: one copy.
    assert [each.kind for each in layers].count("transpose") == 1


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_layers_have_the_type_of_the_precision(precision: str, dtype: torch.dtype) -> None:
    half = backend("torch", "cpu", threads=1, precision=precision)
    (layer,) = half.lower([Dense(batch=4, features_in=8, features_out=8)])
    assert layer.dtype == str(dtype).removeprefix("torch.")
    assert result_of(layer_of_torch(layer)).dtype == dtype


def test_autocast_on_a_cpu_is_to_bfloat16_and_leaves_norms_in_single_precision() -> None:
    amp = backend("torch", "cpu", threads=1, precision="amp")
    layers = amp.lower([CONV, KINDS["norm"](batch=1, channels=8, pixels=4)])
    assert [each.dtype for each in layers] == ["bfloat16", "float32"]
    lowered = lower(read_network(NETWORKS / "lenet5.onnx"), amp.setting(), amp.platform())
    types = {node.layer.dtype for node in lowered.nodes if node.layer and node.layer.kind == "conv"}
    assert types == {"bfloat16"}
    with amp.network(NETWORKS / "lenet5.onnx", batch=1) as built:
        assert built.phases["execution_ms"].sampler() > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"precision": "tf32"},
            "precision=tf32 does not exist in PyTorch on cpu; it has fp32, amp",
        ),
        ({"precision": "int8"}, "precision=int8 does not exist"),
        ({"layout": "nchwc8"}, "layout=nchwc8 does not exist in PyTorch on cpu; it has nchw, nhwc"),
        (
            {"compiled": "xla"},
            "compiled=xla does not exist in PyTorch on cpu; it has eager, dynamo",
        ),
        ({"optimizer": "lion"}, "optimizer=lion does not exist in PyTorch on cpu; it has sgd"),
        ({"device": "tpu"}, "device=tpu does not exist in PyTorch; it has cpu, cuda"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"provider": "cuda"}, "torch on cpu has no setting 'provider'"),
    ],
)
def test_what_a_setting_cannot_be_is_said_in_a_line(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ResperfError, match=message):
        backend("torch", "cpu", **words)


def test_a_gpu_that_is_not_there_is_said_in_a_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ResperfError, match=r"no device cuda:1: PyTorch .* finds no CUDA device"):
        backend("torch", "cuda", device="cuda:1")


def test_lack_of_memory_is_a_memory_error() -> None:
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 1 EB")
    assert isinstance(as_resperf_error(error, "PyTorch", "conv"), MemoryError)
    assert isinstance(
        as_resperf_error(torch.OutOfMemoryError("CUDA"), "PyTorch", "conv"), MemoryError
    )
    assert isinstance(as_resperf_error(ValueError("shape"), "PyTorch", "conv"), UnsupportedError)


# Training steps

STEP_TIMES = ("forward_ms", "backward_ms", "update_ms", "step_ms")


def test_a_layer_s_training_step_is_offered_in_its_parts(trained: Backend) -> None:
    assert trained.setting().optimizer == "momentum"
    (layer,) = trained.lower([CONV])
    with trained.layer(layer, budget_ms=0.5) as built:
        values = {name: phase.sampler() for name, phase in built.phases.items()}
    assert list(values) == [*STEP_TIMES, "peak_memory_bytes"]
    assert min(values.values()) > 0
    # Input, output, gradients of both, weights with gradient and momentum; no more than twice that.
    floor = 2 * (layer.input_bytes + layer.output_bytes) + 3 * layer.weight_bytes
    assert floor <= values["peak_memory_bytes"] <= 3 * floor


def test_layers_without_weights_have_no_update_and_those_without_gradient_no_step(trained) -> None:
    pool = Pool(batch=1, channels_in=4, height=8, width=8, kernel_height=2, kernel_width=2)
    with trained.layer(pool, budget_ms=0.5) as built:
        assert "update_ms" not in built.phases
        assert built.phases["backward_ms"].sampler() > 0
    compared = layer_from_key(
        "elementwise:batch=1,outer=1,middle=1,inner=8,function=equal,second=same,dtype=float32"
    )
    with pytest.raises(UnsupportedError, match="no gradient"):
        trained.layer(compared, budget_ms=0.5)


def test_a_network_s_training_step_updates_its_weights(trained: Backend) -> None:
    with trained.network(NETWORKS / "lenet5.onnx", batch=2) as built:
        values = {name: phase.sampler() for name, phase in built.phases.items()}
        assert built.isolated() > 0
    parts_ms = [values[name] for name in ("forward_ms", "backward_ms", "update_ms")]
    assert min(parts_ms) > 0
    # LeNet-5 has 61,706 weights: values, gradients and momentum.
    assert values["peak_memory_bytes"] > 3 * 4 * 61_706


def test_the_peak_of_a_training_step_has_inputs_and_statistics(
    trained: Backend, network_file
) -> None:
    """Four million bytes of input, and a million of each of four vectors of a normalisation."""
    channels = 250_000
    names = ["scale", "bias", "mean", "variance"]
    nodes = [onnx.helper.make_node("BatchNormalization", ["x", *names], ["y"])]
    weights = {name: np.full(channels, 1 + i, np.float32) for i, name in enumerate(names)}
    path = network_file("n.onnx", nodes, {"x": [1, channels, 2, 2]}, {"y": None}, weights)
    with trained.network(path, batch=None) as built:
        peak = built.phases["peak_memory_bytes"].sampler()
        process = built.phases["process_memory_bytes"].sampler()
    # Also the output and its gradient, momentum and gradients of two vectors, the batch's two.
    least = 4e6 + 4e6 + 2 * 4e6 + 2 * 2e6 + 2e6
    assert least <= peak <= 1.3 * least
    assert process > peak


def test_a_bias_that_is_also_a_running_mean_is_trained_and_the_mean_is_not(
    trained: Backend, network_file
) -> None:
    """Exporters write the equal constants of an untrained network once."""
    names = ["x", "scale", "zeros", "zeros", "scale"]
    nodes = [onnx.helper.make_node("BatchNormalization", names, ["y"])]
    weights = {"scale": np.ones(3, np.float32), "zeros": np.zeros(3, np.float32)}
    path = network_file("n.onnx", nodes, {"x": [2, 3, 4, 4]}, {"y": None}, weights)
    network = as_run(read_network(path), trained.setting())
    found = TorchNetwork(network, weights_of(path), torch.device("cpu"), training=True)
    assert sum(each.requires_grad for each in found.parameters()) == 2
    assert sum(each.numel() for each in (*found.parameters(), *found.buffers())) == 4 * 3
    with trained.network(path, batch=None) as built:
        assert built.phases["step_ms"].sampler() > 0


def test_constants_that_an_exporter_wrote_once_are_weights_of_their_own(
    trained: Backend, network_file
) -> None:
    """Untrained normalisations: the second one's weights and statistics are copies by Identity."""
    copied = [("scale", "b"), ("zeros", "c"), ("c", "mean"), ("b", "variance")]
    nodes = [
        *(onnx.helper.make_node("Identity", [source], [name]) for source, name in copied),
        onnx.helper.make_node("BatchNormalization", ["x", "scale", "zeros", "c", "b"], ["m"]),
        onnx.helper.make_node("BatchNormalization", ["m", "b", "c", "mean", "variance"], ["y"]),
    ]
    weights = {"scale": np.ones(3, np.float32), "zeros": np.zeros(3, np.float32)}
    path = network_file("n.onnx", nodes, {"x": [2, 3, 4, 4]}, {"y": None}, weights)
    network = as_run(read_network(path), trained.setting())
    found = TorchNetwork(network, weights_of(path), torch.device("cpu"), training=True)
    assert sum(each.requires_grad for each in found.parameters()) == 4
    with trained.network(path, batch=None) as built:
        assert built.phases["step_ms"].sampler() > 0


def dropping(network_file: Any, ratio: float) -> Path:
    """Write a product of ones with a matrix of ones, of which dropout drops a share."""
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["m"]),
        onnx.helper.make_node("Dropout", ["m", "ratio", "training"], ["y"]),
    ]
    weights = {
        "w": np.ones((1, 1000), np.float32), "ratio": np.array(ratio, np.float32),
        "training": np.array(True),
    }  # fmt: skip
    path: Path = network_file("dropout.onnx", nodes, {"x": [10, 1]}, {"y": None}, weights)
    return path


def test_dropout_drops_values_in_training_alone(trained, eager, network_file) -> None:
    path = dropping(network_file, 0.2)
    for backend_, values in ((trained, {0.0, 1.25}), (eager, {1.0})):
        network = as_run(read_network(path), backend_.setting())
        training = backend_ is trained
        ours = TorchNetwork(network, weights_of(path), torch.device("cpu"), training=training)
        (y,) = ours(torch.ones(10, 1))
        assert set(y.unique().tolist()) == values
        # Of 10,000 values, 40 is a standard deviation of the number that is dropped.
        assert not training or abs(float((y == 0).sum()) - 2000) < 400
    with trained.network(path, batch=None) as built:
        assert built.phases["step_ms"].sampler() > 0


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rmsprop", "adam", "adadelta"])
def test_every_optimizer_updates(optimizer: str) -> None:
    step = module.TorchStep
    weight = torch.zeros(3, requires_grad=True)
    made = step(lambda: [weight * 2], [], [weight], optimizer)
    before = weight.detach().clone()
    made.step()
    assert (weight.detach() < before).all()
    assert weight.grad is None


# Networks


@pytest.mark.parametrize("name", ["lenet5", "squeezenet1_1", "mobilenet_v2"])
def test_a_network_computes_what_onnx_runtime_computes(name, eager, tmp_path) -> None:
    path = NETWORKS / f"{name}.onnx"
    model, large = materialise(path, batch=1)
    for proto in model.graph.initializer:
        if proto.name in large:
            proto.CopyFrom(onnx.numpy_helper.from_array(np.array(large[proto.name]), proto.name))
    network = as_run(read_network(path, batch=1), eager.setting())
    ours = TorchNetwork(network, weights_of(path, batch=1), torch.device("cpu"))
    (image,) = host_inputs(network)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    with torch.inference_mode():
        (made,) = ours(image)
    np.testing.assert_allclose(made.numpy(), expected, atol=1e-3 * np.abs(expected).max())


def saved(path: Path, nodes: list[Any], shape: list[int]) -> Path:
    """Write a network from x to y of one shape."""
    info = onnx.helper.make_tensor_value_info
    ends = [info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_values_of_a_network_are_freed_behind_their_last_reader(eager, tmp_path) -> None:
    """Ten functions of 4 MB one after the other need the input, and two values at a time."""
    names = ["x", *(f"v{i}" for i in range(9)), "y"]
    nodes = [
        onnx.helper.make_node("Tanh", [before], [after])
        for before, after in itertools.pairwise(names)
    ]
    with eager.network(saved(tmp_path / "n.onnx", nodes, [1, 10**6]), batch=None) as built:
        assert built.phases["peak_memory_bytes"].sampler() == pytest.approx(3 * 4e6, rel=0.01)


def test_weights_that_a_network_computes_are_read_when_it_runs(eager, tmp_path) -> None:
    """A product's bias, and the bounds of a Clip, need not be constants."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.random((3, 3), np.float32), "low": np.array(0.5, np.float32)}
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "w", "x"], ["product"]),
        onnx.helper.make_node("Exp", ["low"], ["bound"]),
        onnx.helper.make_node("Clip", ["product", "bound"], ["y"]),
    ]
    path = saved(tmp_path / "n.onnx", nodes, [2, 3])
    model = onnx.load(path)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in weights.items()
    )
    onnx.save(model, path)
    network = as_run(read_network(path), eager.setting())
    made = TorchNetwork(network, weights, torch.device("cpu"))
    x = torch.from_numpy(rng.random((2, 3), np.float32))
    expected = np.maximum(x.numpy() @ weights["w"] + x.numpy(), np.exp(0.5))
    np.testing.assert_allclose(made(x)[0].detach().numpy(), expected, rtol=1e-5)


def test_an_operator_that_pytorch_lacks_is_named(eager: Backend, tmp_path: Path) -> None:
    node = onnx.helper.make_node("Hardmax", ["x"], ["y"], name="hardest")
    path = saved(tmp_path / "net.onnx", [node], [2, 3])
    with pytest.raises(UnsupportedError, match="Hardmax 'hardest': PyTorch has no Hardmax"):
        eager.network(path, batch=None)


def test_overheads_between_layers_are_measured_on_a_cpu(eager: Backend, monkeypatch) -> None:
    monkeypatch.setattr(_chain, "CHAIN_ROUNDS", 1)
    monkeypatch.setattr(_chain, "CHAIN_SECONDS", 0.001)
    monkeypatch.setattr(module, "weights_costs", lambda copies_ms: {"w": copies_ms(DENSE, 3)})
    costs = eager.overheads_between_layers()
    assert costs.keys() == {"overhead_ms_per_layer", "overhead_ms_per_mb", "w"}
    assert min(costs.values()) >= 0
    assert costs["w"] > 0


DENSE = Dense(batch=1, features_in=64, features_out=64)


def test_compiled_layers_and_networks_run_what_dynamo_made(monkeypatch) -> None:
    """With TorchDynamo's own test compiler: Inductor takes 20 seconds and a compiler of C++."""
    monkeypatch.setattr(module, "COMPILER", "eager")
    compiled = backend("torch", "cpu", threads=1, compiled="dynamo")
    assert compiled.setting().is_compiled
    (layer,) = compiled.lower([CONV])
    with compiled.layer(layer, budget_ms=1.0) as built:
        assert built.phases["execution_ms"].copies <= module.COMPILED_COPIES
        assert built.phases["execution_ms"].sampler() > 0
    with compiled.network(NETWORKS / "lenet5.onnx", batch=1) as built:
        assert built.phases["execution_ms"].sampler() > 0
    counted = torch._dynamo.utils.counters
    assert counted["stats"]["unique_graphs"] >= 1
    assert not counted["graph_break"]


# CUDA, against a stream with a clock of its own


@dataclass
class Stream:
    """A device that runs kernels one after the other, and a host that queues some of them."""

    host_ms: float = 0.0
    busy_until_ms: float = 0.0
    slept_ms: list[float] = field(default_factory=list)
    queue: int = 1_000_000
    queued_until_ms: list[float] = field(default_factory=list)

    def launch(self, device_ms: float, host_ms: float) -> None:
        self.host_ms += host_ms
        self.queued_until_ms = [end_ms for end_ms in self.queued_until_ms if end_ms > self.host_ms]
        if len(self.queued_until_ms) >= self.queue:
            self.host_ms = self.queued_until_ms[-self.queue]
        self.busy_until_ms = max(self.busy_until_ms, self.host_ms) + device_ms
        self.queued_until_ms.append(self.busy_until_ms)

    def sleep(self, cycles: int) -> None:
        self.slept_ms.append(cycles / 1e6)
        self.launch(cycles / 1e6, 0.001)

    def wait(self) -> None:
        self.host_ms = max(self.host_ms, self.busy_until_ms)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Let PyTorch have one CUDA device whose tensors lie in the host's memory."""
    made = Stream()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at_ms = math.inf

        def record(self) -> None:
            self.at_ms = max(made.busy_until_ms, made.host_ms)

        def query(self) -> bool:
            return self.at_ms <= made.host_ms

        def synchronize(self) -> None:
            made.host_ms = max(made.host_ms, self.at_ms)

        def elapsed_time(self, other: Event) -> float:
            return other.at_ms - self.at_ms

    fakes: dict[str, Any] = {
        "Event": Event, "_sleep": made.sleep, "synchronize": made.wait,
        "set_device": lambda _: None, "is_available": lambda: True, "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "mem_get_info": lambda: (10**9, 2 * 10**9), "memory_allocated": lambda: 300,
        "max_memory_allocated": lambda: 1000, "reset_peak_memory_stats": lambda: None,
        "max_memory_reserved": lambda: 1500,
    }  # fmt: skip
    for name, fake in fakes.items():
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(
        "resperf.backends._torch_devices._torch_device", lambda _: torch.device("cpu")
    )
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    return made


def test_device_times_do_not_contain_the_host_s(stream: Stream) -> None:
    """Ten kernels of 0.01 ms, of which the host queues one in 0.03 ms."""

    def run() -> None:
        for _ in range(10):
            stream.launch(0.01, 0.03)

    assert EventTimer(run, Filler())() == pytest.approx(0.1)
    # The filler was too short at first, since the host's own clock is not the stream's.
    assert len(stream.slept_ms) > 3
    assert stream.slept_ms[-1] > 0.3
    # As the host starts them, they wait for it.
    assert EventTimer(run)() == pytest.approx(9 * 0.03 + 0.01, rel=0.2)


def test_a_cuda_device_is_timed_by_events_and_its_allocator(stream: Stream) -> None:
    cuda = backend("torch", "cuda", device="cuda:0", threads=1, precision="tf32")
    assert torch.backends.cuda.matmul.allow_tf32
    assert cuda.setting().provider == "CUDA"
    with cuda.layer(DENSE, budget_ms=1.0) as built:
        assert tuple(built.phases) == PHASES
        assert isinstance(built.phases["execution_ms"].sampler, EventTimer)
        assert isinstance(built.phases["preprocess_ms"].sampler, EventTimer)
    with cuda.network(NETWORKS / "lenet5.onnx", batch=1) as built:
        # 1000 at the peak, of 300 before the run, which held what the network keeps.
        resident = built.phases["peak_memory_bytes"].sampler() - 700
        assert resident == 4 * (61_706 + 28 * 28)
        assert built.phases["peak_reserved_bytes"].sampler() == resident + 1200
    assert cuda.costs()["dispatch_ms"] > 0
    assert cuda.overheads_between_layers() == {}
    backend("torch", "cuda", threads=1)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


def test_a_network_s_step_on_a_card_is_timed_as_the_host_starts_it(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update is six kernels of 0.01 ms that the host queues in 0.5 ms each."""

    def update(self: module.TorchStep) -> None:
        for _ in range(6):
            stream.launch(0.01, 0.5)
        self.clear()

    monkeypatch.setattr(module.TorchStep, "update", update)
    cuda = backend("torch", "cuda", threads=1, optimizer="sgd")
    with cuda.network(NETWORKS / "lenet5.onnx", batch=1) as built:
        values = {name: built.phases[name].sampler() for name in ("step_ms", "device_step_ms")}
        assert values == pytest.approx({"step_ms": 6 * 0.5 + 0.01, "device_step_ms": 0.06}, rel=0.1)
        assert "process_memory_bytes" not in built.phases
    # A queue that is too short for all kernels: the host waits, and the device then waits for it.
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: stream.launch(0.0, 0.001))
    with cuda.network(NETWORKS / "lenet5.onnx", batch=1) as built:
        assert "device_step_ms" not in built.phases


def test_a_run_of_more_kernels_than_the_queue_holds_does_not_wait_longer_and_longer(
    stream: Stream,
) -> None:
    """The filler was doubled for ever: the third sample of a training step waited for minutes."""
    stream.queue = 20

    def run() -> None:
        for _ in range(30):
            stream.launch(0.01, 0.03)

    timer = EventTimer(run, Filler())
    longest_ms = []
    for _ in range(4):
        timer()
        longest_ms.append(stream.slept_ms[-1])
    assert not timer.was_ahead
    assert longest_ms == [longest_ms[0]] * 4


@pytest.mark.parametrize("optimizer", ["", "sgd"])
def test_a_run_holds_as_many_copies_as_the_queue(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    stream.queue = 20

    def linear(x: Any, weight: Any, _bias: Any) -> Any:
        stream.launch(0.001, 0.001)
        return torch.matmul(x, weight.T)

    monkeypatch.setattr("resperf.backends._torch_functions.F.linear", linear)
    monkeypatch.setattr(module, "copies_for", lambda *_: 64)
    cuda = backend("torch", "cuda", threads=1, optimizer=optimizer)
    with cuda.layer(DENSE, budget_ms=1.0) as built:
        assert built.phases["forward_ms" if optimizer else "execution_ms"].copies == 16


def test_a_card_that_runs_nothing_any_more_ends_the_process(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind one bad index every network was "unsupported": only a new process can go on."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    cuda = backend("torch", "cuda", threads=1)
    with monkeypatch.context() as patch:
        patch.setattr("resperf.backends._torch_functions.F.linear", broken)
        with pytest.raises(UnsupportedError, match="device-side assert"):
            cuda.layer(DENSE, budget_ms=1.0)  # An error of this operator alone.
        patch.setattr(torch.cuda, "synchronize", broken)
        with pytest.raises(RuntimeError, match="device-side assert"):
            cuda.layer(DENSE, budget_ms=1.0)


def test_a_constant_of_unknown_integers_fits_the_smallest_table(tmp_path: Path) -> None:
    """Of BERT's types of tokens, which are too many to be computed beforehand at batch 64."""
    absent = onnx.TensorProto(dims=[5000], data_type=onnx.TensorProto.INT64, name="types")
    absent.data_location = onnx.TensorProto.EXTERNAL
    absent.external_data.add(key="location", value="absent")
    table = onnx.numpy_helper.from_array(np.ones((2, 4), np.float32), "table")
    nodes = [onnx.helper.make_node("Gather", ["table", "types"], ["rows"]),
             onnx.helper.make_node("Add", ["rows", "x"], ["y"])]  # fmt: skip
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [5000, 4]) for n in "xy"]
    graph = onnx.helper.make_graph(nodes, "types", ends[:1], ends[1:], [absent, table])
    (path := tmp_path / "types.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with backend("torch", "cpu", threads=1).network(path, batch=None) as built:
        assert built.phases["execution_ms"].sampler() > 0


def test_a_recurrent_layer_is_trained_and_keeps_its_weights_in_one_buffer(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN refuses a backward pass outside training, and else copies the weights in each run."""
    layer = Recurrent(batch=2, steps=3, features=4, hidden=5, directions=2, cell="lstm")
    modes: list[bool] = []
    lstm = torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *given: (modes.append(given[6]), lstm(*given))[1])
    for optimizer in ("", "sgd"):
        with backend("torch", "cuda", threads=1, optimizer=optimizer).layer(layer, budget_ms=1.0):
            assert set(modes) == {optimizer == "sgd"}
            modes.clear()


def test_what_is_larger_than_a_card_s_free_memory_is_refused(stream: Stream) -> None:
    cuda = backend("torch", "cuda", threads=1)
    large = Dense(batch=1, features_in=1, features_out=300_000_000)
    with pytest.raises(MemoryError, match=r"needs about 3.6 GB, and 1.0 GB are free"):
        cuda.layer(large, budget_ms=1.0)
    with pytest.raises(ResperfError, match="no device cuda:3: this machine has 1"):
        backend("torch", "cuda", device="cuda:3")


def test_a_cpu_is_timed_by_the_wall_clock() -> None:
    order: list[str] = []
    sampler: Callable[[], float] = Cpu().timer(
        lambda: order.append("run"), lambda: order.append("before")
    )
    assert sampler() >= 0
    assert order == ["before", "run"]
