"""What a network needs of a device's memory at least."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from resperf import predict, predict_within
from resperf.errors import MeasurementError, UnsupportedError
from resperf.lowering import too_large
from resperf.network import read_network
from resperf.prediction import predict_everywhere
from resperf.report.network import everywhere_text, network_text, within_text
from resperf.testing.synthetic import SyntheticBackend
from resperf.workflows.measure import measure_network, reference_monitor

NetworkFile = Callable[..., Path]
MIB = 1 << 20


@pytest.fixture
def path(network_file: NetworkFile) -> Path:
    """Weights of 1 MiB, images of 0.25 MiB each: x -> a -> b, b + x -> y."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("Relu", ["a"], ["b"]),
        make_node("Add", ["b", "x"], ["y"]),
    ]
    weights = {"w": np.ones((512, 512), np.float32)}
    return network_file("n.onnx", nodes, {"x": ["batch", 128, 512]}, {"y": None}, weights)


@pytest.mark.parametrize(
    ("batch", "precision", "needed_mib"),
    # Weights; x and y are always alive; beside them a, which b is written over.
    [(1, "", 1 + 0.75), (8, "fp32", 1 + 6), (8, "fp16", 0.5 + 3), (8, "amp", 1 + 3)],
)
def test_what_is_alive_at_once_is_counted(
    path: Path, batch: int, precision: str, needed_mib: float
) -> None:
    network = read_network(path, batch=batch)
    assert too_large(network, precision, needed_mib * MIB) == ""
    words = too_large(network, precision, needed_mib * MIB - 1)
    assert words.startswith(f"{'512.0 KiB' if precision == 'fp16' else '1.0 MiB'} of weights and ")
    assert "of inputs, outputs and values between operators do not fit into" in words


def test_weights_that_do_not_fit_by_themselves_are_named_alone(path: Path) -> None:
    words = too_large(read_network(path, batch=1), "", MIB / 2)
    assert words == "1.0 MiB of weights do not fit into 512.0 KiB"


def test_attention_that_runs_as_one_kernel_holds_no_scores(network_file: NetworkFile) -> None:
    nodes = [
        make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        make_node("Mul", ["q", "root"], ["q_scaled"]),
        make_node("Mul", ["t", "root"], ["k_scaled"]),
        make_node("MatMul", ["q_scaled", "k_scaled"], ["scores"]),
        make_node("Softmax", ["scores"], ["shares"], axis=-1),
        make_node("MatMul", ["shares", "v"], ["y"]),
    ]
    heads = [1, 8, 4096, 64]  # 8 MiB; scores of 512 MiB
    scale = {"root": np.float32(0.35)}
    path = network_file("a.onnx", nodes, dict.fromkeys("qkv", heads), {"y": None}, scale)
    network = read_network(path)
    assert too_large(network, "", 40 * MIB) == ""
    assert "and 32.0 MiB of inputs, outputs and values" in too_large(network, "", 30 * MIB)


def test_a_prediction_says_so_first_and_strict_refuses(path: Path) -> None:
    fits = predict(path, device="t4", batch=8)
    assert (fits.remarks.too_large, fits.to_json()["too_large"]) == ("", "")
    large = predict(path, device="t4", batch=100_000)
    assert large.total_ms > 0
    second_line = network_text(large).splitlines()[1]
    assert second_line.startswith("TOO LARGE: a run needs ")
    assert second_line.endswith("does not fit into 16.0 GiB of t4")
    assert large.to_json()["too_large"] in second_line
    with pytest.raises(UnsupportedError, match=r"do not fit into 16\.0 GiB of t4"):
        predict(path, device="t4", batch=100_000, strict=True)


def test_a_run_of_pytorch_says_what_it_needs(path: Path) -> None:
    run = predict(path, device="t4", batch=8)
    peak, reserved = (run.parts.quantity(f"peak_{x}_bytes") for x in ("memory", "reserved"))
    assert peak is not None
    assert reserved is not None
    assert peak.value == (1 + 3 * 2) * MIB  # b is written over a
    assert reserved.value == (2 + 20) * MIB  # the allocator asks for segments of these sizes
    assert run.parts.quantity("process_memory_bytes") is None
    text = network_text(run)
    assert "peak_memory" in text
    assert predict(path, device="cpu", batch=8).parts.quantity("peak_memory_bytes") is None


def test_the_largest_batch_in_a_time_fits_into_memory(path: Path) -> None:
    largest = predict_within(path, 1e9, device="t4")
    # 1 MiB and 0.75 for each entry, in blocks of 2 MiB, are at most 16 GiB.
    assert largest.subject.batch == 21_840
    assert "batch 21840 at most" in within_text(largest, 1e9)
    large = predict(path, device="t4", batch=21_841)
    assert "not even batch 1, which is too large" in within_text(large, 1e9)


def test_the_largest_batch_that_strict_answers_is_returned() -> None:
    largest = predict_within("vgg16", 1e9, device="1080ti", strict=True)
    refused = (largest.subject.batch or 0) + 1
    assert f"batch {refused} is refused: " in largest.remarks.notes[-1]
    assert "of 1080ti" in largest.remarks.notes[-1]
    with pytest.raises(UnsupportedError, match="do not fit into"):
        predict("vgg16", device="1080ti", batch=refused, strict=True)


def test_devices_that_it_does_not_fit_are_marked(path: Path) -> None:
    predictions, failures = predict_everywhere(path, framework="torch", batch=60_000)
    lines = everywhere_text(predictions, failures).splitlines()
    marked = {line.split()[0]: "TOO LARGE" in line for line in lines if " 60000 " in line}
    assert marked["t4"]
    assert not marked["h100"]


def test_what_does_not_fit_is_not_measured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reference_monitor(SyntheticBackend()) as monitor:
        monkeypatch.setattr(monitor, "memory_bytes", lambda: MIB)
        with pytest.raises(MeasurementError, match=r"1\.0 MiB of weights and .* smaller batch"):
            measure_network(path, SyntheticBackend(), monitor=monitor, batch=1)
