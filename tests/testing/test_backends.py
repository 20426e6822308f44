"""Backends that run here keep the contract, and each rule catches one that breaks it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from resperf import nvml
from resperf.backends import Built, Phase, backend
from resperf.errors import ResperfError, UnsupportedError
from resperf.layers import KINDS, Dense, Layer
from resperf.platform import Accelerator, Platform
from resperf.quantities import PHASES
from resperf.settings import Setting
from resperf.targets import Target, target, targets
from resperf.testing.backends import (
    TIMED,
    Verdict,
    _fastest,
    check_backend,
    expected_phases,
    small_layers,
)
from resperf.testing.synthetic import SyntheticBackend

SYNTHETIC = target("synthetic")
RULES = {
    "description", "costs", "lowering", "building", "phases", "samples", "growth", "marginal",
    "closing", "memory", "network", "sum",
}  # fmt: skip
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    name: {"threads": 1} for name in ("onnxruntime", "tensorflow", "torch")
}
FEW = (
    "conv", "pool", "dense", "activation", "reorder", "elementwise", "matmul", "softmax", "norm",
    "transpose", "quantized_dense",
)  # fmt: skip
"""Kinds to check where building a layer takes long."""
BUILT: Mapping[str, set[str]] = {
    "onnxruntime": set(KINDS), "synthetic": set(KINDS) - {"reorder"},
}  # fmt: skip
"""Kinds that a framework does not refuse; convolution and dense at least where none is named."""


def has_gpu() -> bool:
    try:
        return bool(nvml.gpus())
    except ResperfError:
        return False


def is_installed(row: Target) -> bool:
    for name in row.packages:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return True
    return not row.packages


CLASSES = ("cpu", "synthetic", *(["cuda"] if has_gpu() else []))
HERE = [
    row for row in targets() if row.backend and row.device_class in CLASSES and is_installed(row)
]


def test_the_targets_of_the_dependencies_are_checked() -> None:
    assert {"onnxruntime/cpu", "synthetic/synthetic"} <= {row.name for row in HERE}


@pytest.mark.parametrize("row", HERE, ids=[row.name for row in HERE])
def test_a_backend_keeps_the_contract(row: Target) -> None:
    try:
        started = backend(row.framework, row.device_class, **SETTINGS.get(row.framework, {}))
    except ResperfError as error:
        if row.device_class != "cuda":
            raise
        pytest.skip(f"{row.name}: {error}")
    kinds = tuple(KINDS) if row.framework in BUILT else FEW
    result = check_backend(started, row, kinds=kinds)
    assert result.of(Verdict.FAILED) == []
    assert result.conforms
    built = {each.subject for each in result.findings if each.rule == "phases"}
    assert built & set(kinds) >= BUILT.get(row.framework, {"conv", "dense"})
    refused = {each.subject for each in result.of(Verdict.REFUSED)}
    assert refused == set(kinds) - built
    assert {each.rule for each in result.findings} == RULES
    # Times of this machine may be disturbed.
    for each in result.findings:
        assert each.verdict is not Verdict.DOUBTFUL or each.rule in TIMED


def test_a_layer_without_weights_has_nothing_to_update() -> None:
    training = Setting("f").with_optimizer("sgd")
    assert expected_phases(training) == ("forward_ms", "backward_ms", "update_ms")
    assert expected_phases(training, learns=False) == ("forward_ms", "backward_ms")
    assert expected_phases(Setting("f"), learns=False) == PHASES


def test_a_marginal_time_is_without_the_call() -> None:
    # Closed-form times of the simulated clock: NODE_MS is in one more copy, SESSION_MS is not.
    with SyntheticBackend().layer(small_layers("dense")[0], budget_ms=1.0) as built:
        alone_ms, marginal_ms = map(_fastest, (Phase(built.isolated), built.phases["execution_ms"]))
    assert alone_ms - marginal_ms == pytest.approx(0.02, abs=1e-6)
    findings = check_backend(SyntheticBackend(), SYNTHETIC, kinds=["dense"]).findings
    assert {each.verdict for each in findings} == {Verdict.PASSED, Verdict.SKIPPED}


class Wrong(SyntheticBackend):
    """A backend that breaks one rule; each subclass says which."""


class OtherName(Wrong):
    def setting(self) -> Setting:
        return dataclasses.replace(super().setting(), framework="tensorflow")


class Forgetful(Wrong):
    """Its setting holds what JSON reads back as something else."""

    def setting(self) -> Setting:
        return dataclasses.replace(super().setting(), shapes={"x": [1, 3]})  # type: ignore[dict-item]


class UnknownCost(Wrong):
    def costs(self) -> Mapping[str, float]:
        return {"call_ms": math.nan}


class OtherKind(Wrong):
    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        return [Dense(batch=1, features_in=8, features_out=8)] * len(layers)


class Merging(Wrong):
    def lower(self, layers: Sequence[Layer]) -> list[Layer]:
        return list(layers)[:1]


class Changed(Wrong):
    """Builds like the simulated device, and changes what it built."""

    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        return self.changed(super().layer(layer, budget_ms=budget_ms), layer)

    def network(
        self, path: Path, *, batch: int | None, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> Built:
        return self.changed_network(super().network(path, batch=batch, shapes=shapes))

    def changed(self, built: Built, _layer: Layer) -> Built:
        return built

    def changed_network(self, built: Built) -> Built:
        return built


class Refusing(Wrong):
    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        raise ValueError("CUDNN_STATUS_NOT_SUPPORTED\nmore")


class Unordered(Changed):
    def changed(self, built: Built, _layer: Layer) -> Built:
        return dataclasses.replace(built, phases=dict(reversed(built.phases.items())))


class OtherUnit(Changed):
    def changed(self, built: Built, _layer: Layer) -> Built:
        peak = Phase(lambda: 1.0, unit="MiB")
        return dataclasses.replace(built, phases={**built.phases, "peak_memory_bytes": peak})


class OtherQuantity(Changed):
    def changed(self, built: Built, _layer: Layer) -> Built:
        return dataclasses.replace(built, phases={**built.phases, "time": Phase(lambda: 1.0)})


class Backwards(Changed):
    """Its events were recorded in the wrong order."""

    def changed(self, built: Built, _layer: Layer) -> Built:
        execution = built.phases["execution_ms"]
        wrong = dataclasses.replace(execution, sampler=lambda: -execution.sampler())
        return dataclasses.replace(built, phases={**built.phases, "execution_ms": wrong})


class Asynchronous(Changed):
    """It does not wait for the device, so that more work takes no longer; launching even less."""

    def changed(self, built: Built, layer: Layer) -> Built:
        launch = self.timer(1e6 / layer.macs)
        phases = {**built.phases, "execution_ms": Phase(launch)}
        return dataclasses.replace(built, phases=phases, isolated=launch)


class Merged(Changed):
    """It divides by copies that the framework did not run: all of them were one."""

    def changed(self, built: Built, _layer: Layer) -> Built:
        whole = built.phases["execution_ms"]
        execution = Phase(lambda: 4 * whole.sampler())
        return dataclasses.replace(built, phases={**built.phases, "execution_ms": execution})


class Lasting(Changed):
    def changed(self, built: Built, _layer: Layer) -> Built:
        class Open(Built):
            def close(self) -> None:
                pass

        return Open(built.phases, built.isolated)


class Boundless(SyntheticBackend):
    def layer(self, layer: Layer, *, budget_ms: float) -> Built:
        return super().layer(small_layers("dense", 1)[0], budget_ms=budget_ms)


class TwoPhases(Changed):
    def changed_network(self, built: Built) -> Built:
        phases = {name: built.phases[name] for name in ("preprocess_ms", "execution_ms")}
        return dataclasses.replace(built, phases=phases)


class OtherLayers(Changed):
    """Its networks run other, slower layers than those that it measures."""

    def changed_network(self, built: Built) -> Built:
        slow = Phase(self.timer(100.0))
        return dataclasses.replace(built, phases={**built.phases, "execution_ms": slow})


@pytest.mark.parametrize(
    ("wrong", "rule", "said"),
    [
        (OtherName, "description", "framework 'tensorflow'"),
        (Forgetful, "description", "setting is another one after JSON"),
        (UnknownCost, "costs", "no reshape_ms; call_ms is nan"),
        (OtherKind, "lowering", "3 layers of kind conv became dense, dense, dense"),
        (Merging, "lowering", "3 layers of kind conv became conv"),
        (Refusing, "building", "ValueError: CUDNN_STATUS_NOT_SUPPORTED"),
        (Unordered, "phases", "phases postprocess_ms, execution_ms, preprocess_ms instead of"),
        (OtherUnit, "phases", "peak_memory_bytes is sampled in 'MiB'"),
        (OtherQuantity, "phases", "no quantity 'time'"),
        (Backwards, "samples", "execution_ms: a run gave -0."),
        (Asynchronous, "growth", "4 times as large, it takes "),
        (Merged, "marginal", "one more copy takes "),
        (Lasting, "closing", "it still runs"),
        (Boundless, "memory", "a layer of 8192.0 TiB was built and run"),
        (TwoPhases, "network", "phases preprocess_ms, execution_ms instead of"),
        (OtherLayers, "sum", "ms, the whole 100"),
    ],
)
def test_a_rule_catches_who_breaks_it(wrong: type[Wrong], rule: str, said: str) -> None:
    result = check_backend(wrong(), SYNTHETIC, kinds=["conv"])
    broken = Verdict.DOUBTFUL if rule in TIMED else Verdict.FAILED
    found = [each for each in result.of(broken) if each.rule == rule]
    assert said in found[0].detail
    assert result.conforms == (rule in TIMED)


def test_every_rule_has_a_backend_that_breaks_it() -> None:
    (mark,) = test_a_rule_catches_who_breaks_it.pytestmark  # type: ignore[attr-defined]
    assert {rule for _, rule, _ in mark.args[1]} == RULES


def test_a_backend_that_refuses_everything_does_not_conform() -> None:
    class Nothing(SyntheticBackend):
        def layer(self, layer: Layer, *, budget_ms: float) -> Built:
            raise UnsupportedError("nothing runs")

        def network(self, *_args: object, **_words: object) -> Built:
            raise UnsupportedError("no network either")

    result = check_backend(Nothing(), SYNTHETIC, kinds=["conv", "dense"])
    assert not result.of(Verdict.FAILED)
    assert [each.detail for each in result.of(Verdict.REFUSED)] == [
        "nothing runs", "nothing runs", "no network either",
    ]  # fmt: skip
    assert not result.conforms


def card(memory_bytes: int, limit: int) -> Callable[[], SyntheticBackend]:
    """Make a backend of a card that says to have some memory, and has some other."""

    class Card(SyntheticBackend):
        def platform(self) -> Platform:
            return dataclasses.replace(
                super().platform(), accelerators=(Accelerator("C", memory_bytes),)
            )

        def layer(self, layer: Layer, *, budget_ms: float) -> Built:
            if layer.output_bytes > limit:
                raise MemoryError("CUDA out of memory")
            return super().layer(layer, budget_ms=budget_ms)

    return Card


def test_a_layer_of_twice_a_card_s_memory_is_refused() -> None:
    result = check_backend(card(80 << 30, 80 << 30)(), SYNTHETIC, kinds=["dense"])
    found = [(each.subject, each.verdict) for each in result.findings if each.rule == "memory"]
    assert found == [("activation", Verdict.PASSED), ("conv", Verdict.PASSED)]
    result = check_backend(card(80 << 30, 1 << 40)(), SYNTHETIC, kinds=["dense"])
    (failed,) = result.of(Verdict.FAILED)
    assert failed.detail == "a layer of 160.0 GiB was built and run"
