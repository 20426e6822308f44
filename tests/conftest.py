"""Every test has folders of its own: nothing reads or writes the user's home."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from resperf import devices
from resperf.cli.main import main
from resperf.layers import (
    Activation,
    Conv,
    Dense,
    Elementwise,
    Layer,
    Pool,
    QuantizedDense,
    Transpose,
)
from resperf.lowering._trt_kernels import BINDINGS
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.platform import Platform
from resperf.settings import Setting

# One thread is enough for small layers, and lets tests run beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# TensorFlow's threads of small networks mostly wait for each other: a fit takes half the time.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


def pytest_collection_finish() -> None:
    """Set TensorFlow's threads, which a process sets once, whatever test comes first."""
    if (tensorflow := sys.modules.get("tensorflow")) is not None:
        tensorflow.config.threading.set_inter_op_parallelism_threads(1)
        tensorflow.config.threading.set_intra_op_parallelism_threads(1)


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point every folder that resperf looks into at an empty one."""
    root = tmp_path_factory.mktemp("user")
    monkeypatch.setenv("HOME", str(root / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(root / "data"))
    monkeypatch.delenv("RESPERF_HOME", raising=False)
    return root


@pytest.fixture
def tensorrt_rtx() -> None:
    """Skip a test where TensorRT for RTX, which says what TensorRT runs, is not installed."""
    pytest.importorskip(BINDINGS, reason="pip install 'resperf[tensorrt-rtx]'")


@pytest.fixture
def no_own_cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the cards that a test adds."""
    with monkeypatch.context() as patched:
        patched.setattr(devices, "_added", {})
        yield
    for cached in (devices.devices, devices.device_facts, devices._names):
        cached.cache_clear()


