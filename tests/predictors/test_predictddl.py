"""PredictDDL's regressors on made rows: which forms can express what, grids, and their files."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from resperf.errors import UnsupportedError
from resperf.features.ghn2 import CHANNELS, GHN2, KERNELS, SIZE, Embedding
from resperf.features.primitives import TYPES
from resperf.network import Network, read_network
from resperf.network.files import shipped_networks
from resperf.platform import Platform
from resperf.predictors import Examples, predictor_class
from resperf.predictors import predictddl as module
from resperf.predictors.network_totals import counted
from resperf.settings import Mode, Setting

linear_model = pytest.importorskip("sklearn.linear_model")

SETTING = Setting("torch", "2.13.0", mode=Mode.TRAINING, optimizer="sgd")
NAMES = ("alexnet", "vgg11", "lenet5", "squeezenet1_1", "zfnet", "nin")
FORMS = ("", "-types", "-linear", "-full", "-log", "-svr", "-mlp")


@pytest.fixture(autouse=True)
def vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of a small untrained graph network: these tests are about regressors."""
    rng = np.random.default_rng(0)
    shapes = {
        "types": (len(TYPES), SIZE), "norm.weight": (SIZE,), "norm.bias": (SIZE,),
        "channels": (len(CHANNELS), 8), "kernels": (len(KERNELS), 8),
        **{f"mlp{part}.0.weight": (16, SIZE) for part in ("", "_sp")},
        **{f"mlp{part}.0.bias": (16,) for part in ("", "_sp")},
        **{f"mlp{part}.1.weight": (SIZE, 16) for part in ("", "_sp")},
        **{f"mlp{part}.1.bias": (SIZE,) for part in ("", "_sp")},
        **{f"gru.{part}.weight": (3 * SIZE, SIZE) for part in ("read", "held")},
        **{f"gru.{part}.bias": (3 * SIZE,) for part in ("read", "held")},
    }  # fmt: skip
    weights = {name: rng.normal(size=shape) / 6 for name, shape in shapes.items()}
    types = {name: w for name, w in weights.items() if name not in ("channels", "kernels")}
    networks = {"ghn2": GHN2(weights), "ghn2-paper": GHN2(types)}
    monkeypatch.setattr(Embedding, "load", lambda name: Embedding(networks[name], {}, []))


def cluster(devices: int, device: str = "v100") -> Platform:
    return Platform(device, devices=devices)


def rows(step_ms: Callable[[Network, int], float], devices=(1, 2, 3, 4, 6, 8)) -> Examples:
    networks, values, where = [], [], []
    for name in NAMES:
        for batch in (1, 2, 4):
            network = read(name, batch)
            for count in devices:
                networks.append(network)
                values.append(step_ms(network, count))
                where.append(cluster(count))
    return Examples(networks, "step_ms", np.array(values), [SETTING], where)


@cache
def read(name: str, batch: int) -> Network:
    return read_network(shipped_networks()[name], batch=batch)


def fitted(method: str, examples: Examples) -> module.PredictDDL:
    return predictor_class(method)("network").fit(examples, validation=examples, seed=0)


def predicted(predictor: module.PredictDDL, examples: Examples) -> np.ndarray:
    values = np.zeros(len(examples))
    for setting, platform, places in examples.by_setting():
        networks = [examples.networks[place] for place in places]
        values[places] = predictor.predict(networks, setting, platform)["step_ms"].values
    return values


def worst(method: str, learnt: Examples, judged: Examples) -> float:
    return float(np.abs(predicted(fitted(method, learnt), judged) / judged.values - 1).max())


def squares(network: Network, devices: int) -> float:
    return 3 + network.batch + 0.2 * network.batch**2 + 0.5 * devices + 0.1 * devices**2


def product(network: Network, devices: int) -> float:
    return 3 + network.batch * devices


def ratio(network: Network, devices: int) -> float:
    flops = counted(network).totals.flops
    return 1e-7 * (flops + 1) / (devices + 1)


