"""The check of all networks on all devices finds what is wrong, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import resperf

LENET = Path(__file__).parents[2] / "models" / "networks" / "lenet5.onnx"
Load = Callable[[str], ModuleType]


def test_every_shipped_device_predicts_lenet(load_tool: Load) -> None:
    tool = load_tool("check_networks")
    found = list(tool.checked(LENET, ["fp32"], 1))
    assert {kind for kind, _, _ in found} == {"prediction"}
    devices = {text for _, _, text in found}
    assert {"1080ti tensorflow", "rtx4090 torch", "h100 torch", "cpu onnxruntime"} <= devices


def test_a_precision_that_a_card_lacks_is_no_fault_but_a_wrong_batch_is(load_tool: Load) -> None:
    tool = load_tool("check_networks")
    kinds = {kind for kind, _, _ in tool.checked(LENET, ["fp16"], 1)}
    assert "prediction" in kinds
    assert "fault" not in kinds
    (fault,) = tool.checked(LENET.with_name("absent.onnx"), ["fp32"], 1)
    assert fault[0] == "fault"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda layer: replace(layer, execution_ms=math.nan), "nan ms"),
        (lambda layer: replace(layer, execution_ms=-1.0), "-1.0 ms"),
        (lambda layer: replace(layer, low_ms=layer.execution_ms * 2), "outside its interval"),
    ],
)
def test_a_layer_without_a_sound_time_is_a_fault(
    load_tool: Load, change: Callable[[object], object], word: str
) -> None:
    tool = load_tool("check_networks")
    sound = resperf.predict(LENET, device="h100", batch=1)
    assert list(tool.faults(sound)) == []
    first, *rest = sound.layers
    wrong = replace(sound, parts=replace(sound.parts, layers=(change(first), *rest)))
    assert any(f"layer {first.name}" in text and word in text for text in tool.faults(wrong))