class CommandLine:
    """Runs commands of resperf in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: object, code: int = 0) -> Any:
        """Return what a command with this exit status prints: `out` and `err`."""
        self._capsys.readouterr()
        ended = main([*map(str, words)])
        shown = self._capsys.readouterr()
        assert ended == code, shown.err
        return shown

    def text(self, *words: object) -> str:
        """Return what a command that succeeds prints on stdout."""
        return self.run(*words).out

    def json(self, *words: object) -> Any:
        """Return the JSON of a command that succeeds."""
        return json.loads(self.text(*words, "--json"))

    def document(self, *words: object) -> Any:
        """Return the only document of the JSON list that a command prints."""
        [found] = self.json(*words)
        return found

    def error(self, *words: object) -> str:
        """Return the error of a command that is refused: one line, or click's lines on usage."""
        shown = self.run(*words, code=2)
        if not shown.err.startswith("Usage: "):
            assert shown.err.startswith("resperf: error: ")
            assert shown.err.count("\n") == 1
        assert shown.out == ""
        return shown.err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Run commands: ``cli.json("predict", path, "--device", "cpu")``."""
    return CommandLine(capsys)


NetworkFile = Callable[..., Path]


@pytest.fixture
def network_file(tmp_path: Path) -> NetworkFile:
    """Write an ONNX file: ``network_file("n.onnx", nodes, {"x": [1, 4]}, {"y": None}, {"w": w})``.

    Inputs and outputs are of `dtype`, unless one is given as (type, shape); weights are arrays.
    """

    def write(name, nodes, inputs, outputs, weights=None, dtype=onnx.TensorProto.FLOAT) -> Path:
        def infos(tensors):
            return [
                helper.make_tensor_value_info(key, *(v if isinstance(v, tuple) else (dtype, v)))
                for key, v in tensors.items()
            ]

        values = [numpy_helper.from_array(array, key) for key, array in (weights or {}).items()]
        graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), values)
        opsets = [helper.make_opsetid(domain, 17) for domain in {"", *(n.domain for n in nodes)}]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path

    return write


@pytest.fixture
def perceptron(network_file: NetworkFile) -> NetworkFile:
    """Write a network of dense layers: ``perceptron("a.onnx", 64, 10, end="Softmax")``."""

    def write(name: str, *widths: int, end: str = "") -> Path:
        kinds = ["Gemm"] * (len(widths) - 1) + [end] * bool(end)
        nodes = [
            helper.make_node(
                kind, [f"t{i}", f"w{i}"][: 1 + (kind == "Gemm")], [f"t{i + 1}"], f"n{i}"
            )
            for i, kind in enumerate(kinds)
        ]
        weights = {f"w{i}": np.ones(pair, np.float32) for i, pair in enumerate(pairwise(widths))}
        ends = {"t0": ["batch", widths[0]]}, {f"t{len(nodes)}": None}
        return network_file(name, nodes, *ends, weights)

    return write


def _toy_layers(kind: str, rows: int, random: np.random.Generator) -> list[Layer]:
    """Draw different layers of one kind, spread evenly over the logarithm of their sizes."""

    def draw(low: int, high: int) -> int:
        return int(np.exp(random.uniform(np.log(low), np.log(high + 1))))

    def pick(*words: str) -> str:
        return str(random.choice(words))

    def features() -> dict[str, int]:
        return {"features_in": draw(8, 2048), "features_out": draw(8, 2048)}

    layers: dict[str, Layer] = {}
    while len(layers) < rows:
        kernel, size = draw(1, 5), draw(6, 60)
        window = {
            "batch": draw(1, 8), "channels_in": draw(4, 128), "height": size,
            "width": size + draw(1, 4), "kernel_height": kernel, "kernel_width": kernel,
            "stride_height": draw(1, 2), "stride_width": draw(1, 2), "pad_top": kernel // 2,
            "pad_bottom": kernel // 2,
        }  # fmt: skip
        make: dict[str, Callable[[], Layer]] = {
            "conv": lambda w=window: Conv(
                **w, channels_out=draw(4, 128), activation=pick("none", "relu")
            ),
            "pool": lambda w=window: Pool(**w),
            "activation": lambda: Activation(
                batch=draw(1, 16), values=draw(64, 500_000), activation=pick("relu", "tanh")
            ),
            "dense": lambda: Dense(batch=draw(1, 16), **features()),
            "quantized_dense": lambda: QuantizedDense(
                batch=draw(1, 64), **features(), function=pick("linear", "integer")
            ),
            "transpose": lambda: Transpose(
                batch=draw(1, 8), dim1=draw(4, 64), dim2=draw(4, 256), dim3=draw(4, 64),
                order=pick("132", "213", "321"),
            ),
            "elementwise": lambda: Elementwise(
                batch=draw(1, 16), inner=draw(16, 100_000), function=pick("add", "mul", "div"),
                second="same",
            ),
        }  # fmt: skip
        layer = make[kind]()
        layers[layer.key] = layer
    return list(layers.values())


def toy_time_ms(layer: Layer) -> float:
    """Closed form: 4 us, 20 GMAC/s, 10 GB/s, and relu at 5 GB/s."""
    relu_bytes = layer.output_bytes * (getattr(layer, "activation", "none") == "relu")
    return 0.004 + layer.macs / 20e6 + layer.moved_bytes / 10e6 + relu_bytes / 5e6


ToyRows = Callable[..., tuple[list[Layer], np.ndarray]]


@pytest.fixture(scope="session")
def toy_rows() -> ToyRows:
    """Layers of a kind with closed-form times: ``toy_rows("conv", 60, noise=0.02)``."""

    def make(
        kind: str, rows: int, *, seed: int = 1, noise: float = 0.0
    ) -> tuple[list[Layer], np.ndarray]:
        random = np.random.default_rng(seed)
        layers = _toy_layers(kind, rows, random)
        times_ms = np.array([toy_time_ms(layer) for layer in layers])
        return layers, times_ms * np.exp(random.normal(0, noise, len(layers)))

    return make


@pytest.fixture(scope="session")
def toy_dataset(toy_rows: ToyRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 80 layers of each kind, ten of them measured twice, with 1% noise."""
    pytest.importorskip("h5py")
    from resperf.dataset import Dataset, DatasetInfo, write_dataset

    def phase(time_ms: float) -> Samples:
        return Samples((time_ms,) * 5, 5, 1, StopReason.PRECISE)

    setting = Setting(threads=2, framework="synthetic", framework_version="1", provider="none")
    platform = Platform(
        device="toy",
        processor="P",
        instruction_set="avx2",
        cores=2,
        memory_bytes=8 << 30,
        system="Linux",
    )
    rows = []
    for kind in ("conv", "pool", "dense"):
        layers, times_ms = toy_rows(kind, 80, noise=0.01)
        again = [
            (layer, time_ms * 1.02, 1)
            for layer, time_ms in zip(layers[:10], times_ms, strict=False)
        ]
        first = [(layer, time_ms, 0) for layer, time_ms in zip(layers, times_ms, strict=True)]
        for layer, time_ms, repeat in (*first, *again):
            phases = {
                "preprocess_ms": phase(0.002 + layer.input_bytes / 8e6),
                "execution_ms": phase(float(time_ms)),
                "postprocess_ms": phase(0.003 + layer.output_bytes / 5e6),
            }
            rows.append(
                Measurement(
                    layer, Status.OK, phases, setting=setting, platform=platform, repeat=repeat,
                    started_at=len(rows),
                )
            )  # fmt: skip
    info = DatasetInfo(
        setting, platform, {"name": "toy"}, 1, {}, "2026-01-02T03:04:05+00:00",
        {"call_ms": 0.01, "reshape_ms": 0.001},
    )  # fmt: skip
    path = tmp_path_factory.mktemp("toy") / "toy.h5"
    write_dataset(path, Dataset(info, tuple(rows)))
    return path