def test_each_form_has_the_terms_that_the_paper_says(monkeypatch) -> None:
    # Six networks are too few to choose the ridge by those left out.
    ridge = linear_model.Ridge(1e-5)
    monkeypatch.setattr(module, "_chosen", lambda _, __, x, y, ___: ridge.fit(x, y))
    unseen = {"devices": (5, 7)}
    for method in ("predictddl", "predictddl-types", "predictddl-full"):
        assert worst(method, rows(squares), rows(squares, **unseen)) < 1e-3, method
    assert worst("predictddl-linear", rows(squares), rows(squares, **unseen)) > 0.02
    # First and second powers cannot say that a step is work x devices.
    assert worst("predictddl", rows(product), rows(product, **unseen)) > 0.2
    assert worst("predictddl-full", rows(product), rows(product, **unseen)) < 1e-3
    assert worst("predictddl-log", rows(ratio), rows(ratio, **unseen)) < 1e-3
    assert worst("predictddl", rows(ratio), rows(ratio, **unseen)) > 0.2


def test_grids_are_the_papers_and_are_chosen_by_networks_left_out(monkeypatch) -> None:
    seen = []
    chosen = module._chosen

    def watch(model, grid, x, y, groups):
        parts = grid if isinstance(grid, list) else [grid]
        smaller = [{name: values[:2] for name, values in part.items()} for part in parts]
        fit = chosen(model, smaller, x, y, groups)
        seen.append((grid, len(set(groups)), fit.predict(x)))
        return fit

    monkeypatch.setattr(module, "_chosen", watch)
    examples = rows(squares, devices=(1, 2, 4))
    for method in ("predictddl-svr", "predictddl-mlp"):
        predictor = fitted(method, examples)
        grid, groups, answers = seen.pop()
        assert groups == len(NAMES)
        values = np.maximum(answers * examples.values.std() + examples.values.mean(), 0)
        # What is stored gives what scikit-learn gave.
        assert predicted(predictor, examples) == pytest.approx(values, rel=1e-6)
        assert np.abs(values / examples.values - 1).mean() < 0.2
        if method.endswith("svr"):
            linear, rbf = grid
            assert linear["kernel"] == ["linear"]
            assert rbf["C"] == [1, 10, 50, 100, 200, 500, 1000]
            assert rbf["epsilon"] == [0.05, 0.1, 0.2]
            assert rbf["gamma"][1:] == [0.05, 0.1, 0.2, 0.5]
        else:
            assert grid == {"hidden_layer_sizes": [(1,), (2,), (3,), (4,), (5,)]}


@pytest.mark.parametrize("method", [f"predictddl{form}" for form in FORMS if form != "-svr"])
def test_a_stored_predictor_answers_the_same(method: str, tmp_path: Path) -> None:
    examples = rows(squares, devices=(1, 2, 4))
    predictor = fitted(method, examples)
    stored = json.loads(json.dumps(predictor.export(tmp_path, "x")))
    loaded = type(predictor).load(stored, tmp_path)
    assert np.array_equal(predicted(loaded, examples), predicted(predictor, examples))
    assert loaded.most_devices(SETTING, cluster(1)) == 4


def test_what_is_not_known_is_left_out_and_said() -> None:
    examples = rows(squares)
    predictor = fitted("predictddl", examples)
    assert predictor.notes_ == ("not known of every row, left out: cores, memory",)
    two = Examples(
        [*examples.networks, *examples.networks], "step_ms", np.tile(examples.values, 2), [SETTING],
        [*examples.platforms, *(cluster(where.devices, "t4") for where in examples.platforms)],
    )  # fmt: skip
    network = examples.networks[0]
    with pytest.raises(UnsupportedError, match=r"needs device FLOP/s, .* not known of mycard"):
        fitted("predictddl", two).predict([network], SETTING, cluster(2, "mycard"))
    other = Setting("torch", "2.13.0", precision="amp", mode=Mode.TRAINING, optimizer="sgd")
    with pytest.raises(
        UnsupportedError, match="predictddl learnt from networks on torch, training"
    ):
        predictor.predict([network], other, cluster(2))
    alone = examples.select(np.flatnonzero([one.name == "alexnet" for one in examples.networks]))
    (step,) = fitted("predictddl", alone).predict([alone.networks[0]], SETTING, cluster(2)).values()
    assert np.isfinite(step.values).all()  # of one network, its rows are left out
