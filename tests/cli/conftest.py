"""A small bundle for this machine and ONNX Runtime, from closed-form times."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from resperf.backends import backend
from resperf.dataset import Dataset, DatasetInfo, write_dataset
from resperf.layers import Conv, Dense, Layer, Pool
from resperf.lowering.onnxruntime import block_size
from resperf.measurement import Measurement, Samples, Status, StopReason
from resperf.platform import this_platform
from resperf.quantities import PHASES
from resperf.testing.synthetic import closed_form_ms
from resperf.training import train

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle" / "bundle.json"
NETWORKS = Path(__file__).parents[2] / "models" / "networks"
ROWS = 60
MY_CARD = {
    "name": '"My Card"', "class": '"cuda"', "peak_tflops": "{ fp32 = 15.7, fp16 = 125.0 }",
    "bandwidth_gb_s": "900.0", "memory_gib": "16", "cache_mib": "6", "multiprocessors": "80",
    "boost_mhz": "1530", "board_w": "300", "process_nm": "12", "bus": '"PCIe 3.0 x16"',
    "bus_gb_s": "15.75",
}  # fmt: skip


def layers() -> list[Layer]:
    """Draw layers around those of LeNet, the same each time."""
    draw = random.Random(3)
    made: dict[str, Layer] = {}
    while len(made) < 3 * ROWS:
        size, batch = draw.randint(5, 40), draw.randint(1, 16)
        channels = draw.choice([1, 3, 6, 8, 16, 32])
        choices = [
            Conv(batch=batch, channels_in=channels, height=size, width=size, kernel_height=5,
                 kernel_width=5, channels_out=draw.choice([6, 16, 32]), activation="relu",
                 layout=f"nchwc{block_size() or 16}"),
            Pool(batch=batch, channels_in=channels, height=size, width=size, kernel_height=2,
                 kernel_width=2, stride_height=2, stride_width=2),
            Dense(batch=batch, features_in=draw.randint(50, 500),
                  features_out=draw.randint(8, 150), activation="relu"),
        ]  # fmt: skip
        layer = choices[len(made) % 3]
        made.setdefault(layer.key, layer)
    return list(made.values())


def _row(layer: Layer) -> Measurement:
    phases = {
        phase: Samples((closed_form_ms(layer, phase, 50.0, 5.0),) * 5, 5, 1, StopReason.PRECISE)
        for phase in PHASES
    }
    return Measurement(
        layer, Status.OK, phases, setting=backend("onnxruntime", threads=1).setting(),
        platform=this_platform("cpu"), isolated_ms=1.0, call_ms=0.02, started_at=1.0,
        reference_ratio=1.0,
    )  # fmt: skip


@pytest.fixture
def dense_network(network_file) -> Callable[[int | str], Path]:
    """Write a network of a dense layer and an activation, its batch size a number or a name."""

    def write(batch: int | str) -> Path:
        nodes = [
            make_node("Gemm", ["x", "w", "b"], ["h"], "fc"),
            make_node("Relu", ["h"], ["y"], "act"),
        ]
        weights = {"w": np.zeros((256, 128), np.float32), "b": np.zeros(128, np.float32)}
        return network_file("net.onnx", nodes, {"x": [batch, 256]}, {"y": [batch, 128]}, weights)

    return write


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Path:
    """Train the baseline, which needs no framework, on layers of closed-form times."""
    folder = tmp_path_factory.mktemp("bundles")
    info = DatasetInfo(
        setting=backend("onnxruntime", threads=1).setting(),
        platform=this_platform("cpu"),
        campaign={"name": "by hand"},
        seed=0,
        versions={"resperf": "0"},
        created="2026-01-01T00:00:00+00:00",
        machine_costs={
            "call_ms": 0.02, "reshape_ms": 0.001, "overhead_ms_per_layer": 0.0,
            "overhead_ms_per_mb": 0.0,
        },
    )  # fmt: skip
    write_dataset(folder / "rows.h5", Dataset(info, tuple(_row(layer) for layer in layers())))
    train(folder / "rows.h5", folder / "cpu-onnxruntime", method="baseline", device="cpu")
    return folder / "cpu-onnxruntime"


@pytest.fixture
def home(monkeypatch, tmp_path) -> Path:
    """Hide the bundles of this user and of the checkout."""
    monkeypatch.setenv("RESPERF_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("resperf.bundle._search._SHIPPED", ())
    return tmp_path


@pytest.fixture
def card_bundle(home: Path):
    """Write a bundle of dense layers on some cards, among those of the user."""

    def write(
        name: str, *cards: str, method: str = "gianniti", date: str = "2026-01-01", **setting
    ):
        manifest = json.loads(GOLDEN.read_text())
        [_, part] = manifest["parts"]
        of_setting = {**manifest["settings"]["1-1"], "framework": "torch", **setting}
        platform = manifest["platforms"]["1-0-0"]
        part |= {
            "device": cards[0], "framework": of_setting["framework"], "method": method,
            "platforms": list(cards), "settings": ["0"], "costs": {},
        }  # fmt: skip
        part["transfers"] = {}
        predictor = part["predictors"]["dense"]["execution_ms"]
        predictor |= {"method": method}
        manifest |= {
            "created": f"{date}T00:00:00+00:00",
            "parts": [part],
            "files": {},
            "settings": {"0": of_setting},
            "platforms": {card: {**platform, "device": card} for card in cards},
        }
        folder = home / "bundles" / name
        folder.mkdir(parents=True)
        (folder / "bundle.json").write_text(json.dumps(manifest))
        return folder

    return write


@pytest.fixture
def my_card(home: Path, no_own_cards):
    """Write the facts of a card, some of them changed or left out."""

    def write(**changed: str | None) -> Path:
        facts = {**MY_CARD, **changed}
        lines = [f"{name} = {value}" for name, value in facts.items() if value is not None]
        path = home / "mycard.toml"
        path.write_text("\n".join(["[mycard]", *lines]))
        return path

    return write
