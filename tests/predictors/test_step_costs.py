"""Training steps on CPUs as sums of what operators cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resperf import predict
from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.errors import ResperfError
from resperf.measurement import Measurement, NetworkRef, Samples, Status, StopReason
from resperf.network import Network, Node, Tensor, graph_digest, read_network, weightless
from resperf.platform import Platform
from resperf.predictors import Examples
from resperf.predictors.step_costs import TERMS, StepCosts, step_terms
from resperf.settings import Mode, Setting
from resperf.training import train

NETWORKS = Path(__file__).parents[2] / "models" / "networks"
NAMES = ("lenet5", "alexnet", "vgg11", "resnet18", "mobilenet_v2", "squeezenet1_1")
SGD = Setting("torch", mode=Mode.TRAINING, optimizer="sgd", precision="fp32")
CPU = Platform("cpu")


def network_of(
    nodes: list[tuple[str, list[str], str, dict[str, Any]]], shapes: dict[str, tuple[int, ...]]
) -> Network:
    """Nodes as (op, inputs, output, attributes); x is the input, names with w are weights."""
    return Network(
        "net",
        tuple(
            Node(output, op, "", tuple(inputs), (output,), attributes)
            for op, inputs, output, attributes in nodes
        ),
        {
            name: Tensor(name, shape, "float32", is_weight=name.startswith("w"))
            for name, shape in shapes.items()
        },
        ("x",), (nodes[-1][2],), {"": 17}, shapes["x"][0],
    )  # fmt: skip


def test_terms_by_hand() -> None:
    """A convolution of an image, one of 16 channels, and a product of 4 rows."""
    network = network_of(
        [
            ("Conv", ["x", "w1"], "a", {"kernel_shape": (3, 3)}),
            ("Relu", ["a"], "r", {}),
            ("Conv", ["r", "w2"], "b", {"kernel_shape": (1, 1)}),
            ("Flatten", ["b"], "f", {}),
            ("MatMul", ["f", "w3"], "y", {}),
        ],
        {
            "x": (4, 3, 10, 10), "w1": (16, 3, 3, 3), "a": (4, 16, 8, 8), "r": (4, 16, 8, 8),
            "w2": (32, 16, 1, 1), "b": (4, 32, 8, 8), "f": (4, 2048), "w3": (2048, 10),
            "y": (4, 10),
        },
    )  # fmt: skip
    terms = step_terms(network, SGD)[0]
    assert set(terms) == set(TERMS)
    first, second, product = 4 * 16 * 64 * 27, 4 * 32 * 64 * 16, 4 * 2048 * 10
    few = 2 * 2 * first / 1e9  # an image has no gradient
    products = 3 * 2 * product / 1e9
    assert terms["GFLOP of few channels"] == pytest.approx(few)
    assert terms["GFLOP of products"] == pytest.approx(products)
    assert terms["GFLOP"] == pytest.approx(few + products + 3 * 2 * second / 1e9)
    # The ReLU of few values is computed by one thread.
    copies = 2 + 2 + 3 * 3  # of the first, whose image is read as it is, and of the second
    assert terms["operators"] == 3
    assert terms["shared operators"] == pytest.approx(3 * 3 + copies / 3)
    w1, a = 4 * 16 * 27, 4 * 4 * 16 * 64
    w2, b = 4 * 32 * 16, 4 * 4 * 32 * 64
    copied = (w1 + a) + (a + w1) + 3 * (a + w2 + b)  # an image of 3 channels is read as it is
    assert terms["MB of copied"] == pytest.approx(copied / 1e6)
    weights = 4 * (16 * 27 + 32 * 16 + 20480)
    assert terms["MB of updated"] == pytest.approx(3 * weights / 1e6)
    factors, relu = 3 * 4 * 20480, 2 * 2 * a
    assert terms["MB"] == pytest.approx((copied + 3 * weights + factors + relu) / 1e6)
    adam = step_terms(network, SGD.with_optimizer("adam"))[0]
    assert adam["MB of updated"] == pytest.approx(19 * weights / 1e6)


def test_cells_cost_their_steps_and_large_blocks_are_mapped_anew() -> None:
    def recurrent(op: str, gates: int, steps: int) -> dict[str, float]:
        network = network_of(
            [(op, ["x", "w", "wr"], "y", {"hidden_size": 64, "linear_before_reset": 1})],
            {
                "x": (steps, 2, 32), "w": (1, gates * 64, 32), "wr": (1, gates * 64, 64),
                "y": (steps, 1, 2, 64),
            },
        )  # fmt: skip
        return step_terms(network, SGD)[0]

    gru, longer = recurrent("GRU", 3, 10), recurrent("GRU", 3, 20)
    assert longer["operators"] == 2 * gru["operators"] == 20 * 32
    assert longer["shared operators"] - gru["shared operators"] == 10 * 3
    assert recurrent("LSTM", 4, 10)["steps of LSTMs"] == 10
    assert recurrent("RNN", 1, 10)["operators"] < gru["operators"]
    wide = network_of(
        [("MatMul", ["x", "w"], "y", {})], {"x": (1, 4096), "w": (4096, 4096), "y": (1, 4096)}
    )
    assert step_terms(wide, SGD)[0]["MB mapped"] == pytest.approx(4 * 4096**2 / 1e6)
    assert gru["MB mapped"] == 0


def test_costs_are_found_again() -> None:
    networks, times_ms = [], []
    for name in NAMES:
        for batch in (1, 2, 4, 8, 16):
            networks.append(read_network(NETWORKS / f"{name}.onnx", batch=batch))
            terms = step_terms(networks[-1], SGD)[0]
            started = 0.1 * terms["shared operators"] + 0.3 * terms["MB mapped"]
            times_ms.append(2.0 * terms["GFLOP"] + 0.04 * terms["MB"] + started)
    rows = Examples(networks, "step_ms", np.array(times_ms), [SGD], [CPU])
    fitted = StepCosts("network").fit(rows, validation=rows, seed=0)
    times = fitted.predict(networks, SGD, CPU)["step_ms"].values
    errors = np.abs(times / np.array(times_ms) - 1)
    assert np.median(errors) < 0.01
    assert errors.max() < 0.2
    twice = read_network(NETWORKS / "vgg11.onnx", batch=64)
    account = fitted.account(twice, SGD, CPU)
    assert account.extrapolated
    assert not account.left_out


def test_a_bundle_answers_for_other_optimizers_and_says_what_tensors_need(tmp_path: Path) -> None:
    graphs = {name: weightless(NETWORKS / f"{name}.onnx") for name in NAMES}
    rows = []
    for name, graph in graphs.items():
        for batch in (1, 2, 4, 8):
            network = read_network(NETWORKS / f"{name}.onnx", batch=batch)
            terms = step_terms(network, SGD)[0]
            step_ms = 2.0 * terms["GFLOP"] + 0.1 * terms["MB"] + 0.1 * terms["shared operators"]
            samples = {"step_ms": Samples((step_ms,), 1, 0, StopReason.BUDGET)}
            setting = Setting(
                "torch", "2.13.0", batch=batch, mode=Mode.TRAINING, optimizer="sgd",
                precision="fp32",
            )  # fmt: skip
            rows.append(
                Measurement(
                    NetworkRef(name, graph_digest(graph)), Status.OK, samples, setting=setting,
                    platform=CPU,
                )
            )  # fmt: skip
    info = DatasetInfo(
        rows[0].setting, CPU, {"name": "toy"}, 1, {}, "2026-01-02T03:04:05+00:00", {},
        quantities=("step_ms",),
    )  # fmt: skip
    path = tmp_path / "steps.h5"
    write_dataset(path, Dataset(info, tuple(rows), {graph_digest(g): g for g in graphs.values()}))
    train(path, tmp_path / "steps", method="step-costs")
    sgd, adam = (
        predict("resnet18", batch=8, bundle=tmp_path / "steps", training=True, optimizer=optimizer)
        for optimizer in ("sgd", "adam")
    )
    weights = 4 * 11_689_512
    steps_ms = [one.parts.quantity("step_ms").value for one in (sgd, adam)]
    assert steps_ms[1] - steps_ms[0] == pytest.approx(0.1 * 16 * weights / 1e6, rel=0.1)
    assert any("adam is added by the bytes that it moves" in note for note in adam.remarks.notes)
    peaks = [one.parts.quantity("peak_memory_bytes").value for one in (sgd, adam)]
    assert peaks[1] - peaks[0] == pytest.approx(2 * weights, rel=0.01)


def test_the_shipped_bundle_answers_for_training_alone() -> None:
    step = predict("resnet18", device="cpu", batch=8, training=True)
    assert (step.subject.framework, step.subject.device) == ("torch", "cpu")
    assert step.parts.quantity("step_ms").value > 0
    run = predict("resnet18", device="cpu", batch=8)
    assert run.subject.framework == "onnxruntime"
    with pytest.raises(ResperfError, match="no device or bundle 'cpu' with framework 'torch'"):
        predict("resnet18", device="cpu", framework="torch")