JUSTUS_COLUMNS = (
    "activation_fct,batchsize,channels_in,channels_out,gpu,kernelsize,matsize,optimizer,padding,"
    "precision,strides,timeUsed_max,timeUsed_median,timeUsed_min,timeUsed_std,use_bias"
)
PERFNET_COLUMNS = (
    "batchsize,matsize,kernelsize,channels_in,channels_out,strides,padding,activation_fct,"
    "use_bias,time_max,time_min,time_median,time_mean,time_trim_mean"
)
SESSION_MS = 0.1


@pytest.fixture(scope="session")
def justus_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 made-up convolutions as Justus et al. wrote theirs, every second one a training step.

    20 GFLOP/s forward, three times that for a step, and a call of 0.1 ms.
    """
    random = np.random.default_rng(4)
    lines = [JUSTUS_COLUMNS]
    for row in range(400):
        batch, size, kernel = random.integers(1, 17), random.integers(8, 65), random.integers(1, 6)
        channels_in, channels_out = random.integers(1, 33, 2)
        optimizer = random.integers(1, 7) if row % 2 else 0
        gflop = 2e-9 * batch * size**2 * kernel**2 * channels_in * channels_out
        layer_ms = (0.002 + gflop / 20 * 1e3) * (3 if optimizer else 1)
        median_ms = SESSION_MS + layer_ms * random.normal(1, 0.01)
        lines.append(
            f"{row % 4},{batch},{channels_in},{channels_out},0,{kernel},{size},{optimizer},1,32,1,"
            f"{median_ms * 1.02:.6g},{median_ms:.6g},{median_ms * 0.99:.6g},0.01,{row % 3 == 0}"
        )
    path = tmp_path_factory.mktemp("justus") / "toy_convolution.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def perfnet_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 made-up convolutions as the authors of PerfNet wrote theirs: 0.2 ms and 10 GFLOP/s."""
    random = np.random.default_rng(5)
    lines = [PERFNET_COLUMNS]
    for row in range(200):
        batch, size, kernel = random.integers(1, 17), random.integers(8, 65), random.integers(1, 6)
        channels_in, channels_out = random.integers(1, 33, 2)
        gflop = 2e-9 * batch * size**2 * kernel**2 * channels_in * channels_out
        median_ms = (0.2 + gflop / 10 * 1e3) * random.normal(1, 0.01)
        lines.append(
            f"{batch},{size},{kernel},{channels_in},{channels_out},1,1,{row % 2},1,"
            f"{median_ms * 1.1:.6g},{median_ms * 0.9:.6g},{median_ms:.6g},1,1"
        )
    path = tmp_path_factory.mktemp("perfnet") / "toy_convolution.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def noisy_dataset(toy_dataset: Path, tmp_path: Path) -> Path:
    """The dense layers of the toy dataset, each once, 24 of 80 flagged."""
    from resperf.dataset import Dataset, read_dataset, write_dataset

    toy = read_dataset(toy_dataset)
    dense = [row for row in toy.measurements if row.layer.kind == "dense" and row.repeat == 0]
    rows = [
        dataclasses.replace(
            row,
            flags=("drift",) if place < 24 else (),
            reference_ratio=1.0,
            isolated_ms=1.0,
            call_ms=0.1,
        )
        for place, row in enumerate(dense)
    ]
    write_dataset(tmp_path / "noisy.h5", Dataset(toy.info, tuple(rows)))
    return tmp_path / "noisy.h5"


@pytest.fixture
def compared() -> Callable[..., Any]:
    """A result whose predictions are off by a share: ``compared("boosted", 0.05, rows=500)``."""
    from resperf.predictors.metrics import errors, errors_by_time, r_squared
    from resperf.training import Compared

    def make(
        method: str,
        off: float,
        *,
        kind: str = "conv",
        rows: int = 1000,
        floor: float = 0.01,
        fold_mapes: tuple[float, ...] = (),
    ) -> Compared:
        measured_ms = np.geomspace(0.05, 20, 40)
        predicted_ms = measured_ms * (1 + off)
        return Compared(
            kind=kind, phase="execution", method=method, rows_trained=rows,
            rows_validation=rows // 10, errors=errors(measured_ms, predicted_ms),
            bins=errors_by_time(measured_ms, predicted_ms),
            r2=r_squared(measured_ms, predicted_ms), fold_mapes=fold_mapes, fit_s=12.34,
            predict_us=5.67, noise_floor=floor, measured_ms=measured_ms,
            predicted_ms=predicted_ms,
        )  # fmt: skip

    return make
